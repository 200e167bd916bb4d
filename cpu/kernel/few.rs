//! Products of the rows of a weight with few images, whose time is that of reading the weight. Rows are read where they lie,
//! piece by piece of a few together, and with each vector that is multiplied the same of the next rows is asked for: the
//! processor's prefetchers alone find no more than half of what memory can give in such pieces, and where many lines are asked
//! for at once it leaves most of them out.
//!
//! - [`Dots`]: `y[o][n] += Σ_d w[o][d] · x[n][d]`: vectors run along the rows, so that no number of them is wasted if there
//!   are fewer images than a vector has numbers. Each number of a vector has a sum of its own until [`Totals`].
//! - [`Columns`]: `dx[n][d] (+)= Σ_o dy[n][o] · w[o][d]` over a few rows;
//! - [`Passing`]: the same, and `dw[o][d] = Σ_n dy[n][o] · x[n][d]` of these rows, by which they are updated.
//!
//! In bf16 the numbers of the weight are rounded on the way.

mod passing;

pub(crate) use passing::{Centre, Kept, Momentum, PASSING_ROWS, Passing};

use super::simd::{Product, Simd, Vector};
use super::stored::Origin;
use super::vectorised::{Explicit, Vectorised, with_vectors};
use super::words::{Narrow, Narrowing, with_words};
use crate::isa::{Isa, Precision};

/// Most images.
pub(crate) const MOST_IMAGES: usize = 8;
/// Most rows of [`Dots`]: their sums, and those of all images, are in registers.
pub(crate) const MOST_DOTS: usize = 2;
/// Most rows of [`Columns`].
pub(crate) const MOST_ROWS: usize = 32;
/// Vectors of a tile of [`Columns`] and of [`Passing`].
pub(crate) const TILE_VECTORS: usize = 2;

/// Numbers of the widest vector.
const MOST_LANES: usize = 16;

/// A piece of work on words of either precision. `run` must be `#[inline(always)]`, as must be what it calls.
trait OnProducts {
    /// Does the work.
    ///
    /// # Safety
    /// The CPU has the instructions of `P`.
    unsafe fn run<P: Product>(self);
}

/// Runs `work` with the products of a tier and a precision.
///
/// # Panics
/// If the CPU does not have the tier, or the tier has no vectors or not this precision.
fn with_products(isa: Isa, precision: Precision, work: impl OnProducts) {
    struct Plain<W>(W);
    impl<W: OnProducts> Explicit for Plain<W> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: by contract.
            unsafe { self.0.run::<S>() }
        }
    }
    struct Paired<W>(W);
    impl<W: OnProducts> Narrowing for Paired<W> {
        #[inline(always)]
        unsafe fn run<N: Narrow>(self) {
            // SAFETY: by contract.
            unsafe { self.0.run::<N::Products>() }
        }
    }
    match precision {
        Precision::F32 => with_vectors(isa, Plain(work)),
        Precision::Bf16 => with_words(Paired(work)),
    }
}

/// Calls a function with the number of images as a constant.
macro_rules! of_images {
    ($images:expr, $call:ident::<$($generic:tt),+>($($argument:expr),*)) => {
        match $images {
            1 => $call::<$($generic),+, 1>($($argument),*),
            2 => $call::<$($generic),+, 2>($($argument),*),
            3 => $call::<$($generic),+, 3>($($argument),*),
            4 => $call::<$($generic),+, 4>($($argument),*),
            5 => $call::<$($generic),+, 5>($($argument),*),
            6 => $call::<$($generic),+, 6>($($argument),*),
            7 => $call::<$($generic),+, 7>($($argument),*),
            8 => $call::<$($generic),+, 8>($($argument),*),
            images => panic!("{images} images are not few"),
        }
    };
}
use of_images;

/// Adds the products of a few rows with all images to their sums.
pub(crate) struct Dots<'a> {
    /// The rows, from the first number on.
    pub w: &'a [f32],
    /// Distance of rows.
    pub row: usize,
    /// How many there are: at most [`MOST_DOTS`].
    pub rows: usize,
    /// Numbers of a row.
    pub len: usize,
    /// The images: for each vector of words of a row that of each image, filled up with zeros.
    pub x: &'a [f32],
    /// How many there are: at most [`MOST_IMAGES`].
    pub images: usize,
    /// The sums: row by row, image by image, a vector each, whose total is the sum.
    pub sums: &'a mut [f32],
    /// Whether products are added to what is there.
    pub add: bool,
    /// As many numbers of as many rows, which come next: they are asked for.
    pub next: *const f32,
}

impl Dots<'_> {
    /// Adds the products, with vectors of `isa`.
    ///
    /// # Panics
    /// If the CPU does not have the tier, or arrays are too short.
    pub fn add(self, isa: Isa, precision: Precision) {
        with_products(isa, precision, self);
    }
}

