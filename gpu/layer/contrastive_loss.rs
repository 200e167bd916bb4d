//! Contrastive loss of pairs. Backward finds the distances again.

use quadrille_core::layer::{ContrastiveLoss, Operand, SubTask};

use super::Binder;
use crate::op::{Op, arguments};

pub(super) fn ops(layer: &ContrastiveLoss, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let [a, b, similar] =
        [at.get(Operand::Bottom(0))?, at.get(Operand::Bottom(1))?, at.get(Operand::Bottom(2))?];
    let (pairs, channels) = (at.bottom(0).images(), at.bottom(0).per_image());
    let (margin, legacy) = (layer.margin, layer.legacy_version);
    let squares = at.workspace(pairs);
    let mut ops = vec![Op::blocks("pair_squares", [pairs, 1, 1], arguments![a, b, squares, channels])];
    if sub == SubTask::Forward {
        let loss = at.get(Operand::Top(0))?;
        let arguments = arguments![squares, similar, loss, margin, legacy, pairs];
        ops.push(Op::blocks("contrastive_loss", [1; 3], arguments));
        return Ok(ops);
    }
    let (count, weight) = (at.bottom(0).count(), at.loss_weight() / pairs as f32);
    for (bottom, weight) in [(0, weight), (1, -weight)] {
        if let Some(dx) = at.find(Operand::BottomGrad(bottom)) {
            let arguments = arguments![a, b, squares, similar, dx, weight, margin, legacy, channels, count];
            ops.push(Op::each("contrastive_loss_backward", count, arguments));
        }
    }
    Ok(ops)
}
