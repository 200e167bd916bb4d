//! ∇W and update in one pass: a block of ∇W that a first-level cache holds beside its weights and histories, which are
//! updated by it before the next block. The sums are those of ∇W alone, tile by tile, so the bits are, too. Of several devices
//! each updates some outputs' rows, and writes them to the weights of others, if these lie elsewhere, while the block is still in
//! the cache.

use std::ops::Range;

use super::{Sum, TILE_VECTORS, Tiles, blocks};
use crate::layer::{Grain, Soon};

impl Tiles {
    /// Updates the rows of the weight of some outputs.
    pub(super) fn step_rows(&self, grain: &mut Grain<'_>) {
        let (memory, update, scalars) = (grain.memory, grain.update, grain.scalars);
        let outputs = grain.share(self.own.len());
        let outputs = self.own.start + outputs.start..self.own.start + outputs.end;
        let width = self.lanes * TILE_VECTORS;
        // SAFETY: X was packed in the stage before.
        let x = unsafe { memory.read(self.tiles) };
        let (a, sums) = grain.scratch.split_at_mut(self.sources(outputs.len()));
        self.pack_sources(memory, &grain.everywhere, &outputs, a);
        let a = &*a;
        let Some(weight) = update.stepped() else { return };
        let soon = update.soon(weight, memory);
        let others = || grain.everywhere.others(memory, weight);
        let part = |row: usize, columns: Range<usize>| {
            let start = (outputs.start + row) * self.inputs;
            start + columns.start..start + columns.end.min(self.inputs)
        };
        for tiles in blocks(self.inputs.div_ceil(width), (self.machine.inner_columns / width).max(1)) {
            let columns = tiles.start * width..tiles.end * width;
            for block in blocks(outputs.len(), self.most_sources) {
                let sums = &mut sums[..block.len() * columns.len()];
                for tile in tiles.clone() {
                    let ask_for = |soon: Soon| {
                        let rows = block.clone().map(|row| part(row, tile * width..(tile + 1) * width));
                        rows.for_each(|part| soon.ask_for(part));
                    };
                    ask_for(soon);
                    others().for_each(|other| ask_for(Soon::of(weight, other)));
                    let sum = Sum { c_source: columns.len(), ..self.weight_sum(a, x, tile, &block) };
                    // SAFETY: the sums are the thread's own, all tiles of these for each output of the block.
                    unsafe { self.sum(&sum, sums[(tile - tiles.start) * width..].as_mut_ptr()) }
                }
                for (row, gradient) in block.zip(sums.chunks_exact(columns.len())) {
                    let part = part(row, columns.clone());
                    let gradient = &gradient[..part.len()];
                    // SAFETY: this task updates the weight; grains have rows of their own.
                    unsafe { update.step(part.clone(), memory, &scalars, gradient) }
                    // SAFETY: so it does on devices that have it elsewhere.
                    others().for_each(|other| unsafe { update.give(part.clone(), memory, other) });
                }
            }
        }
    }
}
