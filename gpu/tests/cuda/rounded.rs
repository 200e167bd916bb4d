//! What functions make inexact, against the oracle in double precision. Bounds count roundings: a unit `f32::EPSILON` for each
//! operation and eight for a function of CUDA's library, of which the worst has that many, times the magnitudes in the formula.

use quadrille_core::layer::{
    BatchNorm, ContrastiveLoss, Filler, Layer, Lrn, Neuron, NormRegion, Normalization, Operand, Scale,
    SigmoidCrossEntropyLoss, Softmax, SoftmaxWithLoss,
};
use quadrille_core::reference::Arrays;
use quadrille_core::solver::Rule;
use quadrille_gpu::{Cuda, Options};

use crate::bench::{ORDERS, run, written};
use crate::case::Case;
use crate::common::{fractions, gpu, labels, own};

const EPSILON: f64 = f32::EPSILON as f64;
const FUNCTION: f64 = 8.0;

/// Compares every sub-task with the oracle in double precision: each value within `roundings` of the largest of its array.
fn close(gpu: &Cuda, case: &Case, arrays: &Arrays<f32>, roundings: f64) {
    let mut expected: Arrays<f64> = Arrays::new();
    let all = (0..4).flat_map(|i| [Operand::Bottom(i), Operand::TopGrad(i), Operand::Param(i)]);
    for operand in all {
        if let Some(values) = arrays.find(operand) {
            expected.insert(operand, values.iter().map(|v| f64::from(*v)).collect());
        }
    }
    case.reference(&mut expected);
    for order in ORDERS {
        let found = run(gpu, case, &Options { order, ..own(Rule::default()) }, arrays);
        for (sub, operand) in written(case) {
            let (expected, found) = (expected.get(operand), found.get(operand));
            let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let bound = roundings * EPSILON * largest + f64::from(f32::MIN_POSITIVE);
            for (at, (e, f)) in expected.iter().zip(found).enumerate() {
                // Written so that NaN fails.
                let close = (e - f64::from(*f)).abs() <= bound;
                assert!(close, "at {at}: {f} is not {e} ± {bound:e}: {sub} {operand:?} of {case}, {order:?}");
            }
        }
    }
}

/// A case's arrays with bottom 0 in fractions of `most`.
fn fractional(case: &Case, most: f32) -> Arrays<f32> {
    let mut arrays = case.integers();
    let x = fractions(3, case.bottoms[0].count()).iter().map(|v| most * v).collect();
    arrays.insert(Operand::Bottom(0), x);
    arrays
}

const SHAPES: [(i32, &[usize]); 4] = [(1, &[1, 10]), (1, &[5, 7, 3]), (-1, &[2, 3, 64]), (1, &[64, 1000])];

#[test]
fn softmaxes_and_their_losses() {
    let Some(gpu) = gpu("softmaxes and their losses") else { return };
    for (axis, dims) in SHAPES {
        let case = Case::new(Layer::Softmax(Softmax { axis }), &[dims]);
        let classes = dims[if axis < 0 { dims.len() - 1 } else { axis as usize }];
        // The exponential of a difference of at most 16 that is rounded, the sum, and the products of backward.
        let roundings = 4.0 * (FUNCTION + 16.0 + classes as f64);
        close(gpu, &case, &fractional(&case, 8.0), roundings);
        let count = dims.iter().product::<usize>() / classes;
        for (normalization, ignore_label) in [
            (Normalization::Valid, Some(1)),
            (Normalization::Valid, None),
            (Normalization::Full, None),
            (Normalization::BatchSize, None),
            (Normalization::None, None),
        ] {
            let layer = SoftmaxWithLoss { axis, ignore_label, normalization };
            let case = Case::new(Layer::SoftmaxWithLoss(layer), &[dims, &[count]]);
            let mut arrays = fractional(&case, 8.0);
            arrays.insert(Operand::Bottom(1), labels(9, count, classes));
            close(gpu, &case, &arrays, roundings + count as f64);
        }
    }
}

