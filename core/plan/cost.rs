//! The one cost model: what a task takes on a machine of given rates.

use crate::layer::SubTask;
use crate::net::Net;
use crate::plan::{Node, Plan};
use crate::task::Buffer;

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
    /// Nanoseconds of one task, alone on its device.
    pub fn task(&self, nets: &[Net], node: &Node) -> f64 {
        let net = &nets[node.device.0];
        let flops = match node.task.sub {
            SubTask::Update => {
                let written = node.writes.iter().map(|p| match p.buffer {
                    // Decay, rate, momentum and subtraction: six operations a value; two for a running sum.
                    Buffer::History(_) => 4 * elements(net, p.buffer),
                    buffer => 2 * elements(net, buffer),
                });
                written.sum::<usize>() as u64
            }
            SubTask::AddShared => node.writes.iter().map(|p| elements(net, p.buffer)).sum::<usize>() as u64,
            sub => net.flops(node.task.layer, sub),
        };
        let moved: usize = node.reads.iter().chain(&node.writes).map(|p| 4 * elements(net, p.buffer)).sum();
        self.rates.overhead + (flops as f64 / self.rates.flops).max(moved as f64 / self.rates.bytes)
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

/// Elements of a buffer.
fn elements(net: &Net, buffer: Buffer) -> usize {
    match buffer {
        Buffer::Storage(id) | Buffer::Stage(id) => net.storages[id.0],
        Buffer::Aux(id) => net.aux[id.0],
        Buffer::Weight(id) | Buffer::Gradient(id) | Buffer::History(id) | Buffer::Centre(id) => {
            net.params.view(id).shape.count()
        }
    }
}
