//! Element by element: arrays of equal length, one pass each, of numbers in f32 or in bf16.
//!
//! A function is inlined into the loop, so it must be small and made of what vectors can do. The loops are `for` loops:
//! `for_each` is a call that is not always inlined, and then it is not compiled for the tier.

use super::element::Element;
use super::vectorised::Vectorised;

/// Words of an array that stay in the first-level cache between the steps of a longer operation.
pub(crate) const RUN: usize = 2048;

/// A ReLU: not by `f32::max` and `f32::min`, which would hide a NaN.
#[inline(always)]
pub(crate) fn rectified(x: f32, slope: f32) -> f32 {
    let (above, below) = (if x < 0.0 { 0.0 } else { x }, if x > 0.0 { 0.0 } else { x });
    above + slope * below
}

/// The factor of a gradient behind a ReLU, by the sign of its top.
#[inline(always)]
pub(crate) fn passes(sign: f32, slope: f32) -> f32 {
    if sign > 0.0 { 1.0 } else { slope }
}

/// `y ← f(x)`.
pub(crate) struct Map<'a, X, Y, F> {
    pub x: &'a [X],
    pub y: &'a mut [Y],
    pub f: F,
}

impl<X: Element, Y: Element, F: Fn(f32) -> f32> Vectorised for Map<'_, X, Y, F> {
    #[inline(always)]
    fn run(self) {
        for (y, x) in self.y.chunks_mut(Y::RUN).zip(self.x.chunks(Y::RUN)) {
            let count = y.len().min(x.len());
            let x = &x[..count];
            Y::write(&mut y[..count], |i, _| (self.f)(x[i].wide()));
        }
    }
}

/// `y ← f(y)`.
pub(crate) struct Change<'a, Y, F> {
    pub y: &'a mut [Y],
    pub f: F,
}

impl<Y: Element, F: Fn(f32) -> f32> Vectorised for Change<'_, Y, F> {
    #[inline(always)]
    fn run(self) {
        for y in self.y.chunks_mut(Y::RUN) {
            Y::write(y, |_, y| (self.f)(y));
        }
    }
}

/// `y ← f(a, b)`.
pub(crate) struct Zip<'a, A, B, Y, F> {
    pub a: &'a [A],
    pub b: &'a [B],
    pub y: &'a mut [Y],
    pub f: F,
}

impl<A: Element, B: Element, Y: Element, F: Fn(f32, f32) -> f32> Vectorised for Zip<'_, A, B, Y, F> {
    #[inline(always)]
    fn run(self) {
        let both = self.a.chunks(Y::RUN).zip(self.b.chunks(Y::RUN));
        for (y, (a, b)) in self.y.chunks_mut(Y::RUN).zip(both) {
            let count = y.len().min(a.len()).min(b.len());
            let (a, b) = (&a[..count], &b[..count]);
            Y::write(&mut y[..count], |i, _| (self.f)(a[i].wide(), b[i].wide()));
        }
    }
}

/// `y ← f(y, x)`.
pub(crate) struct Fold<'a, X, Y, F> {
    pub x: &'a [X],
    pub y: &'a mut [Y],
    pub f: F,
}

impl<X: Element, Y: Element, F: Fn(f32, f32) -> f32> Vectorised for Fold<'_, X, Y, F> {
    #[inline(always)]
    fn run(self) {
        for (y, x) in self.y.chunks_mut(Y::RUN).zip(self.x.chunks(Y::RUN)) {
            let count = y.len().min(x.len());
            let x = &x[..count];
            Y::write(&mut y[..count], |i, y| (self.f)(y, x[i].wide()));
        }
    }
}
