//! Accuracy against time of the eleven methods: Figures 6 and 8 of the SC17 paper.
//!
//! In the paper each point is a run of its own of so many iterations. Here the rate does not depend on a run's end, so a run that
//! is tested at several iterations gives the points of runs that end there. Times leave the tests out.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::plot::{self, Bars, Curve, Curves};
use crate::record::{surroundings, write};
use crate::runs::{Outcome, by_tree, middle, solver, train};

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
    /// Methods
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = ROWS.map(|row| row.method.to_owned()))]
    methods: Vec<String>,
    /// Seeds, of which the medians count
    #[arg(long, default_value = "1,2,3,4,5", value_delimiter = ',', value_name = "NUMBERS")]
    seeds: Vec<u64>,
    /// Accuracy to reach
    #[arg(long, default_value_t = 0.988, value_name = "A")]
    target: f64,
    /// Iterations between tests
    #[arg(long, default_value_t = 25, value_name = "N")]
    test_interval: u64,
    /// Most iterations of a run
    #[arg(long, default_value_t = 1500, value_name = "N")]
    max_iter: u64,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Where to draw
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// The network.
const NET: &str = "models/lenet/train_val.prototxt";

/// A method with its hyper-parameters, and the older method that it is compared with. Both have the same hyper-parameters.
struct Row {
    method: &'static str,
    rate: f64,
    momentum: Option<f64>,
    older: Option<&'static str>,
}

/// Chosen once. The elastic coefficient is the program's default for all.
const ROWS: [Row; 11] = [
    Row { method: "original-easgd", rate: 0.1, momentum: Some(0.9), older: None },
    Row { method: "async-sgd", rate: 0.2, momentum: None, older: None },
    Row { method: "async-msgd", rate: 0.1, momentum: Some(0.9), older: None },
    Row { method: "hogwild-sgd", rate: 0.2, momentum: None, older: None },
    Row { method: "sync-sgd", rate: 0.05, momentum: Some(0.9), older: None },
    Row { method: "async-easgd", rate: 0.2, momentum: None, older: Some("async-sgd") },
    Row { method: "async-measgd", rate: 0.1, momentum: Some(0.9), older: Some("async-msgd") },
    Row { method: "hogwild-easgd", rate: 0.2, momentum: Some(0.0), older: Some("hogwild-sgd") },
    Row { method: "sync-easgd1", rate: 0.1, momentum: Some(0.9), older: Some("original-easgd") },
    Row { method: "sync-easgd2", rate: 0.1, momentum: Some(0.9), older: Some("original-easgd") },
    Row { method: "sync-easgd3", rate: 0.1, momentum: Some(0.9), older: Some("original-easgd") },
];

/// A method's runs, one for each seed.
struct Runs<'a> {
    row: &'a Row,
    outcomes: Vec<Outcome>,
}

impl Runs<'_> {
    fn seconds(&self, target: f64) -> Option<f64> {
        middle(self.outcomes.iter().map(|outcome| outcome.reached(target).map(|test| test.seconds)))
    }

    fn iterations(&self, target: f64) -> Option<f64> {
        middle(self.outcomes.iter().map(|outcome| outcome.reached(target).map(|test| test.iteration as f64)))
    }

    /// The runs that came to their end.
    fn whole(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.summary["diverged"] != true)
    }

    fn share(&self) -> f64 {
        middle(self.whole().map(|outcome| Some(outcome.number("communication_share")))).unwrap_or(0.0)
    }

    fn milliseconds(&self) -> f64 {
        middle(self.whole().map(|outcome| Some(outcome.milliseconds()))).unwrap_or(0.0)
    }

    /// Median accuracies and seconds of the tests that all runs have.
    fn curve(&self) -> Vec<(f64, f64)> {
        let common = self.outcomes.iter().map(|outcome| outcome.tests.len()).min().unwrap_or(0);
        let middle_of = |index: usize, value: fn(&crate::runs::Test) -> f64| {
            middle(self.outcomes.iter().map(|outcome| Some(value(&outcome.tests[index])))).unwrap_or(0.0)
        };
        (0..common).map(|index| (middle_of(index, |t| t.seconds), middle_of(index, |t| t.accuracy))).collect()
    }
}

