//! The plans of a training.

use std::sync::Arc;

use quadrille_core::net::Net;
use quadrille_core::plan::{Overlap, Plan, PlanOptions, SavedPlan, Schedule, Stage};
use quadrille_io::prototxt::read_plan;

use crate::cli::{ClockKind, TrainArgs};
use crate::failure::{Code, Failure};
use crate::pool::{StreamPool, Worth, spread_by};
use crate::settings::Settings;

/// How tasks of a run are put into lanes.
#[derive(Clone, Debug, Default)]
pub struct Scheduling {
    /// How plans are made.
    pub schedule: Schedule,
    /// Plans that were made before, of what they cover.
    saved: Option<Arc<SavedPlan>>,
    /// Why, if it is not as asked for or as usual.
    why: &'static str,
    /// How many iterations are traced, if any are.
    pub traced: Option<u64>,
    /// Into how many chunks of images layers are cut on GPUs.
    pub pool: StreamPool,
}

impl Scheduling {
    /// As the flags say. `layer_by_layer` are runs that look at arrays between the layers; where gradients `leave` while backward
    /// runs, others wait for them as the next layer waits for ∇A.
    pub fn new(args: &TrainArgs, layer_by_layer: bool, leave: bool) -> Result<Self, Failure> {
        let asked = args.scheduling.schedule;
        let pool = args.scheduling.stream_pool.unwrap_or_default();
        pool.check(&args.machine.device)?;
        if args.plan.is_some() && args.scheduling.stream_pool.is_some() {
            let message = "--stream-pool: the plan of --plan has its chunks already; leave one of both out";
            return Err(Failure::new(Code::Usage, message));
        }
        let traced = args.tracing.trace.as_ref().map(|_| args.tracing.trace_iterations);
        if traced.is_some() && (layer_by_layer || args.clock == ClockKind::Sim) {
            let other = if layer_by_layer { "the solver's debug_info" } else { "--clock sim" };
            let message =
                format!("--trace: with {other} tasks do not run as they would; leave one of both out");
            return Err(Failure::new(Code::Usage, message));
        }
        if layer_by_layer {
            let flag = match asked {
                _ if args.plan.is_some() => "--plan",
                Some(Schedule::Concurrent | Schedule::Critical) => "--schedule",
                _ => {
                    let why = ": debug_info looks at arrays between layers";
                    return Ok(Self { schedule: Schedule::Layerwise, saved: None, why, traced, pool });
                }
            };
            let message = format!(
                "{flag}: the solver's debug_info looks at arrays layer by layer; leave one of both out"
            );
            return Err(Failure::new(Code::Usage, message));
        }
        let saved = args.plan.as_deref().map(read_plan).transpose()?.map(Arc::new);
        let (usual, why) = match leave {
            true => (Schedule::Concurrent, ": gradients leave while backward runs, so they are as urgent"),
            false => (Schedule::default(), ""),
        };
        let asked = saved.as_ref().map(|saved| saved.schedule).or(asked);
        let why = if asked.is_some() { "" } else { why };
        Ok(Self { schedule: asked.unwrap_or(usual), saved, why, traced, pool })
    }

    /// Refuses stored chunks of images where quadrants compute.
    ///
    /// # Errors
    /// If there are some.
    pub fn check_whole(&self) -> Result<(), Failure> {
        let chunk = |saved: &Arc<SavedPlan>| saved.tasks.iter().find(|task| task.chunk.is_some()).cloned();
        let Some(task) = self.saved.as_ref().and_then(chunk) else { return Ok(()) };
        let message = format!(
            "--plan: {}:{}: chunks of images are for a GPU's pool of streams, and quadrants compute layers whole; make a plan \
             without --stream-pool",
            task.site.file, task.site.line
        );
        Err(Failure::new(Code::Usage, message))
    }

    /// Plans a part of an iteration of `nets`: as it was stored, if it was.
    fn plan(&self, nets: &[Net], stage: Stage, elastic: bool) -> Result<Plan, Failure> {
        let options = PlanOptions { elastic, schedule: self.schedule, ..PlanOptions::new(stage) };
        match &self.saved {
            Some(saved) if stage != Stage::Forward => Ok(saved.plan(nets, options)?),
            _ => built(nets, options),
        }
    }

    /// Plans a test of `nets`.
    pub fn forward(&self, nets: &[Net]) -> Result<Plan, Failure> {
        self.plan(nets, Stage::Forward, false)
    }

    /// What was decided, for the first lines.
    pub fn describe(&self, plan: &Plan) -> String {
        let from = self.saved.as_ref().map_or(String::new(), |saved| format!(", by {}", saved.site.file));
        format!("schedule    {}{}{from}; {}", self.schedule, self.why, lanes_of(plan))
    }
}

/// Plans `nets`.
pub fn built(nets: &[Net], options: PlanOptions) -> Result<Plan, Failure> {
    Plan::build(nets, options).map_err(|error| Failure::new(Code::Bug, error.to_string()))
}

/// How many lanes a plan has, and of how many priorities.
pub fn lanes_of(plan: &Plan) -> String {
    let mut priorities: Vec<u8> = plan.lanes.iter().map(|lane| lane.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    format!("lanes: {}, priorities: {}", plan.lanes.len(), priorities.len())
}

/// The plans of an iteration. Unless the update waits for something, it is part of the last mini-batch's.
pub struct Plans {
    /// Load, forward and backward of every mini-batch but the last, if an iteration has several.
    pub part: Option<Plan>,
    /// Load, forward, backward, and sums over the quadrants; the update, too, if it has no plan of its own.
    pub gradients: Plan,
    /// The update after an exchange, or after the loss is known.
    pub update: Option<Plan>,
}

impl Plans {
    /// What finds the gradients of the `last` mini-batch of an iteration, or of an earlier one.
    pub fn of_part(&self, last: bool) -> &Plan {
        self.part.as_ref().filter(|_| !last).unwrap_or(&self.gradients)
    }

    /// The plans for `nets` under `settings`.
    pub fn new(nets: &[Net], settings: &Settings) -> Result<Self, Failure> {
        let scheduling = &settings.scheduling;
        let several = settings.solver.iter_size > 1;
        let part = several.then(|| scheduling.plan(nets, Stage::Part, false)).transpose()?;
        if !settings.updates_apart() {
            return Ok(Self {
                part,
                gradients: scheduling.plan(nets, Stage::Iteration, false)?,
                update: None,
            });
        }
        let update = scheduling.plan(nets, Stage::Update, settings.is_elastic())?;
        Ok(Self { part, gradients: scheduling.plan(nets, Stage::Gradients, false)?, update: Some(update) })
    }

    /// The same with sub-tasks in as many chunks of images as they are worth lanes.
    pub fn spread(self, nets: &[Net], worth: &Worth) -> Self {
        let spread = |plan| spread_by(plan, nets, worth);
        let Self { part, gradients, update } = self;
        Self { part: part.map(spread), gradients: spread(gradients), update: update.map(spread) }
    }

    /// How iterations overlap: where nothing comes between gradients and updates, and an iteration is one step.
    pub fn overlap(&self, nets: &[Net]) -> Option<Overlap> {
        let is_one = self.part.is_none() && self.gradients.stage == Stage::Iteration;
        is_one.then(|| self.gradients.overlap(nets))
    }

    /// All of them.
    pub fn all(&self) -> Vec<&Plan> {
        self.part.iter().chain([&self.gradients]).chain(&self.update).collect()
    }
}
