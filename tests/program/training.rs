//! Training learns, says what it does in `metrics.jsonl`, and goes on from a snapshot as if it had not stopped.

use std::fs;

use serde_json::Value;

use crate::common::{SOLVER, Stage, hash_of};

/// With numbers of quadrants: by default there are as many as the machine has NUMA nodes.
const WAYS: [&str; 5] = [
    "--workers 1 --quadrants 1",
    "--workers 2 --quadrants 1 --method sync-easgd",
    "--workers 2 --quadrants 1 --method sync-sgd",
    "--quadrants 2",
    "--workers 2 --quadrants 2",
];

fn number(record: &Value, name: &str) -> f64 {
    record[name].as_f64().unwrap_or_else(|| panic!("no number {name} in {record}"))
}

/// The records of iterations, of tests, and the summary.
fn split(metrics: &[Value]) -> (Vec<&Value>, Vec<&Value>, &Value) {
    let (last, rest) = metrics.split_last().expect("metrics are not empty");
    let (iterations, tests) = rest.iter().partition(|record| record.get("loss").is_some());
    (iterations, tests, &last["summary"])
}

fn keys(record: &Value) -> Vec<&str> {
    record.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn every_way_of_training_learns() {
    let stage = Stage::new();
    for (index, way) in WAYS.iter().enumerate() {
        let run = format!("out{index}");
        let summary = stage.train(&run, &format!("--max-iter 120 --test-interval 40 {way}"));
        assert!(number(&summary, "accuracy") >= 0.95, "{way}: {summary}");
        let metrics = stage.metrics(&run);
        let (iterations, tests, _) = split(&metrics);
        let mean = |part: &[&Value]| part.iter().map(|r| number(r, "loss")).sum::<f64>() / part.len() as f64;
        assert!(mean(&iterations[110..]) < 0.5 * mean(&iterations[..10]), "{way}: the loss does not fall");
        assert!(number(tests[0], "accuracy") < 0.5, "{way}: it knows the answers before it has learnt");
        let last = tests[tests.len() - 1];
        assert!(number(last, "test_loss") < 0.5 * number(tests[0], "test_loss"), "{way}");
    }
}

#[test]
fn a_run_ends_with_the_accuracy_that_it_was_to_reach() {
    let stage = Stage::new();
    for (index, way) in ["--workers 1", "--workers 2 --method sync-easgd"].iter().enumerate() {
        let run = format!("out{index}");
        let flags = format!("--max-iter 400 --test-interval 10 --target-accuracy 0.8 {way}");
        let summary = stage.train(&run, &flags);
        assert!(number(&summary, "accuracy") >= 0.8, "{way}: {summary}");
        let iterations = number(&summary, "iterations");
        assert!(iterations < 400.0 && iterations % 10.0 == 0.0, "{way}: {summary}");
        let metrics = stage.metrics(&run);
        let (_, tests, _) = split(&metrics);
        let (last, before) = tests.split_last().expect("it tested");
        assert_eq!(number(last, "iteration"), iterations, "{way}: the last test is that which reached it");
        assert!(before.iter().all(|test| number(test, "accuracy") < 0.8), "{way}: it ended with the first");
    }
    let refused = stage.run("train --solver solver.prototxt --run r --test-interval 0 --target-accuracy 0.8");
    assert_eq!(
        (refused.code, refused.stderr.contains("nothing is tested")),
        (Some(2), true),
        "{}",
        refused.stderr
    );
    let refused = stage.run("train --solver solver.prototxt --run r --target-accuracy 98.8");
    assert_eq!(
        (refused.code, refused.stderr.contains("such as 0.988")),
        (Some(2), true),
        "{}",
        refused.stderr
    );
}

#[test]
fn metrics_have_the_documented_fields() {
    let stage = Stage::new();
    for (index, way) in WAYS.iter().enumerate() {
        let run = format!("out{index}");
        stage.train(&run, way);
        let metrics = stage.metrics(&run);
        let (iterations, tests, summary) = split(&metrics);
        assert_eq!(iterations.len(), 20, "{way}");
        for (at, record) in iterations.iter().enumerate() {
            assert_eq!(keys(record), ["iteration", "loss", "lr", "seconds", "time"], "{way}");
            assert_eq!(record["iteration"], at, "{way}");
            assert!(number(record, "loss") > 0.0, "{way}: {record}");
        }
        let seconds: Vec<f64> = iterations.iter().map(|r| number(r, "seconds")).collect();
        assert!(seconds[0] > 0.0 && seconds.is_sorted(), "{way}: {seconds:?}");
        let at: Vec<f64> = tests.iter().map(|r| number(r, "iteration")).collect();
        assert_eq!(at, [0.0, 10.0, 20.0], "{way}");
        for record in &tests {
            assert_eq!(keys(record), ["accuracy", "iteration", "seconds", "test_loss"], "{way}");
            assert!((0.0..=1.0).contains(&number(record, "accuracy")), "{way}: {record}");
        }
        let last = tests[2];
        assert_eq!(summary["accuracy"], last["accuracy"], "{way}");
        assert_eq!(summary["test_loss"], last["test_loss"], "{way}");
        // Before a test workers wait for those who are behind.
        assert!(number(summary, "seconds") >= seconds[19], "{way}");
        assert_eq!(number(summary, "seconds"), number(last, "seconds"), "{way}");
        assert!(number(summary, "images_per_second") > 0.0, "{way}");
        assert!((0.0..=1.0).contains(&number(summary, "communication_share")), "{way}: {summary}");
        let counted = summary["time"].as_object().expect("times by name").iter();
        let counted = counted.filter(|(name, _)| !name.starts_with("hidden"));
        let counted: f64 = counted.filter_map(|(_, seconds)| seconds.as_f64()).sum();
        let whole = number(summary, "seconds");
        assert!((counted - whole).abs() < 1e-4, "{way}: {counted} of {whole}: {summary}");
        hash_of(summary);
    }
    let said = |run: &str| {
        let summary = stage.summary(run);
        (summary["method"].clone(), number(&summary, "workers"), number(&summary, "quadrants"))
    };
    assert_eq!(said("out0"), ("sgd".into(), 1.0, 1.0));
    assert_eq!(said("out1"), ("sync-easgd3".into(), 2.0, 1.0));
    assert_eq!(said("out2"), ("sync-sgd".into(), 2.0, 1.0));
    assert_eq!(said("out3"), ("sgd".into(), 1.0, 2.0));
    assert_eq!(said("out4"), ("sync-easgd3".into(), 2.0, 2.0));
}

#[test]
fn the_learning_rate_follows_the_policy() {
    let stage = Stage::new();
    stage.train("inv", "");
    stage.edit("solver.prototxt", "\"inv\"", "\"step\" stepsize: 7");
    stage.edit("solver.prototxt", "gamma: 0.01", "gamma: 0.5");
    stage.train("step", "");
    let follows = |run: &str, rate: &dyn Fn(i32) -> f64| {
        let metrics = stage.metrics(run);
        let (iterations, _, _) = split(&metrics);
        assert_eq!(iterations.len(), 20);
        for (at, record) in (0..).zip(iterations) {
            let (is, should) = (number(record, "lr"), rate(at));
            // A power in f32 is good to a few units in the last place.
            assert!((is - should).abs() <= 1e-6 * should, "{run}, iteration {at}: {is}, not {should}");
        }
    };
    follows("inv", &|at| 0.05 * (1.0 + 0.01 * f64::from(at)).powf(-0.75));
    follows("step", &|at| 0.05 * 0.5f64.powi(at / 7));
}

#[test]
fn a_snapshot_goes_on_as_if_there_had_been_no_stop() {
    for way in WAYS {
        let stage = Stage::new();
        let whole = hash_of(&stage.train("whole", way));
        let half = hash_of(&stage.train("half", &format!("{way} --max-iter 10")));
        assert_ne!(whole, half, "{way}");
        let snapshot = "--snapshot half/snapshots/iteration_10";
        let rest = stage.train("rest", &format!("{way} {snapshot}"));
        assert_eq!(hash_of(&rest), whole, "{way}");
        assert_eq!(rest["accuracy"], stage.summary("whole")["accuracy"], "{way}");
        let metrics = stage.metrics("rest");
        let (iterations, _, _) = split(&metrics);
        assert_eq!((iterations.len(), &iterations[0]["iteration"]), (10, &10.into()), "{way}");

        // In the folder of the run that it goes on with, its metrics follow theirs.
        assert_eq!(hash_of(&stage.train("half", &format!("{way} {snapshot}"))), whole, "{way}");
        let metrics = stage.metrics("half");
        let numbers = metrics.iter().filter(|r| r.get("loss").is_some()).map(|r| number(r, "iteration"));
        assert!(numbers.eq((0..20).map(f64::from)), "{way}");
    }
}

#[test]
fn snapshots_on_the_way_are_taken_and_do_not_disturb() {
    for way in WAYS {
        let stage = Stage::new();
        let undisturbed = hash_of(&stage.train("without", way));
        stage.write("solver.prototxt", format!("{SOLVER}snapshot: 6\n"));
        assert_eq!(hash_of(&stage.train("with", way)), undisturbed, "{way}");
        for at in [6, 12, 18, 20] {
            let path = stage.path(&format!("with/snapshots/iteration_{at}"));
            assert!(path.is_dir(), "{way}: no {}", path.display());
        }
        let on = "--snapshot with/snapshots/iteration_18";
        assert_eq!(hash_of(&stage.train("on", &format!("{way} {on}"))), undisturbed, "{way}");
    }
}

#[test]
fn testing_stored_weights_gives_what_training_said() {
    let stage = Stage::new();
    for (index, way) in WAYS.iter().enumerate() {
        let run = format!("out{index}");
        let summary = stage.train(&run, way);
        for file in ["iteration_20", "iteration_20.caffemodel"] {
            let weights = format!("{run}/snapshots/{file}");
            let said = stage.succeed(&format!("test -model net.prototxt -weights {weights}")).stdout;
            let value = |name: &str| -> f64 {
                let line = said.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|l| l.trim().parse().ok()).unwrap_or_else(|| panic!("no {name} in {said}"))
            };
            // The sums of two workers or quadrants are added in another order.
            let near = |is: f64, name: &str| (is - number(&summary, name)).abs() < 1e-5;
            assert!(near(value("accuracy ="), "accuracy"), "{way} {file}: {said}\n{summary}");
            assert!(near(value("Loss:"), "test_loss"), "{way} {file}: {said}\n{summary}");
        }
    }
}

