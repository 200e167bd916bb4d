//! Plans: the validator accepts every one that the planner makes and rejects each that was broken on purpose.

mod adding;
mod choose;
mod chunks;
mod common;
mod fusion;
mod gathering;
mod joined;
mod lifetime;
mod overlap;
mod schedules;
mod sharing;
mod spread;
mod stepping;
mod summing;
mod waiting;

use common::{branching_net, inception_net, lenet, nets, normalizing_net, residual_net, siamese_net};
use quadrille_core::check::{Violation, check};
use quadrille_core::device::Scalars;
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, NetSpec, Phase};
use quadrille_core::plan::{CostModel, Node, Plan, PlanOptions, Rates, Schedule, Stage};
use quadrille_core::run::{StepError, StepTimes, run_step};
use quadrille_core::sim::SimDevice;
use quadrille_core::task::{Buffer, Copy, DeviceId, LaneId, Place, Task, TaskId};
use rayon::prelude::*;

const STAGES: [Stage; 4] = [Stage::Iteration, Stage::Gradients, Stage::Update, Stage::Forward];
const RATES: Rates = Rates { flops: 100.0, bytes: 10.0, overhead: 1000.0 };

fn plan(nets: &[Net], stage: Stage) -> Plan {
    Plan::build(nets, PlanOptions::new(stage)).expect("a plan")
}

/// The same in one lane, where nothing races.
fn layerwise(nets: &[Net], stage: Stage) -> Plan {
    let options = PlanOptions { schedule: Schedule::Layerwise, ..PlanOptions::new(stage) };
    Plan::build(nets, options).expect("a plan")
}

fn every_case() -> Vec<(Vec<Net>, Plan)> {
    let mut cases = Vec::new();
    let as_it_is: fn(Net) -> Net = |net| net;
    let apart = [lenet(8), branching_net(8), siamese_net(8), normalizing_net(8)].map(|spec| (spec, as_it_is));
    let fused = [normalizing_net(8), residual_net(8)].map(|spec| (spec, Net::fused as fn(Net) -> Net));
    let sharing = [lenet(8), branching_net(8), siamese_net(8)].map(|spec| (spec, common::sharing as _));
    let both: fn(Net) -> Net = |net| common::sharing(net.fused());
    let rest = [(residual_net(8), both), (inception_net(8), common::joined as fn(Net) -> Net)];
    for (spec, rewrite) in apart.into_iter().chain(fused).chain(sharing).chain(rest) {
        for devices in [1, 2, 3, 4, 5, 8] {
            let nets = nets(&spec, Phase::Train, devices);
            let nets: Vec<Net> = nets.into_iter().map(rewrite).collect();
            let mut plans: Vec<Plan> = Vec::new();
            for stage in STAGES {
                for (elastic, chunk_layers) in
                    [false, true].into_iter().flat_map(|e| [1, 2, 100].map(|c| (e, c)))
                {
                    let options = PlanOptions { elastic, chunk_layers, ..PlanOptions::new(stage) };
                    let plan = Plan::build(&nets, options).expect("a plan");
                    // Where nothing is pulled or summed these say the same.
                    if !plans.contains(&plan) {
                        plans.push(plan);
                    }
                }
            }
            cases.extend(plans.into_iter().map(|plan| (nets.clone(), plan)));
        }
    }
    cases.extend(stepping::cases());
    cases.extend(gathering::cases());
    cases
}

#[test]
fn every_plan_that_is_made_is_accepted() {
    for (nets, plan) in every_case() {
        assert_eq!(check(&plan, &nets), Ok(()), "{:?} on {} devices", plan.stage, plan.devices);
    }
}

/// What adds to running sums is planned in TRAIN, also off the way to the loss, and nowhere else. Its update asks
/// for no history and no centre.
#[test]
fn running_sums_are_summed_and_updated_like_gradients() {
    let nets = nets(&normalizing_net(8), Phase::Train, 3);
    let options = PlanOptions { elastic: true, ..PlanOptions::new(Stage::Iteration) };
    let plan = Plan::build(&nets, options).expect("a plan");
    let of = |name: &str, sub: SubTask| -> Vec<_> {
        let is_it =
            |n: &&quadrille_core::plan::Node| n.task.sub == sub && nets[0].layer(n.task.layer).name == name;
        plan.nodes.iter().filter(is_it).collect()
    };
    for name in ["aside", "bn1"] {
        let terms = [SubTask::GradWeight, SubTask::Accumulate, SubTask::Broadcast, SubTask::Update];
        assert_eq!(terms.map(|sub| of(name, sub).len()), [3, 1, 0, 3], "{name}");
        let update = of(name, SubTask::Update)[0];
        let sums_only = |place: &quadrille_core::task::Place| {
            matches!(place.buffer, Buffer::Weight(_) | Buffer::Gradient(_))
        };
        assert_eq!((update.reads.len(), update.writes.len()), (9, 3), "{name}");
        assert!(update.reads.iter().chain(&update.writes).all(sums_only), "{name}");
    }
    assert!(of("aside", SubTask::GradActivation).is_empty());
    assert!(of("bn2", SubTask::GradWeight).is_empty() && of("bn2", SubTask::Update).is_empty());
    assert_eq!(of("bn2", SubTask::GradActivation).len(), 3);
}

