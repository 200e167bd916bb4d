//! The solver's rule on a layer's parameters, cut into pieces of the packed buffers.

use std::ops::Range;

use quadrille_core::device::{Packed, Scalars};
use quadrille_core::net::{LayerId, Net, ParamRule, ParamView};
use quadrille_core::solver::{Decay, Elastic, Rule, RuleKind, Step, add_to_running_sum, update_by};

use super::{Grain, Norms};
use crate::isa::Isa;
use crate::kernel::few::{Centre, Momentum};
use crate::kernel::stored::Origin;
use crate::kernel::vectorised::{Vectorised, on, prefetch};
use crate::machine::{LINE, Machine};
use crate::memory::{Memory, Span};
use crate::worker::EngineOptions;

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
    rule: Rule,
    elastic: bool,
    isa: Isa,
    /// Mini-batches whose gradients were added up.
    parts: usize,
    /// The largest norm that gradients may have, and the sums of squares of all layers.
    clip: Option<(f32, Span)>,
    /// Elements of the packed weights: how far behind a first history the second lies.
    packed: usize,
    pieces: Vec<Piece>,
    /// The whole weight, if it is no task of its own to update it.
    stepped: Option<Piece>,
}

impl Update {
    /// The update of a layer's trained parameters.
    pub fn new(net: &Net, layer: LayerId, options: &EngineOptions, norms: &Norms) -> Self {
        let EngineOptions { rule, elastic, isa, .. } = *options;
        let step = Machine::of(isa).grain_elements;
        let piece = |view: &ParamView, range: Range<usize>| Piece {
            range,
            rule: view.rule.after(net.parts),
            lr_mult: view.lr_mult,
            decay: rule.weight_decay * view.decay_mult,
        };
        let this = net.layer(layer);
        let stepped = this.params.first().filter(|_| this.steps_weight).map(|param| net.params.view(*param));
        // Sums that are kept have no terms: a factor on them would be an update that nobody asked for.
        let found = |index: usize| net.finds_gradient(layer, index) && this.completes_grad(index);
        let later = |index: usize| found(index) && !(index == 0 && this.steps_weight);
        let completed = this.params.iter().enumerate().filter(|(index, _)| later(*index));
        let views = completed.map(|(_, param)| net.params.view(*param));
        let mut pieces = Vec::new();
        for view in views.filter(|v| v.rule != ParamRule::Gradient || v.lr_mult != 0.0) {
            let range = view.range();
            for start in range.clone().step_by(step) {
                pieces.push(piece(view, start..(start + step).min(range.end)));
            }
        }
        let stepped = stepped.map(|view| piece(view, view.range()));
        let clip = rule.clip.zip(norms.all());
        Self { rule, elastic, isa, parts: net.parts, clip, packed: net.params.len(), pieces, stepped }
    }

    /// Grains, at least 1.
    pub fn grains(&self) -> usize {
        self.pieces.len().max(1)
    }

