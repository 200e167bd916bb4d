//! Arithmetic on plain arrays: one algorithm each, by instruction set where that pays.

pub mod bandwidth;
pub(crate) mod bends;
pub mod ceilings;
pub(crate) mod channels;
pub(crate) mod correlate;
pub(crate) mod element;
pub(crate) mod elements;
pub(crate) mod few;
pub mod finite;
pub(crate) mod functions;
pub mod gemm;
pub mod im2col;
pub mod peak;
pub(crate) mod simd;
pub(crate) mod stored;
pub(crate) mod strip;
pub(crate) mod summed;
pub(crate) mod sums;
pub(crate) mod vectorised;
pub(crate) mod winograd;
pub(crate) mod words;
