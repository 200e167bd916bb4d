//! Losses: exact where they are sums of integers; elsewhere against the oracle in double precision, with bounds that count
//! roundings as in `rounded.rs`.

use quadrille_core::layer::{
    ClassView, EuclideanLoss, HingeLoss, HingeNorm, InfogainLoss, Layer, MultinomialLogisticLoss,
    Normalization, Operand, SigmoidCrossEntropyLoss,
};
use quadrille_core::reference::Arrays;

use crate::common::{fractions, labels, options, tiers};
use crate::exact::bench::{run, written};
use crate::exact::case::Case;
use crate::exact::rounded::{EPSILON, close, doubled, relative};

const NORMALIZATIONS: [Normalization; 4] =
    [Normalization::Full, Normalization::Valid, Normalization::BatchSize, Normalization::None];

/// Compares with the oracle in single precision: the same values, and NaN at the same places.
fn same(case: &Case, arrays: &Arrays<f32>, threads: usize) {
    let mut expected = arrays.clone();
    case.reference(&mut expected);
    for isa in tiers("losses of integers") {
        let found = run(case, &options(isa), threads, arrays);
        for (sub, operand) in written(case) {
            let pairs = expected.get(operand).iter().zip(found.get(operand)).enumerate();
            for (at, (e, f)) in pairs {
                let same = e == f || (e.is_nan() && f.is_nan());
                assert!(same, "at {at}: {f} is not {e}: {sub} {operand:?} of {case}, {isa}");
            }
        }
    }
}

#[test]
fn euclidean_losses_of_integers() {
    for threads in [1, 2, 3] {
        for dims in [&[1, 1][..], &[5, 3, 4], &[64, 7, 31, 3]] {
            let case = Case::new(Layer::EuclideanLoss(EuclideanLoss), &[dims, dims]);
            same(&case, &case.integers(), threads);
        }
        let case = Case::blocked(Layer::EuclideanLoss(EuclideanLoss), &[&[4, 20, 5, 3], &[4, 20, 5, 3]]);
        same(&case, &case.integers(), threads);
    }
}

#[test]
fn hinge_losses_of_integers() {
    for threads in [1, 2, 3] {
        for norm in [HingeNorm::L1, HingeNorm::L2] {
            for dims in [&[1, 2][..], &[5, 3, 4], &[64, 700], &[6, 20, 3, 2]] {
                let classes = dims[1..].iter().product();
                let case = Case::new(Layer::HingeLoss(HingeLoss { norm }), &[dims, &[dims[0]]]);
                let mut arrays = case.integers();
                let mut truths = labels(3, dims[0], classes);
                arrays.insert(Operand::Bottom(1), truths.clone());
                same(&case, &arrays, threads);
                for nonsense in [classes as f32, -1.0, f32::NAN] {
                    truths[dims[0] / 2] = nonsense;
                    arrays.insert(Operand::Bottom(1), truths.clone());
                    same(&case, &arrays, threads);
                }
            }
        }
    }
}

#[test]
fn sigmoid_cross_entropies() {
    for (normalization, ignore_label) in NORMALIZATIONS
        .into_iter()
        .flat_map(|normalization| [(normalization, None), (normalization, Some(-1))])
    {
        for dims in [&[1, 1][..], &[5, 7, 3], &[61, 5, 31, 3]] {
            let layer = SigmoidCrossEntropyLoss { ignore_label, normalization };
            let case = Case::new(Layer::SigmoidCrossEntropyLoss(layer.clone()), &[dims, dims]);
            let mut arrays = case.integers();
            let count = case.bottoms[0].count();
            let x: Vec<f32> = fractions(5, count).iter().map(|v| 40.0 * v * v * v).collect();
            let mut targets: Vec<f32> = fractions(6, count).iter().map(|v| v.abs()).collect();
            targets.iter_mut().skip(1).step_by(5).for_each(|target| *target = -1.0);
            let counts = |t: &f32| ignore_label.is_none() || *t != -1.0;
            let valid = targets.iter().filter(|t| counts(t)).count();
            let divisor = f64::from(layer.divisor(&case.bottoms[0], valid));
            let magnitudes = x.iter().zip(&targets).filter(|(_, t)| counts(t));
            let magnitude: f64 =
                magnitudes.map(|(x, t)| f64::from(x.abs() * (t.abs() + 1.0)) + 1.0).sum::<f64>();
            arrays.insert(Operand::Bottom(0), x);
            arrays.insert(Operand::Bottom(1), targets);
            let expected = doubled(&case, &arrays);
            for isa in tiers("cross entropies of sigmoids") {
                for threads in [1, 3] {
                    let found = run(&case, &options(isa), threads, &arrays);
                    let how = format!("{case}, {isa}");
                    let (loss, dx) = (Operand::Top(0), Operand::BottomGrad(0));
                    // Eight operations a term, and the last sums and the quotient.
                    let bound = 12.0 * EPSILON * magnitude / divisor;
                    close(&format!("loss of {how}"), expected.get(loss), found.get(loss), |_| bound);
                    // A sigmoid and a target are at most 1 each.
                    let bound = 12.0 * EPSILON / divisor;
                    close(&format!("gradient of {how}"), expected.get(dx), found.get(dx), |_| bound);
                }
            }
        }
    }
}

