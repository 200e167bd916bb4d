//! Convolutions on real numbers against the oracle in double precision, every implementation on every tier.
//!
//! A sum of `k` products in f32 errs by at most `(k + 2)·ε·Σ|a·b|`; the oracle on magnitudes gives the sum. Winograd's
//! transforms (`kernel::winograd`) form other sums, in at most 2 + 3 + 3 roundings more along each axis: the bound is
//! `(k + 18)·ε` times the magnitudes of the transforms, which [`transformed_magnitudes`] computes for each element. Where tiles of ∇A
//! overlap it is 2 + 3 + 4 along each axis, and 3 more where four tiles meet.
//!
//! In bf16 operands are rounded first, each by at most `u = 2⁻⁸` of it. Blobs are kept in bf16: these have numbers that need
//! no rounding, so that a sum errs by `u` of its magnitudes more for its weights, and the sums of ∇W do not. Winograd's
//! operands are both rounded, by `2u + u²` together, after their transforms. A sum that is kept in bf16 is rounded once
//! more, by at most `u` of itself, error included.

use quadrille_core::layer::{Convolution, Layer, Operand};
use quadrille_core::reference::Arrays;
use quadrille_cpu::EngineOptions;
use quadrille_cpu::isa::Precision;

use crate::common::{convolution, fractions, options, ways};
use crate::exact::bench::{rounded, run, written};
use crate::exact::case::Case;
use crate::exact::transformed::{overlap, transformed_magnitudes};

const EPSILON: f64 = f32::EPSILON as f64;
/// What rounding to bf16 makes of a number at most.
const U: f64 = 1.0 / 256.0;

/// Products that are summed up for one element of what a sub-task writes.
fn depth(operand: Operand, layer: &Convolution, case: &Case) -> usize {
    let taps = layer.kernel[0] * layer.kernel[1];
    let (bottom, top) = (&case.bottoms[0], case.net.top_shapes(case.id).swap_remove(0));
    match operand {
        Operand::Top(_) => bottom.dim(1) / layer.group * taps,
        Operand::BottomGrad(_) => layer.num_output / layer.group * taps,
        _ => top.count() / layer.num_output,
    }
}

/// A case with fractions in all that it reads, and what the oracle makes of them and of their magnitudes.
struct Fractions {
    case: Case,
    layer: Convolution,
    arrays: Arrays<f32>,
    double: Arrays<f64>,
    magnitudes: Arrays<f64>,
}

impl Fractions {
    /// Blobs have numbers that `precision` can keep.
    fn new(layer: &Convolution, bottom: [usize; 4], precision: Precision) -> Self {
        let of_layer = Layer::Convolution(layer.clone());
        // Images get no gradient.
        let images = bottom[1] <= 4;
        let case = if images { Case::of_images(of_layer, &bottom) } else { Case::new(of_layer, &[&bottom]) };
        let mut arrays = case.integers();
        let operands = [Operand::Bottom(0), Operand::Param(0), Operand::Param(1), Operand::TopGrad(0)];
        let [mut double, mut magnitudes] = [Arrays::<f64>::new(), Arrays::new()];
        for (seed, operand) in operands.into_iter().enumerate() {
            let mut values = fractions(seed as u64, arrays.get(operand).len());
            if precision == Precision::Bf16 && case.storage(operand).is_some() {
                values.iter_mut().for_each(|value| *value = rounded(*value));
            }
            double.insert(operand, values.iter().map(|v| f64::from(*v)).collect());
            magnitudes.insert(operand, values.iter().map(|v| f64::from(v.abs())).collect());
            arrays.insert(operand, values);
        }
        case.reference(&mut double);
        case.reference(&mut magnitudes);
        Self { case, layer: layer.clone(), arrays, double, magnitudes }
    }

    /// How far each element of what a sub-task writes may be from the oracle's.
    fn bounds(&self, implementation: &str, operand: Operand) -> Vec<f64> {
        let depth = depth(operand, &self.layer, &self.case);
        let sums = self.magnitudes.get(operand);
        let transforms = match operand {
            Operand::BottomGrad(_) if overlap(&self.case, &self.layer, implementation) => 2 * (2 + 3 + 4) + 3,
            _ => 2 * (2 + 3 + 3),
        };
        let [plainly, transforming] = [0, transforms].map(|more| (depth + 2 + more) as f64 * EPSILON);
        let in_blob = self.case.storage(operand).is_some();
        let transformed = match implementation {
            name if name.contains("winograd") => {
                transformed_magnitudes(name, &self.case, &self.layer, &self.arrays, operand)
            }
            _ => None,
        };
        let rounding = if implementation.ends_with("-bf16") { 2.0 * U + U * U } else { 0.0 };
        let computed = |at: usize| match (implementation, &transformed) {
            (_, Some(transformed)) => (rounding + transforming) * transformed[at] + EPSILON * sums[at],
            (name, _) if name.ends_with("-bf16") && in_blob => (U + plainly) * sums[at],
            _ => plainly * sums[at],
        };
        let kept = |at: usize| match implementation.ends_with("-bf16") && in_blob {
            true => computed(at) + U * (self.double.get(operand)[at].abs() + computed(at)),
            false => computed(at),
        };
        (0..sums.len()).map(kept).collect()
    }
}

#[test]
fn convolutions_of_fractions() {
    let same = |out: usize, k: usize| Convolution { pad: [k / 2; 2], ..convolution(out, [k; 2]) };
    let layers = [
        (same(64, 3), [48, 14, 14]),
        (same(40, 3), [33, 9, 11]),
        (Convolution { pad: [0, 2], ..convolution(32, [3, 3]) }, [64, 7, 8]),
        (Convolution { stride: [2, 2], ..same(32, 5) }, [20, 15, 14]),
        (same(50, 5), [20, 8, 12]),
        (Convolution { pad: [0, 4], ..convolution(20, [5, 5]) }, [40, 15, 11]),
        (convolution(50, [5, 5]), [20, 12, 12]),
        (convolution(40, [3, 3]), [33, 6, 6]),
        (same(96, 1), [64, 7, 7]),
        (same(35, 3), [3, 17, 18]),
        (same(32, 5), [3, 32, 32]),
        (convolution(20, [5, 5]), [1, 28, 28]),
    ];
    for (layer, [c, h, w]) in layers {
        let [f32, bf16] = [Precision::F32, Precision::Bf16]
            .map(|precision| Fractions::new(&layer, [3, c, h, w], precision));
        for (numerics, implementation) in ways("convolutions of fractions", &f32.case.net, f32.case.id) {
            let fractions = if numerics.precision == Precision::F32 { &f32 } else { &bf16 };
            let case = &fractions.case;
            let kernels = vec![("it".to_owned(), implementation.to_owned())];
            let found = run(case, &EngineOptions { kernels, ..options(numerics) }, 2, &fractions.arrays);
            for (sub, operand) in written(case) {
                let bounds = fractions.bounds(implementation, operand);
                let what = format!("{sub} {operand:?} of {case}, {implementation} on {numerics}");
                let expected = fractions.double.get(operand).iter().zip(found.get(operand)).zip(bounds);
                for (at, ((e, f), bound)) in expected.enumerate() {
                    // Written so that NaN fails.
                    let close = (e - f64::from(*f)).abs() <= bound;
                    assert!(close, "at {at}: {f} is not {e} ± {bound:e}: {what}");
                }
            }
        }
    }
}
