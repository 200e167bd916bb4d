//! Local response normalisation across channels, a strip of pixels at a time.
//!
//! A strip is copied to scratch, where neighbouring channels of a pixel are `step` elements apart and zeros stand beyond
//! the first and the last channel. All arithmetic is loops over the whole of scratch, whatever the layout: the sum over
//! a window adds a few shifted arrays. Backward computes the scale again, which costs less than to write it in forward
//! and to read it here.

use quadrille_core::layer::{Layer, Lrn, NormRegion, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::Isa;
use crate::kernel::vectorised::{Vectorised, on};
use crate::layout::Arrangement;
use crate::memory::Span;

/// Whether the layer's windows go across channels.
pub(super) fn fits(net: &Net, id: LayerId, _: Isa) -> bool {
    matches!(&net.layer(id).layer, Layer::Lrn(lrn) if lrn.region == NormRegion::AcrossChannels)
}

struct Strips {
    isa: Isa,
    norm: Norm,
    beta: f32,
    strips: Geometry,
    bottom: Span,
    top: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Lrn(lrn) = &binder.layer().layer else { return None };
    let arrangement = binder.arrangement(Operand::Bottom(0))?;
    let strips = Geometry::new(lrn, arrangement, binder.machine.normalised_elements);
    let grains = binder.stream_grains(arrangement.len());
    Some(Box::new(Strips {
        isa: binder.isa,
        norm: Norm::new(lrn),
        beta: lrn.beta,
        bottom: binder.span(Operand::Bottom(0))?,
        top: binder.span(Operand::Top(0))?,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: grains.min(arrangement.images * strips.per_image()),
        strips,
    }))
}

/// Elements of a vector where pixels lie side by side; all tiers fill whole registers with them.
const PLAIN_LANES: usize = 16;

/// Arrays of a strip in scratch: values, gradients, what windows go over, and their sums.
const ARRAYS: usize = 4;

/// How an image is cut into strips of pixels, and how these lie in scratch.
#[derive(Clone, Copy)]
struct Geometry {
    x: Arrangement,
    /// Neighbours on either side. Beyond all channels there is nothing to see.
    reach: usize,
    /// Pixels of a strip.
    pixels: usize,
}

impl Geometry {
    fn new(lrn: &Lrn, x: Arrangement, elements: usize) -> Self {
        let reach = (lrn.local_size / 2).min(x.channels);
        let column = x.channels.next_multiple_of(x.layout.block) + 2 * reach;
        let pixels = (elements / column).min(x.pixels).max(1);
        let pixels = if x.layout.block == 1 { pixels.next_multiple_of(PLAIN_LANES) } else { pixels };
        Self { x, reach, pixels }
    }

    fn per_image(&self) -> usize {
        self.x.pixels.div_ceil(self.pixels)
    }

    /// Elements of the channels of a pixel, with the zeros beyond them.
    fn column(&self) -> usize {
        self.x.channels.next_multiple_of(self.x.layout.block) + 2 * self.reach
    }

    /// Elements of a strip in scratch.
    fn len(&self) -> usize {
        self.column() * self.pixels
    }

    /// How far apart neighbouring channels lie.
    fn step(&self) -> usize {
        if self.x.layout.block == 1 { self.pixels } else { 1 }
    }
}

/// Some values of a strip that lie side by side.
#[derive(Clone, Copy)]
struct Chunk {
    /// Place of the first in the image.
    from: usize,
    /// Place of the first in scratch.
    at: usize,
    /// How many there are.
    len: usize,
}

/// A strip of an image.
#[derive(Clone, Copy)]
struct Strip {
    geometry: Geometry,
    first: usize,
    pixels: usize,
}

/// The chunks of a strip. An iterator and no closure: only what is inlined is compiled for the tier.
struct Chunks<const LANES: usize> {
    strip: Strip,
    /// Channel or block of channels, and chunk of it.
    row: usize,
    chunk: usize,
    rows: usize,
    /// Chunks of a row.
    chunks: usize,
}

impl<const LANES: usize> Iterator for Chunks<LANES> {
    type Item = Chunk;

    #[inline(always)]
    fn next(&mut self) -> Option<Chunk> {
        if self.chunk == self.chunks {
            (self.row, self.chunk) = (self.row + 1, 0);
        }
        if self.row >= self.rows {
            return None;
        }
        let (row, chunk) = (self.row, self.chunk);
        self.chunk += 1;
        let Strip { geometry: Geometry { x, reach, pixels }, first, .. } = self.strip;
        Some(if x.layout.block == 1 {
            let pixel = chunk * LANES;
            let (from, at) = (row * x.pixels + first + pixel, (reach + row) * pixels + pixel);
            Chunk { from, at, len: LANES.min(self.strip.pixels - pixel) }
        } else {
            let from = (row * x.pixels + first + chunk) * LANES;
            let at = chunk * self.strip.geometry.column() + reach + row * LANES;
            Chunk { from, at, len: LANES }
        })
    }
}

impl Strip {
    /// The strip in chunks of at most `LANES`: channels of a pixel in blocks, or pixels of a channel.
    #[inline(always)]
    fn chunks<const LANES: usize>(self) -> Chunks<LANES> {
        let x = self.geometry.x;
        let (rows, chunks) = if x.layout.block == 1 {
            (x.channels, self.pixels.div_ceil(LANES))
        } else {
            (x.channels.div_ceil(LANES), self.pixels)
        };
        Chunks { strip: self, row: 0, chunk: 0, rows, chunks }
    }

    /// Copies the strip from its image.
    #[inline(always)]
    fn gather<const LANES: usize>(self, image: &[f32], values: &mut [f32]) {
        for chunk in self.chunks::<LANES>() {
            if chunk.len == LANES {
                values[chunk.at..chunk.at + LANES].copy_from_slice(&image[chunk.from..chunk.from + LANES]);
            } else {
                gather_part(chunk, image, values);
            }
        }
    }

    /// Copies the strip to its image.
    #[inline(always)]
    fn scatter<const LANES: usize>(self, values: &[f32], image: &Target) {
        for chunk in self.chunks::<LANES>() {
            image.store::<LANES>(chunk, &values[chunk.at..chunk.at + LANES]);
        }
    }

    /// The sums over the windows of all values of a strip, channels rising, each where its window's middle lies.
    #[inline(always)]
    fn sums(self, values: &[f32], sums: &mut [f32]) {
        let (reach, step) = (self.geometry.reach, self.geometry.step());
        let sums = &mut sums[reach * step..values.len() - reach * step];
        if reach == 2 {
            return sum_five(values, step, sums);
        }
        sums.fill(0.0);
        for offset in 0..2 * reach + 1 {
            let neighbours = &values[offset * step..offset * step + sums.len()];
            for (sum, value) in sums.iter_mut().zip(neighbours) {
                *sum += value;
            }
        }
    }

    /// 0 in all that is no channel: whatever values gave there, nothing of it may reach a channel or an image.
    #[inline(always)]
    fn clear_beyond_channels(self, values: &mut [f32]) {
        let Geometry { x, reach, pixels } = self.geometry;
        let (step, column) = (self.geometry.step(), self.geometry.column());
        values[..reach * step].fill(0.0);
        if step == 1 {
            for pixel in 1..pixels {
                values[(pixel - 1) * column + reach + x.channels..pixel * column + reach].fill(0.0);
            }
        }
        let end = values.len() - (column - reach - x.channels) * step;
        values[end..].fill(0.0);
    }
}

/// The sums over windows of five, everybody's, in one pass.
#[inline(always)]
fn sum_five(values: &[f32], step: usize, sums: &mut [f32]) {
    let len = sums.len();
    let shifted = |offset: usize| &values[offset * step..offset * step + len];
    let (a, b, c, d, e) = (shifted(0), shifted(1), shifted(2), shifted(3), shifted(4));
    for i in 0..len {
        sums[i] = a[i] + b[i] + c[i] + d[i] + e[i];
    }
}

/// Apart from the rest, so that copies of whole chunks stay moves of registers.
#[cold]
#[inline(never)]
fn gather_part(chunk: Chunk, image: &[f32], values: &mut [f32]) {
    values[chunk.at..chunk.at + chunk.len].copy_from_slice(&image[chunk.from..chunk.from + chunk.len]);
}

/// An image of which the grains write strips that lie between each other's.
struct Target {
    start: *mut f32,
    len: usize,
}

impl Target {
    #[inline(always)]
    fn store<const LANES: usize>(&self, chunk: Chunk, values: &[f32]) {
        assert!(chunk.from + chunk.len <= self.len && LANES <= values.len(), "a chunk beyond its image");
        if chunk.len < LANES {
            return self.store_part(chunk, values);
        }
        // SAFETY: in bounds, as just asserted; the strip's grain is the only one that touches these elements.
        unsafe { self.start.add(chunk.from).copy_from_nonoverlapping(values.as_ptr(), LANES) }
    }

    #[cold]
    #[inline(never)]
    fn store_part(&self, chunk: Chunk, values: &[f32]) {
        let values = &values[..chunk.len];
        // SAFETY: in bounds, as asserted by `store`; otherwise as there.
        unsafe { self.start.add(chunk.from).copy_from_nonoverlapping(values.as_ptr(), values.len()) }
    }
}

/// The numbers of `s = base + share · Σ x²`.
#[derive(Clone, Copy)]
struct Norm {
    base: f32,
    /// α/|W|.
    share: f32,
    /// 2αβ/|W|.
    factor: f32,
}

impl Norm {
    fn new(lrn: &Lrn) -> Self {
        let share = lrn.alpha / lrn.divisor();
        Self { base: lrn.base(), share, factor: 2.0 * share * lrn.beta }
    }

    /// The scales of a strip with values `x`; `squares` is to hold these.
    #[inline(always)]
    fn scales(&self, strip: Strip, x: &[f32], squares: &mut [f32], scales: &mut [f32]) {
        for (square, x) in squares.iter_mut().zip(x) {
            *square = x * x;
        }
        strip.sums(squares, scales);
        for scale in scales {
            *scale = self.base + self.share * *scale;
        }
    }
}

/// Takes s to s^(−β).
trait Power: Copy {
    fn of(self, s: f32) -> f32;
}

/// β = 3/4, everybody's: roots and a division, which vectors have; a power they have not.
#[derive(Clone, Copy)]
struct ThreeQuarters;

impl Power for ThreeQuarters {
    #[inline(always)]
    fn of(self, s: f32) -> f32 {
        let root = s.sqrt();
        1.0 / (root * root.sqrt())
    }
}

/// Any β, value by value.
#[derive(Clone, Copy)]
struct AnyPower {
    beta: f32,
}

impl Power for AnyPower {
    #[inline(always)]
    fn of(self, s: f32) -> f32 {
        s.powf(-self.beta)
    }
}

/// A strip of Y.
struct Forward<'a, const LANES: usize, P> {
    strip: Strip,
    norm: Norm,
    power: P,
    x: &'a [f32],
    y: Target,
    scratch: [&'a mut [f32]; ARRAYS],
}

impl<const LANES: usize, P: Power> Vectorised for Forward<'_, LANES, P> {
    #[inline(always)]
    fn run(self) {
        let Self { strip, norm, power, x, y, scratch: [values, _, squares, scales] } = self;
        strip.gather::<LANES>(x, values);
        norm.scales(strip, values, squares, scales);
        for (value, scale) in values.iter_mut().zip(scales) {
            *value *= power.of(*scale);
        }
        strip.clear_beyond_channels(values);
        strip.scatter::<LANES>(values, &y);
    }
}

