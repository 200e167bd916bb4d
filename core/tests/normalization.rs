//! Nets with BatchNorm, Scale and Eltwise: what lies where, what is trained, and the gradients in place.

use quadrille_core::layer::{
    BatchNorm, Convolution, Filler, InnerProduct, Input, Layer, Relu, Scale, SoftmaxWithLoss, SubTask,
};
use quadrille_core::net::{
    GivenState, LayerId, LayerSpec, Net, NetSpec, NetState, ParamRule, ParamSpec, Phase,
};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::shape::Shape;
use quadrille_core::solver::{PackedRule, Rule};

const IMAGES: usize = 4;
const SIDE: usize = 6;

fn convolution() -> Layer {
    Layer::Convolution(Convolution {
        num_output: 3,
        kernel: [3; 2],
        pad: [0; 2],
        stride: [1; 2],
        dilation: [1; 2],
        group: 1,
        // Its gradient would be 0 below a BatchNorm.
        bias: false,
        relu: false,
        weight_filler: Filler::default(),
        bias_filler: Filler::default(),
    })
}

fn batch_norm(use_global_stats: Option<bool>) -> Layer {
    Layer::BatchNorm(BatchNorm { use_global_stats, moving_average_fraction: 0.75, eps: 1e-3 })
}

fn scale(bottoms: usize, axis: i32) -> Layer {
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
    Layer::Scale(Scale { bottoms, axis, num_axes: 1, bias: true, filler, bias_filler })
}

/// data → conv → bn → scale → relu → ip → loss, where conv makes "a" and the next three what `tops` say.
fn spec(tops: [&str; 3]) -> NetSpec {
    let input = |name: &str, dims: &[usize]| {
        LayerSpec::new(name, Layer::Input(Input { shapes: vec![dims.to_vec()], tops: 1 }), &[], &[name])
    };
    let ip = Layer::InnerProduct(InnerProduct {
        num_output: 5,
        bias: true,
        axis: 1,
        transpose: false,
        weight_filler: Filler::default(),
        bias_filler: Filler::default(),
    });
    let loss = SoftmaxWithLoss { axis: 1, ignore_label: None, normalization: Default::default() };
    let relu = Layer::Relu(Relu { negative_slope: 0.25, applied: false });
    let [bn, sc, re] = tops;
    let layers = vec![
        input("data", &[IMAGES, 2, SIDE, SIDE]),
        input("label", &[IMAGES]),
        LayerSpec::new("conv", convolution(), &["data"], &["a"]),
        LayerSpec::new("bn", batch_norm(None), &["a"], &[bn]),
        LayerSpec::new("scale", scale(1, 1), &[bn], &[sc]),
        LayerSpec::new("relu", relu, &[sc], &[re]),
        LayerSpec::new("ip", ip, &[re], &["ip"]),
        LayerSpec::new("loss", Layer::SoftmaxWithLoss(loss), &["ip", "label"], &["loss"]),
    ];
    NetSpec {
        name: "normalizing".into(),
        file: "<test>".into(),
        force_backward: false,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    }
}

const IN_PLACE: [&str; 3] = ["a"; 3];
const APART: [&str; 3] = ["b", "c", "d"];

fn build(spec: &NetSpec, phase: Phase, share: f32) -> Net {
    Net::build(spec, &NetState::new(phase), share).expect("the net is possible")
}

fn layer<'a>(spec: &'a mut NetSpec, name: &str) -> &'a mut LayerSpec {
    spec.layers.iter_mut().find(|l| l.name == name).expect("the layer exists")
}

fn id(net: &Net, name: &str) -> LayerId {
    LayerId(net.layers.iter().position(|l| l.name == name).expect("the layer exists"))
}

/// Forward and backward on random numbers.
fn run(net: Net) -> ReferenceNet<f64> {
    let mut run = ReferenceNet::new(net);
    let draw = |seed, count: usize| {
        let stream = Stream::new(seed, Purpose::Dummy, 0);
        (0..count).map(move |i| stream.normal(i as u64)).collect::<Vec<f32>>()
    };
    run.set_params(&draw(1, run.net().params.len()));
    let pixels: Vec<f64> = draw(2, IMAGES * 2 * SIDE * SIDE).into_iter().map(f64::from).collect();
    run.set_input("data", &pixels);
    run.set_input("label", &[0.0, 4.0, 2.0, 2.0]);
    run.forward();
    run.backward();
    run
}

