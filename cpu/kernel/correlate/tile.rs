//! The tile of outputs, for every instruction set.

use super::{End, Kept, Start, Tile};
use crate::kernel::simd::{Product, Simd};
use crate::kernel::stored::{AsF32, Stored};
use crate::machine::LINE;

/// Sources of a block of channels of AVX2, which are added without a loop. Measured on a Zen 3, both ways in turn within one run, forward
/// and ∇A on one and two threads: 0.89 to 1.0 of the time of 1×1 kernels, 0.94 in the mean, and 0.92 to 1.02, 0.96 in the mean, of
/// Winograd's directions. A block of AVX-512 is four times the code, and its loop begins a fifth as often.
const WHOLE: usize = 8;

/// Computes a tile of `ROWS` pixels, `PIXEL` elements apart in the input, by `VECTORS` vectors.
///
/// # Safety
/// The CPU has the instruction set of `P`; all pointers of `t` lead to what its fields say.
#[inline(always)]
pub(super) unsafe fn tile<
    S: Simd,
    P: Product<Registers = S>,
    const ROWS: usize,
    const VECTORS: usize,
    const PIXEL: usize,
>(
    t: &Tile<'_>,
) {
    // SAFETY: by contract.
    unsafe {
        let mut sums = [[S::zero(); VECTORS]; ROWS];
        // All pixels have the same bias.
        let numbers = match t.start {
            Start::Bias(bias) => Some((bias, [0, S::LANES])),
            Start::There => Some((t.y.cast_const(), [t.y_pixel, t.y_vector])),
            Start::Zero | Start::Kept(_) => None,
        };
        if let Some((first, [pixel, vector])) = numbers {
            for (r, row) in sums.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = S::load(first.wrapping_add(r * pixel + v * vector));
                }
            }
        } else if let Start::Kept(Kept { y, pixel, vector }) = t.start {
            for (r, row) in sums.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = P::Kept::load(y.wrapping_add(r * pixel + v * vector));
                }
            }
        }
        let mut ahead = t.ahead;
        for run in t.runs {
            for _ in 0..t.ahead_lines {
                S::prefetch_far(ahead);
                ahead = ahead.wrapping_add(LINE);
            }
            let x = t.x.add(run.offset as usize);
            let w = t.w.add(run.first as usize * VECTORS * S::LANES);
            if PIXEL > 1 {
                // What the next tile of the row sees of this run: a line holds one pixel, or two of half a vector.
                for r in (0..ROWS).step_by(S::LANES.div_ceil(PIXEL)) {
                    S::prefetch(x.wrapping_add((ROWS + r) * PIXEL));
                }
            }
            let row = VECTORS * S::LANES;
            if S::LANES == WHOLE && PIXEL == WHOLE && run.len as usize == WHOLE {
                for i in 0..WHOLE {
                    step::<S, P, ROWS, VECTORS, PIXEL>(&mut sums, x.add(i), w.add(i * row));
                }
                continue;
            }
            for i in 0..run.len as usize {
                step::<S, P, ROWS, VECTORS, PIXEL>(&mut sums, x.add(i), w.add(i * row));
            }
        }
        store::<S, P, ROWS, VECTORS>(t, sums);
    }
}

/// Adds the products of a source.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn step<
    S: Simd,
    P: Product<Registers = S>,
    const ROWS: usize,
    const VECTORS: usize,
    const PIXEL: usize,
>(
    sums: &mut [[S::Vector; VECTORS]; ROWS],
    x: *const f32,
    w: *const f32,
) {
    // SAFETY: by contract.
    unsafe {
        let mut weights = [S::zero(); VECTORS];
        for (v, weight) in weights.iter_mut().enumerate() {
            *weight = S::load(w.add(v * S::LANES));
        }
        for (r, row) in sums.iter_mut().enumerate() {
            let value = S::splat(*x.add(r * PIXEL));
            for (sum, weight) in row.iter_mut().zip(weights) {
                *sum = P::add(value, weight, *sum);
            }
        }
    }
}

/// Stores the sums of a tile where they end.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn store<S: Simd, P: Product<Registers = S>, const ROWS: usize, const VECTORS: usize>(
    t: &Tile<'_>,
    mut sums: [[S::Vector; VECTORS]; ROWS],
) {
    // SAFETY: by contract.
    unsafe {
        if t.relu {
            for sum in sums.as_flattened_mut() {
                *sum = S::rectified(*sum);
            }
        }
        if let Some(sign) = t.sign {
            match t.end {
                End::There => let_pass::<S, AsF32, ROWS, VECTORS>(&mut sums, sign, [t.y_pixel, t.y_vector]),
                End::Kept(Kept { pixel, vector, .. }) => {
                    let_pass::<S, P::Kept, ROWS, VECTORS>(&mut sums, sign, [pixel, vector]);
                }
            }
        }
        match t.end {
            End::There => {
                for (r, row) in sums.iter().enumerate() {
                    for (v, sum) in row.iter().enumerate() {
                        S::store(t.y.wrapping_add(r * t.y_pixel + v * t.y_vector), *sum);
                    }
                }
            }
            End::Kept(Kept { y, pixel, vector }) => {
                for (r, row) in sums.iter().enumerate() {
                    for (v, sum) in row.iter().enumerate() {
                        P::Kept::store(y.add(r * pixel + v * vector), *sum);
                    }
                }
            }
        }
    }
}

/// Lets the sums pass for which a ReLU's values are above 0, and makes the others 0. The values of pixel 0 and the first vector lie at
/// `sign`, pixels and vectors so many words apart.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn let_pass<S: Simd, E: Stored<S>, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[S::Vector; VECTORS]; ROWS],
    sign: *const f32,
    [pixel, vector]: [usize; 2],
) {
    for (r, row) in sums.iter_mut().enumerate() {
        for (v, sum) in row.iter_mut().enumerate() {
            // SAFETY: by contract.
            *sum = unsafe { S::passed(*sum, E::load(sign.add(r * pixel + v * vector))) };
        }
    }
}
