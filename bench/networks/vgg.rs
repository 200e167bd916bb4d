//! VGG's networks with 16 and 19 layers: configurations D and E.

use super::text::{Network, Weights, Window};

/// Channels of each block, and its convolutions in both networks.
const BLOCKS: [(usize, usize, usize); 5] = [(64, 2, 2), (128, 2, 2), (256, 3, 4), (512, 3, 4), (512, 3, 4)];

/// The network of 16 or 19 layers.
pub fn network(layers: usize) -> String {
    let (configuration, parameters) = if layers == 16 { ("D", "138,357,544") } else { ("E", "143,667,240") };
    let mut net = Network::new(
        &format!("VGG_ILSVRC_{layers}_layers"),
        &[
            "K. Simonyan, A. Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition",
            &format!(
                "(arXiv:1409.1556), configuration {configuration}: {parameters} parameters. Layers are named as in"
            ),
            &format!("the Caffe model zoo (VGG_ILSVRC_{layers}_layers)."),
        ],
    );
    net.imagenet(224, "mean_value: 103.939 mean_value: 116.779 mean_value: 123.68", [64, 50]);
    let mut below = "data".to_owned();
    let mut channels = 3;
    for (index, (outputs, in_16, in_19)) in BLOCKS.into_iter().enumerate() {
        let (block, size) = (index + 1, 224 >> index);
        let half = size / 2;
        net.comment(&format!("{channels}x{size}x{size} -> {outputs}x{half}x{half}"));
        for number in 1..=if layers == 16 { in_16 } else { in_19 } {
            let name = format!("conv{block}_{number}");
            net.convolution(&name, &below, outputs, Window::square(3, 1, 1), Weights::Xavier("0"));
            net.relu(&format!("relu{block}_{number}"), &name);
            below = name;
        }
        let pool = format!("pool{block}");
        net.pooling(&pool, &below, "MAX", Window::square(2, 2, 0));
        (below, channels) = (pool, outputs);
    }
    net.comment("25088 -> 4096 -> 4096 -> 1000");
    for number in [6, 7] {
        let name = format!("fc{number}");
        net.inner_product(&name, &below, 4096, Weights::Xavier("0"));
        net.relu(&format!("relu{number}"), &name);
        net.dropout(&format!("drop{number}"), &name, "0.5");
        below = name;
    }
    net.inner_product("fc8", &below, 1000, Weights::Xavier("0"));
    net.accuracies(["accuracy", "accuracy_top5"], "fc8");
    net.loss("loss", "fc8", "loss", None);
    net.finish()
}
