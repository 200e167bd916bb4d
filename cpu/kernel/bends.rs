//! Passes over a plane of an array whose channels have slopes of their own below 0. Rows and places are those of
//! [`super::channels`].

use super::channels::{ROW, Row};
use super::element::Element;
use super::elements::{passes, rectified};
use super::vectorised::Vectorised;

/// `y ← max(x, 0) + slope · min(x, 0)`.
pub(crate) struct Bend<'a, E> {
    pub slope: &'a Row,
    pub x: &'a [E],
    pub y: &'a mut [E],
}

impl<E: Element> Vectorised for Bend<'_, E> {
    #[inline(always)]
    fn run(self) {
        for (y, x) in self.y.chunks_mut(ROW).zip(self.x.chunks(ROW)) {
            let places = y.len().min(x.len()).min(ROW);
            let x = &x[..places];
            E::write(&mut y[..places], |place, _| rectified(x[place].wide(), self.slope[place]));
        }
    }
}

/// `dx ← dy`, times the slope where x is not above 0.
pub(crate) struct BendBack<'a, E> {
    pub slope: &'a Row,
    pub dy: &'a [E],
    pub x: &'a [E],
    pub dx: &'a mut [E],
}

impl<E: Element> Vectorised for BendBack<'_, E> {
    #[inline(always)]
    fn run(self) {
        let both = self.dy.chunks(ROW).zip(self.x.chunks(ROW));
        for (dx, (dy, x)) in self.dx.chunks_mut(ROW).zip(both) {
            let places = dx.len().min(dy.len()).min(x.len()).min(ROW);
            let (dy, x) = (&dy[..places], &x[..places]);
            E::write(&mut dx[..places], |place, _| {
                dy[place].wide() * passes(x[place].wide(), self.slope[place])
            });
        }
    }
}

/// Adds Σ dy · min(x, 0) of a plane to sums.
pub(crate) struct SumBelow<'a, E> {
    pub dy: &'a [E],
    pub x: &'a [E],
    pub sums: &'a mut Row,
}

impl<E: Element> Vectorised for SumBelow<'_, E> {
    #[inline(always)]
    fn run(self) {
        // The sums of a plane are apart from those so far, so that they are short.
        let mut sums = [0.0; ROW];
        for (dy, x) in self.dy.chunks(ROW).zip(self.x.chunks(ROW)) {
            let places = dy.len().min(x.len()).min(ROW);
            for place in 0..places {
                let x = x[place].wide();
                sums[place] += dy[place].wide() * if x > 0.0 { 0.0 } else { x };
            }
        }
        for (to, sum) in self.sums.iter_mut().zip(&sums) {
            *to += sum;
        }
    }
}
