//! Local response normalisation, a part of an image at a time.
//!
//! A part is copied to scratch, where zeros stand beyond its borders. All arithmetic is loops over the whole of scratch,
//! whatever the layout: the sums over windows add a few shifted arrays. Backward computes the scale again, which costs
//! less than to write it in forward and to read it here.

mod across;
mod within;

use std::ops::Range;

use quadrille_core::layer::{Layer, Lrn, NormRegion, Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::Isa;
use crate::kernel::vectorised::{Vectorised, on};
use crate::memory::Span;

/// How the images of an array are cut into parts that need nothing of each other.
trait Cut: Send + Sync {
    /// A part of an image.
    type Part: Part;
    /// Parts of all images.
    fn parts(&self) -> usize;
    /// A part, and the elements of the array among which its own lie.
    fn part(&self, index: usize) -> (Range<usize>, Self::Part);
    /// Elements of a part in scratch, zeros beyond its borders included.
    fn len(&self) -> usize;
}

/// A part of an image. All methods are `#[inline(always)]`: they are compiled for the tier with what calls them.
trait Part: Copy {
    /// Copies the part from its image to scratch.
    fn gather(self, image: &[f32], values: &mut [f32]);
    /// Asks for the memory to which the part is to be copied.
    fn ask_for(self, image: &Target);
    /// Copies the part to its image.
    fn scatter(self, values: &[f32], image: &Target);
    /// The sums over the windows of all values, each where its window's middle lies. `spare` is for what is between.
    fn sums(self, values: &[f32], spare: &mut [f32], sums: &mut [f32]);
    /// 0 in all that is beyond the borders: whatever values gave there, nothing of it may come in.
    fn clear_beyond(self, values: &mut [f32]);
}

/// The sums over windows along one axis, on which neighbours are `step` elements apart.
#[inline(always)]
fn add_up(values: &[f32], reach: usize, step: usize, sums: &mut [f32]) {
    let sums = &mut sums[reach * step..values.len() - reach * step];
    if reach == 2 {
        return add_up_five(values, step, sums);
    }
    sums.fill(0.0);
    for offset in 0..2 * reach + 1 {
        let neighbours = &values[offset * step..offset * step + sums.len()];
        for (sum, value) in sums.iter_mut().zip(neighbours) {
            *sum += value;
        }
    }
}

/// The sums over windows of five, everybody's, in one pass.
#[inline(always)]
fn add_up_five(values: &[f32], step: usize, sums: &mut [f32]) {
    let len = sums.len();
    let shifted = |offset: usize| &values[offset * step..offset * step + len];
    let (a, b, c, d, e) = (shifted(0), shifted(1), shifted(2), shifted(3), shifted(4));
    for i in 0..len {
        sums[i] = a[i] + b[i] + c[i] + d[i] + e[i];
    }
}

/// An image of which the grains write parts that lie between each other's.
struct Target {
    start: *mut f32,
    len: usize,
}

impl Target {
    /// Stores values, `LEN` at most, from element `from` on.
    #[inline(always)]
    fn store<const LEN: usize>(&self, from: usize, values: &[f32]) {
        assert!(from + values.len() <= self.len, "values beyond their image");
        if values.len() != LEN {
            return self.store_some(from, values);
        }
        // SAFETY: in bounds, as just asserted; the part's grain is the only one that touches these elements.
        unsafe { self.start.add(from).copy_from_nonoverlapping(values.as_ptr(), LEN) }
    }

    /// Apart from the rest, so that copies of a known length stay moves of registers.
    #[cold]
    #[inline(never)]
    fn store_some(&self, from: usize, values: &[f32]) {
        assert!(from + values.len() <= self.len, "values beyond their image");
        // SAFETY: as in `store`.
        unsafe { self.start.add(from).copy_from_nonoverlapping(values.as_ptr(), values.len()) }
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

    /// The scales of a part with values `x`; `squares` is to hold these.
    #[inline(always)]
    fn scales(&self, part: impl Part, x: &[f32], squares: &mut [f32], spare: &mut [f32], scales: &mut [f32]) {
        for (square, x) in squares.iter_mut().zip(x) {
            *square = x * x;
        }
        part.sums(squares, spare, scales);
        for scale in scales {
            *scale = self.base + self.share * *scale;
        }
    }
}

/// Takes s to s^(−β).
trait Power: Copy {
    fn of(self, s: f32) -> f32;

    /// s^(−β) and s^(−β−1).
    #[inline(always)]
    fn both(self, s: f32) -> [f32; 2] {
        let power = self.of(s);
        [power, power / s]
    }
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

    /// One division for both.
    #[inline(always)]
    fn both(self, s: f32) -> [f32; 2] {
        let inverse = 1.0 / s;
        let root = inverse.sqrt();
        let power = root * root.sqrt();
        [power, power * inverse]
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

/// Arrays of a part in scratch: values, gradients, what windows go over, their sums, and what is between.
const ARRAYS: usize = 5;

/// A part of Y.
struct Forward<'a, T, P> {
    part: T,
    norm: Norm,
    power: P,
    x: &'a [f32],
    y: Target,
    scratch: [&'a mut [f32]; ARRAYS],
}

impl<T: Part, P: Power> Vectorised for Forward<'_, T, P> {
    #[inline(always)]
    fn run(self) {
        let Self { part, norm, power, x, y, scratch: [values, _, squares, scales, spare] } = self;
        part.gather(x, values);
        part.ask_for(&y);
        norm.scales(part, values, squares, spare, scales);
        for (value, scale) in values.iter_mut().zip(scales) {
            *value *= power.of(*scale);
        }
        part.clear_beyond(values);
        part.scatter(values, &y);
    }
}

/// A part of dX.
struct Backward<'a, T, P> {
    part: T,
    norm: Norm,
    power: P,
    x: &'a [f32],
    dy: &'a [f32],
    dx: Target,
    scratch: [&'a mut [f32]; ARRAYS],
}

impl<T: Part, P: Power> Vectorised for Backward<'_, T, P> {
    #[inline(always)]
    fn run(self) {
        let Self { part, norm, power, x, dy, dx, scratch: [values, gradients, squares, scales, spare] } =
            self;
        part.gather(x, values);
        part.gather(dy, gradients);
        part.ask_for(&dx);
        norm.scales(part, values, squares, spare, scales);
        // What comes back to the neighbours of each value, dy · x · s^(−β−1), takes the place of the squares.
        let back = squares;
        let (mine, others) = (gradients.iter_mut(), back.iter_mut());
        for (((gradient, back), value), scale) in mine.zip(others).zip(&*values).zip(&*scales) {
            let [power, next] = power.both(*scale);
            *back = *gradient * value * next;
            *gradient *= power;
        }
        part.clear_beyond(back);
        part.sums(back, spare, scales);
        for ((gradient, value), sum) in gradients.iter_mut().zip(&*values).zip(&*scales) {
            *gradient -= norm.factor * value * sum;
        }
        part.clear_beyond(gradients);
        part.scatter(gradients, &dx);
    }
}

struct Parts<C> {
    isa: Isa,
    norm: Norm,
    beta: f32,
    cut: C,
    bottom: Span,
    top: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Lrn(lrn) = &binder.layer().layer else { return None };
    let x = binder.arrangement(Operand::Bottom(0))?;
    let shape = &binder.net.bottom_shapes(binder.id)[0];
    let elements = binder.machine.normalised_elements;
    match (lrn.region, x.layout.block) {
        (NormRegion::WithinChannel, _) => {
            bind(binder, lrn, within::Planes::new(lrn, x, [shape.dim(2), shape.dim(3)]))
        }
        (NormRegion::AcrossChannels, 8) => bind(binder, lrn, across::Strips::<8>::new(lrn, x, elements)),
        (NormRegion::AcrossChannels, _) => bind(binder, lrn, across::Strips::<16>::new(lrn, x, elements)),
    }
}

fn bind<C: Cut + 'static>(binder: &mut Binder<'_>, lrn: &Lrn, cut: C) -> Option<Box<dyn LayerKernel>> {
    let bottom = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Parts {
        isa: binder.isa,
        norm: Norm::new(lrn),
        beta: lrn.beta,
        bottom,
        top: binder.span(Operand::Top(0))?,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(bottom.len()).min(cut.parts()),
        cut,
    }))
}

