//! Layer blocks and layer paths: which layers of a net wait for each other, and which chains run side by side.
//!
//! A layer over which no edge leads is one that everything passes. Between two such layers, the fork and the merge, lies a
//! block; its layers are taken apart into chains, the longest first, then the longest of what is left. So a layer that
//! several paths from fork to merge share belongs to the longest of them, and there are never more paths than layers, while
//! the paths of a densely connected block are too many to list.

use crate::layer::{Layer, SubTask};
use crate::net::{LayerId, Net, NetLayer};

/// A chain of layers of a block, in the order of forward.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPath {
    /// Its layers.
    pub layers: Vec<LayerId>,
    /// Σ time(∇A) over them, in nanoseconds; of a net without gradients, of forward.
    pub time: f64,
}

/// What lies between a fork and a merge.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The layer behind which the paths part; `None` if they part at the net's inputs.
    pub fork: Option<LayerId>,
    /// The layer at which they meet; `None` if they end in a loss of their own.
    pub merge: Option<LayerId>,
    /// The paths, the longest first.
    pub paths: Vec<LayerPath>,
}

/// The layer graph of a net in blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerPaths {
    /// The blocks in the order of forward.
    pub blocks: Vec<Block>,
    /// For each layer of the net, which path of its block it is on: 0 for the longest, and for all layers in no block.
    pub ranks: Vec<usize>,
    /// Σ time over the critical path: the layers that everything passes, and the longest path of each block.
    pub critical: f64,
}

impl LayerPaths {
    /// Those of a net, whose layers take so long: the ways of gradients, or, where there are none, of values.
    pub fn of_net(net: &Net, times: &[f64]) -> Self {
        let inside = inside(net);
        let mut edges = Vec::new();
        for (to, layer) in net.layers.iter().enumerate().filter(|(to, _)| inside[*to]) {
            for blob in layer.bottoms.iter().map(|bottom| net.blob(*bottom)) {
                let carries = blob.grad.is_some() || !has_gradients(net);
                if carries && inside[blob.producer.0] {
                    edges.push((blob.producer.0, to));
                }
            }
        }
        Self::new(&inside, &edges, times)
    }

    /// Those of a graph whose nodes are in topological order. Only those that are `inside` count, and `edges` lead from the
    /// smaller to the larger number.
    pub fn new(inside: &[bool], edges: &[(usize, usize)], times: &[f64]) -> Self {
        let graph = Graph { inside, edges, times };
        let main = graph.main();
        let cuts = graph.cuts(&main);
        let mut found = Self { ranks: vec![0; inside.len()], ..Self::default() };
        let is_main = |layer: &usize| main[*layer] && inside[*layer];
        found.critical = cuts.iter().map(|cut| times[*cut]).sum();
        // Whatever is neither a cut nor on the way to the last loss begins somewhere on that way.
        let homes = graph.homes(&main);
        let forks = std::iter::once(None).chain(cuts.iter().copied().map(Some));
        for (place, fork) in forks.enumerate() {
            let merge = cuts.get(place).copied();
            let after = |layer: usize| fork.is_none_or(|fork| layer > fork);
            let before = |layer: usize| merge.is_none_or(|merge| layer < merge);
            let between = |layer: &usize| is_main(layer) && after(*layer) && before(*layer);
            let aside = |layer: &usize| {
                let home = homes[*layer];
                inside[*layer] && !main[*layer] && (home == fork || home.is_some_and(|home| between(&home)))
            };
            let members: Vec<usize> = (0..inside.len()).filter(|l| between(l) || aside(l)).collect();
            let paths = graph.chains(&members);
            if paths.is_empty() {
                continue;
            }
            // Where only a branch that ends in a loss of its own leaves the critical path, that goes on beside it.
            let beside = usize::from(!members.iter().any(between));
            for (rank, path) in paths.iter().enumerate() {
                path.layers.iter().for_each(|layer| found.ranks[layer.0] = rank + beside);
            }
            found.critical += if beside == 0 { paths[0].time } else { 0.0 };
            found.blocks.push(Block { fork: fork.map(LayerId), merge: merge.map(LayerId), paths });
        }
        found
    }

    /// Paths that run side by side at most.
    pub fn width(&self) -> usize {
        self.ranks.iter().max().map_or(1, |rank| rank + 1)
    }
}

/// Whether a net finds gradients.
fn has_gradients(net: &Net) -> bool {
    net.layers.iter().any(|layer| layer.under_loss)
}

/// The sub-task whose time counts.
pub(super) fn measure(net: &Net) -> SubTask {
    if has_gradients(net) { SubTask::GradActivation } else { SubTask::Forward }
}

