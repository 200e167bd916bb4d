//! `CpuDevice`: a quadrant as a device of the one scheduler.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use quadrille_core::check::check;
use quadrille_core::device::{Device, DeviceError, DeviceInfo, Event, Lane, Packed, Region, Scalars, Span};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, Phase, StorageId};
use quadrille_core::plan::{LaneRole, Plan, tiles};
use quadrille_core::solver::Rule;
use quadrille_core::task::{Copy, LaneId, Task};

use crate::crew::{Crews, LANES, Lanes, Ticket, Work};
use crate::isa::{Isa, Numerics, Precision};
use crate::layer::{Choice, Grain, MAX_STAGES, Stages};
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::{BlobBytes, LaneMemory, Memory, OutOfMemory, PackedMemory};
use crate::program::{BoundLayer, BoundNet, MappedNet, width};

/// The crew of one quadrant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrewSpec {
    /// A name for people.
    pub name: String,
    /// One entry for each thread: the CPU that it is pinned to, or `None` to let it roam.
    pub cpus: Vec<Option<usize>>,
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

/// A net on all devices of a worker.
struct BoundProgram {
    nets: Vec<BoundNet>,
    copies: Vec<Copy>,
}

/// Everything that the crews need to run a grain.
struct Bound {
    programs: Vec<BoundProgram>,
    iteration: AtomicU64,
    rate: AtomicU32,
    elastic: AtomicU32,
    seed: AtomicU64,
}

/// What is pushed into a lane, in one word: 8 bits program, 8 bits kind, 8 bits stage, 32 bits layer or copy.
#[derive(Clone, Copy)]
struct Payload {
    program: usize,
    kind: u8,
    stage: usize,
    index: usize,
}

const COPY: u8 = SubTask::ALL.len() as u8;

impl Payload {
    fn pack(self) -> u64 {
        (self.program as u64) << 48
            | u64::from(self.kind) << 40
            | (self.stage as u64) << 32
            | self.index as u64
    }

    fn unpack(word: u64) -> Self {
        Self {
            program: (word >> 48) as usize & 0xff,
            kind: (word >> 40) as u8,
            stage: (word >> 32) as usize & 0xff,
            index: (word & 0xffff_ffff) as usize,
        }
    }

    fn sub(self) -> Option<SubTask> {
        SubTask::ALL.get(usize::from(self.kind)).copied()
    }
}

/// Elements of a transfer that are worth a grain of their own come from the machine table of the lowest tier:
/// transfers are bound by memory on every tier.
pub(crate) const COPY_GRAIN: usize = Machine::of(Isa::Portable).grain_elements;

impl Bound {
    fn scalars(&self) -> Scalars {
        let float = |bits: &AtomicU32| f32::from_bits(bits.load(Ordering::Relaxed));
        Scalars {
            iteration: self.iteration.load(Ordering::Relaxed),
            rate: float(&self.rate),
            elastic: float(&self.elastic),
            seed: self.seed.load(Ordering::Relaxed),
        }
    }

    fn stages(&self, device: usize, payload: Payload) -> Stages {
        let program = &self.programs[payload.program];
        let Some(sub) = payload.sub() else {
            return Stages::one(program.copies[payload.index].range.len().div_ceil(COPY_GRAIN));
        };
        let layer = &program.nets[device].layers[payload.index];
        match sub {
            SubTask::Update => Stages::one(layer.update.grains()),
            SubTask::Load => Stages::one(1),
            SubTask::AddShared => Stages::one(layer.shared.len()),
            SubTask::Gather | SubTask::Total | SubTask::Norm => {
                layer.gradients.stages(sub).unwrap_or(Stages::one(1))
            }
            sub => layer.kernel.stages(sub),
        }
    }

    fn copy(&self, payload: Payload, grain: usize) {
        let program = &self.programs[payload.program];
        let copy = &program.copies[payload.index];
        let start = copy.range.start + grain * COPY_GRAIN;
        let part = Memory::packed(Packed::Gradients, start..(start + COPY_GRAIN).min(copy.range.end));
        // SAFETY: the plan orders the transfer after both sums and before their next use; grains have parts of
        // their own; the devices are two different ones.
        let (to, from) = unsafe {
            (program.nets[copy.to.0].memory.write(part), program.nets[copy.from.0].memory.read(part))
        };
        if copy.add {
            to.iter_mut().zip(from).for_each(|(sum, value)| *sum += value);
        } else {
            to.copy_from_slice(from);
        }
    }
}

