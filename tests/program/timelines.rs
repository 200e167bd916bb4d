//! `--trace`: what a timeline shows, and that it changes nothing.

use std::fs;

use quadrille_core::layer::Layer;
use quadrille_core::net::{Net, NetState, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Stage as Part};
use quadrille_core::task::TaskId;
use quadrille_io::prototxt::read_net;

use crate::common::{SIDE, Stage, hash_of};
use crate::schedules::branching;
use crate::timeline::Timeline;

fn timeline(stage: &Stage, file: &str) -> Timeline {
    Timeline::read(&fs::read(stage.path(file)).expect("a timeline"))
}

/// Gradients leave while backward runs: in its row, as often as there are parts, which the first lines tell.
#[test]
fn a_timeline_shows_gradients_that_leave_beside_backward() {
    let stage = branching();
    let run = |run: &str, flags: &str| {
        let flags = format!("--workers 2 --method sync-sgd --trace {run}.json --trace-iterations 3 {flags}");
        let said = stage.succeed(&format!("train --solver solver.prototxt --run {run} {flags}")).stdout;
        let found = timeline(&stage, &format!("{run}.json"));
        (said, [0, 1].map(|worker| found.count(worker, "beside the step", "communication")))
    };
    let (said, count) = run("packed", "");
    assert!(said.contains(", in 1 part(s) beside backward") && count == [3, 3], "{count:?}: {said}");
    assert!(said.contains("concurrent: gradients leave while backward runs"), "{said}");
    let (said, [count, other]) = run("arrays", "--unpacked --schedule critical");
    assert!(
        count > 3 && count % 3 == 0 && said.contains(&format!("in {} part(s)", count / 3)) && other == count,
        "{count}: {said}"
    );
    assert!(said.contains("schedule    critical;"), "{said}");
    let (said, count) = run("looked-at", "--on-nonfinite skip");
    assert!(
        said.contains("behind backward") && said.contains("schedule    critical;") && count == [0, 0],
        "{said}"
    );
}

#[test]
fn a_timeline_shows_every_task_in_its_lane_and_the_threads_that_ran_it() {
    let stage = branching();
    stage.train("run", "--workers 2 --threads 2 --trace trace.json --trace-iterations 3");
    let found = timeline(&stage, "trace.json");
    for worker in [0, 1] {
        for name in ["stem/forward", "one/grad-weight", "ip/update"] {
            assert_eq!(found.count(worker, " lane ", name), 3, "{name} of worker {worker}");
            assert!(found.count(worker, " thread ", name) >= 3, "{name} of worker {worker}");
        }
        for name in ["forward_backward", "worker_update"] {
            assert_eq!(found.count(worker, "iteration", name), 3, "{name} of worker {worker}");
        }
        let names: Vec<&str> =
            found.rows.iter().filter(|(row, _)| row.0 == worker).map(|(_, name)| &name[..]).collect();
        assert_eq!(names[..3], ["iteration", "quadrant 0 lane 0", "quadrant 0 lane 1"]);
        assert_eq!(names.last(), Some(&"beside the step"));
        // One of them may have found nothing to do, but it has a row.
        for thread in ["quadrant 0 thread 0", "quadrant 0 thread 1"] {
            assert_eq!(names.iter().filter(|name| name.starts_with(thread)).count(), 1, "{names:?}");
        }
        assert!(!found.waits(worker, "waits").is_empty());
        assert_eq!(
            found.waits(worker, "waits for the step before").len(),
            0,
            "updates have steps of their own"
        );
    }
    let refused = stage.run("train --solver solver.prototxt --run none --trace missing/trace.json");
    assert_eq!(refused.code, Some(73), "{}", refused.stderr);
    assert!(!stage.path("none").exists(), "a run folder is left behind");
}

