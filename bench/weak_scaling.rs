//! Weak scaling: Table 4 of the SC17 paper.
//!
//! Measured as far as this machine goes, with LeNet, and compared with what the virtual clock says of the same runs. From there
//! on simulated: the protocol of Sync EASGD runs in virtual time with messages of the network's size by the figures of a
//! machine file, forward and backward as measured there or from the cost of each task. Nothing is trained: a node of such a
//! cluster computes for seconds, and this machine has no room for 64 of them. Simulated numbers are labelled `sim`.

use std::path::{Path, PathBuf};

use quadrille_comm::Moment;
use quadrille_comm::overlap::{Cargo, Exchanger};
use quadrille_comm::protocol::Method;
use quadrille_comm::protocol::sync_easgd::SyncEasgd;
use quadrille_comm::transport::Buffer;
use quadrille_comm::transport::timed::{Staging, TimedTransport, Wires, endpoints};
use quadrille_core::machine::{Jitter, Link, Machine};
use quadrille_io::prototxt::read_machine;
use serde_json::{Value, json};

use crate::nets::{batch_bytes, gradients, training};
use crate::plot::{self, Bars, Curve, Curves};
use crate::record::{surroundings, write};
use crate::runs::{solver, train};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The machine that is simulated
    #[arg(long, default_value = "bench/machines/cori-knl-aries.prototxt", value_name = "FILE")]
    machine: PathBuf,
    /// Bundled networks, each with the iterations of the table
    #[arg(long, default_value = "googlenet=300,vgg19=80", value_delimiter = ',', value_name = "NET=N", value_parser = pair)]
    nets: Vec<(String, u64)>,
    /// Images in each worker's mini-batch
    #[arg(long, default_value_t = 64, value_name = "N")]
    batch: usize,
    /// Nodes, each of one worker
    #[arg(long, default_value = "1,2,4,8,16,32,64", value_delimiter = ',', value_name = "NUMBERS")]
    nodes: Vec<usize>,
    /// The method: sync-easgd3 exchanges beside forward and backward, sync-easgd2 behind them
    #[arg(long, default_value = "sync-easgd3", value_name = "METHOD")]
    method: Method,
    /// Let times be longer by up to this share of themselves, instead of what the machine file says
    #[arg(long, value_name = "SHARE")]
    jitter: Option<f64>,
    /// Measure LeNet on this data set here, too, with 1 and 2 workers
    #[arg(long, value_name = "PATH", requires = "here")]
    data: Option<PathBuf>,
    /// The machine file of this machine (of quadrille-bench machine), to be checked against these measurements
    #[arg(long, value_name = "FILE", requires = "data")]
    here: Option<PathBuf>,
    /// Iterations of each measurement
    #[arg(long, default_value_t = 300, value_name = "N")]
    iterations: u64,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Where to draw
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

fn pair(text: &str) -> Result<(String, u64), String> {
    let pair = text.split_once('=').and_then(|(net, count)| Some((net.to_owned(), count.parse().ok()?)));
    pair.filter(|(_, count)| *count > 0).ok_or_else(|| format!("{text:?}; expected NET=ITERATIONS"))
}

/// The paper's seconds of 300 and 80 iterations on 1, 2, 4, ... nodes of 68 cores.
const PAPER: [(&str, [f64; 7]); 2] = [
    ("googlenet", [1533.0, 1590.0, 1608.0, 1641.0, 1630.0, 1662.0, 1674.0]),
    ("vgg19", [1318.0, 1440.0, 1482.0, 1524.0, 1634.0, 1679.0, 1642.0]),
];

/// Values of a message in the simulation; ways and centres are slower by as much as messages are smaller.
const VALUES: usize = 256;

/// What a worker of a network takes, in nanoseconds, and what it sends, in bytes.
#[derive(Clone, Copy, Debug)]
struct Load {
    forward_backward: f64,
    update: f64,
    batch: usize,
    parameters: usize,
    /// Whether the exchange runs beside forward and backward.
    overlaps: bool,
}

