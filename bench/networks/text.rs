//! A network as text, in the style of the hand-written ones.

use std::fmt::Write;

/// How the weights of a layer start and how they are trained.
#[derive(Clone, Copy, Debug)]
pub enum Weights {
    /// Xavier's filler, and a bias of this value that learns twice as fast and does not decay.
    Xavier(&'static str),
    /// He's filler and no bias, since a BatchNorm follows.
    Msra,
}

/// The window of a convolution or pooling.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    kernel: [usize; 2],
    stride: usize,
    pad: [usize; 2],
}

impl Window {
    /// A square window.
    pub const fn square(kernel: usize, stride: usize, pad: usize) -> Self {
        Self { kernel: [kernel; 2], stride, pad: [pad; 2] }
    }

    /// A window of `height` x `width` (odd) with stride 1 that keeps the size of the image.
    pub const fn same(height: usize, width: usize) -> Self {
        Self { kernel: [height, width], stride: 1, pad: [height / 2, width / 2] }
    }

    /// Its fields, without those that have their default value.
    fn fields(&self) -> String {
        let mut text = match self.kernel {
            [height, width] if height == width => format!("kernel_size: {height}"),
            [height, width] => format!("kernel_h: {height} kernel_w: {width}"),
        };
        if self.stride != 1 {
            text += &format!(" stride: {}", self.stride);
        }
        match self.pad {
            [0, 0] => {}
            [height, width] if height == width => text += &format!(" pad: {height}"),
            [height, width] => text += &format!(" pad_h: {height} pad_w: {width}"),
        }
        text
    }
}

/// A network file in the making.
pub struct Network {
    text: String,
}

impl Network {
    /// A file that begins with comments, one a line, and the network's name.
    pub fn new(name: &str, comments: &[&str]) -> Self {
        let mut text: String = comments.iter().map(|line| format!("# {line}\n")).collect();
        text += "# Made by `quadrille-bench networks`: change the pattern there, not this file.\n";
        text += &format!("name: \"{name}\"\n");
        Self { text }
    }

    /// The finished file.
    pub fn finish(self) -> String {
        self.text
    }

    /// A comment above the layers that follow.
    pub fn comment(&mut self, text: &str) {
        self.text += &format!("\n# {text}\n");
    }

    /// One layer; `body` are its fields after name, type, bottoms and tops, one a line.
    pub fn layer(&mut self, kind: &str, name: &str, bottoms: &[&str], tops: &[&str], body: &[&str]) {
        let text = &mut self.text;
        *text += &format!("layer {{\n  name: \"{name}\"\n  type: \"{kind}\"\n");
        for (field, blobs) in [("bottom", bottoms), ("top", tops)] {
            for blob in blobs {
                let _ = writeln!(text, "  {field}: \"{blob}\"");
            }
        }
        for line in body {
            let _ = writeln!(text, "  {line}");
        }
        *text += "}\n";
    }

    /// The data layers: images of ImageNet, of which `crop` x `crop` pixels are cut out, in mini-batches of
    /// `batches` to train and to test.
    pub fn imagenet(&mut self, crop: usize, transform: &str, batches: [usize; 2]) {
        self.comment(&format!("3x{crop}x{crop}, channels in the order blue, green, red"));
        let phases = [("TRAIN", "mirror: true ", "train_lmdb"), ("TEST", "", "val_lmdb")];
        for ((phase, mirror, source), batch) in phases.into_iter().zip(batches) {
            let include = format!("include {{ phase: {phase} }}");
            let transform = format!("transform_param {{ {mirror}crop_size: {crop} {transform} }}");
            let source = format!(
                "data_param {{ source: \"data/imagenet/{source}\" batch_size: {batch} backend: LMDB }}"
            );
            self.layer("Data", "data", &[], &["data", "label"], &[&include, &transform, &source]);
        }
    }

    /// A convolution.
    pub fn convolution(
        &mut self,
        name: &str,
        bottom: &str,
        outputs: usize,
        window: Window,
        weights: Weights,
    ) {
        let shape = format!("num_output: {outputs} {}", window.fields());
        self.weighted("Convolution", "convolution_param", name, bottom, &shape, weights);
    }

