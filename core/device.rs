//! What a backend is: a device takes tasks into its lanes and says with events when they are done.

use std::fmt;

use crate::net::{AuxId, StorageId};
use crate::task::{Copy, LaneId, Task};

/// What a device says about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// A name for people, such as `quadrant 0 (cores 0-16)`.
    pub name: String,
    /// Threads that compute.
    pub threads: usize,
    /// Instruction set or architecture, as printed in the first lines of a run.
    pub isa: String,
}

/// An in-order queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its number.
    pub id: LaneId,
    /// Its priority; 0 is served first. Fixed at start, since that is what CUDA can do.
    pub priority: u8,
}

/// What changes from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scalars {
    /// The iteration, from 0.
    pub iteration: u64,
    /// η, the learning rate of this iteration.
    pub rate: f32,
    /// ηρ, the pull of the centre; 0 outside the EASGD family.
    pub elastic: f32,
    /// What layers draw at random in this step follows from it ([`crate::rng::step_seed`]).
    pub seed: u64,
}

/// A whole packed buffer of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packed {
    /// Weights.
    Weights,
    /// Gradients.
    Gradients,
    /// The solver's histories: as many times the length of the weights as its rule keeps for each of them
    /// ([`RuleKind::histories`](crate::solver::RuleKind::histories)).
    Histories,
    /// Centre weights (EASGD).
    Centre,
    /// Gradients of the iteration's earlier mini-batches, where it has several.
    Sums,
}

/// A region that the host reads or writes between steps, or during a step if no task of the plan touches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    /// A packed buffer.
    Packed(Packed),
    /// A packed buffer of one value a weight, from this element on. While a step runs, too, once all of its tasks that touch what
    /// is read or written are settled.
    PackedFrom(Packed, usize),
    /// Values of blobs.
    Storage(StorageId),
    /// The next mini-batch of a source's top.
    Stage(StorageId),
    /// State that a layer keeps from step to step ([`Net::keeps_state`](crate::net::Net::keeps_state)).
    Kept(AuxId),
}

/// When a task ran: nanoseconds since an origin that all devices of a worker share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Start of its first grain.
    pub start: u64,
    /// End of its last grain.
    pub end: u64,
}

/// A device that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// A task failed; the device takes no more. A bug of the program.
    Failed {
        /// The device.
        device: String,
        /// What is known of the failure.
        reason: String,
    },
    /// More tasks than the device's queue holds were submitted without a synchronisation. A bug of the program.
    QueueFull {
        /// The device.
        device: String,
        /// Tasks that fit.
        capacity: usize,
    },
    /// A task, lane or region that the device was not built for. A bug of the program.
    Unknown {
        /// The device.
        device: String,
        /// What was asked for.
        what: String,
    },
    /// The environment did not give what the device needs.
    Environment {
        /// The device.
        device: String,
        /// What was missing.
        reason: String,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { device, reason } => write!(f, "{device} failed: {reason}"),
            Self::QueueFull { device, capacity } => {
                write!(f, "{device}: more than {capacity} tasks in one lane without a synchronisation")
            }
            Self::Unknown { device, what } => write!(f, "{device} was not built for {what}"),
            Self::Environment { device, reason } => write!(f, "{device}: {reason}"),
        }
    }
}

impl std::error::Error for DeviceError {}

/// Says whether a submitted task is done.
pub trait Event: Clone + Send {
    /// Whether the task is done.
    fn is_done(&self) -> bool;
    /// When it ran; `None` while it is not done.
    fn span(&self) -> Option<Span>;
}

/// One quadrant, one GPU, or a simulation of either. Memory is bound when a device is made, from the nets that it
/// will run, so that nothing can be allocated afterwards.
pub trait Device: Send + Sync {
    /// The device's events.
    type Event: Event;

    /// What the device says about itself.
    fn info(&self) -> &DeviceInfo;

    /// Its lanes.
    fn lanes(&self) -> &[Lane];

    /// Whether events tell of single tasks while others of the step still run, also those of the step before. A device that
    /// runs steps as a whole does not.
    fn tells_tasks(&self) -> bool {
        true
    }

    /// Sets what the tasks of the coming step use. Tasks of the step before may still run, with what was set for them; those of
    /// any step before that are done.
    ///
    /// # Errors
    /// If the device has failed.
    fn begin(&self, scalars: &Scalars) -> Result<(), DeviceError>;

    /// Puts a task at the end of a lane. Never blocks.
    ///
    /// # Errors
    /// If the device has failed, does not know the task, or its queue is full.
    fn submit(&self, lane: LaneId, task: &Task) -> Result<Self::Event, DeviceError>;

    /// Puts a transfer of packed gradients at the end of a lane. Never blocks.
    ///
    /// # Errors
    /// As [`Device::submit`].
    fn copy(&self, lane: LaneId, copy: &Copy) -> Result<Self::Event, DeviceError>;

    /// Lets the lane go on only after `event`, which may belong to another device of the worker. Never blocks.
    ///
    /// # Errors
    /// As [`Device::submit`].
    fn wait_on(&self, lane: LaneId, event: &Self::Event) -> Result<(), DeviceError>;

    /// Waits until every lane is empty.
    ///
    /// # Errors
    /// If the device has failed, now or before.
    fn synchronize(&self) -> Result<(), DeviceError>;

    /// Waits until a task of this device is done. A device that cannot wait for one task alone waits for all.
    ///
    /// # Errors
    /// If the device has failed, now or before.
    fn settle(&self, event: &Self::Event) -> Result<(), DeviceError> {
        let _ = event;
        self.synchronize()
    }

    /// Says that the host goes on although tasks of a step are left: until the next [`Device::synchronize`], what they touch is
    /// waited for before it is read or written from outside. Nothing to do for a device that cannot wait for one task alone.
    fn run_ahead(&self) {}

    /// Copies `values` to the beginning of a region.
    ///
    /// # Errors
    /// If the region does not exist or is shorter than `values`.
    fn write(&self, region: Region, values: &[f32]) -> Result<(), DeviceError>;

    /// Copies the beginning of a region to `out`.
    ///
    /// # Errors
    /// If the region does not exist or is shorter than `out`.
    fn read(&self, region: Region, out: &mut [f32]) -> Result<(), DeviceError>;
}
