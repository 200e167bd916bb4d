//! The effective settings of a training run: the solver file, then the flags.

use std::sync::Arc;

use quadrille_comm::choice::{Algorithm, Choice, Way};
use quadrille_comm::protocol::{Keeper, Method};
use quadrille_core::machine::Machine;
use quadrille_core::net::{ParamLayout, ParamView};
use quadrille_core::site::Fault;
use quadrille_core::solver::{Decay, Policy, RuleKind, SolverSpec};
use quadrille_cpu::isa::Precision;
use quadrille_io::prototxt::read_machine;
use serde_json::{Value, json};

use crate::cli::{ClockKind, TrainArgs};
use crate::failure::{Code, Failure};
use crate::method;
use crate::nonfinite::OnNonfinite;
use crate::plan::training::Scheduling;
use crate::progress::TestResult;

/// What a run was told, with nothing left open.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The solver, after the flags.
    pub solver: SolverSpec,
    /// Number of workers.
    pub workers: usize,
    /// How they exchange.
    pub method: Method,
    /// ρ; 0 outside EASGD.
    pub rho: f32,
    /// Iterations from one exchange to the next.
    pub period: u64,
    /// How sums over all workers are formed.
    pub collective: Choice,
    /// Whether each array of parameters travels by itself.
    pub unpacked: bool,
    /// The solver's momentum, if the method is one without and it was not 0.
    pub momentum_aside: Option<f32>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The precision of products.
    pub precision: Precision,
    /// Accuracy of a test with which the run ends.
    pub target_accuracy: Option<f32>,
    /// What becomes of values that are not finite.
    pub on_nonfinite: OnNonfinite,
    /// Whose times the virtual clock has; `None` for the real clock.
    pub machine: Option<Arc<Machine>>,
    /// In which lanes tasks run.
    pub scheduling: Scheduling,
}

impl Settings {
    /// Applies the flags to the solver. `processes` are as many as there are, if there are several: each is a worker.
    pub fn new(mut solver: SolverSpec, args: &TrainArgs, processes: Option<usize>) -> Result<Self, Failure> {
        solver.max_iter = args.max_iter.unwrap_or(solver.max_iter);
        if solver.max_iter == 0 {
            let hint = "say how long to train: max_iter: 10000, for example, or the flag --max-iter";
            let fault = Fault::new("max_iter", "missing; expected at least 1").hint(hint);
            return Err(fault.at(&solver.site, "solver").into());
        }
        if let Some(field) = &solver.undone {
            let fault = Fault::new(field, "no training does this yet").hint("leave it out");
            return Err(fault.at(&solver.site, "solver").into());
        }
        if let Policy::Poly { max, .. } = &mut solver.policy {
            // The policy's end is the run's end, wherever that was said.
            *max = solver.max_iter;
        }
        solver.test_interval = args.test_interval.unwrap_or(solver.test_interval);
        if solver.test_interval > 0 && solver.test_nets.is_empty() {
            let message =
                "--test-interval: the solver has no test_iter, so the mini-batches of a test are not known";
            return Err(Failure::new(Code::Usage, message));
        }
        if args.target_accuracy.is_some() && solver.test_interval == 0 {
            let message = "--target-accuracy: nothing is tested; add test_interval and test_iter to the solver, or \
                           --test-interval";
            return Err(Failure::new(Code::Usage, message));
        }
        if solver.snapshot_hdf5 && !quadrille_io::HAS_HDF5 {
            let message = "snapshot_format: HDF5: this program is built without HDF5; leave the field out, or build with \
                           --features hdf5";
            return Err(Failure::new(Code::Usage, message));
        }
        if args.on_nonfinite == OnNonfinite::Rollback && processes.is_some() {
            let message = "--on-nonfinite rollback: several processes do not go back by themselves; with stop they end with code \
                           77, and --resume auto takes their last snapshot";
            return Err(Failure::new(Code::Usage, message));
        }
        if args.on_nonfinite == OnNonfinite::Rollback && solver.snapshot == 0 {
            let message = "--on-nonfinite rollback: the solver has no snapshot interval, so there is nothing to go back to; add \
                           snapshot: N to it";
            return Err(Failure::new(Code::Usage, message));
        }
        let workers = processes.or(args.workers).unwrap_or_else(|| default_workers(args));
        method::check_devices(args, workers)?;
        let momentum_aside = method::fit_rule(&mut solver, args, workers)?;
        let seed = args.seed.or(solver.seed).unwrap_or(1);
        let rho = method::rho(&solver, args, workers)?;
        let period = method::period(args, workers)?;
        let (collective, unpacked) = method::collective(args, workers)?;
        let (method, precision, target_accuracy) =
            (args.method, args.machine.precision, args.target_accuracy);
        let on_nonfinite = args.on_nonfinite;
        let machine = machine(args)?;
        let leave = workers > 1 && method == Method::SyncSgd && machine.is_none() && !on_nonfinite.is_close();
        let scheduling = Scheduling::new(args, solver.debug_info, leave)?;
        Ok(Self {
            workers,
            method,
            rho,
            period,
            collective,
            unpacked,
            momentum_aside,
            seed,
            precision,
            target_accuracy,
            on_nonfinite,
            machine,
            scheduling,
            solver,
        })
    }

