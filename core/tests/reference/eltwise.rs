//! Caffe's rules of Eltwise where another choice would be as plausible.

use quadrille_core::layer::{Eltwise, EltwiseOperation, Layer, Operand, SubTask};
use quadrille_core::reference::Arrays;

use crate::case::Case;

/// Values and gradients of the bottoms, for a gradient of 1, 2, 4, … of the elements.
fn eltwise(operation: EltwiseOperation, bottoms: &[&[f64]]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let shape = [bottoms[0].len()];
    let layer = Eltwise { bottoms: bottoms.len(), operation };
    let case = Case::new(Layer::Eltwise(layer), &vec![&shape[..]; bottoms.len()]);
    let mut a = Arrays::new();
    bottoms.iter().enumerate().for_each(|(i, x)| a.insert(Operand::Bottom(i), x.to_vec()));
    a.insert(Operand::TopGrad(0), (0..shape[0]).map(|i| f64::from(1 << i)).collect());
    case.run(SubTask::Forward, &mut a);
    case.run(SubTask::GradActivation, &mut a);
    let gradients = (0..bottoms.len()).map(|i| a.get(Operand::BottomGrad(i)).to_vec());
    (a.get(Operand::Top(0)).to_vec(), gradients.collect())
}

#[test]
fn of_two_equal_maxima_the_second_has_the_gradient_and_a_later_one_has_not() {
    let (y, dx) = eltwise(
        EltwiseOperation::Max,
        &[&[3.0, 3.0, 1.0, 3.0, 5.0], &[3.0, 1.0, 3.0, 3.0, 4.0], &[1.0, 3.0, 3.0, 3.0, 6.0]],
    );
    assert_eq!(y, [3.0, 3.0, 3.0, 3.0, 6.0]);
    assert_eq!(dx[0], [0.0, 2.0, 0.0, 0.0, 0.0]);
    assert_eq!(dx[1], [1.0, 0.0, 4.0, 8.0, 0.0]);
    assert_eq!(dx[2], [0.0, 0.0, 0.0, 0.0, 16.0]);
}

#[test]
fn a_maximum_takes_what_is_not_a_number_from_bottom_1_and_not_from_bottom_0() {
    let nan = f64::NAN;
    let (y, dx) = eltwise(EltwiseOperation::Max, &[&[nan, 1.0, nan], &[1.0, nan, 2.0], &[0.0, 9.0, 3.0]]);
    assert!(y[0] == 1.0 && y[1].is_nan() && y[2] == 3.0, "{y:?}");
    assert_eq!(dx, [[0.0; 3], [1.0, 2.0, 0.0], [0.0, 0.0, 4.0]]);
}

#[test]
fn a_weighted_sum_by_hand() {
    let coefficients = vec![2.0, -0.5];
    let (y, dx) = eltwise(EltwiseOperation::Sum { coefficients, relu: false }, &[&[1.0, 3.0], &[4.0, -8.0]]);
    assert_eq!((y, dx), (vec![0.0, 10.0], vec![vec![2.0, 4.0], vec![-0.5, -1.0]]));
    let coefficients = Vec::new();
    let (y, dx) = eltwise(EltwiseOperation::Sum { coefficients, relu: false }, &[&[1.0], &[4.0], &[0.5]]);
    assert_eq!((y, dx), (vec![5.5], vec![vec![1.0]; 3]));
}

#[test]
fn a_product_with_zeros_has_a_gradient_only_if_it_is_the_stable_one() {
    let x: [&[f64]; 3] = [&[0.0, 2.0], &[3.0, 4.0], &[5.0, -1.0]];
    let (y, dx) = eltwise(EltwiseOperation::Product { stable_gradient: true }, &x);
    assert_eq!((y, dx), (vec![0.0, -8.0], vec![vec![15.0, -8.0], vec![0.0, -4.0], vec![0.0, 16.0]]));
    let (_, dx) = eltwise(EltwiseOperation::Product { stable_gradient: false }, &x);
    assert!(dx[0][0].is_nan() && dx[0][1] == -8.0 && dx[1..] == [[0.0, -4.0], [0.0, 16.0]], "{dx:?}");
}

#[test]
fn blobs_that_do_not_fit_each_other_are_refused() {
    let infer = |operation, shapes: &[&[usize]]| {
        let shapes: Vec<_> = shapes.iter().map(|dims| quadrille_core::shape::Shape::new(*dims)).collect();
        let layer = Layer::Eltwise(Eltwise { bottoms: shapes.len(), operation });
        layer.infer(&shapes).expect_err("the layer is impossible")
    };
    let fault = infer(EltwiseOperation::Max, &[&[2, 3], &[2, 3], &[3, 2]]);
    assert_eq!((fault.field.as_str(), fault.message.contains("bottom 2 has shape 3x2")), ("bottom", true));
    let fault = infer(EltwiseOperation::Max, &[&[2, 3]]);
    assert!(fault.field == "bottom" && fault.message.contains("at least 2"), "{}", fault.message);
    for coefficients in [vec![1.0], vec![1.0; 3], vec![1.0, f32::NAN]] {
        let fault = infer(EltwiseOperation::Sum { coefficients, relu: false }, &[&[2], &[2]]);
        assert_eq!(fault.field, "eltwise_param.coeff");
    }
}
