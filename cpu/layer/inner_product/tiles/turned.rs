//! What forward turns round: X, whose images lie apart in the bottom, to vectors of images, and the sums, whose outputs lie apart,
//! to the images of the top. Square by square, as far as a bottom has numbers side by side.

use std::ops::Range;

use super::{TOGETHER, Tiles};
use crate::isa::Precision;
use crate::kernel::simd::{Simd, Square};
use crate::kernel::vectorised::{Explicit, with_vectors};
use crate::layer::Grain;
use crate::layout::Layout;
use crate::memory::Memory;

/// Numbers that lie side by side in each image of the bottom, at most a vector.
struct Piece {
    /// Its place in an image.
    at: usize,
    /// The input that the first of them is, and how many inputs the next is further on.
    input: usize,
    step: usize,
    len: usize,
}

impl Tiles {
    /// Parts of X that grains share.
    pub(super) fn pieces(&self) -> usize {
        match (self.precision, self.input.layout) {
            (Precision::F32, Layout::PLAIN) => self.inputs.div_ceil(self.lanes),
            (Precision::F32, layout) => self.input.channels.div_ceil(layout.block) * self.input.pixels,
            (Precision::Bf16, _) => self.words(self.inputs),
        }
    }

    /// One of [`Tiles::pieces`] of f32.
    fn piece(&self, index: usize) -> Piece {
        let lies = self.input;
        if lies.layout == Layout::PLAIN {
            let input = index * self.lanes;
            return Piece { at: input, input, step: 1, len: self.lanes.min(self.inputs - input) };
        }
        let (block, pixel) = (index / lies.pixels * lies.layout.block, index % lies.pixels);
        let len = lies.layout.block.min(lies.channels - block);
        Piece { at: index * lies.layout.block, input: block * lies.pixels + pixel, step: lies.pixels, len }
    }

    /// Packs X transposed: the grain's inputs.
    pub(super) fn transpose(&self, grain: &Grain<'_>) {
        match self.precision {
            Precision::F32 => with_vectors(self.isa, TurnedImages { tiles: self, grain }),
            Precision::Bf16 => self.transpose_words(grain),
        }
    }

    /// In bf16: words of two inputs, which lie apart wherever channels lie side by side.
    fn transpose_words(&self, grain: &Grain<'_>) {
        let (inputs, depth) = (grain.share(self.pieces()), self.words(self.inputs));
        let in_word = self.precision.in_word();
        // SAFETY: only read in this task.
        let x = unsafe { grain.memory.read(self.bottom) };
        let together = TOGETHER / in_word;
        for first_word in inputs.clone().step_by(together) {
            let words = first_word..(first_word + together).min(inputs.end);
            let of_words = words.start * in_word..(words.end * in_word).min(self.inputs);
            let places = self.places(of_words.clone());
            for vector in 0..self.image_vectors() {
                let start = vector * depth * self.lanes;
                let part = start + words.start * self.lanes..start + words.end * self.lanes;
                // SAFETY: grains have inputs of their own.
                let to = unsafe { grain.memory.write(self.transposed.part(part)) };
                to.fill(0.0);
                let first = vector * self.lanes;
                for image in first..(first + self.lanes).min(self.images) {
                    let of_image = &x[image * self.input.image_len()..][..self.input.image_len()];
                    let (mut gathered, mut packed) = ([0.0; TOGETHER], [0.0; TOGETHER]);
                    let row = self.row(of_image, of_words.clone(), &places, &mut gathered);
                    self.pack(row, &mut packed);
                    let pixels = to.chunks_exact_mut(self.lanes).map(|pixel| &mut pixel[image - first]);
                    pixels.zip(packed).for_each(|(to, word)| *to = word);
                }
            }
        }
    }

    /// Writes the sums of some outputs, `width` apart and image beside image, to the top, and adds the bias.
    pub(super) fn write_top(
        &self,
        memory: &Memory,
        outputs: Range<usize>,
        [sums, bias]: [&[f32]; 2],
        width: usize,
    ) {
        with_vectors(self.isa, TurnedSums { tiles: self, memory, outputs, sums, bias, width });
    }
}

/// A grain's pieces of all images.
struct TurnedImages<'a> {
    tiles: &'a Tiles,
    grain: &'a Grain<'a>,
}

impl Explicit for TurnedImages<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { tiles, grain } = self;
        // SAFETY: only read in this task.
        let x = unsafe { grain.memory.read(tiles.bottom) };
        let (image_len, plane) = (tiles.input.image_len(), tiles.inputs * S::LANES);
        let to = grain.memory.pointer(tiles.transposed);
        let mut square = Square([0.0; _]);
        for piece in grain.share(tiles.pieces()).map(|index| tiles.piece(index)) {
            for vector in 0..tiles.image_vectors() {
                let image = vector * S::LANES;
                let images = S::LANES.min(tiles.images - image);
                let from = &x[image * image_len + piece.at..][..(images - 1) * image_len + piece.len];
                // SAFETY: the CPU has the instructions by contract; the rows lie in `from`.
                unsafe { S::turn(from.as_ptr(), image_len, [images, piece.len], &mut square) }
                for (i, row) in square.0.chunks_exact(S::LANES).take(piece.len).enumerate() {
                    let place = vector * plane + (piece.input + i * piece.step) * S::LANES;
                    assert!(place + S::LANES <= tiles.transposed.len(), "an input beyond X");
                    // SAFETY: inside the span, as asserted; grains have inputs of their own.
                    unsafe { S::store(to.add(place), S::load(row.as_ptr())) }
                }
            }
        }
    }
}

/// The sums of a grain's outputs.
struct TurnedSums<'a> {
    tiles: &'a Tiles,
    memory: &'a Memory,
    outputs: Range<usize>,
    sums: &'a [f32],
    /// Of these outputs, or empty if there are none.
    bias: &'a [f32],
    /// From the sums of an output to those of the next.
    width: usize,
}

impl Explicit for TurnedSums<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { tiles, memory, outputs, sums, bias, width } = self;
        let mut square = Square([0.0; _]);
        for first in (0..outputs.len()).step_by(S::LANES) {
            let count = S::LANES.min(outputs.len() - first);
            let mut of_outputs = Square([0.0; _]);
            if let Some(bias) = bias.get(first..first + count) {
                of_outputs.0[..count].copy_from_slice(bias);
            }
            for image in (0..tiles.images).step_by(S::LANES) {
                let images = S::LANES.min(tiles.images - image);
                let from = &sums[first * width + image..][..(count - 1) * width + images];
                // SAFETY: the CPU has the instructions by contract; the rows lie in `from`.
                unsafe { S::turn(from.as_ptr(), width, [count, images], &mut square) }
                for (i, row) in square.0.chunks_exact_mut(S::LANES).take(images).enumerate() {
                    let start = (image + i) * tiles.outputs + outputs.start + first;
                    // SAFETY: the CPU has the instructions by contract; grains have outputs of their own.
                    let to = unsafe {
                        let total = S::add(S::load(row.as_ptr()), S::load(of_outputs.0.as_ptr()));
                        S::store(row.as_mut_ptr(), total);
                        memory.write(tiles.top.part(start..start + count))
                    };
                    // Of a length that is not known a copy is a call.
                    if count == S::LANES {
                        to[..S::LANES].copy_from_slice(&row[..S::LANES]);
                    } else {
                        to.copy_from_slice(&row[..count]);
                    }
                }
            }
        }
    }
}
