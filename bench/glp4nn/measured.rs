//! Layers on the CPU: for each number of lanes, how long forward of all images takes, each image a task.

use quadrille_core::device::{Lane, Scalars};
use quadrille_core::layer::{Input, Layer, SubTask};
use quadrille_core::net::{GivenState, LayerSpec, Net, NetSpec, NetState, ParamSpec, Phase};
use quadrille_core::plan::lanes::{KernelUsage, Pool, deal};
use quadrille_core::plan::{CostModel, Plan, PlanOptions, Schedule, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::Rule;
use quadrille_core::task::LaneId;
use quadrille_cpu::isa::{Isa, Precision};
use quadrille_cpu::{CpuWorker, CrewSpec, EngineOptions, Program};

use crate::record::median;
use crate::shapes::ConvolutionShape;

/// What one way of dealing out took.
pub struct Measured {
    /// Nanoseconds of all images, the median.
    pub nanoseconds: f64,
    /// What the resource tracker saw of one image's kernel.
    pub usage: KernelUsage,
}

/// An input and a convolution for each image; all convolutions have the same weight.
fn net(shape: &ConvolutionShape, images: usize) -> Result<Net, String> {
    let [_, c, h, w] = shape.input;
    let mut layers = Vec::new();
    for image in 0..images {
        let (input, top) = (format!("x{image}"), format!("y{image}"));
        let made = Layer::Input(Input { shapes: vec![vec![1, c, h, w]], tops: 1 });
        layers.push(LayerSpec::new(&input, made, &[], &[&input]));
        let convolution = Layer::Convolution(shape.layer());
        let weight = ParamSpec { name: Some("weight".into()), ..ParamSpec::default() };
        let layer = LayerSpec::new(&format!("{}/{image}", shape.name), convolution, &[&input], &[&top]);
        layers.push(LayerSpec { params: vec![weight], ..layer });
    }
    let spec = NetSpec {
        name: shape.name.clone(),
        file: "<shape>".into(),
        force_backward: false,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    };
    Net::build(&spec, &NetState::new(Phase::Test), 1.0).map_err(|error| error.to_string())
}

/// Forward of the net, its convolutions dealt out to so many lanes behind the one in which inputs are loaded.
fn plan(net: &Net, lanes: u32) -> Result<Plan, String> {
    let options = PlanOptions { schedule: Schedule::Layerwise, ..PlanOptions::new(Stage::Forward) };
    let nets = std::slice::from_ref(net);
    let mut plan = Plan::build(nets, options).map_err(|error| error.to_string())?;
    // All inputs first, so that what is measured is convolutions.
    plan.nodes.sort_by_key(|node| node.task.sub != SubTask::Load);
    let pool = Pool { default: LaneId(0), first: LaneId(1), lanes };
    let all = (0..=lanes as usize).map(|id| Lane { id: LaneId(id), priority: 0 }).collect();
    // Layers are inputs and convolutions in turn.
    Ok(deal(plan, nets, all, |node| match node.task.sub {
        SubTask::Forward => pool.lane(node.task.layer.0 / 2, lanes),
        _ => pool.default,
    }))
}

/// Runs so many images of a shape in so many lanes, `repeat` times after a time that does not count.
///
/// # Errors
/// If the engine refuses or fails.
pub fn measure(
    shape: &ConvolutionShape,
    images: usize,
    lanes: u32,
    crew: &CrewSpec,
    repeat: usize,
) -> Result<Measured, String> {
    let nets = [net(shape, images)?];
    let plan = plan(&nets[0], lanes)?;
    let options = EngineOptions {
        isa: Isa::detect(),
        precision: Precision::F32,
        kernels: Vec::new(),
        rule: Rule::default(),
        elastic: false,
        spin: true,
    };
    let program = Program { nets: &nets, plans: &[&plan] };
    let worker = CpuWorker::new(std::slice::from_ref(crew), &[program], &options);
    let devices = worker.map_err(|error| error.to_string())?.devices(0);
    let mut times = StepTimes::default();
    let (mut all, mut each) = (Vec::new(), Vec::new());
    for round in 0..=repeat.max(1) {
        run_step(&devices, &plan, &Scalars::default(), &mut times).map_err(|error| error.to_string())?;
        let forward = plan.nodes.iter().zip(times.spans()).filter(|(n, _)| n.task.sub == SubTask::Forward);
        let spans: Vec<_> = forward.map(|(_, span)| *span).collect();
        let start = spans.iter().map(|span| span.start).min().unwrap_or(0);
        let end = spans.iter().map(|span| span.end).max().unwrap_or(0);
        if round > 0 {
            all.push(end.saturating_sub(start) as f64);
            each.extend(spans.iter().map(|span| (span.end - span.start) as f64));
        }
    }
    let node = plan.nodes.iter().find(|node| node.task.sub == SubTask::Forward).ok_or("a plan of nothing")?;
    let grains = devices[0].grains(&node.task).into_iter().flatten().max().unwrap_or(1);
    let usage = KernelUsage {
        name: shape.name.clone(),
        blocks: grains.into(),
        threads: 1,
        registers: 0,
        shared: CostModel::bytes(&nets, node) / u64::from(grains),
        nanoseconds: median(&each).max(1.0),
    };
    Ok(Measured { nanoseconds: median(&all), usage })
}
