//! What plans take on a GPU, so that those with other chunks can be compared before one of them runs.

use std::collections::{BTreeMap, HashMap};

use quadrille_core::device::Scalars;
use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerId, Net};
use quadrille_core::plan::lanes::{KernelUsage, Limits};
use quadrille_core::plan::{Node, Plan};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::sim::{DeviceModel, Kernel, SimDevice};
use quadrille_gpu::Sighting;

use crate::failure::Failure;

/// Nanoseconds of the host for a wait of one stream for another, as in the machine files of GPUs: the driver does not know it.
const WAIT: f64 = 1_500.0;

/// Waves of blocks that a kernel is simulated by at most. What counts when plans are compared is what kernels of few waves leave
/// idle; a large mini-batch has hundreds in each kernel.
const WAVES: u64 = 4;

/// Of sub-tasks, by the number of images.
type Kernels = HashMap<(LayerId, SubTask), BTreeMap<usize, Kernel>>;

/// What tasks take.
pub struct Costs {
    /// The device: as it is described, or by its limits.
    model: DeviceModel,
    /// What was seen, unless the description says it.
    seen: Option<Kernels>,
}

impl Costs {
    /// What a description of the device says.
    pub fn described(model: &DeviceModel) -> Self {
        Self { model: *model, seen: None }
    }

    /// What was seen on a device with these limits. A task is taken for one kernel that takes as long as all of its operations, with
    /// the blocks of the longest; where nobody knows these, since a library has them, it fills the device.
    pub fn seen(limits: Limits, sightings: &[Sighting]) -> Self {
        let model = DeviceModel::of_limits(limits, WAIT);
        let full = KernelUsage {
            name: "a library's".to_owned(),
            blocks: limits.units.into(),
            threads: limits.threads,
            registers: 0,
            shared: 0,
            nanoseconds: 0.0,
        };
        let mut kernels = Kernels::new();
        for Sighting { task, kernels: of_task, nanoseconds, by_libraries } in sightings {
            let longest = of_task.iter().max_by(|a, b| a.nanoseconds.total_cmp(&b.nanoseconds));
            let usage = longest.filter(|_| *by_libraries == 0).unwrap_or(&full).clone();
            let usage = KernelUsage { nanoseconds: *nanoseconds, ..usage };
            let by_images = kernels.entry((task.layer, task.sub)).or_default();
            by_images.insert(task.tile.images, Kernel::seen(&usage, &model));
        }
        Self { model, seen: Some(kernels) }
    }

    /// What a task asks for. Of chunks the first was seen, which has the most images: others are taken for as long.
    fn kernel(&self, nets: &[Net], node: &Node) -> Kernel {
        let Some(seen) = &self.seen else { return self.model.kernel_of(nets, node) };
        let by_images = seen.get(&(node.task.layer, node.task.sub));
        let seen = by_images.and_then(|seen| seen.range(node.task.tile.images..).next());
        seen.map_or_else(|| self.model.kernel(0.0, 0.0), |(_, kernel)| *kernel)
    }

    /// Nanoseconds of a plan of `nets` on the simulated device (sim), with what the host takes to launch it task by task: nearly,
    /// with kernels of a few waves.
    ///
    /// # Errors
    /// If the plan does not fit its devices.
    pub fn nearly(&self, nets: &[Net], plan: &Plan) -> Result<f64, Failure> {
        self.nanoseconds(plan, |node| self.model.in_waves(self.kernel(nets, node), WAVES))
    }

    /// The same with all waves, which takes ten times as long for large mini-batches.
    ///
    /// # Errors
    /// As [`Costs::nearly`].
    pub fn exactly(&self, nets: &[Net], plan: &Plan) -> Result<f64, Failure> {
        self.nanoseconds(plan, |node| self.kernel(nets, node))
    }

    fn nanoseconds(&self, plan: &Plan, kernel: impl Fn(&Node) -> Kernel) -> Result<f64, Failure> {
        let devices = SimDevice::of_kernels(&[plan], &self.model, kernel);
        let mut times = StepTimes::default();
        run_step(&devices, plan, &Scalars::default(), &mut times)?;
        Ok(times.elapsed() as f64)
    }
}

#[cfg(test)]
mod tests {
    use quadrille_core::task::{Task, Tile};

    use super::*;

    const LIMITS: Limits = Limits {
        units: 10,
        blocks: 16,
        threads: 1024,
        registers: 65536,
        shared: 48 << 10,
        kernels: 16,
        launch: 5_000.0,
    };

    fn sighting(images: usize, blocks: u64, nanoseconds: f64, by_libraries: usize) -> Sighting {
        let usage =
            KernelUsage { name: "k".into(), blocks, threads: 256, registers: 32, shared: 0, nanoseconds };
        Sighting {
            task: Task { layer: LayerId(1), sub: SubTask::Forward, tile: Tile { first: 0, images } },
            kernels: vec![KernelUsage { nanoseconds: 1.0, blocks: 1, ..usage.clone() }, usage],
            by_libraries,
            nanoseconds: nanoseconds + 1.0,
        }
    }

    #[test]
    fn kernels_take_as_long_as_they_were_seen_to() {
        // Less than a wave, and several.
        for (blocks, nanoseconds) in [(7, 9_000.0), (40, 20_000.0), (97, 123_456.0)] {
            let costs = Costs::seen(LIMITS, &[sighting(8, blocks, nanoseconds, 0)]);
            let (model, kernel) =
                (costs.model, costs.seen.expect("it was seen")[&(LayerId(1), SubTask::Forward)][&8]);
            assert_eq!(kernel.grains, blocks);
            assert!((model.alone(&kernel) - nanoseconds - 1.0).abs() < 1e-6, "{blocks}");
        }
        let costs = Costs::seen(LIMITS, &[sighting(8, 3, 9_000.0, 1)]);
        let (model, kernel) =
            (costs.model, costs.seen.expect("it was seen")[&(LayerId(1), SubTask::Forward)][&8]);
        assert_eq!((kernel.grains, kernel.threads), (10, 1024), "a library's fills the device");
        assert!((model.alone(&kernel) - 9_001.0).abs() < 1e-6);
    }
}
