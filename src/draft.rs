//! A worker before it has any memory: its nets, its plans, and what its devices will need.

use quadrille_core::net::Net;
use quadrille_core::plan::Plan;
use quadrille_cpu::{EngineOptions, MappedWorker, Program};

use crate::crews::{OnGpus, threads_of};
use crate::engine::{MappedEngine, on_gpu};
use crate::failure::Failure;
use crate::memory::WorkerNeeds;
use crate::plan::training::Plans;
use crate::pool::{Pools, spread_by};
use crate::worker::WorkerParts;

/// A worker whose arrays have places, but no memory yet.
pub struct Draft {
    /// Of training, one for each device.
    pub nets: Vec<Net>,
    /// Of each test.
    pub test_nets: Vec<Vec<Net>>,
    /// What an iteration runs.
    pub plans: Plans,
    /// What each test runs.
    pub forward: Vec<Plan>,
    /// Its devices.
    pub mapped: MappedEngine,
    /// What was decided of its pool of streams, for the first lines.
    pub pool: Vec<String>,
}

impl Draft {
    /// Makes plans, and maps the devices that will run them. What `pools` know of layers decides their chunks on a GPU.
    pub fn new(parts: &WorkerParts<'_>, pools: &mut Pools) -> Result<Self, Failure> {
        let (settings, threads) = (parts.settings, threads_of(parts.crews));
        let gpu = parts.machine.gpu(parts.seat);
        let rewriting = parts.rewriting.on(gpu.is_some());
        // A GPU is one device, whatever quadrants the machine is cut into.
        let threads = if gpu.is_some() { &threads[..1] } else { &threads[..] };
        let nets = parts.train.device_nets(threads, rewriting)?;
        let test_nets = parts.tests.iter().map(|test| test.job.device_nets(threads, rewriting));
        let test_nets: Vec<Vec<Net>> = test_nets.collect::<Result<_, _>>()?;
        let options = EngineOptions {
            isa: parts.machine.numerics.isa,
            precision: parts.machine.numerics.precision,
            kernels: parts.kernels.to_vec(),
            rule: settings.solver.rule,
            elastic: settings.is_elastic(),
            spin: parts.machine.exclusive,
        };
        // A timeline has the times of tasks, which a graph does not tell.
        let traced = settings.scheduling.traced.is_some();
        let how = parts.machine.on_gpus;
        let how = OnGpus { graph: how.graph && !traced, ..how };
        if gpu.is_none() {
            settings.scheduling.check_whole()?;
        }
        let mut plans = Plans::new(&nets, settings)?;
        let forward = test_nets.iter().map(|nets| settings.scheduling.forward(nets));
        let mut forward: Vec<Plan> = forward.collect::<Result<_, _>>()?;
        let mut pool = Vec::new();
        if let Some(gpu) = gpu {
            let worth = pools.on_gpu(gpu, &nets, &plans.gradients, &options, how)?;
            plans = plans.spread(&nets, &worth);
            for (nets, plan) in test_nets.iter().zip(&mut forward) {
                let worth = pools.on_gpu(gpu, nets, plan, &options, how)?;
                *plan = spread_by(plan.clone(), nets, &worth);
            }
            pool = pools.describe(&nets[0], &plans.gradients);
        }
        let train_plans = plans.all();
        let test_plans: Vec<[&Plan; 1]> = forward.iter().map(|plan| [plan]).collect();
        let mut programs = vec![Program { nets: &nets, plans: &train_plans }];
        programs.extend(test_nets.iter().zip(&test_plans).map(|(nets, plans)| Program { nets, plans }));
        let mapped = match gpu {
            Some(gpu) => MappedEngine::Cuda(on_gpu(gpu, &programs, &options, how)?),
            None => MappedEngine::Cpu(MappedWorker::new(parts.crews, &programs, &options)?),
        };
        Ok(Self { nets, test_nets, plans, forward, mapped, pool })
    }

    /// What it needs: memory of devices, and what the host copies of packed buffers: state that was read and is to be written,
    /// weights that are set aside for a test, and what is on its way to other workers.
    pub fn needs(&self, parts: &WorkerParts<'_>) -> WorkerNeeds {
        let state = 2 * (1 + parts.settings.solver.rule.kind.histories());
        let aside = usize::from(!parts.tests.is_empty());
        // Two of them are the centre and the sum of workers that need no tree.
        let travelling = if parts.settings.workers > 1 { 6 } else { 0 };
        // Beside the first worker is a master, or the memory that all share.
        let has_centre = parts.rank == 0 && parts.settings.keeps_centre_apart();
        let travelling = travelling + if has_centre { 1 + state } else { 0 };
        let needs = WorkerNeeds::of(&self.mapped, 1 + self.test_nets.len(), parts.train.batch);
        needs.with_copies(state + aside + travelling)
    }
}
