//! Weights that are updated as their gradients are found: where that is possible, what the task touches on one device and on
//! several, and that every other plan of such a net is refused.

use quadrille_core::check::{Violation, check};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, NetSpec, Phase, rows_to_step};
use quadrille_core::plan::{CostModel, Node, Plan, PlanOptions, Stage};
use quadrille_core::task::{Buffer, DeviceId, Place, Task, TaskId, Tile};

use crate::common::{self, branching_net, chain, lenet, nets, normalizing_net, residual_net, siamese_net};
use crate::{find, plan};

const BATCH: usize = 8;

/// A net on one device in which every layer steps that may.
fn stepping(spec: &NetSpec) -> Net {
    nets(spec, Phase::Train, 1).remove(0).stepping(|_| true)
}

/// The same on several devices.
fn stepping_on(spec: &NetSpec, devices: usize) -> Vec<Net> {
    nets(spec, Phase::Train, devices).into_iter().map(|net| net.stepping(|_| true)).collect()
}

fn steppers(net: &Net) -> Vec<&str> {
    net.layers.iter().filter(|l| l.steps_weight).map(|l| l.name.as_str()).collect()
}

/// Every plan that there is of such nets.
pub fn cases() -> Vec<(Vec<Net>, Plan)> {
    let specs =
        [lenet(BATCH), branching_net(BATCH), normalizing_net(BATCH), residual_net(BATCH), chain(BATCH, 6)];
    let mut cases = Vec::new();
    let on = |spec: &NetSpec| {
        let ways: [fn(Net) -> Net; 3] = [|net| net, Net::fused, common::sharing];
        [1, 2, 3].map(|devices| ways.map(|way| stepping_on(spec, devices).into_iter().map(way).collect()))
    };
    for nets in specs.iter().flat_map(on).flatten().collect::<Vec<Vec<Net>>>() {
        for stage in [Stage::Iteration, Stage::Forward] {
            for elastic in [false, true] {
                for chunk_layers in [1, 100] {
                    let options = PlanOptions { elastic, chunk_layers, ..PlanOptions::new(stage) };
                    let plan = Plan::build(&nets, options).expect("a plan");
                    cases.push((nets.clone(), plan));
                }
            }
        }
    }
    for net in specs.iter().map(|spec| stepping(spec).stepping_in_passing(|_| true)) {
        for nets in [vec![net.clone()], vec![common::sharing(net)]] {
            let options = PlanOptions { elastic: true, ..PlanOptions::new(Stage::Iteration) };
            let plan = Plan::build(&nets, options).expect("a plan");
            cases.push((nets, plan));
        }
    }
    cases
}

/// The only task of a layer of this kind, if there is one.
fn of<'a>(plan: &'a Plan, net: &Net, layer: &str, sub: SubTask) -> Option<(TaskId, &'a Node)> {
    let is_it = |node: &Node| node.task.sub == sub && net.layer(node.task.layer).name == layer;
    let mut found = plan.nodes.iter().enumerate().filter(|(_, node)| is_it(node));
    let first = found.next().map(|(id, node)| (TaskId(id), node));
    assert!(found.next().is_none(), "{sub} of {layer} is there twice");
    first
}

#[test]
fn weights_step_where_only_the_update_asks_for_their_gradient() {
    assert_eq!(steppers(&stepping(&lenet(BATCH))), ["conv1", "conv2", "ip1", "ip2"]);
    // Running sums are no weights.
    assert_eq!(steppers(&stepping(&normalizing_net(BATCH))), ["conv1", "scale1", "ip"]);
    // "conv2" is frozen.
    assert_eq!(steppers(&stepping(&branching_net(BATCH))), ["conv1", "ipa", "ipb"]);
    let mut forced = branching_net(BATCH);
    forced.force_backward = true;
    assert_eq!(steppers(&stepping(&forced)), ["conv1", "ipa", "ipb"]);
    let some = nets(&lenet(BATCH), Phase::Train, 1).remove(0);
    let ip1 = some.layers.iter().position(|l| l.name == "ip1").expect("a layer");
    assert_eq!(steppers(&some.stepping(|layer| layer.0 == ip1)), ["ip1"]);
}

#[test]
fn no_gradient_is_kept_from_others() {
    // Every weight is shared by three layers.
    assert!(steppers(&stepping(&siamese_net(BATCH))).is_empty());
    assert!(steppers(&nets(&lenet(BATCH), Phase::Test, 1).remove(0).stepping(|_| true)).is_empty());
}

