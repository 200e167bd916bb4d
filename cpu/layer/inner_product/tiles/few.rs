//! Forward and ∇A of few images, by the products of [`crate::kernel::few`]: where each number of
//! the weight takes part in few products, tiles do not hide the way to memory, and to copy the weight first takes as long.

use std::ops::Range;

use super::{TOGETHER, Tiles, blocks};
use crate::isa::{Isa, Precision};
use crate::kernel::few::{
    Columns, Dots, MOST_DOTS, MOST_IMAGES, MOST_ROWS, PASSING_ROWS, TILE_VECTORS, Totals,
};
use crate::kernel::stored::Origin;
use crate::kernel::vectorised::on;
use crate::layer::{Grain, Stages, share};
use crate::machine::Machine;
use crate::memory::{Memory, Span};

/// Whether so many images are few: vectors of them would be half empty at least. Also where there are tiles of AMX: vectors, too,
/// multiply so few as quickly as memory is read, and ask for what comes next.
pub(super) fn are_few(images: usize, lanes: usize) -> bool {
    images <= MOST_IMAGES.min(lanes / 2)
}

/// What the products of few images are of: on CPUs with AMX of f32, whatever the layer's precision. Vectors are bound by memory there
/// if their products cost little, and those of pairs of bf16 cost four times as much as those of f32, twice as much a number
/// (measured on Granite Rapids; on a Zen 4 they cost the same). Tiles would be no way out: they add in another order, and gradients of
/// weights are to be the same numbers whether ∇A updates the weight or not.
pub(super) fn precision_of_few(isa: Isa, precision: Precision) -> Precision {
    if isa == Isa::AmxBf16 { Precision::F32 } else { precision }
}

/// Into what grains ∇A is cut.
pub(super) struct FewGrains {
    /// Pieces of the columns.
    pieces: usize,
    /// Parts of the rows. Each has sums of its own.
    pub parts: usize,
    /// Rows of which each part but the last has a multiple: blocks of packed gradients, and what passes at once.
    unit: usize,
}

impl FewGrains {
    /// Those of a weight. Pieces are as long as their sums allow, since a piece of a row is a stream of its own, in 4 rows of each
    /// array at a time; what grains are missing then have parts of the rows. The number of parts follows from the weight alone,
    /// and there is but one where the worker has more images than these: those of another device may be on tiles, which add all
    /// rows in one go, and sums are not to depend on how images are shared out.
    pub(super) fn new(
        machine: &Machine,
        [inputs, outputs]: [usize; 2],
        most_sources: usize,
        few_everywhere: bool,
    ) -> Self {
        let unit = PASSING_ROWS * most_sources;
        let pieces = inputs.div_ceil(machine.inner_few_columns);
        let wanted = (inputs * outputs / machine.grain_elements).clamp(1, machine.task_grains);
        match few_everywhere {
            true => Self { pieces, parts: (wanted / pieces).clamp(1, outputs.div_ceil(unit)), unit },
            false => {
                let short = wanted.min(inputs / machine.inner_grain_columns);
                Self { pieces: pieces.max(short), parts: 1, unit }
            }
        }
    }

    /// Rows of a part.
    fn rows(&self, part: usize, outputs: usize) -> Range<usize> {
        let units = share(outputs.div_ceil(self.unit), part, self.parts);
        units.start * self.unit..(units.end * self.unit).min(outputs)
    }
}

/// What a grain of ∇A has: which part of the rows, and tiles of columns.
pub(super) struct FewPart {
    pub part: usize,
    pub rows: Range<usize>,
    pub tiles: Range<usize>,
}

impl Tiles {
    /// Vectors of words of a row of the weight.
    pub(super) fn row_vectors(&self) -> usize {
        self.words(self.inputs).div_ceil(self.lanes)
    }

