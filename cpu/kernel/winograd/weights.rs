//! The transforms of weights, and of their gradients back.

use super::Filter;
use super::axis::{Axis, F2x3, F4x3, F4x5};
use super::table::{Line, Table};
use crate::kernel::simd::Simd;
use crate::kernel::stored::Origin;
use crate::kernel::summed::Summed;
use crate::kernel::vectorised::Explicit;
use crate::kernel::words::{Narrow, Narrowing};

/// Transforms weights: vectors of a kernel's taps each.
pub(crate) struct Weights<'a> {
    /// How kernels are filtered.
    pub filter: Filter,
    /// The taps of the first: tap by tap, `tap` apart.
    pub taps: &'a [f32],
    /// Distance of taps.
    pub tap: usize,
    /// Where the values go: point by point, `point` apart.
    pub to: Origin,
    /// Distance of points.
    pub point: usize,
    /// Elements, whole vectors, that lie side by side in both.
    pub count: usize,
}

impl Weights<'_> {
    /// # Safety
    /// As for [`Explicit::run`]; the slices are as long as `count` asks for.
    #[inline(always)]
    unsafe fn along<S, A, const D: usize, const Y: usize, const G: usize, const N: usize>(self)
    where
        S: Simd,
        A: Axis<D, Y, G, N>,
    {
        let Self { taps, tap, to, point, count, .. } = self;
        for at in (0..count).step_by(S::LANES) {
            // SAFETY: by contract.
            unsafe {
                let rows = rows::<S, A, D, Y, G, N>(taps.as_ptr().add(at), tap);
                for c in 0..N {
                    let values = A::weights::<S>(rows.column(c));
                    for (r, value) in values.into_iter().enumerate() {
                        S::store(to.first().add((r * N + c) * point + at), value);
                    }
                }
            }
        }
    }
}

impl Explicit for Weights<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { filter, count, .. } = self;
        assert!(count.is_multiple_of(S::LANES), "{count} elements are no whole vectors");
        assert!(self.taps.len() >= (filter.taps() - 1) * self.tap + count, "taps are too short");
        // SAFETY: the CPU has the instruction set by contract; all taps lie inside the slice, as asserted, and there is room
        // for the points by that of `Origin`.
        unsafe {
            match filter {
                Filter::F2x3 => self.along::<S, F2x3, 4, 2, 3, 4>(),
                Filter::F4x3 => self.along::<S, F4x3, 6, 4, 3, 7>(),
                Filter::F4x5 => self.along::<S, F4x5, 8, 4, 5, 11>(),
            }
        }
    }
}

/// The rows of a kernel, transformed, of which a vector of taps begins at `taps`, and the next `tap` further on.
///
/// # Safety
/// The CPU has the instructions of `S`; all taps lie there.
#[inline(always)]
unsafe fn rows<S, A, const D: usize, const Y: usize, const G: usize, const N: usize>(
    taps: *const f32,
    tap: usize,
) -> Table<S::Vector, G, N>
where
    S: Simd,
    A: Axis<D, Y, G, N>,
{
    let mut rows = Table::<_, G, N>::new();
    for r in 0..G {
        // SAFETY: by contract.
        unsafe {
            let mut values = Line::<_, G>::new();
            for c in 0..G {
                values.write(c, S::load(taps.add((r * G + c) * tap)));
            }
            rows.write(r, A::weights::<S>(values.all()));
        }
    }
    rows
}

/// Transforms weights, and rounds them to words of two neighbouring sources.
pub(crate) struct WeightWords<'a> {
    /// How kernels are filtered.
    pub filter: Filter,
    /// Tap by tap, `tap` apart; source by source, a vector of targets each.
    pub taps: &'a [f32],
    /// Distance of taps.
    pub tap: usize,
    /// How many sources. What a last one lacks in a second is 0.
    pub sources: usize,
    /// Where the words go: point by point, `point` apart; pair by pair of sources, `pair` apart.
    pub to: Origin,
    /// Distance of points.
    pub point: usize,
    /// Distance of pairs.
    pub pair: usize,
}

