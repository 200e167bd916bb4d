//! Filtering along one axis with few products, as `y = Aᵀ[(G g) ⊙ (Bᵀ d)]` for inputs d, taps g and outputs y.
//!
//! All constants are powers of two, so small integers stay exact. A square of pixels is filtered by the same matrices over
//! its rows and then over its columns.

use crate::kernel::simd::Simd;

/// The matrices of a way to filter: `D` inputs, `Y` outputs, `G` taps, `P` products.
///
/// # Safety
/// All functions: the CPU has the instructions of `S`.
pub(super) trait Axis<const D: usize, const Y: usize, const G: usize, const P: usize> {
    /// `Bᵀ`.
    unsafe fn inputs<S: Simd>(d: [S::Vector; D]) -> [S::Vector; P];
    /// `G`.
    unsafe fn weights<S: Simd>(g: [S::Vector; G]) -> [S::Vector; P];
    /// `Aᵀ`.
    unsafe fn outputs<S: Simd>(m: [S::Vector; P]) -> [S::Vector; Y];
    /// `A`: the gradients of products from those of outputs.
    unsafe fn gradients<S: Simd>(y: [S::Vector; Y]) -> [S::Vector; P];
    /// `B`: the gradients of inputs from those of transformed inputs.
    unsafe fn inputs_back<S: Simd>(m: [S::Vector; P]) -> [S::Vector; D];
    /// `Gᵀ`: the gradients of taps from those of transformed weights.
    unsafe fn weights_back<S: Simd>(u: [S::Vector; P]) -> [S::Vector; G];
}

/// Winograd's F(2, 3): two outputs of three taps from 4 products instead of 6.
///
/// ```text
/// Bᵀ = 1  0 -1  0     G = 1   0   0     Aᵀ = 1 1  1  0
///      0  1  1  0         ½   ½   ½          0 1 -1 -1
///      0 -1  1  0         ½  -½   ½
///      0  1  0 -1         0   0   1
/// ```
///
/// Magnitudes grow at most by 2 (inputs), 1.5 (weights) and 3 (outputs).
pub(super) struct F2x3;

