//! Nets with fused layers: what is rewritten and what is not, that the rest stays as it was, and that both train alike.

use quadrille_core::check::check;
use quadrille_core::layer::{EltwiseOperation, Layer, Lrn, NormRegion, Operand, PoolMethod, Relu, SubTask};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetSpec, NetState, ParamSpec, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::rng::{Purpose, Stream};

use crate::common::{branching_net, convolution, lenet, nets, normalizing_net, residual_net, sharing};

pub const BATCH: usize = 5;

fn build(spec: &NetSpec, phase: Phase) -> Net {
    Net::build(spec, &NetState::new(phase), 1.0).expect("the net is possible")
}

fn labels(net: &Net) -> Vec<String> {
    let labels = net.layers.iter().filter(|l| !matches!(l.layer, Layer::Split(_))).map(|l| l.label());
    labels.collect()
}

fn id(net: &Net, name: &str) -> LayerId {
    LayerId(net.layers.iter().position(|l| l.name == name).expect("the layer exists"))
}

fn layer<'a>(spec: &'a mut NetSpec, name: &str) -> &'a mut LayerSpec {
    spec.layers.iter_mut().find(|l| l.name == name).expect("the layer exists")
}

#[test]
fn chains_become_one_layer_in_both_phases() {
    for phase in [Phase::Train, Phase::Test] {
        let net = build(&residual_net(BATCH), phase).fused();
        let expected =
            ["data", "conv1", "bn1 + scale1 + relu1", "conv2", "bn2 + scale2", "sum + relu2", "ip", "loss"];
        assert_eq!(labels(&net), expected, "{phase}");
        let layer = |name: &str| &net.layer(id(&net, name)).layer;
        assert!(matches!(layer("bn1"), Layer::Normalize(l) if l.relu), "{phase}");
        assert!(matches!(layer("bn2"), Layer::Normalize(l) if !l.relu), "{phase}");
        let Layer::Eltwise(sum) = layer("sum") else { panic!("a sum") };
        assert!(matches!(sum.operation, EltwiseOperation::Sum { relu: true, .. }), "{phase}");
    }
}

#[test]
fn what_is_read_twice_or_adds_aside_stays_apart() {
    let net = build(&normalizing_net(BATCH), Phase::Train).fused();
    // "conv1" behind the ReLU is read twice; "aside" leads to no loss; "bn2" has no scale.
    let expected = ["data", "aside", "conv1", "bn1 + scale1 + relu1", "bn2", "sum", "ip", "loss"];
    assert_eq!(labels(&net), expected);
    let unfused = |change: &dyn Fn(&mut NetSpec)| {
        let mut spec = residual_net(BATCH);
        change(&mut spec);
        labels(&build(&spec, Phase::Train).fused())[2].clone()
    };
    let slope = |spec: &mut NetSpec| {
        let Layer::Relu(relu) = &mut layer(spec, "relu1").layer else { panic!("a ReLU") };
        relu.negative_slope = 0.1;
    };
    assert_eq!(unfused(&slope), "bn1 + scale1");
    let axis = |spec: &mut NetSpec| {
        let Layer::Scale(scale) = &mut layer(spec, "scale1").layer else { panic!("a scale") };
        scale.num_axes = 2;
    };
    assert_eq!(unfused(&axis), "bn1");
    let two = |spec: &mut NetSpec| {
        // A second reader of what is normalised.
        layer(spec, "bn1").tops = vec!["norm".into()];
        let scale = layer(spec, "scale1");
        (scale.bottoms, scale.tops) = (vec!["norm".into()], vec!["scaled".into()]);
        let relu = layer(spec, "relu1");
        (relu.bottoms, relu.tops) = (vec!["scaled".into()], vec!["scaled".into()]);
        layer(spec, "conv2").bottoms = vec!["scaled".into()];
        layer(spec, "sum").bottoms[0] = "norm".into();
    };
    assert_eq!(unfused(&two), "bn1");
    let stopped = |spec: &mut NetSpec| layer(spec, "scale1").propagate_down = vec![false];
    assert_eq!(unfused(&stopped), "bn1");
}

/// LeNet with a ReLU behind its first convolution that works in place, or does not.
fn rectified(in_place: bool, negative_slope: f32) -> NetSpec {
    let mut spec = lenet(BATCH);
    let top = if in_place { "conv1" } else { "rectified" };
    let relu = Layer::Relu(Relu { negative_slope, applied: false });
    let behind = 1 + spec.layers.iter().position(|l| l.name == "conv1").expect("a convolution");
    spec.layers.insert(behind, LayerSpec::new("behind", relu, &["conv1"], &[top]));
    layer(&mut spec, "pool1").bottoms = vec![top.into()];
    spec
}

