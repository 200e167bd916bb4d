//! GoogLeNet with its two auxiliary heads.

use super::text::{Network, Weights, Window};

/// Outputs of an inception module: 1x1, 3x3 with its reduction before it, 5x5 with its, and behind the pooling.
struct Module {
    name: &'static str,
    one: usize,
    three: [usize; 2],
    five: [usize; 2],
    pool: usize,
}

const fn module(name: &'static str, one: usize, three: [usize; 2], five: [usize; 2], pool: usize) -> Module {
    Module { name, one, three, five, pool }
}

const MODULES: [Module; 9] = [
    module("3a", 64, [96, 128], [16, 32], 32),
    module("3b", 128, [128, 192], [32, 96], 64),
    module("4a", 192, [96, 208], [16, 48], 64),
    module("4b", 160, [112, 224], [24, 64], 64),
    module("4c", 128, [128, 256], [24, 64], 64),
    module("4d", 112, [144, 288], [32, 64], 64),
    module("4e", 256, [160, 320], [32, 128], 128),
    module("5a", 256, [160, 320], [32, 128], 128),
    module("5b", 384, [192, 384], [48, 128], 128),
];

/// The bias of every layer but the classifiers.
const BIASED: Weights = Weights::Xavier("0.2");
const LRN: &str = "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }";

/// The network.
pub fn network() -> String {
    let mut net = Network::new(
        "GoogleNet",
        &[
            "C. Szegedy et al.: Going Deeper with Convolutions (arXiv:1409.4842): 6,998,552 parameters, 13,378,280",
            "with the two heads that train only. Shapes, fillers and names are those of the Caffe model zoo",
            "(bvlc_googlenet).",
        ],
    );
    net.imagenet(224, "mean_value: 104 mean_value: 117 mean_value: 123", [32, 50]);
    stem(&mut net);
    let mut below = "pool2/3x3_s2".to_owned();
    for module in &MODULES {
        below = module.write(&mut net, &below);
        match module.name {
            "3b" | "4e" => {
                let pool = format!("pool{}/3x3_s2", &module.name[..1]);
                net.pooling(&pool, &below, "MAX", Window::square(3, 2, 0));
                below = pool;
            }
            "4a" => head(&mut net, "loss1", &below),
            "4d" => head(&mut net, "loss2", &below),
            _ => {}
        }
    }
    net.comment("1024x7x7 -> 1024 -> 1000");
    net.pooling("pool5/7x7_s1", &below, "AVE", Window::square(7, 1, 0));
    net.dropout("pool5/drop_7x7_s1", "pool5/7x7_s1", "0.4");
    net.inner_product("loss3/classifier", "pool5/7x7_s1", 1000, Weights::Xavier("0"));
    net.loss("loss3/loss3", "loss3/classifier", "loss3/loss3", Some("1"));
    net.accuracies(["loss3/top-1", "loss3/top-5"], "loss3/classifier");
    net.finish()
}

fn stem(net: &mut Network) {
    net.comment("3x224x224 -> 64x56x56 -> 192x28x28");
    convolution(net, "conv1", "7x7_s2", "7x7", "data", 64, Window::square(7, 2, 3));
    net.pooling("pool1/3x3_s2", "conv1/7x7_s2", "MAX", Window::square(3, 2, 0));
    net.layer("LRN", "pool1/norm1", &["pool1/3x3_s2"], &["pool1/norm1"], &[LRN]);
    convolution(net, "conv2", "3x3_reduce", "3x3_reduce", "pool1/norm1", 64, Window::square(1, 1, 0));
    convolution(net, "conv2", "3x3", "3x3", "conv2/3x3_reduce", 192, Window::square(3, 1, 1));
    net.layer("LRN", "conv2/norm2", &["conv2/3x3"], &["conv2/norm2"], &[LRN]);
    net.pooling("pool2/3x3_s2", "conv2/norm2", "MAX", Window::square(3, 2, 0));
}

/// A convolution `GROUP/NAME` with its ReLU `GROUP/relu_RELU`; returns its top.
fn convolution(
    net: &mut Network,
    group: &str,
    name: &str,
    relu: &str,
    below: &str,
    outputs: usize,
    window: Window,
) -> String {
    let top = format!("{group}/{name}");
    net.convolution(&top, below, outputs, window, BIASED);
    net.relu(&format!("{group}/relu_{relu}"), &top);
    top
}

impl Module {
    fn write(&self, net: &mut Network, below: &str) -> String {
        let group = format!("inception_{}", self.name);
        let channels = self.one + self.three[1] + self.five[1] + self.pool;
        let size = [28, 14, 7][usize::from(self.name.as_bytes()[0] - b'3')];
        net.comment(&format!("{group}: {channels}x{size}x{size}"));
        let mut add = |name: &str, below: &str, outputs, window| {
            convolution(net, &group, name, name, below, outputs, window)
        };
        let point = Window::square(1, 1, 0);
        let one = add("1x1", below, self.one, point);
        let reduced = add("3x3_reduce", below, self.three[0], point);
        let three = add("3x3", &reduced, self.three[1], Window::square(3, 1, 1));
        let reduced = add("5x5_reduce", below, self.five[0], point);
        let five = add("5x5", &reduced, self.five[1], Window::square(5, 1, 2));
        let pool = format!("{group}/pool");
        net.pooling(&pool, below, "MAX", Window::square(3, 1, 1));
        let projected = convolution(net, &group, "pool_proj", "pool_proj", &pool, self.pool, point);
        let top = format!("{group}/output");
        net.concat(&top, &[&one, &three, &five, &projected]);
        top
    }
}

/// A head beside the net, whose loss weighs 0.3: gradients for the lower layers while training.
fn head(net: &mut Network, group: &str, below: &str) {
    net.comment(&format!("{group}: 4x4 means -> 128x4x4 -> 1024 -> 1000"));
    let [pool, fc, relu, drop, classifier, loss, top, first, five] =
        ["ave_pool", "fc", "relu_fc", "drop_fc", "classifier", "loss", group, "top-1", "top-5"]
            .map(|name| format!("{group}/{name}"));
    net.pooling(&pool, below, "AVE", Window::square(5, 3, 0));
    let reduced = convolution(net, group, "conv", "conv", &pool, 128, Window::square(1, 1, 0));
    net.inner_product(&fc, &reduced, 1024, BIASED);
    net.relu(&relu, &fc);
    net.dropout(&drop, &fc, "0.7");
    net.inner_product(&classifier, &fc, 1000, Weights::Xavier("0"));
    net.loss(&loss, &classifier, &top, Some("0.3"));
    net.accuracies([&first, &five], &classifier);
}
