//! Local response normalisation across channels, a strip of pixels at a time.
//!
//! The squares of a strip lie in scratch such that neighbouring channels of a pixel are `step` elements apart, with
//! zeros beyond the first and the last channel: the sum over a window is a few loads, whatever the layout. Backward
//! computes the scale again, which costs less than to write it in forward and to read it here.

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

/// How an image is cut into strips of pixels, and how the squares of a strip lie in scratch.
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

    /// Elements of a strip's squares.
    fn len(&self) -> usize {
        self.column() * self.pixels
    }

    /// How far apart the squares of neighbouring channels lie.
    fn step(&self) -> usize {
        if self.x.layout.block == 1 { self.pixels } else { 1 }
    }
}

/// Some values of a strip that lie side by side.
#[derive(Clone, Copy)]
struct Chunk {
    /// Place of the first in the image.
    from: usize,
    /// Place of the first among the squares.
    at: usize,
    /// How many lie in the image's memory.
    held: usize,
    /// How many are no padding.
    valid: usize,
}

/// A strip of an image.
#[derive(Clone, Copy)]
struct Strip {
    geometry: Geometry,
    first: usize,
    pixels: usize,
}

impl Strip {
    /// Calls `each` for the strip in chunks of at most `LANES`: channels of a pixel in blocks, or pixels of a channel.
    #[inline(always)]
    fn each<const LANES: usize>(&self, mut each: impl FnMut(Chunk)) {
        let Geometry { x, reach, pixels } = self.geometry;
        if x.layout.block == 1 {
            for channel in 0..x.channels {
                for pixel in (0..self.pixels).step_by(LANES) {
                    let (from, at) =
                        (channel * x.pixels + self.first + pixel, (reach + channel) * pixels + pixel);
                    let valid = LANES.min(self.pixels - pixel);
                    each(Chunk { from, at, held: valid, valid });
                }
            }
            return;
        }
        let column = self.geometry.column();
        for block in 0..x.channels.div_ceil(LANES) {
            let valid = LANES.min(x.channels - block * LANES);
            for pixel in 0..self.pixels {
                let from = (block * x.pixels + self.first + pixel) * LANES;
                each(Chunk { from, at: pixel * column + reach + block * LANES, held: LANES, valid });
            }
        }
    }

    /// The sums over the windows of a chunk, channels rising.
    #[inline(always)]
    fn sums<const LANES: usize>(&self, values: &[f32], chunk: Chunk) -> [f32; LANES] {
        let (reach, step) = (self.geometry.reach, self.geometry.step());
        let mut sums = [0.0f32; LANES];
        let mut at = chunk.at - reach * step;
        for _ in 0..2 * reach + 1 {
            let neighbours = &values[at..at + LANES];
            for lane in 0..LANES {
                sums[lane] += neighbours[lane];
            }
            at += step;
        }
        sums
    }
}

impl Chunk {
    /// The chunk's values of an image; 0 where there are none.
    #[inline(always)]
    fn load<const LANES: usize>(&self, image: &[f32]) -> [f32; LANES] {
        let mut values = [0.0f32; LANES];
        if self.held == LANES {
            values.copy_from_slice(&image[self.from..self.from + LANES]);
        } else {
            values[..self.held].copy_from_slice(&image[self.from..self.from + self.held]);
        }
        values
    }

    /// 0 in what is padding: whatever the values are, nothing of them may reach another channel.
    #[inline(always)]
    fn mask<const LANES: usize>(&self, values: &mut [f32; LANES]) {
        if self.valid < LANES {
            values[self.valid..].fill(0.0);
        }
    }

    #[inline(always)]
    fn store<const LANES: usize>(&self, image: &Target, values: &[f32; LANES]) {
        assert!(self.held <= LANES && self.from + self.held <= image.len, "a chunk beyond its image");
        // SAFETY: in bounds as asserted; the strip's grain is the only one that touches these elements.
        unsafe {
            let to = image.start.add(self.from);
            if self.held == LANES {
                to.copy_from_nonoverlapping(values.as_ptr(), LANES);
            } else {
                to.copy_from_nonoverlapping(values.as_ptr(), self.held);
            }
        }
    }
}

/// An image of which the grains write strips that lie between each other's.
struct Target {
    start: *mut f32,
    len: usize,
}

impl Target {
    /// What this grain has stored.
    #[inline(always)]
    fn load<const LANES: usize>(&self, chunk: Chunk) -> [f32; LANES] {
        assert!(chunk.held <= LANES && chunk.from + chunk.held <= self.len, "a chunk beyond its image");
        let mut values = [0.0f32; LANES];
        // SAFETY: in bounds as asserted; the strip's grain is the only one that touches these elements.
        unsafe {
            let from = self.start.add(chunk.from);
            if chunk.held == LANES {
                values.as_mut_ptr().copy_from_nonoverlapping(from, LANES);
            } else {
                values.as_mut_ptr().copy_from_nonoverlapping(from, chunk.held);
            }
        }
        values
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

    /// The scales of a chunk.
    #[inline(always)]
    fn scales<const LANES: usize>(&self, strip: &Strip, squares: &[f32], chunk: Chunk) -> [f32; LANES] {
        strip.sums::<LANES>(squares, chunk).map(|sum| self.base + self.share * sum)
    }
}

/// The squares of a strip.
#[inline(always)]
fn square<const LANES: usize>(strip: &Strip, x: &[f32], squares: &mut [f32]) {
    strip.each::<LANES>(|chunk| {
        let x: [f32; LANES] = chunk.load(x);
        squares[chunk.at..chunk.at + LANES].copy_from_slice(&x.map(|x| x * x));
    });
}

/// `s^(−3/4)`: roots and a division, which vectors have; a power they have not.
#[inline(always)]
fn three_quarters(s: f32) -> f32 {
    let root = s.sqrt();
    1.0 / (root * root.sqrt())
}

/// A strip of Y, where `power` takes s to s^(−β).
struct Forward<'a, const LANES: usize, P> {
    strip: Strip,
    norm: Norm,
    power: P,
    x: &'a [f32],
    y: Target,
    squares: &'a mut [f32],
}

