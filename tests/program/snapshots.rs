//! What is in a snapshot, which ones are kept, and which are refused.

use std::fs;

use serde_json::Value;

use crate::common::{CLASSES, Outcome, SOLVER, Stage, TRAIN_IMAGES, write_idx};

const TRAIN: &str = "train --solver solver.prototxt --run out";

/// The names in a folder below the stage, sorted.
fn names(stage: &Stage, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(stage.path(folder)).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn manifest(stage: &Stage, snapshot: &str) -> Value {
    let text = fs::read_to_string(stage.path(snapshot).join("manifest.json")).expect("a manifest");
    serde_json::from_str(&text).expect("JSON")
}

fn refused(stage: &Stage, arguments: &str, says: &[&str]) {
    let outcome = stage.run(arguments);
    assert_eq!(outcome.code, Some(65), "{arguments}: {outcome:?}");
    assert!(outcome.stderr.starts_with("quadrille: "), "{outcome:?}");
    for part in says {
        assert!(outcome.stderr.contains(part), "no {part:?} in {outcome:?}");
    }
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
}

#[test]
fn a_snapshot_says_where_every_worker_stands() {
    let stage = Stage::new();
    stage.write("solver.prototxt", format!("{SOLVER}iter_size: 2\n"));
    stage.train("elastic", "--workers 2 --max-iter 33");
    let snapshot = "elastic/snapshots/iteration_33";
    let files = ["manifest.json", "weights.safetensors", "worker0.safetensors", "worker1.safetensors"];
    assert_eq!(names(&stage, snapshot), files);
    let told = manifest(&stage, snapshot);
    assert_eq!((&told["iteration"], &told["random_numbers"]["seed"]), (&33.into(), &7.into()));
    for worker in told["workers"].as_array().expect("workers") {
        // 33 iterations of two mini-batches of 20 images, of 600.
        assert_eq!((&worker["next_step"], &worker["next_sample"]), (&66.into(), &1320.into()), "{worker}");
        assert_eq!((&worker["epoch"], &worker["own_weights"]), (&2.into(), &true.into()), "{worker}");
    }
    // Replicas are stored once.
    for (run, way) in [("alone", ""), ("replicas", "--workers 4 --method sync-sgd")] {
        stage.train(run, &format!("{way} --max-iter 2"));
        let snapshot = format!("{run}/snapshots/iteration_2");
        assert_eq!(names(&stage, &snapshot), files[..3], "{way}");
        let told = manifest(&stage, &snapshot);
        let workers = told["workers"].as_array().expect("workers");
        assert!(workers.iter().all(|worker| worker["file"] == "worker0.safetensors"), "{told}");
        assert!(workers.iter().all(|worker| worker["own_weights"] == false), "{told}");
    }
}

#[test]
fn as_many_snapshots_are_kept_as_asked() {
    let stage = Stage::new();
    stage.write("solver.prototxt", format!("{SOLVER}snapshot: 3\n"));
    let folders = |run: &str| -> Vec<String> {
        let names = names(&stage, &format!("{run}/snapshots"));
        names.into_iter().filter(|name| !name.contains('.')).collect()
    };
    let Outcome { stdout, .. } = stage.succeed(&format!("{TRAIN} --max-iter 10"));
    assert!(
        stdout.contains("snapshots   every 3 iteration(s)") && stdout.contains("all are kept"),
        "{stdout}"
    );
    assert_eq!(folders("out"), ["iteration_10", "iteration_3", "iteration_6", "iteration_9"]);
    stage.train("two", "--max-iter 10 --keep-snapshots 2");
    assert_eq!(folders("two"), ["iteration_10", "iteration_9"]);
    stage.train("one", "--max-iter 9 --keep-snapshots 1 --workers 2");
    assert_eq!(folders("one"), ["iteration_9"]);
    assert_eq!(stage.run(&format!("{TRAIN} --keep-snapshots 0")).code, Some(2));
}

#[test]
fn snapshots_that_are_damaged_or_do_not_fit() {
    let stage = Stage::new();
    stage.train("first", "--max-iter 2");
    let snapshot = "first/snapshots/iteration_2";
    refused(
        &stage,
        &format!("{TRAIN} --workers 2 --snapshot {snapshot}"),
        &[snapshot, "1 workers, not 2", "--workers 1"],
    );
    for name in ["weights.safetensors", "worker0.safetensors", "manifest.json"] {
        let path = format!("{snapshot}/{name}");
        let good = fs::read(stage.path(&path)).expect("the stage's files");
        for at in [0, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 4;
            stage.write(&path, &bad);
            refused(&stage, &format!("{TRAIN} --snapshot {snapshot}"), &[&path]);
            refused(&stage, &format!("{TRAIN} --resume {snapshot}"), &[&path]);
        }
        for bytes in [&good[..good.len() - 5], &[]] {
            stage.write(&path, bytes);
            refused(&stage, &format!("{TRAIN} --snapshot {snapshot}"), &[&path]);
            refused(&stage, &format!("test --model net.prototxt --weights {snapshot}"), &[&path]);
        }
        stage.write(&path, &good);
    }
    let model = fs::read(stage.path("first/snapshots/iteration_2.caffemodel")).expect("the stage's files");
    for (name, bytes) in [("cut.caffemodel", &model[..model.len() / 2]), ("text.caffemodel", b"layer { }")] {
        stage.write(name, bytes);
        refused(&stage, &format!("test --model net.prototxt --weights {name}"), &[name]);
    }

    let whole = format!("{TRAIN} --snapshot {snapshot}");
    refused(&stage, &format!("{whole} --seed 8"), &[snapshot, "its seed is 7, that of this run is 8"]);
    refused(&stage, &format!("{whole} --batch 10"), &[snapshot, "its batch is 20, that of this run is 10"]);
    write_idx(&stage.path("others/shapes"), "train", TRAIN_IMAGES + 1, CLASSES);
    refused(&stage, &format!("{whole} --data others --test-interval 0"), &[snapshot, "its data is "]);
    stage.train("pair", "--max-iter 2 --workers 2");
    let pair = "pair/snapshots/iteration_2";
    refused(
        &stage,
        &format!("{TRAIN} --workers 2 --method sync-sgd --snapshot {pair}"),
        &[pair, "its method is sync-easgd3, that of this run is sync-sgd"],
    );
    assert!(!stage.path("out").exists(), "a refused run left a folder");

    stage.edit("net.prototxt", "num_output: 6", "num_output: 7");
    refused(&stage, &whole, &[snapshot, "\"conv/0\"", "shape"]);
    stage.edit("net.prototxt", "name: \"ip\"", "name: \"fc\"");
    refused(&stage, &whole, &[snapshot]);
}

#[test]
fn a_snapshot_serves_wherever_weights_do() {
    let stage = Stage::new();
    stage.train("first", "--max-iter 60 --workers 2");
    let [folder, file] = ["first/snapshots/iteration_60", "first/snapshots/iteration_60.caffemodel"];
    let test = |weights: &str| {
        let said = stage.succeed(&format!("test --model net.prototxt --weights {weights}")).stdout;
        said.lines().find(|line| line.starts_with("accuracy")).expect("an accuracy").to_owned()
    };
    let expected = test(file);
    assert_eq!(test(folder), expected);
    assert_eq!(test(&format!("{folder}/weights.safetensors")), expected);
    stage.succeed(&format!("convert weights {folder} copy.npz"));
    assert_eq!(test("copy.npz"), expected);
    stage.write("solver.prototxt", format!("{SOLVER}weights: \"{folder}\"\n"));
    let accuracies = ["", "--weights first/snapshots/iteration_60"].map(|flags| {
        let run = format!("on{}", flags.len());
        stage.train(&run, &format!("--max-iter 1 {flags}"));
        stage.metrics(&run)[0]["accuracy"].clone()
    });
    assert_eq!(accuracies[0], accuracies[1]);
    assert_eq!(accuracies[0], stage.summary("first")["accuracy"]);
    refused(&stage, "test --model net.prototxt --weights first", &["first", "no snapshot of a run"]);
}
