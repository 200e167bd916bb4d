//! Filtering images of a few channels, which lie plane by plane, to blocks of channels.
//!
//! With a few sources there is little to do at each point, so that the products of a matrix for each point in memory would cost more
//! than they save. Here the sums of a row of points of some neighbouring tiles stay in registers until `Aᵀ` makes outputs of them.
//! Weights are vectors of a block of targets; transformed pixels are spread one by one, so these lie a vector of neighbouring tiles for
//! each channel and point.

use super::Filter;
use super::axis::{Axis, F2x3, F4x3, F4x5};
use super::table::{Line, Table};
use crate::kernel::simd::{Simd, Square};
use crate::kernel::stored::Origin;
use crate::kernel::vectorised::Explicit;
use crate::machine::LINE;

/// Most channels of images.
pub(crate) const MOST_SOURCES: usize = 4;

/// Transforms what a row of tiles sees of a plane, `Bᵀ d B`.
pub(crate) struct EntryInputs<'a> {
    /// How the kernel is filtered.
    pub filter: Filter,
    /// The rows that the tiles see, with their padding, and behind them zeros for tiles that are not there.
    pub rows: &'a [f32],
    /// Elements of a row, a multiple of a vector.
    pub row: usize,
    /// Room for as many rows as an axis has points.
    pub points: &'a mut [f32],
    /// Where the values go: a vector of tiles at a time, each point by point.
    pub to: &'a mut [f32],
    /// Elements from such a vector's values to those of the next.
    pub block: usize,
}

impl EntryInputs<'_> {
    /// # Safety
    /// As for [`Explicit::run`]; the slices are as long as asserted there.
    #[inline(always)]
    unsafe fn along<S, A, const D: usize, const Y: usize, const G: usize, const N: usize>(self)
    where
        S: Simd,
        A: Axis<D, Y, G, N>,
    {
        let Self { rows, row, points, to, block, .. } = self;
        let mut square = Square([0.0; 256]);
        // SAFETY: by contract.
        unsafe {
            for at in (0..row).step_by(S::LANES) {
                let mut column = Line::<_, D>::new();
                for r in 0..D {
                    column.write(r, S::load(rows.as_ptr().add(r * row + at)));
                }
                for (r, value) in A::inputs::<S>(column.all()).into_iter().enumerate() {
                    S::store(points.as_mut_ptr().add(r * row + at), value);
                }
            }
            for (i, to) in to.chunks_mut(block).enumerate() {
                for r in 0..N {
                    let first = points.as_ptr().add(r * row + i * S::LANES * Y);
                    S::turn(first, Y, [S::LANES, D], &mut square);
                    let mut seen = Line::<_, D>::new();
                    for c in 0..D {
                        seen.write(c, S::load(square.0.as_ptr().add(c * S::LANES)));
                    }
                    for (c, value) in A::inputs::<S>(seen.all()).into_iter().enumerate() {
                        S::store(to.as_mut_ptr().add((r * N + c) * S::LANES), value);
                    }
                }
            }
        }
    }
}

impl Explicit for EntryInputs<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { filter, row, block, .. } = self;
        let (points, seen) = (filter.points_of_axis(), filter.seen());
        let blocks = self.to.len().div_ceil(block);
        assert!(self.rows.len() >= seen * row && self.points.len() >= points * row, "too few rows");
        assert!(row.is_multiple_of(S::LANES), "a row of {row} is no whole vectors");
        assert!(
            (blocks * S::LANES - 1) * filter.outputs() + seen <= row,
            "rows of {row} for {blocks} blocks"
        );
        assert!(self.to.len() >= (blocks - 1) * block + filter.points() * S::LANES, "no room for all points");
        // SAFETY: the CPU has the instructions by contract; all lies inside the slices, as asserted.
        unsafe {
            match filter {
                Filter::F2x3 => self.along::<S, F2x3, 4, 2, 3, 4>(),
                Filter::F4x3 => self.along::<S, F4x3, 6, 4, 3, 7>(),
                Filter::F4x5 => self.along::<S, F4x5, 8, 4, 5, 11>(),
            }
        }
    }
}

