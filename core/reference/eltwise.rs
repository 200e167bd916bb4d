//! Product, weighted sum or maximum, element by element, in Caffe's order.

use super::{Arrays, Real};
use crate::layer::{Eltwise, EltwiseOperation, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &Eltwise, sub: SubTask, arrays: &mut Arrays<T>) {
    let bottoms = 0..layer.bottoms;
    match sub {
        SubTask::Forward => {
            let x: Vec<&[T]> = bottoms.map(|b| arrays.get(Operand::Bottom(b))).collect();
            let (y, from) = (0..x[0].len()).map(|i| forward(layer, &x, i)).unzip();
            arrays.insert(Operand::Top(0), y);
            if layer.operation == EltwiseOperation::Max {
                arrays.insert(Operand::Aux(0), from);
            }
        }
        SubTask::GradActivation => {
            for b in bottoms {
                let dy = arrays.get(Operand::TopGrad(0));
                let dx = (0..dy.len()).map(|i| grad_activation(layer, arrays, b, i)).collect();
                arrays.insert(Operand::BottomGrad(b), dx);
            }
        }
        _ => {}
    }
}

/// Element `i` of the top, and for a maximum the bottom that it comes from.
fn forward<T: Real>(layer: &Eltwise, x: &[&[T]], i: usize) -> (T, T) {
    match &layer.operation {
        EltwiseOperation::Product { .. } => {
            (x[1..].iter().fold(x[0][i], |product, x| product * x[i]), T::ZERO)
        }
        EltwiseOperation::Sum { coefficients, relu } => {
            let mut sum = T::ZERO;
            for (b, x) in x.iter().enumerate() {
                sum += coefficients.get(b).map_or(T::ONE, |c| T::from_f32(*c)) * x[i];
            }
            // In the words of the ReLU's own file.
            let rectified = || sum.larger(T::ZERO) + T::ZERO * sum.smaller(T::ZERO);
            (if *relu { rectified() } else { sum }, T::ZERO)
        }
        EltwiseOperation::Max => {
            // Bottom 0 must be larger than bottom 1 to win, and so must every later one than those before it.
            let mut from = if x[0][i] > x[1][i] { 0 } else { 1 };
            for b in 2..x.len() {
                if x[b][i] > x[from][i] {
                    from = b;
                }
            }
            (x[from][i], T::from_usize(from))
        }
    }
}

/// Element `i` of the gradient of bottom `b`.
fn grad_activation<T: Real>(layer: &Eltwise, arrays: &Arrays<T>, b: usize, i: usize) -> T {
    let dy = arrays.get(Operand::TopGrad(0))[i];
    let x = |b| arrays.get(Operand::Bottom(b))[i];
    match &layer.operation {
        EltwiseOperation::Product { stable_gradient: true } => {
            let others = (0..layer.bottoms).filter(|other| *other != b).map(x);
            dy * others.fold(T::ONE, |product, x| product * x)
        }
        EltwiseOperation::Product { stable_gradient: false } => dy * (arrays.get(Operand::Top(0))[i] / x(b)),
        EltwiseOperation::Sum { coefficients, relu } => {
            let is_above = !relu || arrays.get(Operand::Top(0))[i] > T::ZERO;
            let passed = if is_above { T::ONE } else { T::ZERO };
            coefficients.get(b).map_or(T::ONE, |c| T::from_f32(*c)) * (dy * passed)
        }
        EltwiseOperation::Max if arrays.get(Operand::Aux(0))[i] == T::from_usize(b) => dy,
        EltwiseOperation::Max => T::ZERO,
    }
}
