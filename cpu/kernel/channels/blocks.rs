//! The passes where each pixel of a plane is a vector: a register holds the numbers of all channels, and sums stay in
//! registers. Several chains of sums hide the latency of an addition, and pieces keep chains short.
//!
//! With each pixel that of the next plane is asked for: it lies an image further, so that prefetchers begin anew there, and
//! where planes are small, most of their lines would be waited for.

use super::{Affine, Numbers, Slope};
use crate::kernel::simd::Simd;
use crate::kernel::stored::{OnStored, Stored};

/// Pixels of a piece, which stays in the first-level cache and has short sums.
const PIECE: usize = 256;

/// Elements of a plane up to which the next is asked for. Of longer ones prefetchers find most but the beginnings of pages, which
/// are asked for so many elements ahead.
const SHORT: usize = 8192;
const AHEAD: usize = 1024;

/// What is asked for while a plane is worked on, from its first pixel on. Nothing is read there: it may end before the plane.
#[inline(always)]
fn ahead(plane: &[f32], next: Option<&[f32]>) -> *const f32 {
    let short = plane.len() <= SHORT;
    next.filter(|_| short).map_or(plane.as_ptr().wrapping_add(AHEAD), <[f32]>::as_ptr)
}

/// Chains of a sum.
const CHAINS: usize = 4;

/// Adds up chains, two by two.
///
/// # Safety
/// The CPU has the instructions.
#[inline(always)]
unsafe fn total<S: Simd>(mut chains: [S::Vector; CHAINS]) -> S::Vector {
    let mut count = CHAINS / 2;
    while count > 0 {
        for i in 0..count {
            // SAFETY: by contract.
            chains[i] = unsafe { S::add(chains[i], chains[i + count]) };
        }
        count /= 2;
    }
    chains[0]
}

/// Numbers in a register.
///
/// # Safety
/// The CPU has the instructions.
#[inline(always)]
unsafe fn vector<S: Simd>(numbers: &Numbers) -> S::Vector {
    assert!(S::LANES <= numbers.len(), "a block wider than its numbers");
    // SAFETY: by contract; as many as asserted.
    unsafe { S::load(numbers.as_ptr()) }
}

/// Goes through the pixels of a piece, each for one of the chains. A macro, since chains that a closure changes would not stay in
/// registers.
macro_rules! sum {
    ($count:expr, |$pixel:ident, $chain:ident| $add:expr) => {
        let whole = $count / CHAINS * CHAINS;
        for first in (0..whole).step_by(CHAINS) {
            for $chain in 0..CHAINS {
                let $pixel = first + $chain;
                $add
            }
        }
        for $pixel in whole..$count {
            let $chain = 0;
            $add
        }
    };
}

/// Sets moments to the means of all planes, and the squared distances from them.
pub(super) struct Measure<'m, I> {
    pub planes: I,
    pub moments: &'m mut [Numbers; 2],
}

impl<'a, I: Iterator<Item = &'a [f32]>> OnStored for Measure<'_, I> {
    /// Of each piece first the mean, then the distances from it, so that nothing cancels; then piece and pieces before are
    /// joined (Chan, Golub and LeVeque, 1979).
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        // SAFETY: by contract; pieces hold whole pixels.
        unsafe {
            let (mut count, mut mean, mut squares) = (0.0f32, S::zero(), S::zero());
            let mut planes = self.planes.peekable();
            while let Some(plane) = planes.next() {
                let next = ahead(plane, planes.peek().copied());
                for (number, piece) in plane.chunks(PIECE * E::LEN).enumerate() {
                    let (pixels, x) = (piece.len() / E::LEN, piece.as_ptr());
                    let next = next.wrapping_add(number * PIECE * E::LEN);
                    let mut chains = [S::zero(); CHAINS];
                    sum!(pixels, |pixel, chain| {
                        S::prefetch_far(next.wrapping_add(pixel * E::LEN));
                        chains[chain] = S::add(chains[chain], E::load(x.add(pixel * E::LEN)));
                    });
                    let own_mean = S::multiply(total::<S>(chains), S::splat(1.0 / pixels as f32));
                    let mut chains = [S::zero(); CHAINS];
                    sum!(pixels, |pixel, chain| {
                        let distance = S::subtract(E::load(x.add(pixel * E::LEN)), own_mean);
                        chains[chain] = S::fused(distance, distance, chains[chain]);
                    });
                    let all = count + pixels as f32;
                    let weight = pixels as f32 / all;
                    let distance = S::subtract(own_mean, mean);
                    mean = S::fused(distance, S::splat(weight), mean);
                    let apart = S::multiply(S::multiply(distance, distance), S::splat(count * weight));
                    squares = S::add(squares, S::add(total::<S>(chains), apart));
                    count = all;
                }
            }
            S::store(self.moments[0].as_mut_ptr(), mean);
            S::store(self.moments[1].as_mut_ptr(), squares);
        }
    }
}

