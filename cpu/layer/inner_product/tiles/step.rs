//! ∇W and update in one pass: a block of ∇W that a first-level cache holds beside its weights and histories, which are
//! updated by it before the next block. The sums are those of ∇W alone, tile by tile, so the bits are, too. Of several devices
//! each updates some outputs' rows, and writes them to the weights of others, if these lie elsewhere, while the block is still in
//! the cache.
//!
//! Of few images on one device ∇A is found in the same pass: grains have columns of the weight, of which some rows are multiplied
//! with the top's gradients and then updated, while they are in the second-level cache. The sums are those of ∇A alone. What
//! is done here is that on tiles (AMX, and more images than half a vector of AVX2 has numbers); `passing` does it without.

use std::ops::Range;

use quadrille_core::device::Scalars;

use super::{Sum, TILE_VECTORS, Tiles, blocks};
use crate::kernel::few::Momentum;
use crate::layer::{Everywhere, Grain, Soon, Update};
use crate::machine::LINE;
use crate::memory::{Memory, Span};

/// What a grain updates a weight with.
pub(super) struct Stepping<'a> {
    pub memory: &'a Memory,
    everywhere: Everywhere<'a>,
    update: &'a Update,
    scalars: Scalars,
    weight: Span,
    pub soon: Soon,
    /// The update where it can be part of what finds the gradient: by momentum SGD, of a weight that no other device has elsewhere.
    pub momentum: Option<Momentum>,
    /// X, packed in the stage before.
    pub x: &'a [f32],
    /// The packed gradients of these outputs.
    a: &'a [f32],
    outputs: Range<usize>,
}

impl<'a> Stepping<'a> {
    /// For a grain of some outputs, whose gradients are packed; `None` if the task updates no weight.
    pub fn new(tiles: &Tiles, grain: &Grain<'a>, a: &'a [f32], outputs: Range<usize>) -> Option<Self> {
        let (memory, update, scalars) = (grain.memory, grain.update, grain.scalars);
        let weight = update.stepped()?;
        // SAFETY: X was packed in the stage before.
        let x = unsafe { memory.read(tiles.tiles) };
        let (everywhere, soon) = (grain.everywhere, update.soon(weight, memory));
        let alone = everywhere.others(memory, weight).next().is_none();
        let momentum = alone.then(|| update.momentum(memory, &scalars, tiles.inputs)).flatten();
        Some(Self { memory, everywhere, update, scalars, weight, soon, momentum, x, a, outputs })
    }

    /// The memories of other devices that have the weight elsewhere.
    fn others(&self) -> impl Iterator<Item = &'a Memory> {
        self.everywhere.others(self.memory, self.weight)
    }
}

impl Tiles {
    /// Updates the rows of the weight of some outputs.
    pub(super) fn step_rows(&self, grain: &mut Grain<'_>) {
        let outputs = self.share_of_rows(self.own.len(), grain.index, grain.grains);
        let outputs = self.own.start + outputs.start..self.own.start + outputs.end;
        let width = self.lanes * TILE_VECTORS;
        let scratch = std::mem::take(&mut grain.scratch);
        let (a, sums) = scratch.split_at_mut(self.sources(outputs.len()));
        self.pack_sources(grain.memory, &grain.everywhere, &outputs, a);
        let Some(stepping) = Stepping::new(self, grain, a, outputs.clone()) else { return };
        for tiles in blocks(self.inputs.div_ceil(width), (self.machine.inner_columns / width).max(1)) {
            for rows in blocks(outputs.len(), self.most_sources) {
                self.step_block(&stepping, rows, tiles.clone(), sums);
            }
        }
    }

    /// Where some columns of a row lie in the weight, of which the last may be beyond the row. The row is counted from the grain's first.
    fn part(&self, s: &Stepping<'_>, row: usize, columns: Range<usize>) -> Range<usize> {
        let start = (s.outputs.start + row) * self.inputs;
        start + columns.start..start + columns.end.min(self.inputs)
    }

