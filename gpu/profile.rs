//! The resource tracker of GLP4NN on a GPU: what kernels use when they are first seen, and how many of a layer's are worth running
//! at once.

use std::time::Duration;

use quadrille_core::device::{DeviceError, Scalars};
use quadrille_core::net::Net;
use quadrille_core::plan::lanes::{KernelUsage, Maintainer, Scheduler, Situation};
use quadrille_core::plan::{Node, Plan};
use quadrille_core::task::LaneId;

use crate::device::Shared;
use crate::driver::Event;
use crate::program::Ready;
use crate::spec::StreamPool;

/// What an analysis may take.
const LIMIT: Duration = Duration::from_millis(100);

impl Shared {
    /// What the kernels of a task of program 0 use, each alone in its stream, and how many operations are by libraries, of which
    /// nobody knows that.
    fn usages(&self, node: &Node) -> Result<(Vec<KernelUsage>, usize), String> {
        // Its own one, which has as much workspace as it needs.
        let lane = self.streams.get(node.lane.0).ok_or("a lane that there is not")?;
        let [start, end] = [Event::new(&self.gpu)?, Event::new(&self.gpu)?];
        let (mut usages, mut by_libraries) = (Vec::new(), 0);
        for op in self.programs[0].tasks.get(&(node.task.layer, node.task.sub)).into_iter().flatten() {
            lane.stream.record(&start)?;
            lane.run(op)?;
            lane.stream.record(&end)?;
            lane.stream.synchronize()?;
            match op {
                Ready::Launch(launch) => {
                    let took = start.until(&end).ok_or("a kernel that never ends")?;
                    usages.push(launch.usage((took as f64).max(1.0))?);
                }
                Ready::Product(..) | Ready::Convolve(..) => by_libraries += 1,
                Ready::Copy(..) => {}
            }
        }
        Ok((usages, by_libraries))
    }

    /// Runs the tasks of a plan of program 0 one after the other, and analyses each layer's kernels.
    pub fn pool(&self, net: &Net, plan: &Plan) -> Result<StreamPool, DeviceError> {
        self.begin_step(0, &Scalars::default())?;
        self.synchronize()?;
        let limits = self.done(self.gpu.limits())?;
        let mut scheduler = Scheduler::new(limits, Maintainer::default());
        let mut pool = StreamPool { limits, lanes: 1, layers: Vec::new(), by_libraries: 0 };
        for node in &plan.nodes {
            let (layer, sub) = (node.task.layer, node.task.sub);
            let (usages, by_libraries) = self.done(self.usages(node))?;
            pool.by_libraries += by_libraries;
            let name = &net.layer(layer).name;
            let situation = Situation {
                device: self.info.name.clone(),
                network: net.name.clone(),
                layer: name.clone(),
                sub,
                shape: net.bottom_shapes(layer).first().map_or(Vec::new(), |shape| shape.dims().to_vec()),
            };
            // What has no kernel of ours has nothing to be analysed.
            if let Ok(lanes) = scheduler.profiled(situation, &usages, LIMIT) {
                pool.layers.push((name.clone(), sub, lanes));
            }
        }
        pool.lanes = scheduler.pool(&self.info.name, LaneId(0)).lanes;
        Ok(pool)
    }
}
