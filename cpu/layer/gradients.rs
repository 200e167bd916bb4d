//! A layer's gradients as a whole: sums over the mini-batches of an iteration, and their part in the norm of all.

use std::ops::Range;

use quadrille_core::device::Packed;
use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerId, Net, ParamId, ParamRule};
use quadrille_core::plan::{normed_params, trained_params};
use quadrille_core::task::LaneId;

use super::{Grain, Stages};
use crate::isa::Isa;
use crate::kernel::vectorised::{Vectorised, on};
use crate::machine::Machine;
use crate::memory::{Memory, MemoryMap, Span};

/// A piece of one gradient.
#[derive(Clone, Debug)]
struct Piece {
    range: Range<usize>,
    /// What stays of a running sum when a further mini-batch adds to it; 1 for a gradient.
    stays: f32,
}

/// Where the sums of squares lie.
#[derive(Clone, Debug)]
struct Squares {
    /// Pieces of the gradients, one for each grain.
    pieces: Vec<Range<usize>>,
    /// Of each piece, for as long as the task runs.
    parts: Span,
    /// Of the layer.
    whole: Span,
}

/// What is done with the complete gradients of a layer beside the update.
#[derive(Clone, Debug)]
pub(crate) struct Gradients {
    isa: Isa,
    /// None in a net whose iterations have one mini-batch.
    gathered: Vec<Piece>,
    squares: Option<Squares>,
}

impl Gradients {
    /// Those of a layer; `norms` has a place for each layer that is a part of the norm, if one is asked for,
    /// and `norm_lane` is where that is found.
    pub fn new(
        net: &Net,
        layer: LayerId,
        norms: &Norms,
        (map, norm_lane): (&mut MemoryMap, LaneId),
        isa: Isa,
    ) -> Self {
        let step = Machine::of(isa).grain_elements;
        let cut = |param: &ParamId| {
            let range = net.params.view(*param).range();
            range.clone().step_by(step).map(move |start| start..(start + step).min(range.end))
        };
        let stays = |param: &ParamId| match net.params.view(*param).rule {
            ParamRule::Gradient => 1.0,
            ParamRule::RunningSum { fraction } => fraction,
        };
        let gathered = trained_params(net, layer).into_iter().filter(|_| net.parts > 1);
        let gathered = gathered.flat_map(|p| cut(&p).map(move |range| Piece { range, stays: stays(&p) }));
        let squares = norms.of(layer).map(|whole| {
            let pieces: Vec<_> = normed_params(net, layer).iter().flat_map(cut).collect();
            let parts = map.workspace(norm_lane, 0, pieces.len());
            Squares { pieces, parts, whole }
        });
        Self { isa, gathered: gathered.collect(), squares }
    }

    /// The stages of one of the three sub-tasks; `None` if the layer does not have it.
    pub fn stages(&self, sub: SubTask) -> Option<Stages> {
        match sub {
            SubTask::Norm => self.squares.as_ref().map(|s| Stages::one(s.pieces.len()).then(1)),
            _ => (!self.gathered.is_empty()).then(|| Stages::one(self.gathered.len())),
        }
    }

    /// Adds a piece to what was gathered.
    pub fn gather(&self, grain: &mut Grain<'_>) {
        let Some(Piece { range, stays }) = self.gathered.get(grain.index) else { return };
        let span = |packed| Memory::packed(packed, range.clone());
        // SAFETY: the task writes the sums and reads the gradients; pieces of different grains do not overlap.
        let (sum, gradient) =
            unsafe { (grain.memory.write(span(Packed::Sums)), grain.memory.read(span(Packed::Gradients))) };
        on(self.isa, Addition { sum, stays: *stays, term: gradient });
    }

    /// Adds what was gathered to a piece, and empties it.
    pub fn total(&self, grain: &mut Grain<'_>) {
        let Some(Piece { range, stays }) = self.gathered.get(grain.index) else { return };
        let span = |packed| Memory::packed(packed, range.clone());
        // SAFETY: the task writes both; pieces of different grains do not overlap.
        let (sum, gradient) =
            unsafe { (grain.memory.write(span(Packed::Sums)), grain.memory.write(span(Packed::Gradients))) };
        on(self.isa, Addition { sum, stays: *stays, term: gradient });
        gradient.copy_from_slice(sum);
        sum.fill(0.0);
    }

    /// Sums up the squares of a piece, and in the second stage the pieces.
    pub fn norm(&self, grain: &mut Grain<'_>) {
        let Some(Squares { pieces, parts, whole }) = &self.squares else { return };
        let memory = grain.memory;
        let sum = |values: &[f32], squared: bool| {
            let mut sum = 0.0;
            on(self.isa, Sum { values, squared, sum: &mut sum });
            sum as f32
        };
        if grain.stage == 1 {
            // SAFETY: the stage's only grain; the parts were written in the stage before.
            unsafe { memory.write(*whole)[0] = sum(memory.read(*parts), false) };
        } else if let Some(piece) = pieces.get(grain.index) {
            // SAFETY: gradients are only read; each grain has a part of its own.
            unsafe {
                let gradient = memory.read(Memory::packed(Packed::Gradients, piece.clone()));
                memory.write(parts.part(grain.index..grain.index + 1))[0] = sum(gradient, true);
            }
        }
    }
}

/// Where the sums of squares of all layers lie, side by side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Norms {
    layers: Vec<LayerId>,
    all: Option<Span>,
}

impl Norms {
    /// A place for each layer that is a part of the norm, if the net asks for one.
    pub fn new(net: &Net, map: &mut MemoryMap) -> Self {
        if !net.clips {
            return Self::default();
        }
        let layers = (0..net.layers.len()).map(LayerId);
        let layers: Vec<LayerId> = layers.filter(|layer| !normed_params(net, *layer).is_empty()).collect();
        let all = map.words(layers.len());
        Self { layers, all: Some(all) }
    }

    /// All of them; `None` if no norm is asked for.
    pub fn all(&self) -> Option<Span> {
        self.all
    }

    fn of(&self, layer: LayerId) -> Option<Span> {
        let at = self.layers.iter().position(|l| *l == layer)?;
        self.all.map(|all| all.part(at..at + 1))
    }
}

/// `sum ← stays · sum + term`.
struct Addition<'a> {
    sum: &'a mut [f32],
    stays: f32,
    term: &'a [f32],
}

impl Vectorised for Addition<'_> {
    #[inline(always)]
    fn run(self) {
        self.sum.iter_mut().zip(self.term).for_each(|(sum, term)| *sum = self.stays * *sum + term);
    }
}

/// The sum of the values or of their squares, in double precision and in an order that no tier changes.
struct Sum<'a> {
    values: &'a [f32],
    squared: bool,
    sum: &'a mut f64,
}

impl Vectorised for Sum<'_> {
    #[inline(always)]
    fn run(self) {
        const LANES: usize = 16;
        let term = |value: f32| {
            let value = f64::from(value);
            if self.squared { value * value } else { value }
        };
        let mut lanes = [0.0; LANES];
        let (whole, rest) = self.values.as_chunks::<LANES>();
        for chunk in whole {
            lanes.iter_mut().zip(chunk).for_each(|(lane, value)| *lane += term(*value));
        }
        lanes.iter_mut().zip(rest).for_each(|(lane, value)| *lane += term(*value));
        *self.sum = lanes.iter().sum();
    }
}
