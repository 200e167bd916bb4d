//! One function for all values.

use quadrille_core::layer::{Neuron, Operand, SubTask};

use super::Binder;
use crate::op::{Op, arguments};

/// The function's number in `kernels/neuron.cu`, and its constants there.
fn constants(layer: &Neuron) -> (i32, [f32; 3]) {
    let ln = |base: Option<f32>| base.map_or(1.0, f32::ln);
    match *layer {
        Neuron::AbsVal => (0, [0.0; 3]),
        Neuron::Bnll => (1, [0.0; 3]),
        Neuron::Clip { min, max } => (2, [min, max, 0.0]),
        Neuron::Elu { alpha } => (3, [alpha, 0.0, 0.0]),
        Neuron::Exp { base, scale, shift } => {
            let outer = match base {
                _ if shift == 0.0 => 1.0,
                Some(base) => base.powf(shift),
                None => shift.exp(),
            };
            (4, [ln(base) * scale, outer, 0.0])
        }
        Neuron::Log { base, scale, shift } => (5, [1.0 / ln(base), scale, shift]),
        Neuron::Power { power, scale, shift } => (6, [power, scale, shift]),
        Neuron::Sigmoid => (7, [0.0; 3]),
        Neuron::Swish { beta } => (8, [beta, 0.0, 0.0]),
        Neuron::TanH => (9, [0.0; 3]),
        Neuron::Threshold { threshold } => (10, [threshold, 0.0, 0.0]),
    }
}

/// What a function that does not look at its bottom gives.
fn constant(layer: &Neuron) -> Option<f32> {
    match *layer {
        Neuron::Power { power, shift, .. } if layer.is_constant() => Some(match power {
            0.0 => 1.0,
            1.0 => shift,
            power => shift.powf(power),
        }),
        _ => None,
    }
}

pub(super) fn ops(layer: &Neuron, at: &Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (count, (kind, [a, b, c])) = (at.bottom(0).count(), constants(layer));
    let fill = |array, value: f32| Op::each("fill", count, arguments![array, value, count]);
    Ok(vec![match (sub, constant(layer)) {
        (SubTask::Forward, Some(value)) => fill(at.get(Operand::Top(0))?, value),
        (SubTask::Forward, None) => {
            let [x, y] = [at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?];
            Op::each("neuron_forward", count, arguments![x, y, kind, a, b, c, count])
        }
        (_, Some(_)) => fill(at.get(Operand::BottomGrad(0))?, 0.0),
        (_, None) => {
            let [dy, dx] = [at.get(Operand::TopGrad(0))?, at.get(Operand::BottomGrad(0))?];
            // A derivative that is the same everywhere does not look at what it is given.
            let values = layer.derivative_of().map_or(Ok(dy), |operand| at.get(operand))?;
            Op::each("neuron_backward", count, arguments![dy, values, dx, kind, a, b, c, count])
        }
    }])
}
