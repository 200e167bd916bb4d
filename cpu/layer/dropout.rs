//! Dropout as one pass over memory; in place if the net says so. Backward draws the mask again.
//!
//! A value's random bits follow from its place in the order N, C, H, W. Where memory has that order too, masks are drawn
//! along it; where channels lie in blocks, they are drawn along the pixels of each channel of a block and then crossed.

use std::marker::PhantomData;
use std::ops::Range;

use quadrille_core::layer::{Dropout, Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};
use quadrille_core::rng::{Draw, Stream};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::element::{Element, Half};
use crate::kernel::vectorised::Vectorised;
use crate::layout::{Arrangement, Layout};
use crate::memory::Span;

/// Whether anything is dropped. In phase TEST the layer is a view.
pub(super) fn fits(net: &Net, id: LayerId, _: Numerics) -> bool {
    matches!(&net.layer(id).layer, Layer::Dropout(dropout) if dropout.active)
}

struct Mask<E> {
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
    elements: PhantomData<E>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    match binder.arrangement(Operand::Bottom(0))?.layout.precision {
        Precision::F32 => bind::<f32>(binder),
        Precision::Bf16 => bind::<Half>(binder),
    }
}

fn bind<E: Element>(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Dropout(dropout) = &binder.layer().layer else { return None };
    let dropout: &Dropout = dropout;
    let x = binder.arrangement(Operand::Bottom(0))?;
    Some(Box::new(Mask::<E> {
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
        elements: PhantomData,
    }))
}

/// Random blocks that are drawn together, each for four values: enough to fill the tier's vectors.
const WIDE: usize = 32;
const NARROW: usize = 4;

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
    fn from<const BLOCKS: usize>(&self, first: u64) -> [[f32; 4]; BLOCKS] {
        let words: [[u32; BLOCKS]; 4] = self.stream.blocks(first / 4);
        let mut factors = [[0.0; 4]; BLOCKS];
        for block in 0..BLOCKS {
            for word in 0..4 {
                let stays = words[word][block] >> 8 >= self.threshold;
                factors[block][word] = if stays { self.scale } else { 0.0 };
            }
        }
        factors
    }

    /// Multiplies values by their factors, of which the first is that of place `first`. Each is `step` values further.
    #[inline(always)]
    fn multiply<const BLOCKS: usize>(&self, first: u64, values: &mut [f32], step: usize) {
        // Values before `first` that share its random block.
        let mut skip = (first % 4) as usize;
        let (mut done, len) = (0, values.len().div_ceil(step));
        while done < len {
            let factors = self.from::<BLOCKS>(first + done as u64 - skip as u64);
            let end = (done + 4 * BLOCKS - skip).min(len);
            let factors = &factors.as_flattened()[skip..skip + end - done];
            let values = &mut values[done * step..];
            // Products, since what is not a number must stay so.
            if step == 1 {
                for (value, factor) in values.iter_mut().zip(factors) {
                    *value *= factor;
                }
            } else {
                for (value, factor) in values.iter_mut().step_by(step).zip(factors) {
                    *value *= factor;
                }
            }
            (done, skip) = (end, 0);
        }
    }
}

/// Values side by side in the order of their places, the first of which is `first`.
struct Along<'a, const BLOCKS: usize> {
    factors: Factors,
    first: u64,
    values: &'a mut [f32],
}

impl<const BLOCKS: usize> Vectorised for Along<'_, BLOCKS> {
    #[inline(always)]
    fn run(self) {
        self.factors.multiply::<BLOCKS>(self.first, self.values, 1);
    }
}

/// Pixels of a block of channels. Of its first value `first` is the place; `pixels` are those of a whole plane, and
/// `channels` those of the block that are real.
struct Across<'a> {
    factors: Factors,
    first: u64,
    block: usize,
    pixels: usize,
    channels: usize,
    values: &'a mut [f32],
}

impl Across<'_> {
    /// Pixels of a channel that are drawn at once wherever they begin, and stay in the first-level cache.
    const PIXELS: usize = 4 * (WIDE - 1);
}

impl Vectorised for Across<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { factors, first, block, pixels, channels, values } = self;
        for channel in 0..channels {
            let first = first + (channel * pixels) as u64;
            factors.multiply::<WIDE>(first, &mut values[channel..], block);
        }
    }
}

impl<E: Element> Mask<E> {
    fn factors(&self, grain: &Grain<'_>) -> Factors {
        let (layer, first_image) = (self.id.0 as u32, grain.first_image as u64);
        let stream = Draw { seed: grain.scalars.seed, layer, first_image }.stream();
        Factors { stream, threshold: self.threshold, scale: self.scale }
    }

    fn run(&self, grain: &mut Grain<'_>, from: Span, to: Span) {
        let scratch = std::mem::take(&mut grain.scratch);
        let part = |words: &Range<usize>| {
            // SAFETY: grains have values of their own; in place, only this slice is made.
            let y: &mut [E] = unsafe { grain.write(to.part(words.clone())) };
            if from != to {
                // SAFETY: another array, only read in this task.
                y.copy_from_slice(unsafe { grain.read(from.part(words.clone())) });
            }
            y
        };
        let (isa, x, factors) = (self.isa, self.x, self.factors(grain));
        let first = (grain.first_image * x.channels * x.pixels) as u64;
        let plain = Arrangement { layout: Layout::PLAIN, ..x };
        if x.is_like(&plain) {
            let words = grain.share(x.len());
            let first = first + words.start as u64;
            return E::changed(part(&words), scratch, |values| match isa {
                Isa::Portable => E::on(isa, Along::<NARROW> { factors, first, values }),
                _ => E::on(isa, Along::<WIDE> { factors, first, values }),
            });
        }
        let (block, pixels) = (x.layout.block, x.pixels);
        let blocks = x.channels.div_ceil(block);
        for plane in grain.share(x.images * blocks) {
            let (image, channel) = (plane / blocks, plane % blocks * block);
            let first = first + ((image * x.channels + channel) * pixels) as u64;
            let channels = block.min(x.channels - channel);
            let values = part(&(plane * x.plane_len()..(plane + 1) * x.plane_len()));
            for (strip, values) in values.chunks_mut(Across::PIXELS * block).enumerate() {
                let first = first + (strip * Across::PIXELS) as u64;
                E::changed(values, scratch, |values| {
                    E::on(isa, Across { factors, first, block, pixels, channels, values });
                });
            }
        }
    }
}

impl<E: Element> LayerKernel for Mask<E> {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    /// For a strip of pixels; plain arrays are f32 and need none.
    fn scratch(&self) -> usize {
        E::scratch(Across::PIXELS * self.x.layout.block)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        self.run(grain, self.bottom, self.top);
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        self.run(grain, top_grad, bottom_grad);
    }
}
