//! A net of layers that work value by value, in place and not, in part and in whole blocks of channels, under one loss of
//! each kind.

use std::sync::Arc;

use quadrille_core::layer::{
    Bias, EuclideanLoss, Filler, HingeLoss, HingeNorm, InfogainLoss, Layer, MultinomialLogisticLoss, Mvn,
    Neuron, Normalization, Prelu, Reduction, ReductionOperation, SigmoidCrossEntropyLoss, Softmax,
};
use quadrille_core::net::{LayerSpec, NetSpec};

use crate::common::{convolution, inner_product, input, network};
use crate::whole_nets::{head, images};

const CLASSES: usize = 5;

/// The losses of the scores `t`.
fn losses() -> Vec<LayerSpec> {
    let normalization = Normalization::Valid;
    let gains: Arc<[f32]> = (0..CLASSES * CLASSES).map(|i| ((i * 7) % 5) as f32 / 5.0).collect();
    let cross = SigmoidCrossEntropyLoss { ignore_label: None, normalization };
    let infogain = InfogainLoss { axis: 1, ignore_label: Some(1), normalization, matrix: Some(gains) };
    let loss = |name: &str, layer, bottoms: [&str; 2]| LayerSpec {
        loss_weights: vec![0.1],
        ..LayerSpec::new(name, layer, &bottoms, &[name])
    };
    vec![
        loss("euclidean", Layer::EuclideanLoss(EuclideanLoss), ["t", "target"]),
        loss("cross", Layer::SigmoidCrossEntropyLoss(cross), ["t", "target"]),
        loss("hinge", Layer::HingeLoss(HingeLoss { norm: HingeNorm::L2 }), ["t", "label"]),
        loss("infogain", Layer::InfogainLoss(infogain), ["t", "label"]),
        LayerSpec::new("p", Layer::Softmax(Softmax { axis: 1 }), &["t"], &["p"]),
        loss("logarithm", Layer::MultinomialLogisticLoss(MultinomialLogisticLoss), ["p", "label"]),
    ]
}

/// The net.
pub fn functions(batch: usize) -> NetSpec {
    let neuron = |name: &str, neuron, bottom: &str, top: &str| {
        LayerSpec::new(name, Layer::Neuron(neuron), &[bottom], &[top])
    };
    let prelu = Prelu { channel_shared: false, filler: Filler::Constant(0.25) };
    let bias = Bias { bottoms: 1, axis: 1, num_axes: 1, filler: Filler::Constant(0.1) };
    let mvn = Mvn { normalize_variance: true, across_channels: false, eps: 1e-3 };
    let mean = Reduction { operation: ReductionOperation::Mean, axis: 2, coeff: 1.0 };
    let last = Bias { num_axes: -1, ..bias.clone() };
    let convolution = |outputs| Layer::Convolution(convolution(outputs, [3, 3]));
    let mut layers = images(batch);
    layers.extend([
        input("target", &[batch, CLASSES]),
        LayerSpec::new("conv1", convolution(20), &["data"], &["conv1"]),
        LayerSpec::new("prelu", Layer::Prelu(prelu), &["conv1"], &["a"]),
        LayerSpec::new("bias", Layer::Bias(bias), &["a"], &["a"]),
        neuron("elu", Neuron::Elu { alpha: 0.5 }, "a", "a"),
        LayerSpec::new("conv2", convolution(32), &["a"], &["b"]),
        neuron("sigmoid", Neuron::Sigmoid, "b", "b"),
        LayerSpec::new("mvn", Layer::Mvn(mvn), &["b"], &["m"]),
        neuron("power", Neuron::Power { power: 1.0, scale: 2.0, shift: 0.5 }, "m", "m"),
        neuron("swish", Neuron::Swish { beta: 1.0 }, "m", "s"),
        neuron("tanh", Neuron::TanH, "s", "s"),
        LayerSpec {
            loss_weights: vec![0.01],
            ..LayerSpec::new("mean", Layer::Reduction(mean), &["s"], &["r"])
        },
        LayerSpec::new("ip", Layer::InnerProduct(inner_product(CLASSES)), &["r"], &["t"]),
        LayerSpec::new("last", Layer::Bias(last), &["t"], &["t"]),
    ]);
    layers.extend(losses());
    head(&mut layers, "r");
    network(layers, false)
}