impl WeightWords<'_> {
    /// # Safety
    /// As for [`Narrowing::run`]; the slices are as long as `sources` asks for.
    #[inline(always)]
    unsafe fn along<W, A, const D: usize, const Y: usize, const G: usize, const N: usize>(self)
    where
        W: Narrow,
        A: Axis<D, Y, G, N>,
    {
        let Self { taps, tap, sources, to, point, pair, .. } = self;
        let lanes = <W::Registers as Simd>::LANES;
        for i in 0..sources.div_ceil(2) {
            // SAFETY: by contract.
            unsafe {
                let rows = |source: usize| {
                    rows::<W::Registers, A, D, Y, G, N>(taps.as_ptr().add(source * lanes), tap)
                };
                let first = rows(2 * i);
                let second = if 2 * i + 1 < sources { Some(rows(2 * i + 1)) } else { None };
                for c in 0..N {
                    let values = A::weights::<W::Registers>(first.column(c));
                    let others = match &second {
                        Some(second) => A::weights::<W::Registers>(second.column(c)),
                        None => [W::Registers::zero(); N],
                    };
                    for (r, (value, other)) in values.into_iter().zip(others).enumerate() {
                        W::words(value, other, to.first().add((r * N + c) * point + i * pair));
                    }
                }
            }
        }
    }
}

impl Narrowing for WeightWords<'_> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(self) {
        let Self { filter, sources, .. } = self;
        let lanes = <N::Registers as Simd>::LANES;
        assert!(self.taps.len() >= (filter.taps() - 1) * self.tap + sources * lanes, "taps are too short");
        // SAFETY: as for `Weights`.
        unsafe {
            match filter {
                Filter::F2x3 => self.along::<N, F2x3, 4, 2, 3, 4>(),
                Filter::F4x3 => self.along::<N, F4x3, 6, 4, 3, 7>(),
                Filter::F4x5 => self.along::<N, F4x5, 8, 4, 5, 11>(),
            }
        }
    }
}

/// Transforms the sums of products to gradients of weights, `Gᵀ U G`: vectors of points each to a kernel's taps.
pub(crate) struct WeightsBack<'a> {
    /// How kernels are filtered.
    pub filter: Filter,
    /// The points of the first: point by point, `point` apart.
    pub points: Summed<'a>,
    /// Distance of points.
    pub point: usize,
    /// Elements between the points that are read and those that are asked for.
    pub ahead: usize,
    /// Where the taps go: tap by tap, `tap` apart.
    pub taps: &'a mut [f32],
    /// Distance of taps.
    pub tap: usize,
    /// Elements, whole vectors, that lie side by side in both.
    pub count: usize,
}

impl WeightsBack<'_> {
    /// # Safety
    /// As for [`Explicit::run`]; the slices are as long as `count` asks for.
    #[inline(always)]
    unsafe fn along<S, A, const D: usize, const Y: usize, const G: usize, const N: usize>(self)
    where
        S: Simd,
        A: Axis<D, Y, G, N>,
    {
        let Self { points, point, ahead, taps, tap, count, .. } = self;
        for at in (0..count).step_by(S::LANES) {
            // SAFETY: by contract.
            unsafe {
                let mut rows = Table::<_, N, G>::new();
                for r in 0..N {
                    let mut values = Line::<_, N>::new();
                    for c in 0..N {
                        values.write(c, points.load::<S>((r * N + c) * point + at, ahead));
                    }
                    rows.write(r, A::weights_back::<S>(values.all()));
                }
                for c in 0..G {
                    let values = A::weights_back::<S>(rows.column(c));
                    for (r, value) in values.into_iter().enumerate() {
                        S::store(taps.as_mut_ptr().add((r * G + c) * tap + at), value);
                    }
                }
            }
        }
    }
}

impl Explicit for WeightsBack<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { filter, count, .. } = self;
        assert!(count.is_multiple_of(S::LANES), "{count} elements are no whole vectors");
        assert!(self.points.len() >= (filter.points() - 1) * self.point + count, "points are too short");
        assert!(self.taps.len() >= (filter.taps() - 1) * self.tap + count, "no room for all taps");
        // SAFETY: the CPU has the instruction set by contract; all lies inside the slices, as asserted.
        unsafe {
            match filter {
                Filter::F2x3 => self.along::<S, F2x3, 4, 2, 3, 4>(),
                Filter::F4x3 => self.along::<S, F4x3, 6, 4, 3, 7>(),
                Filter::F4x5 => self.along::<S, F4x5, 8, 4, 5, 11>(),
            }
        }
    }
}
