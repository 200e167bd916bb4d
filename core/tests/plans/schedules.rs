//! Schedules: every plan that they make is valid, and lanes, priorities and dependency distances are those of the paper.

use quadrille_core::check::check;
use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerId, Net, NetSpec, Phase};
use quadrille_core::plan::priority::{Analysis, Estimates, Kind, LaneLimits, SubTaskGraph};
use quadrille_core::plan::{LaneRole, Plan, PlanOptions, Schedule, Stage};
use quadrille_core::task::{DeviceId, TaskId};

use crate::common::{
    self, branching_net, dense_net, inception_net, lenet, nets, normalizing_net, residual_net, siamese_net,
};

fn analysis(nets: &[Net]) -> Analysis {
    let options = PlanOptions::new(Stage::Iteration);
    Analysis::new(nets, options, &Estimates::default()).expect("an analysis")
}

fn all_nets() -> Vec<NetSpec> {
    let few = [lenet(8), branching_net(8), siamese_net(8), normalizing_net(8)];
    few.into_iter().chain([residual_net(8), inception_net(8), dense_net(8)]).collect()
}

#[test]
fn every_schedule_makes_valid_plans_within_every_limit() {
    let quadrant = LaneLimits::default();
    let two_levels = LaneLimits { priorities: 2, extra_waits: true, ..quadrant };
    let limits = [
        quadrant,
        two_levels,
        LaneLimits { lanes: 64, gradient_lanes: 64, ..two_levels },
        LaneLimits { lanes: 2, priorities: 1, ..quadrant },
    ];
    let rewrites: [fn(Net) -> Net; 3] = [|net| net, common::sharing, |net| common::sharing(net.fused())];
    for spec in all_nets() {
        for devices in [1, 2, 3] {
            for rewrite in rewrites {
                let nets: Vec<Net> = nets(&spec, Phase::Train, devices).into_iter().map(rewrite).collect();
                for (schedule, limits) in Schedule::ALL.iter().flat_map(|s| limits.map(|l| (*s, l))) {
                    for stage in
                        [Stage::Iteration, Stage::Gradients, Stage::Part, Stage::Update, Stage::Forward]
                    {
                        let options = PlanOptions { schedule, limits, ..PlanOptions::new(stage) };
                        let plan = Plan::build(&nets, options).expect("a plan");
                        let what = format!("{schedule} {stage:?} of {} on {devices}: {limits:?}", spec.name);
                        assert_eq!(check(&plan, &nets), Ok(()), "{what}");
                        assert!(plan.lanes.len() <= limits.lanes, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_sub_task_has_one_lane_in_all_plans_of_a_worker() {
    for spec in all_nets() {
        let nets = nets(&spec, Phase::Train, 2);
        let plans = [Stage::Iteration, Stage::Gradients, Stage::Part, Stage::Update]
            .map(|stage| Plan::build(&nets, PlanOptions::new(stage)).expect("a plan"));
        for node in plans.iter().flat_map(|plan| &plan.nodes) {
            for plan in &plans {
                let lane = plan.lane_of(node.device, node.task.layer, node.task.sub);
                assert!(lane.is_none_or(|lane| lane == node.lane), "{:?} of {}", node.task, spec.name);
            }
        }
    }
}

#[test]
fn layerwise_has_one_lane_and_concurrent_no_priorities() {
    let nets = nets(&inception_net(4), Phase::Train, 1);
    let plan = |schedule| {
        Plan::build(&nets, PlanOptions { schedule, ..PlanOptions::new(Stage::Iteration) }).expect("a plan")
    };
    let [layerwise, concurrent, critical] = Schedule::ALL.map(plan);
    assert_eq!(layerwise.lanes.len(), 1);
    assert!(layerwise.nodes.iter().all(|node| node.waits.is_empty()));
    assert_eq!(concurrent.lanes.len(), critical.lanes.len());
    assert!(concurrent.lanes.iter().all(|lane| lane.priority == 0));
    // Gradients of weights and biases are as urgent as each other.
    let priorities: Vec<u8> = critical.lanes.iter().map(|lane| lane.priority).collect();
    assert_eq!(priorities, [0, 1, 2, 3, 3, 4]);
}

/// Step by step: eight layers forward, seven ∇A back, and ∇W of the first layer beside nothing.
#[test]
fn distances_grow_from_the_first_layer_to_the_last() {
    let nets = nets(&lenet(4), Phase::Train, 1);
    let options = PlanOptions { schedule: Schedule::Layerwise, ..PlanOptions::new(Stage::Iteration) };
    let plan = Plan::build(&nets, options).expect("a plan");
    let graph = SubTaskGraph::new(&nets, &plan.nodes);
    let distance = |name: &str, sub: SubTask| {
        let layer = nets[0].layers.iter().position(|layer| layer.name == name).expect("a layer");
        let is_it = |node: &quadrille_core::plan::Node| (node.task.layer.0, node.task.sub) == (layer, sub);
        let task = plan.nodes.iter().position(is_it).expect("a task");
        graph.distances[task]
    };
    for name in ["loss", "ip2", "relu1", "ip1", "pool2", "conv2"] {
        assert_eq!(distance(name, SubTask::Forward), Some(1), "{name}");
        assert_eq!(distance(name, SubTask::GradActivation), Some(1), "{name}");
    }
    // The last one is for the first layer's weight alone.
    assert_eq!(distance("pool1", SubTask::GradActivation), Some(2));
    for sub in [SubTask::GradWeight, SubTask::GradBias] {
        let found = ["conv1", "conv2", "ip1", "ip2"].map(|name| distance(name, sub));
        assert_eq!(found, [1, 5, 9, 13].map(Some), "{sub}");
    }
    // What the next iteration asks for first is updated on the critical path.
    assert_eq!(distance("conv1", SubTask::Update), Some(1));
    let joined = analysis(&nets).joined;
    let conv1 = nets[0].layers.iter().position(|layer| layer.name == "conv1").map(LayerId).expect("a layer");
    let expected = [SubTask::GradWeight, SubTask::GradBias, SubTask::Update].map(|sub| (conv1, sub));
    assert_eq!(joined, expected.into_iter().collect());
}

#[test]
fn a_chain_of_layers_has_no_blocks() {
    let found = analysis(&nets(&lenet(4), Phase::Train, 1));
    assert_eq!(found.layers.blocks, []);
    let kinds: Vec<Kind> = found.paths.iter().map(|path| path.kind).collect();
    assert_eq!(kinds, [Kind::Activation, Kind::Weight, Kind::Bias, Kind::Update]);
}

/// The names of the layers of each block's paths, longest first, without implicit splits.
fn blocks(net: &Net) -> Vec<Vec<String>> {
    let name = |layer: &LayerId| net.layer(*layer).name.clone();
    let of_path = |layers: &[LayerId]| layers.iter().map(name).collect::<Vec<_>>().join(" ");
    let found = analysis(std::slice::from_ref(net));
    let blocks = found.layers.blocks.iter();
    blocks.map(|block| block.paths.iter().map(|path| of_path(&path.layers)).collect()).collect()
}

/// Each layer and what it skips is a block with one path: whatever is put together leads past it.
#[test]
fn a_dense_block_is_a_block_for_each_of_its_layers() {
    let [net] = <[Net; 1]>::try_from(nets(&dense_net(4), Phase::Train, 1)).expect("one net");
    assert_eq!(blocks(&net), [["small0 large0"], ["small1 large1"], ["small2 large2"]]);
    assert_eq!(analysis(&[net]).layers.width(), 1);
}

#[test]
fn residual_and_inception_blocks_are_found() {
    let [net] = <[Net; 1]>::try_from(nets(&residual_net(4), Phase::Train, 1)).expect("one net");
    assert_eq!(blocks(&net), [["conv2 bn2 scale2"]]);
    let [net] = <[Net; 1]>::try_from(nets(&inception_net(4), Phase::Train, 1)).expect("one net");
    let found = blocks(&net);
    assert_eq!(found[0], ["two relu_two first", "one relu_one", "three"], "the innermost merge is on a path");
    assert_eq!(analysis(&[net]).layers.width(), 3);
}

/// Two levels for three: the first ∇A of the other paths wait for that of the longest, and nothing else changes.
#[test]
fn a_missing_priority_is_made_up_for_by_waits() {
    let nets = nets(&inception_net(4), Phase::Train, 1);
    let build = |extra_waits| {
        let limits = LaneLimits { priorities: 2, extra_waits, ..LaneLimits::default() };
        Plan::build(&nets, PlanOptions { limits, ..PlanOptions::new(Stage::Iteration) }).expect("a plan")
    };
    let (without, with) = (build(false), build(true));
    let found = analysis(&nets);
    let first = |layers: &[LayerId]| {
        let is_first = |node: &quadrille_core::plan::Node| {
            node.task.sub == SubTask::GradActivation && layers.contains(&node.task.layer)
        };
        TaskId(with.nodes.iter().position(is_first).expect("a task"))
    };
    let paths = &found.layers.blocks[0].paths;
    let longest = first(&paths[0].layers);
    let changed: Vec<usize> =
        (0..with.nodes.len()).filter(|id| with.nodes[*id].waits != without.nodes[*id].waits).collect();
    assert!(!changed.is_empty());
    for path in &paths[1..] {
        let other = first(&path.layers);
        assert!(longest < other, "the longest path is submitted first");
        let waits = &with.nodes[other.0].waits;
        assert!(waits.contains(&longest), "{waits:?} without {longest:?}");
    }
}

/// The profile of an iteration decides, where there is one: the path that took longest is the critical one.
#[test]
fn measured_times_change_the_critical_path() {
    use quadrille_core::device::Span;
    let nets = nets(&inception_net(4), Phase::Train, 1);
    let options = PlanOptions { schedule: Schedule::Layerwise, ..PlanOptions::new(Stage::Iteration) };
    let plan = Plan::build(&nets, options).expect("a plan");
    let slow = nets[0].layers.iter().position(|layer| layer.name == "three").map(LayerId).expect("a layer");
    let span = |node: &quadrille_core::plan::Node| Span {
        start: 7,
        end: if node.task.layer == slow { 1_000_007 } else { 8 },
    };
    let spans: Vec<Span> = plan.nodes.iter().map(span).collect();
    let measured = Estimates::default().corrected(&plan, &spans);
    assert!(measured.is_measured() && !Estimates::default().is_measured());
    let options = PlanOptions::new(Stage::Iteration);
    let by_profile = Analysis::new(&nets, options, &measured).expect("an analysis");
    assert_eq!(by_profile.layers.blocks[0].paths[0].layers, [slow]);
    assert_ne!(analysis(&nets).layers.blocks[0].paths[0].layers, [slow]);
    let critical = Plan::build_by(&nets, options, &measured).expect("a plan");
    assert_eq!(check(&critical, &nets), Ok(()));
    let lane = critical.lane_of(DeviceId(0), slow, SubTask::GradActivation);
    assert_eq!(lane.map(|lane| lane.0), Some(0));
}

#[test]
fn the_critical_path_is_a_chain_of_edges_that_no_schedule_beats() {
    let nets = nets(&inception_net(4), Phase::Train, 1);
    let plan = Plan::build(&nets, PlanOptions::new(Stage::Iteration)).expect("a plan");
    let graph = SubTaskGraph::new(&nets, &plan.nodes);
    let estimates = Estimates::default();
    let times: Vec<f64> = plan.nodes.iter().map(|node| estimates.of(&nets, node)).collect();
    let (path, length) = graph.critical_path(&times);
    assert!(path.windows(2).all(|pair| graph.after[pair[1].0].contains(&pair[0])));
    let sum: f64 = path.iter().map(|task| times[task.0]).sum();
    assert!((sum - length).abs() < 1e-6 * sum && length < times.iter().sum());
    // It is that of activations, but for its end.
    let roles: Vec<LaneRole> = path.iter().map(|task| LaneRole::of(plan.nodes[task.0].task.sub)).collect();
    assert!(roles[..roles.len() - 2].iter().all(|role| *role == LaneRole::Critical), "{roles:?}");
}
