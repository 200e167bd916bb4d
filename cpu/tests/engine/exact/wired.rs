//! Concats without copies and gradients that are added up where they lie, on small integers: every gradient is the
//! oracle's, in f32 and in bf16.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{
    Concat, ContrastiveLoss, Convolution, Eltwise, EltwiseOperation, Layer, PoolMethod, Pooling,
};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetSpec};
use quadrille_core::plan::Stage;
use quadrille_core::reference::ReferenceNet;
use quadrille_core::run::{StepTimes, run_step};
use quadrille_cpu::isa::{Isa, Numerics};

use crate::adding::{adding, count, shortcuts};
use crate::common::{
    convolution, inner_product, input, integers, nets, network, numerics, options, plan, worker,
};
use crate::lifetime::sharing;
use crate::whole_nets::relu;

/// A power of two, by which the loss divides.
const BATCH: usize = 4;
const FEATURES: usize = 2;

/// 1×1 and 3×3 convolutions and a pooling, joined, and joined again with a convolution that reads one of them. The loss is
/// the distance to wanted features; its gradient is as small as that.
fn branches(batch: usize) -> NetSpec {
    let conv = |name: &str, outputs: usize, kernel: usize, bottom: &str| {
        let layer = Convolution { pad: [kernel / 2; 2], ..convolution(outputs, [kernel; 2]) };
        LayerSpec::new(name, Layer::Convolution(layer), &[bottom], &[name])
    };
    let concat = |name: &str, bottoms: &[&str]| {
        LayerSpec::new(name, Layer::Concat(Concat { axis: 1, bottoms: bottoms.len() }), bottoms, &[name])
    };
    let pool = |name: &str, pad: usize, stride: usize, bottom: &str| {
        let layer =
            Pooling { method: PoolMethod::Max, kernel: Some([3; 2]), pad: [pad; 2], stride: [stride; 2] };
        LayerSpec::new(name, Layer::Pooling(layer), &[bottom], &[name])
    };
    between(
        batch,
        vec![
            conv("stem", 64, 3, "data"),
            relu("stem"),
            conv("one", 32, 1, "stem"),
            relu("one"),
            conv("three", 64, 3, "stem"),
            relu("three"),
            pool("around", 1, 1, "stem"),
            conv("proj", 20, 1, "around"),
            concat("inner", &["one", "three", "proj"]),
            conv("again", 16, 3, "three"),
            relu("again"),
            concat("outer", &["again", "around", "inner"]),
            pool("last", 0, 2, "outer"),
        ],
    )
}

/// Residual blocks: the shortcut's gradient is added to by 1×1 convolutions with and without a stride, and by Winograd's.
fn residual(batch: usize) -> NetSpec {
    let stem = Convolution { pad: [1; 2], ..convolution(32, [3; 2]) };
    let pool = Pooling { method: PoolMethod::Max, kernel: Some([3; 2]), pad: [0; 2], stride: [2; 2] };
    let mut layers =
        vec![LayerSpec::new("stem", Layer::Convolution(stem), &["data"], &["stem"]), relu("stem")];
    layers.extend(shortcuts("stem", 32));
    layers.push(LayerSpec::new("last", Layer::Pooling(pool), &["sum_c"], &["last"]));
    between(batch, layers)
}

/// Two 5×5 convolutions with less padding than they take away, both of one bottom: of its gradient one adds to the other's. Tiles of
/// such a gradient overlap.
fn overlapping(batch: usize) -> NetSpec {
    let conv = |name: &str, kernel: usize, bottom: &str| {
        let layer = Convolution { pad: [1; 2], ..convolution(32, [kernel; 2]) };
        LayerSpec::new(name, Layer::Convolution(layer), &[bottom], &[name])
    };
    let operation = EltwiseOperation::Sum { coefficients: Vec::new(), relu: false };
    let sum = Layer::Eltwise(Eltwise { bottoms: 2, operation });
    let pool = Pooling { method: PoolMethod::Max, kernel: Some([3; 2]), pad: [0; 2], stride: [2; 2] };
    let layers = vec![
        conv("stem", 3, "data"),
        relu("stem"),
        conv("a", 5, "stem"),
        conv("b", 5, "stem"),
        LayerSpec::new("sum", sum, &["a", "b"], &["sum"]),
        LayerSpec::new("last", Layer::Pooling(pool), &["sum"], &["last"]),
    ];
    between(batch, layers)
}

/// Layers between images and a loss: from the blob "data" to the blob "last".
fn between(batch: usize, layers: Vec<LayerSpec>) -> NetSpec {
    let loss = Layer::ContrastiveLoss(ContrastiveLoss { margin: 1.0, legacy_version: false });
    let mut all = vec![
        input("data", &[batch, 3, 9, 9]),
        input("wanted", &[batch, FEATURES]),
        input("similar", &[batch]),
    ];
    all.extend(layers);
    all.extend([
        LayerSpec::new("ip", Layer::InnerProduct(inner_product(FEATURES)), &["last"], &["ip"]),
        LayerSpec::new("loss", loss, &["ip", "wanted", "similar"], &["loss"]),
    ]);
    network(all, false)
}

