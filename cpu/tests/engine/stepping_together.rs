//! Quadrants that find the gradient of the whole mini-batch, each for some rows of a weight: the bits of one quadrant that has
//! all images, the same on every quadrant, and close to gradients that were added up.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{InnerProduct, Layer};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetSpec};
use quadrille_core::plan::{Plan, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::Rule;
use quadrille_core::task::Tile;
use quadrille_cpu::isa::{Isa, Numerics, Precision};
use quadrille_cpu::{
    CpuDevice, CpuWorker, EngineError, EngineOptions, Homes, MappedWorker, NAN_HALVES, Program, Purpose,
    stepping_layers, storage_needs,
};
use quadrille_numa::memory::plan::Home;

use crate::common::{
    crews, fractions, inner_product, input, labels, nets, network, numerics, options, plan, small_lenet,
    worker,
};
use crate::stepping::behind_blocks;

/// The inner products of the net of these tests that a precision can step on several quadrants: in bf16 the blob behind the
/// convolution is kept in other numbers than its reader wants, and a copy of it is a quadrant's own.
fn together(precision: Precision) -> &'static [&'static str] {
    if precision == Precision::Bf16 { &["ip2"] } else { &["ip1", "ip2"] }
}

fn marked(nets: Vec<Net>, layers: &[&str]) -> Vec<Net> {
    let mark = |net: Net| {
        let ids: Vec<LayerId> = (0..net.layers.len())
            .map(LayerId)
            .filter(|id| layers.contains(&net.layer(*id).name.as_str()))
            .collect();
        net.stepping(|id| ids.contains(&id))
    };
    nets.into_iter().map(mark).collect()
}

fn load(devices: &[CpuDevice], nets: &[Net], batch: usize, seed: u64) {
    for ((device, net), tile) in devices.iter().zip(nets).zip(Tile::cut(batch, nets.len())) {
        let put = |name: &str, all: &dyn Fn(usize) -> Vec<f32>| {
            let blob = net.blobs.iter().find(|b| b.name == name).expect("a blob");
            let each = blob.shape.per_image();
            let part = tile.first * each..(tile.first + tile.images) * each;
            device.write(Region::Stage(blob.data), &all(batch * each)[part]).expect("a stage");
        };
        put("data", &|count| fractions(100 + seed, count));
        put("label", &|count| labels(200 + seed, count, 10));
    }
}

/// A worker of which so many quadrants in a row lie on each node. The nodes are not there, so nothing is bound to them.
fn on_nodes(nets: &[Net], plan: &Plan, [threads, each]: [usize; 2], options: &EngineOptions) -> CpuWorker {
    let program = Program { nets, plans: &[plan] };
    let mapped = MappedWorker::new(&crews(nets.len(), threads), &[program], options).expect("a worker");
    let node = |device: usize| 5000 + device / each;
    let homes =
        |device| Homes::new(1, Purpose::all(1).map(|_| Some(Home { node: node(device), rest: None })));
    let homes: Vec<Homes> = (0..nets.len()).map(homes).collect();
    mapped.place(&homes).expect("memory")
}

/// Weights and behind them histories of every quadrant after some steps, of `threads` threads each and so many on each node.
/// Whatever is not kept from step to step is NaN before each.
fn train(
    nets: &[Net],
    [threads, each]: [usize; 2],
    batch: usize,
    steps: u64,
    options: &EngineOptions,
) -> Vec<Vec<f32>> {
    let plan = plan(nets, Stage::Iteration);
    let worker = on_nodes(nets, &plan, [threads, each], options);
    let devices = worker.devices(0);
    let mut weights = vec![0.0; nets[0].params.len()];
    nets[0].params.fill(7, &mut weights);
    for device in &devices {
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
    }
    let mut times = StepTimes::default();
    for iteration in 0..steps {
        load(&devices, nets, batch, iteration);
        devices.iter().for_each(|device| device.fill_transient(NAN_HALVES).expect("memory"));
        let scalars = Scalars { iteration, rate: 0.02, ..Scalars::default() };
        run_step(&devices, &plan, &scalars, &mut times).expect("a step");
    }
    let read = |device: &CpuDevice| {
        let mut values = vec![0.0; 2 * weights.len()];
        let (weights, histories) = values.split_at_mut(weights.len());
        device.read(Region::Packed(Packed::Weights), weights).expect("weights");
        device.read(Region::Packed(Packed::Histories), histories).expect("histories");
        values
    };
    devices.iter().map(read).collect()
}

