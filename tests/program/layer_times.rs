//! `quadrille time`: every layer has a row, and the numbers are numbers. How large they are is a benchmark's affair.

use quadrille_cpu::isa::Isa;
use serde_json::Value;

use crate::common::Stage;

const LAYERS: [&str; 6] = ["shapes", "conv", "pool", "relu", "ip", "loss"];

/// The number `name`, which is positive.
fn positive(value: &Value, name: &str) -> f64 {
    let number = value[name].as_f64().unwrap_or_else(|| panic!("{name} in {value}"));
    assert!(number > 0.0 && number.is_finite(), "{name} in {value}");
    number
}

#[test]
fn one_json_object_with_every_layer() {
    let stage = Stage::new();
    let outcome = stage.succeed("time --model net.prototxt --iterations 3 --json");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object and nothing else");
    for name in ["iteration_ms", "peak_gflops", "bandwidth_gbs", "gflops", "share_of_peak"] {
        positive(&report, name);
    }
    if cfg!(target_os = "linux") {
        assert!(positive(&report, "peak_memory_mib") > 1.0);
    }
    let outside = report["outside_kernels_percent"].as_f64().expect("a share");
    assert!((0.0..100.0).contains(&outside), "{outside}");
    assert_eq!((&report["network"], &report["batch"]), (&"Small".into(), &20.into()));
    assert_eq!((&report["precision"], &report["iterations"]), (&"f32".into(), &3.into()));
    let layers = report["layers"].as_array().expect("layers");
    let names: Vec<&str> = layers.iter().filter_map(|l| l["layer"].as_str()).collect();
    assert_eq!(names, LAYERS);
    for layer in layers {
        for name in ["forward_ms", "backward_ms", "update_ms", "gflops", "share_of_peak"] {
            assert!(layer[name].as_f64().is_some_and(|n| n >= 0.0), "{name} in {layer}");
        }
        for name in ["forward_ms", "ms", "bytes", "gbs", "share_of_bandwidth"] {
            positive(layer, name);
        }
        for name in ["kernel", "type", "layout"] {
            assert!(layer[name].is_string(), "{name} in {layer}");
        }
    }
    for layer in layers.iter().filter(|l| l["layer"] == "conv" || l["layer"] == "ip") {
        for name in ["backward_ms", "update_ms", "gflops", "share_of_peak"] {
            positive(layer, name);
        }
    }
}

#[test]
fn sub_tasks_state_their_work() {
    let stage = Stage::new();
    let outcome = stage.succeed("time --model net.prototxt --iterations 1 --json");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
    let layer = |name: &str| {
        let layers = report["layers"].as_array().expect("layers");
        layers.iter().find(|l| l["layer"] == name).unwrap_or_else(|| panic!("{name}")).clone()
    };
    let work = |layer: &Value, sub: &str| {
        let subs = layer["sub_tasks"].as_array().expect("sub-tasks");
        let found = subs.iter().find(|s| s["sub_task"] == sub).unwrap_or_else(|| panic!("{sub} in {layer}"));
        (found["flops"].as_u64().expect("operations"), found["bytes"].as_u64().expect("bytes"))
    };
    // 20 images 1x12x12, six kernels 5x5, tops 6x8x8: arrays of 2880, 150 + 6 and 7680 values.
    let conv = layer("conv");
    let products = 2 * 7680 * 25;
    assert_eq!(work(&conv, "forward"), (products + 7680, 4 * (2880 + 156 + 7680)));
    assert_eq!(work(&conv, "grad-weight"), (products, 4 * (2880 + 7680 + 150)));
    // Weights, gradients and histories are read, weights and histories written.
    assert_eq!(work(&conv, "update").1, 4 * 5 * 156);
    // Six planes of 4x4, to ten classes.
    let products = 2 * 20 * 96 * 10;
    assert_eq!(work(&layer("ip"), "grad-activation"), (products, 4 * (20 * 10 + 960 + 20 * 96)));
    if Isa::detect() != Isa::Portable {
        // With the rule's six operations a weight; weights and histories are read and written, gradients nowhere.
        let step = (products + 6 * 960, 4 * (20 * 10 + 20 * 96 + 4 * 960));
        assert_eq!(work(&layer("ip"), "step-weight"), step);
        assert_eq!(work(&layer("ip"), "update").1, 4 * 5 * 10);
    }
    let whole: u64 =
        report["layers"].as_array().expect("layers").iter().filter_map(|l| l["flops"].as_u64()).sum();
    assert_eq!(report["flops"].as_u64(), Some(whole));
}