/// Between devices the tree's last step towards device 0 is the updates', and nothing comes back; where somebody else asks
/// for the sum, all of it is on every device.
#[test]
fn updates_take_the_last_step_of_the_sum() {
    let transfers = |plan: &Plan, layer| -> Vec<(usize, usize, bool)> {
        let copies =
            plan.nodes.iter().filter(|node| node.task.layer == layer).filter_map(|n| n.copy.as_ref());
        copies.map(|copy| (copy.from.0, copy.to.0, copy.add)).collect()
    };
    for (devices, last, before) in [
        (2, 1, vec![]),
        (3, 2, vec![(1, 0, true)]),
        (4, 2, vec![(1, 0, true), (3, 2, true)]),
        (5, 4, vec![(1, 0, true), (3, 2, true), (2, 0, true)]),
        (6, 4, vec![(1, 0, true), (3, 2, true), (5, 4, true), (2, 0, true)]),
    ] {
        let nets = nets(&lenet(12), Phase::Train, devices);
        let whole = plan(&nets, Stage::Iteration);
        let updates: Vec<_> = whole.nodes.iter().filter(|n| n.task.sub == SubTask::Update).collect();
        assert_eq!(updates.len(), 4 * devices);
        for update in updates {
            assert_eq!(update.terms(), [DeviceId(0), DeviceId(last)], "{devices} devices");
            assert_eq!(transfers(&whole, update.task.layer), before, "{devices} devices");
        }
        let clipped: Vec<Net> = nets.iter().cloned().map(|net| net.clipping(true)).collect();
        for apart in
            [plan(&nets, Stage::Gradients), plan(&nets, Stage::Update), plan(&clipped, Stage::Iteration)]
        {
            let count = |sub| apart.nodes.iter().filter(|n| n.task.sub == sub).count();
            let hops = if apart.stage == Stage::Update { 0 } else { 4 * (devices - 1) };
            assert_eq!([SubTask::Accumulate, SubTask::Broadcast].map(count), [hops; 2], "{devices} devices");
            for update in apart.nodes.iter().filter(|n| n.task.sub == SubTask::Update) {
                assert_eq!(update.terms(), [update.device], "{devices} devices");
            }
        }
    }
}

#[test]
fn test_phase_plans_are_accepted() {
    for spec in [lenet(8), normalizing_net(8)] {
        let apart = nets(&spec, Phase::Test, 2);
        let sharing: Vec<Net> = apart.iter().cloned().map(common::sharing).collect();
        for nets in [apart, sharing] {
            assert_eq!(check(&plan(&nets, Stage::Forward), &nets), Ok(()));
        }
    }
}

/// Every single wait that the planner left in is needed: without it there is a race. Of many devices, which all do the same, every
/// third is tried.
#[test]
fn every_wait_is_needed() {
    let removed_of = |(nets, mut plan): (Vec<Net>, Plan)| {
        let mut removed = 0;
        let waits: Vec<(usize, usize)> = plan
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(node, task)| (0..task.waits.len()).map(move |wait| (node, wait)))
            .collect();
        for (node, wait) in waits.into_iter().step_by(if plan.devices > 3 { 3 } else { 1 }) {
            let without = plan.nodes[node].waits.remove(wait);
            assert!(matches!(check(&plan, &nets), Err(Violation::Race(..))), "task {node} wait {wait}");
            plan.nodes[node].waits.insert(wait, without);
            removed += 1;
        }
        removed
    };
    let removed: usize = every_case().into_par_iter().map(removed_of).sum();
    assert!(removed > 10_000, "only {removed} waits were tried");
}

/// Every single task is needed.
#[test]
fn every_task_is_needed() {
    for (nets, plan) in every_case().into_iter().step_by(7) {
        for node in 0..plan.nodes.len() {
            let mut broken = plan.clone();
            broken.nodes.remove(node);
            for other in &mut broken.nodes {
                other.waits.retain(|w| w.0 != node);
                for wait in &mut other.waits {
                    wait.0 -= usize::from(wait.0 > node);
                }
            }
            assert!(check(&broken, &nets).is_err(), "task {node} was not missed");
        }
    }
}

