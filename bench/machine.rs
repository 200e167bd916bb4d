//! Measures the machine at hand and writes the file that the virtual clock goes by.
//!
//! Computing, copies and updates are those of trainings with the workers that the file is for, since they share cores and
//! memory. A message between threads is what an exchange of such a training takes, copies to and from packed buffers and
//! sums included; its latency is that of an empty one.

use std::num::NonZero;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quadrille_comm::protocol::Method;
use quadrille_comm::transport::threads::endpoints;
use quadrille_comm::transport::{Buffer, Kind, Tag, Transport};
use quadrille_io::prototxt::parse_machine;
use serde_json::{Value, json};

use crate::nets::{batch_bytes, training};
use crate::record::{median, surroundings, write};
use crate::runs::{Outcome, by_tree, solver, train};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The data set
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// The network, a file in Caffe's format
    #[arg(long, default_value = "models/lenet/train_val.prototxt", value_name = "FILE")]
    net: PathBuf,
    /// Images in a worker's mini-batch
    #[arg(long, default_value_t = 64, value_name = "N")]
    batch: usize,
    /// Workers, each of one thread
    #[arg(long, default_value_t = 2, value_name = "W")]
    workers: usize,
    /// Iterations of each run
    #[arg(long, default_value_t = 200, value_name = "N")]
    iterations: u64,
    /// Rounds, in which each run is made once; medians count, each at the speed of the middle round
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeats: usize,
    /// Where to write the machine file
    #[arg(long, value_name = "FILE")]
    record: PathBuf,
    /// Then train by all methods, by the real clock and by the virtual one with this file, and show how far they are apart
    #[arg(long)]
    check: bool,
    /// Where to write what the check found
    #[arg(long, value_name = "FILE", requires = "check")]
    check_record: Option<PathBuf>,
}

/// What was measured, in nanoseconds and bytes.
#[derive(Clone, Debug, PartialEq)]
struct Measured {
    machine: String,
    date: String,
    network: String,
    batch: usize,
    workers: usize,
    /// Of a packed buffer.
    bytes: f64,
    /// Of a mini-batch.
    batch_bytes: f64,
    forward_backward: f64,
    other: f64,
    data_copy: f64,
    worker_update: f64,
    centre_update: f64,
    latency: f64,
    /// A message of a packed buffer between workers, and to or from the master.
    message: f64,
    master: f64,
    /// The same to or from memory that all share.
    shared: f64,
    overlap: f64,
    shared_overlap: f64,
}

/// Measures, checks that the file can be read, and writes it.
pub fn run(args: &Args) -> Result<(), String> {
    let (measured, real) = measure(args)?;
    let text = file(&measured);
    let name = args.record.display().to_string();
    parse_machine(&text, &name).map_err(|error| error.to_string())?;
    std::fs::write(&args.record, &text).map_err(|error| format!("{name}: {error}"))?;
    print!("{text}");
    if args.check { check(args, &text, &real) } else { Ok(()) }
}

/// Milliseconds of an iteration by both clocks, method by method. The real ones were measured in the rounds that the figures are
/// from.
fn check(args: &Args, text: &str, real: &[f64]) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let solver = solver(folder.path(), &args.net, 0.01, 0)?;
    let around = surroundings();
    println!("\n{:15} {:>10} {:>10} {:>7}", "ms/iteration", "real", "sim", "error");
    let mut found = Vec::new();
    for (method, real) in Method::ALL.into_iter().zip(real) {
        let mut flags = flags(args, &solver, method.name());
        let machine = args.record.display().to_string();
        flags.extend(["--clock".to_owned(), "sim".to_owned(), "--machine".to_owned(), machine]);
        let sim = train(&flags)?.milliseconds();
        let error = sim / real - 1.0;
        println!("{:15} {real:10.3} {sim:10.3} {:6.1}%", method.name(), 100.0 * error);
        found.push(json!({"method": method.name(), "real_ms": real, "sim_ms": sim, "error": error}));
    }
    let record = json!({
        "experiment": "machine",
        "what": "milliseconds of an iteration by the real clock, and by the virtual one (sim) with the figures of the same rounds",
        "workers": args.workers,
        "iterations": args.iterations,
        "machine_file": text,
        "surroundings": around,
        "methods": found,
    });
    args.check_record.as_ref().map_or(Ok(()), |path| write(path, &record))
}

/// One run of each kind, close together in time.
struct Round {
    /// Exchanges behind backward, beside it, with a master in turn and at any time, and with shared memory.
    measured: [Outcome; 5],
    /// Milliseconds of an iteration by each method; nothing if that is not asked for.
    by_method: Vec<f64>,
}

