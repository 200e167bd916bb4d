//! Files that must be understood, in every spelling.

use quadrille_core::layer::{
    Colour, Concat, ContrastiveLoss, DataKind, Dropout, Filler, Flatten, ImageList, Layer, Lrn, NormRegion,
    Normalization, PoolMethod, Slice, Transform, VarianceNorm, WindowRules,
};
use quadrille_core::net::{LayerSpec, NetState, ParamSpec, Phase, ShareMode, StateRule};
use quadrille_core::shape::Shape;
use quadrille_core::solver::{
    Decay, NetSource, Plateau, Policy, RateStage, Rule, RuleKind, StateChange, Warmup,
};

use super::super::*;

fn one(text: &str) -> LayerSpec {
    let mut net = parse_net(text, "some.prototxt").unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(net.layers.len(), 1);
    net.layers.remove(0)
}

#[test]
fn windows_in_all_their_spellings() {
    let spelled = |inside: &str| {
        let text = format!(
            "layer {{ name: \"c\" type: \"Convolution\" convolution_param {{ num_output: 1 {inside} }} }}"
        );
        match one(&text).layer {
            Layer::ConvolutionNd(c) => {
                let c = c.of_images(&Shape::new([1, 1, 9, 9])).expect("a convolution of images");
                (c.kernel, c.pad, c.stride, c.dilation)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(spelled("kernel_size: 3"), ([3, 3], [0, 0], [1, 1], [1, 1]));
    assert_eq!(spelled("kernel_size: 5 kernel_size: 3 stride: [2, 4]"), ([5, 3], [0, 0], [2, 4], [1, 1]));
    assert_eq!(spelled("kernel_h: 5 kernel_w: 3 pad_w: 2"), ([5, 3], [0, 2], [1, 1], [1, 1]));
    assert_eq!(
        spelled("kernel_size: 3 stride_h: 2 stride_w: 1 dilation: 2"),
        ([3, 3], [0, 0], [2, 1], [2, 2])
    );
    let pool = |inside: &str| match one(&format!(
        "layer {{ name: \"p\" type: \"Pooling\" pooling_param {{ {inside} }} }}"
    ))
    .layer
    {
        Layer::Pooling(p) => (p.method, p.kernel, p.pad, p.stride),
        other => panic!("{other:?}"),
    };
    assert_eq!(pool("kernel_size: 3"), (PoolMethod::Max, Some([3, 3]), [0, 0], [1, 1]));
    assert_eq!(
        pool("pool: AVE kernel_h: 3 kernel_w: 2 stride: 2 pad_h: 1 pad_w: 0"),
        (PoolMethod::Average, Some([3, 2]), [1, 0], [2, 2])
    );
    assert_eq!(
        pool("pool: 1 global_pooling: true engine: CAFFE"),
        (PoolMethod::Average, None, [0, 0], [1, 1])
    );
}

#[test]
fn fillers_and_defaults() {
    let fillers = |inside: &str| {
        let text = format!(
            "layer {{ name: \"i\" type: \"InnerProduct\" inner_product_param {{ num_output: 4 {inside} }} }}"
        );
        match one(&text).layer {
            Layer::InnerProduct(p) => (p.weight_filler, p.bias_filler, p.bias, p.axis, p.transpose),
            other => panic!("{other:?}"),
        }
    };
    let zero = Filler::Constant(0.0);
    assert_eq!(fillers(""), (zero.clone(), zero.clone(), true, 1, false));
    assert_eq!(
        fillers(
            "weight_filler { type: \"msra\" variance_norm: AVERAGE } bias_filler { value: 0.5 } axis: -1"
        ),
        (Filler::Msra(VarianceNorm::Average), Filler::Constant(0.5), true, -1, false)
    );
    assert_eq!(
        fillers("weight_filler { type: \"gaussian\" std: 1e-2 sparse: 5 } bias_term: false transpose: true"),
        (Filler::Gaussian { mean: 0.0, std: 0.01, sparse: Some(5) }, zero.clone(), false, 1, true)
    );
    assert_eq!(
        fillers("weight_filler { type: \"uniform\" min: -.5 max: 5.e-1f }").0,
        Filler::Uniform { min: -0.5, max: 0.5 }
    );
}

#[test]
fn the_loss_is_normalised_as_caffe_does() {
    let loss = |inside: &str| match one(&format!(
        "layer {{ name: \"l\" type: \"SoftmaxWithLoss\" {inside} }}"
    ))
    .layer
    {
        Layer::SoftmaxWithLoss(l) => (l.normalization, l.ignore_label, l.axis),
        other => panic!("{other:?}"),
    };
    assert_eq!(loss(""), (Normalization::Valid, None, 1));
    assert_eq!(loss("loss_param { normalize: false }"), (Normalization::BatchSize, None, 1));
    assert_eq!(
        loss("loss_param { normalize: true ignore_label: 255 }"),
        (Normalization::Valid, Some(255), 1)
    );
    assert_eq!(loss("loss_param { normalization: FULL normalize: false }"), (Normalization::Full, None, 1));
    assert_eq!(
        loss("loss_param { normalization: NONE } softmax_param { axis: -1 }"),
        (Normalization::None, None, -1)
    );
}

#[test]
fn a_local_response_normalisation_has_caffes_defaults() {
    let lrn = |inside: &str| match one(&format!("layer {{ name: \"n\" type: \"LRN\" {inside} }}")).layer {
        Layer::Lrn(l) => l,
        other => panic!("{other:?}"),
    };
    let default = Lrn { region: NormRegion::AcrossChannels, local_size: 5, alpha: 1.0, beta: 0.75, k: 1.0 };
    assert_eq!(lrn(""), default);
    assert_eq!(lrn("lrn_param { engine: CUDNN }"), default);
    assert_eq!(
        lrn("lrn_param { local_size: 3 alpha: 5e-5 beta: 0.5 k: 2 norm_region: WITHIN_CHANNEL }"),
        Lrn { region: NormRegion::WithinChannel, local_size: 3, alpha: 5e-5, beta: 0.5, k: 2.0 }
    );
}

#[test]
fn concat_slice_and_flatten_in_all_their_spellings() {
    let of = |kind: &str, inside: &str| {
        one(&format!(
            "layer {{ name: \"x\" type: \"{kind}\" bottom: \"a\" bottom: \"b\" top: \"c\" {inside} }}"
        ))
        .layer
    };
    let concat = |axis| Layer::Concat(Concat { axis, bottoms: 2 });
    assert_eq!(of("Concat", ""), concat(1));
    assert_eq!(of("Concat", "concat_param { axis: -2 }"), concat(-2));
    assert_eq!(of("Concat", "concat_param { concat_dim: 0 }"), concat(0));
    let slice = |axis, points: &[usize]| Layer::Slice(Slice { axis, points: points.to_vec(), tops: 1 });
    assert_eq!(of("Slice", ""), slice(1, &[]));
    assert_eq!(of("Slice", "slice_param { axis: -1 slice_point: 2 slice_point: 5 }"), slice(-1, &[2, 5]));
    assert_eq!(of("Slice", "slice_param { slice_dim: 2 }"), slice(2, &[]));
    assert_eq!(of("Flatten", ""), Layer::Flatten(Flatten { axis: 1, end_axis: -1 }));
    assert_eq!(
        of("Flatten", "flatten_param { axis: 2 end_axis: 3 }"),
        Layer::Flatten(Flatten { axis: 2, end_axis: 3 })
    );
}

#[test]
fn a_contrastive_loss_has_caffes_defaults() {
    let loss =
        |inside: &str| one(&format!("layer {{ name: \"x\" type: \"ContrastiveLoss\" {inside} }}")).layer;
    let of = |margin, legacy_version| Layer::ContrastiveLoss(ContrastiveLoss { margin, legacy_version });
    assert_eq!(loss(""), of(1.0, false));
    assert_eq!(loss("contrastive_loss_param { margin: 2.5 legacy_version: true }"), of(2.5, true));
}

#[test]
fn a_dropout_drops_half_unless_the_file_says_otherwise() {
    let dropout = |inside: &str| one(&format!("layer {{ name: \"x\" type: \"Dropout\" {inside} }}")).layer;
    let of = |ratio| Layer::Dropout(Dropout { ratio, active: true });
    assert_eq!(dropout(""), of(0.5));
    assert_eq!(dropout("dropout_param { dropout_ratio: 0.4 }"), of(0.4));
}

#[test]
fn small_layers_and_what_all_layers_share() {
    let accuracy =
        |inside: &str| match one(&format!("layer {{ name: \"a\" type: \"Accuracy\" {inside} }}")).layer {
            Layer::Accuracy(a) => (a.top_k, a.axis, a.ignore_label),
            other => panic!("{other:?}"),
        };
    assert_eq!(accuracy(""), (1, 1, None));
    assert_eq!(accuracy("accuracy_param { top_k: 5 axis: 2 ignore_label: -1 }"), (5, 2, Some(-1)));
    let relu =
        one("layer { name: 'r' type: \"Re\" \"LU\" relu_param { negative_slope: -0.1 } loss_weight: 2 \
         bottom: \"a\" top: \"b\" propagate_down: true \
         include { phase: TEST min_level: -1 max_level: 3 stage: \"s\" not_stage: \"t\" } include { } \
         param { lr_mult: 0 decay_mult: 2 } param { } }");
    assert!(matches!(&relu.layer, Layer::Relu(r) if r.negative_slope == -0.1));
    assert_eq!(
        (relu.name.as_str(), &relu.bottoms[..], &relu.tops[..]),
        ("r", &["a".to_owned()][..], &["b".to_owned()][..])
    );
    assert_eq!((relu.loss_weights, relu.propagate_down), (vec![2.0], vec![true]));
    assert_eq!(relu.params, [ParamSpec::with(0.0, 2.0), ParamSpec::default()]);
    let rule = StateRule {
        phase: Some(quadrille_core::net::Phase::Test),
        min_level: Some(-1),
        max_level: Some(3),
        stages: vec!["s".into()],
        not_stages: vec!["t".into()],
    };
    assert_eq!(relu.include, [rule, StateRule::default()]);
}

#[test]
fn parameters_are_shared_by_name() {
    let params = |inside: &str| one(&format!("layer {{ name: \"x\" type: \"ReLU\" {inside} }}")).params;
    let named = |name: Option<&str>, share, lr_mult| ParamSpec {
        name: name.map(str::to_owned),
        share,
        lr_mult,
        decay_mult: None,
    };
    assert_eq!(
        params(
            "param { name: \"w\" lr_mult: 2 } param { name: \"b\" share_mode: PERMISSIVE } param { name: \"\" share_mode: STRICT }"
        ),
        [
            named(Some("w"), ShareMode::Strict, Some(2.0)),
            named(Some("b"), ShareMode::Permissive, None),
            named(None, ShareMode::Strict, None)
        ]
    );
}

#[test]
fn gradients_go_where_the_layer_sends_them() {
    let text = |inside: &str| {
        format!("layer {{ name: \"s\" type: \"Accuracy\" bottom: \"a\" bottom: \"b\" {inside} }}")
    };
    assert!(one(&text("")).propagate_down.is_empty());
    assert_eq!(one(&text("propagate_down: [true, false]")).propagate_down, [true, false]);
    assert_eq!(one(&text("propagate_down: 0 propagate_down: f")).propagate_down, [false, false]);
}

#[test]
fn data_with_the_transform_in_its_old_and_new_place() {
    let data = |inside: &str| match one(&format!("layer {{ name: \"d\" type: \"Data\" {inside} }}")).layer {
        Layer::Data(d) => (d.source, d.batch, d.transform.scale, d.transform.mean_values),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        data(
            "transform_param { scale: 0.5 mean_value: 3 mean_value: 4 mirror: false crop_size: 0 } data_param { source: \"a/b\" batch_size: 0x10 backend: LMDB prefetch: 2 }"
        ),
        ("a/b".to_owned(), 16, 0.5, vec![3.0, 4.0])
    );
    assert_eq!(
        data("data_param { source: \"s\" batch_size: 1 scale: 0.25 }"),
        ("s".to_owned(), 1, 0.25, vec![])
    );
    let changed = "transform_param { mirror: true crop_size: 24 } data_param { source: \"s\" batch_size: 1 }";
    let Layer::Data(changed) = one(&format!("layer {{ name: \"d\" type: \"Data\" {changed} }}")).layer else {
        panic!("a data layer");
    };
    assert_eq!((changed.transform.crop, changed.transform.mirror), (24, true));
}

#[test]
fn a_list_of_images_with_all_its_fields() {
    let layer = "layer { name: \"d\" type: \"ImageData\" transform_param { mean_file: \"m\" mirror: true }
        image_data_param { source: \"l\" root_folder: \"r/\" new_height: 4 new_width: 5 is_color: false
        shuffle: true rand_skip: 3 crop_size: 2 scale: 0.5 } }";
    let Layer::Data(data) = one(layer).layer else { panic!("a data layer") };
    let list = ImageList { root_folder: "r/".into(), resize: Some([4, 5]), colour: Colour::Grey };
    assert_eq!((data.source.as_str(), data.batch, data.kind), ("l", 1, DataKind::List(list)));
    let expected =
        Transform { scale: 0.5, mean_file: Some("m".into()), crop: 2, mirror: true, ..Transform::default() };
    assert_eq!(data.transform, expected);
}

#[test]
fn windows_and_samples_in_memory_with_all_their_fields() {
    let layer = "layer { name: \"d\" type: \"WindowData\" transform_param { mirror: true crop_size: 227 mean_value: 9 }
        window_data_param { source: \"w\" scale: 0.5 batch_size: 128 fg_threshold: 0.6 bg_threshold: 0.4
        fg_fraction: 0.2 context_pad: 16 crop_mode: \"square\" cache_images: true root_folder: \"r/\" } }";
    let Layer::Data(data) = one(layer).layer else { panic!("a data layer") };
    let (root_folder, square) = ("r/".to_owned(), true);
    let rules = WindowRules { root_folder, foreground: 0.6, background: 0.4, fraction: 0.2, pad: 16, square };
    assert_eq!((data.source.as_str(), data.batch, data.kind), ("w", 128, DataKind::Windows(rules)));
    let transform =
        Transform { scale: 0.5, mean_values: vec![9.0], crop: 227, mirror: true, ..Transform::default() };
    assert_eq!((data.transform, data.sample), (transform, Some([3, 227, 227])));
    let layer = "layer { name: \"d\" type: \"MemoryData\" transform_param { scale: 0.5 }
        memory_data_param { batch_size: 3 channels: 1 height: 4 width: 5 } }";
    let Layer::Data(data) = one(layer).layer else { panic!("a data layer") };
    assert_eq!((data.batch, data.sample, data.kind), (3, Some([1, 4, 5]), DataKind::Memory([1, 4, 5])));
}

#[test]
fn old_inputs_become_a_layer() {
    let text =
        "input: \"a\"\ninput: \"b\"\ninput_shape { dim: 2 dim: 3 }\nlayer { name: \"r\" type: \"ReLU\" }";
    let net = parse_net(text, "some.prototxt").unwrap();
    let input = &net.layers[0];
    assert!(matches!(&input.layer, Layer::Input(i) if i.shapes == [[2, 3]] && i.tops == 2));
    assert_eq!(input.tops, ["a", "b"]);
    assert_eq!((input.site.line, input.site.line_of("input_param.shape")), (1, 3));
    let net =
        parse_net("input: \"a\" input_dim: [1, 2, 3, 4] layer { name: \"r\" type: \"ReLU\" }", "f").unwrap();
    assert!(matches!(&net.layers[0].layer, Layer::Input(i) if i.shapes == [[1, 2, 3, 4]]));
    let net = parse_net(
        "layer { name: \"i\" type: \"Input\" top: \"a\" input_param { shape { dim: [1, 5] } } }",
        "f",
    );
    assert!(matches!(&net.unwrap().layers[0].layer, Layer::Input(i) if i.shapes == [[1, 5]]));
}

#[test]
fn text_in_all_its_forms() {
    let text = b"\xef\xbb\xbf# caf\xe9 in Latin-1\r\nname: \"\\x41\\102\\u0043\" # end\r\n\
        layer <\n  name: \"a\", type: \"ReLU\";\n  relu_param: { engine: CUDNN }\n>\n\
        layer [{ name: \"b\" type: \"ReLU\" }, {\n name: \"c\" type: \"ReLU\" }]\nforce_backward: t";
    let net = parse_net(text, "f").unwrap();
    assert_eq!((net.name.as_str(), net.force_backward), ("ABC", true));
    let lines: Vec<(&str, u32)> = net.layers.iter().map(|l| (l.name.as_str(), l.site.line)).collect();
    assert_eq!(lines, [("a", 3), ("b", 7), ("c", 7)]);
    assert_eq!(net.layers[2].site.line_of("name"), 8);
}

#[test]
fn policies_rules_and_what_is_ignored() {
    let solver =
        |text: &str| parse_solver(format!("net: \"n\" base_lr: 0.1 max_iter: 50 {text}"), "f").unwrap();
    let policy = |text: &str| solver(text).policy;
    assert_eq!(policy("lr_policy: \"fixed\""), Policy::Fixed);
    assert_eq!(policy("lr_policy: \"step\" gamma: 0.5 stepsize: 10"), Policy::Step { gamma: 0.5, step: 10 });
    assert_eq!(policy("lr_policy: \"exp\" gamma: 0.5"), Policy::Exp { gamma: 0.5 });
    assert_eq!(policy("lr_policy: \"poly\" power: 2"), Policy::Poly { power: 2.0, max: 50 });
    assert_eq!(
        policy("lr_policy: \"sigmoid\" gamma: 2 stepsize: 7"),
        Policy::Sigmoid { gamma: 2.0, step: 7 }
    );
    assert_eq!(
        policy("lr_policy: \"multistep\" gamma: 0.5 stepvalue: 3 stepvalue: 9"),
        Policy::MultiStep { gamma: 0.5, steps: vec![3, 9] }
    );
    let all = solver(
        "lr_policy: \"fixed\" type: \"SGD\" iter_size: 1 clip_gradients: -1 regularization_type: \"L1\" weight_decay: 0.1 \
         random_seed: 7 snapshot: 5 snapshot_after_train: false test_initialization: false test_interval: 5 \
         solver_mode: GPU device_id: 1 snapshot_prefix: \"p\" snapshot_format: HDF5 average_loss: 20 debug_info: true",
    );
    assert_eq!(all.rule, Rule { decay: Decay::L1, ..Rule::sgd(0.0, 0.1) });
    assert_eq!((all.average_loss, all.iter_size, all.warmup), (20, 1, None));
    assert_eq!(
        (all.seed, all.snapshot, all.snapshot_after_train, all.test_initialization),
        (Some(7), 5, false, false)
    );
    assert!(all.snapshot_hdf5 && !solver("lr_policy: \"fixed\"").snapshot_hdf5);
    assert_eq!((all.test_interval, all.test_nets.len()), (0, 0));
    let ignored: Vec<&str> = all.ignored.iter().map(|i| i.split(' ').next().unwrap()).collect();
    let expected = ["solver_mode", "device_id", "test_interval", "snapshot_prefix"];
    assert_eq!(ignored, expected);
    assert_eq!(solver("lr_policy: \"fixed\" random_seed: -1").seed, None);
    assert_eq!(
        policy("lr_policy: \"plateau\" gamma: 0.5 plateau_winsize: 100 plateau_winsize: 50"),
        Policy::Plateau { gamma: 0.5, windows: vec![100, 50] }
    );
    let warm =
        solver("lr_policy: \"fixed\" warmup_iter: 5 warmup_start_lr: 0.01 iter_size: 3 clip_gradients: 35");
    assert_eq!(warm.warmup, Some(Warmup { iterations: 5, start: 0.01 }));
    assert_eq!((warm.iter_size, warm.rule.clip), (3, Some(35.0)));
    assert!(warm.ignored.is_empty(), "{:?}", warm.ignored);
}

#[test]
fn stages_have_rates_instead_of_base_lr() {
    const STAGES: &str =
        "net: \"n\" max_iter: 9 lr_policy: \"multifixed\" stagelr: [0.1, 0.5] stageiter: 2 stageiter: 5";
    let parse = |text: &str| parse_solver(format!("{STAGES} {text}"), "f");
    let solver = parse("").unwrap();
    let stage = |rate, last| RateStage { rate, last };
    assert_eq!(solver.policy, Policy::MultiFixed(vec![stage(0.1, 2), stage(0.5, 5)]));
    assert_eq!((solver.base_lr, solver.highest_rate(), solver.ignored.len()), (0.1, 0.5, 0));
    let given = parse("base_lr: 7").unwrap();
    assert_eq!((given.base_lr, given.highest_rate()), (0.1, 0.5));
    assert_eq!(given.ignored, ["base_lr (each stage has its rate)"]);
    let warm = parse("base_lr: 0.8 warmup_iter: 2 warmup_start_lr: 0.2").unwrap();
    let rates: Vec<f32> = (0..5).map(|t| warm.rate(t, &Plateau::default())).collect();
    assert_eq!(rates, [0.2, 0.5, 0.1, 0.5, 0.5]);
    assert_eq!((warm.highest_rate(), warm.ignored.len()), (0.8, 0));
    let error = parse("warmup_iter: 2").unwrap_err();
    assert_eq!((error.field.as_str(), error.message.as_str()), ("base_lr", "missing"));
    let other = STAGES.replace("multifixed", "fixed");
    let other = parse_solver(format!("{other} base_lr: 0.1"), "f").unwrap();
    assert_eq!(other.ignored, ["stagelr, stageiter (the policy is another)"]);
}

/// Networks by all of Caffe's ways to name them, and the state of each.
#[test]
fn several_networks_to_test() {
    let solver = |text: &str| {
        let text = format!("base_lr: 0.1 max_iter: 50 lr_policy: \"fixed\" test_interval: 7 {text}");
        parse_solver(text, "f").unwrap()
    };
    let tests = |text: &str| -> Vec<(String, u64)> {
        let tests = solver(text).test_nets.into_iter();
        tests.map(|test| (test.source.name().to_owned(), test.batches)).collect()
    };
    let owned = |tests: &[(&str, u64)]| -> Vec<(String, u64)> {
        tests.iter().map(|(name, batches)| ((*name).to_owned(), *batches)).collect()
    };
    assert_eq!(tests("net: \"n\" test_iter: 3"), owned(&[("n", 3)]));
    assert_eq!(tests("net: \"n\" test_iter: 3 test_iter: 4"), owned(&[("n", 3), ("n", 4)]));
    let named = "test_net: \"a\" test_net: \"b\" test_iter: [1, 2, 3]";
    assert_eq!(tests(&format!("net: \"n\" {named}")), owned(&[("a", 1), ("b", 2), ("n", 3)]));
    let inline = |field: &str, name: &str| {
        format!(
            "{field} {{ name: \"{name}\" layer {{ name: \"r\" type: \"ReLU\" bottom: \"x\" top: \"y\" }} }}"
        )
    };
    let text = format!(
        "train_net: \"t\" test_net: \"b\" {} {} test_iter: [1, 2, 3]",
        inline("test_net_param", "one"),
        inline("test_net_param", "two")
    );
    assert_eq!(tests(&text), owned(&[("one", 1), ("two", 2), ("b", 3)]));
    let both = solver(&format!("{} test_iter: 5", inline("net_param", "both")));
    let NetSource::Inline(spec) = &both.train_net else { panic!("{:?}", both.train_net) };
    assert_eq!(
        (spec.name.as_str(), spec.layers.len(), &both.test_nets[0].source),
        ("both", 1, &both.train_net)
    );
    let train = solver(&inline("train_net_param", "only"));
    assert_eq!((train.train_net.name(), train.test_nets.len(), train.test_interval), ("only", 0, 0));

    let states = "train_state { level: 2 stage: \"x\" } test_state { stage: \"a\" } test_state { level: 1 stage: [\"b\", \"c\"] }";
    let solver = solver(&format!("net: \"n\" test_iter: [1, 2] {states} weights: \"a, b\" weights: \"c\""));
    let change =
        |level, stages: &[&str]| StateChange { level, stages: stages.iter().map(|s| (*s).into()).collect() };
    assert_eq!(solver.train_state, change(Some(2), &["x"]));
    let states: Vec<_> = solver.test_nets.into_iter().map(|test| test.state).collect();
    assert_eq!(states, [change(None, &["a"]), change(Some(1), &["b", "c"])]);
    let state = states[1].of(NetState::new(Phase::Test));
    assert_eq!((state.level, state.stages), (1, vec!["b".to_owned(), "c".to_owned()]));
    assert_eq!(solver.weights, ["a", "b", "c"]);
}

#[test]
fn every_solver_by_its_name_and_by_the_enum_of_old_files() {
    let rule = |text: &str| {
        let text = format!("net: \"n\" base_lr: 0.1 max_iter: 50 lr_policy: \"fixed\" {text}");
        let solver = parse_solver(text, "f").unwrap();
        assert!(solver.ignored.is_empty(), "{:?}", solver.ignored);
        solver.rule.kind
    };
    for (name, old, fields, kind) in [
        ("SGD", "SGD", "momentum: 0.5", RuleKind::Sgd { momentum: 0.5 }),
        ("Nesterov", "NESTEROV", "momentum: 0.5", RuleKind::Nesterov { momentum: 0.5 }),
        ("AdaGrad", "ADAGRAD", "delta: 0.25", RuleKind::AdaGrad { delta: 0.25 }),
        ("AdaGrad", "ADAGRAD", "", RuleKind::AdaGrad { delta: 1e-8 }),
        ("RMSProp", "RMSPROP", "", RuleKind::RmsProp { decay: 0.99, delta: 1e-8 }),
        ("RMSProp", "RMSPROP", "rms_decay: 0.5", RuleKind::RmsProp { decay: 0.5, delta: 1e-8 }),
        ("AdaDelta", "ADADELTA", "momentum: 0.5", RuleKind::AdaDelta { momentum: 0.5, delta: 1e-8 }),
        ("Adam", "ADAM", "momentum: 0.5", RuleKind::Adam { momentum: 0.5, momentum2: 0.999, delta: 1e-8 }),
        (
            "Adam",
            "ADAM",
            "momentum2: 0.5 delta: 1",
            RuleKind::Adam { momentum: 0.0, momentum2: 0.5, delta: 1.0 },
        ),
    ] {
        assert_eq!(rule(&format!("type: \"{name}\" {fields}")), kind);
        assert_eq!(rule(&format!("solver_type: {old} {fields}")), kind);
        assert_eq!(kind.name(), name);
    }
}
