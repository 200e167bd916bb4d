//! Networks that several test files use.

use quadrille_core::layer::{
    Accuracy, BatchNorm, Concat, ContrastiveLoss, Convolution, Data, DataKind, Eltwise, EltwiseOperation,
    Filler, InnerProduct, Layer, PoolMethod, Pooling, Relu, Scale, Slice, SoftmaxWithLoss, Transform,
    VarianceNorm,
};
use quadrille_core::net::{
    GivenState, LayerSpec, Net, NetSpec, NetState, ParamSpec, Part, Phase, StorageId, StorageNeeds,
};
use quadrille_core::task::Tile;

pub fn convolution(outputs: usize, kernel: usize) -> Layer {
    Layer::Convolution(Convolution {
        num_output: outputs,
        kernel: [kernel; 2],
        pad: [0; 2],
        stride: [1; 2],
        dilation: [1; 2],
        group: 1,
        bias: true,
        relu: false,
        weight_filler: Filler::Xavier(VarianceNorm::FanIn),
        bias_filler: Filler::default(),
    })
}

fn pooling() -> Layer {
    Layer::Pooling(Pooling { method: PoolMethod::Max, kernel: Some([2; 2]), pad: [0; 2], stride: [2; 2] })
}

fn inner_product(outputs: usize) -> Layer {
    Layer::InnerProduct(InnerProduct {
        num_output: outputs,
        bias: true,
        axis: 1,
        transpose: false,
        weight_filler: Filler::Xavier(VarianceNorm::FanIn),
        bias_filler: Filler::default(),
    })
}

fn data(batch: usize, channels: usize, side: usize) -> LayerSpec {
    let sample = Some([channels, side, side]);
    let data = Data {
        source: "made".into(),
        batch,
        transform: Transform::default(),
        sample,
        kind: DataKind::Records,
    };
    LayerSpec::new("data", Layer::Data(data), &[], &["data", "label"])
}

fn loss() -> Layer {
    Layer::SoftmaxWithLoss(SoftmaxWithLoss { axis: 1, ignore_label: None, normalization: Default::default() })
}

fn accuracy() -> Layer {
    Layer::Accuracy(Accuracy { top_k: 1, axis: 1, ignore_label: None })
}

fn network(name: &str, layers: Vec<LayerSpec>) -> NetSpec {
    NetSpec {
        name: name.into(),
        file: "made".into(),
        force_backward: false,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    }
}

/// LeNet with an accuracy in both phases, so that there is a split.
pub fn lenet(batch: usize) -> NetSpec {
    network(
        "lenet",
        vec![
            data(batch, 1, 28),
            LayerSpec::new("conv1", convolution(20, 5), &["data"], &["conv1"]),
            LayerSpec::new("pool1", pooling(), &["conv1"], &["pool1"]),
            LayerSpec::new("conv2", convolution(50, 5), &["pool1"], &["conv2"]),
            LayerSpec::new("pool2", pooling(), &["conv2"], &["pool2"]),
            LayerSpec::new("ip1", inner_product(500), &["pool2"], &["ip1"]),
            LayerSpec::new("relu1", Layer::Relu(Relu::default()), &["ip1"], &["ip1"]),
            LayerSpec::new("ip2", inner_product(10), &["ip1"], &["ip2"]),
            LayerSpec::new("accuracy", accuracy(), &["ip2", "label"], &["accuracy"]),
            LayerSpec::new("loss", loss(), &["ip2", "label"], &["loss"]),
        ],
    )
}