fn gradients(run: &ReferenceNet<f64>) -> Vec<Vec<f64>> {
    let views = run.net().params.views().iter();
    views.map(|view| run.param_grad(&view.name).expect("it exists").to_vec()).collect()
}

#[test]
fn in_place_gives_the_same_gradients() {
    let in_place = gradients(&run(build(&spec(IN_PLACE), Phase::Train, 1.0)));
    assert!(in_place.iter().all(|g| g.iter().any(|g| g.abs() > 1e-3)), "{in_place:?}");
    assert_eq!(in_place, gradients(&run(build(&spec(APART), Phase::Train, 1.0))));
}

#[test]
fn only_the_scale_needs_memory_of_its_own() {
    let net = build(&spec(IN_PLACE), Phase::Train, 1.0);
    let data = |name: &str| net.blob(net.layer(id(&net, name)).tops[0]).data;
    assert_eq!(data("conv"), data("bn"));
    assert_ne!(data("bn"), data("scale"));
    assert_eq!(data("scale"), data("relu"));
}

/// The convolution's backward does not ask for its top, but the scale's asks for its bottom.
#[test]
fn a_scale_in_place_keeps_what_it_reads() {
    for (bottoms, factors) in [(1, None), (2, Some("factors"))] {
        let with = |top: &'static str| {
            let mut spec = spec([top; 3]);
            spec.layers.retain(|l| l.name != "bn" && l.name != "relu");
            if let Some(name) = factors {
                let input = Input { shapes: vec![vec![3]], tops: 1 };
                spec.layers.insert(0, LayerSpec::new(name, Layer::Input(input), &[], &[name]));
            }
            let bottoms: Vec<&str> = ["a"].into_iter().chain(factors).collect();
            *layer(&mut spec, "scale") = LayerSpec::new("scale", scale(bottoms.len(), 1), &bottoms, &[top]);
            spec
        };
        let net = build(&with("a"), Phase::Train, 1.0);
        let data = |name: &str| net.blob(net.layer(id(&net, name)).tops[0]).data;
        assert_ne!(data("conv"), data("scale"), "{bottoms} bottoms");
        let in_place = gradients(&run(net));
        assert!(in_place.iter().flatten().any(|g| g.abs() > 1e-3), "{bottoms} bottoms");
        assert_eq!(in_place, gradients(&run(build(&with("c"), Phase::Train, 1.0))), "{bottoms} bottoms");
    }
}

#[test]
fn factors_that_are_a_bottom_have_no_place_among_the_parameters() {
    let mut with = spec(APART);
    let factors = Input { shapes: vec![vec![3]], tops: 1 };
    with.layers.insert(0, LayerSpec::new("factors", Layer::Input(factors), &[], &["factors"]));
    *layer(&mut with, "scale") = LayerSpec::new("scale", scale(2, 1), &["b", "factors"], &["c"]);
    let net = build(&with, Phase::Train, 1.0);
    let scale = net.layer(id(&net, "scale"));
    assert_eq!(scale.params.len(), 1, "the bias alone");
    assert_eq!(net.params.view(scale.params[0]).name, "scale/0");
    let run = run(net);
    assert!(run.param_grad("scale/0").expect("the bias").iter().any(|g| *g != 0.0));
}

#[test]
fn running_sums_are_no_trained_parameters_whatever_the_file_says() {
    let multipliers = ParamSpec { lr_mult: Some(3.0), decay_mult: Some(2.0), ..ParamSpec::default() };
    for said in [Vec::new(), vec![multipliers; 3]] {
        let mut spec = spec(IN_PLACE);
        layer(&mut spec, "bn").params = said;
        let net = build(&spec, Phase::Train, 1.0);
        let sums = net.layer(id(&net, "bn")).params.iter().map(|p| net.params.view(*p));
        for view in sums.clone() {
            assert_eq!(view.rule, ParamRule::RunningSum { fraction: 0.75 });
            assert_eq!((view.lr_mult, view.decay_mult, &view.filler), (0.0, 0.0, &Filler::Constant(0.0)));
        }
        let shapes: Vec<String> = sums.map(|view| view.shape.to_string()).collect();
        assert_eq!(shapes, ["3", "3", "1"]);
        assert_eq!(net.params, build(&spec, Phase::Test, 1.0).params);
    }
}

