//! Passes over a plane of an array whose channels have numbers of their own, such as a mean.
//!
//! A plane is a row of blocks of channels, or the pixels of one channel. Either way it is read in rows of [`ROW`]
//! elements: whole blocks, so that an element's place in its row says which channel it is of, and a place has the
//! numbers of its channel. Sums are kept for each place of a row, and whoever asks adds up the places of a channel.
//! Loops over a row are long enough that the compiler makes vectors of them instead of unrolling them.
//!
//! Elements are f32 or bf16; a row of numbers that is computed is rounded when it is whole ([`Element::write`]).

use super::element::Element;
use super::elements::{passes, rectified};
use super::vectorised::Vectorised;

/// Elements of a row: some blocks of every tier.
pub(crate) const ROW: usize = 128;

/// Rows of a piece, which stays in the first-level cache and has short sums.
const PIECE: usize = 32;

/// A number for each place of a row.
pub(crate) type Row = [f32; ROW];

/// `(x − mean) · factor + bias`.
#[derive(Clone, Debug)]
pub(crate) struct Affine {
    pub mean: Row,
    pub factor: Row,
    pub bias: Row,
}

impl Affine {
    /// `x` itself.
    pub const IDENTITY: Self = Self { mean: [0.0; ROW], factor: [1.0; ROW], bias: [0.0; ROW] };

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
pub(crate) struct Apply<'a, E> {
    pub affine: &'a Affine,
    pub relu: bool,
    pub x: Option<&'a [E]>,
    pub y: &'a mut [E],
}

impl<E: Element> Vectorised for Apply<'_, E> {
    #[inline(always)]
    fn run(self) {
        if self.relu { self.map::<true>() } else { self.map::<false>() }
    }
}

impl<E: Element> Apply<'_, E> {
    #[inline(always)]
    fn map<const RELU: bool>(self) {
        let Self { affine, x, y, .. } = self;
        let (rows, rest) = y.as_chunks_mut::<ROW>();
        match x.map(<[E]>::as_chunks::<ROW>) {
            Some((from, from_rest)) => {
                for (y, x) in rows.iter_mut().zip(from) {
                    apply::<E, RELU>(affine, x, y);
                }
                apply::<E, RELU>(affine, from_rest, rest);
            }
            None => {
                for y in rows {
                    change::<E, RELU>(affine, y);
                }
                change::<E, RELU>(affine, rest);
            }
        }
    }
}

#[inline(always)]
fn apply<E: Element, const RELU: bool>(affine: &Affine, x: &[E], y: &mut [E]) {
    let places = y.len().min(x.len()).min(ROW);
    let x = &x[..places];
    E::write(&mut y[..places], |place, _| {
        let value = affine.of(place, x[place].wide());
        if RELU { rectified(value, 0.0) } else { value }
    });
}

#[inline(always)]
fn change<E: Element, const RELU: bool>(affine: &Affine, y: &mut [E]) {
    let places = y.len().min(ROW);
    E::write(&mut y[..places], |place, y| {
        let value = affine.of(place, y);
        if RELU { rectified(value, 0.0) } else { value }
    });
}

/// Number, mean, and sum of the squared distances from the mean of the values at each place of a row.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
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

    /// Number, mean, and squared distances at a place.
    pub fn at(&self, place: usize) -> [f32; 3] {
        [self.counts[usize::from(place >= self.rest)], self.mean[place], self.squares[place]]
    }

    /// Adds whole rows and perhaps the rest of a plane: first their mean, then the distances from it, so that nothing
    /// cancels; then both parts are joined (Chan, Golub and LeVeque, 1979).
    #[inline(always)]
    fn add<E: Element>(&mut self, rows: &[[E; ROW]], rest: &[E]) {
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
fn add<E: Element>(sums: &mut Row, x: &[E]) {
    let places = x.len().min(ROW);
    for place in 0..places {
        sums[place] += x[place].wide();
    }
}

#[inline(always)]
fn add_squares<E: Element>(sums: &mut Row, mean: &Row, x: &[E]) {
    let places = x.len().min(ROW);
    for place in 0..places {
        let distance = x[place].wide() - mean[place];
        sums[place] += distance * distance;
    }
}

/// Adds the values of a plane to moments.
pub(crate) struct Measure<'a, E> {
    pub x: &'a [E],
    pub moments: &'a mut Moments,
}

impl<E: Element> Vectorised for Measure<'_, E> {
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
pub(crate) struct Correlate<'a, E> {
    pub affine: &'a Affine,
    pub relu: bool,
    pub dy: &'a [E],
    pub x: &'a [E],
    pub sums: &'a mut [Row; 2],
}

impl<E: Element> Vectorised for Correlate<'_, E> {
    #[inline(always)]
    fn run(self) {
        if self.relu { self.add::<true>() } else { self.add::<false>() }
    }
}