fn as_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn with_momentum(numerics: Numerics) -> EngineOptions {
    EngineOptions { rule: Rule::sgd(0.9, 5e-4), ..options(numerics) }
}

fn tiers_that_step(test: &str) -> Vec<Numerics> {
    numerics(test).into_iter().filter(|numerics| numerics.isa != Isa::Portable).collect()
}

/// With shares that are powers of two, losses of parts are those of the whole to the last bit, and so is all that follows for
/// the inner products in the first step.
#[test]
fn quadrants_find_the_bits_of_one_that_has_all_images() {
    const BATCH: usize = 32;
    for numerics in tiers_that_step("gradients of all images on every quadrant") {
        let (options, layers) = (with_momentum(numerics), together(numerics.precision));
        let whole = marked(nets(behind_blocks, BATCH, 1), layers);
        let expected = train(&whole, [2, 1], BATCH, 1, &options).remove(0);
        let mut first = vec![0.0; expected.len() / 2];
        whole[0].params.fill(7, &mut first);
        for [quadrants, each] in [[2, 1], [2, 2], [4, 1], [4, 2], [4, 3], [4, 4]] {
            for shares in [false, true] {
                let mut cut = marked(nets(behind_blocks, BATCH, quadrants), layers);
                if shares {
                    let share = |net: Net| {
                        let needs = storage_needs(&net, options.numerics(), &[]).expect("kernels");
                        net.sharing_memory(&needs)
                    };
                    cut = cut.into_iter().map(share).collect();
                }
                let found = train(&cut, [2, each], BATCH, 1, &options);
                for view in whole[0].params.views().iter().filter(|v| v.name.ends_with("/0")) {
                    if !layers.contains(&view.name.trim_end_matches("/0")) {
                        continue;
                    }
                    let range = view.range();
                    assert!(
                        as_bits(&first[range.clone()]) != as_bits(&expected[range.clone()]),
                        "mistrusted"
                    );
                    // Weights, and histories, of which each quadrant has found its rows'.
                    for range in [range.clone(), first.len() + range.start..first.len() + range.end] {
                        for (quadrant, found) in found.iter().enumerate() {
                            let same = as_bits(&found[range.clone()]) == as_bits(&expected[range.clone()]);
                            assert!(same, "{} on quadrant {quadrant} of {quadrants}, {numerics}", view.name);
                        }
                    }
                }
            }
        }
    }
}

/// Shares that differ, an image without a partner in a pair, several threads: every quadrant has the same bits, which do not
/// depend on threads, and they are those of gradients that are added up, but for rounding.
#[test]
fn quadrants_agree_whatever_their_shares() {
    const BATCH: usize = 19;
    for numerics in tiers_that_step("uneven shares of a whole gradient") {
        let (options, layers) = (with_momentum(numerics), together(numerics.precision));
        for quadrants in [2, 3] {
            let apart = train(&nets(behind_blocks, BATCH, quadrants), [1, 1], BATCH, 3, &options).remove(0);
            let cut = marked(nets(behind_blocks, BATCH, quadrants), layers);
            let expected = train(&cut, [1, 1], BATCH, 3, &options);
            let norm = |values: &[f32]| values.iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt();
            let weights = &apart[..apart.len() / 2];
            let far: Vec<f32> = expected[0].iter().zip(weights).map(|(a, b)| a - b).collect();
            let bound = if numerics.precision == Precision::Bf16 { 1e-3 } else { 1e-6 };
            let far = norm(&far) / norm(weights);
            assert!(far < bound, "{far} from gradients that are added up, {quadrants} quadrants, {numerics}");
            for [threads, each] in [[1, 2], [3, 1], [3, 2], [1, 3]] {
                let found = train(&cut, [threads, each], BATCH, 3, &options);
                for (quadrant, found) in found.iter().enumerate() {
                    let same = as_bits(found) == as_bits(&expected[0]);
                    let on = format!("{quadrants} of {threads} thread(s), {each} on a node");
                    assert!(same, "quadrant {quadrant} of {on}, {numerics}");
                }
            }
        }
    }
}

