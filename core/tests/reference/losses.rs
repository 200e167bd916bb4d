//! Losses: gradients, examples worked by hand, and Caffe's rules.

use quadrille_core::layer::{
    EuclideanLoss, HingeLoss, HingeNorm, InfogainLoss, Layer, MultinomialLogisticLoss, Normalization,
    Operand, SigmoidCrossEntropyLoss, SubTask,
};
use quadrille_core::reference::Arrays;

use crate::case::{Case, distinct, labels};

/// A loss with a weight.
fn weighted(layer: Layer, weight: f32, bottoms: &[&[usize]]) -> Case {
    let case = Case::new(layer, bottoms);
    Case { loss_weights: vec![weight, 0.0], ..case }
}

/// The loss and the gradient of bottom 0.
fn run(case: &Case, bottoms: &[&[f64]]) -> (f64, Vec<f64>) {
    let mut arrays = Arrays::new();
    bottoms.iter().enumerate().for_each(|(i, b)| arrays.insert(Operand::Bottom(i), b.to_vec()));
    case.run(SubTask::Forward, &mut arrays);
    case.run(SubTask::GradActivation, &mut arrays);
    (arrays.get(Operand::Top(0))[0], arrays.get(Operand::BottomGrad(0)).to_vec())
}

const NORMALIZATIONS: [Normalization; 4] =
    [Normalization::Full, Normalization::Valid, Normalization::BatchSize, Normalization::None];

