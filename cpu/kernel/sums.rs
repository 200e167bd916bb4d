//! Sums over arrays: in many lanes over pieces that are short enough to lose little, and then in double precision. The
//! order depends on the length alone, so it is the same for any tier and number of threads.

use super::vectorised::Vectorised;

/// Terms that are added side by side: some vectors of every tier.
const LANES: usize = 64;

/// Values whose terms are added in single precision.
const PIECE: usize = 32 * LANES;

/// Adds Σ f(x) to a sum.
pub(crate) struct Sum<'a, F> {
    pub x: &'a [f32],
    pub f: F,
    pub to: &'a mut f64,
}

impl<F: Fn(f32) -> f32> Vectorised for Sum<'_, F> {
    #[inline(always)]
    fn run(self) {
        for piece in self.x.chunks(PIECE) {
            let mut sums = [0.0f32; LANES];
            let (rows, rest) = piece.as_chunks::<LANES>();
            for row in rows {
                for lane in 0..LANES {
                    sums[lane] += (self.f)(row[lane]);
                }
            }
            for lane in 0..rest.len().min(LANES) {
                sums[lane] += (self.f)(rest[lane]);
            }
            *self.to += total(&sums);
        }
    }
}

/// Adds Σ f(a, b) to a sum.
pub(crate) struct SumOfPairs<'a, F> {
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub f: F,
    pub to: &'a mut f64,
}

impl<F: Fn(f32, f32) -> f32> Vectorised for SumOfPairs<'_, F> {
    #[inline(always)]
    fn run(self) {
        for (a, b) in self.a.chunks(PIECE).zip(self.b.chunks(PIECE)) {
            let mut sums = [0.0f32; LANES];
            let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
            for (a, b) in a.iter().zip(b) {
                for lane in 0..LANES {
                    sums[lane] += (self.f)(a[lane], b[lane]);
                }
            }
            for lane in 0..a_rest.len().min(b_rest.len()).min(LANES) {
                sums[lane] += (self.f)(a_rest[lane], b_rest[lane]);
            }
            *self.to += total(&sums);
        }
    }
}

#[inline(always)]
fn total(sums: &[f32; LANES]) -> f64 {
    let mut total = 0.0;
    for sum in sums {
        total += f64::from(*sum);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernel::vectorised::on;

    #[test]
    fn sums_of_all_lengths_are_those_of_integers() {
        for isa in Isa::available() {
            for count in [0, 1, 63, 64, 65, 130, PIECE - 1, PIECE, 3 * PIECE + 70] {
                let a: Vec<f32> = (0..count).map(|i| (i % 7) as f32 - 2.0).collect();
                let b: Vec<f32> = (0..count).map(|i| (i % 5) as f32).collect();
                let (mut sum, mut pairs) = (1.0, 0.0);
                on(isa, Sum { x: &a, f: |x| 2.0 * x, to: &mut sum });
                on(isa, SumOfPairs { a: &a, b: &b, f: |a, b| a * b, to: &mut pairs });
                let of = |f: &dyn Fn(usize) -> f32| (0..count).map(|i| f64::from(f(i))).sum::<f64>();
                assert_eq!((sum, pairs), (1.0 + of(&|i| 2.0 * a[i]), of(&|i| a[i] * b[i])), "{count}");
            }
        }
    }
}
