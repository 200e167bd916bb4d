//! Weights that are updated as their gradients are found: the same bits as in two passes, and no gradient anywhere.

use quadrille_core::device::{Device, DeviceError, Packed, Region, Scalars};
use quadrille_core::layer::{InnerProduct, Layer, Relu, SubTask};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetSpec, ParamSpec};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::{Decay, Rule, RuleKind};
use quadrille_core::task::{DeviceId, Task, Tile};
use quadrille_cpu::isa::{Isa, Numerics};
use quadrille_cpu::{EngineError, EngineOptions, NAN_HALVES, passing_layers, stepping_layers, storage_needs};

use crate::common::{
    convolution, fractions, inner_product, input, labels, nets, network, numerics, options, plan,
    small_lenet, worker,
};
use crate::exact::kinds;

/// Images of a mini-batch: odd numbers, so that in bf16 the last has no partner; many, and few.
const BATCH: usize = 19;
const FEW: usize = 7;
const PIXELS: usize = 3 * 13 * 13;
const STEPS: u64 = 3;

/// The net with the weights updated in one pass where the engine can.
pub fn stepping(net: Net, options: &EngineOptions) -> Net {
    let can = stepping_layers(&net, options.numerics(), &options.kernels).expect("kernels");
    net.stepping(|layer| can.contains(&layer))
}

/// A large inner product behind blocks of channels, of several grains, whose 4356 inputs are no whole tiles and more than one piece of
/// ∇A, and whose 301 outputs no whole blocks of rows, nor fours; and a small one without a bias, of less than a block of rows but whole fours.
/// Each has factors of its own.
pub fn behind_blocks(batch: usize) -> NetSpec {
    let small = InnerProduct { bias: false, ..inner_product(12) };
    let with = |spec: LayerSpec, factors: [f32; 2]| LayerSpec {
        params: vec![ParamSpec::with(factors[0], factors[1])],
        ..spec
    };
    let layers = vec![
        input("data", &[batch, 3, 13, 13]),
        input("label", &[batch]),
        LayerSpec::new("conv", Layer::Convolution(convolution(36, [3, 3])), &["data"], &["conv"]),
        LayerSpec::new("relu1", Layer::Relu(Relu::default()), &["conv"], &["conv"]),
        with(LayerSpec::new("ip1", Layer::InnerProduct(inner_product(301)), &["conv"], &["ip1"]), [0.5, 2.0]),
        LayerSpec::new("relu2", Layer::Relu(Relu::default()), &["ip1"], &["ip1"]),
        with(LayerSpec::new("ip2", Layer::InnerProduct(small), &["ip1"], &["ip2"]), [2.0, 0.0]),
        LayerSpec::new("loss", crate::common::loss(1), &["ip2", "label"], &["loss"]),
    ];
    network(layers, false)
}

fn as_bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// Weights, histories and gradients after some steps, as bits. Whatever is not kept from step to step is NaN before each.
fn train(net: Net, options: &EngineOptions, threads: usize) -> [Vec<u32>; 3] {
    let nets = [net];
    let built =
        Plan::build(&nets, PlanOptions { elastic: options.elastic, ..PlanOptions::new(Stage::Iteration) });
    let plan = built.expect("a plan");
    let worker = worker(&nets, &plan, threads, options).expect("a worker");
    let devices = worker.devices(0);
    let [device] = &devices[..] else { panic!("one device") };
    let [net] = nets;
    let len = net.params.len();
    let mut weights = vec![0.0; len];
    net.params.fill(7, &mut weights);
    device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
    // So small that the net does not run away from its data.
    let small = |seed: u64, most: f32| fractions(seed, len).iter().map(|v| most * v).collect::<Vec<f32>>();
    let momenta = matches!(options.rule.kind, RuleKind::Sgd { .. } | RuleKind::Nesterov { .. });
    // The others keep sums of squares, which are not negative.
    let kept = |h: &f32| if momenta { *h } else { h.abs() };
    let kept: Vec<f32> = small(3, 1e-3).iter().map(kept).collect();
    let kept = kept.repeat(options.rule.kind.histories());
    device.write(Region::Packed(Packed::Histories), &kept).expect("histories");
    if options.elastic {
        device.write(Region::Packed(Packed::Centre), &small(4, 0.05)).expect("a centre");
    }
    let stage = |name: &str| Region::Stage(net.blobs.iter().find(|b| b.name == name).expect("a blob").data);
    let mut times = StepTimes::default();
    for step in 0..STEPS {
        device.write(stage("data"), &fractions(100 + step, net.batch() * PIXELS)).expect("a stage");
        device.write(stage("label"), &labels(200 + step, net.batch(), 10)).expect("a stage");
        device.fill_transient(NAN_HALVES).expect("memory");
        let scalars = Scalars { iteration: step, rate: 0.01, elastic: 0.125, seed: step };
        run_step(&devices, &plan, &scalars, &mut times).expect("a step");
    }
    [Packed::Weights, Packed::Histories, Packed::Gradients].map(|packed| {
        let histories = if packed == Packed::Histories { options.rule.kind.histories() } else { 1 };
        let mut values = vec![0.0; histories * len];
        device.read(Region::Packed(packed), &mut values).expect("a packed buffer");
        as_bits(values)
    })
}

