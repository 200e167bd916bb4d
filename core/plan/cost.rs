//! The one cost model: what a task takes on a machine of given rates.

use crate::layer::SubTask;
use crate::net::{Net, ParamId, rows_to_step};
use crate::plan::{Node, Plan};
use crate::task::{Buffer, DeviceId, Place, TaskId};

/// What a device can do, per nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations per nanosecond (GFLOP/s).
    pub flops: f64,
    /// Bytes from and to memory per nanosecond (GB/s).
    pub bytes: f64,
    /// Nanoseconds to start and finish a task.
    pub overhead: f64,
}

/// Predicts times: the larger of arithmetic over peak and bytes over bandwidth, plus the overhead.
#[derive(Clone, Debug)]
pub struct CostModel {
    /// The rates of a device.
    pub rates: Rates,
}

impl CostModel {
    /// Floating-point operations of one task.
    pub fn flops(nets: &[Net], node: &Node) -> u64 {
        let net = &nets[node.device.0];
        let tile = node.task.tile;
        match node.task.sub {
            SubTask::Update => flops_of_rule(nets, node),
            // Of the whole mini-batch, wherever its images are, but of some of the rows.
            SubTask::StepWeight => {
                let of_images = |net: &Net| net.flops(node.task.layer, node.task.sub);
                let whole = nets.iter().map(of_images).sum::<u64>();
                let weight = net.layer(node.task.layer).params[0];
                let (rows, all) = rows_of(nets, weight, node.device);
                whole * rows as u64 / all as u64 + flops_of_rule(nets, node)
            }
            SubTask::GradActivation if net.stepping_task(node.task.layer) == Some(node.task.sub) => {
                net.flops(node.task.layer, node.task.sub) + flops_of_rule(nets, node)
            }
            SubTask::AddShared | SubTask::Gather | SubTask::Total => {
                node.writes.iter().map(|p| elements(nets, node, p)).sum::<usize>() as u64
            }
            SubTask::Norm => 2 * node.reads.iter().map(|p| elements(nets, node, p)).sum::<usize>() as u64,
            sub if tile.images < net.batch() => {
                // Images are alike, and a chunk has as many as it has.
                net.flops(node.task.layer, sub) * tile.images as u64 / net.batch() as u64
            }
            sub => net.flops(node.task.layer, sub),
        }
    }

    /// Bytes that one task reads and writes if every array that it declares is touched once, in f32.
    pub fn bytes(nets: &[Net], node: &Node) -> u64 {
        Self::bytes_kept(nets, node, |_| size_of::<f32>())
    }

    /// The same if an element of each array takes as many bytes as `element` says.
    pub fn bytes_kept(nets: &[Net], node: &Node, element: impl Fn(&Place) -> usize) -> u64 {
        let place = |p: &Place| (element(p) * elements(nets, node, p)) as u64;
        node.reads.iter().chain(&node.writes).map(place).sum()
    }

    /// Nanoseconds of one task, alone on its device.
    pub fn task(&self, nets: &[Net], node: &Node) -> f64 {
        let (flops, bytes) = (Self::flops(nets, node) as f64, Self::bytes(nets, node) as f64);
        self.rates.overhead + (flops / self.rates.flops).max(bytes / self.rates.bytes)
    }

    /// The share of a plan's work that is behind a device once the last of `tasks` has ended, if each works through its tasks one by
    /// one, of 1; the largest of all devices.
    pub fn share_until(&self, nets: &[Net], plan: &Plan, tasks: &[TaskId]) -> f64 {
        let mut until = vec![0.0; plan.devices];
        let last = tasks.iter().map(|task| task.0).max();
        for node in plan.nodes.iter().take(last.map_or(0, |last| last + 1)) {
            until[node.device.0] += self.task(nets, node);
        }
        (until.into_iter().fold(0.0, f64::max) / self.serial(nets, plan)).min(1.0)
    }

    /// Nanoseconds of a plan if every device works through its tasks one by one: an upper bound on what a
    /// scheduler that overlaps may take.
    pub fn serial(&self, nets: &[Net], plan: &Plan) -> f64 {
        let mut per_device = vec![0.0; plan.devices];
        for node in &plan.nodes {
            per_device[node.device.0] += self.task(nets, node);
        }
        per_device.into_iter().fold(0.0, f64::max)
    }
}

/// Operations of the solver's rule on the parameters that a task writes.
fn flops_of_rule(nets: &[Net], node: &Node) -> u64 {
    // What is written to other devices was computed for the task's own.
    let written = node.writes.iter().filter(|p| p.device == node.device).map(|p| match p.buffer {
        // Decay, rate, momentum and subtraction: six operations a value; two for a running sum.
        Buffer::History(_) => 4 * elements(nets, node, p),
        // What else the task finds.
        Buffer::Storage(_) => 0,
        _ => 2 * elements(nets, node, p),
    });
    written.sum::<usize>() as u64
}

/// The rows of a weight that a device steps, and all its rows.
fn rows_of(nets: &[Net], weight: ParamId, device: DeviceId) -> (usize, usize) {
    let all = nets[device.0].params.view(weight).shape.dims().first().copied().unwrap_or(1);
    (rows_to_step(nets, weight, device).len(), all.max(1))
}

/// Elements that a task touches of an array.
fn elements(nets: &[Net], node: &Node, place: &Place) -> usize {
    let net = &nets[place.device.0];
    let whole = |id: ParamId| net.params.view(id).shape.count();
    let of_rows = |id, device| {
        let (rows, all) = rows_of(nets, id, device);
        whole(id) / all * rows
    };
    match place.buffer {
        Buffer::Rows(id, device) => of_rows(id, device),
        // Whoever steps some rows of a weight has the history of these.
        Buffer::History(id) | Buffer::Centre(id) if node.task.sub == SubTask::StepWeight => {
            of_rows(id, node.device)
        }
        Buffer::Storage(id) | Buffer::Stage(id) => net.storages[id.0],
        Buffer::Aux(id) => net.aux[id.0],
        Buffer::Images(id, tile) => net.storages[id.0] / net.batch().max(1) * tile.images,
        Buffer::AuxImages(id, tile) => net.aux[id.0] / net.batch().max(1) * tile.images,
        Buffer::Weight(id)
        | Buffer::Gradient(id)
        | Buffer::History(id)
        | Buffer::Centre(id)
        | Buffer::Sum(id) => whole(id),
        Buffer::Norm(_) => 1,
    }
}