/// `length` convolutions one after the other, no two of them with as many channels, and a loss.
pub fn chain(batch: usize, length: usize) -> NetSpec {
    let names: Vec<String> = (0..length).map(|i| format!("conv{i}")).collect();
    let mut layers = vec![data(batch, 1, 6)];
    for (i, name) in names.iter().enumerate() {
        let bottom = if i == 0 { "data" } else { &names[i - 1] };
        layers.push(LayerSpec::new(name, convolution(3 + i * 7 % 5, 1), &[bottom], &[name]));
    }
    layers.push(LayerSpec::new("ip", inner_product(5), &[&names[length - 1]], &["ip"]));
    layers.push(LayerSpec::new("loss", loss(), &["ip", "label"], &["loss"]));
    network("chain", layers)
}

/// A blob that two layers read, two losses, and a frozen parameter between trained ones.
pub fn branching_net(batch: usize) -> NetSpec {
    let mut frozen = LayerSpec::new("conv2", convolution(4, 3), &["conv1"], &["conv2"]);
    frozen.params = vec![ParamSpec::with(0.0, 1.0)];
    network(
        "branching",
        vec![
            data(batch, 1, 12),
            LayerSpec::new("conv1", convolution(3, 3), &["data"], &["conv1"]),
            LayerSpec::new("relu1", Layer::Relu(Relu::default()), &["conv1"], &["conv1"]),
            frozen,
            LayerSpec::new("ipa", inner_product(5), &["conv2"], &["ipa"]),
            LayerSpec::new("ipb", inner_product(5), &["conv1"], &["ipb"]),
            LayerSpec::new("lossa", loss(), &["ipa", "label"], &["lossa"]),
            LayerSpec::new("lossb", loss(), &["ipb", "label"], &["lossb"]),
        ],
    )
}

/// Parameters shared under these names.
pub fn named(names: [&str; 2]) -> Vec<ParamSpec> {
    names.map(|name| ParamSpec { name: Some(name.into()), ..ParamSpec::default() }).to_vec()
}

/// Images of two channels cut into pairs; one and the same small network looks at both sides and at a third, the first
/// again, and a loss compares two and two. The weight of a last layer of one side alone lies behind the shared ones.
pub fn siamese_net(batch: usize) -> NetSpec {
    let slice = Layer::Slice(Slice { axis: 1, points: Vec::new(), tops: 2 });
    let mut layers = vec![data(batch, 2, 12), LayerSpec::new("slice", slice, &["data"], &["left", "right"])];
    for (side, image) in [("a", "left"), ("b", "right"), ("c", "left")] {
        let [conv, pool, ip, feat] = ["conv", "pool", "ip", "feat"].map(|name| format!("{name}_{side}"));
        let mut convolve = LayerSpec::new(&conv, convolution(3, 3), &[image], &[&conv]);
        convolve.params = named(["conv_w", "conv_b"]);
        let mut first = LayerSpec::new(&ip, inner_product(6), &[&pool], &[&ip]);
        first.params = named(["ip_w", "ip_b"]);
        let mut last = LayerSpec::new(&feat, inner_product(2), &[&ip], &[&feat]);
        // The bias is each side's own.
        last.params = named(["feat_w", ""]);
        last.params[1].name = None;
        let pooled = LayerSpec::new(&pool, pooling(), &[&conv], &[&pool]);
        let relu = LayerSpec::new(&format!("relu_{side}"), Layer::Relu(Relu::default()), &[&ip], &[&ip]);
        layers.extend([convolve, pooled, first, relu, last]);
    }
    let contrast = Layer::ContrastiveLoss(ContrastiveLoss { margin: 1.0, legacy_version: false });
    let loss =
        |name: &str, one, other| LayerSpec::new(name, contrast.clone(), &[one, other, "label"], &[name]);
    layers.extend([loss("loss_ab", "feat_a", "feat_b"), loss("loss_bc", "feat_b", "feat_c")]);
    network("siamese", layers)
}

