//! Convolutions on real numbers against the oracle in double precision, every implementation on every tier.
//!
//! A sum of `k` products in f32 errs by at most `(k + 2)·ε·Σ|a·b|`; the oracle on magnitudes gives the sum. Winograd's
//! transforms add up at most 4 inputs, 9/4 weights and 9 products of neighbouring elements (`kernel::winograd`), in 12
//! more roundings: its bound is `81·(k + 12)·ε` times the largest sum of magnitudes.
//!
//! In bf16 both operands are rounded first, each by at most `u = 2⁻⁸` of it: a sum errs by `2u + u²` of its magnitudes
//! more. Blobs are kept in bf16, so that sums of gradients alone err by `u`, and what goes to a blob by `u` of itself once
//! more. Winograd's operands are rounded after their transforms, so there the magnitudes are those of the transforms, which
//! [`transformed_magnitudes`] computes for each element.

use quadrille_core::layer::{Convolution, Layer, Operand};
use quadrille_core::reference::Arrays;
use quadrille_cpu::EngineOptions;

use crate::common::{convolution, fractions, options, ways};
use crate::exact::bench::{run, written};
use crate::exact::case::Case;
use crate::exact::transformed::transformed_magnitudes;

const EPSILON: f64 = f32::EPSILON as f64;
/// What the rounding of both operands to bf16 makes of a product: 2u + u².
const ROUNDED: f64 = 2.0 * U + U * U;
/// What the rounding of one number to bf16 makes of it.
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

#[test]
fn convolutions_of_fractions() {
    let same = |out: usize, k: usize| Convolution { pad: [k / 2; 2], ..convolution(out, [k; 2]) };
    let layers = [
        (same(64, 3), [48, 14, 14]),
        (same(40, 3), [33, 9, 11]),
        (Convolution { pad: [0, 2], ..convolution(32, [3, 3]) }, [64, 7, 8]),
        (Convolution { stride: [2, 2], ..same(32, 5) }, [20, 15, 14]),
        (same(96, 1), [64, 7, 7]),
    ];
    for (layer, [c, h, w]) in layers {
        let case = Case::new(Layer::Convolution(layer.clone()), &[&[3, c, h, w]]);
        let mut arrays = case.integers();
        let operands = [Operand::Bottom(0), Operand::Param(0), Operand::Param(1), Operand::TopGrad(0)];
        let [mut double, mut magnitudes] = [Arrays::<f64>::new(), Arrays::new()];
        for (seed, operand) in operands.into_iter().enumerate() {
            let values = fractions(seed as u64, arrays.get(operand).len());
            double.insert(operand, values.iter().map(|v| f64::from(*v)).collect());
            magnitudes.insert(operand, values.iter().map(|v| f64::from(v.abs())).collect());
            arrays.insert(operand, values);
        }
        case.reference(&mut double);
        case.reference(&mut magnitudes);
        for (numerics, implementation) in ways("convolutions of fractions", &case.net, case.id) {
            let kernels = vec![("it".to_owned(), implementation.to_owned())];
            let found = run(&case, &EngineOptions { kernels, ..options(numerics) }, 2, &arrays);
            for (sub, operand) in written(&case) {
                let depth = depth(operand, &layer, &case);
                let sums = magnitudes.get(operand);
                let largest = sums.iter().fold(0.0f64, |m, s| m.max(*s));
                let transformed = match implementation {
                    "winograd-bf16" => transformed_magnitudes(&case, &layer, &arrays, operand),
                    _ => None,
                };
                let bound = |at: usize| match (implementation, &transformed) {
                    ("winograd", _) => 81.0 * (depth + 12) as f64 * EPSILON * largest,
                    (_, Some(transformed)) => {
                        (ROUNDED + (depth + 12) as f64 * EPSILON) * transformed[at] + EPSILON * sums[at]
                    }
                    (name, _) if name.ends_with("-bf16") => {
                        let rounded = if operand == Operand::ParamGrad(1) { U } else { ROUNDED };
                        (rounded + (depth + 2) as f64 * EPSILON) * sums[at]
                    }
                    _ => (depth + 2) as f64 * EPSILON * sums[at],
                };
                let what = format!("{sub} {operand:?} of {case}, {implementation} on {numerics}");
                for (at, (e, f)) in double.get(operand).iter().zip(found.get(operand)).enumerate() {
                    let kept = implementation.ends_with("-bf16") && case.storage(operand).is_some();
                    let bound = bound(at) + if kept { U * (e.abs() + bound(at)) } else { 0.0 };
                    // Written so that NaN fails.
                    let close = (e - f64::from(*f)).abs() <= bound;
                    assert!(close, "at {at}: {f} is not {e} ± {bound:e}: {what}");
                }
            }
        }
    }
}
