//! Files as users bring them: every form that a network or solver has had, and the fields of Intel's fork. They pass
//! `check`, or are refused by the name of the layer.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{Stage, hash_of};

/// A file, flags, and what its check shows, in this order; blanks count as one.
type Passing = (&'static str, &'static str, &'static [&'static str]);

const PASSING: &[Passing] = &[
    (
        "v0.prototxt",
        "",
        &[
            "network FirstForm (v0.prototxt): 8 layers in the file",
            "note 9 layers of Caffe's old form V0 were upgraded",
            "source Data 16x3x20x20, 16",
            "conv1 Convolution 16x8x20x20 608",
            "norm1 LRN 16x8x10x10",
            "drop1 Dropout",
            "parameters 8618",
        ],
    ),
    (
        "v1.prototxt",
        "",
        &[
            "note 8 layers of Caffe's old form V1 were upgraded",
            "phase TRAIN",
            "source Data 32x3x24x24, 32",
            "phase TEST",
            "source ImageData 10x3x24x24, 10",
            "accuracy Accuracy",
        ],
    ),
    (
        "deploy_input_dim.prototxt",
        "",
        &["phase TRAIN: no loss, so nothing to train", "input Input 10x3x27x27", "prob Softmax 10x4x5x5"],
    ),
    (
        "deploy_input_shape.prototxt",
        "",
        &[
            "phase TRAIN \"deploy\"",
            "input Input 2x1x8x8, 2x1x8x8",
            "only_train Dropout",
            "phase TEST \"deploy\"",
            "both Concat 2x2x8x8",
            "only_deploy Power 2x2x8x8",
            "outputs scaled",
        ],
    ),
    (
        "deploy_input_layer.prototxt",
        "",
        &["data Input 10x3x16x16", "fc InnerProduct 10x5 3845", "outputs prob"],
    ),
    ("deploy_input_layer.prototxt", "--batch 7", &["data Input 7x3x16x16", "for a mini-batch of 7"]),
    (
        "deploy_open.prototxt",
        "",
        &[
            "does not say how large the samples of layer \"data\" are",
            "--data-shape",
            "fc InnerProduct data -> fc",
        ],
    ),
    ("deploy_open.prototxt", "--data-shape 2,3,3", &["data Input 1x2x3x3", "fc InnerProduct 1x5 95"]),
    (
        "train_val_open.prototxt",
        "",
        &["phase TRAIN", "data Data 1x3x24x24, 1", "conv Convolution 1x4x12x12 184"],
    ),
    ("train_val_open.prototxt", "--batch 50", &["bn BatchNorm 50x4x12x12", "for a mini-batch of 50"]),
    (
        "intel_net.prototxt",
        "",
        &[
            "note network fields without effect here: engine, compile_net_state, bn_stats_batch_size, multinode",
            "pooling_param.engine (1 layer)",
            "conv Convolution 32x8x16x16 224",
            "loss SoftmaxWithLoss",
        ],
    ),
    (
        "solver_net.prototxt",
        "",
        &[
            "450 iterations of SGD, base_lr 0.01, weight_decay 0.0005",
            "ignored solver fields without effect here: solver_mode (flags choose the device)",
            "network InputLayer",
        ],
    ),
    (
        "solver_train_test_net.prototxt",
        "",
        &[
            "300 iterations of Nesterov",
            "tested on 10 mini-batches of \"train_val_open.prototxt\"",
            "tested on 20 mini-batches of \"v1.prototxt\"",
            "network TrainValOpen",
            "phase TRAIN \"own\"",
            "phase TEST \"first\"",
            "network SecondForm",
            "phase TEST",
        ],
    ),
    ("solver_net_param.prototxt", "", &["of Adam", "network Inside", "phase TRAIN", "phase TEST"]),
    (
        "solver_inline.prototxt",
        "",
        &["of RMSProp", "2 mini-batch(es) each", "network ToTrain", "4x6, 4x2", "network ToTest", "9x6"],
    ),
    ("solver_inline.prototxt", "--phase test", &["network ToTest", "phase TEST", "9x6"]),
    (
        "solver_intel.prototxt",
        "",
        &[
            "5000 iterations of SGD, base_lr 0.5",
            "engine",
            "test_offset",
            "local_gw_ratio (local_lr_auto is off)",
        ],
    ),
];

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dialects"))
}

/// A stage with all files, since solvers name networks beside them.
fn stage() -> Stage {
    let stage = Stage::new();
    for (file, ..) in PASSING {
        stage.write(file, fs::read(folder().join(file)).expect("a file of the repository"));
    }
    stage
}

#[test]
fn every_dialect_passes() {
    let stage = stage();
    for (file, flags, shows) in PASSING {
        let shown = stage.succeed(&format!("check {file} {flags}")).stdout;
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut rest = shown.as_str();
        for part in *shows {
            let at = rest.find(part).unwrap_or_else(|| panic!("{file} {flags}: no {part:?} in {rest}"));
            rest = &rest[at + part.len()..];
        }
    }
    let named: BTreeSet<String> = PASSING.iter().map(|(file, ..)| (*file).to_owned()).collect();
    let there = fs::read_dir(folder()).expect("the folder").map(|entry| entry.expect("a file").file_name());
    assert_eq!(there.map(|name| name.to_string_lossy().into_owned()).collect::<BTreeSet<_>>(), named);
}

