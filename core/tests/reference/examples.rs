//! Tiny examples worked by hand; all numbers are exact in binary unless a tolerance is given.

use quadrille_core::layer::{Layer, Normalization, Operand, Relu, Softmax, SoftmaxWithLoss, SubTask};
use quadrille_core::reference::Arrays;

use crate::case::{Case, convolution, inner_product};

fn arrays(values: &[(Operand, &[f64])]) -> Arrays<f64> {
    let mut arrays = Arrays::new();
    values.iter().for_each(|(operand, values)| arrays.insert(*operand, values.to_vec()));
    arrays
}

fn close(computed: &[f64], expected: &[f64]) {
    let near = computed.iter().zip(expected).all(|(c, e)| (c - e).abs() <= 4.0 * f64::EPSILON);
    assert!(near && computed.len() == expected.len(), "{computed:?} is not {expected:?}");
}

#[test]
fn a_convolution_by_hand() {
    let case = Case::new(Layer::Convolution(convolution(1, [2, 2])), &[&[1, 1, 3, 3]]);
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    let w = [1.0, 2.0, 3.0, 4.0];
    assert_eq!(case.forward(&[&x], &[&w, &[10.0]]), [47.0, 57.0, 77.0, 87.0]);
    let mut a = arrays(&[
        (Operand::Bottom(0), &x),
        (Operand::Param(0), &w),
        (Operand::TopGrad(0), &[1.0, 0.0, 0.0, 2.0]),
    ]);
    case.run(SubTask::GradActivation, &mut a);
    case.run(SubTask::GradWeight, &mut a);
    case.run(SubTask::GradBias, &mut a);
    assert_eq!(a.get(Operand::BottomGrad(0)), [1.0, 2.0, 0.0, 3.0, 6.0, 4.0, 0.0, 6.0, 8.0]);
    assert_eq!(a.get(Operand::ParamGrad(0)), [11.0, 14.0, 20.0, 23.0]);
    assert_eq!(a.get(Operand::ParamGrad(1)), [3.0]);
}

#[test]
fn a_convolution_with_groups_stride_padding_and_dilation_by_hand() {
    let mut layer = convolution(2, [1, 2]);
    (layer.group, layer.dilation, layer.pad, layer.stride, layer.bias) = (2, [1, 2], [0, 1], [1, 2], false);
    let case = Case::new(Layer::Convolution(layer), &[&[1, 2, 1, 5]]);
    // Taps at columns (-1, 1), (1, 3) and (3, 5); columns -1 and 5 are padding.
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0];
    let y = case.forward(&[&x], &[&[1.0, 10.0, 2.0, 3.0]]);
    assert_eq!(y, [20.0, 42.0, 4.0, 60.0, 160.0, 80.0]);
}

#[test]
fn padding_holds_zeros_on_all_four_sides() {
    let mut layer = convolution(1, [3, 2]);
    (layer.pad, layer.bias) = ([2, 1], false);
    let case = Case::new(Layer::Convolution(layer), &[&[1, 1, 2, 3]]);
    // With ones everywhere each sum counts its taps inside the image: rows 1, 2, 2, 1 times columns 1, 2, 2, 1.
    let y = case.forward(&[&[1.0; 6]], &[&[1.0; 6]]);
    let taps = [1.0, 2.0, 2.0, 1.0];
    assert_eq!(y, taps.map(|rows| taps.map(|columns| rows * columns)).concat());
}

