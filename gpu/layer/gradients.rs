//! What is done with complete gradients beside the update: sums over layers that share a parameter and over mini-batches, and
//! the norm.

use quadrille_core::device::Packed;
use quadrille_core::layer::SubTask;
use quadrille_core::net::{ParamId, ParamRule};
use quadrille_core::plan::{normed_params, trained_params};

use super::Binder;
use crate::op::{Op, Span, arguments};

/// Adds the layer's own gradients to those of the parameters that it shares; `None` if it shares none.
pub(super) fn add_shared(at: &Binder<'_>) -> Result<Option<Vec<Op>>, String> {
    let mut ops = Vec::new();
    for (own, param) in at.layer().grads_to_add() {
        let (own, sum) = (at.map.aux(own), packed(at, Packed::Gradients, param)?);
        ops.push(Op::each_few("sum_two", sum.len, arguments![sum, own, sum, 1.0, 1.0, false, sum.len]));
    }
    Ok((!ops.is_empty()).then_some(ops))
}

/// Gathers gradients, or totals them; `None` if iterations have one mini-batch, or the layer has no gradients.
pub(super) fn gather(at: &Binder<'_>, sub: SubTask) -> Result<Option<Vec<Op>>, String> {
    let params = trained_params(at.net, at.id);
    if at.net.parts == 1 || params.is_empty() {
        return Ok(None);
    }
    let kernel = if sub == SubTask::Gather { "fade" } else { "total" };
    let op = |param: ParamId| {
        let (sum, gradient) = (packed(at, Packed::Sums, param)?, packed(at, Packed::Gradients, param)?);
        let stays = match at.net.params.view(param).rule {
            ParamRule::Gradient => 1.0,
            ParamRule::RunningSum { fraction } => fraction,
        };
        Ok(Op::each(kernel, sum.len, arguments![sum, gradient, stays, sum.len]))
    };
    params.into_iter().map(op).collect::<Result<Vec<Op>, String>>().map(Some)
}

/// Sums up the squares of the layer's gradients; `None` if it is no part of the norm.
pub(super) fn norm(at: &mut Binder<'_>) -> Result<Option<Vec<Op>>, String> {
    /// Values that are worth a block.
    const VALUES: usize = 1 << 14;
    const MOST: usize = 256;
    let Some(out) = at.map.norm(at.id) else { return Ok(None) };
    let gradients = normed_params(at.net, at.id).into_iter();
    let gradients: Vec<Span> =
        gradients.map(|param| packed(at, Packed::Gradients, param)).collect::<Result<_, _>>()?;
    let blocks = |gradient: &Span| gradient.len.div_ceil(VALUES).min(MOST);
    let all: usize = gradients.iter().map(blocks).sum();
    let parts = at.workspace(all);
    let (mut ops, mut start) = (Vec::new(), 0);
    for gradient in &gradients {
        let blocks = blocks(gradient);
        let own = parts.part(start, blocks);
        ops.push(Op::blocks("squares", [blocks, 1, 1], arguments![*gradient, own, gradient.len]));
        start += blocks;
    }
    ops.push(Op::each("sum_squares", 1, arguments![parts, out, all]));
    Ok(Some(ops))
}

fn packed(at: &Binder<'_>, which: Packed, param: ParamId) -> Result<Span, String> {
    let span = at.map.packed().param(at.net, which, param);
    span.ok_or_else(|| format!("there are no packed {which:?}"))
}
