//! The quadrant engine from outside: exact arithmetic, the same bits, refusals, and no allocation after a step.

mod allocation;
mod bits;
mod common;
mod exact;
mod fusion;
mod gemm;
mod refusals;
mod running_sums;
mod watchdog;
