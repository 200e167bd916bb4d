//! A 1×1 convolution of stride s sees one pixel in s × s: those are gathered first, so that the convolution itself is one
//! of stride 1 on a smaller image, and its ∇A is scattered back between zeros.

use quadrille_core::layer::Convolution;

use crate::isa::Isa;
use crate::kernel::simd::Simd;
use crate::kernel::stored::{OnStored, Stored, with_stored};
use crate::layer::{Array, Grain};
use crate::layout::Arrangement;
use crate::memory::Span;

/// The pixels that a 1×1 convolution sees.
#[derive(Clone, Copy)]
pub(super) struct Subsample {
    stride: [usize; 2],
    /// How the bottom lies, and the pixels of it that are seen.
    whole: Arrangement,
    seen: Arrangement,
    /// Pixels of a row of both.
    widths: [usize; 2],
}

impl Subsample {
    /// `None` if the layer sees every pixel, more than one at a time or padding, or the bottom lies plain.
    pub fn new(
        layer: &Convolution,
        whole: Arrangement,
        input: [usize; 2],
        output: [usize; 2],
    ) -> Option<Self> {
        let seen = Arrangement { pixels: output[0] * output[1], gap: 0, ..whole };
        let widths = [input[1], output[1]];
        let blocked = whole.layout.block > 1;
        (Self::fits(layer) && blocked).then_some(Self { stride: layer.stride, whole, seen, widths })
    }

    /// Whether a layer with a bottom in blocks sees one pixel in a few.
    pub fn fits(layer: &Convolution) -> bool {
        layer.kernel == [1; 2] && layer.pad == [0; 2] && layer.stride != [1; 2]
    }

    /// How the pixels that are seen lie.
    pub fn seen(&self) -> Arrangement {
        self.seen
    }

    /// Planes of blocks of channels, each of which is a grain's at most.
    pub fn planes(&self) -> usize {
        self.whole.images * self.whole.channels.div_ceil(self.whole.layout.block)
    }

    /// Copies the pixels that are seen: the grain's planes.
    pub fn gather(&self, grain: &Grain<'_>, isa: Isa, from: Array, to: Span) {
        let block = self.whole.layout.pixel();
        let [whole, seen] = [self.whole.plane_len(), self.seen.plane_len()];
        for plane in grain.share(self.planes()) {
            // SAFETY: grains have planes of their own; the bottom is only read in this task.
            let (from, to) = unsafe {
                (
                    grain.memory.read(from.part(plane * whole..(plane + 1) * whole)),
                    grain.memory.write(to.part(plane * seen..(plane + 1) * seen)),
                )
            };
            let rows = from.chunks(self.widths[0] * block).step_by(self.stride[0]);
            for (from, to) in rows.zip(to.chunks_exact_mut(self.widths[1] * block)) {
                let ahead = self.stride[0] * self.widths[0] * block;
                let copied = Copied { from, to, apart: [self.stride[1], 1], ahead };
                with_stored(isa, self.whole.layout.precision, copied);
            }
        }
    }

    /// Writes gradients to the pixels that are seen and 0 to all others: the grain's planes.
    pub fn scatter(&self, grain: &Grain<'_>, isa: Isa, from: Span, to: Array) {
        let (precision, apart) = (self.whole.layout.precision, [1, self.stride[1]]);
        self.back(grain, from, to, true, |from, to| {
            with_stored(isa, precision, Copied { from, to, apart, ahead: 0 });
        });
    }

    /// Adds gradients to the pixels that are seen: the grain's planes.
    pub fn add(&self, grain: &Grain<'_>, isa: Isa, from: Span, to: Array) {
        let (precision, apart) = (self.whole.layout.precision, self.stride[1]);
        self.back(grain, from, to, false, |from, to| with_stored(isa, precision, Added { from, to, apart }));
    }

    /// Calls `row` with each row of gradients of the grain's planes and the row that it belongs to, in planes of 0 if they
    /// are to be cleared.
    fn back(&self, grain: &Grain<'_>, from: Span, to: Array, clear: bool, row: impl Fn(&[f32], &mut [f32])) {
        let block = self.whole.layout.pixel();
        let [whole, seen] = [self.whole.plane_len(), self.seen.plane_len()];
        for plane in grain.share(self.planes()) {
            // SAFETY: grains have planes of their own; the gradients were computed in the stage before.
            let (from, to) = unsafe {
                (
                    grain.memory.read(from.part(plane * seen..(plane + 1) * seen)),
                    grain.memory.write(to.part(plane * whole..(plane + 1) * whole)),
                )
            };
            if clear {
                to.fill(0.0);
            }
            let rows = to.chunks_mut(self.widths[0] * block).step_by(self.stride[0]);
            rows.zip(from.chunks_exact(self.widths[1] * block)).for_each(|(to, from)| row(from, to));
        }
    }
}

/// Pixels of a row that are copied to those of another: one of so many, to one of so many.
struct Copied<'a> {
    from: &'a [f32],
    to: &'a mut [f32],
    apart: [usize; 2],
    /// Elements between the pixels that are read and those that are asked for: the next row is too far for prefetchers.
    ahead: usize,
}

impl OnStored for Copied<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        let Self { from, to, apart, ahead } = self;
        let from = from.chunks_exact(E::LEN).step_by(apart[0]);
        for (to, from) in to.chunks_exact_mut(E::LEN).step_by(apart[1]).zip(from) {
            S::prefetch(from.as_ptr().wrapping_add(ahead));
            // Of a length that is known when this is compiled.
            to[..E::LEN].copy_from_slice(&from[..E::LEN]);
        }
    }
}

/// Pixels of a row that are added to every so many of another.
struct Added<'a> {
    from: &'a [f32],
    to: &'a mut [f32],
    apart: usize,
}

impl OnStored for Added<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        let to = self.to.chunks_exact_mut(E::LEN).step_by(self.apart);
        for (to, from) in to.zip(self.from.chunks_exact(E::LEN)) {
            // SAFETY: the CPU has the instructions by contract; a pixel is a vector.
            unsafe { E::store(to.as_mut_ptr(), S::add(E::load(to.as_ptr()), E::load(from.as_ptr()))) }
        }
    }
}
