//! TurboDL: what the next layer waits for comes first, and whatever else there is fills the time that it leaves idle.
//!
//! This is Algorithm 1 of the paper. From the nets follow the graph of an iteration's sub-tasks ([`SubTaskGraph`]) and that
//! of layers in blocks, whose paths are sorted by their times ([`LayerPaths`]). The tasks of one kind on paths of one rank are a computing path with a priority
//! ([`ComputingPath`]); sub-tasks whose result the very next step asks for join ∇A of their layer's path, such as ∇W and
//! the update of the first layer. Computing paths share as many lanes and priorities as the device has ([`LaneSet`]).
//!
//! Edges between lanes become waits when the plan is built. All depends on the nets alone, not on what part of an iteration a
//! plan covers, so that each sub-task has one lane in all plans of a worker.

mod estimate;
mod levels;
mod paths;
mod subtasks;
#[cfg(test)]
mod tests;

pub use estimate::Estimates;
pub use levels::{ComputingPath, Kind, LaneLimits, LaneSet, Weights, computing_paths};
pub use paths::{Block, LayerPath, LayerPaths};
pub(super) use subtasks::edges;
pub use subtasks::{SubTaskGraph, Use};

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::build::{PlanError, PlanOptions, nodes_of};
use super::{LaneRole, Node, Stage};
use crate::layer::SubTask;
use crate::net::{LayerId, Net};
use crate::task::{LaneId, TaskId};

/// What TurboDL finds out about an iteration.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// Blocks and layer paths.
    pub layers: LayerPaths,
    /// The computing paths, by falling priority.
    pub paths: Vec<ComputingPath>,
    /// The lanes, and which path has which.
    pub lanes: LaneSet,
    /// The sub-tasks that are on the path of ∇A whatever they do: the very next step asks for what they find.
    pub joined: HashSet<(LayerId, SubTask)>,
    /// The band of each layer's gradients and updates.
    pub bands: Vec<usize>,
    limits: LaneLimits,
}

impl Analysis {
    /// Analyses an iteration of `nets`, one for each device of a worker, whose tasks take what `estimates` say.
    ///
    /// # Errors
    /// Those of [`Plan::build`](super::Plan::build).
    pub fn new(nets: &[Net], options: PlanOptions, estimates: &Estimates) -> Result<Self, PlanError> {
        let limits = options.limits;
        let nodes = nodes_of(nets, PlanOptions { stage: Stage::Iteration, ..options })?;
        let graph = SubTaskGraph::new(nets, &nodes);
        let net = &nets[0];
        let measure = paths::measure(net);
        let mut times = vec![0.0_f64; net.layers.len()];
        for node in nodes.iter().filter(|node| node.task.sub == measure) {
            let time = &mut times[node.task.layer.0];
            *time = time.max(estimates.of(nets, node));
        }
        let layers = LayerPaths::of_net(net, &times);
        let kinds: Vec<Kind> = Kind::ALL
            .into_iter()
            .filter(|kind| nodes.iter().any(|node| Kind::of(node.task.sub) == *kind))
            .collect();
        let width = layers.width();
        let paths = computing_paths(width, &kinds, Weights::behind(width), limits.bands);
        let lanes = LaneSet::new(&paths, limits);
        let next = graph.distances.iter().zip(&nodes).filter(|(distance, _)| **distance == Some(1));
        let aside = next.filter(|(_, node)| LaneRole::of(node.task.sub) != LaneRole::Critical);
        let joined = aside.map(|(_, node)| (node.task.layer, node.task.sub)).collect();
        let bands = bands(nets, &nodes, estimates, limits.bands);
        Ok(Self { layers, paths, lanes, joined, bands, limits })
    }

    /// The computing path of a sub-task.
    pub fn path_of(&self, layer: LayerId, sub: SubTask) -> Option<usize> {
        let kind = if self.joined.contains(&(layer, sub)) { Kind::Activation } else { Kind::of(sub) };
        let rank = match kind {
            Kind::Transfer | Kind::Update => 0,
            _ => self.layers.ranks[layer.0],
        };
        let band = if matches!(kind, Kind::Activation | Kind::Transfer) { 0 } else { self.bands[layer.0] };
        self.paths.iter().position(|path| (path.kind, path.rank, path.band) == (kind, rank, band))
    }

