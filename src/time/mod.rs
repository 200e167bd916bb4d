//! `quadrille time`: what every layer costs, on made-up data or on a data set.

mod busy;
mod measure;
mod report;

use std::path::Path;

use quadrille_core::device::{Packed, Region};
use quadrille_core::layer::Layer;
use quadrille_core::net::{Net, NetSpec, NetState, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Schedule, Stage};
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::solver::Rule;
use quadrille_core::task::Tile;
use quadrille_cpu::isa::{Isa, Numerics};
use quadrille_cpu::kernel::ceilings::Ceilings;
use quadrille_cpu::{EngineOptions, Program};
use quadrille_io::data::Tolerance;
use quadrille_numa::parts::Copies;

use crate::bundled;
use crate::cli::{DataArgs, MachineArgs, TimeArgs};
use crate::crews::{Crews, crews, threads_of};
use crate::engine::Engine;
use crate::failure::{Code, Failure};
use crate::feed::{Draw, Feed};
use crate::holdings::Holdings;
use crate::job::{PhaseJob, Samples, check_cut, cut_input, load_net, no_data, say_bad_records};
use crate::made_up;
use crate::memory;
use crate::parts;
use crate::pass::Pass;
use crate::plan::training::{built, lanes_of};
use crate::pool::{Pools, spread_by};
use crate::rewriting::Rewriting;
use crate::trace::{self, Trace, Traced};

use busy::Busy;
use report::Report;

/// Measures.
pub fn run(args: &TimeArgs) -> Result<(), Failure> {
    let Timed { spec, batch, data } = timed(args)?;
    let pool = args.scheduling.stream_pool.unwrap_or_default();
    pool.check(&args.machine.device)?;
    let machine = crews(&args.machine, 0, 1, batch, || copies(&spec, batch))?;
    let schedule = args.scheduling.schedule.unwrap_or_default();
    let mut pools = Pools::new(pool);
    let iteration = iteration(&spec, batch, &machine, &args.machine, schedule)?;
    let Iteration { nets, plan, options: engine } = iteration.on_pool(&machine, &mut pools)?;
    let program = Program { nets: &nets, plans: &[&plan] };
    let (worker, placement) = memory::worker(&machine, &[program], &engine, batch, &Holdings::of(&data))?;
    let placement = match &worker {
        Engine::Cpu(_) => placement,
        Engine::Cuda(worker) => {
            worker.notes().iter().cloned().chain(pools.describe(&nets[0], &plan)).collect()
        }
    };
    let pass = Pass::new(nets, worker.devices(0));
    fill(&pass)?;
    // As the only worker of a training would draw.
    let draw = Draw::Train { seed: 1, rank: 0, workers: 1 };
    let mut batches =
        data.as_ref().map(|data| data.start(draw, batch, 0, machine.places[0].readers())).transpose()?;
    let trace_to = trace::open(args.tracing.trace.as_deref(), true)?;
    let mut trace = trace_to.as_ref().map(|_| traced(&pass, &plan, &worker, args.tracing.trace_iterations));
    let graphs = match &worker {
        Engine::Cuda(worker) if worker.has_graphs() => Some(worker),
        _ => None,
    };
    // Tasks have times of their own only where each is launched by itself.
    graphs.iter().for_each(|worker| worker.use_graphs(false));
    let busy = Busy::new(&worker, pass.devices.len(), trace.is_some());
    let measured = measure::measure(&pass, &plan, args.iterations, batches.as_mut(), trace.as_mut(), busy)?;
    if let (Some(to), Some(trace)) = (trace_to, &trace) {
        trace::write(to, std::iter::once(trace))?;
    }
    drop(batches);
    graphs.iter().for_each(|worker| worker.use_graphs(true));
    let as_graph = graphs.map(|_| measure::whole_iterations(&pass, &plan, args.iterations)).transpose()?;
    // Before the ceilings are measured, which takes memory of its own.
    let peak_memory = peak_memory_mib();
    let threads: usize = machine.workers[0].iter().map(|c| c.cpus.len()).sum();
    let (ceilings, source) = ceilings(&worker, &machine, threads);
    let report = Report {
        net: &pass.nets[0],
        batch,
        data: data.as_ref().and_then(Feed::data_set),
        quadrants: pass.devices.len(),
        threads,
        machine: &machine,
        schedule: (schedule, lanes_of(&plan)),
        placement: &placement,
        choices: &worker.choices(&pass.nets[0]),
        measured: &measured,
        as_graph,
        ceilings,
        source,
        peak_memory,
        blobs: worker.blob_bytes(0),
    };
    if args.json {
        say!("{}", report.to_json());
    } else {
        for note in &spec.notes {
            say!("note        {note}");
        }
        report.print();
        data.iter().for_each(say_bad_records);
    }
    Ok(())
}