    /// Packs X as [`Dots`] wants it: the grain's vectors.
    pub(super) fn pack_few(&self, grain: &Grain<'_>) {
        let numbers = self.lanes * self.precision.in_word();
        // SAFETY: only read in this task.
        let x = unsafe { grain.memory.read(self.bottom) };
        for vector in grain.share(self.row_vectors()) {
            let inputs = vector * numbers..((vector + 1) * numbers).min(self.inputs);
            let places = self.places(inputs.clone());
            let len = self.images * self.lanes;
            // SAFETY: grains have vectors of their own.
            let to = unsafe { grain.memory.write(self.transposed.part(vector * len..(vector + 1) * len)) };
            for (image, to) in to.chunks_exact_mut(self.lanes).enumerate() {
                let of_image = &x[image * self.input.image_len()..][..self.input.image_len()];
                let mut gathered = [0.0; TOGETHER];
                let (to, rest) = to.split_at_mut(self.words(inputs.len()));
                self.pack(self.row(of_image, inputs.clone(), &places, &mut gathered), to);
                rest.fill(0.0);
            }
        }
    }

    /// Adds up the products of the grain's outputs: output by output, image by image. X of so many inputs as are worked on
    /// together stays in the first-level cache.
    pub(super) fn few_products(&self, weight: &[f32], x: &[f32], outputs: usize, sums: &mut [f32]) {
        let numbers = self.lanes * self.precision.in_word();
        let vector = self.images * self.lanes;
        let most = (self.machine.inner_few_bytes / size_of::<f32>() / vector).max(1);
        for part in blocks(self.row_vectors(), most) {
            let inputs = part.start * numbers..(part.end * numbers).min(self.inputs);
            for rows in blocks(outputs, MOST_DOTS) {
                let next =
                    if rows.end < outputs { rows.end * self.inputs + inputs.start } else { inputs.end };
                let dots = Dots {
                    w: &weight[rows.start * self.inputs + inputs.start..],
                    row: self.inputs,
                    rows: rows.len(),
                    len: inputs.len(),
                    x: &x[part.start * vector..part.end * vector],
                    images: self.images,
                    sums: &mut sums[rows.start * vector..rows.end * vector],
                    add: part.start > 0,
                    next: weight.as_ptr().wrapping_add(next),
                };
                dots.add(self.isa, self.precision);
            }
        }
        on(self.isa, Totals { sums, lanes: self.lanes });
    }

    /// Rows and tiles of columns of a grain of ∇A.
    pub(super) fn few_part(&self, grain: &Grain<'_>) -> FewPart {
        let of = &self.few_grains;
        let (piece, part) = (grain.index / of.parts, grain.index % of.parts);
        let tiles = share(self.row_tiles(), piece, of.pieces);
        FewPart { part, rows: of.rows(part, self.outputs), tiles }
    }

    /// The sums of ∇A by parts, then their sum.
    pub(super) fn few_stages(&self) -> Stages {
        let FewGrains { pieces, parts, .. } = self.few_grains;
        Stages::one(pieces * parts).then(self.grains.min(self.row_tiles()))
    }

    /// Scratch of a grain of ∇A.
    pub(super) fn few_scratch(&self) -> usize {
        let rows = self.few_grains.rows(0, self.outputs).len();
        let dy = self.images * self.few_gradients(rows);
        if self.passing { dy + self.scratch_in_passing_few(rows) } else { dy }
    }

    /// The sums of a part for some tiles of columns: tile by tile, image by image.
    pub(super) fn few_sums(&self, part: usize, tiles: &Range<usize>) -> Span {
        let first = part * self.row_tiles();
        self.few_sums.part(self.sums_of(&(first + tiles.start..first + tiles.end)))
    }

    /// The place of some tiles among sums.
    pub(super) fn sums_of(&self, tiles: &Range<usize>) -> Range<usize> {
        let tile = self.images * self.lanes * TILE_VECTORS;
        tiles.start * tile..tiles.end * tile
    }

    /// Tiles of columns of a row of the weight, of which the last may be cut off.
    fn row_tiles(&self) -> usize {
        self.inputs.div_ceil(self.lanes * TILE_VECTORS)
    }

