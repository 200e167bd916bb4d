//! What several test files need: tiers, workers, layers, networks and integers.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use quadrille_core::layer::{
    Accuracy, BatchNorm, Convolution, Eltwise, EltwiseOperation, Filler, Layer, PoolMethod, Pooling, Relu,
    Scale,
};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetSpec, NetState, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::solver::Rule;
use quadrille_core::task::Tile;
use quadrille_cpu::isa::{Isa, Numerics};
use quadrille_cpu::{CpuWorker, CrewSpec, EngineError, EngineOptions, Program, implementations};

pub use crate::made::{convolution, fractions, inner_product, input, integers, labels, loss, network};

/// The tiers with f32 kernels of their own that this CPU has; says aloud which of them `test` has to skip.
pub fn tiers(test: &str) -> Vec<Isa> {
    those_here(test, |isa| isa.of_f32_kernels() == isa)
}

/// The same for tiers with kernels of bf16.
pub fn tiers_of_bf16(test: &str) -> Vec<Isa> {
    those_here(&format!("bf16: {test}"), Isa::has_bf16)
}

/// The f32 of [`tiers`] and the bf16 of [`tiers_of_bf16`].
pub fn numerics(test: &str) -> Vec<Numerics> {
    let f32 = tiers(test).into_iter().map(Numerics::from);
    f32.chain(tiers_of_bf16(test).into_iter().map(Numerics::bf16)).collect()
}

/// The variable with the one tier that tests go through, where all of them take too long: an emulator of a CPU interprets.
const ONLY: &str = "QUADRILLE_TEST_ISA";

/// Says once for each test and tier what is skipped, since a skipped line counts.
fn those_here(test: &str, wanted: fn(Isa) -> bool) -> Vec<Isa> {
    static SAID: Mutex<BTreeSet<(String, Isa)>> = Mutex::new(BTreeSet::new());
    let only = std::env::var(ONLY).ok();
    // Asked for and not there is an error: nothing would be tested.
    let only = only.map(|name| name.parse::<Isa>().unwrap_or_else(|error| panic!("{ONLY}: {error}")));
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let mut here = Vec::new();
    for isa in Isa::ALL.into_iter().filter(|isa| wanted(*isa)) {
        let reason = match only {
            _ if !isa.is_available() => "this CPU does not have it".to_owned(),
            Some(only) if only != isa => format!("{ONLY} asks for {only} alone"),
            _ => {
                here.push(isa);
                continue;
            }
        };
        if said.insert((test.to_owned(), isa)) {
            println!("skipped: {test} on {isa}: {reason}");
        }
    }
    here
}

/// Every tier and precision of this CPU, with the implementations that a layer has there; of those that multiply in f32
/// in either precision, f32.
pub fn ways(test: &str, net: &Net, id: LayerId) -> Vec<(Numerics, &'static str)> {
    let mut ways = Vec::new();
    for isa in tiers(test) {
        let names = implementations(net, id, isa);
        ways.extend(names.into_iter().map(|name| (Numerics::from(isa), name)));
    }
    // No other layer multiplies in bf16 on any tier.
    let multiplies = matches!(net.layer(id).layer, Layer::Convolution(_) | Layer::InnerProduct(_));
    for isa in multiplies.then(|| tiers_of_bf16(test)).into_iter().flatten() {
        let known = implementations(net, id, isa);
        let names = implementations(net, id, Numerics::bf16(isa)).into_iter();
        ways.extend(names.filter(|n| !known.contains(n)).map(|name| (Numerics::bf16(isa), name)));
    }
    ways
}

/// Crews of `threads` unpinned threads each; from three on, all but the first are as behind another cache.
pub fn crews(quadrants: usize, threads: usize) -> Vec<CrewSpec> {
    let caches = |threads: usize| (0..threads).map(|thread| usize::from(threads > 2 && thread > 0)).collect();
    let crew = |q: usize| CrewSpec {
        caches: caches(threads),
        ..CrewSpec::roaming(&format!("quadrant {q}"), threads)
    };
    (0..quadrants).map(crew).collect()
}

/// Options without forced kernels, momentum or decay.
pub fn options(numerics: impl Into<Numerics>) -> EngineOptions {
    let Numerics { isa, precision } = numerics.into();
    let rule = Rule::default();
    EngineOptions { isa, precision, kernels: Vec::new(), rule, elastic: false, spin: false }
}

