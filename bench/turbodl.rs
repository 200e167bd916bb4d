//! TurboDL: what several lanes gain over one, and priorities over none: Figures 7, 8, 9 and 11 of the paper, simulated and on the CPU.
//!
//! The paper's baseline, Caffe with cuDNN, runs layer by layer, with a synchronisation between layers. Here that is one lane, whose
//! host goes on as Caffe's does: nothing is added for synchronising, so `layerwise` is the faster of the two. `concurrent` is the paper's
//! "Asy", `critical` its "Asy + Cri". Simulated steps overlap in all three, since Caffe's host, too, waits for the loss and not for updates.
//!
//! Beside each simulated network stands what no schedule gains more than: by the longest chain of tasks that the host waits for, and by
//! all operations at the peak or all bytes at full bandwidth. As the machine files take arithmetic at the peak of the machine, little is
//! idle for a schedule to fill; the paper's kernels had a quarter of the warps that their GPU holds.

use std::path::{Path, PathBuf};
use std::time::Instant;

use quadrille_core::device::Scalars;
use quadrille_core::net::Net;
use quadrille_core::plan::priority::{Estimates, LaneLimits, SubTaskGraph};
use quadrille_core::plan::{Plan, PlanOptions, Schedule, Stage};
use quadrille_core::run::StepsAhead;
use quadrille_core::sim::{DeviceModel, Kernel, SimDevice};
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
    /// Machine files of the devices that are simulated; none if there is no name behind it
    #[arg(
        long,
        num_args = 0..,
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

/// Steps that are simulated of each.
const STEPS: usize = 6;
/// Bands of gradients where devices are simulated.
const BANDS: usize = 4;

/// Times of an iteration.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// In the order of [`Schedule::ALL`].
    schedules: [f64; 3],
    /// What no schedule goes below, where that is known.
    bound: Option<f64>,
    /// Steps of critical one by one over such that overlap, where both are measured.
    overlap: Option<f64>,
}

/// Milliseconds of an iteration of a network by each schedule.
#[derive(Clone, Debug)]
struct Line {
    network: String,
    batch: usize,
    /// In the order of [`Schedule::ALL`].
    ms: [f64; 3],
    /// What no schedule goes below.
    bound_ms: Option<f64>,
    /// What it gains that steps overlap.
    overlap: Option<f64>,
}

impl Line {
    /// Over layer by layer.
    fn speed_up(&self, schedule: Schedule) -> f64 {
        self.ms[0] / self.ms[Schedule::ALL.iter().position(|s| *s == schedule).unwrap_or(0)]
    }

