//! Plans as they lie in files: which task runs in which lane, in which order, and what it waits for. What tasks read and write
//! is not stored; it follows from the net, and so the validator can tell whether a plan is still one for that net.

use std::collections::{HashMap, HashSet};

use super::build::nodes_of;
use super::lanes::chunk_of;
use super::{Node, Plan, PlanOptions, Schedule, Stage};
use crate::check::{Violation, check};
use crate::device::Lane;
use crate::layer::SubTask;
use crate::net::{LayerId, Net};
use crate::site::{Fault, Site, SpecError, did_you_mean};
use crate::task::{LaneId, TaskId, Tile};

/// The plans of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedPlan {
    /// The file that it was read from.
    pub site: Site,
    /// The network's name.
    pub network: String,
    /// Images of each device's part of the mini-batch.
    pub images: Vec<usize>,
    /// How it was made: the lanes of what it has no plan for, such as tests, are found in this way.
    pub schedule: Schedule,
    /// The priority of each lane.
    pub lanes: Vec<u8>,
    /// The tasks of all stages, each stage in its order of submission.
    pub tasks: Vec<SavedTask>,
}

/// A task of a stored plan.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedTask {
    /// Where it stands.
    pub site: Site,
    /// The stage that it belongs to.
    pub stage: Stage,
    /// The layer's name; of several that share it, from the second on with a number: `relu#2`.
    pub layer: String,
    /// What is done.
    pub sub: SubTask,
    /// By which device.
    pub device: usize,
    /// In which lane.
    pub lane: usize,
    /// What it waits for: places among the tasks of its stage, counted from 0.
    pub after: Vec<usize>,
    /// Of a transfer, the device that it is from, and the first element of the packed buffer.
    pub from: Option<(usize, usize)>,
    /// Of a task that is a chunk of a layer's images, these: counted from the first of the worker's mini-batch.
    pub chunk: Option<Tile>,
}

/// What tells a task from all others of its plan, but for other chunks of its images.
type Key = (String, SubTask, usize, Option<(usize, usize)>);

impl SavedTask {
    fn key(&self) -> Key {
        (self.layer.clone(), self.sub, self.device, self.from)
    }
}

fn key_of(node: &Node, nets: &[Net]) -> Key {
    let from = node.copy.as_ref().map(|copy| (copy.from.0, copy.range.start));
    (name_of(&nets[node.device.0], node.task.layer), node.task.sub, node.device.0, from)
}

/// A layer's name, and of several that share it, as layers without parameters may, from the second on a number.
fn name_of(net: &Net, layer: LayerId) -> String {
    let name = &net.layer(layer).name;
    match net.layers[..layer.0].iter().filter(|before| before.name == *name).count() {
        0 => name.clone(),
        before => format!("{name}#{}", before + 1),
    }
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; 5] = [Self::Iteration, Self::Gradients, Self::Part, Self::Update, Self::Forward];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iteration => "iteration",
            Self::Gradients => "gradients",
            Self::Part => "part",
            Self::Update => "update",
            Self::Forward => "forward",
        }
    }
}

impl SavedPlan {
    /// What is stored of `plans` of `nets`, which have each sub-task in the same lane.
    pub fn new(plans: &[&Plan], nets: &[Net], schedule: Schedule) -> Self {
        let site = Site::made("quadrille plan");
        let longest = plans.iter().max_by_key(|plan| plan.lanes.len());
        let task = |stage: Stage, node: &Node| {
            let (layer, sub, device, from) = key_of(node, nets);
            let after = node.waits.iter().map(|wait| wait.0).collect();
            let is_chunk = from.is_none() && node.task.tile.images < nets[node.device.0].batch();
            let (lane, chunk) = (node.lane.0, is_chunk.then_some(node.task.tile));
            SavedTask { site: site.clone(), stage, layer, sub, device, lane, after, from, chunk }
        };
        let tasks = plans.iter().flat_map(|plan| plan.nodes.iter().map(move |node| (plan.stage, node)));
        Self {
            network: nets.first().map_or(String::new(), |net| net.name.clone()),
            images: nets.iter().map(Net::batch).collect(),
            schedule,
            lanes: longest.map_or(Vec::new(), |plan| plan.lanes.iter().map(|l| l.priority).collect()),
            tasks: tasks.map(|(stage, node)| task(stage, node)).collect(),
            site,
        }
    }

