//! ∇A and ∇W of a few rows at once: each line of the weight is read once for both, and where the rule is momentum SGD the rows
//! are updated by their gradient while it is in registers. What is read and written of weight and history then takes turns
//! line by line; behind each other, as two loops over a piece of the rows, they take a quarter more time (measured on
//! Granite Rapids, 4 rows of 3,136 columns).

use super::{Columns, OnProducts, TILE_VECTORS, of_images, with_products};
use crate::isa::{Isa, Precision};
use crate::kernel::simd::{Product, Simd, Vector};
use crate::kernel::stored::Origin;

/// Rows of [`Passing`]: their gradients, a tile of columns, are in registers.
pub(crate) const PASSING_ROWS: usize = 4;

/// What becomes of the gradient of a tile of columns of the rows. `take` must be `#[inline(always)]`.
pub(crate) trait Found {
    /// Columns that there is room for.
    fn columns(&self) -> usize;

    /// Takes the gradient of a row, a tile of columns from `column` on.
    ///
    /// # Safety
    /// The CPU has the instructions of `S`, `row` is below [`PASSING_ROWS`], and the tile ends before [`Found::columns`].
    unsafe fn take<S: Simd>(&mut self, row: usize, column: usize, gradient: [S::Vector; TILE_VECTORS]);
}

/// Keeps the gradient, row by row, for whoever updates them next.
pub(crate) struct Kept<'a> {
    pub dw: &'a mut [f32],
}

impl Found for Kept<'_> {
    fn columns(&self) -> usize {
        self.dw.len() / PASSING_ROWS
    }

    #[inline(always)]
    unsafe fn take<S: Simd>(&mut self, row: usize, column: usize, gradient: [S::Vector; TILE_VECTORS]) {
        let first = row * self.columns() + column;
        for (v, gradient) in gradient.into_iter().enumerate() {
            // SAFETY: the CPU has the instructions, and the tile is in the row, by contract.
            unsafe { S::store(self.dw.as_mut_ptr().add(first + v * S::LANES), gradient) }
        }
    }
}

/// Updates the rows: momentum SGD with an L2 penalty, by the same operations as `quadrille_core::solver::update`, so that the
/// bits are the same.
#[derive(Clone, Copy)]
pub(crate) struct Momentum {
    /// The weight and its history, from the first column of the first row on.
    pub weight: Origin,
    pub history: Origin,
    /// What pulls the weights, if anything does.
    pub centre: Option<Centre>,
    /// Distance of rows.
    pub row: usize,
    /// Columns from the first one on that the grain has for itself.
    pub columns: usize,
    /// What the gradient is multiplied by before the penalty.
    pub scale: f32,
    /// The weight decay times the parameter's factor.
    pub decay: f32,
    /// μ.
    pub momentum: f32,
    /// The learning rate times the parameter's factor.
    pub rate: f32,
}

/// The centre of the EASGD family.
#[derive(Clone, Copy)]
pub(crate) struct Centre {
    /// Its weights, which lie like the weight.
    pub weights: Origin,
    /// ηρ.
    pub strength: f32,
}

impl Momentum {
    /// The same for `columns` columns from an element of the weight on.
    ///
    /// # Safety
    /// They are inside of the arrays in [`PASSING_ROWS`] rows, and no other grain touches them.
    pub unsafe fn from(self, element: usize, columns: usize) -> Self {
        // SAFETY: by contract.
        let from = |array: Origin| unsafe { Origin::new(array.first().add(element)) };
        let centre = self.centre.map(|centre| Centre { weights: from(centre.weights), ..centre });
        Self { weight: from(self.weight), history: from(self.history), centre, columns, ..self }
    }
}

impl Found for Momentum {
    fn columns(&self) -> usize {
        self.columns
    }

