//! What each task of a plan takes: by the one cost model, corrected by what an iteration took.

use std::collections::HashMap;

use crate::device::Span;
use crate::layer::SubTask;
use crate::net::{LayerId, Net};
use crate::plan::{CostModel, Node, Plan, Rates};
use crate::sim::DeviceModel;

/// Rates of a machine that nobody has described. Schedules ask only which of two chains takes longer, so what counts is how
/// many operations take as long as a byte.
const UNKNOWN_MACHINE: Rates = Rates { flops: 500.0, bytes: 50.0, overhead: 2_000.0 };

/// What is known of the machine.
#[derive(Clone, Debug)]
enum Known {
    /// What it computes and moves.
    Rates(CostModel),
    /// Its units, and how tasks are cut for them.
    Device(DeviceModel),
}

/// Estimated times of tasks.
#[derive(Clone, Debug)]
pub struct Estimates {
    known: Known,
    /// Of sub-tasks that were run, on the device on which they took longest.
    measured: HashMap<(LayerId, SubTask), f64>,
}

impl Default for Estimates {
    /// Those for a machine that nobody has described.
    fn default() -> Self {
        Self::by(UNKNOWN_MACHINE)
    }
}

impl Estimates {
    /// Those for a device with these rates.
    pub fn by(rates: Rates) -> Self {
        Self { known: Known::Rates(CostModel { rates }), measured: HashMap::new() }
    }

    /// Those for a device that is described: each task in grains, with all units to itself.
    pub fn on(device: DeviceModel) -> Self {
        Self { known: Known::Device(device), measured: HashMap::new() }
    }

    /// The same, corrected by an iteration of `plan`: `spans` say when each of its tasks ran. It should have run alone, one task
    /// after the other ([`Schedule::Layerwise`](crate::plan::Schedule::Layerwise)).
    pub fn corrected(mut self, plan: &Plan, spans: &[Span]) -> Self {
        for (node, span) in plan.nodes.iter().zip(spans) {
            let took = span.end.saturating_sub(span.start) as f64;
            let known = self.measured.entry((node.task.layer, node.task.sub)).or_insert(took);
            *known = took.max(*known);
        }
        self
    }

    /// Whether they were corrected.
    pub fn is_measured(&self) -> bool {
        !self.measured.is_empty()
    }

    /// Nanoseconds that a task takes, alone on its device.
    pub fn of(&self, nets: &[Net], node: &Node) -> f64 {
        let (images, all) = (node.task.tile.images, nets[node.device.0].batch());
        // A chunk of the images takes its share.
        let share = if images < all { images as f64 / all as f64 } else { 1.0 };
        let measured = self.measured.get(&(node.task.layer, node.task.sub)).map(|all| share * all);
        measured.unwrap_or_else(|| match &self.known {
            Known::Rates(model) => model.task(nets, node),
            Known::Device(device) => device.alone(&device.kernel_of(nets, node)),
        })
    }
}
