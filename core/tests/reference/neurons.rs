//! Neuron layers, PReLU, Bias, MVN and Reduction: gradients, examples worked by hand, and Caffe's rules.

use quadrille_core::layer::{
    Bias, Filler, Layer, Mvn, Neuron, Operand, Prelu, Reduction, ReductionOperation, SubTask,
};
use quadrille_core::reference::Arrays;

use crate::case::Case;

/// Values and, for a gradient of 1 everywhere, the gradient.
fn run(neuron: Neuron, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let case = Case::new(Layer::Neuron(neuron), &[&[x.len()]]);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::Bottom(0), x.to_vec());
    arrays.insert(Operand::TopGrad(0), vec![1.0; x.len()]);
    case.run(SubTask::Forward, &mut arrays);
    case.run(SubTask::GradActivation, &mut arrays);
    (arrays.get(Operand::Top(0)).to_vec(), arrays.get(Operand::BottomGrad(0)).to_vec())
}

#[test]
fn every_function_has_the_gradient_of_its_forward() {
    let power = |power, scale, shift| Neuron::Power { power, scale, shift };
    let exp = |base, scale, shift| Neuron::Exp { base, scale, shift };
    let log = |base| Neuron::Log { base, scale: 0.5, shift: 2.0 };
    // With a bound of the third derivative on [−1, 1].
    let functions = [
        (Neuron::AbsVal, 0.0),
        (Neuron::Bnll, 0.1),
        (Neuron::Clip { min: -0.5, max: 0.25 }, 0.0),
        (Neuron::Elu { alpha: 1.0 }, 1.0),
        (Neuron::Elu { alpha: 0.0 }, 0.0),
        (Neuron::Elu { alpha: -0.5 }, 0.5),
        (exp(None, 1.0, 0.0), 3.0),
        (exp(Some(2.0), 0.5, -1.0), 0.1),
        (exp(Some(0.5), 3.0, 2.0), 20.0),
        (exp(None, -0.5, 1.5), 1.0),
        (log(None), 0.1),
        (log(Some(10.0)), 0.1),
        (log(Some(0.5)), 0.2),
        (power(1.0, -0.75, 0.5), 0.0),
        (power(2.0, 3.0, -0.5), 0.0),
        (power(3.0, 0.5, 2.0), 0.75),
        (power(3.0, 1.0, 0.0), 6.0),
        (power(-1.5, 0.5, 2.0), 0.3),
        (power(0.5, 0.5, 2.0), 0.1),
        (Neuron::Sigmoid, 0.125),
        (Neuron::Swish { beta: 1.0 }, 0.5),
        (Neuron::Swish { beta: 1.5 }, 1.1),
        (Neuron::Swish { beta: -2.0 }, 2.2),
        (Neuron::TanH, 2.0),
    ];
    for (seed, (neuron, third)) in functions.into_iter().enumerate() {
        for bottom in [&[7][..], &[2, 3, 4, 5], &[3, 1]] {
            Case::new(Layer::Neuron(neuron), &[bottom]).check_gradients(seed as u64, &[], third);
        }
    }
}

