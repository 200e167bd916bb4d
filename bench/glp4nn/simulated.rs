//! Layers on the simulated device: for each number of lanes, how long the kernels of all images take.

use quadrille_core::device::{Lane, Scalars};
use quadrille_core::layer::SubTask;
use quadrille_core::net::LayerId;
use quadrille_core::plan::lanes::Pool;
use quadrille_core::plan::{Node, Plan, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::sim::{DeviceModel, Kernel, SimDevice};
use quadrille_core::task::{DeviceId, LaneId, Task, TaskId, Tile};

/// The smallest kernel, which stands for what comes next.
const NOTHING: Kernel = Kernel {
    grains: 1,
    threads: 1,
    registers: 0,
    shared: 0,
    saturating: 1,
    width: u64::MAX,
    flops: 0.0,
    bytes: 0.0,
};

/// Nanoseconds of the kernels of so many images, dealt out to so many lanes of a pool; in the default lane, as Caffe does it, if
/// there is but one.
pub fn nanoseconds(
    kernels: &[(&'static str, Kernel)],
    images: usize,
    lanes: u32,
    model: &DeviceModel,
) -> Result<f64, String> {
    let plan = plan(kernels.len(), images, lanes);
    let kernel = |node: &Node| kernels.get(node.task.layer.0).map_or(NOTHING, |(_, kernel)| *kernel);
    let device = SimDevice::of_kernels(&[&plan], model, kernel);
    let mut times = StepTimes::default();
    run_step(&device, &plan, &Scalars::default(), &mut times).map_err(|error| error.to_string())?;
    Ok(times.elapsed() as f64)
}

/// Each image's kernels one after the other in its lane. What comes next waits for the last of each lane.
fn plan(kernels: usize, images: usize, lanes: u32) -> Plan {
    let pool = match lanes {
        0 | 1 => Pool { default: LaneId(0), first: LaneId(0), lanes: 1 },
        lanes => Pool { default: LaneId(0), first: LaneId(1), lanes },
    };
    let node = |kernel: usize, image: usize, lane: LaneId, waits: Vec<TaskId>| Node {
        // Kernels stand for layers of their own, since a layer has one forward.
        task: Task { layer: LayerId(kernel), sub: SubTask::Forward, tile: Tile { first: image, images: 1 } },
        device: DeviceId(0),
        lane,
        copy: None,
        reads: Vec::new(),
        writes: Vec::new(),
        waits,
    };
    let mut nodes = Vec::new();
    let mut last = vec![None; lanes.max(1) as usize];
    for image in 0..images {
        let lane = pool.lane(image, lanes);
        for kernel in 0..kernels {
            last[lane.0 - pool.first.0] = Some(TaskId(nodes.len()));
            nodes.push(node(kernel, image, lane, Vec::new()));
        }
    }
    // What comes next waits for all lanes.
    let join = last.into_iter().flatten().filter(|_| pool.first != pool.default).collect();
    nodes.push(node(kernels, images, pool.default, join));
    let lane = |id| Lane { id: LaneId(id), priority: 0 };
    let lanes = (0..pool.first.0 + pool.lanes as usize).map(lane).collect();
    Plan { stage: Stage::Forward, devices: 1, lanes, nodes }
}
