//! A row of tiles of an image against sums over its windows: every filter, number of channels and tier, with small integers.

use super::*;
use crate::isa::{Isa, Vectors};
use crate::kernel::simd::settle;
use crate::kernel::vectorised::with_vectors;
use crate::kernel::winograd::Weights;

/// Outputs of a row: one vector of tiles, of which the last lacks a column.
const WIDTH: usize = 27;

/// A whole number from -3 to 3.
fn number(at: usize) -> f32 {
    (at * 37 % 59 * 11 % 7) as f32 - 3.0
}

/// An image and kernels, all of whole numbers.
struct Row {
    isa: Isa,
    filter: Filter,
    sources: usize,
    lanes: usize,
    /// Rows of outputs, one fewer than a tile has.
    height: usize,
}

impl Row {
    fn pixel(&self, source: usize, row: usize, column: usize) -> f32 {
        number((source * self.filter.seen() + row) * 101 + column)
    }

    fn weight(&self, target: usize, source: usize, tap: usize) -> f32 {
        number((target * self.sources + source) * self.filter.taps() + tap + 5)
    }

    fn tiles(&self) -> usize {
        WIDTH.div_ceil(self.filter.outputs())
    }

    /// Transformed pixels of one vector of tiles after another.
    fn inputs(&self) -> Vec<f32> {
        let (filter, lanes) = (self.filter, self.lanes);
        let blocks = self.tiles().div_ceil(lanes);
        let row = ((blocks * lanes - 1) * filter.outputs() + filter.seen()).next_multiple_of(lanes);
        let (of_channel, block) = (filter.points() * lanes, self.sources * filter.points() * lanes);
        let mut inputs = vec![f32::NAN; blocks * block];
        let mut points = vec![f32::NAN; filter.points_of_axis() * row];
        for source in 0..self.sources {
            let seen = WIDTH + filter.side() - 1;
            let value = |i: usize| if i % row < seen { self.pixel(source, i / row, i % row) } else { 0.0 };
            let rows: Vec<f32> = (0..filter.seen() * row).map(value).collect();
            let (points, to) = (&mut points[..], &mut inputs[source * of_channel..]);
            with_vectors(self.isa, EntryInputs { filter, rows: &rows, row, points, to, block });
        }
        inputs
    }

    fn transformed_weights(&self) -> Vec<f32> {
        let (filter, lanes) = (self.filter, self.lanes);
        let mut weights = vec![f32::NAN; self.sources * filter.points() * lanes];
        for (source, to) in weights.chunks_exact_mut(filter.points() * lanes).enumerate() {
            let value = |i: usize| self.weight(i % lanes, source, i / lanes);
            let taps: Vec<f32> = (0..filter.taps() * lanes).map(value).collect();
            // SAFETY: `to` has room for all points.
            let to = unsafe { Origin::new(to.as_mut_ptr()) };
            let work = Weights { filter, taps: &taps, tap: lanes, to, point: lanes, count: lanes };
            with_vectors(self.isa, work);
        }
        weights
    }

    fn check(&self) {
        let (filter, sources, lanes) = (self.filter, self.sources, self.lanes);
        let (inputs, weights) = (self.inputs(), self.transformed_weights());
        let bias: Vec<f32> = (0..lanes).map(|target| number(target + 9)).collect();
        let mut room = vec![f32::NAN; self.height * WIDTH * lanes + LINE];
        let aligned = room.as_ptr().align_offset(64);
        let plane = &mut room[aligned..][..self.height * WIDTH * lanes];
        for (relu, past) in [(false, false), (false, true), (true, false), (true, true)] {
            plane.fill(f32::NAN);
            for (i, inputs) in inputs.chunks(sources * filter.points() * lanes).enumerate() {
                let outputs = EntryOutputs {
                    filter,
                    sources,
                    inputs,
                    weights: &weights,
                    bias: Some(&bias),
                    relu,
                    past,
                    first: [0, i * lanes * filter.outputs()],
                    tiles: lanes.min(self.tiles() - i * lanes),
                    // SAFETY: all of the plane is there, and nobody else's.
                    plane: unsafe { Origin::new(plane.as_mut_ptr()) },
                    extents: [self.height, WIDTH],
                };
                with_vectors(self.isa, outputs);
            }
            settle();
            for (at, value) in plane.iter().enumerate() {
                let (row, column, target) = (at / lanes / WIDTH, at / lanes % WIDTH, at % lanes);
                let window = (0..sources * filter.taps()).map(|i| {
                    let (source, tap) = (i / filter.taps(), i % filter.taps());
                    let [r, c] = [row + tap / filter.side(), column + tap % filter.side()];
                    self.weight(target, source, tap) * self.pixel(source, r, c)
                });
                let sum = bias[target] + window.sum::<f32>();
                assert_eq!(*value, if relu { sum.max(0.0) } else { sum }, "{self}, {row} {column} {target}");
            }
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {} channels on {}", self.filter, self.sources, self.isa)
    }
}

#[test]
fn rows_of_tiles_are_convolved() {
    for isa in Isa::ALL {
        let lanes = match isa.vectors() {
            _ if !isa.is_available() => 0,
            Vectors::None => 0,
            Vectors::Avx2 => 8,
            Vectors::Avx512f => 16,
        };
        if lanes == 0 {
            println!("left out: {isa} has no vectors here");
            continue;
        }
        for filter in [Filter::F2x3, Filter::F4x3, Filter::F4x5] {
            for sources in 1..=MOST_SOURCES {
                Row { isa, filter, sources, lanes, height: filter.outputs() - 1 }.check();
            }
        }
    }
}
