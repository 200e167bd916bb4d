//! The solver's rule on a layer's parameters, cut into pieces of the packed buffers.

use std::ops::Range;

use quadrille_core::device::Packed;
use quadrille_core::net::{LayerId, Net, ParamRule};
use quadrille_core::solver::{Elastic, SgdRule, Step, add_to_running_sum, update};

use super::Grain;
use crate::isa::Isa;
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
        run_on(self.isa, &step, weight, gradient, history);
    }
}

/// The rule, compiled once for each tier so that it fills the tier's vectors. No tier contracts a product and a
/// sum, so all give the same bits.
fn run_on(isa: Isa, step: &Step<'_>, weight: &mut [f32], gradient: &[f32], history: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512f(step: &Step<'_>, weight: &mut [f32], gradient: &[f32], history: &mut [f32]) {
            update(step, weight, gradient, history);
        }
        #[target_feature(enable = "avx2")]
        fn avx2(step: &Step<'_>, weight: &mut [f32], gradient: &[f32], history: &mut [f32]) {
            update(step, weight, gradient, history);
        }
        match isa {
            // SAFETY: devices are made only with a tier that the CPU has.
            Isa::Avx512f => return unsafe { avx512f(step, weight, gradient, history) },
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { avx2(step, weight, gradient, history) },
            Isa::Portable => {}
        }
    }
    update(step, weight, gradient, history);
}
