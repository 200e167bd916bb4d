//! What a worker's GPU is to run, and how.

use std::fmt;

use quadrille_core::device::DeviceError;
use quadrille_core::net::Net;
use quadrille_core::plan::Plan;
use quadrille_core::solver::Rule;

/// A net on one GPU, and the plans that will be run on it.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// The net.
    pub net: &'a Net,
    /// Its plans.
    pub plans: &'a [&'a Plan],
}

/// Which of NVIDIA's libraries are used where they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Libraries {
    /// cuBLAS, for inner products.
    pub blas: bool,
    /// cuDNN, for convolutions.
    pub dnn: bool,
}

impl Libraries {
    /// Both.
    pub const ALL: Self = Self { blas: true, dnn: true };
    /// Our own kernels only.
    pub const NONE: Self = Self { blas: false, dnn: false };
}

/// How a GPU computes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The update rule.
    pub rule: Rule,
    /// Whether updates are pulled by a centre (EASGD).
    pub elastic: bool,
    /// Whether products may round their factors to TF32: ten bits of mantissa in place of 23.
    pub tf32: bool,
    /// Which libraries may be used.
    pub libraries: Libraries,
    /// Whether each plan is recorded as a CUDA graph, which a step then launches by one call. All tasks of such a step have
    /// the time of the whole step.
    pub graph: bool,
}

impl Options {
    /// In f32, with all libraries, task by task.
    pub fn new(rule: Rule, elastic: bool) -> Self {
        Self { rule, elastic, tf32: false, libraries: Libraries::ALL, graph: false }
    }
}

/// A worker's GPU could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaError {
    /// A plan that is not valid. A bug of the planner.
    Plan(String),
    /// A net with something that no kernel of ours does.
    Layer(String),
    /// What the environment did not give.
    Device(DeviceError),
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(reason) => write!(f, "invalid plan: {reason}"),
            Self::Layer(reason) => f.write_str(reason),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CudaError {}

impl From<DeviceError> for CudaError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}
