//! `CpuDevice`: a quadrant as a device of the one scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use quadrille_core::device::{Device, DeviceError, DeviceInfo, Event, Lane, Packed, Region, Scalars, Span};
use quadrille_core::layer::SubTask;
use quadrille_core::net::StorageId;
use quadrille_core::task::{Copy, LaneId, Task};

use crate::crew::{Crews, Lanes, Ticket, Work};
use crate::isa::{Isa, Precision};
use crate::kernel::finite::{all_finite, all_halves_finite};
use crate::layer::{Everywhere, Grain, Stages};
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::Memory;
use crate::program::{BoundLayer, BoundNet, width};

/// A net on all devices of a worker.
pub(crate) struct BoundProgram {
    /// One net for each device.
    pub nets: Vec<BoundNet>,
    /// The transfers between devices.
    pub copies: Vec<Copy>,
}

/// What changes from step to step: see [`Scalars`].
#[derive(Debug, Default)]
struct StepScalars {
    iteration: AtomicU64,
    /// The bits of an f32.
    rate: AtomicU32,
    /// The bits of an f32.
    elastic: AtomicU32,
    seed: AtomicU64,
}

/// What two steps of a device use, of which the first may not have ended when the second begins.
#[derive(Debug, Default)]
pub(crate) struct TwoSteps {
    scalars: [StepScalars; 2],
    /// Which of them the step has that began last.
    turn: AtomicUsize,
}

impl TwoSteps {
    /// A step begins, and that before the last is over.
    fn begin(&self, scalars: &Scalars) {
        let turn = 1 - self.turn();
        let to = &self.scalars[turn];
        to.iteration.store(scalars.iteration, Ordering::Relaxed);
        to.rate.store(scalars.rate.to_bits(), Ordering::Relaxed);
        to.elastic.store(scalars.elastic.to_bits(), Ordering::Relaxed);
        to.seed.store(scalars.seed, Ordering::Relaxed);
        self.turn.store(turn, Ordering::Relaxed);
    }

    fn turn(&self) -> usize {
        self.turn.load(Ordering::Relaxed) & 1
    }

    fn scalars(&self, turn: usize) -> Scalars {
        let from = &self.scalars[turn & 1];
        let float = |bits: &AtomicU32| f32::from_bits(bits.load(Ordering::Relaxed));
        Scalars {
            iteration: from.iteration.load(Ordering::Relaxed),
            rate: float(&from.rate),
            elastic: float(&from.elastic),
            seed: from.seed.load(Ordering::Relaxed),
        }
    }
}

/// Everything that the crews need to run a grain.
pub(crate) struct Bound {
    /// What devices run.
    pub programs: Vec<BoundProgram>,
    /// The steps of each device.
    pub steps: Vec<TwoSteps>,
}

/// What is pushed into a lane, in one word: a bit whose step of two, 8 bits program, 8 bits kind, 8 bits stage, 32 bits layer or copy.
#[derive(Clone, Copy)]
struct Payload {
    turn: usize,
    program: usize,
    kind: u8,
    stage: usize,
    index: usize,
}

const COPY: u8 = SubTask::ALL.len() as u8;

impl Payload {
    fn pack(self) -> u64 {
        (self.turn as u64) << 56
            | (self.program as u64) << 48
            | u64::from(self.kind) << 40
            | (self.stage as u64) << 32
            | self.index as u64
    }

