//! `quadrille check`: what it shows of good files and how it refuses bad ones.

use crate::common::Stage;

#[test]
fn a_network_and_its_solver() {
    let stage = Stage::new();
    let shown = stage.succeed("check net.prototxt solver.prototxt").stdout;
    for part in
        ["network     Small (net.prototxt): 8 layers", "phase TRAIN", "phase TEST", "outputs     loss"]
    {
        assert!(shown.contains(part), "{part:?}:\n{shown}");
    }
    let line = shown.lines().find(|line| line.trim_start().starts_with("conv ")).expect("the convolution");
    let words: Vec<&str> = line.split_whitespace().collect();
    // 6 filters of 5 x 5 and a bias each; forward and the weight's gradient take 2 x 64 x 25 x 6 an image, the bias 64 x 6.
    assert_eq!(words[..4], ["conv", "Convolution", "20x6x8x8", "156"], "{line}");
    assert!(shown.contains("solver      solver.prototxt"), "{shown}");
    // The solver leads to its network.
    assert_eq!(shown.matches("network     Small").count(), 2, "{shown}");
}

#[test]
fn what_the_file_leaves_open_is_no_error() {
    let stage = Stage::new();
    stage.write(
        "deploy.prototxt",
        "name: \"Deploy\" input: \"data\"\nlayer { name: \"ip\" type: \"InnerProduct\" bottom: \"data\" top: \"ip\"\n\
         inner_product_param { num_output: 2 } }\n",
    );
    let shown = stage.succeed("check deploy.prototxt").stdout;
    assert!(shown.contains("--data-shape") && shown.contains("data -> ip"), "{shown}");
    let shown = stage.succeed("check deploy.prototxt --data-shape 3,4,5 --batch 7").stdout;
    assert!(shown.contains("7x3x4x5") && shown.contains("7x2") && shown.contains("no loss"), "{shown}");

    stage.edit("net.prototxt", "source: \"shapes\" batch_size: 20", "source: \"elsewhere\"");
    let shown = stage.succeed("check net.prototxt --phase train").stdout;
    assert!(shown.contains("so no shapes") && shown.contains("SoftmaxWithLoss"), "{shown}");
    let outcome = stage.run("train --solver solver.prototxt");
    assert_eq!(outcome.code, Some(64), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("data_param.batch_size: missing"), "{}", outcome.stderr);
    stage.edit("solver.prototxt", "net.prototxt", "nowhere.prototxt");
    let shown = stage.succeed("check solver.prototxt").stdout;
    assert!(shown.contains("\"nowhere.prototxt\" is not here"), "{shown}");
}

#[test]
fn every_bad_file_is_named_and_the_first_decides() {
    let stage = Stage::new();
    stage.write("bad.prototxt", "layer { name: \"x\" type: \"Convolutoin\" }");
    stage.edit("net.prototxt", "kernel_size: 5", "kernel_size: 50");
    let outcome = stage.run("check bad.prototxt net.prototxt solver.prototxt missing.prototxt");
    assert_eq!(outcome.code, Some(64), "{}", outcome.stderr);
    for part in ["bad.prototxt:1", "Convolution", "net.prototxt", "layer \"conv\"", "missing.prototxt"] {
        assert!(outcome.stderr.contains(part), "{part:?}: {}", outcome.stderr);
    }
    assert_eq!(stage.run("check missing.prototxt").code, Some(66));
}