    #[inline(always)]
    unsafe fn take<S: Simd>(&mut self, row: usize, column: usize, gradient: [S::Vector; TILE_VECTORS]) {
        // SAFETY: the CPU has the instructions by contract, by which the tile is in the row, too.
        unsafe {
            let [scale, decay, momentum, rate] =
                [self.scale, self.decay, self.momentum, self.rate].map(|factor| S::splat(factor));
            for (v, gradient) in gradient.into_iter().enumerate() {
                let place = row * self.row + column + v * S::LANES;
                let (to, history) = (self.weight.first().add(place), self.history.first().add(place));
                let weight = S::load(to);
                let gradient = S::add(S::multiply(scale, gradient), S::multiply(decay, weight));
                let amount = S::add(S::multiply(momentum, S::load(history)), S::multiply(rate, gradient));
                S::store(history, amount);
                let stepped = S::subtract(weight, amount);
                let stepped = match self.centre {
                    None => stepped,
                    Some(Centre { weights, strength }) => {
                        let apart = S::subtract(weight, S::load(weights.first().add(place)));
                        S::subtract(stepped, S::multiply(S::splat(strength), apart))
                    }
                };
                S::store(to, stepped);
            }
        }
    }
}

/// Adds the products of a few rows with the images' gradients to sums for columns of the rows, as [`Columns`], and finds the
/// gradient of these columns of the rows.
pub(crate) struct Passing<'a, F> {
    /// The products for ∇A: of [`PASSING_ROWS`] rows, and whole tiles of columns.
    pub of: Columns<'a>,
    /// For each image, or for every two of them, a word for each row.
    pub dy_across: &'a [f32],
    /// Distance of images, or of pairs, there.
    pub dy_step: usize,
    /// The images' numbers in these columns: tile by tile, image by image or pair by pair.
    pub x: &'a [f32],
    /// What becomes of the gradient.
    pub found: F,
    /// Where as many rows come next in arrays that lie like the weight: they are asked for, too.
    pub beside: &'a [*const f32],
}

impl<F: Found> Passing<'_, F> {
    /// Adds the products, with vectors of `isa`.
    ///
    /// # Panics
    /// If the CPU does not have the tier, or arrays are too short.
    pub fn add(self, isa: Isa, precision: Precision) {
        with_products(isa, precision, self);
    }
}

impl<F: Found> OnProducts for Passing<'_, F> {
    #[inline(always)]
    unsafe fn run<P: Product>(self) {
        let of = &self.of;
        let (width, depth) = (TILE_VECTORS * P::Registers::LANES, of.images.div_ceil(P::IN_WORD));
        assert_eq!(of.rows, PASSING_ROWS, "rows at once");
        assert!(of.columns.is_multiple_of(width), "{} columns are no whole tiles", of.columns);
        let last_image = (of.images - 1) * of.dy_image;
        assert!(last_image + PASSING_ROWS / P::IN_WORD <= of.dy.len(), "gradients are too short");
        assert!((depth - 1) * self.dy_step + PASSING_ROWS <= self.dy_across.len(), "gradients are too short");
        assert!(of.images * of.columns <= of.sums.len(), "no room for the sums");
        assert!(depth * of.columns <= self.x.len(), "images are too short");
        assert!(of.columns <= self.found.columns(), "no room for the gradient");
        // SAFETY: the CPU has the instructions by contract, and the rows are there by that of the weight; the other arrays are as long
        // as asserted.
        unsafe { of_images!(self.of.images, pass::<P, F>(self)) }
    }
}

/// All tiles of the columns, for `IMAGES` images.
///
/// # Safety
/// The CPU has the instructions, and the arrays are as long as the fields of `p` say.
#[inline(always)]
unsafe fn pass<P: Product, F: Found, const IMAGES: usize>(mut p: Passing<'_, F>) {
    for first in (0..p.of.columns).step_by(TILE_VECTORS * P::Registers::LANES) {
        ask_for::<P>(p.of.next, p.of.row, first);
        p.beside.iter().for_each(|array| ask_for::<P>(*array, p.of.row, first));
        // SAFETY: by contract; a tile's columns are inside the rows, and each array holds all tiles.
        unsafe {
            add_columns::<P, IMAGES>(&mut p.of, first);
            find_gradient::<P, F, IMAGES>(&mut p, first);
        }
    }
}

