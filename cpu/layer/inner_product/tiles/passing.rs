//! ∇A of few images with the update of the weight in passing: a few rows, piece by piece of their columns, are multiplied with
//! the images' gradients, their own gradients found ([`Passing`]) and the rows updated, and meanwhile the next rows and their
//! histories are asked for. Sums and bits are those of ∇A and ∇W alone. Of the weight nothing is packed.
//!
//! The floor is that of memory: of each weight and each history a line is read and written once, from streams of a few KiB.

use std::ops::Range;

use super::cut::Part;
use super::step::Stepping;
use super::{TILE_VECTORS, Tiles, blocks};
use crate::isa::Precision;
use crate::kernel::few::{Kept, PASSING_ROWS, Passing};
use crate::layer::Grain;
use crate::memory::Span;

/// Columns that pass before they are updated, where the rule is none that a kernel has built in.
const SPAN: usize = 512;

/// What rows are multiplied with.
struct Operands<'a> {
    /// The top's gradients of the part's rows as ∇A wants them, image by image.
    dy: &'a [f32],
    /// Those of all rows as ∇W wants them: rows of the outputs, of one image or of two.
    dy_across: &'a [f32],
}

impl Tiles {
    /// Sums of ∇A of some rows and columns, and their update.
    pub(super) fn pass_columns(&self, grain: &mut Grain<'_>, top_grad: Span) {
        let part = self.part_of(grain);
        let memory = grain.memory;
        // SAFETY: gradients are only read in this task, and pairs of images were packed in the stage before; grains have sums of their own.
        let (top, pairs, sums) = unsafe {
            (
                memory.read(top_grad),
                memory.read(self.gradients),
                memory.write(self.part_sums(part.part, &part.tiles)),
            )
        };
        let scratch = std::mem::take(&mut grain.scratch);
        let (a, scratch) = scratch.split_at_mut(self.sources(part.rows.len()));
        let (found, dy) = scratch.split_at_mut(self.found_in_passing());
        let dy = self.pack_few_gradients(top, &part.rows, dy);
        let dy_across = if self.precision == Precision::Bf16 { pairs } else { top };
        // What is no whole tile is updated by itself.
        let width = self.lanes * TILE_VECTORS;
        let whole = part.tiles.start..part.tiles.end.min(self.inputs / width);
        if self.rows_to_pass(&part, &whole) < part.rows.len() || whole.end < part.tiles.end {
            self.pack_sources(memory, &grain.everywhere, &part.rows, a);
        }
        let Some(stepping) = Stepping::new(self, grain, a, part.rows.clone()) else { return };
        let operands = Operands { dy, dy_across };
        let (sums, rest) = sums.split_at_mut(whole.len() * self.images * width);
        self.pass_tiles(&stepping, &part, &operands, &whole, [sums, found]);
        if whole.end < part.tiles.end {
            self.add_and_step(
                &stepping,
                &part,
                dy,
                [&part.rows, &(whole.end..part.tiles.end)],
                [rest, found],
            );
        }
    }

    /// Whole tiles of columns, of all rows of a part.
    fn pass_tiles(
        &self,
        s: &Stepping<'_>,
        part: &Part,
        operands: &Operands<'_>,
        tiles: &Range<usize>,
        [sums, found]: [&mut [f32]; 2],
    ) {
        let passed = part.rows.start + self.rows_to_pass(part, tiles);
        let span = if s.momentum.is_some() { tiles.len() } else { SPAN / (self.lanes * TILE_VECTORS) };
        for first in (part.rows.start..passed).step_by(PASSING_ROWS) {
            let rows = first..first + PASSING_ROWS;
            for span in blocks(tiles.len(), span.max(1)) {
                let sums = &mut sums[self.sums_of(&span)];
                let span = tiles.start + span.start..tiles.start + span.end;
                self.pass_span(s, part, operands, [&rows, &span], [sums, found]);
            }
        }
        for span in blocks(tiles.len(), (SPAN / (self.lanes * TILE_VECTORS)).max(1)) {
            let sums = &mut sums[self.sums_of(&span)];
            let span = tiles.start + span.start..tiles.start + span.end;
            self.add_and_step(s, part, operands.dy, [&(passed..part.rows.end), &span], [sums, found]);
        }
    }

    /// Whole tiles of columns, of a few rows.
    fn pass_span(
        &self,
        s: &Stepping<'_>,
        part: &Part,
        operands: &Operands<'_>,
        [rows, tiles]: [&Range<usize>; 2],
        [sums, found]: [&mut [f32]; 2],
    ) {
        let columns = self.columns_of(tiles);
        let beside = s.soon.places(self.after(rows, &columns, &part.rows));
        let of = self.few_products_of(s.memory, operands.dy, part, [rows, &columns], sums);
        let dy_across = &operands.dy_across[rows.start..];
        let x = &s.x[tiles.start * self.gradient_depth() * self.lanes * TILE_VECTORS..];
        let beside = &beside[1..s.soon.arrays()];
        if let Some(momentum) = s.momentum {
            let first = rows.start * self.inputs + columns.start;
            // SAFETY: inside the weight, of which the grain has these rows and columns for itself.
            let found = unsafe { momentum.from(first, columns.len()) };
            let passing = Passing { of, dy_across, dy_step: self.outputs, x, found, beside };
            return passing.add(self.isa, self.precision);
        }
        let found = &mut found[..PASSING_ROWS * columns.len()];
        let kept = Kept { dw: found };
        let passing = Passing { of, dy_across, dy_step: self.outputs, x, found: kept, beside };
        passing.add(self.isa, self.precision);
        self.step_by(s, rows.start - part.rows.start..rows.end - part.rows.start, columns, found);
    }

    /// Tiles of columns of rows that do not pass.
    fn add_and_step(
        &self,
        s: &Stepping<'_>,
        part: &Part,
        dy: &[f32],
        [rows, tiles]: [&Range<usize>; 2],
        [sums, found]: [&mut [f32]; 2],
    ) {
        let columns = self.columns_of(tiles);
        for block in blocks(rows.len(), self.most_sources) {
            let rows = rows.start + block.start..rows.start + block.end;
            self.few_products_of(s.memory, dy, part, [&rows, &columns], sums).add(self.isa, self.precision);
            let rows = rows.start - part.rows.start..rows.end - part.rows.start;
            self.step_block(s, rows, tiles.clone(), found);
        }
    }

    /// Rows of a part that are worked on in fours, where tiles are whole: all, or those before the last that are both fours and blocks
    /// of the packed gradients, by which the others are updated.
    fn rows_to_pass(&self, part: &Part, tiles: &Range<usize>) -> usize {
        let rows = part.rows.len();
        match tiles.is_empty() {
            true => 0,
            false if rows.is_multiple_of(PASSING_ROWS) => rows,
            false => rows - rows % (PASSING_ROWS * self.most_sources),
        }
    }

    /// Elements of the gradients that wait for their update.
    fn found_in_passing(&self) -> usize {
        self.most_sources.max(PASSING_ROWS) * SPAN.max(self.lanes * TILE_VECTORS)
    }

    /// Scratch of a grain with so many rows, beside the gradients for ∇A: those for ∇W, and those of the weight.
    pub(super) fn scratch_in_passing_few(&self, rows: usize) -> usize {
        self.sources(rows) + self.found_in_passing()
    }
}
