//! How far the simulated device is from the real one: iterations on the CPU with one thread and with two, measured and predicted.
//!
//! There are two predictions. One goes by the ceilings of the machine alone: every operation at the measured peak. The other has
//! each task's time on one thread from a profile, as TurboDL corrects its estimates by one iteration, and predicts what several
//! threads and lanes make of that: the error that matters when schedules are compared.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use quadrille_core::device::Scalars;
use quadrille_core::plan::lanes::Limits;
use quadrille_core::plan::priority::Estimates;
use quadrille_core::plan::{Node, Schedule};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::sim::{DeviceModel, GrainRule, Kernel, SimDevice};
use quadrille_core::task::Task;
use quadrille_cpu::isa::{Isa, Numerics, Precision};
use quadrille_cpu::kernel::ceilings::{bytes, multiply_adds};
use serde_json::{Value, json};

use crate::engine::{Engine, elapsed};
use crate::nets::training;
use crate::record::{median, surroundings, write};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Bundled networks with their mini-batches
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "lenet:64,cifar10_quick:100,alexnet:16,googlenet:4,resnet18:4",
        value_name = "NAME:N"
    )]
    networks: Vec<String>,
    /// Threads
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "NUMBERS")]
    threads: Vec<usize>,
    /// Iterations of each, after one that does not count; the medians count
    #[arg(long, default_value_t = 9, value_name = "N")]
    repeat: usize,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// A name and a mini-batch, such as `lenet:64`.
///
/// # Errors
/// If it is none.
pub fn named_batch(text: &str) -> Result<(&str, usize), String> {
    let parts = text.split_once(':').and_then(|(name, batch)| Some((name, batch.parse().ok()?)));
    parts
        .filter(|(_, batch)| *batch > 0)
        .ok_or_else(|| format!("{text:?}; expected NAME:N, such as lenet:64"))
}

/// What the machine at hand can do.
struct Ceilings {
    flops: f64,
    bytes: f64,
    /// Of as many threads as are asked for, one after the other.
    memory: Vec<(usize, f64)>,
}

impl Ceilings {
    fn measure(threads: &[usize]) -> Self {
        let numerics = Numerics { isa: Isa::detect(), precision: Precision::F32 };
        let memory = threads.iter().map(|threads| (*threads, bytes(*threads))).collect();
        Self { flops: multiply_adds(numerics, 1), bytes: bytes(1), memory }
    }

    /// A crew of so many threads, which takes so long from task to task.
    fn crew(&self, threads: usize, start: f64) -> DeviceModel {
        let memory = self.memory.iter().find(|(count, _)| *count == threads).map_or(self.bytes, |(_, m)| *m);
        DeviceModel {
            limits: Limits {
                units: threads as u32,
                blocks: 1,
                threads: 1,
                registers: 0,
                shared: 0,
                kernels: 8,
                launch: 0.0,
            },
            flops: self.flops,
            bytes: self.bytes,
            memory,
            levels: u8::MAX,
            wait: 0.0,
            start,
            grain: 0.0,
            crew: true,
            // Not used: the engine tells its grains.
            compute: GrainRule::cores(1.0, 1),
            stream: GrainRule::cores(1.0, 1),
        }
    }
}

/// Each task's time on one thread, and what passes between tasks.
struct Profile {
    tasks: HashMap<Task, f64>,
    between: f64,
}

/// One comparison, in nanoseconds.
struct Line {
    network: String,
    threads: usize,
    schedule: Schedule,
    measured: f64,
    by_ceilings: f64,
    by_profile: f64,
}

/// Measures, predicts and prints all of it.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let ceilings = Ceilings::measure(&args.threads);
    println!("{:.1} GFLOP/s and {:.1} GB/s on one thread", ceilings.flops, ceilings.bytes);
    println!(
        "{:18} {:>7} {:11} {:>11} {:>16} {:>7} {:>16} {:>7}",
        "network",
        "threads",
        "schedule",
        "measured ms",
        "sim by ceilings",
        "error",
        "sim by profile",
        "error"
    );
    let mut lines = Vec::new();
    for network in &args.networks {
        let (name, batch) = named_batch(network).map_err(|error| format!("--networks: {error}"))?;
        let net = training(&Path::new("models").join(name).join("train_val.prototxt"), batch)?;
        let profile =
            profile(&Engine::new(&net, Schedule::Layerwise, 1, &Estimates::default())?, args.repeat)?;
        for &threads in &args.threads {
            for schedule in [Schedule::Layerwise, Schedule::Critical] {
                let engine = Engine::new(&net, schedule, threads, &Estimates::default())?;
                let measured = measure(&engine, args.repeat)?;
                let model = ceilings.crew(threads, profile.between);
                let by_ceilings = predict(&engine, &model, None)?;
                let by_profile = predict(&engine, &model, Some(&profile))?;
                let network = network.clone();
                lines.push(Line { network, threads, schedule, measured, by_ceilings, by_profile });
                print(&lines[lines.len() - 1]);
            }
        }
    }
    let errors =
        |of: fn(&Line) -> f64| lines.iter().map(|l| (of(l) / l.measured - 1.0).abs()).collect::<Vec<_>>();
    let (worst, middle) =
        (errors(|l| l.by_profile).into_iter().fold(0.0, f64::max), median(&errors(|l| l.by_profile)));
    println!("sim by profile: error {:.1} % at most, {:.1} % in the median", 100.0 * worst, 100.0 * middle);
    args.record.as_ref().map_or(Ok(()), |path| write(path, &record(&around, &ceilings, &lines)))
}

