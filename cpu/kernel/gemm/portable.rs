//! The tier that every CPU has: the `matrixmultiply` crate.

use super::{Into, Product};

/// See [`super::gemm`], which has checked the extents.
pub(super) fn gemm(product: &Product<'_>, c: &mut [f32], c_stride: usize) {
    let Product { extents: e, a, b, into } = *product;
    let beta = if into == Into::Add { 1.0 } else { 0.0 };
    // SAFETY: the caller has checked that the last element of each matrix lies inside its slice.
    unsafe {
        matrixmultiply::sgemm(
            e.rows,
            e.depth,
            e.columns,
            1.0,
            a.values.as_ptr(),
            a.row_stride as isize,
            a.column_stride as isize,
            b.values.as_ptr(),
            b.row_stride as isize,
            b.column_stride as isize,
            beta,
            c.as_mut_ptr(),
            c_stride as isize,
            1,
        );
    }
}
