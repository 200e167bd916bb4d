//! The clock that a worker lives by: the real one, or a virtual one that goes by the figures of a machine file.
//!
//! By the virtual clock the worker does all of its work as ever, so its numbers are real, and each thing that it does takes as
//! long as the machine would. What it takes is said at its begin, so that other workers need not wait for it; why their order
//! is right all the same is argued in [`quadrille_comm::transport::timed`].

use std::time::{Duration, Instant};

use quadrille_comm::Moment;
use quadrille_comm::protocol::Method;
use quadrille_comm::transport::Endpoint;
use quadrille_comm::transport::timed::{self, Staging, TimedClock, Wires};
use quadrille_core::machine::{Machine, StepCost};
use quadrille_core::net::Net;
use quadrille_core::plan::{CostModel, Plan, Rates};
use quadrille_core::task::TaskId;

use crate::failure::Failure;
use crate::pass::Pass;
use crate::plan::training::Plans;
use crate::worker::Worker;

/// A worker's clock.
pub enum Pace {
    /// The real one.
    Real,
    /// A virtual one.
    Sim(Sim),
}

/// A worker's virtual clock, and what the worker takes, in nanoseconds.
pub struct Sim {
    clock: TimedClock,
    rates: Rates,
    step: StepCost,
    update: f64,
    /// Bytes of a mini-batch.
    batch: usize,
    data: Staging,
}

/// What handing over a mini-batch took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Waiting for it to be read.
    pub waited: Duration,
    /// Copying it, while the worker did nothing else.
    pub copied: Duration,
    /// Copying it beside the step before.
    pub hidden: Duration,
}

/// What a worker takes on `machine` for an iteration with one mini-batch.
fn step_cost(machine: &Machine, pass: &Pass, plans: &Plans) -> StepCost {
    machine.step(&pass.nets, &plans.gradients, pass.batch())
}

impl Pace {
    /// The virtual clock of a worker on `machine`.
    pub fn sim(clock: TimedClock, machine: &Machine, pass: &Pass, plans: &Plans) -> Self {
        let step = step_cost(machine, pass, plans);
        // A plan that updates, too, is priced with all of its tasks.
        let apart = plans.update.is_some() || step.measured;
        let update = if apart { machine.update(size_of::<f32>() * pass.nets[0].params.len()) } else { 0.0 };
        let rates = machine.rates;
        Self::Sim(Sim { clock, rates, step, update, batch: pass.batch_bytes(), data: Staging::default() })
    }

    /// What time it is.
    pub fn now(&self) -> Moment {
        match self {
            Self::Real => Moment::real(),
            Self::Sim(sim) => sim.clock.now(),
        }
    }

    /// What the figures say of this worker, for the first lines.
    pub fn describe(&self) -> Option<String> {
        let Self::Sim(sim) = self else { return None };
        let how = if sim.step.measured { "as measured" } else { "from its rates" };
        let ms = |nanoseconds: f64| nanoseconds * 1e-6;
        let (step, update) = (ms(sim.step.forward_backward), ms(sim.update));
        Some(format!("sim: forward and backward of a mini-batch {step:.3} ms ({how}), update {update:.3} ms"))
    }

    /// The virtual clock itself.
    pub fn virtual_clock(&self) -> Option<&TimedClock> {
        match self {
            Self::Real => None,
            Self::Sim(sim) => Some(&sim.clock),
        }
    }

    /// Lets `load` hand over a mini-batch, which says how long it waited. By a virtual clock the next one is on its way from
    /// here on, beside the step.
    pub fn load(&mut self, load: impl FnOnce() -> Result<Duration, Failure>) -> Result<Loaded, Failure> {
        match self {
            Self::Real => {
                let start = Instant::now();
                let waited = load()?;
                let copied = start.elapsed().saturating_sub(waited);
                Ok(Loaded { waited, copied, hidden: Duration::ZERO })
            }
            Self::Sim(sim) => {
                let staged = sim.data.turn(&sim.clock, sim.batch);
                load()?;
                Ok(Loaded { waited: Duration::ZERO, copied: staged.waited, hidden: staged.hidden })
            }
        }
    }

    /// Whether copies beside a step are counted by the real clock.
    pub fn is_real(&self) -> bool {
        matches!(self, Self::Real)
    }

    /// Lets `run` do forward and backward of a mini-batch. By a virtual clock `until` of it goes by, of 1, and the rest by
    /// [`Pace::go_on`].
    pub fn compute(&self, until: f64, run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        self.timed(|sim| until * sim.step.forward_backward, run).map(drop)
    }

    /// By a virtual clock, more of forward and backward goes by: from `from` to `until`, of 1.
    pub fn go_on(&self, from: f64, until: f64) {
        if let Self::Sim(sim) = self {
            sim.clock.pass((until - from).max(0.0) * sim.step.forward_backward);
        }
    }

    /// By a virtual clock, what an iteration takes besides goes by.
    pub fn end_iteration(&self) {
        if let Self::Sim(sim) = self {
            sim.clock.pass(sim.step.other);
        }
    }

    /// By a virtual clock, the share of forward and backward that has gone by when `tasks` of their plan are done, of 1.
    pub fn share_until(&self, nets: &[Net], plan: &Plan, tasks: &[TaskId]) -> f64 {
        match self {
            Self::Real => 1.0,
            Self::Sim(sim) => CostModel { rates: sim.rates }.share_until(nets, plan, tasks),
        }
    }

    /// Lets `run` do a worker's update. Returns how long it took.
    pub fn update(&self, run: impl FnOnce() -> Result<(), Failure>) -> Result<Duration, Failure> {
        self.timed(|sim| sim.update, run)
    }

    fn timed(
        &self,
        cost: impl FnOnce(&Sim) -> f64,
        run: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Duration, Failure> {
        match self {
            Self::Real => {
                let start = Instant::now();
                run()?;
                Ok(start.elapsed())
            }
            Self::Sim(sim) => {
                let took = sim.clock.pass(cost(sim));
                run()?;
                Ok(took)
            }
        }
    }
}

/// Connects workers in virtual time, and behind them their master if they have one. The workers get their clocks.
pub fn connect(machine: &Machine, method: Method, workers: &mut [Worker], master: bool) -> Vec<Endpoint> {
    let wires = Wires::new(machine, method, master);
    let ends = timed::endpoints(workers.len() + usize::from(master), wires);
    for (worker, end) in workers.iter_mut().zip(&ends) {
        worker.pace = Pace::sim(end.clock(), machine, &worker.pass, &worker.plans);
    }
    ends.into_iter().map(Endpoint::Timed).collect()
}
