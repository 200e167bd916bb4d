//! `quadrille time`: every layer has a row, and the numbers are numbers. How large they are is a benchmark's affair.

use serde_json::Value;

use crate::common::Stage;

const LAYERS: [&str; 6] = ["shapes", "conv", "pool", "relu", "ip", "loss"];

#[test]
fn one_json_object_with_every_layer() {
    let stage = Stage::new();
    let outcome = stage.succeed("time --model net.prototxt --iterations 3 --json");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object and nothing else");
    let positive = |value: &Value, name: &str| {
        let number = value[name].as_f64().unwrap_or_else(|| panic!("{name} in {value}"));
        assert!(number > 0.0 && number.is_finite(), "{name} in {value}");
    };
    positive(&report, "iteration_ms");
    positive(&report, "peak_gflops");
    assert_eq!((&report["network"], &report["batch"]), (&"Small".into(), &20.into()));
    let layers = report["layers"].as_array().expect("layers");
    let names: Vec<&str> = layers.iter().filter_map(|l| l["layer"].as_str()).collect();
    assert_eq!(names, LAYERS);
    for layer in layers {
        for name in ["forward_ms", "backward_ms", "update_ms", "gflops", "share_of_peak"] {
            assert!(layer[name].as_f64().is_some_and(|n| n >= 0.0), "{name} in {layer}");
        }
        positive(layer, "forward_ms");
        assert!(layer["kernel"].is_string() && layer["type"].is_string(), "{layer}");
    }
    for layer in layers.iter().filter(|l| l["layer"] == "conv" || l["layer"] == "ip") {
        for name in ["backward_ms", "update_ms", "gflops", "share_of_peak"] {
            positive(layer, name);
        }
    }
}

#[test]
fn the_batch_and_the_quadrants_can_be_chosen() {
    let stage = Stage::new();
    let outcome = stage.succeed("time --model net.prototxt --iterations 2 --batch 5 --quadrants 2 --json");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
    assert_eq!((&report["batch"], &report["quadrants"]), (&5.into(), &2.into()));
}

#[test]
fn a_table_with_every_layer() {
    let stage = Stage::new();
    let table = stage.succeed("time --model net.prototxt --iterations 3").stdout;
    for name in LAYERS {
        let row = table.lines().find(|line| line.split_whitespace().next() == Some(name));
        let row = row.unwrap_or_else(|| panic!("no row of {name} in\n{table}"));
        assert_eq!(row.matches(" ms").count(), 3, "{row}");
    }
    assert!(table.contains("images/s"), "{table}");
}
