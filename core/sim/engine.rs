//! Virtual time: from event to event.
//!
//! A cohort is what grains of one task that began together are called; they are alike and end together. Between two events
//! nothing changes, so every cohort goes on at a constant speed. Times are whole nanoseconds, rounded up. Nothing is drawn at
//! random and nothing depends on addresses or hashes, so the same submissions give the same times.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use super::model::{DeviceModel, Kernel};
use super::shares::{Demand, Shares};
use crate::device::{Lane, Span};

/// When a task ran, once that is known.
pub(super) type Cell = Arc<OnceLock<Span>>;

/// What is queued in a lane.
#[derive(Debug)]
enum Entry {
    Task { kernel: Kernel, span: Cell, submitted: u64 },
    Wait { on: Cell, submitted: u64 },
}

/// The task at the head of a lane.
#[derive(Debug)]
struct Running {
    kernel: Kernel,
    span: Cell,
    /// When its first grain may run.
    ready: u64,
    /// When that did.
    start: Option<u64>,
    /// Grains that have not begun.
    left: u64,
    /// Grains that run.
    flying: u64,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Cohort {
    lane: usize,
    kernel: Kernel,
    grains: u64,
    begun: u64,
    /// What is left of what each takes beside its work.
    beside: f64,
    /// The part of each that is left.
    left: f64,
    /// The part that is done in a nanosecond, until something changes.
    speed: f64,
}

/// What grains that run hold.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    blocks: u64,
    threads: u64,
    registers: u64,
    shared: u64,
}

impl Held {
    fn of(kernel: &Kernel, grains: u64) -> Self {
        let threads = grains * u64::from(kernel.threads);
        Self {
            blocks: grains,
            threads,
            registers: threads * u64::from(kernel.registers),
            shared: grains * kernel.shared,
        }
    }

    fn add(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.threads += other.threads;
        self.registers += other.registers;
        self.shared += other.shared;
    }
}

#[derive(Debug, Default)]
struct Device {
    lanes: Vec<Queue>,
    /// Lanes of one priority each, the most urgent first; within a group in the order in which they are asked for grains.
    groups: Vec<VecDeque<usize>>,
    cohorts: Vec<Cohort>,
}

/// The devices of a worker and the host that feeds them.
#[derive(Debug)]
pub(super) struct Engine {
    model: DeviceModel,
    devices: Vec<Device>,
    now: u64,
    /// The time of the host, which submits one thing after the other.
    host: f64,
}

impl Engine {
    /// Idle devices with these lanes.
    pub fn new(model: DeviceModel, devices: usize, lanes: &[Lane]) -> Self {
        let mut groups: BTreeMap<u8, VecDeque<usize>> = BTreeMap::new();
        for (index, lane) in lanes.iter().enumerate() {
            groups.entry(lane.priority.min(model.levels.max(1) - 1)).or_default().push_back(index);
        }
        let device = || Device {
            lanes: lanes.iter().map(|_| Queue::default()).collect(),
            groups: groups.values().cloned().collect(),
            cohorts: Vec::new(),
        };
        Self { model, devices: (0..devices).map(|_| device()).collect(), now: 0, host: 0.0 }
    }

    /// Puts a task into a lane.
    pub fn submit(&mut self, device: usize, lane: usize, kernel: Kernel) -> Cell {
        self.host += self.model.limits.launch;
        let span = Cell::default();
        let entry = Entry::Task { kernel, span: span.clone(), submitted: self.host.ceil() as u64 };
        self.devices[device].lanes[lane].entries.push_back(entry);
        span
    }

    /// Puts a wait into a lane.
    pub fn wait_on(&mut self, device: usize, lane: usize, on: Cell) {
        self.host += self.model.wait;
        let entry = Entry::Wait { on, submitted: self.host.ceil() as u64 };
        self.devices[device].lanes[lane].entries.push_back(entry);
    }

