//! What a machine takes for what a training does: the figures that a virtual clock goes by.
//!
//! Times are in nanoseconds and rates in bytes or operations per nanosecond, as in the one cost model ([`crate::plan`]).

use crate::net::Net;
use crate::plan::{CostModel, Plan, Rates};
use crate::sim::DeviceModel;

/// A way for bytes: a message of n bytes takes alpha + n beta.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Alpha, in nanoseconds.
    pub latency: f64,
    /// 1 / beta, in bytes per nanosecond (GB/s).
    pub bandwidth: f64,
    /// Whether it carries one message at a time for all ranks together; else one for each rank.
    pub serial: bool,
}

impl Link {
    /// Nanoseconds that `bytes` keep the way busy.
    pub fn transfer(&self, bytes: usize) -> f64 {
        bytes as f64 / self.bandwidth
    }

    /// Nanoseconds of a message of `bytes`: alpha + n beta.
    pub fn message(&self, bytes: usize) -> f64 {
        self.latency + self.transfer(bytes)
    }
}

/// What one worker takes for forward and backward of a network, where that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The network's name, as its file has it.
    pub network: String,
    /// Images in a worker's mini-batch.
    pub batch: usize,
    /// Nanoseconds of forward and backward.
    pub forward_backward: f64,
    /// Nanoseconds of an iteration that are none of what the other figures say.
    pub other: f64,
}

/// Times that vary: each is longer by up to a share of itself, drawn evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter {
    /// Decides what is drawn.
    pub seed: u64,
    /// The largest part that is added, of 1.
    pub share: f64,
}

/// A machine: workers, a host or master, and the ways between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Where its figures are from.
    pub source: String,
    /// What a worker computes and moves, for networks that have no [`Step`].
    pub rates: Rates,
    /// What workers take for known networks.
    pub steps: Vec<Step>,
    /// Bytes of weights per nanosecond of a worker's update, and of a centre in a worker's memory.
    pub worker_update: f64,
    /// The same of a centre in the host's memory, or the master's.
    pub host_update: f64,
    /// From the host to a worker: mini-batches.
    pub data: Link,
    /// From worker to worker.
    pub workers: Link,
    /// From worker to worker through the memory of the host: the tree of Sync EASGD1.
    pub host: Link,
    /// Between a worker and the master.
    pub master: Link,
    /// Between a worker and memory that all share.
    pub shared: Link,
    /// Nanoseconds of a message without values.
    pub control: f64,
    /// The share of an exchange's own work that another core than those that compute does beside them, of 1. The rest makes
    /// computing longer.
    pub overlap: f64,
    /// The same of what a worker does to memory that all share. It reads and writes there itself and never waits for another, so
    /// without a core to spare nothing of it is hidden.
    pub shared_overlap: f64,
    /// How times vary; not at all if there is none.
    pub jitter: Option<Jitter>,
    /// What a worker's device shares between its lanes, where that is known.
    pub device: Option<DeviceModel>,
}

/// What a worker takes for an iteration beside messages, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Forward and backward.
    pub forward_backward: f64,
    /// What is none of the other figures.
    pub other: f64,
    /// Whether it was measured; else it follows from rates.
    pub measured: bool,
}

impl Machine {
    /// What forward and backward of `plan` of `nets` take: as measured with this network and mini-batch, or else from rates.
    /// A plan that updates, too, counts with all of its tasks.
    pub fn step(&self, nets: &[Net], plan: &Plan, batch: usize) -> StepCost {
        let name = nets.first().map_or("", |net| net.name.as_str());
        match self.steps.iter().find(|step| step.network == name && step.batch == batch) {
            Some(step) => {
                StepCost { forward_backward: step.forward_backward, other: step.other, measured: true }
            }
            None => {
                let serial = CostModel { rates: self.rates }.serial(nets, plan);
                StepCost { forward_backward: serial, other: 0.0, measured: false }
            }
        }
    }

    /// Nanoseconds of a worker's update of `bytes` of weights.
    pub fn update(&self, bytes: usize) -> f64 {
        bytes as f64 / self.worker_update
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_alpha_and_n_beta() {
        // 56 Gb/s FDR of the paper's Table 2: 0.7 microseconds and 0.2 ns a byte.
        let fdr = Link { latency: 700.0, bandwidth: 5.0, serial: false };
        assert_eq!((fdr.transfer(1_000), fdr.message(1_000)), (200.0, 900.0));
    }
}