/// What is kept in bf16 takes half the bytes.
#[test]
fn bytes_are_those_of_the_precision_in_which_blobs_are_kept() {
    if !Isa::detect().has_bf16() {
        println!("skipped: bytes in bf16: this CPU has no bf16");
        return;
    }
    let stage = Stage::new();
    let outcome = stage.succeed("time --model net.prototxt --iterations 1 --precision bf16 --json");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
    let conv =
        report["layers"].as_array().and_then(|l| l.iter().find(|l| l["layer"] == "conv")).expect("conv");
    assert_eq!((&conv["kernel"], &conv["layout"]), (&"entry-tiles-bf16".into(), &"nChw16c-bf16".into()));
    let bytes = |sub: &str| {
        let subs = conv["sub_tasks"].as_array().expect("sub-tasks");
        subs.iter().find(|s| s["sub_task"] == sub).and_then(|s| s["bytes"].as_u64()).expect("bytes")
    };
    // As in f32, but for the tops and their gradients.
    assert_eq!(bytes("forward"), 4 * (2880 + 156) + 2 * 7680);
    assert_eq!(bytes("grad-weight"), 4 * (2880 + 150) + 2 * 7680);
    assert_eq!(bytes("update"), 4 * 5 * 156);
}

#[test]
fn one_thread_shows_what_is_outside_of_kernels() {
    let stage = Stage::new();
    let outcome = stage.succeed("time --model net.prototxt --iterations 3 --threads 1 --quadrants 1 --json");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
    assert_eq!(report["threads"], 1);
    // Submitting some twenty tasks takes time, but not all of it.
    let outside = positive(&report, "outside_kernels_percent");
    assert!(outside < 100.0, "{outside}");
    // No layer's time is another's, too, wherever lanes share the thread. Medians add up to about a median.
    let layers = report["layers"].as_array().expect("layers");
    let sum: f64 = layers.iter().filter_map(|layer| layer["ms"].as_f64()).sum();
    let whole = positive(&report, "iteration_ms");
    assert!((0.0..1.2 * whole).contains(&sum) && sum > 0.0, "{sum} of {whole}");
}

#[test]
fn the_batch_and_the_quadrants_can_be_chosen() {
    let stage = Stage::new();
    let outcome = stage.succeed("time --model net.prototxt --iterations 2 --batch 5 --quadrants 2 --json");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
    assert_eq!((&report["batch"], &report["quadrants"]), (&5.into(), &2.into()));
}

