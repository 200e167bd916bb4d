//! The eleven methods over threads: each trains, goes on, and is refused what it cannot do.

use serde_json::Value;

use crate::common::{SOLVER, Stage, hash_of};

/// All of them, as the flag names them.
pub const METHODS: [&str; 11] = [
    "original-easgd",
    "async-sgd",
    "async-msgd",
    "hogwild-sgd",
    "async-easgd",
    "async-measgd",
    "hogwild-easgd",
    "sync-sgd",
    "sync-easgd1",
    "sync-easgd2",
    "sync-easgd3",
];

/// Those whose order of sums is fixed.
const REPRODUCIBLE: [&str; 5] = ["original-easgd", "sync-sgd", "sync-easgd1", "sync-easgd2", "sync-easgd3"];

/// Without momentum by definition.
const PLAIN: [&str; 3] = ["async-sgd", "hogwild-sgd", "async-easgd"];

fn is_elastic(method: &str) -> bool {
    method.ends_with("easgd") || method.contains("sync-easgd")
}

/// The solver with a rate that makes up for a momentum that a method has not.
fn solver_for(method: &str) -> String {
    let rate = if PLAIN.contains(&method) { "base_lr: 0.2" } else { "base_lr: 0.05" };
    SOLVER.replace("base_lr: 0.05", rate)
}

fn accuracy(summary: &Value) -> f64 {
    summary["accuracy"].as_f64().unwrap_or_else(|| panic!("not tested: {summary}"))
}

#[test]
fn each_is_listed_with_a_line_of_its_own() {
    let said = Stage::new().succeed("train --help").stdout;
    for method in METHODS {
        let lines = said.lines().filter(|line| line.trim_start().starts_with(&format!("{method} ")));
        assert_eq!(lines.count(), 1, "{method} in {said}");
    }
}

#[test]
fn each_learns_and_says_its_name() {
    let stage = Stage::new();
    for method in METHODS {
        stage.write("solver.prototxt", solver_for(method));
        let flags = format!("--workers 2 --method {method} --max-iter 200 --test-interval 100");
        let said = stage.succeed(&format!("train --solver solver.prototxt --run {method} {flags}")).stdout;
        assert!(said.contains(&format!("\nmethod      {method}: SC17, ")), "{said}");
        assert_eq!(
            said.contains("the solver's 0.9 is set aside"),
            PLAIN.contains(&method),
            "{method}: {said}"
        );
        let summary = stage.summary(method);
        assert_eq!(summary["method"], method);
        assert!(accuracy(&summary) >= 0.9, "{method}: {summary}");
        assert!(summary["test_loss"].as_f64().is_some_and(|loss| loss < 1.0), "{method}: {summary}");
        let line = said.lines().find(|line| line.starts_with("summary ")).expect("a summary");
        assert!(line.contains(&format!("{method}, ")), "{line}");
        let expected = usize::from(!is_elastic(method));
        let state = stage.path(&format!("{method}/snapshots/iteration_200.solverstate"));
        assert_eq!(usize::from(state.is_file()), expected, "{method}: histories of one for all");
    }
}

#[test]
fn one_worker_is_plain_training_by_any_method() {
    let stage = Stage::new();
    let plain = hash_of(&stage.train("plain", "--workers 1"));
    for method in METHODS {
        let summary = stage.train(method, &format!("--workers 1 --method {method}"));
        assert_eq!((hash_of(&summary), &summary["method"]), (plain.clone(), &"sgd".into()), "{method}");
    }
}

#[test]
fn those_with_an_order_give_the_same_bits_and_sync_easgd_gives_one_result() {
    let stage = Stage::new();
    for (flags, index) in [("--workers 2", 0), ("--workers 3 --threads 1 --period 3 --momentum 0.8", 1)] {
        let hashes = REPRODUCIBLE.map(|method| {
            let flags = if is_elastic(method) { flags } else { "--workers 3 --threads 1" };
            let run = |again: u32| format!("{method}{index}{again}");
            let hash = |again| hash_of(&stage.train(&run(again), &format!("{flags} --method {method}")));
            let (first, second) = (hash(1), hash(2));
            assert_eq!(first, second, "{method} {flags}");
            first
        });
        let [original, sgd, one, two, three] = hashes;
        assert_eq!((&one, &two), (&two, &three), "{flags}");
        assert!(original != sgd && original != one && sgd != one, "{flags}");
    }
}

