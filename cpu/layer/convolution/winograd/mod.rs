//! 3×3 and 5×5 convolutions of stride 1 from fewer products ([`crate::kernel::winograd`]).

mod cut;
mod direction;
mod entry;
mod gradient;
mod inputs;
mod overlap;

pub(super) use direction::Winograd;
pub(super) use entry::EntryWinograd;
pub(super) use gradient::WinogradGradient;

use std::ops::Range;

use quadrille_core::layer::{Convolution, SubTask};
use quadrille_core::shape::Shape;

use super::direction::{Setup, TILE_VECTORS};
use super::weights::{Packing, Taps, Words};
use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::winograd::{Filter, MOST_SOURCES, Sources, Squares, Store};
use crate::layout::Arrangement;
use crate::machine::{LINE, Machine};
use crate::memory::{Memory, Span};

/// Most tiles that are transformed at once.
const MOST: usize = 64;

/// Elements that may be left out so that scratch begins at a cache line.
const ALIGNMENT: usize = 16;

/// Elements from a point to the next, of which each has so many: an odd number of cache lines. All points of a tile are written
/// and read one after the other, and an even number of lines apart they would share a few sets of a cache.
fn apart(elements: usize) -> usize {
    (elements.div_ceil(LINE) | 1) * LINE
}

/// Whether a filter can do a layer at all.
pub(super) fn can(layer: &Convolution, filter: Filter) -> bool {
    layer.kernel == [filter.side(); 2]
        && layer.stride == [1; 2]
        && layer.dilation == [1; 2]
        && layer.pad.iter().all(|p| *p < filter.side())
}

/// Whether a filter is worth trying for a layer with this bottom and top: between enough channels, and where tiles have few
/// pixels too many.
pub(super) fn fits(
    layer: &Convolution,
    [bottom, top]: [&Shape; 2],
    numerics: Numerics,
    filter: Filter,
) -> bool {
    let fewest = Machine::fewest_for_winograd(numerics, filter);
    let enough = |channels: usize| channels / layer.group >= fewest;
    can(layer, filter)
        && enough(layer.num_output)
        && enough(bottom.dim(1))
        && saves(bottom, filter)
        && saves(top, filter)
}

/// The same for a layer whose bottom are images of a few channels, which get no gradient.
pub(super) fn fits_entry(layer: &Convolution, [bottom, top]: [&Shape; 2], filter: Filter) -> bool {
    can(layer, filter) && layer.group == 1 && bottom.dim(1) <= MOST_SOURCES && saves(top, filter)
}

/// Whether tiles of planes like these save at least a third of the products: the transforms take about as long as a fifth of them.
fn saves(shape: &Shape, filter: Filter) -> bool {
    let extents = [2, 3].map(|axis| shape.dim(axis));
    3 * filter.tiles(extents) * filter.points() <= 2 * extents[0] * extents[1] * filter.taps()
}

/// Whether F(4×4, 3×3) pays more than F(2×2, 3×3) for a layer with this bottom and top: it has fewer products, but three times as
/// many transformed weights.
pub(super) fn pays_4x3([bottom, top]: [&Shape; 2], numerics: Numerics) -> bool {
    let weights =
        Machine::of(numerics.isa).winograd_weight_tiles.map(|cost| cost * numerics.precision.in_word());
    let cost = |filter: Filter| {
        let tiles = |shape: &Shape| shape.dim(0) * filter.tiles([2, 3].map(|axis| shape.dim(axis)));
        let tiles = [top, bottom, top].map(tiles);
        filter.points() * tiles.iter().zip(weights).map(|(tiles, weights)| tiles + weights).sum::<usize>()
    };
    cost(Filter::F4x3) < cost(Filter::F2x3)
}

/// How the weights of a direction are packed, in a precision, the kernel turned round or not. ∇W has the packing of forward.
fn packing(setup: &Setup<'_>, filter: Filter, turned: bool, precision: Precision) -> Packing {
    let (groups, vector, taps) = (setup.layer.group, setup.target.layout.block, filter.taps());
    let forward = setup.sub == SubTask::Forward;
    Packing {
        groups,
        sources: setup.source.channels / groups,
        targets: setup.target.channels / groups,
        source_block: vector * precision.in_word(),
        words: if precision == Precision::F32 { Words::Numbers } else { Words::Sources },
        kernel: Taps::all(taps),
        vector,
        tile_vectors: TILE_VECTORS,
        targets_are_outputs: forward,
        isa: setup.numerics.isa,
        passes: vec![if turned { Taps::new((0..taps).rev(), taps) } else { Taps::all(taps) }],
    }
}

