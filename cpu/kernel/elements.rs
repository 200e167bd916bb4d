//! Element by element: arrays of equal length, one pass each.
//!
//! A function is inlined into the loop, so it must be small and made of what vectors can do. The loops are `for` loops:
//! `for_each` is a call that is not always inlined, and then it is not compiled for the tier.

use super::vectorised::Vectorised;

/// Elements that stay in the first-level cache between the steps of a longer operation.
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
pub(crate) struct Map<'a, F> {
    pub x: &'a [f32],
    pub y: &'a mut [f32],
    pub f: F,
}

impl<F: Fn(f32) -> f32> Vectorised for Map<'_, F> {
    #[inline(always)]
    fn run(self) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = (self.f)(*x);
        }
    }
}

/// `y ← f(y)`.
pub(crate) struct Change<'a, F> {
    pub y: &'a mut [f32],
    pub f: F,
}

impl<F: Fn(f32) -> f32> Vectorised for Change<'_, F> {
    #[inline(always)]
    fn run(self) {
        for y in self.y {
            *y = (self.f)(*y);
        }
    }
}

/// `y ← f(a, b)`.
pub(crate) struct Zip<'a, F> {
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub y: &'a mut [f32],
    pub f: F,
}

impl<F: Fn(f32, f32) -> f32> Vectorised for Zip<'_, F> {
    #[inline(always)]
    fn run(self) {
        for (y, (a, b)) in self.y.iter_mut().zip(self.a.iter().zip(self.b)) {
            *y = (self.f)(*a, *b);
        }
    }
}

/// `y ← f(y, x)`.
pub(crate) struct Fold<'a, F> {
    pub x: &'a [f32],
    pub y: &'a mut [f32],
    pub f: F,
}

impl<F: Fn(f32, f32) -> f32> Vectorised for Fold<'_, F> {
    #[inline(always)]
    fn run(self) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = (self.f)(*y, *x);
        }
    }
}