    /// Runs until all lanes are empty, and lets the host wait for that. False if some lane waits for what will never be.
    pub fn run(&mut self) -> bool {
        self.run_until(|| false);
        let stuck = |device: &Device| device.lanes.iter().any(|lane| !lane.entries.is_empty());
        let ended = !self.devices.iter().any(stuck);
        self.devices.iter_mut().flat_map(|device| &mut device.lanes).for_each(|lane| lane.entries.clear());
        ended
    }

    /// Runs until something is so or nothing happens any more, and lets the host wait for that.
    pub fn run_until(&mut self, is_so: impl Fn() -> bool) {
        while !is_so() {
            for device in &mut self.devices {
                device.turn(self.now, &self.model);
                device.dispatch(self.now, &self.model);
                device.set_speeds(&self.model);
            }
            let moments = self.devices.iter().filter_map(|device| device.next(self.now));
            let Some(next) = moments.min() else { break };
            for device in &mut self.devices {
                device.advance((next - self.now) as f64, next);
            }
            self.now = next;
        }
        self.host = self.host.max(self.now as f64);
    }
}

impl Device {
    /// Passes waits that are over and takes tasks to the heads of their lanes.
    fn turn(&mut self, now: u64, model: &DeviceModel) {
        for lane in &mut self.lanes {
            while lane.running.is_none() {
                match lane.entries.front() {
                    Some(Entry::Wait { on, .. }) if on.get().is_some_and(|span| span.end <= now) => {
                        lane.entries.pop_front();
                    }
                    Some(Entry::Task { kernel, span, submitted }) if *submitted <= now => {
                        lane.running = Some(Running {
                            kernel: *kernel,
                            span: span.clone(),
                            ready: now + model.start.ceil() as u64,
                            start: None,
                            left: kernel.grains.max(1),
                            flying: 0,
                        });
                        lane.entries.pop_front();
                    }
                    _ => break,
                }
            }
        }
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        self.cohorts.iter().for_each(|cohort| held.add(Held::of(&cohort.kernel, cohort.grains)));
        held
    }

    /// Starts grains: first no more of each task than it is wide, then whatever there is.
    fn dispatch(&mut self, now: u64, model: &DeviceModel) {
        let mut held = self.held();
        for wanted in [true, false] {
            for group in 0..self.groups.len() {
                if model.crew && self.groups[group].len() > 1 {
                    self.take_turns(group, now, wanted, model, &mut held);
                } else {
                    let ready = |lane: &usize| self.lanes[*lane].running.as_ref().map(|task| task.ready);
                    let mut lanes: Vec<usize> = self.groups[group].iter().copied().collect();
                    lanes.sort_by_key(|lane| (ready(lane), *lane));
                    for lane in lanes {
                        self.take(lane, now, wanted, u64::MAX, model, &mut held);
                    }
                }
            }
        }
    }

    /// Gives the lanes of a group one grain each in turn, as long as there is room.
    fn take_turns(&mut self, group: usize, now: u64, wanted: bool, model: &DeviceModel, held: &mut Held) {
        let mut refusals = 0;
        while refusals < self.groups[group].len() {
            let lane = self.groups[group][0];
            self.groups[group].rotate_left(1);
            refusals = if self.take(lane, now, wanted, 1, model, held) { 0 } else { refusals + 1 };
        }
    }

    /// Starts at most so many grains of a lane's task. False if there is none to start, or no room.
    fn take(
        &mut self,
        lane: usize,
        now: u64,
        wanted: bool,
        most: u64,
        model: &DeviceModel,
        held: &mut Held,
    ) -> bool {
        let Some(running) = self.lanes[lane].running.as_mut().filter(|task| task.ready <= now) else {
            return false;
        };
        let width = if wanted { running.kernel.width } else { u64::MAX };
        let more = width.saturating_sub(running.flying).min(running.left).min(most);
        let grains = more.min(room(model, *held, running));
        if grains == 0 {
            return false;
        }
        held.add(Held::of(&running.kernel, grains));
        running.start.get_or_insert(now);
        running.left -= grains;
        running.flying += grains;
        let (kernel, fresh) = (running.kernel, |c: &&mut Cohort| c.lane == lane && c.begun == now);
        match self.cohorts.iter_mut().rev().find(fresh) {
            Some(cohort) => cohort.grains += grains,
            None => self.cohorts.push(Cohort {
                lane,
                kernel,
                grains,
                begun: now,
                beside: model.grain,
                left: 1.0,
                speed: 0.0,
            }),
        }
        true
    }

