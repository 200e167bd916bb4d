//! Whole nets on the engine against the oracle in double precision: what layers leave to each other, and how they leave
//! it in memory.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{
    Concat, Convolution, Dropout, Eltwise, EltwiseOperation, EuclideanLoss, Flatten, HingeLoss, HingeNorm,
    Layer, Lrn, NewExtent, NormRegion, Normalization, PoolMethod, Pooling, Reduction, ReductionOperation,
    Relu, Reshape, SigmoidCrossEntropyLoss, Silence, Slice,
};
use quadrille_core::net::{LayerSpec, Net, NetSpec, ParamSpec};
use quadrille_core::plan::Stage;
use quadrille_core::reference::ReferenceNet;
use quadrille_core::run::{StepTimes, run_step};
use quadrille_cpu::EngineOptions;

use crate::adding::{adding, shortcuts};
use crate::common::{
    convolution, fractions, inner_product, input, labels, loss, nets, network, options, plan, tiers, worker,
};
use crate::joined::{inception, nested, read_twice};
use crate::lifetime::sharing;

const BATCH: usize = 7;
const CLASSES: usize = 5;
const PER_IMAGE: usize = 3 * 12 * 12;
const SEED: u64 = 99;

pub fn images(batch: usize) -> Vec<LayerSpec> {
    vec![input("data", &[batch, 3, 12, 12]), input("label", &[batch])]
}

pub fn head(layers: &mut Vec<LayerSpec>, bottom: &str) {
    layers.push(LayerSpec::new("score", Layer::InnerProduct(inner_product(CLASSES)), &[bottom], &["score"]));
    layers.push(LayerSpec::new("loss", loss(1), &["score", "label"], &["loss"]));
}

fn lrn(region: NormRegion) -> Layer {
    let local_size = if region == NormRegion::WithinChannel { 3 } else { 5 };
    Layer::Lrn(Lrn { region, local_size, alpha: 0.5, beta: 0.75, k: 1.0 })
}

/// A blob in blocks of channels, normalised and flattened, with a dropout in place on either side.
pub fn flattened(batch: usize) -> NetSpec {
    let pool = Pooling { method: PoolMethod::Max, kernel: Some([2; 2]), pad: [0; 2], stride: [2; 2] };
    let drop = || Layer::Dropout(Dropout { ratio: 0.4, active: true });
    let mut layers = images(batch);
    layers.extend([
        LayerSpec::new("conv", Layer::Convolution(convolution(20, [3, 3])), &["data"], &["conv"]),
        LayerSpec::new("pool", Layer::Pooling(pool), &["conv"], &["pool"]),
        relu("pool"),
        LayerSpec::new("norm", lrn(NormRegion::WithinChannel), &["pool"], &["norm"]),
        LayerSpec::new("drop", drop(), &["norm"], &["norm"]),
        LayerSpec::new("flat", Layer::Flatten(Flatten { axis: 1, end_axis: -1 }), &["norm"], &["flat"]),
        LayerSpec::new("drop2", drop(), &["flat"], &["flat"]),
    ]);
    head(&mut layers, "flat");
    network(layers, false)
}

pub fn relu(name: &str) -> LayerSpec {
    LayerSpec::new(&format!("relu_{name}"), Layer::Relu(Relu::default()), &[name], &[name])
}