/// [`Affine`] in registers.
struct Map<S: Simd> {
    mean: S::Vector,
    factor: S::Vector,
    bias: S::Vector,
}

impl<S: Simd> Map<S> {
    /// # Safety
    /// The CPU has the instructions; so for all methods.
    #[inline(always)]
    unsafe fn of(affine: &Affine) -> Self {
        // SAFETY: by contract.
        unsafe {
            Self {
                mean: vector::<S>(&affine.mean),
                factor: vector::<S>(&affine.factor),
                bias: vector::<S>(&affine.bias),
            }
        }
    }

    /// Of a distance from the mean.
    #[inline(always)]
    unsafe fn at(&self, distance: S::Vector) -> S::Vector {
        // SAFETY: by contract.
        unsafe { S::fused(distance, self.factor, self.bias) }
    }

    /// dy as a ReLU of the function lets it pass: where it does not, 0 · dy, which keeps a NaN.
    #[inline(always)]
    unsafe fn passed<const RELU: bool>(&self, dy: S::Vector, distance: S::Vector) -> S::Vector {
        if !RELU {
            return dy;
        }
        // SAFETY: by contract.
        unsafe {
            let (_, passes) = S::greater(self.at(distance), S::zero(), S::splat(1.0), S::zero());
            S::multiply(dy, passes)
        }
    }
}

/// `y ← affine(x)`.
pub(super) struct Apply<'f, I> {
    pub affine: &'f Affine,
    pub relu: bool,
    pub planes: I,
}

impl<'a, I: Iterator<Item = (Option<&'a [f32]>, &'a mut [f32])>> OnStored for Apply<'_, I> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        // SAFETY: by contract.
        unsafe { if self.relu { self.map::<S, E, true>() } else { self.map::<S, E, false>() } }
    }
}

impl<'a, I: Iterator<Item = (Option<&'a [f32]>, &'a mut [f32])>> Apply<'_, I> {
    /// # Safety
    /// The CPU has the instructions.
    #[inline(always)]
    unsafe fn map<S: Simd, E: Stored<S>, const RELU: bool>(self) {
        // SAFETY: by contract; x and y hold as many whole pixels.
        unsafe {
            let map = Map::<S>::of(self.affine);
            let mut planes = self.planes.peekable();
            while let Some((x, y)) = planes.next() {
                assert!(x.is_none_or(|x| x.len() == y.len()), "planes of different sizes");
                let next = ahead(y, planes.peek().map(|(_, y)| &**y));
                let to = y.as_mut_ptr();
                let from = x.map_or(to.cast_const(), <[f32]>::as_ptr);
                for at in (0..y.len()).step_by(E::LEN) {
                    S::prefetch_far(next.wrapping_add(at));
                    let value = map.at(S::subtract(E::load(from.add(at)), map.mean));
                    E::store(to.add(at), if RELU { S::rectified(value) } else { value });
                }
            }
        }
    }
}

/// `y ← affine(x) + z`.
pub(super) struct Add<'f, I> {
    pub affine: &'f Affine,
    pub relu: bool,
    pub planes: I,
}

impl<'a, I: Iterator<Item = (&'a [f32], &'a [f32], &'a mut [f32])>> OnStored for Add<'_, I> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        // SAFETY: by contract.
        unsafe { if self.relu { self.map::<S, E, true>() } else { self.map::<S, E, false>() } }
    }
}

impl<'a, I: Iterator<Item = (&'a [f32], &'a [f32], &'a mut [f32])>> Add<'_, I> {
    /// # Safety
    /// The CPU has the instructions.
    #[inline(always)]
    unsafe fn map<S: Simd, E: Stored<S>, const RELU: bool>(self) {
        // SAFETY: by contract; x, z and y hold as many whole pixels.
        unsafe {
            let map = Map::<S>::of(self.affine);
            let mut planes = self.planes.peekable();
            while let Some((x, z, y)) = planes.next() {
                assert!(x.len() == y.len() && z.len() == y.len(), "planes of different sizes");
                let next = planes.peek();
                let next = [
                    ahead(x, next.map(|next| next.0)),
                    ahead(z, next.map(|next| next.1)),
                    ahead(y, next.map(|next| &*next.2)),
                ];
                for at in (0..y.len()).step_by(E::LEN) {
                    next.iter().for_each(|next| S::prefetch_far(next.wrapping_add(at)));
                    let value = map.at(S::subtract(E::load(x.as_ptr().add(at)), map.mean));
                    let value = S::add(value, E::load(z.as_ptr().add(at)));
                    E::store(y.as_mut_ptr().add(at), if RELU { S::rectified(value) } else { value });
                }
            }
        }
    }
}

