//! Dropout as one pass over memory; in place if the net says so. Backward draws the mask again.
//!
//! A value's random bits follow from its place in the order N, C, H, W. Where memory has that order too, masks are drawn
//! along it; where channels lie in blocks, they are drawn along the pixels of each channel of a block and then crossed.

use std::ops::Range;

use quadrille_core::layer::{Dropout, Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};
use quadrille_core::rng::{Draw, Stream};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::Isa;
use crate::kernel::vectorised::{Vectorised, on};
use crate::layout::Arrangement;
use crate::memory::Span;

/// Whether anything is dropped. In phase TEST the layer is a view.
pub(super) fn fits(net: &Net, id: LayerId, _: Isa) -> bool {
    matches!(&net.layer(id).layer, Layer::Dropout(dropout) if dropout.active)
}

struct Mask {
    isa: Isa,
    id: LayerId,
    threshold: u32,
    scale: f32,
    x: Arrangement,
    bottom: Span,
    top: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Dropout(dropout) = &binder.layer().layer else { return None };
    let dropout: &Dropout = dropout;
    let x = binder.arrangement(Operand::Bottom(0))?;
    Some(Box::new(Mask {
        isa: binder.isa,
        id: binder.id,
        threshold: dropout.threshold(),
        scale: dropout.scale(),
        x,
        bottom: binder.span(Operand::Bottom(0))?,
        top: binder.span(Operand::Top(0))?,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(x.len()),
    }))
}

/// Random blocks that are drawn together.
const BLOCKS: usize = 16;
/// Values that they serve.
const VALUES: usize = 4 * BLOCKS;

/// What decides which values stay.
#[derive(Clone, Copy)]
struct Factors {
    stream: Stream,
    threshold: u32,
    scale: f32,
}

impl Factors {
    /// The factors of the values from `first`, a multiple of 4, on.
    #[inline(always)]
    fn from(&self, first: u64) -> [f32; VALUES] {
        let words: [[u32; 4]; BLOCKS] = self.stream.blocks(first / 4);
        let mut factors = [0.0; VALUES];
        for (factors, words) in factors.as_chunks_mut::<4>().0.iter_mut().zip(&words) {
            for (factor, word) in factors.iter_mut().zip(words) {
                *factor = if word >> 8 < self.threshold { 0.0 } else { self.scale };
            }
        }
        factors
    }

    /// Calls `each(values, their factors)` for the values from `first` on, of which there are `len`.
    #[inline(always)]
    fn each(&self, first: u64, len: usize, mut each: impl FnMut(Range<usize>, &[f32])) {
        // Values before `first` that share its random block.
        let before = (first % 4) as usize;
        let mut done = 0;
        while done < len {
            let skip = if done == 0 { before } else { 0 };
            let factors = self.from(first + done as u64 - skip as u64);
            let end = (done + VALUES - skip).min(len);
            each(done..end, &factors[skip..skip + end - done]);
            done = end;
        }
    }
}

/// Values side by side in the order of their places, the first of which is `first`.
struct Along<'a> {
    factors: Factors,
    first: u64,
    values: &'a mut [f32],
}

impl Vectorised for Along<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { factors, first, values } = self;
        factors.each(first, values.len(), |part, factors| {
            let values = &mut values[part];
            match (values.as_chunks_mut::<VALUES>(), factors.as_chunks::<VALUES>()) {
                (([values], []), ([factors], [])) => multiply(values, factors),
                _ => multiply(values, factors),
            }
        });
    }
}

#[inline(always)]
fn multiply(values: &mut [f32], factors: &[f32]) {
    // A product, since what is not a number must stay so.
    values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
}

/// A block of channels, all pixels of it; `first` is the place of its first value and `channels` those that are real.
struct Across<'a, const BLOCK: usize> {
    factors: Factors,
    first: u64,
    channels: usize,
    values: &'a mut [[f32; BLOCK]],
}

impl<const BLOCK: usize> Vectorised for Across<'_, BLOCK> {
    #[inline(always)]
    fn run(self) {
        let Self { factors, first, channels, values } = self;
        let pixels = values.len();
        for channel in 0..channels {
            factors.each(first + (channel * pixels) as u64, pixels, |part, factors| {
                for (pixel, factor) in values[part].iter_mut().zip(factors) {
                    pixel[channel] *= factor;
                }
            });
        }
    }
}

impl Mask {
    fn factors(&self, grain: &Grain<'_>) -> Factors {
        let (layer, first_image) = (self.id.0 as u32, grain.first_image as u64);
        let stream = Draw { seed: grain.scalars.seed, layer, first_image }.stream();
        Factors { stream, threshold: self.threshold, scale: self.scale }
    }

    fn run(&self, grain: &Grain<'_>, from: Span, to: Span) {
        let part = |values: &Range<usize>| {
            // SAFETY: grains have values of their own; in place, only this slice is made.
            let y = unsafe { grain.memory.write(to.part(values.clone())) };
            if from != to {
                // SAFETY: another array, only read in this task.
                y.copy_from_slice(unsafe { grain.memory.read(from.part(values.clone())) });
            }
            y
        };
        let (isa, x, factors) = (self.isa, self.x, self.factors(grain));
        let first = (grain.first_image * x.channels * x.pixels) as u64;
        let plain = Arrangement { layout: crate::layout::Layout::PLAIN, ..x };
        if x.is_like(&plain) {
            let values = grain.share(x.len());
            let first = first + values.start as u64;
            return on(isa, Along { factors, first, values: part(&values) });
        }
        let block = x.layout.block;
        let blocks = x.channels.div_ceil(block);
        for plane in grain.share(x.images * blocks) {
            let (image, channel) = (plane / blocks, plane % blocks * block);
            let first = first + ((image * x.channels + channel) * x.pixels) as u64;
            let channels = block.min(x.channels - channel);
            let values = part(&(plane * block * x.pixels..(plane + 1) * block * x.pixels));
            match block {
                8 => on(isa, Across::<8> { factors, first, channels, values: values.as_chunks_mut().0 }),
                _ => on(isa, Across::<16> { factors, first, channels, values: values.as_chunks_mut().0 }),
            }
        }
    }
}

impl LayerKernel for Mask {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        self.run(grain, self.bottom, self.top);
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        self.run(grain, top_grad, bottom_grad);
    }
}