    /// Updates the piece of a grain by the gradient that lies in the memory of `terms`, or the sum of the two.
    pub fn run<'a>(&self, grain: &Grain<'_>, terms: impl Iterator<Item = &'a Memory>) {
        let Some(piece) = self.pieces.get(grain.index) else { return };
        // SAFETY: gradients are only read in this task, those of other devices, too, and the plan has all of them complete
        // before it.
        let term = |memory: &'a Memory| unsafe {
            memory.read(Memory::packed(Packed::Gradients, piece.range.clone()))
        };
        let mut terms = terms.map(term);
        let Some(first) = terms.next() else { return };
        let gradient = Terms { first, second: terms.next() };
        if let ParamRule::RunningSum { fraction } = piece.rule {
            // SAFETY: the update alone writes weights; pieces of different grains do not overlap.
            let sum = unsafe { grain.memory.write(Memory::packed(Packed::Weights, piece.range.clone())) };
            return on(self.isa, Fading { fraction, sum, gradient });
        }
        // SAFETY: as above, and for a trained parameter the history, too.
        unsafe { self.apply(piece, piece.range.clone(), grain.memory, &grain.scalars, gradient) }
    }

    /// What gradients are multiplied by: the mean over mini-batches, after their sum was clipped.
    fn scale(&self, memory: &Memory) -> f32 {
        let mean = 1.0 / self.parts as f32;
        let Some((most, squares)) = self.clip else { return mean };
        // SAFETY: the plan has every layer's sum before the first update.
        let squares = unsafe { memory.read(squares) };
        let norm = squares.iter().map(|square| f64::from(*square)).sum::<f64>().sqrt() as f32;
        // Written as Caffe does, so that a norm that is no number clips nothing and shows itself in the weights.
        if norm > most { most / norm * mean } else { mean }
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
        unsafe { self.apply(piece, range, memory, scalars, Terms { first: gradient, second: None }) }
    }

    /// What [`Update::step`] does, for a kernel that has momentum SGD with an L2 penalty built in; `None` with another rule. It
    /// begins with the first element of the weight, whose rows are `row` long, and has no columns yet.
    pub fn momentum(&self, memory: &Memory, scalars: &Scalars, row: usize) -> Option<Momentum> {
        let piece = self.stepped.as_ref()?;
        let (RuleKind::Sgd { momentum }, Decay::L2) = (self.rule.kind, self.rule.decay) else { return None };
        // SAFETY: who gives the kernel columns promises that they are inside, and the grain's own.
        let first = |span: Span| unsafe { Origin::new(memory.pointer(span)) };
        let of = |packed| first(Memory::packed(packed, piece.range.clone()));
        let centre = || Centre { weights: of(Packed::Centre), strength: scalars.elastic };
        Some(Momentum {
            weight: of(Packed::Weights),
            history: first(self.histories(&piece.range).next()?),
            centre: self.elastic.then(centre),
            row,
            columns: 0,
            scale: self.scale(memory),
            decay: piece.decay,
            momentum,
            rate: scalars.rate * piece.lr_mult,
        })
    }

    /// Copies a part of the weight to another device that has the same.
    ///
    /// # Safety
    /// The task updates this part of the weight on both devices, and no other of its grains touches it.
    ///
    /// # Panics
    /// As [`Update::step`].
    pub unsafe fn give(&self, part: Range<usize>, from: &Memory, to: &Memory) {
        let piece = self.stepped.as_ref().expect("devices refuse this sub-task of other layers");
        let range = piece.range.start + part.start..piece.range.start + part.end;
        assert!(range.end <= piece.range.end, "part {part:?} of {} weights", piece.range.len());
        let span = Memory::packed(Packed::Weights, range);
        // SAFETY: by contract; two devices have different memory.
        unsafe { to.write(span).copy_from_slice(from.read(span)) }
    }

    /// Where the weight lies that is updated as its gradient is found.
    pub fn stepped(&self) -> Option<Span> {
        self.stepped.as_ref().map(|piece| Memory::packed(Packed::Weights, piece.range.clone()))
    }

    /// What [`Update::step`] reads and writes of a weight and what lies beside it, to ask for parts of it.
    pub fn soon(&self, weight: Span, memory: &Memory) -> Soon {
        let mut soon = Soon::of(weight, memory);
        let Some(piece) = &self.stepped else { return soon };
        let centre = self.elastic.then(|| Memory::packed(Packed::Centre, piece.range.clone()));
        centre.into_iter().chain(self.histories(&piece.range)).for_each(|span| soon.also(span, memory));
        soon
    }

    /// Where the histories of `range` of the packed weights lie: one, or two.
    fn histories(&self, range: &Range<usize>) -> impl Iterator<Item = Span> + use<> {
        let (start, len, packed) = (range.start, range.len(), self.packed);
        (0..self.rule.kind.histories()).map(move |history| {
            let start = history * packed + start;
            Memory::packed(Packed::Histories, start..start + len)
        })
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
        gradient: Terms<'_>,
    ) {
        assert_eq!(gradient.first.len(), range.len(), "a gradient for each weight");
        let span = |packed| Memory::packed(packed, range.clone());
        // SAFETY: by contract; the histories are parts of one buffer that do not overlap.
        let (weight, mut histories, centre) = unsafe {
            (
                memory.write(span(Packed::Weights)),
                self.histories(&range).map(|history| memory.write(history)),
                self.elastic.then(|| memory.read(span(Packed::Centre))),
            )
        };
        let step = Step {
            rule: self.rule,
            iteration: scalars.iteration,
            rate: scalars.rate * piece.lr_mult,
            decay: piece.decay,
            scale: self.scale(memory),
            elastic: centre.map(|centre| Elastic { centre, strength: scalars.elastic }),
        };
        let history = histories.next().unwrap_or_default();
        let second = histories.next().unwrap_or_default();
        on(self.isa, Application { step, weight, gradient, history, second });
    }
}