/// The plan of a training of the network as it stands in its file.
fn plan(stage: &Stage) -> (Vec<Net>, Plan) {
    let mut spec = read_net(&stage.path("net.prototxt")).expect("a network");
    for layer in &mut spec.layers {
        if let Layer::Data(data) = &mut layer.layer {
            data.sample = Some([1, SIDE, SIDE]);
        }
    }
    let nets = vec![Net::build(&spec, &NetState::new(Phase::Train), 1.0).expect("a net")];
    let plan = Plan::build(&nets, PlanOptions::new(Part::Iteration)).expect("a plan");
    (nets, plan)
}

/// Arrows within a step and to the next are those of the plan, and there is none from what was over before a step began: a test comes
/// between two.
#[test]
fn arrows_are_the_waits_of_the_plan_within_steps_and_from_one_to_the_next() {
    let stage = branching();
    stage.edit("solver.prototxt", "display: 10", "display: 0");
    let (nets, plan) = plan(&stage);
    let overlap = plan.overlap(&nets);
    let name = |task: usize| {
        let task = &plan.nodes[task].task;
        format!("{}/{}", nets[0].layer(task.layer).label(), task.sub)
    };
    let pairs = |waits: Vec<&[TaskId]>, times: usize| {
        let tasks = waits.into_iter().enumerate();
        let pairs = tasks.flat_map(|(task, waits)| waits.iter().map(move |wait| [wait.0, task]));
        let mut names: Vec<_> = pairs.flat_map(|pair| std::iter::repeat_n(pair.map(name), times)).collect();
        names.sort();
        names
    };
    let within: Vec<&[TaskId]> = plan.nodes.iter().map(|node| &node.waits[..]).collect();
    let across: Vec<&[TaskId]> = overlap.waits.iter().map(|waits| &waits[..]).collect();
    assert!(across.iter().any(|waits| !waits.is_empty()));
    for threads in [1, 2] {
        let flags = format!("--threads {threads} --no-fusion --no-memory-sharing --trace trace.json");
        stage.train(&format!("run{threads}"), &format!("{flags} --trace-iterations 14"));
        let found = timeline(&stage, "trace.json");
        assert_eq!(found.count(0, " lane ", "stem/forward"), 14);
        assert_eq!(found.waits(0, "waits"), pairs(within.clone(), 14));
        // The test behind 10 iterations waits for all of them, and no step came before the first.
        let expected = pairs(across.clone(), 12);
        assert_eq!(found.waits(0, "waits for the step before"), expected);
        assert!(expected.contains(&["one/update", "one/forward"].map(str::to_owned)), "{expected:?}");
        assert_eq!(found.arrows.len(), 14 * pairs(within.clone(), 1).len() + expected.len());
    }
}

/// Threads of one quadrant that help another on the same node show whose task they are at, and what is traced has the same bits.
#[test]
fn a_timeline_shows_help_and_changes_no_bit() {
    let stage = branching();
    for (run, flags) in [("one", "--threads 3"), ("two", "--quadrants 2 --threads 2"), ("sgd", "--workers 2")]
    {
        let plain = stage.train(run, flags);
        let traced = stage.train(&format!("{run}-traced"), &format!("{flags} --trace {run}.json"));
        assert_eq!(hash_of(&plain), hash_of(&traced), "{flags}");
        let found = timeline(&stage, &format!("{run}.json"));
        assert_eq!(found.count(0, " lane ", "stem/forward"), if run == "two" { 40 } else { 20 }, "{flags}");
    }
}

#[test]
fn time_writes_a_timeline_too() {
    let stage = branching();
    let flags = "time --model net.prototxt --data-shape 1,12,12 --iterations 4 --trace trace.json --trace-iterations 2";
    stage.succeed(&format!("{flags} --threads 2 --schedule concurrent"));
    let found = timeline(&stage, "trace.json");
    assert_eq!(found.count(0, " lane ", "stem/forward"), 2);
    assert!(found.count(0, " thread ", "stem/forward") >= 2);
    assert_eq!(found.count(0, "iteration", "iteration"), 2);
}