/// A strip of dX.
struct Backward<'a, const LANES: usize, P> {
    strip: Strip,
    norm: Norm,
    power: P,
    x: &'a [f32],
    dy: &'a [f32],
    dx: Target,
    scratch: [&'a mut [f32]; ARRAYS],
}

impl<const LANES: usize, P: Power> Vectorised for Backward<'_, LANES, P> {
    #[inline(always)]
    fn run(self) {
        let Self { strip, norm, power, x, dy, dx, scratch: [values, gradients, squares, scales] } = self;
        strip.gather::<LANES>(x, values);
        strip.gather::<LANES>(dy, gradients);
        norm.scales(strip, values, squares, scales);
        // What comes back to the neighbours of each value, dy · x · s^(−β−1), takes the place of the squares.
        let back = squares;
        for (((gradient, back), value), scale) in
            gradients.iter_mut().zip(&mut *back).zip(&*values).zip(&*scales)
        {
            let power = power.of(*scale);
            *back = *gradient * value * power / scale;
            *gradient *= power;
        }
        strip.clear_beyond_channels(back);
        strip.sums(back, scales);
        for ((gradient, value), sum) in gradients.iter_mut().zip(&*values).zip(&*scales) {
            *gradient -= norm.factor * value * sum;
        }
        strip.clear_beyond_channels(gradients);
        strip.scatter::<LANES>(gradients, &dx);
    }
}

