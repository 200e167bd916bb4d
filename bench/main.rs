//! Experiments: what the program is measured with, and the records that come of it.

mod breakdown;
mod data;
mod distance;
mod engine;
mod glp4nn;
mod kernels;
mod machine;
mod methods;
mod nets;
mod networks;
mod ours;
mod packed;
mod partition;
mod peers;
mod plot;
mod record;
mod runs;
mod scaling;
mod shapes;
mod sim_check;
mod trace;
mod turbodl;
mod weak_scaling;
mod workers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures Quadrille beside its peers; every claim is a ratio from one run.
#[derive(Debug, Parser)]
#[command(name = "quadrille-bench", version)]
struct Cli {
    /// What to measure.
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Whole training iterations beside PyTorch, pair by pair
    Peers(peers::Args),
    /// Time to an accuracy with the machine in 1, 2, 4, ... parts: Figure 12 of the SC17 paper
    Partition(partition::Args),
    /// Accuracy against time of the eleven methods: Figures 6 and 8 of the SC17 paper
    Methods(methods::Args),
    /// Where the time of the methods goes: Table 3 of the SC17 paper
    Breakdown(breakdown::Args),
    /// Measure the machine at hand for the virtual clock, and check what that predicts
    Machine(machine::Args),
    /// All parameters in one packed buffer beside one message for each array: Figure 10 of the SC17 paper
    Packed(packed::Args),
    /// Weak scaling: Table 4 of the SC17 paper, measured as far as this machine goes and simulated from there on
    WeakScaling(weak_scaling::Args),
    /// Whole training iterations on one thread and on several, or on one quadrant and on several, pair by pair
    Scaling(scaling::Args),
    /// Several workers beside PyTorch's DistributedDataParallel over gloo
    Workers(workers::Args),
    /// Convolutions one by one, by every implementation, checked and beside the measured peak
    Kernels(kernels::Args),
    /// Kernels of several images at once, layer by layer: Figures 2, 4, 7, 8 and Table 6 of GLP4NN
    Glp4nn(glp4nn::Args),
    /// What lanes and priorities gain over layer by layer: Figures 7, 8, 9 and 11 of TurboDL
    Turbodl(turbodl::Args),
    /// How far the simulated device is from the CPU device
    SimCheck(sim_check::Args),
    /// What a timeline costs a training, pair by pair
    Trace(trace::Args),
    /// How fast images are decoded, and how long a training waits for them
    Data(data::Args),
    /// Write the networks in models/ that are made of a pattern
    Networks(networks::Args),
    /// Write the list of convolutions of the networks in models/
    Shapes(shapes::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().experiment {
        Experiment::Peers(args) => peers::run(&args),
        Experiment::Partition(args) => partition::run(&args),
        Experiment::Methods(args) => methods::run(&args),
        Experiment::Breakdown(args) => breakdown::run(&args),
        Experiment::Machine(args) => machine::run(&args),
        Experiment::Packed(args) => packed::run(&args),
        Experiment::WeakScaling(args) => weak_scaling::run(&args),
        Experiment::Scaling(args) => scaling::run(&args),
        Experiment::Workers(args) => workers::run(&args),
        Experiment::Kernels(args) => kernels::run(&args),
        Experiment::Glp4nn(args) => glp4nn::run(&args),
        Experiment::Turbodl(args) => turbodl::run(&args),
        Experiment::SimCheck(args) => sim_check::run(&args),
        Experiment::Trace(args) => trace::run(&args),
        Experiment::Data(args) => data::run(&args),
        Experiment::Networks(args) => networks::run(&args),
        Experiment::Shapes(args) => shapes::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("quadrille-bench: {message}");
            ExitCode::FAILURE
        }
    }
}