/// The most arrays that an update of a weight touches: the weight, its centre and two histories.
const MOST_ARRAYS: usize = 4;

/// Arrays of as many elements as a weight has, of which parts will soon be read or written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soon {
    first: [*const f32; MOST_ARRAYS],
    arrays: usize,
}

impl Soon {
    /// A weight alone.
    pub fn of(weight: Span, memory: &Memory) -> Self {
        let mut soon = Self { first: [std::ptr::null(); _], arrays: 0 };
        soon.also(weight, memory);
        soon
    }

    fn also(&mut self, span: Span, memory: &Memory) {
        if let Some(first) = self.first.get_mut(self.arrays) {
            *first = memory.pointer(span);
            self.arrays += 1;
        }
    }

    /// Where element number `element` lies in each array, of which there are [`Soon::arrays`]; the others are null.
    pub fn places(&self, element: usize) -> [*const f32; MOST_ARRAYS] {
        self.first.map(|first| if first.is_null() { first } else { first.wrapping_add(element) })
    }

    /// How many arrays these are.
    pub fn arrays(&self) -> usize {
        self.arrays
    }

    /// Asks for `lines` lines of each of `rows` rows, of which the first begins at element number `element` and each `row` elements behind
    /// the last; what is asked for beyond an array is no error. Inlined, since it is asked for a few lines at a time.
    #[inline(always)]
    pub fn ask_for(&self, element: usize, [rows, row]: [usize; 2], lines: usize) {
        for first in &self.first[..self.arrays] {
            let mut first = first.wrapping_add(element);
            for _ in 0..rows {
                (0..lines).for_each(|line| prefetch(first.wrapping_add(line * LINE)));
                first = first.wrapping_add(row);
            }
        }
    }
}

/// A gradient, or the two terms whose sum it is.
#[derive(Clone, Copy)]
struct Terms<'a> {
    first: &'a [f32],
    second: Option<&'a [f32]>,
}

/// What fades of a running sum, and what is added.
struct Fading<'a> {
    fraction: f32,
    sum: &'a mut [f32],
    gradient: Terms<'a>,
}

impl Vectorised for Fading<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { fraction, sum, gradient: Terms { first, second } } = self;
        match second {
            None => add_to_running_sum(fraction, sum, first.iter().copied()),
            Some(second) => {
                add_to_running_sum(fraction, sum, first.iter().zip(second).map(|(a, b)| a + b));
            }
        }
    }
}

/// The rule on one piece.
struct Application<'a> {
    step: Step<'a>,
    weight: &'a mut [f32],
    gradient: Terms<'a>,
    history: &'a mut [f32],
    second: &'a mut [f32],
}

impl Vectorised for Application<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { step, weight, gradient: Terms { first, second: other }, history, second } = self;
        match other {
            None => update_by(&step, weight, first.iter().copied(), history, second),
            Some(other) => {
                let sums = first.iter().zip(other).map(|(a, b)| a + b);
                update_by(&step, weight, sums, history, second);
            }
        }
    }
}
