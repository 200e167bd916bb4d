//! Which sub-tasks are cut into how many chunks of images, by what a whole plan is expected to take.
//!
//! The analyzer looks at the kernels of one sub-task. Two things it cannot see. Chunks go on from layer to layer in their lanes, so
//! that one runs beside those of other layers, until a layer that is whole waits for all of them. And the host launches each chunk.
//! So what it finds is one of several candidates: beside it stand whole layers, and all that can be cut in 2, 4, ... chunks. The
//! best of them is then tried with other cuts of each chain, which is what hands values from one to the next.
//!
//! What a plan takes the caller says, by the simulated device. Of two that take as long the one with fewer chunks stays.

use std::collections::{BTreeMap, HashMap};

use super::spread::{computes_apart, spread};
use crate::layer::SubTask;
use crate::net::{LayerId, Net};
use crate::plan::{Node, Plan};
use crate::task::Buffer;

/// Into how many chunks of images sub-tasks are cut, on as many lanes; those that are not there stay whole.
pub type Worth = HashMap<(LayerId, SubTask), u32>;

/// What a cut has to take at most of what whole layers do: estimates are not better than that, and chunks take lanes.
pub const WORTH_IT: f64 = 0.99;

/// Of what kind a choice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing is cut.
    Whole,
    /// Each sub-task as the analyzer says.
    Analyzed,
    /// All into so many chunks.
    Alike(u32),
    /// Chain by chain.
    ByChain,
}

/// What was chosen, and instead of what.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The chunks.
    pub worth: Worth,
    /// What kind of a choice that is.
    pub way: Way,
    /// Nanoseconds that the plan is expected to take so.
    pub expected: f64,
    /// Nanoseconds with whole layers.
    pub whole: f64,
    /// Nanoseconds as the analyzer says, if that was tried.
    pub analyzed: Option<f64>,
    /// Plans that were tried.
    pub tried: usize,
}

/// Plans to choose from.
pub struct Candidates<'a> {
    /// The plan with whole layers.
    pub plan: &'a Plan,
    /// Its nets.
    pub nets: &'a [Net],
    /// What the analyzer found for each sub-task that may be cut.
    pub analyzed: &'a Worth,
    /// Sub-tasks whose chunks are given, such as those of which somebody else has decided.
    pub given: &'a Worth,
    /// Numbers of chunks to try, ascending.
    pub counts: &'a [u32],
    /// How many tasks the plans that are tried may have together. A bound of the time that choosing takes, which has the same
    /// outcome whatever a clock says; the plan with whole layers is tried in any case.
    pub tasks: usize,
}

impl Candidates<'_> {
    /// The best of them; `cost` says how many nanoseconds a plan takes.
    ///
    /// # Errors
    /// Those of `cost`.
    pub fn choose<E>(&self, cost: impl FnMut(&Plan) -> Result<f64, E>) -> Result<Choice, E> {
        let mut search = Search { of: self, cost, left: self.tasks, tried: 0 };
        let whole = search.cost(&self.alike(1))?;
        let mut best = Best { worth: self.alike(1), way: Way::Whole, expected: whole };
        let analyzed = match self.analyzed.values().any(|chunks| *chunks > 1) {
            true => search.improve(&mut best, self.analyzed.clone(), Way::Analyzed)?,
            false => None,
        };
        for count in self.counts {
            // Each doubling adds launches: where one does not help the next does not either.
            match search.improve(&mut best, self.alike(*count), Way::Alike(*count))? {
                Some(taken) if taken <= best.expected => {}
                _ => break,
            }
        }
        for chain in chains(self.plan, self.nets, self.analyzed) {
            let cuts = [1].into_iter().chain(self.counts.iter().copied()).map(Some).chain([None]);
            for cut in cuts {
                let mut worth = best.worth.clone();
                for task in &chain {
                    worth.insert(*task, cut.unwrap_or(self.analyzed[task]));
                }
                if worth != best.worth {
                    search.improve(&mut best, worth, Way::ByChain)?;
                }
            }
        }
        if best.expected > WORTH_IT * whole {
            best = Best { worth: self.alike(1), way: Way::Whole, expected: whole };
        }
        let Best { worth, way, expected } = best;
        Ok(Choice { worth, way, expected, whole, analyzed, tried: search.tried })
    }

    fn alike(&self, chunks: u32) -> Worth {
        self.analyzed.keys().map(|task| (*task, chunks)).collect()
    }
}

struct Best {
    worth: Worth,
    way: Way,
    expected: f64,
}

struct Search<'a, C> {
    of: &'a Candidates<'a>,
    cost: C,
    /// Tasks that plans to come may have.
    left: usize,
    tried: usize,
}

impl<E, C: FnMut(&Plan) -> Result<f64, E>> Search<'_, C> {
    /// Into how many chunks a task is cut.
    fn chunks(&self, worth: &Worth, node: &Node) -> u32 {
        let task = (node.task.layer, node.task.sub);
        worth.get(&task).or_else(|| self.of.given.get(&task)).copied().unwrap_or(1)
    }

    fn cost(&mut self, worth: &Worth) -> Result<f64, E> {
        let plan = spread(self.of.plan.clone(), self.of.nets, |node| self.chunks(worth, node));
        self.left = self.left.saturating_sub(plan.nodes.len());
        self.tried += 1;
        (self.cost)(&plan)
    }

    /// What a plan takes, which becomes the best if it is. `None` if it has more tasks than are left.
    fn improve(&mut self, best: &mut Best, worth: Worth, way: Way) -> Result<Option<f64>, E> {
        let tasks = self.of.plan.nodes.iter().map(|node| self.chunks(&worth, node) as usize);
        if tasks.sum::<usize>() > self.left {
            return Ok(None);
        }
        let expected = self.cost(&worth)?;
        if expected < best.expected {
            *best = Best { worth, way, expected };
        }
        Ok(Some(expected))
    }
}

/// Sub-tasks of `of` in chains, the longest first: forward, or ∇A, of layers that are connected, each by an array that one writes and
/// another reads.
fn chains(plan: &Plan, nets: &[Net], of: &Worth) -> Vec<Vec<(LayerId, SubTask)>> {
    let nodes = plan.nodes.iter().filter(|node| node.device.0 == 0 && computes_apart(nets, node));
    let nodes: Vec<&Node> = nodes.filter(|node| of.contains_key(&(node.task.layer, node.task.sub))).collect();
    let mut chain: Vec<usize> = (0..nodes.len()).collect();
    let mut writers: HashMap<(SubTask, Buffer), usize> = HashMap::new();
    for (id, node) in nodes.iter().enumerate() {
        for place in &node.reads {
            if let Some(writer) = writers.get(&(node.task.sub, place.buffer)) {
                let (one, other) = (chain[*writer], chain[id]);
                chain.iter_mut().filter(|chain| **chain == other).for_each(|chain| *chain = one);
            }
        }
        writers.extend(node.writes.iter().map(|place| ((node.task.sub, place.buffer), id)));
    }
    let mut chains: BTreeMap<usize, Vec<(LayerId, SubTask)>> = BTreeMap::new();
    for (node, chain) in nodes.iter().zip(chain) {
        chains.entry(chain).or_default().push((node.task.layer, node.task.sub));
    }
    let mut chains: Vec<_> = chains.into_values().collect();
    chains.sort_by_key(|chain| std::cmp::Reverse(chain.len()));
    chains
}
