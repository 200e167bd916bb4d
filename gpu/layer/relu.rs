//! Rectified linear unit.

use quadrille_core::layer::{Operand, Relu, SubTask};

use super::Binder;
use crate::op::{Op, arguments};

pub(super) fn ops(layer: &Relu, at: &Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (slope, count) = (layer.negative_slope, at.bottom(0).count());
    Ok(vec![match sub {
        SubTask::Forward => {
            let [x, y] = [at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?];
            Op::each_few("relu_forward", count, arguments![x, y, slope, count])
        }
        _ => {
            let [dy, sign] = [at.get(Operand::TopGrad(0))?, at.get(layer.sign())?];
            let dx = at.get(Operand::BottomGrad(0))?;
            Op::each_few("relu_backward", count, arguments![dy, sign, dx, slope, count])
        }
    }])
}
