//! TurboDL: what several lanes gain over one, and priorities over none: Figures 7, 8, 9 and 11 of the paper, simulated and on the CPU.
//!
//! The paper's baseline, Caffe with cuDNN, runs layer by layer: here that is one lane. `concurrent` is its "Asy", `critical` its "Asy +
//! Cri".

use std::path::{Path, PathBuf};

use quadrille_core::device::Scalars;
use quadrille_core::net::Net;
use quadrille_core::plan::priority::{Estimates, LaneLimits};
use quadrille_core::plan::{Plan, PlanOptions, Schedule, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::sim::{DeviceModel, SimDevice};
use quadrille_io::prototxt::read_machine;
use serde_json::{Value, json};

use crate::engine::{Engine, elapsed};
use crate::nets::training;
use crate::plot::{self, Bars, Curve, Curves};
use crate::record::{geometric_mean, median, surroundings, write};
use crate::sim_check::named_batch;

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Machine files of the devices that are simulated
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "bench/machines/knl-quadrant.prototxt,bench/machines/p100.prototxt",
        value_name = "FILES"
    )]
    machines: Vec<PathBuf>,
    /// Networks with the mini-batches of a worker [default: those of the paper]
    #[arg(long, value_delimiter = ',', value_name = "NAME:N")]
    networks: Vec<String>,
    /// Measure these on the CPU, too
    #[arg(long, value_delimiter = ',', value_name = "NAME:N")]
    cpu: Vec<String>,
    /// Threads on the CPU
    #[arg(long, default_value_t = 2, value_name = "N")]
    threads: usize,
    /// How often each schedule is measured on the CPU, in turn; the medians count
    #[arg(long, default_value_t = 9, value_name = "N")]
    repeat: usize,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Where to draw: the first device's
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Figure 7: the networks of the paper with their mini-batches. Means are over these.
const FIGURE_7: [&str; 6] =
    ["lenet:64", "caffenet:256", "alexnet:128", "vgg16:100", "googlenet:32", "resnet50:32"];
/// Figure 8: larger mini-batches.
const FIGURE_8: [&str; 11] = [
    "lenet:128",
    "lenet:256",
    "caffenet:512",
    "alexnet:256",
    "alexnet:512",
    "vgg16:200",
    "vgg16:400",
    "googlenet:64",
    "googlenet:128",
    "resnet50:64",
    "resnet50:128",
];
/// Figure 9: depth.
const FIGURE_9: [&str; 4] = ["resnet18:32", "resnet34:32", "resnet101:28", "resnet152:18"];
/// Depths in their order.
const DEPTHS: [&str; 5] = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"];
/// Quadrants that share a worker's mini-batch where the device is one of them, as on a Knights Landing in SNC-4.
const QUADRANTS: usize = 4;

/// Milliseconds of an iteration of a network by each schedule.
#[derive(Clone, Debug)]
struct Line {
    network: String,
    batch: usize,
    /// In the order of [`Schedule::ALL`].
    ms: [f64; 3],
}

impl Line {
    /// Over layer by layer.
    fn speed_up(&self, schedule: Schedule) -> f64 {
        self.ms[0] / self.ms[Schedule::ALL.iter().position(|s| *s == schedule).unwrap_or(0)]
    }
}

/// What was found on one device.
struct Found {
    device: String,
    /// `sim: ` or nothing.
    label: &'static str,
    lines: Vec<Line>,
}

impl Found {
    /// The geometric mean over the networks of Figure 7 that were run.
    fn mean(&self, schedule: Schedule) -> f64 {
        let counts = |line: &&Line| FIGURE_7.contains(&format!("{}:{}", line.network, line.batch).as_str());
        let chosen: Vec<f64> = self.lines.iter().filter(counts).map(|l| l.speed_up(schedule)).collect();
        geometric_mean(&chosen)
    }

    /// Critical over layer by layer of the ResNets of Figures 7 and 9, by depth.
    fn by_depth(&self) -> Vec<(&'static str, f64)> {
        let figure = |line: &&Line| {
            let name = format!("{}:{}", line.network, line.batch);
            FIGURE_7.contains(&name.as_str()) || FIGURE_9.contains(&name.as_str())
        };
        let of = |depth: &'static str| {
            let line = self.lines.iter().filter(figure).find(|line| line.network == depth)?;
            Some((depth, line.speed_up(Schedule::Critical)))
        };
        DEPTHS.into_iter().filter_map(of).collect()
    }
}

