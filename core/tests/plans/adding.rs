//! Gradients that are added up where they lie: which do and which do not, and that every plan of such nets holds.

use quadrille_core::check::check;
use quadrille_core::layer::{Eltwise, EltwiseOperation, Layer, Operand, SubTask};
use quadrille_core::net::{Adders, BlobId, LayerId, LayerSpec, Net, NetLayer, NetSpec, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Stage};

use crate::common::{self, branching_net, inception_net, lenet, nets, normalizing_net, residual_net};

const BATCH: usize = 6;

/// A device that can do all that a net may ask of it.
fn everything(net: &Net) -> Adders {
    let of = |wanted: fn(&Layer) -> bool| {
        let layers = net.layers.iter().enumerate();
        layers.filter(|(_, layer)| wanted(&layer.layer)).map(|(i, _)| LayerId(i)).collect::<Vec<_>>()
    };
    Adders {
        layers: of(|layer| matches!(layer, Layer::Convolution(_) | Layer::InnerProduct(_))),
        sums: of(|layer| matches!(layer, Layer::Eltwise(_))),
        splits: of(|layer| matches!(layer, Layer::Split(_))),
    }
}

fn adding(net: Net) -> Net {
    let can = everything(&net);
    net.adding(&can)
}

fn made(spec: &NetSpec) -> Net {
    nets(spec, Phase::Train, 1).remove(0)
}

fn adders(net: &Net) -> Vec<&str> {
    net.layers.iter().filter(|l| l.adds_gradient).map(|l| l.name.as_str()).collect()
}

fn id(net: &Net, name: &str) -> LayerId {
    LayerId(net.layers.iter().position(|l| l.name == name).expect("the layer exists"))
}

#[test]
fn a_shortcut_is_added_to() {
    for net in [made(&residual_net(BATCH)), made(&residual_net(BATCH)).fused()] {
        let net = adding(net);
        assert_eq!(adders(&net), ["conv2"]);
        let sum = net.layer(id(&net, "sum"));
        let grad = |blob: &BlobId| net.blob(*blob).grad.expect("a gradient");
        let one = grad(&sum.tops[0]);
        assert!(sum.bottoms.iter().all(|bottom| grad(bottom) == one), "the sum passes on its top's");
        let conv2 = id(&net, "conv2");
        assert_eq!(grad(&net.layer(conv2).bottoms[0]), one, "the convolution adds to it");
        let accesses = net.accesses(conv2, SubTask::GradActivation).expect("∇A");
        assert!(accesses.reads.contains(&Operand::BottomGrad(0)), "{accesses:?}");
        let split = net.layers.iter().position(|l| matches!(l.layer, Layer::Split(_))).expect("a split");
        assert_eq!(net.accesses(LayerId(split), SubTask::GradActivation), None, "nothing is left to add");
    }
}

#[test]
fn what_others_need_stays_apart() {
    let changed = |change: &dyn Fn(&mut Eltwise)| {
        let mut net = made(&residual_net(BATCH));
        let sum = id(&net, "sum");
        if let Layer::Eltwise(eltwise) = &mut net.layers[sum.0].layer {
            change(eltwise);
        }
        let net = adding(net);
        let grad = |blob: &BlobId| net.blob(*blob).grad;
        let layer = net.layer(sum);
        layer.bottoms.iter().any(|bottom| grad(bottom) == grad(&layer.tops[0]))
    };
    assert!(changed(&|_| {}), "mistrusted: a plain sum passes on");
    let factors =
        |coefficients: &[f32]| EltwiseOperation::Sum { coefficients: coefficients.to_vec(), relu: false };
    assert!(changed(&|e| e.operation = factors(&[1.0, 1.0])));
    assert!(!changed(&|e| e.operation = factors(&[1.0, 0.5])), "two gradients");
    assert!(!changed(&|e| e.operation = EltwiseOperation::Max), "two gradients");

    let net = made(&residual_net(BATCH));
    let nobody = net.clone().adding(&Adders { layers: Vec::new(), ..everything(&net) });
    assert!(adders(&nobody).is_empty(), "no kernel can");
    let apart = net.clone().adding(&Adders { splits: Vec::new(), ..everything(&net) });
    assert!(adders(&apart).is_empty(), "readers lie in other layouts");
    let test = nets(&residual_net(BATCH), Phase::Test, 1).remove(0);
    assert_eq!(adding(test.clone()), test, "no gradients");
    let chain = made(&lenet(BATCH));
    assert_eq!(adding(chain.clone()), chain, "one reader each");
}

/// A sum with a ReLU changes what it passes on, so its top's gradient must not be another's, in whatever order a device names
/// its sums: here "early" is computed before "sum", and its backward comes after.
#[test]
fn a_sum_changes_no_gradient_that_is_still_read() {
    let mut spec = residual_net(BATCH);
    let early = LayerSpec { name: "early".into(), tops: vec!["early".into()], ..spec.layers[1].clone() };
    spec.layers.insert(1, early);
    let operation = EltwiseOperation::Sum { coefficients: Vec::new(), relu: false };
    let total = Layer::Eltwise(Eltwise { bottoms: 2, operation });
    let before = spec.layers.iter().position(|l| l.name == "ip").expect("a layer");
    spec.layers[before].bottoms = vec!["total".into()];
    spec.layers.insert(before, LayerSpec::new("total", total, &["sum", "early"], &["total"]));
    let net = made(&spec).fused();
    for reversed in [false, true] {
        let mut can = everything(&net);
        assert_eq!(can.sums.len(), 2);
        if reversed {
            can.sums.reverse();
        }
        let net = net.clone().adding(&can);
        let grad = |name: &str, of: fn(&NetLayer) -> &BlobId| net.blob(*of(net.layer(id(&net, name)))).grad;
        let early = grad("early", |layer| &layer.tops[0]);
        assert_ne!(grad("sum", |layer| &layer.bottoms[0]), early, "reversed {reversed}");
        assert_ne!(grad("sum", |layer| &layer.bottoms[1]), early, "reversed {reversed}");
    }
}

#[test]
fn every_plan_holds() {
    let specs = [residual_net(BATCH), branching_net(BATCH), normalizing_net(BATCH), inception_net(BATCH)];
    let mut added = 0;
    for (spec, devices) in specs.iter().flat_map(|spec| [(spec, 1), (spec, 3)]) {
        let plain = nets(spec, Phase::Train, devices);
        for shared in [false, true] {
            let of = |net: &Net| {
                let net = adding(net.clone().fused());
                if shared { common::sharing(net) } else { net }
            };
            let nets: Vec<Net> = plain.iter().map(of).collect();
            added += nets.iter().map(|net| adders(net).len()).sum::<usize>();
            for stage in [Stage::Iteration, Stage::Gradients] {
                let options = PlanOptions::new(stage);
                let plan = Plan::build(&nets, options).expect("a plan");
                assert_eq!(
                    check(&plan, &nets),
                    Ok(()),
                    "{} of {devices} devices, shared {shared}",
                    spec.name
                );
            }
        }
    }
    assert!(added > 20, "mistrusted: only {added} layers add");
}