/// Seconds of so many iterations of Sync EASGD on `nodes` nodes, those of the slowest.
fn simulate(machine: &Machine, load: Load, nodes: usize, iterations: u64) -> Result<f64, String> {
    let smaller = (size_of::<f32>() * VALUES) as f64 / load.parameters as f64;
    let scaled = |link: Link| Link { bandwidth: link.bandwidth * smaller, ..link };
    let wires = Wires::new(machine, Method::SyncEasgd3, false);
    let wires = Wires { workers: scaled(wires.workers), centre: wires.centre * smaller, ..wires };
    let ends: Vec<Result<f64, String>> = std::thread::scope(|scope| {
        let ends = endpoints(nodes, wires).into_iter();
        let threads: Vec<_> = ends.map(|end| scope.spawn(move || node(end, load, iterations))).collect();
        let lost = || Err("a simulated node panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
    });
    ends.into_iter().try_fold(0.0, |latest, end| Ok(f64::max(latest, end?)))
}

/// The life of a node; returns its seconds.
fn node(end: TimedTransport, load: Load, iterations: u64) -> Result<f64, String> {
    let clock = end.clock();
    let mut exchanger = Exchanger::timed(clock.clone(), SyncEasgd::new(end, &[0.0; VALUES]));
    let mut cargo = Cargo::new(Buffer::zeros(VALUES), Buffer::zeros(VALUES));
    let begin = clock.now();
    let mut data = Staging::default();
    for _ in 0..iterations {
        let begin =
            |exchanger: &mut Exchanger| exchanger.start(cargo, 0.1).map_err(|error| error.to_string());
        if load.overlaps {
            begin(&mut exchanger)?;
            data.turn(&clock, load.batch);
            exchanger.proceed();
            clock.pass(load.forward_backward);
        } else {
            data.turn(&clock, load.batch);
            clock.pass(load.forward_backward);
            begin(&mut exchanger)?;
        }
        let done = exchanger.wait().map_err(|error| error.to_string())?;
        clock.pass(load.update);
        cargo = done.cargo;
    }
    let seconds = Moment::since(clock.now(), begin).as_secs_f64();
    // Nobody leaves before all are done with it.
    exchanger.all_reduce_sum(Buffer::zeros(1)).map_err(|error| error.to_string())?;
    Ok(seconds)
}

/// A row of the table.
struct Row {
    net: String,
    iterations: u64,
    measured_step: bool,
    /// Nodes and seconds.
    points: Vec<(usize, f64)>,
}

impl Row {
    fn efficiency(&self, seconds: f64) -> f64 {
        self.points.first().map_or(f64::NAN, |(_, first)| first / seconds)
    }
}

/// Simulates, prints the table beside the paper's, compares with measurements, and writes record and plot.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let mut machine = read_machine(&args.machine).map_err(|error| error.to_string())?;
    if let Some(share) = args.jitter {
        machine.jitter = Some(Jitter { seed: 1, share });
    }
    let varied =
        machine.jitter.map_or("no jitter".to_owned(), |jitter| format!("jitter up to {}", jitter.share));
    println!("sim: {} ({varied}), {}, {} images for each worker", machine.name, args.method, args.batch);
    if !matches!(args.method, Method::SyncEasgd2 | Method::SyncEasgd3) {
        return Err(format!("--method {}: expected sync-easgd2 or sync-easgd3", args.method));
    }
    let mut rows = Vec::new();
    for (net, iterations) in &args.nets {
        rows.push(row(args, &machine, net, *iterations)?);
        print_row(&rows[rows.len() - 1]);
    }
    let here = args.data.as_ref().zip(args.here.as_ref());
    let checked = here.map(|(data, file)| check(args, data, file)).transpose()?;
    if let Some(path) = &args.record {
        write(path, &record(args, &around, &machine, &rows, checked.as_ref()))?;
    }
    args.plot.as_ref().map_or(Ok(()), |path| draw(path, &machine, &rows))
}

