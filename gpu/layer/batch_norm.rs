//! Batch normalisation, alone.

use quadrille_core::layer::{BatchNorm, Operand, SubTask};

use super::Binder;
use super::scale::View;
use crate::op::{Op, Span, arguments};

/// The layer's blobs by channels.
pub(super) fn view(at: &Binder<'_>) -> View {
    View::of_blob(&at.bottom(0), at.has_channels_last())
}

/// Mean and variance into the layer's state: those of the batch, or the kept ones.
pub(super) fn statistics(layer: &BatchNorm, at: &mut Binder<'_>) -> Result<Vec<Op>, String> {
    let view = view(at);
    let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
    if layer.uses_kept_statistics() {
        let [means, variances] = [at.get(Operand::Param(0))?, at.get(Operand::Param(1))?];
        let (factor, channels) = (at.get(Operand::Param(2))?, view.channels);
        let arguments = arguments![means, variances, factor, mean, variance, channels];
        return Ok(vec![Op::each("kept_statistics", channels, arguments)]);
    }
    let x = at.get(Operand::Bottom(0))?;
    let (moments, parts, each) =
        view.gather(at, 3, |parts| ("channel_moments", arguments![x, parts, view.fields()]));
    let merged = arguments![parts, mean, variance, each];
    Ok(vec![moments, Op::blocks("merge_moments", [view.channels, 1, 1], merged)])
}

/// The sums over each channel that gradients need: of dy behind the ReLU, and of its products with what is normalised.
pub(super) struct Gradients {
    /// Gradient and bottom; or the top, if there is no mean.
    pub arrays: [Span; 2],
    /// The channels' means, variances, factors and biases.
    pub channels: [Option<Span>; 4],
    /// As the kernels take it.
    pub eps: f32,
    /// Whether a ReLU stands behind it.
    pub relu: bool,
    /// The sums, where they go: the gradients of bias and factor.
    pub sums: [Span; 2],
}

impl Gradients {
    /// The sums, and behind them the bottom's gradient if it is asked for; what is kept instead of the mini-batch's statistics does
    /// not depend on the bottom.
    pub fn ops(self, at: &mut Binder<'_>, dx: Option<Span>, kept: bool) -> Vec<Op> {
        let Self { arrays: [dy, x], channels: [mean, variance, s, b], eps, relu, sums } = self;
        let (view, count) = (view(at), view(at).each() as f32);
        let (gathered, parts, each) = view.gather(at, 2, |parts| {
            ("normalize_sums", arguments![dy, x, mean, variance, s, b, parts, eps, relu, view.fields()])
        });
        let means = [at.workspace(view.channels), at.workspace(view.channels)];
        let merged = arguments![parts, s, sums[0], sums[1], means[0], means[1], each, count];
        let mut ops = vec![gathered, Op::blocks("merge_gradients", [view.channels, 1, 1], merged)];
        if let Some(dx) = dx {
            let [m, p] = means.map(|span| (!kept).then_some(span));
            let back = arguments![dy, x, mean, variance, s, b, m, p, dx, eps, relu, view.fields()];
            ops.push(view.walk("normalize_backward", back));
        }
        ops
    }
}

/// This device's terms of the running sums.
pub(super) fn running_terms(at: &Binder<'_>) -> Result<Op, String> {
    let view = view(at);
    let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
    let [means, variances] = [at.get(Operand::ParamGrad(0))?, at.get(Operand::ParamGrad(1))?];
    let (factor, share) = (at.get(Operand::ParamGrad(2))?, at.net.share);
    let (correction, channels) = (BatchNorm::bias_correction(view.each()), view.channels);
    let arguments = arguments![mean, variance, means, variances, factor, share, correction, channels];
    Ok(Op::each("running_terms", channels, arguments))
}

pub(super) fn ops(layer: &BatchNorm, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (view, eps, none) = (view(at), layer.eps, None::<Span>);
    match sub {
        SubTask::Forward => {
            let mut ops = statistics(layer, at)?;
            let [x, y] = [at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?];
            let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
            let arguments = arguments![x, mean, variance, none, none, y, eps, false, view.fields()];
            ops.push(view.walk("normalize", arguments));
            Ok(ops)
        }
        SubTask::GradActivation => {
            let [dy, dx] = [at.get(Operand::TopGrad(0))?, at.get(Operand::BottomGrad(0))?];
            let variance = at.get(Operand::Aux(1))?;
            if layer.uses_kept_statistics() {
                let back =
                    arguments![dy, dy, none, variance, none, none, none, none, dx, eps, false, view.fields()];
                return Ok(vec![view.walk("normalize_backward", back)]);
            }
            let arrays = [dy, at.get(Operand::Top(0))?];
            let sums = [at.workspace(view.channels), at.workspace(view.channels)];
            let channels = [None, Some(variance), None, None];
            Ok(Gradients { arrays, channels, eps, relu: false, sums }.ops(at, Some(dx), false))
        }
        _ => Ok(vec![running_terms(at)?]),
    }
}