    /// Updates a block of the weight: some rows, counted from the grain's first, and tiles of columns, which no other grain has.
    pub(super) fn step_block(
        &self,
        s: &Stepping<'_>,
        rows: Range<usize>,
        tiles: Range<usize>,
        sums: &mut [f32],
    ) {
        let width = self.lanes * TILE_VECTORS;
        let columns = tiles.start * width..tiles.end * width;
        let sums = &mut sums[..rows.len() * columns.len()];
        for tile in tiles.clone() {
            let first = self.part(s, rows.start, tile * width..columns.end).start;
            let ask_for = |soon: Soon| soon.ask_for(first, [rows.len(), self.inputs], width / LINE);
            ask_for(s.soon);
            s.others().for_each(|other| ask_for(Soon::of(s.weight, other)));
            let sum = Sum { c_source: columns.len(), ..self.weight_sum(s.a, s.x, tile, &rows) };
            // SAFETY: the sums are the thread's own, all tiles of these for each output of the block.
            unsafe { self.sum(&sum, sums[(tile - tiles.start) * width..].as_mut_ptr()) }
        }
        self.step_by(s, rows, columns, sums);
    }

    /// Updates some columns of some rows of the weight by their gradients, which lie row by row.
    pub(super) fn step_by(
        &self,
        s: &Stepping<'_>,
        rows: Range<usize>,
        columns: Range<usize>,
        gradients: &[f32],
    ) {
        for (row, gradient) in rows.zip(gradients.chunks_exact(columns.len())) {
            let part = self.part(s, row, columns.clone());
            let gradient = &gradient[..part.len()];
            // SAFETY: this task updates the weight; grains have blocks of their own.
            unsafe { s.update.step(part.clone(), s.memory, &s.scalars, gradient) }
            // SAFETY: so it does on devices that have it elsewhere.
            s.others().for_each(|other| unsafe { s.update.give(part.clone(), s.memory, other) });
        }
    }

    /// Scratch of a grain of so many tiles: the packed gradients of all outputs, for each of both products, those of rows for ∇A's
    /// tiles, and the sums of both.
    pub(super) fn scratch_in_passing(&self, tiles: usize) -> usize {
        let width = self.lanes * TILE_VECTORS;
        let together = self.tiles_of_inputs(tiles);
        let depth = self.words(self.machine.inner_rows);
        let packed = self.images * depth + together * TILE_VECTORS * self.plane(depth);
        self.sources(self.outputs) + packed + (self.images + self.most_sources) * together * width
    }

    /// The columns of ∇A of some inputs, and the update of these columns of the weight.
    pub(super) fn step_columns(&self, grain: &mut Grain<'_>, bottom_grad: Span, top_grad: Span) {
        let width = self.lanes * TILE_VECTORS;
        let tiles = grain.share(self.inputs.div_ceil(width));
        let together = self.tiles_of_inputs(tiles.len());
        let memory = grain.memory;
        // SAFETY: only read in this task.
        let top = unsafe { memory.read(top_grad) };
        let scratch = std::mem::take(&mut grain.scratch);
        let (a, scratch) = scratch.split_at_mut(self.sources(self.outputs));
        let (found, scratch) = scratch.split_at_mut(self.most_sources * together * width);
        let (sums, packed) = scratch.split_at_mut(self.images * together * width);
        self.pack_sources(memory, &grain.everywhere, &(0..self.outputs), a);
        let Some(stepping) = Stepping::new(self, grain, a, 0..self.outputs) else { return };
        for block in blocks(tiles.len(), together) {
            let block = tiles.start + block.start..tiles.start + block.end;
            let sums = &mut sums[..block.len() * self.images * width];
            let mut next = 0;
            for rows in blocks(self.outputs, self.rows_together(block.len())) {
                self.add_products(memory, top, [&(0..self.outputs), &rows, &block], sums, packed);
                // Behind ∇A, in the blocks in which the gradients are packed.
                while next + self.most_sources <= rows.end || next < rows.end && rows.end == self.outputs {
                    let part = next..(next + self.most_sources).min(self.outputs);
                    next = part.end;
                    self.step_block(&stepping, part, block.clone(), found);
                }
            }
            self.scatter(memory, bottom_grad, block, sums);
        }
    }
}