/// The layers of AlexNet and of GoogLeNet in small: normalisation, branches of `widths` channels side by side, one
/// of them cut in two again, dropout in place and not.
pub fn branching(batch: usize, widths: [usize; 3]) -> NetSpec {
    let conv = |name: &str, outputs: usize, kernel: usize, bottom: &str| {
        let layer = Convolution { pad: [kernel / 2; 2], ..convolution(outputs, [kernel; 2]) };
        LayerSpec::new(name, Layer::Convolution(layer), &[bottom], &[name])
    };
    let pool = |stride: usize| {
        let (kernel, stride) = (Some([3; 2]), [stride; 2]);
        Layer::Pooling(Pooling { method: PoolMethod::Max, kernel, pad: [1; 2], stride })
    };
    let drop = |ratio| Layer::Dropout(Dropout { ratio, active: true });
    let slice = Slice { axis: 1, points: vec![16], tops: 2 };
    let mut layers = images(batch);
    layers.extend([
        conv("conv", 32, 3, "data"),
        relu("conv"),
        LayerSpec::new("norm", lrn(NormRegion::AcrossChannels), &["conv"], &["norm"]),
        LayerSpec::new("pool", pool(2), &["norm"], &["pool"]),
        conv("one", widths[0], 1, "pool"),
        relu("one"),
        conv("three", widths[1], 3, "pool"),
        relu("three"),
        LayerSpec::new("around", pool(1), &["pool"], &["around"]),
        conv("proj", widths[2], 1, "around"),
        LayerSpec::new(
            "cat",
            Layer::Concat(Concat { axis: 1, bottoms: 3 }),
            &["one", "three", "proj"],
            &["cat"],
        ),
        LayerSpec::new("cut", Layer::Slice(slice), &["cat"], &["low", "high"]),
        LayerSpec::new("drop_high", drop(0.25), &["high"], &["dropped"]),
        LayerSpec::new("fc_low", Layer::InnerProduct(inner_product(40)), &["low"], &["fc_low"]),
        LayerSpec::new("fc_high", Layer::InnerProduct(inner_product(24)), &["dropped"], &["fc_high"]),
        LayerSpec::new(
            "both",
            Layer::Concat(Concat { axis: 1, bottoms: 2 }),
            &["fc_low", "fc_high"],
            &["both"],
        ),
        relu("both"),
        LayerSpec::new("drop", drop(0.5), &["both"], &["both"]),
    ]);
    head(&mut layers, "both");
    network(layers, false)
}

/// Residual blocks without normalisation.
fn residual(batch: usize) -> NetSpec {
    let stem = LayerSpec::new("stem", Layer::Convolution(convolution(32, [3, 3])), &["data"], &["stem"]);
    let mut layers = images(batch);
    layers.extend([stem, relu("stem")]);
    layers.extend(shortcuts("stem", 32));
    head(&mut layers, "sum_c");
    network(layers, false)
}

/// The same with parameters that do not learn: all of a layer at the bottom and of one between others, of some layers the weight but
/// not the bias, and the other way round.
fn frozen(batch: usize) -> NetSpec {
    let mut spec = residual(batch);
    for layer in &mut spec.layers {
        let rates = match layer.name.as_str() {
            "stem" | "b2" => [0.0, 0.0],
            "a1" | "c1" | "score" => [0.0, 1.0],
            "proj" | "c2" => [1.0, 0.0],
            _ => continue,
        };
        layer.params = rates.map(|rate| ParamSpec::with(rate, 1.0)).into();
    }
    spec
}

/// Scores that losses compare with targets, beside those of the head.
fn scored(batch: usize) -> Vec<LayerSpec> {
    let mut layers = images(batch);
    layers.extend([
        input("target", &[batch, CLASSES]),
        LayerSpec::new("conv", Layer::Convolution(convolution(20, [3, 3])), &["data"], &["conv"]),
        relu("conv"),
        LayerSpec::new("other", Layer::InnerProduct(inner_product(CLASSES)), &["conv"], &["other"]),
    ]);
    layers
}

fn weighted(weight: f32, spec: LayerSpec) -> LayerSpec {
    LayerSpec { loss_weights: vec![weight], ..spec }
}

