//! Forward and ∇A of few images, by the products of [`crate::kernel::few`]: where each number of
//! the weight takes part in few products, tiles do not hide the way to memory, and to copy the weight first takes as long.

use std::ops::Range;

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

    /// Tiles of inputs of which a grain of `count` tiles has the sums at once.
    pub(super) fn few_tiles(&self, count: usize) -> usize {
        let most = (self.machine.inner_few_columns / (self.lanes * TILE_VECTORS)).max(1);
        count.div_ceil(count.div_ceil(most).max(1))
    }

    /// From the packed gradients of one image to those of the next: not a power of two, so that they do not all begin in the
    /// same set of a cache.
    pub(super) fn few_gradients(&self) -> usize {
        self.words(self.outputs) + self.lanes
    }

    /// The columns of ∇A of some inputs.
    pub(super) fn few_columns(&self, grain: &mut Grain<'_>, bottom_grad: Span, top_grad: Span) {
        let width = self.lanes * TILE_VECTORS;
        let tiles = grain.share(self.inputs.div_ceil(width));
        let dy_image = self.few_gradients();
        // SAFETY: only read in this task.
        let top = unsafe { grain.memory.read(top_grad) };
        let (dy, sums) = grain.scratch.split_at_mut(self.images * dy_image);
        self.pack_few_gradients(top, dy);
        let most = self.machine.inner_few_rows.min(MOST_ROWS);
        for block in blocks(tiles.len(), self.few_tiles(tiles.len())) {
            let block = tiles.start + block.start..tiles.start + block.end;
            let columns = block.start * width..(block.end * width).min(self.inputs);
            let sums = &mut sums[..block.len() * self.images * width];
            for rows in blocks(self.outputs, most) {
                self.add_few_columns(grain.memory, dy, [&rows, &columns], sums);
            }
            self.scatter(grain.memory, bottom_grad, block, sums);
        }
    }

    /// Packs the top's gradients as [`Columns`] wants them.
    pub(super) fn pack_few_gradients(&self, top: &[f32], dy: &mut [f32]) {
        for (from, to) in top.chunks_exact(self.outputs).zip(dy.chunks_exact_mut(self.few_gradients())) {
            self.pack(from, &mut to[..self.words(self.outputs)]);
        }
    }

    /// Adds the products of some rows to the sums of some columns of ∇A: rows of which no other grain writes these columns meanwhile.
    pub(super) fn add_few_columns(
        &self,
        memory: &Memory,
        dy: &[f32],
        [rows, columns]: [&Range<usize>; 2],
        sums: &mut [f32],
    ) {
        self.few_products_of(memory, dy, [rows, columns], sums).add(self.isa, self.precision);
    }

    /// These products, to be added, and what is asked for meanwhile: the rows of the weight that come next.
    pub(super) fn few_products_of<'a>(
        &self,
        memory: &Memory,
        dy: &'a [f32],
        [rows, columns]: [&Range<usize>; 2],
        sums: &'a mut [f32],
    ) -> Columns<'a> {
        Columns {
            w: self.weights_from(memory, rows, columns),
            row: self.inputs,
            rows: rows.len(),
            columns: columns.len(),
            dy: &dy[self.words(rows.start)..],
            dy_image: self.few_gradients(),
            images: self.images,
            sums,
            add: rows.start > 0,
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
