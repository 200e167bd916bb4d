//! What several test files need: the GPU, layers, networks and integers.

use std::sync::OnceLock;

use quadrille_core::layer::{Convolution, Filler, InnerProduct, Input, Layer, SoftmaxWithLoss, VarianceNorm};
use quadrille_core::net::{GivenState, LayerSpec, Net, NetSpec};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::solver::Rule;
use quadrille_gpu::{Cuda, Libraries, Options};

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

/// `count` integers between −`limit` and `limit`, none of them 0.
pub fn integers(seed: u64, count: usize, limit: u32) -> Vec<f32> {
    let stream = Stream::new(seed, Purpose::Dummy, 0);
    let integer = |i| {
        let bits = stream.bits(i);
        let value = (1 + (bits >> 1) % limit) as f32;
        if bits & 1 == 0 { value } else { -value }
    };
    (0..count as u64).map(integer).collect()
}

/// `count` numbers in [−1, 1).
pub fn fractions(seed: u64, count: usize) -> Vec<f32> {
    let stream = Stream::new(seed, Purpose::Dummy, 1);
    (0..count as u64).map(|i| 2.0 * stream.uniform(i) - 1.0).collect()
}

/// `count` labels below `classes`.
pub fn labels(seed: u64, count: usize, classes: usize) -> Vec<f32> {
    let stream = Stream::new(seed, Purpose::Sampling, 0);
    (0..count as u64).map(|i| (stream.bits(i) % classes as u32) as f32).collect()
}

/// A convolution with a bias; the rest is to be changed.
pub fn convolution(num_output: usize, kernel: [usize; 2]) -> Convolution {
    Convolution {
        num_output,
        kernel,
        pad: [0; 2],
        stride: [1; 2],
        dilation: [1; 2],
        group: 1,
        bias: true,
        relu: false,
        weight_filler: Filler::Xavier(VarianceNorm::FanIn),
        bias_filler: Filler::default(),
    }
}

/// An inner product with a bias over everything from axis 1 on; the rest is to be changed.
pub fn inner_product(num_output: usize) -> InnerProduct {
    InnerProduct {
        num_output,
        bias: true,
        axis: 1,
        transpose: false,
        weight_filler: Filler::Xavier(VarianceNorm::FanIn),
        bias_filler: Filler::default(),
    }
}

/// A loss along `axis`.
pub fn loss(axis: i32) -> Layer {
    Layer::SoftmaxWithLoss(SoftmaxWithLoss { axis, ignore_label: None, normalization: Default::default() })
}

/// An input of one top.
pub fn input(name: &str, dims: &[usize]) -> LayerSpec {
    LayerSpec::new(name, Layer::Input(Input { shapes: vec![dims.to_vec()], tops: 1 }), &[], &[name])
}

/// A network of these layers.
pub fn network(layers: Vec<LayerSpec>, force_backward: bool) -> NetSpec {
    NetSpec {
        name: "test".into(),
        file: "made".into(),
        force_backward,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    }
}
