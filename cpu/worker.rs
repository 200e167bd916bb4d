//! A worker's devices: first mapped, which says what memory they need, and then placed in it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use quadrille_core::check::check;
use quadrille_core::device::{DeviceInfo, Lane};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, Phase};
use quadrille_core::plan::{Node, Plan, Stage, tiles};
use quadrille_core::solver::Rule;
use quadrille_core::task::{Copy, DeviceId};
use quadrille_numa::memory::plan::Need;

use crate::arena::{Arena, ArenaPlace, Homes, OutOfMemory, Purpose};
use crate::crew::{CrewThread, Crews, Home, Lanes, Recording, Scratch, Work, homes};
use crate::device::{Bound, BoundProgram, CpuDevice, Engine, TwoSteps};
use crate::isa::{Isa, Numerics, Precision};
use crate::lanes::{LaneTable, lanes_of};
use crate::layer::{Choice, MAX_STAGES};
use crate::machine::Machine;
use crate::memory::{BlobBytes, LaneMemory, PackedLengths, PackedMemory};
use crate::program::MappedNet;

/// The crew of one quadrant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrewSpec {
    /// A name for people.
    pub name: String,
    /// One entry for each thread: the CPU that it is pinned to, or `None` to let it roam.
    pub cpus: Vec<Option<usize>>,
    /// For each thread a name of the third-level cache that its CPU is behind; empty if all are behind one, or nobody knows.
    pub caches: Vec<usize>,
}

impl CrewSpec {
    /// Threads that may roam.
    pub fn roaming(name: &str, threads: usize) -> Self {
        Self { name: name.to_owned(), cpus: vec![None; threads], caches: Vec::new() }
    }

    /// How many third-level caches its threads are behind, as far as that is known.
    pub fn known_caches(&self) -> usize {
        let mut names = self.caches.clone();
        names.sort_unstable();
        names.dedup();
        names.len().max(1)
    }

    /// The homes of the threads among so many shares, or more.
    fn homes(&self, most: usize) -> Vec<Home> {
        match self.caches.len() == self.cpus.len() {
            true => homes(&self.caches, most),
            false => homes(&vec![0; self.cpus.len()], most),
        }
    }
}

/// What a worker's devices are to run.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// One net for each device.
    pub nets: &'a [Net],
    /// The plans that will be run on them.
    pub plans: &'a [&'a Plan],
}

/// How a worker's devices compute.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The kernels' tier.
    pub isa: Isa,
    /// The precision of products.
    pub precision: Precision,
    /// Forced implementations: (layer or type, implementation).
    pub kernels: Vec<(String, String)>,
    /// The update rule.
    pub rule: Rule,
    /// Whether updates are pulled by a centre (EASGD).
    pub elastic: bool,
    /// Whether threads without work look around for a while before they sleep; not when they share CPUs.
    pub spin: bool,
}

impl EngineOptions {
    /// Tier and precision.
    pub fn numerics(&self) -> Numerics {
        Numerics { isa: self.isa, precision: self.precision }
    }
}

/// A worker's devices could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// A plan that is not valid. A bug of the planner.
    Plan(String),
    /// A forced implementation that does not exist or cannot do the layer.
    Kernel(String),
    /// The system refused threads.
    Threads(String),
    /// The system refused memory: so many bytes in one piece.
    Memory(usize),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(reason) => write!(f, "invalid plan: {reason}"),
            Self::Kernel(reason) => f.write_str(reason),
            Self::Threads(reason) => write!(f, "cannot start the threads of a quadrant: {reason}"),
            Self::Memory(bytes) => {
                let mib = bytes.div_ceil(1 << 20);
                write!(f, "the system does not give {mib} MiB of memory; a smaller mini-batch needs less")
            }
        }
    }
}

impl std::error::Error for EngineError {}

impl From<OutOfMemory> for EngineError {
    fn from(error: OutOfMemory) -> Self {
        Self::Memory(error.bytes)
    }
}