#[test]
fn convolutions_do_the_forward_of_relus_in_place() {
    for phase in [Phase::Train, Phase::Test] {
        for (in_place, slope) in [(true, 0.0), (false, 0.0), (true, 0.1)] {
            let apart = build(&rectified(in_place, slope), phase);
            let fused = apart.clone().fused();
            let fuses = in_place && slope == 0.0;
            assert_eq!(fused != apart, fuses, "{phase}, in place {in_place}, slope {slope}");
            let Layer::Convolution(conv) = &fused.layer(id(&fused, "conv1")).layer else { panic!("conv1") };
            assert_eq!(conv.relu, fuses);
            let has = |sub| fused.accesses(id(&fused, "behind"), sub).is_some();
            assert_eq!(has(SubTask::Forward), !fuses);
            assert_eq!(has(SubTask::GradActivation), phase == Phase::Train);
        }
    }
}

/// Whether backward of the ReLU behind the first convolution of LeNet is left to the layer in the place of its pooling.
fn is_left(spec: &NetSpec, phase: Phase, can: bool) -> bool {
    let net = build(spec, phase).fused().rectifying(|_| can);
    let above = id(&net, "pool1");
    let left = net.layer(above).rectifies_gradient;
    let looks = match net.layer(above).layer {
        Layer::Pooling(_) => false,
        Layer::Lrn(_) => true,
        _ => left,
    };
    if let Some(accesses) = net.accesses(above, SubTask::GradActivation) {
        let reads = accesses.reads.iter().filter(|read| **read == Operand::Bottom(0)).count();
        assert_eq!(reads, usize::from(looks), "{}", net.name);
    }
    let backward = net.accesses(id(&net, "behind"), SubTask::GradActivation);
    assert_eq!(backward.is_none(), left || phase == Phase::Test, "{}", net.name);
    left
}

#[test]
fn pooling_does_the_backward_of_relus_in_place() {
    let plain = rectified(true, 0.0);
    assert!(is_left(&plain, Phase::Train, true));
    assert!(!is_left(&plain, Phase::Train, false), "no kernel can");
    assert!(!is_left(&plain, Phase::Test, true), "no backward");
    assert!(!is_left(&rectified(false, 0.0), Phase::Train, true), "two gradients");
    assert!(!is_left(&rectified(true, 0.1), Phase::Train, true), "something passes below 0");
    let mut average = plain.clone();
    if let Layer::Pooling(pooling) = &mut layer(&mut average, "pool1").layer {
        pooling.method = PoolMethod::Average;
    }
    assert!(!is_left(&average, Phase::Train, true), "an average comes from all taps");
    let mut twice = plain.clone();
    let again =
        LayerSpec { name: "again".into(), tops: vec!["again".into()], ..layer(&mut twice, "pool1").clone() };
    twice.layers.push(again);
    assert!(!is_left(&twice, Phase::Train, true), "another reads it, too");
    plans_are_valid(&plain);
}

#[test]
fn convolutions_and_norms_do_the_backward_of_relus_in_place() {
    let layers = [
        convolution(8, 3),
        Layer::Lrn(Lrn {
            region: NormRegion::AcrossChannels,
            local_size: 5,
            alpha: 1e-4,
            beta: 0.75,
            k: 1.0,
        }),
    ];
    for above in layers {
        let with = |in_place: bool, slope: f32| {
            let mut spec = rectified(in_place, slope);
            layer(&mut spec, "pool1").layer = above.clone();
            spec
        };
        let plain = with(true, 0.0);
        assert!(is_left(&plain, Phase::Train, true));
        assert!(!is_left(&plain, Phase::Train, false), "no kernel can");
        assert!(!is_left(&plain, Phase::Test, true), "no backward");
        assert!(!is_left(&with(false, 0.0), Phase::Train, true), "two gradients");
        assert!(!is_left(&with(true, 0.1), Phase::Train, true), "something passes below 0");
        plans_are_valid(&plain);
    }
}

/// Checks plans of a net whose ReLUs are left to others.
fn plans_are_valid(spec: &NetSpec) {
    for devices in [1, 3] {
        for shared in [false, true] {
            let of = |net: Net| {
                let net = net.fused().rectifying(|_| true);
                if shared { sharing(net) } else { net }
            };
            let nets: Vec<Net> = nets(spec, Phase::Train, devices).into_iter().map(of).collect();
            for stage in [Stage::Iteration, Stage::Gradients] {
                let plan = Plan::build(&nets, PlanOptions::new(stage)).expect("a plan");
                assert_eq!(check(&plan, &nets), Ok(()), "{devices} devices, shared {shared}");
            }
        }
    }
}

