//! ∇A of few images with the update of the weight in passing: a few rows, piece by piece of their columns, are multiplied with
//! the images' gradients, their own gradients found ([`Passing`]) and the rows updated, and meanwhile the next rows and their
//! histories are asked for. Sums and bits are those of ∇A and ∇W alone. Of the weight nothing is packed.
//!
//! The floor is that of memory: of each weight and each history a line is read and written once, from streams of a few KiB.

use std::ops::Range;

use super::step::Stepping;
use super::{TILE_VECTORS, Tiles, blocks};
use crate::isa::Precision;
use crate::kernel::few::{PASSING_ROWS, Passing};
use crate::layer::Grain;
use crate::memory::Span;

/// What the rows of a block of columns are multiplied with.
struct Operands<'a> {
    /// The top's gradients as ∇A wants them, image by image.
    dy: &'a [f32],
    /// As ∇W wants them: rows of the outputs, of one image or of two.
    dy_across: &'a [f32],
}

impl Tiles {
    /// The columns of ∇A of some inputs, and the update of these columns of the weight.
    pub(super) fn pass_columns(&self, grain: &mut Grain<'_>, bottom_grad: Span, top_grad: Span) {
        let width = self.lanes * TILE_VECTORS;
        let tiles = grain.share(self.inputs.div_ceil(width));
        let together = self.few_tiles(tiles.len());
        let memory = grain.memory;
        // SAFETY: only read in this task; pairs of images were packed in the stage before.
        let (top, pairs) = unsafe { (memory.read(top_grad), memory.read(self.gradients)) };
        let scratch = std::mem::take(&mut grain.scratch);
        let (a, scratch) = scratch.split_at_mut(self.sources(self.outputs));
        let (found, scratch) = scratch.split_at_mut(self.most_sources * together * width);
        let (sums, dy) = scratch.split_at_mut(self.images * together * width);
        self.pack_few_gradients(top, &mut dy[..self.images * self.few_gradients()]);
        let dy_across = if self.precision == Precision::Bf16 { pairs } else { top };
        // What is no whole tile is a block of its own.
        let whole = tiles.start..tiles.end.min(self.inputs / width);
        if self.rows_to_pass(whole.end == tiles.end) < self.outputs {
            self.pack_sources(memory, &grain.everywhere, &(0..self.outputs), a);
        }
        let Some(stepping) = Stepping::new(self, grain, a, 0..self.outputs) else { return };
        let blocks = blocks(whole.len(), together).map(|b| whole.start + b.start..whole.start + b.end);
        for block in blocks.chain((whole.end < tiles.end).then_some(whole.end..tiles.end)) {
            let sums = &mut sums[..block.len() * self.images * width];
            self.pass_block(&stepping, &Operands { dy, dy_across }, &block, [sums, found]);
            self.scatter(memory, bottom_grad, block, sums);
        }
    }

    /// A block of tiles of columns, of all rows.
    fn pass_block(
        &self,
        s: &Stepping<'_>,
        operands: &Operands<'_>,
        block: &Range<usize>,
        [sums, found]: [&mut [f32]; 2],
    ) {
        let (width, depth) = (self.lanes * TILE_VECTORS, self.gradient_depth());
        let columns = block.start * width..(block.end * width).min(self.inputs);
        let passed = self.rows_to_pass(columns.len() == block.len() * width);
        for rows in blocks(passed, PASSING_ROWS) {
            let found = &mut found[..PASSING_ROWS * columns.len()];
            let beside = s.soon.places(self.after(&rows, &columns));
            let passing = Passing {
                of: self.few_products_of(s.memory, operands.dy, [&rows, &columns], sums),
                dy_across: &operands.dy_across[rows.start..],
                dy_step: self.outputs,
                x: &s.x[block.start * depth * width..],
                dw: found,
                beside: &beside[1..s.soon.arrays()],
            };
            passing.add(self.isa, self.precision);
            self.step_by(s, rows, columns.clone(), found);
        }
        for rows in blocks(self.outputs - passed, self.most_sources) {
            let rows = passed + rows.start..passed + rows.end;
            self.add_few_columns(s.memory, operands.dy, [&rows, &columns], sums);
            self.step_block(s, rows, block.clone(), found);
        }
    }

    /// Rows that are worked on in fours, if the columns are whole tiles: all, or those before the last that are both fours and blocks
    /// of the packed gradients, by which the others are updated.
    fn rows_to_pass(&self, whole: bool) -> usize {
        match whole {
            true if self.outputs.is_multiple_of(PASSING_ROWS) => self.outputs,
            true => self.outputs - self.outputs % (PASSING_ROWS * self.most_sources),
            false => 0,
        }
    }
}
