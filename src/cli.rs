//! The command line. Caffe's commands and flags work as typed by a Caffe user, with one dash or two.

mod convert;
mod data;
mod report;
mod schedule;

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use quadrille_comm::choice::Choice;
use quadrille_comm::protocol::Method;
use quadrille_core::net::Phase;
use quadrille_cpu::isa::{Isa, Precision};
use quadrille_numa::memory::plan::FastMemory;
use quadrille_numa::{Reserve, Strictness};

use crate::device_choice::{DeviceChoice, Switch};
use crate::method;
use crate::nonfinite::OnNonfinite;
use crate::parts::Quadrants;

pub use convert::{ConvertCommand, ConvertDataArgs, ConvertMeanArgs, ConvertWeightsArgs};
pub use data::{DataArgs, DataShards};
pub use report::ReportArgs;
pub use schedule::{PlanArgs, ScheduleArgs, TraceArgs};

use crate::output::LogStyle;

/// Trains convolutional networks on chips made of NUMA quadrants.
#[derive(Debug, Parser)]
#[command(name = "quadrille", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Start here:
  quadrille train                   LeNet on MNIST, Sync EASGD, two workers
  quadrille train --solver FILE     your own network, as Caffe files
  quadrille train --workers 4       four workers under Sync EASGD (SC17)
  quadrille train --quadrants 4     one worker on four quadrants
  quadrille test --weights FILE     accuracy of trained weights
  quadrille time --model alexnet    milliseconds and GFLOP/s of every layer
  quadrille plan --model googlenet  what runs in which lane, and what is critical
  quadrille check FILE              what a network or solver file means here
  quadrille extract --help          values and gradients of one mini-batch, to a file
  quadrille convert weights A B     weights to and from .caffemodel, .h5, .safetensors, .npz
  quadrille convert data SRC DST    an LMDB, tar files or CIFAR file of any data set
  quadrille convert mean SRC DST    the mean of a data set, for mean_file
  quadrille report RUN...           one page about runs, to read in a browser
  quadrille topo                    how the program sees this machine

Exit codes:
  0 done            64 bad network or solver   73 cannot create
  2 wrong use       65 bad data                74 cannot write
 70 a bug           66 missing input           76 a worker was lost
 71 environment     77 values not finite       75 stopped, good snapshot: requeue")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a network; without arguments LeNet on the bundled MNIST
    Train(Box<TrainArgs>),
    /// Measure the accuracy of trained weights
    Test(TestArgs),
    /// Measure every layer: milliseconds, GFLOP/s, share of the measured peak
    Time(TimeArgs),
    /// Show which task runs in which lane, what is critical and how long it should take, or write it down
    Plan(Box<PlanArgs>),
    /// Read networks and solvers and show shapes, parameters, memory and work, without data
    Check(CheckArgs),
    /// Run one mini-batch and write every value and gradient to a file
    Extract(ExtractArgs),
    /// Turn files of one format into another
    #[command(subcommand)]
    Convert(ConvertCommand),
    /// Write one page about runs: curves, where the time went, scaling, configuration
    Report(ReportArgs),
    /// Show this machine and the quadrants it would be cut into
    #[command(alias = "device_query")]
    Topo(TopoArgs),
}

