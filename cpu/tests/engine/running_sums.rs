//! Running sums: every quadrant ends with the same bits, and they hold what the batches' statistics add up to.

use crate::common::{
    convolution, fractions, inner_product, input, labels, loss, nets, network, options, tiers,
};
use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{BatchNorm, Filler, Layer, Relu, Scale};
use quadrille_core::net::{LayerSpec, Net, NetSpec, ParamRule};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::Rule;
use quadrille_core::task::Tile;
use quadrille_cpu::EngineOptions;

/// Images of a mini-batch, which 2 and 3 quadrants cut into uneven tiles.
const BATCH: usize = 23;
const CHANNELS: usize = 3;
/// Values of a channel of an image.
const PLACES: usize = 25;
const STEPS: u64 = 5;
const FRACTION: f32 = 0.75;
/// What sums hold that are kept.
const KEPT: f32 = 1.5;

/// The data are normalised on the way to the loss and aside, and what the convolution makes in place.
pub fn normalized(batch: usize) -> NetSpec {
    let norm = || {
        let batch_norm = BatchNorm { use_global_stats: None, moving_average_fraction: FRACTION, eps: 1e-5 };
        Layer::BatchNorm(batch_norm)
    };
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
    let scale = Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler };
    network(
        vec![
            input("data", &[batch, CHANNELS, 5, 5]),
            input("label", &[batch]),
            LayerSpec::new("aside", norm(), &["data"], &["aside"]),
            LayerSpec::new("norm", norm(), &["data"], &["norm"]),
            LayerSpec::new("conv", Layer::Convolution(convolution(8, [3, 3])), &["norm"], &["conv"]),
            LayerSpec::new("below", norm(), &["conv"], &["conv"]),
            LayerSpec::new("scale", Layer::Scale(scale), &["conv"], &["conv"]),
            LayerSpec::new("relu", Layer::Relu(Relu::default()), &["conv"], &["conv"]),
            LayerSpec::new("ip", Layer::InnerProduct(inner_product(10)), &["conv"], &["ip"]),
            LayerSpec::new("loss", loss(1), &["ip", "label"], &["loss"]),
        ],
        false,
    )
}

fn images(step: u64) -> Vec<f32> {
    fractions(100 + step, BATCH * CHANNELS * PLACES)
}

fn sums(net: &Net) -> impl Iterator<Item = (String, std::ops::Range<usize>)> {
    let views = net.params.views().iter().filter(|v| v.rule != ParamRule::Gradient);
    views.map(|v| (v.name.clone(), v.range()))
}

/// Weights and histories of every quadrant after some steps. Histories and centre start at random.
fn train(
    make: fn(usize) -> NetSpec,
    quadrants: usize,
    threads: usize,
    fusion: bool,
    options: &EngineOptions,
) -> Vec<[Vec<f32>; 2]> {
    let nets = nets(make, BATCH, quadrants);
    let nets: Vec<Net> = if fusion { nets.into_iter().map(Net::fused).collect() } else { nets };
    let elastic = options.elastic;
    let built =
        Plan::build(&nets, PlanOptions { elastic, chunk_layers: 2, ..PlanOptions::new(Stage::Iteration) });
    let plan = built.expect("a plan");
    let worker = crate::common::worker(&nets, &plan, threads, options).expect("a worker");
    let devices = worker.devices(0);
    let len = nets[0].params.len();
    let mut weights = vec![0.0; len];
    nets[0].params.fill(7, &mut weights);
    // Sums of which it shows if they are multiplied.
    let keeps =
        |layer: &Layer| matches!(layer, Layer::BatchNorm(norm) if norm.use_global_stats == Some(true));
    if nets[0].layers.iter().any(|layer| keeps(&layer.layer)) {
        sums(&nets[0]).for_each(|(_, range)| weights[range].fill(KEPT));
    }
    for device in &devices {
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
        device.write(Region::Packed(Packed::Histories), &fractions(8, len)).expect("histories");
        if elastic {
            device.write(Region::Packed(Packed::Centre), &fractions(9, len)).expect("a centre");
        }
    }
    let mut times = StepTimes::default();
    for step in 0..STEPS {
        let (images, classes) = (images(step), labels(200 + step, BATCH, 10));
        for ((device, net), tile) in devices.iter().zip(&nets).zip(Tile::cut(BATCH, quadrants)) {
            let stage = |name: &str| {
                let blob = net.blobs.iter().find(|b| b.name == name).expect("a blob");
                Region::Stage(blob.data)
            };
            let (first, end) = (tile.first, tile.first + tile.images);
            let image = CHANNELS * PLACES;
            device.write(stage("data"), &images[first * image..end * image]).expect("a stage");
            device.write(stage("label"), &classes[first..end]).expect("a stage");
        }
        let scalars = Scalars { iteration: step, rate: 0.05, elastic: 0.3, ..Scalars::default() };
        run_step(&devices, &plan, &scalars, &mut times).expect("a step");
    }
    let read = |packed| {
        devices.iter().map(move |device| {
            let mut values = vec![0.0; len];
            device.read(Region::Packed(packed), &mut values).expect("a packed buffer");
            values
        })
    };
    read(Packed::Weights).zip(read(Packed::Histories)).map(|(w, h)| [w, h]).collect()
}

