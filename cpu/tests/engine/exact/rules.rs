//! Where a kernel could differ from the oracle without any sum: NaN, infinities, equal maxima, labels of no class.
//! A net that has diverged must be seen to have, on every tier and in every layer.

use quadrille_core::layer::{
    Accuracy, Dropout, Eltwise, EltwiseOperation, Filler, Layer, Lrn, NormRegion, Normalization, Operand,
    PoolMethod, Pooling, Relu, Scale, Softmax, SoftmaxWithLoss,
};
use quadrille_core::reference::Arrays;
use quadrille_cpu::isa::{Numerics, Precision};

use crate::common::{integers, numerics, options, tiers};
use crate::exact::bench::{kept, rounded, run, written};
use crate::exact::case::Case;

/// Compares with the oracle: the same values, and NaN at the same places. In bf16, where the case's blobs are in blocks.
fn same(case: &Case, arrays: &Arrays<f32>) {
    let blocked = case.in_blocks();
    for numerics in numerics("special values") {
        let blocks = if case.after_blocks { Some(case) } else { blocked.as_ref() };
        match numerics.precision {
            Precision::F32 => same_in(case, arrays, numerics),
            Precision::Bf16 => blocks.into_iter().for_each(|case| same_in(case, arrays, numerics)),
        }
    }
}

fn same_in(case: &Case, arrays: &Arrays<f32>, numerics: Numerics) {
    let arrays = stored(case, arrays, numerics);
    let mut expected = arrays.clone();
    case.reference(&mut expected);
    let found = run(case, &options(numerics), 2, &arrays);
    for (sub, operand) in written(case) {
        let kept = kept(case, numerics, operand);
        for (at, (e, f)) in expected.get(operand).iter().zip(found.get(operand)).enumerate() {
            let same = if e.is_nan() { f.is_nan() } else { e == f || kept(*e) == *f };
            assert!(same, "at {at}: {f} is not {e}: {sub} {operand:?} of {case}, {numerics}");
        }
    }
}

/// The arrays as blobs keep them: in bf16 the largest numbers are infinite.
fn stored(case: &Case, arrays: &Arrays<f32>, numerics: Numerics) -> Arrays<f32> {
    let mut stored = arrays.clone();
    if numerics.precision == Precision::Bf16 {
        for i in 0..case.bottoms.len() {
            stored.get_mut(Operand::Bottom(i)).iter_mut().for_each(|x| *x = rounded(*x));
        }
    }
    stored
}

/// A bottom with every special value among integers, in every place of the windows.
fn special(count: usize) -> Vec<f32> {
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, -f32::MAX, f32::MIN_POSITIVE];
    let mut x = integers(5, count, 3);
    x.iter_mut().step_by(3).zip(values.iter().cycle()).for_each(|(x, v)| *x = *v);
    x
}

#[test]
fn relu_keeps_nan() {
    for negative_slope in [0.0, 0.25, -0.5] {
        for shape in [&[3, 41][..], &[2, 20, 3, 5]] {
            let case = Case::new(Layer::Relu(Relu { negative_slope, applied: false }), &[shape]);
            let mut arrays = case.integers();
            arrays.insert(Operand::Bottom(0), special(case.bottoms[0].count()));
            same(&case, &arrays);
        }
    }
}

#[test]
fn operations_on_elements_keep_nan() {
    let sum = |relu| EltwiseOperation::Sum { coefficients: vec![1.0, -0.5, 2.0], relu };
    let product = |stable_gradient| EltwiseOperation::Product { stable_gradient };
    for operation in [sum(false), sum(true), product(true), product(false), EltwiseOperation::Max] {
        let layer = Layer::Eltwise(Eltwise { bottoms: 3, operation });
        for case in [
            Case::new(layer.clone(), &[&[2, 20, 3, 5][..]; 3]),
            Case::blocked(layer.clone(), &[&[2, 20, 3, 5][..]; 3]),
        ] {
            for poisoned in 0..3 {
                let mut arrays = case.integers();
                arrays.insert(Operand::Bottom(poisoned), special(600));
                same(&case, &arrays);
            }
        }
    }
}

