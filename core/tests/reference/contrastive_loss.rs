//! Contrastive loss: gradients, an example by hand, and Caffe's rules.

use quadrille_core::layer::{ContrastiveLoss, Layer, Operand, SubTask};
use quadrille_core::reference::Arrays;

use crate::case::Case;

fn case(margin: f32, legacy_version: bool, images: usize, channels: usize) -> Case {
    let layer = Layer::ContrastiveLoss(ContrastiveLoss { margin, legacy_version });
    Case::new(layer, &[&[images, channels], &[images, channels], &[images]])
}

/// The loss and both gradients.
fn run(case: &Case, bottoms: [&[f64]; 3]) -> (f64, Vec<f64>, Vec<f64>) {
    let mut arrays = Arrays::new();
    bottoms.iter().enumerate().for_each(|(i, b)| arrays.insert(Operand::Bottom(i), b.to_vec()));
    case.run(SubTask::Forward, &mut arrays);
    case.run(SubTask::GradActivation, &mut arrays);
    let array = |operand| arrays.get(operand).to_vec();
    (array(Operand::Top(0))[0], array(Operand::BottomGrad(0)), array(Operand::BottomGrad(1)))
}

/// Where Caffe's backward is the derivative of its forward: similar pairs, and the legacy version. Its pieces are
/// quadratic; the margins are so wide that no pair comes near the kink.
#[test]
fn contrastive_loss_has_the_gradients_of_its_forward() {
    for (seed, legacy_version) in [false, true].into_iter().enumerate() {
        for (images, channels) in [(6, 3), (1, 5), (4, 1)] {
            let mut case = case(50.0, legacy_version, images, channels);
            case.loss_weights = vec![0.75];
            let similar: Vec<f64> = (0..images).map(|n| f64::from(!legacy_version || n % 2 == 0)).collect();
            case.check_gradients(seed as u64, &similar, 0.0);
        }
    }
}

/// Elsewhere the 1e-4 in Caffe's divisor is all that the gradient is short of: with it taken out again, central
/// differences agree.
#[test]
fn the_gradient_of_pairs_that_are_not_similar_is_short_by_caffes_term_alone() {
    const H: f64 = 1e-5;
    let case = case(2.5, false, 3, 2);
    // Distances 0.5, 1.25 and, beyond the margin, 5.
    let (a, b, similar) = ([0.3, 0.4, 1.0, 0.0, 3.0, 4.0], [0.0, 0.0, 0.25, 1.0, 0.0, 0.0], [0.0; 3]);
    let (_, da, db) = run(&case, [&a, &b, &similar]);
    for i in 0..4 {
        let moved = |by: f64| {
            let mut a = a;
            a[i] += by;
            run(&case, [&a, &b, &similar]).0
        };
        let slope = (moved(H) - moved(-H)) / (2.0 * H);
        let distance = [0.5, 1.25][i / 2];
        let exact = da[i] * (distance + f64::from(1e-4f32)) / distance;
        assert!((exact - slope).abs() < 1e-8 && da[i] == -db[i], "{i}: {exact} is not {slope}");
        assert!(exact == 0.0 || (da[i] / exact - 1.0).abs() > 1e-5, "mistrusted: the term does nothing");
    }
    assert_eq!((da[4..].to_vec(), db[4..].to_vec()), (vec![0.0; 2], vec![0.0; 2]));
}

#[test]
fn a_contrastive_loss_by_hand() {
    // Distances 5 (similar), 5 and 0.5; squares 25, 25 and 0.25.
    let (a, b) = ([3.0, 4.0, 0.0, 0.0, 0.5, 1.0], [0.0, 0.0, 4.0, 3.0, 0.5, 0.5]);
    let similar = [1.0, 0.0, 0.0];
    let mut modern = case(6.0, false, 3, 2);
    let (loss, ..) = run(&modern, [&a, &b, &similar]);
    assert!((loss - (25.0 + 1.0 + 5.5 * 5.5) / 6.0).abs() < 1e-14, "{loss}");
    modern.loss_weights = vec![3.0];
    let (unweighted, da, db) = run(&modern, [&a, &b, &similar]);
    assert_eq!(unweighted, loss);
    assert_eq!((&da[..2], &db[..2]), (&[3.0, 4.0][..], &[-3.0, -4.0][..]));
    let factor = 1.0 / (5.0 + f64::from(1e-4f32));
    assert!((da[2] - 4.0 * factor).abs() < 1e-14 && (da[3] - 3.0 * factor).abs() < 1e-14, "{da:?}");
    // Only the third pair is within a legacy margin of 6.
    let (loss, da, _) = run(&case(6.0, true, 3, 2), [&a, &b, &similar]);
    assert!((loss - (25.0 + 0.0 + 5.75) / 6.0).abs() < 1e-14, "{loss}");
    assert_eq!(da[2..], [0.0, 0.0, 0.0, -0.5 / 3.0]);
}

#[test]
fn equal_features_that_are_not_similar_have_no_direction() {
    let (loss, da, db) = run(&case(2.0, false, 1, 2), [&[1.0, 2.0], &[1.0, 2.0], &[0.0]]);
    assert_eq!((loss, da, db), (2.0, vec![0.0; 2], vec![0.0; 2]));
}

#[test]
fn similar_is_what_is_not_zero_when_the_fraction_is_cut_off() {
    let of = |similar: f64| run(&case(100.0, false, 1, 1), [&[3.0], &[0.0], &[similar]]).0;
    for (similar, loss) in
        [(1.0, 4.5), (-1.0, 4.5), (2.7, 4.5), (0.9, 97.0 * 97.0 / 2.0), (-0.9, 97.0 * 97.0 / 2.0)]
    {
        assert_eq!(of(similar), loss, "{similar}");
    }
}

#[test]
fn a_contrastive_loss_does_not_hide_what_is_not_a_number() {
    for (similar, legacy) in [(0.0, false), (0.0, true), (1.0, false)] {
        let (loss, da, db) = run(&case(1.0, legacy, 2, 1), [&[f64::NAN, 0.5], &[0.0, 0.0], &[similar, 1.0]]);
        assert!(loss.is_nan() && da[0].is_nan() && db[0].is_nan() && da[1].is_finite(), "{loss} {da:?}");
    }
}
