//! One of the tests of a worker: a network with the mini-batches that it is tested on.

use quadrille_core::device::Scalars;
use quadrille_core::plan::Plan;
use quadrille_core::run::{StepTimes, run_step};

use crate::engine::WorkerEvent;
use crate::failure::{Code, Failure};
use crate::feed::Draw;
use crate::job::TestJob;
use crate::pass::Pass;
use crate::places::Places;
use crate::signal::StopAgreement;

/// One of the tests of a worker.
pub struct Tester {
    /// The network.
    pub pass: Pass,
    /// What a mini-batch runs.
    pub forward: Plan,
    /// When the tasks of the last one ran.
    pub times: StepTimes<WorkerEvent>,
    /// What is to be tested.
    pub test: TestJob,
}

impl Tester {
    /// Adds up the outputs of this worker's share of the mini-batches: a run of them, so that one prefetcher does. False if
    /// it was left because the run is to stop.
    pub fn run(
        &mut self,
        batches: u64,
        [rank, workers]: [u64; 2],
        places: &Places,
        stop: &StopAgreement,
        sums: &mut [f32],
    ) -> Result<bool, Failure> {
        let share = batches * rank / workers..batches * (rank + 1) / workers;
        if share.is_empty() {
            return Ok(true);
        }
        let job = &self.test.job;
        let mut batches = job.feed.start(Draw::Test, job.batch, share.start, places.readers())?;
        for _ in share {
            if stop.is_asked() {
                return Ok(false);
            }
            batches.load(&self.pass)?;
            run_step(&self.pass.devices, &self.forward, &Scalars::default(), &mut self.times)?;
            let (loss, outputs) = sums.split_last_mut().ok_or_else(no_outputs)?;
            *loss += self.pass.loss()?;
            self.pass.add_outputs(outputs)?;
        }
        Ok(true)
    }

    /// The output that is the first Accuracy layer's.
    pub fn accuracy_output(&self) -> Option<usize> {
        let net = &self.pass.nets[0];
        let layer =
            net.layers.iter().find(|l| matches!(l.layer, quadrille_core::layer::Layer::Accuracy(_)))?;
        let name = &net.blob(*layer.tops.first()?).name;
        self.pass.output_names().position(|n| n == name)
    }
}

fn no_outputs() -> Failure {
    Failure::new(Code::Bug, "a test without a place for its loss")
}
