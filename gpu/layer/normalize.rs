//! Batch normalisation with the scale and perhaps the ReLU behind it.

use quadrille_core::layer::{Normalize, Operand, SubTask};

use super::Binder;
use super::batch_norm::{Gradients, running_terms, statistics, view};
use crate::op::{Op, Span, arguments};

pub(super) fn ops(layer: &Normalize, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    if sub != SubTask::Forward {
        return backward(layer, at, sub);
    }
    let (view, eps) = (view(at), layer.norm.eps);
    let mut ops = statistics(&layer.norm, at)?;
    let [x, y] = [at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?];
    let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
    let (s, b) = factors(layer, at)?;
    let arguments = arguments![x, mean, variance, s, b, y, eps, layer.relu, view.fields()];
    ops.push(view.walk("normalize", arguments));
    Ok(ops)
}

/// The factors and, if there is one, the bias.
fn factors(layer: &Normalize, at: &Binder<'_>) -> Result<(Span, Option<Span>), String> {
    let b = layer.scale.bias.then(|| at.get(Operand::Param(Normalize::BIAS))).transpose()?;
    Ok((at.get(Operand::Param(Normalize::FACTORS))?, b))
}

/// The parameters' gradients and, if the bottom has one, that of the bottom.
fn backward(layer: &Normalize, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let channels = view(at).channels;
    let arrays = [at.get(Operand::TopGrad(0))?, at.get(Operand::Bottom(0))?];
    let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
    let (s, b) = factors(layer, at)?;
    // The sums that the bottom's gradient needs are the gradients of bias and factors; nobody asks for those of frozen ones.
    let bias = at.gradient(sub, Normalize::BIAS).filter(|_| layer.scale.bias);
    let sums = bias.unwrap_or_else(|| at.workspace(channels));
    let products = at.gradient(sub, Normalize::FACTORS).unwrap_or_else(|| at.workspace(channels));
    let gradients = Gradients {
        arrays,
        channels: [Some(mean), Some(variance), Some(s), b],
        eps: layer.norm.eps,
        relu: layer.relu,
        sums: [sums, products],
    };
    let dx = at.find(Operand::BottomGrad(0));
    let mut ops = gradients.ops(at, dx, layer.norm.uses_kept_statistics());
    if at.gradient(sub, 0).is_some() {
        ops.push(running_terms(at)?);
    }
    Ok(ops)
}
