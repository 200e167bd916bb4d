//! One blob for several readers: backward adds up their gradients.

use quadrille_core::layer::{Operand, Split};

use super::{Binder, eltwise};
use crate::op::{Op, Span};

pub(super) fn ops(layer: &Split, at: &Binder<'_>) -> Result<Vec<Op>, String> {
    let dx = at.get(Operand::BottomGrad(0))?;
    // A top that leads to no loss has no gradient.
    let terms = (0..layer.tops).filter_map(|top| Some((at.find(Operand::TopGrad(top))?, 1.0)));
    let terms: Vec<(Span, f32)> = terms.collect();
    Ok(match terms[..] {
        [(only, _)] => Op::copy(only, dx),
        _ => eltwise::sum(&terms, dx, false, at.bottom(0).count()),
    })
}
