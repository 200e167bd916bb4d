//! InnerProduct: on register tiles that read the weights where they lie, or as packed matrix products.

mod gemm;
mod tiles;

pub(super) use gemm::build as gemm;
pub(super) use tiles::{build as tiles, build_bf16 as tiles_bf16, fits as fits_tiles, fits_bf16};