/// A timeline of so many iterations, each a step of the only plan.
fn traced(pass: &Pass, plan: &Plan, engine: &Engine, iterations: u64) -> Trace {
    let (nets, plans) = (&pass.nets[..], &[plan][..]);
    Trace::new(&Traced { rank: 0, nets, plans, overlap: None, engine, iterations, steps: 1 })
}

/// What the devices can do, and how that is known.
fn ceilings(worker: &Engine, machine: &Crews, threads: usize) -> (Ceilings, String) {
    match worker {
        Engine::Cpu(_) => {
            let numerics = Numerics { isa: Isa::detect(), ..machine.numerics };
            (Ceilings::measure(numerics, threads), format!("measured on {threads} thread(s)"))
        }
        Engine::Cuda(worker) => {
            let [gflops, gbs] = worker.ceilings();
            (Ceilings { gflops, gbs }, "by the clocks that the driver says".into())
        }
    }
}

/// An iteration of a training as a worker's devices run it.
pub struct Iteration {
    /// A net for each device.
    pub nets: Vec<Net>,
    /// Its tasks.
    pub plan: Plan,
    /// How devices compute.
    pub options: EngineOptions,
}

impl Iteration {
    /// The same in chunks of images, if a GPU computes and has a pool of streams for them.
    fn on_pool(self, machine: &Crews, pools: &mut Pools) -> Result<Self, Failure> {
        let Some(gpu) = machine.gpu(0) else { return Ok(self) };
        let worth = pools.on_gpu(gpu, &self.nets, &self.plan, &self.options, machine.on_gpus)?;
        let plan = spread_by(self.plan, &self.nets, &worth);
        Ok(Self { plan, ..self })
    }
}

/// An iteration of the only worker on a machine.
pub fn iteration(
    spec: &NetSpec,
    batch: usize,
    machine: &Crews,
    args: &MachineArgs,
    schedule: Schedule,
) -> Result<Iteration, Failure> {
    let nets = nets(spec, batch, machine, Rewriting::new(args, machine.numerics, 1))?;
    let plan = built(&nets, PlanOptions { schedule, ..PlanOptions::new(Stage::Iteration) })?;
    Ok(Iteration { nets, plan, options: engine(machine, args) })
}

/// The nets of a worker's devices, rewritten for a GPU if that has one.
pub fn nets(
    spec: &NetSpec,
    batch: usize,
    machine: &Crews,
    rewriting: Rewriting<'_>,
) -> Result<Vec<Net>, Failure> {
    let (threads, rewriting) = (threads_of(&machine.workers[0]), rewriting.on(machine.gpu(0).is_some()));
    // A GPU is one device, whatever quadrants the machine is cut into.
    let threads = if rewriting.gpu { &threads[..1] } else { &threads[..] };
    let nets = cut(spec, batch, threads)?;
    nets.into_iter().map(|net| rewriting.of(net)).collect()
}

/// How devices compute what is measured.
pub fn engine(machine: &Crews, args: &MachineArgs) -> EngineOptions {
    EngineOptions {
        isa: machine.numerics.isa,
        precision: machine.numerics.precision,
        kernels: args.kernels.clone(),
        rule: Rule::sgd(0.9, 5e-4),
        elastic: false,
        spin: machine.exclusive,
    }
}

