//! Layers that share parameters on the engine: their gradient is the oracle's sum, on every quadrant the same.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{ContrastiveLoss, Layer, Slice};
use quadrille_core::net::{LayerSpec, Net, NetSpec, ParamSpec};
use quadrille_core::plan::Stage;
use quadrille_core::reference::{Real, ReferenceNet};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_cpu::{CpuDevice, EngineOptions};

use crate::common::{
    convolution, fractions, inner_product, input, labels, nets, network, options, plan, tiers, worker,
};

const BATCH: usize = 11;
const PER_IMAGE: usize = 2 * 8 * 8;

/// A convolution and an inner product on either half of the channels, the same on both, and a contrastive loss.
pub fn siamese(batch: usize) -> NetSpec {
    let named = |names: [&str; 2]| {
        names.map(|name| ParamSpec { name: Some(name.into()), ..ParamSpec::default() }).to_vec()
    };
    let slice = Layer::Slice(Slice { axis: 1, points: Vec::new(), tops: 2 });
    let mut layers = vec![
        input("data", &[batch, 2, 8, 8]),
        input("similar", &[batch]),
        LayerSpec::new("slice", slice, &["data"], &["left", "right"]),
    ];
    for side in ["left", "right"] {
        let [conv, ip] = ["conv", "ip"].map(|name| format!("{name}_{side}"));
        let convolve = LayerSpec::new(&conv, Layer::Convolution(convolution(5, [3, 3])), &[side], &[&conv]);
        let multiply = LayerSpec::new(&ip, Layer::InnerProduct(inner_product(4)), &[&conv], &[&ip]);
        layers.push(LayerSpec { params: named(["conv_w", "conv_b"]), ..convolve });
        layers.push(LayerSpec { params: named(["ip_w", "ip_b"]), ..multiply });
    }
    let contrast = Layer::ContrastiveLoss(ContrastiveLoss { margin: 2.0, legacy_version: false });
    layers.push(LayerSpec::new("loss", contrast, &["ip_left", "ip_right", "similar"], &["loss"]));
    network(layers, false)
}

fn weights(net: &Net) -> Vec<f32> {
    let mut weights = vec![0.0; net.params.len()];
    net.params.fill(5, &mut weights);
    weights
}

fn read(device: &CpuDevice, net: &Net, packed: Packed) -> Vec<f32> {
    let mut values = vec![0.0; net.params.len()];
    device.read(Region::Packed(packed), &mut values).expect("a packed buffer");
    values
}

/// A packed buffer of each quadrant after `steps` steps.
fn stepped(
    [quadrants, threads]: [usize; 2],
    options: &EngineOptions,
    steps: u64,
    packed: Packed,
) -> Vec<Vec<f32>> {
    let nets = nets(siamese, BATCH, quadrants);
    // With the update in the same plan, no quadrant has all of a gradient.
    let stage = if packed == Packed::Gradients { Stage::Gradients } else { Stage::Iteration };
    let plan = plan(&nets, stage);
    let worker = worker(&nets, &plan, threads, options).expect("a worker");
    let devices = worker.devices(0);
    let (images, similar) = (fractions(1, BATCH * PER_IMAGE), labels(2, BATCH, 2));
    let mut first = 0;
    for (device, net) in devices.iter().zip(&nets) {
        let end = first + net.batch();
        let blob = |name| net.blobs.iter().find(|b| b.name == name).expect("a blob").data;
        let images = &images[first * PER_IMAGE..end * PER_IMAGE];
        device.write(Region::Stage(blob("data")), images).expect("a stage");
        device.write(Region::Stage(blob("similar")), &similar[first..end]).expect("a stage");
        device.write(Region::Packed(Packed::Weights), &weights(net)).expect("weights");
        first = end;
    }
    for iteration in 0..steps {
        let scalars = Scalars { iteration, rate: 0.05, ..Scalars::default() };
        run_step(&devices, &plan, &scalars, &mut StepTimes::default()).expect("a step");
    }
    devices.iter().zip(&nets).map(|(device, net)| read(device, net, packed)).collect()
}

/// The packed gradients of the whole mini-batch by the oracle.
fn oracle<T: Real>() -> Vec<T> {
    let net = nets(siamese, BATCH, 1).remove(0);
    let mut run = ReferenceNet::<T>::new(net.clone());
    run.set_params(&weights(&net));
    let real = |values: Vec<f32>| values.into_iter().map(T::from_f32).collect::<Vec<_>>();
    run.set_input("data", &real(fractions(1, BATCH * PER_IMAGE)));
    run.set_input("similar", &real(labels(2, BATCH, 2)));
    run.forward();
    run.backward();
    let mut gradients = vec![T::ZERO; net.params.len()];
    for view in net.params.views() {
        gradients[view.range()].copy_from_slice(run.param_grad(&view.name).expect("a parameter"));
    }
    gradients
}

#[test]
fn naive_kernels_give_the_bits_of_the_oracle() {
    let types = ["Convolution", "InnerProduct"];
    let kernels = types.map(|kind| (kind.to_owned(), "reference".to_owned())).to_vec();
    for isa in tiers("gradients of shared parameters") {
        let options = EngineOptions { kernels: kernels.clone(), ..options(isa) };
        for threads in [1, 3] {
            let found = stepped([1, threads], &options, 1, Packed::Gradients).remove(0);
            assert_eq!(found, oracle::<f32>(), "{isa}, {threads} threads");
        }
    }
}

#[test]
fn quadrants_sum_what_all_layers_have_added() {
    let truth = oracle::<f64>();
    let norm = truth.iter().map(|g| g * g).sum::<f64>().sqrt();
    assert!(norm > 0.1, "mistrusted: the gradient is {norm}");
    for isa in tiers("sums of shared parameters") {
        for quadrants in [1, 2, 3] {
            let all = stepped([quadrants, 2], &options(isa), 1, Packed::Gradients);
            for found in &all {
                assert_eq!(*found, all[0], "{isa}, {quadrants} quadrants");
            }
            let error =
                all[0].iter().zip(&truth).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum::<f64>().sqrt();
            // The longest sum: images × places of a weight of the convolution, in two layers; then five more steps.
            let bound = (2 * BATCH * 36 * 5) as f64 * f64::from(f32::EPSILON);
            assert!(error <= bound * norm, "{error:e} of {norm:e}: {isa}, {quadrants} quadrants");
        }
    }
}

#[test]
fn weights_are_updated_once_and_do_not_depend_on_threads() {
    for isa in tiers("updates of shared parameters") {
        let one = stepped([1, 1], &options(isa), 1, Packed::Weights).remove(0);
        let gradients = stepped([1, 1], &options(isa), 1, Packed::Gradients).remove(0);
        let before = weights(&nets(siamese, BATCH, 1)[0]);
        for ((after, before), gradient) in one.iter().zip(&before).zip(&gradients) {
            assert_eq!(*after, before - 0.05 * gradient, "{isa}");
        }
        for quadrants in [1, 3] {
            let first = stepped([quadrants, 1], &options(isa), 4, Packed::Weights);
            for threads in [2, 3] {
                let again = stepped([quadrants, threads], &options(isa), 4, Packed::Weights);
                assert_eq!(again, first, "{isa}, {quadrants} quadrants, {threads} threads");
            }
            assert!(first.iter().all(|weights| *weights == first[0]), "{isa}: quadrants differ");
        }
    }
}