#[test]
fn running_sums_are_not_shared() {
    let mut spec = spec(IN_PLACE);
    layer(&mut spec, "bn").params = vec![ParamSpec { name: Some("sums".into()), ..ParamSpec::default() }];
    let refused = Net::build(&spec, &NetState::new(Phase::Train), 1.0).expect_err("running sums");
    assert!(refused.to_string().contains("param.name: running sums cannot be shared yet"), "{refused}");
}

#[test]
fn sums_are_added_to_in_training_only_and_by_the_share_of_the_images() {
    let terms = |share: f32| {
        let run = run(build(&spec(IN_PLACE), Phase::Train, share));
        ["bn/0", "bn/1", "bn/2"].map(|name| run.param_grad(name).expect("it exists").to_vec())
    };
    let (whole, half) = (terms(1.0), terms(0.5));
    assert_eq!((whole[2].as_slice(), half[2].as_slice()), (&[1.0][..], &[0.5][..]));
    for (whole, half) in whole.iter().flatten().zip(half.iter().flatten()) {
        assert!(*whole != 0.0 && *half == 0.5 * whole, "{half} of {whole}");
    }
    for (use_global_stats, phase, adds) in [
        (None, Phase::Train, true),
        (Some(false), Phase::Train, true),
        (Some(true), Phase::Train, false),
        (None, Phase::Test, false),
        (Some(false), Phase::Test, false),
    ] {
        let mut spec = spec(IN_PLACE);
        layer(&mut spec, "bn").layer = batch_norm(use_global_stats);
        let net = build(&spec, phase, 1.0);
        let found = net.accesses(id(&net, "bn"), SubTask::GradWeight).is_some();
        assert_eq!(found, adds, "{use_global_stats:?} in {phase}");
    }
}

#[test]
fn nothing_below_sums_is_trained_for_their_sake() {
    let mut spec = spec(IN_PLACE);
    layer(&mut spec, "conv").params =
        vec![ParamSpec { lr_mult: Some(0.0), decay_mult: Some(0.0), ..ParamSpec::default() }];
    let net = build(&spec, Phase::Train, 1.0);
    let grad = |name: &str| net.blob(net.layer(id(&net, name)).tops[0]).grad;
    assert_eq!((grad("conv"), grad("bn")), (None, None));
    assert!(grad("scale").is_some());
    assert!(net.accesses(id(&net, "bn"), SubTask::GradActivation).is_none());
    assert!(net.accesses(id(&net, "bn"), SubTask::GradWeight).is_some());
}

#[test]
fn factors_of_images_cannot_be_cut_by_images() {
    let x = [Shape::new([4, 3, 2])];
    assert_eq!(scale(1, 0).mixes_images(&x), Some("scale_param.axis"));
    assert_eq!(scale(1, -3).mixes_images(&x), Some("scale_param.axis"));
    assert_eq!(scale(1, 1).mixes_images(&x), None);
    // Factors that are a bottom are cut with it.
    assert_eq!(scale(2, 0).mixes_images(&[x[0].clone(), Shape::new([4, 3])]), None);
    assert_eq!(batch_norm(None).mixes_images(&x), None);
}

/// A master changes what the devices would change, so statistics that are kept do not fade there either.
#[test]
fn a_master_leaves_sums_alone_that_are_kept() {
    for (use_global_stats, left) in [(None, 0.75 * 16.0 + 1.0), (Some(true), 16.0)] {
        let mut spec = spec(IN_PLACE);
        layer(&mut spec, "bn").layer = batch_norm(use_global_stats);
        let net = build(&spec, Phase::Train, 1.0);
        let rule = PackedRule::of_net(&net, Rule::sgd(0.0, 0.0), 1);
        let (mut weights, mut histories) = (vec![16.0; net.params.len()], vec![0.0; rule.history_len()]);
        rule.apply(0, 1.0, &mut weights, &vec![1.0; net.params.len()], &mut histories);
        for view in net.params.views() {
            let expected = if view.rule == ParamRule::Gradient { 15.0 } else { left };
            assert_eq!(weights[view.range()], vec![expected; view.shape.count()], "{}", view.name);
        }
    }
}
