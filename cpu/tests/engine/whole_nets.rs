//! Whole nets on the engine against the oracle in double precision: what layers leave to each other, and how they leave
//! it in memory.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{Dropout, Flatten, Layer, PoolMethod, Pooling, Relu};
use quadrille_core::net::{LayerSpec, Net, NetSpec};
use quadrille_core::plan::Stage;
use quadrille_core::reference::ReferenceNet;
use quadrille_core::run::{StepTimes, run_step};
use quadrille_cpu::EngineOptions;

use crate::common::{
    convolution, fractions, inner_product, input, labels, loss, nets, network, options, plan, tiers, worker,
};

const BATCH: usize = 7;
const CLASSES: usize = 5;
const PER_IMAGE: usize = 3 * 12 * 12;
const SEED: u64 = 99;

fn images(batch: usize) -> Vec<LayerSpec> {
    vec![input("data", &[batch, 3, 12, 12]), input("label", &[batch])]
}

fn head(layers: &mut Vec<LayerSpec>, bottom: &str) {
    layers.push(LayerSpec::new("score", Layer::InnerProduct(inner_product(CLASSES)), &[bottom], &["score"]));
    layers.push(LayerSpec::new("loss", loss(1), &["score", "label"], &["loss"]));
}

/// A blob in blocks of channels, flattened, with a dropout in place on either side.
fn flattened(batch: usize) -> NetSpec {
    let pool = Pooling { method: PoolMethod::Max, kernel: Some([2; 2]), pad: [0; 2], stride: [2; 2] };
    let drop = || Layer::Dropout(Dropout { ratio: 0.4, active: true });
    let mut layers = images(batch);
    layers.extend([
        LayerSpec::new("conv", Layer::Convolution(convolution(20, [3, 3])), &["data"], &["conv"]),
        LayerSpec::new("pool", Layer::Pooling(pool), &["conv"], &["pool"]),
        LayerSpec::new("relu", Layer::Relu(Relu::default()), &["pool"], &["pool"]),
        LayerSpec::new("drop", drop(), &["pool"], &["pool"]),
        LayerSpec::new("flat", Layer::Flatten(Flatten { axis: 1, end_axis: -1 }), &["pool"], &["flat"]),
        LayerSpec::new("drop2", drop(), &["flat"], &["flat"]),
    ]);
    head(&mut layers, "flat");
    network(layers, false)
}

fn weights(net: &Net) -> Vec<f32> {
    let mut weights = vec![0.0; net.params.len()];
    net.params.fill(5, &mut weights);
    weights
}

/// The packed gradients of a mini-batch over `quadrants`.
fn found(make: fn(usize) -> NetSpec, quadrants: usize, options: &EngineOptions) -> Vec<f32> {
    let nets = nets(make, BATCH, quadrants);
    let plan = plan(&nets, Stage::Gradients);
    let worker = worker(&nets, &plan, 2, options).expect("a worker");
    let devices = worker.devices(0);
    let (images, classes) = (fractions(1, BATCH * PER_IMAGE), labels(2, BATCH, CLASSES));
    let mut first = 0;
    for (device, net) in devices.iter().zip(&nets) {
        let end = first + net.batch();
        let blob = |name| net.blobs.iter().find(|b| b.name == name).expect("a blob").data;
        let images = &images[first * PER_IMAGE..end * PER_IMAGE];
        device.write(Region::Stage(blob("data")), images).expect("a stage");
        device.write(Region::Stage(blob("label")), &classes[first..end]).expect("a stage");
        device.write(Region::Packed(Packed::Weights), &weights(net)).expect("weights");
        first = end;
    }
    let scalars = Scalars { seed: SEED, ..Scalars::default() };
    run_step(&devices, &plan, &scalars, &mut StepTimes::default()).expect("a step");
    let mut gradients = vec![0.0; nets[0].params.len()];
    devices[0].read(Region::Packed(Packed::Gradients), &mut gradients).expect("gradients");
    gradients
}

/// The same by the oracle.
fn oracle(make: fn(usize) -> NetSpec) -> Vec<f64> {
    let net = nets(make, BATCH, 1).remove(0);
    let mut run = ReferenceNet::<f64>::new(net.clone());
    run.set_params(&weights(&net));
    let double = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    run.set_input("data", &double(fractions(1, BATCH * PER_IMAGE)));
    run.set_input("label", &double(labels(2, BATCH, CLASSES)));
    run.set_draw(SEED, 0);
    run.forward();
    run.backward();
    let mut gradients = vec![0.0; net.params.len()];
    for view in net.params.views() {
        gradients[view.range()].copy_from_slice(run.param_grad(&view.name).expect("a parameter"));
    }
    gradients
}

/// Compares the gradient of every parameter with the oracle's. `terms` bounds the length of the longest sum on a way
/// from an input to a gradient, layer by layer.
fn agree(make: fn(usize) -> NetSpec, terms: usize) {
    let expected = oracle(make);
    let net = nets(make, BATCH, 1).remove(0);
    for isa in tiers("whole nets") {
        for quadrants in [1, 3] {
            let found = found(make, quadrants, &options(isa));
            for view in net.params.views() {
                let (e, f) = (&expected[view.range()], &found[view.range()]);
                let norm = e.iter().map(|g| g * g).sum::<f64>().sqrt();
                assert!(norm > 1e-3, "mistrusted: the gradient of {} is {norm}", view.name);
                let error = e.iter().zip(f).map(|(e, f)| (e - f64::from(*f)).powi(2)).sum::<f64>().sqrt();
                let bound = terms as f64 * f64::from(f32::EPSILON) * norm;
                // Written so that NaN fails.
                let close = error <= bound;
                assert!(close, "{}: {error:e} of {norm:e} on {isa}, {quadrants} quadrants", view.name);
            }
        }
    }
}

#[test]
fn a_flattened_blob_of_blocks() {
    // Taps and channels of the convolution, inputs of the scores, classes, and places of a tap in the mini-batch.
    agree(flattened, 27 + 20 * 25 + CLASSES + BATCH * 100);
}
