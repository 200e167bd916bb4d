//! A folder with a small data set, a network and a solver, and a way to run the program in it that cannot hang.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Far beyond what any call here needs, also on a busy machine: only a hang gets there.
const PATIENCE: Duration = Duration::from_secs(120);

pub const CLASSES: usize = 10;
pub const SIDE: usize = 12;
pub const TRAIN_IMAGES: usize = 600;
pub const TEST_IMAGES: usize = 200;

/// Trains in well under a second; the line numbers matter to the tests of bad input.
pub const NET: &str = r#"name: "Small"
layer {
  name: "shapes"
  type: "Data"
  top: "data"
  top: "label"
  include { phase: TRAIN }
  transform_param { scale: 0.00390625 }
  data_param { source: "shapes" batch_size: 20 }
}
layer {
  name: "shapes"
  type: "Data"
  top: "data"
  top: "label"
  include { phase: TEST }
  transform_param { scale: 0.00390625 }
  data_param { source: "shapes" batch_size: 50 }
}
layer {
  name: "conv"
  type: "Convolution"
  bottom: "data"
  top: "conv"
  convolution_param {
    num_output: 6
    kernel_size: 5
    weight_filler { type: "xavier" }
  }
}
layer {
  name: "pool"
  type: "Pooling"
  bottom: "conv"
  top: "pool"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer {
  name: "relu"
  type: "ReLU"
  bottom: "pool"
  top: "pool"
}
layer {
  name: "ip"
  type: "InnerProduct"
  bottom: "pool"
  top: "ip"
  inner_product_param {
    num_output: 10
    weight_filler { type: "xavier" }
  }
}
layer {
  name: "accuracy"
  type: "Accuracy"
  bottom: "ip"
  bottom: "label"
  top: "accuracy"
  include { phase: TEST }
}
layer {
  name: "loss"
  type: "SoftmaxWithLoss"
  bottom: "ip"
  bottom: "label"
  top: "loss"
}
"#;

pub const SOLVER: &str = r#"net: "net.prototxt"
base_lr: 0.05
lr_policy: "inv"
gamma: 0.01
power: 0.75
momentum: 0.9
weight_decay: 0.0005
max_iter: 20
display: 10
test_iter: 4
test_interval: 10
random_seed: 7
"#;

/// A folder of its own for a test.
pub struct Stage {
    folder: TempDir,
}

/// What a run of the program left.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A program that runs.
pub struct Running {
    pub child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    what: String,
}

impl Stage {
    /// `net.prototxt`, `solver.prototxt` and the data set `shapes`.
    pub fn new() -> Self {
        let stage = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        stage.write("net.prototxt", NET);
        stage.write("solver.prototxt", SOLVER);
        write_idx(&stage.path("shapes"), "train", TRAIN_IMAGES, CLASSES);
        write_idx(&stage.path("shapes"), "t10k", TEST_IMAGES, CLASSES);
        stage
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).expect("the temporary folder is writable");
    }

    /// Replaces the only or first `from` in a file by `to`.
    pub fn edit(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(name)).expect("the file is there");
        assert!(text.contains(from), "{name} has no {from:?}: this test tests nothing");
        self.write(name, text.replacen(from, to, 1));
    }

    /// Runs the program to its end; arguments are separated by blanks.
    pub fn run(&self, arguments: &str) -> Outcome {
        self.start(arguments).finish()
    }

    /// Runs the program, which must succeed.
    pub fn succeed(&self, arguments: &str) -> Outcome {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(0), "quadrille {arguments}\n{}\n{}", outcome.stdout, outcome.stderr);
        outcome
    }

    pub fn start(&self, arguments: &str) -> Running {
        self.start_in(arguments, |_| {})
    }

    /// Starts the program in surroundings that `prepare` makes.
    pub fn start_in(&self, arguments: &str, prepare: impl FnOnce(&mut Command)) -> Running {
        let unique = tempfile::tempdir().expect("a temporary folder").keep();
        let (stdout, stderr) = (unique.join("stdout"), unique.join("stderr"));
        let file = |path: &Path| Stdio::from(File::create(path).expect("a new file"));
        // Files and not pipes: nobody has to read along, and a full pipe cannot stop the program.
        let mut command = Command::new(env!("CARGO_BIN_EXE_quadrille"));
        command
            .args(arguments.split_whitespace())
            .current_dir(self.folder.path())
            .env_remove("QUADRILLE_DATA")
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(file(&stdout))
            .stderr(file(&stderr));
        prepare(&mut command);
        let child = command.spawn().expect("the program starts");
        Running { child, stdout, stderr, what: arguments.to_owned() }
    }

    /// Trains into the run folder `run` and returns the summary.
    pub fn train(&self, run: &str, flags: &str) -> Value {
        self.succeed(&format!("train --solver solver.prototxt --run {run} {flags}"));
        self.summary(run)
    }

    /// Every line of a run's metrics.
    pub fn metrics(&self, run: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(run).join("metrics.jsonl")).expect("metrics.jsonl");
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    pub fn summary(&self, run: &str) -> Value {
        self.metrics(run).pop().expect("a last line")["summary"].clone()
    }
}

impl Running {
    /// What it has printed so far.
    pub fn stdout(&self) -> String {
        fs::read_to_string(&self.stdout).expect("stdout")
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Outcome {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the state of a child") {
                break status;
            }
            if Instant::now() > end {
                self.child.kill().expect("a child can be ended");
                panic!("quadrille {} hangs; it printed\n{}", self.what, self.stdout());
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let outcome = Outcome {
            code: status.code(),
            stdout: self.stdout(),
            stderr: fs::read_to_string(&self.stderr).expect("stderr"),
        };
        fs::remove_dir_all(self.stdout.parent().expect("a folder")).expect("the output can be removed");
        outcome
    }
}

/// A number that whoever starts a campaign can set, or else `usual`.
pub fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name)
        .map_or(usual, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}: no number")))
}

/// The hash of the weights that a run ended with.
pub fn hash_of(summary: &Value) -> String {
    let hash = summary["weights_hash"].as_str().expect("the summary has a hash").to_owned();
    assert!(hash.len() >= 8, "{hash:?} is no hash");
    hash
}

/// An IDX file: the header for `extents`, then `values`.
pub fn idx(extents: &[usize], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, extents.len() as u8];
    for extent in extents {
        bytes.extend((*extent as u32).to_be_bytes());
    }
    bytes.extend(values);
    bytes
}

/// Images whose class is a bright square at one of ten places, under noise: easy, but not for a constant answer.
pub fn write_idx(folder: &Path, stem: &str, images: usize, classes: usize) {
    fs::create_dir_all(folder).expect("a new folder");
    // A linear congruential generator: the same data set in every run.
    let mut state = 12345 + images as u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let labels: Vec<u8> = (0..images).map(|i| (i * 7 % classes) as u8).collect();
    let mut pixels = Vec::with_capacity(images * SIDE * SIDE);
    for label in &labels {
        let (row, column) = (usize::from(label / 4) * 4, usize::from(label % 4) * 3);
        for at in 0..SIDE * SIDE {
            let inside = (row..row + 4).contains(&(at / SIDE)) && (column..column + 3).contains(&(at % SIDE));
            pixels.push(if inside { 160 + random() / 4 } else { random() / 4 });
        }
    }
    let write = |name: String, bytes: Vec<u8>| fs::write(folder.join(name), bytes).expect("a new file");
    write(format!("{stem}-images-idx3-ubyte"), idx(&[images, SIDE, SIDE], &pixels));
    write(format!("{stem}-labels-idx1-ubyte"), idx(&[images], &labels));
}
