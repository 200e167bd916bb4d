//! Local response normalisation, a part of an image at a time.
//!
//! A part is copied to scratch, in f32, where zeros stand beyond its borders. All arithmetic is loops over the whole of scratch,
//! whatever the layout: the sums over windows add a few shifted arrays. Backward computes the scale again, which costs
//! less than to write it in forward and to read it here. Of blocks of channels, what every network asks for stays in registers
//! ([`blocks`]), with the same bits.

mod across;
mod blocks;
mod within;

use std::marker::PhantomData;
use std::ops::Range;
use std::slice::from_raw_parts_mut;

use quadrille_core::layer::{Layer, Lrn, NormRegion, Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::{Isa, Precision};
use crate::kernel::element::{Element, Half};
use crate::kernel::vectorised::Vectorised;
use crate::memory::{Memory, Span};

/// How the images of an array are cut into parts that need nothing of each other.
trait Cut: Send + Sync {
    /// A part of an image.
    type Part: Part;
    /// Parts of all images.
    fn parts(&self) -> usize;
    /// A part, and the words of the array among which its own lie.
    fn part(&self, index: usize) -> (Range<usize>, Self::Part);
    /// Elements of a part in scratch, zeros beyond its borders included.
    fn len(&self) -> usize;
}

/// A part of an image. All methods are `#[inline(always)]`: they are compiled for the tier with what calls them.
trait Part: Copy {
    /// Copies the part from its image to scratch.
    fn gather<E: Element>(self, image: &[E], values: &mut [f32]);
    /// Asks for the memory to which the part is to be copied.
    fn ask_for<E: Element>(self, image: &Target<E>);
    /// Copies the part to its image.
    fn scatter<E: Element>(self, values: &[f32], image: &Target<E>);
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
struct Target<E> {
    start: *mut E,
    len: usize,
}

impl<E: Element> Target<E> {
    /// Of the words of an image.
    fn new(memory: &Memory, image: Span) -> Self {
        Self { start: memory.pointer(image).cast(), len: image.len() * E::PRECISION.in_word() }
    }

    /// Stores values, `LEN` at most, from element `from` on.
    #[inline(always)]
    fn store<const LEN: usize>(&self, from: usize, values: &[f32]) {
        match <&[f32; LEN]>::try_from(values) {
            Ok(values) => self.store_row(from, values),
            Err(_) => self.store_some(from, values),
        }
    }

    /// Stores values from element `from` on.
    #[inline(always)]
    fn store_row(&self, from: usize, values: &[f32]) {
        assert!(from + values.len() <= self.len, "values beyond their image");
        // SAFETY: in bounds, as just asserted; the part's grain is the only one that touches these elements.
        E::round(values, unsafe { from_raw_parts_mut(self.start.add(from), values.len()) });
    }

    /// Apart from the rest, so that copies of a known length stay moves of registers.
    #[cold]
    #[inline(never)]
    fn store_some(&self, from: usize, values: &[f32]) {
        self.store_row(from, values);
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
struct Forward<'a, E, T, P> {
    part: T,
    norm: Norm,
    power: P,
    x: &'a [E],
    y: Target<E>,
    scratch: [&'a mut [f32]; ARRAYS],
}

impl<E: Element, T: Part, P: Power> Vectorised for Forward<'_, E, T, P> {
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
struct Backward<'a, E, T, P> {
    part: T,
    /// Whether the backward of a ReLU goes over it, whose values are X.
    rectifies: bool,
    norm: Norm,
    power: P,
    x: &'a [E],
    dy: &'a [E],
    dx: Target<E>,
    scratch: [&'a mut [f32]; ARRAYS],
}

impl<E: Element, T: Part, P: Power> Vectorised for Backward<'_, E, T, P> {
    #[inline(always)]
    fn run(self) {
        let Self { part, rectifies, norm, power, x, dy, dx, scratch } = self;
        let [values, gradients, squares, scales, spare] = scratch;
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
        if rectifies {
            for (gradient, value) in gradients.iter_mut().zip(&*values) {
                *gradient = if *value > 0.0 { *gradient } else { 0.0 };
            }
        }
        part.clear_beyond(gradients);
        part.scatter(gradients, &dx);
    }
}

struct Parts<E, C> {
    isa: Isa,
    rectifies: bool,
    norm: Norm,
    beta: f32,
    cut: C,
    bottom: Span,
    top: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
    elements: PhantomData<E>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Lrn(lrn) = &binder.layer().layer else { return None };
    let x = binder.arrangement(Operand::Bottom(0))?;
    let shape = &binder.net.bottom_shapes(binder.id)[0];
    let elements = binder.machine.normalised_elements;
    if let Some(kernel) = blocks::build(binder, lrn, x) {
        return Some(kernel);
    }
    match (lrn.region, x.layout.block) {
        (NormRegion::WithinChannel, _) => {
            bind(binder, lrn, x.layout.precision, within::Planes::new(lrn, x, [shape.dim(2), shape.dim(3)]))
        }
        (NormRegion::AcrossChannels, 8) => {
            bind(binder, lrn, x.layout.precision, across::Strips::<8>::new(lrn, x, elements))
        }
        (NormRegion::AcrossChannels, _) => {
            bind(binder, lrn, x.layout.precision, across::Strips::<16>::new(lrn, x, elements))
        }
    }
}

fn bind<C: Cut + 'static>(
    binder: &mut Binder<'_>,
    lrn: &Lrn,
    precision: Precision,
    cut: C,
) -> Option<Box<dyn LayerKernel>> {
    match precision {
        Precision::F32 => bind_to::<f32, C>(binder, lrn, cut),
        Precision::Bf16 => bind_to::<Half, C>(binder, lrn, cut),
    }
}

fn bind_to<E: Element, C: Cut + 'static>(
    binder: &mut Binder<'_>,
    lrn: &Lrn,
    cut: C,
) -> Option<Box<dyn LayerKernel>> {
    let bottom = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Parts::<E, C> {
        isa: binder.isa,
        rectifies: binder.layer().rectifies_gradient,
        norm: Norm::new(lrn),
        beta: lrn.beta,
        bottom,
        top: binder.span(Operand::Top(0))?,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(bottom.len()).min(cut.parts()),
        elements: PhantomData,
        cut,
    }))
}

