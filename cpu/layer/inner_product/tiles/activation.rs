//! ∇A of an inner product: columns of the bottom's gradient, each the sum over the rows of the weight.

use std::ops::Range;

use super::cut::Part;
use super::{Ahead, Sum, TILE_VECTORS, Tiles, blocks};
use crate::isa::Precision;
use crate::kernel::stored::Origin;
use crate::kernel::vectorised::{Vectorised, on, prefetch};
use crate::kernel::words::{Narrow, Narrowing, Pairs, with_words};
use crate::layer::Grain;
use crate::layout::Layout;
use crate::machine::LINE;
use crate::memory::{Memory, Span};

/// Packs pieces of rows: vector of columns by vector of columns, row by row, or pair of rows by pair.
struct Rows<'a> {
    /// From the first piece on: so many columns of each row are read.
    from: Origin,
    /// Distance of rows.
    row: usize,
    count: usize,
    columns: usize,
    /// Elements of a vector.
    lanes: usize,
    /// From one vector of columns to the next.
    plane: usize,
    to: &'a mut [f32],
}

impl Rows<'_> {
    /// A piece; nothing behind the last.
    #[inline(always)]
    fn piece(&self, step: usize) -> &[f32] {
        if step >= self.count {
            return &[];
        }
        // SAFETY: by the contract of the weight.
        unsafe { std::slice::from_raw_parts(self.from.first().add(step * self.row), self.columns) }
    }

    /// Asks for the piece in a row.
    #[inline(always)]
    fn ask_for(&self, step: usize) {
        let first = self.from.first().wrapping_add(step * self.row);
        (0..self.columns).step_by(LINE).for_each(|line| prefetch(first.wrapping_add(line)));
    }

    /// Copies vectors of `LANES` elements. What is behind the last column stays as it is: nobody looks at those sums.
    #[inline(always)]
    fn copy<const LANES: usize>(mut self) {
        let to = std::mem::take(&mut self.to);
        for step in 0..self.count {
            self.ask_for(step + 1);
            let (vectors, rest) = self.piece(step).as_chunks::<LANES>();
            let mut planes = to.chunks_exact_mut(self.plane);
            for (vector, plane) in vectors.iter().zip(planes.by_ref()) {
                if let Some((to, _)) = plane[step * LANES..].split_first_chunk_mut::<LANES>() {
                    *to = *vector;
                }
            }
            if let Some(plane) = planes.next() {
                plane[step * LANES..][..rest.len()].copy_from_slice(rest);
            }
        }
    }
}

impl Vectorised for Rows<'_> {
    #[inline(always)]
    fn run(self) {
        match self.lanes {
            16 => self.copy::<16>(),
            8 => self.copy::<8>(),
            lanes => panic!("no tile has vectors of {lanes} elements"),
        }
    }
}

impl Narrowing for Rows<'_> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(mut self) {
        let to = std::mem::take(&mut self.to);
        let Self { count, columns, lanes, plane, .. } = self;
        for step in 0..count.div_ceil(2) {
            self.ask_for(2 * step + 2);
            self.ask_for(2 * step + 3);
            let (first, second) = (self.piece(2 * step), self.piece(2 * step + 1));
            for (vector, plane) in to.chunks_exact_mut(plane).take(columns.div_ceil(lanes)).enumerate() {
                let part = vector * lanes..((vector + 1) * lanes).min(columns);
                let (a, b) = (&first[part.clone()], second.get(part).unwrap_or(&[]));
                // SAFETY: by contract.
                unsafe { Pairs { a, b, to: &mut plane[step * lanes..][..a.len()] }.run::<N>() }
            }
        }
    }
}

impl Tiles {
    /// Tiles of inputs that a grain of `count` tiles works on together: near-equal blocks.
    pub(super) fn tiles_of_inputs(&self, count: usize) -> usize {
        let most = (self.machine.inner_columns / (self.lanes * TILE_VECTORS)).max(1);
        count.div_ceil(((count + most / 2) / most).max(1))
    }

    /// Scratch of a grain of ∇A.
    pub(super) fn input_scratch(&self) -> usize {
        let (width, rows) = (self.lanes * TILE_VECTORS, self.words(self.machine.inner_rows));
        // A piece that is one tile smaller may be cut into fewer and larger blocks.
        let pieces = self.cut.piece_tiles(self.row_tiles());
        let of_piece = |tiles: usize| match self.passing {
            true => self.scratch_in_passing(tiles),
            false => {
                let columns = self.tiles_of_inputs(tiles) * width;
                self.images * (columns + rows) + columns / self.lanes * self.plane(rows)
            }
        };
        pieces.map(of_piece).into_iter().max().unwrap_or(0)
    }

    /// The columns of ∇A of some inputs, or their sums over the rows of a part.
    pub(super) fn input_columns(&self, grain: &mut Grain<'_>, bottom_grad: Span, top_grad: Span) {
        let width = self.lanes * TILE_VECTORS;
        let Part { part, rows, tiles } = self.part_of(grain);
        // SAFETY: only read in this task.
        let dy = unsafe { grain.memory.read(top_grad) };
        let step = self.tiles_of_inputs(tiles.len());
        let (sums, packed) = grain.scratch.split_at_mut(self.images * step * width);
        for block in blocks(tiles.len(), step) {
            let block = tiles.start + block.start..tiles.start + block.end;
            let sums = match self.keeps_sums {
                // SAFETY: grains have sums of their own.
                true => unsafe { grain.memory.write(self.part_sums(part, &block)) },
                false => &mut *sums,
            };
            for outputs in blocks(rows.len(), self.rows_together(block.len())) {
                let outputs = rows.start + outputs.start..rows.start + outputs.end;
                self.add_products(grain.memory, dy, [&rows, &outputs, &block], sums, packed);
            }
            if !self.keeps_sums {
                self.scatter(grain.memory, bottom_grad, block, sums);
            }
        }
    }