const BEHIND: usize = 0;
const BESIDE: usize = 1;
const TURNS: usize = 2;
const ANY_TIME: usize = 3;
const SHARED: usize = 4;

impl Round {
    fn new(args: &Args, solver: &str) -> Result<Self, String> {
        let run = |method: Method| {
            let mut flags = flags(args, solver, method.name());
            flags.extend(by_tree(method.name()));
            train(&flags)
        };
        let plain = |method: Method| Ok(train(&flags(args, solver, method.name()))?.milliseconds());
        Ok(Self {
            measured: [
                run(Method::SyncEasgd2)?,
                run(Method::SyncEasgd3)?,
                run(Method::OriginalEasgd)?,
                run(Method::AsyncSgd)?,
                run(Method::HogwildSgd)?,
            ],
            by_method: Method::ALL
                .into_iter()
                .filter(|_| args.check)
                .map(plain)
                .collect::<Result<_, String>>()?,
        })
    }

    /// What the same work took in this round; a machine that others use, too, is not equally fast in all of them.
    fn pace(&self) -> f64 {
        self.measured[BEHIND].part("forward_backward")
    }
}

/// The median over all rounds of what `figure` says, each at the speed of the middle round: a disturbance of one run does no harm
/// then, nor do rounds that are slower as a whole.
fn middle(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    let usual = median(&rounds.iter().map(Round::pace).collect::<Vec<_>>());
    median(&rounds.iter().map(|round| figure(round) * usual / round.pace()).collect::<Vec<_>>())
}

fn measure(args: &Args) -> Result<(Measured, Vec<f64>), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let solver = solver(folder.path(), &args.net, 0.01, 0)?;
    let around = surroundings();
    let rounds: Result<Vec<Round>, String> =
        (0..args.repeats.max(1)).map(|_| Round::new(args, &solver)).collect();
    let rounds = rounds?;
    let methods = rounds[0].by_method.len();
    let real = (0..methods).map(|method| middle(&rounds, |round| round.by_method[method])).collect();
    Ok((figures(args, &rounds, &around)?, real))
}

fn figures(args: &Args, rounds: &[Round], around: &Value) -> Result<Measured, String> {
    let of = |kind: usize, figure: &dyn Fn(&Outcome) -> f64| {
        1e6 * middle(rounds, |round| figure(&round.measured[kind]))
    };
    let part = |method: usize, name: &str| of(method, &|outcome| outcome.part(name));
    let net = training(&args.net, args.batch)?;
    // A sum and a broadcast over the tree of these workers, one message after the other.
    let depth = f64::from(args.workers.next_power_of_two().trailing_zeros().max(1));
    let exchange = part(BEHIND, "comm_workers");
    let hidden =
        |round: &Round| round.measured[BEHIND].milliseconds() - round.measured[BESIDE].milliseconds();
    let overlap = (1e6 * middle(rounds, hidden) / exchange.max(1.0)).clamp(0.0, 1.0);
    // A master that is asked in turn sleeps meanwhile, and takes longer to answer than one that is asked at any time: the middle.
    let there_and_back = |kind| of(kind, &|run| run.part("comm_host") + run.part("hidden_communication"));
    let there_and_back = 0.5 * (there_and_back(TURNS) + there_and_back(ANY_TIME));
    let shared = of(SHARED, &|run| run.part("comm_host") + run.part("centre_update"));
    let (bytes, centre_update) = ((size_of::<f32>() * net.params.len()) as f64, part(TURNS, "centre_update"));
    let beside_step = part(BEHIND, "hidden_data_copy");
    Ok(Measured {
        machine: around["machine"].as_str().unwrap_or("unknown").to_owned(),
        date: around["date"].as_str().unwrap_or("unknown").to_owned(),
        bytes,
        batch_bytes: batch_bytes(&net) as f64,
        network: net.name,
        batch: args.batch,
        workers: args.workers,
        // What the copy of the next mini-batch takes away is in the step that was measured; the virtual clock adds it again.
        forward_backward: part(BEHIND, "forward_backward") - (1.0 - overlap) * beside_step,
        other: part(BEHIND, "other"),
        data_copy: part(BEHIND, "data_copy") + beside_step,
        worker_update: part(BEHIND, "worker_update"),
        centre_update,
        latency: latency()?,
        message: exchange / (2.0 * depth),
        master: there_and_back / 2.0,
        // The virtual clock counts the change of the centre there by itself.
        shared: (shared - centre_update).max(0.0) / 2.0,
        overlap,
        shared_overlap: spare_cores(args.workers),
    })
}