    /// `sim` by the virtual clock, in which all that it brings is labelled.
    pub fn label(&self) -> Option<&'static str> {
        self.machine.is_some().then_some("sim")
    }

    /// Whether a centre pulls on the workers.
    pub fn is_elastic(&self) -> bool {
        self.workers > 1 && self.method.is_elastic()
    }

    /// Whether workers exchange in `iteration`.
    pub fn exchanges_in(&self, iteration: u64) -> bool {
        iteration.is_multiple_of(self.period)
    }

    /// Whether the centre is held beside the workers: by a master, or in memory that all share.
    pub fn keeps_centre_apart(&self) -> bool {
        self.workers > 1 && self.method.keeper() != Keeper::Workers
    }

    /// The method as it really runs: a single worker has nobody to exchange with.
    pub fn method_name(&self) -> &'static str {
        if self.workers == 1 { "sgd" } else { self.method.name() }
    }

    /// How sums of packed buffers of `net` travel between workers that exchange at once.
    pub fn way(&self, layout: &ParamLayout) -> Way {
        let parts = layout.views().iter().filter(|_| self.unpacked).map(ParamView::range);
        Way { choice: self.collective, parts: parts.filter(|part| !part.is_empty()).collect() }
    }

    /// The way of such sums by its name, and the order in which it adds.
    pub fn algorithm(&self, layout: &ParamLayout) -> Algorithm {
        match self.collective.of(layout.len(), self.workers) {
            Algorithm::Ring if self.unpacked => Algorithm::Tree,
            algorithm => algorithm,
        }
    }

    /// Whether workers sum packed buffers.
    pub fn sums(&self) -> bool {
        self.workers > 1 && self.method.is_synchronous()
    }

    /// Iterations over which the loss that is shown is averaged.
    pub fn average_loss(&self) -> usize {
        usize::try_from(self.solver.average_loss).unwrap_or(usize::MAX)
    }

    /// Whether updates have a plan of their own, since they wait for other workers or for the loss, or since gradients
    /// are to be looked at or shown as a whole before them.
    pub fn updates_apart(&self) -> bool {
        self.workers > 1
            || self.solver.rate_follows_loss()
            || self.solver.debug_info
            || self.on_nonfinite.is_close()
    }

    /// Whether the run shows how it stands after `iteration`.
    pub fn displays(&self, iteration: u64) -> bool {
        self.solver.display > 0 && iteration.is_multiple_of(self.solver.display)
    }

    /// Whether the run tests before `iteration`.
    pub fn tests_before(&self, iteration: u64) -> bool {
        let interval = self.solver.test_interval;
        let wanted = iteration > 0 || self.solver.test_initialization;
        interval > 0 && iteration.is_multiple_of(interval) && wanted
    }

    /// Whether what a test found is what the run was to reach.
    pub fn is_reached(&self, found: TestResult) -> bool {
        self.target_accuracy.zip(found.accuracy).is_some_and(|(target, accuracy)| accuracy >= target)
    }

    /// Whether the run leaves a snapshot when so many iterations are done.
    pub fn leaves_snapshot_after(&self, iterations: u64) -> bool {
        self.solver.snapshot > 0 && iterations.is_multiple_of(self.solver.snapshot)
    }

    /// The settings as they are stored with the run and compared between workers.
    pub fn to_json(&self) -> Value {
        let solver = &self.solver;
        let numbers = RuleNumbers::of(solver.rule.kind);
        json!({
            "net": solver.train_net.name(),
            "base_lr": solver.base_lr,
            "lr_policy": policy_to_json(&solver.policy),
            "warmup_iter": solver.warmup.map_or(0, |warmup| warmup.iterations),
            "warmup_start_lr": solver.warmup.map_or(0.0, |warmup| warmup.start),
            "type": solver.rule.kind.name(),
            "momentum": numbers.momentum,
            "momentum2": numbers.momentum2,
            "rms_decay": numbers.rms_decay,
            "delta": numbers.delta,
            "weight_decay": solver.rule.weight_decay,
            "regularization_type": match solver.rule.decay {
                Decay::L2 => "L2",
                Decay::L1 => "L1",
            },
            "clip_gradients": solver.rule.clip,
            "iter_size": solver.iter_size,
            "average_loss": solver.average_loss,
            "display": solver.display,
            "test_initialization": solver.test_initialization,
            "snapshot_after_train": solver.snapshot_after_train,
            "max_iter": solver.max_iter,
            "test_iter": solver.test_nets.iter().map(|test| test.batches).collect::<Vec<_>>(),
            "test_nets": solver.test_nets.iter().map(|test| test.source.name()).collect::<Vec<_>>(),
            "test_interval": solver.test_interval,
            "target_accuracy": self.target_accuracy,
            "snapshot": solver.snapshot,
            "method": self.method_name(),
            "workers": self.workers,
            "rho": self.rho,
            "period": self.period,
            "collective": self.collective.to_string(),
            "unpacked": self.unpacked,
            "seed": self.seed,
            "precision": self.precision.to_string(),
            "clock": self.label().unwrap_or("real"),
            "machine": self.machine.as_ref().map(|machine| &machine.name),
        })
    }
}