impl Work for Bound {
    fn run(&self, device: usize, payload: u64, grain: usize, scratch: &mut [f32]) {
        let payload = Payload::unpack(payload);
        let Some(sub) = payload.sub() else { return self.copy(payload, grain) };
        let net = &self.programs[payload.program].nets[device];
        let layer = &net.layers[payload.index];
        let stage = payload.stage;
        let grains = self.stages(device, payload).iter().nth(stage).unwrap_or(1) as usize;
        let (scalars, update, first_image) = (self.scalars(), &layer.update, net.tile.first);
        let mut grain =
            Grain { memory: &net.memory, index: grain, grains, stage, scratch, scalars, update, first_image };
        match sub {
            SubTask::Update => update.run(&mut grain),
            SubTask::Gather => layer.gradients.gather(&mut grain),
            SubTask::Total => layer.gradients.total(&mut grain),
            SubTask::Norm => layer.gradients.norm(&mut grain),
            SubTask::Load => {
                for (stage, storage) in &layer.loads {
                    // SAFETY: the task's only grain; stage and storage are different arrays.
                    unsafe { net.memory.write(*storage).copy_from_slice(net.memory.read(*stage)) }
                }
            }
            SubTask::AddShared => {
                let Some((own, gradient)) = layer.shared.get(grain.index).copied() else { return };
                // SAFETY: grains have pieces of their own; the layer's own gradient is another array than the whole.
                let (sum, own) = unsafe { (net.memory.write(gradient), net.memory.read(own)) };
                sum.iter_mut().zip(own).for_each(|(sum, value)| *sum += value);
            }
            // Transfers come as copies.
            SubTask::Accumulate | SubTask::Broadcast => {}
            sub => layer.kernel.compute(sub, &mut grain),
        }
    }
}

struct Engine {
    // Dropped first: the threads end before what they work on goes.
    _crews: Crews,
    lanes: Arc<Lanes>,
    bound: Arc<Bound>,
    infos: Vec<DeviceInfo>,
}

/// A worker's quadrants with all they run.
pub struct CpuWorker {
    engine: Arc<Engine>,
    choices: Vec<Choice>,
    notes: Vec<String>,
}

