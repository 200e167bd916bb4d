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
    // The device has the whole mini-batch, so places in the blob are those that random numbers go by.
    let (count, purpose) = (at.bottom(0).count(), Purpose::Layer(at.id.0 as u32).word());
    let [purpose, threshold] = [purpose, layer.threshold()].map(Argument::Word);
    let arguments = arguments![from, to, at.scalars, purpose, threshold, layer.scale(), count];
    Ok(vec![Op::each("dropout", count.div_ceil(VALUES), arguments)])
}