fn row(args: &Args, machine: &Machine, name: &str, iterations: u64) -> Result<Row, String> {
    let net = training(&Path::new("models").join(name).join("train_val.prototxt"), args.batch)?;
    let plan = gradients(&net)?;
    let parameters = size_of::<f32>() * net.params.len();
    let step = machine.step(std::slice::from_ref(&net), &plan, args.batch);
    let load = Load {
        forward_backward: step.forward_backward + step.other,
        update: machine.update(parameters),
        batch: batch_bytes(&net),
        parameters,
        overlaps: args.method.overlaps(),
    };
    let points: Result<Vec<_>, String> =
        args.nodes.iter().map(|nodes| Ok((*nodes, simulate(machine, load, *nodes, iterations)?))).collect();
    Ok(Row { net: name.to_owned(), iterations, measured_step: step.measured, points: points? })
}

fn print_row(row: &Row) {
    let how = if row.measured_step { "as measured there" } else { "from rates" };
    println!("\n{}, {} iterations; forward and backward {how}", row.net, row.iterations);
    let paper = PAPER.iter().find(|(name, _)| *name == row.net).map(|(_, seconds)| seconds);
    println!(
        "{:>6} {:>12} {:>11} {:>10} {:>11}",
        "nodes", "sim seconds", "efficiency", "paper", "efficiency"
    );
    for (index, (nodes, seconds)) in row.points.iter().enumerate() {
        let published = paper.and_then(|paper| Some((paper.get(index)?, paper[0])));
        let published =
            published.filter(|_| *nodes == 1 << index).map_or(String::new(), |(seconds, first)| {
                format!("{seconds:10.0} {:10.1}%", 100.0 * first / seconds)
            });
        println!("{nodes:6} {seconds:12.1} {:10.1}% {published}", 100.0 * row.efficiency(*seconds));
    }
}

/// LeNet here with 1 and 2 workers by both clocks.
fn check(args: &Args, data: &Path, file: &Path) -> Result<Value, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let solver = solver(folder.path(), Path::new("models/lenet/train_val.prototxt"), 0.01, 0)?;
    println!("\nLeNet here, Sync EASGD3, {} iterations", args.iterations);
    println!("{:>7} {:>14} {:>14} {:>7} {:>11}", "workers", "measured s", "sim s", "error", "efficiency");
    let (mut found, mut first) = (Vec::new(), None);
    for workers in [1, 2] {
        let numbers = [
            ("--solver", solver.clone()),
            ("--workers", workers.to_string()),
            ("--threads", "1".to_owned()),
            ("--max-iter", args.iterations.to_string()),
            ("--data", data.display().to_string()),
        ];
        let mut flags: Vec<String> =
            numbers.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let real = train(&flags)?.number("seconds");
        flags.extend(["--clock", "sim", "--machine"].map(str::to_owned));
        flags.push(file.display().to_string());
        let sim = train(&flags)?.number("seconds");
        let efficiency = *first.get_or_insert(real) / real;
        let error = sim / real - 1.0;
        println!("{workers:7} {real:14.3} {sim:14.3} {:6.1}% {:10.1}%", 100.0 * error, 100.0 * efficiency);
        found.push(json!({"workers": workers, "measured_seconds": real, "sim_seconds": sim, "error": error}));
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    Ok(json!({"machine": name, "iterations": args.iterations, "runs": found}))
}

fn record(args: &Args, around: &Value, machine: &Machine, rows: &[Row], checked: Option<&Value>) -> Value {
    let row = |row: &Row| {
        let points = row.points.iter().map(|(nodes, seconds)| {
            json!({"nodes": nodes, "sim_seconds": seconds, "efficiency": row.efficiency(*seconds)})
        });
        json!({
            "network": row.net,
            "iterations": row.iterations,
            "forward_backward_measured": row.measured_step,
            "points": points.collect::<Vec<_>>(),
            "paper_seconds": PAPER.iter().find(|(name, _)| *name == row.net).map(|(_, seconds)| seconds),
        })
    };
    json!({
        "experiment": "weak-scaling",
        "what": "seconds of iterations of Sync EASGD with one mini-batch a node, simulated in virtual time (sim), beside Table 4 \
                 of SC17; and LeNet measured on this machine beside what the virtual clock says of it",
        "clock": "sim",
        "machine": machine.name,
        "method": args.method.name(),
        "jitter": machine.jitter.map(|jitter| jitter.share),
        "batch": args.batch,
        "surroundings": around,
        "networks": rows.iter().map(row).collect::<Vec<_>>(),
        "measured_here": checked,
    })
}