    /// Adds the products of some outputs of a part to the sums of a block of tiles. The weights of each tile and the gradients are
    /// packed first: in place, rows would lie so far apart that many begin in the same set of a cache. Meanwhile the rows that come
    /// next are asked for. No other grain writes these columns of the weight meanwhile.
    pub(super) fn add_products(
        &self,
        memory: &Memory,
        dy: &[f32],
        [part, outputs, block]: [&Range<usize>; 3],
        sums: &mut [f32],
        packed: &mut [f32],
    ) {
        let width = self.lanes * TILE_VECTORS;
        let depth = self.words(outputs.len());
        let (a, b) = packed.split_at_mut(self.images * depth);
        for (dy, to) in dy.chunks_exact(self.outputs).zip(a.chunks_exact_mut(depth)) {
            self.pack(&dy[outputs.clone()], to);
        }
        let plane = self.plane(depth);
        let columns = block.start * width..(block.end * width).min(self.inputs);
        assert!(block.len() * TILE_VECTORS * plane <= b.len(), "no room for the weights of all columns");
        let rows = Rows {
            from: self.weights_from(memory, outputs, &columns),
            row: self.inputs,
            count: outputs.len(),
            columns: columns.len(),
            lanes: self.lanes,
            plane,
            to: b,
        };
        match self.precision {
            Precision::F32 => on(self.isa, rows),
            Precision::Bf16 => with_words(rows),
        }
        let next = memory.pointer(self.weight).wrapping_add(self.after(outputs, &columns, part));
        for i in 0..block.len() {
            let sum = Sum {
                sources: self.images,
                depth,
                ahead: self.rows_ahead(next, [i, block.len()], depth),
                a,
                a_source: depth,
                a_depth: 1,
                b: &b[i * TILE_VECTORS * plane..],
                b_depth: self.lanes,
                b_vector: plane,
                vectors: TILE_VECTORS,
                c_source: width,
                add: outputs.start > part.start,
            };
            // SAFETY: the sums are the thread's own, a whole tile for each image.
            unsafe { self.sum(&sum, sums[i * self.images * width..].as_mut_ptr()) }
        }
    }

    /// Elements from one vector of columns to the next, with so many steps of depth: not a power of two, so that they do not
    /// all begin in the same set of a cache.
    pub(super) fn plane(&self, depth: usize) -> usize {
        (depth + 1) * self.lanes
    }

    /// Rows of the weight that are worked on together with a block of `tiles`: so many steps of depth that with each tile whole
    /// rows of the block can be asked for, if there are not too many lines in one.
    pub(super) fn rows_together(&self, tiles: usize) -> usize {
        let (lines, steps) = (tiles * self.lanes * TILE_VECTORS / LINE, self.words(self.machine.inner_rows));
        let whole = steps / lines.max(1) * lines;
        if whole > 0 { whole * self.precision.in_word() } else { self.machine.inner_rows }
    }

    /// What tile number `tile` of `tiles` asks for of the rows from `next` on: with each of its blocks of sources the next few rows.
    fn rows_ahead(&self, next: *const f32, [tile, tiles]: [usize; 2], steps: usize) -> Ahead {
        let rows = steps / (tiles * self.lanes * TILE_VECTORS / LINE);
        let first = tile * self.images.div_ceil(self.most_sources) * rows;
        if rows == 0 || first >= self.rows_together(tiles) {
            return Ahead::nothing(next);
        }
        let ahead = Ahead::rows(next.wrapping_add(first * self.inputs), self.inputs, [rows, steps]);
        Ahead { block: if ahead.lines > 1 { rows * self.inputs } else { 0 }, ..ahead }
    }

    /// Writes the sums of some tiles of inputs to where the bottom's gradient has them.
    pub(super) fn scatter(&self, memory: &Memory, bottom_grad: Span, tiles: Range<usize>, sums: &[f32]) {
        let width = self.lanes * TILE_VECTORS;
        for (tile, sums) in tiles.zip(sums.chunks(self.images * width)) {
            let inputs = tile * width..((tile + 1) * width).min(self.inputs);
            let places = &self.places(inputs.clone())[..inputs.len()];
            for (image, row) in sums.chunks(width).enumerate() {
                let first = image * self.input.image_len();
                if self.input.layout == Layout::PLAIN {
                    let part = bottom_grad.part(first + inputs.start..first + inputs.end);
                    // SAFETY: grains have inputs of their own.
                    unsafe { memory.write(part) }.copy_from_slice(&row[..inputs.len()]);
                    continue;
                }
                let to = memory.pointer(bottom_grad);
                for (place, value) in places.iter().zip(row) {
                    let place = first + place;
                    assert!(place < bottom_grad.len(), "an input beyond the bottom");
                    // SAFETY: inside the span, as asserted; grains have inputs of their own.
                    unsafe { *to.add(place) = *value }
                }
            }
        }
    }
}