impl<E: Element, C: Cut> Parts<E, C> {
    /// The arrays of a part in scratch, with zeros beyond the borders.
    fn arrays<'a>(&self, scratch: &'a mut [f32]) -> [&'a mut [f32]; ARRAYS] {
        let scratch = &mut scratch[..self.scratch()];
        scratch.fill(0.0);
        let mut arrays = scratch.chunks_exact_mut(self.cut.len());
        std::array::from_fn(|_| arrays.next().unwrap_or_default())
    }
}

impl<E: Element, C: Cut> LayerKernel for Parts<E, C> {
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
            let x: &[E] = unsafe { grain.read(self.bottom.part(image.clone())) };
            let y = Target::new(memory, self.top.part(image));
            let scratch = arrays.each_mut().map(|array| &mut **array);
            if beta == 0.75 {
                E::on(isa, Forward { part, norm, power: ThreeQuarters, x, y, scratch });
            } else {
                E::on(isa, Forward { part, norm, power: AnyPower { beta }, x, y, scratch });
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
            let (x, dy): (&[E], &[E]) = unsafe {
                (grain.read(self.bottom.part(image.clone())), grain.read(top_grad.part(image.clone())))
            };
            let dx = Target::new(memory, bottom_grad.part(image));
            let scratch = arrays.each_mut().map(|array| &mut **array);
            let rectifies = self.rectifies;
            if beta == 0.75 {
                E::on(isa, Backward { part, rectifies, norm, power: ThreeQuarters, x, dy, dx, scratch });
            } else {
                E::on(isa, Backward { part, rectifies, norm, power: AnyPower { beta }, x, dy, dx, scratch });
            }
        }
    }
}
