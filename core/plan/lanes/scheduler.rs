//! Stream manager and runtime scheduler: which lane a kernel goes to.

use std::time::Duration;

use super::analyzer::{AnalysisError, analyze};
use super::maintainer::{Maintainer, Situation};
use super::usage::{KernelUsage, Limits};
use crate::task::LaneId;

/// The lanes of a device that concurrent kernels share, one priority for all, and the default lane, in which everything else runs
/// and which waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The default lane.
    pub default: LaneId,
    /// The first lane of the pool; the others follow it.
    pub first: LaneId,
    /// How many there are, at least 1.
    pub lanes: u32,
}

impl Pool {
    /// The lane of chunk number `chunk` of a layer that is worth `lanes`: round robin, from the first lane on in each layer, so
    /// that a plan does not depend on what was planned before.
    pub fn lane(&self, chunk: usize, lanes: u32) -> LaneId {
        let lanes = lanes.clamp(1, self.lanes.max(1)) as usize;
        LaneId(self.first.0 + chunk % lanes)
    }
}

/// What the scheduler does with a layer's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The first sight: they run in the default lane, one after the other, and what they use is recorded.
    First,
    /// They are dealt out to so many lanes of the pool.
    Again(u32),
}

/// The runtime scheduler of one device.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    kept: Maintainer,
}

impl Scheduler {
    /// A scheduler that begins with what is known already.
    pub fn new(limits: Limits, kept: Maintainer) -> Self {
        Self { limits, kept }
    }

    /// What to do in a situation.
    pub fn look(&self, situation: &Situation) -> Sight {
        self.kept.get(situation).map_or(Sight::First, Sight::Again)
    }

    /// Takes in what kernels were seen to use at first sight, and says how many lanes the situation is worth from now on.
    ///
    /// # Errors
    /// If the analysis fails; the situation stays unknown.
    pub fn profiled(
        &mut self,
        situation: Situation,
        kernels: &[KernelUsage],
        limit: Duration,
    ) -> Result<u32, AnalysisError> {
        let lanes = analyze(kernels, &self.limits, limit)?.lanes;
        self.kept.keep(situation, lanes);
        Ok(lanes)
    }

    /// Keeps that a situation is worth one lane, whatever its kernels use.
    pub fn keep_whole(&mut self, situation: Situation) {
        self.kept.keep(situation, 1);
    }

    /// The pool that all known situations on the device fit into, behind a default lane.
    pub fn pool(&self, device: &str, default: LaneId) -> Pool {
        let lanes = self.kept.most(device).unwrap_or(1).min(self.limits.kernels.max(1));
        Pool { default, first: LaneId(default.0 + 1), lanes }
    }

    /// What is known.
    pub fn kept(&self) -> &Maintainer {
        &self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::SubTask;

    #[test]
    fn a_layer_is_profiled_once_and_dealt_out_from_then_on() {
        let limits = Limits {
            units: 10,
            blocks: 32,
            threads: 2048,
            registers: 65536,
            shared: 64 << 10,
            kernels: 16,
            launch: 5_000.0,
        };
        let mut scheduler = Scheduler::new(limits, Maintainer::default());
        let at = |layer: &str| Situation {
            device: "GPU 0".into(),
            network: "net".into(),
            layer: layer.into(),
            sub: SubTask::Forward,
            shape: vec![8, 3, 32, 32],
        };
        let kernel = |blocks| KernelUsage {
            name: "sgemm".into(),
            blocks,
            threads: 256,
            registers: 32,
            shared: 0,
            nanoseconds: 1e6,
        };
        assert_eq!(scheduler.look(&at("conv1")), Sight::First);
        assert_eq!(scheduler.pool("GPU 0", LaneId(0)).lanes, 1);
        let limit = Duration::from_secs(60);
        assert_eq!(scheduler.profiled(at("conv1"), &[], limit), Err(AnalysisError::NoKernels));
        assert_eq!(scheduler.look(&at("conv1")), Sight::First);
        for (layer, blocks, lanes) in [("conv1", 20, 4), ("conv2", 40, 2)] {
            assert_eq!(scheduler.profiled(at(layer), &[kernel(blocks)], limit), Ok(lanes));
            assert_eq!(scheduler.look(&at(layer)), Sight::Again(lanes));
        }
        let pool = scheduler.pool("GPU 0", LaneId(2));
        assert_eq!(pool, Pool { default: LaneId(2), first: LaneId(3), lanes: 4 });
        let lanes = |worth| (0..5).map(|chunk| pool.lane(chunk, worth).0).collect::<Vec<_>>();
        assert_eq!(lanes(2), [3, 4, 3, 4, 3]);
        assert_eq!(lanes(9), [3, 4, 5, 6, 3], "no more than the pool has");
        assert_eq!(lanes(0), [3; 5]);
        // Another run knows from the beginning.
        let known = scheduler.kept().to_string().parse().expect("as it was written");
        assert_eq!(Scheduler::new(limits, known).look(&at("conv2")), Sight::Again(2));
    }
}
