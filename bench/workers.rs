//! Several workers of one thread beside PyTorch's DistributedDataParallel over gloo, the two in turn.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::ours::{SMALL, number, object, output_of, program};
use crate::peers::peer_version;
use crate::record::{geometric_mean, median, surroundings, write};

/// What to compare.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The peer's script; it prints one JSON object a network with the fields "batch" and "img_s"
    #[arg(long, default_value = "../shared/peers/torch_ddp.py", value_name = "FILE")]
    script: PathBuf,
    /// A Python that has PyTorch
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
    /// Networks, as both sides name them
    #[arg(long, default_value = "lenet,cifar10_quick,alexnet", value_delimiter = ',', value_name = "NAMES")]
    nets: Vec<String>,
    /// Methods; the first does what the peer does
    #[arg(long, default_value = "sync-sgd,sync-easgd3", value_delimiter = ',', value_name = "METHODS")]
    methods: Vec<String>,
    /// Workers, each with a mini-batch of its own
    #[arg(long, default_value_t = 2, value_name = "W")]
    workers: usize,
    /// Threads of each worker
    #[arg(long, default_value_t = 1, value_name = "T")]
    threads: usize,
    /// Runs of each network on both sides, in turn
    #[arg(long, default_value_t = 3, value_name = "N")]
    pairs: usize,
    /// Iterations of each run; 20 times as many for LeNet and CIFAR-10's networks
    #[arg(long, default_value_t = 10, value_name = "N")]
    iters: usize,
    /// Images in a worker's mini-batch, instead of the script's for each network
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Iterations that do not count: memory is touched first, and queues fill.
const WARMING: usize = 2;

/// Images a second over all workers: the peer, then ours by each method.
#[derive(Clone, Debug)]
struct Turn {
    batch: u64,
    peer: f64,
    ours: Vec<f64>,
}

impl Turn {
    /// Ours over the peer, by each method.
    fn ratios(&self) -> Vec<f64> {
        self.ours.iter().map(|ours| ours / self.peer).collect()
    }

    fn line(&self, name: &str) -> String {
        let columns = self.ours.iter().zip(self.ratios());
        let columns: String = columns.map(|(ours, ratio)| format!(" {ours:14.1} {ratio:7.3}")).collect();
        format!("{name:16} {:6} {:12.1}{columns}", self.batch, self.peer)
    }
}

/// Runs the pairs, prints the ratios and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let head: String = args.methods.iter().map(|method| format!(" {method:>14} {:>7}", "ratio")).collect();
    println!("{:16} {:>6} {:>12}{head}", "images/s of", "batch", "peer");
    let (mut networks, mut medians) = (Vec::new(), vec![Vec::new(); args.methods.len()]);
    for net in &args.nets {
        let mut turns = Vec::new();
        for _ in 0..args.pairs.max(1) {
            let turn = turn(args, net)?;
            println!("{}", turn.line(net));
            turns.push(turn);
        }
        let (middle, ratios, summary) = summarize(net, &args.methods, &turns);
        println!("{}", middle.line("  median"));
        medians.iter_mut().zip(ratios).for_each(|(all, ratio)| all.push(ratio));
        networks.push(summary);
    }
    for (method, medians) in args.methods.iter().zip(&medians) {
        println!("geometric mean of the medians, {method}: {:.3}", geometric_mean(medians));
    }
    let record = json!({
        "experiment": "workers",
        "what": "images a second over all workers, by the median of the iterations; a ratio above 1 means that ours is faster",
        "peer": format!("PyTorch {}, DistributedDataParallel over gloo", peer_version(&args.python)),
        "workers": args.workers,
        "threads": args.threads,
        "iterations": args.iters,
        "surroundings": around,
        "networks": networks,
    });
    args.record.as_ref().map_or(Ok(()), |path| write(path, &record))
}

fn turn(args: &Args, net: &str) -> Result<Turn, String> {
    let (batch, peer) = peer(args, net)?;
    let ours = args.methods.iter().map(|method| ours(args, net, method, batch));
    Ok(Turn { batch, peer, ours: ours.collect::<Result<_, _>>()? })
}

/// Mini-batch and images a second of the peer.
fn peer(args: &Args, net: &str) -> Result<(u64, f64), String> {
    let mut command = Command::new(&args.python);
    command.arg(&args.script).args(["--nets", net]);
    command.args(["--world", &args.workers.to_string(), "--threads", &args.threads.to_string()]);
    // 0 means the script's own.
    command.args(["--iters", &args.iters.to_string(), "--batch", &args.batch.unwrap_or(0).to_string()]);
    let value = object(&output_of(&mut command)?)?;
    let batch = value["batch"].as_u64().ok_or_else(|| format!("no \"batch\" in: {value}"))?;
    Ok((batch, number(&value, "img_s")?))
}

