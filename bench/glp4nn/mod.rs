//! GLP4NN: what running the kernels of several images at once gains, layer by layer of Table 5, on the CPU and simulated: Figures 2,
//! 4, 7 and 8 and Table 6 of the paper.
//!
//! As in the paper only forward is measured. The number of lanes that the analyzer chooses is held against the best of all.

mod layers;
mod measured;
mod simulated;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quadrille_core::layer::SubTask;
use quadrille_core::plan::lanes::{KernelUsage, Limits, Maintainer, Scheduler, Situation};
use quadrille_core::sim::{DeviceModel, Kernel};
use quadrille_cpu::CrewSpec;
use quadrille_io::prototxt::read_machine;
use serde_json::{Value, json};

use crate::plot::{self, Bars, Curve, Curves};
use crate::record::{surroundings, write};
use crate::shapes::ConvolutionShape;
use layers::{NETWORKS, caffe_kernels, crew_kernels, table_5};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Machine files of the devices that are simulated
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "bench/machines/p100.prototxt,bench/machines/k40c.prototxt,bench/machines/knl-quadrant.prototxt",
        value_name = "FILES"
    )]
    machines: Vec<PathBuf>,
    /// Measure on the CPU, too
    #[arg(long)]
    cpu: bool,
    /// Threads on the CPU [default: all]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// How often each is measured on the CPU; the medians count
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeat: usize,
    /// Only layers whose name begins so, such as CaffeNet/
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// At most so many images of a mini-batch
    #[arg(long, value_name = "N")]
    images: Option<usize>,
    /// Most lanes that are tried, if the device has as many
    #[arg(long, default_value_t = 32, value_name = "N")]
    lanes: u32,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Where to draw: the first device's
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// How near to the best a choice has to be.
const NEAR: f64 = 1.05;
/// What an analysis may take at most; a network's are to take 150 ms together.
const LIMIT: Duration = Duration::from_millis(100);
/// Lanes that are tried on the CPU.
const CPU_LANES: u32 = 8;
/// What submitting a task to a crew takes the host, somewhat more than measured.
const PUSH_NS: f64 = 1_000.0;

/// A device on which layers are tried.
enum Bench {
    Simulated(DeviceModel),
    Cpu { crew: CrewSpec, limits: Limits, repeat: usize },
}

impl Bench {
    fn limits(&self) -> Limits {
        match self {
            Self::Simulated(model) => model.limits,
            Self::Cpu { limits, .. } => *limits,
        }
    }

    /// What is simulated is labelled so, everywhere.
    fn label(&self) -> &'static str {
        if matches!(self, Self::Simulated(_)) { "sim: " } else { "" }
    }

    /// Nanoseconds with so many lanes, and what the resource tracker sees.
    fn run(&self, shape: &ConvolutionShape, lanes: u32) -> Result<(f64, Vec<KernelUsage>), String> {
        match self {
            Self::Simulated(model) => {
                let kernels = kernels(shape, model);
                let time = simulated::nanoseconds(&kernels, shape.input[0], lanes, model)?;
                Ok((time, kernels.iter().map(|(name, kernel)| model.usage(name, kernel)).collect()))
            }
            Self::Cpu { crew, repeat, .. } => {
                let measured = measured::measure(shape, shape.input[0], lanes, crew, *repeat)?;
                Ok((measured.nanoseconds, vec![measured.usage]))
            }
        }
    }
}

/// Of a crew the engine's task; of a GPU the kernels of Caffe.
fn kernels(shape: &ConvolutionShape, model: &DeviceModel) -> Vec<(&'static str, Kernel)> {
    if model.crew { crew_kernels(shape, model) } else { caffe_kernels(shape, model) }
}

/// A layer on a device.
struct Line {
    name: String,
    /// Milliseconds with 1, 2, ... lanes.
    ms: Vec<f64>,
    /// What the analyzer chose.
    lanes: u32,
    /// Milliseconds of the analysis.
    analysis: f64,
}

impl Line {
    fn best(&self) -> usize {
        (0..self.ms.len()).min_by(|a, b| self.ms[*a].total_cmp(&self.ms[*b])).unwrap_or(0)
    }

    fn chosen_ms(&self) -> f64 {
        self.ms[(self.lanes as usize).clamp(1, self.ms.len()) - 1]
    }

    fn is_near(&self) -> bool {
        self.chosen_ms() <= NEAR * self.ms[self.best()]
    }

