//! Steps that overlap: a task waits for what it needs of the step before, and for no more.

use super::layout::Layout;
use super::priority::edges;
use super::{LaneRole, Plan};
use crate::net::Net;
use crate::task::TaskId;

/// How a step of a plan follows a step of the same plan that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// For each task those of the step before that it must come after, beside the order of its lane: forward waits for the
    /// update of its own layer, and whoever writes an array for those who still read it.
    pub waits: Vec<Vec<TaskId>>,
    /// The tasks that the host waits for before it goes on to the next step: load, forward and ∇A. Losses are known then, and
    /// the next mini-batch may be written. What is left are gradients and updates.
    pub awaited: Vec<TaskId>,
}

impl Plan {
    /// How steps of this plan of `nets` overlap. It follows from declared accesses, as the edges within a step do.
    pub fn overlap(&self, nets: &[Net]) -> Overlap {
        let count = self.nodes.len();
        let twice: Vec<_> = self.nodes.iter().chain(&self.nodes).cloned().collect();
        let mut after = edges(nets, &twice);
        for (id, after) in after.iter_mut().enumerate() {
            let step = id / count.max(1) * count;
            after.extend(twice[id].waits.iter().map(|wait| TaskId(step + wait.0)));
            after.sort_unstable();
            after.dedup();
        }
        let layout = Layout { devices: self.devices, lanes: &self.lanes, nodes: twice, after };
        let second = layout.with_waits().split_off(count);
        let before = |waits: Vec<TaskId>| waits.into_iter().filter(|wait| wait.0 < count).collect();
        let is_awaited = |id: &TaskId| LaneRole::of(self.nodes[id.0].task.sub) == LaneRole::Critical;
        Overlap {
            waits: second.into_iter().map(|node| before(node.waits)).collect(),
            awaited: (0..count).map(TaskId).filter(is_awaited).collect(),
        }
    }
}