    /// Says how fast each cohort goes on: see [`Shares`].
    fn set_speeds(&mut self, model: &DeviceModel) {
        let busy = self.held().blocks.min(model.limits.units.into()) as f64;
        let most = [model.memory, busy * model.flops, busy * model.bytes];
        let working: Vec<&mut Cohort> = self
            .cohorts
            .iter_mut()
            .filter_map(|cohort| {
                cohort.speed = model.grain_speed(&cohort.kernel, 0.0);
                (cohort.beside <= 0.0).then_some(cohort)
            })
            .collect();
        let demands = working.iter().map(|c| Demand::of(&c.kernel, c.grains, c.speed)).collect();
        let speeds = Shares { most, demands }.speeds();
        for (cohort, speed) in working.into_iter().zip(speeds) {
            cohort.speed = speed;
        }
    }

    /// The next moment after `now` at which something changes by itself.
    fn next(&self, now: u64) -> Option<u64> {
        let ends = self.cohorts.iter().map(|cohort| {
            let time = if cohort.beside > 0.0 { cohort.beside } else { cohort.left / cohort.speed };
            now + (time.ceil() as u64).max(1)
        });
        let heads = self.lanes.iter().filter_map(|lane| match (&lane.running, lane.entries.front()) {
            (Some(running), _) => (running.left > 0).then_some(running.ready),
            (None, Some(Entry::Task { submitted, .. } | Entry::Wait { submitted, .. })) => Some(*submitted),
            (None, None) => None,
        });
        ends.chain(heads.filter(|moment| *moment > now)).min()
    }

    /// Lets `time` nanoseconds pass, up to `now`, and ends what is done.
    fn advance(&mut self, time: f64, now: u64) {
        for cohort in &mut self.cohorts {
            if cohort.beside > 0.0 {
                cohort.beside -= time;
            } else {
                cohort.left -= time * cohort.speed;
            }
        }
        // A part in a billion is nothing but rounding.
        let done = |cohort: &Cohort| cohort.beside <= 0.0 && cohort.left <= 1e-9;
        for cohort in self.cohorts.extract_if(.., |cohort| done(cohort)) {
            let lane = &mut self.lanes[cohort.lane];
            let Some(running) = &mut lane.running else { continue };
            running.flying -= cohort.grains;
            if running.flying == 0 && running.left == 0 {
                let start = running.start.unwrap_or(now);
                running.span.set(Span { start, end: now }).ok();
                lane.running = None;
            }
        }
    }
}

/// Grains of a task for which there is room beside what is held.
fn room(model: &DeviceModel, held: Held, running: &Running) -> u64 {
    let (limits, kernel) = (&model.limits, &running.kernel);
    let units = u64::from(limits.units);
    let free = |all: u64, held: u64, each: u64| {
        (units * all).saturating_sub(held).checked_div(each).unwrap_or(u64::MAX)
    };
    // What is larger than a unit has one unit each.
    let each = Held::of(kernel, 1);
    let threads = free(limits.threads.into(), held.threads, each.threads.min(limits.threads.into()));
    let registers =
        free(limits.registers.into(), held.registers, each.registers.min(limits.registers.into()));
    let shared = free(limits.shared, held.shared, each.shared.min(limits.shared));
    free(limits.blocks.into(), held.blocks, 1)
        .min(threads)
        .min(registers)
        .min(shared)
        .min(model.wave(kernel).saturating_sub(running.flying))
}