/// Momentum SGD in its ways, and every other rule, each with and without a centre in turn.
fn rules() -> Vec<(Rule, bool)> {
    let rule = |momentum, weight_decay, decay| Rule { decay, ..Rule::sgd(momentum, weight_decay) };
    let others = kinds().into_iter().skip(1).enumerate();
    let others = others.map(|(index, kind)| (Rule { kind, ..rule(0.0, 5e-4, Decay::L2) }, index % 2 == 1));
    [
        (rule(0.9, 5e-4, Decay::L2), false),
        (rule(0.9, 5e-3, Decay::L1), false),
        (rule(0.9, 5e-4, Decay::L2), true),
        (rule(0.0, 5e-3, Decay::L1), true),
    ]
    .into_iter()
    .chain(others)
    .collect()
}

fn tiers_that_step(test: &str) -> Vec<Numerics> {
    numerics(test).into_iter().filter(|numerics| numerics.isa != Isa::Portable).collect()
}

/// How a net is trained in one pass.
#[derive(Clone, Copy, Debug)]
struct How {
    threads: usize,
    shares_memory: bool,
    /// Whether ∇A updates the weights.
    in_passing: bool,
}

/// Trains with the weights updated in one pass and compares with what two passes gave.
fn check_step(apart: &Net, options: &EngineOptions, way: How, expected: &[Vec<u32>; 3]) {
    let how = format!("{options:?}, {way:?}, {} images", apart.batch());
    let mut net = stepping(apart.clone(), options);
    if way.in_passing {
        net = net.stepping_in_passing(|_| true);
        let passing = net.layers.iter().filter(|layer| layer.steps_in_passing).count();
        assert_eq!(passing, 2, "ip1 and ip2: {how}");
    }
    let trained = net.layers.iter().filter(|layer| !layer.params.is_empty());
    let steps: Vec<bool> = trained.map(|layer| layer.steps_weight).collect();
    assert_eq!(steps, [false, true, true], "conv, ip1 and ip2: {how}");
    if way.shares_memory {
        let needs = storage_needs(&net, options.numerics(), &[]).expect("kernels");
        net = net.sharing_memory(&needs);
    }
    let views = net.params.views().to_vec();
    let found = train(net, options, way.threads);
    assert!(found[0] == expected[0], "other weights: {how}");
    assert!(found[1] == expected[1], "other histories: {how}");
    for view in views {
        let [stored, gradient] = [&found, expected].map(|buffers| &buffers[2][view.range()]);
        let zeros = gradient.iter().filter(|bits| **bits == 0).count();
        // Of few images many a ReLU lets none pass.
        assert!(zeros * 10 < 9 * gradient.len(), "mistrusted: {} has no gradient to speak of", view.name);
        if ["ip1/0", "ip2/0"].contains(&view.name.as_str()) {
            assert!(stored.iter().all(|bits| *bits == 0), "the gradient of {} is stored: {how}", view.name);
        } else {
            assert!(stored == gradient, "{}: {how}", view.name);
        }
    }
}

#[test]
fn one_pass_gives_the_bits_of_two() {
    let apart = nets(behind_blocks, BATCH, 1).remove(0);
    for numerics in tiers_that_step("updates in one pass with gradients") {
        for (rule, elastic) in rules() {
            let options = EngineOptions { rule, elastic, ..options(numerics) };
            let expected = train(apart.clone(), &options, 2);
            for threads in [1, 2, 3] {
                for shares_memory in [false, true] {
                    check_step(
                        &apart,
                        &options,
                        How { threads, shares_memory, in_passing: false },
                        &expected,
                    );
                }
            }
        }
    }
}