#[test]
fn a_step_reads_what_both_read_and_the_update_knows_of_the_bias_alone() {
    for elastic in [false, true] {
        let options = PlanOptions { elastic, ..PlanOptions::new(Stage::Iteration) };
        let net = stepping(&lenet(BATCH));
        let plan = Plan::build(std::slice::from_ref(&net), options).expect("a plan");
        let apart_nets = nets(&lenet(BATCH), Phase::Train, 1);
        let apart = Plan::build(&apart_nets, options).expect("a plan");
        for layer in ["conv1", "conv2", "ip1", "ip2"] {
            let id = net.layers.iter().find(|l| l.name == layer).expect("a layer").params[0];
            let (at, step) = of(&plan, &net, layer, SubTask::StepWeight).expect("a step");
            let (_, found) = of(&apart, &net, layer, SubTask::GradWeight).expect("a gradient");
            let buffers = |places: &[quadrille_core::task::Place]| -> Vec<Buffer> {
                let mut buffers: Vec<Buffer> = places.iter().map(|place| place.buffer).collect();
                buffers.sort_unstable();
                buffers
            };
            let mut reads = buffers(&found.reads);
            reads.extend([Buffer::Weight(id), Buffer::History(id)]);
            reads.extend(elastic.then_some(Buffer::Centre(id)));
            assert_eq!(buffers(&step.reads), reads, "{layer}");
            assert_eq!(buffers(&step.writes), [Buffer::Weight(id), Buffer::History(id)], "{layer}");
            assert_eq!(of(&plan, &net, layer, SubTask::GradWeight), None);
            let (_, update) = of(&plan, &net, layer, SubTask::Update).expect("the bias has one");
            assert_eq!((update.writes.len(), update.reads.len()), (2, 3 + usize::from(elastic)), "{layer}");
            // ∇A reads the weight before it changes.
            if let Some((reader, _)) = of(&plan, &net, layer, SubTask::GradActivation) {
                assert_eq!(step.waits, [reader], "{layer}");
                let mut broken = plan.clone();
                broken.nodes[at.0].waits.clear();
                let violation = check(&broken, std::slice::from_ref(&net)).expect_err("a race");
                assert!(
                    matches!(violation, Violation::Race(_, task, _) if task == at),
                    "{layer}: {violation}"
                );
            }
            let touches =
                |node: &Node| node.reads.iter().chain(&node.writes).any(|p| p.buffer == Buffer::Gradient(id));
            assert!(!plan.nodes.iter().any(touches), "the gradient of {layer} is stored");
        }
    }
}

#[test]
fn a_step_costs_what_both_cost_without_the_gradients_way_to_memory_and_back() {
    let (net, apart_nets) = (stepping(&lenet(BATCH)), nets(&lenet(BATCH), Phase::Train, 1));
    let nets = [net];
    let (plan, apart) = (plan(&nets, Stage::Iteration), plan(&apart_nets, Stage::Iteration));
    let sums = |plan: &Plan, nets: &[Net]| {
        let all = plan.nodes.iter();
        all.fold([0, 0], |[f, b], n| [f + CostModel::flops(nets, n), b + CostModel::bytes(nets, n)])
    };
    let weights: usize = nets[0].params.views().iter().step_by(2).map(|view| view.shape.count()).sum();
    let [flops, bytes] = sums(&plan, &nets);
    assert_eq!(sums(&apart, &apart_nets), [flops, bytes + 2 * 4 * weights as u64]);
}

