//! `SimDevice`: runs plans in virtual time with costs from the one cost model, and computes nothing. Everything
//! that comes from it is labelled `sim`.
//!
//! # The model
//!
//! - **Units.** A device has units: cores of a quadrant, or multiprocessors. A unit holds blocks, threads, registers and shared
//!   memory up to its limits; a core holds one grain of one thread.
//! - **Tasks are grains.** A task is a kernel of equal grains (blocks), cut by a rule of the device ([`GrainRule`]) from the
//!   operations and bytes that [`CostModel`](crate::plan::CostModel) counts; the sum of all grains' work is the task's.
//! - **Lanes.** A lane works in order. Whenever there is room, grains are taken from the lanes that are ready, by priority, so
//!   lower lanes get what higher ones leave; grains that run are never interrupted. Of equal priority the task that was ready
//!   first is served first, as GPUs do. Where the device is a crew ([`DeviceModel::crew`]) lanes of one priority take turns,
//!   grain by grain, and tasks bound by memory are first offered to half of the units only.
//! - **Speed.** A grain by itself goes on at the slower of arithmetic and memory, as fast as its threads can drive a unit: with
//!   fewer threads than a kind of work needs to hide latencies, a part of the unit is idle. Where grains together ask for more
//!   operations than the busy units have, or for more bytes than these can move, each gets what it asks for up to an even share
//!   by threads. Grains are spread evenly over units (the assumption of GLP4NN, section 3.2).
//! - **Memory** has one bandwidth for all units. If more is asked for, each grain gets what it asks for up to an even share. What
//!   one that waits for memory does not use of arithmetic others do, and the other way round.
//! - **The host** submits one thing after the other: so long for a task, so long for a wait. A task can start when it was submitted
//!   and its lane has come to it, and then takes a moment to start; each grain takes a moment beside its work.
//!
//! Last waves that leave units idle, tasks too small for a device, queues that run dry because the host is slow, and gains of
//! memory-bound work beside arithmetic follow from that; nothing of it is a parameter.
//!
//! Left out: caches (what one task leaves there for the next, and what lanes take from each other), stages within a task,
//! clocks that depend on load, the placing of single blocks, and how well a kernel uses a unit: operations are taken at
//! the peak of the machine file, for all kernels alike. [`Kernel::measured`] corrects that by a measurement. `quadrille-bench
//! sim-check` holds both against the CPU device.

mod engine;
mod model;
mod shares;

pub use model::{DeviceModel, GrainRule, Kernel};

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{Device, DeviceError, DeviceInfo, Event, Lane, Region, Scalars, Span};
use crate::net::Net;
use crate::plan::{Node, Plan, Rates};
use crate::task::{Copy, DeviceId, LaneId, Task};
use engine::{Cell, Engine};

/// An event of a simulated device: known when the device has synchronised.
#[derive(Clone, Debug)]
pub struct SimEvent {
    span: Cell,
    group: Arc<Mutex<Engine>>,
}

impl Event for SimEvent {
    fn is_done(&self) -> bool {
        self.span.get().is_some()
    }

    fn span(&self) -> Option<Span> {
        self.span.get().copied()
    }
}

/// What the tasks of plans ask of their devices.
#[derive(Debug, Default)]
struct Kernels {
    tasks: HashMap<(DeviceId, Task), Kernel>,
    copies: HashMap<Copy, Kernel>,
}

impl Kernels {
    fn new<'a>(plans: impl IntoIterator<Item = &'a Plan>, kernel: impl Fn(&Node) -> Kernel) -> Self {
        let mut kernels = Self::default();
        for node in plans.into_iter().flat_map(|plan| &plan.nodes) {
            match &node.copy {
                Some(copy) => kernels.copies.insert(copy.clone(), kernel(node)),
                None => kernels.tasks.insert((node.device, node.task), kernel(node)),
            };
        }
        kernels
    }
}

/// A simulated device.
#[derive(Debug)]
pub struct SimDevice {
    info: DeviceInfo,
    lanes: Vec<Lane>,
    id: DeviceId,
    kernels: Arc<Kernels>,
    group: Arc<Mutex<Engine>>,
    /// What was submitted to it so far.
    submitted: Mutex<usize>,
    /// The device dies at this submission, to see what others do about it.
    dies_at: Option<usize>,
}

impl SimDevice {
    /// Devices that will run `plan` of `nets`, over and over, each doing one task after the other at the given rates.
    pub fn group(nets: &[Net], plan: &Plan, rates: Rates) -> Vec<Self> {
        Self::of_model(nets, &[plan], &DeviceModel::serial(rates))
    }

