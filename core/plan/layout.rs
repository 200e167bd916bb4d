//! Tasks in their lanes: the order of submission, and the waits between lanes.

use super::Node;
use crate::device::Lane;
use crate::task::TaskId;

/// Tasks on `devices` devices with `lanes`, which have lanes and, in `after`, the earlier tasks that each must come after.
pub(super) struct Layout<'a> {
    pub devices: usize,
    pub lanes: &'a [Lane],
    pub nodes: Vec<Node>,
    pub after: Vec<Vec<TaskId>>,
}

impl Layout<'_> {
    /// The same tasks in another order, in which each still comes after those that it must come after.
    pub fn ordered(self, order: &[usize]) -> Self {
        let mut place = vec![TaskId(0); order.len()];
        order.iter().enumerate().for_each(|(new, old)| place[*old] = TaskId(new));
        let after = order.iter().map(|old| {
            let mut after: Vec<TaskId> = self.after[*old].iter().map(|task| place[task.0]).collect();
            after.sort_unstable();
            after
        });
        let nodes = order.iter().map(|old| self.nodes[*old].clone()).collect();
        Self { after: after.collect(), nodes, ..self }
    }

    /// The tasks with their waits: no more than it takes beside the order of the lanes.
    pub fn with_waits(mut self) -> Vec<Node> {
        let lanes = self.devices * self.lanes.len();
        let lane_of = |node: &Node| node.device.0 * self.lanes.len() + node.lane.0;
        // What each lane has seen of each other lane: the highest task it waited for, directly or not.
        let mut seen_by_lane: Vec<Vec<Option<TaskId>>> = vec![vec![None; lanes]; lanes];
        // The same as of the end of each task.
        let mut seen_by: Vec<Vec<Option<TaskId>>> = Vec::with_capacity(self.nodes.len());
        for (id, after) in self.after.iter().enumerate() {
            let own = lane_of(&self.nodes[id]);
            let mut seen = seen_by_lane[own].clone();
            let mut waits = Vec::new();
            // Latest first: one wait often implies the others.
            for earlier in after.iter().rev() {
                let from = lane_of(&self.nodes[earlier.0]);
                if from == own || seen[from].is_some_and(|seen| seen >= *earlier) {
                    continue;
                }
                for (mine, theirs) in seen.iter_mut().zip(&seen_by[earlier.0]) {
                    *mine = (*mine).max(*theirs);
                }
                waits.push(*earlier);
            }
            waits.sort_unstable();
            seen[own] = Some(TaskId(id));
            seen_by_lane[own].clone_from(&seen);
            seen_by.push(seen);
            self.nodes[id].waits = waits;
        }
        self.nodes
    }
}
