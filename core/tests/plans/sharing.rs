//! Parameters that several layers share: where they lie, whose word counts, and that their gradient is the sum.

use crate::common::{named, nets, residual_net, siamese_net};
use quadrille_core::check::check;
use quadrille_core::layer::{Filler, InnerProduct, Input, Layer, Normalization, SoftmaxWithLoss, SubTask};
use quadrille_core::net::{
    GivenState, LayerId, LayerSpec, Net, NetSpec, NetState, ParamSpec, Phase, ShareMode,
};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::site::{Site, SpecError};

const BATCH: usize = 5;

/// The net after a step on random numbers. Parameters of one name in `siamese_net` start alike, shared or not.
fn stepped(spec: &NetSpec) -> ReferenceNet<f64> {
    let net = nets(spec, Phase::Train, 1).remove(0);
    let mut run = ReferenceNet::new(net.clone());
    let mut packed = vec![0.0; net.params.len()];
    for view in net.params.views() {
        // conv_a/0, conv_b/0 and conv_c/0 from one stream.
        let seed = view.name.bytes().filter(|b| !b"abc".contains(b)).fold(7, |s, b| 31 * s + u64::from(b));
        let alike = !view.name.starts_with("feat") || view.name.ends_with("/0");
        let worker = if alike { 0 } else { view.name.as_bytes()[5].into() };
        let stream = Stream::new(seed, Purpose::Filler(0), worker);
        packed[view.range()].iter_mut().enumerate().for_each(|(i, w)| *w = 0.3 * stream.normal(i as u64));
    }
    run.set_params(&packed);
    let pixels = Stream::new(3, Purpose::Dummy, 0);
    let data: Vec<f64> = (0..BATCH * 2 * 144).map(|i| f64::from(pixels.normal(i as u64))).collect();
    run.set_input("data", &data);
    run.set_input("label", &[1.0, 0.0, 0.0, 1.0, 0.0]);
    run.forward();
    run.backward();
    run
}

fn without_names(mut spec: NetSpec) -> NetSpec {
    spec.layers.iter_mut().flat_map(|l| &mut l.params).for_each(|param| param.name = None);
    spec
}

#[test]
fn the_gradient_of_a_shared_parameter_is_the_sum_over_its_layers_in_the_order_of_backward() {
    let (shared, apart) = (stepped(&siamese_net(BATCH)), stepped(&without_names(siamese_net(BATCH))));
    assert_eq!(shared.loss(), apart.loss(), "the same weights give the same loss");
    for name in ["conv_a/0", "conv_a/1", "ip_a/0", "ip_a/1", "feat_a/0"] {
        let part = |side: &str| {
            apart.param_grad(&name.replace("_a", &format!("_{side}"))).expect("a parameter of its own")
        };
        let [a, b, c] = ["a", "b", "c"].map(part);
        let sum: Vec<f64> = a.iter().zip(b).zip(c).map(|((a, b), c)| (c + b) + a).collect();
        for part in [a, b, c] {
            assert!(part.iter().any(|g| g.abs() > 1e-4), "{name}: mistrusted, no gradient to speak of");
        }
        assert_eq!(shared.param_grad(name), Some(&sum[..]), "{name}");
    }
    for side in ["a", "b", "c"] {
        let bias = format!("feat_{side}/1");
        assert_eq!(shared.param_grad(&bias), apart.param_grad(&bias), "{bias} is not shared");
    }
}

#[test]
fn the_packed_buffer_holds_a_shared_parameter_once() {
    let net = nets(&siamese_net(BATCH), Phase::Train, 1).remove(0);
    let views: Vec<&str> = net.params.views().iter().map(|view| view.name.as_str()).collect();
    let expected =
        ["conv_a/0", "conv_a/1", "ip_a/0", "ip_a/1", "feat_a/0", "feat_a/1", "feat_b/1", "feat_c/1"];
    assert_eq!(views, expected);
    // Five shared parameters, for each of which two layers of three have an array of their own.
    let apart = nets(&without_names(siamese_net(BATCH)), Phase::Train, 1).remove(0);
    assert_eq!(net.aux.len(), apart.aux.len() + 10);
    let test = nets(&siamese_net(BATCH), Phase::Test, 1).remove(0);
    assert_eq!((&test.params, test.aux.len()), (&net.params, apart.aux.len()));
    assert!(test.layers.iter().all(|layer| layer.shared.is_empty()));
}

fn ip(num_output: usize, transpose: bool, start: f32) -> Layer {
    Layer::InnerProduct(InnerProduct {
        num_output,
        bias: true,
        axis: 1,
        transpose,
        weight_filler: Filler::Constant(start),
        bias_filler: Filler::default(),
    })
}

