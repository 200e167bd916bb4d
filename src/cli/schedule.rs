//! How tasks are put into lanes, and what `plan` takes.

use std::path::PathBuf;

use clap::Args;
use quadrille_core::plan::Schedule;

use super::{MachineArgs, at_least_one, parse_shape};
use crate::pool::StreamPool;

/// In which lanes tasks run; the same for every command that trains or measures.
#[derive(Args, Clone, Debug, Default)]
pub struct ScheduleArgs {
    /// When tasks run; the numbers are the same: layerwise (layer by layer), concurrent (what need not wait runs beside it) or
    /// critical (and what the next layer waits for runs first) [default: critical; concurrent where
    /// sync-sgd sends gradients while backward runs]
    #[arg(long, value_name = "HOW")]
    pub schedule: Option<Schedule>,
    /// On a GPU: cut layers into chunks of images, which run at once on a pool of streams: auto (into as many as GLP4NN's analyzer
    /// finds room for, from what kernels use at first sight), so many, or off. By our own kernels the numbers are the same
    /// [default: off, since a kernel takes the whole mini-batch and so leaves little room]
    #[arg(long, value_name = "off|auto|N")]
    pub stream_pool: Option<StreamPool>,
}

/// The timeline; the same for every command that trains or measures.
#[derive(Args, Clone, Debug)]
pub struct TraceArgs {
    /// Write when each task of the first iterations ran on all workers, a row for each lane, one for each thread of a quadrant and one
    /// for the phases of an iteration, for chrome://tracing or ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Iterations that --trace covers
    #[arg(long, default_value_t = 20, value_name = "N", requires = "trace", value_parser = at_least_one::<u64>)]
    pub trace_iterations: u64,
}

/// What `plan` takes.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct PlanArgs {
    /// Network file or name of a bundled network, such as googlenet [default: the bundled LeNet]
    #[arg(long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// Images in a worker's mini-batch [default: the network's; a smaller one for a bundled network given by name]
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>)]
    pub batch: Option<usize>,
    /// Shape of samples: channels, height, width [default: from crop_size, the data set, or a well-known name]
    #[arg(long = "data-shape", value_name = "C,H,W", value_parser = parse_shape)]
    pub shape: Option<[usize; 3]>,
    /// Workers of the training: several have plans for gradients and for updates, one for an iteration
    #[arg(long, default_value_t = 1, value_name = "W", value_parser = at_least_one::<usize>)]
    pub workers: usize,
    /// Estimate times by the figures of this machine, such as a file of bench/machines
    #[arg(long = "machine", value_name = "FILE")]
    pub machine_file: Option<PathBuf>,
    /// Correct the estimated times by those of an iteration that is run here, task after task
    #[arg(long)]
    pub measure: bool,
    /// Show lanes, priorities, blocks of layers, the critical path and expected times; so it is without --out, too
    #[arg(long)]
    pub explain: bool,
    /// Write the plans to this file, for train --plan; what is there is replaced
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// In which lanes tasks run.
    #[command(flatten)]
    pub scheduling: ScheduleArgs,
    /// How the machine is used.
    #[command(flatten)]
    pub machine: MachineArgs,
}