/// How the machine is used; the same for every command that computes.
#[derive(Args, Clone, Debug)]
pub struct MachineArgs {
    /// What computes: cpu, GPUs by number such as cuda:0 or cuda:0,cuda:1, all of them (cuda:all), or some of each (cuda:0,cpu):
    /// the workers of a node take these in turn
    #[arg(long, alias = "gpu", default_value = "cpu", value_name = "cpu|cuda:N")]
    pub device: DeviceChoice,
    /// On a GPU: launch a whole step by one call, as a CUDA graph; the numbers are the same [default: on]
    #[arg(long, value_name = "on|off")]
    pub cuda_graph: Option<Switch>,
    /// On a GPU: let convolutions and inner products round what they multiply to TF32 (10 bits of mantissa)
    #[arg(long)]
    pub tf32: bool,
    /// Quadrants of each worker; auto: as many as copies fit the fast memory; l3: one for each third-level cache [default: one
    /// for each NUMA node]
    #[arg(long, value_name = "Q|auto|l3")]
    pub quadrants: Option<Quadrants>,
    /// Threads of each quadrant [default: one for each of its cores]
    #[arg(long, value_name = "T", value_parser = at_least_one::<usize>)]
    pub threads: Option<usize>,
    /// Hardware threads of each core that a quadrant's threads use
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = at_least_one::<usize>)]
    pub smt: usize,
    /// Cores of each worker that do not compute: auto (where that costs next to nothing), none, or some of main, comm (the
    /// exchange) and io (reading), such as main,comm,io=2
    #[arg(long, default_value = "auto", value_name = "ROLES")]
    pub reserve: Reserve,
    /// What becomes of placement that the system refuses: best goes on without and says so, strict ends with code 71
    #[arg(long = "numa", default_value = "best", value_name = "best|strict")]
    pub strictness: Strictness,
    /// Instruction-set tier: portable, avx2, avx512f, avx512, avx512bf16, amxbf16 [default: the highest of this CPU]
    #[arg(long, value_name = "TIER")]
    pub isa: Option<Isa>,
    /// Precision in which convolutions and inner products multiply and activations are kept: f32, bf16; sums, weights and
    /// their gradients are f32, and so are inner products of at most 8 images on a CPU with AMX
    #[arg(long, default_value = "f32", value_name = "TYPE")]
    pub precision: Precision,
    /// How fast memory (MCDRAM, HBM) near a quadrant is used: prefer puts there what fits, activations and weights before
    /// histories; require ends with code 71 if not all fits; off uses DRAM only
    #[arg(long, default_value = "prefer", value_name = "prefer|require|off")]
    pub fast_memory: FastMemory,
    /// Force an implementation, such as conv1=reference or Convolution=reference; may be repeated
    #[arg(long = "kernel", value_name = "LAYER=NAME", value_parser = parse_pair)]
    pub kernels: Vec<(String, String)>,
    /// Compute every layer apart, instead of chains such as BatchNorm, Scale and ReLU at once, sums of residual blocks in the
    /// normalisation before them and the backward of a ReLU in the layer behind it; every update apart from its gradient;
    /// and sums of several readers' gradients apart from these
    #[arg(long)]
    pub no_fusion: bool,
    /// Give all values and gradients memory of their own, instead of memory that others used before or, for what goes into
    /// a Concat, a part of its top's
    #[arg(long)]
    pub no_memory_sharing: bool,
}

/// A count of which 0 has no meaning.
fn at_least_one<N: FromStr + Default + PartialEq>(text: &str) -> Result<N, String> {
    let number = text.parse().ok().filter(|n| *n != N::default());
    number.ok_or_else(|| "expected a whole number, at least 1".to_owned())
}

/// A count or a seed.
fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a whole number, at least 0".to_owned())
}

/// A time that may be none.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| "expected a number of seconds".to_owned())
}

/// A share of right answers.
fn accuracy(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "expected a share of right answers, above 0 and at most 1, such as 0.988".to_owned())
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(layer, name)| (layer.to_owned(), name.to_owned()));
    pair.ok_or_else(|| format!("{text:?} has no '='; expected LAYER=IMPLEMENTATION"))
}

/// Channels, height and width, separated by commas.
fn parse_shape(text: &str) -> Result<[usize; 3], String> {
    let extents: Vec<usize> = text.split(',').filter_map(|part| part.trim().parse().ok()).collect();
    match extents[..] {
        [c, h, w] if c > 0 && h > 0 && w > 0 && text.split(',').count() == 3 => Ok([c, h, w]),
        _ => Err("expected channels, height and width, such as 3,32,32".to_owned()),
    }
}

