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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tile {
    /// First image.
    pub first: usize,
    /// Number of images.
    pub images: usize,
}

impl Tile {
    /// The image behind the last.
    pub fn end(&self) -> usize {
        self.first + self.images
    }

    /// Whether two tiles have an image in common.
    pub fn meets(&self, other: &Self) -> bool {
        self.first < other.end() && other.first < self.end()
    }

    /// Whether all images of another tile are in this one.
    pub fn holds(&self, other: &Self) -> bool {
        self.first <= other.first && other.end() <= self.end()
    }

    /// The tile in so many near-equal chunks, none of them empty.
    pub fn chunks(&self, count: usize) -> Vec<Self> {
        let chunks = Self::cut(self.images, count.clamp(1, self.images.max(1))).into_iter();
        chunks.map(|chunk| Self { first: self.first + chunk.first, ..chunk }).collect()
    }

    /// Cuts a mini-batch into near-equal tiles, the larger ones first.
    pub fn cut(batch: usize, parts: usize) -> Vec<Self> {
        Self::shares(batch, &vec![1; parts])
    }

    /// Cuts a mini-batch into tiles in proportion to `weights`, such as the cores of uneven quadrants: each gets the whole
    /// images of its quota and at least one if there are as many images as tiles; those left over go where most is
    /// missing, of equals to the first.
    pub fn shares(batch: usize, weights: &[usize]) -> Vec<Self> {
        let total = weights.iter().sum::<usize>().max(1) as u128;
        let quota = |weight: usize| batch as u128 * weight as u128;
        let least = usize::from(batch >= weights.len());
        let mut images: Vec<usize> =
            weights.iter().map(|&weight| ((quota(weight) / total) as usize).max(least)).collect();
        // Compared as fractions of `total`, without rounding.
        let missing =
            |images: &[usize], p: usize| quota(weights[p]) as i128 - (images[p] as u128 * total) as i128;
        while images.iter().sum::<usize>() < batch && !images.is_empty() {
            let most = (0..images.len()).rev().max_by_key(|&p| missing(&images, p)).unwrap_or(0);
            images[most] += 1;
        }
        while images.iter().sum::<usize>() > batch {
            // Quotas below one image were filled up at the cost of the others.
            let Some(most) =
                (0..images.len()).rev().filter(|&p| images[p] > least).min_by_key(|&p| missing(&images, p))
            else {
                break;
            };
            images[most] -= 1;
        }
        let place = |first: &mut usize, images: usize| {
            *first += images;
            Some(Self { first: *first - images, images })
        };
        images.into_iter().scan(0, place).collect()
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
    /// Some images of a blob's values or gradients: what a task touches whose tile is a chunk of its device's images.
    Images(StorageId, Tile),
    /// Some images of a layer's own state.
    AuxImages(AuxId, Tile),
    /// Where the host puts the next mini-batch of a source's top; lies beside the storage of that blob.
    Stage(StorageId),
    /// A parameter.
    Weight(ParamId),
    /// The rows of a weight that one of a worker's devices updates on all of them: see [`crate::net::rows_to_step`].
    Rows(ParamId, DeviceId),
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

impl Buffer {
    /// The array that a buffer is, or lies in, and which of its images it is; `None` for all there is.
    pub fn whole(self) -> (Self, Option<Tile>) {
        match self {
            Self::Images(id, tile) => (Self::Storage(id), Some(tile)),
            Self::AuxImages(id, tile) => (Self::Aux(id), Some(tile)),
            other => (other, None),
        }
    }

    /// What is left of it for a task of some images: of values, gradients and own states only these.
    pub fn of_images(self, tile: Tile) -> Self {
        match self {
            Self::Storage(id) => Self::Images(id, tile),
            Self::Aux(id) => Self::AuxImages(id, tile),
            other => other,
        }
    }
}

/// Whether two parts of one array have something in common, where `None` is all of it.
pub(crate) fn parts_meet(one: Option<Tile>, other: Option<Tile>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.meets(&other),
        _ => true,
    }
}

/// A buffer of a certain device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The device.
    pub device: DeviceId,
    /// The buffer.
    pub buffer: Buffer,
}

impl Place {
    /// The array that it is, or lies in, and which of its images it is.
    pub fn whole(self) -> (Self, Option<Tile>) {
        let (buffer, part) = self.buffer.whole();
        (Self { buffer, ..self }, part)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on device {}", self.buffer, self.device.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(batch: usize, weights: &[usize]) -> Vec<usize> {
        let tiles = Tile::shares(batch, weights);
        let mut next = 0;
        for tile in &tiles {
            assert_eq!(tile.first, next, "tiles lie side by side");
            next += tile.images;
        }
        assert_eq!(next, batch, "every image is in a tile");
        tiles.into_iter().map(|tile| tile.images).collect()
    }

    #[test]
    fn even_weights_are_an_even_cut() {
        for (batch, parts) in [(64, 4), (10, 3), (7, 7), (100, 16), (1, 1)] {
            let (each, more) = (batch / parts, batch % parts);
            let even: Vec<usize> = (0..parts).map(|p| each + usize::from(p < more)).collect();
            assert_eq!(images(batch, &vec![17; parts]), even);
            assert_eq!(Tile::shares(batch, &vec![17; parts]), Tile::cut(batch, parts));
        }
    }

    #[test]
    fn uneven_quadrants_get_images_in_proportion_to_their_cores() {
        assert_eq!(images(68, &[18, 18, 16, 16]), [18, 18, 16, 16]);
        assert_eq!(images(64, &[18, 18, 16, 16]), [17, 17, 15, 15]);
        assert_eq!(images(128, &[43, 43, 42]), [43, 43, 42]);
        assert_eq!(images(9, &[2, 1]), [6, 3]);
        assert_eq!(images(10, &[2, 1]), [7, 3]);
    }

    #[test]
    fn nobody_is_left_without_an_image_while_there_are_enough() {
        assert_eq!(images(4, &[100, 1, 1, 1]), [1, 1, 1, 1]);
        assert_eq!(images(8, &[100, 1, 1, 1]), [5, 1, 1, 1]);
        assert_eq!(images(2, &[1, 5, 1]), [0, 2, 0]);
        assert_eq!(images(0, &[3, 4]), [0, 0]);
        assert!(Tile::shares(5, &[]).is_empty());
    }

    #[test]
    fn chunks_of_a_tile_are_its_images_once_each() {
        let tile = Tile { first: 10, images: 7 };
        let of = |count| -> Vec<(usize, usize)> {
            tile.chunks(count).into_iter().map(|chunk| (chunk.first, chunk.images)).collect()
        };
        assert_eq!(of(3), [(10, 3), (13, 2), (15, 2)]);
        assert_eq!((of(0), of(1), of(100).len()), (vec![(10, 7)], vec![(10, 7)], 7));
        let chunks = tile.chunks(3);
        assert!(tile.holds(&chunks[2]) && !chunks[2].holds(&tile) && chunks[0].meets(&tile));
        assert!(!chunks[0].meets(&chunks[1]) && !chunks[1].meets(&chunks[0]));
        assert_eq!(Tile { first: 3, images: 0 }.chunks(4), [Tile { first: 3, images: 0 }]);
    }

    #[test]
    fn large_numbers_do_not_overflow() {
        let images = images(usize::MAX / 4, &[usize::MAX / 8, usize::MAX / 8]);
        assert!(images[0] - images[1] <= 1, "{images:?}");
    }
}