#[test]
fn scales_keep_nan() {
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
    let layer = Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler };
    for case in Case::everywhere(Layer::Scale(layer), &[2, 20, 3, 5]) {
        let mut arrays = case.integers();
        arrays.insert(Operand::Bottom(0), special(600));
        same(&case, &arrays);
    }
}

#[test]
fn dropout_keeps_nan_even_where_it_drops() {
    for shape in [&[3, 41][..], &[2, 20, 3, 5]] {
        let case = Case::new(Layer::Dropout(Dropout { ratio: 0.5, active: true }), &[shape]);
        let mut arrays = case.integers();
        arrays.insert(Operand::Bottom(0), special(case.bottoms[0].count()));
        same(&case, &arrays);
    }
}

/// A value that is no number reaches its neighbours and nothing else: across channels not the next pixel, whose
/// channels may stand beside, within a channel not the next row, and never what fills up a block.
#[test]
fn a_normalisation_shows_nan_where_the_oracle_does() {
    let (across, within) = (NormRegion::AcrossChannels, NormRegion::WithinChannel);
    for (region, channels, k) in
        [(across, 7, 1.0), (across, 16, 1.0), (across, 21, 1.0), (across, 21, 0.0), (within, 21, 1.0)]
    {
        let layer = Layer::Lrn(Lrn { region, local_size: 5, alpha: 1.0, beta: 0.75, k });
        let case = Case::new(layer, &[&[2, channels, 5, 7]]);
        for case in [case.in_blocks().expect("images"), case] {
            let mut arrays = case.integers();
            let mut x = integers(5, case.bottoms[0].count(), 3);
            // Zeros make a scale of 0 where k is 0.
            x.iter_mut().step_by(2).for_each(|x| *x = 0.0);
            let specials = [f32::NAN, f32::INFINITY, -f32::MAX, f32::NEG_INFINITY];
            x.iter_mut().step_by(83).zip(specials.iter().cycle()).for_each(|(x, v)| *x = *v);
            arrays.insert(Operand::Bottom(0), x);
            for numerics in numerics("special values of a normalisation") {
                let arrays = stored(&case, &arrays, numerics);
                let mut expected = arrays.clone();
                case.reference(&mut expected);
                let found = run(&case, &options(numerics), 2, &arrays);
                for (sub, operand) in written(&case) {
                    let (expected, found) = (expected.get(operand), found.get(operand));
                    let nans = expected.iter().filter(|e| e.is_nan()).count();
                    assert!(0 < nans && nans < expected.len(), "mistrusted: {nans} of {}", expected.len());
                    for (at, (e, f)) in expected.iter().zip(found).enumerate() {
                        let same = e.is_nan() == f.is_nan() && (e.is_infinite() == f.is_infinite());
                        assert!(same, "at {at}: {f} is not {e}: {sub} {operand:?} of {case}, {numerics}");
                    }
                }
            }
        }
    }
}

#[test]
fn pooling_takes_the_first_maximum_and_keeps_nan_at_the_start() {
    for method in [PoolMethod::Max, PoolMethod::Average] {
        for (kernel, pad) in [([2, 2], [0, 0]), ([3, 2], [1, 1]), ([1, 2], [0, 0])] {
            let layer = Pooling { method, kernel: Some(kernel), pad, stride: [1, 2] };
            let case = Case::new(Layer::Pooling(layer), &[&[2, 3, 7, 6]]);
            let mut arrays = case.integers();
            arrays.insert(Operand::Bottom(0), special(252));
            same(&case, &arrays);
            // Nothing but equal values, and nothing above the lowest number.
            for value in [2.0, -f32::MAX, f32::NEG_INFINITY, f32::NAN] {
                arrays.insert(Operand::Bottom(0), vec![value; 252]);
                same(&case, &arrays);
            }
        }
    }
}