#[test]
fn euclidean_loss_has_the_gradients_of_its_forward() {
    for (seed, shapes) in [[&[3, 4, 2][..], &[3, 8]], [&[5], &[5]]].into_iter().enumerate() {
        weighted(Layer::EuclideanLoss(EuclideanLoss), 2.5, &shapes).check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn a_euclidean_loss_by_hand() {
    let case = weighted(Layer::EuclideanLoss(EuclideanLoss), 3.0, &[&[2, 2], &[2, 2]]);
    let (loss, da) = run(&case, &[&[1.0, 2.0, 3.0, 4.0], &[0.0, 4.0, 3.0, 1.0]]);
    assert_eq!((loss, da), ((1.0 + 4.0 + 9.0) / 4.0, vec![1.5, -3.0, 0.0, 4.5]));
}

fn cross_entropy(ignore_label: Option<i32>, normalization: Normalization) -> Layer {
    Layer::SigmoidCrossEntropyLoss(SigmoidCrossEntropyLoss { ignore_label, normalization })
}

#[test]
fn sigmoid_cross_entropy_has_the_gradient_of_its_forward() {
    for (seed, normalization) in NORMALIZATIONS.into_iter().enumerate() {
        for ignore_label in [None, Some(-1)] {
            let case = weighted(cross_entropy(ignore_label, normalization), 0.75, &[&[2, 3, 2], &[2, 6]]);
            let mut targets: Vec<f64> = distinct(9, 12).iter().map(|v| v.abs()).collect();
            if ignore_label.is_some() {
                (targets[2], targets[7]) = (-1.0, -1.0);
            }
            // The third derivative of ln(1 + eˣ) is at most 0.1.
            case.check_gradients(seed as u64, &targets, 0.1);
        }
    }
}

#[test]
fn a_sigmoid_cross_entropy_by_hand() {
    let (x, targets) = ([0.0, 0.0, 1000.0, -1000.0], [1.0, 0.25, 0.0, -1.0]);
    for (normalization, ignore_label, divisor) in [
        (Normalization::BatchSize, None, 2.0),
        (Normalization::BatchSize, Some(-1), 2.0),
        (Normalization::Valid, Some(-1), 3.0),
        (Normalization::Full, Some(-1), 4.0),
        (Normalization::None, Some(-1), 1.0),
    ] {
        let case = weighted(cross_entropy(ignore_label, normalization), 1.0, &[&[2, 2], &[2, 2]]);
        let (loss, dx) = run(&case, &[&x, &targets]);
        // At −1000 a target of −1 asks for −1000 more than nothing.
        let last = if ignore_label.is_some() { 0.0 } else { -1000.0 };
        let expected = (2.0 * 2.0f64.ln() + 1000.0 + last) / divisor;
        assert!((loss - expected).abs() < 1e-12, "{loss} is not {expected}");
        let last = if ignore_label.is_some() { 0.0 } else { 1.0 };
        assert_eq!(dx, [-0.5, 0.25, 1.0, last].map(|d| d / divisor));
    }
}

/// A target's fraction is cut off before it is compared, and a sum of nothing is not divided by nothing.
#[test]
fn targets_are_ignored_by_their_integer_part() {
    let case = weighted(cross_entropy(Some(0), Normalization::Valid), 1.0, &[&[2, 2], &[2, 2]]);
    assert_eq!(run(&case, &[&[3.0; 4], &[0.0, 0.9, -0.9, 0.5]]), (0.0, vec![0.0; 4]));
    let (loss, dx) = run(&case, &[&[0.0, 1.0, 1.0, 1.0], &[1.0, 0.9, -0.9, 0.5]]);
    assert_eq!((loss, dx), (2.0f64.ln(), vec![-0.5, 0.0, 0.0, 0.0]));
}

#[test]
fn hinge_loss_has_the_gradient_of_its_forward() {
    for (seed, norm) in [HingeNorm::L1, HingeNorm::L2].into_iter().enumerate() {
        for (scores, count) in [(&[4, 5][..], 4), (&[2, 3, 2], 2)] {
            let case = weighted(Layer::HingeLoss(HingeLoss { norm }), 0.75, &[scores, &[count]]);
            case.check_gradients(seed as u64, &labels(3, count, 3), 0.0);
        }
    }
}

#[test]
fn hinge_losses_by_hand() {
    let scores = [0.5, -2.0, 2.0, 3.0, -0.5, -1.0];
    let hinge = |norm, labels: &[f64]| {
        let case = weighted(Layer::HingeLoss(HingeLoss { norm }), 2.0, &[&[2, 3], &[2]]);
        run(&case, &[&scores, labels])
    };
    // What is missing: 0.5, 0, 3 and 0, 0.5, 0, of which the last has its margin just so.
    let (loss, dx) = hinge(HingeNorm::L1, &[0.0, 0.9]);
    assert_eq!((loss, dx), (2.0, vec![-1.0, 0.0, 1.0, 0.0, 1.0, 0.0]));
    let (loss, dx) = hinge(HingeNorm::L2, &[0.0, 0.0]);
    assert_eq!((loss, dx), ((0.25 + 9.0 + 0.25) / 2.0, vec![-1.0, 0.0, 6.0, 0.0, 1.0, 0.0]));
    for label in [3.0, -1.0, f64::NAN] {
        let (loss, dx) = hinge(HingeNorm::L1, &[0.0, label]);
        assert!(loss.is_nan() && dx[3..].iter().all(|d| d.is_nan()), "{label}: {loss} {dx:?}");
        assert_eq!(dx[..3], [-1.0, 0.0, 1.0], "{label}");
    }
}

#[test]
fn a_multinomial_loss_by_hand() {
    let layer = Layer::MultinomialLogisticLoss(MultinomialLogisticLoss);
    let case = weighted(layer, 2.0, &[&[2, 1, 2], &[2, 1]]);
    let (loss, dp) = run(&case, &[&[0.25, 0.75, 0.5, 0.5], &[0.0, 1.0]]);
    assert!((loss - (4.0f64.ln() + 2.0f64.ln()) / 2.0).abs() < 1e-15, "{loss}");
    assert_eq!(dp, [-4.0, 0.0, 0.0, -2.0]);
    // A probability of 0 counts as 1e-20, in backward, too.
    let (loss, dp) = run(&case, &[&[0.0, 1.0, 0.5, 0.5], &[0.0, 1.0]]);
    let least = f64::from(1e-20f32);
    assert!((loss - (2.0f64.ln() - least.ln()) / 2.0).abs() < 1e-14, "{loss}");
    assert_eq!(dp, [-1.0 / least, 0.0, 0.0, -2.0]);
    let (loss, dp) = run(&case, &[&[0.0, 1.0, 0.5, 0.5], &[0.0, 2.0]]);
    assert!(loss.is_nan() && dp[..2] == [-1.0 / least, 0.0] && dp[2].is_nan() && dp[3].is_nan());
}

fn infogain(
    axis: i32,
    ignore_label: Option<i32>,
    normalization: Normalization,
    matrix: Option<&[f32]>,
) -> Layer {
    Layer::InfogainLoss(InfogainLoss { axis, ignore_label, normalization, matrix: matrix.map(Into::into) })
}

const GAINS: [f32; 9] = [1.0, -0.25, 0.5, 0.0, 2.0, 0.125, -1.0, 0.75, 0.25];

#[test]
fn infogain_loss_has_the_gradient_of_its_forward() {
    let cases: [(i32, &[usize], usize); 3] = [(1, &[4, 3], 4), (1, &[2, 3, 2, 2], 8), (-1, &[2, 2, 3], 4)];
    for (seed, (axis, scores, count)) in cases.into_iter().enumerate() {
        for normalization in NORMALIZATIONS {
            for ignore_label in [None, Some(1)] {
                let layer = infogain(axis, ignore_label, normalization, Some(&GAINS));
                let mut truths = labels(3, count, 3);
                truths[0] = 2.0;
                // Of each logarithm the third derivative is at most 0.1, and of a label's gains the sum at most 3.
                let case = weighted(layer, 0.75, &[scores, &[count]]);
                case.check_gradients(seed as u64, &truths, 0.3);
            }
        }
    }
}

#[test]
fn a_matrix_that_is_a_bottom_is_the_same_and_the_identity_is_a_softmax_with_loss() {
    let gains: Vec<f64> = GAINS.iter().map(|gain| f64::from(*gain)).collect();
    let (scores, truths) = (distinct(5, 12), [2.0, 1.0, 0.0, 1.0]);
    for normalization in NORMALIZATIONS {
        let own = weighted(infogain(1, Some(1), normalization, Some(&GAINS)), 0.5, &[&[4, 3], &[4]]);
        let bottom =
            weighted(infogain(1, Some(1), normalization, None), 0.5, &[&[4, 3], &[4], &[1, 1, 3, 3]]);
        assert_eq!(run(&own, &[&scores, &truths]), run(&bottom, &[&scores, &truths, &gains]));
        let identity = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        let like = weighted(infogain(1, Some(1), normalization, Some(&identity)), 0.5, &[&[4, 3], &[4]]);
        let softmax =
            quadrille_core::layer::SoftmaxWithLoss { axis: 1, ignore_label: Some(1), normalization };
        let softmax = weighted(Layer::SoftmaxWithLoss(softmax), 0.5, &[&[4, 3], &[4]]);
        let (found, expected) = (run(&like, &[&scores, &truths]), run(&softmax, &[&scores, &truths]));
        assert!((found.0 - expected.0).abs() < 1e-14, "{} is not {}", found.0, expected.0);
        for (a, b) in found.1.iter().zip(&expected.1) {
            assert!((a - b).abs() < 1e-15, "{a} is not {b}");
        }
    }
}

#[test]
fn an_infogain_loss_by_hand() {
    // Both probabilities are a half, and the matrix has rows (1, 3) and (0, 2).
    let layer = infogain(1, None, Normalization::Valid, Some(&[1.0, 3.0, 0.0, 2.0]));
    let case = weighted(layer, 1.0, &[&[2, 2], &[2]]);
    let (loss, dx) = run(&case, &[&[1.0, 1.0, -7.0, -7.0], &[0.0, 1.0]]);
    assert!((loss - 6.0 * 2.0f64.ln() / 2.0).abs() < 1e-15, "{loss}");
    assert_eq!(dx, [0.5, -0.5, 0.5, -0.5]);
    // A probability that is too small counts as 1e-20 in the loss.
    let (loss, _) = run(&case, &[&[0.0, -1e4, 0.0, -1e4], &[0.0, 1.0]]);
    assert!((loss + 2.5 * f64::from(1e-20f32).ln()).abs() < 1e-12, "{loss}");
    let (loss, dx) = run(&case, &[&[1.0, 1.0, -7.0, -7.0], &[0.0, 2.0]]);
    assert!(loss.is_nan() && dx[0] == 0.5 && dx[2].is_nan() && dx[3].is_nan());
}