/// The tiles of targets and of the sources that they see, image by image, row by row.
struct Tiling {
    filter: Filter,
    isa: Isa,
    squares: Squares,
    source: Arrangement,
    source_extents: [usize; 2],
    /// Rows and columns of what is cut into tiles: the target, or the source if its own pixels are transformed.
    target_extents: [usize; 2],
    /// Rows and columns of zeros before the source.
    pad: [usize; 2],
    /// How transformed values are stored.
    store: Store,
}

impl Tiling {
    /// Rows and columns of tiles of an image.
    fn tiles(&self) -> [usize; 2] {
        self.target_extents.map(|e| e.div_ceil(self.filter.outputs()))
    }

    /// Tiles of all images.
    fn count(&self) -> usize {
        self.source.images * self.tiles().iter().product::<usize>()
    }

    /// Image, row and column of a tile.
    fn place(&self, tile: usize) -> (usize, [usize; 2]) {
        let ([rows, columns], side) = (self.tiles(), self.filter.outputs());
        let rest = tile % (rows * columns);
        (tile / (rows * columns), [rest / columns * side, rest % columns * side])
    }

    /// Calls `each(image, first tile of the block, targets)` for the parts of a block that lie in one image and have
    /// at most [`MOST`] tiles.
    fn each_image(&self, block: Range<usize>, mut each: impl FnMut(usize, usize, &[[usize; 2]])) {
        let mut places = [[0; 2]; MOST];
        let mut first = block.start;
        while first < block.end {
            let image = self.place(first).0;
            let mut count = 0;
            while count < MOST && first + count < block.end && self.place(first + count).0 == image {
                places[count] = self.place(first + count).1;
                count += 1;
            }
            each(image, first - block.start, &places[..count]);
            first += count;
        }
    }

    /// Elements of a row of at most `most` tiles.
    fn row_len(&self, most: usize) -> usize {
        let vectors = if self.store == Store::Tiles { most.div_ceil(2) } else { most };
        vectors * self.source.layout.block
    }

    /// Elements from a point of `planes` blocks of channels to the next, of at most `most` tiles.
    fn point_len(&self, planes: usize, most: usize) -> usize {
        apart(self.rows(planes) * self.row_len(most))
    }

    /// Rows that `planes` blocks of channels need.
    fn rows(&self, planes: usize) -> usize {
        if self.store == Store::Channels { planes.div_ceil(2) } else { planes }
    }

    /// Transforms the sources of a block of at most `most` tiles: point by point, `point` elements apart, row by row (a block of
    /// channels, or two of them), tile by tile.
    fn transform(
        &self,
        memory: &Memory,
        source: Span,
        planes: Range<usize>,
        block: Range<usize>,
        [most, point]: [usize; 2],
        inputs: &mut [f32],
    ) {
        let lanes = self.source.layout.block;
        let (plane_len, row_len) = (self.source.plane_len(), self.row_len(most));
        self.each_image(block, |image, first, tiles| {
            let of = |plane: usize| {
                let start = image * self.source.image_stride() + plane * plane_len;
                // SAFETY: only read in this task.
                unsafe { memory.read(source.part(start..start + plane_len)) }
            };
            let step = if self.store == Store::Channels && self.filter.goes_in_pairs() { 2 } else { 1 };
            for plane in planes.clone().step_by(step) {
                let i = plane - planes.start;
                let place = match self.store {
                    Store::Channels => i / 2 * row_len + i % 2 * lanes / 2,
                    Store::Numbers | Store::Tiles => i * row_len,
                };
                let beside = (step == 2 && plane + 1 < planes.end).then(|| of(plane + 1));
                let pad = if self.squares == Squares::Inputs { self.pad } else { [0; 2] };
                let (filter, squares, extents) = (self.filter, self.squares, self.source_extents);
                let (plane, to) = (of(plane), &mut inputs[place..]);
                Sources { filter, squares, plane, beside, extents, tiles, pad, to, point, first }
                    .run(self.isa, self.store);
            }
        });
    }
}
