//! How the tasks of a plan are put into lanes.

use std::fmt;
use std::str::FromStr;

use crate::layer::SubTask;

/// How tasks are put into lanes. It decides when a task runs and never what it computes: the bits of all schedules are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One lane: layer by layer, as Caffe does it.
    Layerwise,
    /// The lanes of [`Schedule::Critical`], all of one priority: what TurboDL calls asynchronous parallelism.
    Concurrent,
    /// Lanes with priorities: what the next layer waits for comes first (TurboDL).
    #[default]
    Critical,
}

impl Schedule {
    /// All schedules.
    pub const ALL: [Self; 3] = [Self::Layerwise, Self::Concurrent, Self::Critical];
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Layerwise => "layerwise",
            Self::Concurrent => "concurrent",
            Self::Critical => "critical",
        })
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|schedule| schedule.to_string() == name);
        known.ok_or_else(|| format!("no schedule {name:?}; expected layerwise, concurrent or critical"))
    }
}

/// What a task is good for, by how soon its result is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum LaneRole {
    /// Load, forward and ∇A: what the next layer waits for.
    Critical,
    /// Gradient sums between the devices of a worker.
    Transfer,
    /// ∇W, alone or with the update, and ∇B, and sums of them over layers that share parameters and over mini-batches, which
    /// nobody waits for before the update (TurboDL).
    Gradient,
    /// Updates, and the norm that they ask for.
    Update,
}

impl LaneRole {
    /// All roles, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Critical, Self::Transfer, Self::Gradient, Self::Update];

    /// The role of a sub-task.
    pub fn of(sub: SubTask) -> Self {
        match sub {
            SubTask::Load | SubTask::Forward | SubTask::GradActivation => Self::Critical,
            SubTask::Accumulate | SubTask::Broadcast => Self::Transfer,
            SubTask::GradWeight
            | SubTask::StepWeight
            | SubTask::GradBias
            | SubTask::AddShared
            | SubTask::Gather
            | SubTask::Total => Self::Gradient,
            SubTask::Norm | SubTask::Update => Self::Update,
        }
    }
}