/// A worker with one program: `plan` on `nets`, one crew of `threads` for each.
pub fn worker(
    nets: &[Net],
    plan: &Plan,
    threads: usize,
    options: &EngineOptions,
) -> Result<CpuWorker, EngineError> {
    CpuWorker::new(&crews(nets.len(), threads), &[Program { nets, plans: &[plan] }], options)
}

/// A plan of one stage with a chunk for each layer.
pub fn plan(nets: &[Net], stage: Stage) -> Plan {
    Plan::build(nets, PlanOptions::new(stage)).expect("a plan")
}

/// LeNet in small, over images of 16 × 16 in 10 classes, with a split for its accuracy.
pub fn small_lenet(batch: usize) -> NetSpec {
    let max = Pooling { method: PoolMethod::Max, kernel: Some([2; 2]), pad: [0; 2], stride: [2; 2] };
    let accuracy = Layer::Accuracy(Accuracy { top_k: 1, axis: 1, ignore_label: None });
    network(
        vec![
            input("data", &[batch, 1, 16, 16]),
            input("label", &[batch]),
            LayerSpec::new("conv1", Layer::Convolution(convolution(8, [5, 5])), &["data"], &["conv1"]),
            LayerSpec::new("pool1", Layer::Pooling(max.clone()), &["conv1"], &["pool1"]),
            LayerSpec::new("conv2", Layer::Convolution(convolution(12, [3, 3])), &["pool1"], &["conv2"]),
            LayerSpec::new("pool2", Layer::Pooling(max), &["conv2"], &["pool2"]),
            LayerSpec::new("ip1", Layer::InnerProduct(inner_product(40)), &["pool2"], &["ip1"]),
            LayerSpec::new("relu1", Layer::Relu(Relu::default()), &["ip1"], &["ip1"]),
            LayerSpec::new("ip2", Layer::InnerProduct(inner_product(10)), &["ip1"], &["ip2"]),
            LayerSpec::new("accuracy", accuracy, &["ip2", "label"], &["accuracy"]),
            LayerSpec::new("loss", loss(1), &["ip2", "label"], &["loss"]),
        ],
        false,
    )
}

/// A block of a residual net over images of 3 × 12 × 12 in 10 classes: two chains of convolution, normalisation and
/// scale, of which one has a ReLU, and the ReLU of their sum. Channels are no whole blocks.
pub fn small_residual(batch: usize) -> NetSpec {
    let norm =
        || Layer::BatchNorm(BatchNorm { use_global_stats: None, moving_average_fraction: 0.9, eps: 1e-5 });
    let scale = || {
        let (filler, bias_filler) = (Filler::Constant(1.0), Filler::Constant(0.1));
        Layer::Scale(Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler })
    };
    let conv = || Layer::Convolution(Convolution { bias: false, pad: [1, 1], ..convolution(20, [3, 3]) });
    let relu = || Layer::Relu(Relu::default());
    let operation = EltwiseOperation::Sum { coefficients: Vec::new(), relu: false };
    let sum = Layer::Eltwise(Eltwise { bottoms: 2, operation });
    network(
        vec![
            input("data", &[batch, 3, 12, 12]),
            input("label", &[batch]),
            LayerSpec::new("conv1", conv(), &["data"], &["conv1"]),
            LayerSpec::new("bn1", norm(), &["conv1"], &["conv1"]),
            LayerSpec::new("scale1", scale(), &["conv1"], &["conv1"]),
            LayerSpec::new("relu1", relu(), &["conv1"], &["conv1"]),
            LayerSpec::new("conv2", conv(), &["conv1"], &["conv2"]),
            LayerSpec::new("bn2", norm(), &["conv2"], &["conv2"]),
            LayerSpec::new("scale2", scale(), &["conv2"], &["conv2"]),
            LayerSpec::new("sum", sum, &["conv1", "conv2"], &["sum"]),
            LayerSpec::new("relu2", relu(), &["sum"], &["sum"]),
            LayerSpec::new("ip", Layer::InnerProduct(inner_product(10)), &["sum"], &["ip"]),
            LayerSpec::new("loss", loss(1), &["ip", "label"], &["loss"]),
        ],
        false,
    )
}

/// One net for each quadrant: `make(batch)` on near-equal parts of a mini-batch.
pub fn nets(make: impl Fn(usize) -> NetSpec, batch: usize, quadrants: usize) -> Vec<Net> {
    let build = |tile: Tile| {
        let share = tile.images as f32 / batch as f32;
        Net::build(&make(tile.images), &NetState::new(Phase::Train), share).expect("a net")
    };
    Tile::cut(batch, quadrants).into_iter().map(build).collect()
}
