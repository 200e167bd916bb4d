//! Matrix products, `C = A·B` or `C += A·B`.
//!
//! The algorithm stands here once: blocks of B are packed into panels as wide as the register tile, blocks of A
//! into panels as high as it, and the tile of C is summed over the depth of the block. Each element of C is one
//! chain of fused multiply-adds in ascending order of depth, block by block, so its value does not depend on how C
//! was cut. The tiers differ in `Simd` and the size of the tile.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::isa::{Isa, Vectors};
use crate::machine::Machine;

/// A matrix in memory: element (row, column) is at `row · row_stride + column · column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// The values.
    pub values: &'a [f32],
    /// Distance of rows.
    pub row_stride: usize,
    /// Distance of columns.
    pub column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix whose rows lie `stride` apart.
    pub fn rows(values: &'a [f32], stride: usize) -> Self {
        Self { values, row_stride: stride, column_stride: 1 }
    }

    /// The transpose.
    pub fn transposed(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// Whether element (rows − 1, columns − 1) lies inside.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        last(rows, self.row_stride, columns, self.column_stride).is_some_and(|last| last < self.values.len())
    }
}

/// Place of the last element of a matrix; `None` if no memory is that large.
fn last(rows: usize, row_stride: usize, columns: usize, column_stride: usize) -> Option<usize> {
    (rows - 1).checked_mul(row_stride)?.checked_add((columns - 1).checked_mul(column_stride)?)
}

/// Extents of a product: A is rows × depth, B is depth × columns, C is rows × columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Rows of A and C.
    pub rows: usize,
    /// Columns of B and C.
    pub columns: usize,
    /// Columns of A and rows of B.
    pub depth: usize,
}

/// Whether the product replaces C or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// `C = A·B`.
    Replace,
    /// `C += A·B`.
    Add,
}

/// A product.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// Its extents.
    pub extents: Extents,
    /// The left factor, rows × depth.
    pub a: Matrix<'a>,
    /// The right factor, depth × columns.
    pub b: Matrix<'a>,
    /// What happens to C.
    pub into: Into,
}

/// Elements of scratch memory that [`gemm`] needs for products of these extents.
pub fn scratch(isa: Isa, extents: Extents) -> usize {
    if isa == Isa::Portable {
        return 0;
    }
    let m = Machine::of(isa);
    let depth = extents.depth.min(m.block_depth).max(1);
    let columns = extents.columns.min(m.block_columns).next_multiple_of(m.tile_columns);
    let rows = extents.rows.min(m.block_rows).next_multiple_of(m.tile_rows);
    // Both panels and one tile for the edges; 16 more to start at a vector.
    depth * (columns + rows) + m.tile_rows * m.tile_columns + 16
}

/// Computes a product with the kernels of `isa`; rows of `c` lie `c_stride` apart. `scratch` holds what
/// [`scratch`] says.
///
/// # Panics
/// If a slice is too short for its extents.
pub fn gemm(isa: Isa, product: &Product<'_>, c: &mut [f32], c_stride: usize, scratch: &mut [f32]) {
    let Product { extents: Extents { rows, columns, depth }, a, b, .. } = *product;
    if rows == 0 || columns == 0 {
        return;
    }
    let fits = last(rows, c_stride, columns, 1).is_some_and(|last| last < c.len());
    assert!(fits && (rows == 1 || columns <= c_stride), "C is too short");
    assert!(depth == 0 || (a.holds(rows, depth) && b.holds(depth, columns)), "A or B is too short");
    match isa.vectors() {
        Vectors::None => portable::gemm(product, c, c_stride),
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => x86::gemm_avx2(product, c, c_stride, scratch),
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512f => x86::gemm_avx512f(product, c, c_stride, scratch),
        #[cfg(not(target_arch = "x86_64"))]
        _ => portable::gemm(product, c, c_stride),
    }
}
