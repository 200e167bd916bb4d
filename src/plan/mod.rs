//! `quadrille plan`: which task runs in which lane, what is critical, and how long it should take; without data.

mod explain;
pub mod training;

use quadrille_core::check::check;
use quadrille_core::device::Scalars;
use quadrille_core::net::Net;
use quadrille_core::plan::lanes::Limits;
use quadrille_core::plan::priority::{Analysis, Estimates};
use quadrille_core::plan::{Plan, PlanOptions, SavedPlan, Schedule, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::sim::DeviceModel;
use quadrille_cpu::Program;
use quadrille_io::prototxt::{read_machine, write_plan};

use crate::cli::PlanArgs;
use crate::crews::{Crews, crews};
use crate::engine::Engine;
use crate::failure::{Code, Failure};
use crate::memory;
use crate::pass::Pass;
use crate::time;
use explain::Explanation;
use training::built;

/// Plans.
pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    let (spec, batch) = time::on_made_up_data(args.model.as_deref(), args.batch, args.shape)?;
    let machine = crews(&args.machine, 0, 1, batch, || time::copies(&spec, batch))?;
    let nets = time::nets(&spec, batch, &machine, &args.machine, args.workers)?;
    let schedule = args.scheduling.schedule.unwrap_or_default();
    let figures = args.machine_file.as_deref().map(read_machine).transpose()?;
    let device = figures.as_ref().map(|machine| machine.device.unwrap_or(DeviceModel::serial(machine.rates)));
    let mut estimates = device.map_or_else(Estimates::default, Estimates::on);
    if args.measure {
        estimates = measured(estimates, &nets, &machine, args)?;
    }
    let stages: &[Stage] =
        if args.workers == 1 { &[Stage::Iteration] } else { &[Stage::Gradients, Stage::Update] };
    let mut plans = Vec::new();
    for stage in stages {
        let options = PlanOptions { schedule, ..PlanOptions::new(*stage) };
        let plan = Plan::build_by(&nets, options, &estimates);
        let plan = plan.map_err(|error| Failure::new(Code::Bug, error.to_string()))?;
        check(&plan, &nets).map_err(|violation| Failure::new(Code::Bug, violation.to_string()))?;
        plans.push(plan);
    }
    if args.explain || args.out.is_none() {
        let options = PlanOptions { schedule, ..PlanOptions::new(stages[0]) };
        let analysis = Analysis::new(&nets, options, &estimates);
        let analysis = analysis.map_err(|error| Failure::new(Code::Bug, error.to_string()))?;
        let by = match (&figures, args.measure) {
            (_, true) => "an iteration here, task after task".to_owned(),
            (Some(figures), false) => format!("the figures of {:?} (sim)", figures.name),
            (None, false) => {
                "the figures of no machine in particular (sim); see --machine and --measure".to_owned()
            }
        };
        let explanation = Explanation {
            nets: &nets,
            plan: &plans[0],
            analysis: &analysis,
            estimates: &estimates,
            schedule,
            device: device.filter(|_| !args.measure),
            by,
        };
        explanation.lines()?.iter().for_each(|line| say!("{line}"));
    }
    if machine.gpu(0).is_some() {
        say_pool(&nets, &plans[0], &machine, args)?;
    }
    if let Some(out) = &args.out {
        write_plan(out, &SavedPlan::new(&plans.iter().collect::<Vec<_>>(), &nets, schedule))?;
        say!("plan        written to {}", out.display());
    }
    Ok(())
}

/// Says how many kernels of each layer are worth running at once on the GPU, from what the driver says of it and of them.
fn say_pool(nets: &[Net], plan: &Plan, machine: &Crews, args: &PlanArgs) -> Result<(), Failure> {
    let batch = nets.iter().map(Net::batch).sum();
    let program = Program { nets, plans: &[plan] };
    let engine = time::engine(machine, &args.machine);
    let (engine, _) = memory::worker(machine, &[program], &engine, batch)?;
    let Engine::Cuda(worker) = engine else { return Ok(()) };
    let pool = worker.pool(&nets[0], plan)?;
    let Limits { units, blocks, threads, registers, shared, kernels, .. } = pool.limits;
    say!(
        "limits      {units} multiprocessors, each {threads} threads, {blocks} blocks, {registers} registers,"
    );
    say!(
        "            {} KiB shared; {kernels} kernels at once (GLP4NN's figures, by the driver)",
        shared >> 10
    );
    say!("pool        {} stream(s) beside the default one for kernels of one layer", pool.lanes);
    for (layer, sub, lanes) in pool.layers.iter().filter(|(_, _, lanes)| *lanes > 1) {
        say!("            {lanes} for {sub} of {layer}");
    }
    if pool.by_libraries > 0 {
        say!("            {} operations by libraries are not known", pool.by_libraries);
    }
    Ok(())
}

/// Estimates corrected by an iteration in one lane, the second: the first finds caches and pages cold.
fn measured(
    estimates: Estimates,
    nets: &[Net],
    machine: &Crews,
    args: &PlanArgs,
) -> Result<Estimates, Failure> {
    let stage = if args.workers == 1 { Stage::Iteration } else { Stage::Gradients };
    let plan = built(nets, PlanOptions { schedule: Schedule::Layerwise, ..PlanOptions::new(stage) })?;
    let engine = time::engine(machine, &args.machine);
    let program = Program { nets, plans: &[&plan] };
    let batch = nets.iter().map(Net::batch).sum();
    let (worker, _) = memory::worker(machine, &[program], &engine, batch)?;
    let pass = Pass::new(nets.to_vec(), worker.devices(0));
    time::fill(&pass)?;
    let mut times = StepTimes::default();
    for _ in 0..2 {
        run_step(&pass.devices, &plan, &Scalars { rate: 1e-6, seed: 1, ..Scalars::default() }, &mut times)?;
    }
    Ok(estimates.corrected(&plan, times.spans()))
}