/// The cores that do not compute, over the workers, of 1 at most.
fn spare_cores(workers: usize) -> f64 {
    let cores = std::thread::available_parallelism().map_or(workers, NonZero::get);
    (cores.saturating_sub(workers) as f64 / workers as f64).min(1.0)
}

fn flags(args: &Args, solver: &str, method: &str) -> Vec<String> {
    let numbers = [
        ("--solver", solver.to_owned()),
        ("--method", method.to_owned()),
        ("--workers", args.workers.to_string()),
        ("--batch", args.batch.to_string()),
        ("--max-iter", args.iterations.to_string()),
        ("--data", args.data.display().to_string()),
    ];
    numbers.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
}

/// Nanoseconds from one thread to another, the median of many round trips of one value.
fn latency() -> Result<f64, String> {
    const TRIPS: u64 = 2_000;
    let mut ends = endpoints(2, Duration::from_secs(60));
    let (mut far, mut near) = (ends.remove(1), ends.remove(0));
    let tag = |exchange| Tag { exchange, kind: Kind::Request };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for trip in 0..TRIPS {
                let Ok(payload) = far.recv(0, tag(trip)) else { return };
                if far.send(0, tag(trip), payload).is_err() {
                    return;
                }
            }
        });
        let mut times = Vec::new();
        for trip in 0..TRIPS {
            let start = Instant::now();
            near.send(1, tag(trip), Buffer::zeros(1)).map_err(|error| error.to_string())?;
            near.recv(1, tag(trip)).map_err(|error| error.to_string())?;
            times.push(start.elapsed().as_nanos() as f64 / 2.0);
        }
        Ok(median(&times))
    })
}

/// The machine file.
fn file(m: &Measured) -> String {
    let rate = |bytes: f64, time: f64| format!("{:.4}", bytes / time.max(1.0));
    // What is left of a message without its latency, but never nothing.
    let way = |message: f64| {
        let bandwidth = rate(m.bytes, (message - m.latency).max(0.05 * message));
        format!("{{ latency_us: {:.2} gbytes_per_s: {bandwidth} }}", m.latency * 1e-3)
    };
    let [workers, master, shared] = [m.message, m.master, m.shared].map(way);
    format!(
        "# Measured by quadrille-bench machine, with {} workers of one thread each.\n\
         name: \"{}, {} workers\"\nsource: \"measured on {}\"\n\n\
         step {{ network: \"{}\" batch: {} forward_backward_ms: {:.4} other_ms: {:.4} }}\n\n\
         # Rates for other networks were not measured; they are those of this one's step at most.\n\
         worker {{ gflops: 50 gbytes_per_s: 8 task_us: 5 update_gbytes_per_s: {} }}\n\
         host_update_gbytes_per_s: {}\n\
         data {{ latency_us: 0 gbytes_per_s: {} }}\n\
         workers {workers}\nhost {workers}\nmaster {master}\nshared {shared}\n\
         control_us: {:.2}\noverlap: {:.3}\nshared_overlap: {:.3}\n",
        m.workers,
        m.machine.replace(['"', '\\'], " "),
        m.workers,
        m.date,
        m.network,
        m.batch,
        m.forward_backward * 1e-6,
        m.other * 1e-6,
        rate(m.bytes, m.worker_update),
        rate(m.bytes, m.centre_update),
        rate(m.batch_bytes, m.data_copy),
        m.latency * 1e-3,
        m.overlap,
        m.shared_overlap,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_as_it_was_measured() {
        let measured = Measured {
            machine: "a \"CPU\"".to_owned(),
            date: "today".to_owned(),
            network: "LeNet".to_owned(),
            batch: 64,
            workers: 2,
            bytes: 1.7e6,
            batch_bytes: 2e5,
            forward_backward: 9.5e6,
            other: 2e4,
            data_copy: 4e4,
            worker_update: 3e5,
            centre_update: 1e5,
            latency: 5e3,
            message: 4e5,
            master: 5e5,
            shared: 6e5,
            overlap: 0.25,
            shared_overlap: 0.0,
        };
        let machine = parse_machine(file(&measured), "m").unwrap();
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.01, "{a} {b}");
        near(machine.steps[0].forward_backward, 9.5e6);
        near(machine.workers.message(1_700_000), 4e5);
        near(machine.master.message(1_700_000), 5e5);
        near(machine.shared.message(1_700_000), 6e5);
        near(machine.update(1_700_000), 3e5);
        near(machine.data.message(200_000), 4e4);
        assert_eq!((machine.overlap, machine.shared_overlap, machine.control), (0.25, 0.0, 5e3));
    }

    #[test]
    fn a_message_takes_some_time() {
        assert!(latency().is_ok_and(|nanoseconds| nanoseconds > 0.0));
    }
}
