//! The passes where planes are no rows of vectors: any tier, any block.
//!
//! A plane is read in rows of [`ROW`] elements: whole blocks, so that an element's place in its row says which channel it
//! is of, and a place has the numbers of its channel. Sums are kept for each place of a row, and whoever asks adds up the
//! places of a channel. Loops over a row are long enough that the compiler makes vectors of them instead of unrolling them.
//!
//! Elements are f32: where there are bf16, blocks are vectors.

use super::{Numbers, WIDEST, joined};
use crate::kernel::element::Element;
use crate::kernel::elements::{passes, rectified};
use crate::kernel::vectorised::Vectorised;

/// Elements of a row: some blocks of every tier.
pub(crate) const ROW: usize = 128;

/// Rows of a piece, which stays in the first-level cache and has short sums.
const PIECE: usize = 32;

/// A number for each place of a row.
pub(crate) type Row = [f32; ROW];

/// The number of its channel for each place of a row of blocks of `block` channels.
pub(crate) fn row(numbers: &Numbers, block: usize) -> Row {
    let mut row = [0.0; ROW];
    row.chunks_exact_mut(block).for_each(|block| block.copy_from_slice(&numbers[..block.len()]));
    row
}

/// The sums of channels from those of the places of a row.
pub(crate) fn folded(row: &Row, block: usize) -> Numbers {
    let mut sums = [0.0; WIDEST];
    for block in row.chunks_exact(block) {
        sums.iter_mut().zip(block).for_each(|(sum, value)| *sum += value);
    }
    sums
}

/// [`super::Affine`] for each place.
pub(super) struct Affine {
    mean: Row,
    factor: Row,
    bias: Row,
}

impl Affine {
    pub fn of_blocks(affine: &super::Affine, block: usize) -> Self {
        let [mean, factor, bias] = [affine.mean, affine.factor, affine.bias].map(|n| row(&n, block));
        Self { mean, factor, bias }
    }

    #[inline(always)]
    fn of(&self, place: usize, x: f32) -> f32 {
        (x - self.mean[place]) * self.factor[place] + self.bias[place]
    }

    /// dy as a ReLU of the function at `x` lets it pass: where it does not, 0 · dy, which keeps a NaN.
    #[inline(always)]
    fn passed<const RELU: bool>(&self, place: usize, dy: f32, x: f32) -> f32 {
        if RELU { dy * passes(self.of(place, x), 0.0) } else { dy }
    }
}

/// `y ← affine(x)`, with a ReLU behind it or not; of `y` itself without `x`.
pub(super) struct Apply<'a> {
    pub affine: &'a Affine,
    pub relu: bool,
    pub x: Option<&'a [f32]>,
    pub y: &'a mut [f32],
}

impl Vectorised for Apply<'_> {
    #[inline(always)]
    fn run(self) {
        if self.relu { self.map::<true>() } else { self.map::<false>() }
    }
}

impl Apply<'_> {
    #[inline(always)]
    fn map<const RELU: bool>(self) {
        let Self { affine, x, y, .. } = self;
        let (rows, rest) = y.as_chunks_mut::<ROW>();
        match x.map(<[f32]>::as_chunks::<ROW>) {
            Some((from, from_rest)) => {
                for (y, x) in rows.iter_mut().zip(from) {
                    apply::<RELU>(affine, x, y);
                }
                apply::<RELU>(affine, from_rest, rest);
            }
            None => {
                for y in rows {
                    change::<RELU>(affine, y);
                }
                change::<RELU>(affine, rest);
            }
        }
    }
}

#[inline(always)]
fn apply<const RELU: bool>(affine: &Affine, x: &[f32], y: &mut [f32]) {
    let places = y.len().min(x.len()).min(ROW);
    let x = &x[..places];
    f32::write(&mut y[..places], |place, _| {
        let value = affine.of(place, x[place]);
        if RELU { rectified(value, 0.0) } else { value }
    });
}

#[inline(always)]
fn change<const RELU: bool>(affine: &Affine, y: &mut [f32]) {
    let places = y.len().min(ROW);
    f32::write(&mut y[..places], |place, y| {
        let value = affine.of(place, y);
        if RELU { rectified(value, 0.0) } else { value }
    });
}

/// `y ← affine(x) + z`, with a ReLU behind it or not.
pub(super) struct Add<'a> {
    pub affine: &'a Affine,
    pub relu: bool,
    pub x: &'a [f32],
    pub z: &'a [f32],
    pub y: &'a mut [f32],
}

impl Vectorised for Add<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { affine, relu, x, z, y } = self;
        for (y, (x, z)) in y.chunks_mut(ROW).zip(x.chunks(ROW).zip(z.chunks(ROW))) {
            let places = y.len().min(x.len()).min(z.len()).min(ROW);
            let (x, z) = (&x[..places], &z[..places]);
            if relu {
                f32::write(&mut y[..places], |p, _| rectified(affine.of(p, x[p]) + z[p], 0.0));
            } else {
                f32::write(&mut y[..places], |p, _| affine.of(p, x[p]) + z[p]);
            }
        }
    }
}