/// Finds a block of targets of the outputs of some neighbouring tiles of a row.
pub(crate) struct EntryOutputs<'a> {
    /// How kernels are filtered.
    pub filter: Filter,
    /// Channels of the image.
    pub sources: usize,
    /// Transformed pixels: channel by channel, point by point, a vector of tiles each.
    pub inputs: &'a [f32],
    /// Transformed weights: channel by channel, point by point, a vector of targets each.
    pub weights: &'a [f32],
    /// Added to every pixel; a vector.
    pub bias: Option<&'a [f32]>,
    /// Whether a ReLU goes over the pixels.
    pub relu: bool,
    /// Whether they are stored past the caches; the caller settles them.
    pub past: bool,
    /// First row and column of the first tile's outputs; what lies outside the plane is left out.
    pub first: [usize; 2],
    /// How many tiles, at most a vector of them.
    pub tiles: usize,
    /// Where the plane begins, of which the tiles are written: pixels of a block of targets, row by row.
    pub plane: Origin,
    /// Rows and columns of the plane.
    pub extents: [usize; 2],
}

impl EntryOutputs<'_> {
    /// `T` tiles at a time, which share the loads of weights: as many as leave registers for a weight and for pixels.
    ///
    /// # Safety
    /// As for [`Explicit::run`]; inputs, weights and bias are as long as asserted there.
    #[inline(always)]
    unsafe fn along<
        S,
        A,
        const D: usize,
        const Y: usize,
        const G: usize,
        const N: usize,
        const T: usize,
        const C: usize,
    >(
        self,
    ) where
        S: Simd,
        A: Axis<D, Y, G, N>,
    {
        let ([row, first], [_, width]) = (self.first, self.extents);
        for tile in (0..self.tiles).step_by(T) {
            let mut rows = [const { Table::<S::Vector, N, Y>::new() }; T];
            let column = first + tile * Y;
            // SAFETY: by contract; pixels outside of the plane are left out.
            unsafe {
                for r in 0..N {
                    if r < Y && !self.past {
                        // What is written two groups of tiles further on: a store would wait for its line.
                        let pixel = (row + r) * width + column + 2 * T * Y;
                        let lines = self.plane.first().wrapping_add(pixel * S::LANES).cast_const();
                        for line in (0..T * Y * S::LANES).step_by(LINE) {
                            S::prefetch(lines.wrapping_add(line));
                        }
                    }
                    let sums = self.row_of_points::<S, N, T, C>(tile, r);
                    for (rows, sums) in rows.iter_mut().zip(sums) {
                        rows.write(r, A::outputs::<S>(sums));
                    }
                }
                match (self.relu, self.past) {
                    (false, false) => self.tiles::<S, A, D, Y, G, N, T, false, false>(&rows, tile),
                    (false, true) => self.tiles::<S, A, D, Y, G, N, T, false, true>(&rows, tile),
                    (true, false) => self.tiles::<S, A, D, Y, G, N, T, true, false>(&rows, tile),
                    (true, true) => self.tiles::<S, A, D, Y, G, N, T, true, true>(&rows, tile),
                }
            }
        }
    }

    /// Makes outputs of the rows of `T` tiles, of which the first is `tile`, and stores those that are there and inside the plane.
    ///
    /// # Safety
    /// As for [`Self::along`]; all rows were written.
    #[inline(always)]
    unsafe fn tiles<
        S,
        A,
        const D: usize,
        const Y: usize,
        const G: usize,
        const N: usize,
        const T: usize,
        const RELU: bool,
        const PAST: bool,
    >(
        &self,
        rows: &[Table<S::Vector, N, Y>; T],
        tile: usize,
    ) where
        S: Simd,
        A: Axis<D, Y, G, N>,
    {
        let ([row, first], [height, width]) = (self.first, self.extents);
        let column = first + tile * Y;
        // SAFETY: by contract; pixels outside of the plane are left out.
        unsafe {
            if self.tiles - tile >= T && row + Y <= height && column + T * Y <= width {
                for (t, rows) in rows.iter().enumerate() {
                    self.store::<S, A, D, Y, G, N, RELU, PAST>(rows, column + t * Y, [Y; 2]);
                }
            } else {
                for (t, rows) in rows.iter().enumerate().take(self.tiles - tile) {
                    let column = column + t * Y;
                    let inside = [Y.min(height - row), Y.min(width - column)];
                    self.store::<S, A, D, Y, G, N, RELU, PAST>(rows, column, inside);
                }
            }
        }
    }

    /// The sums of row `r` of the points of `T` tiles over `C` channels.
    ///
    /// # Safety
    /// As for [`Self::along`].
    #[inline(always)]
    unsafe fn row_of_points<S: Simd, const N: usize, const T: usize, const C: usize>(
        &self,
        tile: usize,
        r: usize,
    ) -> [[S::Vector; N]; T] {
        // SAFETY: by contract.
        unsafe {
            let mut sums = [[S::zero(); N]; T];
            let first = r * N * S::LANES;
            let (weights, inputs) =
                (self.weights.as_ptr().add(first), self.inputs.as_ptr().add(first + tile));
            for p in 0..N {
                for c in 0..C {
                    let at = (c * N * N + p) * S::LANES;
                    let weight = S::load(weights.add(at));
                    for (t, sums) in sums.iter_mut().enumerate() {
                        let pixel = S::splat(*inputs.add(at + t));
                        sums[p] = if c == 0 {
                            S::multiply(pixel, weight)
                        } else {
                            S::fused(pixel, weight, sums[p])
                        };
                    }
                }
            }
            sums
        }
    }

    /// Makes outputs of a tile's rows and stores those that are `inside`: so many rows and columns.
    ///
    /// # Safety
    /// As for [`Self::along`]; all rows were written.
    #[inline(always)]
    unsafe fn store<
        S,
        A,
        const D: usize,
        const Y: usize,
        const G: usize,
        const N: usize,
        const RELU: bool,
        const PAST: bool,
    >(
        &self,
        rows: &Table<S::Vector, N, Y>,
        column: usize,
        inside: [usize; 2],
    ) where
        S: Simd,
        A: Axis<D, Y, G, N>,
    {
        // SAFETY: by contract.
        unsafe {
            let bias = self.bias.map_or(S::zero(), |bias| S::load(bias.as_ptr()));
            let pixel = self.first[0] * self.extents[1] + column;
            let first = self.plane.first().add(pixel * S::LANES);
            for c in 0..inside[1] {
                let pixels = A::outputs::<S>(rows.column(c));
                for (r, value) in pixels.into_iter().enumerate().take(inside[0]) {
                    let value = S::add(value, bias);
                    let value = if RELU { S::rectified(value) } else { value };
                    let to = first.add((r * self.extents[1] + c) * S::LANES);
                    if PAST { S::store_past(to, value) } else { S::store(to, value) }
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::along`].
    #[inline(always)]
    unsafe fn of_sources<
        S,
        A,
        const D: usize,
        const Y: usize,
        const G: usize,
        const N: usize,
        const T: usize,
    >(
        self,
    ) where
        S: Simd,
        A: Axis<D, Y, G, N>,
    {
        // SAFETY: by contract.
        unsafe {
            match self.sources {
                1 => self.along::<S, A, D, Y, G, N, T, 1>(),
                2 => self.along::<S, A, D, Y, G, N, T, 2>(),
                3 => self.along::<S, A, D, Y, G, N, T, 3>(),
                _ => self.along::<S, A, D, Y, G, N, T, MOST_SOURCES>(),
            }
        }
    }
}

impl Explicit for EntryOutputs<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { filter, sources, tiles, first, extents, .. } = self;
        let len = sources * filter.points() * S::LANES;
        assert!((1..=MOST_SOURCES).contains(&sources), "{sources} channels of an image");
        assert!(self.inputs.len() >= len && self.weights.len() >= len, "inputs or weights are too short");
        assert!(tiles <= S::LANES, "{tiles} tiles in a vector");
        let aligned = self.plane.first().addr().is_multiple_of(size_of::<S::Vector>());
        assert!(!self.past || aligned, "a plane at no whole vector");
        assert!(self.bias.is_none_or(|bias| bias.len() >= S::LANES), "the bias is too short");
        let last = [first[0], first[1] + tiles.saturating_sub(1) * filter.outputs()];
        assert!((0..2).all(|a| last[a] < extents[a]), "a tile outside of the plane");
        // SAFETY: the CPU has the instructions, the plane is the caller's own, by contract; the slices are long enough, as
        // asserted.
        unsafe {
            match (filter, S::LANES) {
                (Filter::F2x3, 16) => self.of_sources::<S, F2x3, 4, 2, 3, 4, 4>(),
                (Filter::F2x3, _) => self.of_sources::<S, F2x3, 4, 2, 3, 4, 2>(),
                (Filter::F4x3, 16) => self.of_sources::<S, F4x3, 6, 4, 3, 7, 4>(),
                (Filter::F4x3, _) => self.of_sources::<S, F4x3, 6, 4, 3, 7, 2>(),
                (Filter::F4x5, 16) => self.of_sources::<S, F4x5, 8, 4, 5, 11, 2>(),
                (Filter::F4x5, _) => self.of_sources::<S, F4x5, 8, 4, 5, 11, 1>(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