/// Scores so far apart that every exponential is 0 or 1, so that nothing is rounded; and rows of specials.
fn scores(rows: usize, classes: usize) -> Vec<f32> {
    let mut x: Vec<f32> =
        (0..rows * classes).map(|i| if i % classes == i / classes % classes { 0.0 } else { -1e4 }).collect();
    x[1] = f32::NAN;
    x[classes] = f32::NAN;
    x[2 * classes + 1] = f32::INFINITY;
    x[3 * classes..4 * classes].fill(f32::NEG_INFINITY);
    x
}

#[test]
fn softmax_keeps_nan() {
    let case = Case::new(Layer::Softmax(Softmax { axis: 1 }), &[&[8, 5]]);
    let mut arrays = case.integers();
    arrays.insert(Operand::Bottom(0), scores(8, 5));
    same(&case, &arrays);
}

#[test]
fn a_loss_shows_nan_and_labels_of_no_class() {
    for normalization in
        [Normalization::Full, Normalization::Valid, Normalization::BatchSize, Normalization::None]
    {
        for ignore_label in [None, Some(3), Some(-1)] {
            let layer = SoftmaxWithLoss { axis: 1, ignore_label, normalization };
            let case = Case::new(Layer::SoftmaxWithLoss(layer), &[&[8, 5], &[8]]);
            for labels in [
                [0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 3.9, -0.5],
                [5.0, 1.0, -1.0, 3.0, 4.0, 3.0, f32::NAN, f32::INFINITY],
                [3.0; 8],
                [-1.0; 8],
            ] {
                for poisoned in [true, false] {
                    let mut arrays = case.integers();
                    let clean = (0..40).map(|i| if i % 5 == i / 5 % 5 { 0.0 } else { -1e4 }).collect();
                    arrays.insert(Operand::Bottom(0), if poisoned { scores(8, 5) } else { clean });
                    arrays.insert(Operand::Bottom(1), labels.to_vec());
                    same_loss(&case, &arrays);
                }
            }
        }
    }
}

/// As [`same`], but a loss of logarithms may differ by their rounding: one unit each and one for every addition.
fn same_loss(case: &Case, arrays: &Arrays<f32>) {
    let mut expected = arrays.clone();
    case.reference(&mut expected);
    for isa in tiers("special labels") {
        let found = run(case, &options(isa), 2, arrays);
        for (sub, operand) in written(case) {
            let slack = if operand == Operand::Top(0) { 2.0 * 8.0 * f32::EPSILON } else { 0.0 };
            for (at, (e, f)) in expected.get(operand).iter().zip(found.get(operand)).enumerate() {
                let same = if e.is_nan() { f.is_nan() } else { (e - f).abs() <= slack * e.abs() };
                assert!(same, "at {at}: {f} is not {e}: {sub} {operand:?} of {case}, {isa}");
            }
        }
    }
}

#[test]
fn accuracy_calls_no_nan_right() {
    for (top_k, ignore_label) in [(1, None), (2, Some(3)), (5, Some(-1))] {
        let case = Case::new(Layer::Accuracy(Accuracy { top_k, axis: 1, ignore_label }), &[&[8, 5], &[8]]);
        for labels in [
            [0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 3.9, -0.5],
            [5.0, 1.0, -1.0, 3.0, 4.0, 3.0, 1.0, 1.0],
            [3.0; 8],
            [-1.0; 8],
        ] {
            for x in [scores(8, 5), vec![f32::NAN; 40], vec![1.0; 40], special(40)] {
                let mut arrays = case.integers();
                arrays.insert(Operand::Bottom(0), x);
                arrays.insert(Operand::Bottom(1), labels.to_vec());
                same(&case, &arrays);
            }
        }
    }
}