/// Writes dy, or what is there without it, as a ReLU with the top y lets it pass.
pub(super) struct PassOn<'a> {
    pub relu: bool,
    pub dy: Option<&'a [f32]>,
    pub y: &'a [f32],
    pub to: &'a mut [f32],
}

impl Vectorised for PassOn<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { relu, dy, y, to } = self;
        if let Some(dy) = dy {
            to.copy_from_slice(dy);
        }
        if relu {
            let places = to.len().min(y.len());
            let y = &y[..places];
            f32::write(&mut to[..places], |place, dy| dy * passes(y[place], 0.0));
        }
    }
}

/// Number, mean, and sum of the squared distances from the mean of the values at each place of a row.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    /// How many values the places have that the rest of a plane behind its last whole row has, and the others.
    counts: [f32; 2],
    /// How many places that rest has; the same for all planes.
    rest: usize,
    mean: Row,
    squares: Row,
}

impl Moments {
    /// Of no values, of planes of `elements`.
    pub fn new(elements: usize) -> Self {
        Self { counts: [0.0; 2], rest: elements % ROW, mean: [0.0; ROW], squares: [0.0; ROW] }
    }

    /// Means of channels and squared distances from them.
    pub fn joined(&self, block: usize) -> [Numbers; 2] {
        let (mut means, mut squares) = ([0.0; WIDEST], [0.0; WIDEST]);
        for channel in 0..block {
            let at = |place: usize| {
                [self.counts[usize::from(place >= self.rest)], self.mean[place], self.squares[place]]
            };
            let places = (channel..ROW).step_by(block).map(|place| at(place).map(f64::from).into());
            let [mean, sum] = joined(places);
            (means[channel], squares[channel]) = (mean as f32, sum as f32);
        }
        [means, squares]
    }

    /// Adds whole rows and perhaps the rest of a plane: first their mean, then the distances from it, so that nothing
    /// cancels; then both parts are joined (Chan, Golub and LeVeque, 1979).
    #[inline(always)]
    fn add(&mut self, rows: &[[f32; ROW]], rest: &[f32]) {
        let counts = [rows.len() as f32 + if rest.is_empty() { 0.0 } else { 1.0 }, rows.len() as f32];
        let inverse = counts.map(|count| if count == 0.0 { 0.0 } else { 1.0 / count });
        let inverse = filled(inverse, self.rest);
        let mut mean = [0.0; ROW];
        for row in rows {
            add(&mut mean, row);
        }
        add(&mut mean, rest);
        for (mean, inverse) in mean.iter_mut().zip(&inverse) {
            *mean *= inverse;
        }
        let mut squares = [0.0; ROW];
        for row in rows {
            add_squares(&mut squares, &mean, row);
        }
        add_squares(&mut squares, &mean, rest);

        let totals = [0, 1].map(|i| self.counts[i] + counts[i]);
        let weights = [0, 1].map(|i| if totals[i] == 0.0 { 0.0 } else { counts[i] / totals[i] });
        let own = [0, 1].map(|i| self.counts[i] * weights[i]);
        let (weight, own) = (filled(weights, self.rest), filled(own, self.rest));
        for place in 0..ROW {
            let distance = mean[place] - self.mean[place];
            self.mean[place] += distance * weight[place];
            self.squares[place] += squares[place] + distance * distance * own[place];
        }
        self.counts = totals;
    }
}

/// One number at the first places, another at the others.
#[inline(always)]
fn filled([first, others]: [f32; 2], places: usize) -> Row {
    let mut row = [others; ROW];
    row[..places].fill(first);
    row
}

#[inline(always)]
fn add(sums: &mut Row, x: &[f32]) {
    let places = x.len().min(ROW);
    for place in 0..places {
        sums[place] += x[place];
    }
}

#[inline(always)]
fn add_squares(sums: &mut Row, mean: &Row, x: &[f32]) {
    let places = x.len().min(ROW);
    for place in 0..places {
        let distance = x[place] - mean[place];
        sums[place] += distance * distance;
    }
}

/// Adds the values of a plane to moments.
pub(super) struct Measure<'a> {
    pub x: &'a [f32],
    pub moments: &'a mut Moments,
}

impl Vectorised for Measure<'_> {
    #[inline(always)]
    fn run(self) {
        let (rows, rest) = self.x.as_chunks::<ROW>();
        let last = rows.len().saturating_sub(1) / PIECE * PIECE;
        for piece in rows[..last].chunks(PIECE) {
            self.moments.add(piece, &[]);
        }
        self.moments.add(&rows[last..], rest);
    }
}

/// Adds Σ dy and Σ dy · (x − mean) of a plane, with dy as a ReLU of `affine` lets it pass, to sums.
pub(super) struct Correlate<'a> {
    pub affine: &'a Affine,
    pub relu: bool,
    pub dy: &'a [f32],
    pub x: &'a [f32],
    pub sums: &'a mut [Row; 2],
}