fn find(plan: &Plan, sub: SubTask) -> usize {
    plan.nodes.iter().position(|n| n.task.sub == sub).expect("the plan has such a task")
}

type Break = (&'static str, fn(&mut Plan, &NetSpec), fn(&Violation) -> bool);

fn rejected(breaks: &[Break]) {
    rejected_of(&lenet(8), 2, Stage::Iteration, breaks);
}

fn rejected_of(spec: &NetSpec, devices: usize, stage: Stage, breaks: &[Break]) {
    let nets = nets(spec, Phase::Train, devices);
    for (what, break_it, expected) in breaks {
        let mut broken = plan(&nets, stage);
        break_it(&mut broken, spec);
        let violation = check(&broken, &nets).expect_err(what);
        assert!(expected(&violation), "{what}: {violation}");
        assert!(!violation.to_string().is_empty());
    }
}

#[test]
fn work_broken_on_purpose_is_rejected_for_the_right_reason() {
    rejected(&[
        ("a device too many", |p, _| p.devices = 3, |v| *v == Violation::Devices),
        ("unknown device", |p, _| p.nodes[4].device = DeviceId(7), |v| *v == Violation::Unknown(TaskId(4))),
        (
            "unknown lane",
            |p, _| p.nodes[4].lane = LaneId(p.lanes.len()),
            |v| *v == Violation::Unknown(TaskId(4)),
        ),
        (
            "waits for itself",
            |p, _| p.nodes[4].waits.push(TaskId(4)),
            |v| *v == Violation::WaitsForLater(TaskId(4)),
        ),
        (
            "waits for later",
            |p, _| p.nodes[4].waits.push(TaskId(9)),
            |v| *v == Violation::WaitsForLater(TaskId(4)),
        ),
        ("twice", |p, _| p.nodes.push(p.nodes[3].clone()), |v| matches!(v, Violation::Unexpected(_))),
        (
            "another stage's task",
            |p, _| p.stage = Stage::Gradients,
            |v| matches!(v, Violation::Unexpected(_)),
        ),
        (
            "tile of the neighbour",
            |p, _| p.nodes[0].task.tile = p.nodes[1].task.tile,
            |v| matches!(v, Violation::Tiles(_)),
        ),
        ("tile too small", |p, _| p.nodes[0].task.tile.images -= 1, |v| matches!(v, Violation::Tiles(_))),
        ("hidden write", |p, _| p.nodes[2].writes.clear(), |v| matches!(v, Violation::WrongAccesses(_))),
        (
            "hidden gradient of an update",
            |p, _| {
                let at = find(p, SubTask::Update);
                p.nodes[at].reads.retain(|place| !matches!(place.buffer, Buffer::Gradient(_)));
            },
            |v| matches!(v, Violation::WrongAccesses(_)),
        ),
        ("hidden read", |p, _| p.nodes[2].reads.clear(), |v| matches!(v, Violation::WrongAccesses(_))),
    ]);
}

#[test]
fn sums_broken_on_purpose_are_rejected_for_the_right_reason() {
    let breaks: &[Break] = &[
        (
            "short copy",
            |p, _| {
                let copy = find(p, SubTask::Accumulate);
                if let Some(copy) = &mut p.nodes[copy].copy {
                    copy.range.end -= 1;
                }
            },
            |v| matches!(v, Violation::WrongCopy(_)),
        ),
        (
            "added twice",
            |p, _| {
                let at = find(p, SubTask::Broadcast);
                let first = find(p, SubTask::Accumulate);
                let mut again = p.nodes[first].clone();
                again.waits = vec![TaskId(at - 1)];
                for node in &mut p.nodes[at..] {
                    node.waits.iter_mut().for_each(|w| w.0 += usize::from(w.0 >= at));
                }
                p.nodes.insert(at, again);
                for node in &mut p.nodes[at + 1..] {
                    node.waits.iter_mut().filter(|w| w.0 == first).for_each(|w| w.0 = at);
                }
            },
            |v| matches!(v, Violation::WrongSum(..)),
        ),
        (
            "broadcast that adds",
            |p, _| {
                let at = find(p, SubTask::Broadcast);
                if let Some(copy) = &mut p.nodes[at].copy {
                    copy.add = true;
                }
                let own = p.nodes[at].writes.clone();
                p.nodes[at].reads.extend(own);
            },
            |v| matches!(v, Violation::WrongSum(..)),
        ),
    ];
    rejected_of(&lenet(8), 2, Stage::Gradients, breaks);
}

/// Where the update of a device reads its gradients; `of` says what becomes of those of the last one in the plan.
fn other_terms(plan: &mut Plan, of: impl Fn(Vec<Place>) -> Vec<Place>) {
    let last = plan.nodes.iter_mut().rfind(|n| n.task.sub == SubTask::Update).expect("an update");
    let (gradients, others) =
        last.reads.iter().partition(|place| matches!(place.buffer, Buffer::Gradient(_)));
    last.reads = others;
    last.reads.extend(of(gradients));
}

#[test]
fn terms_broken_on_purpose_are_rejected_for_the_right_reason() {
    let wrong_accesses: fn(&Violation) -> bool = |v| matches!(v, Violation::WrongAccesses(_));
    // The sum is looked at behind the races, so that one that is not there may show itself as either.
    let wrong_sum: fn(&Violation) -> bool = |v| matches!(v, Violation::WrongSum(..) | Violation::Race(..));
    let breaks: &[Break] = &[
        ("no term", |p, _| other_terms(p, |_| Vec::new()), wrong_accesses),
        ("half of a term", |p, _| other_terms(p, |mut terms| terms.split_off(1)), wrong_accesses),
        ("one term", |p, _| other_terms(p, |terms| terms[..terms.len() / 2].to_vec()), wrong_sum),
        ("another order", |p, _| other_terms(p, |terms| terms.into_iter().rev().collect()), wrong_sum),
        (
            "another device's part",
            |p, _| {
                let second = |place: Place| match place.device {
                    DeviceId(2) => Place { device: DeviceId(1), ..place },
                    _ => place,
                };
                other_terms(p, |terms| terms.into_iter().map(second).collect());
            },
            wrong_sum,
        ),
        (
            "an unknown device",
            |p, _| {
                let beyond = |place: Place| Place { device: DeviceId(3), ..place };
                other_terms(p, |terms| terms.into_iter().map(beyond).collect());
            },
            |v| matches!(v, Violation::Unknown(_)),
        ),
        ("a term twice", |p, _| other_terms(p, |terms| [terms.clone(), terms].concat()), wrong_accesses),
    ];
    rejected_of(&lenet(9), 3, Stage::Iteration, breaks);
}

/// An update that reads another device's gradient must wait for it, and nobody may write over it before it was read.
#[test]
fn gradients_of_other_devices_are_ordered_with_their_updates() {
    for devices in [2, 4] {
        let nets = nets(&lenet(8), Phase::Train, devices);
        let good = plan(&nets, Stage::Iteration);
        let is_last = |node: &Node| node.task.sub == SubTask::Update && node.device == DeviceId(devices - 1);
        let update = good.nodes.iter().position(is_last).expect("an update");
        let mut early = good.clone();
        early.nodes[update].waits.clear();
        assert!(matches!(check(&early, &nets), Err(Violation::Race(..))), "{devices} devices");
        // What device 0 has of the gradient, written over behind all updates, or behind its own alone.
        let [from, to] = [DeviceId(1), DeviceId(0)];
        let gradient = |device| {
            let gradients = good.nodes[update].reads.iter().filter(move |place| place.device == to);
            let gradients = gradients.filter(|place| matches!(place.buffer, Buffer::Gradient(_)));
            gradients.map(move |place| Place { device, ..*place }).collect::<Vec<_>>()
        };
        let layout = &nets[0].params;
        let ranges = gradient(to).into_iter().filter_map(|place| match place.buffer {
            Buffer::Gradient(param) => Some(layout.view(param).range()),
            _ => None,
        });
        let range = ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).expect("parameters");
        let updates = |node: &Node| node.task.sub == SubTask::Update;
        let all: Vec<usize> = (0..good.nodes.len()).filter(|i| updates(&good.nodes[*i])).collect();
        let own = *all.iter().rfind(|i| good.nodes[**i].device == to).expect("an update");
        let task = Task { sub: SubTask::Broadcast, ..good.nodes[own].task };
        for (behind, ordered) in [(all, true), (vec![own], false)] {
            let mut over = good.clone();
            over.nodes.push(Node {
                task,
                device: to,
                lane: good.nodes[own].lane,
                copy: Some(Copy { from, to, range: range.clone(), add: false }),
                reads: gradient(from),
                writes: gradient(to),
                waits: behind.into_iter().map(TaskId).collect(),
            });
            let found = check(&over, &nets);
            assert!(
                if ordered { found.is_ok() } else { matches!(found, Err(Violation::Race(..))) },
                "{found:?}"
            );
        }
    }
}

