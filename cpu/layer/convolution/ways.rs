//! The ways to compute each sub-task of a convolution on tiles.

use super::direction::{Arrays, Direction};
use super::gradient::WeightGradient;
use super::planes::PlaneGradient;
use super::unfolded::Unfolded;
use super::winograd::{EntryWinograd, Winograd, WinogradGradient};
use crate::layer::{Grain, Stages};
use crate::memory::Span;

/// How a direction is computed.
pub(super) enum Way {
    Direct(Direction),
    Unfolded(Unfolded),
    Winograd(Winograd),
    Entry(EntryWinograd),
}

impl Way {
    pub fn packed_len(&self) -> usize {
        match self {
            Self::Direct(d) => d.packing.len(),
            Self::Unfolded(u) => u.packed_len(),
            Self::Winograd(w) => w.packed_len(),
            Self::Entry(e) => e.packed_len(),
        }
    }

    /// Whether it can add to what the target holds.
    pub fn can_add(&self) -> bool {
        match self {
            Self::Direct(d) => d.can_add(),
            Self::Unfolded(_) | Self::Entry(_) => false,
            Self::Winograd(_) => true,
        }
    }

    /// Whether the backward of a ReLU can go over what it stores.
    pub fn can_rectify(&self) -> bool {
        match self {
            Self::Direct(d) => d.stores_once(),
            Self::Unfolded(_) | Self::Entry(_) => false,
            Self::Winograd(_) => true,
        }
    }

    /// Packing of the weights, in which Winograd's sources may be transformed, too, then the computation.
    pub fn stages(&self) -> Stages {
        match self {
            Self::Direct(d) => Stages::one(d.packing_grains()).then(d.grains()),
            Self::Unfolded(u) => Stages::one(u.packing_grains()).then(u.grains()),
            Self::Winograd(w) => Stages::one(w.packing_grains()).then(w.grains()),
            Self::Entry(e) => Stages::one(e.packing_grains()).then(e.grains()),
        }
    }

    pub fn scratch(&self) -> usize {
        match self {
            Self::Direct(d) => d.scratch(),
            Self::Unfolded(u) => u.scratch(),
            Self::Winograd(w) => w.scratch(),
            Self::Entry(e) => e.scratch(),
        }
    }

    pub fn pack(&self, grain: &mut Grain<'_>, weights: Span, source: Span, packed: Span) {
        match self {
            Self::Direct(d) => d.pack(grain, weights, packed),
            Self::Unfolded(u) => u.pack(grain, weights, packed),
            Self::Winograd(w) => w.prepare(grain, weights, source, packed),
            Self::Entry(e) => e.pack(grain, weights, packed),
        }
    }

    pub fn run(&self, grain: &mut Grain<'_>, arrays: &Arrays) {
        match self {
            Self::Direct(d) => d.run(grain, arrays),
            Self::Unfolded(u) => u.run(grain, arrays),
            Self::Winograd(w) => w.run(grain, arrays),
            Self::Entry(e) => e.run(grain, arrays),
        }
    }
}

/// How ∇W is computed.
pub(super) enum WeightWay {
    Direct(Box<WeightGradient>),
    Planes(Box<PlaneGradient>),
    Winograd(Box<WinogradGradient>),
}

impl WeightWay {
    pub fn workspace(&self) -> usize {
        match self {
            Self::Direct(d) => d.workspace(),
            Self::Planes(p) => p.workspace(),
            Self::Winograd(w) => w.workspace(),
        }
    }

    /// Perhaps copies or transforms, then the sums, then their sum.
    pub fn stages(&self) -> Stages {
        match self {
            Self::Direct(d) => {
                let sums = Stages::one(d.sums.grains()).then(d.sums.unpacking_grains());
                d.copying_grains().map_or(sums, |grains| Stages::one(grains).followed_by(sums))
            }
            Self::Planes(p) => {
                let sums = Stages::one(p.sums.grains()).then(p.sums.unpacking_grains());
                p.copying_grains().map_or(sums, |grains| Stages::one(grains).followed_by(sums))
            }
            Self::Winograd(w) => {
                let sums = Stages::one(w.grains()).then(w.unpacking_grains());
                w.transforming_grains().map_or(sums, |grains| Stages::one(grains).followed_by(sums))
            }
        }
    }

    pub fn scratch(&self) -> usize {
        match self {
            Self::Direct(d) => d.scratch(),
            Self::Planes(p) => p.scratch(),
            Self::Winograd(w) => w.scratch(),
        }
    }

    /// A grain of one of its stages.
    pub fn run(&self, grain: &mut Grain<'_>, [source, gradient, workspace, weight_grad]: [Span; 4]) {
        match (self, self.stages().len() - 1 - grain.stage) {
            (Self::Direct(d), 0) => d.sums.unpack(grain, workspace, weight_grad),
            (Self::Direct(d), 1) => d.sum(grain, source, gradient, workspace),
            (Self::Direct(d), _) => d.copy(grain, source, workspace),
            (Self::Planes(p), 0) => p.sums.unpack(grain, p.partials(workspace), weight_grad),
            (Self::Planes(p), 1) => p.sum(grain, source, gradient, workspace),
            (Self::Planes(p), _) => p.copy(grain, source, workspace),
            (Self::Winograd(w), 0) => w.unpack(grain, workspace, weight_grad),
            (Self::Winograd(w), 1) => w.sum(grain, source, gradient, workspace),
            (Self::Winograd(w), _) => w.transform(grain, source, gradient, workspace),
        }
    }
}