/// ∇A changes the weight that it has read: one task, which reads weight and top's gradient once.
#[test]
fn a_step_in_passing_is_a_part_of_the_gradient_below() {
    let net = stepping(&lenet(BATCH));
    let passing = net.clone().stepping_in_passing(|_| true);
    let names = passing.layers.iter().filter(|l| l.steps_in_passing).map(|l| l.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["conv2", "ip1", "ip2"], "conv1 has no gradient below");
    let [apart, whole] = [&net, &passing].map(|net| plan(std::slice::from_ref(net), Stage::Iteration));
    for layer in ["conv2", "ip1", "ip2"] {
        let id = net.layers.iter().find(|l| l.name == layer).expect("a layer").params[0];
        let node = |plan: &Plan, sub| of(plan, &net, layer, sub).map(|(_, node)| node.clone());
        assert_eq!(node(&whole, SubTask::StepWeight), None);
        let both = node(&whole, SubTask::GradActivation).expect("a gradient");
        let [below, step] =
            [SubTask::GradActivation, SubTask::StepWeight].map(|sub| node(&apart, sub).expect("both"));
        let all = |of: fn(&Node) -> &Vec<Place>| {
            let mut places = [of(&below).clone(), of(&step).clone()].concat();
            places.sort_unstable();
            places.dedup();
            let mut found = of(&both).clone();
            found.sort_unstable();
            (found, places)
        };
        for (found, expected) in [all(|node| &node.reads), all(|node| &node.writes)] {
            assert_eq!(found, expected, "{layer}");
        }
        let flops = |net: &Net, node: &Node| CostModel::flops(std::slice::from_ref(net), node);
        assert_eq!(flops(&passing, &both), flops(&net, &below) + flops(&net, &step), "{layer}");
        let bytes = |net: &Net, node: &Node| CostModel::bytes(std::slice::from_ref(net), node);
        let once = 4 * net.params.view(id).shape.count() as u64;
        assert!(bytes(&passing, &both) + once < bytes(&net, &below) + bytes(&net, &step), "{layer}");
    }
    let mut hidden = whole.clone();
    let is_history = |place: &Place| matches!(place.buffer, Buffer::History(_));
    let updates =
        |node: &Node| node.task.sub == SubTask::GradActivation && node.writes.iter().any(is_history);
    let at = whole.nodes.iter().position(updates).expect("a task that does both");
    hidden.nodes[at].writes.retain(|place| !is_history(place));
    let nets_passing = [passing];
    assert!(matches!(check(&hidden, &nets_passing), Err(Violation::WrongAccesses(_))));
    let several: Vec<Net> =
        stepping_on(&lenet(BATCH), 2).into_iter().map(|net| net.stepping_in_passing(|_| true)).collect();
    let refused = Plan::build(&several, PlanOptions::new(Stage::Iteration)).expect_err("no plan").to_string();
    assert!(refused.contains("on several devices"), "{refused}");
    let apart_on_two = plan(&stepping_on(&lenet(BATCH), 2), Stage::Iteration);
    assert!(matches!(
        check(&apart_on_two, &several),
        Err(Violation::GradientNeeded(_) | Violation::Unexpected(_))
    ));
}

#[test]
fn there_is_no_plan_without_the_update_or_on_some_devices_only() {
    let net = stepping(&lenet(BATCH));
    for stage in [Stage::Gradients, Stage::Update] {
        let options = PlanOptions::new(stage);
        let refused = Plan::build(std::slice::from_ref(&net), options).expect_err("no plan").to_string();
        assert!(refused.contains("\"conv1\"") && refused.contains(&format!("{stage:?}")), "{refused}");
    }
    let options = PlanOptions::new(Stage::Iteration);
    for marked in [0, 1] {
        let mut some = nets(&lenet(BATCH), Phase::Train, 2);
        some[marked] = some[marked].clone().stepping(|_| true);
        let refused = Plan::build(&some, options).expect_err("no plan").to_string();
        assert!(refused.contains("\"conv1\"") && refused.contains("some devices only"), "{refused}");
    }
}