/// Writes what passes of dy, and sets sums to those of [`Correlate`].
pub(super) struct PassOn<'f, I> {
    pub affine: &'f Affine,
    pub relu: bool,
    pub planes: I,
    pub sums: &'f mut [Numbers; 2],
}

impl<'a, I: Iterator<Item = (Option<&'a [f32]>, &'a [f32], &'a [f32], &'a mut [f32])>> OnStored
    for PassOn<'_, I>
{
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        // SAFETY: by contract.
        unsafe { if self.relu { self.add::<S, E, true>() } else { self.add::<S, E, false>() } }
    }
}

impl<'a, I: Iterator<Item = (Option<&'a [f32]>, &'a [f32], &'a [f32], &'a mut [f32])>> PassOn<'_, I> {
    /// # Safety
    /// The CPU has the instructions.
    #[inline(always)]
    unsafe fn add<S: Simd, E: Stored<S>, const RELU: bool>(self) {
        // SAFETY: by contract; all slices hold as many whole pixels.
        unsafe {
            let mean = vector::<S>(&self.affine.mean);
            let mut sums = [S::zero(); 2];
            let mut planes = self.planes.peekable();
            while let Some((dy, y, x, to)) = planes.next() {
                let same = [y.len(), x.len(), dy.map_or(to.len(), <[f32]>::len)] == [to.len(); 3];
                assert!(same, "planes of different sizes");
                let next = planes.peek();
                let next = [
                    ahead(y, next.map(|next| next.1)),
                    ahead(x, next.map(|next| next.2)),
                    ahead(to, next.map(|next| &*next.3)),
                ];
                let to = to.as_mut_ptr();
                let dy = dy.map_or(to.cast_const(), <[f32]>::as_ptr);
                let whole = y.len();
                for first in (0..whole).step_by(PIECE * E::LEN) {
                    let pixels = (whole - first).min(PIECE * E::LEN) / E::LEN;
                    let (mut plain, mut product) = ([S::zero(); CHAINS], [S::zero(); CHAINS]);
                    sum!(pixels, |pixel, chain| {
                        let at = first + pixel * E::LEN;
                        next.iter().for_each(|next| S::prefetch_far(next.wrapping_add(at)));
                        let distance = S::subtract(E::load(x.as_ptr().add(at)), mean);
                        let mut passed = E::load(dy.add(at));
                        if RELU {
                            let y = E::load(y.as_ptr().add(at));
                            let (_, passes) = S::greater(y, S::zero(), S::splat(1.0), S::zero());
                            passed = S::multiply(passed, passes);
                        }
                        E::store(to.add(at), passed);
                        plain[chain] = S::add(plain[chain], passed);
                        product[chain] = S::fused(passed, distance, product[chain]);
                    });
                    sums = [S::add(sums[0], total::<S>(plain)), S::add(sums[1], total::<S>(product))];
                }
            }
            S::store(self.sums[0].as_mut_ptr(), sums[0]);
            S::store(self.sums[1].as_mut_ptr(), sums[1]);
        }
    }
}

/// Sets sums to those of all planes.
pub(super) struct Total<'m, I> {
    pub planes: I,
    pub sums: &'m mut Numbers,
}

impl<'a, I: Iterator<Item = &'a [f32]>> OnStored for Total<'_, I> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        // SAFETY: by contract; pieces hold whole pixels.
        unsafe {
            let mut sums = S::zero();
            let mut planes = self.planes.peekable();
            while let Some(plane) = planes.next() {
                let next = ahead(plane, planes.peek().copied());
                for (number, piece) in plane.chunks(PIECE * E::LEN).enumerate() {
                    let (pixels, x) = (piece.len() / E::LEN, piece.as_ptr());
                    let next = next.wrapping_add(number * PIECE * E::LEN);
                    let mut chains = [S::zero(); CHAINS];
                    sum!(pixels, |pixel, chain| {
                        S::prefetch_far(next.wrapping_add(pixel * E::LEN));
                        chains[chain] = S::add(chains[chain], E::load(x.add(pixel * E::LEN)));
                    });
                    sums = S::add(sums, total::<S>(chains));
                }
            }
            S::store(self.sums.as_mut_ptr(), sums);
        }
    }
}

