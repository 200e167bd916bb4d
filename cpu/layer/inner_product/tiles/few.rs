//! Forward and ∇A of few images, by the products of [`crate::kernel::few`]: where each number of
//! the weight takes part in few products, tiles do not hide the way to memory, and to copy the weight first takes as long.

use std::ops::Range;

use super::cut::Part;
use super::{TOGETHER, Tiles, blocks};
use crate::isa::{Isa, Precision};
use crate::kernel::few::{Columns, Dots, MOST_DOTS, MOST_IMAGES, MOST_ROWS, TILE_VECTORS, Totals};
use crate::kernel::stored::Origin;
use crate::kernel::vectorised::on;
use crate::layer::Grain;
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

    /// Scratch of a grain of ∇A.
    pub(super) fn few_scratch(&self) -> usize {
        let rows = self.cut.rows(0, self.outputs).len();
        let dy = self.images * self.few_gradients(rows);
        if self.passing { dy + self.scratch_in_passing_few(rows) } else { dy }
    }

    /// From the packed gradients of one image to those of the next, of so many rows: not a power of two, so that they do not all
    /// begin in the same set of a cache.
    pub(super) fn few_gradients(&self, rows: usize) -> usize {
        self.words(rows) + self.lanes
    }

    /// Sums of ∇A: some rows and columns.
    pub(super) fn few_columns(&self, grain: &mut Grain<'_>, top_grad: Span) {
        let part = self.part_of(grain);
        // SAFETY: gradients are only read in this task; grains have sums of their own.
        let (top, sums) = unsafe {
            (grain.memory.read(top_grad), grain.memory.write(self.part_sums(part.part, &part.tiles)))
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
        part: &Part,
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
            next: memory.pointer(self.weight).wrapping_add(self.after(rows, columns, &part.rows)),
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

    /// Where what is multiplied after some rows and columns begins: the rows of the part below, or the columns beside at its top.
    pub(super) fn after(&self, rows: &Range<usize>, columns: &Range<usize>, part: &Range<usize>) -> usize {
        match rows.end < part.end {
            true => rows.end * self.inputs + columns.start,
            false => part.start * self.inputs + columns.end,
        }
    }
}
