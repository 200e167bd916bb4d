//! Every solver trains, goes on from a snapshot with the same bits, and has the same bits for any number of threads.

use serde_json::Value;

use crate::common::{SOLVER, Stage, hash_of};

/// What stands in a solver file in place of momentum SGD.
const SOLVERS: [(&str, &str); 6] = [
    ("Nesterov", "type: \"Nesterov\" base_lr: 0.02 momentum: 0.9"),
    ("AdaGrad", "type: \"AdaGrad\" base_lr: 0.02"),
    ("RMSProp", "type: \"RMSProp\" base_lr: 0.002 rms_decay: 0.9"),
    ("AdaDelta", "type: \"AdaDelta\" base_lr: 1 momentum: 0.95 delta: 1e-5"),
    ("Adam", "type: \"Adam\" base_lr: 0.003 momentum: 0.9 momentum2: 0.99"),
    // Several mini-batches, clipping, and what rate and display remember, all at once.
    (
        "all",
        "type: \"Adam\" base_lr: 0.003 momentum: 0.9 iter_size: 3 clip_gradients: 0.5 average_loss: 4 warmup_iter: 3 \
         warmup_start_lr: 0.0001",
    ),
];

const PLATEAU: &str = "base_lr: 0.02 momentum: 0.9 lr_policy: \"plateau\" gamma: 0.5 plateau_winsize: [1, 1, 2, 2, 3] \
                       average_loss: 3";

const STAGES: &str =
    "momentum: 0.9 lr_policy: \"multifixed\" stagelr: [0.001, 0.02, 0.005] stageiter: [3, 8, 12]";

const WAYS: [&str; 4] = [
    "--workers 1",
    "--workers 2 --method sync-sgd",
    "--workers 2 --method sync-easgd",
    "--workers 2 --quadrants 2 --method sync-sgd",
];

/// A solver file of 20 iterations with these fields; the policy is fixed unless they name another.
fn with(fields: &str) -> String {
    let policy = if fields.contains("lr_policy") { "" } else { "lr_policy: \"fixed\"" };
    format!(
        "net: \"net.prototxt\"\n{fields}\n{policy} weight_decay: 0.0005 max_iter: 20 display: 5 test_iter: 4 \
         test_interval: 10 random_seed: 7\n"
    )
}

fn losses(stage: &Stage, run: &str) -> Vec<f64> {
    stage.metrics(run).iter().filter_map(|record| record["loss"].as_f64()).collect()
}

#[test]
fn every_solver_learns() {
    let stage = Stage::new();
    for (name, fields) in SOLVERS {
        stage.write("solver.prototxt", with(fields).replace("max_iter: 20", "max_iter: 120"));
        let summary = stage.train(name, "--test-interval 40");
        assert!(summary["accuracy"].as_f64().expect("a test") >= 0.95, "{name}: {summary}");
    }
}

#[test]
fn every_solver_goes_on_as_if_there_had_been_no_stop() {
    for (name, fields) in SOLVERS.into_iter().chain([("plateau", PLATEAU), ("stages", STAGES)]) {
        for way in WAYS {
            let stage = Stage::new();
            stage.write("solver.prototxt", with(fields));
            let whole = hash_of(&stage.train("whole", way));
            let half = hash_of(&stage.train("half", &format!("{way} --max-iter 9")));
            assert_ne!(whole, half, "{name} {way}");
            let snapshot = "--snapshot half/snapshots/iteration_9";
            let rest = stage.train("rest", &format!("{way} {snapshot}"));
            assert_eq!(hash_of(&rest), whole, "{name} {way}");
            let rate = |run: &str| -> Vec<Value> {
                let records = stage.metrics(run);
                records.iter().filter(|r| r.get("loss").is_some()).map(|r| r["lr"].clone()).collect()
            };
            assert_eq!(rate("rest"), rate("whole")[9..], "{name} {way}");
        }
    }
}

/// Iterations 0 to 3, 4 to 8 and the rest; none asks for base_lr.
#[test]
fn a_run_in_stages_has_the_rate_of_each() {
    let stage = Stage::new();
    stage.write("solver.prototxt", with(STAGES));
    stage.train("r", "");
    let records = stage.metrics("r");
    let rates: Vec<f64> =
        records.iter().filter(|r| r.get("loss").is_some()).filter_map(|r| r["lr"].as_f64()).collect();
    let expected = [vec![0.001; 4], vec![0.02; 5], vec![0.005; 11]].concat();
    assert_eq!(rates.len(), expected.len(), "{rates:?}");
    assert!(rates.iter().zip(expected).all(|(rate, expected)| (rate - expected).abs() < 1e-8), "{rates:?}");
    // The highest rate is what bounds the pull of a centre: 2 workers, 0.02.
    let refused =
        stage.run("train --solver solver.prototxt --run no --workers 2 --method sync-easgd --rho 26");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("only for 0 <= rho <= 25"), "{}", refused.stderr);
}

#[test]
fn no_solver_asks_how_many_threads_there_are() {
    for (name, fields) in SOLVERS {
        let stage = Stage::new();
        stage.write("solver.prototxt", with(fields));
        let hashes = [1, 2, 3].map(|threads| {
            hash_of(&stage.train(&format!("run{threads}"), &format!("--workers 1 --threads {threads}")))
        });
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{name}: {hashes:?}");
    }
}

