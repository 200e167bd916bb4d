//! From a network's description to a net: what is wired, what is refused, and where the complaint points.

use quadrille_core::layer::{
    Accuracy, Convolution, Data, DataKind, Filler, Flatten, InnerProduct, Input, Layer, Neuron, PoolMethod,
    Pooling, Relu, Softmax, SoftmaxWithLoss, Split, SubTask, Transform,
};
use quadrille_core::net::{Blob, GivenState, LayerSpec, Net, NetSpec, NetState, ParamSpec, Phase, StateRule};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::site::{Site, SpecError};

const BATCH: usize = 4;
const SIDE: usize = 6;

fn convolution(kernel: usize) -> Layer {
    Layer::Convolution(Convolution {
        num_output: 3,
        kernel: [kernel; 2],
        pad: [0; 2],
        stride: [1; 2],
        dilation: [1; 2],
        group: 1,
        bias: true,
        relu: false,
        weight_filler: Filler::default(),
        bias_filler: Filler::default(),
    })
}

fn pooling(kernel: usize) -> Layer {
    Layer::Pooling(Pooling {
        method: PoolMethod::Max,
        kernel: Some([kernel; 2]),
        pad: [0; 2],
        stride: [1; 2],
    })
}

fn inner_product() -> Layer {
    Layer::InnerProduct(InnerProduct {
        num_output: 5,
        bias: true,
        axis: 1,
        transpose: false,
        weight_filler: Filler::default(),
        bias_filler: Filler::default(),
    })
}

fn data(batch: usize) -> Layer {
    let (source, transform) = ("made".into(), Transform::default());
    Layer::Data(Data { source, batch, transform, sample: Some([1, SIDE, SIDE]), kind: DataKind::Records })
}

fn cropped(crop: usize) -> Layer {
    let Layer::Data(whole) = data(BATCH) else { panic!("a data layer") };
    Layer::Data(Data { transform: Transform { crop, ..Transform::default() }, ..whole })
}

fn relu(negative_slope: f32) -> Layer {
    Layer::Relu(Relu { negative_slope, applied: false })
}

fn softmax() -> Layer {
    Layer::Softmax(Softmax { axis: 1 })
}

fn loss() -> Layer {
    Layer::SoftmaxWithLoss(SoftmaxWithLoss { axis: 1, ignore_label: None, normalization: Default::default() })
}

fn accuracy() -> Layer {
    Layer::Accuracy(Accuracy { top_k: 1, axis: 1, ignore_label: None })
}

/// data → conv → relu in place → ip → loss.
fn small() -> NetSpec {
    net_of(vec![
        LayerSpec::new("data", data(BATCH), &[], &["data", "label"]),
        LayerSpec::new("conv", convolution(3), &["data"], &["conv"]),
        LayerSpec::new("relu", relu(0.0), &["conv"], &["conv"]),
        LayerSpec::new("ip", inner_product(), &["conv"], &["ip"]),
        LayerSpec::new("loss", loss(), &["ip", "label"], &["loss"]),
    ])
}

fn net_of(layers: Vec<LayerSpec>) -> NetSpec {
    NetSpec {
        name: "small".into(),
        file: "small.prototxt".into(),
        force_backward: false,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    }
}

/// The small net with its layer `name` changed; that layer stands on line 40 of its file, `fields` on theirs.
fn changed(name: &str, fields: &[(&str, u32)], change: impl FnOnce(&mut LayerSpec)) -> NetSpec {
    let mut spec = small();
    let layer = layer_of(&mut spec, name);
    change(layer);
    layer.site = Site {
        file: "small.prototxt".into(),
        line: 40,
        fields: fields.iter().map(|(field, line)| ((*field).to_owned(), *line)).collect(),
    };
    spec
}

fn layer_of<'a>(spec: &'a mut NetSpec, name: &str) -> &'a mut LayerSpec {
    spec.layers.iter_mut().find(|l| l.name == name).expect("the layer exists")
}

fn insert_before(spec: &mut NetSpec, name: &str, layer: LayerSpec) {
    let at = spec.layers.iter().position(|l| l.name == name).expect("the layer exists");
    spec.layers.insert(at, layer);
}

fn build(spec: &NetSpec, phase: Phase) -> Result<Net, SpecError> {
    Net::build(spec, &NetState::new(phase), 1.0)
}

fn train(spec: &NetSpec) -> Net {
    build(spec, Phase::Train).expect("the net is possible")
}