/// The layers that belong to the graph: those that gradients come from or go to, or, without gradients, all but sources and
/// what only hands on their tops, such as labels that several layers read.
fn inside(net: &Net) -> Vec<bool> {
    let mut inside: Vec<bool> = Vec::with_capacity(net.layers.len());
    for layer in &net.layers {
        let hands_on = |layer: &NetLayer| matches!(layer.layer, Layer::Split(_));
        let fed = layer.bottoms.iter().any(|bottom| inside[net.blob(*bottom).producer.0]);
        let computes = !layer.bottoms.is_empty() && (fed || !hands_on(layer));
        let mut blobs = layer.bottoms.iter().chain(&layer.tops).map(|blob| net.blob(*blob));
        let differentiates = layer.under_loss && blobs.any(|blob| blob.grad.is_some());
        inside.push(if has_gradients(net) { differentiates } else { computes });
    }
    inside
}

struct Graph<'a> {
    inside: &'a [bool],
    edges: &'a [(usize, usize)],
    times: &'a [f64],
}

impl Graph<'_> {
    fn before(&self, layer: usize) -> impl Iterator<Item = usize> {
        self.edges.iter().filter(move |(_, to)| *to == layer).map(|(from, _)| *from)
    }

    /// For each layer of `members` Σ time of the longest chain that ends there, and the layer before it on that.
    fn longest(&self, is_member: &[bool]) -> Vec<(f64, Option<usize>)> {
        let mut found: Vec<(f64, Option<usize>)> = Vec::with_capacity(self.times.len());
        for (layer, own) in self.times.iter().enumerate() {
            let mut best = (0.0, None);
            for from in self.before(layer).filter(|from| is_member[*from]) {
                if best.1.is_none() || found[from].0 > best.0 {
                    best = (found[from].0, Some(from));
                }
            }
            found.push((best.0 + own, best.1));
        }
        found
    }

    /// The layers on a way to the last of the losses: that at the end of the longest chain.
    fn main(&self) -> Vec<bool> {
        let lengths = self.longest(self.inside);
        let is_end = |layer: &usize| self.inside[*layer] && self.edges.iter().all(|(from, _)| from != layer);
        let ends = (0..self.times.len()).filter(is_end);
        let last = ends.max_by(|a, b| lengths[*a].0.total_cmp(&lengths[*b].0).then(a.cmp(b)));
        let mut main = vec![false; self.times.len()];
        if let Some(last) = last {
            main[last] = true;
        }
        for layer in (0..self.times.len()).rev() {
            if main[layer] {
                self.before(layer).for_each(|from| main[from] = true);
            }
        }
        main
    }

    /// The layers of `main` over which no edge leads. What has no layer before it begins at the net's inputs.
    fn cuts(&self, main: &[bool]) -> Vec<usize> {
        let mut spans: Vec<(isize, isize)> = Vec::new();
        for layer in (0..main.len()).filter(|layer| main[*layer]) {
            let from: Vec<usize> = self.before(layer).collect();
            spans.extend(from.iter().map(|from| (*from as isize, layer as isize)));
            if from.is_empty() {
                spans.push((-1, layer as isize));
            }
        }
        let mut over = vec![0_i32; main.len() + 1];
        for (from, to) in spans.into_iter().filter(|(from, to)| to - from > 1) {
            over[(from + 1) as usize] += 1;
            over[to as usize] -= 1;
        }
        let mut covered = 0;
        let mut cuts = Vec::new();
        for layer in 0..main.len() {
            covered += over[layer];
            if main[layer] && covered == 0 {
                cuts.push(layer);
            }
        }
        cuts
    }

    /// For each layer off the main way the last layer of that which it comes from.
    fn homes(&self, main: &[bool]) -> Vec<Option<usize>> {
        let mut homes: Vec<Option<usize>> = vec![None; main.len()];
        for layer in 0..main.len() {
            homes[layer] =
                self.before(layer).map(|f| if main[f] { Some(f) } else { homes[f] }).max().flatten();
        }
        homes
    }

    /// `members` as chains, the longest first, then the longest of what is left. Of equals that which ends last.
    fn chains(&self, members: &[usize]) -> Vec<LayerPath> {
        let mut left = vec![false; self.times.len()];
        members.iter().for_each(|layer| left[*layer] = true);
        let mut chains = Vec::new();
        while left.contains(&true) {
            let lengths = self.longest(&left);
            let ends = members.iter().filter(|layer| left[**layer]);
            let end = ends.max_by(|a, b| lengths[**a].0.total_cmp(&lengths[**b].0).then(a.cmp(b)));
            let Some(end) = end else { break };
            let mut layers: Vec<LayerId> =
                std::iter::successors(Some(*end), |layer| lengths[*layer].1).map(LayerId).collect();
            layers.reverse();
            layers.iter().for_each(|layer| left[layer.0] = false);
            chains.push(LayerPath { layers, time: lengths[*end].0 });
        }
        chains
    }
}