#[test]
fn cross_entropies_of_sigmoids() {
    let Some(gpu) = gpu("cross entropies of sigmoids") else { return };
    for normalization in
        [Normalization::Full, Normalization::Valid, Normalization::BatchSize, Normalization::None]
    {
        for ignore_label in [None, Some(-1)] {
            let layer = SigmoidCrossEntropyLoss { ignore_label, normalization };
            let dims = &[5, 7, 3][..];
            let case = Case::new(Layer::SigmoidCrossEntropyLoss(layer), &[dims, dims]);
            let mut arrays = fractional(&case, 6.0);
            let mut targets: Vec<f32> = fractions(6, 105).iter().map(|v| v.abs()).collect();
            targets.iter_mut().skip(1).step_by(5).for_each(|target| *target = -1.0);
            arrays.insert(Operand::Bottom(1), targets);
            close(gpu, &case, &arrays, 4.0 * FUNCTION + 105.0);
        }
    }
}

#[test]
fn neurons() {
    let Some(gpu) = gpu("neurons") else { return };
    let neurons = [
        Neuron::Bnll,
        Neuron::Elu { alpha: 1.5 },
        Neuron::Elu { alpha: -0.5 },
        Neuron::Exp { base: None, scale: 0.5, shift: 0.25 },
        Neuron::Exp { base: Some(2.0), scale: 1.0, shift: 0.0 },
        Neuron::Log { base: Some(10.0), scale: 0.5, shift: 4.0 },
        Neuron::Power { power: -1.5, scale: 0.25, shift: 2.0 },
        Neuron::Sigmoid,
        Neuron::Swish { beta: 1.5 },
        Neuron::TanH,
    ];
    for neuron in neurons {
        let case = Case::new(Layer::Neuron(neuron), &[&[5, 17, 3]]);
        close(gpu, &case, &fractional(&case, 3.0), 8.0 * FUNCTION);
    }
}

#[test]
fn local_response_normalisations() {
    let Some(gpu) = gpu("local response normalisations") else { return };
    for (region, local_size) in
        [(NormRegion::AcrossChannels, 5), (NormRegion::AcrossChannels, 1), (NormRegion::WithinChannel, 3)]
    {
        let layer = Lrn { region, local_size, alpha: 0.5, beta: 0.75, k: 2.0 };
        for dims in [&[1, 3, 2, 2][..], &[3, 17, 5, 4]] {
            let case = Case::new(Layer::Lrn(layer.clone()), &[dims]);
            close(gpu, &case, &fractional(&case, 4.0), 8.0 * FUNCTION + 50.0);
        }
    }
}

#[test]
fn batch_normalisations() {
    let Some(gpu) = gpu("batch normalisations") else { return };
    for use_global_stats in [Some(false), Some(true)] {
        let layer = BatchNorm { use_global_stats, moving_average_fraction: 0.9, eps: 1e-3 };
        for dims in [&[4, 3][..], &[6, 5, 4, 3], &[64, 3, 13, 11]] {
            for case in [
                Case::new(Layer::BatchNorm(layer.clone()), &[dims]),
                Case::in_place(Layer::BatchNorm(layer.clone()), dims),
            ] {
                let mut arrays = fractional(&case, 3.0);
                // Running sums that a variance can have.
                let sums = |i: u64| fractions(i, dims[1]).iter().map(|v| v.abs() + 0.5).collect();
                arrays.insert(Operand::Param(0), sums(1));
                arrays.insert(Operand::Param(1), sums(2));
                arrays.insert(Operand::Param(2), vec![2.0]);
                let each = dims.iter().product::<usize>() / dims[1];
                close(gpu, &case, &arrays, 64.0 + 4.0 * each as f64);
            }
        }
    }
}

#[test]
fn distances_of_pairs() {
    let Some(gpu) = gpu("distances of pairs") else { return };
    let layer = ContrastiveLoss { margin: 3.0, legacy_version: false };
    let case = Case::new(Layer::ContrastiveLoss(layer), &[&[7, 5], &[7, 5], &[7]]);
    let mut arrays = fractional(&case, 1.0);
    arrays.insert(Operand::Bottom(1), fractions(8, 35));
    arrays.insert(Operand::Bottom(2), vec![0.0, 1.0, 0.5, 3.0, 0.0, 1.0, 0.0]);
    close(gpu, &case, &arrays, 64.0);
    let (filler, bias_filler) = (Filler::default(), Filler::default());
    let scale = Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler };
    let case = Case::new(Layer::Scale(scale), &[&[64, 3, 21, 19]]);
    close(gpu, &case, &fractional(&case, 1.0), 4.0 * 64.0 * 399.0);
}