    /// Adds up what all parts have of the grain's columns, in their order.
    pub(super) fn add_few_sums(&self, grain: &mut Grain<'_>, bottom_grad: Span) {
        for tile in grain.share(self.row_tiles()) {
            let tiles = tile..tile + 1;
            // SAFETY: found in the stage before; grains have tiles of their own.
            let sums = |part: usize| unsafe { grain.memory.write(self.few_sums(part, &tiles)) };
            let total = sums(0);
            for part in 1..self.few_grains.parts {
                total.iter_mut().zip(&*sums(part)).for_each(|(total, sum)| *total += *sum);
            }
            self.scatter(grain.memory, bottom_grad, tiles.clone(), total);
        }
    }

    /// From the packed gradients of one image to those of the next, of so many rows: not a power of two, so that they do not all
    /// begin in the same set of a cache.
    pub(super) fn few_gradients(&self, rows: usize) -> usize {
        self.words(rows) + self.lanes
    }

    /// Sums of ∇A: some rows and columns.
    pub(super) fn few_columns(&self, grain: &mut Grain<'_>, top_grad: Span) {
        let part = self.few_part(grain);
        // SAFETY: gradients are only read in this task; grains have sums of their own.
        let (top, sums) = unsafe {
            (grain.memory.read(top_grad), grain.memory.write(self.few_sums(part.part, &part.tiles)))
        };
        let dy = self.pack_few_gradients(top, &part.rows, grain.scratch);
        let columns = self.columns_of(&part.tiles);
        for rows in blocks(part.rows.len(), self.machine.inner_few_rows.min(MOST_ROWS)) {
            let rows = part.rows.start + rows.start..part.rows.start + rows.end;
            self.few_products_of(grain.memory, dy, &part, [&rows, &columns], sums)
                .add(self.isa, self.precision);
        }
    }

    /// The columns of some tiles, of which the last may be cut off.
    pub(super) fn columns_of(&self, tiles: &Range<usize>) -> Range<usize> {
        let width = self.lanes * TILE_VECTORS;
        tiles.start * width..(tiles.end * width).min(self.inputs)
    }

    /// Packs the top's gradients of some rows as [`Columns`] wants them, at the begin of `to`.
    pub(super) fn pack_few_gradients<'a>(
        &self,
        top: &[f32],
        rows: &Range<usize>,
        to: &'a mut [f32],
    ) -> &'a [f32] {
        let image = self.few_gradients(rows.len());
        let to = &mut to[..self.images * image];
        for (from, to) in top.chunks_exact(self.outputs).zip(to.chunks_exact_mut(image)) {
            self.pack(&from[rows.clone()], &mut to[..self.words(rows.len())]);
        }
        to
    }

    /// The products of some rows and columns of a part, to be added to their sums, and what is asked for meanwhile: the rows of the
    /// weight that come next. No other grain writes these columns of the rows meanwhile.
    pub(super) fn few_products_of<'a>(
        &self,
        memory: &Memory,
        dy: &'a [f32],
        part: &FewPart,
        [rows, columns]: [&Range<usize>; 2],
        sums: &'a mut [f32],
    ) -> Columns<'a> {
        Columns {
            w: self.weights_from(memory, rows, columns),
            row: self.inputs,
            rows: rows.len(),
            columns: columns.len(),
            dy: &dy[self.words(rows.start - part.rows.start)..],
            dy_image: self.few_gradients(part.rows.len()),
            images: self.images,
            sums,
            add: rows.start > part.rows.start,
            next: memory.pointer(self.weight).wrapping_add(self.after(rows, columns)),
        }
    }

    /// Where some columns of some rows of the weight begin.
    pub(super) fn weights_from(
        &self,
        memory: &Memory,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> Origin {
        assert!(rows.end <= self.outputs && columns.end <= self.inputs, "beyond the weight");
        let first = rows.start * self.inputs + columns.start;
        // SAFETY: inside the weight, as asserted; grains that write it have columns of their own.
        unsafe { Origin::new(memory.pointer(self.weight).add(first)) }
    }

    /// Where what is multiplied after some rows and columns begins: the rows below, or the columns beside at the top.
    pub(super) fn after(&self, rows: &Range<usize>, columns: &Range<usize>) -> usize {
        if rows.end < self.outputs { rows.end * self.inputs + columns.start } else { columns.end }
    }
}