/// What an iteration copies into each part of a machine.
pub fn copies(spec: &NetSpec, batch: usize) -> Result<Copies, Failure> {
    let net = cut(spec, batch, &[1])?.swap_remove(0);
    Ok(parts::copies(&net, Rule::sgd(0.9, 5e-4).kind.histories(), 1))
}

/// A network with samples that are made up, and its mini-batch: the one asked for, or that of a bundled network given by
/// name, or else the network's.
pub fn on_made_up_data(
    model: Option<&Path>,
    batch: Option<usize>,
    shape: Option<[usize; 3]>,
) -> Result<(NetSpec, usize), Failure> {
    let (spec, file) = load_net(model, None)?;
    let batch = batch.or(model.and_then(bundled::compared_batch));
    with_batch(with_samples(spec, &file, shape)?, batch)
}

/// What is timed.
struct Timed {
    /// The network, with the shape of its samples and the mini-batch.
    spec: NetSpec,
    /// Images of a mini-batch.
    batch: usize,
    /// The data set; `None` if data is made up.
    data: Option<Feed>,
}

fn timed(args: &TimeArgs) -> Result<Timed, Failure> {
    let (flag, made_up) = (if args.real_data { "--real-data" } else { "--data" }, &args.made_up);
    if !args.real_data && args.data.data.is_none() {
        let refused = match &args.data {
            DataArgs { stage_to: Some(_), .. } => Some("--stage-to: data that is made up is not copied"),
            DataArgs { bad_record: Tolerance::Fail, .. } => None,
            _ => Some("--bad-record: data that is made up has no bad records"),
        };
        if let Some(refused) = refused {
            return Err(Failure::new(Code::Usage, format!("{refused}; add --data PATH or --real-data")));
        }
        let (spec, batch) = on_made_up_data(args.model.as_deref(), args.batch, made_up.shape)?;
        return Ok(Timed { spec, batch, data: None });
    }
    if made_up.dummy_data || made_up.shape.is_some() {
        let other = if made_up.dummy_data { "--dummy-data" } else { "--data-shape" };
        return Err(Failure::new(
            Code::Usage,
            format!("{flag} conflicts with {other}: data is real or made up"),
        ));
    }
    let (spec, file) = load_net(args.model.as_deref(), None)?;
    let batch = args.batch.or(args.model.as_deref().and_then(bundled::compared_batch));
    let job = PhaseJob::open(&spec, &spec.state(Phase::Train), &file, Samples::of(&args.data), batch)?;
    let job = job.ok_or_else(|| no_data(&spec, Phase::Train))?;
    Ok(Timed { spec: job.spec, batch: job.batch, data: Some(job.feed) })
}

/// Gives every data layer the shape of its samples.
fn with_samples(mut spec: NetSpec, file: &Path, asked: Option<[usize; 3]>) -> Result<NetSpec, Failure> {
    let state = spec.state(Phase::Train);
    for layer in spec.layers.iter_mut().filter(|l| l.belongs(&state)) {
        let subject = format!("layer {:?}", layer.name);
        if let Layer::Data(data) = &mut layer.layer {
            let shape = made_up::sample_shape(data, Phase::Train, file, asked);
            data.sample = Some(shape.map_err(|fault| fault.at(&layer.site, &subject))?);
        }
    }
    Ok(spec)
}

/// Images of a mini-batch as the file has them: those of a data set, or else of the first input, or else of the first array
/// that is made up.
fn images_of(spec: &NetSpec, state: &NetState) -> Option<usize> {
    let first = |shapes: &[Vec<usize>]| shapes.iter().find_map(|shape| shape.first().copied());
    let of = |layer: &Layer| match layer {
        Layer::Data(data) => Some((0, data.batch)),
        Layer::Hdf5Data(hdf5) => Some((0, hdf5.batch)),
        Layer::Input(input) => Some((1, first(&input.shapes)?)),
        Layer::DummyData(dummy) => Some((2, first(&dummy.shapes)?)),
        _ => None,
    };
    let found = spec.layers.iter().filter(|l| l.belongs(state)).filter_map(|l| of(&l.layer));
    found.min_by_key(|(rank, _)| *rank).map(|(_, images)| images)
}

