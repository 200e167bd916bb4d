//! Steps that overlap: a task waits for what it needs of the step before, and for no more.

use std::ops::Range;

use super::layout::Layout;
use super::priority::edges;
use super::{LaneRole, Node, Plan};
use crate::net::Net;
use crate::task::{Buffer, Place, TaskId};

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
    /// The tasks that touch any of a part of the packed gradients. Behind all of them that part is what the plan makes of it, and
    /// the host may read and write it while the rest of the plan runs.
    pub fn gradient_tasks(&self, nets: &[Net], part: &Range<usize>) -> Vec<TaskId> {
        let is_in = |place: &Place| match place.buffer {
            Buffer::Gradient(id) => {
                let range = nets[place.device.0].params.view(id).range();
                range.start < part.end && part.start < range.end
            }
            _ => false,
        };
        let touches = |node: &Node| node.reads.iter().chain(&node.writes).any(is_in);
        let tasks = self.nodes.iter().enumerate().filter(|(_, node)| touches(node));
        tasks.map(|(id, _)| TaskId(id)).collect()
    }

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
