//! The words of a layer's work: sub-tasks, the arrays that they work on, and what they read and write of them.

use std::fmt;

/// What a task does. The first five belong to a layer's arithmetic, the rest move or change parameters and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubTask {
    /// Computes the tops from the bottoms and the parameters.
    Forward,
    /// ∇A: computes the gradients of the bottoms. Only this has to be synchronised with the layer below. Where their sums
    /// are those of the parameters' gradients, it writes these, too.
    GradActivation,
    /// ∇W: computes the gradient of the weight (parameter 0), or what is added to a layer's running sums.
    GradWeight,
    /// ∇W and update of the weight in one pass: in place of [`SubTask::GradWeight`] and the weight's part of
    /// [`SubTask::Update`] where a net says so ([`crate::net::Net::stepping`]). The gradient is never stored.
    StepWeight,
    /// ∇B: computes the gradient of the bias (the last parameter).
    GradBias,
    /// Adds the layer's gradients of parameters that it shares to those of the layers above it.
    AddShared,
    /// Adds the layer's gradients to what was gathered of the iteration's earlier mini-batches
    /// ([`crate::net::Net::gathering`]).
    Gather,
    /// Adds what was gathered to the gradients of the iteration's last mini-batch, and empties it.
    Total,
    /// Sums up the squares of the layer's gradients, which all updates ask for ([`crate::net::Net::clipping`]).
    Norm,
    /// Applies the solver's rule to the layer's parameters.
    Update,
    /// Copies a mini-batch into the tops of a data layer.
    Load,
    /// Adds another device's gradients of a chunk to this device's.
    Accumulate,
    /// Copies the summed gradients of a chunk to another device.
    Broadcast,
}

impl SubTask {
    /// Every sub-task, in the order of an iteration.
    pub const ALL: [Self; 13] = [
        Self::Load,
        Self::Forward,
        Self::GradActivation,
        Self::GradWeight,
        Self::StepWeight,
        Self::GradBias,
        Self::AddShared,
        Self::Gather,
        Self::Total,
        Self::Accumulate,
        Self::Broadcast,
        Self::Norm,
        Self::Update,
    ];

    /// The sub-tasks in which a layer computes gradients.
    pub const BACKWARD: [Self; 4] =
        [Self::GradActivation, Self::GradWeight, Self::StepWeight, Self::GradBias];
}

impl fmt::Display for SubTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::GradActivation => "grad-activation",
            Self::GradWeight => "grad-weight",
            Self::StepWeight => "step-weight",
            Self::GradBias => "grad-bias",
            Self::AddShared => "add-shared",
            Self::Gather => "gather",
            Self::Total => "total",
            Self::Norm => "norm",
            Self::Update => "update",
            Self::Load => "load",
            Self::Accumulate => "accumulate",
            Self::Broadcast => "broadcast",
        })
    }
}

/// One of the arrays that a layer's sub-tasks work on, in the layer's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// Values of bottom `i`.
    Bottom(usize),
    /// Gradient of bottom `i`.
    BottomGrad(usize),
    /// Values of top `i`.
    Top(usize),
    /// Gradient of top `i`.
    TopGrad(usize),
    /// Parameter `i`, in Caffe's order: the weight, if there is one, and then the bias.
    Param(usize),
    /// Gradient of parameter `i`.
    ParamGrad(usize),
    /// State of the layer's own that backward needs from forward, such as the positions of maxima.
    Aux(usize),
}

/// What a sub-task reads and writes. A write without a read replaces the whole array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Arrays that are read.
    pub reads: Vec<Operand>,
    /// Arrays that are written.
    pub writes: Vec<Operand>,
}

impl Accesses {
    pub(crate) fn new(reads: impl Into<Vec<Operand>>, writes: impl Into<Vec<Operand>>) -> Self {
        Self { reads: reads.into(), writes: writes.into() }
    }
}
