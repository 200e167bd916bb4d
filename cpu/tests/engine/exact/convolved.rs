//! Convolutions on real numbers against the oracle in double precision, every implementation on every tier.
//!
//! A sum of `k` products in f32 errs by at most `(k + 2)·ε·Σ|a·b|`; the oracle on magnitudes gives the sum. Winograd's
//! transforms add up at most 4 inputs, 9/4 weights and 9 products of neighbouring elements (`kernel::winograd`), in 12
//! more roundings: its bound is `81·(k + 12)·ε` times the largest sum of magnitudes.

use quadrille_core::layer::{Convolution, Layer, Operand};
use quadrille_core::reference::Arrays;
use quadrille_cpu::{EngineOptions, implementations};

use crate::common::{convolution, fractions, options, tiers};
use crate::exact::bench::{run, written};
use crate::exact::case::Case;

const EPSILON: f64 = f32::EPSILON as f64;

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
        for isa in tiers("convolutions of fractions") {
            for implementation in implementations(&case.net, case.id, isa) {
                let kernels = vec![("it".to_owned(), implementation.to_owned())];
                let found = run(&case, &EngineOptions { kernels, ..options(isa) }, 2, &arrays);
                for (sub, operand) in written(&case) {
                    let depth = depth(operand, &layer, &case);
                    let sums = magnitudes.get(operand);
                    let largest = sums.iter().fold(0.0f64, |m, s| m.max(*s));
                    let what = format!("{sub} {operand:?} of {case}, {implementation} on {isa}");
                    for (at, (e, f)) in double.get(operand).iter().zip(found.get(operand)).enumerate() {
                        let bound = match implementation {
                            "winograd" => 81.0 * (depth + 12) as f64 * EPSILON * largest,
                            _ => (depth + 2) as f64 * EPSILON * sums[at],
                        };
                        // Written so that NaN fails.
                        let close = (e - f64::from(*f)).abs() <= bound;
                        assert!(close, "at {at}: {f} is not {e} ± {bound:e}: {what}");
                    }
                }
            }
        }
    }
}
