//! `y = f(x)` value by value, in Caffe's words.

use super::{Arrays, Real};
use crate::layer::{Neuron, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &Neuron, sub: SubTask, arrays: &mut Arrays<T>) {
    match sub {
        SubTask::Forward => {
            let y = arrays.get(Operand::Bottom(0)).iter().map(|x| value(layer, *x)).collect();
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation if layer.is_constant() => {
            let dx = vec![T::ZERO; arrays.get(Operand::TopGrad(0)).len()];
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        SubTask::GradActivation => {
            let dy = arrays.get(Operand::TopGrad(0));
            let at = layer.derivative_of().map(|operand| arrays.get(operand));
            let of = |i: usize| derivative(layer, at.map_or(T::ZERO, |at| at[i]));
            let dx = dy.iter().enumerate().map(|(i, dy)| *dy * of(i)).collect();
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

/// `1 / (1 + e⁻ˣ)`.
pub(super) fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// Natural logarithm of a base.
fn ln_of<T: Real>(base: Option<f32>) -> T {
    base.map_or(T::ONE, |base| T::from_f32(base).ln())
}

/// `shift + scale · x`.
fn affine<T: Real>(x: T, scale: f32, shift: f32) -> T {
    T::from_f32(scale) * x + T::from_f32(shift)
}

/// y of x.
fn value<T: Real>(layer: &Neuron, x: T) -> T {
    match *layer {
        Neuron::AbsVal => x.larger(-x),
        Neuron::Bnll if x > T::ZERO => x + (T::ONE + (-x).exp()).ln(),
        Neuron::Bnll => (T::ONE + x.exp()).ln(),
        Neuron::Clip { min, max } => T::from_f32(min).larger(x.smaller(T::from_f32(max))),
        Neuron::Elu { alpha } => x.larger(T::ZERO) + T::from_f32(alpha) * (x.smaller(T::ZERO).exp() - T::ONE),
        Neuron::Exp { base, scale, shift } => {
            let ln = ln_of::<T>(base);
            let outer = match base {
                _ if shift == 0.0 => T::ONE,
                Some(base) => T::from_f32(base).powf(T::from_f32(shift)),
                None => T::from_f32(shift).exp(),
            };
            outer * (ln * T::from_f32(scale) * x).exp()
        }
        Neuron::Log { base, scale, shift } => affine(x, scale, shift).ln() * (T::ONE / ln_of::<T>(base)),
        Neuron::Power { power, scale, shift } => {
            let inner = if layer.is_constant() { T::from_f32(shift) } else { affine(x, scale, shift) };
            match power {
                0.0 => T::ONE,
                1.0 => inner,
                power => inner.powf(T::from_f32(power)),
            }
        }
        Neuron::Sigmoid => sigmoid(x),
        Neuron::Swish { beta } => x * sigmoid(T::from_f32(beta) * x),
        Neuron::TanH => x.tanh(),
        Neuron::Threshold { threshold } if x > T::from_f32(threshold) => T::ONE,
        Neuron::Threshold { .. } => T::ZERO,
    }
}

/// dy / dx, from the value of the operand that [`Neuron::derivative_of`] names.
fn derivative<T: Real>(layer: &Neuron, at: T) -> T {
    let number = T::from_f32;
    match *layer {
        Neuron::AbsVal => at.sign(),
        Neuron::Bnll => {
            // Caffe's bound: an exponential of more would soon be infinite.
            let e = at.smaller(number(50.0)).exp();
            e / (e + T::ONE)
        }
        Neuron::Clip { min, max } if at >= number(min) && at <= number(max) => T::ONE,
        Neuron::Clip { .. } => T::ZERO,
        Neuron::Elu { alpha } if alpha >= 0.0 => {
            if at > T::ZERO {
                T::ONE
            } else {
                number(alpha) + at
            }
        }
        Neuron::Elu { alpha } => {
            if at > T::ZERO {
                T::ONE
            } else {
                number(alpha) * at.exp()
            }
        }
        Neuron::Exp { base, scale, .. } => at * (ln_of::<T>(base) * number(scale)),
        Neuron::Log { base, scale, shift } => {
            T::ONE / affine(at, scale, shift) * (number(scale) / ln_of::<T>(base))
        }
        Neuron::Power { power, scale, shift } => {
            let slope = number(power) * number(scale);
            // Caffe divides the top by what the power is of, which is NaN at 0.
            match power {
                1.0 => slope,
                2.0 => slope * affine(at, scale, shift),
                power => slope * affine(at, scale, shift).powf(number(power) - T::ONE),
            }
        }
        Neuron::Sigmoid => at * (T::ONE - at),
        Neuron::Swish { beta } => {
            let (beta, s) = (number(beta), sigmoid(number(beta) * at));
            let y = at * s;
            beta * y + s * (T::ONE - beta * y)
        }
        Neuron::TanH => T::ONE - at * at,
        Neuron::Threshold { .. } => T::ZERO,
    }
}
