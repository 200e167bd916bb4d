//! Windows of five channels over blocks of channels, with β = 3/4: all between what is read and what is written stays in
//! registers.
//!
//! A pixel goes through its blocks, of which a register holds one. The window of an element reaches into the blocks before and behind,
//! so forward is a block ahead with the squares, and backward two, since what comes back to the neighbours has a scale of its
//! own. Blocks of a pixel lie a plane apart: as many streams as there are blocks, of which the next pixels are asked for.

use quadrille_core::layer::{Lrn, NormRegion, Operand, SubTask};

use super::Norm;
use crate::isa::{Isa, Precision, Vectors};
use crate::kernel::simd::Simd;
use crate::kernel::stored::{OnStored, Origin, Stored, with_stored};
use crate::layer::{Binder, Grain, LayerKernel, Stages};
use crate::layout::Arrangement;
use crate::memory::Span;

/// Words between what is worked on and what is asked for: some hundred nanoseconds of work.
const AHEAD: usize = 128;

struct Blocks {
    isa: Isa,
    rectifies: bool,
    precision: Precision,
    norm: Norm,
    x: Arrangement,
    bottom: Span,
    top: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
}

/// `None` if another way is needed.
pub(super) fn build(binder: &mut Binder<'_>, lrn: &Lrn, x: Arrangement) -> Option<Box<dyn LayerKernel>> {
    let lanes = match binder.isa.vectors() {
        Vectors::None => return None,
        Vectors::Avx2 => 8,
        Vectors::Avx512f => 16,
    };
    let usual = lrn.region == NormRegion::AcrossChannels && lrn.local_size == 5 && lrn.beta == 0.75;
    if !usual || x.layout.block != lanes {
        return None;
    }
    let bottom = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Blocks {
        isa: binder.isa,
        rectifies: binder.layer().rectifies_gradient,
        precision: x.layout.precision,
        norm: Norm::new(lrn),
        x,
        bottom,
        top: binder.span(Operand::Top(0))?,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(bottom.len()).min(x.images * x.pixels),
    }))
}

/// Pixels of an image.
#[derive(Clone, Copy)]
struct Pixels {
    norm: Norm,
    /// The first one's place in an image, and how many.
    first: usize,
    count: usize,
    /// Words of a plane, blocks, and channels of the last block.
    plane: usize,
    blocks: usize,
    rest: usize,
}

impl Pixels {
    /// `base + share · Σ x²`, by the squares of three blocks.
    ///
    /// # Safety
    /// The CPU has the instructions.
    #[inline(always)]
    unsafe fn scale<S: Simd>(&self, squares: [S::Vector; 3]) -> S::Vector {
        let [before, here, behind] = squares;
        // SAFETY: by contract.
        unsafe {
            let sum = S::five(before, here, behind);
            S::add(S::splat(self.norm.base), S::multiply(S::splat(self.norm.share), sum))
        }
    }

    /// 0 beyond the last channel, whatever values gave there.
    ///
    /// # Safety
    /// As for [`Self::scale`].
    #[inline(always)]
    unsafe fn cleared<S: Simd>(&self, block: usize, value: S::Vector) -> S::Vector {
        if block + 1 < self.blocks || self.rest == S::LANES {
            return value;
        }
        let inside: [f32; 16] = std::array::from_fn(|lane| if lane < self.rest { 1.0 } else { 0.0 });
        // SAFETY: by contract; no vector is wider.
        unsafe { S::where_equal(S::load(inside.as_ptr()), S::splat(1.0), value) }
    }
}

struct Forward {
    /// Read and written where these are.
    pixels: Pixels,
    x: Origin,
    y: Origin,
}

impl OnStored for Forward {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        let (Self { pixels, .. }, [x, y]) = (&self, [self.x, self.y].map(Origin::first));
        for pixel in pixels.first..pixels.first + pixels.count {
            // SAFETY: by the contracts of the trait and of the arrays, which have all blocks of the pixel.
            unsafe {
                let (x, y) = (x.add(pixel * E::LEN), y.add(pixel * E::LEN));
                let (mut value, mut before) = (E::load(x), S::zero());
                let mut square = S::multiply(value, value);
                for block in 0..pixels.blocks {
                    let (x, y) = (x.add(block * pixels.plane), y.add(block * pixels.plane));
                    S::prefetch_far(x.wrapping_add(AHEAD));
                    S::prefetch_far(y.wrapping_add(AHEAD));
                    let next =
                        if block + 1 < pixels.blocks { E::load(x.add(pixels.plane)) } else { S::zero() };
                    let behind = S::multiply(next, next);
                    let root = S::root(pixels.scale::<S>([before, square, behind]));
                    let power = S::divide(S::splat(1.0), S::multiply(root, S::root(root)));
                    E::store(y, pixels.cleared::<S>(block, S::multiply(value, power)));
                    (before, square, value) = (square, behind, next);
                }
            }
        }
    }
}