#[test]
fn multinomial_losses() {
    for dims in [&[1, 1][..], &[5, 7, 3], &[64, 1000]] {
        let classes: usize = dims[1..].iter().product();
        let layer = Layer::MultinomialLogisticLoss(MultinomialLogisticLoss);
        let case = Case::new(layer, &[dims, &[dims[0]]]);
        let mut arrays = case.integers();
        let mut p: Vec<f32> = fractions(7, dims[0] * classes).iter().map(|v| v.abs()).collect();
        p[0] = 0.0;
        let truths = labels(8, dims[0], classes);
        let logarithms =
            truths.iter().enumerate().map(|(n, k)| p[n * classes + *k as usize].max(1e-20).ln().abs());
        let magnitude: f64 = logarithms.map(f64::from).sum();
        arrays.insert(Operand::Bottom(0), p);
        arrays.insert(Operand::Bottom(1), truths.clone());
        let expected = doubled(&case, &arrays);
        for isa in tiers("logarithms of probabilities") {
            for threads in [1, 3] {
                let found = run(&case, &options(isa), threads, &arrays);
                let how = format!("{case}, {isa}");
                let (loss, dp) = (Operand::Top(0), Operand::BottomGrad(0));
                let bound = 6.0 * EPSILON * magnitude / dims[0] as f64;
                close(&format!("loss of {how}"), expected.get(loss), found.get(loss), |_| bound);
                let expected = expected.get(dp);
                close(&format!("gradient of {how}"), expected, found.get(dp), |i| {
                    4.0 * EPSILON * expected[i].abs()
                });
            }
        }
        let mut truths = truths;
        truths[0] = -1.0;
        arrays.insert(Operand::Bottom(1), truths);
        for isa in tiers("logarithms of probabilities") {
            let found = run(&case, &options(isa), 2, &arrays);
            assert!(found.get(Operand::Top(0))[0].is_nan());
            let nans = found.get(Operand::BottomGrad(0)).iter().filter(|d| d.is_nan()).count();
            assert_eq!(nans, classes, "{case}, {isa}");
        }
    }
}

/// One case of an infogain loss, with the matrix as the layer's own or as a bottom.
fn infogain(axis: i32, dims: &[usize], layer: &InfogainLoss, gains: &[f32]) {
    let view = ClassView::new(&quadrille_core::shape::Shape::new(dims), axis, "axis").expect("possible");
    let (classes, count) = (view.classes, view.outer * view.inner);
    let bottoms: [&[usize]; 3] = [dims, &[count], &[1, 1, classes, classes]];
    let given = if layer.matrix.is_some() { 2 } else { 3 };
    let case = Case::new(Layer::InfogainLoss(layer.clone()), &bottoms[..given]);
    let mut arrays = case.integers();
    let x = fractions(4, view.outer * classes * view.inner).iter().map(|v| 8.0 * v).collect();
    let truths = labels(9, count, classes);
    arrays.insert(Operand::Bottom(0), x);
    arrays.insert(Operand::Bottom(1), truths.clone());
    if given == 3 {
        arrays.insert(Operand::Bottom(2), gains.to_vec());
    }
    let expected = doubled(&case, &arrays);
    let counts = |label: &&f32| layer.ignore_label.map(|ignored| ignored as f32) != Some(**label);
    let divisor = f64::from(layer.divisor(&view, truths.iter().filter(counts).count()));
    let error = relative(classes, 16.0);
    // Logarithms are at most 16 + ln(classes) in size, and gains at most 1.
    let largest = 16.0 + (classes as f64).ln();
    let bound = (count * classes) as f64 * (error + 6.0 * EPSILON * largest) / divisor;
    let gain = classes as f64;
    let slope = 2.0 * gain * (error + 6.0 * EPSILON) / divisor;
    for isa in tiers("infogain losses") {
        for threads in [1, 3] {
            let found = run(&case, &options(isa), threads, &arrays);
            let how = format!("{case}, {isa}");
            let (loss, p, dx) = (Operand::Top(0), Operand::Top(1), Operand::BottomGrad(0));
            close(&format!("loss of {how}"), expected.get(loss), found.get(loss), |_| bound);
            close(&format!("probabilities of {how}"), expected.get(p), found.get(p), |_| error);
            close(&format!("gradient of {how}"), expected.get(dx), found.get(dx), |_| slope);
        }
    }
}

#[test]
fn infogain_losses() {
    for (axis, dims) in [(1, &[1, 10][..]), (1, &[5, 7, 3]), (-1, &[2, 3, 6]), (1, &[64, 40])] {
        let classes = dims[if axis < 0 { dims.len() - 1 } else { axis as usize }];
        let gains = fractions(11, classes * classes);
        for (normalization, ignore_label) in
            NORMALIZATIONS.into_iter().zip([Some(1), None, Some(-1), Some(0)])
        {
            for matrix in [None, Some(gains.clone().into())] {
                infogain(axis, dims, &InfogainLoss { axis, ignore_label, normalization, matrix }, &gains);
            }
        }
    }
}
