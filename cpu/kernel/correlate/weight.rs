//! The tile of a weight's gradient, for every instruction set.

use super::WeightTile;
use crate::kernel::simd::{Product, Simd};

/// Pixels that a prefetch runs ahead.
const AHEAD: usize = 16;

/// Computes a tile of `SOURCES` sources by `VECTORS` vectors; pixels lie `PIXEL` elements apart in the input.
///
/// # Safety
/// The CPU has the instruction set of `P`; all pointers of `t` lead to what its fields say; `t.offsets` holds
/// `SOURCES` places.
#[inline(always)]
pub(super) unsafe fn tile<
    S: Simd,
    P: Product<Registers = S>,
    const SOURCES: usize,
    const VECTORS: usize,
    const PIXEL: usize,
>(
    t: &WeightTile<'_>,
) {
    // SAFETY: by contract.
    unsafe {
        let at = |k: usize, v: usize| t.dw.add(k * t.dw_source + v * S::LANES);
        let mut sums = [[S::zero(); VECTORS]; SOURCES];
        if t.add {
            for (k, source) in sums.iter_mut().enumerate() {
                for (v, sum) in source.iter_mut().enumerate() {
                    *sum = S::load(at(k, v));
                }
            }
        }
        let mut sources = [t.x; SOURCES];
        for (source, offset) in sources.iter_mut().zip(t.offsets) {
            *source = t.x.add(*offset as usize);
        }
        for row in 0..t.pixels[0] {
            let mut dy = t.dy.add(row * t.dy_row);
            let mut place = row * t.x_row;
            for _ in 0..t.pixels[1] {
                let mut gradients = [S::zero(); VECTORS];
                for (v, gradient) in gradients.iter_mut().enumerate() {
                    *gradient = S::load(dy.add(v * t.dy_vector));
                }
                if PIXEL > 1 {
                    S::prefetch(sources[0].wrapping_add(place + AHEAD * PIXEL));
                }
                for (source, x) in sums.iter_mut().zip(sources) {
                    let value = S::splat(*x.add(place));
                    for (sum, gradient) in source.iter_mut().zip(gradients) {
                        *sum = P::add(value, gradient, *sum);
                    }
                }
                place += PIXEL;
                dy = dy.add(S::LANES);
            }
        }
        for (k, source) in sums.iter().enumerate() {
            for (v, sum) in source.iter().enumerate() {
                S::store(at(k, v), *sum);
            }
        }
    }
}
