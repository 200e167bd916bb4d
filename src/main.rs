//! The program `quadrille`: the command line, and nothing that computes.

#[macro_use]
mod output;

mod announce;
mod averaging;
mod board;
mod breakdown;
mod bundled;
mod centre;
mod check;
mod cli;
mod conclude;
mod convert;
mod crews;
mod debug;
mod desk;
mod device_choice;
mod draft;
mod ends;
mod engine;
mod entries;
mod exchange;
mod extract;
mod failure;
mod feed;
mod filing;
mod given;
mod holdings;
mod identity;
mod job;
mod made_up;
mod memory;
mod method;
mod nonfinite;
mod pace;
mod parts;
mod pass;
mod places;
mod plan;
mod pool;
mod prepare;
mod progress;
mod report;
mod resume;
mod rewriting;
mod settings;
mod signal;
mod solver_state;
mod staging;
mod state;
mod test;
mod tester;
mod time;
mod topo;
mod trace;
mod train;
mod weights;
mod worker;
mod world;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse_from(cli::normalise(std::env::args_os()));
    let outcome = match &cli.command {
        Command::Train(args) => train::run(args),
        Command::Test(args) => test::run(args),
        Command::Time(args) => time::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Check(args) => check::run(args),
        Command::Extract(args) => extract::run(args),
        Command::Convert(command) => convert::run(command),
        Command::Report(args) => report::run(args),
        Command::Topo(args) => topo::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell("");
            ExitCode::from(failure.code)
        }
    }
}