fn measure(engine: &Engine, repeat: usize) -> Result<f64, String> {
    engine.step()?;
    let times: Result<Vec<f64>, String> = (0..repeat.max(1)).map(|_| Ok(elapsed(&engine.step()?))).collect();
    Ok(median(&times?))
}

fn profile(engine: &Engine, repeat: usize) -> Result<Profile, String> {
    engine.step()?;
    let runs: Result<Vec<_>, String> = (0..repeat.max(1)).map(|_| engine.step()).collect();
    let runs = runs?;
    let task = |id: usize| {
        median(&runs.iter().map(|spans| (spans[id].end - spans[id].start) as f64).collect::<Vec<_>>())
    };
    let nodes = engine.plan.nodes.iter().enumerate();
    let tasks: HashMap<Task, f64> = nodes.map(|(id, node)| (node.task, task(id))).collect();
    let whole = median(&runs.iter().map(|spans| elapsed(spans)).collect::<Vec<_>>());
    let between = (whole - tasks.values().sum::<f64>()).max(0.0) / tasks.len().max(1) as f64;
    Ok(Profile { tasks, between })
}

/// Nanoseconds of an iteration by the simulated device, with the engine's grains.
fn predict(engine: &Engine, model: &DeviceModel, profile: Option<&Profile>) -> Result<f64, String> {
    let device = engine.device();
    let kernel = |node: &Node| -> Kernel {
        let grains = device.grains(&node.task).into_iter().flatten().max().unwrap_or(1);
        let kernel = model.kernel_of(&engine.nets, node).in_grains(grains.into());
        // Plans of all schedules have the same tasks.
        let measured = profile.and_then(|profile| profile.tasks.get(&node.task));
        let alone = DeviceModel { start: 0.0, ..*model };
        measured.map_or(kernel, |nanoseconds| kernel.measured(&alone, *nanoseconds))
    };
    let devices = SimDevice::of_kernels(&[&engine.plan], model, kernel);
    let mut times = StepTimes::default();
    run_step(&devices, &engine.plan, &Scalars::default(), &mut times).map_err(|error| error.to_string())?;
    Ok(times.elapsed() as f64)
}

fn print(line: &Line) {
    let error = |sim: f64| 100.0 * (sim / line.measured - 1.0);
    println!(
        "{:18} {:7} {:11} {:11.3} {:13.3} ms {:+6.1}% {:13.3} ms {:+6.1}%",
        line.network,
        line.threads,
        line.schedule,
        line.measured * 1e-6,
        line.by_ceilings * 1e-6,
        error(line.by_ceilings),
        line.by_profile * 1e-6,
        error(line.by_profile),
    );
}

fn record(around: &Value, ceilings: &Ceilings, lines: &[Line]) -> Value {
    let line = |line: &Line| {
        json!({
            "network": line.network,
            "threads": line.threads,
            "schedule": line.schedule.to_string(),
            "measured_ms": line.measured * 1e-6,
            "sim_by_ceilings_ms": line.by_ceilings * 1e-6,
            "sim_by_profile_ms": line.by_profile * 1e-6,
            "error_by_ceilings": line.by_ceilings / line.measured - 1.0,
            "error_by_profile": line.by_profile / line.measured - 1.0,
        })
    };
    json!({
        "experiment": "sim-check",
        "what": "milliseconds of an iteration on the CPU device, measured, and predicted by the simulated device (sim)",
        "gflops_of_a_thread": ceilings.flops,
        "gbytes_per_s_of_a_thread": ceilings.bytes,
        "surroundings": around,
        "lines": lines.iter().map(line).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_come_with_their_mini_batches() {
        assert_eq!(named_batch("lenet:64"), Ok(("lenet", 64)));
        for bad in ["lenet", "lenet:", "lenet:0", "lenet:-1"] {
            assert!(named_batch(bad).is_err_and(|message| message.contains(bad)), "{bad}");
        }
    }

    /// On one core, with times from a profile, nothing is left to chance: a prediction is the sum of the profile.
    #[test]
    fn one_thread_takes_what_its_profile_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/lenet/train_val.prototxt");
        let engine =
            Engine::new(&training(&path, 2).unwrap(), Schedule::Critical, 1, &Estimates::default()).unwrap();
        let nodes = engine.plan.nodes.iter().enumerate();
        let tasks = nodes.map(|(id, node)| (node.task, 10_000.0 * (id + 1) as f64)).collect();
        let profile = Profile { between: 0.0, tasks };
        let ceilings = Ceilings { flops: 100.0, bytes: 10.0, memory: vec![(1, 10.0)] };
        let predicted = predict(&engine, &ceilings.crew(1, 0.0), Some(&profile)).unwrap();
        let sum: f64 = profile.tasks.values().sum();
        // Every event is rounded up to a nanosecond.
        let grains = 64.0 * engine.plan.nodes.len() as f64;
        assert!(predicted >= sum - 1.0 && predicted <= sum + grains, "{predicted} for {sum}");
        assert_eq!(engine.step().unwrap().len(), engine.plan.nodes.len());
    }
}