    fn speed_up(&self) -> f64 {
        self.ms[0] / self.chosen_ms()
    }
}

/// Tries all layers on all devices, prints the tables, and writes record and plot.
pub fn run(args: &Args) -> Result<(), String> {
    let mut shapes = table_5();
    shapes.retain(|shape| args.filter.as_ref().is_none_or(|part| shape.name.starts_with(part.as_str())));
    for shape in &mut shapes {
        shape.input[0] = shape.input[0].min(args.images.unwrap_or(usize::MAX)).max(1);
    }
    if shapes.is_empty() {
        return Err("no layer of Table 5 whose name begins as --filter says".to_owned());
    }
    let around = surroundings();
    let mut devices = Vec::new();
    for (name, bench) in benches(args)? {
        let lines = try_all(&name, &bench, &shapes, args.lanes)?;
        devices.push((name, bench.label(), lines));
    }
    if let Some(path) = &args.record {
        write(path, &record(args, &around, &devices))?;
    }
    match (&args.plot, devices.first()) {
        (Some(path), Some((name, label, lines))) => draw(path, &format!("{label}{name}"), lines),
        _ => Ok(()),
    }
}

fn benches(args: &Args) -> Result<Vec<(String, Bench)>, String> {
    let mut benches = Vec::new();
    for path in &args.machines {
        let machine = read_machine(path).map_err(|error| error.to_string())?;
        let model = machine.device.ok_or_else(|| {
            format!(
                "{}: device: missing; expected what lanes share, the message device {{ ... }}",
                path.display()
            )
        })?;
        benches.push((machine.name, Bench::Simulated(model)));
    }
    if args.cpu {
        let crew = crate::kernels::crew(args.threads)?;
        let machine = quadrille_numa::detect().map_err(|error| error.to_string())?;
        let second = machine.caches.iter().find(|cache| cache.level == 2);
        let limits = Limits {
            units: crew.cpus.len() as u32,
            blocks: 1,
            threads: 1,
            registers: 0,
            shared: second.map_or(1 << 20, |cache| cache.bytes),
            kernels: CPU_LANES,
            launch: PUSH_NS,
        };
        let name = format!("{}, {} threads", machine.model, crew.cpus.len());
        benches.push((name, Bench::Cpu { crew, limits, repeat: args.repeat }));
    }
    Ok(benches)
}

fn try_all(name: &str, bench: &Bench, shapes: &[ConvolutionShape], most: u32) -> Result<Vec<Line>, String> {
    let (label, limits) = (bench.label(), bench.limits());
    println!("{label}{name}");
    println!(
        "{:18} {:>6} {:>10} {:>6} {:>8} {:>6} {:>8} {:>8} {:>9}",
        "layer", "images", "ms alone", "lanes", "speed-up", "best", "speed-up", "of best", "analysis"
    );
    let mut scheduler = Scheduler::new(limits, Maintainer::default());
    let mut lines = Vec::new();
    for shape in shapes {
        let (alone, usage) = bench.run(shape, 1)?;
        let situation = Situation {
            device: name.to_owned(),
            network: shape.name.split('/').next().unwrap_or_default().to_owned(),
            layer: shape.name.clone(),
            sub: SubTask::Forward,
            shape: shape.input.to_vec(),
        };
        let start = Instant::now();
        let lanes = scheduler.profiled(situation, &usage, LIMIT).map_err(|error| error.to_string())?;
        let analysis = start.elapsed().as_secs_f64() * 1e3;
        let mut ms = vec![alone * 1e-6];
        for lanes in 2..=most.min(limits.kernels).max(lanes) {
            ms.push(bench.run(shape, lanes)?.0 * 1e-6);
        }
        let line = Line { name: shape.name.clone(), ms, lanes, analysis };
        print(&line, shape.input[0]);
        lines.push(line);
    }
    let near = lines.iter().filter(|line| line.is_near()).count();
    let share = 100.0 * near as f64 / lines.len() as f64;
    println!("{label}within 5 % of the best: {near} of {} layers, {share:.0} %", lines.len());
    for (network, ms) in analyses(&lines) {
        println!("analysis of {network}: {ms:.3} ms");
    }
    println!();
    Ok(lines)
}

fn print(line: &Line, images: usize) {
    let best = line.best();
    println!(
        "{:18} {images:6} {:10.3} {:6} {:8.2} {:6} {:8.2} {:7.1}% {:6.3} ms",
        line.name,
        line.ms[0],
        line.lanes,
        line.speed_up(),
        best + 1,
        line.ms[0] / line.ms[best],
        100.0 * line.ms[best] / line.chosen_ms(),
        line.analysis,
    );
}

