//! The step: the one place where tasks are submitted and their times are taken, for every backend.

use std::fmt;

use crate::device::{Device, DeviceError, Event, Scalars, Span};
use crate::plan::Plan;

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
    if devices.len() != plan.devices {
        return Err(StepError::Devices { planned: plan.devices, given: devices.len() });
    }
    times.events.clear();
    times.spans.clear();
    let submitted = submit_all(devices, plan, scalars, &mut times.events);
    let mut synchronized = Ok(());
    for device in devices {
        synchronized = synchronized.and(device.synchronize());
    }
    submitted.and(synchronized)?;
    for (task, event) in times.events.iter().enumerate() {
        times.spans.push(event.span().ok_or(StepError::NotDone { task })?);
    }
    Ok(())
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
