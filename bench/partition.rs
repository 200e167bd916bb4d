//! Chip partitioning as in Figure 12 of the SC17 paper: the time to an accuracy with the machine in P parts, each with
//! weights and data of its own, whose gradients are summed up by a tree.
//!
//! The mini-batch is shared by the parts, so that all cuts do the same training but for the rounding of sums: what differs
//! is speed. With `--own-batches` each part takes a whole mini-batch for itself, as the text of the paper can be read.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::ours::{output_of, program};
use crate::plot::{self, Bars, Curve, Curves};
use crate::record::{surroundings, write};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Parts to cut the machine into
    #[arg(long, default_value = "1,2,4,8,16", value_delimiter = ',', value_name = "NUMBERS")]
    parts: Vec<usize>,
    /// Solver, whose network is trained
    #[arg(long, default_value = "models/alexnet_cifar10/solver.prototxt", value_name = "FILE")]
    solver: PathBuf,
    /// The data set
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Accuracy to reach, a share of right answers
    #[arg(long, default_value_t = 0.625, value_name = "A")]
    target: f64,
    /// Iterations between tests, which the times leave out
    #[arg(long, default_value_t = 100, value_name = "N")]
    test_interval: u64,
    /// Most iterations of each run
    #[arg(long, default_value_t = 5000, value_name = "N")]
    max_iter: u64,
    /// Images in a mini-batch
    #[arg(long, default_value_t = 64, value_name = "N")]
    batch: usize,
    /// Give each part a mini-batch of its own, instead of a share of one
    #[arg(long)]
    own_batches: bool,
    /// Further flags of `quadrille train`, such as --train-flag=--fast-memory=off; may be repeated
    #[arg(long = "train-flag", value_name = "FLAG", allow_hyphen_values = true)]
    train_flags: Vec<String>,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Where to draw the curves and the times
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Seconds to 0.625 on the 68 cores of the paper's Knights Landing, by parts (its section 6.2).
const PAPER: [(usize, f64); 4] = [(1, 1605.0), (4, 1025.0), (8, 823.0), (16, 490.0)];

/// A run with the machine in some parts.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    parts: usize,
    /// Seconds of training and accuracy of each test.
    tests: Vec<(f64, f64)>,
    iterations: u64,
    images_per_second: f64,
    /// Share of training that went into moving gradients between parts.
    communication: f64,
    /// Seconds to the accuracy, if it was reached.
    reached: Option<f64>,
}

/// Runs all cuts, prints a line for each, and writes record and plot.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    println!(
        "{:>5} {:>12} {:>10} {:>10} {:>9} {:>8}",
        "parts", "seconds", "iterations", "images/s", "transfers", "speedup"
    );
    let mut outcomes: Vec<Outcome> = Vec::new();
    for parts in &args.parts {
        let outcome = train(args, *parts)?;
        outcomes.push(outcome);
        println!("{}", line(&outcomes));
    }
    if let Some(path) = &args.record {
        write(path, &record(args, &around, &outcomes))?;
    }
    args.plot.as_ref().map_or(Ok(()), |path| draw(path, args, &outcomes))
}

fn train(args: &Args, parts: usize) -> Result<Outcome, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let run = folder.path().join("run");
    let batch = if args.own_batches { args.batch * parts } else { args.batch };
    let mut command = program()?;
    command
        .arg("train")
        .arg("--solver")
        .arg(&args.solver)
        .arg("--data")
        .arg(&args.data)
        .arg("--run")
        .arg(&run);
    let numbers = [
        ("--quadrants", parts.to_string()),
        ("--batch", batch.to_string()),
        ("--target-accuracy", args.target.to_string()),
        ("--test-interval", args.test_interval.to_string()),
        ("--max-iter", args.max_iter.to_string()),
    ];
    for (flag, number) in &numbers {
        command.args([flag, number.as_str()]);
    }
    command.args(["--workers", "1"]).args(&args.train_flags);
    output_of(&mut command)?;
    let metrics = run.join("metrics.jsonl");
    let text =
        std::fs::read_to_string(&metrics).map_err(|error| format!("{}: {error}", metrics.display()))?;
    outcome(parts, args.target, &text)
}

/// Reads what a run left in its metrics.
fn outcome(parts: usize, target: f64, metrics: &str) -> Result<Outcome, String> {
    let lines: Result<Vec<Value>, _> = metrics.lines().map(serde_json::from_str).collect();
    let lines = lines.map_err(|error| format!("metrics: {error}"))?;
    let test = |line: &Value| Some((line["seconds"].as_f64()?, line["accuracy"].as_f64()?));
    let tests: Vec<(f64, f64)> = lines.iter().filter_map(test).collect();
    let summary = lines.last().map(|line| &line["summary"]).ok_or("the metrics are empty")?;
    let number = |name: &str| summary[name].as_f64().ok_or_else(|| format!("no {name} in the summary"));
    let reached = tests.iter().find(|(_, accuracy)| *accuracy >= target).map(|(seconds, _)| *seconds);
    Ok(Outcome {
        parts,
        iterations: summary["iterations"].as_u64().ok_or("no iterations in the summary")?,
        images_per_second: number("images_per_second")?,
        communication: number("communication_share")?,
        tests,
        reached,
    })
}

