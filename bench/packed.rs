//! One message of all parameters beside one message for each array: Figure 10 of the SC17 paper.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::record::{surroundings, write};
use crate::runs::{Outcome, solver, train};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The data set
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
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
    /// Iterations of each run
    #[arg(long, default_value_t = 20, value_name = "N")]
    iterations: u64,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Runs Sync SGD both ways on every machine, prints the table, and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let solver = solver(folder.path(), &args.net, 0.01, 0)?;
    println!(
        "{:44} {:>12} {:>14} {:>7}",
        "ms of communication an iteration", "one message", "one an array", "ratio"
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
        "what": "milliseconds of communication in an iteration of Sync SGD with one message of all parameters, and with one for \
                 each array (SC17, Figure 10)",
        "network": args.net.display().to_string(),
        "iterations": args.iterations,
        "surroundings": around,
        "machines": found,
    });
    args.record.as_ref().map_or(Ok(()), |path| write(path, &record))
}

/// The same training packed and unpacked; the same bits come of both.
fn both(args: &Args, solver: &str, machine: Option<&Path>) -> Result<Value, String> {
    let packed = train(&flags(args, solver, machine, false))?;
    let apart = train(&flags(args, solver, machine, true))?;
    if packed.summary["weights_hash"] != apart.summary["weights_hash"] {
        return Err("packed and unpacked messages gave other bits".to_owned());
    }
    let spent = |outcome: &Outcome| outcome.part("comm_workers");
    let name = machine.map_or("real: this machine".to_owned(), |file| {
        format!("sim: {}", file.file_stem().unwrap_or_default().to_string_lossy())
    });
    let ratio = spent(&apart) / spent(&packed);
    println!("{name:44} {:12.4} {:14.4} {ratio:7.2}", spent(&packed), spent(&apart));
    Ok(json!({"machine": name, "packed_ms": spent(&packed), "unpacked_ms": spent(&apart), "ratio": ratio}))
}

fn flags(args: &Args, solver: &str, machine: Option<&Path>, unpacked: bool) -> Vec<String> {
    let workers = if machine.is_some() { args.workers } else { 2 };
    let numbers = [
        ("--solver", solver.to_owned()),
        ("--method", "sync-sgd".to_owned()),
        ("--collective", "tree".to_owned()),
        ("--workers", workers.to_string()),
        ("--max-iter", args.iterations.to_string()),
        ("--data", args.data.display().to_string()),
    ];
    let mut flags: Vec<String> =
        numbers.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    if let Some(machine) = machine {
        flags.extend(["--clock", "sim", "--machine"].map(str::to_owned));
        flags.push(machine.display().to_string());
    }
    flags.extend(unpacked.then(|| "--unpacked".to_owned()));
    flags
}
