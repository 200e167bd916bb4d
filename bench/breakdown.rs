//! Where the time of the methods goes: Table 3 of the SC17 paper.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::record::{surroundings, write};
use crate::runs::{Outcome, by_tree, solver, train};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The data set
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// The machine of the virtual clock
    #[arg(long, default_value = "bench/machines/sc17-gpu-node.prototxt", value_name = "FILE")]
    machine: PathBuf,
    /// Measure by the real clock instead
    #[arg(long)]
    real: bool,
    /// Workers [default: 4; 2 with --real]
    #[arg(long, value_name = "W")]
    workers: Option<usize>,
    /// Iterations of each run
    #[arg(long, default_value_t = 50, value_name = "N")]
    iterations: u64,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// A row of Table 3: milliseconds of a step, and per cent of it: parameters between GPUs, data to GPUs, parameters to GPUs,
/// forward and backward, updates on GPUs and on the CPU, and communication in all.
struct Paper {
    method: &'static str,
    step: f64,
    parts: [f64; 7],
}

/// A step of Original EASGD is the turn of one worker: 41 s of 5,000 steps, and of the others 1,000.
const PAPER: [Paper; 4] = [
    Paper { method: "original-easgd", step: 8.2, parts: [0.0, 1.0, 86.0, 3.0, 1.0, 9.0, 87.0] },
    Paper { method: "sync-easgd1", step: 11.0, parts: [1.0, 3.0, 21.0, 55.0, 4.0, 16.0, 25.0] },
    Paper { method: "sync-easgd2", step: 8.2, parts: [16.0, 4.0, 0.0, 74.0, 6.0, 0.0, 20.0] },
    Paper { method: "sync-easgd3", step: 7.7, parts: [10.0, 4.0, 0.0, 79.0, 7.0, 0.0, 14.0] },
];

/// Names of the columns.
const COLUMNS: [&str; 7] = ["workers", "data", "host", "fwd/bwd", "w.update", "c.update", "comm."];

/// Milliseconds of a step, and per cent of it in the order of [`COLUMNS`].
fn step(outcome: &Outcome) -> (f64, [f64; 7]) {
    let whole = outcome.milliseconds() - outcome.part("turn");
    let names =
        ["comm_workers", "data_copy", "comm_host", "forward_backward", "worker_update", "centre_update"];
    let mut parts = [0.0; 7];
    for (part, name) in parts.iter_mut().zip(names) {
        *part = 100.0 * outcome.part(name) / whole.max(1e-9);
    }
    parts[6] = 100.0 * outcome.number("communication_share");
    (whole, parts)
}

/// Runs the methods of the table, prints it beside the paper's, and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let solver = solver(folder.path(), Path::new("models/lenet/train_val.prototxt"), 0.05, 0)?;
    let clock = if args.real { "real".to_owned() } else { format!("sim: {}", args.machine.display()) };
    println!("clock       {clock}; a step of original-easgd is the turn of one worker; per cent of a step");
    print!("{:23} {:>8}", "method", "ms/step");
    COLUMNS.iter().for_each(|name| print!(" {name:>8}"));
    println!("   hidden");
    let mut methods = Vec::new();
    for paper in &PAPER {
        let outcome = train(&flags(args, &solver, paper.method))?;
        let (whole, parts) = step(&outcome);
        let hidden = outcome.part("hidden_communication") + outcome.part("hidden_forward_backward");
        let label = if args.real { "" } else { "sim: " };
        println!("{:23} {}   {hidden:.2} ms", format!("{label}{}", paper.method), numbers(whole, &parts));
        println!("{:23} {}", "  paper", numbers(paper.step, &paper.parts));
        methods.push(json!({
            "method": paper.method,
            "milliseconds_per_step": whole,
            "per_cent": by_name(&parts),
            "hidden_milliseconds": hidden,
            "paper_milliseconds_per_step": paper.step,
            "paper_per_cent": by_name(&paper.parts),
            "summary": outcome.summary,
        }));
    }
    let record = json!({
        "experiment": "breakdown",
        "what": "where the time of a step goes (SC17, Table 3), LeNet on MNIST with mini-batches of 64; of an exchange and \
                 the forward and backward beside it the longer counts",
        "clock": clock,
        "workers": workers(args),
        "iterations": args.iterations,
        "surroundings": around,
        "methods": methods,
    });
    args.record.as_ref().map_or(Ok(()), |path| write(path, &record))
}

fn workers(args: &Args) -> usize {
    args.workers.unwrap_or(if args.real { 2 } else { 4 })
}

fn flags(args: &Args, solver: &str, method: &str) -> Vec<String> {
    let numbers = [
        ("--solver", solver.to_owned()),
        ("--method", method.to_owned()),
        ("--workers", workers(args).to_string()),
        ("--max-iter", args.iterations.to_string()),
        ("--data", args.data.display().to_string()),
    ];
    let mut flags: Vec<String> =
        numbers.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    flags.extend(by_tree(method));
    if !args.real {
        let machine = args.machine.display().to_string();
        flags.extend(["--clock".to_owned(), "sim".to_owned(), "--machine".to_owned(), machine]);
    }
    flags
}

fn numbers(step: f64, parts: &[f64; 7]) -> String {
    let parts: Vec<String> = parts.iter().map(|part| format!("{part:7.1}%")).collect();
    format!("{step:8.2} {}", parts.join(" "))
}

fn by_name(parts: &[f64; 7]) -> Value {
    COLUMNS.iter().zip(parts).map(|(name, part)| ((*name).to_owned(), json!(part))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_original_easgd_is_one_workers_turn() {
        let summary = json!({
            "seconds": 0.32, "iterations": 10, "communication_share": 0.875,
            "time": {"turn": 0.24, "comm_host": 0.07, "centre_update": 0.01}
        });
        let (whole, parts) = step(&Outcome { tests: Vec::new(), seconds: Vec::new(), summary });
        assert!((whole - 8.0).abs() < 1e-9, "{whole}");
        for (part, expected) in parts.into_iter().zip([0.0, 0.0, 87.5, 0.0, 0.0, 12.5, 87.5]) {
            assert!((part - expected).abs() < 1e-9, "{parts:?}");
        }
    }

    #[test]
    fn the_papers_rows_are_whole() {
        for row in &PAPER {
            let [peer, data, host, compute, worker, centre, communication] = row.parts;
            assert_eq!(peer + data + host + compute + worker + centre, 100.0, "{}", row.method);
            assert_eq!(peer + data + host, communication, "{}", row.method);
        }
    }
}
