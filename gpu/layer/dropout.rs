//! Dropout: forward and backward draw the same mask.

use quadrille_core::layer::{Dropout, Operand, SubTask};
use quadrille_core::rng::Purpose;

use super::Binder;
use crate::op::{Argument, Op, arguments};

/// Values that a thread treats: those of one random block.
const VALUES: usize = 4;

pub(super) fn ops(layer: &Dropout, at: &Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (from, to) = match sub {
        SubTask::Forward => (at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?),
        _ => (at.get(Operand::TopGrad(0))?, at.get(Operand::BottomGrad(0))?),
    };
    if !layer.active {
        return Ok(Op::copy(from, to));
    }
    let (shape, purpose) = (at.bottom(0), Purpose::Layer(at.id.0 as u32).word());
    let count = shape.count();
    let first = Argument::Long((at.first_image * shape.per_image()) as u64);
    let words = [purpose, layer.threshold()].map(Argument::Word);
    let [purpose, threshold] = words;
    // One block more, since the first value may lie inside one.
    let blocks = count.div_ceil(VALUES) + 1;
    let arguments = arguments![from, to, at.scalars, first, purpose, threshold, layer.scale(), count];
    Ok(vec![Op::each("dropout", blocks, arguments)])
}