/// Gives a source that has a mini-batch of `batch` images so many others. What has other extents is no mini-batch.
fn resize(layer: &mut Layer, batch: usize, images: usize) {
    let (one, shapes) = match layer {
        Layer::Data(data) => (Some(&mut data.batch), None),
        Layer::Hdf5Data(hdf5) => (Some(&mut hdf5.batch), None),
        Layer::Input(input) => (None, Some(&mut input.shapes)),
        Layer::DummyData(dummy) => (None, Some(&mut dummy.shapes)),
        _ => (None, None),
    };
    let firsts = shapes.into_iter().flatten().filter_map(|shape| shape.first_mut());
    one.into_iter().chain(firsts).filter(|extent| **extent == batch).for_each(|extent| *extent = images);
}

/// Gives every source `batch` images, if that is asked for; returns the batch.
fn with_batch(mut spec: NetSpec, batch: Option<usize>) -> Result<(NetSpec, usize), Failure> {
    let state = spec.state(Phase::Train);
    // A network without any source does not get past its building.
    let own = images_of(&spec, &state).unwrap_or(1);
    let images = batch.unwrap_or(own);
    let belonging = spec.layers.iter_mut().filter(|l| l.belongs(&state));
    belonging.for_each(|layer| resize(&mut layer.layer, own, images));
    Net::build(&spec, &state, 1.0)?;
    Ok((spec, images))
}

/// A net for each quadrant, with its share of the images.
fn cut(spec: &NetSpec, batch: usize, threads: &[usize]) -> Result<Vec<Net>, Failure> {
    let state = spec.state(Phase::Train);
    let net_of = |tile: Tile| {
        let mut spec = spec.clone();
        for layer in spec.layers.iter_mut().filter(|l| l.belongs(&state)) {
            match &mut layer.layer {
                Layer::Input(input) if threads.len() > 1 => {
                    let cut = cut_input(input, batch, tile.images);
                    cut.map_err(|fault| fault.at(&layer.site, &format!("layer {:?}", layer.name)))?;
                }
                other => resize(other, batch, tile.images),
            }
        }
        let net = Net::build(&spec, &state, tile.images as f32 / batch as f32)?;
        if threads.len() > 1 {
            check_cut(&net)?;
        }
        Ok(net)
    };
    Tile::shares(batch, threads).into_iter().map(net_of).collect()
}

/// Weights from their fillers; data and labels made up.
pub fn fill(pass: &Pass) -> Result<(), Failure> {
    let net = &pass.nets[0];
    let mut weights = vec![0.0; net.params.len()];
    net.params.fill(1, &mut weights);
    pass.write_all(Region::Packed(Packed::Weights), &weights)?;
    let stream = Stream::new(1, Purpose::Dummy, 0);
    let tops = net.layers.iter().filter(|l| l.layer.is_source()).flat_map(|l| &l.tops);
    // Only a single quadrant has sources of other extents than a mini-batch.
    let counts = tops.map(|top| match (pass.nets.len(), &net.blob(*top).shape) {
        (1, shape) => shape.count(),
        (_, shape) => shape.per_image() * pass.batch(),
    });
    let counts: Vec<usize> = counts.take(2).collect();
    let data: Vec<f32> = (0..counts.first().map_or(0, |n| *n as u64)).map(|i| stream.uniform(i)).collect();
    let labels = counts.get(1).map_or(0, |count| pass.batch().min(*count));
    let labels: Vec<f32> =
        made_up::labels(made_up::classes(net), labels).into_iter().map(f32::from).collect();
    pass.load([data.as_slice(), &labels])
}

/// The most memory that the program has held, in MiB; `None` where the system does not say.
fn peak_memory_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}
