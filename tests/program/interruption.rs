//! A run that is told to stop leaves a snapshot, from which it goes on as if it had not been stopped.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::common::{Outcome, SOLVER, Stage, hash_of};

/// Starts a training that would take for ever, sends `signal` once it has trained, and returns how it ended.
fn interrupt(stage: &Stage, way: &str, signal: &str) -> Outcome {
    interrupt_before(2_000_000_000, stage, way, signal)
}

/// The same of a training of so many iterations.
fn interrupt_before(iterations: u64, stage: &Stage, way: &str, signal: &str) -> Outcome {
    let mut running =
        stage.start(&format!("train --solver solver.prototxt --run stopped --max-iter {iterations} {way}"));
    let trains = || {
        let metrics = fs::read_to_string(stage.path("stopped/metrics.jsonl")).unwrap_or_default();
        metrics.lines().count() > 3
    };
    while !trains() {
        let ended = running.child.try_wait().expect("the state of a child");
        assert!(ended.is_none(), "{way}: it ended before it trained:\n{}", running.stdout());
        std::thread::sleep(Duration::from_millis(2));
    }
    // The shell's own kill: a bare system has no program of that name.
    let kill = format!("kill -s {signal} {}", running.child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status().expect("a shell");
    assert!(sent.success());
    running.finish()
}

/// The iterations of a run's last snapshot.
fn stopped_after(stage: &Stage) -> u64 {
    let done = stage.summary("stopped")["iterations"].as_u64().expect("a number of iterations");
    let snapshot = stage.path(&format!("stopped/snapshots/iteration_{done}"));
    assert!(snapshot.is_dir(), "no {}", snapshot.display());
    done
}

fn stops_and_goes_on(way: &str, signal: &str) {
    let stage = Stage::new();
    // No policy that a run of billions of iterations would bend, and no lines for them.
    stage.write(
        "solver.prototxt",
        SOLVER.replace("\"inv\"", "\"fixed\"").replace("display: 10", "display: 0"),
    );
    let Outcome { code, stdout, stderr } = interrupt(&stage, &format!("--test-interval 0 {way}"), signal);
    assert_eq!(code, Some(75), "{way} {signal}: {stdout}\n{stderr}");
    let done = stopped_after(&stage);
    let snapshot = format!("stopped/snapshots/iteration_{done}");
    let said = format!(
        "stopped after iteration {done} of 2000000000; to go on, give the same command with --snapshot "
    );
    assert!(stderr.contains(&said) && stderr.contains(&snapshot), "{way} {signal}: {stderr}");
    assert!(done >= 3, "the signal came after three iterations");

    let total = done + 5;
    let flags = format!("--max-iter {total} --test-interval 0 {way}");
    let resumed = hash_of(&stage.train("resumed", &format!("--snapshot {snapshot} {flags}")));
    let undisturbed = hash_of(&stage.train("undisturbed", &flags));
    assert_eq!(resumed, undisturbed, "{way} {signal}, stopped after {done}");
    let metrics = fs::read_to_string(stage.path("stopped/metrics.jsonl")).expect("metrics.jsonl");
    assert_eq!(metrics.lines().count() as u64, done + 1, "a line for each iteration and the summary");
}

/// A batch system does not wait for the end of a long test; the run ends there, and begins with it when it goes on.
#[test]
fn a_test_is_left_and_made_up_for() {
    for way in ["", "--workers 2 --method sync-easgd"] {
        let stage = Stage::new();
        let solver = SOLVER.replace("\"inv\"", "\"fixed\"").replace("test_interval: 10", "test_interval: 4");
        let solver = solver.replace("test_iter: 4", "test_iter: 2000000000\ntest_initialization: false");
        stage.write("solver.prototxt", solver);
        let Outcome { code, stdout, stderr } = interrupt(&stage, way, "TERM");
        assert_eq!(code, Some(75), "{way}: {stdout}\n{stderr}");
        assert_eq!(stopped_after(&stage), 4, "{way}: the test before iteration 4 never ends");
        let said = "the test at iteration 4 was left";
        assert!(stdout.contains(said) || stderr.contains(said), "{way}: {stdout}\n{stderr}");
        let shorter = SOLVER.replace("\"inv\"", "\"fixed\"").replace("test_interval: 10", "test_interval: 4");
        stage.write(
            "solver.prototxt",
            shorter.replace("test_iter: 4", "test_iter: 4\ntest_initialization: false"),
        );
        stage.succeed(&format!("train --solver solver.prototxt --max-iter 9 --resume stopped {way}"));
        let tests = stage.metrics("stopped").into_iter().filter(|record| record.get("accuracy").is_some());
        let tested: Vec<u64> = tests.filter_map(|record| record["iteration"].as_u64()).collect();
        assert_eq!(tested, [4, 8, 9], "{way}");
    }
}

/// What is trained to its end but not tested has not ended: a batch system is to start it again, and then it is tested.
#[test]
fn a_last_test_that_is_left_is_made_up_for() {
    for way in ["", "--workers 2 --method sync-easgd"] {
        let stage = Stage::new();
        let solver = SOLVER.replace("test_iter: 4", "test_iter: 2000000000\ntest_initialization: false");
        stage.write("solver.prototxt", solver);
        let Outcome { code, stdout, stderr } = interrupt_before(4, &stage, way, "TERM");
        assert_eq!(code, Some(75), "{way}: {stdout}\n{stderr}");
        assert_eq!(stopped_after(&stage), 4, "{way}");
        stage.write("solver.prototxt", SOLVER);
        let again = format!("--max-iter 4 --snapshot stopped/snapshots/iteration_4 {way}");
        assert!(stage.train("again", &again)["accuracy"].is_number(), "{way}");
    }
}

/// A margin before an end that nobody knows is said to be none.
#[test]
fn a_margin_outside_of_a_job_is_noted() {
    let stage = Stage::new();
    let said = |run: &str, end: Option<&str>| {
        let command = format!("train --solver solver.prototxt --max-iter 1 --stop-margin 5 --run {run}");
        let prepare = |command: &mut Command| {
            command.env_remove("SLURM_JOB_END_TIME");
            command.envs(end.map(|end| ("SLURM_JOB_END_TIME", end)));
        };
        stage.start_in(&command, prepare).finish().stdout
    };
    let outside = said("outside", None);
    assert!(outside.contains("note        --stop-margin: this is no Slurm job"), "{outside}");
    let inside = said("inside", Some("99999999999"));
    assert!(
        inside.contains("the run stops 5 s before") && !inside.contains("note        --stop"),
        "{inside}"
    );
}

#[test]
fn an_interrupt_from_the_keyboard() {
    stops_and_goes_on("", "INT");
}

#[test]
fn the_signals_of_batch_systems() {
    stops_and_goes_on("", "TERM");
    stops_and_goes_on("", "USR1");
}

#[test]
fn two_workers_stop_after_the_same_iteration() {
    for signal in ["INT", "TERM", "USR1"] {
        stops_and_goes_on("--workers 2", signal);
    }
    stops_and_goes_on("--workers 2 --method sync-sgd", "TERM");
    stops_and_goes_on("--workers 4 --threads 1", "USR1");
}

/// Workers that do not wait for each other stop after the same iteration all the same, and all of them go on.
#[test]
fn workers_that_are_not_in_step_stop_together() {
    for method in ["async-measgd", "hogwild-sgd", "async-sgd", "hogwild-easgd", "original-easgd"] {
        let stage = Stage::new();
        let solver = SOLVER.replace("\"inv\"", "\"fixed\"").replace("display: 10", "display: 0");
        stage.write("solver.prototxt", solver);
        let way = format!("--test-interval 0 --workers 3 --threads 1 --method {method}");
        let Outcome { code, stdout, stderr } = interrupt(&stage, &way, "TERM");
        assert_eq!(code, Some(75), "{method}: {stdout}\n{stderr}");
        let done = stopped_after(&stage);
        let on = format!("{way} --resume stopped --max-iter {}", done + 5);
        assert_eq!(stage.train("stopped", &on)["iterations"], done + 5, "{method}");
    }
}

#[test]
fn two_quadrants_stop_together() {
    stops_and_goes_on("--quadrants 2", "TERM");
    stops_and_goes_on("--workers 2 --quadrants 2", "INT");
}
