//! Batch normalisation with the scale and perhaps the ReLU behind it.

use quadrille_core::layer::{Normalize, Operand, SubTask};

use super::Binder;
use super::batch_norm::{running_terms, statistics, view};
use super::scale::{Summed, channel_sums};
use crate::op::{Op, Span, arguments};

pub(super) fn ops(layer: &Normalize, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    if sub != SubTask::Forward {
        return backward(layer, at, sub);
    }
    let (view, eps) = (view(&at.bottom(0)), layer.norm.eps);
    let mut ops = statistics(&layer.norm, at)?;
    let [x, y] = [at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?];
    let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
    let (s, b) = factors(layer, at)?;
    let arguments = arguments![x, mean, variance, s, b, y, eps, layer.relu, view.fields()];
    ops.push(Op::each("normalize", view.count(), arguments));
    Ok(ops)
}

/// The factors and, if there is one, the bias.
fn factors(layer: &Normalize, at: &Binder<'_>) -> Result<(Span, Option<Span>), String> {
    let b = layer.scale.bias.then(|| at.get(Operand::Param(Normalize::BIAS))).transpose()?;
    Ok((at.get(Operand::Param(Normalize::FACTORS))?, b))
}

/// The parameters' gradients and, if the bottom has one, that of the bottom.
fn backward(layer: &Normalize, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (view, eps, kept) = (view(&at.bottom(0)), layer.norm.eps, layer.norm.uses_kept_statistics());
    let (channels, fields) = (view.channels, view.fields());
    let [dy, x] = [at.get(Operand::TopGrad(0))?, at.get(Operand::Bottom(0))?];
    let [mean, variance] = [at.get(Operand::Aux(0))?, at.get(Operand::Aux(1))?];
    let (s, b) = factors(layer, at)?;
    let [passed, normal] = [at.workspace(view.count()), at.workspace(view.count())];
    let again = arguments![dy, x, mean, variance, s, b, passed, normal, eps, layer.relu, fields];
    let mut ops = vec![Op::each("normalize_again", view.count(), again)];
    // The sums that the bottom's gradient needs are the gradients of bias and factors; nobody asks for those of frozen ones.
    let bias = at.gradient(sub, Normalize::BIAS).filter(|_| layer.scale.bias);
    let sums = bias.unwrap_or_else(|| at.workspace(channels));
    let products = at.gradient(sub, Normalize::FACTORS).unwrap_or_else(|| at.workspace(channels));
    ops.extend(channel_sums(at, Summed::Values(passed), sums, view, 1.0));
    ops.extend(channel_sums(at, Summed::Products(passed, normal), products, view, 1.0));
    if at.gradient(sub, 0).is_some() {
        ops.push(running_terms(at)?);
    }
    let Some(dx) = at.find(Operand::BottomGrad(0)) else { return Ok(ops) };
    let none = None::<Span>;
    let arguments = if kept {
        arguments![passed, normal, none, none, variance, s, dx, eps, fields]
    } else {
        let [means, scaled] = [at.workspace(channels), at.workspace(channels)];
        let count = view.each() as f32;
        let arguments = arguments![sums, products, s, means, scaled, count, channels];
        ops.push(Op::each("scale_sums", channels, arguments));
        arguments![passed, normal, means, scaled, variance, s, dx, eps, fields]
    };
    ops.push(Op::each("normalize_backward", view.count(), arguments));
    Ok(ops)
}