#[test]
fn an_inner_product_by_hand_and_its_transposed_twin() {
    let x = [1.0, 2.0, 3.0, 4.0];
    let dy = [1.0, 0.0, 2.0, 0.0, 1.0, 1.0];
    let straight = ([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 8.0]);
    let transposed = ([1.0, 0.0, 1.0, 0.0, 1.0, 1.0], [1.0, 3.0, 5.0, 2.0, 4.0, 8.0]);
    for (transpose, (w, dw)) in [(false, straight), (true, transposed)] {
        let mut layer = inner_product(3);
        layer.transpose = transpose;
        let case = Case::new(Layer::InnerProduct(layer), &[&[2, 2]]);
        let y = case.forward(&[&x], &[&w, &[0.0, 10.0, 100.0]]);
        assert_eq!(y, [1.0, 12.0, 103.0, 3.0, 14.0, 107.0]);
        let mut a = arrays(&[(Operand::Bottom(0), &x), (Operand::Param(0), &w), (Operand::TopGrad(0), &dy)]);
        case.run(SubTask::GradActivation, &mut a);
        case.run(SubTask::GradWeight, &mut a);
        case.run(SubTask::GradBias, &mut a);
        assert_eq!(a.get(Operand::BottomGrad(0)), [3.0, 2.0, 1.0, 2.0]);
        assert_eq!(a.get(Operand::ParamGrad(0)), dw);
        assert_eq!(a.get(Operand::ParamGrad(1)), [1.0, 1.0, 3.0]);
    }
}

#[test]
fn a_relu_by_hand() {
    for (negative_slope, y, dx) in [
        (0.0, [0.0, 0.0, 3.0], [0.0, 0.0, 1.0]),
        (0.5, [-1.0, 0.0, 3.0], [0.5, 0.5, 1.0]),
        (-2.0, [4.0, 0.0, 3.0], [-2.0, -2.0, 1.0]),
    ] {
        let case = Case::new(Layer::Relu(Relu { negative_slope, applied: false }), &[&[3]]);
        let mut a = arrays(&[(Operand::Bottom(0), &[-2.0, 0.0, 3.0]), (Operand::TopGrad(0), &[1.0; 3])]);
        case.run(SubTask::Forward, &mut a);
        case.run(SubTask::GradActivation, &mut a);
        assert_eq!(a.get(Operand::Top(0)), y);
        assert_eq!(a.get(Operand::BottomGrad(0)), dx);
    }
}

#[test]
fn a_softmax_by_hand() {
    let case = Case::new(Layer::Softmax(Softmax { axis: 1 }), &[&[1, 2, 2]]);
    // Two predictions side by side: (0, ln 3) and two equal scores whose exponentials would overflow.
    let mut a = arrays(&[
        (Operand::Bottom(0), &[0.0, 1000.0, 3.0f64.ln(), 1000.0]),
        (Operand::TopGrad(0), &[1.0, 0.0, 0.0, 4.0]),
    ]);
    case.run(SubTask::Forward, &mut a);
    case.run(SubTask::GradActivation, &mut a);
    close(a.get(Operand::Top(0)), &[0.25, 0.5, 0.75, 0.5]);
    close(a.get(Operand::BottomGrad(0)), &[0.1875, -1.0, -0.1875, 1.0]);
}

#[test]
fn a_softmax_with_loss_by_hand() {
    let layer = SoftmaxWithLoss { axis: 1, ignore_label: None, normalization: Normalization::Valid };
    let mut case = Case::new(Layer::SoftmaxWithLoss(layer), &[&[2, 2], &[2]]);
    case.loss_weights = vec![4.0, 0.0];
    let mut a =
        arrays(&[(Operand::Bottom(0), &[0.0, 3.0f64.ln(), 5.0, 5.0]), (Operand::Bottom(1), &[0.0, 1.0])]);
    case.run(SubTask::Forward, &mut a);
    case.run(SubTask::GradActivation, &mut a);
    // The loss itself is not weighted, its gradient is.
    close(a.get(Operand::Top(0)), &[(4.0f64.ln() + 2.0f64.ln()) / 2.0]);
    close(a.get(Operand::Top(1)), &[0.25, 0.75, 0.5, 0.5]);
    close(a.get(Operand::BottomGrad(0)), &[-1.5, 1.5, 1.0, -1.0]);
}
