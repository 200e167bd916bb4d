//! `quadrille time`: what every layer costs.

use std::path::Path;
use std::time::Instant;

use quadrille_core::device::{Packed, Region, Scalars};
use quadrille_core::layer::{Layer, SubTask};
use quadrille_core::net::{LayerId, Net, NetSpec, NetState, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::SgdRule;
use quadrille_core::task::Tile;
use quadrille_cpu::isa::Isa;
use quadrille_cpu::kernel::peak::fused_multiply_adds;
use quadrille_cpu::{Choice, CpuWorker, EngineOptions, Program};
use quadrille_io::data::{SearchPath, open};
use serde_json::{Value, json};

use crate::bundled;

use crate::cli::TimeArgs;
use crate::failure::{Code, Failure};
use crate::job::{Crews, crews, load_net};
use crate::pass::Pass;

/// Iterations that are run before the clock counts.
const WARM_UP: u64 = 5;
/// Milliseconds of one layer and one sub-task.
struct Row {
    layer: LayerId,
    sub: SubTask,
    /// Of each iteration, over the devices the longest.
    samples: Vec<f64>,
}

/// Measures.
pub fn run(args: &TimeArgs) -> Result<(), Failure> {
    let (spec, file) = load_net(args.model.as_deref(), None)?;
    let spec = with_samples(spec, &file)?;
    let (spec, batch) = with_batch(spec, args.batch)?;
    let machine = crews(&args.machine, 1, batch)?;
    let nets = cut(&spec, batch, machine.workers[0].len())?;
    let nets = if args.machine.no_fusion { nets } else { nets.into_iter().map(Net::fused).collect() };
    let options = PlanOptions { stage: Stage::Iteration, elastic: false, chunk_layers: 1 };
    let plan = Plan::build(&nets, options).map_err(|e| Failure::new(Code::Bug, e.to_string()))?;
    let engine = EngineOptions {
        isa: machine.isa,
        kernels: args.machine.kernels.clone(),
        rule: SgdRule { momentum: 0.9, weight_decay: 5e-4, ..SgdRule::default() },
        elastic: false,
        spin: machine.exclusive,
    };
    let worker = CpuWorker::new(&machine.workers[0], &[Program { nets: &nets, plans: &[&plan] }], &engine)?;
    let pass = Pass::new(nets, worker.devices(0));
    fill(&pass)?;
    let (rows, iterations) = measure(&pass, &plan, args.iterations.max(1))?;
    let threads: usize = machine.workers[0].iter().map(|c| c.cpus.len()).sum();
    let peak = measured_peak(Isa::detect(), threads);
    let report =
        Report { pass: &pass, rows: &rows, iterations: &iterations, peak, threads, machine: &machine };
    if args.json {
        say!("{}", report.to_json(worker.choices()));
    } else {
        report.print(worker.choices());
    }
    Ok(())
}

/// Takes the shape of the samples from the data set. What is in it is not used: the data is made up.
fn with_samples(mut spec: NetSpec, file: &Path) -> Result<NetSpec, Failure> {
    let state = NetState::new(Phase::Train);
    for layer in spec.layers.iter_mut().filter(|l| l.belongs(&state)) {
        if let Layer::Data(data) = &mut layer.layer {
            let search = SearchPath::usual(file, bundled::repository().as_deref());
            data.sample = Some(open(&data.source, None, Phase::Train, &search)?.shape);
        }
    }
    Ok(spec)
}

/// Gives every source `batch` images, if that is asked for; returns the batch.
fn with_batch(mut spec: NetSpec, batch: Option<usize>) -> Result<(NetSpec, usize), Failure> {
    let state = NetState::new(Phase::Train);
    let mut found = None;
    for layer in spec.layers.iter_mut().filter(|l| l.belongs(&state)) {
        match &mut layer.layer {
            Layer::Data(data) => {
                data.batch = batch.unwrap_or(data.batch);
                found = found.or(Some(data.batch));
            }
            Layer::Input(input) => {
                for shape in input.shapes.iter_mut().filter(|s| !s.is_empty()) {
                    shape[0] = batch.unwrap_or(shape[0]);
                    found = found.or(Some(shape[0]));
                }
            }
            _ => {}
        }
    }
    Net::build(&spec, &state, 1.0)?;
    // A network without any source does not get past its building.
    Ok((spec, found.unwrap_or(1)))
}

fn cut(spec: &NetSpec, batch: usize, quadrants: usize) -> Result<Vec<Net>, Failure> {
    let net_of = |tile: Tile| {
        let (spec, _) = with_batch(spec.clone(), Some(tile.images))?;
        Ok(Net::build(&spec, &NetState::new(Phase::Train), tile.images as f32 / batch as f32)?)
    };
    Tile::cut(batch, quadrants).into_iter().map(net_of).collect()
}

/// Weights from their fillers, data from a stream, labels all 0 (every net has a class 0).
fn fill(pass: &Pass) -> Result<(), Failure> {
    let net = &pass.nets[0];
    let mut weights = vec![0.0; net.params.len()];
    net.params.fill(1, &mut weights);
    pass.write_all(Region::Packed(Packed::Weights), &weights)?;
    let stream = Stream::new(1, Purpose::Dummy, 0);
    let data = net.layers.iter().find(|l| l.layer.is_source()).map(|l| net.blob(l.tops[0]).shape.per_image());
    let count = data.unwrap_or(0) * pass.batch();
    let data: Vec<f32> = (0..count as u64).map(|i| stream.uniform(i)).collect();
    pass.load(&data, &vec![0.0; pass.batch()])
}

fn measure(pass: &Pass, plan: &Plan, iterations: u64) -> Result<(Vec<Row>, Vec<f64>), Failure> {
    let mut rows: Vec<Row> = Vec::new();
    let mut wholes = Vec::new();
    let mut times = StepTimes::default();
    // So small a rate that the weights stay as they are.
    let scalars = Scalars { iteration: 0, rate: 1e-6, elastic: 0.0 };
    for iteration in 0..WARM_UP + iterations {
        let start = Instant::now();
        run_step(&pass.devices, plan, &scalars, &mut times)?;
        let whole = start.elapsed().as_secs_f64() * 1e3;
        if iteration < WARM_UP {
            continue;
        }
        wholes.push(whole);
        for (node, span) in plan.nodes.iter().zip(times.spans()) {
            let key = (node.task.layer, node.task.sub);
            let known = rows.iter().position(|r| (r.layer, r.sub) == key);
            let index = known.unwrap_or_else(|| {
                rows.push(Row { layer: key.0, sub: key.1, samples: Vec::new() });
                rows.len() - 1
            });
            let samples = &mut rows[index].samples;
            samples.resize(wholes.len(), 0.0);
            let last = samples.len() - 1;
            samples[last] = samples[last].max((span.end - span.start) as f64 * 1e-6);
        }
    }
    Ok((rows, wholes))
}

/// GFLOP/s of fused multiply-adds on as many threads as the quadrants have.
fn measured_peak(isa: Isa, threads: usize) -> f64 {
    const ROUNDS: usize = 2_000_000;
    let best = (0..3).map(|_| {
        let start = Instant::now();
        let done: u64 = std::thread::scope(|scope| {
            let run = || {
                let mut sink = 1e-9;
                let flops = fused_multiply_adds(isa, ROUNDS, &mut sink);
                std::hint::black_box(sink);
                flops
            };
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            handles.into_iter().map(|h| h.join().unwrap_or(0)).sum()
        });
        done as f64 / start.elapsed().as_secs_f64() * 1e-9
    });
    best.fold(0.0, f64::max)
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

struct Report<'a> {
    pass: &'a Pass,
    rows: &'a [Row],
    iterations: &'a [f64],
    peak: f64,
    threads: usize,
    machine: &'a Crews,
}

/// What one layer took: milliseconds forward and backward, and its operations.
struct LayerTime {
    forward: f64,
    backward: f64,
    update: f64,
    gflops: f64,
}

impl Report<'_> {
    fn ms(&self, layer: usize, subs: &[SubTask]) -> f64 {
        let of_layer = self.rows.iter().filter(|r| r.layer.0 == layer && subs.contains(&r.sub));
        of_layer.map(|r| median(&r.samples)).fold(0.0, |sum, ms| sum + ms)
    }

    fn layer(&self, layer: usize) -> LayerTime {
        use SubTask::{Forward, GradActivation, GradBias, GradWeight, Load, Update};
        let forward = self.ms(layer, &[Load, Forward]);
        let backward = self.ms(layer, &[GradActivation, GradWeight, GradBias]);
        let subs = [Forward, GradActivation, GradWeight, GradBias];
        let nets = self.pass.nets.iter();
        let flops: u64 = nets.flat_map(|n| subs.iter().map(move |s| n.flops(LayerId(layer), *s))).sum();
        let gflops = flops as f64 * 1e-6 / (forward + backward).max(1e-9);
        LayerTime { forward, backward, update: self.ms(layer, &[Update]), gflops }
    }

    fn print(&self, choices: &[Choice]) {
        let net = &self.pass.nets[0];
        say!("network     {} ({}), mini-batch {}", net.name, net.file, self.pass.batch());
        say!("machine     {}; kernels for {}", self.machine.how, self.machine.isa);
        let width = choices.iter().map(|c| c.label.len()).max().unwrap_or(0).max(16);
        say!(
            "peak        {:.0} GFLOP/s of fused multiply-adds measured on {} thread(s)\n",
            self.peak,
            self.threads
        );
        say!(
            "{:width$} {:18} {:12} {:>9} {:>9} {:>9} {:>9} {:>7}",
            "layer",
            "type",
            "kernel",
            "forward",
            "backward",
            "update",
            "GFLOP/s",
            "of peak"
        );
        for (index, choice) in choices.iter().enumerate() {
            let t = self.layer(index);
            say!(
                "{:width$} {:18} {:12} {:6.3} ms {:6.3} ms {:6.3} ms {:9.1} {:5.1} %",
                choice.label,
                choice.type_name,
                choice.implementation,
                t.forward,
                t.backward,
                t.update,
                t.gflops,
                100.0 * t.gflops / self.peak
            );
        }
        let iteration = median(self.iterations);
        let flops: f64 = (0..choices.len())
            .map(|i| {
                let t = self.layer(i);
                t.gflops * (t.forward + t.backward)
            })
            .sum();
        say!(
            "\niteration   {iteration:.3} ms (median of {}): {:.0} images/s, {:.1} GFLOP/s, {:.1} % of peak",
            self.iterations.len(),
            self.pass.batch() as f64 / iteration * 1e3,
            flops / iteration,
            100.0 * flops / iteration / self.peak
        );
        say!(
            "            layers overlap, so their times may add up to more; a time includes waiting for a thread"
        );
    }

    fn to_json(&self, choices: &[Choice]) -> Value {
        let layers: Vec<Value> = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                let t = self.layer(index);
                json!({
                    "layer": choice.layer, "label": choice.label, "type": choice.type_name, "kernel": choice.implementation,
                    "layout": choice.layout, "forward_ms": t.forward, "backward_ms": t.backward,
                    "update_ms": t.update, "gflops": t.gflops, "share_of_peak": t.gflops / self.peak,
                })
            })
            .collect();
        json!({
            "network": self.pass.nets[0].name,
            "batch": self.pass.batch(),
            "iteration_ms": median(self.iterations),
            "peak_gflops": self.peak,
            "threads": self.threads,
            "quadrants": self.pass.devices.len(),
            "isa": self.machine.isa.to_string(),
            "layers": layers,
        })
    }
}
