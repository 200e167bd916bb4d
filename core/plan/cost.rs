//! The one cost model: what a task takes on a machine of given rates.

use crate::layer::SubTask;
use crate::net::Net;
use crate::plan::{Node, Plan};
use crate::task::{Buffer, Place};

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
        match node.task.sub {
            SubTask::Update => flops_of_rule(net, node),
            // Of the whole mini-batch, wherever its images are.
            SubTask::StepWeight => {
                let of_images = |net: &Net| net.flops(node.task.layer, node.task.sub);
                nets.iter().map(of_images).sum::<u64>() + flops_of_rule(net, node)
            }
            SubTask::AddShared | SubTask::Gather | SubTask::Total => {
                node.writes.iter().map(|p| elements(net, p.buffer)).sum::<usize>() as u64
            }
            SubTask::Norm => 2 * node.reads.iter().map(|p| elements(net, p.buffer)).sum::<usize>() as u64,
            sub => net.flops(node.task.layer, sub),
        }
    }

    /// Bytes that one task reads and writes if every array that it declares is touched once, in f32.
    pub fn bytes(nets: &[Net], node: &Node) -> u64 {
        Self::bytes_kept(nets, node, |_| size_of::<f32>())
    }

    /// The same if an element of each array takes as many bytes as `element` says.
    pub fn bytes_kept(nets: &[Net], node: &Node, element: impl Fn(&Place) -> usize) -> u64 {
        let place = |p: &Place| (element(p) * elements(&nets[p.device.0], p.buffer)) as u64;
        node.reads.iter().chain(&node.writes).map(place).sum()
    }

    /// Nanoseconds of one task, alone on its device.
    pub fn task(&self, nets: &[Net], node: &Node) -> f64 {
        let (flops, bytes) = (Self::flops(nets, node) as f64, Self::bytes(nets, node) as f64);
        self.rates.overhead + (flops / self.rates.flops).max(bytes / self.rates.bytes)
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
fn flops_of_rule(net: &Net, node: &Node) -> u64 {
    let written = node.writes.iter().map(|p| match p.buffer {
        // Decay, rate, momentum and subtraction: six operations a value; two for a running sum.
        Buffer::History(_) => 4 * elements(net, p.buffer),
        buffer => 2 * elements(net, buffer),
    });
    written.sum::<usize>() as u64
}

/// Elements of a buffer.
fn elements(net: &Net, buffer: Buffer) -> usize {
    match buffer {
        Buffer::Storage(id) | Buffer::Stage(id) => net.storages[id.0],
        Buffer::Aux(id) => net.aux[id.0],
        Buffer::Weight(id)
        | Buffer::Gradient(id)
        | Buffer::History(id)
        | Buffer::Centre(id)
        | Buffer::Sum(id) => net.params.view(id).shape.count(),
        Buffer::Norm(_) => 1,
    }
}