/// Data that is made up; the same for every command that can do without a data set.
#[derive(Args, Clone, Debug)]
pub struct MadeUpArgs {
    /// Make the data up, in memory (time does so unless it is given --data or --real-data)
    #[arg(long)]
    pub dummy_data: bool,
    /// Shape of made-up samples: channels, height, width [default: from crop_size, the data set, or a well-known name]
    #[arg(long = "data-shape", value_name = "C,H,W", value_parser = parse_shape)]
    pub shape: Option<[usize; 3]>,
}

/// What `train` takes.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct TrainArgs {
    /// Solver file in Caffe's text format [default: that of the bundled network that --model names, or else the bundled LeNet's]
    #[arg(long, value_name = "FILE")]
    pub solver: Option<PathBuf>,
    /// Network file or name of a bundled network, instead of the one that the solver names
    #[arg(long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// Start from these weights, by the names of layers: .caffemodel, .h5, .safetensors, .npz or the folder of a snapshot;
    /// several with commas between them
    #[arg(long, value_name = "FILES", value_delimiter = ',', conflicts_with = "snapshot")]
    pub weights: Vec<PathBuf>,
    /// Go on from this snapshot: a .solverstate of Caffe, or the folder of one of quadrille's. With --resume auto only where
    /// the run has no snapshot of its own yet, and so are --weights
    #[arg(long, value_name = "PATH")]
    pub snapshot: Option<PathBuf>,
    /// Go on where a run was: auto takes the newest good snapshot of --run, and begins if there is none yet, so that the
    /// same command starts and restarts a run; PATH is a run folder or a snapshot
    #[arg(long, value_name = "auto|PATH")]
    pub resume: Option<PathBuf>,
    /// Keep only the newest N snapshots of the run; those put aside as damaged or abandoned stay [default: all, as Caffe does]
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>)]
    pub keep_snapshots: Option<usize>,
    /// Workers, each with its own weights and samples [default: 1; 2 for the bundled LeNet]
    #[arg(long, value_name = "W", value_parser = at_least_one::<usize>)]
    pub workers: Option<usize>,
    /// How workers exchange: one of eleven methods of SGD and EASGD, which --help lists
    #[arg(long, default_value = "sync-easgd", value_name = "METHOD", long_help = method::help())]
    pub method: Method,
    /// Elastic coefficient of EASGD [default: 0.9 / (workers x base_lr)]
    #[arg(long, value_name = "RHO")]
    pub rho: Option<f32>,
    /// How sync-sgd and sync-easgd sum over workers: auto (by size and number of workers), tree, doubling or ring
    #[arg(long, default_value = "auto", value_name = "WAY")]
    pub collective: Choice,
    /// One message for each array of parameters instead of one for all, to compare with (sync-sgd, sync-easgd, original-easgd)
    #[arg(long)]
    pub unpacked: bool,
    /// Iterations from one exchange to the next, of methods with easgd in their name [default: 1]
    #[arg(long, value_name = "N", value_parser = at_least_one::<u64>)]
    pub period: Option<u64>,
    /// Momentum, instead of the solver's
    #[arg(long, value_name = "MU")]
    pub momentum: Option<f32>,
    /// How the machine is used.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// The data set.
    #[command(flatten)]
    pub data: DataArgs,
    /// What each worker reads: all of the data set, or (rank) a part of its own: of several tar files every W-th, of anything
    /// else every W-th record
    #[arg(long, value_name = "all|rank", default_value = "all")]
    pub data_shards: DataShards,
    /// Feed the arrays in/BLOB of this .npz to Input and Data layers, mini-batch after mini-batch along a first axis, and
    /// start from init/LAYER/INDEX
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "data_shards", "stage_to", "bad_record", "dummy_data", "shape", "batch"])]
    pub inputs: Option<PathBuf>,
    /// Made-up data.
    #[command(flatten)]
    pub made_up: MadeUpArgs,
    /// Images in a worker's mini-batch, instead of the network's
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>)]
    pub batch: Option<usize>,
    /// Iterations to train, instead of the solver's max_iter
    #[arg(long, alias = "iterations", value_name = "N", value_parser = at_least_one::<u64>)]
    pub max_iter: Option<u64>,
    /// Iterations between tests, instead of the solver's; 0 for none
    #[arg(long, value_name = "N", value_parser = whole)]
    pub test_interval: Option<u64>,
    /// End as soon as a test finds at least this accuracy (0.988: 98.8 %), instead of at max_iter
    #[arg(long, value_name = "A", value_parser = accuracy)]
    pub target_accuracy: Option<f32>,
    /// What to do about a loss, gradient or weight that is not finite: stop with code 77, skip (leave that update out), or
    /// rollback (back to the last snapshot, then leave it out)
    #[arg(long, default_value = "stop", value_name = "WHAT")]
    pub on_nonfinite: OnNonfinite,
    /// Seed of all random numbers [default: the solver's, or 1]
    #[arg(long, value_name = "N", value_parser = whole)]
    pub seed: Option<u64>,
    /// Folder for metrics, configuration and snapshots [default: runs/NETWORK-NUMBER]
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Write event files for TensorBoard into the folder tensorboard of the run folder, too
    #[arg(long)]
    pub tensorboard: bool,
    /// How lines look
    #[arg(long, default_value = "plain", value_name = "STYLE")]
    pub log_style: LogStyle,
    /// After the first iteration ask the system where each page of all replicas and each thread of their crews is, and end
    /// with code 71 if any is elsewhere
    #[arg(long, hide_short_help = true)]
    pub verify_placement: bool,
    /// The clock: real, or sim, by which computing, copies and messages take what --machine says; the numbers stay real
    #[arg(long, default_value = "real", value_name = "real|sim")]
    pub clock: ClockKind,
    /// In which lanes tasks run.
    #[command(flatten)]
    pub scheduling: ScheduleArgs,
    /// Run by the plans of this file, which quadrille plan --out has written for the same network, batch and machine
    #[arg(long, value_name = "FILE", conflicts_with = "schedule")]
    pub plan: Option<PathBuf>,
    /// The timeline.
    #[command(flatten)]
    pub tracing: TraceArgs,
    /// Figures of the machine for --clock sim, such as a file of bench/machines
    #[arg(long = "machine", value_name = "FILE")]
    pub machine_file: Option<PathBuf>,
    /// Seconds after which a silent worker counts as lost
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS")]
    pub peer_timeout: f64,
    /// Seconds before the end of a Slurm job's time at which the run stops with a snapshot [default: 60, or a tenth of the
    /// time that is left at the start, if that is less]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub stop_margin: Option<f64>,
}

