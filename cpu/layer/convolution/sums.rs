//! The sums of a gradient of weights over images and pixels: how they are packed, and which grain finds which.
//!
//! A grain sums some tiles of weights over some images, or over some rows of one where that leaves fewer grains that read the same
//! source. Grains of different images or rows have sums of their own; a second stage adds them in the order of images and rows and
//! turns them into Caffe's order.

use std::ops::Range;

use super::cut::cheapest;
use super::direction::{Setup, TILE_VECTORS};
use super::passes::Passes;
use super::weights::{Packing, Taps, Words};
use crate::kernel::stored::Origin;
use crate::kernel::summed::Summed;
use crate::layer::{Grain, share};
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::Span;

/// The sums of all grains.
pub(super) struct Sums {
    pub packing: Packing,
    target: Arrangement,
    image_parts: usize,
    /// Bands of rows of an image, and parts of them, where each part has one image.
    bands: usize,
    band_parts: usize,
    tile_parts: usize,
    /// Parts of a tile that are added up by a grain each.
    unpacking_parts: usize,
}

/// What a grain sums up.
pub(super) struct Share {
    pub group: usize,
    pub images: Range<usize>,
    /// Bands of rows of the images.
    pub bands: Range<usize>,
    pub tiles: Range<usize>,
    /// Its sums, those of other tiles and groups included.
    pub sums: Span,
}

impl Sums {
    /// Shares them out. `passes` are those of the forward direction, `bytes` what each part of the tiles moves for an element of the
    /// source, or as many as take the time of what it does with it; `bands` are those of an image's rows that can be apart.
    pub fn new(setup: &Setup<'_>, passes: &Passes, bytes: usize, bands: usize) -> Self {
        let machine = Machine::of(setup.numerics.isa);
        let packing = packing(setup, passes);
        let wanted = machine.grains(setup.flops, machine.gradient_grains);
        // Every part of the tiles reads the source; each part of the images costs memory for its sums, and writing,
        // reading and adding them.
        let most = machine.partial_bytes / (size_of::<f32>() * packing.len());
        let most_images = most.clamp(1, setup.source.images);
        let costs = [0, 3 * size_of::<f32>() * packing.len(), bytes * setup.source.len()];
        let ranges = [1..=1, 1..=most_images, 1..=packing.tiles()];
        let [_, image_parts, tile_parts] = cheapest(wanted.div_ceil(packing.groups), ranges, costs);
        let [band_parts, tile_parts] = match image_parts == setup.source.images {
            true if bands > 1 && tile_parts.min(bands) * image_parts <= most => {
                let parts = tile_parts.min(bands);
                [parts, tile_parts.div_ceil(parts)]
            }
            _ => [1, tile_parts],
        };
        let unpacking_parts = packing.parts(image_parts * band_parts * packing.len());
        Self { packing, target: setup.target, image_parts, bands, band_parts, tile_parts, unpacking_parts }
    }

    /// Whether several grains see each image.
    pub fn shares_images(&self) -> bool {
        self.tile_parts > 1
    }

    /// Most images of a grain.
    pub fn images(&self) -> usize {
        self.target.images.div_ceil(self.image_parts)
    }

    /// The images of each part.
    pub fn image_parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.image_parts).map(|part| share(self.target.images, part, self.image_parts))
    }

    /// Grains of the sums.
    pub fn grains(&self) -> usize {
        self.packing.groups * self.parts() * self.tile_parts
    }

    /// Grains that add the sums up.
    pub fn unpacking_grains(&self) -> usize {
        self.packing.grains(self.unpacking_parts)
    }

    /// Elements of the sums of all grains.
    pub fn partials(&self) -> usize {
        self.parts() * self.packing.len()
    }

    /// Parts that have sums of their own.
    fn parts(&self) -> usize {
        self.image_parts * self.band_parts
    }

    /// A grain's share of them.
    pub fn share(&self, grain: usize, partials: Span) -> Share {
        let (index, tile_part) = (grain / self.tile_parts, grain % self.tile_parts);
        let (group, part) = (index / self.parts(), index % self.parts());
        let (image_part, band_part) = (part / self.band_parts, part % self.band_parts);
        Share {
            group,
            images: share(self.target.images, image_part, self.image_parts),
            bands: share(self.bands, band_part, self.band_parts),
            tiles: share(self.packing.tiles(), tile_part, self.tile_parts),
            sums: partials.part(part * self.packing.len()..(part + 1) * self.packing.len()),
        }
    }

    /// The gradients of a tile's targets in an image.
    pub fn gradient(&self, gradient: Span, image: usize, group: usize, tile: usize) -> Span {
        let first = group * self.packing.targets + tile * TILE_VECTORS * self.packing.vector;
        let plane = self.target.plane_len();
        let start = image * self.target.image_stride() + first / self.packing.vector * plane;
        gradient.part(start..start + self.packing.vectors(tile) * plane)
    }

    /// Adds the sums of the grain's piece in the order of the images and turns them into Caffe's order of weights.
    pub fn unpack(&self, grain: &Grain<'_>, partials: Span, weight_grad: Span) {
        let piece = self.packing.piece(grain.index, self.unpacking_parts);
        let place = self.packing.tile(piece.group, piece.tile);
        let distance = self.packing.len();
        let last = (self.parts() - 1) * distance;
        let rows = weight_grad.part(self.packing.rows(piece.group, piece.tile));
        // SAFETY: grains have pieces of their own, whose weights lie in the rows of their tile; all was summed up in the
        // stage before, and nobody writes sums in this one.
        let (gradient, sums) = unsafe {
            let sums = partials.part(place.start..last + place.end);
            (Origin::new(grain.memory.pointer(rows)), grain.memory.read(sums))
        };
        self.packing.unpack(Summed::new(sums, self.parts(), distance), &piece, gradient);
    }
}

/// How the sums are packed.
fn packing(setup: &Setup<'_>, passes: &Passes) -> Packing {
    let groups = setup.layer.group;
    Packing {
        groups,
        sources: setup.source.channels / groups,
        targets: setup.target.channels / groups,
        source_block: setup.source.layout.block,
        // Sums are f32 whatever is multiplied.
        words: Words::Numbers,
        kernel: Taps::all(setup.layer.kernel.iter().product()),
        vector: setup.target.layout.block,
        tile_vectors: TILE_VECTORS,
        targets_are_outputs: true,
        isa: setup.numerics.isa,
        passes: Packing::taps(passes, setup.layer.kernel.iter().product()),
    }
}