#[test]
fn nets_without_chains_stay_as_they_are() {
    for phase in [Phase::Train, Phase::Test] {
        let net = build(&lenet(BATCH), phase);
        assert_eq!(net.clone().fused(), net);
    }
}

#[test]
fn parameters_outputs_and_names_stay() {
    for phase in [Phase::Train, Phase::Test] {
        for spec in [residual_net(BATCH), normalizing_net(BATCH)] {
            let apart = build(&spec, phase);
            let fused = apart.clone().fused();
            assert_eq!(apart.params, fused.params);
            let names = |net: &Net| net.outputs().map(|b| net.blob(b).name.clone()).collect::<Vec<_>>();
            assert_eq!(names(&apart), names(&fused));
            let owned = |net: &Net| {
                let mut params: Vec<_> = net.layers.iter().flat_map(|l| l.params.clone()).collect();
                params.sort_unstable();
                params
            };
            assert_eq!(owned(&apart), owned(&fused));
            assert_eq!(fused.clone().fused(), fused, "fusing again changes nothing");
        }
    }
}

#[test]
fn no_memory_is_kept_for_what_is_never_stored() {
    let apart = build(&residual_net(BATCH), Phase::Train);
    let fused = apart.clone().fused();
    let elements = |net: &Net| net.storages.iter().sum::<usize>();
    // The chains' own blobs between bottom and top: those of "bn1" and "bn2" lie in their bottoms' memory, "scale2" and
    // "sum" have memory of their own only as tops.
    let used = |net: &Net| {
        let mut used: Vec<_> = net.blobs.iter().flat_map(|b| [Some(b.data), b.grad]).flatten().collect();
        used.sort_unstable();
        used.dedup();
        used.len()
    };
    assert_eq!(used(&fused), fused.storages.len(), "every storage is some blob's");
    assert!(elements(&fused) <= elements(&apart));
    // With tops of their own, three blobs and their gradients vanish.
    let mut spec = residual_net(BATCH);
    for (name, bottom, top) in [("bn1", "conv1", "n1"), ("scale1", "n1", "s1"), ("relu1", "s1", "r1")] {
        let layer = layer(&mut spec, name);
        (layer.bottoms, layer.tops) = (vec![bottom.into()], vec![top.into()]);
    }
    layer(&mut spec, "conv2").bottoms = vec!["r1".into()];
    layer(&mut spec, "sum").bottoms[0] = "r1".into();
    let apart = build(&spec, Phase::Train);
    let one = apart.blob(apart.layer(id(&apart, "bn1")).tops[0]).shape.count();
    assert_eq!(elements(&apart) - elements(&apart.clone().fused()), 4 * one);
}

/// Frozen parameters, no gradient below, several devices: the validator follows every gradient to its update.
#[test]
fn plans_of_fused_nets_are_valid() {
    let frozen = ParamSpec::with(0.0, 0.0);
    let mut half = residual_net(BATCH);
    layer(&mut half, "scale1").params = vec![frozen.clone(), ParamSpec::default()];
    let mut below = residual_net(BATCH);
    layer(&mut below, "conv1").params = vec![frozen.clone(), frozen.clone()];
    for spec in
        [residual_net(BATCH), normalizing_net(BATCH), half, below, rectified(true, 0.0), branching_net(BATCH)]
    {
        for devices in [1, 2, 3] {
            for phase in [Phase::Train, Phase::Test] {
                let nets: Vec<Net> = nets(&spec, phase, devices).into_iter().map(Net::fused).collect();
                let stages = match phase {
                    Phase::Train => &[Stage::Iteration, Stage::Gradients, Stage::Update][..],
                    Phase::Test => &[Stage::Forward],
                };
                for stage in stages {
                    let options = PlanOptions { chunk_layers: 2, ..PlanOptions::new(*stage) };
                    let plan = Plan::build(&nets, options).expect("a plan");
                    assert_eq!(check(&plan, &nets), Ok(()), "{stage:?} on {devices} devices");
                }
            }
        }
    }
}

#[test]
fn without_a_gradient_below_the_parameters_are_left_to_grad_weight() {
    let mut spec = residual_net(BATCH);
    let frozen = ParamSpec::with(0.0, 0.0);
    layer(&mut spec, "conv1").params = vec![frozen.clone(), frozen];
    let net = build(&spec, Phase::Train).fused();
    let has = |name: &str, sub| net.accesses(id(&net, name), sub).is_some();
    assert!(!has("bn1", SubTask::GradActivation) && has("bn1", SubTask::GradWeight));
    assert!(has("bn2", SubTask::GradActivation) && !has("bn2", SubTask::GradWeight));
}

