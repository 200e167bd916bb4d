//! The crate from outside, on machines that are not here.

mod described;
mod fixture;
mod machines;
mod memory_plan;
mod parts;
mod text;
