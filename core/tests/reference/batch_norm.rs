//! BatchNorm by hand: which statistics normalise, and what becomes of the running sums.

use quadrille_core::layer::{BatchNorm, Layer, Operand, SubTask};
use quadrille_core::net::Phase;
use quadrille_core::reference::{Arrays, Context, compute};
use quadrille_core::shape::Shape;

use crate::case::Case;

fn layer(use_global_stats: Option<bool>, eps: f32) -> BatchNorm {
    BatchNorm { use_global_stats, moving_average_fraction: 0.5, eps }
}

fn case(kept: bool, eps: f32, dims: &[usize]) -> Case {
    Case::new(Layer::BatchNorm(layer(Some(kept), eps)), &[dims])
}

/// Two images of two channels of two places: channel 0 holds 1, 3, 5, 7 and channel 1 holds 2, 2, 2, 10.
const X: [f64; 8] = [1.0, 3.0, 2.0, 2.0, 5.0, 7.0, 2.0, 10.0];

#[test]
fn a_batch_is_normalised_by_its_biased_variance() {
    // Means 4 and 4, variances 5 and 12, to which eps adds 4.
    let case = case(false, 4.0, &[2, 2, 2]);
    let mut a = Arrays::new();
    a.insert(Operand::Bottom(0), X.to_vec());
    case.run(SubTask::Forward, &mut a);
    assert_eq!(a.get(Operand::Aux(0)), [4.0, 4.0]);
    assert_eq!(a.get(Operand::Aux(1)), [5.0, 12.0]);
    let expected = [-1.0, -1.0 / 3.0, -0.5, -0.5, 1.0 / 3.0, 1.0, -0.5, 1.5];
    assert_eq!(a.get(Operand::Top(0)), expected);
}

#[test]
fn running_sums_get_the_share_of_the_mean_and_of_the_unbiased_variance() {
    let case = case(false, 4.0, &[2, 2, 2]);
    let mut a = Arrays::new();
    a.insert(Operand::Bottom(0), X.to_vec());
    case.run(SubTask::Forward, &mut a);
    compute(&Context { share: 0.25, ..case.context() }, SubTask::GradWeight, &mut a);
    let terms = [0, 1, 2].map(|i| a.get(Operand::ParamGrad(i)).to_vec());
    // In double precision: the correction is no number of single precision.
    let correction = 4.0 / 3.0;
    let variance = [0.25 * (correction * 5.0), 0.25 * (correction * 12.0)];
    assert_eq!(terms, [vec![1.0; 2], variance.to_vec(), vec![0.25]]);
    assert!((correction - f64::from(BatchNorm::bias_correction(4))).abs() < 1e-7);
}

#[test]
fn one_value_has_no_variance_and_no_gradient() {
    let case = case(false, 1.0, &[1, 2]);
    let mut a = Arrays::new();
    a.insert(Operand::Bottom(0), vec![3.0, -7.0]);
    a.insert(Operand::TopGrad(0), vec![1.0, 2.0]);
    [SubTask::Forward, SubTask::GradActivation, SubTask::GradWeight]
        .into_iter()
        .for_each(|sub| case.run(sub, &mut a));
    assert_eq!((a.get(Operand::Top(0)), a.get(Operand::BottomGrad(0))), (&[0.0; 2][..], &[0.0; 2][..]));
    assert_eq!(
        (a.get(Operand::ParamGrad(0)), a.get(Operand::ParamGrad(1))),
        (&[3.0, -7.0][..], &[0.0; 2][..])
    );
}

#[test]
fn kept_statistics_are_sums_over_their_factor() {
    let case = case(true, 4.0, &[2, 2, 2]);
    // Means 4 and 2, variances 5 and 0, to which eps adds 4.
    let sums: [&[f64]; 3] = [&[8.0, 4.0], &[10.0, 0.0], &[2.0]];
    let mut a = Arrays::new();
    a.insert(Operand::Bottom(0), X.to_vec());
    a.insert(Operand::TopGrad(0), vec![3.0, 6.0, 2.0, 4.0, -3.0, 9.0, 8.0, -2.0]);
    sums.iter().enumerate().for_each(|(i, sum)| a.insert(Operand::Param(i), sum.to_vec()));
    case.run(SubTask::Forward, &mut a);
    case.run(SubTask::GradActivation, &mut a);
    assert_eq!(a.get(Operand::Top(0)), [-1.0, -1.0 / 3.0, 0.0, 0.0, 1.0 / 3.0, 1.0, 0.0, 4.0]);
    assert_eq!(a.get(Operand::BottomGrad(0)), [1.0, 2.0, 1.0, 2.0, -1.0, 3.0, 4.0, -1.0]);
    assert_eq!(case.layer.accesses(SubTask::GradWeight), None);
    // A factor of 0 says that nothing was summed yet: mean and variance are 0.
    a.insert(Operand::Param(2), vec![0.0]);
    case.run(SubTask::Forward, &mut a);
    assert_eq!(a.get(Operand::Top(0)), X.map(|x| x / 2.0));
}

#[test]
fn the_phase_chooses_the_statistics_unless_the_file_does() {
    for (said, phase, kept) in [
        (None, Phase::Train, false),
        (None, Phase::Test, true),
        (Some(true), Phase::Train, true),
        (Some(false), Phase::Test, false),
    ] {
        let Layer::BatchNorm(settled) = Layer::BatchNorm(layer(said, 0.1)).in_phase(phase) else {
            panic!("it stays what it is")
        };
        assert_eq!(settled, layer(Some(kept), 0.1), "{said:?} in {phase}");
    }
}

#[test]
fn a_blob_of_one_axis_is_one_channel() {
    let y = case(false, 0.0, &[4]).forward(&[&[1.0, 3.0, 1.0, 3.0]], &[]);
    assert_eq!(y, [-1.0, 1.0, -1.0, 1.0]);
}

#[test]
fn numbers_without_meaning_are_refused() {
    let refused = |layer: BatchNorm, dims: &[usize]| {
        Layer::BatchNorm(layer).infer(&[Shape::new(dims)]).expect_err("impossible").field
    };
    for eps in [-1e-5, f32::NAN, f32::INFINITY] {
        assert_eq!(refused(layer(None, eps), &[2, 2]), "batch_norm_param.eps");
    }
    for moving_average_fraction in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
        let layer = BatchNorm { moving_average_fraction, ..layer(None, 0.0) };
        assert_eq!(refused(layer, &[2, 2]), "batch_norm_param.moving_average_fraction");
    }
    assert_eq!(refused(layer(None, 0.0), &[]), "bottom");
}
