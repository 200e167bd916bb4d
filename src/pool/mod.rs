//! `--stream-pool`: layers in chunks of images, which run at once on a pool of streams of a GPU (GLP4NN).
//!
//! At first sight of a layer its kernels for a half of the images, for a quarter and so on are run alone and looked at (resource
//! tracker). From that follows how many of them the GPU has room for at once (analyzer), and so into how many chunks the layer is
//! cut, on as many streams. What was found is kept for the GPU, network, layer and shape (maintainer): other workers, and tests of
//! the same shapes, find it there.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerId, Net};
use quadrille_core::plan::lanes::{Limits, Maintainer, Scheduler, Sight, Situation, first_sight, spread};
use quadrille_core::plan::{Node, Plan};
use quadrille_core::sim::DeviceModel;
use quadrille_core::task::Task;
use quadrille_cpu::{EngineOptions, Program};
use quadrille_gpu::{Cuda, Sighting};

use crate::crews::OnGpus;
use crate::device_choice::DeviceChoice;
use crate::engine::on_gpu;
use crate::failure::{Code, Failure};

/// What the analysis of a sub-task may take.
const LIMIT: Duration = Duration::from_millis(100);

/// Into how many chunks of images layers are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamPool {
    /// None is.
    #[default]
    Off,
    /// Each as the analyzer says.
    Auto,
    /// All into so many.
    Chunks(u32),
}

impl FromStr for StreamPool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("off", _) => Ok(Self::Off),
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(chunks @ 2..=128)) => Ok(Self::Chunks(chunks)),
            _ => Err(format!("{text:?}; expected off, auto, or a number of streams from 2 to 128")),
        }
    }
}

impl fmt::Display for StreamPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Chunks(chunks) => chunks.fmt(f),
        }
    }
}

impl StreamPool {
    /// Refuses it where there is nothing to decide.
    ///
    /// # Errors
    /// If it is asked for and no GPU computes.
    pub fn check(self, device: &DeviceChoice) -> Result<(), Failure> {
        if self == Self::Off || !device.is_cpu() {
            return Ok(());
        }
        let message = format!(
            "--stream-pool {self} has no meaning with --device {device}: tasks of a quadrant are in grains already, and \
             idle threads of its crew take those of all lanes"
        );
        Err(Failure::new(Code::Usage, message))
    }
}

/// How many lanes sub-tasks are worth.
pub type Worth = HashMap<(LayerId, SubTask), u32>;

/// The most chunks that are tried.
const MOST_CHUNKS: u32 = 32;

/// What of a net can be cut, and what is run at first sight to find out how.
struct Asked<'a> {
    nets: &'a [Net],
    /// Tasks that compute images apart.
    wholes: Vec<Task>,
    /// Numbers of chunks, and the plan with these tasks in so many.
    plans: Vec<(u32, Plan)>,
}

impl<'a> Asked<'a> {
    fn new(nets: &'a [Net], plan: &Plan, kernels: u32) -> Self {
        let apart = |node: &&Node| nets[0].computes_images_apart(node.task.layer, node.task.sub);
        let wholes: Vec<Task> = plan.nodes.iter().filter(apart).map(|node| node.task).collect();
        let images = u32::try_from(nets[0].batch()).unwrap_or(u32::MAX);
        let most = images.min(kernels).min(MOST_CHUNKS);
        let tried = std::iter::successors(Some(2_u32), |chunks| Some(2 * chunks));
        let tried = tried.take_while(|chunks| *chunks <= most);
        let plans = tried.map(|chunks| (chunks, first_sight(plan, nets, chunks))).collect();
        Self { nets, wholes, plans }
    }

    /// The first chunk of a task that is cut into so many: there is none with more images.
    fn first_chunk(whole: &Task, chunks: u32) -> Task {
        let tiles = whole.tile.chunks(chunks as usize);
        Task { tile: tiles.first().copied().unwrap_or(whole.tile), ..*whole }
    }
}