/// Table 6: milliseconds of the analyses of each network.
fn analyses(lines: &[Line]) -> Vec<(&'static str, f64)> {
    let of = |network: &'static str| {
        let mine = lines.iter().filter(|line| line.name.split('/').next() == Some(network));
        (network, mine.map(|line| line.analysis).sum())
    };
    NETWORKS.map(of).into_iter().filter(|(_, ms)| *ms > 0.0).collect()
}

fn record(args: &Args, around: &Value, devices: &[(String, &str, Vec<Line>)]) -> Value {
    let layer = |line: &Line| {
        json!({
            "layer": line.name,
            "milliseconds_by_lanes": line.ms,
            "lanes_chosen": line.lanes,
            "speed_up": line.speed_up(),
            "lanes_best": line.best() + 1,
            "speed_up_best": line.ms[0] / line.ms[line.best()],
            "within_5_percent": line.is_near(),
            "analysis_ms": line.analysis,
        })
    };
    let device = |(name, label, lines): &(String, &str, Vec<Line>)| {
        json!({
            "device": name,
            "clock": if label.is_empty() { "real" } else { "sim" },
            "layers": lines.iter().map(layer).collect::<Vec<_>>(),
            "analysis_ms": analyses(lines).into_iter().map(|(n, ms)| json!({"network": n, "ms": ms})).collect::<Vec<_>>(),
            "share_within_5_percent":
                lines.iter().filter(|line| line.is_near()).count() as f64 / lines.len() as f64,
        })
    };
    json!({
        "experiment": "glp4nn",
        "what": "milliseconds of forward of a layer, image by image, by the number of lanes; the analyzer's choice beside the \
                 best (GLP4NN, Figures 2, 4, 7, 8 and Table 6)",
        "images_at_most": args.images,
        "surroundings": around,
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
    })
}

/// Figure 2 with Figure 4 in it, and Figure 7.
fn draw(path: &Path, device: &str, lines: &[Line]) -> Result<(), String> {
    let curve = |line: &Line| Curve {
        name: line.name.clone(),
        points: line.ms.iter().enumerate().map(|(at, ms)| (at as f64 + 1.0, line.ms[0] / ms)).collect(),
    };
    let shown = |line: &&Line| line.name.starts_with("CaffeNet/") || lines.len() <= 6;
    let curves = Curves {
        title: format!("{device}: speed-up by lanes"),
        axes: ["lanes".to_owned(), "speed-up over one lane".to_owned()],
        curves: lines.iter().filter(shown).map(curve).collect(),
        level: Some(1.0),
    };
    let bars = Bars {
        title: format!("{device}: speed-up with the lanes chosen"),
        axes: ["layer".to_owned(), "speed-up".to_owned()],
        bars: lines.iter().map(|line| (line.name.clone(), Some(line.speed_up()))).collect(),
    };
    plot::write(path, &curves, &bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_held_against_the_best_of_all() {
        let line =
            |lanes, ms: &[f64]| Line { name: "CaffeNet/conv1".into(), ms: ms.to_vec(), lanes, analysis: 2.0 };
        let good = line(2, &[8.0, 4.1, 4.0, 4.5]);
        assert_eq!((good.best(), good.is_near()), (2, true));
        assert!((good.speed_up() - 8.0 / 4.1).abs() < 1e-12);
        assert!(!line(4, &[8.0, 4.1, 4.0, 4.5]).is_near() && !line(1, &[8.0, 4.1]).is_near());
        assert_eq!(analyses(&[good, line(1, &[1.0])]), [("CaffeNet", 4.0)]);
    }

    #[test]
    fn several_lanes_help_where_one_image_leaves_units_idle() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for machine in ["p100", "k40c", "h100", "knl-quadrant"] {
            let path = root.join(format!("machines/{machine}.prototxt"));
            let model = read_machine(&path).expect(machine).device.expect("a device");
            let bench = Bench::Simulated(model);
            let shape = table_5().into_iter().find(|s| s.name == "GoogLeNet/conv_1").expect("it is there");
            let time = |lanes| bench.run(&shape, lanes).expect("a time").0;
            let (one, four) = (time(1), time(4));
            // Four lanes hide at most as much as four times, and waits between lanes cost something.
            assert!(four < 1.01 * one && one < 4.0 * four, "{machine}: {one} {four}");
        }
    }
}
