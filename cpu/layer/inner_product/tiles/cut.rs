//! Into what grains ∇A of an inner product is cut: pieces of the columns of the weight, and parts of its rows. Each part has sums of
//! its own, which are added up in a stage behind.

use std::ops::Range;

use super::{TILE_VECTORS, Tiles};
use crate::kernel::few::PASSING_ROWS;
use crate::layer::{Grain, Stages, share};
use crate::machine::Machine;
use crate::memory::Span;

/// Parts of the rows of a weight that threads keep in their caches.
const KEPT_PARTS: usize = 2;

/// Most of the weight's size that the sums of all parts may have, as a divisor.
const KEPT_SUMS: usize = 3;

/// The grains of ∇A. The number of parts, and which rows they have, follow from the weight and from the images of all devices of the
/// worker, so that sums do not depend on how images are shared out.
pub(super) struct ActivationCut {
    /// Pieces of the columns.
    pieces: usize,
    /// Parts of the rows.
    pub parts: usize,
    /// Rows of which each part but the last has a multiple.
    unit: usize,
}

impl ActivationCut {
    /// Where the images of all devices are few: pieces as long as their sums allow, since a piece of a row is a stream of its own, in 4
    /// rows of each array at a time; what grains are missing then have parts of the rows, in blocks of packed gradients and
    /// of what passes at once.
    pub fn of_few_everywhere(machine: &Machine, shape: [usize; 2], most_sources: usize) -> Self {
        let [inputs, outputs] = shape;
        let unit = PASSING_ROWS * most_sources;
        let pieces = inputs.div_ceil(machine.inner_few_columns);
        let parts = (Self::wanted(machine, shape) / pieces).clamp(1, outputs.div_ceil(unit));
        Self { pieces, parts, unit }
    }

    /// Where those of this device alone may be few: no piece has only a few columns, since short pieces of rows take as long to read
    /// as longer ones. The images are those of all devices.
    pub fn new(machine: &Machine, [images, inputs, outputs]: [usize; 3], grains: usize, few: bool) -> Self {
        let shape = [inputs, outputs];
        let parts = Self::kept(machine, images, shape);
        let width = machine.channel_block * TILE_VECTORS;
        let pieces = match few {
            true => {
                let short = Self::wanted(machine, shape).min(inputs / machine.inner_grain_columns);
                inputs.div_ceil(machine.inner_few_columns).max(short)
            }
            false => (grains / parts).clamp(1, (inputs / width.max(machine.inner_grain_columns)).max(1)),
        };
        Self { pieces, parts, unit: 1 }
    }

    /// Grains that a weight of so many inputs and outputs is worth.
    fn wanted(machine: &Machine, [inputs, outputs]: [usize; 2]) -> usize {
        (inputs * outputs / machine.grain_elements).clamp(1, machine.task_grains)
    }

    /// Parts of the rows of a weight that threads may keep in their caches from task to task: forward and update have rows of the weight
    /// for grains, and threads take neighbouring grains. If ∇A had all rows of some columns, each thread would read what
    /// others have written, and then write what others have read, which takes several times as long as to write what nobody has.
    /// One part where the weight is too large for that, beside that many images, or where ∇A may update it in passing.
    fn kept(machine: &Machine, images: usize, [inputs, outputs]: [usize; 2]) -> usize {
        let stays = inputs * outputs <= machine.inner_kept_elements;
        let small = KEPT_PARTS * images * KEPT_SUMS <= outputs;
        if stays && small && images > machine.passing_images { KEPT_PARTS } else { 1 }
    }

    /// Rows of a part.
    pub fn rows(&self, part: usize, outputs: usize) -> Range<usize> {
        let units = share(outputs.div_ceil(self.unit), part, self.parts);
        units.start * self.unit..(units.end * self.unit).min(outputs)
    }

    /// Tiles of the pieces that have most of `tiles`, and fewest.
    pub fn piece_tiles(&self, tiles: usize) -> [usize; 2] {
        [0, self.pieces - 1].map(|piece| share(tiles, piece, self.pieces).len())
    }
}

/// What a grain of ∇A has: which part of the rows, and tiles of columns.
pub(super) struct Part {
    pub part: usize,
    pub rows: Range<usize>,
    pub tiles: Range<usize>,
}

impl Tiles {
    /// Rows and tiles of columns of a grain of ∇A. Threads take neighbouring grains, and so all pieces of a part.
    pub(super) fn part_of(&self, grain: &Grain<'_>) -> Part {
        let of = &self.cut;
        let (part, piece) = (grain.index / of.pieces, grain.index % of.pieces);
        let tiles = share(self.row_tiles(), piece, of.pieces);
        Part { part, rows: of.rows(part, self.outputs), tiles }
    }

    /// The sums of ∇A by parts, then their sum.
    pub(super) fn sum_stages(&self) -> Stages {
        let sums = Stages::one(self.cut.pieces * self.cut.parts);
        let kept = self.machine.stream_grains(self.cut.parts * self.images * self.inputs);
        if self.keeps_sums { sums.then(kept.min(self.row_tiles())) } else { sums }
    }

    /// The sums of a part for some tiles of columns: tile by tile, image by image.
    pub(super) fn part_sums(&self, part: usize, tiles: &Range<usize>) -> Span {
        let first = part * self.row_tiles();
        self.part_sums.part(self.sums_of(&(first + tiles.start..first + tiles.end)))
    }

    /// The place of some tiles among sums.
    pub(super) fn sums_of(&self, tiles: &Range<usize>) -> Range<usize> {
        let tile = self.images * self.lanes * TILE_VECTORS;
        tiles.start * tile..tiles.end * tile
    }

    /// Tiles of columns of a row of the weight, of which the last may be cut off.
    pub(super) fn row_tiles(&self) -> usize {
        self.inputs.div_ceil(self.lanes * TILE_VECTORS)
    }

    /// Adds up what all parts have of the grain's columns, in their order.
    pub(super) fn add_part_sums(&self, grain: &mut Grain<'_>, bottom_grad: Span) {
        for tile in grain.share(self.row_tiles()) {
            let tiles = tile..tile + 1;
            // SAFETY: found in the stage before; grains have tiles of their own.
            let sums = |part: usize| unsafe { grain.memory.write(self.part_sums(part, &tiles)) };
            let total = sums(0);
            for part in 1..self.cut.parts {
                total.iter_mut().zip(&*sums(part)).for_each(|(total, sum)| *total += *sum);
            }
            self.scatter(grain.memory, bottom_grad, tiles.clone(), total);
        }
    }
}
