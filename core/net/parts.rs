//! Storages inside others: the bottoms of a Concat lie side by side in the memory of its top, so that nothing is copied.
//!
//! Whoever touches the whole touches its parts, and that is what tasks declare ([`Net::innermost`]): to a plan and to its
//! validator parts are buffers like any others, and the whole is only a name for all of them.

use std::ops::Range;

use super::{Blob, BlobId, LayerId, Net, StorageId};
use crate::layer::{Layer, SubTask};

/// Where a storage lies inside another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The storage around it, which is itself no part of another.
    pub whole: StorageId,
    /// The elements of each image of the whole that are its own, as the net's device counts them.
    pub elements: Range<usize>,
}

impl Net {
    /// Where a storage lies inside another; `None` if it has its memory from nobody.
    pub fn part(&self, id: StorageId) -> Option<&Part> {
        self.memory.as_ref()?.parts.get(id.0)?.as_ref()
    }

    /// The storage around a storage, or itself, and which elements of each image are its own.
    pub(super) fn place_in_whole(&self, id: StorageId) -> (StorageId, Range<usize>) {
        self.part(id).map_or((id, 0..usize::MAX), |part| (part.whole, part.elements.clone()))
    }

    /// Whether `inner` lies in `outer`, which is another.
    fn lies_in(&self, inner: StorageId, outer: StorageId) -> bool {
        let ((one, own), (other, all)) = (self.place_in_whole(inner), self.place_in_whole(outer));
        inner != outer && one == other && all.start <= own.start && own.end <= all.end
    }

    /// The storages that a storage is made of: itself, if none lies inside it.
    pub(crate) fn innermost(&self, id: StorageId) -> Vec<StorageId> {
        let all = (0..self.memory.as_ref().map_or(0, |memory| memory.parts.len())).map(StorageId);
        let inside: Vec<StorageId> = all.filter(|other| self.lies_in(*other, id)).collect();
        if inside.is_empty() {
            return vec![id];
        }
        let holds_none = |part: &&StorageId| !inside.iter().any(|other| self.lies_in(*other, **part));
        inside.iter().filter(holds_none).copied().collect()
    }

    /// Whether a layer is a Concat that has nothing to do, since its bottoms are parts of its top and so are their
    /// gradients, if they have any.
    pub fn is_joined(&self, id: LayerId) -> bool {
        self.is_in_place(id, SubTask::Forward) && self.accesses(id, SubTask::GradActivation).is_none()
    }

    /// Whether what a Concat's sub-task would copy lies where it belongs already.
    pub(super) fn is_in_place(&self, id: LayerId, sub: SubTask) -> bool {
        let array: fn(&Blob) -> Option<StorageId> = match sub {
            SubTask::Forward => |blob| Some(blob.data),
            SubTask::GradActivation => |blob| blob.grad,
            _ => return false,
        };
        let layer = self.layer(id);
        let of = |blob: &BlobId| array(self.blob(*blob));
        let Some(top) = layer.tops.first().and_then(of) else { return false };
        let inside = |bottom: &BlobId| of(bottom).is_some_and(|bottom| self.lies_in(bottom, top));
        matches!(layer.layer, Layer::Concat(_)) && layer.bottoms.iter().all(inside)
    }
}
