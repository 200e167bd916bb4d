//! The solver's rule on a layer's parameters, cut into pieces of the packed buffers.

use std::ops::Range;

use quadrille_core::device::{Packed, Scalars};
use quadrille_core::net::{LayerId, Net, ParamRule, ParamView};
use quadrille_core::solver::{Elastic, SgdRule, Step, add_to_running_sum, update};

use super::Grain;
use crate::isa::Isa;
use crate::kernel::vectorised::{Vectorised, on, prefetch};
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
    /// The whole weight, if it is no task of its own to update it.
    stepped: Option<Piece>,
}

impl Update {
    /// The update of a layer's trained parameters.
    pub fn new(net: &Net, layer: LayerId, rule: SgdRule, elastic: bool, isa: Isa) -> Self {
        let step = Machine::of(isa).grain_elements;
        let piece = |view: &ParamView, range: Range<usize>| Piece {
            range,
            rule: view.rule,
            lr_mult: view.lr_mult,
            decay: rule.weight_decay * view.decay_mult,
        };
        let this = net.layer(layer);
        let stepped = this.params.first().filter(|_| this.steps_weight).map(|param| net.params.view(*param));
        let later = |index: usize| this.completes_grad(index) && !(index == 0 && this.steps_weight);
        let completed = this.params.iter().enumerate().filter(|(index, _)| later(*index));
        let views = completed.map(|(_, param)| net.params.view(*param));
        let mut pieces = Vec::new();
        for view in views.filter(|v| v.rule != ParamRule::Gradient || v.lr_mult != 0.0) {
            let range = view.range();
            for start in range.clone().step_by(step) {
                pieces.push(piece(view, start..(start + step).min(range.end)));
            }
        }
        Self { rule, elastic, isa, pieces, stepped: stepped.map(|view| piece(view, view.range())) }
    }

    /// Grains, at least 1.
    pub fn grains(&self) -> usize {
        self.pieces.len().max(1)
    }

    /// Updates the piece of a grain.
    pub fn run(&self, grain: &mut Grain<'_>) {
        let Some(piece) = self.pieces.get(grain.index) else { return };
        let span = |packed| Memory::packed(packed, piece.range.clone());
        // SAFETY: gradients are only read in this task.
        let gradient = unsafe { grain.memory.read(span(Packed::Gradients)) };
        if let ParamRule::RunningSum { fraction } = piece.rule {
            // SAFETY: the update's accesses are these two buffers; pieces of different grains do not overlap.
            let sum = unsafe { grain.memory.write(span(Packed::Weights)) };
            return add_to_running_sum(fraction, sum, gradient);
        }
        // SAFETY: as above, and for a trained parameter the history, too.
        unsafe { self.apply(piece, piece.range.clone(), grain.memory, &grain.scalars, gradient) }
    }

    /// Whether the weight is updated as its gradient is found.
    pub fn steps_weight(&self) -> bool {
        self.stepped.is_some()
    }

    /// Updates a part of the weight by the part's gradient, for a kernel that has just found it.
    ///
    /// # Safety
    /// The task updates the weight as it finds the gradient, and no other of its grains touches this part.
    ///
    /// # Panics
    /// If the weight is shorter, or it is another task that updates it.
    pub unsafe fn step(&self, part: Range<usize>, memory: &Memory, scalars: &Scalars, gradient: &[f32]) {
        let piece = self.stepped.as_ref().expect("devices refuse this sub-task of other layers");
        let range = piece.range.start + part.start..piece.range.start + part.end;
        assert!(range.end <= piece.range.end, "part {part:?} of {} weights", piece.range.len());
        // SAFETY: the plan gives weight and history to the task, and the contract this part of it to the grain.
        unsafe { self.apply(piece, range, memory, scalars, gradient) }
    }

    /// Asks for what [`Update::step`] will soon read and write of a part of the weight.
    pub fn ask_for(&self, part: Range<usize>, memory: &Memory) {
        const LINE: usize = 64 / size_of::<f32>();
        let Some(piece) = &self.stepped else { return };
        let range = piece.range.start + part.start..piece.range.start + part.end;
        let centre = self.elastic.then_some(Packed::Centre);
        for packed in [Packed::Weights, Packed::Histories].into_iter().chain(centre) {
            let first = memory.pointer(Memory::packed(packed, range.clone()));
            (0..range.len()).step_by(LINE).for_each(|line| prefetch(first.wrapping_add(line)));
        }
    }

    /// Changes weights and histories of `range` of the packed buffers.
    ///
    /// # Safety
    /// The task has both for itself and reads the centre; no other grain touches the range.
    unsafe fn apply(
        &self,
        piece: &Piece,
        range: Range<usize>,
        memory: &Memory,
        scalars: &Scalars,
        gradient: &[f32],
    ) {
        assert_eq!(gradient.len(), range.len(), "a gradient for each weight");
        let span = |packed| Memory::packed(packed, range.clone());
        // SAFETY: by contract.
        let (weight, history, centre) = unsafe {
            (
                memory.write(span(Packed::Weights)),
                memory.write(span(Packed::Histories)),
                self.elastic.then(|| memory.read(span(Packed::Centre))),
            )
        };
        let step = Step {
            rule: self.rule,
            rate: scalars.rate * piece.lr_mult,
            decay: piece.decay,
            elastic: centre.map(|centre| Elastic { centre, strength: scalars.elastic }),
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