/// The stream pools of a run: what is known of layers, and what finding it out took.
pub struct Pools {
    how: StreamPool,
    kept: Maintainer,
    /// Sub-tasks that were seen for the first time.
    seen: usize,
    /// Sub-tasks whose kernels are a library's, so that nobody knows what they use: these stay whole.
    unknown: usize,
    /// What running and looking at them took.
    profiled: Duration,
    /// What their analysis took.
    analyzed: Duration,
}

impl Pools {
    /// Pools as the flag says.
    pub fn new(how: StreamPool) -> Self {
        let (kept, seen, unknown) = (Maintainer::default(), 0, 0);
        Self { how, kept, seen, unknown, profiled: Duration::ZERO, analyzed: Duration::ZERO }
    }

    /// How many lanes the sub-tasks of a plan of `nets` are worth on a GPU.
    ///
    /// # Errors
    /// If the GPU does not run the kernels, or their analysis fails.
    pub fn on_gpu(
        &mut self,
        gpu: &Cuda,
        nets: &[Net],
        plan: &Plan,
        options: &EngineOptions,
        how: OnGpus,
    ) -> Result<Worth, Failure> {
        let (device, limits) = (gpu.name(), gpu.limits()?);
        self.worth(&device, limits, nets, plan, |asked, tasks| {
            let plans: Vec<&Plan> = asked.plans.iter().map(|(_, plan)| plan).collect();
            let program = Program { nets: asked.nets, plans: &plans };
            let worker = on_gpu(gpu, &[program], options, OnGpus { graph: false, ..how })?;
            Ok(worker.first_sight(tasks)?)
        })
    }

    /// The same on a device that is simulated (sim).
    ///
    /// # Errors
    /// If the analysis fails.
    pub fn simulated(&mut self, model: &DeviceModel, nets: &[Net], plan: &Plan) -> Result<Worth, Failure> {
        self.worth("sim", model.limits, nets, plan, |asked, tasks| {
            let nodes = || asked.plans.iter().flat_map(|(_, plan)| &plan.nodes);
            let sighting = |task: &Task| {
                let node = nodes().find(|node| node.task == *task);
                let kernel = node.map(|node| model.usage("kernel", &model.kernel_of(asked.nets, node)));
                Sighting { task: *task, kernels: kernel.into_iter().collect(), by_libraries: 0 }
            };
            Ok(tasks.iter().map(sighting).collect())
        })
    }