#[test]
fn the_period_changes_how_often_workers_exchange() {
    let stage = Stage::new();
    let hash = |run: &str, flags: &str| hash_of(&stage.train(run, &format!("--workers 2 {flags}")));
    let every = hash("a", "");
    assert_eq!(every, hash("b", "--period 1"));
    assert_ne!(every, hash("c", "--period 2"));
    // Beyond the end it is one exchange, that of the first iteration, where all weights are equal: the centre stays.
    let first = hash("d", "--period 1000");
    assert_eq!(first, hash("e", "--period 20 --method original-easgd"));
    assert_eq!(first, hash("f", "--period 20 --method hogwild-easgd --momentum 0.5"));
}

#[test]
fn momentum_of_the_flag_is_the_solvers() {
    let stage = Stage::new();
    let given = hash_of(&stage.train("given", "--momentum 0.5"));
    assert_ne!(given, hash_of(&stage.train("other", "")));
    stage.edit("solver.prototxt", "momentum: 0.9", "momentum: 0.5");
    assert_eq!(given, hash_of(&stage.train("own", "")));
}

#[test]
fn a_snapshot_of_each_goes_on_by_the_same_method_only() {
    let stage = Stage::new();
    for method in METHODS {
        let way = format!("--workers 2 --method {method}");
        stage.train(method, &format!("{way} --max-iter 10"));
        let on = format!("{way} --resume {method} --max-iter 20");
        let summary = stage.train(method, &on);
        assert_eq!(summary["iterations"], 20, "{method}: {summary}");
        let records = stage.metrics(method).iter().filter(|record| record.get("loss").is_some()).count();
        assert_eq!(records, 20, "{method}");
        let other = if method == "sync-sgd" { "async-msgd" } else { "sync-sgd" };
        let refused = stage
            .run(&format!("train --solver solver.prototxt --workers 2 --method {other} --resume {method}"));
        let expected = format!("its method is {method}, that of this run is {other}");
        assert_eq!((refused.code, refused.stderr.contains(&expected)), (Some(65), true), "{refused:?}");
    }
}

/// With one exchange of each worker at a time nothing of the momentum may be lost on the way through a snapshot: a master
/// that forgot it would take other steps than equations (3) and (4).
#[test]
fn the_masters_history_is_stored_and_taken_up_again() {
    let stage = Stage::new();
    // A gradient of 0 leaves only the momentum: rate 0 after the stop.
    stage.train("run", "--workers 2 --method async-msgd --max-iter 5 --test-interval 0");
    let history = |iteration: u32| {
        let path = stage.path(&format!("run/snapshots/iteration_{iteration}"));
        let files = quadrille_io::snapshot::Snapshot::read(&path).expect("a snapshot").files;
        let file = &files["worker0.safetensors"];
        assert!(!files.contains_key("worker1.safetensors"), "workers are equal in a snapshot");
        file["history/ip/0"].1.clone()
    };
    let before = history(5);
    assert!(before.iter().any(|value| *value != 0.0));
    stage.edit("solver.prototxt", "base_lr: 0.05", "base_lr: 1e-30");
    stage.train("run", "--workers 2 --method async-msgd --max-iter 6 --test-interval 0 --resume run");
    // One iteration of two workers: twice μ, and steps of nothing.
    for (after, before) in history(6).iter().zip(&before) {
        assert!((after - 0.81 * before).abs() <= 1e-6 * before.abs(), "{after} of {before}");
    }
}

fn refused(stage: &Stage, flags: &str, code: i32, says: &[&str]) {
    let outcome = stage.run(&format!("train --solver solver.prototxt --run out {flags}"));
    assert_eq!(outcome.code, Some(code), "{flags}: {outcome:?}");
    for text in says {
        assert!(outcome.stderr.contains(text), "{flags}: no {text:?} in {}", outcome.stderr);
    }
    assert!(!stage.path("out").exists(), "{flags}: a refused run left a folder");
}