#[test]
fn weights_to_start_from_are_used() {
    let stage = Stage::new();
    let trained = stage.train("first", "--max-iter 120");
    let weights = "first/snapshots/iteration_120";
    for file in [format!("{weights}.caffemodel"), weights.to_owned()] {
        let run = file.replace('/', "-");
        stage.train(&run, &format!("--weights {file} --max-iter 1"));
        let metrics = stage.metrics(&run);
        let (_, tests, _) = split(&metrics);
        assert_eq!(tests[0]["accuracy"], trained["accuracy"], "the test before the first iteration");
    }
}

/// Writes a solver with what a stored configuration says, and returns the flags that say the rest.
fn from_configuration(stage: &Stage, stored: &Value) -> String {
    let mut solver = String::new();
    for name in
        ["net", "base_lr", "momentum", "weight_decay", "max_iter", "display", "test_iter", "test_interval"]
    {
        solver += &format!("{name}: {}\n", stored[name]);
    }
    assert_eq!(stored["lr_policy"]["type"], "fixed");
    solver += &format!("lr_policy: \"fixed\"\nregularization_type: {}\n", stored["regularization_type"]);
    stage.write("solver.prototxt", solver);
    let flag = |name: &str| format!(" --{name} {}", stored[name].to_string().trim_matches('"'));
    let flags: String =
        ["workers", "seed", "batch", "quadrants", "threads", "isa", "precision", "method"].map(flag).concat();
    flags + &flag("rho")
}