#[test]
fn sums_over_layers_broken_on_purpose_are_rejected_for_the_right_reason() {
    rejected_of(
        &siamese_net(8),
        2,
        Stage::Iteration,
        &[
            (
                "never added",
                |p, _| {
                    p.nodes.retain(|n| n.task.sub != SubTask::AddShared);
                    p.nodes.iter_mut().for_each(|n| n.waits.clear());
                },
                |v| matches!(v, Violation::Missing(_, _, SubTask::AddShared)),
            ),
            (
                "added twice",
                |p, _| {
                    let at = find(p, SubTask::AddShared);
                    p.nodes.push(p.nodes[at].clone());
                },
                |v| matches!(v, Violation::Unexpected(_)),
            ),
            (
                "hidden read of the layer's own gradient",
                |p, _| {
                    let at = find(p, SubTask::AddShared);
                    p.nodes[at].reads.retain(|place| !matches!(place.buffer, Buffer::Aux(_)));
                },
                |v| matches!(v, Violation::WrongAccesses(_)),
            ),
            (
                "added by another layer in its place",
                |p, _| {
                    let at = find(p, SubTask::AddShared);
                    let other = p.nodes.iter().rposition(|n| n.task.sub == SubTask::AddShared);
                    p.nodes[at].task.layer = p.nodes[other.expect("there are several")].task.layer;
                },
                |v| matches!(v, Violation::Unexpected(_)),
            ),
        ],
    );
}