fn refused(spec: &NetSpec) -> String {
    build(spec, Phase::Train).expect_err("the net is impossible").to_string()
}

/// The last blob that the layer `name` makes.
fn top<'a>(net: &'a Net, name: &str) -> &'a Blob {
    let layer = net.layers.iter().find(|l| l.name == name).expect("the layer exists");
    net.blob(*layer.tops.last().expect("it has a top"))
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

type Change = fn(&mut LayerSpec);

/// Layer, field, what is wrong with it, and a part of the complaint.
const COMPLAINTS: [(&str, &str, Change, &str); 20] = [
    ("conv", "bottom", |l| l.bottoms = strings(&["dta"]), "no layer above makes the blob \"dta\""),
    ("conv", "bottom", |l| l.bottoms = strings(&["data", "data"]), "2 given; a layer of type Convolution"),
    ("relu", "top", |l| l.tops = strings(&["data"]), "another layer already makes the blob \"data\""),
    ("data", "top", |l| l.tops = strings(&["data", "data"]), "\"data\" is there twice"),
    ("ip", "top", |l| l.tops = strings(&["conv"]), "InnerProduct cannot work in place"),
    ("relu", "top", |l| l.layer = relu(-0.5), "ReLU cannot work in place"),
    ("relu", "name", |l| l.name = "conv".into(), "another layer has this name"),
    (
        "conv",
        "param",
        |l| l.params = vec![ParamSpec::default(); 3],
        "3 given, but the layer has 2 parameters",
    ),
    ("relu", "param", |l| l.params = vec![ParamSpec::default()], "1 given, but the layer has 0 parameters"),
    (
        "conv",
        "convolution_param.kernel_size",
        |l| l.layer = convolution(7),
        "kernel of 7x7 (dilation 1x1) is larger",
    ),
    (
        "conv",
        "pooling_param.kernel_size",
        |l| l.layer = pooling(7),
        "window of 7x7 is larger than its input of 6x6",
    ),
    ("data", "data_param.batch_size", |l| l.layer = data(0), "missing; expected at least 1 image"),
    (
        "data",
        "transform_param.crop_size",
        |l| l.layer = cropped(SIDE + 1),
        "7; the samples are only 6 x 6 (height x width)",
    ),
    (
        "loss",
        "bottom",
        |l| l.bottoms = strings(&["ip", "data"]),
        "144 labels (shape 4x1x6x6) for scores of shape 4x5",
    ),
    (
        "loss",
        "loss_weight",
        |l| l.loss_weights = vec![1.0; 2],
        "2 given; expected none, or one for each top (1)",
    ),
    (
        "relu",
        "bottom",
        |l| l.layer = Layer::Neuron(Neuron::Threshold { threshold: 0.5 }),
        "a layer of type Threshold has no gradient, but below \"conv\" something is trained",
    ),
    (
        "loss",
        "propagate_down",
        |l| l.propagate_down = vec![true],
        "1 given; expected none, or one for each bottom (2)",
    ),
    ("relu", "relu_param.negative_slope", |l| l.layer = relu(f32::NAN), "expected a finite number"),
    (
        "loss",
        "softmax_param.axis",
        |l| {
            l.layer = Layer::SoftmaxWithLoss(SoftmaxWithLoss {
                axis: 2,
                ignore_label: None,
                normalization: Default::default(),
            });
        },
        "axis 2 does not exist",
    ),
    (
        "ip",
        "exclude",
        |l| {
            l.include = vec![StateRule::default()];
            l.exclude = vec![StateRule::default()];
        },
        "the layer has include rules, too",
    ),
];

#[test]
fn every_complaint_names_file_line_and_field() {
    for (name, field, change, message) in COMPLAINTS {
        let spec = changed(name, &[(field, 47)], change);
        let text = refused(&spec);
        assert!(text.starts_with("small.prototxt:47: layer \""), "{text}");
        assert!(text.contains(&format!("\": {field}: ")) && text.contains(message), "{text}");
        // Without the field's own line it is that of the layer.
        let spec = changed(name, &[], change);
        assert!(refused(&spec).starts_with("small.prototxt:40: "), "{}", refused(&spec));
    }
}

#[test]
fn an_unknown_bottom_gets_the_name_that_was_meant() {
    let text = refused(&changed("conv", &[], |l| l.bottoms = strings(&["dta"])));
    assert!(text.ends_with("hint: did you mean \"data\"?"), "{text}");
    let text = refused(&changed("conv", &[], |l| l.bottoms = strings(&["elsewhere"])));
    assert!(!text.contains("did you mean"), "{text}");
}

