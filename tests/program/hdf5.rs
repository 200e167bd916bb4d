//! HDF5 through the program: samples, weights and states of solvers.

use std::fs;
use std::path::Path;

use crate::common::{Stage, hash_of};

/// A regression on the arrays of the fixture: 7 samples of 2x3 values with a label each.
const NET: &str = r#"name: "Rows"
layer {
  name: "rows" type: "HDF5Data" top: "data" top: "label"
  hdf5_data_param { source: "files.txt" batch_size: 5 shuffle: true }
}
layer {
  name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 1 weight_filler { type: "xavier" } }
}
layer { name: "flat" type: "Reshape" bottom: "label" top: "flat" reshape_param { shape { dim: 0 dim: 1 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "flat" top: "loss" }
"#;

const SOLVER: &str = "net: \"net.prototxt\" base_lr: 0.0001 lr_policy: \"fixed\" momentum: 0.5 max_iter: 12 snapshot: 6 \
                      random_seed: 3";

fn stage() -> Stage {
    let stage = Stage::new();
    stage.write("net.prototxt", NET);
    stage.write("solver.prototxt", SOLVER);
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("io/hdf5/fixtures/rows.h5");
    fs::copy(fixture, stage.path("rows.h5")).expect("the fixture");
    stage.write("files.txt", "rows.h5\n");
    stage
}

#[test]
fn a_network_learns_from_arrays_in_files() {
    let stage = stage();
    let told = stage.succeed("train --solver solver.prototxt --run run").stdout;
    assert!(told.contains("files.txt: 7 samples in HDF5"), "{told}");
    let losses: Vec<f64> = stage.metrics("run").iter().filter_map(|m| m["loss"].as_f64()).collect();
    assert!(losses[8..].iter().sum::<f64>() < losses[..4].iter().sum::<f64>(), "{losses:?}");
    // Workers take turns, and quadrants share.
    stage.succeed("train --solver solver.prototxt --run more --workers 2 --method sync-sgd --quadrants 2");
    let outcome = stage.run("train --solver solver.prototxt --run refused --data-shards rank --workers 2");
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("does not work with layer \"rows\""), "{}", outcome.stderr);
    let outcome = stage.run("train --solver solver.prototxt --run refused --bad-record skip");
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("--bad-record does not work with layer \"rows\""), "{}", outcome.stderr);
    let shapes = stage.succeed("check net.prototxt").stdout;
    assert!(shapes.contains("5x2x3") || shapes.contains("5 2 3"), "{shapes}");
}

#[test]
fn copies_of_the_files_change_nothing() {
    let stage = stage();
    fs::copy(stage.path("rows.h5"), stage.path("more.h5")).expect("a copy");
    stage.write("files.txt", "rows.h5\nmore.h5\n");
    let trained = |run: &str, flags: &str| {
        let told = stage.succeed(&format!("train --solver solver.prototxt --run {run} {flags}")).stderr;
        (hash_of(&stage.summary(run)), told)
    };
    let (plain, _) = trained("a", "");
    for how in ["copied and checked", "found there and checked"] {
        let (hash, told) = trained(&how.replace(' ', "_"), "--stage-to node");
        assert_eq!(hash, plain, "{how}");
        assert!(told.contains(how), "{told}");
    }
    let (hash, _) = trained("b", "--stage-to node --workers 2 --method sync-sgd");
    assert_eq!(hash, trained("c", "--workers 2 --method sync-sgd").0);
}

#[test]
fn weights_go_to_hdf5_and_back() {
    let stage = stage();
    stage.succeed("train --solver solver.prototxt --run run");
    let model = caffemodel(&stage);
    stage.succeed(&format!("convert weights {model} w.caffemodel.h5"));
    stage.succeed("convert weights w.caffemodel.h5 back.npz");
    stage.succeed(&format!("convert weights {model} direct.npz"));
    assert_eq!(
        fs::read(stage.path("back.npz")).expect("a file"),
        fs::read(stage.path("direct.npz")).expect("a file")
    );
    let run = |weights: &str, name: &str| {
        stage.succeed(&format!(
            "train --solver solver.prototxt --max-iter 2 --weights {weights} --run {name}"
        ));
        hash_of(&stage.summary(name))
    };
    assert_eq!(run("w.caffemodel.h5", "a"), run(&model, "b"));
}

#[test]
fn a_run_leaves_hdf5_for_caffe_if_so_asked() {
    let stage = stage();
    stage.write("solver.prototxt", format!("{SOLVER} snapshot_format: HDF5"));
    let told = stage.succeed("train --solver solver.prototxt --max-iter 6 --run run").stdout;
    assert!(told.contains("(and .caffemodel.h5, .solverstate.h5)"), "{told}");
    stage.succeed("train --solver solver.prototxt --run whole");
    stage.succeed(
        "train --solver solver.prototxt --snapshot run/snapshots/iteration_6.solverstate.h5 --run rest",
    );
    assert_eq!(hash_of(&stage.summary("rest")), hash_of(&stage.summary("whole")));
}

#[test]
fn without_the_files_the_layer_is_named() {
    let stage = stage();
    stage.write("files.txt", "none.h5\n");
    let outcome = stage.run("train --solver solver.prototxt --run run");
    assert_eq!(outcome.code, Some(66), "{}", outcome.stderr);
    let told = stage.succeed("check net.prototxt").stdout;
    assert!(told.contains("layer \"rows\""), "{told}");
    let outcome = stage.run("train --solver solver.prototxt --run run --dummy-data --data-shape 1,2,3");
    assert_eq!(outcome.code, Some(64), "{}", outcome.stderr);
}

/// The weights of the run, as the program names them.
fn caffemodel(stage: &Stage) -> String {
    let entries = fs::read_dir(stage.path("run/snapshots")).expect("snapshots").flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|n| n.ends_with(".caffemodel"))
        .collect();
    names.sort();
    format!("run/snapshots/{}", names.pop().expect("a .caffemodel"))
}