/// Runs all methods with all seeds, prints the table, and writes record and plot.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    println!("clock       {}", clock(args));
    println!(
        "{:15} {:>5} {:>8} {:>10} {:>10} {:>10} {:>7} {:>8}",
        "method", "rate", "momentum", "seconds", "iterations", "ms/iter", "comm.", "sooner"
    );
    let mut all: Vec<Runs<'_>> = Vec::new();
    for name in &args.methods {
        let row = ROWS.iter().find(|row| row.method == name);
        let row = row.ok_or_else(|| format!("--methods: there is no method {name:?}"))?;
        let outcomes: Result<Vec<_>, String> =
            args.seeds.iter().map(|seed| train(&flags(args, row, *seed, folder.path())?)).collect();
        all.push(Runs { row, outcomes: outcomes? });
        println!("{}", line(args, &all));
        if let Some(path) = &args.record {
            write(path, &record(args, &around, &all))?;
        }
    }
    compare(args, &all);
    args.plot.as_ref().map_or(Ok(()), |path| draw(path, args, &all))
}

fn clock(args: &Args) -> String {
    if args.real { "real".to_owned() } else { format!("sim: {}", args.machine.display()) }
}

fn workers(args: &Args) -> usize {
    args.workers.unwrap_or(if args.real { 2 } else { 4 })
}

