//! What several test files need: the GPU, options and plans.

use std::sync::OnceLock;

use quadrille_core::net::Net;
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::solver::Rule;
use quadrille_gpu::{Cuda, Libraries, Options};

pub use crate::made::{convolution, fractions, inner_product, input, integers, labels, loss, network};

/// The variable that makes a missing GPU an error, for a machine that has one.
const REQUIRED: &str = "QUADRILLE_REQUIRE_GPU";

/// The variable that says that GPUs are those of `scripts/cuda-emulator`.
const EMULATED: &str = "QUADRILLE_CUDA_EMULATOR";

/// The first GPU; `None`, said aloud, where there is none. A test asks once.
pub fn gpu(test: &str) -> Option<&'static Cuda> {
    static GPU: OnceLock<Result<Cuda, String>> = OnceLock::new();
    match GPU.get_or_init(|| Cuda::open(0).map_err(|error| error.to_string())) {
        Ok(gpu) => {
            if std::env::var_os(EMULATED).is_some() {
                println!("on the emulator: {test}");
            }
            Some(gpu)
        }
        Err(reason) => {
            assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set: {reason}");
            println!("skipped: {test} on a GPU: {reason}");
            None
        }
    }
}

/// Options with our own kernels alone.
pub fn own(rule: Rule) -> Options {
    Options { libraries: Libraries::NONE, ..Options::new(rule, false) }
}

/// A plan of one stage with a chunk for each layer.
pub fn plan(nets: &[Net], stage: Stage) -> Plan {
    Plan::build(nets, PlanOptions::new(stage)).expect("a plan")
}
