//! Passes over a plane of an array whose channels have numbers of their own, such as a mean.
//!
//! A plane is a row of vectors of `L` lanes. Either each lane is a channel (blocks of channels), or all lanes are the
//! pixels of one channel; then the same number stands in every lane, and the last vector may be short.

use super::elements::{passes, rectified};
use super::vectorised::Vectorised;

/// Vectors of a piece: it stays in the first-level cache, and its sums are short.
const PIECE: usize = 128;

/// A number for each lane.
pub(crate) type Lanes<const L: usize> = [f32; L];

/// `(x − mean) · factor + bias`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine<const L: usize> {
    pub mean: Lanes<L>,
    pub factor: Lanes<L>,
    pub bias: Lanes<L>,
}

impl<const L: usize> Affine<L> {
    /// `x` itself.
    pub const IDENTITY: Self = Self { mean: [0.0; L], factor: [1.0; L], bias: [0.0; L] };

    #[inline(always)]
    fn of(&self, lane: usize, x: f32) -> f32 {
        (x - self.mean[lane]) * self.factor[lane] + self.bias[lane]
    }

    /// dy where a ReLU of the function at `x` lets it pass, and 0 · dy elsewhere, which keeps a NaN.
    #[inline(always)]
    fn passed<const RELU: bool>(&self, lane: usize, dy: f32, x: f32) -> f32 {
        if RELU { dy * passes(self.of(lane, x), 0.0) } else { dy }
    }
}

/// `y ← affine(x)`, with a ReLU behind it or not; of `y` itself without `x`.
pub(crate) struct Apply<'a, const L: usize> {
    pub affine: Affine<L>,
    pub relu: bool,
    pub x: Option<&'a [f32]>,
    pub y: &'a mut [f32],
}

impl<const L: usize> Vectorised for Apply<'_, L> {
    #[inline(always)]
    fn run(self) {
        let Self { affine, relu, x, y } = self;
        if relu {
            map::<L>(x, y, |lane, x| rectified(affine.of(lane, x), 0.0));
        } else {
            map::<L>(x, y, |lane, x| affine.of(lane, x));
        }
    }
}

/// `y ← f(lane, x)`.
#[inline(always)]
fn map<const L: usize>(x: Option<&[f32]>, y: &mut [f32], f: impl Fn(usize, f32) -> f32) {
    let (vectors, rest) = y.as_chunks_mut::<L>();
    let Some(x) = x else {
        for y in vectors {
            y.iter_mut().enumerate().for_each(|(lane, y)| *y = f(lane, *y));
        }
        rest.iter_mut().enumerate().for_each(|(lane, y)| *y = f(lane, *y));
        return;
    };
    let (from, from_rest) = x.as_chunks::<L>();
    for (y, x) in vectors.iter_mut().zip(from) {
        for lane in 0..L {
            y[lane] = f(lane, x[lane]);
        }
    }
    rest.iter_mut().zip(from_rest).enumerate().for_each(|(lane, (y, x))| *y = f(lane, *x));
}

/// Number, mean, and sum of the squared distances from the mean of each lane's values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments<const L: usize> {
    pub count: f32,
    pub mean: Lanes<L>,
    pub squares: Lanes<L>,
}

impl<const L: usize> Moments<L> {
    pub const NONE: Self = Self { count: 0.0, mean: [0.0; L], squares: [0.0; L] };

    /// The moments of one piece: first its mean, then the distances from it, so that nothing cancels.
    #[inline(always)]
    fn of(piece: &[f32], together: bool) -> Self {
        let count = if together { piece.len() } else { piece.len() / L } as f32;
        let mean = gathered(sum::<L>(piece, |_, x| x), together).map(|sum| sum / count);
        let distance = |lane: usize, x: f32| x - mean[lane];
        let squares = sum::<L>(piece, |lane, x| distance(lane, x) * distance(lane, x));
        Self { count, mean, squares: gathered(squares, together) }
    }

    /// The moments of both parts' values (Chan, Golub and LeVeque, 1979).
    #[inline(always)]
    fn join(&mut self, other: &Self) {
        let total = self.count + other.count;
        let weight = other.count / total;
        for lane in 0..L {
            let distance = other.mean[lane] - self.mean[lane];
            self.mean[lane] += distance * weight;
            self.squares[lane] += other.squares[lane] + distance * distance * (self.count * weight);
        }
        self.count = total;
    }
}

/// Adds the values of a plane to moments.
pub(crate) struct Measure<'a, const L: usize> {
    /// Whether all lanes are one channel.
    pub together: bool,
    pub x: &'a [f32],
    pub moments: &'a mut Moments<L>,
}

impl<const L: usize> Vectorised for Measure<'_, L> {
    #[inline(always)]
    fn run(self) {
        let mut moments = *self.moments;
        for piece in self.x.chunks(PIECE * L) {
            moments.join(&Moments::of(piece, self.together));
        }
        *self.moments = moments;
    }
}

/// The sum of all lanes in each, in a fixed order, if they are one channel.
#[inline(always)]
fn gathered<const L: usize>(lanes: Lanes<L>, together: bool) -> Lanes<L> {
    if together { [lanes.iter().sum(); L] } else { lanes }
}

