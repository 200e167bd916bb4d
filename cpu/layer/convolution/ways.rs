//! The ways to compute each sub-task of a convolution on tiles.

use super::direction::{Arrays, Direction};
use super::gradient::WeightGradient;
use super::planes::PlaneGradient;
use super::unfolded::Unfolded;
use super::winograd::{Winograd, WinogradGradient};
use crate::layer::{Grain, Stages};
use crate::memory::Span;

/// How a direction is computed.
pub(super) enum Way {
    Direct(Direction),
    Unfolded(Unfolded),
    Winograd(Winograd),
}

impl Way {
    pub fn packed_len(&self) -> usize {
        match self {
            Self::Direct(d) => d.packing.len(),
            Self::Unfolded(u) => u.packed_len(),
            Self::Winograd(w) => w.packed_len(),
        }
    }

    /// Whether it can add to what the target holds.
    pub fn can_add(&self) -> bool {
        match self {
            Self::Direct(d) => d.can_add(),
            Self::Unfolded(_) => false,
            Self::Winograd(_) => true,
        }
    }

    /// Packing of the weights, then the computation.
    pub fn stages(&self) -> Stages {
        match self {
            Self::Direct(d) => Stages::one(d.packing_grains()).then(d.grains()),
            Self::Unfolded(u) => Stages::one(u.packing_grains()).then(u.grains()),
            Self::Winograd(w) => Stages::one(w.packing_grains()).then(w.grains()),
        }
    }

    pub fn scratch(&self) -> usize {
        match self {
            Self::Direct(d) => d.scratch(),
            Self::Unfolded(u) => u.scratch(),
            Self::Winograd(w) => w.scratch(),
        }
    }

    pub fn pack(&self, grain: &mut Grain<'_>, weights: Span, packed: Span) {
        match self {
            Self::Direct(d) => d.pack(grain, weights, packed),
            Self::Unfolded(u) => u.pack(grain, weights, packed),
            Self::Winograd(w) => w.pack(grain, weights, packed),
        }
    }

    pub fn run(&self, grain: &mut Grain<'_>, arrays: &Arrays) {
        match self {
            Self::Direct(d) => d.run(grain, arrays),
            Self::Unfolded(u) => u.run(grain, arrays),
            Self::Winograd(w) => w.run(grain, arrays),
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
    pub fn partials(&self) -> usize {
        match self {
            Self::Direct(d) => d.sums.partials(),
            Self::Planes(p) => p.sums.partials(),
            Self::Winograd(w) => w.partials(),
        }
    }

    /// The sums, then their sum.
    pub fn stages(&self) -> Stages {
        match self {
            Self::Direct(d) => Stages::one(d.sums.grains()).then(d.sums.unpacking_grains()),
            Self::Planes(p) => Stages::one(p.sums.grains()).then(p.sums.unpacking_grains()),
            Self::Winograd(w) => Stages::one(w.grains()).then(w.unpacking_grains()),
        }
    }

    pub fn scratch(&self) -> usize {
        match self {
            Self::Direct(d) => d.scratch(),
            Self::Planes(p) => p.scratch(),
            Self::Winograd(w) => w.scratch(),
        }
    }

    pub fn sum(&self, grain: &mut Grain<'_>, source: Span, gradient: Span, partials: Span) {
        match self {
            Self::Direct(d) => d.sum(grain, source, gradient, partials),
            Self::Planes(p) => p.sum(grain, source, gradient, partials),
            Self::Winograd(w) => w.sum(grain, source, gradient, partials),
        }
    }

    pub fn unpack(&self, grain: &mut Grain<'_>, partials: Span, weight_grad: Span) {
        match self {
            Self::Direct(d) => d.sums.unpack(grain, partials, weight_grad),
            Self::Planes(p) => p.sums.unpack(grain, partials, weight_grad),
            Self::Winograd(w) => w.unpack(grain, partials, weight_grad),
        }
    }
}