/// The numbers of a rule by the names of the solver file's fields; `None` where the rule has no such number.
#[derive(Default)]
struct RuleNumbers {
    momentum: Option<f32>,
    momentum2: Option<f32>,
    rms_decay: Option<f32>,
    delta: Option<f32>,
}

impl RuleNumbers {
    fn of(kind: RuleKind) -> Self {
        let none = Self::default();
        match kind {
            RuleKind::Sgd { momentum } | RuleKind::Nesterov { momentum } => {
                Self { momentum: Some(momentum), ..none }
            }
            RuleKind::AdaGrad { delta } => Self { delta: Some(delta), ..none },
            RuleKind::RmsProp { decay, delta } => Self { rms_decay: Some(decay), delta: Some(delta), ..none },
            RuleKind::AdaDelta { momentum, delta } => {
                Self { momentum: Some(momentum), delta: Some(delta), ..none }
            }
            RuleKind::Adam { momentum, momentum2, delta } => {
                Self { momentum: Some(momentum), momentum2: Some(momentum2), delta: Some(delta), ..none }
            }
        }
    }
}

/// A policy by the names of the solver file's fields.
fn policy_to_json(policy: &Policy) -> Value {
    let name = policy.name();
    match policy {
        Policy::Fixed => json!({"type": name}),
        Policy::Step { gamma, step } => json!({"type": name, "gamma": gamma, "stepsize": step}),
        Policy::Exp { gamma } => json!({"type": name, "gamma": gamma}),
        Policy::Inv { gamma, power } => json!({"type": name, "gamma": gamma, "power": power}),
        Policy::MultiStep { gamma, steps } => {
            json!({"type": name, "gamma": gamma, "stepvalue": steps})
        }
        Policy::Poly { power, max } => json!({"type": name, "power": power, "max_iter": max}),
        Policy::Plateau { gamma, windows } => {
            json!({"type": name, "gamma": gamma, "plateau_winsize": windows})
        }
        Policy::Sigmoid { gamma, step } => json!({"type": name, "gamma": gamma, "stepsize": step}),
        Policy::MultiFixed(stages) => {
            let rates: Vec<f32> = stages.iter().map(|stage| stage.rate).collect();
            let ends: Vec<u64> = stages.iter().map(|stage| stage.last).collect();
            json!({"type": name, "stagelr": rates, "stageiter": ends})
        }
    }
}

/// The machine of the virtual clock.
fn machine(args: &TrainArgs) -> Result<Option<Arc<Machine>>, Failure> {
    match (args.clock, &args.machine_file) {
        (ClockKind::Real, None) => Ok(None),
        (ClockKind::Sim, Some(file)) => Ok(Some(Arc::new(read_machine(file)?))),
        (ClockKind::Real, Some(_)) => {
            Err(Failure::new(Code::Usage, "--machine: the figures of a machine are for --clock sim"))
        }
        (ClockKind::Sim, None) => {
            let message = "--clock sim: needs --machine FILE, whose figures the clock goes by\n  hint: see bench/machines, or \
                           measure this machine: quadrille-bench machine --record FILE";
            Err(Failure::new(Code::Usage, message))
        }
    }
}

/// One worker, as in Caffe; two for the bundled demonstration where there are two CPUs, so that it shows what the
/// program is for.
fn default_workers(args: &TrainArgs) -> usize {
    let demonstration = args.solver.is_none() && args.model.is_none();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if demonstration && cpus > 1 && args.machine.quadrants.is_none() { 2 } else { 1 }
}