/// data → one → two → loss, where layer "one" is `IP(4)` over 4 values and shares its parameters.
fn chain(two: Layer, first: Vec<ParamSpec>, second: Vec<ParamSpec>) -> NetSpec {
    let input = Input { shapes: vec![vec![3, 4], vec![3]], tops: 2 };
    let loss = SoftmaxWithLoss { axis: 1, ignore_label: None, normalization: Normalization::Valid };
    let lines = [("param.name", 41), ("param.lr_mult", 42), ("param.decay_mult", 43)];
    let site = Site {
        file: "chain.prototxt".into(),
        line: 40,
        fields: lines.iter().map(|(field, line)| ((*field).to_owned(), *line)).collect(),
    };
    let layers = vec![
        LayerSpec::new("input", Layer::Input(input), &[], &["data", "label"]),
        LayerSpec { params: first, ..LayerSpec::new("one", ip(4, false, 0.25), &["data"], &["one"]) },
        LayerSpec { params: second, site, ..LayerSpec::new("two", two, &["one"], &["two"]) },
        LayerSpec::new("loss", Layer::SoftmaxWithLoss(loss), &["two", "label"], &["loss"]),
    ];
    NetSpec {
        name: "chain".into(),
        file: "chain.prototxt".into(),
        force_backward: false,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    }
}

fn build(spec: &NetSpec) -> Result<Net, SpecError> {
    Net::build(spec, &NetState::new(Phase::Train), 1.0)
}

#[test]
fn the_first_layer_says_how_a_parameter_starts_and_whoever_says_it_what_its_multipliers_are() {
    let net = build(&chain(ip(4, false, 9.0), named(["w", "b"]), named(["w", "b"]))).expect("possible");
    let view = &net.params.views()[0];
    assert_eq!((&view.filler, view.lr_mult, view.decay_mult), (&Filler::Constant(0.25), 1.0, 1.0));
    let with = |lr_mult, decay_mult| {
        let mut params = named(["w", "b"]);
        (params[0].lr_mult, params[0].decay_mult) = (lr_mult, decay_mult);
        params
    };
    for (first, second) in [
        ((Some(2.0), Some(0.5)), (None, None)),
        ((None, None), (Some(2.0), Some(0.5))),
        ((Some(2.0), None), (None, Some(0.5))),
        ((Some(2.0), Some(0.5)), (Some(2.0), Some(0.5))),
    ] {
        let spec = chain(ip(4, false, 0.0), with(first.0, first.1), with(second.0, second.1));
        let net = build(&spec).expect("possible");
        let view = &net.params.views()[0];
        assert_eq!((view.lr_mult, view.decay_mult), (2.0, 0.5), "{first:?} {second:?}");
    }
    for (first, second, complaint) in [
        (
            (Some(2.0), None),
            (Some(1.0), None),
            "chain.prototxt:42: layer \"two\": param.lr_mult: 1 for \"w\", which layer \"one\" shares with 2",
        ),
        (
            (None, Some(0.0)),
            (None, Some(1.0)),
            "chain.prototxt:43: layer \"two\": param.decay_mult: 1 for \"w\", which layer \"one\" shares with 0",
        ),
    ] {
        let spec = chain(ip(4, false, 0.0), with(first.0, first.1), with(second.0, second.1));
        let message = build(&spec).expect_err("they disagree").to_string();
        assert!(message.starts_with(complaint), "{message}");
    }
}

#[test]
fn shapes_must_be_the_same_or_permissively_as_many_values() {
    let share = |two: Layer, share: ShareMode| {
        let mut second = named(["w", "b"]);
        second[0].share = share;
        // Of other biases nothing is said here.
        second[1].name = None;
        build(&chain(two, named(["w", "b"]), second))
    };
    // A weight of 2 x 4 for one of 4 x 4.
    for mode in [ShareMode::Strict, ShareMode::Permissive] {
        let message = share(ip(2, false, 0.0), mode).expect_err("it does not fit").to_string();
        let start =
            "chain.prototxt:41: layer \"two\": param.name: \"w\" has shape 4x4 in layer \"one\" and 2x4 here";
        assert!(message.starts_with(start) && !message.contains("PERMISSIVE"), "{message}");
    }
    // As many values in another shape: the weight of three inputs and one output, and its transpose.
    let reshaped = |share: ShareMode| {
        let mut spec = chain(ip(1, true, 0.0), named(["w", "b"]), named(["w", "b"]));
        spec.layers[1].layer = ip(1, false, 0.25);
        spec.layers[2].bottoms = vec!["data".into()];
        spec.layers[2].params[0].share = share;
        spec
    };
    let message = build(&reshaped(ShareMode::Strict)).expect_err("another shape").to_string();
    assert!(
        message.contains("has shape 1x4 in layer \"one\" and 4x1 here") && message.contains("PERMISSIVE"),
        "{message}"
    );
    let net = build(&reshaped(ShareMode::Permissive)).expect("as many values");
    let shapes = |layer| net.param_shapes(LayerId(layer))[0].to_string();
    let two = net.layers.iter().position(|layer| layer.name == "two").expect("exists");
    let one = net.layers.iter().position(|layer| layer.name == "one").expect("exists");
    assert_eq!((shapes(one), shapes(two)), ("1x4".to_owned(), "4x1".to_owned()));
}

