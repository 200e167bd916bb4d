//! AVX2 and AVX-512F: the packed product over register tiles.

use super::{Into, Matrix, Product};
use crate::isa::Isa;
use crate::kernel::simd::{Avx2, Avx512f, Simd};
use crate::machine::Machine;

/// Steps of depth that are transposed together: 16 of them, 32 wide, are 2 KiB.
const TRANSPOSED_DEPTH: usize = 16;
const AVX2_TABLE: Machine = Machine::of(Isa::Avx2);
const AVX512F_TABLE: Machine = Machine::of(Isa::Avx512f);

/// See [`super::gemm`], which has checked the extents.
pub(super) fn gemm_avx2(product: &Product<'_>, c: &mut [f32], stride: usize, scratch: &mut [f32]) {
    assert!(Isa::Avx2.is_available(), "avx2 kernels on a CPU without them");
    #[target_feature(enable = "avx2,fma")]
    unsafe fn run(product: &Product<'_>, c: &mut [f32], stride: usize, scratch: &mut [f32]) {
        const ROWS: usize = AVX2_TABLE.tile_rows;
        const VECTORS: usize = AVX2_TABLE.tile_columns / Avx2::LANES;
        // SAFETY: the CPU has the features, as the caller has asserted; extents as there.
        unsafe { blocked::<Avx2, ROWS, VECTORS>(&AVX2_TABLE, product, c, stride, scratch) }
    }
    // SAFETY: the CPU has the features, as asserted.
    unsafe { run(product, c, stride, scratch) }
}

/// See [`super::gemm`], which has checked the extents.
pub(super) fn gemm_avx512f(product: &Product<'_>, c: &mut [f32], stride: usize, scratch: &mut [f32]) {
    assert!(Isa::Avx512f.is_available(), "avx512f kernels on a CPU without them");
    #[target_feature(enable = "avx512f")]
    unsafe fn run(product: &Product<'_>, c: &mut [f32], stride: usize, scratch: &mut [f32]) {
        const ROWS: usize = AVX512F_TABLE.tile_rows;
        const VECTORS: usize = AVX512F_TABLE.tile_columns / Avx512f::LANES;
        // SAFETY: the CPU has the features, as the caller has asserted; extents as there.
        unsafe { blocked::<Avx512f, ROWS, VECTORS>(&AVX512F_TABLE, product, c, stride, scratch) }
    }
    // SAFETY: the CPU has the features, as asserted.
    unsafe { run(product, c, stride, scratch) }
}

/// The loops over blocks.
///
/// # Safety
/// The CPU has the instruction set of `S`, and the extents were checked against the slices.
#[inline(always)]
unsafe fn blocked<S: Simd, const ROWS: usize, const VECTORS: usize>(
    m: &Machine,
    product: &Product<'_>,
    c: &mut [f32],
    c_stride: usize,
    scratch: &mut [f32],
) {
    let Product { extents: e, a, b, into } = *product;
    let tile_columns = VECTORS * S::LANES;
    let block_depth = e.depth.min(m.block_depth).max(1);
    let b_len = block_depth * e.columns.min(m.block_columns).next_multiple_of(tile_columns);
    let a_len = block_depth * e.rows.min(m.block_rows).next_multiple_of(ROWS);
    let aligned = scratch.as_ptr().align_offset(64).min(15);
    let (b_panels, rest) = scratch[aligned..].split_at_mut(b_len);
    let (a_panels, edge) = rest.split_at_mut(a_len);
    if e.depth == 0 && into == Into::Replace {
        for row in 0..e.rows {
            c[row * c_stride..row * c_stride + e.columns].fill(0.0);
        }
    }
    for column in (0..e.columns).step_by(m.block_columns) {
        let columns = m.block_columns.min(e.columns - column);
        for depth in (0..e.depth).step_by(m.block_depth) {
            let deep = m.block_depth.min(e.depth - depth);
            pack(b.transposed(), column, columns, depth, deep, tile_columns, b_panels);
            let add = into == Into::Add || depth > 0;
            for row in (0..e.rows).step_by(m.block_rows) {
                let rows = m.block_rows.min(e.rows - row);
                pack(a, row, rows, depth, deep, ROWS, a_panels);
                let block = Block { rows, columns, depth: deep, a_panels, b_panels, add };
                let at = row * c_stride + column;
                // SAFETY: the CPU has the instruction set; the block lies inside C, whose extents were checked.
                unsafe { block.multiply::<S, ROWS, VECTORS>(&mut c[at..], c_stride, edge) }
            }
        }
    }
}

/// Packed blocks of A and B whose product goes to a block of C.
struct Block<'a> {
    rows: usize,
    columns: usize,
    depth: usize,
    a_panels: &'a [f32],
    b_panels: &'a [f32],
    /// Whether the product is added to what is in C.
    add: bool,
}