    fn unpack(word: u64) -> Self {
        Self {
            turn: (word >> 56) as usize & 1,
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
    fn stages(&self, device: usize, payload: Payload) -> Stages {
        let program = &self.programs[payload.program];
        let Some(sub) = payload.sub() else {
            return Stages::one(program.copies[payload.index].range.len().div_ceil(COPY_GRAIN));
        };
        let layer = &program.nets[device].layers[payload.index];
        match sub {
            SubTask::Update => Stages::one(layer.update.grains()),
            SubTask::Load => Stages::one(layer.loads.len()),
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
    fn touch(&self, device: usize, thread: usize, threads: usize) {
        for (index, program) in self.programs.iter().enumerate() {
            let arenas = program.nets[device].memory.arenas(index);
            arenas.for_each(|(_, arena)| arena.touch_share(thread, threads));
        }
    }

    fn run(&self, device: usize, payload: u64, grain: usize, scratch: &mut [f32]) {
        let payload = Payload::unpack(payload);
        let Some(sub) = payload.sub() else { return self.copy(payload, grain) };
        let net = &self.programs[payload.program].nets[device];
        let layer = &net.layers[payload.index];
        let stage = payload.stage;
        let grains = self.stages(device, payload).iter().nth(stage).unwrap_or(1) as usize;
        let nets = &self.programs[payload.program].nets;
        let mut grain = Grain {
            memory: &net.memory,
            index: grain,
            grains,
            stage,
            scratch,
            scalars: self.steps[device].scalars(payload.turn),
            update: &layer.update,
            first_image: net.tile.first,
            everywhere: Everywhere::new(nets, &layer.sources),
        };
        match sub {
            SubTask::Update => {
                layer.update.run(&grain, layer.terms.iter().map(|device| &nets[device.0].memory));
            }
            SubTask::Gather => layer.gradients.gather(&mut grain),
            SubTask::Total => layer.gradients.total(&mut grain),
            SubTask::Norm => layer.gradients.norm(&mut grain),
            SubTask::Load => {
                let Some((stage, storage)) = layer.loads.get(grain.index).copied() else { return };
                // SAFETY: grains have pieces of their own; stage and storage are different arrays.
                unsafe { net.memory.write(storage).copy_from_slice(net.memory.read(stage)) }
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

/// What all devices of a worker share.
pub(crate) struct Engine {
    /// Dropped first: the threads end before what they work on goes.
    pub crews: Crews,
    /// Where tasks are pushed.
    pub lanes: Arc<Lanes>,
    /// What tasks work on.
    pub bound: Arc<Bound>,
    /// What devices say of themselves.
    pub infos: Vec<DeviceInfo>,
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

impl CpuEvent {
    /// The first and the last of the task's entries, which follow each other in one lane.
    pub fn entries(&self) -> [Ticket; 2] {
        [self.first, self.last]
    }
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
    /// Device number `index` of a worker, running program number `program`.
    pub(crate) fn new(engine: Arc<Engine>, index: usize, program: usize, lanes: Vec<Lane>) -> Self {
        Self { engine, index, program, lanes }
    }

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
        if lane.0 >= self.lanes.len() {
            return Err(self.unknown(format!("lane {}", lane.0)));
        }
        Ok((self.index * self.engine.lanes.each() + lane.0) as u32)
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

    /// Grains of each stage of a task: what GLP4NN's resource tracker wants to know. `None` if the device does not know the layer.
    pub fn grains(&self, task: &Task) -> Option<Vec<u32>> {
        let kind = SubTask::ALL.iter().position(|s| *s == task.sub)? as u8;
        let index = task.layer.0;
        let layers = self.engine.bound.programs[self.program].nets[self.index].layers.len();
        let payload = Payload { turn: 0, program: self.program, kind, stage: 0, index };
        (index < layers).then(|| self.engine.bound.stages(self.index, payload).iter().collect())
    }

    fn turn(&self) -> usize {
        self.engine.bound.steps[self.index].turn()
    }

    /// Waits for what a step that runs ahead has left to do on any quadrant: gradients and updates, and so whatever is not a value
    /// or a gradient of a blob, which are there already, nor a part that the host has settled.
    fn wait_for_rest(&self, region: Region) {
        let lanes = &self.engine.lanes;
        let is_there = matches!(region, Region::Stage(_) | Region::Storage(_) | Region::PackedFrom(..));
        if !is_there && lanes.runs_ahead() {
            (0..self.engine.infos.len()).for_each(|device| lanes.wait_idle(device));
        }
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

    /// Whether all `len` values of a region are finite, looked at where they lie. Also of a storage that shares its memory,
    /// whose values are there from the task that wrote them to the next that writes to the same memory.
    ///
    /// # Errors
    /// If the device has failed, or the net has no such region.
    pub fn is_finite(&self, region: Region, len: usize) -> Result<bool, DeviceError> {
        let Region::Storage(id) = region else {
            let (span, _) = self.region(region, len)?;
            let mut pieces = self.memory().pieces(span);
            // SAFETY: by the contract of `Device::read` no task of a running plan writes the region.
            return Ok(pieces.all(|(_, piece)| all_finite(unsafe { self.memory().read(piece) })));
        };
        self.check_alive()?;
        let stored = self.memory().stored(id).filter(|(_, arrangement)| arrangement.count() == len);
        let (span, a) = stored.ok_or_else(|| self.unknown(format!("{len} elements of {region:?}")))?;
        // SAFETY: as above.
        let words = unsafe { self.memory().read(span) };
        // Padding is always zero, so whole images can be looked at, but not what lies between them.
        let mut images = words.chunks(a.image_stride()).map(|image| &image[..a.image_len().min(image.len())]);
        Ok(match a.layout.precision {
            Precision::F32 => images.all(all_finite),
            Precision::Bf16 => images.all(all_halves_finite),
        })
    }

    /// Of histories that were read here, those of weights that other devices update for this one, which alone have them.
    fn read_histories_elsewhere(&self, out: &mut [f32]) {
        let nets = &self.engine.bound.programs[self.program].nets;
        let packed = self.memory().packed_len();
        for layer in &nets[self.index].layers {
            for (device, part) in layer.stepped.iter().enumerate().filter(|(device, _)| *device != self.index)
            {
                for start in (0..out.len()).step_by(packed.max(1)) {
                    let history = start + part.start..(start + part.end).min(out.len());
                    if history.is_empty() {
                        continue;
                    }
                    // SAFETY: by the contract of `Device::read` no task of a running plan writes histories.
                    let from = unsafe {
                        nets[device].memory.read(Memory::packed(Packed::Histories, history.clone()))
                    };
                    out[history].copy_from_slice(from);
                }
            }
        }
    }

    /// Where the beginning of a region lies, or all of a region that is not plain.
    fn region(
        &self,
        region: Region,
        len: usize,
    ) -> Result<(crate::memory::Span, Option<Arrangement>), DeviceError> {
        self.wait_for_rest(region);
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
        self.engine.lanes.serve_program(self.program);
        self.engine.bound.steps[self.index].begin(scalars);
        Ok(())
    }

    fn submit(&self, lane: LaneId, task: &Task) -> Result<CpuEvent, DeviceError> {
        let net = &self.engine.bound.programs[self.program].nets[self.index];
        let is_transfer = matches!(task.sub, SubTask::Accumulate | SubTask::Broadcast);
        let has_it = |layer: &BoundLayer| match task.sub {
            SubTask::StepWeight => layer.update.steps_weight(),
            SubTask::Update => !layer.terms.is_empty(),
            SubTask::Gather | SubTask::Total | SubTask::Norm => layer.gradients.stages(task.sub).is_some(),
            _ => !is_transfer,
        };
        let kind = SubTask::ALL.iter().position(|s| *s == task.sub);
        // Who finds the gradient of the whole mini-batch is asked for all of it.
        let tile = if task.sub == SubTask::StepWeight { net.whole } else { net.tile };
        match kind {
            _ if task.tile != tile => Err(self.unknown(format!("{:?}", task.tile))),
            // Its workspace is the lane's.
            _ if lane.0 < self.lanes.len() && net.lanes.of(task.layer, task.sub) != Some(lane) => {
                let what = format!("{} of layer {} in lane {}", task.sub, task.layer.0, lane.0);
                Err(self.unknown(what))
            }
            Some(kind) if net.layers.get(task.layer.0).is_some_and(has_it) => self.push(
                lane,
                Payload {
                    turn: self.turn(),
                    program: self.program,
                    kind: kind as u8,
                    stage: 0,
                    index: task.layer.0,
                },
            ),
            _ => Err(self.unknown(format!("{} of layer {}", task.sub, task.layer.0))),
        }
    }

    fn copy(&self, lane: LaneId, copy: &Copy) -> Result<CpuEvent, DeviceError> {
        let known = self.engine.bound.programs[self.program].copies.iter().position(|c| c == copy);
        let index = known.ok_or_else(|| self.unknown(format!("{copy:?}")))?;
        self.push(lane, Payload { turn: self.turn(), program: self.program, kind: COPY, stage: 0, index })
    }

    fn wait_on(&self, lane: LaneId, event: &CpuEvent) -> Result<(), DeviceError> {
        let lane = self.lane(lane)?;
        if !Arc::ptr_eq(&self.engine, &event.engine) {
            return Err(self.unknown("an event of another worker".into()));
        }
        self.engine.lanes.push_wait(lane, event.last).map(|_| ()).ok_or_else(|| self.full())
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.engine.lanes.synchronize(self.index);
        self.check_alive()
    }

    fn settle(&self, event: &CpuEvent) -> Result<(), DeviceError> {
        self.engine.lanes.settle(self.index, event.last);
        self.check_alive()
    }

    fn run_ahead(&self) {
        self.engine.lanes.run_ahead(self.index);
    }

    fn write(&self, region: Region, values: &[f32]) -> Result<(), DeviceError> {
        let (span, blocked) = self.region(region, values.len())?;
        for (part, piece) in self.memory().pieces(span) {
            // SAFETY: by the trait's contract no task of a running plan touches the region.
            let to = unsafe { self.memory().write(piece) };
            match blocked {
                Some(a) => {
                    let images = values.chunks(a.channels * a.pixels).zip(to.chunks_mut(a.image_len()));
                    images.for_each(|(plain, image)| a.arrange(plain, image));
                }
                None => to.copy_from_slice(&values[part]),
            }
        }
        Ok(())
    }

    fn read(&self, region: Region, out: &mut [f32]) -> Result<(), DeviceError> {
        let (span, blocked) = self.region(region, out.len())?;
        for (part, piece) in self.memory().pieces(span) {
            // SAFETY: by the trait's contract no task of a running plan writes the region.
            let from = unsafe { self.memory().read(piece) };
            match blocked {
                Some(a) => {
                    let images = from.chunks(a.image_len()).zip(out.chunks_mut(a.channels * a.pixels));
                    images.for_each(|(image, plain)| a.flatten(image, plain));
                }
                None => out[part].copy_from_slice(from),
            }
        }
        if region == Region::Packed(Packed::Histories) {
            self.read_histories_elsewhere(out);
        }
        Ok(())
    }
}