/// A single inner product of many outputs, of which no other layer asks for more scratch.
fn wide(batch: usize) -> NetSpec {
    let layers = vec![
        input("data", &[batch, 128]),
        input("label", &[batch]),
        LayerSpec::new("ip", Layer::InnerProduct(inner_product(2662)), &["data"], &["ip"]),
        LayerSpec::new("loss", crate::common::loss(1), &["ip", "label"], &["loss"]),
    ];
    network(layers, false)
}

/// Rows of a quadrant that its grains do not divide.
#[test]
fn rows_that_grains_do_not_divide() {
    const BATCH: usize = 32;
    for numerics in tiers_that_step("rows of a quadrant") {
        let options = with_momentum(numerics);
        let [expected, found] = [1, 2].map(|quadrants| {
            let cut = marked(nets(wide, BATCH, quadrants), &["ip"]);
            assert!(cut.iter().all(|net| net.layers.iter().any(|layer| layer.steps_weight)));
            let weight = cut[0].params.views()[0].range();
            as_bits(&train(&cut, [2, 1], BATCH, 1, &options)[0][weight])
        });
        assert!(expected == found, "{numerics}");
    }
}

/// An inner product behind another, with so many more outputs than images that each half of its rows has sums of ∇A of its own. The
/// gradient of the first is found from these.
fn behind_another(batch: usize) -> NetSpec {
    let layers = vec![
        input("data", &[batch, 64]),
        input("label", &[batch]),
        LayerSpec::new("ip1", Layer::InnerProduct(inner_product(70)), &["data"], &["ip1"]),
        LayerSpec::new("ip2", Layer::InnerProduct(inner_product(203)), &["ip1"], &["ip2"]),
        LayerSpec::new("loss", crate::common::loss(1), &["ip2", "label"], &["loss"]),
    ];
    network(layers, false)
}

/// Quadrants with many images, and with so few that their ∇A has no tiles.
#[test]
fn parts_of_rows_do_not_depend_on_shares() {
    const BATCH: usize = 32;
    for numerics in tiers_that_step("parts of rows") {
        let options = with_momentum(numerics);
        let weights = |quadrants: usize| {
            let cut = marked(nets(behind_another, BATCH, quadrants), &["ip1", "ip2"]);
            let view = cut[0].params.views().iter().find(|view| view.name == "ip1/0").expect("ip1").range();
            as_bits(&train(&cut, [2, 1], BATCH, 1, &options)[0][view])
        };
        let expected = weights(1);
        for quadrants in [2, 4, 8] {
            assert!(weights(quadrants) == expected, "{quadrants} quadrants, {numerics}");
        }
    }
}