impl OnProducts for Dots<'_> {
    #[inline(always)]
    unsafe fn run<P: Product>(self) {
        let vectors = self.len.div_ceil(P::Registers::LANES * P::IN_WORD);
        assert!((self.rows - 1) * self.row + self.len <= self.w.len(), "rows beyond the weight");
        assert!(vectors * self.images * P::Registers::LANES <= self.x.len(), "images are too short");
        let sums = self.rows * self.images * P::Registers::LANES;
        assert!(sums <= self.sums.len(), "no room for the sums");
        // SAFETY: the CPU has the instructions by contract; the arrays are as long as asserted.
        unsafe {
            match self.rows {
                1 => of_images!(self.images, dots::<P, 1>(self)),
                MOST_DOTS => of_images!(self.images, dots::<P, MOST_DOTS>(self)),
                rows => panic!("{rows} rows at once"),
            }
        }
    }
}

/// The products of `ROWS` rows with `IMAGES` images.
///
/// # Safety
/// The CPU has the instructions, and the arrays are as long as the fields of `d` say.
#[inline(always)]
unsafe fn dots<P: Product, const ROWS: usize, const IMAGES: usize>(d: Dots<'_>) {
    let lanes = P::Registers::LANES;
    let numbers = lanes * P::IN_WORD;
    let whole = d.len / numbers;
    // SAFETY: by contract; what is left of a row is copied to where a vector's numbers are.
    unsafe {
        let mut sums = [[P::Registers::zero(); IMAGES]; ROWS];
        if d.add {
            for (at, sum) in sums.as_flattened_mut().iter_mut().enumerate() {
                *sum = P::Registers::load(d.sums.as_ptr().add(at * lanes));
            }
        }
        for vector in 0..whole {
            // One after the other, and no more at once than the processor can wait for: what is too much is not read.
            for place in 0..ROWS * P::IN_WORD {
                let next = place / P::IN_WORD * d.row + vector * numbers + place % P::IN_WORD * lanes;
                P::Registers::prefetch_far(d.next.wrapping_add(next));
            }
            let w = d.w.as_ptr().add(vector * numbers);
            let x = d.x.as_ptr().add(vector * IMAGES * lanes);
            add_products::<P, ROWS, IMAGES>([w, w.wrapping_add(d.row)], x, &mut sums);
        }
        if whole * numbers < d.len {
            let mut rest = [[0.0; 2 * MOST_LANES]; MOST_DOTS];
            for (r, rest) in rest.iter_mut().enumerate().take(ROWS) {
                let row = &d.w[r * d.row + whole * numbers..r * d.row + d.len];
                rest[..row.len()].copy_from_slice(row);
            }
            let x = d.x.as_ptr().add(whole * IMAGES * lanes);
            add_products::<P, ROWS, IMAGES>([rest[0].as_ptr(), rest[1].as_ptr()], x, &mut sums);
        }
        for (at, sum) in sums.as_flattened().iter().enumerate() {
            P::Registers::store(d.sums.as_mut_ptr().add(at * lanes), *sum);
        }
    }
}

/// Adds the products of a vector of words of each row with those of all images.
///
/// # Safety
/// The CPU has the instructions; as many numbers lie behind each of `w`, and a vector of each image behind `x`.
#[inline(always)]
unsafe fn add_products<P: Product, const ROWS: usize, const IMAGES: usize>(
    w: [*const f32; MOST_DOTS],
    x: *const f32,
    sums: &mut [[Vector<P>; IMAGES]; ROWS],
) {
    // SAFETY: by contract.
    unsafe {
        let mut weights = [P::Registers::zero(); ROWS];
        for (weight, w) in weights.iter_mut().zip(w) {
            *weight = P::along(w);
        }
        for image in 0..IMAGES {
            let x = P::Registers::load(x.add(image * P::Registers::LANES));
            for (sums, weight) in sums.iter_mut().zip(weights) {
                sums[image] = P::add(weight, x, sums[image]);
            }
        }
    }
}

/// Totals of vectors: each takes its place among them, from the first on. The halves of a vector are added until one number
/// is left.
pub(crate) struct Totals<'a> {
    /// The vectors.
    pub sums: &'a mut [f32],
    /// Numbers of a vector.
    pub lanes: usize,
}

impl Vectorised for Totals<'_> {
    #[inline(always)]
    fn run(self) {
        for at in 0..self.sums.len() / self.lanes {
            let mut numbers = [0.0; MOST_LANES];
            numbers[..self.lanes].copy_from_slice(&self.sums[at * self.lanes..][..self.lanes]);
            let mut count = self.lanes;
            while count > 1 {
                count /= 2;
                for i in 0..count {
                    numbers[i] += numbers[count + i];
                }
            }
            self.sums[at] = numbers[0];
        }
    }
}