/// Images a second of a training on made-up data without tests and snapshots.
fn ours(args: &Args, net: &str, method: &str, batch: u64) -> Result<f64, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (solver, run) = (folder.path().join("solver.prototxt"), folder.path().join("run"));
    let count = WARMING + args.iters * if SMALL.contains(&net) { 20 } else { 1 };
    std::fs::write(&solver, solver_of(net, count))
        .map_err(|error| format!("{}: {error}", solver.display()))?;
    let mut command = program()?;
    command.args([
        "train",
        "--dummy-data",
        "--model",
        net,
        "--method",
        method,
        "--batch",
        &batch.to_string(),
    ]);
    command.args(["--workers", &args.workers.to_string(), "--threads", &args.threads.to_string()]);
    command.args(["--quadrants", "1", "--solver"]).arg(&solver).arg("--run").arg(&run);
    output_of(&mut command)?;
    let path = run.join("metrics.jsonl");
    let metrics = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(1e3 * (batch * args.workers as u64) as f64 / iteration_ms(&metrics)?)
}

/// The peer's rule; the flag says where the network is. What is displayed is in the metrics.
fn solver_of(net: &str, iterations: usize) -> String {
    format!(
        "net: \"{net}\"\nbase_lr: 0.001\nlr_policy: \"fixed\"\nmomentum: 0.9\nweight_decay: 0.0005\nmax_iter: {iterations}\ndisplay: 1\n\
         snapshot_after_train: false\n"
    )
}

/// Milliseconds of an iteration, the median of all but the first two, as the peer's script has it. Metrics have the time of all
/// iterations so far.
fn iteration_ms(metrics: &str) -> Result<f64, String> {
    let lines = metrics.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ends: Vec<f64> = lines.filter_map(|line| line["seconds"].as_f64()).collect();
    let each: Vec<f64> = ends.windows(2).skip(WARMING - 1).map(|pair| 1e3 * (pair[1] - pair[0])).collect();
    if each.is_empty() { Err(format!("{} iterations are too few", ends.len())) } else { Ok(median(&each)) }
}

fn summarize(net: &str, methods: &[String], turns: &[Turn]) -> (Turn, Vec<f64>, Value) {
    let middle = |pick: &dyn Fn(&Turn) -> f64| median(&turns.iter().map(pick).collect::<Vec<f64>>());
    let each = |pick: &dyn Fn(&Turn, usize) -> f64| -> Vec<f64> {
        (0..methods.len()).map(|method| middle(&|turn| pick(turn, method))).collect()
    };
    let ratios = each(&|turn, method| turn.ratios()[method]);
    let median = Turn {
        batch: turns[0].batch,
        peer: middle(&|turn| turn.peer),
        ours: each(&|turn, method| turn.ours[method]),
    };
    let of_method = |(index, method): (usize, &String)| {
        let all = |pick: &dyn Fn(&Turn) -> f64| turns.iter().map(pick).collect::<Vec<f64>>();
        let value = json!({
            "images_per_second": all(&|turn| turn.ours[index]),
            "ratio_ours_over_peer": all(&|turn| turn.ratios()[index]),
            "median_ratio": ratios[index],
        });
        (method.clone(), value)
    };
    let summary = json!({
        "network": net,
        "batch": median.batch,
        "peer_images_per_second": turns.iter().map(|turn| turn.peer).collect::<Vec<f64>>(),
        "methods": methods.iter().enumerate().map(of_method).collect::<serde_json::Map<_, _>>(),
    });
    (median, ratios, summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_iterations_do_not_count() {
        let lines =
            [5.0, 7.0, 7.5, 8.5, 8.6].map(|seconds| json!({"iteration": 0, "seconds": seconds}).to_string());
        assert!((iteration_ms(&lines.join("\n")).unwrap() - 500.0).abs() < 1e-6);
        assert!(iteration_ms(&lines[..2].join("\n")).is_err());
    }

    #[test]
    fn a_summary_has_the_medians_of_ratios_of_the_same_turn() {
        let turn = |peer, ours: [f64; 2]| Turn { batch: 64, peer, ours: ours.to_vec() };
        let turns = [turn(100.0, [200.0, 400.0]), turn(50.0, [200.0, 100.0]), turn(200.0, [200.0, 600.0])];
        let methods = ["a".to_owned(), "b".to_owned()];
        let (middle, ratios, summary) = summarize("net", &methods, &turns);
        assert_eq!((middle.peer, middle.ours, &ratios[..]), (100.0, vec![200.0, 400.0], &[2.0, 3.0][..]));
        assert_eq!(summary["methods"]["a"]["ratio_ours_over_peer"], json!([2.0, 4.0, 1.0]));
        assert_eq!((&summary["methods"]["b"]["median_ratio"], &summary["batch"]), (&json!(3.0), &json!(64)));
    }
}
