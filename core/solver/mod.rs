//! Update rules, learning-rate policies and the EASGD equations.

pub mod easgd;
mod nets;
mod packed;
mod policy;
mod rule;
mod running_sum;
mod smoothed;

pub use nets::{NetSource, StateChange, TestNet};
pub use packed::{PackedPiece, PackedRule};
pub use policy::{Plateau, Policy, RateStage, Warmup};
pub use rule::{Decay, Elastic, Rule, RuleKind, Step, update, update_by};
pub use running_sum::add_to_running_sum;
pub use smoothed::SmoothedLoss;

use crate::site::Site;

/// What a solver file says.
#[derive(Clone, Debug, PartialEq)]
pub struct SolverSpec {
    /// Where it says so.
    pub site: Site,
    /// The network to train.
    pub train_net: NetSource,
    /// What is added to its state.
    pub train_state: StateChange,
    /// Files of weights to start from, as written; what a later one has replaces what an earlier one had.
    pub weights: Vec<String>,
    /// Learning rate at the start, or behind the warm-up.
    pub base_lr: f32,
    /// How the learning rate changes.
    pub policy: Policy,
    /// How it begins, if not with the policy.
    pub warmup: Option<Warmup>,
    /// The rule that changes the weights.
    pub rule: Rule,
    /// Mini-batches of an iteration, whose gradients are added up before the update; at least 1.
    pub iter_size: u64,
    /// Iterations over which the loss that is shown is averaged; at least 1.
    pub average_loss: u64,
    /// Iterations to train; 0 if the file does not say it.
    pub max_iter: u64,
    /// Iterations between lines of progress; 0 for none.
    pub display: u64,
    /// Iterations between tests; 0 for none.
    pub test_interval: u64,
    /// The networks to test, in Caffe's order.
    pub test_nets: Vec<TestNet>,
    /// Whether the loss of a test is shown.
    pub test_compute_loss: bool,
    /// Whether to test before the first iteration.
    pub test_initialization: bool,
    /// Iterations between snapshots; 0 for one at the end only.
    pub snapshot: u64,
    /// Whether to write a snapshot at the end.
    pub snapshot_after_train: bool,
    /// A field that asks for what no training does yet.
    pub undone: Option<String>,
    /// Whether what is written for Caffe at the end, weights and state, is HDF5.
    pub snapshot_hdf5: bool,
    /// Seed of all random numbers; `None` if the file leaves it open.
    pub seed: Option<u64>,
    /// Whether mean magnitudes of all values and gradients are shown whenever the loss is.
    pub debug_info: bool,
    /// Fields that were read and have no effect here, for the first lines of a run.
    pub ignored: Vec<String>,
}

impl SolverSpec {
    /// The learning rate of an iteration, counted from 0.
    pub fn rate(&self, iteration: u64, plateau: &Plateau) -> f32 {
        let warm = self.warmup.and_then(|warmup| warmup.rate(self.base_lr, iteration));
        warm.unwrap_or_else(|| self.policy.rate(self.base_lr, iteration, plateau.steps))
    }

    /// The rate that the pull of a centre is measured by: `base_lr`, or the highest of the rates that stages have instead.
    pub fn highest_rate(&self) -> f32 {
        match &self.policy {
            Policy::MultiFixed(stages) => stages.iter().map(|stage| stage.rate).fold(self.base_lr, f32::max),
            _ => self.base_lr,
        }
    }

    /// Whether the rate of an iteration depends on its loss, so that it is not known before the gradients are found.
    pub fn rate_follows_loss(&self) -> bool {
        matches!(self.policy, Policy::Plateau { .. })
    }

    /// Lets a plateau see the smoothed loss of an iteration, which may change the iteration's own rate. As in Intel's fork
    /// it looks away while the rate is warmed up.
    pub fn note_loss(&self, plateau: &mut Plateau, iteration: u64, smoothed: f32) {
        let warm = self.warmup.is_some_and(|warmup| iteration < warmup.iterations);
        if let (Policy::Plateau { windows, .. }, false) = (&self.policy, warm) {
            plateau.note(windows, iteration, smoothed);
        }
    }
}