/// Sets sums to Σ dy and Σ dy · (x − mean).
pub(super) struct Correlate<'f, I> {
    pub affine: &'f Affine,
    pub relu: bool,
    pub planes: I,
    pub sums: &'f mut [Numbers; 2],
}

impl<'a, I: Iterator<Item = (&'a [f32], &'a [f32])>> OnStored for Correlate<'_, I> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        // SAFETY: by contract.
        unsafe { if self.relu { self.add::<S, E, true>() } else { self.add::<S, E, false>() } }
    }
}

impl<'a, I: Iterator<Item = (&'a [f32], &'a [f32])>> Correlate<'_, I> {
    /// # Safety
    /// The CPU has the instructions.
    #[inline(always)]
    unsafe fn add<S: Simd, E: Stored<S>, const RELU: bool>(self) {
        // SAFETY: by contract; dy and x hold as many whole pixels.
        unsafe {
            let map = Map::<S>::of(self.affine);
            let mut sums = [S::zero(); 2];
            let mut planes = self.planes.peekable();
            while let Some((dy, x)) = planes.next() {
                assert!(dy.len() == x.len(), "planes of different sizes");
                let next = planes.peek();
                let next = [ahead(dy, next.map(|next| next.0)), ahead(x, next.map(|next| next.1))];
                let pieces = dy.chunks(PIECE * E::LEN).zip(x.chunks(PIECE * E::LEN));
                for (number, (dy, x)) in pieces.enumerate() {
                    let (pixels, dy, x) = (dy.len() / E::LEN, dy.as_ptr(), x.as_ptr());
                    let next = next.map(|next| next.wrapping_add(number * PIECE * E::LEN));
                    let (mut plain, mut product) = ([S::zero(); CHAINS], [S::zero(); CHAINS]);
                    sum!(pixels, |pixel, chain| {
                        S::prefetch_far(next[0].wrapping_add(pixel * E::LEN));
                        S::prefetch_far(next[1].wrapping_add(pixel * E::LEN));
                        let distance = S::subtract(E::load(x.add(pixel * E::LEN)), map.mean);
                        let dy = map.passed::<RELU>(E::load(dy.add(pixel * E::LEN)), distance);
                        plain[chain] = S::add(plain[chain], dy);
                        product[chain] = S::fused(dy, distance, product[chain]);
                    });
                    sums = [S::add(sums[0], total::<S>(plain)), S::add(sums[1], total::<S>(product))];
                }
            }
            S::store(self.sums[0].as_mut_ptr(), sums[0]);
            S::store(self.sums[1].as_mut_ptr(), sums[1]);
        }
    }
}

/// `dx` from `dy` and `x`.
pub(super) struct Back<'f, I> {
    pub affine: &'f Affine,
    pub slope: &'f Slope,
    pub relu: bool,
    pub planes: I,
}

impl<'a, I: Iterator<Item = (Option<&'a [f32]>, &'a [f32], &'a mut [f32])>> OnStored for Back<'_, I> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        // SAFETY: by contract.
        unsafe { if self.relu { self.map::<S, E, true>() } else { self.map::<S, E, false>() } }
    }
}

impl<'a, I: Iterator<Item = (Option<&'a [f32]>, &'a [f32], &'a mut [f32])>> Back<'_, I> {
    /// # Safety
    /// The CPU has the instructions.
    #[inline(always)]
    unsafe fn map<S: Simd, E: Stored<S>, const RELU: bool>(self) {
        // SAFETY: by contract; dy, x and dx hold as many whole pixels.
        unsafe {
            let map = Map::<S>::of(self.affine);
            let factor = vector::<S>(&self.slope.factor);
            let slope = vector::<S>(&self.slope.slope.map(|slope| -slope));
            let offset = vector::<S>(&self.slope.offset.map(|offset| -offset));
            let mut planes = self.planes.peekable();
            while let Some((dy, x, dx)) = planes.next() {
                let same = x.len() == dx.len() && dy.is_none_or(|dy| dy.len() == dx.len());
                assert!(same, "planes of different sizes");
                let to = dx.as_mut_ptr();
                let dy = dy.map_or(to.cast_const(), <[f32]>::as_ptr);
                let next = ahead(x, planes.peek().map(|(_, _, dx)| &**dx));
                for at in (0..dx.len()).step_by(E::LEN) {
                    S::prefetch_far(next.wrapping_add(at));
                    let distance = S::subtract(E::load(x.as_ptr().add(at)), map.mean);
                    let dy = map.passed::<RELU>(E::load(dy.add(at)), distance);
                    E::store(to.add(at), S::fused(dy, factor, S::fused(distance, slope, offset)));
                }
            }
        }
    }
}