#[test]
fn a_name_that_is_there_twice_tells_the_line_of_the_first() {
    let mut spec = changed("relu", &[], |l| l.name = "conv".into());
    assert!(refused(&spec).contains("another layer has this name\n"), "no line is known");
    layer_of(&mut spec, "conv").site.line = 12;
    assert!(refused(&spec).contains("another layer has this name (line 12)\n"));
}

#[test]
fn a_net_without_a_loss_can_test_but_not_train() {
    let mut spec = small();
    spec.layers.pop();
    layer_of(&mut spec, "ip").site = Site { line: 30, ..Site::made("small.prototxt") };
    let text = refused(&spec);
    assert!(text.starts_with("small.prototxt:30: network: ") && text.contains("has no loss"), "{text}");
    assert!(text.contains("hint: add a layer of type \"SoftmaxWithLoss\""), "{text}");
    assert!(build(&spec, Phase::Test).is_ok());
    // A loss that weighs nothing is none.
    assert!(refused(&changed("loss", &[], |l| l.loss_weights = vec![0.0])).contains("has no loss"));
}

#[test]
fn a_net_without_layers_is_refused() {
    let text = refused(&net_of(Vec::new()));
    assert_eq!(text, "small.prototxt: network: layer: no layer belongs to phase TRAIN");
}

#[test]
fn layers_belong_by_phase_level_and_stage() {
    let rule = StateRule::default();
    let state = |phase, level, stages: &[&str]| NetState { phase, level, stages: strings(stages) };
    let train = state(Phase::Train, 0, &[]);
    let deep = state(Phase::Train, 3, &["deploy", "fast"]);
    let test = state(Phase::Test, 0, &["fast"]);
    let staged = |stages: &[&str], not: &[&str]| StateRule {
        stages: strings(stages),
        not_stages: strings(not),
        ..StateRule::default()
    };
    let cases: [(StateRule, [bool; 3]); 8] = [
        (rule.clone(), [true; 3]),
        (StateRule { phase: Some(Phase::Test), ..rule.clone() }, [false, false, true]),
        (StateRule { min_level: Some(1), ..rule.clone() }, [false, true, false]),
        (StateRule { max_level: Some(2), ..rule.clone() }, [true, false, true]),
        (staged(&["fast"], &[]), [false, true, true]),
        (staged(&["fast", "deploy"], &[]), [false, true, false]),
        (staged(&[], &["deploy"]), [true, false, true]),
        (staged(&["fast"], &["deploy"]), [false, false, true]),
    ];
    for (rule, expected) in cases {
        for (state, holds) in [&train, &deep, &test].into_iter().zip(expected) {
            let mut layer = LayerSpec::new("accuracy", accuracy(), &["ip", "label"], &["accuracy"]);
            layer.include = vec![rule.clone()];
            assert_eq!(layer.belongs(state), holds, "include {rule:?} in {state:?}");
            let mut spec = small();
            spec.layers.push(layer.clone());
            let net = Net::build(&spec, state, 1.0).expect("the net is possible");
            assert_eq!(net.layers.iter().any(|l| l.name == "accuracy"), holds);
            layer.exclude = std::mem::take(&mut layer.include);
            assert_eq!(layer.belongs(state), !holds, "exclude {rule:?} in {state:?}");
        }
    }
    // Of several rules one will do.
    let mut layer = LayerSpec::new("relu", relu(0.0), &["conv"], &["conv"]);
    let phase = |phase| StateRule { phase: Some(phase), ..StateRule::default() };
    layer.include = vec![phase(Phase::Test), phase(Phase::Train)];
    assert!(layer.belongs(&train) && layer.belongs(&test));
}

#[test]
fn layers_of_other_phases_may_share_names() {
    let mut spec = small();
    let phase = |phase| vec![StateRule { phase: Some(phase), ..StateRule::default() }];
    layer_of(&mut spec, "data").include = phase(Phase::Train);
    let mut other = LayerSpec::new("data", data(7), &[], &["data", "label"]);
    other.include = phase(Phase::Test);
    spec.layers.insert(0, other);
    assert_eq!(train(&spec).batch(), BATCH);
    assert_eq!(build(&spec, Phase::Test).map(|net| net.batch()), Ok(7));
}

