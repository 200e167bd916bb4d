//! Gradients of inputs from the products of tiles: a tile sees more inputs than it has outputs, so neighbours overlap, and what they
//! find is added up.

use super::axis::{Axis, F2x3, F4x3, F4x5};
use super::table::{Line, Table};
use super::{Filter, Simd};
use crate::kernel::stored::{OnStored, Origin, Stored};

/// Transforms products back to gradients of inputs, `B M Bᵀ`, adds up those of all tiles of an image, and stores a block of channels
/// of each pixel.
pub(crate) struct InputsBack<'a> {
    /// How kernels are filtered.
    pub filter: Filter,
    /// The products: point by point `point` apart, tile by tile a vector apart.
    pub products: &'a [f32],
    /// Distance of points.
    pub point: usize,
    /// First row and column of each tile's outputs, which are those of its inputs where padding is counted, too: all tiles of an
    /// image.
    pub tiles: &'a [[usize; 2]],
    /// Room for the sums: rows and columns of what the tiles see, a vector each.
    pub sums: &'a mut [f32],
    /// These rows and columns.
    pub seen: [usize; 2],
    /// Whether the sums are added to what the plane holds.
    pub adds: bool,
    /// If the backward of a ReLU goes over them, where its values begin, which lie as the plane does and are all read.
    pub sign: Option<Origin>,
    /// Where the plane begins, all of which is read and written: pixels of a block of channels, row by row.
    pub plane: Origin,
    /// Rows and columns of the plane.
    pub extents: [usize; 2],
    /// Rows and columns of padding before it.
    pub pad: [usize; 2],
}

impl InputsBack<'_> {
    /// Adds the tiles up.
    ///
    /// # Safety
    /// The CPU has the instructions of `S`; products and sums are as long as the tiles ask for.
    #[inline(always)]
    unsafe fn add_up<S, A, const D: usize, const Y: usize, const G: usize, const N: usize>(&mut self)
    where
        S: Simd,
        A: Axis<D, Y, G, N>,
    {
        self.sums.fill(0.0);
        let sums = self.sums.as_mut_ptr();
        for (t, [row, column]) in self.tiles.iter().copied().enumerate() {
            // SAFETY: by contract.
            unsafe {
                let mut rows = Table::<_, N, D>::new();
                for r in 0..N {
                    let mut values = Line::<_, N>::new();
                    for c in 0..N {
                        let place = (r * N + c) * self.point + t * S::LANES;
                        values.write(c, S::load(self.products.as_ptr().add(place)));
                    }
                    rows.write(r, A::inputs_back::<S>(values.all()));
                }
                for c in 0..D {
                    let pixels = A::inputs_back::<S>(rows.column(c));
                    for (r, value) in pixels.into_iter().enumerate() {
                        let sum = sums.add(((row + r) * self.seen[1] + column + c) * S::LANES);
                        S::store(sum, S::add(S::load(sum), value));
                    }
                }
            }
        }
    }

    /// Stores what lies in the plane.
    ///
    /// # Safety
    /// The CPU has the instructions of `S` and of `E`; the plane lies in what the tiles see.
    #[inline(always)]
    unsafe fn store<S: Simd, E: Stored<S>>(&self) {
        let [height, width] = self.extents;
        for row in 0..height {
            let sums = &self.sums[((row + self.pad[0]) * self.seen[1] + self.pad[1]) * S::LANES..];
            for (column, sum) in sums.chunks_exact(S::LANES).take(width).enumerate() {
                // SAFETY: by contract, and by that of the plane.
                unsafe {
                    let pixel = (row * width + column) * E::LEN;
                    let place = self.plane.first().add(pixel);
                    let sum = S::load(sum.as_ptr());
                    let sum = if self.adds { S::add(sum, E::load(place)) } else { sum };
                    let passed = self.sign.map(|sign| S::passed(sum, E::load(sign.first().add(pixel))));
                    E::store(place, passed.unwrap_or(sum));
                }
            }
        }
    }
}

impl OnStored for InputsBack<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(mut self) {
        let room = (self.filter.points() - 1) * self.point + self.tiles.len() * S::LANES;
        assert!(self.products.len() >= room, "too few products");
        assert!(self.sums.len() >= self.seen[0] * self.seen[1] * S::LANES, "no room for the sums");
        let side = self.filter.seen();
        let is_seen = |tile: &[usize; 2]| (0..2).all(|a| tile[a] + side <= self.seen[a]);
        assert!(self.tiles.iter().all(is_seen), "a tile beyond what is seen");
        assert!((0..2).all(|a| self.pad[a] + self.extents[a] <= self.seen[a]), "a plane beyond what is seen");
        // SAFETY: the CPU has the instructions by contract; all is long enough, as asserted.
        unsafe {
            match self.filter {
                Filter::F2x3 => self.add_up::<S, F2x3, 4, 2, 3, 4>(),
                Filter::F4x3 => self.add_up::<S, F4x3, 6, 4, 3, 7>(),
                Filter::F4x5 => self.add_up::<S, F4x5, 8, 4, 5, 11>(),
            }
            self.store::<S, E>();
        }
    }
}