/// Each output sums a few inputs, some of them negative, so that 8 bits hold what every layer puts out.
fn weights(net: &Net) -> Vec<f32> {
    let mut weights = vec![0.0; net.params.len()];
    for (seed, view) in net.params.views().iter().enumerate() {
        let signs = integers(seed as u64, view.shape.count(), 1);
        let inputs = view.shape.count() / view.shape.dim(0);
        // Of a convolution three inputs for each output; of the features, whose sums are f32, every eighth.
        let few = if view.shape.axes() == 2 { inputs / 8 } else { 3 };
        let kept = |i: usize| (i % inputs * 7919 + i / inputs * 31) % inputs < few;
        for (i, weight) in weights[view.range()].iter_mut().enumerate().filter(|(i, _)| kept(*i)) {
            *weight = signs[i];
        }
    }
    weights
}

/// The packed gradients by the oracle, and the features that make the loss's gradient small.
fn oracle(net: &Net, images: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let double = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
    let mut run = ReferenceNet::<f64>::new(net.clone());
    run.set_params(&weights(net));
    run.set_input("data", &double(images));
    run.set_input("wanted", &[0.0; BATCH * FEATURES]);
    run.set_input("similar", &[1.0; BATCH]);
    run.forward();
    let features = run.blob("ip").expect("features");
    let distances = integers(5, BATCH * FEATURES, 2);
    let wanted: Vec<f32> = features.iter().zip(distances).map(|(f, d)| *f as f32 - d).collect();
    run.set_input("wanted", &double(&wanted));
    run.forward();
    run.backward();
    let largest = run.blob("last").expect("a blob").iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    assert!(largest <= 256.0, "mistrusted: bf16 does not hold {largest}");
    let mut gradients = vec![0.0; net.params.len()];
    for view in net.params.views() {
        let gradient = run.param_grad(&view.name).expect("a parameter");
        assert!(gradient.iter().any(|g| *g != 0.0), "mistrusted: the gradient of {} is 0", view.name);
        gradients[view.range()].iter_mut().zip(gradient).for_each(|(to, g)| *to = *g as f32);
    }
    (gradients, wanted)
}

/// The packed gradients by the engine, how many Concats copy nothing, and how many layers add to what is there.
fn found(net: Net, numerics: Numerics, images: &[f32], wanted: &[f32]) -> (Vec<f32>, [usize; 2]) {
    let options = options(numerics);
    let nets = [sharing(adding(net, &options), &options)];
    let plan = plan(&nets, Stage::Gradients);
    let worker = worker(&nets, &plan, 2, &options).expect("a worker");
    let devices = worker.devices(0);
    for (name, values) in [("data", images), ("wanted", wanted), ("similar", &[1.0; BATCH][..])] {
        let blob = nets[0].blobs.iter().find(|b| b.name == name).expect("a blob");
        devices[0].write(Region::Stage(blob.data), values).expect("a stage");
    }
    devices[0].write(Region::Packed(Packed::Weights), &weights(&nets[0])).expect("weights");
    run_step(&devices, &plan, &Scalars::default(), &mut StepTimes::default()).expect("a step");
    let mut gradients = vec![0.0; nets[0].params.len()];
    devices[0].read(Region::Packed(Packed::Gradients), &mut gradients).expect("gradients");
    let joined = (0..nets[0].layers.len()).filter(|id| nets[0].is_joined(LayerId(*id))).count();
    (gradients, [joined, count(&nets[0])])
}

/// Every gradient of a net is the oracle's; `wired` is what [`found`] is to say on tiers with vectors.
fn agree(spec: fn(usize) -> NetSpec, wired: [usize; 2]) {
    let net = nets(spec, BATCH, 1).remove(0);
    let images = integers(3, BATCH * 3 * 9 * 9, 2);
    let (expected, wanted) = oracle(&net, &images);
    for numerics in numerics("exact gradients where they lie") {
        for net in [net.clone(), net.clone().fused()] {
            let (gradients, ways) = found(net.clone(), numerics, &images, &wanted);
            assert_eq!(ways, if numerics.isa == Isa::Portable { [0; 2] } else { wired }, "{numerics}");
            for view in net.params.views() {
                let range = view.range();
                assert_eq!(gradients[range.clone()], expected[range], "{} on {numerics}", view.name);
            }
        }
    }
}

#[test]
fn concats_without_copies() {
    agree(branches, [2, 3]);
}

#[test]
fn shortcuts_that_are_added_to() {
    agree(residual, [0, 3]);
}

#[test]
fn tiles_that_overlap_are_added_to() {
    agree(overlapping, [0, 1]);
}
