//! The solver's rule on a layer's parameters.

use quadrille_core::device::Packed;
use quadrille_core::net::{ParamId, ParamRule};
use quadrille_core::plan::trained_params;
use quadrille_core::solver::{Decay, RuleKind};

use super::Binder;
use crate::op::{Op, Span, arguments};

/// The rule's number in `kernels/update.cu`, and its constants there: two momenta and δ.
fn constants(kind: RuleKind) -> (usize, [f32; 3]) {
    match kind {
        RuleKind::Sgd { momentum } => (0, [momentum, 0.0, 0.0]),
        RuleKind::Nesterov { momentum } => (1, [momentum, 0.0, 0.0]),
        RuleKind::AdaGrad { delta } => (2, [0.0, 0.0, delta]),
        RuleKind::RmsProp { decay, delta } => (3, [decay, 0.0, delta]),
        RuleKind::AdaDelta { momentum, delta } => (4, [momentum, 0.0, delta]),
        RuleKind::Adam { momentum, momentum2, delta } => (5, [momentum, momentum2, delta]),
    }
}

/// Changes every parameter whose gradient the layer completes; `None` if there is none.
pub(super) fn ops(at: &Binder<'_>) -> Result<Option<Vec<Op>>, String> {
    let params = trained_params(at.net, at.id);
    let changed = |param: &&ParamId| {
        let view = at.net.params.view(**param);
        view.rule != ParamRule::Gradient || view.lr_mult != 0.0
    };
    let ops: Result<Vec<Op>, String> =
        params.iter().filter(changed).map(|param| update(at, *param)).collect();
    Ok((!params.is_empty()).then_some(ops?))
}

fn update(at: &Binder<'_>, id: ParamId) -> Result<Op, String> {
    let (net, packed) = (at.net, at.map.packed());
    let (view, rule) = (net.params.view(id), at.options.rule);
    let of = |which| packed.param(net, which, id);
    let need = |which| of(which).ok_or_else(|| format!("there are no packed {which:?}"));
    let (w, gradient, count) = (need(Packed::Weights)?, need(Packed::Gradients)?, view.shape.count());
    if let ParamRule::RunningSum { fraction } = view.rule.after(net.parts) {
        return Ok(Op::each("fade", count, arguments![w, gradient, fraction, count]));
    }
    // Second histories lie behind all first ones.
    let history = |index: usize| packed.histories.part(index * net.params.len() + view.offset, count);
    let second: Option<Span> = (rule.kind.histories() > 1).then(|| history(1));
    let (kind, [a, b, delta]) = constants(rule.kind);
    let clip = rule.clip.zip(at.map.norms());
    let squares = clip.map(|(_, squares)| squares);
    let fields = [
        kind,
        usize::from(rule.decay == Decay::L1),
        usize::from(clip.is_some()),
        squares.map_or(0, |squares| squares.len),
    ];
    let (decay, most) = (rule.weight_decay * view.decay_mult, clip.map_or(0.0, |(most, _)| most));
    let mean = 1.0 / net.parts as f32;
    let arguments = arguments![
        w,
        gradient,
        history(0),
        second,
        of(Packed::Centre),
        squares,
        at.scalars,
        fields,
        a,
        b,
        delta,
        view.lr_mult,
        decay,
        most,
        mean,
        count
    ];
    Ok(Op::each("update", count, arguments))
}