/// A worker's quadrants with all they will run, before they have any memory: [`MappedWorker::needs`] says how much.
pub struct MappedWorker {
    crews: Vec<CrewSpec>,
    programs: Vec<MappedProgram>,
    choices: Vec<Choice>,
    packed: PackedLengths,
    /// Parts of the packed weights that devices on one node have together.
    together: Vec<Range<usize>>,
    /// Elements that each thread needs.
    scratch: usize,
    /// Entries that a lane needs.
    longest: usize,
    isa: Isa,
    spin: bool,
}

/// A program on all devices of a worker.
struct MappedProgram {
    nets: Vec<MappedNet>,
    copies: Vec<Copy>,
    /// The lanes of each device.
    lanes: Vec<Lane>,
}

impl MappedProgram {
    fn new(program: &Program<'_>, options: &EngineOptions) -> Result<Self, EngineError> {
        for plan in program.plans {
            check(plan, program.nets).map_err(|violation| EngineError::Plan(violation.to_string()))?;
        }
        let nets = tiles(program.nets).into_iter().enumerate();
        let nets = nets.map(|(device, tile)| {
            let lanes = LaneTable::new(program.plans, DeviceId(device))?;
            MappedNet::new(program.nets, device, tile, options, lanes)
        });
        let mut nets: Vec<MappedNet> = nets.collect::<Result<_, EngineError>>()?;
        for (device, net) in nets.iter_mut().enumerate() {
            program.plans.iter().try_for_each(|plan| net.find_terms(plan, DeviceId(device)))?;
        }
        MappedNet::find_sources(&mut nets);
        let mut copies: Vec<Copy> = Vec::new();
        for copy in program.plans.iter().flat_map(|p| p.nodes.iter().filter_map(|n| n.copy.clone())) {
            if !copies.contains(&copy) {
                copies.push(copy);
            }
        }
        Ok(Self { nets, copies, lanes: lanes_of(program.plans.iter().copied())? })
    }
}

