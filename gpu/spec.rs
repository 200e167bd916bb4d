//! What a worker's GPU is to run, and how.

use std::fmt;

use quadrille_core::device::DeviceError;
use quadrille_core::net::Net;
use quadrille_core::plan::Plan;
use quadrille_core::plan::lanes::KernelUsage;
use quadrille_core::solver::Rule;
use quadrille_core::task::Task;

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

/// What convolutions and inner products do with the numbers that they multiply. Sums are f32, and so are all arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// They are multiplied as they are.
    #[default]
    F32,
    /// Libraries may round them to TF32: ten bits of mantissa in place of 23.
    Tf32,
    /// They are rounded to bf16: seven bits of mantissa.
    Bf16,
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Tf32 => "TF32",
            Self::Bf16 => "bf16",
        })
    }
}

/// In which order values lie on a GPU; outside of it they are in that of N, C, H, W.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Channels behind pixels where convolutions by cuDNN gain by it.
    #[default]
    Chosen,
    /// N, H, W, C wherever the layers' kernels know it; for tests.
    ChannelsLast,
    /// N, C, H, W.
    ChannelsFirst,
}

/// How a GPU computes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The update rule.
    pub rule: Rule,
    /// Whether updates are pulled by a centre (EASGD).
    pub elastic: bool,
    /// How products are computed.
    pub arithmetic: Arithmetic,
    /// Which libraries may be used.
    pub libraries: Libraries,
    /// In which order values lie.
    pub order: Order,
    /// Whether each plan is recorded as a CUDA graph, which a step then launches by one call. All tasks of such a step have
    /// the time of the whole step.
    pub graph: bool,
}

impl Options {
    /// In f32, with all libraries, task by task.
    pub fn new(rule: Rule, elastic: bool) -> Self {
        let (arithmetic, libraries, order) = (Arithmetic::F32, Libraries::ALL, Order::Chosen);
        Self { rule, elastic, arithmetic, libraries, order, graph: false }
    }
}

/// What the resource tracker of a GPU saw of a task when it was run for the first time, after GLP4NN.
#[derive(Clone, Debug, PartialEq)]
pub struct Sighting {
    /// The task.
    pub task: Task,
    /// What its kernels use: launch configuration, registers and shared memory from the driver, durations from events.
    pub kernels: Vec<KernelUsage>,
    /// Operations by libraries, of whose kernels nobody knows what they use.
    pub by_libraries: usize,
    /// Nanoseconds of all its operations, one after the other.
    pub nanoseconds: f64,
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