/// Nothing but the symbolic sum sees a gradient that leaves for the other device before the last layer has added to it.
#[test]
fn a_sum_over_devices_before_the_last_layer_has_added_its_part_is_rejected() {
    let nets = nets(&siamese_net(8), Phase::Train, 2);
    let mut broken = plan(&nets, Stage::Gradients);
    // Every task of a lane after all others: no races, whatever the order of submission.
    let last = broken.nodes.iter().rposition(|n| n.task.sub == SubTask::AddShared && n.device == DeviceId(1));
    let node = broken.nodes.remove(last.expect("layers share parameters"));
    broken.nodes.push(node);
    let mut in_order: Vec<TaskId> = Vec::new();
    for (id, node) in broken.nodes.iter_mut().enumerate() {
        node.waits = in_order.last().copied().into_iter().collect();
        in_order.push(TaskId(id));
    }
    assert!(matches!(check(&broken, &nets), Err(Violation::WrongSum(..))), "{:?}", check(&broken, &nets));
}

#[test]
fn swapping_forward_tasks_is_a_read_before_a_write() {
    let nets = nets(&lenet(4), Phase::Train, 1);
    let mut broken = plan(&nets, Stage::Forward);
    broken.nodes.swap(1, 2);
    assert!(matches!(check(&broken, &nets), Err(Violation::ReadBeforeWrite(..))));
}

#[test]
fn a_simulated_step_takes_the_serial_time_and_respects_every_wait() {
    for devices in [1, 2, 3] {
        let nets = nets(&lenet(6), Phase::Train, devices);
        let plan = plan(&nets, Stage::Iteration);
        let group = SimDevice::group(&nets, &plan, RATES);
        let mut times = StepTimes::default();
        for _ in 0..2 {
            run_step(&group, &plan, &Scalars::default(), &mut times).expect("a step");
            for (node, span) in plan.nodes.iter().zip(times.spans()) {
                assert!(node.waits.iter().all(|w| times.spans()[w.0].end <= span.start));
            }
            let serial = CostModel { rates: RATES }.serial(&nets, &plan);
            let share = |until: usize| CostModel { rates: RATES }.share_until(&nets, &plan, &[TaskId(until)]);
            let shares: Vec<f64> = (0..plan.nodes.len()).map(share).collect();
            assert!(shares.is_sorted() && shares[0] > 0.0 && shares[0] < 0.2, "{shares:?}");
            assert_eq!(shares.last(), Some(&1.0));
            let elapsed = times.elapsed() as f64;
            assert!(elapsed >= serial, "{elapsed} < {serial}");
            if devices == 1 {
                assert!(elapsed < serial + plan.nodes.len() as f64, "{elapsed} against {serial}");
            }
        }
    }
}

#[test]
fn a_device_that_dies_is_an_error_and_no_wait() {
    let nets = nets(&lenet(6), Phase::Train, 2);
    let plan = plan(&nets, Stage::Iteration);
    for at in [0, 5, 20] {
        let mut group = SimDevice::group(&nets, &plan, RATES);
        let dying = group.remove(1).dying_at(at);
        group.push(dying);
        let result = run_step(&group, &plan, &Scalars::default(), &mut StepTimes::default());
        assert!(matches!(result, Err(StepError::Device(_))), "{result:?}");
    }
}
