//! `quadrille plan`: which task runs in which lane, what is critical, and how long it should take; without data.

mod explain;
pub mod training;

use quadrille_core::check::check;
use quadrille_core::device::Scalars;
use quadrille_core::machine::Machine;
use quadrille_core::net::Net;
use quadrille_core::plan::lanes::Limits;
use quadrille_core::plan::priority::{Analysis, Estimates};
use quadrille_core::plan::{Plan, PlanOptions, SavedPlan, Schedule, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::sim::DeviceModel;
use quadrille_cpu::Program;
use quadrille_gpu::Cuda;
use quadrille_io::prototxt::{read_machine, write_plan};

use crate::cli::PlanArgs;
use crate::crews::{Crews, crews};
use crate::failure::{Code, Failure};
use crate::holdings::Holdings;
use crate::memory;
use crate::pass::Pass;
use crate::pool::{Pools, StreamPool, Worth, spread_by};
use crate::rewriting::Rewriting;
use crate::time;
use explain::Explanation;
use training::built;

/// Plans.
pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    let (spec, batch) = time::on_made_up_data(args.model.as_deref(), args.batch, args.shape)?;
    let figures = args.machine_file.as_deref().map(read_machine).transpose()?;
    let device = figures.as_ref().map(|machine| machine.device.unwrap_or(DeviceModel::serial(machine.rates)));
    let how = args.scheduling.stream_pool;
    let described_gpu = figures.as_ref().filter(|machine| describes_gpu(machine));
    match described_gpu {
        Some(machine) => check_described(machine, args)?,
        None => how.unwrap_or_default().check(&args.machine.device)?,
    }
    let machine = crews(&args.machine, 0, 1, batch, || time::copies(&spec, batch))?;
    let rewriting = Rewriting::new(&args.machine, machine.numerics, args.workers).on(described_gpu.is_some());
    let nets = time::nets(&spec, batch, &machine, rewriting)?;
    let schedule = args.scheduling.schedule.unwrap_or_default();
    let mut estimates = device.map_or_else(Estimates::default, Estimates::on);
    if args.measure {
        estimates = measured(estimates, &nets, &machine, args)?;
    }
    let stages: &[Stage] =
        if args.workers == 1 { &[Stage::Iteration] } else { &[Stage::Gradients, Stage::Update] };
    let mut plans = Vec::new();
    let mut pool = Pool::new(how);
    for stage in stages {
        let options = PlanOptions { schedule, ..PlanOptions::new(*stage) };
        let plan = Plan::build_by(&nets, options, &estimates);
        let plan = plan.map_err(|error| Failure::new(Code::Bug, error.to_string()))?;
        let plan =
            pool.spread(plan, &nets, &machine, args, device.as_ref().filter(|_| described_gpu.is_some()))?;
        check(&plan, &nets).map_err(|violation| Failure::new(Code::Bug, violation.to_string()))?;
        plans.push(plan);
    }
    if args.explain || args.out.is_none() {
        let options = PlanOptions { schedule, ..PlanOptions::new(stages[0]) };
        let analysis = Analysis::new(&nets, options, &estimates);
        let analysis = analysis.map_err(|error| Failure::new(Code::Bug, error.to_string()))?;
        let by = match (&figures, args.measure) {
            (None, true) => "an iteration here, task after task".to_owned(),
            (Some(figures), true) => {
                format!("the figures of {:?}, set right by an iteration here, task after task", figures.name)
            }
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
    pool.say(&nets[0], &plans[0], machine.gpu(0))?;
    if let Some(out) = &args.out {
        write_plan(out, &SavedPlan::new(&plans.iter().collect::<Vec<_>>(), &nets, schedule))?;
        say!("plan        written to {}", out.display());
    }
    Ok(())
}

/// Whether a machine file describes a GPU: a device whose kernels share its units, not the threads of a crew.
fn describes_gpu(machine: &Machine) -> bool {
    machine.device.is_some_and(|device| !device.crew)
}

/// Refuses flags that say how quadrants compute where a GPU is described.
fn check_described(machine: &Machine, args: &PlanArgs) -> Result<(), Failure> {
    let here = &args.machine;
    let wrong = [
        ("--measure", args.measure && here.device.is_cpu()),
        ("--quadrants", here.quadrants.is_some_and(|quadrants| quadrants.count() != Some(1))),
        ("--kernel", !here.kernels.is_empty()),
        ("--isa", here.isa.is_some()),
    ];
    match wrong.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Failure::new(
            Code::Usage,
            format!(
                "{flag} has no meaning with --machine {:?}, which describes a GPU: its tasks do not run on quadrants",
                machine.name
            ),
        )),
        None => Ok(()),
    }
}

