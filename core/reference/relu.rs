//! Rectified linear unit: `y = max(x, 0) + slope · min(x, 0)`, in Caffe's very words: NaN stays NaN, and −∞ with a
//! slope of 0 gives NaN.

use super::{Arrays, Real};
use crate::layer::{Operand, Relu, SubTask};

pub(super) fn compute<T: Real>(layer: &Relu, sub: SubTask, arrays: &mut Arrays<T>) {
    let slope = T::from_f32(layer.negative_slope);
    match sub {
        SubTask::Forward => {
            let y = rectified(arrays.get(Operand::Bottom(0)), slope);
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let (dy, sign) = (arrays.get(Operand::TopGrad(0)), arrays.get(layer.sign()));
            // At 0 the gradient is that of the negative side.
            let factor = |sign: T| if sign > T::ZERO { T::ONE } else { slope };
            let dx = dy.iter().zip(sign).map(|(dy, sign)| *dy * factor(*sign)).collect();
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

/// `y` of each `x`.
pub(super) fn rectified<T: Real>(x: &[T], slope: T) -> Vec<T> {
    x.iter().map(|x| x.larger(T::ZERO) + slope * x.smaller(T::ZERO)).collect()
}