    /// Devices that will run `plans` of `nets`, over and over, each like `model`.
    pub fn of_model(nets: &[Net], plans: &[&Plan], model: &DeviceModel) -> Vec<Self> {
        Self::of_kernels(plans, model, |node| model.kernel_of(nets, node))
    }

    /// Devices that will run `plans`, over and over, each like `model`; `kernel` says what a task asks for. They have the lanes of
    /// the plan that has most.
    pub fn of_kernels(plans: &[&Plan], model: &DeviceModel, kernel: impl Fn(&Node) -> Kernel) -> Vec<Self> {
        let devices = plans.iter().map(|plan| plan.devices).max().unwrap_or(0);
        let lanes = plans.iter().map(|plan| &plan.lanes).max_by_key(|lanes| lanes.len());
        let lanes = lanes.cloned().unwrap_or_default();
        let kernels = Arc::new(Kernels::new(plans.iter().copied(), kernel));
        let group = Arc::new(Mutex::new(Engine::new(*model, devices, &lanes)));
        let threads = model.limits.units as usize;
        (0..devices)
            .map(|device| Self {
                info: DeviceInfo { name: format!("sim device {device}"), threads, isa: "sim".into() },
                lanes: lanes.clone(),
                id: DeviceId(device),
                kernels: kernels.clone(),
                group: group.clone(),
                submitted: Mutex::default(),
                dies_at: None,
            })
            .collect()
    }

    /// The same device, but it dies at its submission number `at`.
    pub fn dying_at(mut self, at: usize) -> Self {
        self.dies_at = Some(at);
        self
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submitted(&self) -> MutexGuard<'_, usize> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unknown(&self, what: String) -> DeviceError {
        DeviceError::Unknown { device: self.info.name.clone(), what }
    }

    fn failed(&self, reason: &str) -> DeviceError {
        DeviceError::Failed { device: self.info.name.clone(), reason: reason.to_owned() }
    }

    fn check(&self, lane: LaneId) -> Result<(), DeviceError> {
        if self.dies_at.is_some_and(|at| *self.submitted() >= at) {
            return Err(self.failed("it was told to die here"));
        }
        if lane.0 >= self.lanes.len() {
            return Err(self.unknown(format!("lane {}", lane.0)));
        }
        Ok(())
    }

    fn push(&self, lane: LaneId, kernel: Kernel) -> SimEvent {
        *self.submitted() += 1;
        let span = self.engine().submit(self.id.0, lane.0, kernel);
        SimEvent { span, group: self.group.clone() }
    }
}

impl Device for SimDevice {
    type Event = SimEvent;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Never: nothing runs before somebody waits for it.
    fn tells_tasks(&self) -> bool {
        false
    }

    fn begin(&self, _: &Scalars) -> Result<(), DeviceError> {
        self.check(LaneId(0))
    }

    fn submit(&self, lane: LaneId, task: &Task) -> Result<SimEvent, DeviceError> {
        self.check(lane)?;
        let kernel = self.kernels.tasks.get(&(self.id, *task)).copied();
        Ok(self.push(lane, kernel.ok_or_else(|| self.unknown(format!("{task:?}")))?))
    }

    fn copy(&self, lane: LaneId, copy: &Copy) -> Result<SimEvent, DeviceError> {
        self.check(lane)?;
        let kernel = self.kernels.copies.get(copy).copied();
        Ok(self.push(lane, kernel.ok_or_else(|| self.unknown(format!("{copy:?}")))?))
    }

    fn wait_on(&self, lane: LaneId, event: &SimEvent) -> Result<(), DeviceError> {
        self.check(lane)?;
        if !Arc::ptr_eq(&self.group, &event.group) {
            return Err(self.unknown("a device of another group, whose time is another".to_owned()));
        }
        self.engine().wait_on(self.id.0, lane.0, event.span.clone());
        Ok(())
    }

    /// Runs whatever was submitted, on all devices of the group: what they do depends on each other.
    fn synchronize(&self) -> Result<(), DeviceError> {
        let ended = self.engine().run();
        self.check(LaneId(0))?;
        if ended { Ok(()) } else { Err(self.failed("a lane waits for a task that was not submitted")) }
    }

    fn settle(&self, event: &SimEvent) -> Result<(), DeviceError> {
        self.engine().run_until(|| event.is_done());
        self.check(LaneId(0))?;
        let waits_for_nothing = || self.failed("a task waits for one that was not submitted");
        event.is_done().then_some(()).ok_or_else(waits_for_nothing)
    }

    fn write(&self, _: Region, _: &[f32]) -> Result<(), DeviceError> {
        Ok(())
    }

    /// A simulation has no values: `out` stays as it is.
    fn read(&self, _: Region, _: &mut [f32]) -> Result<(), DeviceError> {
        Ok(())
    }
}
