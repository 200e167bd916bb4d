//! Inception-v3 with its auxiliary head.

use super::text::{Network, Weights, Window};

const POINT: Window = Window::square(1, 1, 0);
const THREE: Window = Window::square(3, 1, 1);
const HALVE: Window = Window::square(3, 2, 0);

/// The network.
pub fn network() -> String {
    let mut net = Network::new(
        "InceptionV3",
        &[
            "C. Szegedy, V. Vanhoucke, S. Ioffe, J. Shlens, Z. Wojna: Rethinking the Inception Architecture for",
            "Computer Vision (arXiv:1512.00567): 23,834,568 parameters, 27,161,264 with the head that trains only.",
            "Layers are named as in the Caffe files of github.com/soeaver/caffe-model, where the last module takes",
            "maxima before its projection, as the published weights want it. The head (names aux_...) is not there.",
        ],
    );
    net.imagenet(299, "mean_value: 128 mean_value: 128 mean_value: 128 scale: 0.0078125", [32, 25]);
    let mut writer = Writer { net };
    let mut below = writer.stem();
    for (number, pool) in [(1, 32), (2, 64), (3, 64)] {
        below = writer.module_a(number, pool, &below);
    }
    below = writer.reduction_a(&below);
    for (number, width) in [(1, 128), (2, 160), (3, 160), (4, 192)] {
        below = writer.module_b(number, width, &below);
    }
    writer.head(&below);
    below = writer.reduction_b(&below);
    for (number, pool) in [(1, "AVE"), (2, "MAX")] {
        below = writer.module_c(number, pool, &below);
    }
    let Writer { mut net } = writer;
    net.comment("2048x8x8 -> 2048 -> 1000");
    net.pooling("pool_8x8_s1", &below, "AVE", Window::square(8, 1, 0));
    net.dropout("pool_8x8_s1_drop", "pool_8x8_s1", "0.2");
    net.inner_product("classifier", "pool_8x8_s1", 1000, Weights::Xavier("0"));
    net.accuracies(["accuracy", "accuracy_top5"], "classifier");
    net.loss("loss", "classifier", "loss", Some("1"));
    net.finish()
}

struct Writer {
    net: Network,
}

impl Writer {
    /// Convolution, BatchNorm, Scale and ReLU; returns the top.
    fn convolution(&mut self, name: &str, relu: &str, below: &str, outputs: usize, window: Window) -> String {
        self.net.convolution(name, below, outputs, window, Weights::Msra);
        let (norm, scale) = (format!("{name}_bn"), format!("{name}_scale"));
        self.net.normalised(&norm, &scale, name, "eps: 0.001 moving_average_fraction: 0.9997");
        self.net.relu(relu, name);
        name.to_owned()
    }

    /// Convolutions of the module `group` one above the other; returns the last top.
    fn chain(&mut self, group: &str, below: &str, layers: &[(&str, usize, Window)]) -> String {
        layers.iter().fold(below.to_owned(), |below, (name, outputs, window)| {
            let name = format!("{group}_{name}");
            self.convolution(&name, &format!("{name}_relu"), &below, *outputs, *window)
        })
    }

    /// Pooling that keeps the size, and a projection of what comes of it.
    fn pooled(&mut self, group: &str, below: &str, pool: [&str; 2], name: &str, outputs: usize) -> String {
        let [pool, method] = pool;
        let pool = format!("{group}_{pool}");
        self.net.pooling(&pool, below, method, THREE);
        self.chain(group, &pool, &[(name, outputs, POINT)])
    }

    fn concat(&mut self, name: &str, bottoms: &[String]) -> String {
        let bottoms: Vec<&str> = bottoms.iter().map(String::as_str).collect();
        self.net.concat(name, &bottoms);
        name.to_owned()
    }

    fn stem(&mut self) -> String {
        self.net.comment("3x299x299 -> 64x147x147 -> 64x73x73 -> 192x71x71 -> 192x35x35");
        let mut top = self.convolution("conv1_3x3_s2", "conv1_3x3_relu", "data", 32, HALVE);
        top = self.convolution("conv2_3x3_s1", "conv2_3x3_relu", &top, 32, Window::square(3, 1, 0));
        top = self.convolution("conv3_3x3_s1", "conv3_3x3_relu", &top, 64, THREE);
        self.net.pooling("pool1_3x3_s2", &top, "MAX", HALVE);
        top = self.convolution("conv4_3x3_reduce", "conv4_relu_3x3_reduce", "pool1_3x3_s2", 80, POINT);
        top = self.convolution("conv4_3x3", "conv4_relu_3x3", &top, 192, Window::square(3, 1, 0));
        self.net.pooling("pool2_3x3_s2", &top, "MAX", HALVE);
        "pool2_3x3_s2".to_owned()
    }