#[test]
fn a_loss_without_a_top_makes_one_that_weighs_1() {
    let net = train(&changed("loss", &[], |l| l.tops.clear()));
    let losses: Vec<_> = net.losses().map(|(blob, weight)| (net.blob(blob).shape.count(), weight)).collect();
    assert_eq!(losses, [(1, 1.0)]);
    let net = Net::build(&small(), &NetState::new(Phase::Train), 0.25).expect("the net is possible");
    assert_eq!(net.losses().next().map(|(_, weight)| weight), Some(0.25));
}

#[test]
fn only_the_first_top_of_a_loss_weighs() {
    let with = |weights: &[f32]| {
        changed("loss", &[("loss_weight", 44)], |l| {
            l.tops.push("probabilities".into());
            l.loss_weights = weights.to_vec();
        })
    };
    assert_eq!(train(&with(&[2.0, 0.0])).losses().map(|(_, weight)| weight).collect::<Vec<_>>(), [2.0]);
    assert!(
        refused(&with(&[1.0, 0.5])).starts_with("small.prototxt:44: layer \"loss\": loss_weight: only the")
    );
    assert!(refused(&with(&[1.0])).contains("expected none, or one for each top (2)"));
}

#[test]
fn the_numbers_of_tops_must_agree() {
    let input = |tops| Layer::Input(Input { shapes: vec![vec![BATCH, 1, SIDE, SIDE]], tops });
    let with = |tops| changed("data", &[("top", 41)], |l| l.layer = input(tops));
    assert!(refused(&with(1)).starts_with("small.prototxt:41: layer \"data\": top: 2 given; "));
    assert!(refused(&with(3)).contains("top: 2 given; a layer of type Input has 3"));
    let mut none = with(0);
    layer_of(&mut none, "data").tops.clear();
    assert!(refused(&none).contains("top: 0 given; a layer of type Input has at least 1"));
    for tops in [0, 1, 3] {
        let mut spec = small();
        let split = LayerSpec::new("split", Layer::Split(Split { tops }), &["conv"], &["a", "b"]);
        insert_before(&mut spec, "ip", split);
        assert!(refused(&spec).contains("top: 2 given; a layer of type Split has"), "{tops}");
    }
}

#[test]
fn a_layer_in_place_shares_memory_unless_others_need_the_values() {
    let net = train(&small());
    assert_eq!(top(&net, "conv").data, top(&net, "relu").data);
    assert_eq!(top(&net, "conv").grad, top(&net, "relu").grad);

    // A second reader of what the convolution made.
    let mut spec = small();
    insert_before(&mut spec, "relu", LayerSpec::new("ip2", inner_product(), &["conv"], &["ip2"]));
    let net = train(&spec);
    assert_ne!(top(&net, "conv").data, top(&net, "relu").data);

    // A ReLU's backward asks for signs only, and a second ReLU keeps them.
    let mut spec = small();
    insert_before(&mut spec, "ip", LayerSpec::new("relu2", relu(0.5), &["conv"], &["conv"]));
    let net = train(&spec);
    assert_eq!(top(&net, "conv").data, top(&net, "relu2").data);
}

/// Gradients of all parameters, one step of the net on random numbers.
fn gradients(spec: &NetSpec) -> Vec<Vec<f64>> {
    let net = train(spec);
    let mut run = ReferenceNet::new(net);
    let draw = |seed, count: usize| {
        let stream = Stream::new(seed, Purpose::Dummy, 0);
        (0..count).map(move |i| stream.normal(i as u64)).collect::<Vec<f32>>()
    };
    run.set_params(&draw(1, run.net().params.len()));
    let pixels: Vec<f64> = draw(2, BATCH * SIDE * SIDE).into_iter().map(f64::from).collect();
    run.set_input("data", &pixels);
    run.set_input("label", &[0.0, 4.0, 2.0, 2.0]);
    run.forward();
    run.backward();
    let names: Vec<String> = run.net().params.views().iter().map(|view| view.name.clone()).collect();
    names.iter().map(|name| run.param_grad(name).expect("it exists").to_vec()).collect()
}

fn has_gradient(gradient: &[f64]) -> bool {
    gradient.iter().any(|g| *g != 0.0)
}