/// Layers with running sums: in place below a scale and a ReLU, on a branch that leads to no loss, and one that
/// keeps its sums; a sum of two branches.
pub fn normalizing_net(batch: usize) -> NetSpec {
    let norm = |use_global_stats| {
        Layer::BatchNorm(BatchNorm { use_global_stats, moving_average_fraction: 0.9, eps: 1e-5 })
    };
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
    let scale = Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler };
    let operation = EltwiseOperation::Sum { coefficients: Vec::new(), relu: false };
    network(
        "normalizing",
        vec![
            data(batch, 1, 12),
            LayerSpec::new("aside", norm(None), &["data"], &["aside"]),
            LayerSpec::new("conv1", convolution(3, 3), &["data"], &["conv1"]),
            LayerSpec::new("bn1", norm(None), &["conv1"], &["conv1"]),
            LayerSpec::new("scale1", Layer::Scale(scale), &["conv1"], &["conv1"]),
            LayerSpec::new("relu1", Layer::Relu(Relu::default()), &["conv1"], &["conv1"]),
            LayerSpec::new("bn2", norm(Some(true)), &["conv1"], &["bn2"]),
            LayerSpec::new(
                "sum",
                Layer::Eltwise(Eltwise { bottoms: 2, operation }),
                &["conv1", "bn2"],
                &["sum"],
            ),
            LayerSpec::new("ip", inner_product(5), &["sum"], &["ip"]),
            LayerSpec::new("loss", loss(), &["ip", "label"], &["loss"]),
        ],
    )
}

/// A convolution, its normalisation in place, and a second one that is added to it: a block of a residual net.
pub fn residual_net(batch: usize) -> NetSpec {
    let norm =
        || Layer::BatchNorm(BatchNorm { use_global_stats: None, moving_average_fraction: 0.9, eps: 1e-5 });
    let scale = || {
        let (filler, bias_filler) = (Filler::Constant(1.0), Filler::Constant(0.1));
        Layer::Scale(Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler })
    };
    let relu = || Layer::Relu(Relu::default());
    let operation = EltwiseOperation::Sum { coefficients: Vec::new(), relu: false };
    let sum = Layer::Eltwise(Eltwise { bottoms: 2, operation });
    network(
        "residual",
        vec![
            data(batch, 1, 9),
            LayerSpec::new("conv1", convolution(3, 3), &["data"], &["conv1"]),
            LayerSpec::new("bn1", norm(), &["conv1"], &["conv1"]),
            LayerSpec::new("scale1", scale(), &["conv1"], &["conv1"]),
            LayerSpec::new("relu1", relu(), &["conv1"], &["conv1"]),
            LayerSpec::new("conv2", convolution(3, 1), &["conv1"], &["conv2"]),
            LayerSpec::new("bn2", norm(), &["conv2"], &["conv2"]),
            LayerSpec::new("scale2", scale(), &["conv2"], &["conv2"]),
            LayerSpec::new("sum", sum, &["conv1", "conv2"], &["sum"]),
            LayerSpec::new("relu2", relu(), &["sum"], &["sum"]),
            LayerSpec::new("ip", inner_product(5), &["sum"], &["ip"]),
            LayerSpec::new("loss", loss(), &["ip", "label"], &["loss"]),
        ],
    )
}

/// One net a device: the mini-batch of `spec` cut into near-equal tiles.
pub fn nets(spec: &NetSpec, phase: Phase, devices: usize) -> Vec<Net> {
    let batch = spec.layers.iter().find_map(|l| match &l.layer {
        Layer::Data(data) => Some(data.batch),
        _ => None,
    });
    let batch = batch.expect("a data layer");
    Tile::cut(batch, devices)
        .into_iter()
        .map(|tile| {
            let mut spec = spec.clone();
            for layer in &mut spec.layers {
                if let Layer::Data(data) = &mut layer.layer {
                    data.batch = tile.images;
                }
            }
            let share = tile.images as f32 / batch as f32;
            Net::build(&spec, &NetState::new(phase), share).expect("a net")
        })
        .collect()
}

/// The net with memory shared between plain arrays.
pub fn sharing(net: Net) -> Net {
    let needs = net.storages.clone().into();
    net.sharing_memory(&needs)
}

