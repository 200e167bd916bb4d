//! Tasks: plain data that says which layer, which sub-task and which images, and what it reads and writes.

use std::fmt;
use std::ops::Range;

use crate::layer::SubTask;
use crate::net::{AuxId, LayerId, ParamId, StorageId};

/// A device's place among the devices of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub usize);

/// A lane's place among the lanes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub usize);

/// A task's place in its plan, which is also the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub usize);

/// The part of a layer that a task computes: images `first .. first + images` of the worker's mini-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// First image.
    pub first: usize,
    /// Number of images.
    pub images: usize,
}

impl Tile {
    /// Cuts a mini-batch into near-equal tiles, the larger ones first.
    pub fn cut(batch: usize, parts: usize) -> Vec<Self> {
        let (each, more) = (batch / parts.max(1), batch % parts.max(1));
        let mut first = 0;
        (0..parts)
            .map(|p| {
                let images = each + usize::from(p < more);
                first += images;
                Self { first: first - images, images }
            })
            .collect()
    }
}

/// One task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// The layer. For a transfer of several layers' gradients, the first of the chunk in backward order.
    pub layer: LayerId,
    /// What is done.
    pub sub: SubTask,
    /// To which images.
    pub tile: Tile,
}

/// A transfer of a part of the packed gradients between two devices of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Copy {
    /// Device whose gradients are read.
    pub from: DeviceId,
    /// Device whose gradients are written; the transfer runs in one of its lanes.
    pub to: DeviceId,
    /// Elements of the packed buffer.
    pub range: Range<usize>,
    /// Whether the values are added to those there (Accumulate) or replace them (Broadcast).
    pub add: bool,
}

/// One named array of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// Values or gradients of blobs.
    Storage(StorageId),
    /// A layer's own state.
    Aux(AuxId),
    /// Where the host puts the next mini-batch of a source's top; lies beside the storage of that blob.
    Stage(StorageId),
    /// A parameter.
    Weight(ParamId),
    /// The gradient of a parameter.
    Gradient(ParamId),
    /// The solver's history of a parameter.
    History(ParamId),
    /// The centre weights of a parameter (EASGD).
    Centre(ParamId),
    /// What was gathered of a parameter's gradient in the iteration's earlier mini-batches; 0 between iterations.
    Sum(ParamId),
    /// The sum of the squares of a layer's gradients.
    Norm(LayerId),
}

/// A buffer of a certain device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The device.
    pub device: DeviceId,
    /// The buffer.
    pub buffer: Buffer,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on device {}", self.buffer, self.device.0)
    }
}
