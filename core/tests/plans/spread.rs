//! Tasks in chunks of images on pools of lanes: right whatever lanes they are in, and waiting for no more than they need.

use std::time::Duration;

use crate::common::{branching_net, inception_net, joined, lenet, nets, residual_net, sharing, siamese_net};
use crate::{STAGES, plan};
use quadrille_core::check::{Violation, check};
use quadrille_core::device::Scalars;
use quadrille_core::layer::{Layer, SubTask};
use quadrille_core::net::{Net, Phase};
use quadrille_core::plan::lanes::{
    KernelUsage, Limits, Maintainer, Scheduler, Sight, Situation, first_sight, spread,
};
use quadrille_core::plan::priority::{LaneLimits, SubTaskGraph};
use quadrille_core::plan::{Node, Plan, PlanOptions, SavedPlan, Schedule, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::sim::{DeviceModel, GrainRule, SimDevice};
use quadrille_core::task::{Buffer, DeviceId, LaneId, TaskId, Tile};

const BATCH: usize = 8;

fn all_nets() -> Vec<Vec<Net>> {
    let as_it_is: fn(Net) -> Net = |net| net;
    let both: fn(Net) -> Net = |net| sharing(net.fused());
    let all = [
        (lenet(BATCH), as_it_is),
        (lenet(BATCH), both),
        (branching_net(BATCH), sharing as _),
        (siamese_net(BATCH), both),
        (residual_net(BATCH), both),
        (inception_net(BATCH), as_it_is),
        (inception_net(BATCH), both),
        (inception_net(BATCH), joined as _),
    ];
    let on = |devices| {
        all.iter().map(move |(spec, rewrite)| {
            nets(spec, Phase::Train, devices).into_iter().map(rewrite).collect::<Vec<Net>>()
        })
    };
    on(1).chain(on(2)).collect()
}

fn is_chunk(nets: &[Net], node: &Node) -> bool {
    node.copy.is_none() && node.task.tile.images < nets[node.device.0].batch()
}

/// Whether a plan is one for all that depends on order: accepted, and refused without any single wait.
fn assert_exact(plan: &Plan, nets: &[Net], what: &str) {
    assert_eq!(check(plan, nets), Ok(()), "{what}");
    for (task, node) in plan.nodes.iter().enumerate() {
        for wait in 0..node.waits.len() {
            let mut broken = plan.clone();
            broken.nodes[task].waits.remove(wait);
            assert!(
                check(&broken, nets).is_err(),
                "{what}: task {task} waits in vain for {:?}",
                node.waits[wait]
            );
        }
    }
}

#[test]
fn plans_in_chunks_are_right_under_every_schedule() {
    let mut chunks = 0;
    for nets in all_nets() {
        for schedule in Schedule::ALL {
            for stage in STAGES {
                let options = PlanOptions { schedule, ..PlanOptions::new(stage) };
                let whole = Plan::build(&nets, options).expect("a plan");
                assert_eq!(spread(whole.clone(), &nets, |_| 1), whole, "nothing to cut");
                for worth in [|_: &Node| 3, |node: &Node| (node.task.layer.0 % 5) as u32, |_: &Node| 100]
                    as [fn(&Node) -> u32; 3]
                {
                    let cut = spread(whole.clone(), &nets, worth);
                    assert_eq!(check(&cut, &nets), Ok(()), "{} {schedule} {stage:?}", nets[0].name);
                    chunks += cut.nodes.iter().filter(|node| is_chunk(&nets, node)).count();
                    let own = cut.nodes.iter().filter(|node| !is_chunk(&nets, node));
                    assert!(own.clone().all(|node| node.lane.0 < whole.lanes.len()), "what is whole stays");
                    for node in cut.nodes.iter().filter(|node| is_chunk(&nets, node)) {
                        assert!(matches!(node.task.sub, SubTask::Forward | SubTask::GradActivation));
                        assert!(node.lane.0 >= whole.lanes.len(), "a chunk is in a pool");
                        let is_it =
                            |n: &&Node| (n.task.layer, n.task.sub) == (node.task.layer, node.task.sub);
                        let before = whole.nodes.iter().find(is_it).expect("as a whole it is there");
                        let priority = |plan: &Plan, lane: LaneId| plan.lanes[lane.0].priority;
                        assert_eq!(priority(&cut, node.lane), priority(&whole, before.lane));
                    }
                }
            }
        }
    }
    assert!(chunks > 1000, "{chunks}");
}

#[test]
fn chunks_wait_for_nothing_in_vain() {
    for rewrite in [|net| net, |net: Net| sharing(net.fused())] as [fn(Net) -> Net; 2] {
        for spec in [lenet(4), branching_net(4)] {
            let nets: Vec<Net> = nets(&spec, Phase::Train, 1).into_iter().map(rewrite).collect();
            let cut = spread(plan(&nets, Stage::Iteration), &nets, |_| 2);
            assert_exact(&cut, &nets, &spec.name);
        }
    }
}

/// Layers that are cut alike follow each other in the same lanes, chunk by chunk, and no chunk waits for another.
#[test]
fn a_chunk_goes_on_to_the_next_layer_by_itself() {
    let nets = nets(&lenet(BATCH), Phase::Train, 1);
    let cut = spread(plan(&nets, Stage::Forward), &nets, |_| 4);
    let of = |name: &str| -> Vec<&Node> {
        let is_it = |n: &&Node| nets[0].layer(n.task.layer).name == name && n.task.sub == SubTask::Forward;
        cut.nodes.iter().filter(is_it).collect()
    };
    for name in ["conv1", "pool1", "conv2", "pool2", "ip1"] {
        let chunks = of(name);
        let tiles: Vec<usize> = chunks.iter().map(|node| node.task.tile.first).collect();
        assert_eq!(tiles, [0, 2, 4, 6], "{name}");
        let lanes: Vec<usize> = chunks.iter().map(|node| node.lane.0).collect();
        assert_eq!(lanes, of("conv1").iter().map(|node| node.lane.0).collect::<Vec<_>>(), "{name}");
        // All but the first layer find what they need in their own lane.
        assert_eq!(chunks.iter().all(|node| node.waits.is_empty()), name != "conv1", "{name}");
    }
    let graph = SubTaskGraph::new(&nets, &cut.nodes);
    let place = |node: &Node| cut.nodes.iter().position(|other| other == node).expect("it is there");
    let [first, second] = [of("conv1")[1], of("pool1")[1]].map(place);
    assert_eq!(graph.uses[first].iter().map(|next| next.task).collect::<Vec<_>>(), [TaskId(second)]);
}

#[test]
fn broken_chunks_are_refused() {
    let nets = nets(&lenet(BATCH), Phase::Train, 1);
    let good = spread(plan(&nets, Stage::Iteration), &nets, |_| 4);
    let chunk = good.nodes.iter().position(|node| is_chunk(&nets, node)).expect("a chunk");
    let last = good.nodes.iter().position(|node| is_chunk(&nets, node) && node.task.tile.first == 6);
    let last = last.expect("a last chunk");
    let broken = |what: &str, change: &dyn Fn(&mut Plan)| -> Violation {
        let mut plan = good.clone();
        change(&mut plan);
        check(&plan, &nets).expect_err(what)
    };
    let missing = broken("a chunk is missing", &|plan| {
        plan.nodes.remove(last);
        for node in &mut plan.nodes {
            node.waits.retain(|wait| wait.0 != last);
            node.waits.iter_mut().filter(|wait| wait.0 > last).for_each(|wait| wait.0 -= 1);
        }
    });
    assert!(matches!(missing, Violation::Tiles(_)), "{missing}");
    let twice = broken("an image is there twice", &|plan| plan.nodes[last].task.tile.first -= 1);
    assert!(matches!(twice, Violation::Unexpected(_)), "{twice}");
    let beyond = broken("images that do not exist", &|plan| plan.nodes[last].task.tile.images += 1);
    assert!(matches!(beyond, Violation::Tiles(_)), "{beyond}");
    let others = broken("it writes the images of others", &|plan| {
        let tile = plan.nodes[last].task.tile;
        for place in &mut plan.nodes[chunk].writes {
            place.buffer = place.buffer.whole().0.of_images(tile);
        }
    });
    assert_eq!(others, Violation::WrongAccesses(TaskId(chunk)));
    let all = broken("it says that it writes all", &|plan| {
        plan.nodes[chunk].writes.iter_mut().for_each(|place| place.buffer = place.buffer.whole().0);
    });
    assert_eq!(all, Violation::WrongAccesses(TaskId(chunk)));
    let weights = broken("∇W cannot be cut", &|plan| {
        let at = plan.nodes.iter().position(|node| node.task.sub == SubTask::GradWeight).expect("one");
        let mut half = plan.nodes[at].clone();
        half.task.tile = Tile { first: 4, images: 4 };
        plan.nodes[at].task.tile.images = 4;
        plan.nodes.push(half);
    });
    assert!(matches!(weights, Violation::Tiles(_)), "{weights}");
    let moved = broken("another lane without a wait", &|plan| {
        // The second layer's chunk no longer behind the first's.
        let second =
            (last + 1..plan.nodes.len()).find(|at| plan.nodes[*at].task.tile == plan.nodes[last].task.tile);
        plan.nodes[second.expect("a next layer")].lane = LaneId(0);
    });
    assert!(matches!(moved, Violation::Race(..)), "{moved}");
}

/// What is asked for beside accesses, for devices without priorities, stays.
#[test]
fn waits_in_place_of_priorities_stay() {
    let nets = nets(&inception_net(BATCH), Phase::Train, 1);
    let build = |extra_waits| {
        let limits = LaneLimits { priorities: 2, extra_waits, ..LaneLimits::default() };
        Plan::build(&nets, PlanOptions { limits, ..PlanOptions::new(Stage::Iteration) }).expect("a plan")
    };
    let (with, without) = (build(true), build(false));
    assert_eq!(spread(with.clone(), &nets, |_| 1), with);
    let asked = |id: usize| {
        let node = &with.nodes[id];
        let known = &without.nodes[id].waits;
        let wait = node.waits.iter().find(|wait| !known.contains(wait))?;
        Some((node, *wait))
    };
    let (asked, on) = (0..with.nodes.len()).find_map(asked).expect("a wait that is asked for");
    let (on, by) = (with.nodes[on.0].task, asked.task);
    let cut = spread(with.clone(), &nets, |node| if node.task == on { 3 } else { 1 });
    assert_eq!(check(&cut, &nets), Ok(()));
    let waiting = cut.nodes.iter().position(|node| node.task == by).expect("it is whole");
    let done = done_before(&cut, waiting);
    let is_chunk = |node: &Node| (node.task.layer, node.task.sub) == (on.layer, on.sub);
    let chunks: Vec<usize> = (0..cut.nodes.len()).filter(|id| is_chunk(&cut.nodes[*id])).collect();
    assert!(!chunks.is_empty() && chunks.iter().all(|id| done.contains(id)), "{chunks:?} {done:?}");
}

/// What is done when a task begins, by the order of lanes and by waits.
fn done_before(plan: &Plan, task: usize) -> Vec<usize> {
    let (mut done, mut asked) = (Vec::new(), vec![task]);
    while let Some(id) = asked.pop() {
        let lane = |other: &usize| plan.nodes[*other].lane == plan.nodes[id].lane;
        let before = (0..id).rev().find(lane).into_iter();
        for earlier in before.chain(plan.nodes[id].waits.iter().map(|wait| wait.0)) {
            if !done.contains(&earlier) {
                done.push(earlier);
                asked.push(earlier);
            }
        }
    }
    done
}

#[test]
fn first_sight_is_of_chunks_one_after_the_other() {
    for nets in all_nets() {
        let whole = plan(&nets, Stage::Gradients);
        for chunks in [2, 4] {
            let first = first_sight(&whole, &nets, chunks);
            assert_eq!(check(&first, &nets), Ok(()));
            assert_eq!(first.lanes, whole.lanes);
            let cut = first.nodes.iter().filter(|node| is_chunk(&nets, node)).count();
            let apart = whole
                .nodes
                .iter()
                .filter(|node| nets[node.device.0].computes_images_apart(node.task.layer, node.task.sub));
            assert_eq!(cut, chunks as usize * apart.count(), "{}", nets[0].name);
            assert!(cut > 1);
        }
    }
}

/// A device of 10 units, on which a kernel of one image leaves most idle.
fn model() -> DeviceModel {
    let limits = Limits {
        units: 10,
        blocks: 16,
        threads: 2048,
        registers: 65536,
        shared: 64 << 10,
        kernels: 8,
        launch: 100.0,
    };
    let rule =
        |work| GrainRule { work, most: 1 << 20, threads: 256, registers: 32, shared: 0, saturating: 512 };
    DeviceModel {
        limits,
        flops: 100.0,
        bytes: 40.0,
        memory: 200.0,
        levels: 2,
        wait: 10.0,
        start: 300.0,
        grain: 100.0,
        crew: false,
        compute: rule(20_000.0),
        stream: rule(4_000.0),
    }
}

/// The whole way: kernels of chunks are seen once, analysed, and the plan is cut as the analysis says; a second network of the
/// same name and shapes is known. Chunks run at once on the simulated device, and take no more work than the whole.
#[test]
fn what_was_seen_once_decides_the_plan() {
    let (nets, model) = (nets(&lenet(BATCH), Phase::Train, 1), model());
    let mut scheduler = Scheduler::new(model.limits, Maintainer::default());
    let whole = plan(&nets, Stage::Iteration);
    let situation = |node: &Node| Situation::of("sim", &nets[0], &node.task);
    let halves = [2, 4].map(|chunks| (chunks, first_sight(&whole, &nets, chunks)));
    let usage = |of: &Node| -> Vec<(u32, Vec<KernelUsage>)> {
        let seen = |(chunks, first): &(u32, Plan)| {
            let is_it = |n: &&Node| (n.task.layer, n.task.sub) == (of.task.layer, of.task.sub);
            let chunk = first.nodes.iter().find(is_it).expect("it is there");
            (*chunks, vec![model.usage("kernel", &model.kernel_of(&nets, chunk))])
        };
        halves.iter().map(seen).collect()
    };
    let mut seen = 0;
    for _ in 0..2 {
        for node in whole.nodes.iter().filter(|n| nets[0].computes_images_apart(n.task.layer, n.task.sub)) {
            if scheduler.look(&situation(node)) == Sight::First {
                let lanes = scheduler.sighted(situation(node), &usage(node), Duration::from_secs(60));
                assert!([1, 2, 4].contains(&lanes.expect("lanes")));
                seen += 1;
            }
        }
    }
    assert_eq!(seen, scheduler.kept().len());
    let cut = spread(whole.clone(), &nets, |node| match scheduler.look(&situation(node)) {
        Sight::Again(lanes) => lanes,
        Sight::First => 1,
    });
    assert_eq!(check(&cut, &nets), Ok(()));
    assert!(cut.nodes.len() > whole.nodes.len(), "{:?}", scheduler.kept());
    let pool = scheduler.pool("sim", LaneId(0)).lanes as usize;
    assert!(cut.lanes.len() <= whole.lanes.len() + pool, "as many lanes as any layer is worth");
    let devices = SimDevice::of_model(&nets, &[&cut], &model);
    let mut times = StepTimes::default();
    run_step(&devices, &cut, &Scalars::default(), &mut times).expect("a step");
    let spans: Vec<_> = cut.nodes.iter().zip(times.spans()).filter(|(n, _)| is_chunk(&nets, n)).collect();
    let at_once = spans.iter().any(|(a, one)| {
        spans.iter().any(|(b, two)| {
            a.task.layer == b.task.layer && a.lane != b.lane && one.start < two.end && two.start < one.end
        })
    });
    assert!(at_once, "chunks of one layer run side by side");
    let flops =
        |plan: &Plan| -> f64 { plan.nodes.iter().map(|node| model.kernel_of(&nets, node).flops).sum() };
    let [one, other] = [flops(&whole), flops(&cut)];
    assert!((one - other).abs() <= 1e-3 * one, "{one} {other}");
}

/// Layers without parameters may have one name, as in Caffe.
#[test]
fn layers_of_one_name_are_told_apart_in_files() {
    let mut spec = inception_net(BATCH);
    let relus = spec.layers.iter_mut().filter(|layer| matches!(layer.layer, Layer::Relu(_)));
    assert!(relus.map(|relu| relu.name = "relu".into()).count() > 1, "mistrusted: one name for one layer");
    let nets = nets(&spec, Phase::Train, 2);
    let options = PlanOptions::new(Stage::Iteration);
    let plan = Plan::build(&nets, options).expect("a plan");
    let mut saved = SavedPlan::new(&[&plan], &nets, Schedule::Critical);
    assert!(saved.tasks.iter().any(|task| task.layer == "relu#2"));
    assert_eq!(saved.plan(&nets, options).expect("the same plan"), plan);
    saved.tasks[0].layer = "relu#9".into();
    let unknown = saved.plan(&nets, options).expect_err("no such layer").to_string();
    assert!(unknown.contains("no layer \"relu#9\"") && unknown.contains("did you mean \"relu"), "{unknown}");
}

#[test]
fn chunks_are_stored_and_read_again() {
    for devices in [1, 2] {
        let nets = nets(&inception_net(BATCH), Phase::Train, devices);
        let options = PlanOptions::new(Stage::Iteration);
        let cut = spread(Plan::build(&nets, options).expect("a plan"), &nets, |_| 3);
        let saved = SavedPlan::new(&[&cut], &nets, Schedule::Critical);
        assert!(saved.tasks.iter().filter(|task| task.chunk.is_some()).count() > 6);
        assert_eq!(saved.plan(&nets, options).expect("the same plan"), cut, "{devices} devices");
        let broken = |change: &dyn Fn(&mut SavedPlan)| {
            let mut saved = saved.clone();
            change(&mut saved);
            saved.plan(&nets, options).expect_err("a broken plan").to_string()
        };
        let at = saved.tasks.iter().position(|task| task.chunk.is_some()).expect("a chunk");
        let gone = broken(&|saved| {
            saved.tasks[at].chunk = Some(Tile { first: 0, images: 1 });
        });
        assert!(gone.contains("tiles of layer"), "{gone}");
        let whole = saved.tasks.iter().position(|task| task.sub == SubTask::GradWeight).expect("∇W");
        let cut = broken(&|saved| saved.tasks[whole].chunk = Some(Tile { first: 0, images: 1 }));
        assert!(cut.contains("tiles of layer"), "{cut}");
        let all = broken(&|saved| saved.tasks[at].chunk = None);
        assert!(all.contains("layer") && !all.is_empty(), "{all}");
    }
}

/// Steps overlap chunk by chunk as they do task by task.
#[test]
fn steps_of_chunks_overlap() {
    let nets = nets(&lenet(BATCH), Phase::Train, 1);
    let cut = spread(plan(&nets, Stage::Iteration), &nets, |_| 2);
    let overlap = cut.overlap(&nets);
    let of_conv2 = |node: &(usize, &Node)| {
        nets[0].layer(node.1.task.layer).name == "conv2" && node.1.task.sub == SubTask::Forward
    };
    let update = cut
        .nodes
        .iter()
        .position(|node| node.task.sub == SubTask::Update && nets[0].layer(node.task.layer).name == "conv2");
    let update = TaskId(update.expect("an update"));
    let firsts: Vec<(usize, &Node)> = cut.nodes.iter().enumerate().filter(of_conv2).collect();
    assert_eq!(firsts.len(), 2);
    for (id, node) in firsts {
        let is_weight = |place: &&quadrille_core::task::Place| matches!(place.buffer, Buffer::Weight(_));
        assert!(node.reads.iter().any(|place| is_weight(&place)) && node.device == DeviceId(0));
        assert!(overlap.waits[id].contains(&update), "{:?}", overlap.waits[id]);
    }
}
