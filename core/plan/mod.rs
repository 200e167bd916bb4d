//! One plan: tasks, their edges, and the device and lane of each. Data that can be printed, checked, simulated
//! and run.

mod build;
mod cost;
pub mod lanes;
mod layout;
mod overlap;
pub mod priority;
mod saved;
mod schedule;

pub use build::{PlanError, PlanOptions, normed_params, tiles, trained_params};
pub(crate) use build::{norms, operand_buffers, stepped_rows, task_buffers};
pub use cost::{CostModel, Rates};
pub use overlap::Overlap;
pub use saved::{SavedPlan, SavedTask};
pub use schedule::{LaneRole, Schedule};

use std::fmt;

use crate::device::Lane;
use crate::layer::SubTask;
use crate::net::{LayerId, Net};
use crate::task::{Buffer, Copy, DeviceId, LaneId, Place, Task, TaskId};

/// What part of an iteration a plan covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Load, forward, backward, gradient sums and update: a worker that exchanges nothing. Of several devices none has the
    /// whole sum of a gradient behind it, unless its norm was asked for.
    Iteration,
    /// Load, forward, backward and gradient sums; an exchange with other workers follows.
    Gradients,
    /// Load, forward and backward of one of an iteration's mini-batches but the last, whose gradients are gathered.
    Part,
    /// Updates alone, after the exchange.
    Update,
    /// Load and forward.
    Forward,
}

impl Stage {
    /// Whether a sub-task belongs to the stage.
    pub fn includes(self, sub: SubTask) -> bool {
        match sub {
            SubTask::Norm | SubTask::Update => matches!(self, Self::Iteration | Self::Update),
            SubTask::StepWeight => self == Self::Iteration,
            SubTask::Load | SubTask::Forward => self != Self::Update,
            SubTask::Gather => self == Self::Part,
            SubTask::Total | SubTask::Accumulate | SubTask::Broadcast => {
                matches!(self, Self::Iteration | Self::Gradients)
            }
            _ => matches!(self, Self::Iteration | Self::Gradients | Self::Part),
        }
    }
}

/// A task in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What is done.
    pub task: Task,
    /// By which device.
    pub device: DeviceId,
    /// In which of its lanes.
    pub lane: LaneId,
    /// For a transfer: what is moved.
    pub copy: Option<Copy>,
    /// What is read.
    pub reads: Vec<Place>,
    /// What is written.
    pub writes: Vec<Place>,
    /// Earlier tasks of other lanes that must be done first. Those that are implied by the order of the lane or
    /// by earlier waits are left out.
    pub waits: Vec<TaskId>,
}

impl Node {
    /// Of an update, the devices whose gradients it adds up, in the order in which it does.
    pub fn terms(&self) -> Vec<DeviceId> {
        let mut devices = Vec::new();
        for place in self.reads.iter().filter(|place| matches!(place.buffer, Buffer::Gradient(_))) {
            if !devices.contains(&place.device) {
                devices.push(place.device);
            }
        }
        devices
    }
}

/// A plan. The order of `nodes` is the order of submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What it covers.
    pub stage: Stage,
    /// Number of devices.
    pub devices: usize,
    /// The lanes of every device, by number; of several that have work the one with the lowest priority is served first.
    pub lanes: Vec<Lane>,
    /// Tasks.
    pub nodes: Vec<Node>,
}

impl Plan {
    /// The lane in which a sub-task of a layer runs on a device; `None` if the plan does not have it. Of transfers, which may be
    /// several for one layer, that of the first.
    pub fn lane_of(&self, device: DeviceId, layer: LayerId, sub: SubTask) -> Option<LaneId> {
        let is_it = |n: &&Node| (n.device, n.task.layer, n.task.sub) == (device, layer, sub);
        self.nodes.iter().find(is_it).map(|node| node.lane)
    }

    /// One task of the plan by itself: for those who look at arrays between tasks, and see to the order.
    pub fn alone(&self, node: &Node) -> Self {
        let node = Node { waits: Vec::new(), ..node.clone() };
        Self { stage: self.stage, devices: self.devices, lanes: self.lanes.clone(), nodes: vec![node] }
    }

    /// The plan as text: one line a task with its lane, layer, sub-task and waits. `nets` are those it was made
    /// of.
    pub fn describe<'a>(&'a self, nets: &'a [Net]) -> impl fmt::Display + 'a {
        Description { plan: self, nets }
    }
}

struct Description<'a> {
    plan: &'a Plan,
    nets: &'a [Net],
}

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, node) in self.plan.nodes.iter().enumerate() {
            let layer = self.nets[node.device.0].layer(node.task.layer).label();
            write!(f, "{id:4}  device {} lane {}  {:15} {layer}", node.device.0, node.lane.0, node.task.sub)?;
            let tile = node.task.tile;
            if tile.images < self.nets[node.device.0].batch() {
                write!(f, " of images {} to {}", tile.first, tile.end().saturating_sub(1))?;
            }
            if let Some(copy) = &node.copy {
                write!(f, " [{}..{}] from device {}", copy.range.start, copy.range.end, copy.from.0)?;
            }
            if !node.waits.is_empty() {
                let waits: Vec<String> = node.waits.iter().map(|w| w.0.to_string()).collect();
                write!(f, "  after {}", waits.join(", "))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
