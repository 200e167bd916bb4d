//! What a timeline costs a training: whole processes with `--trace` and without, in pairs, and steps of one process in turn.

mod turns;

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use crate::ours::SMALL;
use crate::record::{median, surroundings, write};
use crate::runs::{Outcome, solver, train};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Networks of models/
    #[arg(long, default_value = "lenet,cifar10_quick", value_delimiter = ',', value_name = "NAMES")]
    nets: Vec<String>,
    /// Pairs of processes for each network: one without a timeline and one with it, then the other way round; none if it is 0
    #[arg(long, default_value_t = 10, value_name = "N")]
    pairs: usize,
    /// Pairs of blocks of 20 steps within one process, one that is noted and one that is not; none if it is 0
    #[arg(long, default_value_t = 200, value_name = "N")]
    turns: usize,
    /// Iterations of each process [default: 1000 of LeNet and CIFAR-10's networks, 20 of others]
    #[arg(long, value_name = "N")]
    iterations: Option<u64>,
    /// Iterations of it that are traced [default: all]
    #[arg(long, value_name = "N")]
    traced: Option<u64>,
    /// Threads of each process
    #[arg(long, default_value_t = 2, value_name = "N")]
    threads: usize,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// One process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    /// Milliseconds of an iteration, the median of those in its metrics.
    ms: f64,
    /// The mean, as its summary has it, with all pauses of the machine.
    mean: f64,
    /// Seconds from its start to its end, the file and all else included.
    whole: f64,
    /// Bytes of its timeline.
    bytes: u64,
}

/// Without a timeline, and with it.
type Pair = [Run; 2];

/// Runs the pairs, prints the ratios and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let [without, traced, cost, mean, process] = ["ms without", "ms traced", "cost", "of mean", "process"];
    println!("{:16} {without:>12} {traced:>12} {cost:>9} {mean:>9} {process:>9}", "network");
    let of_all = |asked: usize, measure: &dyn Fn(&String) -> Result<Value, String>| match asked {
        0 => Ok(Vec::new()),
        _ => args.nets.iter().map(measure).collect::<Result<Vec<_>, _>>(),
    };
    let turns = of_all(args.turns, &|net| turns::measure(net, args.turns, args.threads))?;
    let networks = of_all(args.pairs, &|net| measure(args, net))?;
    let record = json!({
        "experiment": "trace",
        "what": "trainings with a timeline and without, whole processes in turn: milliseconds of an iteration, medians by the \
                 metrics and means by the summary, and seconds of the process; costs are what the timeline adds to those without, medians of the pairs",
        "threads": args.threads,
        "traced_iterations": args.traced,
        "surroundings": around,
        "networks": networks,
        "what_turns_are": "blocks of steps of one process, of which every other is noted as a timeline has it: what that adds, the \
                           median of pairs and where it is with 95 %",
        "turns": turns,
    });
    args.record.as_ref().map_or(Ok(()), |path| write(path, &record))
}

fn measure(args: &Args, net: &str) -> Result<Value, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = Path::new("models").join(net).join("train_val.prototxt");
    let solver = solver(folder.path(), &file, 0.001, 0)?;
    let usual = if SMALL.contains(&net) { 1000 } else { 20 };
    let iterations = args.iterations.unwrap_or(usual);
    let timeline = folder.path().join("trace.json");
    let once = |traces: bool| {
        let flags = flags(args, &solver, iterations, traces.then_some(&timeline));
        let start = Instant::now();
        let outcome = train(&flags)?;
        let whole = start.elapsed().as_secs_f64();
        let bytes = if traces { size_of_file(&timeline)? } else { 0 };
        let (ms, mean) = (outcome.usual_milliseconds(), outcome.milliseconds());
        Ok::<_, String>((Run { ms, mean, whole, bytes }, outcome))
    };
    // Pages of the program and of the system that nobody has asked for yet are the first one's.
    once(false)?;
    let mut pairs: Vec<Pair> = Vec::new();
    for index in 0..args.pairs {
        let traces_first = index % 2 == 1;
        let (first, second) = (once(traces_first)?, once(!traces_first)?);
        same_bits(&first.1, &second.1)?;
        let pair = if traces_first { [second.0, first.0] } else { [first.0, second.0] };
        println!("{}", line(net, &pair, costs(&pair)));
        pairs.push(pair);
    }
    Ok(summarize(net, iterations, &pairs))
}

