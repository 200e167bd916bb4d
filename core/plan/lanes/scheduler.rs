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

    /// Takes in what kernels were seen to use at first sight with the images in 2, 4, ... chunks: `sights` has the number of chunks
    /// and the kernels of one. Says into how many chunks the images are to be cut, on as many lanes from then on: the most of those
    /// of which the analysis finds that as many kernels run at once, and whose kernels fit on the device as a whole. One of more
    /// blocks fills the device but for its last wave, and so leaves others next to nothing. 1 if there are none.
    ///
    /// The paper's kernels are of one image each, so there only lanes are to be found; here chunks have as many images as they are
    /// made of.
    ///
    /// # Errors
    /// If an analysis fails; the situation stays unknown.
    pub fn sighted(
        &mut self,
        situation: Situation,
        sights: &[(u32, Vec<KernelUsage>)],
        limit: Duration,
    ) -> Result<u32, AnalysisError> {
        let mut most = 1;
        for (chunks, kernels) in sights {
            let fit = kernels.iter().all(|kernel| kernel.blocks <= self.limits.wave(kernel));
            if *chunks > most && fit && analyze(kernels, &self.limits, limit)?.lanes >= *chunks {
                most = *chunks;
            }
        }
        self.kept.keep(situation, most);
        Ok(most)
    }

    /// Takes in what was decided for a situation by what whole plans take, in place of what its analysis found.
    pub fn decided(&mut self, situation: Situation, lanes: u32) {
        self.kept.keep(situation, lanes);
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
        // In two chunks both fit, in four there would be room for three or four of such kernels; whole waves are left alone.
        let halves = |blocks: u64| [2, 4, 8].map(|chunks| (chunks, vec![kernel(blocks / u64::from(chunks))]));
        for (blocks, chunks) in [(40, 8), (80, 8), (120, 2), (8_000, 1)] {
            assert_eq!(scheduler.sighted(at("conv3"), &halves(blocks), limit), Ok(chunks), "{blocks}");
            assert_eq!(scheduler.look(&at("conv3")), Sight::Again(chunks), "{blocks}");
        }
        assert_eq!(scheduler.sighted(at("view"), &[], limit), Ok(1));
        assert_eq!(scheduler.sighted(at("none"), &[(2, Vec::new())], limit), Err(AnalysisError::NoKernels));
        assert_eq!(scheduler.look(&at("none")), Sight::First);
        assert_eq!(lanes(9), [3, 4, 5, 6, 3], "no more than the pool has");
        assert_eq!(lanes(0), [3; 5]);
        // Another run knows from the beginning.
        let known = scheduler.kept().to_string().parse().expect("as it was written");
        assert_eq!(Scheduler::new(limits, known).look(&at("conv2")), Sight::Again(2));
    }
}
