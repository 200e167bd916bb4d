//! Local response normalisation.

use quadrille_core::layer::{Lrn, Operand, SubTask};

use super::Binder;
use crate::op::{Op, arguments};

pub(super) fn ops(layer: &Lrn, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let bottom = at.bottom(0);
    let (count, extents) = (bottom.count(), [1, 2, 3].map(|axis| bottom.dim(axis)));
    let [reach_c, reach_h, reach_w] = layer.reach();
    let norm = [extents[0], extents[1], extents[2], reach_c, reach_h, reach_w];
    let (base, share, beta) = (layer.base(), layer.alpha / layer.divisor(), layer.beta);
    let x = at.get(Operand::Bottom(0))?;
    if sub == SubTask::Forward {
        let y = at.get(Operand::Top(0))?;
        return Ok(vec![Op::each("lrn_forward", count, arguments![x, y, base, share, beta, norm, count])]);
    }
    let [dy, dx] = [at.get(Operand::TopGrad(0))?, at.get(Operand::BottomGrad(0))?];
    let [own, back] = [at.workspace(count), at.workspace(count)];
    let factor = 2.0 * share * beta;
    Ok(vec![
        Op::each("lrn_back", count, arguments![dy, x, own, back, base, share, beta, norm, count]),
        Op::each("lrn_backward", count, arguments![x, own, back, dx, factor, norm, count]),
    ])
}