/// Caffe's own file of state holds weights, histories and iteration; the place in the data follows from the last.
#[test]
fn a_solverstate_goes_on_with_the_same_bits() {
    let sgd = ("SGD", "base_lr: 0.02 momentum: 0.9");
    for (name, fields) in SOLVERS.into_iter().chain([sgd]) {
        let stage = Stage::new();
        stage.write("solver.prototxt", with(fields));
        let whole = hash_of(&stage.train("whole", ""));
        stage.train("half", "--max-iter 9");
        let rest = stage.train("rest", "--snapshot half/snapshots/iteration_9.solverstate");
        assert_eq!(hash_of(&rest), whole, "{name}");
    }
    let stage = Stage::new();
    stage.write("solver.prototxt", with(SOLVERS[4].1));
    stage.train("adam", "--max-iter 2");
    stage.write("solver.prototxt", with(sgd.1));
    let refused = stage
        .run("train --solver solver.prototxt --run no --snapshot adam/snapshots/iteration_2.solverstate");
    assert_eq!(refused.code, Some(65), "{refused:?}");
    assert!(refused.stderr.contains("it has 8 histories; SGD keeps 1 of each of 4"), "{}", refused.stderr);
    let refused = stage.run("train --solver solver.prototxt --run no --snapshot adam/snapshots/iteration_2");
    assert_eq!(refused.code, Some(65), "{refused:?}");
    assert!(
        refused.stderr.contains("its solver type is Adam, that of this run is SGD"),
        "{}",
        refused.stderr
    );
    std::fs::remove_file(stage.path("adam/snapshots/iteration_2.caffemodel")).expect("the weights");
    stage.write("solver.prototxt", with(SOLVERS[4].1));
    let refused = stage
        .run("train --solver solver.prototxt --run no --snapshot adam/snapshots/iteration_2.solverstate");
    assert_eq!(refused.code, Some(66), "{refused:?}");
}

/// An iteration of two mini-batches of 10 is one of 20 images, up to rounding.
#[test]
fn mini_batches_of_an_iteration_are_one_large_one() {
    let stage = Stage::new();
    let solver = with("base_lr: 0.02 momentum: 0.9");
    stage.write("solver.prototxt", &solver);
    stage.train("one", "--batch 20");
    stage.write("solver.prototxt", format!("{solver}iter_size: 2\n"));
    stage.train("two", "--batch 10");
    let (one, two) = (losses(&stage, "one"), losses(&stage, "two"));
    assert_eq!((one.len(), two.len()), (20, 20), "iterations are counted, not mini-batches");
    for (a, b) in one.iter().zip(&two) {
        assert!((a - b).abs() < 1e-4 * a, "{one:?} against {two:?}");
    }
    let images = |run: &str| {
        let summary = stage.summary(run);
        let number = |name: &str| summary[name].as_f64().expect("a number");
        (number("images_per_second") * number("seconds")).round()
    };
    assert_eq!((images("one"), images("two")), (400.0, 400.0));
}

#[test]
fn clipping_bounds_what_an_iteration_can_change() {
    let stage = Stage::new();
    // The first step of momentum SGD without decay is rate times gradient, whose norm is at most the bound.
    let solver = with("base_lr: 0.5 clip_gradients: 0.001").replace("weight_decay: 0.0005", "");
    stage.write("solver.prototxt", &solver);
    stage.train("clipped", "--max-iter 20 --test-interval 0");
    let clipped = losses(&stage, "clipped");
    let spread = clipped.iter().fold(0.0f64, |most, loss| most.max((loss - clipped[0]).abs()));
    assert!(spread < 0.5, "the weights moved by at most 0.01: {clipped:?}");
    stage.write("solver.prototxt", solver.replace("clip_gradients: 0.001", "clip_gradients: 1000"));
    let wide = hash_of(&stage.train("wide", ""));
    stage.write("solver.prototxt", solver.replace("clip_gradients: 0.001", ""));
    assert_eq!(hash_of(&stage.train("none", "")), wide, "nothing is clipped below the bound");
}

#[test]
fn the_displayed_loss_is_the_mean_of_the_last() {
    let stage = Stage::new();
    stage.write("solver.prototxt", format!("{SOLVER}average_loss: 4\n"));
    let said = stage.succeed("train --solver solver.prototxt --run out").stdout;
    let losses = losses(&stage, "out");
    let mean = losses[7..=10].iter().sum::<f64>() / 4.0;
    let line = said.lines().find(|line| line.starts_with("Iteration 10 (")).expect("a line");
    let shown: f64 = line.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a loss");
    assert!((shown - mean).abs() < 1e-5 * mean, "{line}: not {mean}");
}

#[test]
fn a_warm_up_and_a_plateau_set_the_rate() {
    let stage = Stage::new();
    stage.write("solver.prototxt", with("base_lr: 0.05 warmup_iter: 5 warmup_start_lr: 0.01"));
    stage.train("warm", "");
    let rates: Vec<f64> = stage.metrics("warm").iter().filter_map(|record| record["lr"].as_f64()).collect();
    for (at, rate) in rates.iter().enumerate() {
        let expected = if at < 5 { 0.01 + 0.008 * at as f64 } else { 0.05 };
        assert!((rate - expected).abs() < 1e-6, "iteration {at}: {rate}");
    }
    stage.write("solver.prototxt", with(PLATEAU).replace("max_iter: 20", "max_iter: 60"));
    for (run, way) in [("alone", ""), ("two", "--workers 2 --method sync-sgd")] {
        stage.train(run, way);
        let rates: Vec<f64> = stage.metrics(run).iter().filter_map(|record| record["lr"].as_f64()).collect();
        assert!(rates.windows(2).all(|pair| pair[1] == pair[0] || (pair[1] - pair[0] / 2.0).abs() < 1e-8));
        assert!(rates[59] < rates[0], "{run}: no step in {rates:?}");
    }
}