/// Each device finds the gradient of the whole mini-batch, and nobody adds gradients of these weights up.
#[test]
fn on_several_devices_each_reads_what_all_have_and_no_gradient_travels() {
    for devices in [2, 3] {
        let nets = stepping_on(&lenet(BATCH), devices);
        let plan = plan(&nets, Stage::Iteration);
        let weight =
            |index: usize| nets[0].layers.iter().find(|l| l.name == "ip1").expect("a layer").params[index];
        let steps = plan.nodes.iter().filter(|node| {
            node.task.sub == SubTask::StepWeight && nets[0].layer(node.task.layer).name == "ip1"
        });
        let steps: Vec<&Node> = steps.collect();
        assert_eq!(steps.len(), devices);
        for (device, step) in steps.iter().enumerate() {
            assert_eq!((step.device, step.task.tile), (DeviceId(device), Tile { first: 0, images: BATCH }));
            let of = |other: usize| step.reads.iter().filter(move |place| place.device == DeviceId(other));
            for other in 0..devices {
                // Bottom and gradient of the top; on the device itself, its rows of weight and history, too.
                assert_eq!(
                    of(other).count(),
                    if other == device { 4 } else { 2 },
                    "device {device}, {other}"
                );
            }
            let rows = |device: usize| Place {
                device: DeviceId(device),
                buffer: Buffer::Rows(weight(0), step.device),
            };
            let history = Place { device: step.device, buffer: Buffer::History(weight(0)) };
            let mut writes: Vec<Place> = (0..devices).map(rows).chain([history]).collect();
            let mut found = step.writes.clone();
            writes.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, writes);
        }
        // Everybody reads all rows of the device's own.
        for node in plan.nodes.iter().filter(|node| nets[0].layer(node.task.layer).name == "ip1") {
            if matches!(node.task.sub, SubTask::Forward | SubTask::GradActivation) {
                for other in (0..devices).map(DeviceId) {
                    let rows = Place { device: node.device, buffer: Buffer::Rows(weight(0), other) };
                    assert!(node.reads.contains(&rows), "{} of {:?}", node.task.sub, node.device);
                }
            }
        }
        let touches = |node: &&Node, id| {
            node.reads.iter().chain(&node.writes).any(|place| place.buffer == Buffer::Gradient(id))
        };
        assert_eq!(plan.nodes.iter().filter(|node| touches(node, weight(0))).count(), 0);
        // The bias has a gradient on each device and goes the usual way.
        assert!(plan.nodes.iter().filter(|node| touches(node, weight(1))).count() >= 2 * devices);
    }
}

/// Whatever a step does not read of another device, or reads too early, is found.
#[test]
fn steps_on_several_devices_broken_on_purpose_are_rejected() {
    let nets = stepping_on(&lenet(BATCH), 2);
    let whole = plan(&nets, Stage::Iteration);
    let at = find(&whole, SubTask::StepWeight);
    let device = whole.nodes[at].device;
    let elsewhere: Vec<Place> =
        whole.nodes[at].reads.iter().filter(|place| place.device != device).copied().collect();
    assert_eq!(elsewhere.len(), 2);
    for hidden in elsewhere {
        let mut broken = whole.clone();
        broken.nodes[at].reads.retain(|place| *place != hidden);
        let violation = check(&broken, &nets).expect_err("a broken plan");
        assert!(matches!(violation, Violation::WrongAccesses(_)), "{hidden}: {violation}");
    }
    let mut own = whole.clone();
    own.nodes[at].task.tile.images = BATCH / 2;
    assert!(matches!(check(&own, &nets), Err(Violation::Tiles(_))));
    let mut early = whole.clone();
    early.nodes[at].waits.clear();
    assert!(matches!(check(&early, &nets), Err(Violation::Race(_, task, _)) if task == TaskId(at)));
    assert_eq!(check(&whole, &nets), Ok(()));
}

/// Rows that are changed before another device has found ∇A from them are no race if there is a wait, and wrong all the same.
#[test]
fn a_weight_that_changes_before_all_have_read_it_is_found() {
    let nets = stepping_on(&lenet(BATCH), 2);
    let mut plan = plan(&nets, Stage::Iteration);
    let of_ip1 = |plan: &Plan, sub: SubTask, device: usize| {
        let is_it = |node: &Node| {
            let Task { layer, sub: found, .. } = node.task;
            (found, node.device.0) == (sub, device) && nets[0].layer(layer).name == "ip1"
        };
        plan.nodes.iter().position(is_it).expect("a task")
    };
    let reader = of_ip1(&plan, SubTask::GradActivation, 1);
    let step = of_ip1(&plan, SubTask::StepWeight, 0);
    assert!(reader < step);
    for (id, node) in plan.nodes.iter_mut().enumerate() {
        node.waits = (0..id).map(TaskId).collect();
    }
    assert_eq!(check(&plan, &nets), Ok(()));
    let waits: Vec<Vec<TaskId>> = plan.nodes.iter().map(|node| node.waits.clone()).collect();
    plan.nodes.swap(reader, step);
    plan.nodes.iter_mut().zip(waits).for_each(|(node, waits)| node.waits = waits);
    let violation = check(&plan, &nets).expect_err("a weight that was changed too early");
    assert!(
        matches!(violation, Violation::Changed(task, by, _) if (task, by) == (TaskId(step), TaskId(reader))),
        "{violation}"
    );
}