#[test]
fn what_a_method_cannot_do_is_refused() {
    let stage = Stage::new();
    for method in PLAIN {
        let flags = format!("--workers 2 --method {method} --momentum 0.5");
        refused(&stage, &flags, 2, &["--momentum 0.5", method, "without momentum"]);
        stage.train(method, &format!("--workers 2 --method {method} --momentum 0 --max-iter 1"));
    }
    for method in METHODS.into_iter().filter(|method| !is_elastic(method)) {
        let way = format!("--workers 2 --method {method}");
        refused(&stage, &format!("{way} --period 2"), 2, &["--period 2", method, "iter_size"]);
        refused(&stage, &format!("{way} --rho 1"), 2, &["--rho 1", "sync-easgd3"]);
    }
    refused(&stage, "--workers 1 --period 2", 2, &["--period 2", "single worker"]);
    refused(&stage, "--workers 2 --period 0", 2, &["--period", "at least 1"]);
    for momentum in ["1", "-0.5", "nan", "inf"] {
        refused(&stage, &format!("--momentum {momentum}"), 2, &["--momentum", "below 1"]);
    }
    // One worker at a time may be pulled further than all together.
    let bound = |method: &str| format!("--workers 2 --method {method} --rho 15");
    refused(&stage, &bound("sync-easgd1"), 2, &["--rho 15", "0 <= rho <= 10"]);
    stage.train("wide", &format!("{} --max-iter 1", bound("async-measgd")));
    refused(&stage, "--workers 2 --method async-easgd --rho 25", 2, &["--rho 25", "0 <= rho <= 20"]);
}

#[test]
fn solvers_that_a_master_cannot_run_are_refused_by_the_field() {
    let stage = Stage::new();
    stage.edit("solver.prototxt", "max_iter", "type: \"Nesterov\"\nmax_iter");
    for method in METHODS {
        let way = format!("--workers 2 --method {method}");
        if ["async-sgd", "hogwild-sgd"].contains(&method) {
            refused(&stage, &way, 64, &["solver.prototxt", "type", "Nesterov", method, "needs SGD"]);
        } else {
            stage.train(method, &format!("{way} --max-iter 2"));
        }
    }
    stage.edit("solver.prototxt", "Nesterov", "Adam");
    stage.edit("solver.prototxt", "base_lr: 0.05", "base_lr: 0.001");
    for method in METHODS {
        let way = format!("--workers 2 --method {method}");
        if is_elastic(method) || method == "sync-sgd" {
            stage.train(&format!("adam-{method}"), &format!("{way} --max-iter 2"));
        } else {
            refused(&stage, &way, 64, &["solver.prototxt", "type", "Adam", method, "needs SGD"]);
        }
    }
    stage.edit("solver.prototxt", "momentum: 0.9\n", "");
    stage.edit("solver.prototxt", "Adam", "RMSProp");
    refused(&stage, "--momentum 0.5", 2, &["--momentum 0.5", "RMSProp has no momentum"]);
}

#[test]
fn iter_size_clipping_quadrants_and_rates_that_follow_the_loss_go_with_each() {
    let stage = Stage::new();
    for method in METHODS {
        let solver = solver_for(method).replace("\"inv\"", "\"plateau\" plateau_winsize: 20");
        let solver = solver.replace("gamma: 0.01", "gamma: 0.9");
        stage.write("solver.prototxt", solver + "iter_size: 2\nclip_gradients: 5\n");
        let flags = format!("--workers 2 --quadrants 2 --threads 1 --method {method} --max-iter 100");
        let summary = stage.train(method, &flags);
        let metrics = stage.metrics(method);
        let losses: Vec<f64> = metrics.iter().filter_map(|record| record["loss"].as_f64()).collect();
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        assert!(mean(&losses[90..]) < 0.7 * mean(&losses[..5]), "{method}: {summary} {losses:?}");
    }
}

