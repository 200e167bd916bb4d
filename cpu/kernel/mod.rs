//! Arithmetic on plain arrays: one algorithm each, by instruction set where that pays.

pub mod bandwidth;
pub mod ceilings;
pub mod gemm;
pub mod im2col;
pub mod peak;
