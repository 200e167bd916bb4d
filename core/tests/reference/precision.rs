//! The same formulas in single and in double precision.

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::reference::Arrays;
use quadrille_core::rng::{Purpose, Stream};

use crate::case::{Case, convolution, inner_product};

fn cases() -> [Case; 2] {
    let mut conv = convolution(4, [3, 2]);
    (conv.group, conv.pad, conv.stride) = (2, [1, 1], [2, 1]);
    [
        Case::new(Layer::Convolution(conv), &[&[2, 6, 7, 5]]),
        Case::new(Layer::InnerProduct(inner_product(5)), &[&[4, 3, 3, 2]]),
    ]
}

const SUB_TASKS: [(SubTask, Operand); 4] = [
    (SubTask::Forward, Operand::Top(0)),
    (SubTask::GradActivation, Operand::BottomGrad(0)),
    (SubTask::GradWeight, Operand::ParamGrad(0)),
    (SubTask::GradBias, Operand::ParamGrad(1)),
];

/// Bottom, parameters and gradient of the top from `value(i)`, the same in both precisions.
fn filled(case: &Case, value: impl Fn(u64) -> f32) -> (Arrays<f32>, Arrays<f64>) {
    let (mut single, mut double) = (Arrays::new(), Arrays::new());
    let params = case.layer.infer(&case.bottoms).expect("possible").params;
    let counts = [
        (Operand::Bottom(0), case.bottoms[0].count()),
        (Operand::Param(0), params[0].shape.count()),
        (Operand::Param(1), params[1].shape.count()),
        (Operand::TopGrad(0), case.tops[0].count()),
    ];
    for (number, (operand, count)) in counts.into_iter().enumerate() {
        let values: Vec<f32> = (0..count as u64).map(|i| value(i + 100_000 * number as u64)).collect();
        double.insert(operand, values.iter().map(|v| f64::from(*v)).collect());
        single.insert(operand, values);
    }
    (single, double)
}

#[test]
fn sums_of_small_integers_are_exact() {
    let stream = Stream::new(3, Purpose::Dummy, 0);
    for case in cases() {
        let (mut single, mut double) = filled(&case, |i| (stream.bits(i) % 17) as f32 - 8.0);
        for (sub, written) in SUB_TASKS {
            case.run(sub, &mut single);
            case.run(sub, &mut double);
            let same = single.get(written).iter().zip(double.get(written)).all(|(s, d)| f64::from(*s) == *d);
            let zeros = double.get(written).iter().filter(|d| **d == 0.0).count();
            assert!(same, "{sub} of {case}");
            assert!(2 * zeros < double.get(written).len(), "{sub} of {case}: mistrusted, {zeros} zeros");
        }
    }
}

#[test]
fn rounding_stays_below_its_bound() {
    let stream = Stream::new(4, Purpose::Dummy, 0);
    for case in cases() {
        let (mut single, mut double) = filled(&case, |i| stream.normal(i));
        let (_, mut magnitudes) = filled(&case, |i| stream.normal(i).abs());
        for (sub, written) in SUB_TASKS {
            case.run(sub, &mut single);
            case.run(sub, &mut double);
            case.run(sub, &mut magnitudes);
            // No sum here has more terms than the gradient of the top or the bottom has elements, and a product, an
            // addition and the last bias round once each.
            let terms = case.tops[0].count().max(case.bottoms[0].count()) as f64 + 1.0;
            let sums = single.get(written).iter().zip(double.get(written)).zip(magnitudes.get(written));
            for ((s, d), magnitude) in sums {
                let close = (f64::from(*s) - d).abs() <= terms * f64::from(f32::EPSILON) * magnitude;
                assert!(close, "{sub} of {case}: {s} is not {d}");
            }
        }
    }
}
