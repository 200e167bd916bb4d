//! Layers in chunks of images, dealt out to lanes (GLP4NN): the same bits for any number of lanes and threads.

use quadrille_core::device::{Device, Lane, Packed, Region, Scalars};
use quadrille_core::layer::Layer;
use quadrille_core::net::{LayerSpec, Net, NetSpec};
use quadrille_core::plan::lanes::{Pool, chunks_of, deal, in_chunks};
use quadrille_core::plan::{Node, Plan, PlanOptions, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::Rule;
use quadrille_core::task::LaneId;
use quadrille_cpu::{EngineOptions, NAN_HALVES};

use crate::common::{
    convolution, fractions, inner_product, input, labels, nets, network, numerics, options, worker,
};

const BATCH: usize = 7;
const PIXELS: usize = 3 * 13 * 13;
const STEPS: u64 = 3;

fn spec() -> NetSpec {
    let layers = vec![
        input("data", &[BATCH, 3, 13, 13]),
        input("label", &[BATCH]),
        LayerSpec::new("conv1", Layer::Convolution(convolution(20, [3, 3])), &["data"], &["conv1"]),
        LayerSpec::new("conv2", Layer::Convolution(convolution(17, [3, 3])), &["conv1"], &["conv2"]),
        LayerSpec::new("ip", Layer::InnerProduct(inner_product(10)), &["conv2"], &["ip"]),
        LayerSpec::new("loss", crate::common::loss(1), &["ip", "label"], &["loss"]),
    ];
    network(layers, false)
}

/// Weights after some steps, as bits.
fn train(nets: &[Net], lanes: u32, threads: usize, options: &EngineOptions) -> Vec<u32> {
    let built = Plan::build(nets, PlanOptions::new(Stage::Iteration)).expect("a plan");
    let chunks = ["conv1", "conv2"].map(|name| chunks_of(&nets[0], name));
    assert_eq!(chunks.each_ref().map(Vec::len), [4, 4]);
    let pool = Pool { default: LaneId(0), first: LaneId(1), lanes };
    let lane = |node: &Node| {
        let chunk = chunks.iter().find_map(|chunks| chunks.iter().position(|l| *l == node.task.layer));
        chunk.map_or(pool.default, |chunk| pool.lane(chunk, lanes))
    };
    let all = (0..=lanes as usize).map(|id| Lane { id: LaneId(id), priority: 0 }).collect();
    let plan = deal(built, nets, all, lane);
    let worker = worker(nets, &plan, threads, options).expect("a worker");
    let devices = worker.devices(0);
    let net = &nets[0];
    let mut weights = vec![0.0; net.params.len()];
    net.params.fill(7, &mut weights);
    devices[0].write(Region::Packed(Packed::Weights), &weights).expect("weights");
    let stage = |name: &str| Region::Stage(net.blobs.iter().find(|b| b.name == name).expect("a blob").data);
    let mut times = StepTimes::default();
    for step in 0..STEPS {
        devices[0].write(stage("data"), &fractions(100 + step, BATCH * PIXELS)).expect("a stage");
        devices[0].write(stage("label"), &labels(200 + step, BATCH, 10)).expect("a stage");
        devices[0].fill_transient(NAN_HALVES).expect("memory");
        let scalars = Scalars { iteration: step, rate: 0.01, elastic: 0.0, seed: step };
        run_step(&devices, &plan, &scalars, &mut times).expect("a step");
    }
    devices[0].read(Region::Packed(Packed::Weights), &mut weights).expect("weights");
    assert!(weights.iter().all(|weight| weight.is_finite()));
    weights.into_iter().map(f32::to_bits).collect()
}

#[test]
fn one_lane_and_many_give_the_same_bits() {
    let whole = nets(|_| spec(), BATCH, 1);
    let cut =
        in_chunks(&spec(), &whole[0], |layer| layer.name.starts_with("conv").then_some(2)).expect("chunks");
    let nets = nets(|_| cut.clone(), BATCH, 1);
    for numerics in numerics("chunks") {
        let options = EngineOptions { rule: Rule::sgd(0.9, 5e-4), ..options(numerics) };
        let expected = train(&nets, 1, 1, &options);
        for (lanes, threads) in [(1, 3), (2, 2), (3, 1), (4, 3), (7, 2)] {
            assert!(
                train(&nets, lanes, threads, &options) == expected,
                "{numerics}: {lanes} lanes, {threads} threads"
            );
        }
    }
}