    /// The lane of a sub-task.
    pub fn lane_of(&self, layer: LayerId, sub: SubTask) -> LaneId {
        self.path_of(layer, sub).map_or(LaneId(0), |path| self.lanes.of[path])
    }

    /// The order of submission of tasks with these edges: that in which they are given, but in each block the longest path
    /// comes first (the paper's first method).
    pub(super) fn order(&self, nodes: &[Node], after: &[Vec<TaskId>]) -> Vec<usize> {
        let blocks = self.blocks();
        let mut begins: HashMap<(usize, bool), usize> = HashMap::new();
        let group = |node: &Node| Some((blocks[node.task.layer.0]?, is_forward(node)));
        for (id, node) in nodes.iter().enumerate() {
            if let Some(group) = group(node) {
                begins.entry(group).or_insert(id);
            }
        }
        let key = |id: usize| {
            let group = group(&nodes[id]);
            let begin = group.and_then(|group| begins.get(&group).copied()).unwrap_or(id);
            Reverse((begin, group.map_or(0, |_| self.layers.ranks[nodes[id].task.layer.0]), id))
        };
        let mut missing: Vec<usize> = after.iter().map(Vec::len).collect();
        let mut behind: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        for (id, after) in after.iter().enumerate() {
            after.iter().for_each(|earlier| behind[earlier.0].push(id));
        }
        let ready = (0..nodes.len()).filter(|id| missing[*id] == 0).map(key);
        let mut ready: BinaryHeap<_> = ready.collect();
        let mut order = Vec::with_capacity(nodes.len());
        while let Some(Reverse((.., id))) = ready.pop() {
            order.push(id);
            for later in &behind[id] {
                missing[*later] -= 1;
                if missing[*later] == 0 {
                    ready.push(key(*later));
                }
            }
        }
        order
    }

    /// Further edges between tasks in their order of submission, where priorities have to be emulated by waits (the paper's
    /// second method): (who waits, for whom).
    pub(super) fn extra_waits(&self, nodes: &[Node]) -> Vec<(TaskId, TaskId)> {
        let mut waits = Vec::new();
        if !self.limits.extra_waits {
            return waits;
        }
        let first = |layers: &[LayerId], device| {
            let is_first = |node: &Node| {
                let of_path = node.device == device && layers.contains(&node.task.layer);
                of_path && node.task.sub == SubTask::GradActivation
            };
            nodes.iter().position(is_first)
        };
        let mut devices: Vec<_> = nodes.iter().map(|node| node.device).collect();
        devices.sort_unstable();
        devices.dedup();
        let priority = |lane: LaneId| self.lanes.lanes[lane.0].priority;
        for block in &self.layers.blocks {
            for device in &devices {
                let Some(longest) = first(&block.paths[0].layers, *device) else { continue };
                for path in &block.paths[1..] {
                    let Some(other) = first(&path.layers, *device) else { continue };
                    let (one, two) = (nodes[longest].lane, nodes[other].lane);
                    if one != two && priority(one) == priority(two) && longest < other {
                        waits.push((TaskId(other), TaskId(longest)));
                    }
                }
            }
        }
        waits
    }

    /// For each layer the block that it is in.
    fn blocks(&self) -> Vec<Option<usize>> {
        let mut blocks = vec![None; self.layers.ranks.len()];
        for (index, block) in self.layers.blocks.iter().enumerate() {
            let layers = block.paths.iter().flat_map(|path| &path.layers);
            layers.for_each(|layer| blocks[layer.0] = Some(index));
        }
        blocks
    }
}

/// The band of each layer's gradients: the layers in the order of forward, cut where each has the same part of the time that
/// gradients and updates take.
fn bands(nets: &[Net], nodes: &[Node], estimates: &Estimates, most: usize) -> Vec<usize> {
    let mut times = vec![0.0; nets[0].layers.len()];
    for node in nodes.iter().filter(|node| LaneRole::of(node.task.sub) > LaneRole::Transfer) {
        times[node.task.layer.0] += estimates.of(nets, node);
    }
    let whole: f64 = times.iter().sum();
    let mut before = 0.0;
    let band = |time: f64| {
        let middle = before + time / 2.0;
        before += time;
        ((most as f64 * middle / whole) as usize).min(most.max(1) - 1)
    };
    times.into_iter().map(band).collect()
}

fn is_forward(node: &Node) -> bool {
    matches!(node.task.sub, SubTask::Load | SubTask::Forward)
}
