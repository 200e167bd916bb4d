//! Losses of values and as many targets.

use quadrille_core::layer::{Operand, SigmoidCrossEntropyLoss, SubTask};

use super::Binder;
use super::softmax::{divisor, ignored};
use crate::op::{Op, arguments};

pub(super) fn euclidean_ops(at: &Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let [a, b] = [at.get(Operand::Bottom(0))?, at.get(Operand::Bottom(1))?];
    let (count, images) = (at.bottom(0).count(), at.bottom(0).images() as f32);
    if sub == SubTask::Forward {
        let loss = at.get(Operand::Top(0))?;
        return Ok(vec![Op::blocks("euclidean_loss", [1; 3], arguments![a, b, loss, images, count])]);
    }
    let scale = at.loss_weight() / images;
    let signed = [(0, scale), (1, -scale)].into_iter();
    let gradients = signed.filter_map(|(i, scale)| Some((at.find(Operand::BottomGrad(i))?, scale)));
    let gradient = |(dx, scale): (crate::op::Span, f32)| {
        Op::each("euclidean_loss_backward", count, arguments![a, b, dx, scale, count])
    };
    Ok(gradients.map(gradient).collect())
}

pub(super) fn sigmoid_ops(
    layer: &SigmoidCrossEntropyLoss,
    at: &Binder<'_>,
    sub: SubTask,
) -> Result<Vec<Op>, String> {
    let shape = at.bottom(0);
    let [x, targets] = [at.get(Operand::Bottom(0))?, at.get(Operand::Bottom(1))?];
    let (count, divisors) = (shape.count(), at.get(Operand::Aux(0))?);
    let [ignores, label] = ignored(layer.ignore_label);
    if sub == SubTask::Forward {
        let by = divisor(layer.normalization, [shape.images(), shape.per_image()]);
        let loss = at.find(Operand::Top(0));
        let arguments = arguments![x, targets, loss, divisors, by, ignores, label, count];
        return Ok(vec![Op::blocks("sigmoid_loss", [1; 3], arguments)]);
    }
    let (dx, weight) = (at.get(Operand::BottomGrad(0))?, at.loss_weight());
    let arguments = arguments![x, targets, divisors, dx, weight, ignores, label, count];
    Ok(vec![Op::each("sigmoid_loss_backward", count, arguments)])
}