/// Some iterations of plain gradient descent, running sums included; weights and losses.
pub fn train(net: Net) -> (Vec<f64>, Vec<f64>) {
    let mut run = ReferenceNet::<f64>::new(net);
    let mut packed = vec![0.0; run.net().params.len()];
    run.net().params.fill(3, &mut packed);
    run.set_params(&packed);
    let (data, views) = (run.net().blobs[0].shape.count(), run.net().params.views().to_vec());
    let mut losses = Vec::new();
    for step in 0..6 {
        let stream = Stream::new(20 + step, Purpose::Dummy, 0);
        let pixels: Vec<f64> = (0..data).map(|i| f64::from(stream.normal(i as u64))).collect();
        run.set_input("data", &pixels);
        let classes: Vec<f64> = (0..BATCH).map(|i| f64::from(stream.bits(i as u64 + 9000) % 5)).collect();
        run.set_input("label", &classes);
        run.forward();
        run.backward();
        losses.push(run.loss());
        for view in &views {
            let gradient = run.param_grad(&view.name).expect("it exists").to_vec();
            let param = run.param_mut(&view.name).expect("it exists");
            for (p, g) in param.iter_mut().zip(gradient) {
                *p += if view.lr_mult == 0.0 { g } else { -0.1 * g };
            }
        }
    }
    let params = views.iter().flat_map(|v| run.param(&v.name).expect("it exists").to_vec());
    (params.collect(), losses)
}

/// Two branches whose Scales share their parameters, the second of them in front of the first's.
fn crossed(batch: usize) -> NetSpec {
    let mut spec = residual_net(batch);
    let shared = || vec!["factor", "shift"].into_iter().map(named).collect::<Vec<_>>();
    for (name, [bottom, top]) in
        [("conv1", ["data", "a"]), ("bn1", ["a", "n"]), ("scale1", ["n", "s"]), ("conv2", ["data", "b"])]
            .into_iter()
            .chain([("bn2", ["b", "m"]), ("scale2", ["m", "t"])])
    {
        let layer = layer(&mut spec, name);
        (layer.bottoms, layer.tops) = (vec![bottom.into()], vec![top.into()]);
        if name.starts_with("scale") {
            layer.params = shared();
        }
    }
    layer(&mut spec, "conv2").layer = layer(&mut spec, "conv1").layer.clone();
    layer(&mut spec, "sum").bottoms = vec!["s".into(), "t".into()];
    spec.layers.retain(|layer| layer.name != "relu1");
    let place =
        |spec: &NetSpec, name: &str| spec.layers.iter().position(|l| l.name == name).expect("it is there");
    let first = place(&spec, "scale1");
    let scale = spec.layers.remove(first);
    let behind = place(&spec, "scale2") + 1;
    spec.layers.insert(behind, scale);
    spec
}

fn named(name: &str) -> ParamSpec {
    ParamSpec { name: Some(name.into()), ..ParamSpec::default() }
}

/// The gradient of a shared parameter is added up in the order of backward, which a Scale in its BatchNorm's place would change.
#[test]
fn a_scale_stays_behind_another_with_its_parameters() {
    let spec = crossed(BATCH);
    let net = build(&spec, Phase::Train).fused();
    let expected = ["data", "conv1", "bn1", "conv2", "bn2 + scale2", "scale1", "sum + relu2", "ip", "loss"];
    assert_eq!(labels(&net), expected);
    plans_are_valid(&spec);
}

#[test]
fn fused_and_apart_train_alike() {
    let mut below = residual_net(BATCH);
    let frozen = ParamSpec::with(0.0, 0.0);
    layer(&mut below, "conv1").params = vec![frozen.clone(), frozen];
    // A chain at the bottom of which nothing learns still adds to its running sums.
    let mut stem = below.clone();
    let frozen = ParamSpec::with(0.0, 0.0);
    layer(&mut stem, "scale1").params = vec![frozen.clone(), frozen];
    for spec in
        [residual_net(BATCH), normalizing_net(BATCH), below, stem, rectified(true, 0.0), crossed(BATCH)]
    {
        let net = build(&spec, Phase::Train);
        let ((apart, losses), (fused, fused_losses)) = (train(net.clone()), train(net.fused()));
        assert!(
            losses.windows(2).any(|l| (l[0] - l[1]).abs() > 1e-2),
            "mistrusted: nothing moves: {losses:?}"
        );
        for (a, f) in apart.iter().chain(&losses).zip(fused.iter().chain(&fused_losses)) {
            assert!((a - f).abs() <= 1e-10 * (1.0 + a.abs()), "{f} is not {a}");
        }
    }
}