/// Also fields without which a file would pass: they would change what is computed.
#[test]
fn what_cannot_be_is_refused_by_the_name_of_the_layer() {
    let stage = stage();
    for (file, from, to, says) in [
        (
            "intel_net.prototxt",
            "bn_stats_batch_size: 0",
            "bn_stats_batch_size: 16",
            &[":4: layer \"bn\": bn_stats_batch_size: statistics over 16 images"][..],
        ),
        (
            "intel_net.prototxt",
            "conv_algorithm: \"auto\"",
            "relu: true",
            &["layer \"conv\": convolution_param.relu: a field of forks of Caffe"],
        ),
        (
            "intel_net.prototxt",
            "relu_param {",
            "quantization_param { bw_layer_in: 8 } relu_param {",
            &["layer \"relu\": quantization_param: a field of forks of Caffe"],
        ),
        (
            "intel_net.prototxt",
            "type: \"Eltwise\"",
            "type: \"HDF5Output\"",
            &["layer \"sum\"", "writes no files"],
        ),
        (
            "deploy_input_layer.prototxt",
            "\"Softmax\"",
            "\"Python\"",
            &["layer \"prob\"", "\"Python\"", "Input"],
        ),
        ("deploy_input_layer.prototxt", "\"Softmax\"", "\"SplitLoss\"", &["layer \"prob\"", "\"SplitLoss\""]),
        ("v0.prototxt", "type: \"lrn\"", "type: \"lrm\"", &["layer \"norm1\"", "did you mean \"lrn\"?"]),
        ("v1.prototxt", "type: POOLING", "type: POOLNG", &["\"pool1\"", "did you mean POOLING?"]),
        ("v1.prototxt", "kernel_size: 3\n", "kernel_size: 99\n", &["layer \"conv1\"", "kernel_size", ":32:"]),
        (
            "solver_inline.prototxt",
            "type: \"EuclideanLoss\"",
            "type: \"EuclidenLoss\"",
            &["solver_inline.prototxt:6: layer \"loss\"", "did you mean \"EuclideanLoss\"?"],
        ),
    ] {
        stage.edit(file, from, to);
        let outcome = stage.run(&format!("check {file}"));
        assert_eq!(outcome.code, Some(64), "{file} with {to}: {}", outcome.stderr);
        for part in says {
            assert!(outcome.stderr.contains(part), "{file} with {to}: no {part:?} in {}", outcome.stderr);
        }
        stage.edit(file, to, from);
    }
}

/// What Intel's fork does with rates and samples is not done here: files that ask for it are checked, and say so; whoever
/// trains with them is refused.
#[test]
fn what_is_not_done_yet_is_checked_and_not_trained() {
    let stage = Stage::new();
    let asks = |file: &str, from: &str, to: &str, refusal: &str| {
        stage.edit(file, from, to);
        let outcome = stage.run("train --solver solver.prototxt --run r");
        assert_eq!(outcome.code, Some(64), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(refusal), "{}", outcome.stderr);
        let shown = stage.succeed(&format!("check {file}")).stdout;
        assert!(shown.contains("note        "), "{shown}");
        stage.edit(file, to, from);
    };
    for (field, value) in
        [("local_lr_auto", "true"), ("disabled_update", "true"), ("eval_type", "\"detection\"")]
    {
        let (from, to) = ("display: 10", format!("display: 10 {field}: {value}"));
        asks("solver.prototxt", from, &to, &format!("{field}: no training does this yet"));
    }
    // Windows have a size of their own, which Intel's fork does not change either.
    let (records, windows) =
        ("data_param { source: \"shapes\" batch_size: 20 }", "window_data_param { source: \"w\" }");
    for (from, to) in [
        ("type: \"Data\"", "type: \"WindowData\""),
        (
            records,
            &format!(
                "{} transform_param {{ crop_size: 12 resize_param {{ height: 8 width: 8 }} }}",
                windows.replace("}", "batch_size: 20 }")
            ),
        ),
        ("  transform_param { scale: 0.00390625 }\n", ""),
    ] {
        stage.edit("net.prototxt", from, to);
    }
    asks(
        "net.prototxt",
        "name: \"Small\"",
        "name: \"Windows\"",
        "resize_param: samples cannot be changed so yet",
    );
}

