//! ∇W: both operands are packed first, from one device or, where the weight is updated as its gradient is found, from all
//! devices of the worker, in their order.

use std::ops::Range;

use super::{Ahead, Sum, TILE_VECTORS, Tiles, ask_for, blocks};
use crate::isa::Precision;
use crate::layer::{Everywhere, Grain, share};
use crate::memory::{Memory, Span};

/// Tiles between the one that is worked on and the one that is asked for.
const AHEAD: usize = 2;

impl Tiles {
    /// Steps of depth of the gradient: its images, or their pairs, of which none holds images of two devices.
    pub(super) fn gradient_depth(&self) -> usize {
        self.everywhere.iter().map(|images| self.words(*images)).sum()
    }

    /// Of a step of depth, the device's place among those whose images are summed up, and the first of the images there.
    fn place_of(&self, step: usize) -> (usize, usize) {
        let mut before = 0;
        for (device, images) in self.everywhere.iter().enumerate() {
            let words = self.words(*images);
            if step < before + words {
                return (device, (step - before) * self.precision.in_word());
            }
            before += words;
        }
        unreachable!("step {step} of {before}")
    }

    /// Packs X tile of inputs by tile, image by image (pair by pair), and in bf16 the top's gradients: the grain's images.
    pub(super) fn pack_images(&self, grain: &mut Grain<'_>) {
        let (width, depth, in_word) =
            (self.lanes * TILE_VECTORS, self.gradient_depth(), self.precision.in_word());
        let (first, second) = grain.scratch[..2 * self.inputs].split_at_mut(self.inputs);
        for step in share(depth, grain.index, grain.grains) {
            let (device, image) = self.place_of(step);
            let (memory, from) = grain.everywhere.of(device);
            // SAFETY: bottom and gradient are only read in this task, those of other devices, too.
            let (x, dy) = unsafe { (memory.read(from.bottom), memory.read(from.top_grad)) };
            let of_image = |image: usize| &x[image * from.lies.image_len()..][..from.lies.image_len()];
            let whole = image + in_word <= from.images;
            from.lies.flatten(of_image(image), first);
            if in_word > 1 && whole {
                from.lies.flatten(of_image(image + 1), second);
            }
            for (tile, first) in first.chunks(width).enumerate() {
                let second = if in_word > 1 && whole { &second[tile * width..][..first.len()] } else { &[] };
                let start = (tile * depth + step) * width;
                // SAFETY: grains have steps of their own.
                let to = unsafe { grain.memory.write(self.tiles.part(start..start + width)) };
                self.pack_rows(first, second, to);
            }
            if in_word > 1 {
                let part = self.gradients.part(step * self.outputs..(step + 1) * self.outputs);
                let mut dy = dy.chunks_exact(self.outputs).skip(image);
                // SAFETY: as above.
                let to = unsafe { grain.memory.write(part) };
                self.pack_rows(dy.next().unwrap_or(&[]), dy.next().unwrap_or(&[]), to);
            }
        }
    }

    /// Elements of the packed gradients of some outputs.
    pub(super) fn sources(&self, outputs: usize) -> usize {
        outputs.next_multiple_of(self.most_sources) * self.gradient_depth()
    }

    /// Packs the top's gradients of some outputs: a block of sources after the other, each step by step of depth.
    pub(super) fn pack_sources(
        &self,
        memory: &Memory,
        everywhere: &Everywhere<'_>,
        outputs: &Range<usize>,
        to: &mut [f32],
    ) {
        let depth = self.gradient_depth();
        let mut pack = |step: usize, dy: &[f32]| {
            for (block, from) in dy[outputs.clone()].chunks(self.most_sources).enumerate() {
                to[(block * depth + step) * self.most_sources..][..from.len()].copy_from_slice(from);
            }
        };
        if self.precision == Precision::Bf16 {
            // SAFETY: packed in the stage before.
            let dy = unsafe { memory.read(self.gradients) };
            return dy.chunks_exact(self.outputs).enumerate().for_each(|(step, dy)| pack(step, dy));
        }
        let mut step = 0;
        for (memory, from) in everywhere.iter() {
            // SAFETY: gradients are only read in this task, those of other devices, too.
            let dy = unsafe { memory.read(from.top_grad) };
            for dy in dy.chunks_exact(self.outputs).take(from.images) {
                pack(step, dy);
                step += 1;
            }
        }
    }

    /// The sums of ∇W of a block of packed sources and a tile of inputs, to where rows of the weight lie.
    pub(super) fn weight_sum<'a>(
        &self,
        a: &'a [f32],
        x: &'a [f32],
        tile: usize,
        block: &Range<usize>,
    ) -> Sum<'a> {
        let (width, depth) = (self.lanes * TILE_VECTORS, self.gradient_depth());
        Sum {
            sources: block.len(),
            depth,
            ahead: Ahead::nothing(a.as_ptr()),
            a: &a[block.start * depth..],
            a_source: 1,
            a_depth: self.most_sources,
            b: &x[tile * depth * width..],
            b_depth: width,
            b_vector: self.lanes,
            vectors: TILE_VECTORS,
            c_source: self.inputs,
            add: false,
        }
    }

    /// The rows of ∇W of some outputs.
    pub(super) fn weight_rows(&self, grain: &mut Grain<'_>, weight_grad: Span) {
        let outputs = self.share_of_rows(self.outputs, grain.index, grain.grains);
        let width = self.lanes * TILE_VECTORS;
        // SAFETY: X was packed in the stage before; grains have rows of their own.
        let (x, dw) = unsafe {
            (
                grain.memory.read(self.tiles),
                grain.memory.write(weight_grad.part(outputs.start * self.inputs..outputs.end * self.inputs)),
            )
        };
        let (a, sums) = grain.scratch.split_at_mut(self.sources(outputs.len()));
        self.pack_sources(grain.memory, &grain.everywhere, &outputs, a);
        let a = &*a;
        let of_tile = |tile: usize, block: &Range<usize>| self.weight_sum(a, x, tile, block);
        let whole = self.inputs / width;
        for tiles in blocks(whole, (self.machine.inner_columns / width).max(1)) {
            for block in blocks(outputs.len(), self.most_sources) {
                for tile in tiles.clone() {
                    for row in block.clone() {
                        ask_for(dw, row * self.inputs + (tile + AHEAD) * width, width);
                    }
                    let dw = dw[block.start * self.inputs + tile * width..].as_mut_ptr();
                    // SAFETY: the rows are the grain's own and hold a whole tile from this column on.
                    unsafe { self.sum(&of_tile(tile, &block), dw) }
                }
            }
        }
        if whole * width < self.inputs {
            for block in blocks(outputs.len(), self.most_sources) {
                let sum = Sum { c_source: width, ..of_tile(whole, &block) };
                // SAFETY: the sums are the thread's own, a whole tile for each output of the block.
                unsafe { self.sum(&sum, sums[..block.len() * width].as_mut_ptr()) }
                let rows = dw.chunks_exact_mut(self.inputs).skip(block.start);
                for (to, from) in rows.zip(sums[..block.len() * width].chunks_exact(width)) {
                    let to = &mut to[whole * width..];
                    to.copy_from_slice(&from[..to.len()]);
                }
            }
        }
    }
}