    fn module_a(&mut self, number: usize, projected: usize, below: &str) -> String {
        let group = format!("inception_a{number}");
        self.net.comment(&format!("{group}: {}x35x35", 224 + projected));
        let branches = [
            self.chain(&group, below, &[("1x1", 64, POINT)]),
            self.chain(&group, below, &[("5x5_reduce", 48, POINT), ("5x5", 64, Window::same(5, 5))]),
            self.chain(
                &group,
                below,
                &[("3x3_reduce", 64, POINT), ("3x3_1", 96, THREE), ("3x3_2", 96, THREE)],
            ),
            self.pooled(&group, below, ["pool", "AVE"], "pool_proj", projected),
        ];
        self.concat(&format!("{group}_output"), &branches)
    }

    fn reduction_a(&mut self, below: &str) -> String {
        let group = "reduction_a";
        self.net.comment("reduction_a: 288x35x35 -> 768x17x17");
        let one = self.chain(group, below, &[("3x3", 384, HALVE)]);
        let two = self.chain(
            group,
            below,
            &[("3x3_2_reduce", 64, POINT), ("3x3_2", 96, THREE), ("3x3_3", 96, HALVE)],
        );
        self.net.pooling("reduction_a_pool", below, "MAX", HALVE);
        self.concat("reduction_a_concat", &[one, two, "reduction_a_pool".to_owned()])
    }

    fn module_b(&mut self, number: usize, width: usize, below: &str) -> String {
        let group = format!("inception_b{number}");
        self.net.comment(&format!("{group}: 768x17x17"));
        let (row, column) = (Window::same(1, 7), Window::same(7, 1));
        let branches = [
            self.chain(&group, below, &[("1x1_2", 192, POINT)]),
            self.chain(
                &group,
                below,
                &[("1x7_reduce", width, POINT), ("1x7", width, row), ("7x1", 192, column)],
            ),
            self.chain(
                &group,
                below,
                &[
                    ("7x1_reduce", width, POINT),
                    ("7x1_2", width, column),
                    ("1x7_2", width, row),
                    ("7x1_3", width, column),
                    ("1x7_3", 192, row),
                ],
            ),
            self.pooled(&group, below, ["pool_ave", "AVE"], "1x1", 192),
        ];
        self.concat(&format!("{group}_concat"), &branches)
    }

    fn reduction_b(&mut self, below: &str) -> String {
        let group = "reduction_b";
        self.net.comment("reduction_b: 768x17x17 -> 1280x8x8");
        let one = self.chain(group, below, &[("3x3_reduce", 192, POINT), ("3x3", 320, HALVE)]);
        let two = self.chain(
            group,
            below,
            &[
                ("1x7_reduce", 192, POINT),
                ("1x7", 192, Window::same(1, 7)),
                ("7x1", 192, Window::same(7, 1)),
                ("3x3_2", 192, HALVE),
            ],
        );
        self.net.pooling("reduction_b_pool", below, "MAX", HALVE);
        self.concat("reduction_b_concat", &[one, two, "reduction_b_pool".to_owned()])
    }

    fn module_c(&mut self, number: usize, pool: &str, below: &str) -> String {
        let group = format!("inception_c{number}");
        self.net.comment(&format!("{group}: 2048x8x8"));
        let (row, column) = (Window::same(1, 3), Window::same(3, 1));
        let one = self.chain(&group, below, &[("1x1_2", 320, POINT)]);
        let reduced = self.chain(&group, below, &[("1x3_reduce", 384, POINT)]);
        let branch = [("1x3", 384, row), ("3x1", 384, column)].map(|l| self.chain(&group, &reduced, &[l]));
        let deep = self.chain(&group, below, &[("3x3_reduce", 448, POINT), ("3x3", 384, THREE)]);
        let deep = [("1x3_2", 384, row), ("3x1_2", 384, column)].map(|l| self.chain(&group, &deep, &[l]));
        let projected = self.pooled(&group, below, ["pool", pool], "1x1", 192);
        let bottoms: Vec<String> =
            std::iter::once(one).chain(branch).chain(deep).chain([projected]).collect();
        self.concat(&format!("{group}_concat"), &bottoms)
    }

    /// A head beside the net, whose loss weighs 0.4: gradients for the lower layers while training.
    fn head(&mut self, below: &str) {
        self.net.comment("aux: 768x5x5 means -> 128x5x5 -> 768 -> 1000");
        self.net.pooling("aux_pool", below, "AVE", Window::square(5, 3, 0));
        let layers = [("1x1", 128, POINT), ("5x5", 768, Window::square(5, 1, 0))];
        let top = self.chain("aux", "aux_pool", &layers);
        self.net.inner_product("aux_classifier", &top, 1000, Weights::Xavier("0"));
        self.net.loss("aux_loss", "aux_classifier", "aux_loss", Some("0.4"));
    }
}