impl Strips {
    /// Calls `each(place of the image, its strip)` for the strips of a grain.
    fn each(&self, grain: &Grain<'_>, mut each: impl FnMut(std::ops::Range<usize>, Strip)) {
        let geometry = self.strips;
        let (per_image, len) = (geometry.per_image(), geometry.x.image_len());
        for unit in grain.share(geometry.x.images * per_image) {
            let (image, first) = (unit / per_image, unit % per_image * geometry.pixels);
            let pixels = geometry.pixels.min(geometry.x.pixels - first);
            each(image * len..(image + 1) * len, Strip { geometry, first, pixels });
        }
    }

    /// The arrays of a strip in scratch, with zeros beyond the channels.
    fn arrays<'a>(&self, scratch: &'a mut [f32]) -> [&'a mut [f32]; ARRAYS] {
        let scratch = &mut scratch[..self.scratch()];
        scratch.fill(0.0);
        let mut arrays = scratch.chunks_exact_mut(self.strips.len());
        std::array::from_fn(|_| arrays.next().unwrap_or_default())
    }

    fn forward_strips<const LANES: usize>(&self, grain: &mut Grain<'_>) {
        let (isa, norm, beta, memory) = (self.isa, self.norm, self.beta, grain.memory);
        let mut arrays = self.arrays(std::mem::take(&mut grain.scratch));
        self.each(grain, |image, strip| {
            // SAFETY: only read in this task.
            let x = unsafe { memory.read(self.bottom.part(image.clone())) };
            let y = Target { start: memory.pointer(self.top.part(image.clone())), len: image.len() };
            let scratch = arrays.each_mut().map(|array| &mut **array);
            if beta == 0.75 {
                on(isa, Forward::<LANES, _> { strip, norm, power: ThreeQuarters, x, y, scratch });
            } else {
                on(isa, Forward::<LANES, _> { strip, norm, power: AnyPower { beta }, x, y, scratch });
            }
        });
    }

    fn backward_strips<const LANES: usize>(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let (isa, norm, beta, memory) = (self.isa, self.norm, self.beta, grain.memory);
        let mut arrays = self.arrays(std::mem::take(&mut grain.scratch));
        self.each(grain, |image, strip| {
            // SAFETY: only read in this task.
            let (x, dy) = unsafe {
                (memory.read(self.bottom.part(image.clone())), memory.read(top_grad.part(image.clone())))
            };
            let dx = Target { start: memory.pointer(bottom_grad.part(image.clone())), len: image.len() };
            let scratch = arrays.each_mut().map(|array| &mut **array);
            if beta == 0.75 {
                on(isa, Backward::<LANES, _> { strip, norm, power: ThreeQuarters, x, dy, dx, scratch });
            } else {
                on(isa, Backward::<LANES, _> { strip, norm, power: AnyPower { beta }, x, dy, dx, scratch });
            }
        });
    }
}

impl LayerKernel for Strips {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn scratch(&self) -> usize {
        ARRAYS * self.strips.len()
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        match self.strips.x.layout.block {
            8 => self.forward_strips::<8>(grain),
            _ => self.forward_strips::<PLAIN_LANES>(grain),
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        match self.strips.x.layout.block {
            8 => self.backward_strips::<8>(grain),
            _ => self.backward_strips::<PLAIN_LANES>(grain),
        }
    }
}