#[test]
fn an_update_in_passing_gives_the_bits_of_one_apart() {
    for numerics in tiers_that_step("updates in passing") {
        for batch in [FEW, BATCH] {
            let apart = nets(behind_blocks, batch, 1).remove(0);
            // Momentum SGD is built into what passes, but with a penalty of L1.
            let rules = rules().into_iter().enumerate().filter(|(index, _)| index % 2 == 0 || *index == 1);
            for (_, (rule, elastic)) in rules {
                let options = EngineOptions { rule, elastic, ..options(numerics) };
                let expected = train(apart.clone(), &options, 2);
                for (threads, shares_memory) in [(1, false), (2, true), (3, true)] {
                    check_step(&apart, &options, How { threads, shares_memory, in_passing: true }, &expected);
                }
            }
        }
    }
}

/// Large weights of few images, and one device that has them all.
#[test]
fn it_passes_where_all_is_bound_by_memory() {
    let names = |batch: usize, quadrants: usize, numerics: Numerics| -> Vec<String> {
        let net = nets(behind_blocks, batch, quadrants).remove(0);
        let layers = passing_layers(&net, numerics, &[]).expect("kernels");
        layers.into_iter().map(|id| net.layer(id).name.clone()).collect()
    };
    assert!(names(FEW, 1, Isa::Portable.into()).is_empty());
    for numerics in tiers_that_step("who updates in passing") {
        assert_eq!(names(FEW, 1, numerics), ["ip1"], "{numerics}");
        assert!(names(BATCH, 1, numerics).is_empty(), "{numerics}");
        assert!(names(8, 2, numerics).is_empty(), "{numerics}");
    }
}

#[test]
fn tiles_alone_can_step() {
    let net = nets(small_lenet, 4, 1).remove(0);
    let names = |numerics: Numerics, forced: &[(String, String)]| -> Vec<String> {
        let layers = stepping_layers(&net, numerics, forced).expect("kernels");
        layers.into_iter().map(|id| net.layer(id).name.clone()).collect()
    };
    assert!(names(Isa::Portable.into(), &[]).is_empty());
    for numerics in tiers_that_step("who can step") {
        assert_eq!(names(numerics, &[]), ["ip1", "ip2"], "{numerics}");
        for other in ["gemm", "reference"] {
            assert_eq!(names(numerics, &[("ip1".to_owned(), other.to_owned())]), ["ip2"], "{numerics}");
        }
    }
    assert!(stepping_layers(&net, Isa::Portable.into(), &[("ip1".to_owned(), "none".to_owned())]).is_err());
}

#[test]
fn who_cannot_step_refuses() {
    let net = nets(small_lenet, 4, 1).remove(0);
    let ip1 = LayerId(net.layers.iter().position(|l| l.name == "ip1").expect("a layer"));
    let marked = [net.clone().stepping(|layer| layer == ip1)];
    let steps = plan(&marked, Stage::Iteration);
    let kernels = vec![("ip1".to_owned(), "reference".to_owned())];
    let by_reference = EngineOptions { kernels, ..options(Isa::detect()) };
    match worker(&marked, &steps, 1, &by_reference).map(|_| ()) {
        Err(EngineError::Kernel(reason)) => {
            assert!(reason.contains("\"ip1\"") && reason.contains("\"reference\""), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    // A device whose net has the two apart.
    let apart = [net];
    let two_passes = plan(&apart, Stage::Iteration);
    let worker = worker(&apart, &two_passes, 1, &options(Isa::detect())).expect("a worker");
    let task = Task { layer: ip1, sub: SubTask::StepWeight, tile: Tile { first: 0, images: 4 } };
    let lane = two_passes.lane_of(DeviceId(0), ip1, SubTask::GradWeight).expect("a weight gradient");
    let refused = worker.devices(0)[0].submit(lane, &task).map(|_| ());
    assert!(
        matches!(&refused, Err(DeviceError::Unknown { what, .. }) if what.contains("step-weight")),
        "{refused:?}"
    );
}