/// Losses of several kinds, each with a weight of its own, and the mean of a blob as another.
fn judged(batch: usize) -> NetSpec {
    let mut layers = scored(batch);
    let cross = SigmoidCrossEntropyLoss { ignore_label: None, normalization: Normalization::None };
    let mean = Reduction { operation: ReductionOperation::Mean, axis: 1, coeff: 2.0 };
    let loss_of = |name: &str, layer, bottoms: [&str; 2]| LayerSpec::new(name, layer, &bottoms, &[name]);
    layers.extend([
        weighted(0.3, loss_of("euclidean", Layer::EuclideanLoss(EuclideanLoss), ["other", "target"])),
        weighted(0.02, loss_of("cross", Layer::SigmoidCrossEntropyLoss(cross), ["other", "target"])),
        weighted(
            0.7,
            loss_of("hinge", Layer::HingeLoss(HingeLoss { norm: HingeNorm::L2 }), ["other", "label"]),
        ),
        weighted(0.05, LayerSpec::new("mean", Layer::Reduction(mean), &["conv"], &["mean"])),
    ]);
    head(&mut layers, "conv");
    network(layers, false)
}

/// Losses that weigh by what reads them: added up with factors, one with a weight of its own as well, and one that goes nowhere
/// besides.
fn read_losses(batch: usize) -> NetSpec {
    let mut layers = scored(batch);
    let cross = SigmoidCrossEntropyLoss { ignore_label: None, normalization: Normalization::BatchSize };
    let sum = Eltwise {
        bottoms: 3,
        operation: EltwiseOperation::Sum { coefficients: vec![0.5, 2.0, 0.25], relu: false },
    };
    let loss_of = |name: &str, layer, bottoms: [&str; 2]| LayerSpec::new(name, layer, &bottoms, &[name]);
    layers.extend([
        weighted(0.0, loss_of("euclidean", Layer::EuclideanLoss(EuclideanLoss), ["other", "target"])),
        weighted(0.3, loss_of("cross", Layer::SigmoidCrossEntropyLoss(cross), ["other", "target"])),
        weighted(
            0.0,
            loss_of("hinge", Layer::HingeLoss(HingeLoss { norm: HingeNorm::L2 }), ["other", "label"]),
        ),
        weighted(
            0.4,
            LayerSpec::new("sum", Layer::Eltwise(sum), &["euclidean", "cross", "hinge"], &["total"]),
        ),
    ]);
    head(&mut layers, "conv");
    layers.push(LayerSpec::new("aside", Layer::Silence(Silence { bottoms: 2 }), &["loss", "cross"], &[]));
    network(layers, false)
}

/// A kernel of one tap that leaves pixels out, between blobs that lie plain: they are copied to blocks and back around it.
fn pointwise_between_copies(batch: usize) -> NetSpec {
    let extents = vec![NewExtent::Of(12), NewExtent::Of(6), NewExtent::Of(6)];
    let conv = Convolution { stride: [2, 2], ..convolution(40, [1, 1]) };
    let stem = Convolution { pad: [1, 1], ..convolution(3, [3, 3]) };
    let mut layers = images(batch);
    layers.extend([
        LayerSpec::new("stem", Layer::Convolution(stem), &["data"], &["stem"]),
        LayerSpec::new("as", Layer::Reshape(Reshape { extents, axis: 1, num_axes: -1 }), &["stem"], &["as"]),
        LayerSpec::new("conv", Layer::Convolution(conv), &["as"], &["conv"]),
        LayerSpec::new("flat", Layer::Flatten(Flatten { axis: 1, end_axis: -1 }), &["conv"], &["flat"]),
    ]);
    head(&mut layers, "flat");
    network(layers, false)
}

/// Branches of whole blocks on every tier.
pub fn whole_blocks(batch: usize) -> NetSpec {
    branching(batch, [32, 48, 16])
}

/// Branches that begin within blocks.
pub fn part_blocks(batch: usize) -> NetSpec {
    branching(batch, [20, 7, 12])
}

/// What losses of [`judged`] compare scores with.
fn targets() -> Vec<f32> {
    fractions(3, BATCH * CLASSES).into_iter().map(f32::abs).collect()
}

fn weights(net: &Net) -> Vec<f32> {
    let mut weights = vec![0.0; net.params.len()];
    net.params.fill(5, &mut weights);
    weights
}