impl<const LANES: usize, P: Fn(f32) -> f32> Vectorised for Forward<'_, LANES, P> {
    #[inline(always)]
    fn run(self) {
        let Self { strip, norm, power, x, y, squares } = self;
        square::<LANES>(&strip, x, squares);
        strip.each::<LANES>(|chunk| {
            let s: [f32; LANES] = norm.scales(&strip, squares, chunk);
            let mut values: [f32; LANES] = chunk.load(x);
            for lane in 0..LANES {
                values[lane] *= power(s[lane]);
            }
            chunk.mask(&mut values);
            chunk.store(&y, &values);
        });
    }
}

/// A strip of dX. `back` is what comes back to the neighbours of each value: `dy · x · s^(−β−1)`.
struct Backward<'a, const LANES: usize, P> {
    strip: Strip,
    norm: Norm,
    power: P,
    x: &'a [f32],
    dy: &'a [f32],
    dx: Target,
    squares: &'a mut [f32],
    back: &'a mut [f32],
}

impl<const LANES: usize, P: Fn(f32) -> f32> Vectorised for Backward<'_, LANES, P> {
    #[inline(always)]
    fn run(self) {
        let Self { strip, norm, power, x, dy, dx, squares, back } = self;
        square::<LANES>(&strip, x, squares);
        strip.each::<LANES>(|chunk| {
            let s: [f32; LANES] = norm.scales(&strip, squares, chunk);
            let (x, dy): ([f32; LANES], [f32; LANES]) = (chunk.load(x), chunk.load(dy));
            let (mut own, mut others) = ([0.0f32; LANES], [0.0f32; LANES]);
            for lane in 0..LANES {
                let power = power(s[lane]);
                own[lane] = dy[lane] * power;
                others[lane] = dy[lane] * x[lane] * power / s[lane];
            }
            chunk.mask(&mut own);
            chunk.mask(&mut others);
            chunk.store(&dx, &own);
            back[chunk.at..chunk.at + LANES].copy_from_slice(&others);
        });
        strip.each::<LANES>(|chunk| {
            let sums: [f32; LANES] = strip.sums(back, chunk);
            let (x, mut values): ([f32; LANES], [f32; LANES]) = (chunk.load(x), dx.load(chunk));
            for lane in 0..LANES {
                values[lane] -= norm.factor * x[lane] * sums[lane];
            }
            chunk.mask(&mut values);
            chunk.store(&dx, &values);
        });
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

    fn forward_strips<const LANES: usize>(&self, grain: &mut Grain<'_>) {
        let (isa, norm, beta, memory) = (self.isa, self.norm, self.beta, grain.memory);
        let squares = &mut std::mem::take(&mut grain.scratch)[..self.strips.len()];
        squares.fill(0.0);
        self.each(grain, |image, strip| {
            // SAFETY: only read in this task.
            let x = unsafe { memory.read(self.bottom.part(image.clone())) };
            let y = Target { start: memory.pointer(self.top.part(image.clone())), len: image.len() };
            let squares = &mut *squares;
            if beta == 0.75 {
                on(isa, Forward::<LANES, _> { strip, norm, power: three_quarters, x, y, squares });
            } else {
                on(isa, Forward::<LANES, _> { strip, norm, power: |s: f32| s.powf(-beta), x, y, squares });
            }
        });
    }

    fn backward_strips<const LANES: usize>(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let (isa, norm, beta, memory) = (self.isa, self.norm, self.beta, grain.memory);
        let scratch = &mut std::mem::take(&mut grain.scratch)[..2 * self.strips.len()];
        scratch.fill(0.0);
        let (squares, back) = scratch.split_at_mut(self.strips.len());
        self.each(grain, |image, strip| {
            // SAFETY: only read in this task.
            let (x, dy) = unsafe {
                (memory.read(self.bottom.part(image.clone())), memory.read(top_grad.part(image.clone())))
            };
            let dx = Target { start: memory.pointer(bottom_grad.part(image.clone())), len: image.len() };
            let (squares, back) = (&mut *squares, &mut *back);
            if beta == 0.75 {
                let power = three_quarters;
                on(isa, Backward::<LANES, _> { strip, norm, power, x, dy, dx, squares, back });
            } else {
                let power = |s: f32| s.powf(-beta);
                on(isa, Backward::<LANES, _> { strip, norm, power, x, dy, dx, squares, back });
            }
        });
    }
}

impl LayerKernel for Strips {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn scratch(&self) -> usize {
        2 * self.strips.len()
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
