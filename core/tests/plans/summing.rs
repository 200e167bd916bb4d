//! Sums that normalisations make: which do and which do not, that every plan of such nets holds, and that they train alike.

use quadrille_core::check::check;
use quadrille_core::layer::{EltwiseOperation, Layer, Normalize, Operand, SubTask};
use quadrille_core::net::{Adders, LayerId, LayerSpec, Net, NetSpec, NetState, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Stage};

use crate::common::{nets, residual_net, sharing};
use crate::fusion::{BATCH, train};

fn summed(spec: &NetSpec, phase: Phase) -> Net {
    Net::build(spec, &NetState::new(phase), 1.0).expect("the net is possible").fused().summing()
}

fn id(net: &Net, name: &str) -> LayerId {
    LayerId(net.layers.iter().position(|layer| layer.name == name).expect("the layer exists"))
}

fn layer<'a>(spec: &'a mut NetSpec, name: &str) -> &'a mut LayerSpec {
    spec.layers.iter_mut().find(|layer| layer.name == name).expect("the layer exists")
}

/// Whether a change of the residual net leaves its sum to the normalisation.
fn adds(change: impl Fn(&mut NetSpec)) -> bool {
    let mut spec = residual_net(BATCH);
    change(&mut spec);
    let net = summed(&spec, Phase::Train);
    let adds = |layer: &Layer| matches!(layer, Layer::Normalize(Normalize { sum: true, .. }));
    net.layers.iter().any(|layer| adds(&layer.layer))
}

/// All sums leave the gradient of their terms in the memory of their top's.
fn adding(net: Net) -> Net {
    let sums = (0..net.layers.len()).map(LayerId).collect();
    net.adding(&Adders { sums, ..Adders::default() })
}

#[test]
fn a_normalisation_adds_its_shortcut() {
    for phase in [Phase::Train, Phase::Test] {
        let net = summed(&residual_net(BATCH), phase);
        let label = net.layer(id(&net, "bn2")).label();
        assert_eq!(label, "bn2 + scale2 + sum + relu2", "{phase}");
        let Layer::Normalize(norm) = &net.layer(id(&net, "bn2")).layer else { panic!("a normalisation") };
        assert!(norm.sum && norm.relu, "{phase}");
        assert_eq!(net.clone().summing(), net, "summing again changes nothing");
        let accesses = net.accesses(id(&net, "bn2"), SubTask::Forward).expect("forward");
        assert!(accesses.reads.contains(&Operand::Bottom(1)), "{phase}: {accesses:?}");
    }
    let net = summed(&residual_net(BATCH), Phase::Train);
    let accesses = net.accesses(id(&net, "bn2"), SubTask::GradActivation).expect("∇A");
    assert!(accesses.reads.contains(&Operand::Top(0)), "the ReLU's side: {accesses:?}");
    assert!(accesses.writes.contains(&Operand::BottomGrad(1)), "{accesses:?}");
    let elements = |net: &Net| net.storages.iter().sum::<usize>();
    let apart = nets(&residual_net(BATCH), Phase::Train, 1).remove(0).fused();
    let one = net.blob(net.layer(id(&net, "bn2")).tops[0]).shape.count();
    assert_eq!(elements(&apart) - elements(&net), 2 * one, "a term and its gradient are left out");
}

#[test]
fn the_shortcut_may_have_the_gradient_of_the_sum() {
    let net = adding(summed(&residual_net(BATCH), Phase::Train));
    let norm = net.layer(id(&net, "bn2"));
    let grads = [norm.bottoms[0], norm.bottoms[1], norm.tops[0]].map(|blob| net.blob(blob).grad);
    assert_eq!(grads[1], grads[2]);
    assert_ne!(grads[0], grads[2], "what is normalised has another");
}

#[test]
fn what_means_something_else_stays_apart() {
    assert!(adds(|_| {}), "mistrusted: nothing is added");
    let operation = |operation: EltwiseOperation| {
        adds(|spec| {
            if let Layer::Eltwise(sum) = &mut layer(spec, "sum").layer {
                sum.operation = operation.clone();
            }
        })
    };
    let sum =
        |coefficients: &[f32]| EltwiseOperation::Sum { coefficients: coefficients.to_vec(), relu: false };
    assert!(operation(sum(&[1.0, 1.0])));
    assert!(!operation(sum(&[1.0, 0.5])), "a factor");
    assert!(!operation(EltwiseOperation::Max), "no sum");
    assert!(!adds(|spec| layer(spec, "sum").bottoms = vec!["conv2".into(); 2]), "one term twice");
    let read_twice = |spec: &mut NetSpec| {
        let again = LayerSpec { name: "again".into(), ..layer(spec, "sum").clone() };
        let again = LayerSpec { tops: vec!["again".into()], ..again };
        let before = spec.layers.iter().position(|layer| layer.name == "ip").expect("a layer");
        layer(spec, "ip").bottoms = vec!["again".into()];
        spec.layers.insert(before, again);
    };
    assert!(!adds(read_twice), "two readers");
    // The shortcut is made behind the normalisation.
    let late = |spec: &mut NetSpec| {
        let conv =
            LayerSpec { name: "late".into(), tops: vec!["late".into()], ..layer(spec, "conv2").clone() };
        let before = spec.layers.iter().position(|layer| layer.name == "sum").expect("a layer");
        layer(spec, "sum").bottoms[0] = "late".into();
        spec.layers.insert(before, conv);
    };
    assert!(!adds(late));
}

#[test]
fn every_plan_holds() {
    for phase in [Phase::Train, Phase::Test] {
        for devices in [1, 3] {
            for rewrite in [|net| net, adding, |net| sharing(adding(net))] as [fn(Net) -> Net; 3] {
                let plain = nets(&residual_net(6), phase, devices).into_iter();
                let nets: Vec<Net> = plain.map(|net| rewrite(net.fused().summing())).collect();
                let stages: &[Stage] = match phase {
                    Phase::Train => &[Stage::Iteration, Stage::Gradients],
                    Phase::Test => &[Stage::Forward],
                };
                for stage in stages {
                    let plan = Plan::build(&nets, PlanOptions::new(*stage)).expect("a plan");
                    assert_eq!(check(&plan, &nets), Ok(()), "{stage:?} on {devices} devices");
                }
            }
        }
    }
}

#[test]
fn sums_apart_and_in_normalisations_train_alike() {
    let apart = nets(&residual_net(BATCH), Phase::Train, 1).remove(0).fused();
    let expected = train(apart.clone());
    for net in [apart.clone().summing(), adding(apart.summing())] {
        let found = train(net);
        let moved = expected.1.windows(2).any(|losses| (losses[0] - losses[1]).abs() > 1e-2);
        assert!(moved, "mistrusted: nothing moves: {:?}", expected.1);
        for (a, f) in expected.0.iter().chain(&expected.1).zip(found.0.iter().chain(&found.1)) {
            assert!((a - f).abs() <= 1e-10 * (1.0 + a.abs()), "{f} is not {a}");
        }
    }
}