/// Runs all networks by all schedules on all devices, prints the tables, and writes record and plot.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let default = || FIGURE_7.into_iter().chain(FIGURE_8).chain(FIGURE_9).map(str::to_owned).collect();
    let networks: Vec<String> = if args.networks.is_empty() { default() } else { args.networks.clone() };
    let mut all = Vec::new();
    for path in &args.machines {
        let machine = read_machine(path).map_err(|error| error.to_string())?;
        let model = machine.device.ok_or_else(|| {
            format!(
                "{}: device: missing; expected what lanes share, the message device {{ ... }}",
                path.display()
            )
        })?;
        all.push(try_all(
            machine.name,
            "sim: ",
            &networks,
            |net| simulate(net, &model),
            |batch| {
                if model.crew { batch.div_ceil(QUADRANTS) } else { batch }
            },
        )?);
    }
    if !args.cpu.is_empty() {
        let name = format!("{}, {} threads", around["machine"].as_str().unwrap_or("CPU"), args.threads);
        all.push(try_all(name, "", &args.cpu, |net| measure(net, args), |batch| batch)?);
    }
    if let Some(path) = &args.record {
        write(path, &record(&around, &all))?;
    }
    match (&args.plot, all.first()) {
        (Some(path), Some(found)) => draw(path, found),
        _ => Ok(()),
    }
}

fn try_all(
    device: String,
    label: &'static str,
    networks: &[String],
    times: impl Fn(&Net) -> Result<[f64; 3], String>,
    share: impl Fn(usize) -> usize,
) -> Result<Found, String> {
    println!("{label}{device}");
    println!(
        "{:12} {:>6} {:>12} {:>12} {:>9} {:>12} {:>9}",
        "network", "images", "layerwise ms", "concurrent", "speed-up", "critical", "speed-up"
    );
    let mut found = Found { device, label, lines: Vec::new() };
    for network in networks {
        let (name, batch) = named_batch(network)?;
        let net = training(&Path::new("models").join(name).join("train_val.prototxt"), share(batch))?;
        let line = Line { network: name.to_owned(), batch, ms: times(&net)?.map(|time| time * 1e-6) };
        println!(
            "{name:12} {batch:6} {:12.3} {:12.3} {:9.3} {:12.3} {:9.3}",
            line.ms[0],
            line.ms[1],
            line.speed_up(Schedule::Concurrent),
            line.ms[2],
            line.speed_up(Schedule::Critical),
        );
        found.lines.push(line);
    }
    let means = [Schedule::Concurrent, Schedule::Critical].map(|schedule| found.mean(schedule));
    println!(
        "{label}mean over the networks of Figure 7: concurrent {:.3}, critical {:.3}",
        means[0], means[1]
    );
    for (depth, speed_up) in found.by_depth() {
        println!("{label}{depth}: critical {speed_up:.3}");
    }
    println!();
    Ok(found)
}

/// Nanoseconds of an iteration by each schedule. A crew runs the net as trainings on the CPU have it, a GPU as the file says. Paths
/// are found by what tasks took layer by layer, as the paper does by one profiled iteration.
fn simulate(net: &Net, model: &DeviceModel) -> Result<[f64; 3], String> {
    let nets = [if model.crew { net.clone().fused() } else { net.clone() }];
    let mut found = [0.0; 3];
    let mut estimates = Estimates::default();
    for (time, schedule) in found.iter_mut().zip(Schedule::ALL) {
        let options = PlanOptions { schedule, limits: lanes_of(model), ..PlanOptions::new(Stage::Iteration) };
        let plan = Plan::build_by(&nets, options, &estimates).map_err(|error| error.to_string())?;
        let devices = SimDevice::of_model(&nets, &[&plan], model);
        let mut times = StepTimes::default();
        run_step(&devices, &plan, &Scalars::default(), &mut times).map_err(|error| error.to_string())?;
        *time = times.elapsed() as f64;
        if schedule == Schedule::Layerwise {
            estimates = estimates.corrected(&plan, times.spans());
        }
    }
    Ok(found)
}

/// What a device has room for: on a GPU streams for all paths, and the priorities that it knows.
fn lanes_of(model: &DeviceModel) -> LaneLimits {
    let lanes = model.limits.kernels as usize;
    match model.crew {
        true => LaneLimits::default(),
        false => LaneLimits {
            lanes,
            gradient_lanes: lanes,
            priorities: model.levels.into(),
            ..LaneLimits::default()
        },
    }
}