/// How much sooner than the first of the outcomes, if both got there.
fn speedup(outcomes: &[Outcome], outcome: &Outcome) -> Option<f64> {
    Some(outcomes.first()?.reached? / outcome.reached?)
}

/// The line of the last outcome.
fn line(outcomes: &[Outcome]) -> String {
    let Some(outcome) = outcomes.last() else { return String::new() };
    let or_dash =
        |number: Option<f64>, digits: usize| number.map_or("-".to_owned(), |n| format!("{n:.digits$}"));
    format!(
        "{:5} {:>12} {:10} {:10.0} {:8.1}% {:>8}",
        outcome.parts,
        or_dash(outcome.reached, 1),
        outcome.iterations,
        outcome.images_per_second,
        100.0 * outcome.communication,
        or_dash(speedup(outcomes, outcome), 2),
    )
}

fn record(args: &Args, around: &Value, outcomes: &[Outcome]) -> Value {
    let parts: Vec<Value> = outcomes
        .iter()
        .map(|outcome| {
            json!({
                "parts": outcome.parts,
                "seconds_to_target": outcome.reached,
                "speedup_over_first": speedup(outcomes, outcome),
                "iterations": outcome.iterations,
                "images_per_second": outcome.images_per_second,
                "communication_share": outcome.communication,
                "tests_seconds_and_accuracy": outcome.tests,
            })
        })
        .collect();
    let paper: Vec<Value> =
        PAPER.iter().map(|(parts, s)| json!({"parts": parts, "seconds_to_0.625": s})).collect();
    json!({
        "experiment": "partition",
        "what": "seconds of training, tests left out, until a test finds the target accuracy (SC17, Figure 12)",
        "solver": args.solver.display().to_string(),
        "batch": args.batch,
        "own_batches": args.own_batches,
        "target": args.target,
        "test_interval": args.test_interval,
        "train_flags": args.train_flags,
        "surroundings": around,
        "parts": parts,
        "paper_knl_68_cores": paper,
    })
}

fn draw(path: &std::path::Path, args: &Args, outcomes: &[Outcome]) -> Result<(), String> {
    let name = |parts: usize| format!("{parts} part{}", if parts == 1 { "" } else { "s" });
    let curve = |o: &Outcome| Curve { name: name(o.parts), points: o.tests.clone() };
    let curves = Curves {
        title: "Accuracy while it trains".to_owned(),
        axes: ["seconds of training".to_owned(), "accuracy of the test set".to_owned()],
        curves: outcomes.iter().map(curve).collect(),
        level: Some(args.target),
    };
    let bars = Bars {
        title: format!("Seconds to an accuracy of {}", args.target),
        axes: ["parts of the machine".to_owned(), "seconds".to_owned()],
        bars: outcomes.iter().map(|o| (o.parts.to_string(), o.reached)).collect(),
    };
    plot::write(path, &curves, &bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "\
        {\"accuracy\":0.1,\"iteration\":0,\"seconds\":0.0,\"test_loss\":2.3}\n\
        {\"iteration\":0,\"loss\":2.3,\"lr\":0.01,\"seconds\":1.5}\n\
        {\"accuracy\":0.5,\"iteration\":10,\"seconds\":15.0,\"test_loss\":1.2}\n\
        {\"accuracy\":0.7,\"iteration\":20,\"seconds\":30.0,\"test_loss\":1.0}\n\
        {\"summary\":{\"iterations\":20,\"images_per_second\":42.5,\"communication_share\":0.03}}\n";

    #[test]
    fn the_first_test_that_is_good_enough_counts() {
        let found = outcome(4, 0.5, METRICS).unwrap();
        assert_eq!(found.tests, [(0.0, 0.1), (15.0, 0.5), (30.0, 0.7)]);
        assert_eq!((found.reached, found.iterations, found.images_per_second), (Some(15.0), 20, 42.5));
        let never = outcome(8, 0.9, METRICS).unwrap();
        assert_eq!(never.reached, None);
        let outcomes = [Outcome { reached: Some(45.0), parts: 1, ..found.clone() }, found, never];
        assert_eq!(speedup(&outcomes, &outcomes[1]), Some(3.0));
        assert!(line(&outcomes[..2]).ends_with("3.00") && line(&outcomes).ends_with('-'));
        assert!(
            outcome(1, 0.5, "").is_err() && outcome(1, 0.5, "{}\n").is_err() && outcome(1, 0.5, "x").is_err()
        );
    }
}
