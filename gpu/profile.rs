//! The resource tracker of GLP4NN on a GPU: what kernels use when they are first seen.

use quadrille_core::device::{DeviceError, Scalars};
use quadrille_core::plan::lanes::KernelUsage;
use quadrille_core::task::Task;

use crate::device::Shared;
use crate::driver::Event;
use crate::program::Ready;
use crate::spec::Sighting;

impl Shared {
    /// What the kernels of a task of program 0 use, each alone. The second run counts: the first may have to load a kernel.
    fn sighting(&self, task: Task) -> Result<Sighting, String> {
        let ops = self.programs[0].tasks.get(&task);
        let ops = ops.ok_or_else(|| format!("{} of layer {} is unknown", task.sub, task.layer.0))?;
        // That with most workspace, whatever the task needs.
        let lane =
            self.streams.iter().max_by_key(|lane| lane.workspace.len).ok_or("a device without lanes")?;
        let [start, end] = [Event::new(&self.gpu)?, Event::new(&self.gpu)?];
        let (mut kernels, mut by_libraries, mut nanoseconds) = (Vec::<KernelUsage>::new(), 0, 0.0);
        for op in ops {
            lane.run(op)?;
            lane.stream.record(&start)?;
            lane.run(op)?;
            lane.stream.record(&end)?;
            lane.stream.synchronize()?;
            let took = (start.until(&end).ok_or("an operation that never ends")? as f64).max(1.0);
            nanoseconds += took;
            match op {
                Ready::Launch(launch) => kernels.push(launch.usage(took)?),
                Ready::Product(..) | Ready::Convolve(..) => by_libraries += 1,
                Ready::Copy(..) => {}
            }
        }
        Ok(Sighting { task, kernels, by_libraries, nanoseconds })
    }

    /// What the kernels of tasks of program 0 use.
    pub fn first_sight(&self, tasks: &[Task]) -> Result<Vec<Sighting>, DeviceError> {
        self.begin_step(0, &Scalars::default())?;
        self.synchronize()?;
        tasks.iter().map(|task| self.done(self.sighting(*task))).collect()
    }
}
