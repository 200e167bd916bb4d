//! Softmax, alone and with its loss.

use quadrille_core::layer::{ClassView, Normalization, Operand, Softmax, SoftmaxWithLoss, SubTask};

use super::Binder;
use crate::op::{Argument, Op, arguments};

/// A blob as the kernels' `struct Classes`.
pub(super) fn view(at: &Binder<'_>, axis: i32) -> Result<(ClassView, Argument), String> {
    let view = ClassView::new(&at.bottom(0), axis, "axis").map_err(|fault| fault.message)?;
    Ok((view, Argument::from([view.outer, view.classes, view.inner])))
}

/// Whether a label is ignored, and which.
pub(super) fn ignored(label: Option<i32>) -> [i32; 2] {
    [i32::from(label.is_some()), label.unwrap_or(0)]
}

/// The divisor of a loss, or 0 if it is the number of labels that count.
pub(super) fn divisor(normalization: Normalization, extents: [usize; 2]) -> f32 {
    match normalization {
        Normalization::Valid => 0.0,
        other => other.divisor(extents, 0),
    }
}

pub(super) fn ops(layer: &Softmax, at: &Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (view, classes) = view(at, layer.axis)?;
    let grid = [view.outer * view.inner, 1, 1];
    Ok(vec![match sub {
        SubTask::Forward => {
            let [x, y] = [at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?];
            Op::blocks("softmax", grid, arguments![x, y, classes])
        }
        _ => {
            let [dy, y] = [at.get(Operand::TopGrad(0))?, at.get(Operand::Top(0))?];
            let dx = at.get(Operand::BottomGrad(0))?;
            Op::blocks("softmax_backward", grid, arguments![dy, y, dx, classes])
        }
    }])
}

pub(super) fn loss_ops(
    layer: &SoftmaxWithLoss,
    at: &mut Binder<'_>,
    sub: SubTask,
) -> Result<Vec<Op>, String> {
    let (view, classes) = view(at, layer.axis)?;
    let [ignores, label] = ignored(layer.ignore_label);
    let (p, labels) = (at.get(Operand::Aux(0))?, at.get(Operand::Bottom(1))?);
    // The kernel that finds the loss finds the divisor, too; nothing keeps it for backward.
    let divisors = at.workspace(1);
    let by = match (layer.normalization, ignores) {
        // All labels count.
        (Normalization::Valid, 0) => (view.outer * view.inner) as f32,
        (normalization, _) => divisor(normalization, [view.outer, view.inner]),
    };
    let divide = |loss: Argument| {
        let classes = classes.clone();
        let arguments = arguments![p, labels, loss, divisors, by, ignores, label, classes];
        Op::blocks("softmax_loss", [1; 3], arguments)
    };
    if sub == SubTask::Forward {
        let x = at.get(Operand::Bottom(0))?;
        let softmax =
            Op::blocks("softmax", [view.outer * view.inner, 1, 1], arguments![x, p, classes.clone()]);
        let probabilities = at.find(Operand::Top(1)).map(|to| Op::Copy { from: p, to });
        let loss = at.find(Operand::Top(0)).map(|loss| divide(loss.into()));
        return Ok(std::iter::once(softmax).chain(loss).chain(probabilities).collect());
    }
    let (dx, count) = (at.get(Operand::BottomGrad(0))?, at.bottom(0).count());
    let weight = at.loss_weight();
    let arguments = arguments![p, labels, divisors, dx, by, weight, ignores, label, classes.clone()];
    let divide = (by == 0.0).then(|| divide(Argument::Missing));
    Ok(divide.into_iter().chain([Op::each("softmax_loss_backward", count, arguments)]).collect())
}
