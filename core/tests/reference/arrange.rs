//! Concat, Slice and Flatten: gradients and examples by hand.

use quadrille_core::layer::{Concat, Flatten, Layer, Operand, Slice, SubTask};
use quadrille_core::reference::{Arrays, compute};

use crate::case::Case;

fn concat(axis: i32, bottoms: &[&[usize]]) -> Case {
    Case::new(Layer::Concat(Concat { axis, bottoms: bottoms.len() }), bottoms)
}

fn slice(axis: i32, points: &[usize], tops: usize, bottom: &[usize]) -> Case {
    Case::new(Layer::Slice(Slice { axis, points: points.to_vec(), tops }), &[bottom])
}

fn flatten(axis: i32, end_axis: i32, bottom: &[usize]) -> Case {
    Case::new(Layer::Flatten(Flatten { axis, end_axis }), &[bottom])
}

#[test]
fn concat_has_the_gradients_of_its_forward() {
    let cases = [
        concat(1, &[&[2, 3, 2, 2], &[2, 1, 2, 2], &[2, 4, 2, 2]]),
        concat(0, &[&[2, 3], &[1, 3]]),
        concat(-1, &[&[2, 3, 1], &[2, 3, 4]]),
        concat(2, &[&[1, 2, 3, 2], &[1, 2, 1, 2]]),
        concat(1, &[&[2, 3]]),
    ];
    for (seed, case) in cases.into_iter().enumerate() {
        case.check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn slice_has_the_gradient_of_its_forward() {
    let cases = [
        slice(1, &[], 2, &[2, 4, 3]),
        slice(1, &[1, 5], 3, &[2, 7, 2, 2]),
        slice(0, &[3], 2, &[4, 3]),
        slice(-1, &[2], 2, &[2, 2, 3]),
        slice(1, &[], 1, &[2, 3]),
    ];
    for (seed, case) in cases.into_iter().enumerate() {
        case.check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn flatten_has_the_gradient_of_its_forward() {
    for (seed, (axis, end_axis)) in [(1, -1), (0, -1), (2, 2), (1, 2)].into_iter().enumerate() {
        flatten(axis, end_axis, &[2, 3, 4, 2]).check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn a_concat_by_hand() {
    let case = concat(1, &[&[2, 1, 2], &[2, 2, 2]]);
    let (a, b) = ([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]);
    let y = case.forward(&[&a[..], &b], &[]);
    assert_eq!(y, [1.0, 2.0, 10.0, 20.0, 30.0, 40.0, 3.0, 4.0, 50.0, 60.0, 70.0, 80.0]);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::TopGrad(0), y);
    case.run(SubTask::GradActivation, &mut arrays);
    assert_eq!(arrays.get(Operand::BottomGrad(0)), a);
    assert_eq!(arrays.get(Operand::BottomGrad(1)), b);
}

#[test]
fn a_slice_gives_what_a_concat_took() {
    let bottoms: [&[usize]; 3] = [&[2, 2, 3], &[2, 1, 3], &[2, 4, 3]];
    let joined = concat(1, &bottoms);
    let mut arrays = joined.random(3, &[]);
    joined.run(SubTask::Forward, &mut arrays);
    let cut = slice(1, &[2, 3], 3, joined.tops[0].dims());
    assert_eq!(cut.tops, joined.bottoms);
    let mut pieces = Arrays::new();
    pieces.insert(Operand::Bottom(0), arrays.get(Operand::Top(0)).to_vec());
    cut.run(SubTask::Forward, &mut pieces);
    for i in 0..3 {
        assert_eq!(pieces.get(Operand::Top(i)), arrays.get(Operand::Bottom(i)), "{i}");
    }
}

#[test]
fn a_slice_whose_top_leads_to_no_loss_gets_zeros_there() {
    let case = slice(1, &[], 3, &[2, 3]);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::TopGrad(0), vec![1.0, 2.0]);
    arrays.insert(Operand::TopGrad(2), vec![5.0, 6.0]);
    compute(&case.context(), SubTask::GradActivation, &mut arrays);
    assert_eq!(arrays.get(Operand::BottomGrad(0)), [1.0, 0.0, 5.0, 2.0, 0.0, 6.0]);
}