impl<C: Cut> Parts<C> {
    /// The arrays of a part in scratch, with zeros beyond the borders.
    fn arrays<'a>(&self, scratch: &'a mut [f32]) -> [&'a mut [f32]; ARRAYS] {
        let scratch = &mut scratch[..self.scratch()];
        scratch.fill(0.0);
        let mut arrays = scratch.chunks_exact_mut(self.cut.len());
        std::array::from_fn(|_| arrays.next().unwrap_or_default())
    }
}

impl<C: Cut> LayerKernel for Parts<C> {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn scratch(&self) -> usize {
        ARRAYS * self.cut.len()
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let (isa, norm, beta, memory) = (self.isa, self.norm, self.beta, grain.memory);
        let mut arrays = self.arrays(std::mem::take(&mut grain.scratch));
        for index in grain.share(self.cut.parts()) {
            let (image, part) = self.cut.part(index);
            // SAFETY: only read in this task.
            let x = unsafe { memory.read(self.bottom.part(image.clone())) };
            let y = Target { start: memory.pointer(self.top.part(image.clone())), len: image.len() };
            let scratch = arrays.each_mut().map(|array| &mut **array);
            if beta == 0.75 {
                on(isa, Forward { part, norm, power: ThreeQuarters, x, y, scratch });
            } else {
                on(isa, Forward { part, norm, power: AnyPower { beta }, x, y, scratch });
            }
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let (isa, norm, beta, memory) = (self.isa, self.norm, self.beta, grain.memory);
        let mut arrays = self.arrays(std::mem::take(&mut grain.scratch));
        for index in grain.share(self.cut.parts()) {
            let (image, part) = self.cut.part(index);
            // SAFETY: only read in this task.
            let (x, dy) = unsafe {
                (memory.read(self.bottom.part(image.clone())), memory.read(top_grad.part(image.clone())))
            };
            let dx = Target { start: memory.pointer(bottom_grad.part(image.clone())), len: image.len() };
            let scratch = arrays.each_mut().map(|array| &mut **array);
            if beta == 0.75 {
                on(isa, Backward { part, norm, power: ThreeQuarters, x, dy, dx, scratch });
            } else {
                on(isa, Backward { part, norm, power: AnyPower { beta }, x, dy, dx, scratch });
            }
        }
    }
}