#[test]
fn functions_by_hand() {
    let power = |power, scale, shift| Neuron::Power { power, scale, shift };
    let ln = f64::ln;
    for (neuron, x, y, dx) in [
        (Neuron::AbsVal, 0.0, 0.0, 0.0),
        (Neuron::AbsVal, -2.0, 2.0, -1.0),
        (Neuron::Bnll, 0.0, ln(2.0), 0.5),
        (Neuron::Bnll, 1000.0, 1000.0, 1.0),
        (Neuron::Bnll, -1000.0, 0.0, 0.0),
        (Neuron::Clip { min: -1.0, max: 2.0 }, -1.0, -1.0, 1.0),
        (Neuron::Clip { min: -1.0, max: 2.0 }, 2.0, 2.0, 1.0),
        (Neuron::Clip { min: -1.0, max: 2.0 }, 2.5, 2.0, 0.0),
        (Neuron::Elu { alpha: 0.5 }, 0.0, 0.0, 0.5),
        (Neuron::Elu { alpha: 0.5 }, 3.0, 3.0, 1.0),
        (Neuron::Elu { alpha: 0.5 }, -1000.0, -0.5, 0.0),
        (Neuron::Exp { base: Some(2.0), scale: 3.0, shift: 1.0 }, 1.0, 16.0, 16.0 * 3.0 * ln(2.0)),
        (Neuron::Exp { base: Some(1.0), scale: 3.0, shift: 1.0 }, 7.0, 1.0, 0.0),
        (Neuron::Log { base: Some(2.0), scale: 2.0, shift: 2.0 }, 3.0, 3.0, 0.25 / ln(2.0)),
        (power(3.0, 2.0, 1.0), 1.0, 27.0, 54.0),
        // Where Caffe divides 0 by 0.
        (power(3.0, 1.0, 0.0), 0.0, 0.0, 0.0),
        (power(0.0, 2.0, 0.0), 0.0, 1.0, 0.0),
        (power(0.0, 2.0, 3.0), 5.0, 1.0, 0.0),
        (power(2.0, 0.0, 3.0), 5.0, 9.0, 0.0),
        (power(1.0, 0.0, 3.0), 5.0, 3.0, 0.0),
        (power(1.0, -2.0, 3.0), 5.0, -7.0, -2.0),
        (Neuron::Sigmoid, 0.0, 0.5, 0.25),
        (Neuron::Sigmoid, 1000.0, 1.0, 0.0),
        (Neuron::Sigmoid, -1000.0, 0.0, 0.0),
        (Neuron::Swish { beta: 4.0 }, 0.0, 0.0, 0.5),
        (Neuron::TanH, 0.0, 0.0, 1.0),
        (Neuron::TanH, -1000.0, -1.0, 0.0),
    ] {
        let (found, gradient) = run(neuron, &[x]);
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-14 * b.abs();
        assert!(close(found[0], y) && close(gradient[0], dx), "{neuron:?} at {x}: {found:?}, {gradient:?}");
    }
}

