//! The graph of an iteration's sub-tasks, with the next iteration's first uses.

use std::collections::HashMap;

use crate::graph::AccessLog;
use crate::layer::SubTask;
use crate::net::Net;
use crate::plan::{LaneRole, Node};
use crate::task::{Place, TaskId, Tile, parts_meet};

/// Who reads what a task wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The reader.
    pub task: TaskId,
    /// Whether it reads in the next iteration.
    pub next: bool,
}

/// The sub-tasks of an iteration and their edges, which follow from declared accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubTaskGraph {
    /// For each task the earlier ones that it must come after: because it reads what they wrote, or writes what they use.
    pub after: Vec<Vec<TaskId>>,
    /// For each task those that read what it wrote.
    pub uses: Vec<Vec<Use>>,
    /// For each task its step: tasks from load to the last ∇A have the length of the longest chain of such tasks that ends
    /// there, all others that of the ∇A next to which they could run.
    pub steps: Vec<usize>,
    /// For each task its dependency distance: how many steps after it the first task of forward or ∇A runs, in this iteration
    /// or the next, that needs what it wrote, by itself or by what others made of it. `None` if none does.
    pub distances: Vec<Option<usize>>,
}

impl SubTaskGraph {
    /// The graph of tasks in an order in which they may run.
    pub fn new(nets: &[Net], nodes: &[Node]) -> Self {
        let after = edges(nets, nodes);
        let uses = uses(nodes);
        let mut graph = Self { after, uses, steps: Vec::new(), distances: Vec::new() };
        graph.steps = graph.steps_of(nodes);
        graph.distances = graph.distances_of(nodes);
        graph
    }

    fn steps_of(&self, nodes: &[Node]) -> Vec<usize> {
        let mut steps = vec![0; nodes.len()];
        for (id, node) in nodes.iter().enumerate() {
            // What was loaded is there when an iteration begins.
            let least = usize::from(is_on_spine(node));
            steps[id] = steps[id].max(least);
            for reader in self.uses[id].iter().filter(|reader| !reader.next) {
                let step = steps[id] + usize::from(is_on_spine(node));
                steps[reader.task.0] = steps[reader.task.0].max(step);
            }
        }
        steps
    }

    fn distances_of(&self, nodes: &[Node]) -> Vec<Option<usize>> {
        let iteration = self.steps.iter().max().copied().unwrap_or(0);
        let mut first_use: Vec<Option<usize>> = vec![None; nodes.len()];
        for id in (0..nodes.len()).rev() {
            let of = |reader: &Use| match (is_on_spine(&nodes[reader.task.0]), reader.next) {
                (true, false) => Some(self.steps[reader.task.0]),
                (true, true) => Some(iteration + self.steps[reader.task.0]),
                (false, false) => first_use[reader.task.0],
                // An update also reads what the update before it wrote, but only after forward did.
                (false, true) => None,
            };
            first_use[id] = self.uses[id].iter().filter_map(of).min();
        }
        let distance =
            |(found, step): (&Option<usize>, &usize)| found.map(|found| found.saturating_sub(*step));
        first_use.iter().zip(&self.steps).map(distance).collect()
    }

    /// The longest chain of tasks that must run one after the other, when each takes its time, and how long it takes: no
    /// schedule is shorter.
    pub fn critical_path(&self, times: &[f64]) -> (Vec<TaskId>, f64) {
        let mut ends: Vec<f64> = Vec::with_capacity(times.len());
        let mut before: Vec<Option<TaskId>> = Vec::with_capacity(times.len());
        for (id, time) in times.iter().enumerate() {
            let last = self.after[id].iter().max_by(|a, b| ends[a.0].total_cmp(&ends[b.0]).then(b.cmp(a)));
            ends.push(last.map_or(0.0, |last| ends[last.0]) + time);
            before.push(last.copied());
        }
        let all = (0..times.len()).map(TaskId);
        let Some(end) = all.max_by(|a, b| ends[a.0].total_cmp(&ends[b.0]).then(b.cmp(a))) else {
            return (Vec::new(), 0.0);
        };
        let mut path: Vec<TaskId> = std::iter::successors(Some(end), |task| before[task.0]).collect();
        path.reverse();
        (path, ends[end.0])
    }
}

/// Whether a task is of forward or ∇A, which follow each other from layer to layer.
fn is_on_spine(node: &Node) -> bool {
    LaneRole::of(node.task.sub) == LaneRole::Critical && node.task.sub != SubTask::Load
}

/// For each task the earlier ones that it must come after.
pub(crate) fn edges(nets: &[Net], nodes: &[Node]) -> Vec<Vec<TaskId>> {
    let mut log = AccessLog::default();
    let overlapping = |place: &Place| -> Vec<Place> {
        let buffers = nets[place.device.0].overlapping_buffers(place.buffer).into_iter();
        buffers.map(|buffer| Place { buffer, ..*place }).collect()
    };
    let mut enter =
        |(id, node): (usize, &Node)| log.enter(TaskId(id), &node.reads, &node.writes, overlapping);
    nodes.iter().enumerate().map(&mut enter).collect()
}

/// For each task those that read what it wrote, in this iteration or the next.
fn uses(nodes: &[Node]) -> Vec<Vec<Use>> {
    let mut uses: Vec<Vec<Use>> = vec![Vec::new(); nodes.len()];
    let mut writers: HashMap<Place, Vec<(Option<Tile>, usize, bool)>> = HashMap::new();
    for next in [false, true] {
        for (id, node) in nodes.iter().enumerate() {
            for (place, part) in node.reads.iter().map(|place| place.whole()) {
                let reader = Use { task: TaskId(id), next };
                for (_, writer, in_next) in
                    writers.get(&place).into_iter().flatten().filter(|w| parts_meet(w.0, part))
                {
                    if !in_next && !uses[*writer].contains(&reader) {
                        uses[*writer].push(reader);
                    }
                }
            }
            for (place, part) in node.writes.iter().map(|place| place.whole()) {
                let writers = writers.entry(place).or_default();
                writers.retain(|(other, ..)| match (part, other) {
                    (Some(part), Some(other)) => !part.holds(other),
                    (Some(_), None) => true,
                    (None, _) => false,
                });
                writers.push((part, id, next));
            }
        }
    }
    uses
}