#[test]
fn a_table_with_every_sub_task_of_every_layer() {
    let stage = Stage::new();
    let table = stage.succeed("time --model net.prototxt --iterations 3 --kernel conv=im2col-gemm").stdout;
    let rows = |name: &str| -> Vec<&str> {
        let (detail, _) = table.split_once("total of type").expect("a second table");
        detail.lines().filter(|line| line.split_whitespace().next() == Some(name)).collect()
    };
    for name in LAYERS {
        assert!(!rows(name).is_empty(), "no row of {name} in\n{table}");
    }
    for sub in ["forward", "grad-weight", "grad-bias", "update"] {
        let row = rows("conv").into_iter().find(|row| row.contains(sub));
        let row = row.unwrap_or_else(|| panic!("no {sub} of conv in\n{table}"));
        assert!(row.contains("im2col-gemm") && row.matches(" ms").count() == 1, "{row}");
        assert_eq!(row.matches(" %").count(), 3, "{row}");
    }
    for part in ["images/s", "outside of kernels", "GB/s of a triad", "\nConvolution ", "\nall "] {
        assert!(table.contains(part), "no {part:?} in\n{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
}

#[test]
fn no_data_set_needs_to_be_there() {
    let stage = Stage::new();
    stage.edit("net.prototxt", "source: \"shapes\"", "source: \"nowhere/some_set\"");
    let refused = stage.run("time --model net.prototxt --iterations 1");
    assert_eq!(refused.code, Some(64), "{}", refused.stderr);
    for part in ["net.prototxt:9", "data_param.source", "not known", "--data-shape 3,32,32"] {
        assert!(refused.stderr.contains(part), "no {part:?} in {}", refused.stderr);
    }
    let outcome = stage.succeed("time --model net.prototxt --iterations 1 --json --data-shape 3,14,16");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
    // Load reads and writes 20 images 3x14x16 and their labels.
    assert_eq!(report["layers"][0]["bytes"], 2 * 4 * (20 * 3 * 14 * 16 + 20));
    stage.edit("net.prototxt", "scale: 0.00390625", "crop_size: 12 mirror: true");
    let outcome = stage.succeed("time --model net.prototxt --iterations 1 --json --dummy-data");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
    assert_eq!(report["layers"][0]["bytes"], 2 * 4 * (20 * 3 * 12 * 12 + 20));
}

/// A mini-batch of 20, the factors of a Scale and the matrix of a loss, which are no mini-batches.
const OTHER_EXTENTS: &str = r#"name: "Extents"
layer {
  name: "in" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 20 dim: 6 dim: 4 dim: 4 } shape { dim: 20 } }
}
layer { name: "factors" type: "Input" top: "factors" input_param { shape { dim: 6 } } }
layer {
  name: "H" type: "DummyData" top: "H"
  dummy_data_param { shape { dim: 10 dim: 10 } data_filler { type: "constant" value: 1 } }
}
layer { name: "scale" type: "Scale" bottom: "data" bottom: "factors" top: "scaled" scale_param { axis: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "scaled" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "InfogainLoss" bottom: "ip" bottom: "label" bottom: "H" top: "loss" }
"#;

/// Sequences of three steps in four streams, with what stays the same in all steps.
const SEQUENCES: &str = r#"name: "Sequences"
layer {
  name: "in" type: "Input" top: "x" top: "cont" top: "static"
  input_param { shape { dim: 3 dim: 4 dim: 5 } shape { dim: 3 dim: 4 } shape { dim: 4 dim: 2 } }
}
layer { name: "aim" type: "DummyData" top: "aim" dummy_data_param { shape { dim: 3 dim: 4 dim: 6 } } }
layer {
  name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" bottom: "static" top: "h"
  recurrent_param { num_output: 6 weight_filler { type: "uniform" min: -0.1 max: 0.1 } }
}
layer { name: "loss" type: "EuclideanLoss" bottom: "h" bottom: "aim" top: "loss" }
"#;

#[test]
fn what_is_no_mini_batch_keeps_its_extents() {
    let stage = Stage::new();
    for (net, batch) in [(OTHER_EXTENTS, 20), (SEQUENCES, 3)] {
        stage.write("net.prototxt", net);
        for (flags, batch) in [("", batch), ("--batch 7", 7)] {
            let flags = format!("--model net.prototxt --quadrants 1 {flags}");
            let outcome = stage.succeed(&format!("time --iterations 1 --json {flags}"));
            let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
            assert_eq!(report["batch"], batch, "{flags}");
            stage.succeed(&format!("plan {flags}"));
        }
    }
    stage.write("net.prototxt", OTHER_EXTENTS);
    for command in ["time --iterations 1", "plan"] {
        let refused = stage.run(&format!("{command} --model net.prototxt --quadrants 2"));
        assert_eq!(refused.code, Some(64), "{}", refused.stderr);
        for part in
            ["net.prototxt:6: layer \"factors\": input_param.shape: [6] is not 20 images", "--quadrants 1"]
        {
            assert!(refused.stderr.contains(part), "no {part:?} in {}", refused.stderr);
        }
    }
}

#[test]
fn bundled_networks_have_names() {
    let stage = Stage::new();
    let outcome = stage.succeed("time --model cifar10_quick --iterations 1 --batch 2 --json");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
    assert_eq!((&report["network"], &report["batch"]), (&"CIFAR10_quick".into(), &2.into()));
    let compared = stage.succeed("time --model lenet --iterations 1 --json");
    let report: Value = serde_json::from_str(&compared.stdout).expect("one JSON object");
    assert_eq!(report["batch"], 64);
    let refused = stage.run("time --model cifar_quick --iterations 1");
    assert_eq!(refused.code, Some(66), "{}", refused.stderr);
    assert!(refused.stderr.contains("did you mean \"cifar10_quick\""), "{}", refused.stderr);
}

#[test]
fn the_wait_for_data_is_shown_on_a_data_set_only() {
    let stage = Stage::new();
    let json = |flags: &str| -> Value {
        let outcome = stage.succeed(&format!("time --model net.prototxt --iterations 5 --json {flags}"));
        serde_json::from_str(&outcome.stdout).expect("one JSON object and nothing else")
    };
    let made_up = json("");
    assert_eq!((&made_up["data"], &made_up["data_wait_ms"]), (&Value::Null, &Value::Null));
    for flags in ["--data shapes --batch 7", "--real-data --batch 7"] {
        let real = json(flags);
        assert_eq!((&real["data"], &real["batch"]), (&"shapes".into(), &7.into()));
        let wait = real["data_wait_ms"].as_f64().expect("a wait");
        let share = real["data_wait_percent"].as_f64().expect("a share");
        assert!(wait > 0.0 && share > 0.0 && share <= 100.0, "{wait} {share}");
    }
    let outcome = stage.succeed("time --model net.prototxt --iterations 2 --data shapes");
    assert!(outcome.stdout.contains("data        shapes: 600 images 1x12x12"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains(" % of an iteration: "), "{}", outcome.stdout);
    for (flags, code) in [
        ("--data shapes --dummy-data", 2),
        ("--real-data --data-shape 1,12,12", 2),
        ("--bad-record skip", 2),
        ("--data nowhere", 66),
        ("--data net.prototxt", 65),
    ] {
        let outcome = stage.run(&format!("time --model net.prototxt {flags}"));
        assert_eq!(outcome.code, Some(code), "{flags}: {}", outcome.stderr);
    }
}
