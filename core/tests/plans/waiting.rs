//! How often the host sleeps while steps run: each time it is woken a thread that computes may have to make room for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{inception_net, lenet, nets};
use quadrille_core::device::{Device, DeviceError, DeviceInfo, Event, Lane, Region, Scalars, Span};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Schedule, Stage};
use quadrille_core::run::{Running, StepTimes, StepsAhead, run_step_beside};
use quadrille_core::task::{Copy, LaneId, Task};

#[derive(Default)]
struct Counts {
    submitted: AtomicUsize,
    done: AtomicUsize,
    sleeps: AtomicUsize,
    left: AtomicUsize,
}

/// A device whose tasks run in the order of their submission, each when somebody waits for it or for a later one.
struct Lazy {
    info: DeviceInfo,
    lanes: Vec<Lane>,
    counts: Arc<Counts>,
}

#[derive(Clone)]
struct Numbered(usize, Arc<Counts>);

impl Event for Numbered {
    fn is_done(&self) -> bool {
        self.0 < self.1.done.load(Ordering::Relaxed)
    }

    fn span(&self) -> Option<Span> {
        let at = self.0 as u64;
        self.is_done().then_some(Span { start: at, end: at + 1 })
    }
}

impl Lazy {
    fn new(plan: &Plan) -> Self {
        let info = DeviceInfo { name: "lazy".into(), threads: 1, isa: "none".into() };
        Self { info, lanes: plan.lanes.clone(), counts: Arc::default() }
    }

    fn push(&self) -> Numbered {
        Numbered(self.counts.submitted.fetch_add(1, Ordering::Relaxed), self.counts.clone())
    }

    fn sleep_until(&self, done: usize) {
        if self.counts.done.fetch_max(done, Ordering::Relaxed) < done {
            self.counts.sleeps.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Device for Lazy {
    type Event = Numbered;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn begin(&self, _: &Scalars) -> Result<(), DeviceError> {
        Ok(())
    }

    fn submit(&self, _: LaneId, _: &Task) -> Result<Numbered, DeviceError> {
        Ok(self.push())
    }

    fn copy(&self, _: LaneId, _: &Copy) -> Result<Numbered, DeviceError> {
        Ok(self.push())
    }

    fn wait_on(&self, _: LaneId, _: &Numbered) -> Result<(), DeviceError> {
        Ok(())
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.sleep_until(self.counts.submitted.load(Ordering::Relaxed));
        Ok(())
    }

    fn settle(&self, event: &Numbered) -> Result<(), DeviceError> {
        self.sleep_until(event.0 + 1);
        Ok(())
    }

    fn run_ahead(&self) {
        self.counts.left.fetch_add(1, Ordering::Relaxed);
    }

    fn write(&self, _: Region, _: &[f32]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn read(&self, _: Region, _: &mut [f32]) -> Result<(), DeviceError> {
        Ok(())
    }
}

fn plans() -> Vec<(Vec<Net>, Plan)> {
    let specs = [lenet(8), inception_net(8)];
    let plan = |spec| {
        let nets = nets(spec, Phase::Train, 1);
        let options = PlanOptions { schedule: Schedule::Critical, ..PlanOptions::new(Stage::Iteration) };
        let plan = Plan::build(&nets, options).expect("a plan");
        (nets, plan)
    };
    specs.iter().map(plan).collect()
}

#[test]
fn the_host_sleeps_until_the_sources_have_loaded_and_until_the_end() {
    for (_, plan) in plans() {
        let device = Lazy::new(&plan);
        let loads = plan.nodes.iter().filter(|node| node.task.sub == SubTask::Load).count();
        let mut beside = 0;
        for step in 1..=3 {
            let count = |_: &Running<'_, Lazy>| {
                beside += 1;
                let done = device.counts.done.load(Ordering::Relaxed);
                assert!(done < step * plan.nodes.len(), "all of the step was waited for first");
            };
            let (devices, times) = (std::slice::from_ref(&device), &mut StepTimes::default());
            run_step_beside(devices, &plan, &Scalars::default(), times, count).expect("a step");
        }
        assert_eq!(beside, 3);
        let sleeps = device.counts.sleeps.load(Ordering::Relaxed);
        assert!(sleeps <= 3 * (loads + 1), "{sleeps} times for {loads} sources in three steps");
        assert_eq!(device.counts.left.load(Ordering::Relaxed), 0, "no step was left before its end");
    }
}

#[test]
fn the_host_sleeps_no_more_where_steps_overlap() {
    for (nets, plan) in plans() {
        let device = Lazy::new(&plan);
        let loads = plan.nodes.iter().filter(|node| node.task.sub == SubTask::Load).count();
        let mut steps = StepsAhead::new(plan.overlap(&nets));
        let mut beside = 0;
        for _ in 0..3 {
            let devices = std::slice::from_ref(&device);
            steps.run(devices, &plan, &Scalars::default(), || beside += 1).expect("a step");
        }
        assert_eq!(beside, 3);
        // Once for each source, for the last of forward and ∇A, and for the last of the step before.
        let sleeps = device.counts.sleeps.load(Ordering::Relaxed);
        assert!(sleeps <= 3 * (loads + 2), "{sleeps} times for {loads} sources in three steps");
        assert_eq!(device.counts.left.load(Ordering::Relaxed), 3, "each step is left before its end");
    }
}