impl<E: Element> Correlate<'_, E> {
    #[inline(always)]
    fn add<const RELU: bool>(self) {
        let Self { affine, dy, x, sums, .. } = self;
        let ((dy, dy_rest), (x, x_rest)) = (dy.as_chunks::<ROW>(), x.as_chunks::<ROW>());
        // The sums of a plane are apart from those so far, so that they are short.
        let (mut plain, mut product) = ([0.0; ROW], [0.0; ROW]);
        for (dy, x) in dy.iter().zip(x) {
            correlate::<E, RELU>(affine, dy, x, &mut plain, &mut product);
        }
        correlate::<E, RELU>(affine, dy_rest, x_rest, &mut plain, &mut product);
        add(&mut sums[0], &plain);
        add(&mut sums[1], &product);
    }
}

#[inline(always)]
fn correlate<E: Element, const RELU: bool>(
    affine: &Affine,
    dy: &[E],
    x: &[E],
    plain: &mut Row,
    product: &mut Row,
) {
    let places = dy.len().min(x.len()).min(ROW);
    for place in 0..places {
        let x = x[place].wide();
        let dy = affine.passed::<RELU>(place, dy[place].wide(), x);
        plain[place] += dy;
        product[place] += dy * (x - affine.mean[place]);
    }
}

/// Adds Σ dy of a plane to sums.
pub(crate) struct Add<'a, E> {
    pub dy: &'a [E],
    pub sums: &'a mut Row,
}

impl<E: Element> Vectorised for Add<'_, E> {
    #[inline(always)]
    fn run(self) {
        let (rows, rest) = self.dy.as_chunks::<ROW>();
        let mut sums = [0.0; ROW];
        for row in rows {
            add(&mut sums, row);
        }
        add(&mut sums, rest);
        add(self.sums, &sums);
    }
}

/// How a gradient goes back: `dx = dy · factor − (x − mean) · slope − offset`.
#[derive(Clone, Debug)]
pub(crate) struct Slope {
    pub factor: Row,
    pub slope: Row,
    pub offset: Row,
}

/// `dx` from `dy`, or from itself without `dy`, and from `x`, with dy as a ReLU of `affine` lets it pass.
pub(crate) struct Back<'a, E> {
    pub affine: &'a Affine,
    pub relu: bool,
    pub slope: &'a Slope,
    pub dy: Option<&'a [E]>,
    pub x: &'a [E],
    pub dx: &'a mut [E],
}

impl<E: Element> Vectorised for Back<'_, E> {
    #[inline(always)]
    fn run(self) {
        if self.relu { self.map::<true>() } else { self.map::<false>() }
    }
}

impl<E: Element> Back<'_, E> {
    #[inline(always)]
    fn map<const RELU: bool>(self) {
        let Self { affine, slope, dy, x, dx, .. } = self;
        let ((x, x_rest), (rows, rest)) = (x.as_chunks::<ROW>(), dx.as_chunks_mut::<ROW>());
        match dy.map(<[E]>::as_chunks::<ROW>) {
            Some((dy, dy_rest)) => {
                for ((dx, dy), x) in rows.iter_mut().zip(dy).zip(x) {
                    back::<E, RELU>(affine, slope, dy, x, dx);
                }
                back::<E, RELU>(affine, slope, dy_rest, x_rest, rest);
            }
            None => {
                for (dx, x) in rows.iter_mut().zip(x) {
                    back_in_place::<E, RELU>(affine, slope, x, dx);
                }
                back_in_place::<E, RELU>(affine, slope, x_rest, rest);
            }
        }
    }
}

impl Slope {
    #[inline(always)]
    fn of<const RELU: bool>(&self, affine: &Affine, place: usize, dy: f32, x: f32) -> f32 {
        let dy = affine.passed::<RELU>(place, dy, x);
        dy * self.factor[place] - (x - affine.mean[place]) * self.slope[place] - self.offset[place]
    }
}

#[inline(always)]
fn back<E: Element, const RELU: bool>(affine: &Affine, slope: &Slope, dy: &[E], x: &[E], dx: &mut [E]) {
    let places = dx.len().min(dy.len()).min(x.len()).min(ROW);
    let (dy, x) = (&dy[..places], &x[..places]);
    E::write(&mut dx[..places], |place, _| {
        slope.of::<RELU>(affine, place, dy[place].wide(), x[place].wide())
    });
}

#[inline(always)]
fn back_in_place<E: Element, const RELU: bool>(affine: &Affine, slope: &Slope, x: &[E], dx: &mut [E]) {
    let places = dx.len().min(x.len()).min(ROW);
    let x = &x[..places];
    E::write(&mut dx[..places], |place, dy| slope.of::<RELU>(affine, place, dy, x[place].wide()));
}