/// Mean, variance and factor that the data's statistics add up to, each quadrant normalising its own images.
fn expected(quadrants: usize) -> [Vec<f64>; 3] {
    let (mut means, mut variances, mut factor) = ([0.0; CHANNELS], [0.0; CHANNELS], 0.0);
    for step in 0..STEPS {
        let images = images(step);
        let sums = means.iter_mut().chain(&mut variances).chain([&mut factor]);
        sums.for_each(|sum| *sum *= f64::from(FRACTION));
        for tile in Tile::cut(BATCH, quadrants) {
            let share = tile.images as f64 / BATCH as f64;
            factor += share;
            for (channel, (mean_sum, variance_sum)) in means.iter_mut().zip(&mut variances).enumerate() {
                let own = |image: usize| {
                    let first = (image * CHANNELS + channel) * PLACES;
                    images[first..first + PLACES].iter().map(|x| f64::from(*x))
                };
                let values: Vec<f64> = (tile.first..tile.first + tile.images).flat_map(own).collect();
                let count = values.len() as f64;
                let mean = values.iter().sum::<f64>() / count;
                let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
                *mean_sum += share * mean;
                *variance_sum += share * squares / (count - 1.0);
            }
        }
    }
    [means.to_vec(), variances.to_vec(), vec![factor]]
}

#[test]
fn running_sums_are_those_of_the_batches_on_every_quadrant() {
    let net = nets(normalized, BATCH, 1).remove(0);
    for isa in tiers("running sums") {
        for quadrants in [1, 2, 3] {
            for (elastic, fusion) in [(false, false), (false, true), (true, false), (true, true)] {
                let rule = Rule::sgd(0.9, 0.1);
                let options = EngineOptions { rule, elastic, ..options(isa) };
                let how = format!("{quadrants} quadrants, elastic {elastic}, fusion {fusion}, {isa}");
                let found = train(normalized, quadrants, 2, fusion, &options);
                for [weights, histories] in &found {
                    // The centre pulls a worker as a whole, and so all of its quadrants alike.
                    assert!(
                        weights.iter().zip(&found[0][0]).all(|(a, b)| a.to_bits() == b.to_bits()),
                        "{how}"
                    );
                    check(&net, weights, &expected(quadrants), &how);
                    let untouched = fractions(8, net.params.len());
                    for (name, range) in sums(&net) {
                        assert_eq!(histories[range.clone()], untouched[range], "history of {name}: {how}");
                    }
                }
            }
        }
    }
}

/// The sums of the data, on the way to the loss and aside. Each value is at most 1, and so is each statistic: a mean has
/// BATCH · PLACES additions, a variance as many of squares of differences (three roundings and the mean's own error,
/// twice), and each step adds at most four parts.
fn check(net: &Net, weights: &[f32], expected: &[Vec<f64>; 3], how: &str) {
    let bound = (STEPS as usize * (4 * BATCH * PLACES + 16)) as f64 * f64::from(f32::EPSILON);
    assert!(expected.iter().flatten().all(|sum| sum.abs() > 1e-3), "mistrusted: a sum is small");
    for layer in ["aside", "norm"] {
        for (i, expected) in expected.iter().enumerate() {
            let name = format!("{layer}/{i}");
            let view = net.params.views().iter().find(|v| v.name == name).expect("a parameter");
            for (found, expected) in weights[view.range()].iter().zip(expected) {
                let close = (f64::from(*found) - expected).abs() <= bound;
                assert!(close, "{name}: {found} is not {expected} ± {bound:e}: {how}");
            }
        }
    }
}

#[test]
fn running_sums_do_not_depend_on_threads() {
    for isa in tiers("bits of running sums") {
        for quadrants in [1, 3] {
            let bits = |threads| -> Vec<u32> {
                let found = train(normalized, quadrants, threads, true, &options(isa));
                found.iter().flatten().flatten().map(|value| value.to_bits()).collect()
            };
            let first = bits(1);
            assert!([2, 3, 2].into_iter().all(|threads| bits(threads) == first), "{quadrants}, {isa}");
        }
    }
}

/// The same with statistics that the file keeps.
fn kept(batch: usize) -> NetSpec {
    let mut spec = normalized(batch);
    for layer in &mut spec.layers {
        if let Layer::BatchNorm(norm) = &mut layer.layer {
            norm.use_global_stats = Some(true);
        }
    }
    spec
}

/// Behind a Scale that learns they stay what they are, too.
#[test]
fn statistics_that_are_kept_do_not_fade() {
    let net = nets(kept, BATCH, 1).remove(0);
    let mut before = vec![0.0; net.params.len()];
    net.params.fill(7, &mut before);
    for isa in tiers("kept statistics") {
        for (quadrants, fusion) in [(1, false), (1, true), (3, true)] {
            for [weights, _] in train(kept, quadrants, 2, fusion, &options(isa)) {
                let moved = net
                    .params
                    .views()
                    .iter()
                    .any(|v| v.rule == ParamRule::Gradient && weights[v.range()] != before[v.range()]);
                assert!(moved, "mistrusted: nothing learns");
                for (name, range) in sums(&net) {
                    assert_eq!(weights[range.clone()], vec![KEPT; range.len()], "{name} on {isa}, {fusion}");
                }
            }
        }
    }
}