impl Block<'_> {
    /// The loops over tiles. Tiles that stick out of C are made in `edge`, and what is inside is copied.
    ///
    /// # Safety
    /// The CPU has the instruction set of `S`; `c` holds the block's rows, `stride` apart; `edge` holds a tile.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &self,
        c: &mut [f32],
        stride: usize,
        edge: &mut [f32],
    ) {
        let (width, deep) = (VECTORS * S::LANES, self.depth);
        let b_panels = self.b_panels.chunks(deep * width).take(self.columns.div_ceil(width));
        for (j, b) in b_panels.enumerate() {
            let wide = width.min(self.columns - j * width);
            let a_panels = self.a_panels.chunks(deep * ROWS).take(self.rows.div_ceil(ROWS));
            for (i, a) in a_panels.enumerate() {
                let high = ROWS.min(self.rows - i * ROWS);
                let to = &mut c[i * ROWS * stride + j * width..];
                if high == ROWS && wide == width {
                    // SAFETY: a whole tile lies inside C.
                    unsafe { tile::<S, ROWS, VECTORS>(deep, a, b, self.add, to.as_mut_ptr(), stride) }
                    continue;
                }
                let edge = &mut edge[..ROWS * width];
                // SAFETY: `edge` holds a whole tile.
                unsafe { tile::<S, ROWS, VECTORS>(deep, a, b, false, edge.as_mut_ptr(), width) }
                for (r, from) in edge.chunks(width).take(high).enumerate() {
                    for (to, from) in to[r * stride..r * stride + wide].iter_mut().zip(from) {
                        *to = if self.add { *to + from } else { *from };
                    }
                }
            }
        }
    }
}

/// Packs `count` rows of `x` from `first`, over `deep` columns from `depth`, into panels of `width` rows: depth by
/// depth, the panel's rows side by side, missing rows as zeros.
#[inline(always)]
fn pack(
    x: Matrix<'_>,
    first: usize,
    count: usize,
    depth: usize,
    deep: usize,
    width: usize,
    panels: &mut [f32],
) {
    for (p, panel) in panels.chunks_mut(deep * width).take(count.div_ceil(width)).enumerate() {
        let rows = width.min(count - p * width);
        let start = (first + p * width) * x.row_stride + depth * x.column_stride;
        if x.row_stride == 1 {
            for (d, to) in panel.chunks_exact_mut(width).enumerate() {
                let from = &x.values[start + d * x.column_stride..][..rows];
                to[..rows].copy_from_slice(from);
                to[rows..].fill(0.0);
            }
            continue;
        }
        if rows < width {
            panel.fill(0.0);
        }
        // A few steps of depth at a time, so that what is written lies in the first-level cache for all rows.
        for (block, to) in panel.chunks_mut(TRANSPOSED_DEPTH * width).enumerate() {
            let start = start + block * TRANSPOSED_DEPTH * x.column_stride;
            for r in 0..rows {
                let from = &x.values[start + r * x.row_stride..];
                if x.column_stride == 1 {
                    for (to, value) in to.chunks_exact_mut(width).zip(from) {
                        to[r] = *value;
                    }
                } else {
                    for (to, value) in to.chunks_exact_mut(width).zip(from.iter().step_by(x.column_stride)) {
                        to[r] = *value;
                    }
                }
            }
        }
    }
}

/// One register tile: `C (+)= A_panel · B_panel`.
///
/// # Safety
/// The CPU has the instruction set of `S`; the panels hold `depth` steps; `c` points to `ROWS` rows of
/// `VECTORS · LANES` elements, `stride` apart.
#[inline(always)]
unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
    depth: usize,
    a_panel: &[f32],
    b_panel: &[f32],
    add: bool,
    c: *mut f32,
    stride: usize,
) {
    assert!(a_panel.len() >= depth * ROWS && b_panel.len() >= depth * VECTORS * S::LANES, "panels too short");
    let (mut a, mut b) = (a_panel.as_ptr(), b_panel.as_ptr());
    // SAFETY: reads stay inside the panels, as just asserted; writes inside C by contract.
    unsafe {
        let mut sums = [[S::zero(); VECTORS]; ROWS];
        for _ in 0..depth {
            let mut row_of_b = [S::zero(); VECTORS];
            for (v, vector) in row_of_b.iter_mut().enumerate() {
                *vector = S::load(b.add(v * S::LANES));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let value = S::splat(*a.add(r));
                for (sum, vector) in row.iter_mut().zip(row_of_b) {
                    *sum = S::fused(value, vector, *sum);
                }
            }
            a = a.add(ROWS);
            b = b.add(VECTORS * S::LANES);
        }
        for (r, row) in sums.iter().enumerate() {
            for (v, sum) in row.iter().enumerate() {
                let to = c.add(r * stride + v * S::LANES);
                S::store(to, if add { S::add(S::load(to), *sum) } else { *sum });
            }
        }
    }
}