/// The same on the CPU: medians of runs in turn.
fn measure(net: &Net, args: &Args) -> Result<[f64; 3], String> {
    let first = Engine::new(net, Schedule::Layerwise, args.threads, &Estimates::default())?;
    first.step()?;
    let estimates = Estimates::default().corrected(&first.plan, &first.step()?);
    let mut engines = vec![first];
    for schedule in [Schedule::Concurrent, Schedule::Critical] {
        engines.push(Engine::new(net, schedule, args.threads, &estimates)?);
    }
    let mut times = vec![Vec::new(); engines.len()];
    for round in 0..=args.repeat.max(1) {
        for (engine, times) in engines.iter().zip(&mut times) {
            let spans = engine.step()?;
            if round > 0 {
                times.push(elapsed(&spans));
            }
        }
    }
    Ok(std::array::from_fn(|schedule| median(&times[schedule])))
}

fn record(around: &Value, all: &[Found]) -> Value {
    let line = |line: &Line| {
        json!({
            "network": line.network,
            "images": line.batch,
            "layerwise_ms": line.ms[0],
            "concurrent_ms": line.ms[1],
            "critical_ms": line.ms[2],
            "speed_up_concurrent": line.speed_up(Schedule::Concurrent),
            "speed_up_critical": line.speed_up(Schedule::Critical),
        })
    };
    let device = |found: &Found| {
        json!({
            "device": found.device,
            "clock": if found.label.is_empty() { "real" } else { "sim" },
            "networks": found.lines.iter().map(line).collect::<Vec<_>>(),
            "mean_concurrent": found.mean(Schedule::Concurrent),
            "mean_critical": found.mean(Schedule::Critical),
            "critical_by_depth": found.by_depth().into_iter().map(|(n, s)| json!([n, s])).collect::<Vec<_>>(),
        })
    };
    json!({
        "experiment": "turbodl",
        "what": "milliseconds of an iteration layer by layer, with concurrent lanes, and with priorities (TurboDL, Figures 7, 8, 9, 11)",
        "surroundings": around,
        "devices": all.iter().map(device).collect::<Vec<_>>(),
    })
}

/// Figure 8 as curves, and Figure 7 as bars.
fn draw(path: &Path, found: &Found) -> Result<(), String> {
    let mut names: Vec<&str> = found.lines.iter().map(|line| line.network.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let curve = |name: &&str| {
        let mut points: Vec<(f64, f64)> = found
            .lines
            .iter()
            .filter(|line| line.network == *name)
            .map(|line| (line.batch as f64, line.speed_up(Schedule::Critical)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve { name: (*name).to_owned(), points }
    };
    let curves = Curves {
        title: format!("{}{}: critical over layer by layer", found.label, found.device),
        axes: ["images".to_owned(), "speed-up".to_owned()],
        curves: names.iter().map(curve).filter(|curve| curve.points.len() > 1).collect(),
        level: Some(1.0),
    };
    let shown =
        found.lines.iter().filter(|l| FIGURE_7.contains(&format!("{}:{}", l.network, l.batch).as_str()));
    let bars = Bars {
        title: format!("{}speed-up of critical", found.label),
        axes: ["network".to_owned(), "speed-up".to_owned()],
        bars: shown.map(|line| (line.network.clone(), Some(line.speed_up(Schedule::Critical)))).collect(),
    };
    plot::write(path, &curves, &bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(network: &str, batch: usize, ms: [f64; 3]) -> Line {
        Line { network: network.to_owned(), batch, ms }
    }

    #[test]
    fn means_are_over_the_paper_s_networks_and_depths_in_order() {
        let lines = vec![
            line("resnet50", 32, [8.0, 4.0, 2.0]),
            line("lenet", 64, [1.0, 1.0, 1.0]),
            line("lenet", 256, [9.0, 1.0, 1.0]),
            line("resnet18", 32, [3.0, 3.0, 2.0]),
        ];
        let found = Found { device: "d".into(), label: "sim: ", lines };
        assert!((found.mean(Schedule::Critical) - 2.0).abs() < 1e-12);
        assert!((found.mean(Schedule::Concurrent) - 2.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(found.by_depth(), [("resnet18", 1.5), ("resnet50", 4.0)]);
    }

    /// On one core there is nothing to gain, and nothing is lost.
    #[test]
    fn schedules_do_the_same_work() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let net = training(&root.join("../models/lenet/train_val.prototxt"), 4).unwrap();
        let machine = read_machine(&root.join("machines/knl-quadrant.prototxt")).unwrap();
        let model = machine.device.expect("a device").with_units(1);
        let free = DeviceModel { start: 0.0, wait: 0.0, ..model };
        let times = simulate(&net, &free).unwrap();
        assert!(times.iter().all(|time| (time / times[0] - 1.0).abs() < 0.01), "{times:?}");
        let quadrant = simulate(&net, &free.with_units(17)).unwrap();
        assert!(quadrant.iter().zip(times).all(|(many, one)| *many < one), "{quadrant:?} {times:?}");
    }
}
