//! `--clock sim`: real numbers in virtual time.

use serde_json::Value;

use crate::common::{Stage, hash_of};
use crate::methods::METHODS;

/// A machine on which a mini-batch of the test's solver takes 2 ms, its copy 0.1 ms and a message 0.5 ms, whatever its size.
const MACHINE: &str = r#"name: "of the tests"
source: "made up"
step { network: "Small" batch: 64 forward_backward_ms: 2 }
worker { gflops: 10 gbytes_per_s: 10 update_gbytes_per_s: 1e6 }
host_update_gbytes_per_s: 1e6
data { latency_us: 100 gbytes_per_s: 1e6 }
workers { latency_us: 500 gbytes_per_s: 1e6 }
host { latency_us: 700 gbytes_per_s: 1e6 }
master { latency_us: 500 gbytes_per_s: 1e6 }
control_us: 0
"#;

fn stage() -> Stage {
    let stage = Stage::new();
    stage.write("machine.prototxt", MACHINE);
    stage
}

fn sim(method: &str, workers: usize) -> String {
    format!(
        "--clock sim --machine machine.prototxt --method {method} --workers {workers} --batch 64 --max-iter 10"
    )
}

/// Seconds after each iteration, and those of its parts.
fn times(stage: &Stage, run: &str) -> Vec<(f64, Value)> {
    let metrics = stage.metrics(run);
    let iterations = metrics.iter().filter(|record| record["loss"].is_number());
    iterations.map(|record| (record["seconds"].as_f64().expect("seconds"), record["time"].clone())).collect()
}

#[test]
fn every_method_has_the_same_bits_and_times_again() {
    let stage = stage();
    for method in METHODS {
        let run = |again: u32| {
            let name = format!("{method}-{again}");
            let summary = stage.train(&name, &sim(method, 3));
            assert_eq!((&summary["clock"], &summary["machine"]), (&"sim".into(), &"of the tests".into()));
            assert!(stage.metrics(&name)[..3].iter().all(|record| record["clock"] == "sim"), "{method}");
            (hash_of(&summary), times(&stage, &name))
        };
        let first = run(1);
        assert_eq!(first.1.len(), 10, "{method}");
        assert_eq!(run(2), first, "{method}");
    }
}

#[test]
fn the_clock_changes_no_bit_where_the_order_is_fixed() {
    let stage = stage();
    for method in ["original-easgd", "sync-sgd", "sync-easgd1", "sync-easgd2", "sync-easgd3"] {
        let real = hash_of(&stage.train(
            &format!("{method}-r"),
            &format!("--method {method} --workers 3 --batch 64 --max-iter 10"),
        ));
        assert_eq!(hash_of(&stage.train(&format!("{method}-s"), &sim(method, 3))), real, "{method}");
    }
}

#[test]
fn an_iteration_takes_what_the_figures_say() {
    let stage = stage();
    // Computing 2 ms, beside it the next mini-batch, 0.1 ms, and beside them or behind them a message up and one down the tree
    // of two workers.
    let cases = [
        ("sync-easgd3", 2, 2.0, "hidden_communication", 1.0),
        ("sync-easgd3", 2, 2.0, "hidden_data_copy", 0.1),
        ("sync-easgd2", 2, 3.0, "comm_workers", 1.0),
        ("sync-easgd1", 2, 3.4, "comm_host", 1.4),
        ("sync-easgd2", 4, 4.0, "comm_workers", 2.0),
        ("async-sgd", 1, 2.0, "forward_backward", 2.0),
        ("async-sgd", 2, 3.0, "comm_host", 1.0),
        ("async-easgd", 2, 2.0, "hidden_communication", 1.0),
        ("hogwild-sgd", 2, 3.0, "comm_host", 1.0),
        ("original-easgd", 2, 4.0, "turn", 2.0),
    ];
    for (index, (method, workers, whole, part, milliseconds)) in cases.into_iter().enumerate() {
        let run = format!("run{index}");
        let tree = if method.starts_with("sync") { " --collective tree" } else { "" };
        stage.train(&run, &(sim(method, workers) + tree));
        let found = times(&stage, &run);
        let iteration = 1e3 * (found[9].0 - found[4].0) / 5.0;
        // Updates and bytes take next to nothing here.
        assert!((iteration - whole).abs() < 0.05, "{method} {workers}: {iteration} ms");
        let spent = 1e3 * found[7].1[part].as_f64().unwrap_or(0.0);
        assert!((spent - milliseconds).abs() < 0.05, "{method} {workers}: {part} {spent} ms: {}", found[7].1);
    }
}

#[test]
fn gradients_leave_beside_backward() {
    let stage = stage();
    let flags = "--method sync-sgd --workers 2 --batch 64 --max-iter 10 --collective tree --unpacked";
    let real = hash_of(&stage.train("real", flags));
    let summary = stage.train("sim", &format!("{flags} --clock sim --machine machine.prototxt"));
    assert_eq!(hash_of(&summary), real);
    let found = times(&stage, "sim");
    let iteration = 1e3 * (found[9].0 - found[4].0) / 5.0;
    let part = |name: &str| 1e3 * found[7].1[name].as_f64().unwrap_or(0.0);
    // Arrays of two layers with weights and biases, a message up and one down for each: 4 ms, of which all but the first's wait for
    // their turn and not for backward. The first array, of the last layer, is there when backward has most of its work before it.
    let hidden = 4.0 + 2.0 - iteration;
    assert!((0.2..1.5).contains(&hidden), "an iteration takes {iteration} ms: {}", found[7].1);
    let told = part("hidden_communication") + part("hidden_forward_backward");
    assert!((told - hidden).abs() < 0.05, "{told} of {hidden} ms: {}", found[7].1);
}

#[test]
fn all_that_is_said_is_labelled() {
    let stage = stage();
    let said =
        stage.succeed(&format!("train --solver solver.prototxt --run r {}", sim("sync-easgd3", 2))).stdout;
    for line in [
        "\nclock       sim: computing, copies and messages take what they take on \"of the tests\"\n",
        "sim: forward and backward of a mini-batch 2.000 ms (as measured)",
        "(sim: ",
        "\ntime        sim: worker 0\n",
        "\nsummary     sim: sync-easgd3, ",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn what_the_figures_cannot_be_is_refused() {
    let stage = stage();
    let refused = |flags: &str, code: i32, expected: &str| {
        let ran = stage.run(&format!("train --solver solver.prototxt --run r {flags}"));
        assert_eq!(ran.code, Some(code), "{flags}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    };
    refused("--clock sim", 2, "needs --machine FILE");
    refused("--machine machine.prototxt", 2, "for --clock sim");
    refused("--clock sim --machine nowhere", 66, "nowhere");
    stage.edit("machine.prototxt", "gflops: 10", "gflops: -1");
    refused(
        "--clock sim --machine machine.prototxt",
        64,
        "machine.prototxt:4: machine: worker.gflops: -1; expected",
    );
}

#[test]
fn the_machines_of_the_sources_are_read() {
    let stage = stage();
    for machine in [
        "sc17-gpu-node",
        "cori-knl-aries",
        "cluster-fdr",
        "cluster-qdr",
        "cluster-10gbe",
        "xeon-2-workers",
        "knl-quadrant",
        "k40c",
        "p100",
        "h100",
    ] {
        let file = format!("{}/bench/machines/{machine}.prototxt", env!("CARGO_MANIFEST_DIR"));
        let flags = format!("--clock sim --machine {file} --workers 2 --max-iter 2");
        assert_eq!(stage.train(machine, &flags)["clock"], "sim", "{machine}");
    }
}
