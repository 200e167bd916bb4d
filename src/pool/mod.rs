//! `--stream-pool`: layers in chunks of images, which run at once on a pool of streams of a GPU (GLP4NN).
//!
//! At first sight of a layer its kernels for a half of the images, for a quarter and so on are run alone and looked at (resource
//! tracker). From that follows how many of them the GPU has room for at once (analyzer), and so into how many chunks the layer could
//! be cut, on as many streams. Whether it is, and how, is decided by what whole plans are expected to take on the simulated device
//! (`costs`): chunks gain where they go on from layer to layer, and each costs a launch. What was decided is kept for the GPU,
//! network, layer and shape (maintainer): other workers, and tests of the same shapes, find it there.

mod costs;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerId, Net};
pub use quadrille_core::plan::lanes::Worth;
use quadrille_core::plan::lanes::{
    Candidates, Choice, Limits, Maintainer, Scheduler, Sight, Situation, WORTH_IT, Way, chunk_of,
    first_sight, spread,
};
use quadrille_core::plan::{Node, Plan};
use quadrille_core::sim::DeviceModel;
use quadrille_core::task::Task;
use quadrille_cpu::{EngineOptions, Program};
use quadrille_gpu::{Cuda, Sighting};

use crate::crews::OnGpus;
use crate::device_choice::DeviceChoice;
use crate::engine::on_gpu;
use crate::failure::{Code, Failure};
use costs::Costs;

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

/// The most chunks that are tried.
const MOST_CHUNKS: u32 = 32;

/// How many tasks plans that are compared have together.
const TASKS_COMPARED: usize = 6_000;

/// After so long no more plans are compared. Kernels of few blocks for many images take more time than their number tells.
const COMPARING: Duration = Duration::from_millis(100);

/// What of a plan can be cut, and into how many chunks.
struct Asked<'a> {
    nets: &'a [Net],
    plan: &'a Plan,
    /// Tasks that compute images apart.
    wholes: Vec<&'a Node>,
    /// Numbers of chunks that are tried.
    counts: Vec<u32>,
}

impl<'a> Asked<'a> {
    fn new(nets: &'a [Net], plan: &'a Plan, kernels: u32) -> Self {
        let apart = |node: &&Node| nets[0].computes_images_apart(node.task.layer, node.task.sub);
        let wholes = plan.nodes.iter().filter(apart).collect();
        let images = u32::try_from(nets[0].batch()).unwrap_or(u32::MAX);
        let most = images.min(kernels).min(MOST_CHUNKS);
        let tried = std::iter::successors(Some(2_u32), |chunks| Some(2 * chunks));
        Self { nets, plan, wholes, counts: tried.take_while(|chunks| *chunks <= most).collect() }
    }

    /// The first chunks of a task that is cut into each number: there is none with more images.
    fn first_chunks(&self, whole: &Node) -> impl Iterator<Item = Node> {
        let tiles = self.counts.iter().map(|chunks| whole.task.tile.chunks(*chunks as usize)[0]);
        tiles.map(|tile| chunk_of(whole, tile))
    }
}

/// What was seen of the first chunks of tasks, task by task, and what all of the plan takes.
struct Seen {
    chunks: Vec<Sighting>,
    costs: Costs,
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
    /// What their analysis took, and comparing plans.
    analyzed: Duration,
    /// What was chosen for the first plan, which is that of the training.
    choice: Option<Choice>,
}

impl Pools {
    /// Pools as the flag says.
    pub fn new(how: StreamPool) -> Self {
        let (kept, seen, unknown) = (Maintainer::default(), 0, 0);
        Self { how, kept, seen, unknown, profiled: Duration::ZERO, analyzed: Duration::ZERO, choice: None }
    }