impl MappedWorker {
    /// Chooses kernels for every layer and a place for every array, for one device for each entry of `crews`. Programs
    /// share weights, gradients, histories and centre.
    ///
    /// # Errors
    /// If a plan is not valid, the nets are not one for each crew with the same parameters, the CPU lacks the tier, or a
    /// forced implementation does not fit.
    pub fn new(
        crews: &[CrewSpec],
        programs: &[Program<'_>],
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        check_options(crews, programs, options)?;
        let packed = PackedLengths {
            parameters: programs.first().and_then(|p| p.nets.first()).map_or(0, |n| n.params.len()),
            histories: options.rule.kind.histories(),
            elastic: options.elastic,
            gathers: programs.iter().flat_map(|p| p.nets).any(|net| net.parts > 1),
        };
        let together = stepped_everywhere(programs);
        let plans = programs.iter().flat_map(|p| p.plans.iter().map(|plan| (p.nets, *plan)));
        let programs: Vec<MappedProgram> =
            programs.iter().map(|program| MappedProgram::new(program, options)).collect::<Result<_, _>>()?;
        let longest = plans.map(|(nets, plan)| entries(nets, plan)).max().unwrap_or(0);
        let nets = || programs.iter().flat_map(|program| &program.nets);
        let scratch = nets().map(|net| net.scratch).max().unwrap_or(0);
        let choices = nets().next().map_or(Vec::new(), |net| net.choices.clone());
        let (crews, isa, spin) = (crews.to_vec(), options.isa, options.spin);
        Ok(Self { crews, programs, choices, packed, together, scratch, longest, isa, spin })
    }

    /// The implementation that was chosen for each layer of the first program.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// What each device needs, in the order of [`Purpose::all`].
    pub fn needs(&self) -> Vec<Vec<Need>> {
        let need = |device, purpose: Purpose| purpose.need(self.bytes(device, purpose));
        let needs = |device| Purpose::all(self.programs.len()).map(|purpose| need(device, purpose)).collect();
        (0..self.crews.len()).map(needs).collect()
    }

    fn bytes(&self, device: usize, purpose: Purpose) -> usize {
        let lengths = |program: usize| self.programs[program].nets[device].map.lengths();
        match purpose {
            Purpose::Workspaces => self.lane_lengths(device).into_iter().map(Arena::bytes).sum(),
            Purpose::Scratch => self.crews[device].cpus.len() * Arena::bytes(self.scratch),
            Purpose::Values(program) => Arena::bytes(lengths(program)[0]),
            Purpose::Staging(program) => Arena::bytes(lengths(program)[1]),
            purpose => Arena::bytes(self.packed.of(purpose)),
        }
    }

    fn lane_lengths(&self, device: usize) -> Vec<usize> {
        LaneMemory::lengths(self.programs.iter().map(|program| &program.nets[device].map))
    }

    /// Packed buffers for each device. Those on one node have the parts of the weights together that are changed on all devices
    /// at once: nobody then writes them twice, and what one quadrant has read another may find in a cache that they share.
    fn packed_memory(&self, homes: &[&Homes]) -> Result<Vec<Arc<PackedMemory>>, OutOfMemory> {
        let mut made: Vec<Arc<PackedMemory>> = Vec::new();
        for own in homes {
            let memory = PackedMemory::new(self.packed, own)?;
            let node = |homes: &Homes| homes.node_of(Purpose::Weights);
            let first = made.iter().zip(homes).find(|(_, other)| node(other) == node(own));
            made.push(Arc::new(match first {
                Some((first, _)) => memory.with_weights_of(first, &self.together),
                None => memory,
            }));
        }
        Ok(made)
    }

    /// Makes the devices, with memory on nodes as `homes` say for each of them, and their crews. Threads touch first what
    /// is bound to a node. Crews whose homes are the same help each other.
    ///
    /// # Errors
    /// If memory or threads are refused.
    pub fn place(self, homes: &[Homes]) -> Result<CpuWorker, EngineError> {
        let nowhere = Homes::default();
        let homes: Vec<&Homes> = (0..self.crews.len()).map(|i| homes.get(i).unwrap_or(&nowhere)).collect();
        let lengths: Vec<_> = (0..self.crews.len()).map(|device| self.lane_lengths(device)).collect();
        let packed = self.packed_memory(&homes)?;
        let shared = packed.into_iter().zip(&homes).zip(lengths);
        let shared = shared
            .map(|((packed, homes), lengths)| Ok((packed, LaneMemory::new(&lengths, homes).map(Arc::new)?)));
        let shared: Vec<_> = shared.collect::<Result<_, OutOfMemory>>()?;
        let lanes_of_programs: Vec<Vec<Lane>> = self.programs.iter().map(|p| p.lanes.clone()).collect();
        let programs = self.programs.into_iter().enumerate().map(|(index, program)| {
            let homes = shared.iter().zip(&homes);
            let nets = program.nets.into_iter().zip(homes);
            let nets = nets.map(|(net, ((packed, lanes), homes))| net.placed(packed, lanes, index, homes));
            Ok(BoundProgram { nets: nets.collect::<Result<_, _>>()?, copies: program.copies })
        });
        let programs = programs.collect::<Result<_, OutOfMemory>>()?;
        let priorities = |lanes: &Vec<Lane>| lanes.iter().map(|lane| lane.priority).collect();
        let priorities: Vec<Vec<u8>> = lanes_of_programs.iter().map(priorities).collect();
        let first_like =
            |own: &&Homes| homes.iter().position(|other| other.are_near(own)).unwrap_or_default();
        let nodes: Vec<usize> = homes.iter().map(first_like).collect();
        let of_threads: Vec<_> = self.crews.iter().map(|c| c.homes(Machine::of(self.isa).shares)).collect();
        let lanes = Arc::new(Lanes::new(&nodes, &priorities, self.longest, &of_threads));
        let steps = self.crews.iter().map(|_| TwoSteps::default()).collect();
        let bound = Arc::new(Bound { programs, steps });
        let cpus: Vec<Vec<Option<usize>>> = self.crews.iter().map(|c| c.cpus.clone()).collect();
        let scratch = |homes: &&Homes| Scratch { len: self.scratch, home: homes.node_of(Purpose::Scratch) };
        let scratch: Vec<Scratch> = homes.iter().map(scratch).collect();
        let work: Arc<dyn Work> = bound.clone();
        let spin = if self.spin { Machine::of(self.isa).spin_looks } else { 0 };
        let (crews, refused) = Crews::start(lanes.clone(), &work, &cpus, &scratch, spin)
            .map_err(|error| EngineError::Threads(error.to_string()))?;
        let name = |c: &CrewSpec| DeviceInfo {
            name: c.name.clone(),
            threads: c.cpus.len(),
            isa: self.isa.to_string(),
        };
        let infos = self.crews.iter().map(name).collect();
        let worker = CpuWorker {
            engine: Arc::new(Engine { crews, lanes, bound, infos }),
            lanes: lanes_of_programs,
            choices: self.choices,
            notes: refused.into_iter().map(|r| format!("a thread is not pinned: {r}")).collect(),
        };
        Ok(worker.settled())
    }
}

/// The most that a lane ever holds of a plan: all stages of all tasks and all their waits. Whole iterations may overlap, so that
/// there are two of them.
fn entries(nets: &[Net], plan: &Plan) -> usize {
    let of_step = plan.nodes.iter().map(|node| MAX_STAGES + node.waits.len()).sum::<usize>();
    match plan.stage {
        Stage::Iteration => 2 * of_step + plan.overlap(nets).waits.iter().map(Vec::len).sum::<usize>(),
        _ => of_step,
    }
}

/// A worker's quadrants with all they run.
pub struct CpuWorker {
    engine: Arc<Engine>,
    /// Of each program.
    lanes: Vec<Vec<Lane>>,
    choices: Vec<Choice>,
    notes: Vec<String>,
}

impl CpuWorker {
    /// The devices of a worker in memory that is bound to no node: see [`MappedWorker`].
    ///
    /// # Errors
    /// Those of [`MappedWorker::new`] and [`MappedWorker::place`].
    pub fn new(
        crews: &[CrewSpec],
        programs: &[Program<'_>],
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        MappedWorker::new(crews, programs, options)?.place(&[])
    }

    /// Moves what was touched elsewhere to its node, and notes what the system refused.
    fn settled(mut self) -> Self {
        self.arenas().for_each(|(.., arena)| arena.settle());
        let mut refused: Vec<String> = self
            .arenas()
            .filter_map(|(.., arena)| {
                Some(format!("memory is not bound to its node: {}", arena.refused.as_ref()?))
            })
            .collect();
        refused.sort();
        refused.dedup();
        self.notes.extend(refused);
        self
    }

    /// All arenas with their device and purpose.
    fn arenas(&self) -> impl Iterator<Item = (usize, Purpose, &Arena)> {
        let programs = self.engine.bound.programs.iter().enumerate();
        let nets = programs.flat_map(|(program, bound)| {
            let nets = bound.nets.iter().enumerate();
            nets.flat_map(move |(device, net)| {
                net.memory.arenas(program).map(move |(purpose, arena)| (device, purpose, arena))
            })
        });
        nets.chain(self.engine.crews.scratch().map(|(device, arena)| (device, Purpose::Scratch, arena)))
    }

    /// Where all memory of all devices lies.
    pub fn places(&self) -> Vec<ArenaPlace> {
        let used = self.arenas().filter(|(.., arena)| arena.len > 0);
        used.flat_map(|(device, purpose, arena)| arena.places(device, purpose)).collect()
    }

    /// From when on the times of all devices count.
    pub fn origin(&self) -> std::time::Instant {
        self.engine.lanes.origin()
    }

    /// The threads of all devices.
    pub fn threads(&self) -> &[CrewThread] {
        self.engine.crews.threads()
    }

    /// What threads run while one of the programs does, to be noted.
    pub fn recording(&self, program: usize) -> Recording {
        Recording::new(self.engine.lanes.clone(), self.engine.crews.logs(), program)
    }

    /// The devices, as seen by one of the programs.
    pub fn devices(&self, program: usize) -> Vec<CpuDevice> {
        (0..self.engine.infos.len())
            .map(|index| CpuDevice::new(self.engine.clone(), index, program, self.lanes[program].clone()))
            .collect()
    }

    /// The implementation that was chosen for each layer of the first program.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// What the values and gradients of one of the programs take on all devices.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn blob_bytes(&self, program: usize) -> BlobBytes {
        let nets = self.engine.bound.programs[program].nets.iter();
        nets.map(|net| net.memory.blobs()).fold(BlobBytes::default(), |sum, net| BlobBytes {
            taken: sum.taken + net.taken,
            apart: sum.apart + net.apart,
        })
    }

