//! A network with BatchNorm, Scale and Eltwise: it learns in every way of training, tests with its running sums, and goes
//! on from a snapshot.

use crate::common::{Stage, hash_of};

/// What lies between the data and the classifier of [`crate::common::NET`]: a convolution, normalised in place, and
/// its sum with another one.
const BLOCK: &str = r#"layer { name: "bn1" type: "BatchNorm" bottom: "conv" top: "conv"
  batch_norm_param { moving_average_fraction: 0.9 } }
layer { name: "scale1" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu1" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "conv2" type: "Convolution" bottom: "conv" top: "conv2"
  convolution_param { num_output: 6 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "msra" } } }
layer { name: "bn2" type: "BatchNorm" bottom: "conv2" top: "conv2"
  param { lr_mult: 0 } param { lr_mult: 0 } param { lr_mult: 0 }
  batch_norm_param { moving_average_fraction: 0.9 } }
layer { name: "scale2" type: "Scale" bottom: "conv2" top: "conv2" scale_param { bias_term: true } }
layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "conv2" top: "sum" }
"#;

const WAYS: [&str; 4] =
    ["--workers 1", "--quadrants 2", "--workers 2 --method sync-sgd", "--workers 2 --quadrants 2"];

fn stage() -> Stage {
    let stage = Stage::new();
    stage.edit("net.prototxt", "layer {\n  name: \"pool\"", &format!("{BLOCK}layer {{\n  name: \"pool\""));
    stage.edit("net.prototxt", "bottom: \"conv\"\n  top: \"pool\"", "bottom: \"sum\"\n  top: \"pool\"");
    stage
}

#[test]
fn every_way_of_training_learns_and_tests_with_the_kept_statistics() {
    let stage = stage();
    for (index, way) in WAYS.iter().enumerate() {
        let run = format!("out{index}");
        let summary = stage.train(&run, &format!("--max-iter 120 --test-interval 40 {way}"));
        let accuracy = summary["accuracy"].as_f64().expect("a number");
        assert!(accuracy >= 0.95, "{way}: {summary}");
        // Caffe's own file holds the running sums, too.
        let weights = format!("{run}/snapshots/iteration_120.caffemodel");
        let said = stage.succeed(&format!("test --model net.prototxt --weights {weights}")).stdout;
        assert!(said.contains(&format!("accuracy = {accuracy}\n")), "{way}: {said}");
    }
}

#[test]
fn a_snapshot_goes_on_as_if_there_had_been_no_stop() {
    let stage = stage();
    for (index, way) in WAYS.iter().enumerate() {
        let whole = hash_of(&stage.train(&format!("whole{index}"), way));
        stage.train(&format!("half{index}"), &format!("{way} --max-iter 10"));
        let snapshot = format!("--snapshot half{index}/snapshots/iteration_10");
        let rest = stage.train(&format!("rest{index}"), &format!("{way} {snapshot}"));
        assert_eq!(hash_of(&rest), whole, "{way}");
    }
}

/// What is said of it, that weights and snapshots are those of the file's layers either way, and that a part of a fused
/// layer has no kernel.
#[test]
fn layers_are_fused_unless_that_is_not_wished() {
    let stage = stage();
    let train = |run: &str, flags: &str| {
        stage.succeed(&format!("train --solver solver.prototxt --workers 1 --run {run} {flags}")).stdout
    };
    let fused = train("fused", "--max-iter 10");
    assert!(fused.contains("fused       bn1 + scale1 + relu1, bn2 + scale2 + sum\n"), "{fused}");
    let apart = train("apart", "--max-iter 10 --no-fusion");
    assert!(!apart.contains("fused ") && apart.contains("scale1=channels"), "{apart}");
    assert_ne!(hash_of(&stage.summary("fused")), hash_of(&stage.summary("apart")), "is anything fused?");
    // Each goes on from the other.
    train("fused-again", "--max-iter 20 --snapshot apart/snapshots/iteration_10");
    train("apart-again", "--max-iter 20 --no-fusion --snapshot fused/snapshots/iteration_10");
    // Names and types of Caffe's file are those of the layers apart.
    for run in ["fused", "apart"] {
        let bytes =
            std::fs::read(stage.path(run).join("snapshots/iteration_10.caffemodel")).expect("weights");
        for name in ["bn1", "scale1", "Scale", "BatchNorm"] {
            assert!(bytes.windows(name.len()).any(|w| w == name.as_bytes()), "{name} in {run}");
        }
    }
    let refused = stage.run("time --model net.prototxt --iterations 1 --kernel scale1=reference");
    assert_eq!(refused.code, Some(2));
    for part in ["scale1", "bn1", "--no-fusion"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    stage.succeed("time --model net.prototxt --iterations 1 --kernel scale1=reference --no-fusion");
    let table = stage.succeed("time --model net.prototxt --iterations 1").stdout;
    assert!(table.contains("\nbn1 + scale1 + relu1 "), "{table}");
}

#[test]
fn factors_of_single_images_are_not_cut() {
    let stage = stage();
    stage.edit("net.prototxt", "scale_param { bias_term: true }", "\nscale_param { axis: 0 num_axes: 0 }");
    stage.train("single", "--quadrants 2");
    stage.edit("net.prototxt", "axis: 0 num_axes: 0", "axis: 0");
    stage.edit("net.prototxt", "batch_size: 50", "batch_size: 20");
    stage.train("whole", "--quadrants 1");
    let commands = [
        "train --solver solver.prototxt --run cut",
        "time --model net.prototxt --iterations 1",
        "plan --model net.prototxt",
    ];
    for command in commands {
        let outcome = stage.run(&format!("{command} --quadrants 2"));
        assert_eq!(outcome.code, Some(64), "{command}: {}{}", outcome.stdout, outcome.stderr);
        for part in
            ["layer \"scale1\": scale_param.axis: 0 makes images depend on each other", "--quadrants 1"]
        {
            assert!(outcome.stderr.contains(part), "{command}: {}", outcome.stderr);
        }
    }
}