/// What Intel's fork does with the sizes of samples: the same bits whatever the threads, and after a resume.
#[test]
fn samples_of_sizes_by_chance_are_trained_and_tested() {
    let stage = Stage::new();
    let scale = "scale: 0.00390625";
    for (train, test) in [
        (
            "crop_size: 10 random_aspect_ratio_param { min_area_ratio: 0.3 aspect_ratio_change: 0.75 resize_param { \
             interp_mode: CUBIC } }",
            "crop_size: 10 random_resize_param { min_size: 11 max_size: 11 resize_param { interp_mode: CUBIC } }",
        ),
        (
            "crop_size: 10 random_resize_param { min_size: 10 max_size: 16 resize_param { interp_mode: AREA interp_mode: \
             LANCZOS4 } }",
            "resize_param { prob: 1 resize_mode: FIT_LARGE_SIZE_AND_PAD height: 10 width: 10 pad_value: 7 }",
        ),
    ] {
        // A field that is no part of the fields beside it, to be found again.
        let fields = [train, test].map(|fields| format!("mirror: true {fields} scale: 0.003"));
        fields.iter().for_each(|fields| stage.edit("net.prototxt", scale, fields));
        let whole = hash_of(&stage.train("whole", "--threads 1"));
        assert_eq!(hash_of(&stage.train("again", "--threads 3")), whole, "{train}");
        stage.train("first", "--max-iter 7");
        let rest = stage.train("first", "--resume auto");
        assert_eq!(hash_of(&rest), whole, "{train}");
        let shown = stage.succeed("check net.prototxt").stdout;
        assert!(shown.contains("20x3x10x10") && !shown.contains("note        line"), "{shown}");
        // What is made up is as good as any part.
        let flags = "--max-iter 1 --test-interval 0 --dummy-data --data-shape 1,12,12";
        stage.train("dummy", flags);
        fields.iter().for_each(|fields| stage.edit("net.prototxt", fields, scale));
        for run in ["whole", "again", "first", "dummy"] {
            fs::remove_dir_all(stage.path(run)).expect("a run");
        }
    }
}

#[test]
fn every_solver_of_the_old_enum_is_known() {
    let stage = stage();
    for (old, name) in [
        ("SGD", "SGD"),
        ("NESTEROV", "Nesterov"),
        ("ADAGRAD", "AdaGrad"),
        ("RMSPROP", "RMSProp"),
        ("ADADELTA", "AdaDelta"),
        ("ADAM", "Adam"),
    ] {
        let text =
            fs::read_to_string(folder().join("solver_inline.prototxt")).expect("a file of the repository");
        stage.write("old.prototxt", text.replace("RMSPROP", old));
        let shown = stage.succeed("check old.prototxt").stdout;
        assert!(shown.contains(&format!("iterations of {name}, ")), "{old}: {shown}");
    }
}

/// A file that is made for one phase or stage is checked in that one, and says so of the others.
#[test]
fn files_for_one_phase_or_stage() {
    let stage = Stage::new();
    let data = |rule: &str| {
        format!(
            "layer {{ name: \"data\" type: \"Input\" top: \"data\" include {{ {rule} }} input_param {{ shape {{ dim: 2 dim: 3 }} }} }}\n"
        )
    };
    let fc = "layer { name: \"fc\" type: \"InnerProduct\" bottom: \"data\" top: \"fc\" inner_product_param { num_output: 4 } }\n";
    let twice = "layer { name: \"twice\" type: \"Power\" bottom: \"fc\" top: \"a\" }\n\
                 layer { name: \"twice\" type: \"Power\" bottom: \"fc\" top: \"b\" }\n";
    stage.write("test.prototxt", format!("{}{fc}{twice}", data("phase: TEST")));
    let shown = stage.succeed("check test.prototxt").stdout;
    for part in ["phase TRAIN: not for this file: layer \"fc\" reads \"data\"", "outputs     a b"] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    let outcome = stage.run("check test.prototxt --phase train");
    assert_eq!(outcome.code, Some(64), "{outcome:?}");
    let expected = "layer \"data\" (line 1) makes it, which does not belong to phase TRAIN";
    assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);

    // Solvers name the stages in which their networks are tested.
    stage.write(
        "stages.prototxt",
        format!("{}{}{fc}", data("phase: TRAIN"), data("phase: TEST stage: \"own\"")),
    );
    stage.write(
        "stages_solver.prototxt",
        "net: \"stages.prototxt\" test_iter: 1 test_interval: 5 test_state { stage: \"own\" }\n\
         base_lr: 0.1 lr_policy: \"fixed\" max_iter: 5",
    );
    let shown = stage.succeed("check stages_solver.prototxt").stdout;
    assert!(shown.contains("phase TRAIN") && shown.contains("phase TEST \"own\""), "{shown}");
    let shown = stage.succeed("check stages.prototxt").stdout;
    assert!(shown.contains("phase TEST: not for this file"), "{shown}");
    stage.edit("stages_solver.prototxt", "\"own\"", "\"other\"");
    let outcome = stage.run("check stages_solver.prototxt --phase test");
    assert_eq!(outcome.code, Some(64), "{outcome:?}");
}

/// The names of layers without weights mean nothing.
#[test]
fn layers_with_weights_have_names_of_their_own() {
    let stage = Stage::new();
    stage.edit("net.prototxt", "name: \"relu\"", "name: \"pool\"");
    stage.succeed("check net.prototxt");
    stage.edit("net.prototxt", "name: \"ip\"", "name: \"pool\"");
    let outcome = stage.run("check net.prototxt");
    assert_eq!(outcome.code, Some(64), "{outcome:?}");
    assert!(
        outcome.stderr.contains("layer \"pool\": name: another layer has this name"),
        "{}",
        outcome.stderr
    );
}