impl Vectorised for Correlate<'_> {
    #[inline(always)]
    fn run(self) {
        if self.relu { self.add::<true>() } else { self.add::<false>() }
    }
}

impl Correlate<'_> {
    #[inline(always)]
    fn add<const RELU: bool>(self) {
        let Self { affine, dy, x, sums, .. } = self;
        let ((dy, dy_rest), (x, x_rest)) = (dy.as_chunks::<ROW>(), x.as_chunks::<ROW>());
        // The sums of a plane are apart from those so far, so that they are short.
        let (mut plain, mut product) = ([0.0; ROW], [0.0; ROW]);
        for (dy, x) in dy.iter().zip(x) {
            correlate::<RELU>(affine, dy, x, &mut plain, &mut product);
        }
        correlate::<RELU>(affine, dy_rest, x_rest, &mut plain, &mut product);
        add(&mut sums[0], &plain);
        add(&mut sums[1], &product);
    }
}

/// Adds the numbers of a plane to sums.
pub(super) struct Total<'a> {
    pub x: &'a [f32],
    pub sums: &'a mut Row,
}

impl Vectorised for Total<'_> {
    #[inline(always)]
    fn run(self) {
        let (x, rest) = self.x.as_chunks::<ROW>();
        // The sums of a plane are apart from those so far, so that they are short.
        let mut sums = [0.0; ROW];
        x.iter().for_each(|x| add(&mut sums, x));
        sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += x);
        add(self.sums, &sums);
    }
}

#[inline(always)]
fn correlate<const RELU: bool>(affine: &Affine, dy: &[f32], x: &[f32], plain: &mut Row, product: &mut Row) {
    let places = dy.len().min(x.len()).min(ROW);
    for place in 0..places {
        let x = x[place];
        let dy = affine.passed::<RELU>(place, dy[place], x);
        plain[place] += dy;
        product[place] += dy * (x - affine.mean[place]);
    }
}

/// [`super::Slope`] for each place.
pub(super) struct Slope {
    factor: Row,
    slope: Row,
    offset: Row,
}

/// `dx` from `dy`, or from itself without `dy`, and from `x`, with dy as a ReLU of `affine` lets it pass.
pub(super) struct Back<'a> {
    pub affine: &'a Affine,
    pub relu: bool,
    pub slope: &'a Slope,
    pub dy: Option<&'a [f32]>,
    pub x: &'a [f32],
    pub dx: &'a mut [f32],
}

impl Vectorised for Back<'_> {
    #[inline(always)]
    fn run(self) {
        if self.relu { self.map::<true>() } else { self.map::<false>() }
    }
}

impl Back<'_> {
    #[inline(always)]
    fn map<const RELU: bool>(self) {
        let Self { affine, slope, dy, x, dx, .. } = self;
        let ((x, x_rest), (rows, rest)) = (x.as_chunks::<ROW>(), dx.as_chunks_mut::<ROW>());
        match dy.map(<[f32]>::as_chunks::<ROW>) {
            Some((dy, dy_rest)) => {
                for ((dx, dy), x) in rows.iter_mut().zip(dy).zip(x) {
                    back::<RELU>(affine, slope, dy, x, dx);
                }
                back::<RELU>(affine, slope, dy_rest, x_rest, rest);
            }
            None => {
                for (dx, x) in rows.iter_mut().zip(x) {
                    back_in_place::<RELU>(affine, slope, x, dx);
                }
                back_in_place::<RELU>(affine, slope, x_rest, rest);
            }
        }
    }
}

impl Slope {
    pub fn of_blocks(slope: &super::Slope, block: usize) -> Self {
        let [factor, slope, offset] = [slope.factor, slope.slope, slope.offset].map(|n| row(&n, block));
        Self { factor, slope, offset }
    }

    #[inline(always)]
    fn of<const RELU: bool>(&self, affine: &Affine, place: usize, dy: f32, x: f32) -> f32 {
        let dy = affine.passed::<RELU>(place, dy, x);
        dy * self.factor[place] - (x - affine.mean[place]) * self.slope[place] - self.offset[place]
    }
}

#[inline(always)]
fn back<const RELU: bool>(affine: &Affine, slope: &Slope, dy: &[f32], x: &[f32], dx: &mut [f32]) {
    let places = dx.len().min(dy.len()).min(x.len()).min(ROW);
    let (dy, x) = (&dy[..places], &x[..places]);
    f32::write(&mut dx[..places], |place, _| slope.of::<RELU>(affine, place, dy[place], x[place]));
}

#[inline(always)]
fn back_in_place<const RELU: bool>(affine: &Affine, slope: &Slope, x: &[f32], dx: &mut [f32]) {
    let places = dx.len().min(x.len()).min(ROW);
    let x = &x[..places];
    f32::write(&mut dx[..places], |place, dy| slope.of::<RELU>(affine, place, dy, x[place]));
}