#[test]
fn sums_by_pairs_have_the_same_bits_whatever_way_they_go_packed_or_not() {
    let stage = Stage::new();
    for method in ["sync-sgd", "sync-easgd1", "sync-easgd2", "sync-easgd3"] {
        let hash = |run: &str, flags: &str| {
            let flags = format!("--method {method} --threads 1 {flags}");
            hash_of(&stage.train(&format!("{method}-{run}"), &flags))
        };
        let two = hash("two", "--workers 2");
        for (index, flags) in
            ["tree", "doubling", "ring", "tree --unpacked", "auto --unpacked"].iter().enumerate()
        {
            assert_eq!(
                hash(&format!("two{index}"), &format!("--workers 2 --collective {flags}")),
                two,
                "{flags}"
            );
        }
        let four = hash("four", "--workers 4 --collective tree");
        for (index, flags) in ["doubling", "tree --unpacked", "doubling --unpacked"].iter().enumerate() {
            assert_eq!(
                hash(&format!("four{index}"), &format!("--workers 4 --collective {flags}")),
                four,
                "{flags}"
            );
        }
        // Of four terms the ring adds in another order, and always in the same.
        let ring = hash("ring", "--workers 4 --collective ring");
        assert_eq!(
            (ring != four, hash("again", "--workers 4 --collective ring") == ring),
            (true, true),
            "{method}"
        );
        // Arrays by themselves never go around the ring.
        let three = hash("three", "--workers 3 --unpacked");
        assert_eq!(hash("three-tree", "--workers 3 --collective tree"), three, "{method}");
    }
    let original = |run: &str, flags: &str| {
        hash_of(&stage.train(run, &format!("--workers 3 --threads 1 --method original-easgd {flags}")))
    };
    assert_eq!(original("original", ""), original("original-unpacked", "--unpacked"));
}

#[test]
fn the_way_of_sums_is_said_and_a_run_goes_on_by_the_same_order_only() {
    let stage = Stage::new();
    let way = "--workers 4 --threads 1 --method sync-sgd";
    let train = |flags: &str| stage.run(&format!("train --solver solver.prototxt --run run {way} {flags}"));
    let said = train("--max-iter 10 --collective doubling --unpacked").stdout;
    assert!(said.contains("MiB by doubling, a message for each array"), "{said}");
    let refused = train("--max-iter 20 --resume run --collective ring");
    let why = "its order of sums over workers is pairs, that of this run is ring";
    assert_eq!((refused.code, refused.stderr.contains(why)), (Some(65), true), "{refused:?}");
    assert_eq!(train("--max-iter 20 --resume run --collective tree").code, Some(0));
}

/// At a rate of 0 nothing moves, which is no fault of a rho that nobody gave.
#[test]
fn a_rate_of_nothing_has_no_pull() {
    let stage = Stage::new();
    stage.edit("solver.prototxt", "base_lr: 0.05", "base_lr: 0");
    let command = "train --solver solver.prototxt --workers 2 --threads 1 --max-iter 2 --run run";
    let said = stage.succeed(command).stdout;
    assert!(said.contains("            rho 0 (pull eta*rho = 0 at the start)"), "{said}");
}

#[test]
fn ways_that_cannot_be_are_refused() {
    let stage = Stage::new();
    let case = |flags: &str, says: &[&str]| refused(&stage, flags, 2, says);
    case("--workers 3 --collective doubling", &["3 workers are no power of two"]);
    case("--workers 1 --collective tree", &["--collective", "a single worker"]);
    case("--workers 2 --collective star", &["--collective", "doubling or ring"]);
    case("--workers 2 --collective ring --unpacked", &["--unpacked", "tree or doubling"]);
    case(
        "--workers 2 --method original-easgd --collective tree",
        &["--collective", "original-easgd sums nothing"],
    );
    case("--workers 1 --unpacked", &["--unpacked", "a single worker"]);
    for method in ["async-sgd", "hogwild-easgd", "async-measgd"] {
        let says = ["--unpacked", method, "original-easgd", "sync-easgd3"];
        case(&format!("--workers 2 --method {method} --unpacked"), &says);
        case(&format!("--workers 2 --method {method} --collective tree"), &["--collective", method]);
    }
}
