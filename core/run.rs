//! The step: the one place where tasks are submitted and their times are taken, for every backend.

use std::fmt;

use crate::device::{Device, DeviceError, Event, Scalars, Span};
use crate::layer::SubTask;
use crate::plan::{Overlap, Plan};
use crate::task::TaskId;

/// When each task of a step ran. Made once per plan and used again, so that a step allocates nothing.
#[derive(Debug)]
pub struct StepTimes<E> {
    events: Vec<E>,
    spans: Vec<Span>,
    follows: bool,
}

impl<E> Default for StepTimes<E> {
    fn default() -> Self {
        Self { events: Vec::new(), spans: Vec::new(), follows: false }
    }
}

impl<E: Event> StepTimes<E> {
    /// Notes when tasks that are all done ran.
    fn note_spans(&mut self) -> Result<(), StepError> {
        self.spans.clear();
        for (task, event) in self.events.iter().enumerate() {
            self.spans.push(event.span().ok_or(StepError::NotDone { task })?);
        }
        Ok(())
    }
}

impl<E> StepTimes<E> {
    /// When each task ran, in the order of the plan.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The tasks' events, in the order of the plan.
    pub fn events(&self) -> &[E] {
        &self.events
    }

    /// Whether tasks waited for those of the step before, as an [`Overlap`] says, since that had not ended.
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// Nanoseconds from the first start to the last end.
    pub fn elapsed(&self) -> u64 {
        let start = self.spans.iter().map(|s| s.start).min().unwrap_or(0);
        self.spans.iter().map(|s| s.end).max().unwrap_or(0).saturating_sub(start)
    }
}

/// A step that did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepError {
    /// A device failed.
    Device(DeviceError),
    /// The plan is for another number of devices.
    Devices {
        /// Devices of the plan.
        planned: usize,
        /// Devices given.
        given: usize,
    },
    /// A device synchronised although a task is not done. A bug of the device.
    NotDone {
        /// The task's place in the plan.
        task: usize,
    },
}

impl From<DeviceError> for StepError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Devices { planned, given } => write!(f, "a plan for {planned} devices was run on {given}"),
            Self::NotDone { task } => write!(f, "the device synchronised before task {task} was done"),
        }
    }
}

impl std::error::Error for StepError {}

/// Runs `plan` once: submits every task in order to its device and lane, with waits between lanes, and
/// synchronises. `times` receives when each task ran.
///
/// # Errors
/// If a device fails. Every device is synchronised all the same, so that none still works on the buffers.
pub fn run_step<D: Device>(
    devices: &[D],
    plan: &Plan,
    scalars: &Scalars,
    times: &mut StepTimes<D::Event>,
) -> Result<(), StepError> {
    run_step_beside(devices, plan, scalars, times, |_| {})
}

/// A step that was begun, to whoever works beside it.
#[derive(Debug)]
pub struct Running<'a, D: Device> {
    devices: &'a [D],
    plan: &'a Plan,
    events: &'a [D::Event],
}

impl<D: Device> Running<'_, D> {
    /// Waits until a task is done. What it wrote, and no later task of the step touches, the host may read and write from then on.
    ///
    /// # Errors
    /// If its device fails.
    ///
    /// # Panics
    /// If the plan has no such task.
    pub fn settle(&self, task: TaskId) -> Result<(), DeviceError> {
        self.devices[self.plan.nodes[task.0].device.0].settle(&self.events[task.0])
    }

    /// Whether a task is done.
    ///
    /// # Panics
    /// If the plan has no such task.
    pub fn is_done(&self, task: TaskId) -> bool {
        self.events[task.0].is_done()
    }
}