/// Adds the products of a few rows with the images' gradients to sums for columns of the rows.
pub(crate) struct Columns<'a> {
    /// The rows, from the first column on: so many columns of each are read.
    pub w: Origin,
    /// Distance of rows.
    pub row: usize,
    /// How many there are: at most [`MOST_ROWS`].
    pub rows: usize,
    /// How many columns.
    pub columns: usize,
    /// For each image a word for each row, or for every two of them, the last filled up with 0.
    pub dy: &'a [f32],
    /// Distance of images there.
    pub dy_image: usize,
    /// How many images: at most [`MOST_IMAGES`].
    pub images: usize,
    /// The sums: tile of columns by tile, image by image, [`TILE_VECTORS`] vectors each.
    pub sums: &'a mut [f32],
    /// Whether products are added to what is there.
    pub add: bool,
    /// As many rows that come next: they are asked for.
    pub next: *const f32,
}

impl Columns<'_> {
    /// Adds the products, with vectors of `isa`.
    ///
    /// # Panics
    /// If the CPU does not have the tier, or arrays are too short.
    pub fn add(self, isa: Isa, precision: Precision) {
        with_products(isa, precision, self);
    }
}

impl OnProducts for Columns<'_> {
    #[inline(always)]
    unsafe fn run<P: Product>(self) {
        assert!(self.rows <= MOST_ROWS, "{} rows at once", self.rows);
        let last_image = (self.images - 1) * self.dy_image;
        assert!(last_image + self.rows.div_ceil(P::IN_WORD) <= self.dy.len(), "gradients are too short");
        // SAFETY: the CPU has the instructions by contract, and the rows are there by that of the weight; the other arrays are as long
        // as asserted.
        unsafe { of_images!(self.images, tiles::<P>(self)) }
    }
}

/// All tiles of the columns, for `IMAGES` images.
///
/// # Safety
/// The CPU has the instructions, and the arrays are as long as the fields of `c` say.
#[inline(always)]
unsafe fn tiles<P: Product, const IMAGES: usize>(c: Columns<'_>) {
    let lanes = P::Registers::LANES;
    let width = TILE_VECTORS * lanes;
    let steps = c.rows.div_ceil(P::IN_WORD);
    let mut copied = [0.0; MOST_ROWS * TILE_VECTORS * MOST_LANES];
    for (tile, sums) in c.sums.chunks_exact_mut(IMAGES * width).enumerate() {
        let columns = tile * width..((tile + 1) * width).min(c.columns);
        // What is no whole tile is copied to the begin of one, whose rest is 0.
        let first = c.w.first().cast_const().wrapping_add(columns.start);
        let (w, row) = if columns.len() == width && c.rows.is_multiple_of(P::IN_WORD) {
            (first, c.row)
        } else {
            copied.fill(0.0);
            for (r, to) in copied.chunks_exact_mut(width).enumerate().take(c.rows) {
                // SAFETY: by the contract of the weight.
                let from = unsafe { std::slice::from_raw_parts(first.add(r * c.row), columns.len()) };
                to[..columns.len()].copy_from_slice(from);
            }
            (copied.as_ptr(), width)
        };
        let next = c.next.wrapping_add(columns.start);
        // SAFETY: by contract; the sums hold all images.
        unsafe {
            let mut tile = [[P::Registers::zero(); TILE_VECTORS]; IMAGES];
            if c.add {
                for (at, sum) in tile.as_flattened_mut().iter_mut().enumerate() {
                    *sum = P::Registers::load(sums.as_ptr().add(at * lanes));
                }
            }
            for step in 0..steps {
                let first = step * P::IN_WORD;
                for place in 0..P::IN_WORD * TILE_VECTORS {
                    let row = (first + place / TILE_VECTORS) * c.row;
                    P::Registers::prefetch_far(next.wrapping_add(row + place % TILE_VECTORS * lanes));
                }
                let mut weights = [P::Registers::zero(); TILE_VECTORS];
                for (v, weight) in weights.iter_mut().enumerate() {
                    *weight = P::across(w.add(first * row + v * lanes), row);
                }
                for (image, sums) in tile.iter_mut().enumerate() {
                    let dy = P::Registers::splat(*c.dy.as_ptr().add(image * c.dy_image + step));
                    for (sum, weight) in sums.iter_mut().zip(weights) {
                        *sum = P::add(dy, weight, *sum);
                    }
                }
            }
            for (at, sum) in tile.as_flattened().iter().enumerate() {
                P::Registers::store(sums.as_mut_ptr().add(at * lanes), *sum);
            }
        }
    }
}