#[test]
fn the_configuration_in_effect_is_stored_and_makes_the_same_run() {
    let stage = Stage::new();
    stage.edit("solver.prototxt", "\"inv\"", "\"fixed\"");
    stage.edit("solver.prototxt", "display", "regularization_type: \"L1\"\ndisplay");
    let flags = "--max-iter 15 --seed 3 --test-interval 5 --batch 10 --workers 2 --rho 3 --threads 1";
    let hash = hash_of(&stage.train("first", flags));
    let stored = |run: &str| -> Value {
        let text = fs::read_to_string(stage.path(run).join("effective.json")).expect("a configuration");
        serde_json::from_str(&text).expect(&text)
    };
    let first = stored("first");
    assert_eq!(first["precision"], "f32");
    for (name, value) in [("max_iter", 15), ("seed", 3), ("test_interval", 5), ("batch", 10), ("workers", 2)]
    {
        assert_eq!(first[name], value, "{name} in {first}");
    }
    assert_eq!((&first["data"]["name"], &first["network"]["name"]), (&"shapes".into(), &"Small".into()));
    let flags = from_configuration(&stage, &first);
    assert_eq!(hash_of(&stage.train("second", &flags)), hash, "{flags}");
    assert_eq!(stored("second"), first);
}

#[test]
fn caffes_way_of_typing_works() {
    let stage = Stage::new();
    let hash = hash_of(&stage.train("ours", "--max-iter 3"));
    stage.succeed("train -solver solver.prototxt -run theirs -iterations 3");
    assert_eq!(hash_of(&stage.summary("theirs")), hash);
    stage.succeed("train -solver=solver.prototxt -run=third -max_iter=3");
    assert_eq!(hash_of(&stage.summary("third")), hash);
    let topo = stage.succeed("topo").stdout;
    assert!(topo.lines().any(|line| line.starts_with("kernels ")), "{topo}");
    assert_eq!(stage.succeed("device_query").stdout, topo);
    let said = stage.succeed("train -solver solver.prototxt -run fourth").stdout;
    assert!(said.contains("Iteration 10, Testing net (#0)\n    Test net output #0: accuracy = "), "{said}");
    assert!(said.contains("\nIteration 10, lr = "), "{said}");
}