fn draw(path: &Path, machine: &Machine, rows: &[Row]) -> Result<(), String> {
    let per_cent = |row: &Row, seconds: f64| 100.0 * row.efficiency(seconds);
    let simulated = rows.iter().map(|row| Curve {
        name: format!("sim: {}", row.net),
        points: row.points.iter().map(|(n, seconds)| ((*n as f64).log2(), per_cent(row, *seconds))).collect(),
    });
    let published = rows.iter().filter_map(|row| {
        let (_, seconds) = PAPER.iter().find(|(name, _)| *name == row.net)?;
        let points = seconds.iter().enumerate().map(|(index, s)| (index as f64, 100.0 * seconds[0] / s));
        Some(Curve { name: format!("paper: {}", row.net), points: points.collect() })
    });
    let curves = Curves {
        title: format!("sim: weak scaling, {}", machine.name),
        axes: ["log2 of nodes".to_owned(), "efficiency in %".to_owned()],
        curves: simulated.chain(published).collect(),
        level: None,
    };
    let bars = rows.first().map_or(Vec::new(), |row| {
        row.points.iter().map(|(nodes, seconds)| (nodes.to_string(), Some(*seconds))).collect()
    });
    let title =
        rows.first().map_or(String::new(), |row| format!("sim: {}, {} iterations", row.net, row.iterations));
    plot::write(path, &curves, &Bars { title, axes: ["nodes".to_owned(), "sim seconds".to_owned()], bars })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quadrille_core::plan::Rates;

    fn machine(jitter: Option<Jitter>) -> Machine {
        let link = Link { latency: 1e3, bandwidth: 1.0, serial: false };
        Machine {
            name: "m".to_owned(),
            source: String::new(),
            rates: Rates { flops: 1.0, bytes: 1.0, overhead: 0.0 },
            steps: Vec::new(),
            worker_update: 1e6,
            host_update: 1e6,
            data: Link { bandwidth: 1e9, ..link },
            workers: link,
            host: link,
            master: link,
            shared: link,
            control: 0.0,
            overlap: 1.0,
            shared_overlap: 1.0,
            jitter,
            device: None,
        }
    }

    #[test]
    fn an_exchange_is_hidden_or_twice_the_depth_of_the_tree() {
        // A message of 10^6 bytes takes 1 µs and 1 ms.
        let load = |ms: f64| Load {
            forward_backward: ms * 1e6,
            update: 0.0,
            batch: 0,
            parameters: 1_000_000,
            overlaps: true,
        };
        let seconds = |ms, nodes| simulate(&machine(None), load(ms), nodes, 10).unwrap();
        assert!((seconds(50.0, 8) / seconds(50.0, 1) - 1.0).abs() < 1e-3, "hidden");
        assert!((seconds(0.1, 8) / (10.0 * 6.0 * 1.001e-3) - 1.0).abs() < 0.01, "{}", seconds(0.1, 8));
    }

    #[test]
    fn jitter_costs_more_the_more_nodes_wait_for_each_other_unless_an_exchange_may_be_late() {
        let varied = machine(Some(Jitter { seed: 1, share: 0.2 }));
        let slower = |overlaps| {
            let load = Load { forward_backward: 1e8, update: 0.0, batch: 0, parameters: 1_000, overlaps };
            let seconds = |nodes| simulate(&varied, load, nodes, 1_000).unwrap();
            seconds(16) / seconds(1)
        };
        // If all waited for all: the mean of the longest of 16 even draws is 16/17 of the largest, 1.188 to 1.1 of a single node. A
        // node waits for those above it in the tree and for their last sums, which is a little less.
        let behind = slower(false);
        assert!((1.06..1.188 / 1.1).contains(&behind), "{behind}");
        assert!(slower(true) < 1.03, "{}", slower(true));
    }

    #[test]
    fn networks_come_with_their_iterations() {
        assert_eq!(pair("vgg19=80"), Ok(("vgg19".to_owned(), 80)));
        assert!(["vgg19", "vgg19=", "vgg19=0", "=x"].into_iter().all(|text| pair(text).is_err()));
    }
}
