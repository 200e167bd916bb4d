//! The step: the one place where tasks are submitted and their times are taken, for every backend.

use std::fmt;
use std::time::Duration;

use crate::device::{Device, DeviceError, Event, Scalars, Span};
use crate::layer::SubTask;
use crate::plan::Plan;

/// So often the host looks whether sources have loaded before it waits for the end of a step.
const GLANCES: usize = 100;
/// Loading takes some microseconds, and a thread that looks all the time would keep a core from computing.
const BETWEEN_GLANCES: Duration = Duration::from_micros(50);

/// When each task of a step ran. Made once per plan and used again, so that a step allocates nothing.
#[derive(Debug)]
pub struct StepTimes<E> {
    events: Vec<E>,
    spans: Vec<Span>,
}

impl<E> Default for StepTimes<E> {
    fn default() -> Self {
        Self { events: Vec::new(), spans: Vec::new() }
    }
}

impl<E> StepTimes<E> {
    /// When each task ran, in the order of the plan.
    pub fn spans(&self) -> &[Span] {
        &self.spans
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
    run_step_beside(devices, plan, scalars, times, || {})
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
    beside: impl FnOnce(),
) -> Result<(), StepError> {
    if devices.len() != plan.devices {
        return Err(StepError::Devices { planned: plan.devices, given: devices.len() });
    }
    times.events.clear();
    times.spans.clear();
    let submitted = submit_all(devices, plan, scalars, &mut times.events);
    let mut beside = Some(beside);
    let tell_tasks = devices.iter().all(Device::tells_tasks);
    if submitted.is_ok() && tell_tasks && have_loaded(plan, &times.events) {
        beside.take().into_iter().for_each(|beside| beside());
    }
    let mut synchronized = Ok(());
    for device in devices {
        synchronized = synchronized.and(device.synchronize());
    }
    submitted.and(synchronized)?;
    beside.into_iter().for_each(|beside| beside());
    for (task, event) in times.events.iter().enumerate() {
        times.spans.push(event.span().ok_or(StepError::NotDone { task })?);
    }
    Ok(())
}

/// Gives the sources of a step that has begun some time to load. Whether they all have: a device that has failed never does.
fn have_loaded<E: Event>(plan: &Plan, events: &[E]) -> bool {
    let loads = || plan.nodes.iter().zip(events).filter(|(node, _)| node.task.sub == SubTask::Load);
    for _ in 0..GLANCES {
        if loads().all(|(_, event)| event.is_done()) {
            return true;
        }
        std::thread::sleep(BETWEEN_GLANCES);
    }
    false
}

fn submit_all<D: Device>(
    devices: &[D],
    plan: &Plan,
    scalars: &Scalars,
    events: &mut Vec<D::Event>,
) -> Result<(), DeviceError> {
    for device in devices {
        device.begin(scalars)?;
    }
    for node in &plan.nodes {
        let device = &devices[node.device.0];
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
