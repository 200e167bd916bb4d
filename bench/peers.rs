//! Whole training iterations (forward, loss, backward, update) beside PyTorch, the two in turn.

use std::path::{Path, PathBuf};
use std::process::Command;

use quadrille_cpu::isa::{Isa, Numerics, Precision};
use serde_json::{Value, json};

use crate::ours::{Iterations, Run, number, object, ours, output_of};
use crate::record::{geometric_mean, median, surroundings, write};

/// What to compare.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The peer's script; it prints one JSON object a network with the fields "ms" and "batch"
    #[arg(long, default_value = "../shared/peers/torch_train.py", value_name = "FILE")]
    script: PathBuf,
    /// A Python that has PyTorch
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
    /// Networks, as both sides name them
    #[arg(
        long,
        default_value = "lenet,cifar10_quick,alexnet,googlenet,vgg16,resnet50",
        value_delimiter = ',',
        value_name = "NAMES"
    )]
    nets: Vec<String>,
    /// Precision of both sides: f32, bf16
    #[arg(long, alias = "dtype", default_value = "f32", value_name = "TYPE")]
    precision: Precision,
    /// Runs of each network on both sides, in turn
    #[arg(long, default_value_t = 5, value_name = "N")]
    pairs: usize,
    /// Iterations of each run, of which the median counts; 20 times as many for LeNet and CIFAR-10's networks
    #[arg(long, default_value_t = 7, value_name = "N")]
    iters: usize,
    /// Images in a mini-batch, instead of the script's for each network
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Threads on both sides
    #[arg(long, default_value_t = 2, value_name = "N")]
    threads: usize,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// The peer in both layouts, and then ours.
type Turn = [Run; 3];

/// Runs the pairs, prints the ratios and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    Numerics { isa: Isa::detect(), precision: args.precision }
        .check()
        .map_err(|reason| format!("--precision {}: {reason}", args.precision))?;
    let around = surroundings();
    println!(
        "{:16} {:>6} {:>12} {:>12} {:>12} {:>7} {:>10} {:>10}",
        "network", "batch", "peer nchw", "peer nhwc", "ours", "ratio", "peer MiB", "ours MiB"
    );
    let (mut networks, mut medians, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for net in &args.nets {
        match compare(args, net) {
            Ok(turns) => {
                let summary = summarize(net, &turns);
                medians.extend(summary["median_ratio"].as_f64());
                networks.push(summary);
            }
            Err(reason) => {
                println!("{net:16} failed: {reason}");
                networks.push(json!({"network": net, "failed": reason}));
                failures.push(net.as_str());
            }
        }
    }
    let mean = geometric_mean(&medians);
    if !medians.is_empty() {
        println!("geometric mean of the medians of {} network(s): {mean:.3}", medians.len());
    }
    let record = json!({
        "experiment": "peers",
        "what": "milliseconds of one training iteration, medians of each run; the ratio is that of the peer's better \
                 layout to ours: above 1, ours is faster",
        "peer": format!("PyTorch {}", peer_version(&args.python)),
        "dtype": args.precision.to_string(),
        "threads": args.threads,
        "iterations": args.iters,
        "surroundings": around,
        "networks": networks,
        "geometric_mean_ratio": (!medians.is_empty()).then_some(mean),
    });
    if let Some(path) = &args.record {
        write(path, &record)?;
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("no comparison of {}", failures.join(", "))) }
}

/// The ratio of a turn: its users would choose the better of the peer's layouts.
fn ratio([nchw, nhwc, ours]: &Turn) -> f64 {
    nchw.ms.min(nhwc.ms) / ours.ms
}

fn compare(args: &Args, net: &str) -> Result<Vec<Turn>, String> {
    let mut turns = Vec::new();
    for _ in 0..args.pairs.max(1) {
        let nchw = peer(args, net, "nchw")?;
        let nhwc = peer(args, net, "nhwc")?;
        let (batch, threads, count) = (nchw.batch, args.threads, args.iters);
        let iterations = Iterations { batch, quadrants: 1, threads, count, precision: args.precision };
        let turn = [nchw, nhwc, ours(net, iterations)?];
        println!("{}", line(net, &turn, ratio(&turn)));
        turns.push(turn);
    }
    Ok(turns)
}

