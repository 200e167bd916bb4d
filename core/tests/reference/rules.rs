//! Caffe's rules where another choice would be as plausible, and what happens where Caffe aborts.

use quadrille_core::layer::{
    Accuracy, Layer, Normalization, Operand, PoolMethod, Pooling, Relu, SoftmaxWithLoss, Split, SubTask,
};
use quadrille_core::reference::{Arrays, Real, compute};

use crate::case::Case;

fn pooling(method: PoolMethod, kernel: usize, stride: usize, pad: usize) -> Layer {
    Layer::Pooling(Pooling { method, kernel: Some([kernel; 2]), pad: [pad; 2], stride: [stride; 2] })
}

/// Values, positions and gradient (for a gradient of 1 everywhere) of MAX pooling.
fn max_pooling(layer: Layer, dims: [usize; 4], x: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let case = Case::new(layer, &[&dims]);
    let mut a = Arrays::new();
    a.insert(Operand::Bottom(0), x.to_vec());
    case.run(SubTask::Forward, &mut a);
    a.insert(Operand::TopGrad(0), vec![1.0; case.tops[0].count()]);
    case.run(SubTask::GradActivation, &mut a);
    let array = |operand| a.get(operand).to_vec();
    (array(Operand::Top(0)), array(Operand::Aux(0)), array(Operand::BottomGrad(0)))
}

