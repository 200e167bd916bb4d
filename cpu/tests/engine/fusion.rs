//! Fused layers train as the layers apart do, on every tier and whatever the threads and quadrants.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::net::Net;
use quadrille_core::plan::Stage;
use quadrille_core::reference::ReferenceNet;
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::task::Tile;
use quadrille_cpu::isa::Isa;
use quadrille_cpu::{EngineError, EngineOptions};

use crate::common::{fractions, labels, nets, options, plan, small_residual, tiers, worker};

/// Images of a mini-batch, which 3 quadrants cut into uneven tiles.
const BATCH: usize = 11;
const IMAGE: usize = 3 * 12 * 12;
const STEPS: u64 = 4;

fn made(quadrants: usize, fusion: bool) -> Vec<Net> {
    let nets = nets(small_residual, BATCH, quadrants);
    if fusion { nets.into_iter().map(Net::fused).collect() } else { nets }
}

/// Weights and the last gradients of the first quadrant after some steps; all quadrants have the same weights.
fn train(
    quadrants: usize,
    threads: usize,
    fusion: bool,
    options: &EngineOptions,
    steps: u64,
) -> [Vec<f32>; 2] {
    let nets = made(quadrants, fusion);
    let plan = plan(&nets, Stage::Iteration);
    let worker = worker(&nets, &plan, threads, options).expect("a worker");
    let devices = worker.devices(0);
    let mut weights = vec![0.0; nets[0].params.len()];
    nets[0].params.fill(7, &mut weights);
    for device in &devices {
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
    }
    let mut times = StepTimes::default();
    for step in 0..steps {
        let (images, classes) = (fractions(100 + step, BATCH * IMAGE), labels(200 + step, BATCH, 10));
        for ((device, net), tile) in devices.iter().zip(&nets).zip(Tile::cut(BATCH, quadrants)) {
            let stage = |name: &str| {
                let blob = net.blobs.iter().find(|b| b.name == name).expect("a blob");
                Region::Stage(blob.data)
            };
            let (first, end) = (tile.first, tile.first + tile.images);
            device.write(stage("data"), &images[first * IMAGE..end * IMAGE]).expect("a stage");
            device.write(stage("label"), &classes[first..end]).expect("a stage");
        }
        let scalars = Scalars { iteration: step, rate: 0.05, ..Scalars::default() };
        run_step(&devices, &plan, &scalars, &mut times).expect("a step");
    }
    let read = |device: &quadrille_cpu::CpuDevice, packed| {
        let mut values = vec![0.0; nets[0].params.len()];
        device.read(Region::Packed(packed), &mut values).expect("a packed buffer");
        values
    };
    let weights = read(&devices[0], Packed::Weights);
    for device in &devices {
        assert_eq!(read(device, Packed::Weights), weights, "{quadrants} quadrants");
    }
    [weights, read(&devices[0], Packed::Gradients)]
}

/// The first gradients of one net apart by the oracle in double precision, and terms of running sums.
fn truth() -> Vec<f64> {
    let net = made(1, false).remove(0);
    let mut weights = vec![0.0; net.params.len()];
    net.params.fill(7, &mut weights);
    let mut reference = ReferenceNet::<f64>::new(net);
    reference.set_params(&weights);
    let double = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    reference.set_input("data", &double(fractions(100, BATCH * IMAGE)));
    reference.set_input("label", &double(labels(200, BATCH, 10)));
    reference.forward();
    reference.backward();
    let mut gradients = vec![0.0; weights.len()];
    for view in reference.net().params.views() {
        gradients[view.range()].copy_from_slice(reference.param_grad(&view.name).expect("a parameter"));
    }
    gradients
}

/// The distance of two vectors over the length of the second.
fn distance(found: &[f32], expected: &[f64]) -> f64 {
    let error: f64 = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    (error / expected.iter().map(|e| e.powi(2)).sum::<f64>()).sqrt()
}

/// As for every whole net: as a vector, the error is at most that of one sum as long as the longest of the net.
const BOUND: f64 = (BATCH * 144 * 13) as f64 * f32::EPSILON as f64;

#[test]
fn fused_gradients_are_those_of_the_layers_apart() {
    let truth = truth();
    assert!(truth.iter().any(|g| g.abs() > 1e-3), "mistrusted: all gradients are small");
    for isa in tiers("gradients of fused layers") {
        let naive = ["BatchNorm", "Eltwise"].map(|kind| (kind.to_owned(), "reference".to_owned())).to_vec();
        for kernels in [Vec::new(), naive] {
            let options = EngineOptions { kernels, ..options(isa) };
            for fusion in [false, true] {
                let [_, found] = train(1, 2, fusion, &options, 1);
                let distance = distance(&found, &truth);
                assert!(distance <= BOUND, "{distance:e} > {BOUND:e}: fusion {fusion}, {options:?}");
            }
        }
    }
}

#[test]
fn fused_and_apart_end_at_the_same_weights() {
    for isa in tiers("training of fused layers") {
        for quadrants in [1, 3] {
            let [apart, _] = train(quadrants, 2, false, &options(isa), STEPS);
            let [fused, _] = train(quadrants, 2, true, &options(isa), STEPS);
            let double: Vec<f64> = apart.iter().map(|w| f64::from(*w)).collect();
            let distance = distance(&fused, &double);
            let bound = STEPS as f64 * BOUND;
            assert!(distance <= bound, "{distance:e} > {bound:e}: {quadrants} quadrants, {isa}");
            assert!(distance > 0.0, "mistrusted: the very same bits on {isa}; is anything fused?");
        }
    }
}

#[test]
fn fused_weights_do_not_depend_on_threads() {
    for isa in tiers("bits of fused layers") {
        for quadrants in [1, 3] {
            let bits = |threads| -> Vec<u32> {
                train(quadrants, threads, true, &options(isa), STEPS)[0].iter().map(|w| w.to_bits()).collect()
            };
            let first = bits(1);
            assert!([2, 3, 2].into_iter().all(|threads| bits(threads) == first), "{quadrants}, {isa}");
        }
    }
}

#[test]
fn a_kernel_of_a_part_is_refused() {
    let nets = made(1, true);
    let plan = plan(&nets, Stage::Iteration);
    for (named, part, of) in
        [("scale1", "scale1", "bn1"), ("ReLU", "relu1", "bn1"), ("relu2", "relu2", "sum")]
    {
        let kernels = vec![(named.to_owned(), "reference".to_owned())];
        let options = EngineOptions { kernels, ..options(Isa::detect()) };
        let Err(EngineError::Kernel(reason)) = worker(&nets, &plan, 1, &options).map(|_| ()) else {
            panic!("{named} is forced")
        };
        for word in [named, part, of, "--no-fusion"] {
            assert!(reason.contains(word), "{reason:?} names {word:?}");
        }
    }
}