impl Axis<4, 2, 3, 4> for F2x3 {
    #[inline(always)]
    unsafe fn inputs<S: Simd>(d: [S::Vector; 4]) -> [S::Vector; 4] {
        // SAFETY: the CPU has the instruction set by contract of the caller.
        unsafe {
            [S::subtract(d[0], d[2]), S::add(d[1], d[2]), S::subtract(d[2], d[1]), S::subtract(d[1], d[3])]
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(g: [S::Vector; 3]) -> [S::Vector; 4] {
        // SAFETY: as above.
        unsafe {
            let half = S::splat(0.5);
            let (outer, middle) = (S::multiply(half, S::add(g[0], g[2])), S::multiply(half, g[1]));
            [g[0], S::add(outer, middle), S::subtract(outer, middle), g[2]]
        }
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd>(m: [S::Vector; 4]) -> [S::Vector; 2] {
        // SAFETY: as above.
        unsafe { [S::add(m[0], S::add(m[1], m[2])), S::subtract(S::subtract(m[1], m[2]), m[3])] }
    }

    #[inline(always)]
    unsafe fn gradients<S: Simd>(y: [S::Vector; 2]) -> [S::Vector; 4] {
        // SAFETY: as above.
        unsafe { [y[0], S::add(y[0], y[1]), S::subtract(y[0], y[1]), S::subtract(S::zero(), y[1])] }
    }

    #[inline(always)]
    unsafe fn inputs_back<S: Simd>(m: [S::Vector; 4]) -> [S::Vector; 4] {
        // SAFETY: as above.
        unsafe {
            let difference = S::subtract(m[1], m[2]);
            [
                m[0],
                S::add(difference, m[3]),
                S::subtract(S::add(m[1], m[2]), m[0]),
                S::subtract(S::zero(), m[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn weights_back<S: Simd>(u: [S::Vector; 4]) -> [S::Vector; 3] {
        // SAFETY: as above.
        unsafe {
            let half = S::splat(0.5);
            let (sum, difference) =
                (S::multiply(half, S::add(u[1], u[2])), S::multiply(half, S::subtract(u[1], u[2])));
            [S::add(u[0], sum), difference, S::add(sum, u[3])]
        }
    }
}

/// F(4, 3) whose constants are powers of two: four outputs of three taps from 7 products instead of 12.
///
/// Winograd's F(4, 3) from 6 products reads polynomials at 0, ±1, ±2 and ∞, and divides by 3. Here they are read at 0, ±1, ∞ and
/// ±i: modulo x² + 1, where Karatsuba multiplies with three products. All points lie on the unit circle but the two that stand
/// for the ends, so magnitudes hardly grow: errors are 1.1 times those of F(2, 3), in f32 and where operands are rounded to bf16, and
/// those of F(4, 3) from 6 products are 5 and 6 times as large as those of F(2, 3). (Planes of random normal operands, 64 channels, root mean square.)
///
/// ```text
/// Bᵀ = 1  0  0  0 -1  0     G = 1   0   0     Aᵀ = 1 1  1 -1 0  1 0
///      0  1  1  1  1  0         ¼   ¼   ¼          0 1 -1  0 1  1 0
///      0 -1  1 -1  1  0         ¼  -¼   ¼          0 1  1  1 0 -1 0
///      0  1  1 -1 -1  0         ½   0  -½          0 1 -1  0 -1 -1 1
///      0 -1  1  1 -1  0         0   ½   0
///      0  1  0 -1  0  0         ½   ½  -½
///      0 -1  0  0  0  1         0   0   1
/// ```
///
/// Magnitudes grow at most by 4 (inputs), 1.5 (weights) and 5 (outputs).
pub(super) struct F4x3;

impl Axis<6, 4, 3, 7> for F4x3 {
    #[inline(always)]
    unsafe fn inputs<S: Simd>(d: [S::Vector; 6]) -> [S::Vector; 7] {
        // SAFETY: the CPU has the instruction set by contract of the caller.
        unsafe {
            let (odd, even) = (S::add(d[1], d[3]), S::add(d[2], d[4]));
            let (odd_step, even_step) = (S::subtract(d[1], d[3]), S::subtract(d[2], d[4]));
            [
                S::subtract(d[0], d[4]),
                S::add(even, odd),
                S::subtract(even, odd),
                S::add(even_step, odd_step),
                S::subtract(even_step, odd_step),
                odd_step,
                S::subtract(d[5], d[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(g: [S::Vector; 3]) -> [S::Vector; 7] {
        // SAFETY: as above.
        unsafe {
            let (half, quarter) = (S::splat(0.5), S::splat(0.25));
            let (outer, middle) = (S::multiply(quarter, S::add(g[0], g[2])), S::multiply(quarter, g[1]));
            let (real, imaginary) = (S::multiply(half, S::subtract(g[0], g[2])), S::multiply(half, g[1]));
            [
                g[0],
                S::add(outer, middle),
                S::subtract(outer, middle),
                real,
                imaginary,
                S::add(real, imaginary),
                g[2],
            ]
        }
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd>(m: [S::Vector; 7]) -> [S::Vector; 4] {
        // SAFETY: as above.
        unsafe {
            let (sum, difference) = (S::add(m[1], m[2]), S::subtract(m[1], m[2]));
            let (even, odd) = (S::subtract(m[5], m[3]), S::add(m[5], m[4]));
            [
                S::add(m[0], S::add(sum, even)),
                S::add(difference, odd),
                S::subtract(sum, even),
                S::add(S::subtract(difference, odd), m[6]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn gradients<S: Simd>(y: [S::Vector; 4]) -> [S::Vector; 7] {
        // SAFETY: as above.
        unsafe {
            let (even, odd) = (S::add(y[0], y[2]), S::add(y[1], y[3]));
            let odd_step = S::subtract(y[1], y[3]);
            [
                y[0],
                S::add(even, odd),
                S::subtract(even, odd),
                S::subtract(y[2], y[0]),
                odd_step,
                S::add(S::subtract(y[0], y[2]), odd_step),
                y[3],
            ]
        }
    }

    #[inline(always)]
    unsafe fn inputs_back<S: Simd>(m: [S::Vector; 7]) -> [S::Vector; 6] {
        // SAFETY: as above.
        unsafe {
            let (sum, difference) = (S::add(m[1], m[2]), S::subtract(m[1], m[2]));
            let (even, odd) = (S::add(m[3], m[4]), S::add(S::subtract(m[3], m[4]), m[5]));
            [
                m[0],
                S::subtract(S::add(difference, odd), m[6]),
                S::add(sum, even),
                S::subtract(difference, odd),
                S::subtract(S::subtract(sum, even), m[0]),
                m[6],
            ]
        }
    }

    #[inline(always)]
    unsafe fn weights_back<S: Simd>(u: [S::Vector; 7]) -> [S::Vector; 3] {
        // SAFETY: as above.
        unsafe {
            let (half, quarter) = (S::splat(0.5), S::splat(0.25));
            let (outer, middle) =
                (S::multiply(quarter, S::add(u[1], u[2])), S::multiply(quarter, S::subtract(u[1], u[2])));
            let (real, imaginary) =
                (S::multiply(half, S::add(u[3], u[5])), S::multiply(half, S::add(u[4], u[5])));
            [
                S::add(S::add(u[0], outer), real),
                S::add(middle, imaginary),
                S::add(S::subtract(outer, real), u[6]),
            ]
        }
    }
}

/// F(4, 5) by nesting: four outputs of five taps from 11 products instead of 20.
///
/// Outputs, taps and inputs are taken in pairs. With pairs for numbers this is F(2, 3): two pairs of outputs, the three
/// pairs of taps (g₀, g₁), (g₂, g₃), (g₄, 0). Each of its four products is a filter of two taps and two outputs, so it takes
/// three inputs (neighbouring pairs overlap) and, by Karatsuba's F(2, 2), three products:
///
/// ```text
/// y₀ = (d₀ - d₁) h₀ + d₁ (h₀ + h₁)     y₁ = d₁ (h₀ + h₁) - (d₁ - d₂) h₁
/// ```
///
/// The pair (g₄, 0) needs but two: y₀ = d₀ g₄ and y₁ = d₁ g₄. F(4, 5) from 8 products has constants that are no powers of
/// two and, in f32, much larger errors. Magnitudes grow at most by 4 (inputs), 2.5 (weights) and 6 (outputs).
pub(super) struct F4x5;

/// Products of the pairs of F(2, 3): 3, 3, 3 and 2.
impl Axis<8, 4, 5, 11> for F4x5 {
    #[inline(always)]
    unsafe fn inputs<S: Simd>(d: [S::Vector; 8]) -> [S::Vector; 11] {
        // SAFETY: the CPU has the instruction set by contract of the caller.
        unsafe {
            let step = |i: usize| S::subtract(d[i], d[i + 1]);
            // What F(2, 2) makes of the three inputs from 0, from 2 and from 4 on.
            let (a, b, c) = ([step(0), d[1], step(1)], [step(2), d[3], step(3)], [step(4), d[5], step(5)]);
            [
                S::subtract(a[0], c[0]),
                S::subtract(a[1], c[1]),
                S::subtract(a[2], c[2]),
                S::add(b[0], c[0]),
                S::add(b[1], c[1]),
                S::add(b[2], c[2]),
                S::subtract(c[0], b[0]),
                S::subtract(c[1], b[1]),
                S::subtract(c[2], b[2]),
                S::subtract(d[2], d[6]),
                S::subtract(d[3], d[7]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(g: [S::Vector; 5]) -> [S::Vector; 11] {
        // SAFETY: as above.
        unsafe {
            let half = S::splat(0.5);
            let outer = [S::multiply(half, S::add(g[0], g[4])), S::multiply(half, g[1])];
            let middle = [S::multiply(half, g[2]), S::multiply(half, g[3])];
            let sum = [S::add(outer[0], middle[0]), S::add(outer[1], middle[1])];
            let difference = [S::subtract(outer[0], middle[0]), S::subtract(outer[1], middle[1])];
            [
                g[0],
                S::add(g[0], g[1]),
                g[1],
                sum[0],
                S::add(sum[0], sum[1]),
                sum[1],
                difference[0],
                S::add(difference[0], difference[1]),
                difference[1],
                g[4],
                g[4],
            ]
        }
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd>(m: [S::Vector; 11]) -> [S::Vector; 4] {
        // SAFETY: as above.
        unsafe {
            let sums = [S::add(m[3], m[6]), S::add(m[4], m[7]), S::add(m[5], m[8])];
            let first = [S::add(m[0], sums[0]), S::add(m[1], sums[1]), S::add(m[2], sums[2])];
            let second = [S::subtract(m[3], m[6]), S::subtract(m[4], m[7]), S::subtract(m[5], m[8])];
            [
                S::add(first[0], first[1]),
                S::subtract(first[1], first[2]),
                S::subtract(S::add(second[0], second[1]), m[9]),
                S::subtract(S::subtract(second[1], second[2]), m[10]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn gradients<S: Simd>(y: [S::Vector; 4]) -> [S::Vector; 11] {
        // SAFETY: as above.
        unsafe {
            let negative = |v| S::subtract(S::zero(), v);
            // What F(2, 2) makes of the gradients of either pair of outputs.
            let a = [y[0], S::add(y[0], y[1]), negative(y[1])];
            let b = [y[2], S::add(y[2], y[3]), negative(y[3])];
            [
                a[0],
                a[1],
                a[2],
                S::add(a[0], b[0]),
                S::add(a[1], b[1]),
                S::add(a[2], b[2]),
                S::subtract(a[0], b[0]),
                S::subtract(a[1], b[1]),
                S::subtract(a[2], b[2]),
                negative(y[2]),
                negative(y[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn inputs_back<S: Simd>(m: [S::Vector; 11]) -> [S::Vector; 8] {
        // SAFETY: as above.
        unsafe {
            // The gradients of what F(2, 2) makes of the three inputs from 2 and from 4 on; those from 0 on have the first three.
            let b = [S::subtract(m[3], m[6]), S::subtract(m[4], m[7]), S::subtract(m[5], m[8])];
            let sums = [S::add(m[3], m[6]), S::add(m[4], m[7]), S::add(m[5], m[8])];
            let c = [S::subtract(sums[0], m[0]), S::subtract(sums[1], m[1]), S::subtract(sums[2], m[2])];
            let middle = |v: [S::Vector; 3]| S::add(S::subtract(v[1], v[0]), v[2]);
            [
                m[0],
                middle([m[0], m[1], m[2]]),
                S::add(S::subtract(b[0], m[2]), m[9]),
                S::add(middle(b), m[10]),
                S::subtract(c[0], b[2]),
                middle(c),
                S::subtract(S::zero(), S::add(c[2], m[9])),
                S::subtract(S::zero(), m[10]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn weights_back<S: Simd>(u: [S::Vector; 11]) -> [S::Vector; 5] {
        // SAFETY: as above.
        unsafe {
            let half = S::splat(0.5);
            // The gradients of the two taps of each pair, of its sum and of its difference with the others.
            let pair = |at: usize| [S::add(u[at], u[at + 1]), S::add(u[at + 1], u[at + 2])];
            let (first, sum, difference) = (pair(0), pair(3), pair(6));
            let outer = [
                S::multiply(half, S::add(sum[0], difference[0])),
                S::multiply(half, S::add(sum[1], difference[1])),
            ];
            let middle = [
                S::multiply(half, S::subtract(sum[0], difference[0])),
                S::multiply(half, S::subtract(sum[1], difference[1])),
            ];
            [
                S::add(first[0], outer[0]),
                S::add(first[1], outer[1]),
                middle[0],
                middle[1],
                S::add(outer[0], S::add(u[9], u[10])),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, Vectors};
    use crate::kernel::vectorised::{Explicit, with_vectors};

    /// Compares each matrix with the one that takes gradients back through it.
    struct Turned;

    /// Whether `back` is `there` turned over its diagonal: element by element.
    fn is_turned<S: Simd, const A: usize, const B: usize>(
        there: impl Fn([S::Vector; A]) -> [S::Vector; B],
        back: impl Fn([S::Vector; B]) -> [S::Vector; A],
    ) -> bool {
        // SAFETY: who calls has the instructions of `S`; a register has at most 16 numbers.
        let number = |value: S::Vector| unsafe {
            let mut numbers = [0.0; 16];
            S::store(numbers.as_mut_ptr(), value);
            numbers[0]
        };
        // SAFETY: as above.
        let one = |at: usize, i: usize| unsafe { S::splat(if at == i { 1.0 } else { 0.0 }) };
        let is_same = |i: usize, j: usize| {
            let (a, b) = (std::array::from_fn(|at| one(at, i)), std::array::from_fn(|at| one(at, j)));
            number(there(a)[j]) == number(back(b)[i])
        };
        (0..A).all(|i| (0..B).all(|j| is_same(i, j)))
    }

    impl Turned {
        /// # Safety
        /// The CPU has the instructions of `S`.
        unsafe fn check<S: Simd, F, const D: usize, const Y: usize, const G: usize, const P: usize>()
        where
            F: Axis<D, Y, G, P>,
        {
            // SAFETY: by contract.
            unsafe {
                assert!(is_turned::<S, D, P>(|d| F::inputs::<S>(d), |m| F::inputs_back::<S>(m)));
                assert!(is_turned::<S, G, P>(|g| F::weights::<S>(g), |u| F::weights_back::<S>(u)));
                assert!(is_turned::<S, P, Y>(|m| F::outputs::<S>(m), |y| F::gradients::<S>(y)));
            }
        }
    }

    impl Explicit for Turned {
        unsafe fn run<S: Simd>(self) {
            // SAFETY: by contract.
            unsafe {
                Self::check::<S, F2x3, 4, 2, 3, 4>();
                Self::check::<S, F4x3, 6, 4, 3, 7>();
                Self::check::<S, F4x5, 8, 4, 5, 11>();
            }
        }
    }

    #[test]
    fn gradients_go_back_through_the_matrices_turned() {
        for isa in Isa::ALL {
            if isa.is_available() && isa.vectors() != Vectors::None {
                with_vectors(isa, Turned);
            } else {
                println!("skipped: {isa} has no vectors here");
            }
        }
    }
}