/// What is written to one quadrant stands where another on the same node reads it if all change it together, and nowhere else.
#[test]
fn quadrants_on_one_node_have_weights_together_that_they_step_together() {
    for numerics in tiers_that_step("weights together") {
        let layers = together(numerics.precision);
        let cut = marked(nets(behind_blocks, 16, 4), layers);
        let apart = nets(behind_blocks, 16, 4);
        let len = cut[0].params.len();
        let old: Vec<f32> = (0..len).map(|i| i as f32).collect();
        for (nets, steps) in [(&cut, true), (&apart, false)] {
            let plan = plan(nets, Stage::Iteration);
            let worker = on_nodes(nets, &plan, [1, 2], &options(numerics));
            let devices = worker.devices(0);
            let read = |device: &CpuDevice| {
                let mut values = vec![0.0; len];
                device.read(Region::Packed(Packed::Weights), &mut values).expect("weights");
                values
            };
            devices.iter().for_each(|d| d.write(Region::Packed(Packed::Weights), &old).expect("weights"));
            devices[1].write(Region::PackedFrom(Packed::Weights, 1), &vec![-1.0; len - 1]).expect("weights");
            let mut changed = old.clone();
            changed[1..].fill(-1.0);
            let mut first = old.clone();
            for view in nets[0].params.views() {
                let (name, of) = view.name.split_once('/').expect("a layer and a number");
                if steps && of == "0" && layers.contains(&name) {
                    first[view.range()].fill(-1.0);
                    // The first of all weights is not among them.
                    assert!(!view.range().contains(&0));
                }
            }
            let found: Vec<Vec<f32>> = devices.iter().map(read).collect();
            assert!(found == [first, changed, old.clone(), old.clone()], "stepping {steps}, {numerics}");
            assert_eq!(devices[1].is_finite(Region::Packed(Packed::Weights), len), Ok(true));
            devices[0].write(Region::Packed(Packed::Weights), &vec![f32::NAN; len]).expect("weights");
            let part = nets[0].params.views().iter().find(|view| view.name == "ip2/0").expect("ip2").range();
            let found = read(&devices[1]);
            assert!(part.clone().all(|i| found[i].is_nan() == steps), "stepping {steps}, {numerics}");
            assert_eq!(devices[1].is_finite(Region::Packed(Packed::Weights), len), Ok(!steps));
        }
    }
}

/// Two large inner products and a small one.
fn large(batch: usize) -> NetSpec {
    let layers = vec![
        input("data", &[batch, 3, 20, 20]),
        input("label", &[batch]),
        LayerSpec::new("ip1", Layer::InnerProduct(inner_product(1000)), &["data"], &["ip1"]),
        LayerSpec::new("ip2", Layer::InnerProduct(inner_product(1100)), &["ip1"], &["ip2"]),
        LayerSpec::new("ip3", Layer::InnerProduct(InnerProduct { ..inner_product(10) }), &["ip2"], &["ip3"]),
        LayerSpec::new("loss", crate::common::loss(1), &["ip3", "label"], &["loss"]),
    ];
    network(layers, false)
}

#[test]
fn it_is_done_where_weights_are_large_and_images_few() {
    let names = |net: &Net, numerics: Numerics| -> Vec<String> {
        let layers = stepping_layers(net, numerics, &[]).expect("kernels");
        layers.into_iter().map(|id| net.layer(id).name.clone()).collect()
    };
    for numerics in tiers_that_step("who steps together") {
        for (batch, quadrants, expected) in [
            (16, 1, &["ip1", "ip2", "ip3"][..]),
            (4096, 1, &["ip1", "ip2", "ip3"]),
            (16, 2, &["ip1", "ip2"]),
            (17, 4, &["ip1", "ip2"]),
            (4096, 2, &[]),
        ] {
            for net in nets(large, batch, quadrants) {
                assert_eq!(
                    names(&net, numerics),
                    expected,
                    "{batch} images, {quadrants} quadrants, {numerics}"
                );
            }
        }
        let small: Vec<Net> = nets(small_lenet, 8, 2);
        assert!(small.iter().all(|net| names(net, numerics).is_empty()), "{numerics}");
    }
}

/// What stands between copies has its bottom in memory that no other quadrant may read.
#[test]
fn a_layer_between_copies_cannot_step_together() {
    for numerics in tiers_that_step("copies").into_iter().filter(|n| n.precision == Precision::Bf16) {
        let cut = marked(nets(behind_blocks, 16, 2), &["ip1"]);
        let plan = plan(&cut, Stage::Iteration);
        match worker(&cut, &plan, 1, &options(numerics)).map(|_| ()) {
            Err(EngineError::Kernel(reason)) => assert!(reason.contains("\"ip1\""), "{reason}"),
            other => panic!("{other:?}, {numerics}"),
        }
    }
}