#[test]
fn a_threshold_is_above_what_it_says_and_has_no_gradient() {
    let layer = Layer::Neuron(Neuron::Threshold { threshold: 0.5 });
    assert_eq!(layer.accesses(SubTask::GradActivation), None);
    let y = Case::new(layer, &[&[4]]).forward(&[&[0.5, 0.75, -1.0, f64::NAN]], &[]);
    assert_eq!(y, [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn what_is_not_a_number_stays_so_but_where_caffe_clips_it() {
    let power = |power| Neuron::Power { power, scale: 2.0, shift: 1.0 };
    let exp = Neuron::Exp { base: None, scale: 1.0, shift: 0.0 };
    for neuron in [
        Neuron::AbsVal,
        Neuron::Bnll,
        Neuron::Elu { alpha: 1.0 },
        exp,
        power(1.0),
        power(2.0),
        power(0.5),
        Neuron::Sigmoid,
        Neuron::Swish { beta: 1.0 },
        Neuron::TanH,
    ] {
        assert!(run(neuron, &[f64::NAN]).0[0].is_nan(), "{neuron:?}");
    }
    assert_eq!(run(Neuron::Clip { min: -3.0, max: 1.0 }, &[f64::NAN]), (vec![-3.0], vec![0.0]));
    // A logarithm of what is below 0, and a root.
    let log = Neuron::Log { base: None, scale: 1.0, shift: 0.0 };
    assert!(run(log, &[-1.0]).0[0].is_nan() && run(power(0.5), &[-1.0]).0[0].is_nan());
    assert_eq!(run(log, &[0.0]).0, [f64::NEG_INFINITY]);
}

#[test]
fn only_a_derivative_that_follows_from_the_top_lets_a_layer_work_in_place() {
    assert!(!Layer::Neuron(Neuron::AbsVal).works_in_place());
    let reads = |neuron: Neuron| {
        let accesses = Layer::Neuron(neuron).accesses(SubTask::GradActivation).expect("a gradient");
        accesses.reads
    };
    let (dy, x, y) = (Operand::TopGrad(0), Operand::Bottom(0), Operand::Top(0));
    assert_eq!(reads(Neuron::Sigmoid), [dy, y]);
    assert_eq!(reads(Neuron::Elu { alpha: 0.0 }), [dy, y]);
    assert_eq!(reads(Neuron::Elu { alpha: -1.0 }), [dy, x]);
    assert_eq!(reads(Neuron::Power { power: 1.0, scale: 3.0, shift: 1.0 }), [dy]);
    assert_eq!(reads(Neuron::Power { power: 2.0, scale: 3.0, shift: 1.0 }), [dy, x]);
}

fn prelu(channel_shared: bool) -> Layer {
    Layer::Prelu(Prelu { channel_shared, filler: Filler::Constant(0.25) })
}

#[test]
fn prelu_has_the_gradients_of_its_forward() {
    for (seed, channel_shared) in [false, true].into_iter().enumerate() {
        for bottom in [&[2, 3, 4, 5][..], &[4, 5], &[2, 1, 3], &[2, 3, 2, 1, 2]] {
            Case::new(prelu(channel_shared), &[bottom]).check_gradients(seed as u64, &[], 0.0);
        }
    }
}

#[test]
fn a_prelu_by_hand() {
    let case = Case::new(prelu(false), &[&[1, 2, 3]]);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::Bottom(0), vec![1.0, -2.0, 0.0, -1.0, 4.0, -3.0]);
    arrays.insert(Operand::Param(0), vec![0.5, -2.0]);
    arrays.insert(Operand::TopGrad(0), vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
    for sub in [SubTask::Forward, SubTask::GradActivation, SubTask::GradWeight] {
        case.run(sub, &mut arrays);
    }
    assert_eq!(arrays.get(Operand::Top(0)), [1.0, -1.0, 0.0, 2.0, 4.0, 6.0]);
    // At 0 the side is the negative one.
    assert_eq!(arrays.get(Operand::BottomGrad(0)), [1.0, 1.0, 2.0, -16.0, 16.0, -64.0]);
    assert_eq!(arrays.get(Operand::ParamGrad(0)), [-4.0, -104.0]);
    let shared = Case::new(prelu(true), &[&[1, 2, 3]]);
    shared.run(SubTask::GradWeight, &mut arrays);
    assert_eq!(arrays.get(Operand::ParamGrad(0)), [-108.0]);
}

#[test]
fn bias_has_the_gradients_of_its_forward() {
    let x: &[usize] = &[2, 3, 4, 2];
    let cases: [(i32, i32, Option<&[usize]>); 9] = [
        (1, 1, None),
        (0, 2, None),
        (2, -1, None),
        (0, -1, None),
        (-1, 1, None),
        (1, 0, None),
        (1, 1, Some(&[3, 4])),
        (0, 1, Some(&[2, 3])),
        (3, 1, Some(&[])),
    ];
    for (seed, (axis, num_axes, bias)) in cases.into_iter().enumerate() {
        let bottoms: Vec<&[usize]> = [x].into_iter().chain(bias).collect();
        let layer = Bias { bottoms: bottoms.len(), axis, num_axes, filler: Filler::default() };
        Case::new(Layer::Bias(layer), &bottoms).check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn a_bias_by_hand() {
    let layer = Bias { bottoms: 1, axis: 1, num_axes: 1, filler: Filler::default() };
    let y = Case::new(Layer::Bias(layer), &[&[1, 2, 2]]).forward(&[&[1.0, 2.0, 3.0, 4.0]], &[&[10.0, 20.0]]);
    assert_eq!(y, [11.0, 12.0, 23.0, 24.0]);
}

fn mvn(normalize_variance: bool, across_channels: bool, eps: f32) -> Layer {
    Layer::Mvn(Mvn { normalize_variance, across_channels, eps })
}

/// Without eps Caffe's backward is the derivative of its forward.
#[test]
fn mvn_has_the_gradient_of_its_forward() {
    for (seed, dims) in [&[2, 3, 4, 5][..], &[3, 2, 6], &[1, 1, 9]].into_iter().enumerate() {
        for across_channels in [false, true] {
            Case::new(mvn(false, across_channels, 1e-9), &[dims]).check_gradients(seed as u64, &[], 0.0);
            let case = Case::new(mvn(true, across_channels, 0.0), &[dims]);
            let rows = dims[0] * if across_channels { 1 } else { dims[1] };
            let x = case.random(seed as u64, &[]).get(Operand::Bottom(0)).to_vec();
            let count = x.len() / rows;
            let least = x.chunks(count).map(deviation).fold(f64::INFINITY, f64::min);
            // As for BatchNorm: |y'''| ≤ (24 + 12) / (m · s^(3/2)).
            case.check_gradients(seed as u64, &[], 36.0 / (count as f64 * least.powi(3)));
        }
    }
}

fn deviation(x: &[f64]) -> f64 {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
}

/// eps is added to the deviation, 2 here, and backward only divides by the sum.
#[test]
fn an_mvn_by_hand() {
    let case = Case::new(mvn(true, true, 2.0), &[&[1, 2, 2]]);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::Bottom(0), vec![3.0, 7.0, 7.0, 3.0]);
    arrays.insert(Operand::TopGrad(0), vec![4.0, 0.0, 0.0, 0.0]);
    case.run(SubTask::Forward, &mut arrays);
    case.run(SubTask::GradActivation, &mut arrays);
    assert_eq!(arrays.get(Operand::Top(0)), [-0.5, 0.5, 0.5, -0.5]);
    // The mean of dy is 1, that of y · dy is −0.5.
    assert_eq!(arrays.get(Operand::BottomGrad(0)), [2.75 / 4.0, -0.75 / 4.0, -0.75 / 4.0, -1.25 / 4.0]);
    let y = Case::new(mvn(false, false, 1e-9), &[&[1, 2, 2]]).forward(&[&[3.0, 7.0, 1.0, 1.0]], &[]);
    assert_eq!(y, [-2.0, 2.0, 0.0, 0.0]);
}

fn reduction(operation: ReductionOperation, axis: i32, coeff: f32) -> Layer {
    Layer::Reduction(Reduction { operation, axis, coeff })
}

const OPERATIONS: [ReductionOperation; 4] = [
    ReductionOperation::Sum,
    ReductionOperation::AbsoluteSum,
    ReductionOperation::SumOfSquares,
    ReductionOperation::Mean,
];

#[test]
fn reduction_has_the_gradient_of_its_forward() {
    for (seed, operation) in OPERATIONS.into_iter().enumerate() {
        for (axis, coeff) in [(0, 1.0), (1, -1.5), (-1, 0.25), (-3, 2.0)] {
            Case::new(reduction(operation, axis, coeff), &[&[2, 3, 4]]).check_gradients(
                seed as u64,
                &[],
                0.0,
            );
        }
    }
}

#[test]
fn reductions_by_hand() {
    let x = [1.0, -2.0, 0.0, 3.0, 4.0, -5.0];
    for (operation, y) in
        OPERATIONS.into_iter().zip([[-2.0, 4.0], [6.0, 24.0], [10.0, 100.0], [-2.0 / 3.0, 4.0 / 3.0]])
    {
        assert_eq!(
            Case::new(reduction(operation, 1, 2.0), &[&[2, 3]]).forward(&[&x], &[]),
            y,
            "{operation:?}"
        );
    }
    // The sign of 0 is 0.
    let case = Case::new(reduction(ReductionOperation::AbsoluteSum, 0, 1.0), &[&[6]]);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::Bottom(0), x.to_vec());
    arrays.insert(Operand::TopGrad(0), vec![2.0]);
    case.run(SubTask::GradActivation, &mut arrays);
    assert_eq!(arrays.get(Operand::BottomGrad(0)), [2.0, -2.0, 0.0, 2.0, 2.0, -2.0]);
}