/// As [`run_step`], and calls `beside` once all sources have loaded their mini-batches, mostly while the rest of the step runs:
/// then the host may write the next ones ([`Region::Stage`](crate::device::Region)). A step that fails may not call it.
///
/// # Errors
/// As [`run_step`].
pub fn run_step_beside<D: Device>(
    devices: &[D],
    plan: &Plan,
    scalars: &Scalars,
    times: &mut StepTimes<D::Event>,
    beside: impl FnOnce(&Running<'_, D>),
) -> Result<(), StepError> {
    check_devices(devices, plan)?;
    times.events.clear();
    times.spans.clear();
    times.follows = false;
    // A step that runs ahead may have left something to do.
    synchronize(devices)?;
    let submitted = submit_all(devices, plan, scalars, None, &mut times.events);
    let mut beside = Some(beside);
    let running = Running { devices, plan, events: &times.events };
    if submitted.is_ok() {
        call_early(&running, &mut beside);
    }
    let synchronized = synchronize(devices);
    submitted.and(synchronized)?;
    beside.into_iter().for_each(|beside| beside(&running));
    times.note_spans()
}

/// Steps of one plan that overlap: while gradients and updates of one are still on their way, the next begins.
#[derive(Debug)]
pub struct StepsAhead<E> {
    overlap: Overlap,
    /// The last step, whose events are those of tasks that may still run.
    running: StepTimes<E>,
    /// The step before.
    ended: StepTimes<E>,
}

impl<E: Event> StepsAhead<E> {
    /// Steps of a plan that overlap so.
    pub fn new(overlap: Overlap) -> Self {
        Self { overlap, running: StepTimes::default(), ended: StepTimes::default() }
    }

    /// Runs the next step until load, forward and ∇A are done, and all of the step before. What is left runs beside whatever comes
    /// next: another step, or a use of the devices that waits for it. `beside` is called as by [`run_step_beside`].
    ///
    /// # Errors
    /// As [`run_step`].
    pub fn run<D: Device<Event = E>>(
        &mut self,
        devices: &[D],
        plan: &Plan,
        scalars: &Scalars,
        beside: impl FnOnce(),
    ) -> Result<(), StepError> {
        let outcome = self.begin(devices, plan, scalars, beside);
        if outcome.is_err() {
            // None still works on the buffers.
            synchronize(devices).ok();
        }
        outcome
    }

    fn begin<D: Device<Event = E>>(
        &mut self,
        devices: &[D],
        plan: &Plan,
        scalars: &Scalars,
        beside: impl FnOnce(),
    ) -> Result<(), StepError> {
        check_devices(devices, plan)?;
        std::mem::swap(&mut self.running, &mut self.ended);
        let (running, ended) = (&mut self.running, &mut self.ended);
        running.events.clear();
        running.spans.clear();
        let before = (!ended.events.is_empty()).then_some((&self.overlap, &ended.events[..]));
        running.follows = before.is_some();
        submit_all(devices, plan, scalars, before, &mut running.events)?;
        let mut beside = Some(|_: &Running<'_, D>| beside());
        let step = Running { devices, plan, events: &running.events };
        call_early(&step, &mut beside);
        let settle = |events: &[E], task: usize| devices[plan.nodes[task].device.0].settle(&events[task]);
        // The last first: once that is done most others are, and the host is not woken for each of them.
        self.overlap.awaited.iter().rev().try_for_each(|task| settle(&running.events, task.0))?;
        beside.into_iter().for_each(|beside| beside(&step));
        (0..ended.events.len()).rev().try_for_each(|task| settle(&ended.events, task))?;
        devices.iter().for_each(Device::run_ahead);
        ended.note_spans()
    }

    /// Waits until nothing is left to do. What follows is a first step again.
    ///
    /// # Errors
    /// If a device fails.
    pub fn finish<D: Device<Event = E>>(&mut self, devices: &[D]) -> Result<(), StepError> {
        synchronize(devices)?;
        std::mem::swap(&mut self.running, &mut self.ended);
        self.running.events.clear();
        self.running.spans.clear();
        self.ended.note_spans()
    }

    /// Whether a step was begun that nobody has waited for.
    pub fn is_running(&self) -> bool {
        !self.running.events.is_empty()
    }

    /// When each task of the last step that has ended ran: behind [`StepsAhead::run`] that before the one which still runs. Nothing
    /// behind the first.
    pub fn ended(&self) -> &StepTimes<E> {
        &self.ended
    }
}

fn check_devices<D: Device>(devices: &[D], plan: &Plan) -> Result<(), StepError> {
    match devices.len() == plan.devices {
        true => Ok(()),
        false => Err(StepError::Devices { planned: plan.devices, given: devices.len() }),
    }
}

/// Synchronises every device, whatever becomes of the others.
fn synchronize<D: Device>(devices: &[D]) -> Result<(), DeviceError> {
    let mut synchronized = Ok(());
    for device in devices {
        synchronized = synchronized.and(device.synchronize());
    }
    synchronized
}

/// Calls `beside` as soon as the sources of a step that has begun have loaded, where devices tell so. A failure shows again when the
/// step is waited for.
fn call_early<D: Device>(step: &Running<'_, D>, beside: &mut Option<impl FnOnce(&Running<'_, D>)>) {
    let nodes = || step.plan.nodes.iter().enumerate();
    let mut loads = nodes().filter(|(_, node)| node.task.sub == SubTask::Load).map(|(task, _)| TaskId(task));
    if step.devices.iter().all(Device::tells_tasks) && loads.all(|load| step.settle(load).is_ok()) {
        beside.take().into_iter().for_each(|beside| beside(step));
    }
}

fn submit_all<D: Device>(
    devices: &[D],
    plan: &Plan,
    scalars: &Scalars,
    before: Option<(&Overlap, &[D::Event])>,
    events: &mut Vec<D::Event>,
) -> Result<(), DeviceError> {
    for device in devices {
        device.begin(scalars)?;
    }
    for (task, node) in plan.nodes.iter().enumerate() {
        let device = &devices[node.device.0];
        if let Some((overlap, before)) = before {
            for wait in &overlap.waits[task] {
                device.wait_on(node.lane, &before[wait.0])?;
            }
        }
        for wait in &node.waits {
            device.wait_on(node.lane, &events[wait.0])?;
        }
        events.push(match &node.copy {
            Some(copy) => device.copy(node.lane, copy)?,
            None => device.submit(node.lane, &node.task)?,
        });
    }
    Ok(())
}