struct Backward {
    /// Read and written where these are.
    pixels: Pixels,
    /// Whether the backward of a ReLU goes over it, whose values are X.
    rectifies: bool,
    x: Origin,
    dy: Origin,
    dx: Origin,
}

/// A block on its way through backward.
struct Passing<S: Simd> {
    x: S::Vector,
    /// dy · s^(−β), what comes back to the value itself.
    own: S::Vector,
    /// dy · x · s^(−β−1), what comes back to its neighbours.
    back: S::Vector,
}

impl OnStored for Backward {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        let (Self { pixels, .. }, [x, dy, dx]) = (&self, [self.x, self.dy, self.dx].map(Origin::first));
        for pixel in pixels.first..pixels.first + pixels.count {
            // SAFETY: by the contracts of the trait and of the arrays, which have all blocks of the pixel.
            unsafe {
                let (x, dy) = (x.add(pixel * E::LEN), dy.add(pixel * E::LEN));
                let dx = dx.add(pixel * E::LEN);
                let mut value = E::load(x);
                let mut squares = [S::zero(), S::multiply(value, value)];
                let mut before = S::zero();
                let mut here: Option<Passing<S>> = None;
                for block in 0..=pixels.blocks {
                    let passing = (block < pixels.blocks).then(|| {
                        let (x, dy) = (x.add(block * pixels.plane), dy.add(block * pixels.plane));
                        S::prefetch_far(x.wrapping_add(AHEAD));
                        S::prefetch_far(dy.wrapping_add(AHEAD));
                        let next =
                            if block + 1 < pixels.blocks { E::load(x.add(pixels.plane)) } else { S::zero() };
                        let behind = S::multiply(next, next);
                        let scale = pixels.scale::<S>([squares[0], squares[1], behind]);
                        let inverse = S::divide(S::splat(1.0), scale);
                        let root = S::root(inverse);
                        let power = S::multiply(root, S::root(root));
                        let dy = E::load(dy);
                        let back = S::multiply(S::multiply(dy, value), S::multiply(power, inverse));
                        let passing = Passing {
                            x: value,
                            own: S::multiply(dy, power),
                            back: pixels.cleared::<S>(block, back),
                        };
                        squares = [squares[1], behind];
                        value = next;
                        passing
                    });
                    if let Some(Passing { x, own, back }) = &here {
                        let behind = passing.as_ref().map_or(S::zero(), |next| next.back);
                        let sum = S::five(before, *back, behind);
                        let factor = S::multiply(S::splat(pixels.norm.factor), *x);
                        let gradient = S::subtract(*own, S::multiply(factor, sum));
                        let gradient = if self.rectifies { S::passed(gradient, *x) } else { gradient };
                        let to = dx.add((block - 1) * pixels.plane);
                        S::prefetch_far(to.wrapping_add(AHEAD));
                        E::store(to, pixels.cleared::<S>(block - 1, gradient));
                        before = *back;
                    }
                    here = passing;
                }
            }
        }
    }
}

impl Blocks {
    /// The images that a grain has pixels of, each with the words of an image and these pixels.
    fn parts(&self, grain: &Grain<'_>) -> impl Iterator<Item = (std::ops::Range<usize>, Pixels)> + use<'_> {
        let all = grain.share(self.x.images * self.x.pixels);
        let (pixels, len) = (self.x.pixels, self.x.image_len());
        let block = self.x.layout.block;
        let blocks = self.x.channels.div_ceil(block);
        let rest = self.x.channels - (blocks - 1) * block;
        let images = all.start / pixels..all.end.div_ceil(pixels);
        images.map(move |image| {
            let first = all.start.max(image * pixels) - image * pixels;
            let end = all.end.min((image + 1) * pixels) - image * pixels;
            let (norm, count, plane) = (self.norm, end - first, self.x.plane_len());
            (image * len..(image + 1) * len, Pixels { norm, first, count, plane, blocks, rest })
        })
    }
}

impl LayerKernel for Blocks {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        for (image, pixels) in self.parts(grain) {
            // SAFETY: the pixels are the grain's own, and lie in the image; the bottom is only read in this task.
            let at = |span: Span| unsafe { Origin::new(grain.memory.pointer(span.part(image.clone()))) };
            let (x, y) = (at(self.bottom), at(self.top));
            with_stored(self.isa, self.precision, Forward { pixels, x, y });
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        for (image, pixels) in self.parts(grain) {
            // SAFETY: as above; nor is the top's gradient written.
            let at = |span: Span| unsafe { Origin::new(grain.memory.pointer(span.part(image.clone()))) };
            let (x, dy) = (at(self.bottom), at(top_grad));
            let (dx, rectifies) = (at(bottom_grad), self.rectifies);
            with_stored(self.isa, self.precision, Backward { pixels, rectifies, x, dy, dx });
        }
    }
}
