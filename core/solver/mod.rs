//! Update rules, learning-rate policies and the EASGD equations.

pub mod easgd;
mod policy;
mod running_sum;
mod sgd;

pub use policy::Policy;
pub use running_sum::add_to_running_sum;
pub use sgd::{Decay, Elastic, SgdRule, Step, update};

use crate::site::Site;

/// What a solver file says.
#[derive(Clone, Debug, PartialEq)]
pub struct SolverSpec {
    /// Where it says so.
    pub site: Site,
    /// The network file, as written.
    pub net: String,
    /// Learning rate at the start.
    pub base_lr: f32,
    /// How the learning rate changes.
    pub policy: Policy,
    /// The rule that changes the weights.
    pub rule: SgdRule,
    /// Iterations to train.
    pub max_iter: u64,
    /// Iterations between lines of progress; 0 for none.
    pub display: u64,
    /// Iterations between tests; 0 for none.
    pub test_interval: u64,
    /// Mini-batches of a test.
    pub test_iter: u64,
    /// Whether to test before the first iteration.
    pub test_initialization: bool,
    /// Iterations between snapshots; 0 for one at the end only.
    pub snapshot: u64,
    /// Whether to write a snapshot at the end.
    pub snapshot_after_train: bool,
    /// Seed of all random numbers; `None` if the file leaves it open.
    pub seed: Option<u64>,
    /// Fields that were read and have no effect here, for the first lines of a run.
    pub ignored: Vec<String>,
}