    /// What no schedule gains more than.
    fn most(&self) -> Option<f64> {
        self.bound_ms.map(|bound| self.ms[0] / bound)
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
    /// The networks of Figure 7 that were run.
    fn figure_7(&self) -> impl Iterator<Item = &Line> {
        let counts = |line: &&Line| FIGURE_7.contains(&format!("{}:{}", line.network, line.batch).as_str());
        self.lines.iter().filter(counts)
    }

    /// The geometric mean over them.
    fn mean(&self, schedule: Schedule) -> f64 {
        geometric_mean(&self.figure_7().map(|line| line.speed_up(schedule)).collect::<Vec<_>>())
    }

    /// The same of what no schedule gains more than, where that is known.
    fn mean_at_most(&self) -> Option<f64> {
        let most: Option<Vec<f64>> = self.figure_7().map(Line::most).collect();
        most.filter(|most| !most.is_empty()).map(|most| geometric_mean(&most))
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
    times: impl Fn(&Net) -> Result<Times, String>,
    share: impl Fn(usize) -> usize,
) -> Result<Found, String> {
    println!("{label}{device}");
    println!(
        "{:12} {:>6} {:>12} {:>12} {:>9} {:>12} {:>9} {:>9} {:>9}",
        "network",
        "images",
        "layerwise ms",
        "concurrent",
        "speed-up",
        "critical",
        "speed-up",
        "at most",
        "overlap"
    );
    let mut found = Found { device, label, lines: Vec::new() };
    for network in networks {
        let (name, batch) = named_batch(network)?;
        let net = training(&Path::new("models").join(name).join("train_val.prototxt"), share(batch))?;
        let Times { schedules, bound, overlap } = times(&net)?;
        let (ms, bound_ms) = (schedules.map(|time| time * 1e-6), bound.map(|time| time * 1e-6));
        let line = Line { network: name.to_owned(), batch, ms, bound_ms, overlap };
        println!(
            "{name:12} {batch:6} {:12.3} {:12.3} {:9.3} {:12.3} {:9.3} {:>9} {:>9}",
            line.ms[0],
            line.ms[1],
            line.speed_up(Schedule::Concurrent),
            line.ms[2],
            line.speed_up(Schedule::Critical),
            line.most().map_or(String::new(), |most| format!("{most:.3}")),
            line.overlap.map_or(String::new(), |gain| format!("{gain:.3}")),
        );
        found.lines.push(line);
    }
    if found.figure_7().next().is_some() {
        let means = [Schedule::Concurrent, Schedule::Critical].map(|schedule| found.mean(schedule));
        println!(
            "{label}mean over the networks of Figure 7: concurrent {:.3}, critical {:.3}",
            means[0], means[1]
        );
    }
    if let Some(most) = found.mean_at_most() {
        println!("{label}no schedule gains more than {most:.3} in the mean");
    }
    for (depth, speed_up) in found.by_depth() {
        println!("{label}{depth}: critical {speed_up:.3}");
    }
    println!();
    Ok(found)
}

/// Nanoseconds of an iteration by each schedule, and the bound. A crew runs the net as trainings on the CPU have it, a GPU as the file
/// says. Paths are found by what tasks took layer by layer, as the paper does by one profiled iteration.
fn simulate(net: &Net, model: &DeviceModel) -> Result<Times, String> {
    let nets = [if model.crew { net.clone().fused() } else { net.clone() }];
    let mut found = Times::default();
    let mut estimates = Estimates::default();
    for (time, schedule) in found.schedules.iter_mut().zip(Schedule::ALL) {
        let options = PlanOptions { schedule, limits: lanes_of(model), ..PlanOptions::new(Stage::Iteration) };
        let plan = Plan::build_by(&nets, options, &estimates).map_err(|error| error.to_string())?;
        let devices = SimDevice::of_model(&nets, &[&plan], model);
        let mut steps = StepsAhead::new(plan.overlap(&nets));
        // The first has nothing before it; the others are like each other.
        let mut starts = Vec::new();
        for _ in 0..STEPS {
            steps.run(&devices, &plan, &Scalars::default(), || {}).map_err(|error| error.to_string())?;
            starts.extend(steps.ended().spans().iter().map(|span| span.start).min());
        }
        *time = (starts[STEPS - 2] - starts[1]) as f64 / (STEPS - 3) as f64;
        if schedule == Schedule::Layerwise {
            estimates = estimates.corrected(&plan, steps.ended().spans());
            found.bound = Some(bound(&nets, &plan, model));
        }
    }
    Ok(found)
}

/// Nanoseconds of an iteration that no schedule of a plan's tasks goes below: the longest chain of tasks that the host waits for,
/// each with the device to itself, and all work at what the device can do at most.
fn bound(nets: &[Net], plan: &Plan, model: &DeviceModel) -> f64 {
    let kernels: Vec<Kernel> = plan.nodes.iter().map(|node| model.kernel_of(nets, node)).collect();
    let mut times = vec![0.0; kernels.len()];
    for task in plan.overlap(nets).awaited {
        times[task.0] = model.alone(&kernels[task.0]);
    }
    let (_, chain) = SubTaskGraph::new(nets, &plan.nodes).critical_path(&times);
    chain.max(model.least(&kernels))
}

/// What a device has room for: on a GPU streams for all paths, and the priorities that it knows.
fn lanes_of(model: &DeviceModel) -> LaneLimits {
    let lanes = model.limits.kernels as usize;
    match model.crew {
        true => LaneLimits { lanes, bands: BANDS, ..LaneLimits::default() },
        false => LaneLimits {
            lanes,
            activation_lanes: lanes,
            gradient_lanes: lanes,
            bands: BANDS,
            priorities: model.levels.into(),
            ..LaneLimits::default()
        },
    }
}

/// The same on the CPU: medians of runs in turn.
fn measure(net: &Net, args: &Args) -> Result<Times, String> {
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
    let schedules = std::array::from_fn(|schedule| median(&times[schedule]));
    Ok(Times { schedules, bound: None, overlap: Some(overlap(&engines[2], args.repeat)?) })
}

/// The time of some steps one by one over that of as many that overlap: the median of pairs.
fn overlap(engine: &Engine, pairs: usize) -> Result<f64, String> {
    let apart = || (0..STEPS).try_for_each(|_| engine.step().map(drop));
    let together = || engine.steps_ahead(STEPS, |_| {});
    let time = |steps: &dyn Fn() -> Result<(), String>| {
        let start = Instant::now();
        steps().map(|()| start.elapsed().as_secs_f64())
    };
    let mut ratios = Vec::new();
    for pair in 0..pairs.div_ceil(STEPS).max(3) {
        let (one, two) = match pair % 2 {
            0 => (time(&apart)?, time(&together)?),
            _ => {
                let two = time(&together)?;
                (time(&apart)?, two)
            }
        };
        ratios.push(one / two);
    }
    Ok(median(&ratios))
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
            "bound_ms": line.bound_ms,
            "speed_up_at_most": line.most(),
            "speed_up_of_critical_by_overlapping_steps": line.overlap,
        })
    };
    let device = |found: &Found| {
        json!({
            "device": found.device,
            "clock": if found.label.is_empty() { "real" } else { "sim" },
            "networks": found.lines.iter().map(line).collect::<Vec<_>>(),
            "mean_concurrent": found.mean(Schedule::Concurrent),
            "mean_critical": found.mean(Schedule::Critical),
            "mean_at_most": found.mean_at_most(),
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
        Line { network: network.to_owned(), batch, ms, bound_ms: None, overlap: None }
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
        assert_eq!(found.mean_at_most(), None);
        let bounded = |line: &Line| Line { bound_ms: Some(line.ms[2] / 2.0), ..line.clone() };
        let found = Found { lines: found.lines.iter().map(bounded).collect(), ..found };
        assert!((found.mean_at_most().unwrap() - 4.0).abs() < 1e-12);
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
        let Times { schedules: times, bound, .. } = simulate(&net, &free).unwrap();
        assert!(bound.unwrap() > 0.9 * times[0], "{bound:?} {times:?}");
        assert!(times.iter().all(|time| (time / times[0] - 1.0).abs() < 0.01), "{times:?}");
        let Times { schedules: quadrant, bound, .. } = simulate(&net, &free.with_units(17)).unwrap();
        assert!(quadrant.iter().all(|time| *time > bound.unwrap()), "{quadrant:?} {bound:?}");
        assert!(quadrant.iter().zip(times).all(|(many, one)| *many < one), "{quadrant:?} {times:?}");
    }
}