fn size_of_file(path: &Path) -> Result<u64, String> {
    let about = std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(about.len())
}

fn same_bits(one: &Outcome, two: &Outcome) -> Result<(), String> {
    let hashes = [one, two].map(|outcome| outcome.summary["weights_hash"].clone());
    match hashes[0].is_string() && hashes[0] == hashes[1] {
        true => Ok(()),
        false => Err(format!("a timeline changed what was learned: {} and {}", hashes[0], hashes[1])),
    }
}

fn flags(args: &Args, solver: &str, iterations: u64, timeline: Option<&PathBuf>) -> Vec<String> {
    let mut flags = vec!["--dummy-data".to_owned()];
    let mut add = |name: &str, value: String| flags.extend([name.to_owned(), value]);
    add("--solver", solver.to_owned());
    add("--quadrants", "1".to_owned());
    add("--threads", args.threads.to_string());
    add("--max-iter", iterations.to_string());
    if let Some(timeline) = timeline {
        add("--trace", timeline.display().to_string());
        add("--trace-iterations", args.traced.unwrap_or(iterations).to_string());
    }
    flags
}

/// What the timeline adds to a time of a pair, as a share of it.
fn cost([without, with]: &Pair, of: fn(&Run) -> f64) -> f64 {
    of(with) / of(without) - 1.0
}

/// The costs of a pair: of an iteration, of the mean iteration, and of the process.
fn costs(pair: &Pair) -> [f64; 3] {
    [cost(pair, |run| run.ms), cost(pair, |run| run.mean), cost(pair, |run| run.whole)]
}

fn line(name: &str, [without, with]: &Pair, costs: [f64; 3]) -> String {
    let [cost, mean, whole] = costs.map(|cost| 100.0 * cost);
    format!("{name:16} {:12.3} {:12.3} {cost:7.2} % {mean:7.2} % {whole:7.2} %", without.ms, with.ms)
}

fn summarize(net: &str, iterations: u64, pairs: &[Pair]) -> Value {
    let all = |side: usize, of: fn(&Run) -> f64| pairs.iter().map(|pair| of(&pair[side])).collect::<Vec<_>>();
    let each: Vec<[f64; 3]> = pairs.iter().map(costs).collect();
    let middle = [0, 1, 2].map(|which| median(&each.iter().map(|costs| costs[which]).collect::<Vec<_>>()));
    let usual = [0, 1].map(|side| Run { ms: median(&all(side, |run| run.ms)), ..pairs[0][side] });
    println!("{}", line("  median", &usual, middle));
    json!({
        "network": net,
        "iterations": iterations,
        "without_ms": all(0, |run| run.ms),
        "traced_ms": all(1, |run| run.ms),
        "cost": each.iter().map(|costs| costs[0]).collect::<Vec<_>>(),
        "median_cost": middle[0],
        "without_mean_ms": all(0, |run| run.mean),
        "traced_mean_ms": all(1, |run| run.mean),
        "median_cost_of_mean": middle[1],
        "without_process_s": all(0, |run| run.whole),
        "traced_process_s": all(1, |run| run.whole),
        "median_cost_of_process": middle[2],
        "timeline_bytes": usual[1].bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_what_the_timeline_adds() {
        let run = |ms: f64| Run { ms, mean: 2.0 * ms, whole: 10.0 * ms, bytes: 7 };
        let pairs = [[run(4.0), run(5.0)], [run(2.0), run(2.0)], [run(10.0), run(11.0)]];
        let summary = summarize("a", 3, &pairs);
        let found = summary["median_cost"].as_f64().unwrap();
        assert!((found - 0.1).abs() < 1e-12 && (costs(&pairs[0])[2] - 0.25).abs() < 1e-12, "{found}");
        assert_eq!(summary["traced_process_s"], json!([50.0, 20.0, 110.0]));
        assert_eq!(summary["timeline_bytes"], json!(7));
    }
}