fn flags(args: &Args, row: &Row, seed: u64, folder: &Path) -> Result<Vec<String>, String> {
    let solver = solver(folder, Path::new(NET), row.rate, args.test_interval)?;
    let mut flags: Vec<String> = ["--solver", &solver, "--method", row.method].map(str::to_owned).into();
    let numbers = [
        ("--workers", workers(args).to_string()),
        ("--seed", seed.to_string()),
        ("--max-iter", args.max_iter.to_string()),
        ("--target-accuracy", args.target.to_string()),
        ("--data", args.data.display().to_string()),
    ];
    flags.extend(numbers.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
    flags.extend(by_tree(row.method));
    if let Some(momentum) = row.momentum {
        flags.extend(["--momentum".to_owned(), momentum.to_string()]);
    }
    if !args.real {
        let machine = args.machine.display().to_string();
        flags.extend(["--clock".to_owned(), "sim".to_owned(), "--machine".to_owned(), machine]);
    }
    Ok(flags)
}

/// How much sooner a method reaches the target than another.
fn sooner(all: &[Runs<'_>], method: &str, than: &str, target: f64) -> Option<f64> {
    let seconds = |name: &str| all.iter().find(|runs| runs.row.method == name)?.seconds(target);
    Some(seconds(than)? / seconds(method)?)
}

/// The line of the last method.
fn line(args: &Args, all: &[Runs<'_>]) -> String {
    let Some(runs) = all.last() else { return String::new() };
    let diverged = runs.outcomes.iter().filter(|outcome| outcome.summary["diverged"] == true).count();
    let diverged = if diverged > 0 { format!("   {diverged} diverged") } else { String::new() };
    let or_dash =
        |number: Option<f64>, digits: usize| number.map_or("-".to_owned(), |n| format!("{n:.digits$}"));
    format!(
        "{:15} {:5} {:>8} {:>10} {:>10} {:10.2} {:6.1}% {:>8}{diverged}",
        runs.row.method,
        runs.row.rate,
        runs.row.momentum.unwrap_or(0.0),
        or_dash(runs.seconds(args.target), 2),
        or_dash(runs.iterations(args.target), 0),
        runs.milliseconds(),
        100.0 * runs.share(),
        or_dash(sooner(all, runs.row.method, "original-easgd", args.target), 2),
    )
}

/// Each new method beside its older counterpart.
fn compare(args: &Args, all: &[Runs<'_>]) {
    for runs in all {
        if let Some(older) = runs.row.older
            && let Some(factor) = sooner(all, runs.row.method, older, args.target)
        {
            println!("{:15} reaches {} {factor:.2} times as soon as {older}", runs.row.method, args.target);
        }
    }
}

fn record(args: &Args, around: &Value, all: &[Runs<'_>]) -> Value {
    let method = |runs: &Runs<'_>| {
        let seeds = args.seeds.iter().zip(&runs.outcomes);
        let seeds: Vec<Value> = seeds
            .map(|(seed, outcome)| {
                let tests: Vec<Value> =
                    outcome.tests.iter().map(|t| json!([t.iteration, t.seconds, t.accuracy])).collect();
                json!({"seed": seed, "tests_iteration_seconds_accuracy": tests, "summary": outcome.summary})
            })
            .collect();
        json!({
            "method": runs.row.method,
            "rate": runs.row.rate,
            "momentum": runs.row.momentum.unwrap_or(0.0),
            "seconds_to_target": runs.seconds(args.target),
            "iterations_to_target": runs.iterations(args.target),
            "milliseconds_per_iteration": runs.milliseconds(),
            "communication_share": runs.share(),
            "sooner_than_original_easgd": sooner(all, runs.row.method, "original-easgd", args.target),
            "older": runs.row.older,
            "sooner_than_older":
                runs.row.older.and_then(|older| sooner(all, runs.row.method, older, args.target)),
            "seeds": seeds,
        })
    };
    json!({
        "experiment": "methods",
        "what": "seconds of training, tests left out, until a test finds the target accuracy; medians over seeds (SC17, \
                 Figures 6 and 8)",
        "clock": clock(args),
        "workers": workers(args),
        "target": args.target,
        "test_interval": args.test_interval,
        "max_iter": args.max_iter,
        "surroundings": around,
        "methods": all.iter().map(method).collect::<Vec<_>>(),
    })
}

fn draw(path: &Path, args: &Args, all: &[Runs<'_>]) -> Result<(), String> {
    // As in Figure 8, so that errors of 10, 1 and 0.1 % are as far from each other.
    let nines = |accuracy: f64| -(1.0 - accuracy).max(1e-4).log10();
    let curve = |runs: &Runs<'_>| Curve {
        name: runs.row.method.to_owned(),
        points: runs.curve().into_iter().map(|(seconds, accuracy)| (seconds, nines(accuracy))).collect(),
    };
    let label = if args.real { "" } else { "sim: " };
    let curves = Curves {
        title: format!("{label}LeNet on MNIST, {} workers", workers(args)),
        axes: [format!("{label}seconds of training"), "-log10 of the error rate".to_owned()],
        curves: all.iter().map(curve).collect(),
        level: Some(nines(args.target)),
    };
    let short =
        |method: &str| method.replace("original", "orig").replace("easgd", "ea").replace("hogwild", "hogw");
    let bars = Bars {
        title: format!("{label}Seconds to an accuracy of {}", args.target),
        axes: ["method".to_owned(), "seconds".to_owned()],
        bars: all.iter().map(|runs| (short(runs.row.method), runs.seconds(args.target))).collect(),
    };
    plot::write(path, &curves, &bars)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::Test;

    #[test]
    fn counterparts_have_the_same_hyper_parameters() {
        for row in &ROWS {
            let Some(older) = row.older else { continue };
            let older = ROWS.iter().find(|other| other.method == older).expect("a row of its own");
            let of = |row: &Row| (row.rate, row.momentum.unwrap_or(0.0));
            assert_eq!(of(row), of(older), "{}", row.method);
        }
    }

    #[test]
    fn the_median_seed_counts() {
        let outcome = |seconds: f64| Outcome {
            tests: vec![
                Test { iteration: 5, seconds: seconds / 2.0, accuracy: 0.5 },
                Test { iteration: 10, seconds, accuracy: 0.9 },
            ],
            seconds: Vec::new(),
            summary: json!({"communication_share": 0.1, "seconds": seconds, "iterations": 10}),
        };
        let runs = |row: usize, factor: f64| Runs {
            row: &ROWS[row],
            outcomes: [2.0, 4.0, 9.0].map(|seconds| outcome(factor * seconds)).into(),
        };
        let all = [runs(0, 5.0), runs(10, 1.0)];
        assert_eq!(
            (all[1].seconds(0.8), all[1].iterations(0.8), all[1].seconds(0.95)),
            (Some(4.0), Some(10.0), None)
        );
        assert_eq!(sooner(&all, "sync-easgd3", "original-easgd", 0.8), Some(5.0));
        assert_eq!(all[1].curve(), [(2.0, 0.5), (4.0, 0.9)]);
        assert!((all[1].milliseconds() - 400.0).abs() < 1e-9 && (all[1].share() - 0.1).abs() < 1e-9);
    }
}
