//! Whole training iterations on one thread and on several, in turn: how much of the threads arrives.

use std::path::PathBuf;

use quadrille_cpu::isa::{Isa, Numerics, Precision};
use serde_json::{Value, json};

use crate::ours::{Iterations, Run, ours};
use crate::record::{geometric_mean, median, surroundings, write};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Networks
    #[arg(
        long,
        default_value = "lenet,cifar10_quick,alexnet,googlenet,vgg16,resnet50",
        value_delimiter = ',',
        value_name = "NAMES"
    )]
    nets: Vec<String>,
    /// Precision: f32, bf16
    #[arg(long, alias = "dtype", default_value = "f32", value_name = "TYPE")]
    precision: Precision,
    /// Runs of each network on one thread and on several, in turn
    #[arg(long, default_value_t = 5, value_name = "N")]
    pairs: usize,
    /// Iterations of each run, of which the median counts; 20 times as many for LeNet and CIFAR-10's networks
    #[arg(long, default_value_t = 5, value_name = "N")]
    iters: usize,
    /// Images in a mini-batch [default: as in `peers` where the network is one of its own, else 16]
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Threads to compare with one
    #[arg(long, default_value_t = 2, value_name = "N")]
    threads: usize,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// The mini-batches of the peer's script.
const BATCHES: [(&str, u64); 6] = [
    ("lenet", 64),
    ("cifar10_quick", 100),
    ("alexnet", 64),
    ("googlenet", 16),
    ("vgg16", 8),
    ("resnet50", 16),
];

/// One thread and then several.
type Pair = [Run; 2];

/// Runs the pairs, prints the ratios and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    Numerics { isa: Isa::detect(), precision: args.precision }
        .check()
        .map_err(|reason| format!("--precision {}: {reason}", args.precision))?;
    if args.threads < 2 {
        return Err(format!("--threads {}: at least 2 are compared with one", args.threads));
    }
    let around = surroundings();
    println!(
        "{:16} {:>6} {:>12} {:>12} {:>7}",
        "network",
        "batch",
        "1 thread",
        format!("{} threads", args.threads),
        "ratio"
    );
    let mut networks = Vec::new();
    for net in &args.nets {
        networks.push(compare(args, net)?);
    }
    let medians: Vec<f64> = networks.iter().filter_map(|net| net["median_ratio"].as_f64()).collect();
    let mean = geometric_mean(&medians);
    println!("geometric mean of the medians of {} network(s): {mean:.3}", medians.len());
    let record = json!({
        "experiment": "scaling",
        "what": "milliseconds of one training iteration, medians of each run; the ratio is that of one thread to several",
        "dtype": args.precision.to_string(),
        "threads": args.threads,
        "iterations": args.iters,
        "surroundings": around,
        "networks": networks,
        "geometric_mean_ratio": mean,
    });
    args.record.as_ref().map_or(Ok(()), |path| write(path, &record))
}

fn compare(args: &Args, net: &str) -> Result<Value, String> {
    let known = BATCHES.iter().find(|(name, _)| *name == net).map(|(_, batch)| *batch);
    let batch = args.batch.or(known).unwrap_or(16);
    let mut pairs: Vec<Pair> = Vec::new();
    for _ in 0..args.pairs.max(1) {
        let on = |threads| {
            let iterations = Iterations { batch, threads, count: args.iters, precision: args.precision };
            ours(net, iterations)
        };
        let pair = [on(1)?, on(args.threads)?];
        println!("{}", line(net, &pair, ratio(&pair)));
        pairs.push(pair);
    }
    Ok(summarize(net, &pairs))
}

fn ratio([one, several]: &Pair) -> f64 {
    one.ms / several.ms
}

fn line(name: &str, [one, several]: &Pair, ratio: f64) -> String {
    format!("{name:16} {:6} {:12.3} {:12.3} {ratio:7.3}", one.batch, one.ms, several.ms)
}

fn summarize(net: &str, pairs: &[Pair]) -> Value {
    let all = |side: usize| pairs.iter().map(move |pair| pair[side].ms).collect::<Vec<f64>>();
    let ratios: Vec<f64> = pairs.iter().map(ratio).collect();
    let middle = [0, 1].map(|side| Run { ms: median(&all(side)), ..pairs[0][side] });
    println!("{}", line("  median", &middle, median(&ratios)));
    json!({
        "network": net,
        "batch": middle[0].batch,
        "one_thread_ms": all(0),
        "several_threads_ms": all(1),
        "ratio_one_over_several": ratios,
        "median_ratio": median(&ratios),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_median_of_the_ratios() {
        let pair = |ms: [f64; 2]| ms.map(|ms| Run { ms, batch: 8, peak_memory_mib: None });
        let pairs = [pair([4.0, 2.0]), pair([9.0, 6.0]), pair([5.0, 2.0])];
        let summary = summarize("a", &pairs);
        assert_eq!((&summary["median_ratio"], &summary["batch"]), (&json!(2.0), &json!(8)));
        assert_eq!(summary["several_threads_ms"], json!([2.0, 6.0, 2.0]));
    }
}
