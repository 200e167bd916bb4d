//! Layers that are computed together: gradients by finite differences, and the sub-task that writes them.

use quadrille_core::layer::{
    BatchNorm, Eltwise, EltwiseOperation, Filler, Layer, Normalize, Operand, Scale, SubTask,
};
use quadrille_core::reference::{Arrays, compute};

use crate::case::Case;

fn normalize(use_global_stats: bool, bias: bool, relu: bool, passes_down: bool) -> Normalize {
    let norm =
        BatchNorm { use_global_stats: Some(use_global_stats), moving_average_fraction: 0.999, eps: 1e-3 };
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
    let scale = Scale { bottoms: 1, axis: 1, num_axes: 1, bias, filler, bias_filler };
    Normalize { norm, scale, sum: false, relu, passes_down }
}

/// A ReLU has a kink, but none of these values is near it, and elsewhere its derivatives are those of its bottom.
#[test]
fn normalize_has_the_gradients_of_its_forward() {
    let shapes: [&[usize]; 3] = [&[4, 3, 2, 3], &[8, 5], &[3, 2, 7]];
    for (seed, dims) in shapes.into_iter().enumerate() {
        for (bias, relu) in [(true, false), (false, false), (true, true), (false, true)] {
            let case = Case::new(Layer::Normalize(normalize(false, bias, relu, true)), &[dims]);
            let mut arrays = case.random(seed as u64, &[]);
            case.run(SubTask::Forward, &mut arrays);
            let least = arrays.get(Operand::Aux(1)).iter().fold(f64::INFINITY, |m, v| m.min(v.sqrt()));
            let values = (arrays.get(Operand::Bottom(0)).len() / dims[1]) as f64;
            // Factors are at most 1, so the bound on a normalisation alone holds here, too.
            case.check_gradients(seed as u64, &[], 36.0 / (values * least.powi(3)));
        }
    }
}

#[test]
fn a_shortcut_has_the_gradients_of_its_forward() {
    let dims: &[usize] = &[4, 3, 2, 3];
    for (seed, relu) in [(0, false), (1, true)] {
        let layer = Normalize { sum: true, ..normalize(false, true, relu, true) };
        let case = Case::new(Layer::Normalize(layer), &[dims, dims]);
        let mut arrays = case.random(seed, &[]);
        case.run(SubTask::Forward, &mut arrays);
        let least = arrays.get(Operand::Aux(1)).iter().fold(f64::INFINITY, |m, v| m.min(v.sqrt()));
        let values = (arrays.get(Operand::Bottom(0)).len() / dims[1]) as f64;
        case.check_gradients(seed, &[], 36.0 / (values * least.powi(3)));
    }
}

/// Every number that some sub-task of the whole writes, from the three layers one after the other.
#[test]
fn without_a_gradient_below_grad_weight_writes_the_same() {
    for kept in [false, true] {
        for relu in [false, true] {
            let results = [true, false].map(|passes_down| {
                let layer = normalize(kept, true, relu, passes_down);
                let case = Case::new(Layer::Normalize(layer.clone()), &[&[3, 4, 5]]);
                let mut arrays = case.random(7, &[]);
                for (i, low) in [(1, 0.5), (2, 2.0)] {
                    arrays.get_mut(Operand::Param(i)).iter_mut().for_each(|v| *v = low + v.abs());
                }
                arrays.insert(Operand::TopGrad(0), crate::case::distinct(9, 60));
                case.run(SubTask::Forward, &mut arrays);
                case.run(layer.backward(), &mut arrays);
                let other = if passes_down { SubTask::GradWeight } else { SubTask::GradActivation };
                assert_eq!(case.layer.accesses(other), None);
                assert_eq!(arrays.find(Operand::BottomGrad(0)).is_some(), passes_down);
                assert_eq!(arrays.find(Operand::ParamGrad(0)).is_some(), !kept);
                (0..5).map(|i| arrays.find(Operand::ParamGrad(i)).map(<[f64]>::to_vec)).collect::<Vec<_>>()
            });
            assert_eq!(results[0], results[1]);
            assert!(results[0][3].iter().chain(&results[0][4]).flatten().any(|g| g.abs() > 1e-3));
        }
    }
}

#[test]
fn a_sum_with_a_relu_has_the_gradients_of_its_forward() {
    let operation = EltwiseOperation::Sum { coefficients: vec![1.0, -0.5, 0.25], relu: true };
    let layer = Layer::Eltwise(Eltwise { bottoms: 3, operation });
    Case::new(layer, &[&[2, 3, 4], &[2, 3, 4], &[2, 3, 4]]).check_gradients(3, &[], 0.0);
}

/// As the ReLU layer: NaN stays, 0 lets no gradient pass.
#[test]
fn a_sum_with_a_relu_keeps_nan() {
    let operation = EltwiseOperation::Sum { coefficients: Vec::new(), relu: true };
    let case = Case::new(Layer::Eltwise(Eltwise { bottoms: 2, operation }), &[&[4], &[4]]);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::Bottom(0), vec![1.0, -1.0, f64::NAN, -2.0]);
    arrays.insert(Operand::Bottom(1), vec![2.0, 1.0, 1.0, 0.5]);
    arrays.insert(Operand::TopGrad(0), vec![4.0; 4]);
    compute(&case.context(), SubTask::Forward, &mut arrays);
    compute(&case.context(), SubTask::GradActivation, &mut arrays);
    let y = arrays.get(Operand::Top(0));
    assert_eq!((y[0], y[1], y[3]), (3.0, 0.0, 0.0));
    assert!(y[2].is_nan());
    for b in 0..2 {
        assert_eq!(arrays.get(Operand::BottomGrad(b)), [4.0, 0.0, 0.0, 0.0]);
    }
}
