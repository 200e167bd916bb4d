//! The solver's rule on a layer's parameters, cut into pieces of the packed buffers.

use std::ops::Range;

use quadrille_core::device::Packed;
use quadrille_core::net::{LayerId, Net, ParamRule};
use quadrille_core::solver::{Elastic, SgdRule, Step, add_to_running_sum, update};

use super::Grain;
use crate::isa::Isa;
use crate::kernel::vectorised::{Vectorised, on};
use crate::machine::Machine;
use crate::memory::Memory;

/// A piece of one parameter.
#[derive(Clone, Debug)]
struct Piece {
    range: Range<usize>,
    rule: ParamRule,
    lr_mult: f32,
    decay: f32,
}

/// The update of one layer: each grain changes one piece.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    rule: SgdRule,
    elastic: bool,
    isa: Isa,
    pieces: Vec<Piece>,
}

impl Update {
    /// The update of a layer's trained parameters.
    pub fn new(net: &Net, layer: LayerId, rule: SgdRule, elastic: bool, isa: Isa) -> Self {
        let step = Machine::of(isa).grain_elements;
        let mut pieces = Vec::new();
        let this = net.layer(layer);
        let completed = this.params.iter().enumerate().filter(|(index, _)| this.completes_grad(*index));
        let views = completed.map(|(_, param)| net.params.view(*param));
        for view in views.filter(|v| v.rule != ParamRule::Gradient || v.lr_mult != 0.0) {
            let range = view.range();
            for start in range.clone().step_by(step) {
                pieces.push(Piece {
                    range: start..(start + step).min(range.end),
                    rule: view.rule,
                    lr_mult: view.lr_mult,
                    decay: rule.weight_decay * view.decay_mult,
                });
            }
        }
        Self { rule, elastic, isa, pieces }
    }

    /// Grains, at least 1.
    pub fn grains(&self) -> usize {
        self.pieces.len().max(1)
    }

    /// Updates the piece of a grain.
    pub fn run(&self, grain: &mut Grain<'_>) {
        let Some(piece) = self.pieces.get(grain.index) else { return };
        let span = |packed| Memory::packed(packed, piece.range.clone());
        // SAFETY: the update's accesses are these two buffers; pieces of different grains do not overlap.
        let (weight, gradient) = unsafe {
            (grain.memory.write(span(Packed::Weights)), grain.memory.read(span(Packed::Gradients)))
        };
        if let ParamRule::RunningSum { fraction } = piece.rule {
            return add_to_running_sum(fraction, weight, gradient);
        }
        // SAFETY: the update of a trained parameter accesses these two, too.
        let (history, centre) = unsafe {
            (
                grain.memory.write(span(Packed::Histories)),
                self.elastic.then(|| grain.memory.read(span(Packed::Centre))),
            )
        };
        let step = Step {
            rule: self.rule,
            rate: grain.scalars.rate * piece.lr_mult,
            decay: piece.decay,
            elastic: centre.map(|centre| Elastic { centre, strength: grain.scalars.elastic }),
        };
        on(self.isa, Rule { step, weight, gradient, history });
    }
}

/// The rule on one piece.
struct Rule<'a> {
    step: Step<'a>,
    weight: &'a mut [f32],
    gradient: &'a [f32],
    history: &'a mut [f32],
}

impl Vectorised for Rule<'_> {
    #[inline(always)]
    fn run(self) {
        update(&self.step, self.weight, self.gradient, self.history);
    }
}
