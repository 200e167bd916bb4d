//! Residual networks, first version.

use super::text::{Network, Weights, Window};

/// One of the published depths.
struct Depth {
    layers: usize,
    /// Units of each of the four stages.
    units: [usize; 4],
    /// Whether a unit is a bottleneck (1x1, 3x3, 1x1) or two 3x3.
    bottleneck: bool,
    /// Learned values, those of BatchNorm's statistics aside.
    parameters: &'static str,
    batches: [usize; 2],
}

const DEPTHS: [Depth; 5] = [
    Depth { layers: 18, units: [2, 2, 2, 2], bottleneck: false, parameters: "11,689,512", batches: [64, 50] },
    Depth { layers: 34, units: [3, 4, 6, 3], bottleneck: false, parameters: "21,797,672", batches: [64, 50] },
    Depth { layers: 50, units: [3, 4, 6, 3], bottleneck: true, parameters: "25,557,032", batches: [32, 25] },
    Depth {
        layers: 101,
        units: [3, 4, 23, 3],
        bottleneck: true,
        parameters: "44,549,160",
        batches: [32, 25],
    },
    Depth {
        layers: 152,
        units: [3, 8, 36, 3],
        bottleneck: true,
        parameters: "60,192,808",
        batches: [32, 25],
    },
];

/// The network of a published number of layers.
pub fn network(layers: usize) -> Option<String> {
    let depth = DEPTHS.iter().find(|depth| depth.layers == layers)?;
    let mut net = Network::new(
        &format!("ResNet-{layers}"),
        &[
            "K. He, X. Zhang, S. Ren, J. Sun: Deep Residual Learning for Image Recognition (arXiv:1512.03385):",
            &format!(
                "{} parameters. Where a stage begins, the stride is in the unit's first convolution.",
                depth.parameters
            ),
            "Layers are named as in the authors' Caffe files (github.com/KaimingHe/deep-residual-networks).",
        ],
    );
    net.imagenet(224, "mean_value: 104 mean_value: 117 mean_value: 123", depth.batches);
    net.comment("3x224x224 -> 64x112x112 -> 64x56x56");
    convolution(&mut net, ["conv1", "bn_conv1", "scale_conv1"], "data", 64, Window::square(7, 2, 3));
    net.relu("conv1_relu", "conv1");
    net.pooling("pool1", "conv1", "MAX", Window::square(3, 2, 0));
    let mut below = "pool1".to_owned();
    for (index, units) in depth.units.into_iter().enumerate() {
        for number in 0..units {
            let unit = Unit { depth, stage: index, number, name: unit_name(depth, index, number) };
            below = unit.write(&mut net, &below);
        }
    }
    let outputs = if depth.bottleneck { 2048 } else { 512 };
    net.comment(&format!("{outputs}x7x7 -> {outputs} -> 1000"));
    net.pooling("pool5", &below, "AVE", Window::square(7, 1, 0));
    net.inner_product("fc1000", "pool5", 1000, Weights::Xavier("0"));
    net.accuracies(["accuracy", "accuracy_top5"], "fc1000");
    net.loss("loss", "fc1000", "loss", None);
    Some(net.finish())
}

/// Units of a stage are a, b, c, ...; in the two deepest networks the authors number the units of the longer
/// stages: a, b1, b2, ...
fn unit_name(depth: &Depth, stage: usize, number: usize) -> String {
    let numbered = depth.layers > 50 && depth.units[stage] > 3;
    let stage = stage + 2;
    match number {
        0 => format!("{stage}a"),
        n if numbered => format!("{stage}b{n}"),
        n => format!("{stage}{}", char::from(b'a' + n as u8)),
    }
}

/// A convolution without bias, BatchNorm and Scale, by these names.
fn convolution(
    net: &mut Network,
    [name, norm, scale]: [&str; 3],
    below: &str,
    outputs: usize,
    window: Window,
) {
    net.convolution(name, below, outputs, window, Weights::Msra);
    net.normalised(norm, scale, name, "");
}

/// A unit: a few convolutions beside a way past them.
struct Unit<'a> {
    depth: &'a Depth,
    stage: usize,
    number: usize,
    name: String,
}

impl Unit<'_> {
    /// Writes the unit on top of `below` and returns its top.
    fn write(&self, net: &mut Network, below: &str) -> String {
        let width = 64 << self.stage;
        let stride = if self.stage > 0 && self.number == 0 { 2 } else { 1 };
        let (three, one) = (Window::square(3, 1, 1), Window::square(1, 1, 0));
        let branch: Vec<(usize, Window)> = if self.depth.bottleneck {
            vec![(width, Window::square(1, stride, 0)), (width, three), (4 * width, one)]
        } else {
            vec![(width, Window::square(3, stride, 1)), (width, three)]
        };
        let outputs = branch[branch.len() - 1].0;
        let size = 56 >> self.stage;
        net.comment(&format!("res{}: {outputs}x{size}x{size}", self.name));
        // Where the size of the image or the number of channels changes, the way past is a projection.
        let projects = self.number == 0 && (self.stage > 0 || self.depth.bottleneck);
        let past = if projects {
            self.branch(net, "1", below, outputs, Window::square(1, stride, 0))
        } else {
            below.to_owned()
        };
        let last = branch.len() - 1;
        let mut top = below.to_owned();
        for (index, (outputs, window)) in branch.into_iter().enumerate() {
            let letter = char::from(b'a' + index as u8);
            top = self.branch(net, &format!("2{letter}"), &top, outputs, window);
            if index < last {
                net.relu(&format!("{top}_relu"), &top);
            }
        }
        let sum = format!("res{}", self.name);
        net.layer("Eltwise", &sum, &[&past, &top], &[&sum], &["eltwise_param { operation: SUM }"]);
        net.relu(&format!("{sum}_relu"), &sum);
        sum
    }

    fn branch(&self, net: &mut Network, branch: &str, below: &str, outputs: usize, window: Window) -> String {
        let [name, norm, scale] =
            ["res", "bn", "scale"].map(|word| format!("{word}{}_branch{branch}", self.name));
        convolution(net, [&name, &norm, &scale], below, outputs, window);
        name
    }
}
