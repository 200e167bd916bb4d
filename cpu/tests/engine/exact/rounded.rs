//! What exponentials and logarithms make inexact, against the oracle in double precision. The bounds count roundings:
//! a unit `f32::EPSILON` for each operation and two for a library's function, times the magnitudes in the formula.

use quadrille_core::layer::{ClassView, Layer, Normalization, Operand, Softmax, SoftmaxWithLoss};
use quadrille_core::reference::Arrays;

use crate::common::{fractions, labels, options, tiers};
use crate::exact::bench::run;
use crate::exact::case::Case;

pub const EPSILON: f64 = f32::EPSILON as f64;

/// Half a unit in the last place of bf16, relative: what rounding to it may add.
pub const BF16: f64 = 1.0 / 256.0;

/// The arrays in double precision, and what the oracle makes of them.
pub fn doubled(case: &Case, arrays: &Arrays<f32>) -> Arrays<f64> {
    let mut doubled = Arrays::new();
    for operand in [0, 1, 2].into_iter().flat_map(|i| [Operand::Bottom(i), Operand::TopGrad(i)]) {
        if let Some(values) = arrays.find(operand) {
            doubled.insert(operand, values.iter().map(|v| f64::from(*v)).collect());
        }
    }
    case.reference(&mut doubled);
    doubled
}

pub fn close(what: &str, expected: &[f64], found: &[f32], bound: impl Fn(usize) -> f64) {
    assert_eq!(expected.len(), found.len(), "{what}: length");
    for (at, (e, f)) in expected.iter().zip(found).enumerate() {
        let bound = bound(at) + f64::from(f32::MIN_POSITIVE);
        // Written so that NaN fails.
        let close = (e - f64::from(*f)).abs() <= bound;
        assert!(close, "at {at}: {f} is not {e} ± {bound:e}: {what}");
    }
}

/// A probability is an exponential (of a rounded difference of at most `spread`) over a sum of `classes` of them.
pub fn relative(classes: usize, spread: f64) -> f64 {
    (classes as f64 + 2.0 * (2.0 + spread) + 1.0) * EPSILON
}

const SHAPES: [(i32, &[usize]); 4] = [(1, &[1, 10]), (1, &[5, 7, 3]), (-1, &[2, 3, 64]), (1, &[64, 1000])];

#[test]
fn softmax() {
    for isa in tiers("softmax") {
        for threads in [1, 2, 3] {
            for (axis, dims) in SHAPES {
                let case = Case::new(Layer::Softmax(Softmax { axis }), &[dims]);
                let mut arrays = case.integers();
                let x = fractions(3, case.bottoms[0].count()).iter().map(|v| 8.0 * v).collect();
                arrays.insert(Operand::Bottom(0), x);
                let (found, expected) =
                    (run(&case, &options(isa), threads, &arrays), doubled(&case, &arrays));
                let view = ClassView::new(&case.bottoms[0], axis, "axis").expect("possible");
                let y = expected.get(Operand::Top(0));
                let error = relative(view.classes, 16.0);
                let how = format!("{case}, {isa}, {threads} threads");
                close(&format!("forward of {how}"), y, found.get(Operand::Top(0)), |i| error * y[i]);
                let dx = expected.get(Operand::BottomGrad(0));
                // dy is at most 4: both terms and the sum carry the error of two probabilities and their products.
                let bound =
                    |i: usize| y[i] * 4.0 * 2.0 * (2.0 * error + (view.classes as f64 + 3.0) * EPSILON);
                close(&format!("grad-activation of {how}"), dx, found.get(Operand::BottomGrad(0)), bound);
            }
        }
    }
}

#[test]
fn softmax_with_loss() {
    for isa in tiers("softmax with loss") {
        for (normalization, ignore_label) in
            [(Normalization::Valid, Some(1)), (Normalization::Full, None), (Normalization::None, None)]
        {
            for (axis, dims) in SHAPES {
                let view =
                    ClassView::new(&quadrille_core::shape::Shape::new(dims), axis, "axis").expect("possible");
                let count = view.outer * view.inner;
                let layer = SoftmaxWithLoss { axis, ignore_label, normalization };
                let case = Case::new(Layer::SoftmaxWithLoss(layer.clone()), &[dims, &[count]]);
                let mut arrays = case.integers();
                let x = fractions(4, case.bottoms[0].count()).iter().map(|v| 8.0 * v).collect();
                arrays.insert(Operand::Bottom(0), x);
                arrays.insert(Operand::Bottom(1), labels(9, count, view.classes));
                let (found, expected) = (run(&case, &options(isa), 2, &arrays), doubled(&case, &arrays));
                let how = format!("{case}, {isa}, 2 threads");
                let p = expected.get(Operand::Top(1));
                let error = relative(view.classes, 16.0);
                close(&format!("probabilities of {how}"), p, found.get(Operand::Top(1)), |i| error * p[i]);
                let valid = arrays
                    .get(Operand::Bottom(1))
                    .iter()
                    .filter(|l| ignore_label.map(|i| i as f32) != Some(**l));
                let divisor = f64::from(layer.divisor(&view, valid.count()));
                let loss = expected.get(Operand::Top(0));
                // Each logarithm has the error of its probability and its own; the sum rounds `count` times.
                let bound = count as f64 / divisor * error + (count as f64 + 3.0) * EPSILON * loss[0];
                close(&format!("loss of {how}"), loss, found.get(Operand::Top(0)), |_| bound);
                let dx = expected.get(Operand::BottomGrad(0));
                let bound = |i: usize| {
                    (p[i] * error + 3.0 * EPSILON * (dx[i].abs() * divisor)) / divisor + EPSILON * dx[i].abs()
                };
                close(&format!("grad-activation of {how}"), dx, found.get(Operand::BottomGrad(0)), bound);
            }
        }
    }
}