/// Branches side by side, two of them joined before the third, with ReLUs in place; two layers read them.
pub fn inception_net(batch: usize) -> NetSpec {
    let relu =
        |name: &str| LayerSpec::new(&format!("relu_{name}"), Layer::Relu(Relu::default()), &[name], &[name]);
    let concat = |name: &str, bottoms: &[&str]| {
        let layer = Layer::Concat(Concat { axis: 1, bottoms: bottoms.len() });
        LayerSpec::new(name, layer, bottoms, &[name])
    };
    network(
        "inception",
        vec![
            data(batch, 1, 8),
            LayerSpec::new("stem", convolution(4, 3), &["data"], &["stem"]),
            relu("stem"),
            LayerSpec::new("one", convolution(2, 1), &["stem"], &["one"]),
            relu("one"),
            LayerSpec::new("two", convolution(3, 1), &["stem"], &["two"]),
            relu("two"),
            concat("first", &["one", "two"]),
            LayerSpec::new("three", convolution(4, 1), &["stem"], &["three"]),
            concat("second", &["first", "three"]),
            LayerSpec::new("pool", pooling(), &["second"], &["pool"]),
            LayerSpec::new("ipa", inner_product(5), &["pool"], &["ipa"]),
            LayerSpec::new("ipb", inner_product(5), &["second"], &["ipb"]),
            LayerSpec::new("lossa", loss(), &["ipa", "label"], &["lossa"]),
            LayerSpec::new("lossb", loss(), &["ipb", "label"], &["lossb"]),
        ],
    )
}

/// The net with memory shared between plain arrays, and the bottoms of its Concats inside their tops.
pub fn joined(net: Net) -> Net {
    let mut parts: Vec<Option<Part>> = vec![None; net.storages.len()];
    // The outermost first, so that what lies inside a part is known to lie inside its whole.
    for layer in net.layers.iter().rev().filter(|layer| matches!(layer.layer, Layer::Concat(_))) {
        let top = net.blob(layer.tops[0]);
        let mut start = 0;
        for bottom in layer.bottoms.iter().map(|bottom| net.blob(*bottom)) {
            let end = start + bottom.shape.per_image();
            let mut join = |part: StorageId, whole: StorageId| {
                let (whole, first) = parts[whole.0]
                    .as_ref()
                    .map_or((whole, 0), |around| (around.whole, around.elements.start));
                parts[part.0] = Some(Part { whole, elements: first + start..first + end });
            };
            join(bottom.data, top.data);
            if let Some((part, whole)) = bottom.grad.zip(top.grad) {
                join(part, whole);
            }
            start = end;
        }
    }
    let needs = StorageNeeds { lengths: net.storages.clone(), parts };
    net.sharing_memory(&needs)
}

/// Three layers, each of which gets all that was found before it, put together by Concat, as in DenseNet.
pub fn dense_net(batch: usize) -> NetSpec {
    let mut layers = vec![data(batch, 1, 8), LayerSpec::new("stem", convolution(4, 3), &["data"], &["stem"])];
    let mut so_far = "stem".to_owned();
    for index in 0..3 {
        let [small, large, all] = ["small", "large", "all"].map(|name| format!("{name}{index}"));
        layers.push(LayerSpec::new(&small, convolution(4, 1), &[&so_far], &[&small]));
        layers.push(LayerSpec::new(&large, convolution(2, 1), &[&small], &[&large]));
        let concat = Layer::Concat(Concat { axis: 1, bottoms: 2 });
        layers.push(LayerSpec::new(&all, concat, &[&so_far, &large], &[&all]));
        so_far = all;
    }
    layers.push(LayerSpec::new("ip", inner_product(5), &[&so_far], &["ip"]));
    layers.push(LayerSpec::new("loss", loss(), &["ip", "label"], &["loss"]));
    network("dense", layers)
}