#[test]
fn a_layer_in_place_behind_one_that_needs_its_values_gives_the_same_gradients() {
    let with = |top: &str| {
        let mut spec = small();
        layer_of(&mut spec, "ip").bottoms = strings(&[top]);
        insert_before(&mut spec, "relu", LayerSpec::new("softmax", softmax(), &["conv"], &["soft"]));
        // Softmax makes no negative values, so this ReLU would do no harm; the rule does not rely on such luck.
        *layer_of(&mut spec, "relu") = LayerSpec::new("relu", relu(0.0), &["soft"], &[top]);
        spec
    };
    let net = train(&with("soft"));
    assert_ne!(top(&net, "softmax").data, top(&net, "relu").data);
    let in_place = gradients(&with("soft"));
    assert!(in_place.iter().all(|g| has_gradient(g)));
    assert_eq!(in_place, gradients(&with("apart")));
}

#[test]
fn relus_in_place_behind_one_another_give_the_same_gradients() {
    let with = |[first, second]: [&str; 2]| {
        let mut spec = small();
        *layer_of(&mut spec, "relu") = LayerSpec::new("relu", relu(0.5), &["conv"], &[first]);
        insert_before(&mut spec, "ip", LayerSpec::new("relu2", relu(0.25), &[first], &[second]));
        layer_of(&mut spec, "ip").bottoms = strings(&[second]);
        gradients(&spec)
    };
    let in_place = with(["conv", "conv"]);
    assert!(in_place.iter().all(|g| has_gradient(g)));
    assert_eq!(in_place, with(["a", "b"]));
}

#[test]
fn a_view_lies_in_the_memory_of_its_bottom_and_changes_no_gradient() {
    let flatten = |bottom: &str| {
        LayerSpec::new("flat", Layer::Flatten(Flatten { axis: 1, end_axis: -1 }), &[bottom], &["flat"])
    };
    // conv → flatten → relu in place → ip; the second net also reads what the convolution made.
    let mut plain = small();
    insert_before(&mut plain, "relu", flatten("conv"));
    *layer_of(&mut plain, "relu") = LayerSpec::new("relu", relu(0.0), &["flat"], &["flat"]);
    layer_of(&mut plain, "ip").bottoms = strings(&["flat"]);
    let net = train(&plain);
    for name in ["flat", "relu"] {
        assert_eq!(
            (top(&net, name).data, top(&net, name).grad),
            (top(&net, "conv").data, top(&net, "conv").grad)
        );
    }
    assert_eq!(gradients(&plain), gradients(&small()));

    let again = |spec: &mut NetSpec, bottom: &str| {
        insert_before(spec, "loss", LayerSpec::new("ip2", inner_product(), &[bottom], &["ip2"]));
        insert_before(spec, "loss", LayerSpec::new("loss2", loss(), &["ip2", "label"], &["loss2"]));
    };
    let mut shared = plain;
    again(&mut shared, "conv");
    let net = train(&shared);
    assert_eq!(top(&net, "flat").data, top(&net, "conv").data);
    assert_ne!(top(&net, "relu").data, top(&net, "conv").data);
    // The same without a view: another reader before the ReLU.
    let mut expected = small();
    *layer_of(&mut expected, "relu") = LayerSpec::new("relu", relu(0.0), &["conv"], &["apart"]);
    layer_of(&mut expected, "ip").bottoms = strings(&["apart"]);
    again(&mut expected, "conv");
    assert_eq!(gradients(&shared), gradients(&expected));
}

#[test]
fn a_view_of_values_that_backward_needs_is_not_overwritten() {
    let mut spec = small();
    insert_before(&mut spec, "relu", LayerSpec::new("softmax", softmax(), &["conv"], &["soft"]));
    let flatten = Layer::Flatten(Flatten { axis: 1, end_axis: -1 });
    insert_before(&mut spec, "relu", LayerSpec::new("flat", flatten, &["soft"], &["flat"]));
    *layer_of(&mut spec, "relu") = LayerSpec::new("relu", relu(0.0), &["flat"], &["flat"]);
    layer_of(&mut spec, "ip").bottoms = strings(&["flat"]);
    let net = train(&spec);
    assert_eq!(top(&net, "flat").data, top(&net, "softmax").data);
    assert_ne!(top(&net, "relu").data, top(&net, "softmax").data);
}