/// Devices with more images update more rows, and all rows are somebody's.
#[test]
fn rows_are_shared_as_images_are() {
    let nets = stepping_on(&lenet(7), 3);
    assert_eq!(nets.iter().map(Net::batch).collect::<Vec<_>>(), [3, 2, 2]);
    for (name, rows) in [("conv1", 20), ("ip1", 500), ("ip2", 10)] {
        let weight = nets[0].layers.iter().find(|layer| layer.name == name).expect("a layer").params[0];
        let shares: Vec<_> = (0..3).map(|device| rows_to_step(&nets, weight, DeviceId(device))).collect();
        assert_eq!((shares[0].start, shares[2].end), (0, rows));
        assert!(shares.windows(2).all(|two| two[0].end == two[1].start), "{shares:?}");
        assert!(
            shares[0].len() > shares[1].len() && shares[1].len().abs_diff(shares[2].len()) <= 1,
            "{shares:?}"
        );
    }
}

/// The validator says so by itself, whoever marked the net and made the plan.
#[test]
fn a_net_that_keeps_gradients_from_others_is_refused() {
    let marked = |spec: &NetSpec, devices: usize, layer: &str| -> (Vec<Net>, Vec<Net>) {
        let plain = nets(spec, Phase::Train, devices);
        let mut marked = plain.clone();
        for net in &mut marked {
            net.layers.iter_mut().find(|l| l.name == layer).expect("a layer").steps_weight = true;
        }
        (plain, marked)
    };
    for (spec, devices, layer, stage) in [
        (lenet(BATCH), 1, "ip1", Stage::Gradients),
        (lenet(BATCH), 1, "ip1", Stage::Update),
        (siamese_net(BATCH), 1, "ip_b", Stage::Iteration),
        (normalizing_net(BATCH), 1, "bn1", Stage::Iteration),
    ] {
        let (plain, marked) = marked(&spec, devices, layer);
        let mut plan = plan(&plain, stage);
        assert!(matches!(check(&plan, &marked), Err(Violation::GradientNeeded(_))), "{layer}, {stage:?}");
        for node in plan.nodes.iter_mut().filter(|n| n.task.sub == SubTask::GradWeight) {
            node.task.sub = SubTask::StepWeight;
        }
        assert!(matches!(check(&plan, &marked), Err(Violation::GradientNeeded(_))), "{layer}, {stage:?}");
    }
    // A plan of the other kind of net.
    let (plain, marked) = marked(&lenet(BATCH), 1, "ip1");
    let [of_plain, of_marked] = [&plain, &marked].map(|nets| plan(nets, Stage::Iteration));
    assert_eq!((check(&of_plain, &plain), check(&of_marked, &marked)), (Ok(()), Ok(())));
    assert!(matches!(check(&of_plain, &marked), Err(Violation::Unexpected(_))));
    assert!(matches!(check(&of_marked, &plain), Err(Violation::Unexpected(_))));
}

#[test]
fn steps_broken_on_purpose_are_rejected_for_the_right_reason() {
    let nets = [stepping(&lenet(BATCH))];
    let broken = |break_it: &dyn Fn(&mut Plan, usize)| {
        let mut plan = plan(&nets, Stage::Iteration);
        let at = find(&plan, SubTask::StepWeight);
        break_it(&mut plan, at);
        check(&plan, &nets).expect_err("a broken plan")
    };
    // Bottom, gradient of the top, weight and history.
    for hidden in 0..4 {
        let violation = broken(&|plan, at| {
            plan.nodes[at].reads.remove(hidden);
        });
        assert!(matches!(violation, Violation::WrongAccesses(_)), "read {hidden}: {violation}");
    }
    for hidden in [0, 1] {
        let violation = broken(&|plan, at| {
            plan.nodes[at].writes.remove(hidden);
        });
        assert!(matches!(violation, Violation::WrongAccesses(_)), "write {hidden}: {violation}");
    }
    let twice = broken(&|plan, at| plan.nodes.push(plan.nodes[at].clone()));
    assert!(matches!(twice, Violation::Unexpected(_)), "{twice}");
    let never = broken(&|plan, at| {
        plan.nodes.truncate(at);
    });
    assert!(matches!(never, Violation::Missing(_, _, SubTask::StepWeight)), "{never}");
}
