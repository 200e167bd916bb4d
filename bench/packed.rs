//! All parameters in one packed buffer beside one message for each array: Figure 10 of the SC17 paper.
//!
//! Sync SGD sends its buffer in a few large parts, which follow each other down the tree; Sync EASGD2 in a single message, so that
//! the ranks below wait until all of it has come. Arrays follow each other, too, and so lose to a single message only where
//! latency weighs more than that wait.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::record::{median, surroundings, write};
use crate::runs::{Outcome, solver, train};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The data set; made up in memory if it is missing
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// The network, a file in Caffe's format
    #[arg(long, default_value = "models/lenet/train_val.prototxt", value_name = "FILE")]
    net: PathBuf,
    /// Machines of the virtual clock
    #[arg(
        long,
        default_value = "bench/machines/cluster-fdr.prototxt,bench/machines/cluster-qdr.prototxt,bench/machines/cluster-10gbe.prototxt",
        value_delimiter = ',',
        value_name = "FILES"
    )]
    machines: Vec<PathBuf>,
    /// Workers by the virtual clock
    #[arg(long, default_value_t = 4, value_name = "W")]
    workers: usize,
    /// Measure on this machine, too, with 2 workers and the real clock
    #[arg(long)]
    real: bool,
    /// Who exchanges: sync-sgd, or another method that sums
    #[arg(long, default_value = "sync-sgd", value_name = "METHOD")]
    method: String,
    /// Images in a worker's mini-batch [default: the network's]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// How often both are measured by the real clock, in turn; medians count
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeats: usize,
    /// Iterations of each run
    #[arg(long, default_value_t = 20, value_name = "N")]
    iterations: u64,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Runs the method both ways on every machine, prints the table, and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let solver = solver(folder.path(), &args.net, 0.01, 0)?;
    println!(
        "{:44} {:>12} {:>14} {:>7}",
        "ms of communication an iteration", "packed", "one an array", "ratio"
    );
    let mut found = Vec::new();
    for machine in &args.machines {
        found.push(both(args, &solver, Some(machine))?);
    }
    if args.real {
        found.push(both(args, &solver, None)?);
    }
    let record = json!({
        "experiment": "packed",
        "what": "milliseconds of communication in an iteration, hidden or not, with all parameters in one packed buffer, and with \
                 one message for each array (SC17, Figure 10)",
        "method": args.method,
        "batch": args.batch,
        "network": args.net.display().to_string(),
        "iterations": args.iterations,
        "surroundings": around,
        "machines": found,
    });
    args.record.as_ref().map_or(Ok(()), |path| write(path, &record))
}

/// The same training packed and unpacked; the same bits come of both.
fn both(args: &Args, solver: &str, machine: Option<&Path>) -> Result<Value, String> {
    // A virtual clock says the same every time.
    let repeats = if machine.is_some() { 1 } else { args.repeats.max(1) };
    let spent = |outcome: &Outcome| outcome.part("comm_workers") + outcome.part("hidden_communication");
    let (mut packed, mut apart, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repeats {
        let one = train(&flags(args, solver, machine, false))?;
        let many = train(&flags(args, solver, machine, true))?;
        if one.summary["weights_hash"] != many.summary["weights_hash"] {
            return Err("packed and unpacked messages gave other bits".to_owned());
        }
        packed.push(spent(&one));
        apart.push(spent(&many));
        ratios.push(spent(&many) / spent(&one));
    }
    let name = machine.map_or("real: this machine".to_owned(), |file| {
        format!("sim: {}", file.file_stem().unwrap_or_default().to_string_lossy())
    });
    let [one, many, ratio] = [&packed, &apart, &ratios].map(|figures| median(figures));
    println!("{name:44} {one:12.4} {many:14.4} {ratio:7.2}");
    Ok(json!({"machine": name, "packed_ms": one, "unpacked_ms": many, "ratio": ratio, "pairs": repeats}))
}

fn flags(args: &Args, solver: &str, machine: Option<&Path>, unpacked: bool) -> Vec<String> {
    let workers = if machine.is_some() { args.workers } else { 2 };
    let numbers = [
        ("--solver", solver.to_owned()),
        ("--method", args.method.clone()),
        ("--collective", "tree".to_owned()),
        ("--workers", workers.to_string()),
        ("--max-iter", args.iterations.to_string()),
    ];
    let mut flags: Vec<String> =
        numbers.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    match &args.data {
        Some(data) => flags.extend(["--data".to_owned(), data.display().to_string()]),
        None => flags.push("--dummy-data".to_owned()),
    }
    flags.extend(args.batch.into_iter().flat_map(|batch| ["--batch".to_owned(), batch.to_string()]));
    if let Some(machine) = machine {
        flags.extend(["--clock", "sim", "--machine"].map(str::to_owned));
        flags.push(machine.display().to_string());
    }
    flags.extend(unpacked.then(|| "--unpacked".to_owned()));
    flags
}
