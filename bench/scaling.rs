//! Whole training iterations cut in two ways, in turn: on one thread and on several, or by several threads as one
//! quadrant and as many quadrants of one thread.

use std::path::PathBuf;

use quadrille_cpu::isa::{Isa, Numerics, Precision};
use quadrille_numa::Machine;
use serde_json::{Value, json};

use crate::distance;
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
    /// What is compared
    #[arg(long, default_value = "threads", value_name = "WHAT")]
    over: Over,
    /// Threads to compare with one, or to make quadrants of
    #[arg(long, default_value_t = 2, value_name = "N")]
    threads: usize,
    /// Count only pairs during which the CPUs of the first and the last thread are within so many nanoseconds of each other: in a
    /// virtual machine they may move behind different caches and back
    #[arg(long, value_name = "NS")]
    within: Option<f64>,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Over {
    /// One thread, then several in the same quadrant
    Threads,
    /// One quadrant of several threads, then as many quadrants of one thread
    Quadrants,
}

impl Over {
    /// Quadrants, and threads of each, on both sides.
    fn cuts(self, threads: usize) -> [[usize; 2]; 2] {
        match self {
            Self::Threads => [[1, 1], [1, threads]],
            Self::Quadrants => [[1, threads], [threads, 1]],
        }
    }

    fn names(self, threads: usize) -> [String; 2] {
        match self {
            Self::Threads => ["1 thread".to_owned(), format!("{threads} threads")],
            Self::Quadrants => ["1 quadrant".to_owned(), format!("{threads} quadrants")],
        }
    }
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

/// Both sides.
#[derive(Clone, Copy, Debug)]
struct Pair {
    runs: [Run; 2],
    /// Nanoseconds from the CPU of the first thread to that of the last, before the pair or behind it: the more of both.
    apart: Option<f64>,
}

/// For each pair that is wanted so many may be left out, since their CPUs are further apart than asked for.
const TRIES: usize = 10;

/// Runs the pairs, prints the ratios and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    Numerics { isa: Isa::detect(), precision: args.precision }
        .check()
        .map_err(|reason| format!("--precision {}: {reason}", args.precision))?;
    if args.threads < 2 {
        return Err(format!("--threads {}: at least 2 are needed", args.threads));
    }
    let around = surroundings();
    let [first, second] = args.over.names(args.threads);
    let machine = quadrille_numa::detect().map_err(|error| error.to_string())?;
    println!("{:16} {:>6} {first:>12} {second:>12} {:>7} {:>8}", "network", "batch", "ratio", "ns apart");
    let mut networks = Vec::new();
    for net in &args.nets {
        networks.push(compare(args, &machine, net)?);
    }
    let medians: Vec<f64> = networks.iter().filter_map(|net| net["median_ratio"].as_f64()).collect();
    let mean = geometric_mean(&medians);
    println!("geometric mean of the medians of {} network(s): {mean:.3}", medians.len());
    let record = json!({
        "experiment": "scaling",
        "what": "milliseconds of one training iteration, medians of each run; the ratio is that of the first to the second",
        "first": first,
        "second": second,
        "dtype": args.precision.to_string(),
        "threads": args.threads,
        "iterations": args.iters,
        "within_ns": args.within,
        "surroundings": around,
        "networks": networks,
        "geometric_mean_ratio": mean,
    });
    args.record.as_ref().map_or(Ok(()), |path| write(path, &record))
}

fn compare(args: &Args, machine: &Machine, net: &str) -> Result<Value, String> {
    let known = BATCHES.iter().find(|(name, _)| *name == net).map(|(_, batch)| *batch);
    let batch = args.batch.or(known).unwrap_or(16);
    let wanted = args.pairs.max(1);
    let (mut pairs, mut left_out) = (Vec::new(), 0);
    while pairs.len() < wanted {
        let on = |[quadrants, threads]: [usize; 2]| {
            let (count, precision) = (args.iters, args.precision);
            ours(net, Iterations { batch, quadrants, threads, count, precision })
        };
        let [first, second] = args.over.cuts(args.threads);
        let before = distance::across(machine, args.threads);
        let runs = [on(first)?, on(second)?];
        let behind = distance::across(machine, args.threads);
        let pair = Pair { runs, apart: before.zip(behind).map(|(before, behind)| before.max(behind)) };
        let counts = args.within.is_none_or(|most| pair.apart.is_some_and(|apart| apart <= most));
        println!("{}{}", line(net, &pair, ratio(&pair)), if counts { "" } else { "  left out" });
        match counts {
            true => pairs.push(pair),
            false if left_out == TRIES * wanted => {
                return Err(format!(
                    "--within {}: {left_out} pairs were further apart",
                    args.within.unwrap_or(0.0)
                ));
            }
            false => left_out += 1,
        }
    }
    Ok(summarize(net, &pairs, left_out))
}

fn ratio(pair: &Pair) -> f64 {
    pair.runs[0].ms / pair.runs[1].ms
}

fn line(name: &str, pair: &Pair, ratio: f64) -> String {
    let [first, second] = pair.runs;
    let apart = pair.apart.map_or("-".to_owned(), |ns| format!("{ns:.0}"));
    format!("{name:16} {:6} {:12.3} {:12.3} {ratio:7.3} {apart:>8}", first.batch, first.ms, second.ms)
}

fn summarize(net: &str, pairs: &[Pair], left_out: usize) -> Value {
    let all = |side: usize| pairs.iter().map(move |pair| pair.runs[side].ms).collect::<Vec<f64>>();
    let ratios: Vec<f64> = pairs.iter().map(ratio).collect();
    let middle = [0, 1].map(|side| Run { ms: median(&all(side)), ..pairs[0].runs[side] });
    let apart: Option<Vec<f64>> = pairs.iter().map(|pair| pair.apart).collect();
    let middle = Pair { runs: middle, apart: apart.map(|apart| median(&apart)) };
    println!("{}", line("  median", &middle, median(&ratios)));
    json!({
        "network": net,
        "batch": middle.runs[0].batch,
        "ns_between_cpus": pairs.iter().map(|pair| pair.apart).collect::<Vec<_>>(),
        "pairs_left_out": left_out,
        "first_ms": all(0),
        "second_ms": all(1),
        "ratio_first_over_second": ratios,
        "median_ratio": median(&ratios),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_median_of_the_ratios() {
        let pair = |ms: [f64; 2]| Pair {
            runs: ms.map(|ms| Run { ms, batch: 8, peak_memory_mib: None }),
            apart: Some(10.0 * ms[0]),
        };
        let pairs = [pair([4.0, 2.0]), pair([9.0, 6.0]), pair([5.0, 2.0])];
        let summary = summarize("a", &pairs, 4);
        assert_eq!((&summary["median_ratio"], &summary["batch"]), (&json!(2.0), &json!(8)));
        assert_eq!(summary["second_ms"], json!([2.0, 6.0, 2.0]));
        assert_eq!(
            (&summary["pairs_left_out"], &summary["ns_between_cpus"]),
            (&json!(4), &json!([40.0, 90.0, 50.0]))
        );
    }
}