    /// An inner product.
    pub fn inner_product(&mut self, name: &str, bottom: &str, outputs: usize, weights: Weights) {
        let shape = format!("num_output: {outputs}");
        self.weighted("InnerProduct", "inner_product_param", name, bottom, &shape, weights);
    }

    fn weighted(&mut self, kind: &str, field: &str, name: &str, bottom: &str, shape: &str, weights: Weights) {
        let mut body = vec!["param { lr_mult: 1 decay_mult: 1 }".to_owned()];
        if matches!(weights, Weights::Xavier(_)) {
            body.push("param { lr_mult: 2 decay_mult: 0 }".to_owned());
        }
        body.push(format!("{field} {{"));
        body.push(format!("  {shape}"));
        match weights {
            Weights::Xavier(bias) => {
                body.push("  weight_filler { type: \"xavier\" }".to_owned());
                body.push(format!("  bias_filler {{ type: \"constant\" value: {bias} }}"));
            }
            Weights::Msra => {
                body.push("  bias_term: false".to_owned());
                body.push("  weight_filler { type: \"msra\" }".to_owned());
            }
        }
        body.push("}".to_owned());
        let body: Vec<&str> = body.iter().map(String::as_str).collect();
        self.layer(kind, name, &[bottom], &[name], &body);
    }

    /// BatchNorm and Scale in the place of `blob`.
    pub fn normalised(&mut self, norm: &str, scale: &str, blob: &str, norm_fields: &str) {
        const FROZEN: &str = "param { lr_mult: 0 decay_mult: 0 }";
        let fields = format!("batch_norm_param {{ {norm_fields} }}");
        let mut body = vec![FROZEN; 3];
        body.extend((!norm_fields.is_empty()).then_some(fields.as_str()));
        self.layer("BatchNorm", norm, &[blob], &[blob], &body);
        self.layer("Scale", scale, &[blob], &[blob], &["scale_param { bias_term: true }"]);
    }

    /// A ReLU in the place of `blob`.
    pub fn relu(&mut self, name: &str, blob: &str) {
        self.layer("ReLU", name, &[blob], &[blob], &[]);
    }

    /// Pooling; `method` is MAX or AVE.
    pub fn pooling(&mut self, name: &str, bottom: &str, method: &str, window: Window) {
        let fields = format!("pooling_param {{ pool: {method} {} }}", window.fields());
        self.layer("Pooling", name, &[bottom], &[name], &[&fields]);
    }

    /// Dropout in the place of `blob`.
    pub fn dropout(&mut self, name: &str, blob: &str, ratio: &str) {
        let fields = format!("dropout_param {{ dropout_ratio: {ratio} }}");
        self.layer("Dropout", name, &[blob], &[blob], &[&fields]);
    }

    /// One blob of the channels of several.
    pub fn concat(&mut self, name: &str, bottoms: &[&str]) {
        self.layer("Concat", name, bottoms, &[name], &[]);
    }

    /// Softmax loss of the scores in `scores`: layer name, top and weight.
    pub fn loss(&mut self, name: &str, scores: &str, top: &str, weight: Option<&str>) {
        let weight = weight.map(|weight| format!("loss_weight: {weight}"));
        let body: Vec<&str> = weight.iter().map(String::as_str).collect();
        self.layer("SoftmaxWithLoss", name, &[scores, "label"], &[top], &body);
    }

    /// Accuracies in phase TEST: the right class is the first (`names[0]`), or among the first five (`names[1]`).
    pub fn accuracies(&mut self, names: [&str; 2], scores: &str) {
        for (name, fields) in names.into_iter().zip(["", "accuracy_param { top_k: 5 }"]) {
            let mut body = vec!["include { phase: TEST }"];
            body.extend((!fields.is_empty()).then_some(fields));
            self.layer("Accuracy", name, &[scores, "label"], &[name], &body);
        }
    }
}