impl CpuWorker {
    /// Makes the devices of a worker: memory for all programs, kernels for every layer, one crew for each entry
    /// of `crews`. Programs share weights, gradients, histories and centre.
    ///
    /// # Errors
    /// If a plan is not valid, the nets are not one for each crew with the same parameters, the CPU lacks the tier, a
    /// forced implementation does not fit, or memory or threads are refused.
    pub fn new(
        crews: &[CrewSpec],
        programs: &[Program<'_>],
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let packed: Vec<Arc<PackedMemory>> = (0..crews.len())
            .map(|_| {
                let len = programs.first().and_then(|p| p.nets.first()).map_or(0, |n| n.params.len());
                let gathers = programs.iter().flat_map(|p| p.nets).any(|net| net.parts > 1);
                let histories = options.rule.kind.histories();
                PackedMemory::new(len, histories, options.elastic, gathers).map(Arc::new)
            })
            .collect::<Result<_, _>>()?;
        check_options(crews, programs, options)?;
        let mut mapped: Vec<Vec<MappedNet>> = Vec::new();
        for program in programs {
            for plan in program.plans {
                check(plan, program.nets).map_err(|violation| EngineError::Plan(violation.to_string()))?;
            }
            let nets = program.nets.iter().zip(tiles(program.nets));
            mapped
                .push(nets.map(|(net, tile)| MappedNet::new(net, tile, options)).collect::<Result<_, _>>()?);
        }
        let scratch = mapped.iter().flatten().map(|net| net.scratch).max().unwrap_or(0);
        let choices = mapped.first().and_then(|p| p.first()).map_or(Vec::new(), |net| net.choices.clone());
        let lanes: Vec<Arc<LaneMemory>> = (0..crews.len())
            .map(|device| LaneMemory::new(mapped.iter().map(|nets| &nets[device].map)).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let mut bound = Vec::new();
        for (program, nets) in programs.iter().zip(mapped) {
            let memories = packed.iter().zip(&lanes);
            let nets = nets.into_iter().zip(memories).map(|(net, (packed, lanes))| net.placed(packed, lanes));
            let nets = nets.collect::<Result<_, _>>()?;
            let copies = program.plans.iter().flat_map(|p| p.nodes.iter().filter_map(|n| n.copy.clone()));
            let mut distinct: Vec<Copy> = Vec::new();
            for copy in copies {
                if !distinct.contains(&copy) {
                    distinct.push(copy);
                }
            }
            bound.push(BoundProgram { nets, copies: distinct });
        }
        // No lane gets more than all stages of all tasks of a plan and all their waits.
        let entries = |plan: &&Plan| plan.nodes.iter().map(|n| MAX_STAGES + n.waits.len()).sum::<usize>();
        let longest = programs.iter().flat_map(|p| p.plans).map(entries).max().unwrap_or(0);
        let lanes = Arc::new(Lanes::new(crews.len(), longest));
        let bound = Arc::new(Bound {
            programs: bound,
            iteration: AtomicU64::new(0),
            rate: AtomicU32::new(0),
            elastic: AtomicU32::new(0),
            seed: AtomicU64::new(0),
        });
        let cpus: Vec<Vec<Option<usize>>> = crews.iter().map(|c| c.cpus.clone()).collect();
        let work: Arc<dyn Work> = bound.clone();
        let spin = if options.spin { Machine::of(options.isa).spin_looks } else { 0 };
        let (threads, refused) = Crews::start(lanes.clone(), &work, &cpus, scratch, spin)
            .map_err(|error| EngineError::Threads(error.to_string()))?;
        let infos = crews
            .iter()
            .map(|c| DeviceInfo { name: c.name.clone(), threads: c.cpus.len(), isa: options.isa.to_string() })
            .collect();
        Ok(Self {
            engine: Arc::new(Engine { _crews: threads, lanes, bound, infos }),
            choices,
            notes: refused.into_iter().map(|r| format!("a thread is not pinned: {r}")).collect(),
        })
    }

    /// The devices, as seen by one of the programs.
    pub fn devices(&self, program: usize) -> Vec<CpuDevice> {
        let lanes: Vec<Lane> =
            LaneRole::ALL.iter().map(|r| Lane { id: r.lane(), priority: *r as u8 }).collect();
        (0..self.engine.infos.len())
            .map(|index| CpuDevice { engine: self.engine.clone(), index, program, lanes: lanes.clone() })
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

/// One quadrant, running one program.
#[derive(Clone)]
pub struct CpuDevice {
    engine: Arc<Engine>,
    index: usize,
    program: usize,
    lanes: Vec<Lane>,
}

/// A task of a [`CpuDevice`].
#[derive(Clone)]
pub struct CpuEvent {
    engine: Arc<Engine>,
    /// The first stage and the last, which ends the task.
    first: Ticket,
    last: Ticket,
}

impl Event for CpuEvent {
    fn is_done(&self) -> bool {
        self.engine.lanes.is_done(self.last)
    }

    fn span(&self) -> Option<Span> {
        // First whether it is done: only then are the times its own.
        self.is_done().then(|| {
            let ((start, _), (_, end)) =
                (self.engine.lanes.span(self.first), self.engine.lanes.span(self.last));
            Span { start, end }
        })
    }
}

impl CpuDevice {
    fn name(&self) -> String {
        self.engine.infos[self.index].name.clone()
    }

    fn unknown(&self, what: String) -> DeviceError {
        DeviceError::Unknown { device: self.name(), what }
    }

    fn check_alive(&self) -> Result<(), DeviceError> {
        match self.engine.lanes.failure() {
            Some(reason) => Err(DeviceError::Failed { device: self.name(), reason }),
            None => Ok(()),
        }
    }

    fn lane(&self, lane: LaneId) -> Result<u32, DeviceError> {
        self.check_alive()?;
        if lane.0 >= LANES {
            return Err(self.unknown(format!("lane {}", lane.0)));
        }
        Ok((self.index * LANES + lane.0) as u32)
    }

    fn full(&self) -> DeviceError {
        DeviceError::QueueFull { device: self.name(), capacity: self.engine.lanes.capacity() }
    }

    fn push(&self, lane: LaneId, payload: Payload) -> Result<CpuEvent, DeviceError> {
        let lane = self.lane(lane)?;
        let stages = self.engine.bound.stages(self.index, payload);
        let net = &self.engine.bound.programs[self.program].nets[self.index];
        let layer = payload.sub().map(|sub| (&net.layers[payload.index], sub));
        let width = width(layer, self.engine.infos[self.index].threads);
        let mut tickets = None;
        for (stage, grains) in stages.iter().enumerate() {
            let word = Payload { stage, ..payload }.pack();
            let ticket = self.engine.lanes.push_narrow(lane, word, grains, width);
            let last = ticket.ok_or_else(|| self.full())?;
            tickets = Some((tickets.map_or(last, |(first, _)| first), last));
        }
        let (first, last) = tickets.ok_or_else(|| self.full())?;
        Ok(CpuEvent { engine: self.engine.clone(), first, last })
    }

    fn memory(&self) -> &Memory {
        &self.engine.bound.programs[self.program].nets[self.index].memory
    }

    /// Bytes that an element of a value or gradient takes on this device: 4, or 2 where it is kept in bf16.
    ///
    /// # Panics
    /// If the net has no such storage.
    pub fn element_bytes(&self, id: StorageId) -> usize {
        self.memory().element_bytes(id)
    }

    /// Fills with `word` all that need not live from one step to the next: values, gradients, layers' state, workspaces.
    /// Nothing that a step computes depends on what was there; with NaN that shows, in halves of words that hold bf16,
    /// too, if both halves are NaN: [`NAN_HALVES`](crate::NAN_HALVES). Only between steps.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn fill_transient(&self, word: f32) -> Result<(), DeviceError> {
        self.check_alive()?;
        // SAFETY: no step runs, so no task does.
        unsafe { self.memory().fill_transient(word) };
        Ok(())
    }

    /// Where the beginning of a region lies, or all of a region that is not plain.
    fn region(
        &self,
        region: Region,
        len: usize,
    ) -> Result<(crate::memory::Span, Option<Arrangement>), DeviceError> {
        // After a failure threads may still be working on grains of other tasks.
        self.check_alive()?;
        if self.memory().is_shared(region) {
            let what = format!("access to {region:?} from outside: it shares its memory with other arrays");
            return Err(self.unknown(what));
        }
        let unknown = || self.unknown(format!("{len} elements of {region:?}"));
        match self.memory().region(region).ok_or_else(unknown)? {
            (span, Some(blocked)) if len == blocked.count() => Ok((span, Some(blocked))),
            (span, None) if len <= span.len() => Ok((span.part(0..len), None)),
            _ => Err(unknown()),
        }
    }
}

impl Device for CpuDevice {
    type Event = CpuEvent;

    fn info(&self) -> &DeviceInfo {
        &self.engine.infos[self.index]
    }

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn begin(&self, scalars: &Scalars) -> Result<(), DeviceError> {
        self.check_alive()?;
        let bound = &self.engine.bound;
        bound.iteration.store(scalars.iteration, Ordering::Relaxed);
        bound.rate.store(scalars.rate.to_bits(), Ordering::Relaxed);
        bound.elastic.store(scalars.elastic.to_bits(), Ordering::Relaxed);
        bound.seed.store(scalars.seed, Ordering::Relaxed);
        Ok(())
    }

    fn submit(&self, lane: LaneId, task: &Task) -> Result<CpuEvent, DeviceError> {
        let net = &self.engine.bound.programs[self.program].nets[self.index];
        let is_transfer = matches!(task.sub, SubTask::Accumulate | SubTask::Broadcast);
        let has_it = |layer: &BoundLayer| match task.sub {
            SubTask::StepWeight => layer.update.steps_weight(),
            SubTask::Gather | SubTask::Total | SubTask::Norm => layer.gradients.stages(task.sub).is_some(),
            _ => !is_transfer,
        };
        let kind = SubTask::ALL.iter().position(|s| *s == task.sub);
        match kind {
            _ if task.tile != net.tile => Err(self.unknown(format!("{:?}", task.tile))),
            Some(kind) if net.layers.get(task.layer.0).is_some_and(has_it) => self.push(
                lane,
                Payload { program: self.program, kind: kind as u8, stage: 0, index: task.layer.0 },
            ),
            _ => Err(self.unknown(format!("{} of layer {}", task.sub, task.layer.0))),
        }
    }

    fn copy(&self, lane: LaneId, copy: &Copy) -> Result<CpuEvent, DeviceError> {
        let known = self.engine.bound.programs[self.program].copies.iter().position(|c| c == copy);
        let index = known.ok_or_else(|| self.unknown(format!("{copy:?}")))?;
        self.push(lane, Payload { program: self.program, kind: COPY, stage: 0, index })
    }

    fn wait_on(&self, lane: LaneId, event: &CpuEvent) -> Result<(), DeviceError> {
        let lane = self.lane(lane)?;
        if !Arc::ptr_eq(&self.engine, &event.engine) {
            return Err(self.unknown("an event of another worker".into()));
        }
        self.engine.lanes.push_wait(lane, event.last).map(|_| ()).ok_or_else(|| self.full())
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.engine.lanes.wait_idle(self.index);
        self.check_alive()
    }

    fn write(&self, region: Region, values: &[f32]) -> Result<(), DeviceError> {
        let (span, blocked) = self.region(region, values.len())?;
        // SAFETY: by the trait's contract no task of a running plan touches the region.
        let to = unsafe { self.memory().write(span) };
        match blocked {
            Some(a) => {
                let images = values.chunks(a.channels * a.pixels).zip(to.chunks_mut(a.image_len()));
                images.for_each(|(plain, image)| a.arrange(plain, image));
            }
            None => to.copy_from_slice(values),
        }
        Ok(())
    }

    fn read(&self, region: Region, out: &mut [f32]) -> Result<(), DeviceError> {
        let (span, blocked) = self.region(region, out.len())?;
        // SAFETY: by the trait's contract no task of a running plan writes the region.
        let from = unsafe { self.memory().read(span) };
        match blocked {
            Some(a) => {
                let images = from.chunks(a.image_len()).zip(out.chunks_mut(a.channels * a.pixels));
                images.for_each(|(image, plain)| a.flatten(image, plain));
            }
            None => out.copy_from_slice(from),
        }
        Ok(())
    }
}