    /// Into how many chunks the sub-tasks of a plan of `nets` are to be cut on a GPU.
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
        self.worth(&device, limits, nets, plan, |asked, wholes| {
            let cut = asked.counts.iter().map(|chunks| first_sight(plan, nets, *chunks));
            let cut: Vec<Plan> = cut.collect();
            let plans: Vec<&Plan> = [plan].into_iter().chain(&cut).collect();
            let program = Program { nets, plans: &plans };
            let worker = on_gpu(gpu, &[program], options, OnGpus { graph: false, ..how })?;
            let chunks = wholes.iter().flat_map(|whole| asked.first_chunks(whole)).map(|chunk| chunk.task);
            let mut seen = worker.first_sight(&chunks.collect::<Vec<Task>>())?;
            let chunks = seen.clone();
            seen.extend(worker.first_sight(&plan.nodes.iter().map(|node| node.task).collect::<Vec<Task>>())?);
            Ok(Seen { chunks, costs: Costs::seen(limits, &seen) })
        })
    }

    /// The same on a device that is simulated (sim).
    ///
    /// # Errors
    /// If the analysis fails.
    pub fn simulated(&mut self, model: &DeviceModel, nets: &[Net], plan: &Plan) -> Result<Worth, Failure> {
        self.worth("sim", model.limits, nets, plan, |asked, wholes| {
            let sighting = |chunk: Node| {
                let kernel = model.usage("kernel", &model.kernel_of(nets, &chunk));
                let nanoseconds = kernel.nanoseconds;
                Sighting { task: chunk.task, kernels: vec![kernel], by_libraries: 0, nanoseconds }
            };
            let chunks = wholes.iter().flat_map(|whole| asked.first_chunks(whole)).map(sighting);
            Ok(Seen { chunks: chunks.collect(), costs: Costs::described(model) })
        })
    }

    fn worth(
        &mut self,
        device: &str,
        limits: Limits,
        nets: &[Net],
        plan: &Plan,
        see: impl FnOnce(&Asked<'_>, &[&Node]) -> Result<Seen, Failure>,
    ) -> Result<Worth, Failure> {
        if self.how == StreamPool::Off {
            return Ok(Worth::new());
        }
        let asked = Asked::new(nets, plan, limits.kernels);
        let all = |of: &dyn Fn(&Task) -> u32| -> Worth {
            asked.wholes.iter().map(|node| ((node.task.layer, node.task.sub), of(&node.task))).collect()
        };
        if let StreamPool::Chunks(chunks) = self.how {
            return Ok(all(&|_| chunks));
        }
        let mut scheduler = Scheduler::new(limits, std::mem::take(&mut self.kept));
        let situation = |task: &Task| Situation::of(device, &nets[0], task);
        let is_new = |task: &Task| scheduler.look(&situation(task)) == Sight::First;
        let new: Vec<&Node> = asked.wholes.iter().filter(|node| is_new(&node.task)).copied().collect();
        let known = |scheduler: &Scheduler| {
            all(&|task| match scheduler.look(&situation(task)) {
                Sight::Again(lanes) => lanes,
                Sight::First => 1,
            })
        };
        if !new.is_empty() {
            let given = known(&scheduler);
            let start = Instant::now();
            let seen = see(&asked, &new)?;
            self.profiled += start.elapsed();
            let start = Instant::now();
            let analyzed = self.analyze(&asked, &new, &seen.chunks, &mut scheduler, situation)?;
            let choice = chosen(&asked, &analyzed, &given, &seen.costs)?;
            for node in new {
                let chunks = choice.worth.get(&(node.task.layer, node.task.sub)).copied().unwrap_or(1);
                scheduler.decided(situation(&node.task), chunks);
            }
            self.choice.get_or_insert(choice);
            self.analyzed += start.elapsed();
        }
        self.kept = scheduler.kept().clone();
        Ok(known(&scheduler))
    }

    /// What the analyzer finds for each of `wholes`, but for those of a library.
    fn analyze(
        &mut self,
        asked: &Asked<'_>,
        wholes: &[&Node],
        chunks: &[Sighting],
        scheduler: &mut Scheduler,
        situation: impl Fn(&Task) -> Situation,
    ) -> Result<Worth, Failure> {
        let mut worth = Worth::new();
        let each = asked.counts.len();
        for (at, whole) in wholes.iter().enumerate() {
            let own = &chunks[at * each..][..each];
            self.seen += 1;
            if own.iter().any(|seen| seen.by_libraries > 0) {
                self.unknown += 1;
                continue;
            }
            let sights = asked.counts.iter().zip(own).filter(|(_, seen)| !seen.kernels.is_empty());
            let sights: Vec<_> = sights.map(|(chunks, seen)| (*chunks, seen.kernels.clone())).collect();
            let analysis = scheduler.sighted(situation(&whole.task), &sights, LIMIT);
            let lanes = analysis.map_err(|error| Failure::new(Code::Bug, error.to_string()))?;
            worth.insert((whole.task.layer, whole.task.sub), lanes);
        }
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
            (0, _) => "no layer is cut".to_owned(),
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
            lines.extend(self.choice.as_ref().map(|choice| format!("            {}", why(choice))));
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

/// The best cut of a plan, of those for which there is time. The clock may decide how fast a plan is, never what it computes.
fn chosen(asked: &Asked<'_>, analyzed: &Worth, given: &Worth, costs: &Costs) -> Result<Choice, Failure> {
    let Asked { nets, plan, counts, .. } = asked;
    let candidates = Candidates { plan, nets, analyzed, given, counts, tasks: TASKS_COMPARED };
    let (start, mut compared) = (Instant::now(), 0);
    let choice = candidates.choose(|plan| {
        // Whole layers are what others are compared with.
        if compared > 0 && start.elapsed() > COMPARING {
            return Ok(f64::INFINITY);
        }
        compared += 1;
        costs.nearly(nets, plan)
    });
    let mut choice = choice?;
    if choice.way != Way::Whole {
        let of = |node: &Node| (node.task.layer, node.task.sub);
        let chunks = |node: &Node| choice.worth.get(&of(node)).or_else(|| given.get(&of(node)));
        let cut = spread((*plan).clone(), nets, |node| chunks(node).copied().unwrap_or(1));
        let (expected, whole) =
            (costs.exactly(nets, &cut)?, costs.exactly(nets, &spread_by((*plan).clone(), nets, given))?);
        // Times by few waves are not to be held against these.
        choice = Choice { expected, whole, analyzed: None, ..choice };
        // What gains in few waves may lose in all.
        if expected > WORTH_IT * whole {
            choice = Choice { worth: Worth::new(), way: Way::Whole, expected: whole, ..choice };
        }
    }
    let analyzed = choice.analyzed.filter(|time| time.is_finite());
    Ok(Choice { analyzed, tried: compared, ..choice })
}

/// Why a cut was chosen, in words.
fn why(choice: &Choice) -> String {
    let ms = |nanoseconds: f64| format!("{:.3} ms", nanoseconds * 1e-6);
    let analyzed = choice.analyzed.map(|time| format!(", {} layer by layer as analyzed", ms(time)));
    let whole = format!("{} with whole layers{}", ms(choice.whole), analyzed.unwrap_or_default());
    let took = match choice.way {
        Way::Whole => {
            return format!("no cut is expected to gain 1 %: {whole}; {} plans compared (sim)", choice.tried);
        }
        Way::Analyzed => "each as analyzed".to_owned(),
        Way::Alike(chunks) => format!("all in {chunks}"),
        Way::ByChain => "chain by chain".to_owned(),
    };
    format!("{took}: {} expected; {whole}; {} plans compared (sim)", ms(choice.expected), choice.tried)
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
