//! Experiments: what the program is measured with, and the records that come of it.

mod networks;
mod peers;
mod record;

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
    /// Write the networks in models/ that are made of a pattern
    Networks(networks::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().experiment {
        Experiment::Peers(args) => peers::run(&args),
        Experiment::Networks(args) => networks::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("quadrille-bench: {message}");
            ExitCode::FAILURE
        }
    }
}