/// Sums of `f(lane, x)`: two for each lane, so that one addition need not wait for the other.
#[inline(always)]
fn sum<const L: usize>(x: &[f32], f: impl Fn(usize, f32) -> f32) -> Lanes<L> {
    let (vectors, rest) = x.as_chunks::<L>();
    let (pairs, last) = vectors.as_chunks::<2>();
    let (mut even, mut odd) = ([0.0; L], [0.0; L]);
    for [first, second] in pairs {
        for lane in 0..L {
            even[lane] += f(lane, first[lane]);
        }
        for lane in 0..L {
            odd[lane] += f(lane, second[lane]);
        }
    }
    for vector in last {
        for lane in 0..L {
            even[lane] += f(lane, vector[lane]);
        }
    }
    rest.iter().enumerate().for_each(|(lane, x)| odd[lane] += f(lane, *x));
    for lane in 0..L {
        even[lane] += odd[lane];
    }
    even
}

/// Adds Σ dy and Σ dy · (x − mean) of a plane, with dy as a ReLU of `affine` lets it pass, to sums.
pub(crate) struct Correlate<'a, const L: usize> {
    /// Whether all lanes are one channel.
    pub together: bool,
    pub affine: Affine<L>,
    pub relu: bool,
    pub dy: &'a [f32],
    pub x: &'a [f32],
    pub sums: &'a mut [Lanes<L>; 2],
}

impl<const L: usize> Vectorised for Correlate<'_, L> {
    #[inline(always)]
    fn run(self) {
        if self.relu { self.add::<true>() } else { self.add::<false>() }
    }
}

impl<const L: usize> Correlate<'_, L> {
    #[inline(always)]
    fn add<const RELU: bool>(self) {
        let Self { together, affine, dy, x, sums, .. } = self;
        for (dy, x) in dy.chunks(PIECE * L).zip(x.chunks(PIECE * L)) {
            let piece = correlations::<L, RELU>(&affine, dy, x);
            for (sums, piece) in sums.iter_mut().zip(piece) {
                let piece = gathered(piece, together);
                sums.iter_mut().zip(piece).for_each(|(sum, piece)| *sum += piece);
            }
        }
    }
}

#[inline(always)]
fn correlations<const L: usize, const RELU: bool>(
    affine: &Affine<L>,
    dy: &[f32],
    x: &[f32],
) -> [Lanes<L>; 2] {
    let (mut plain, mut product) = ([0.0; L], [0.0; L]);
    let ((dy, dy_rest), (x, x_rest)) = (dy.as_chunks::<L>(), x.as_chunks::<L>());
    for (dy, x) in dy.iter().zip(x) {
        for lane in 0..L {
            let dy = affine.passed::<RELU>(lane, dy[lane], x[lane]);
            plain[lane] += dy;
            product[lane] += dy * (x[lane] - affine.mean[lane]);
        }
    }
    for (lane, (dy, x)) in dy_rest.iter().zip(x_rest).enumerate() {
        let dy = affine.passed::<RELU>(lane, *dy, *x);
        plain[lane] += dy;
        product[lane] += dy * (x - affine.mean[lane]);
    }
    [plain, product]
}

/// Adds Σ dy of a plane to sums.
pub(crate) struct Add<'a, const L: usize> {
    /// Whether all lanes are one channel.
    pub together: bool,
    pub dy: &'a [f32],
    pub sums: &'a mut Lanes<L>,
}

impl<const L: usize> Vectorised for Add<'_, L> {
    #[inline(always)]
    fn run(self) {
        for piece in self.dy.chunks(PIECE * L) {
            let piece = gathered(sum::<L>(piece, |_, dy| dy), self.together);
            self.sums.iter_mut().zip(piece).for_each(|(sum, piece)| *sum += piece);
        }
    }
}

/// How a gradient goes back: `dx = dy · factor − (x − mean) · slope − offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slope<const L: usize> {
    pub factor: Lanes<L>,
    pub slope: Lanes<L>,
    pub offset: Lanes<L>,
}

/// `dx` from `dy`, or from itself without `dy`, and from `x`, with dy as a ReLU of `affine` lets it pass.
pub(crate) struct Back<'a, const L: usize> {
    pub affine: Affine<L>,
    pub relu: bool,
    pub slope: Slope<L>,
    pub dy: Option<&'a [f32]>,
    pub x: &'a [f32],
    pub dx: &'a mut [f32],
}

impl<const L: usize> Vectorised for Back<'_, L> {
    #[inline(always)]
    fn run(self) {
        if self.relu { self.map::<true>() } else { self.map::<false>() }
    }
}

impl<const L: usize> Back<'_, L> {
    #[inline(always)]
    fn map<const RELU: bool>(self) {
        let Self { affine, slope, dy, x, dx, .. } = self;
        let f = |lane: usize, dy: f32, x: f32| {
            let dy = affine.passed::<RELU>(lane, dy, x);
            dy * slope.factor[lane] - (x - affine.mean[lane]) * slope.slope[lane] - slope.offset[lane]
        };
        let ((x, x_rest), (dx, dx_rest)) = (x.as_chunks::<L>(), dx.as_chunks_mut::<L>());
        let Some(dy) = dy else {
            for (dx, x) in dx.iter_mut().zip(x) {
                for lane in 0..L {
                    dx[lane] = f(lane, dx[lane], x[lane]);
                }
            }
            return dx_rest.iter_mut().zip(x_rest).enumerate().for_each(|(l, (dx, x))| *dx = f(l, *dx, *x));
        };
        let (dy, dy_rest) = dy.as_chunks::<L>();
        for ((dx, dy), x) in dx.iter_mut().zip(dy).zip(x) {
            for lane in 0..L {
                dx[lane] = f(lane, dy[lane], x[lane]);
            }
        }
        let rest = dx_rest.iter_mut().zip(dy_rest).zip(x_rest).enumerate();
        rest.for_each(|(lane, ((dx, dy), x))| *dx = f(lane, *dy, *x));
    }
}