/// The clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClockKind {
    /// The one on the wall.
    Real,
    /// A virtual one, which goes by a machine file.
    Sim,
}

/// What `test` takes.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct TestArgs {
    /// Network file or name of a bundled network [default: the bundled LeNet]
    #[arg(long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// Trained weights: .caffemodel, .h5, .safetensors, .npz or the folder of a snapshot; several with commas between them
    #[arg(long, value_name = "FILES", value_delimiter = ',', required = true)]
    pub weights: Vec<PathBuf>,
    /// Mini-batches to test [default: the whole test set; the last one is filled up from its start]
    #[arg(long, value_name = "N", value_parser = at_least_one::<u64>)]
    pub iterations: Option<u64>,
    /// The data set.
    #[command(flatten)]
    pub data: DataArgs,
    /// Images in a mini-batch, instead of the network's
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>)]
    pub batch: Option<usize>,
    /// How the machine is used.
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// What `time` takes.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct TimeArgs {
    /// Network file or name of a bundled network, such as alexnet [default: the bundled LeNet]
    #[arg(long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// Iterations to measure
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = at_least_one::<u64>)]
    pub iterations: u64,
    /// Images in a mini-batch [default: the network's; a smaller one for a bundled network given by name]
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>)]
    pub batch: Option<usize>,
    /// Run on the data set that the network names, and show how long an iteration waits for it
    #[arg(long)]
    pub real_data: bool,
    /// The data set; with --data an iteration runs on it.
    #[command(flatten)]
    pub data: DataArgs,
    /// Made-up data.
    #[command(flatten)]
    pub made_up: MadeUpArgs,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
    /// In which lanes tasks run.
    #[command(flatten)]
    pub scheduling: ScheduleArgs,
    /// The timeline.
    #[command(flatten)]
    pub tracing: TraceArgs,
    /// How the machine is used.
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// What `check` takes.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct CheckArgs {
    /// Network and solver files, or names of bundled networks
    #[arg(value_name = "FILE|NAME", required = true)]
    pub files: Vec<PathBuf>,
    /// Phase to show [default: train, and test where its layers are others]
    #[arg(long, value_name = "PHASE")]
    pub phase: Option<PhaseArg>,
    /// Images in a mini-batch, instead of the network's
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>)]
    pub batch: Option<usize>,
    /// Shape of samples: channels, height, width [default: from crop_size, the data set, or a well-known name]
    #[arg(long = "data-shape", value_name = "C,H,W", value_parser = parse_shape)]
    pub shape: Option<[usize; 3]>,
}