#[test]
fn the_bundled_data_is_found_from_any_folder() {
    let stage = Stage::new();
    let said = stage.succeed("train --max-iter 2 --test-interval 0").stdout;
    assert!(said.contains("LeNet") && said.contains("60000 images 1x28x28"), "{said}");
    let summary = stage.summary("runs/lenet-1");
    assert!(summary["accuracy"].is_null() && number(&summary, "iterations") == 2.0, "{summary}");
    stage.succeed("train --max-iter 1 --test-interval 0");
    assert!(stage.path("runs/lenet-2/metrics.jsonl").is_file(), "the next run has the next number");
}

#[test]
fn a_reader_that_goes_away_does_not_end_the_training() {
    let stage = Stage::new();
    let program = env!("CARGO_BIN_EXE_quadrille");
    let command = format!("{program} train --solver solver.prototxt --max-iter 20 --run out | true");
    let status =
        std::process::Command::new("sh").args(["-c", &command]).current_dir(stage.path(".")).status();
    assert!(status.expect("a shell").success());
    assert_eq!(stage.summary("out")["iterations"], 20);
}

/// A loss that is a sum over images has the same gradient on any number of quadrants, up to rounding.
#[test]
fn a_loss_that_is_a_sum_is_not_divided_among_quadrants() {
    let stage = Stage::new();
    stage.edit("net.prototxt", "name: \"loss\"", "name: \"loss\" loss_param { normalization: NONE }");
    stage.edit("solver.prototxt", "base_lr: 0.05", "base_lr: 0.002");
    let losses = |run: &str, flags: &str| -> Vec<f64> {
        stage.train(run, &format!("--max-iter 5 --test-interval 0 {flags}"));
        let metrics = stage.metrics(run);
        metrics.iter().filter_map(|line| line["loss"].as_f64()).collect()
    };
    let (one, two) = (losses("one", "--quadrants 1"), losses("two", "--quadrants 2"));
    assert_eq!(one.len(), 5);
    for (a, b) in one.iter().zip(&two) {
        assert!((a - b).abs() < 1e-4 * a, "{one:?} against {two:?}");
    }
}
