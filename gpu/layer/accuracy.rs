//! Share of right answers, over all and by class.

use quadrille_core::layer::{Accuracy, Operand};

use super::Binder;
use super::softmax::{ignored, view};
use crate::op::{Op, arguments};

pub(super) fn ops(layer: &Accuracy, at: &mut Binder<'_>) -> Result<Vec<Op>, String> {
    let (view, classes) = view(at, layer.axis)?;
    let [ignores, label] = ignored(layer.ignore_label);
    let [x, labels] = [at.get(Operand::Bottom(0))?, at.get(Operand::Bottom(1))?];
    let predictions = view.outer * view.inner;
    let right = at.workspace(predictions);
    let hits = arguments![x, labels, right, layer.top_k, ignores, label, classes.clone()];
    let mut ops = vec![Op::blocks("hits", [predictions, 1, 1], hits)];
    for (top, blocks) in [(0, 1), (1, view.classes)] {
        if let Some(out) = at.find(Operand::Top(top)) {
            let arguments = arguments![right, labels, out, top == 1, ignores, label, classes.clone()];
            ops.push(Op::blocks("accuracy", [blocks, 1, 1], arguments));
        }
    }
    Ok(ops)
}