#[test]
fn one_layer_on_top_of_the_other_may_share() {
    let spec = chain(ip(4, false, 0.0), named(["w", "b"]), named(["w", "b"]));
    let mut run = ReferenceNet::<f64>::new(build(&spec).expect("possible"));
    let stream = Stream::new(2, Purpose::Dummy, 0);
    let count = run.net().params.len();
    run.set_params(&(0..count as u64).map(|i| stream.normal(i)).collect::<Vec<_>>());
    run.set_input("data", &(100..112).map(|i| f64::from(stream.normal(i))).collect::<Vec<_>>());
    run.set_input("label", &[0.0, 3.0, 1.0]);
    run.forward();
    run.backward();
    const H: f64 = 1e-5;
    for name in ["one/0", "one/1"] {
        let gradient = run.param_grad(name).expect("exists").to_vec();
        for (i, computed) in gradient.iter().enumerate() {
            let loss = |by: f64| {
                let mut moved = run.clone();
                moved.param_mut(name).expect("exists")[i] += by;
                moved.forward();
                moved.loss()
            };
            let slope = (loss(H) - loss(-H)) / (2.0 * H);
            assert!((computed - slope).abs() < 1e-8, "{name} at {i}: {computed} is not {slope}");
        }
        assert!(gradient.iter().any(|g| g.abs() > 1e-2), "mistrusted: no gradient to speak of");
    }
}

/// Two branches of a convolution and its normalisation, whose scales share both their parameters.
fn alike_scales() -> NetSpec {
    let mut spec = residual_net(BATCH);
    let scales = spec.layers.iter_mut().filter(|layer| matches!(layer.layer, Layer::Scale(_)));
    scales.for_each(|scale| scale.params = named(["factor", "shift"]));
    spec
}

#[test]
fn a_scale_that_is_fused_still_shares_its_parameters() {
    let apart = nets(&alike_scales(), Phase::Train, 2);
    let fused: Vec<Net> = apart.iter().map(|net| net.clone().fused()).collect();
    assert!(
        fused[0].layers.iter().all(|layer| !matches!(layer.layer, Layer::Scale(_))),
        "mistrusted: nothing is fused"
    );
    for nets in [&apart[..1], &fused[..1], &fused[..]] {
        let plan = Plan::build(nets, PlanOptions::new(Stage::Iteration)).expect("a plan");
        assert_eq!(check(&plan, nets), Ok(()));
    }
    let gradients = |net: &Net| {
        let mut run = ReferenceNet::<f64>::new(net.clone());
        let stream = Stream::new(5, Purpose::Dummy, 0);
        run.set_params(&(0..net.params.len() as u64).map(|i| 0.3 * stream.normal(i)).collect::<Vec<_>>());
        let blob =
            |name: &str| net.blobs.iter().find(|blob| blob.name == name).expect("a blob").shape.count();
        run.set_input(
            "data",
            &(0..blob("data") as u64).map(|i| f64::from(stream.normal(1000 + i))).collect::<Vec<_>>(),
        );
        run.set_input("label", &vec![1.0; blob("label")]);
        run.forward();
        run.backward();
        ["scale1/0", "scale1/1"].map(|name| run.param_grad(name).expect("a parameter").to_vec())
    };
    let [expected, found] = [&apart[0], &fused[0]].map(gradients);
    for (expected, found) in expected.iter().zip(&found) {
        assert!(expected.iter().any(|e| e.abs() > 1e-3), "mistrusted: no gradient to speak of");
        let close = expected.iter().zip(found).all(|(e, f)| (e - f).abs() <= 1e-12 * e.abs().max(1.0));
        assert!(close, "{expected:?} {found:?}");
    }
}

#[test]
fn a_layer_that_finds_no_gradient_adds_none() {
    // The third side leads to no loss any more.
    let mut spec = siamese_net(BATCH);
    spec.layers.retain(|layer| layer.name != "loss_bc");
    let net = nets(&spec, Phase::Train, 1).remove(0);
    let of = |name: &str| net.layers.iter().find(|layer| layer.name == name).expect("exists");
    assert!(of("conv_c").shared.is_empty());
    assert!(of("conv_b").shared.iter().all(|s| s.own.is_none() && !s.is_last));
    assert!(of("conv_a").shared.iter().all(|s| s.own.is_some() && s.is_last));
    // Frozen parameters have no gradient, so there is nothing to add.
    let mut frozen = siamese_net(BATCH);
    let params = frozen.layers.iter_mut().flat_map(|layer| &mut layer.params);
    params.filter(|param| param.name.is_some()).for_each(|param| param.lr_mult = Some(0.0));
    let net = nets(&frozen, Phase::Train, 1).remove(0);
    assert!(net.layers.iter().all(|layer| layer.shared.is_empty()));
    let conv = net.layers.iter().position(|layer| layer.name == "conv_a").expect("exists");
    assert_eq!(net.accesses(LayerId(conv), SubTask::GradWeight), None);
}
