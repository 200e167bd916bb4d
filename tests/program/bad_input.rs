//! Whatever is wrong is said once, on standard error, with file, line and field where there is one, and with the
//! exit code that batch scripts rely on. Nothing panics, hangs, or leaves a run folder behind.

use std::fs;

use crate::common::{CLASSES, NET, Outcome, SIDE, Stage, TRAIN_IMAGES, idx, write_idx};

/// How a case breaks its stage.
type Break = fn(&Stage);

struct Case {
    what: &'static str,
    breaks: Break,
    arguments: &'static str,
    code: i32,
    /// Parts of the message.
    says: &'static [&'static str],
}

const NET_FILE: &str = "net.prototxt";
const SOLVER_FILE: &str = "solver.prototxt";
const TRAIN: &str = "train --solver solver.prototxt --run out";

/// A case of plain `train`.
const fn case(what: &'static str, breaks: Break, code: i32, says: &'static [&'static str]) -> Case {
    Case { what, breaks, arguments: TRAIN, code, says }
}

/// A case of a command line on a good stage.
const fn flags(arguments: &'static str, code: i32, says: &'static [&'static str]) -> Case {
    Case { what: arguments, breaks: |_| {}, arguments, code, says }
}

/// What is wrong with how the program complained; empty if nothing is.
fn faults(case: &Case, stage: &Stage, outcome: &Outcome) -> Vec<String> {
    let Outcome { code, stdout, stderr } = outcome;
    let mut faults = Vec::new();
    if *code != Some(case.code) {
        faults.push(format!("exit code {code:?}, not {}", case.code));
    }
    faults
        .extend(case.says.iter().filter(|p| !stderr.contains(**p)).map(|p| format!("it does not say {p:?}")));
    let traces = ["panicked", "backtrace", "unwrap", "RUST_", "src/"];
    let traces = traces.iter().filter(|t| stderr.contains(**t) || stdout.contains(**t));
    faults.extend(traces.map(|t| format!("it says {t:?}")));
    let starts = |line: &&str| line.starts_with("quadrille: ") || line.starts_with("error: ");
    let errors: Vec<&str> = stderr.lines().filter(starts).collect();
    if errors.len() != 1 || stderr.len() > 2000 {
        faults.push(format!("{} errors in {} bytes instead of a short one", errors.len(), stderr.len()));
    }
    if errors.iter().any(|e| stdout.contains(e.trim_start_matches("quadrille: "))) {
        faults.push("the error is also on standard output".to_owned());
    }
    if case.code != 77 && stage.path("out").exists() {
        faults.push("a run that never started left a folder".to_owned());
    }
    if !faults.is_empty() {
        let what = format!("{}: quadrille {}", case.what, case.arguments);
        faults.insert(0, format!("\n{what}\nstdout: {stdout}\nstderr: {stderr}"));
    }
    faults
}

fn check(cases: &[Case]) {
    let mut all = Vec::new();
    for case in cases {
        let stage = Stage::new();
        (case.breaks)(&stage);
        all.extend(faults(case, &stage, &stage.run(case.arguments)));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

const NO_FILES: &[Case] = &[
    flags("train --solver none.prototxt --run out", 66, &["none.prototxt: not found"]),
    flags("train --solver . --run out", 66, &[".: ", "directory"]),
    flags("train --model . --run out", 66, &[".: ", "directory"]),
    flags("test --weights none.caffemodel --model net.prototxt", 66, &["none.caffemodel: not found"]),
    flags("test --weights none.safetensors --model net.prototxt", 66, &["none.safetensors: not found"]),
    flags("time --model none.prototxt", 66, &["none.prototxt: not found"]),
    flags(
        "train --solver solver.prototxt --run out --weights none.caffemodel",
        66,
        &["none.caffemodel: not found"],
    ),
    flags(
        "train --solver solver.prototxt --run out --snapshot none.safetensors",
        66,
        &["none.safetensors: not found"],
    ),
    case(
        "the solver names no such network",
        |s| s.edit("solver.prototxt", "net.prototxt", "nets.prototxt"),
        66,
        &["solver.prototxt:1: net: no file \"nets.prototxt\"; looked for nets.prototxt"],
    ),
    case("an empty solver", |s| s.write("solver.prototxt", ""), 64, &["solver.prototxt:1: ", "net"]),
    case("an empty network", |s| s.write("net.prototxt", ""), 64, &["net.prototxt"]),
    case(
        "a binary file",
        |s| s.write("net.prototxt", [0, 159, 146, 150, 7, 10, 255]),
        64,
        &["net.prototxt:1: ", "text file"],
    ),
    case("deep nesting", |s| s.write("net.prototxt", "layer {".repeat(100_000)), 64, &["net.prototxt:1: "]),
    Case {
        what: "solver and network exchanged",
        breaks: |_| {},
        arguments: "train --solver net.prototxt --run out",
        code: 64,
        says: &["net.prototxt:", "this is a network file, not a solver file"],
    },
];

#[test]
fn files_that_are_missing_or_no_text() {
    check(NO_FILES);
}

const SOLVERS: &[Case] = &[
    case(
        "no net",
        |s| s.edit(SOLVER_FILE, "net: \"net.prototxt\"\n", ""),
        64,
        &["solver.prototxt:1: ", "net: missing", "name the network file"],
    ),
    case(
        "an unknown policy",
        |s| s.edit(SOLVER_FILE, "\"inv\"", "\"invv\""),
        64,
        &["solver.prototxt:3: ", "lr_policy", "did you mean \"inv\"?"],
    ),
    case(
        "an unknown field",
        |s| s.edit(SOLVER_FILE, "momentum", "momentun"),
        64,
        &["solver.prototxt:6: ", "momentun", "did you mean \"momentum\"?"],
    ),
    case(
        "a number that is none",
        |s| s.edit(SOLVER_FILE, "0.05", "fast"),
        64,
        &["solver.prototxt:2: ", "base_lr"],
    ),
    case(
        "no iterations",
        |s| s.edit(SOLVER_FILE, "max_iter: 20\n", ""),
        64,
        &["solver.prototxt:1: ", "max_iter"],
    ),
    case(
        "another solver",
        |s| s.edit(SOLVER_FILE, "display", "type: \"Adamm\"\ndisplay"),
        64,
        &["solver.prototxt:9: ", "unknown solver \"Adamm\"", "did you mean \"Adam\"?"],
    ),
];

#[test]
fn solvers_that_cannot_be() {
    check(SOLVERS);
}

const NETWORKS: &[Case] = &[
    case(
        "an unknown field",
        |s| s.edit(NET_FILE, "kernel_size: 5", "kernal_size: 5"),
        64,
        &["net.prototxt:27: ", "layer \"conv\"", "kernal_size", "did you mean \"kernel_size\"?"],
    ),
    case(
        "a misspelt type",
        |s| s.edit(NET_FILE, "\"Convolution\"", "\"Convolutoin\""),
        64,
        &["net.prototxt:22: ", "Convolutoin", "did you mean \"Convolution\"?"],
    ),
    case(
        "a type that is not built",
        |s| s.edit(NET_FILE, "\"ReLU\"", "\"Python\""),
        64,
        &["net.prototxt:40: ", "\"Python\"", "not supported"],
    ),
    case(
        "a kernel over more axes than there are",
        |s| s.edit(NET_FILE, "kernel_size: 5", "kernel_size: [5, 5, 5]"),
        64,
        &["net.prototxt:27: ", "layer \"conv\"", "kernel_size: 3 given", "1 or 2 values"],
    ),
    case(
        "a deconvolution of which padding leaves nothing",
        |s| {
            s.edit(NET_FILE, "\"Convolution\"", "\"Deconvolution\"");
            s.edit(NET_FILE, "kernel_size: 5", "kernel_size: 5 pad: 40");
        },
        64,
        &["net.prototxt:27: ", "layer \"conv\"", "pad", "use less padding"],
    ),
    case(
        "an RNN that does not know where sequences begin",
        |s| s.edit(NET_FILE, "\"ReLU\"", "\"RNN\""),
        64,
        &["net.prototxt:41: ", "layer \"relu\"", "bottom: 1 given", "2 to 3"],
    ),
    case(
        "a kernel larger than its input",
        |s| s.edit(NET_FILE, "kernel_size: 5", "kernel_size: 13"),
        64,
        &["net.prototxt:27: ", "layer \"conv\"", "kernel_size", "13", "12"],
    ),
    case(
        "a bottom that nobody makes",
        |s| s.edit(NET_FILE, "bottom: \"conv\"", "bottom: \"convv\""),
        64,
        &["net.prototxt:34: ", "layer \"pool\"", "convv", "did you mean \"conv\"?"],
    ),
    case(
        "in place on a layer that cannot",
        |s| s.edit(NET_FILE, "top: \"conv\"", "top: \"data\""),
        64,
        &["net.prototxt:24: ", "layer \"conv\"", "in place"],
    ),
    case(
        "a top defined twice",
        |s| s.edit(NET_FILE, "top: \"ip\"", "top: \"conv\""),
        64,
        &["net.prototxt:48: ", "layer \"ip\"", "\"conv\""],
    ),
    case(
        "no images in a mini-batch",
        |s| s.edit(NET_FILE, "batch_size: 20", "batch_size: 0"),
        64,
        &["net.prototxt:9: ", "batch_size", "0; expected at least 1"],
    ),
    case(
        "no outputs",
        |s| s.edit(NET_FILE, "num_output: 6", "num_output: 0"),
        64,
        &["net.prototxt:26: ", "num_output"],
    ),
    case(
        "more outputs than memory",
        |s| s.edit(NET_FILE, "num_output: 6", "num_output: 4000000000"),
        64,
        &["net.prototxt:26: ", "num_output"],
    ),
    case(
        "no loss",
        |s| {
            let text = fs::read_to_string(s.path(NET_FILE)).expect("the stage's files");
            let loss = text.find("layer {\n  name: \"loss\"").expect("the stage's files");
            s.write(NET_FILE, &text[..loss]);
        },
        64,
        &["net.prototxt", "loss"],
    ),
    case(
        "weights that only one phase has",
        |s| s.edit(NET_FILE, "name: \"ip\"", "name: \"ip\" include { phase: TRAIN }"),
        64,
        &["net.prototxt"],
    ),
    case(
        "other weights in the other phase",
        |s| s.write(NET_FILE, NET.replace("layer {\n  name: \"ip\"", TWO_OUTPUTS)),
        64,
        &["net.prototxt", "parameters", "TRAIN", "TEST"],
    ),
    case(
        "a layer without a gradient",
        |s| s.edit(NET_FILE, "type: \"ReLU\"", "type: \"Threshold\""),
        64,
        &["net.prototxt:", "layer \"relu\"", "Threshold has no gradient", "propagate_down: false"],
    ),
    case(
        "a bound that is missing",
        |s| s.edit(NET_FILE, "type: \"ReLU\"", "type: \"Clip\"\n clip_param { min: 0 }"),
        64,
        &["net.prototxt:", "layer \"relu\"", "clip_param.max: missing", "min: 0 max: 6"],
    ),
    case(
        "a matrix that is nowhere",
        |s| s.edit(NET_FILE, "\"SoftmaxWithLoss\"", "\"InfogainLoss\" infogain_loss_param { source: \"H\" }"),
        64,
        &["net.prototxt:", "layer \"loss\"", "infogain_loss_param.source: H: no such file"],
    ),
    case(
        "no data in training",
        |s| s.edit(NET_FILE, "phase: TRAIN", "phase: TEST"),
        64,
        &["net.prototxt", "TRAIN"],
    ),
];

#[test]
fn networks_that_cannot_be() {
    check(NETWORKS);
}

/// Puts another layer that makes the scores into the test phase.
const TWO_OUTPUTS: &str = r#"layer {
  name: "other"
  type: "InnerProduct"
  bottom: "pool"
  top: "ip"
  include { phase: TEST }
  inner_product_param { num_output: 10 }
}
layer {
  include { phase: TRAIN }
  name: "ip""#;

/// The stage's file of training images or labels.
fn file(stage: &Stage, kind: &str, axes: usize) -> std::path::PathBuf {
    stage.path(&format!("shapes/train-{kind}-idx{axes}-ubyte"))
}

/// Puts the gzipped labels that come with the program, cut off, in place of the stage's.
fn cut_gzip(stage: &Stage) {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/data/mnist/train-labels-idx1-ubyte.gz");
    let bytes = fs::read(bundled).expect("the bundled labels");
    fs::remove_file(file(stage, "labels", 1)).expect("the stage's files");
    stage.write("shapes/train-labels-idx1-ubyte.gz", &bytes[..bytes.len() / 2]);
}

const DATA: &[Case] = &[
    case(
        "no such data set",
        |s| fs::remove_dir_all(s.path("shapes")).expect("the stage's files"),
        66,
        &["shapes: no such data set; looked for\n    ./shapes", "--data", "QUADRILLE_DATA"],
    ),
    flags(
        "train --solver solver.prototxt --run out --data nowhere",
        66,
        &["shapes: no such data set; looked for\n    nowhere/shapes\n    nowhere"],
    ),
    case(
        "only one half of the set",
        |s| fs::remove_file(file(s, "labels", 1)).expect("the stage's files"),
        66,
        &["shapes/train-labels-idx1-ubyte: not found"],
    ),
    case(
        "images cut off",
        |s| {
            let bytes = fs::read(file(s, "images", 3)).expect("the stage's files");
            fs::write(file(s, "images", 3), &bytes[..bytes.len() - 1]).expect("the stage's files");
        },
        65,
        &["shapes/train-images-idx3-ubyte: is cut off"],
    ),
    case(
        "a header cut off",
        |s| fs::write(file(s, "images", 3), [0, 0, 8, 3, 0]).expect("the stage's files"),
        65,
        &["shapes/train-images-idx3-ubyte: is cut off"],
    ),
    case("gzip cut off", cut_gzip, 65, &["shapes/train-labels-idx1-ubyte.gz: is cut off"]),
    case(
        "one label too few",
        |s| {
            let count = TRAIN_IMAGES - 1;
            fs::write(file(s, "labels", 1), idx(&[count], &vec![0; count])).expect("the stage's files");
        },
        65,
        &["train-labels-idx1-ubyte: 599 labels for 600 images"],
    ),
    case(
        "more classes than scores",
        |s| write_idx(&s.path("shapes"), "train", TRAIN_IMAGES, CLASSES + 1),
        65,
        &["shapes: image ", "has the label 10, but layer \"loss\" (net.prototxt:", "10 classes"],
    ),
    case(
        "a wrong start",
        |s| fs::write(file(s, "images", 3), b"PNG image").expect("the stage's files"),
        65,
        &["train-images-idx3-ubyte: starts with 50 4e 47 20; expected 00 00 08 03"],
    ),
    case(
        "a header that promises too much",
        |s| {
            fs::write(file(s, "images", 3), idx(&[u32::MAX as usize, SIDE, SIDE], &[0; 99]))
                .expect("the stage's files")
        },
        65,
        &["train-images-idx3-ubyte: the header promises"],
    ),
    case(
        "no images at all",
        |s| {
            fs::write(file(s, "images", 3), idx(&[0, SIDE, SIDE], &[])).expect("the stage's files");
            fs::write(file(s, "labels", 1), idx(&[0], &[])).expect("the stage's files");
        },
        65,
        &["no images"],
    ),
    case(
        "test images of another size",
        |s| {
            let name = "shapes/t10k-images-idx3-ubyte";
            s.write(name, idx(&[200, SIDE, SIDE + 2], &vec![0; 200 * SIDE * (SIDE + 2)]));
        },
        65,
        &["shapes: ", "1x12x14", "1x12x12"],
    ),
];

#[test]
fn data_that_is_missing_or_damaged() {
    check(DATA);
}

const FLAGS: &[Case] = &[
    flags("train --sovler solver.prototxt", 2, &["--sovler", "--solver"]),
    flags("trian", 2, &["trian", "train"]),
    flags("train --workers many", 2, &["many", "--workers"]),
    flags("train --solver solver.prototxt --run out --batch 0", 2, &["--batch", "at least 1"]),
    flags("time --model net.prototxt --batch 0", 2, &["--batch", "at least 1"]),
    flags("train --solver solver.prototxt --run out --quadrants 10000", 2, &["--quadrants 10000"]),
    flags("train --solver solver.prototxt --run out --quadrants 0", 2, &["--quadrants", "at least 1"]),
    flags("train --solver solver.prototxt --run out --workers 0", 2, &["--workers", "at least 1"]),
    flags(
        "train --solver solver.prototxt --run out --workers 10000",
        2,
        &["--workers 10000", "this machine has"],
    ),
    flags("train --solver solver.prototxt --run out --threads 0", 2, &["--threads", "at least 1"]),
    flags("train --solver solver.prototxt --run out --threads 100000", 2, &["threads", "100000"]),
    flags("train --solver solver.prototxt --run out --method magic", 2, &["magic", "sync-easgd", "sync-sgd"]),
    flags("train --solver solver.prototxt --run out --isa sse9", 2, &["sse9", "portable", "avx2"]),
    flags("train --solver solver.prototxt --run out --isa avx1", 2, &["avx512, avx512bf16, amxbf16"]),
    flags("train --solver solver.prototxt --run out --precision f16", 2, &["f16", "expected f32 or bf16"]),
    flags(
        "train --solver solver.prototxt --run out --precision bf16 --isa portable",
        2,
        &["--precision bf16 with --isa portable: ", "bf16"],
    ),
    flags("time --model net.prototxt --precision bf16 --isa portable", 2, &["--isa portable: th"]),
    flags("train --solver solver.prototxt --run out --kernel conv", 2, &["conv", "LAYER=IMPLEMENTATION"]),
    flags("train --solver solver.prototxt --run out --kernel nolayer=x", 2, &["nolayer"]),
    flags("train --solver solver.prototxt --run out --kernel conv=nokernel", 2, &["nokernel", "reference"]),
    flags("time --model net.prototxt --kernel nolayer=reference", 2, &["nolayer"]),
    flags("train --solver solver.prototxt --run out --workers 2 --rho 1000", 2, &["--rho 1000", "<="]),
    flags("train --solver solver.prototxt --run out --workers 2 --rho nan", 2, &["--rho NaN"]),
    flags("train --solver solver.prototxt --run out --peer-timeout=-1", 2, &["--peer-timeout"]),
    flags(
        "train --solver solver.prototxt --run out --weights a --snapshot b",
        2,
        &["--weights", "--snapshot"],
    ),
    flags("train --solver solver.prototxt --run out --max-iter 0", 2, &["--max-iter", "at least 1"]),
    flags("train --solver solver.prototxt --run out --trace-iterations 5", 2, &["--trace <FILE>"]),
    flags("time --model net.prototxt --trace-iterations 5", 2, &["--trace <FILE>"]),
    flags(
        "train --solver solver.prototxt --run out --inputs a.npz --bad-record skip",
        2,
        &["--inputs <FILE>", "--bad-record"],
    ),
    flags("topo --quadrants 100000", 2, &["100000"]),
    flags("time --model net.prototxt --iterations 0", 2, &["--iterations", "at least 1"]),
];

#[test]
fn flags_that_make_no_sense() {
    check(FLAGS);
}

#[test]
fn run_folders_that_cannot_be_made() {
    check(&[
        flags("train --solver solver.prototxt --run net.prototxt/out", 73, &["net.prototxt/out"]),
        flags("train --solver solver.prototxt --run net.prototxt", 73, &["net.prototxt"]),
    ]);
    let stage = Stage::new();
    stage.train("out", "--max-iter 1");
    let again = stage.run("train --solver solver.prototxt --run out");
    assert_eq!(again.code, Some(73), "{again:?}");
    assert!(again.stderr.contains("out: cannot create a run folder: it already holds a run"), "{again:?}");
    assert_eq!(stage.metrics("out").len(), 4, "the first run's metrics are as they were");
}

#[test]
fn a_run_that_was_refused_does_not_stand_in_its_own_way() {
    let stage = Stage::new();
    for wrong in ["--kernel nolayer=x", "--isa sse9", "--batch 0", "--method magic", "--workers 10000"] {
        assert_eq!(stage.run(&format!("{TRAIN} {wrong}")).code, Some(2), "{wrong}");
    }
    stage.train("out", "--max-iter 1");
}

#[test]
fn values_that_are_not_finite() {
    for workers in [
        "",
        "--workers 2",
        "--quadrants 2",
        "--workers 2 --method sync-sgd",
        "--workers 2 --method async-msgd",
        "--workers 2 --method hogwild-sgd",
        "--workers 2 --method hogwild-easgd",
        "--workers 2 --method original-easgd",
    ] {
        let stage = Stage::new();
        stage.edit("solver.prototxt", "base_lr: 0.05", "base_lr: 1e30");
        let case = Case {
            what: workers,
            breaks: |_| {},
            arguments: TRAIN,
            code: 77,
            says: &["in iteration ", "learning rate ", "lower base_lr"],
        };
        let outcome = stage.run(&format!("{TRAIN} {workers}"));
        assert_eq!(faults(&case, &stage, &outcome), [""; 0]);
        assert!(!stage.path("out/snapshots/iteration_20").exists());
    }
}

/// Under a limit of the address space, as a batch system sets it.
#[test]
fn memory_that_is_not_there() {
    let stage = Stage::new();
    let program = env!("CARGO_BIN_EXE_quadrille");
    // The network's kernels take more than a GiB for this batch, the rest of the program far less.
    let command = format!("ulimit -v 600000; exec {program} time --model net.prototxt --batch 200000");
    let output = std::process::Command::new("sh")
        .args(["-c", &command])
        .current_dir(stage.path("."))
        .output()
        .expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(71), "{stderr}");
    assert!(stderr.contains("MiB of memory") && !stderr.contains("panicked"), "{stderr}");
}