/// A phase, as the command line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PhaseArg {
    /// Training.
    Train,
    /// Testing.
    Test,
}

impl From<PhaseArg> for Phase {
    fn from(phase: PhaseArg) -> Self {
        match phase {
            PhaseArg::Train => Self::Train,
            PhaseArg::Test => Self::Test,
        }
    }
}

/// What `extract` takes.
#[derive(Args, Clone, Debug)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Arrays of --inputs:
  in/BLOB             values of a top of a Data or Input layer
  param/LAYER/INDEX   a parameter: 0 is the weight, 1 the bias
  seed/BLOB           the gradient of an output that is no loss
Arrays of --out:
  blob/BLOB           values, of all blobs but the inputs
  diff/BLOB           gradients of blobs
  pdiff/LAYER/INDEX   gradients of parameters
  param_after/LAYER/INDEX   running sums after the mini-batch"
)]
pub struct ExtractArgs {
    /// Network file or name of a bundled network [default: the bundled LeNet]
    #[arg(long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// What goes in: arrays of NumPy (.npz); their extents, too, are those of the inputs
    #[arg(long, value_name = "FILE")]
    pub inputs: PathBuf,
    /// Where the arrays go that come out (.npz)
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Start from these weights: .caffemodel, .h5, .safetensors, .npz or the folder of a snapshot; several with commas between
    /// them
    /// [default: the network's fillers]
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    pub weights: Vec<PathBuf>,
    /// Phase whose layers are run [default: the file's; else train with --backward, test without]
    #[arg(long, value_name = "PHASE")]
    pub phase: Option<PhaseArg>,
    /// Level of the state, instead of the file's
    #[arg(long, value_name = "N")]
    pub level: Option<i32>,
    /// A stage of the state, beside those of the file; may be repeated
    #[arg(long, value_name = "NAME")]
    pub stage: Vec<String>,
    /// Find gradients, too, from losses and from the given gradients of outputs
    #[arg(long)]
    pub backward: bool,
    /// Seed of fillers
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole)]
    pub seed: u64,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "T", value_parser = at_least_one::<usize>)]
    pub threads: Option<usize>,
    /// Instruction-set tier [default: the highest of this CPU]
    #[arg(long, value_name = "TIER")]
    pub isa: Option<Isa>,
    /// Precision of products and of what is kept: f32, bf16
    #[arg(long, default_value = "f32", value_name = "TYPE")]
    pub precision: Precision,
    /// Force an implementation, such as conv1=reference; may be repeated
    #[arg(long = "kernel", value_name = "LAYER=NAME", value_parser = parse_pair)]
    pub kernels: Vec<(String, String)>,
}

impl ExtractArgs {
    /// The machine as one quadrant, with every value in memory of its own.
    pub fn machine(&self) -> MachineArgs {
        let Self { threads, isa, precision, .. } = *self;
        let kernels = self.kernels.clone();
        MachineArgs {
            device: DeviceChoice::default(),
            tf32: false,
            cuda_graph: None,
            quadrants: Some(Quadrants::Count(1)),
            threads,
            smt: 1,
            reserve: Reserve::NONE,
            strictness: Strictness::default(),
            isa,
            precision,
            fast_memory: FastMemory::default(),
            kernels,
            no_fusion: true,
            no_memory_sharing: true,
        }
    }
}

