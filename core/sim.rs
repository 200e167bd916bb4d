//! `SimDevice`: runs plans in virtual time with costs from the one cost model, and computes nothing. Everything
//! that comes from it is labelled `sim`.
//!
//! Model: a lane works in order; the crew of a device works on one task at a time at the device's full rates (a
//! task's grains fill the crew). Between lanes that are ready the order of submission decides.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{Device, DeviceError, DeviceInfo, Event, Lane, Region, Scalars, Span};
use crate::net::Net;
use crate::plan::{CostModel, Plan, Rates};
use crate::task::{Copy, DeviceId, LaneId, Task};

/// An event of a simulated device: known as soon as the task is submitted.
#[derive(Clone, Debug)]
pub struct SimEvent(Span);

impl Event for SimEvent {
    fn is_done(&self) -> bool {
        true
    }

    fn span(&self) -> Option<Span> {
        Some(self.0)
    }
}

/// What a simulated device has done.
#[derive(Debug, Default)]
struct Timeline {
    lane_free: Vec<u64>,
    device_free: u64,
    submitted: usize,
}

/// A simulated device.
#[derive(Debug)]
pub struct SimDevice {
    info: DeviceInfo,
    lanes: Vec<Lane>,
    id: DeviceId,
    costs: Arc<Costs>,
    timeline: Mutex<Timeline>,
    /// The device dies at this submission, to see what others do about it.
    dies_at: Option<usize>,
}

/// Costs of every task of a plan, by device, in the order of submission.
#[derive(Debug)]
struct Costs(Vec<Vec<u64>>);

impl SimDevice {
    /// Devices that will run `plan` of `nets`, over and over, each with the given rates.
    pub fn group(nets: &[Net], plan: &Plan, rates: Rates) -> Vec<Self> {
        let model = CostModel { rates };
        let mut costs = vec![Vec::new(); plan.devices];
        for node in &plan.nodes {
            costs[node.device.0].push(model.task(nets, node).ceil() as u64);
        }
        let costs = Arc::new(Costs(costs));
        (0..plan.devices)
            .map(|device| Self {
                info: DeviceInfo { name: format!("sim device {device}"), threads: 1, isa: "sim".into() },
                lanes: plan.lanes.clone(),
                id: DeviceId(device),
                costs: costs.clone(),
                timeline: Mutex::new(Timeline {
                    lane_free: vec![0; plan.lanes.len()],
                    ..Timeline::default()
                }),
                dies_at: None,
            })
            .collect()
    }

    /// The same device, but it dies at its submission number `at`.
    pub fn dying_at(mut self, at: usize) -> Self {
        self.dies_at = Some(at);
        self
    }

    fn timeline(&self) -> MutexGuard<'_, Timeline> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, lane: LaneId) -> Result<SimEvent, DeviceError> {
        let mut time = self.timeline();
        self.check(&time, lane)?;
        let costs = &self.costs.0[self.id.0];
        let cost = costs[time.submitted % costs.len()];
        let start = time.lane_free[lane.0].max(time.device_free);
        time.submitted += 1;
        time.lane_free[lane.0] = start + cost;
        time.device_free = start + cost;
        Ok(SimEvent(Span { start, end: start + cost }))
    }

    fn check(&self, time: &Timeline, lane: LaneId) -> Result<(), DeviceError> {
        let device = self.info.name.clone();
        if self.dies_at.is_some_and(|at| time.submitted >= at) {
            return Err(DeviceError::Failed { device, reason: "it was told to die here".into() });
        }
        if lane.0 >= self.lanes.len() {
            return Err(DeviceError::Unknown { device, what: format!("lane {}", lane.0) });
        }
        Ok(())
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

    fn begin(&self, _: &Scalars) -> Result<(), DeviceError> {
        self.check(&self.timeline(), LaneId(0))
    }

    fn submit(&self, lane: LaneId, _: &Task) -> Result<SimEvent, DeviceError> {
        self.advance(lane)
    }

    fn copy(&self, lane: LaneId, _: &Copy) -> Result<SimEvent, DeviceError> {
        self.advance(lane)
    }

    fn wait_on(&self, lane: LaneId, event: &SimEvent) -> Result<(), DeviceError> {
        let mut time = self.timeline();
        self.check(&time, lane)?;
        time.lane_free[lane.0] = time.lane_free[lane.0].max(event.0.end);
        Ok(())
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        let mut time = self.timeline();
        let last = time.lane_free.iter().copied().max().unwrap_or(0);
        time.lane_free.fill(last);
        self.check(&time, LaneId(0))
    }

    fn write(&self, _: Region, _: &[f32]) -> Result<(), DeviceError> {
        Ok(())
    }

    /// A simulation has no values: `out` stays as it is.
    fn read(&self, _: Region, _: &mut [f32]) -> Result<(), DeviceError> {
        Ok(())
    }
}