    /// The plan of a stage for `nets`.
    ///
    /// # Errors
    /// If it is one for another network, mini-batch or number of devices, lacks tasks or has more of them, or the validator
    /// refuses it: with the file, the line and the field.
    pub fn plan(&self, nets: &[Net], options: PlanOptions) -> Result<Plan, SpecError> {
        self.check_nets(nets).map_err(|fault| fault.at(&self.site, "plan"))?;
        let stage = options.stage;
        let tasks: Vec<&SavedTask> = self.tasks.iter().filter(|task| task.stage == stage).collect();
        if tasks.is_empty() {
            let has = Stage::ALL.into_iter().filter(|stage| self.tasks.iter().any(|t| t.stage == *stage));
            let has: Vec<&str> = has.map(Stage::name).collect();
            let fault =
                Fault::new("stage", format!("no task of {}; it has {}", stage.name(), has.join(", ")));
            let hint = "a training of several workers needs gradients and update, that of one an iteration";
            return Err(fault.hint(hint).at(&self.site, "plan"));
        }
        let known =
            nodes_of(nets, options).map_err(|error| Fault::new("", error.0).at(&self.site, "plan"))?;
        let mut known: HashMap<Key, Node> =
            known.into_iter().map(|node| (key_of(&node, nets), node)).collect();
        let chunked: Vec<&SavedTask> = tasks.iter().copied().filter(|task| task.chunk.is_some()).collect();
        let chunks = Chunks::new(&chunked, &mut known);
        let mut nodes = Vec::with_capacity(tasks.len());
        for (place, task) in tasks.iter().enumerate() {
            let node = self.node(place, task, nets, &mut known, &chunks);
            nodes.push(node.map_err(|fault| fault.at(&task.site, "task"))?);
        }
        let lanes = self.lanes.iter().enumerate();
        let lanes = lanes.map(|(lane, priority)| Lane { id: LaneId(lane), priority: *priority }).collect();
        let plan = Plan { stage, devices: nets.len(), lanes, nodes };
        check(&plan, nets).map_err(|violation| {
            let at = task_of(&violation).and_then(|task| tasks.get(task.0));
            let (site, subject) = at.map_or((&self.site, "plan"), |task| (&task.site, "task"));
            Fault::new("", violation.to_string()).at(site, subject)
        })?;
        Ok(plan)
    }

    fn check_nets(&self, nets: &[Net]) -> Result<(), Fault> {
        let name = nets.first().map_or("", |net| net.name.as_str());
        if self.network != name {
            return Err(Fault::new("network", format!("{:?}; the network is {name:?}", self.network)));
        }
        let images: Vec<usize> = nets.iter().map(Net::batch).collect();
        if self.images != images {
            let list = |images: &[usize]| images.iter().map(usize::to_string).collect::<Vec<_>>().join(" + ");
            let text = format!("{}; the quadrants compute {} images", list(&self.images), list(&images));
            return Err(Fault::new("images", text));
        }
        if self.lanes.is_empty() {
            return Err(Fault::new("lane", "missing; expected at least one"));
        }
        Ok(())
    }

    /// The task number `place` of its stage, as the net has it.
    fn node(
        &self,
        place: usize,
        task: &SavedTask,
        nets: &[Net],
        known: &mut HashMap<Key, Node>,
        chunks: &Chunks,
    ) -> Result<Node, Fault> {
        let found = match task.chunk {
            Some(tile) => chunks.0.get(&task.key()).map(|whole| chunk_of(whole, tile)),
            None => known.remove(&task.key()),
        };
        let Some(node) = found else { return Err(unknown(task, nets)) };
        if task.lane >= self.lanes.len() {
            let text = format!("{}; there are {} lanes, counted from 0", task.lane, self.lanes.len());
            return Err(Fault::new("lane", text));
        }
        if let Some(late) = task.after.iter().find(|after| **after >= place) {
            return Err(Fault::new(
                "after",
                format!("{late}; this is task {place}, and waits for earlier ones"),
            ));
        }
        let mut seen = HashSet::new();
        let waits = task.after.iter().filter(|after| seen.insert(**after)).map(|after| TaskId(*after));
        Ok(Node { lane: LaneId(task.lane), waits: waits.collect(), ..node })
    }
}

/// The tasks of which there are chunks, as a whole.
struct Chunks(HashMap<Key, Node>);

impl Chunks {
    /// Takes them from all that are known. Whether chunks are possible and make up the whole, the validator says.
    fn new(chunks: &[&SavedTask], known: &mut HashMap<Key, Node>) -> Self {
        let mut wholes = HashMap::new();
        for key in chunks.iter().map(|task| task.key()) {
            if let Some(whole) = known.remove(&key) {
                wholes.insert(key, whole);
            }
        }
        Self(wholes)
    }
}

/// Why the net has no such task.
fn unknown(task: &SavedTask, nets: &[Net]) -> Fault {
    let Some(net) = nets.get(task.device) else {
        return Fault::new("device", format!("{}; there are {}, counted from 0", task.device, nets.len()));
    };
    let names: Vec<String> = (0..net.layers.len()).map(|layer| name_of(net, LayerId(layer))).collect();
    if !names.contains(&task.layer) {
        let fault = Fault::new("layer", format!("the network has no layer {:?}", task.layer));
        return match did_you_mean(&task.layer, names.iter().map(String::as_str)) {
            Some(close) => fault.hint(format!("did you mean {close:?}?")),
            None => fault.hint("was it made with other flags, such as --no-fusion?"),
        };
    }
    let text =
        format!("layer {:?} has no {} on device {}, or it is there twice", task.layer, task.sub, task.device);
    Fault::new("sub", text)
}

/// The task that a violation names, if it names one.
fn task_of(violation: &Violation) -> Option<TaskId> {
    match violation {
        Violation::Unknown(task)
        | Violation::WaitsForLater(task)
        | Violation::Race(_, task, _)
        | Violation::ReadBeforeWrite(task, _)
        | Violation::Overwritten(task, ..)
        | Violation::Changed(task, ..)
        | Violation::Overlap(task, ..)
        | Violation::WrongAccesses(task)
        | Violation::WrongCopy(task)
        | Violation::Unexpected(task) => Some(*task),
        Violation::Devices
        | Violation::Missing(..)
        | Violation::Tiles(_)
        | Violation::GradientNeeded(_)
        | Violation::WrongSum(..) => None,
    }
}