#[test]
fn a_split_of_the_user_is_one_of_the_nets_own() {
    let readers = |bottoms: [&str; 2]| {
        let mut spec = small();
        for (i, bottom) in bottoms.into_iter().enumerate() {
            let (ip, out) = (format!("more{i}"), format!("more_loss{i}"));
            spec.layers.push(LayerSpec::new(&ip, inner_product(), &[bottom], &[&ip]));
            spec.layers.push(LayerSpec::new(&out, loss(), &[&ip, "label"], &[&out]));
        }
        spec.layers.retain(|l| l.name != "ip" && l.name != "loss");
        spec
    };
    let mut written = readers(["a", "b"]);
    let split = LayerSpec::new("split", Layer::Split(Split { tops: 2 }), &["conv"], &["a", "b"]);
    insert_before(&mut written, "more0", split);
    let net = train(&written);
    let layer = net.layers.iter().find(|l| l.name == "split").expect("it exists");
    for top in layer.tops.iter().chain(&layer.bottoms) {
        assert_eq!(net.blob(*top).data, net.blob(layer.bottoms[0]).data);
    }
    assert_eq!(gradients(&written), gradients(&readers(["conv", "conv"])));

    // What works in place on one of its tops leaves the other alone.
    let in_place = LayerSpec::new("relu2", relu(0.5), &["a"], &["a"]);
    insert_before(&mut written, "more0", in_place);
    let net = train(&written);
    assert_ne!(top(&net, "relu2").data, top(&net, "split").data);
}

#[test]
fn propagate_down_false_stops_the_gradient_and_true_starts_none() {
    let with = |down: bool| changed("ip", &[], |l| l.propagate_down = vec![down]);
    let [conv_w, conv_b, ip_w, ip_b] = &gradients(&with(false))[..] else { panic!("four parameters") };
    assert!(!has_gradient(conv_w) && !has_gradient(conv_b));
    let all = gradients(&small());
    assert_eq!([ip_w, ip_b], [&all[2], &all[3]]);
    assert_eq!(gradients(&with(true)), all);
    assert_eq!(top(&train(&with(false)), "relu").grad, None);
    // Nothing is trained below the convolution, and forcing backward overrides the file.
    let spec = changed("conv", &[], |l| l.propagate_down = vec![true]);
    assert_eq!(train(&spec).blobs[0].grad, None);
    let mut forced = changed("conv", &[], |l| l.propagate_down = vec![false]);
    forced.force_backward = true;
    assert!(train(&forced).blobs[0].grad.is_some());
}

#[test]
fn labels_get_no_gradient_even_if_backward_is_forced() {
    let mut spec = small();
    spec.layers.push(LayerSpec::new("accuracy", accuracy(), &["ip", "label"], &["accuracy"]));
    spec.force_backward = true;
    let net = train(&spec);
    assert!(net.blobs.iter().filter(|b| b.name == "label").all(|b| b.grad.is_none()));
    assert!(net.layers.iter().filter(|l| l.name.starts_with("label_")).all(|l| !l.under_loss));
    // Labels that a trained layer makes stay labels.
    let made = LayerSpec::new("labels", inner_product(), &["data"], &["made"]);
    let mut spec = small();
    insert_before(&mut spec, "loss", made);
    layer_of(&mut spec, "ip").layer = convolution(4);
    layer_of(&mut spec, "loss").bottoms = strings(&["ip", "made"]);
    let Layer::InnerProduct(labels) = &mut layer_of(&mut spec, "labels").layer else { panic!("it is one") };
    labels.num_output = 1;
    let net = train(&spec);
    assert_eq!(top(&net, "labels").grad, None);
}

#[test]
fn a_net_that_tests_has_no_gradients() {
    let mut spec = small();
    spec.force_backward = true;
    let net = build(&spec, Phase::Test).expect("the net is possible");
    assert!(net.blobs.iter().all(|b| b.grad.is_none()));
    let mut values: Vec<_> = net.blobs.iter().map(|b| b.data).collect();
    values.sort_unstable();
    values.dedup();
    assert_eq!(net.storages.len(), values.len());
    for layer in (0..net.layers.len()).map(quadrille_core::net::LayerId) {
        assert_eq!(net.accesses(layer, SubTask::GradActivation), None);
        assert_eq!(net.accesses(layer, SubTask::GradWeight), None);
    }
}

#[test]
fn what_is_cut_out_is_the_shape_of_the_data() {
    let mut spec = small();
    layer_of(&mut spec, "data").layer = cropped(SIDE - 1);
    let net = build(&spec, Phase::Train).expect("the net is possible");
    assert_eq!(net.blob(net.layers[0].tops[0]).shape.dims(), [BATCH, 1, SIDE - 1, SIDE - 1]);
}
