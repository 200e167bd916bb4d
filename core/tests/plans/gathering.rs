//! Iterations of several mini-batches, and updates that ask for the norm of all gradients.

use quadrille_core::check::{Violation, check};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, Phase};
use quadrille_core::plan::{Node, Plan, PlanOptions, Stage};
use quadrille_core::task::{Buffer, DeviceId, TaskId};

use crate::common::{branching_net, lenet, nets, normalizing_net, siamese_net};
use crate::plan;

const STAGES: [Stage; 4] = [Stage::Iteration, Stage::Gradients, Stage::Part, Stage::Update];

/// Nets with several mini-batches in an iteration, with updates that are clipped, and with both.
fn rewritten(nets: Vec<Net>, parts: usize, clips: bool) -> Vec<Net> {
    nets.into_iter().map(|net| net.gathering(parts).clipping(clips)).collect()
}

pub fn cases() -> Vec<(Vec<Net>, Plan)> {
    let mut cases = Vec::new();
    for spec in [lenet(8), branching_net(8), siamese_net(8), normalizing_net(8)] {
        for (devices, parts, clips) in
            [(1, 2, false), (1, 1, true), (3, 4, true), (4, 2, false), (2, 1, true)]
        {
            let nets = rewritten(nets(&spec, Phase::Train, devices), parts, clips);
            for stage in STAGES {
                for chunk_layers in [1, 2, 100] {
                    let options =
                        PlanOptions { elastic: chunk_layers == 2, chunk_layers, ..PlanOptions::new(stage) };
                    cases.push((nets.clone(), Plan::build(&nets, options).expect("a plan")));
                }
            }
        }
    }
    cases
}

fn count(plan: &Plan, sub: SubTask) -> usize {
    plan.nodes.iter().filter(|node| node.task.sub == sub).count()
}

/// Tasks of each kind in the plans of an iteration.
#[test]
fn mini_batches_are_gathered_and_the_last_takes_the_total() {
    let nets = rewritten(nets(&lenet(8), Phase::Train, 2), 3, false);
    let subs = [SubTask::Gather, SubTask::Total, SubTask::Accumulate, SubTask::Update, SubTask::Norm];
    let of = |stage| {
        let plan = plan(&nets, stage);
        subs.map(|sub| count(&plan, sub))
    };
    // Four layers on two devices.
    assert_eq!(of(Stage::Part), [8, 0, 0, 0, 0]);
    assert_eq!(of(Stage::Gradients), [0, 8, 4, 0, 0]);
    // The update adds the two devices' totals up.
    assert_eq!(of(Stage::Iteration), [0, 8, 0, 8, 0]);
    assert_eq!(of(Stage::Update), [0, 0, 0, 8, 0]);
}

#[test]
fn no_update_begins_before_every_norm_is_known() {
    for devices in [1, 3] {
        let nets = rewritten(nets(&branching_net(9), Phase::Train, devices), 1, true);
        for stage in [Stage::Iteration, Stage::Update] {
            let plan = plan(&nets, stage);
            let is = |sub| move |node: &&Node| node.task.sub == sub;
            let norms: Vec<Buffer> = plan
                .nodes
                .iter()
                .filter(is(SubTask::Norm))
                .flat_map(|n| &n.writes)
                .map(|p| p.buffer)
                .collect();
            // conv1, conv2 (whose bias is trained), ipa and ipb.
            assert_eq!(norms.len(), 4 * devices);
            for device in (0..devices).map(DeviceId) {
                let is = |node: &Node, sub| node.device == device && node.task.sub == sub;
                let last = plan.nodes.iter().rposition(|node| is(node, SubTask::Norm)).expect("a norm");
                let first = plan.nodes.iter().position(|node| is(node, SubTask::Update)).expect("an update");
                assert!(last < first, "{stage:?} on {device:?}");
            }
            for update in plan.nodes.iter().filter(is(SubTask::Update)) {
                for norm in &norms {
                    assert!(
                        update
                            .reads
                            .iter()
                            .any(|place| place.buffer == *norm && place.device == update.device)
                    );
                }
            }
        }
    }
}

/// The terms of running sums are no gradients: nobody squares them.
#[test]
fn running_sums_are_gathered_and_not_clipped() {
    let nets = rewritten(nets(&normalizing_net(8), Phase::Train, 1), 2, true);
    let named = |plan: &Plan, sub: SubTask| -> Vec<String> {
        let nodes = plan.nodes.iter().filter(|node| node.task.sub == sub);
        nodes.map(|node| nets[0].layer(node.task.layer).name.clone()).collect()
    };
    let (part, update) = (plan(&nets, Stage::Part), plan(&nets, Stage::Update));
    assert_eq!(named(&part, SubTask::Gather), ["ip", "scale1", "bn1", "conv1", "aside"]);
    assert_eq!(named(&update, SubTask::Norm), ["ip", "scale1", "conv1"]);
}

/// What is gathered on another device must be in its gradient before that leaves.
#[test]
fn a_total_behind_the_transfer_is_refused() {
    let nets = rewritten(nets(&lenet(8), Phase::Train, 2), 2, false);
    let good = plan(&nets, Stage::Gradients);
    let total =
        good.nodes.iter().position(|n| n.task.sub == SubTask::Total && n.device.0 == 1).expect("a total");
    let mut broken = good.clone();
    let node = broken.nodes.remove(total);
    for other in &mut broken.nodes {
        other.waits.retain(|wait| wait.0 != total);
        other.waits.iter_mut().for_each(|wait| wait.0 -= usize::from(wait.0 > total));
    }
    // At the very end, behind everything, where nothing races with it.
    let mut late = node;
    late.waits = (0..broken.nodes.len()).map(TaskId).collect();
    broken.nodes.push(late);
    assert!(matches!(check(&broken, &nets), Err(Violation::WrongSum(..) | Violation::Race(..))));
    assert_eq!(check(&good, &nets), Ok(()));
}

#[test]
fn such_nets_do_not_update_in_the_pass_of_the_gradient() {
    let [net] = &nets(&lenet(4), Phase::Train, 1)[..] else { panic!("one net") };
    let steps = |net: Net| net.stepping(|_| true).layers.iter().any(|layer| layer.steps_weight);
    assert!(steps(net.clone()));
    assert!(!steps(net.clone().gathering(2)));
    assert!(!steps(net.clone().clipping(true)));
    // Marked before: the plan is made, and refused.
    let marked = [net.clone().stepping(|_| true).clipping(true)];
    assert!(matches!(check(&plan(&marked, Stage::Iteration), &marked), Err(Violation::GradientNeeded(_))));
}

#[test]
fn nets_of_one_plan_agree() {
    let mut different = nets(&lenet(8), Phase::Train, 2);
    different[1].parts = 2;
    let options = PlanOptions::new(Stage::Iteration);
    let error = Plan::build(&different, options).expect_err("two kinds of iteration");
    assert!(error.to_string().contains("mini-batches"), "{error}");
}