/// Asks for a tile of columns, from number `first` on, of the rows from `rows` on.
#[inline(always)]
fn ask_for<P: Product>(rows: *const f32, row: usize, first: usize) {
    for place in 0..PASSING_ROWS * TILE_VECTORS {
        let column = first + place % TILE_VECTORS * P::Registers::LANES;
        P::Registers::prefetch_far(rows.wrapping_add(place / TILE_VECTORS * row + column));
    }
}

/// ∇A of a tile of columns.
///
/// # Safety
/// As for [`pass`]; the tile begins with column `first`.
#[inline(always)]
unsafe fn add_columns<P: Product, const IMAGES: usize>(c: &mut Columns<'_>, first: usize) {
    let lanes = P::Registers::LANES;
    let (width, steps) = (TILE_VECTORS * lanes, PASSING_ROWS / P::IN_WORD);
    let (w, row, dy, dy_image, add) = (c.w.first().cast_const(), c.row, c.dy.as_ptr(), c.dy_image, c.add);
    let sums = c.sums.as_mut_ptr();
    // SAFETY: by contract.
    unsafe {
        let mut weights = [[P::Registers::zero(); TILE_VECTORS]; PASSING_ROWS];
        for (step, weights) in weights.iter_mut().enumerate().take(steps) {
            for (v, weight) in weights.iter_mut().enumerate() {
                *weight = P::across(w.add(step * P::IN_WORD * row + first + v * lanes), row);
            }
        }
        for image in 0..IMAGES {
            let to = sums.add(first * IMAGES + image * width);
            let mut sums = [P::Registers::zero(); TILE_VECTORS];
            if add {
                sums.iter_mut().enumerate().for_each(|(v, sum)| *sum = P::Registers::load(to.add(v * lanes)));
            }
            for (step, weights) in weights.iter().enumerate().take(steps) {
                let dy = P::Registers::splat(*dy.add(image * dy_image + step));
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = P::add(dy, *weight, *sum);
                }
            }
            sums.iter().enumerate().for_each(|(v, sum)| P::Registers::store(to.add(v * lanes), *sum));
        }
    }
}

/// ∇W of a tile of columns.
///
/// # Safety
/// As for [`pass`]; the tile begins with column `first`.
#[inline(always)]
unsafe fn find_gradient<P: Product, F: Found, const IMAGES: usize>(p: &mut Passing<'_, F>, first: usize) {
    let lanes = P::Registers::LANES;
    let (width, depth) = (TILE_VECTORS * lanes, IMAGES.div_ceil(P::IN_WORD));
    let (x, dy, dy_step) = (p.x.as_ptr(), p.dy_across.as_ptr(), p.dy_step);
    // SAFETY: by contract.
    unsafe {
        let mut gradient: [[Vector<P>; TILE_VECTORS]; PASSING_ROWS] =
            [[P::Registers::zero(); TILE_VECTORS]; PASSING_ROWS];
        for step in 0..depth {
            let from = x.add(first * depth + step * width);
            let mut x = [P::Registers::zero(); TILE_VECTORS];
            x.iter_mut().enumerate().for_each(|(v, x)| *x = P::Registers::load(from.add(v * lanes)));
            for (row, sums) in gradient.iter_mut().enumerate() {
                let dy = P::Registers::splat(*dy.add(step * dy_step + row));
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = P::add(dy, x, *sum);
                }
            }
        }
        for (row, gradient) in gradient.into_iter().enumerate() {
            p.found.take::<P::Registers>(row, first, gradient);
        }
    }
}