/// The packed gradients of a mini-batch over `quadrants`, of the net as it is or with layers fused and in shared memory.
fn found(make: fn(usize) -> NetSpec, quadrants: usize, shares: bool, options: &EngineOptions) -> Vec<f32> {
    let nets = nets(make, BATCH, quadrants).into_iter();
    let nets: Vec<Net> =
        nets.map(|net| if shares { sharing(adding(net.fused(), options), options) } else { net }).collect();
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
        if let Some(target) = net.blobs.iter().find(|blob| blob.name == "target") {
            let targets = &targets()[first * CLASSES..end * CLASSES];
            device.write(Region::Stage(target.data), targets).expect("a stage");
        }
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
    if net.blobs.iter().any(|blob| blob.name == "target") {
        run.set_input("target", &double(targets()));
    }
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
        for (quadrants, shares) in [(1, false), (3, false), (1, true), (3, true)] {
            let found = found(make, quadrants, shares, &options(isa));
            // Nobody asks for the gradient of what does not learn.
            for view in net.params.views().iter().filter(|view| view.lr_mult > 0.0) {
                let (e, f) = (&expected[view.range()], &found[view.range()]);
                let norm = e.iter().map(|g| g * g).sum::<f64>().sqrt();
                assert!(norm > 1e-3, "mistrusted: the gradient of {} is {norm}", view.name);
                let error = e.iter().zip(f).map(|(e, f)| (e - f64::from(*f)).powi(2)).sum::<f64>().sqrt();
                let bound = terms as f64 * f64::from(f32::EPSILON) * norm;
                // Written so that NaN fails.
                let close = error <= bound;
                assert!(
                    close,
                    "{}: {error:e} of {norm:e} on {isa}, {quadrants} quadrants, {shares}",
                    view.name
                );
            }
        }
    }
}

#[test]
fn a_flattened_blob_of_blocks() {
    // Taps of the convolution, windows of places twice, inputs of the scores, classes, and places of a tap in the
    // mini-batch.
    agree(flattened, 27 + 2 * 9 + 20 * 25 + CLASSES + BATCH * 100);
}

#[test]
fn a_pointwise_convolution_between_copies() {
    // On the way of a gradient: taps of the stem, channels both ways, inputs of the scores, classes, places of a tap in the mini-batch.
    agree(pointwise_between_copies, 27 + 12 + 40 + 40 * 9 + CLASSES + BATCH * 144);
}

#[test]
fn branches_side_by_side() {
    // On the way of a gradient: taps and channels of three convolutions, a window of channels twice, inputs of the
    // inner products and of the scores, classes, and places of a tap in the mini-batch.
    for make in [whole_blocks, part_blocks] {
        agree(make, 27 + 9 * 32 + 32 + 2 * 5 + 80 * 36 + 64 + CLASSES + BATCH * 144);
    }
}

#[test]
fn branches_in_their_joint() {
    // On the longest way of a gradient: taps and channels of four convolutions, a window of a pooling, inputs of the scores,
    // classes, and places of a tap in the mini-batch.
    for make in [inception, nested, read_twice] {
        agree(make, 27 + 64 + 9 * 64 + 132 + 9 + 180 * 36 + CLASSES + BATCH * 144);
    }
}

#[test]
fn shortcuts_around_convolutions() {
    // On the longest way of a gradient: taps and channels of the convolutions, sums of two, inputs of the scores, classes, and
    // places of a tap in the mini-batch.
    agree(residual, 27 + 32 + 9 * 16 + 32 + 9 * 16 + 2 * 9 * 32 + 3 * 2 + 32 * 25 + CLASSES + BATCH * 100);
}

#[test]
fn layers_that_do_not_learn_between_others() {
    agree(frozen, 27 + 32 + 9 * 16 + 32 + 9 * 16 + 2 * 9 * 32 + 3 * 2 + 32 * 25 + CLASSES + BATCH * 100);
}

#[test]
fn losses_of_several_kinds_and_weights() {
    // Taps, inputs of scores, classes, a mean's terms, and places of a tap in the mini-batch.
    agree(judged, 27 + 20 * 100 + CLASSES + 20 * 100 + BATCH * 100);
    agree(read_losses, 27 + 20 * 100 + CLASSES + 20 * 100 + BATCH * 100);
}
