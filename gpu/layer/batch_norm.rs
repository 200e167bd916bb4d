//! Batch normalisation, alone.

use quadrille_core::layer::{BatchNorm, Operand, SubTask};
use quadrille_core::shape::Shape;

use super::Binder;
use super::scale::{Summed, View, channel_sums};
use crate::op::{Op, Span, arguments};

/// A blob as images × channels × places.
pub(super) fn view(shape: &Shape) -> View {
    let (outer, channels) = (shape.images(), shape.dim(1));
    View { outer, channels, inner: shape.count() / (outer * channels) }
}

/// Mean and variance into the layer's state: those of the batch, or the kept ones.
pub(super) fn statistics(layer: &BatchNorm, at: &mut Binder<'_>) -> Result<Vec<Op>, String> {
    let view = view(&at.bottom(0));
    let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
    if layer.uses_kept_statistics() {
        let [means, variances] = [at.get(Operand::Param(0))?, at.get(Operand::Param(1))?];
        let (factor, channels) = (at.get(Operand::Param(2))?, view.channels);
        let arguments = arguments![means, variances, factor, mean, variance, channels];
        return Ok(vec![Op::each("kept_statistics", channels, arguments)]);
    }
    let (x, count) = (at.get(Operand::Bottom(0))?, view.each() as f32);
    let mut ops = channel_sums(at, Summed::Values(x), mean, view, count);
    ops.extend(channel_sums(at, Summed::Squares(x, mean), variance, view, count));
    Ok(ops)
}

/// This device's terms of the running sums.
pub(super) fn running_terms(at: &Binder<'_>) -> Result<Op, String> {
    let view = view(&at.bottom(0));
    let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
    let [means, variances] = [at.get(Operand::ParamGrad(0))?, at.get(Operand::ParamGrad(1))?];
    let (factor, share) = (at.get(Operand::ParamGrad(2))?, at.net.share);
    let (correction, channels) = (BatchNorm::bias_correction(view.each()), view.channels);
    let arguments = arguments![mean, variance, means, variances, factor, share, correction, channels];
    Ok(Op::each("running_terms", channels, arguments))
}

pub(super) fn ops(layer: &BatchNorm, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (view, eps, none) = (view(&at.bottom(0)), layer.eps, None::<Span>);
    match sub {
        SubTask::Forward => {
            let mut ops = statistics(layer, at)?;
            let [x, y] = [at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?];
            let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
            let arguments = arguments![x, mean, variance, none, none, y, eps, false, view.fields()];
            ops.push(Op::each("normalize", view.count(), arguments));
            Ok(ops)
        }
        SubTask::GradActivation => {
            let [dy, dx] = [at.get(Operand::TopGrad(0))?, at.get(Operand::BottomGrad(0))?];
            let variance = at.get(Operand::Aux(1))?;
            if layer.uses_kept_statistics() {
                let arguments = arguments![dy, dy, none, none, variance, none, dx, eps, view.fields()];
                return Ok(vec![Op::each("normalize_backward", view.count(), arguments)]);
            }
            let (y, count) = (at.get(Operand::Top(0))?, view.each() as f32);
            let [means, products] = [at.workspace(view.channels), at.workspace(view.channels)];
            let mut ops = channel_sums(at, Summed::Values(dy), means, view, count);
            ops.extend(channel_sums(at, Summed::Products(dy, y), products, view, count));
            let arguments = arguments![dy, y, means, products, variance, none, dx, eps, view.fields()];
            ops.push(Op::each("normalize_backward", view.count(), arguments));
            Ok(ops)
        }
        _ => Ok(vec![running_terms(at)?]),
    }
}
