//! The small network with other functions and other losses of labels: each learns, and as determined as any other.

use std::fs;

use serde_json::Value;

use crate::common::{Stage, hash_of};

/// The bytes of the identity over ten classes as Caffe stores a blob: values, and then extents.
fn identity() -> Vec<u8> {
    let values = (0..100).map(|i| if i % 11 == 0 { 1.0f32 } else { 0.0 });
    let mut bytes = vec![0x2a, 0x90, 0x03];
    bytes.extend(values.flat_map(f32::to_le_bytes));
    bytes.extend([0x3a, 0x04, 0x0a, 0x02, 10, 10]);
    bytes
}

/// The small network with `function` in place of its ReLU and `loss` in place of its loss.
fn stage(function: &str, loss: &str) -> Stage {
    let stage = Stage::new();
    stage.write("gains.binaryproto", identity());
    stage.edit("net.prototxt", "type: \"ReLU\"", function);
    stage.edit("net.prototxt", "type: \"SoftmaxWithLoss\"", loss);
    stage
}

#[test]
fn functions_and_losses_learn_and_are_determined() {
    for (function, loss) in [
        ("type: \"PReLU\"", "type: \"InfogainLoss\" infogain_loss_param { source: \"gains.binaryproto\" }"),
        ("type: \"ELU\"", "type: \"HingeLoss\" loss_weight: 0.2 hinge_loss_param { norm: L2 }"),
        ("type: \"TanH\"", "type: \"HingeLoss\" loss_weight: 0.5"),
    ] {
        for (way, ways) in [
            ("", ["--threads 1", "--threads 3"]),
            ("--quadrants 2", ["--quadrants 2 --threads 1", "--quadrants 2 --threads 2"]),
        ] {
            let stage = stage(function, loss);
            let summary = stage.train("out", &format!("--max-iter 120 {way}"));
            assert!(summary["accuracy"].as_f64() >= Some(0.95), "{function} {loss} {way}: {summary}");
            for (index, other) in ways.into_iter().enumerate() {
                let again = stage.train(&format!("again{index}"), &format!("--max-iter 120 {other}"));
                assert_eq!(hash_of(&again), hash_of(&summary), "{function} {loss} {other}");
            }
        }
    }
}

/// The loss of a run's first iteration.
fn first_loss(stage: &Stage, run: &str) -> f64 {
    let text = fs::read_to_string(stage.path(run).join("metrics.jsonl")).expect("the run's metrics");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    lines.filter_map(|line| line["loss"].as_f64()).next().expect("an iteration")
}

/// The sum of its values times the weight is added to the loss that is shown, and the weight is their gradient.
#[test]
fn a_blob_of_many_values_can_be_a_part_of_the_loss() {
    let stage = Stage::new();
    let plain = stage.train("plain", "--max-iter 1");
    stage.edit("net.prototxt", "top: \"pool\"\n", "top: \"pool\"\n  loss_weight: 0.25\n");
    let weighted = stage.train("weighted", "--max-iter 1");
    assert_ne!(hash_of(&plain), hash_of(&weighted), "its gradient takes part");
    stage.edit("net.prototxt", "loss_weight: 0.25", "loss_weight: 0.5");
    stage.train("twice", "--max-iter 1");
    let [once, twice] =
        ["weighted", "twice"].map(|run| first_loss(&stage, run) - first_loss(&stage, "plain"));
    assert!(once.abs() > 1.0 && (twice / once - 2.0).abs() < 1e-4, "{once}, {twice}");
}

/// A loss that others read is trained by and shown to its end, and its value is there after a step although memory is shared.
#[test]
fn a_loss_can_be_read() {
    let stage = Stage::new();
    let plain = stage.train("plain", "--max-iter 40");
    let quiet = "\nlayer { name: \"quiet\" type: \"Silence\" bottom: \"loss\" }\n";
    stage.edit("net.prototxt", "  top: \"loss\"\n}\n", &format!("  top: \"loss\"\n}}{quiet}"));
    assert_eq!(hash_of(&stage.train("silenced", "--max-iter 40")), hash_of(&plain));
    assert_eq!(first_loss(&stage, "silenced"), first_loss(&stage, "plain"));
    let half = "\nlayer { name: \"half\" type: \"Power\" bottom: \"loss\" top: \"half\" power_param { scale: 0.5 } loss_weight: 2 }\n";
    stage.edit("net.prototxt", quiet, half);
    let refused = stage.run("train --solver solver.prototxt --run none");
    assert_eq!(refused.code, Some(64), "{refused:?}");
    let expected = "layer \"loss\": loss_weight: missing, but a gradient comes from layer \"half\"";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    stage.edit("net.prototxt", "  top: \"loss\"\n", "  top: \"loss\"\n  loss_weight: 0\n");
    for (run, way) in [("halved", ""), ("cut", "--quadrants 2")] {
        let summary = stage.train(run, &format!("--max-iter 40 {way}"));
        let loss = |summary: &Value| summary["test_loss"].as_f64().expect("a loss");
        assert!((loss(&summary) - loss(&plain)).abs() < 1e-3 * loss(&plain), "{run}: {summary} but {plain}");
    }
}