/// The pool of streams for chunks of images, and how many of them each sub-task is worth.
struct Pool {
    cuts: bool,
    pools: Pools,
    worth: Option<Worth>,
}

impl Pool {
    /// A pool as the flag says. Where it says nothing layers are looked at all the same, and stay whole.
    fn new(how: Option<StreamPool>) -> Self {
        let cuts = how.is_some_and(|how| how != StreamPool::Off);
        let how =
            if how == Some(StreamPool::Off) { StreamPool::Off } else { how.unwrap_or(StreamPool::Auto) };
        Self { cuts, pools: Pools::new(how), worth: None }
    }

    /// A plan in chunks, if it is to be: as the kernels say of the GPU that is there, or as the GPU does that is described.
    fn spread(
        &mut self,
        plan: Plan,
        nets: &[Net],
        machine: &Crews,
        args: &PlanArgs,
        described: Option<&DeviceModel>,
    ) -> Result<Plan, Failure> {
        if self.worth.is_none() {
            self.worth = match (machine.gpu(0), described.filter(|_| self.cuts)) {
                (Some(gpu), _) => {
                    let engine = time::engine(machine, &args.machine);
                    Some(self.pools.on_gpu(gpu, nets, &plan, &engine, machine.on_gpus)?)
                }
                (None, Some(device)) => Some(self.pools.simulated(device, nets, &plan)?),
                (None, None) => None,
            };
        }
        Ok(match self.worth.as_ref().filter(|_| self.cuts) {
            Some(worth) => spread_by(plan, nets, worth),
            None => plan,
        })
    }

    /// What the GPU has, and what was decided.
    fn say(&self, net: &Net, plan: &Plan, gpu: Option<&Cuda>) -> Result<(), Failure> {
        if let Some(gpu) = gpu {
            let Limits { units, blocks, threads, registers, shared, kernels, .. } = gpu.limits()?;
            say!(
                "limits      {units} multiprocessors, each {threads} threads, {blocks} blocks, {registers} registers,"
            );
            say!(
                "            {} KiB shared; {kernels} kernels at once (GLP4NN's figures, by the driver)",
                shared >> 10
            );
        }
        let Some(worth) = &self.worth else { return Ok(()) };
        if self.cuts {
            self.pools.describe(net, plan).iter().for_each(|line| say!("{line}"));
        } else {
            say!("stream pool off: all layers stay whole (--stream-pool auto cuts them as follows)");
        }
        let mut worth: Vec<_> = worth.iter().filter(|(_, lanes)| **lanes > 1).collect();
        worth.sort_by_key(|((layer, sub), _)| (*sub, *layer));
        for ((layer, sub), lanes) in worth {
            say!("            {lanes} streams for {sub} of {}", net.layer(*layer).name);
        }
        Ok(())
    }
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
    let (worker, _) = memory::worker(machine, &[program], &engine, batch, &Holdings::default())?;
    let pass = Pass::new(nets.to_vec(), worker.devices(0));
    time::fill(&pass)?;
    let mut times = StepTimes::default();
    for _ in 0..2 {
        run_step(&pass.devices, &plan, &Scalars { rate: 1e-6, seed: 1, ..Scalars::default() }, &mut times)?;
    }
    Ok(estimates.corrected(&plan, times.spans()))
}
