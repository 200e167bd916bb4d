//! `--tensorboard`: event files, read back by TensorBoard itself where it is installed.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::common::Stage;

/// Prints the scalars of a folder of event files as JSON: tag -> [[step, value], ...].
const READER: &str = r#"
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags}))
"#;

/// What TensorBoard reads; `None` if there is none. `QUADRILLE_PYTHON` names a Python that has it.
fn read(folder: &std::path::Path) -> Option<Value> {
    let python = std::env::var("QUADRILLE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import tensorboard"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: {python} has no tensorboard to read event files with (QUADRILLE_PYTHON names another)"
        );
        return None;
    }
    let output = Command::new(&python).args(["-c", READER]).arg(folder).output().expect("a Python");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

#[test]
fn tensorboard_reads_what_the_metrics_say_also_of_a_run_that_went_on() {
    let stage = Stage::new();
    stage.edit("solver.prototxt", "max_iter", "snapshot: 8\nmax_iter");
    let way = "--tensorboard --workers 2 --method sync-sgd --test-interval 5";
    stage.train("run", &format!("{way} --max-iter 12"));
    // From iteration 8 on everything comes again.
    let again = stage.path("run/snapshots/iteration_12");
    fs::remove_dir_all(again).expect("the last snapshot");
    stage.train("run", &format!("{way} --max-iter 20 --resume run"));
    let folder = stage.path("run/tensorboard");
    let files: Vec<_> =
        fs::read_dir(&folder).expect("a folder").flatten().map(|file| file.file_name()).collect();
    assert_eq!(files.len(), 2, "{files:?}: one for each start");
    assert!(files.iter().all(|name| name.to_string_lossy().starts_with("events.out.tfevents.")), "{files:?}");
    let Some(read) = read(&folder) else { return };
    let metrics = stage.metrics("run");
    for (key, tag) in [
        ("loss", "train/loss"),
        ("lr", "train/rate"),
        ("accuracy", "test/accuracy"),
        ("test_loss", "test/loss"),
    ] {
        let expected: Vec<(u64, f32)> = metrics
            .iter()
            .filter_map(|record| Some((record["iteration"].as_u64()?, record.get(key)?.as_f64()? as f32)))
            .collect();
        let got: Vec<(u64, f32)> = serde_json::from_value(read[tag].clone()).expect("steps and values");
        assert_eq!(got, expected, "{tag}: each step once");
    }
    assert!(read["time/images_per_second"].as_array().is_some_and(|steps| steps.len() >= 18), "{read}");
}

#[test]
fn without_the_flag_there_is_no_such_folder() {
    let stage = Stage::new();
    stage.train("run", "--max-iter 2");
    assert!(!stage.path("run/tensorboard").exists());
}
