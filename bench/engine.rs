//! Iterations on the CPU device, task by task.

use quadrille_core::device::{Device, Packed, Region, Scalars, Span};
use quadrille_core::net::Net;
use quadrille_core::plan::priority::Estimates;
use quadrille_core::plan::{Overlap, Plan, PlanOptions, Schedule, Stage};
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::run::{StepTimes, StepsAhead, run_step};
use quadrille_core::solver::Rule;
use quadrille_cpu::isa::{Isa, Precision};
use quadrille_cpu::{CpuDevice, CpuEvent, CpuWorker, EngineOptions, Program, Recording};

/// A network on one quadrant with its plan.
pub struct Engine {
    /// The only net.
    pub nets: [Net; 1],
    /// An iteration.
    pub plan: Plan,
    overlap: Overlap,
    worker: CpuWorker,
}

impl Engine {
    /// A network, fused as trainings have it, by a schedule on so many threads for tasks that take what `estimates` say, with samples
    /// and weights that are made up.
    ///
    /// # Errors
    /// If the engine refuses.
    pub fn new(net: &Net, schedule: Schedule, threads: usize, estimates: &Estimates) -> Result<Self, String> {
        let nets = [net.clone().fused()];
        let options = PlanOptions { schedule, ..PlanOptions::new(Stage::Iteration) };
        let plan = Plan::build_by(&nets, options, estimates).map_err(|error| error.to_string())?;
        let crew = crate::kernels::crew(Some(threads))?;
        let options = EngineOptions {
            isa: Isa::detect(),
            precision: Precision::F32,
            kernels: Vec::new(),
            rule: Rule::sgd(0.9, 5e-4),
            elastic: false,
            spin: true,
        };
        let program = Program { nets: &nets, plans: &[&plan] };
        let worker = CpuWorker::new(&[crew], &[program], &options).map_err(|error| error.to_string())?;
        let overlap = plan.overlap(&nets);
        let engine = Self { nets, plan, overlap, worker };
        engine.fill().map_err(|error| error.to_string())?;
        Ok(engine)
    }

    /// The quadrant.
    pub fn device(&self) -> CpuDevice {
        self.worker.devices(0).swap_remove(0)
    }

    fn fill(&self) -> Result<(), quadrille_core::device::DeviceError> {
        let (net, device) = (&self.nets[0], self.device());
        let mut weights = vec![0.0; net.params.len()];
        net.params.fill(1, &mut weights);
        device.write(Region::Packed(Packed::Weights), &weights)?;
        let sources = net.layers.iter().filter(|layer| layer.layer.is_source());
        for top in sources.flat_map(|layer| &layer.tops) {
            let blob = net.blob(*top);
            let stream = Stream::new(1, Purpose::Dummy, top.0 as u32);
            // What has no pixels is labels: the first class.
            let is_image = blob.shape.axes() == 4;
            let value = |i: usize| if is_image { 2.0 * stream.uniform(i as u64) - 1.0 } else { 0.0 };
            let values: Vec<f32> = (0..blob.shape.count()).map(value).collect();
            device.write(Region::Stage(blob.data), &values)?;
        }
        Ok(())
    }

    /// What its threads run, to be noted.
    pub fn recording(&self) -> Recording {
        self.worker.recording(0)
    }

    /// So many iterations that overlap, and the end of the last; `ended` sees the times of each.
    ///
    /// # Errors
    /// If the device fails.
    pub fn steps_ahead(
        &self,
        count: usize,
        mut ended: impl FnMut(&StepTimes<CpuEvent>),
    ) -> Result<(), String> {
        let mut steps = StepsAhead::new(self.overlap.clone());
        let scalars = Scalars { rate: 0.0, ..Scalars::default() };
        for _ in 0..count {
            steps.run(&[self.device()], &self.plan, &scalars, || {}).map_err(|error| error.to_string())?;
            ended(steps.ended());
        }
        steps.finish(&[self.device()]).map_err(|error| error.to_string())?;
        ended(steps.ended());
        Ok(())
    }

    /// One iteration: when each task ran. Weights stay as they are, since nothing is to run away.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&self) -> Result<Vec<Span>, String> {
        let mut times = StepTimes::default();
        let scalars = Scalars { rate: 0.0, ..Scalars::default() };
        run_step(&[self.device()], &self.plan, &scalars, &mut times).map_err(|error| error.to_string())?;
        Ok(times.spans().to_vec())
    }
}

/// Nanoseconds from the first start to the last end.
pub fn elapsed(spans: &[Span]) -> f64 {
    let start = spans.iter().map(|span| span.start).min().unwrap_or(0);
    (spans.iter().map(|span| span.end).max().unwrap_or(0) - start) as f64
}