/// What `topo` takes.
#[derive(Args, Clone, Debug)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Other machines: HWLOC_XMLFILE=FILE (of \"lstopo --of xml FILE\"; needs a build with --features \
hwloc) or HWLOC_FSROOT=FOLDER (of hwloc-gather-topology) shows the machine described there; nothing \
is bound. Training ignores these variables and says so."
)]
pub struct TopoArgs {
    /// Quadrants to cut the machine into; auto: as many as copies of --model fit the fast memory; l3: one for each third-level
    /// cache [default: one for each NUMA node]
    #[arg(long, value_name = "Q|auto|l3")]
    pub quadrants: Option<Quadrants>,
    /// Threads of each quadrant [default: one for each of its cores]
    #[arg(long, value_name = "T", value_parser = at_least_one::<usize>)]
    pub threads: Option<usize>,
    /// Hardware threads of each core that a quadrant's threads use
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = at_least_one::<usize>)]
    pub smt: usize,
    /// Cores of each worker that do not compute: auto, none, or some of main, comm and io, such as main,comm,io=2
    #[arg(long, default_value = "auto", value_name = "ROLES")]
    pub reserve: Reserve,
    /// Workers that share the quadrants
    #[arg(long, default_value_t = 1, value_name = "W", value_parser = at_least_one::<usize>)]
    pub workers: usize,
    /// Print one JSON object instead of the drawing: quadrants, threads, warnings
    #[arg(long)]
    pub json: bool,
    /// Show what would go where in a training of this network (a file, or the name of a bundled one)
    #[arg(long, value_name = "FILE|NAME", conflicts_with = "json")]
    pub model: Option<PathBuf>,
    /// Images in its mini-batch, instead of the network's [default network: the bundled LeNet]
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>, conflicts_with = "json")]
    pub batch: Option<usize>,
    /// How it would use fast memory: prefer, require, off
    #[arg(long, default_value = "prefer", value_name = "prefer|require|off")]
    pub fast_memory: FastMemory,
    /// Take memory of each kind in every quadrant, touch it from the quadrant's threads, ask the system where it is, and
    /// end with code 71 if any of it is elsewhere
    #[arg(long, conflicts_with = "json")]
    pub verify: bool,
}

/// Turns Caffe's single-dash flags (`-solver F`, `-solver=F`) and underscores in flags into ours.
pub fn normalise(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    args.into_iter()
        .enumerate()
        .map(|(i, arg)| {
            let Some(text) = arg.to_str().filter(|t| i > 0 && t.starts_with('-')) else { return arg };
            let name = text.trim_start_matches('-');
            let is_flag = name.len() > 1 && name.starts_with(|c: char| c.is_ascii_alphabetic());
            if !is_flag || text.len() - name.len() > 2 {
                return arg;
            }
            let (flag, value) = name.split_once('=').map_or((name, None), |(f, v)| (f, Some(v)));
            let flag = flag.replace('_', "-");
            value.map_or_else(|| format!("--{flag}"), |v| format!("--{flag}={v}")).into()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn normalised(args: &[&str]) -> Vec<String> {
        let args = args.iter().map(OsString::from);
        normalise(args).into_iter().map(|a| a.into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_shape_is_three_numbers() {
        assert_eq!(parse_shape("3,32, 48"), Ok([3, 32, 48]));
        for bad in ["", "3", "3,32", "3,32,32,1", "3,x,32", "3,0,32", "-1,2,2", "3,32,32,"] {
            assert!(parse_shape(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn caffes_way_of_typing_flags_is_ours() {
        assert_eq!(
            normalised(&[
                "quadrille",
                "train",
                "-solver",
                "a_b.prototxt",
                "-test_interval=5",
                "--seed",
                "-1",
                "-h"
            ]),
            ["quadrille", "train", "--solver", "a_b.prototxt", "--test-interval=5", "--seed", "-1", "-h"]
        );
    }
}