fn line(name: &str, turn: &Turn, ratio: f64) -> String {
    let [nchw, nhwc, ours] = turn;
    let memory = |of: &Run| of.peak_memory_mib.map_or("unknown".to_owned(), |mib| format!("{mib:.0}"));
    format!(
        "{name:16} {:6} {:12.3} {:12.3} {:12.3} {ratio:7.3} {:>10} {:>10}",
        ours.batch,
        nchw.ms,
        nhwc.ms,
        ours.ms,
        memory(if nchw.ms < nhwc.ms { nchw } else { nhwc }),
        memory(ours)
    )
}

fn summarize(net: &str, turns: &[Turn]) -> Value {
    let all = |side: usize| turns.iter().map(move |turn| turn[side].ms).collect::<Vec<f64>>();
    let memory = |side: usize| turns.iter().filter_map(|turn| turn[side].peak_memory_mib).reduce(f64::max);
    let middle = [0, 1, 2].map(|side| Run {
        ms: median(&all(side)),
        batch: turns[0][side].batch,
        peak_memory_mib: memory(side),
    });
    let ratios: Vec<f64> = turns.iter().map(ratio).collect();
    println!("{}", line("  median", &middle, median(&ratios)));
    json!({
        "network": net,
        "batch": middle[2].batch,
        "peer_nchw_ms": all(0),
        "peer_nhwc_ms": all(1),
        "ours_ms": all(2),
        "ratio_peer_over_ours": ratios,
        "median_ratio": median(&ratios),
        "peer_nchw_peak_memory_mib": memory(0),
        "peer_nhwc_peak_memory_mib": memory(1),
        "ours_peak_memory_mib": memory(2),
    })
}

/// The version of PyTorch that `python` has.
pub fn peer_version(python: &Path) -> String {
    let mut command = Command::new(python);
    output_of(command.args(["-c", "import torch; print(torch.__version__)"]))
        .map_or("unknown".to_owned(), |version| version.trim().to_owned())
}

/// Runs what it is given and then prints the most memory, in KiB, that this process held.
const WITH_MEMORY: &str = "import resource, subprocess, sys\n\
    code = subprocess.call([sys.executable] + sys.argv[1:])\n\
    print('peak_memory_kib', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n\
    sys.exit(code)";

fn peer(args: &Args, net: &str, layout: &str) -> Result<Run, String> {
    let mut command = Command::new(&args.python);
    command.args(["-c", WITH_MEMORY]).arg(&args.script);
    command.args(["--nets", net, "--layout", layout, "--dtype", &args.precision.to_string()]);
    command.args(["--threads", &args.threads.to_string(), "--iters", &args.iters.to_string()]);
    // 0 means the script's own.
    command.args(["--batch", &args.batch.unwrap_or(0).to_string()]);
    let text = output_of(&mut command)?;
    let kib = text.lines().find_map(|line| line.strip_prefix("peak_memory_kib ")?.trim().parse::<f64>().ok());
    let value = object(&text)?;
    let batch = value["batch"].as_u64().ok_or_else(|| format!("no \"batch\" in: {value}"))?;
    Ok(Run { ms: number(&value, "ms")?, batch, peak_memory_mib: kib.map(|kib| kib / 1024.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(ms: [f64; 3]) -> Turn {
        ms.map(|ms| Run { ms, batch: 4, peak_memory_mib: Some(ms * 10.0) })
    }

    #[test]
    fn the_better_layout_of_the_peer_counts() {
        assert_eq!((ratio(&turn([6.0, 8.0, 3.0])), ratio(&turn([9.0, 4.0, 8.0]))), (2.0, 0.5));
    }

    #[test]
    fn a_summary_has_the_medians() {
        let turns = [turn([6.0, 8.0, 3.0]), turn([9.0, 4.0, 8.0]), turn([5.0, 5.0, 5.0])];
        let summary = summarize("a", &turns);
        assert_eq!(summary["median_ratio"], 1.0);
        assert_eq!(summary["ours_ms"], json!([3.0, 8.0, 5.0]));
        assert_eq!((&summary["batch"], &summary["ours_peak_memory_mib"]), (&json!(4), &json!(80.0)));
    }
}