#[test]
fn the_first_of_equal_maxima_wins() {
    let x = [1.0, 7.0, 7.0, 7.0, 2.0, 7.0, 0.0, 7.0, 7.0];
    let (y, positions, dx) = max_pooling(pooling(PoolMethod::Max, 2, 1, 0), [1, 1, 3, 3], &x);
    assert_eq!(y, [7.0; 4]);
    assert_eq!(positions, [1.0, 1.0, 3.0, 5.0]);
    assert_eq!(dx, [0.0, 2.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn positions_of_maxima_count_within_their_plane() {
    let layer = Pooling { method: PoolMethod::Max, kernel: Some([1, 2]), pad: [0; 2], stride: [1, 2] };
    let x = [1.0, 2.0, 4.0, 3.0, 8.0, 6.0];
    let (y, positions, dx) = max_pooling(Layer::Pooling(layer), [1, 3, 1, 2], &x);
    assert_eq!((y, positions), (vec![2.0, 4.0, 8.0], vec![1.0, 0.0, 0.0]));
    assert_eq!(dx, [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
}

#[test]
fn a_maximum_ignores_padding_and_an_average_counts_it() {
    // Windows of 3 every 2 over 4 with 1 of padding hold 2, 3 and 1 of the image; the last is cut at 4 + 1.
    let (y, ..) = max_pooling(pooling(PoolMethod::Max, 3, 2, 1), [1, 1, 4, 4], &[-5.0; 16]);
    assert_eq!(y, [-5.0; 9]);
    let case = Case::new(pooling(PoolMethod::Average, 3, 2, 1), &[&[1, 1, 4, 4]]);
    let (a, b, c) = (2.0 / 3.0, 1.0, 0.5);
    let expected = [a * a, a, a * c, a, b, c, a * c, c, c * c];
    let y = case.forward(&[&[1.0f64; 16]], &[]);
    assert!(y.iter().zip(expected).all(|(y, e)| (y - e).abs() <= f64::EPSILON), "{y:?}");
}

#[test]
fn a_window_that_would_start_in_the_padding_behind_the_image_is_dropped() {
    let average = |width| {
        Case::new(
            Layer::Pooling(Pooling {
                method: PoolMethod::Average,
                kernel: Some([1, 2]),
                pad: [0, 1],
                stride: [1, 2],
            }),
            &[&[1, 1, 1, width]],
        )
        .forward(&[&vec![1.0f64; width]], &[])
    };
    assert_eq!(average(4), [0.5, 1.0, 0.5]);
    // Rounding up would make a fourth window at column 6 = 5 + pad.
    assert_eq!(average(5), [0.5, 1.0, 1.0]);
}

#[test]
fn a_last_window_that_sticks_out_is_kept_and_cut_without_padding() {
    let case = Case::new(pooling(PoolMethod::Average, 2, 2, 0), &[&[1, 1, 3, 3]]);
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    assert_eq!(case.forward(&[&x], &[]), [3.0, 4.5, 7.5, 9.0]);
}

#[test]
fn a_window_larger_than_its_input_takes_what_is_there() {
    let (y, positions, dx) = max_pooling(pooling(PoolMethod::Max, 2, 2, 0), [1, 2, 1, 1], &[-3.0, 4.0]);
    assert_eq!((y, positions, dx), (vec![-3.0, 4.0], vec![0.0, 0.0], vec![1.0, 1.0]));
    // The divisor is the window cut at the input.
    let case = Case::new(pooling(PoolMethod::Average, 5, 2, 0), &[&[1, 1, 4, 4]]);
    let mut a = Arrays::new();
    a.insert(Operand::Bottom(0), vec![3.0; 16]);
    a.insert(Operand::TopGrad(0), vec![32.0]);
    case.run(SubTask::Forward, &mut a);
    case.run(SubTask::GradActivation, &mut a);
    assert_eq!((a.get(Operand::Top(0)), a.get(Operand::BottomGrad(0))), (&[3.0][..], &[2.0; 16][..]));
}

fn softmax_with_loss(ignore_label: Option<i32>, normalization: Normalization) -> Layer {
    Layer::SoftmaxWithLoss(SoftmaxWithLoss { axis: 1, ignore_label, normalization })
}

/// The loss and the gradient of the scores.
fn loss(layer: Layer, scores: (&[usize], &[f64]), labels: &[f64]) -> (f64, Vec<f64>) {
    let case = Case::new(layer, &[scores.0, &[labels.len()]]);
    let mut a = Arrays::new();
    a.insert(Operand::Bottom(0), scores.1.to_vec());
    a.insert(Operand::Bottom(1), labels.to_vec());
    case.run(SubTask::Forward, &mut a);
    case.run(SubTask::GradActivation, &mut a);
    (a.get(Operand::Top(0))[0], a.get(Operand::BottomGrad(0)).to_vec())
}

#[test]
fn every_normalization_has_its_divisor() {
    // Two images of three predictions with equal scores: each counts ln 2. Two of six labels are ignored.
    let labels = [0.0, 9.0, 1.0, 1.0, 0.0, 9.0];
    for (normalization, divisor) in [
        (Normalization::Full, 6.0),
        (Normalization::Valid, 4.0),
        (Normalization::BatchSize, 2.0),
        (Normalization::None, 1.0),
    ] {
        let layer = softmax_with_loss(Some(9), normalization);
        let (value, dx) = loss(layer, (&[2, 2, 3], &[0.0; 12]), &labels);
        assert!((value - 4.0 * 2.0f64.ln() / divisor).abs() <= 1e-15, "{normalization:?}: {value}");
        let g = 0.5 / divisor;
        let expected = [-g, 0.0, g, g, 0.0, -g, g, -g, 0.0, -g, g, 0.0];
        assert!(dx.iter().zip(expected).all(|(d, e)| (d - e).abs() <= 1e-16), "{normalization:?}: {dx:?}");
    }
}

#[test]
fn nothing_is_divided_by_zero_when_every_label_is_ignored() {
    let layer = softmax_with_loss(Some(-1), Normalization::Valid);
    assert_eq!(loss(layer, (&[2, 2], &[1.0, 2.0, 3.0, 4.0]), &[-1.0, -1.0]), (0.0, vec![0.0; 4]));
}

#[test]
fn the_loss_has_a_floor_and_its_gradient_has_none() {
    let layer = softmax_with_loss(None, Normalization::Valid);
    let (value, dx) = loss(layer, (&[1, 2], &[0.0, 1000.0]), &[0.0]);
    assert!((value + f64::from(f32::MIN_POSITIVE).ln()).abs() < 1e-13, "{value}");
    assert_eq!(dx, [-1.0, 1.0]);
}

#[test]
fn a_label_that_names_no_class_is_seen_and_spreads_no_further() {
    let layer = softmax_with_loss(Some(-1), Normalization::Valid);
    for wrong in [2.0, -2.0, 1e30, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let (value, dx) = loss(layer.clone(), (&[2, 2], &[0.0; 4]), &[wrong, 1.0]);
        assert!(value.is_nan() && dx[0].is_nan() && dx[1].is_nan(), "{wrong}: {value} {dx:?}");
        assert_eq!(dx[2..], [0.25, -0.25], "{wrong}");
    }
}

#[test]
fn tops_that_do_not_exist_are_not_written() {
    let mut case = Case::new(softmax_with_loss(None, Normalization::Valid), &[&[1, 2], &[1]]);
    for tops in [1, 0] {
        case.tops.truncate(tops);
        let mut a = Arrays::new();
        a.insert(Operand::Bottom(0), vec![0.0, 0.0]);
        a.insert(Operand::Bottom(1), vec![0.0]);
        compute(&case.context(), SubTask::Forward, &mut a);
        assert_eq!(a.find(Operand::Top(0)).is_some(), tops == 1);
        assert_eq!(a.find(Operand::Top(1)), None);
        assert_eq!(a.get(Operand::Aux(0)), [0.5, 0.5]);
    }
}

fn accuracy(top_k: usize, ignore_label: Option<i32>, scores: &[f64], labels: &[f64]) -> f64 {
    let classes = scores.len() / labels.len();
    let layer = Layer::Accuracy(Accuracy { top_k, axis: 1, ignore_label });
    Case::new(layer, &[&[labels.len(), classes], &[labels.len()]]).forward(&[scores, labels], &[])[0]
}

#[test]
fn ties_hurt_accuracy() {
    // Right, tied with a class behind, tied with a class before, wrong.
    let scores = [3.0, 1.0, 2.0, 3.0, 3.0, 2.0, 3.0, 3.0, 2.0, 1.0, 2.0, 3.0];
    let labels = [0.0, 0.0, 1.0, 0.0];
    assert_eq!(accuracy(1, None, &scores, &labels), 0.25);
    assert_eq!(accuracy(2, None, &scores, &labels), 0.75);
    assert_eq!(accuracy(3, None, &scores, &labels), 1.0);
}

#[test]
fn accuracy_counts_only_labels_that_are_not_ignored() {
    let scores = [3.0, 1.0, 1.0, 3.0, 1.0, 3.0];
    assert_eq!(accuracy(1, Some(1), &scores, &[0.0, 1.0, 0.0]), 0.5);
    assert_eq!(accuracy(1, Some(1), &scores, &[1.0, 1.0, 1.0]), 0.0);
    assert!(accuracy(1, Some(1), &scores, &[0.0, 2.0, 0.0]).is_nan());
}

#[test]
fn accuracy_by_class_looks_at_the_labels_that_name_the_class() {
    let layer = Layer::Accuracy(Accuracy { top_k: 1, axis: 1, ignore_label: Some(3) });
    let case = Case::new(layer, &[&[5, 4], &[5]]);
    let mut a = Arrays::new();
    // Class 0 is right once in two times, class 1 always, class 2 is named by no label, and class 3 is ignored.
    let scores =
        [[9.0, 1.0, 1.0, 1.0], [1.0, 9.0, 1.0, 1.0], [1.0, 9.0, 1.0, 1.0], [1.0; 4], [1.0, 9.0, 1.0, 1.0]];
    a.insert(Operand::Bottom(0), scores.concat());
    a.insert(Operand::Bottom(1), vec![0.0, 0.0, 1.0, 3.0, 1.0]);
    case.run(SubTask::Forward, &mut a);
    assert_eq!((a.get(Operand::Top(0)), a.get(Operand::Top(1))), (&[0.75][..], &[0.5, 1.0, 0.0, 0.0][..]));
}

#[test]
fn accuracy_looks_along_its_axis() {
    let layer = Layer::Accuracy(Accuracy { top_k: 1, axis: 1, ignore_label: None });
    // One image, two classes, three places: the classes lie three apart.
    let case = Case::new(layer, &[&[1, 2, 3], &[1, 1, 3]]);
    let share = case.forward(&[&[5.0, 1.0, 1.0, 0.0, 2.0, 3.0], &[0.0, 1.0, 0.0]], &[]);
    assert!((share[0] - 2.0f64 / 3.0).abs() <= f64::EPSILON);
}

#[test]
fn scores_that_are_not_numbers_are_never_right() {
    assert_eq!(accuracy(1, None, &[f64::NAN; 3], &[0.0]), 0.0);
    assert_eq!(accuracy(1, None, &[1.0, f64::NAN], &[0.0]), 0.0);
}

#[test]
fn a_relu_does_not_hide_what_is_not_a_number() {
    let case = Case::new(Layer::Relu(Relu { negative_slope: 0.0, applied: false }), &[&[2]]);
    let y = case.forward(&[&[f64::NAN, f64::INFINITY]], &[]);
    assert!(y[0].is_nan() && y[1] == f64::INFINITY);
}

#[test]
fn a_loss_does_not_hide_what_is_not_a_number() {
    let layer = softmax_with_loss(None, Normalization::Valid);
    let (value, dx) = loss(layer, (&[1, 2], &[0.0, f64::NAN]), &[0.0]);
    assert!(value.is_nan() && dx.iter().all(|d| d.is_nan()));
}

#[test]
fn the_larger_and_the_smaller_keep_a_first_operand_that_is_not_a_number() {
    assert!(f64::NAN.larger(0.0).is_nan() && f64::NAN.smaller(0.0).is_nan());
    assert!(Real::larger(f32::NAN, 0.0).is_nan() && Real::smaller(f32::NAN, 0.0).is_nan());
    assert_eq!((0.0.larger(f64::NAN), 0.0.smaller(f64::NAN)), (0.0, 0.0));
    assert_eq!(
        (1.0f64.larger(2.0), 2.0f64.larger(1.0), 1.0f64.smaller(2.0), 2.0f64.smaller(1.0)),
        (2.0, 2.0, 1.0, 1.0)
    );
}

#[test]
fn a_split_leaves_out_tops_that_have_no_gradient() {
    let case = Case::new(Layer::Split(Split { tops: 3 }), &[&[2]]);
    let mut a = Arrays::new();
    a.insert(Operand::TopGrad(0), vec![1.0, 2.0]);
    a.insert(Operand::TopGrad(2), vec![10.0, 20.0]);
    a.insert(Operand::BottomGrad(0), vec![100.0, 100.0]);
    compute(&case.context(), SubTask::GradActivation, &mut a);
    assert_eq!(a.get(Operand::BottomGrad(0)), [11.0, 22.0]);
}