    /// What the environment refused.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The parts of the packed weights, in their order, that every plan that changes them changes by tasks that find the gradient of
/// the whole mini-batch, each for some rows on all devices.
fn stepped_everywhere(programs: &[Program<'_>]) -> Vec<Range<usize>> {
    let trains = |program: &&Program<'_>| {
        let mut nodes = program.plans.iter().flat_map(|plan| &plan.nodes);
        let steps = |node: &Node| {
            let net = program.nets.get(node.device.0);
            net.is_some_and(|net| net.stepping_task(node.task.layer) == Some(node.task.sub))
        };
        nodes.any(|node| node.task.sub == SubTask::Update || steps(node))
    };
    let stepped = |program: &Program<'_>| -> Vec<Range<usize>> {
        let net = program.nets.first();
        let layers = net.into_iter().flat_map(|net| net.layers.iter().map(move |layer| (net, layer)));
        let weights = layers.filter(|(_, layer)| layer.steps_weight).filter_map(|(net, layer)| {
            let weight = layer.params.first()?;
            Some(net.params.view(*weight).range())
        });
        weights.collect()
    };
    let mut programs = programs.iter().filter(trains).map(stepped);
    let mut parts = programs.next().unwrap_or_default();
    for others in programs {
        parts.retain(|part| others.contains(part));
    }
    parts.sort_unstable_by_key(|part| part.start);
    parts
}

/// Checks what the engine relies on and nothing else has checked.
fn check_options(
    crews: &[CrewSpec],
    programs: &[Program<'_>],
    options: &EngineOptions,
) -> Result<(), EngineError> {
    options.numerics().check().map_err(EngineError::Kernel)?;
    if let Some(idle) = crews.iter().find(|c| c.cpus.is_empty()) {
        return Err(EngineError::Threads(format!("{} has no thread that would work", idle.name)));
    }
    let nets = || programs.iter().flat_map(|program| program.nets);
    if options.rule.clip.is_some() && nets().any(|net| net.phase == Phase::Train && !net.clips) {
        return Err(EngineError::Plan("gradients are clipped, but a net has no norm of them".into()));
    }
    let place = |net: &Net| -> Vec<(String, std::ops::Range<usize>)> {
        net.params.views().iter().map(|v| (v.name.clone(), v.range())).collect()
    };
    let first = programs.first().and_then(|p| p.nets.first()).map(place);
    for program in programs {
        if program.nets.len() != crews.len() {
            let (nets, crews) = (program.nets.len(), crews.len());
            return Err(EngineError::Plan(format!("{nets} nets for {crews} quadrants")));
        }
        if program.nets.iter().any(|net| Some(place(net)) != first) {
            return Err(EngineError::Plan(
                "nets with other parameters cannot share one packed buffer".into(),
            ));
        }
    }
    Ok(())
}