    fn worth(
        &mut self,
        device: &str,
        limits: Limits,
        nets: &[Net],
        plan: &Plan,
        see: impl Fn(&Asked<'_>, &[Task]) -> Result<Vec<Sighting>, Failure>,
    ) -> Result<Worth, Failure> {
        if self.how == StreamPool::Off {
            return Ok(Worth::new());
        }
        let asked = Asked::new(nets, plan, limits.kernels);
        if let StreamPool::Chunks(chunks) = self.how {
            return Ok(asked.wholes.iter().map(|task| ((task.layer, task.sub), chunks)).collect());
        }
        let mut scheduler = Scheduler::new(limits, std::mem::take(&mut self.kept));
        let situation = |task: &Task| Situation::of(device, &nets[0], task);
        let is_new = |task: &&Task| scheduler.look(&situation(task)) == Sight::First;
        let new: Vec<Task> = asked.wholes.iter().filter(is_new).copied().collect();
        if !new.is_empty() {
            let chunks = |whole: &Task| {
                let plans = asked.plans.iter();
                plans.map(|(chunks, _)| Asked::first_chunk(whole, *chunks)).collect::<Vec<Task>>()
            };
            let start = Instant::now();
            let seen = see(&asked, &new.iter().flat_map(chunks).collect::<Vec<Task>>())?;
            self.profiled += start.elapsed();
            let start = Instant::now();
            let each = asked.plans.len();
            for (at, whole) in new.iter().enumerate() {
                let own = &seen[at * each..][..each];
                self.seen += 1;
                let known = own.iter().all(|seen| seen.by_libraries == 0);
                self.unknown += usize::from(!known);
                let sights =
                    asked.plans.iter().zip(own).filter(|(_, seen)| known && !seen.kernels.is_empty());
                let sights: Vec<_> =
                    sights.map(|((chunks, _), seen)| (*chunks, seen.kernels.clone())).collect();
                let analysis = scheduler.sighted(situation(whole), &sights, LIMIT);
                analysis.map_err(|error| Failure::new(Code::Bug, error.to_string()))?;
            }
            self.analyzed += start.elapsed();
        }
        let lanes = |task: &Task| match scheduler.look(&situation(task)) {
            Sight::Again(lanes) => lanes,
            Sight::First => 1,
        };
        let worth = asked.wholes.iter().map(|task| ((task.layer, task.sub), lanes(task))).collect();
        self.kept = scheduler.kept().clone();
        Ok(worth)
    }

    /// What became of a plan of `net`, for the first lines of a run.
    pub fn describe(&self, net: &Net, plan: &Plan) -> Vec<String> {
        let mut layers: Vec<(LayerId, SubTask, usize)> = Vec::new();
        for node in plan.nodes.iter().filter(|node| is_chunk(net, node)) {
            match layers.iter_mut().find(|known| (known.0, known.1) == (node.task.layer, node.task.sub)) {
                Some((.., chunks)) => *chunks += 1,
                None => layers.push((node.task.layer, node.task.sub, 1)),
            }
        }
        let of = |wanted: SubTask| layers.iter().filter(move |(_, sub, _)| *sub == wanted).count();
        let can = |wanted: SubTask| {
            (0..net.layers.len()).filter(|layer| net.computes_images_apart(LayerId(*layer), wanted)).count()
        };
        let counts = layers.iter().map(|(.., chunks)| *chunks);
        let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
        let each = if least == most { most.to_string() } else { format!("{least} to {most}") };
        let subs = [SubTask::Forward, SubTask::GradActivation];
        let cut = subs.map(|sub| format!("{sub} of {} of {} layers", of(sub), can(sub))).join(" and ");
        let what = match (most, self.how) {
            (0, StreamPool::Off) => "layers are whole".to_owned(),
            (0, _) => "no layer is cut: none leaves room for a second kernel".to_owned(),
            (_, how) => {
                let by = if how == StreamPool::Off { ", as the plan has it" } else { "" };
                format!("{cut} in {each} chunks of images, on as many streams{by}")
            }
        };
        let mut lines = vec![format!("stream pool {}: {what}", self.how)];
        if self.how == StreamPool::Auto {
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let unknown = match self.unknown {
                0 => String::new(),
                unknown => format!("; {unknown} are a library's, not seen into, and stay whole"),
            };
            lines.push(format!(
                "            {} sub-tasks seen for the first time in {:.1} ms, analyzed in {:.1} ms{unknown}",
                self.seen,
                ms(self.profiled),
                ms(self.analyzed)
            ));
        }
        lines
    }
}

/// Whether a task is a chunk of a layer's images.
pub fn is_chunk(net: &Net, node: &Node) -> bool {
    node.copy.is_none() && node.task.tile.images < net.batch()
}

/// The images of a task that is a chunk, to stand behind its name.
pub fn chunk_name(net: &Net, node: &Node) -> String {
    let tile = node.task.tile;
    if is_chunk(net, node) {
        format!(" of images {} to {}", tile.first, tile.end() - 1)
    } else {
        String::new()
    }
}

/// A plan of `nets` with sub-tasks in as many chunks as they are worth lanes.
pub fn spread_by(plan: Plan, nets: &[Net], worth: &Worth) -> Plan {
    if worth.is_empty() {
        return plan;
    }
    spread(plan, nets, |node| worth.get(&(node.task.layer, node.task.sub)).copied().unwrap_or(1))
}
