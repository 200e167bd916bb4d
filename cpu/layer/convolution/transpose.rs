//! Weights turned from Caffe's order into rows of targets, and back, square by square.
//!
//! A square takes 64 shuffles or less, so what takes time is memory: each square touches a line of as many targets, kilobytes apart.
//! Prefetchers find nothing in that, so with each square the lines of one that comes some squares later are asked for.

use std::slice;

use super::weights::{Block, Packing, Part};
use crate::kernel::simd::{Simd, Square};
use crate::kernel::stored::Origin;
use crate::kernel::summed::Summed;
use crate::kernel::vectorised::Explicit;
use crate::machine::LINE;

/// Turns the weights of a block into rows of targets. What rows lack in targets becomes 0.
pub(super) struct ToRows<'a> {
    pub packing: &'a Packing,
    pub weights: &'a [f32],
    pub part: &'a Part,
    pub block: &'a Block<'a>,
    pub packed: &'a mut [f32],
}

/// Turns rows of targets back into the weights of a block.
pub(super) struct FromRows<'a> {
    pub packing: &'a Packing,
    pub packed: Summed<'a>,
    /// Elements between the rows that are read and those that are asked for.
    pub ahead: usize,
    pub part: &'a Part,
    pub block: &'a Block<'a>,
    /// The weights of the part's targets, from the first on.
    pub gradient: Origin,
}

/// Cache lines of a target's weights between those that are turned and those that are asked for.
const LINES_AHEAD: usize = 4;

/// The same in sources, where the weights of a source's targets lie side by side.
const SOURCES_AHEAD: usize = 8;

/// Rows of weights between the one that is copied and the one that is asked for.
const ROWS_AHEAD: usize = 8;

/// Weights that lie side by side in Caffe's order, for each of some targets.
struct Side {
    /// Where those of the first target begin, and what lies between neighbouring targets.
    start: usize,
    distance: usize,
    /// What lies between these and those of the next source that is apart.
    next: usize,
    /// The block's source that they begin with.
    source: usize,
    /// How many: sources with all their taps.
    len: usize,
}

/// How the weights of a block lie: all sources side by side, or each source apart where targets are inputs.
fn sides(packing: &Packing, part: &Part, block: &Block<'_>) -> impl Iterator<Item = Side> + use<> {
    let (kernel, sources) = (packing.kernel.len(), block.sources.clone());
    let (together, distance) =
        if packing.targets_are_outputs { (sources.len(), packing.sources * kernel) } else { (1, kernel) };
    let place = packing.place(part.group, part.first, sources.start);
    let next = packing.place(part.group, part.first, sources.start + 1) - place;
    (0..sources.len().div_ceil(together)).map(move |i| Side {
        start: place + i * next,
        distance,
        next,
        source: i,
        len: together * kernel,
    })
}

/// The rows, of a vector of targets or more, of weights that lie side by side.
struct Rows<'a> {
    block: &'a Block<'a>,
    kernel: usize,
    source: usize,
    tap: usize,
}

impl Rows<'_> {
    /// That of the next weight; `None` if the pass does not have its tap.
    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let row = self.block.taps.at(self.tap).map(|tap| tap * self.block.sources.len() + self.source);
        self.tap += 1;
        if self.tap == self.kernel {
            (self.source, self.tap) = (self.source + 1, 0);
        }
        row
    }
}

impl ToRows<'_> {
    /// Copies the targets of each source, which lie side by side as they are to.
    #[inline(always)]
    fn copy_rows<S: Simd>(self) {
        let Part { group, first, lanes, width } = *self.part;
        let row = self.packing.targets;
        let start = self.packing.place(group, first, self.block.sources.start);
        for (source, to) in self.packed.chunks_exact_mut(width).enumerate() {
            let from = &self.weights[start + source * row..][..lanes];
            for line in (0..lanes).step_by(S::LANES) {
                // To ask for what is not there is no error.
                S::prefetch_far(from.as_ptr().wrapping_add(ROWS_AHEAD * row + line));
            }
            let (to, rest) = to.split_at_mut(lanes);
            to.copy_from_slice(from);
            rest.fill(0.0);
        }
    }
}

impl Explicit for ToRows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if self.packing.kernel.len() == 1 && !self.packing.targets_are_outputs {
            return self.copy_rows::<S>();
        }
        let Self { packing, weights, part, block, packed } = self;
        let kernel = packing.kernel.len();
        let mut square = Square([0.0; _]);
        for side in sides(packing, part, block) {
            for lane in (0..part.lanes).step_by(S::LANES) {
                let lanes = S::LANES.min(part.lanes - lane);
                let mut rows = Rows { block, kernel, source: side.source, tap: 0 };
                let all = side.start + lane * side.distance;
                for first in (0..side.len).step_by(S::LANES) {
                    let count = S::LANES.min(side.len - first);
                    let start = all + first;
                    let from = &weights[start..start + (lanes - 1) * side.distance + count];
                    let (soon, step) = if packing.targets_are_outputs {
                        (start + LINES_AHEAD * LINE, side.distance)
                    } else {
                        (all + SOURCES_AHEAD * side.next + first * LINE, LINE)
                    };
                    let soon = weights.as_ptr().wrapping_add(soon);
                    // SAFETY: the CPU has the instructions by contract; the rows lie in `from`.
                    unsafe { S::turn(from.as_ptr(), side.distance, [lanes, count], &mut square) }
                    for (i, row) in square.0.chunks_exact(S::LANES).take(count).enumerate() {
                        // One with each row: of many at once most would be left out.
                        S::prefetch(soon.wrapping_add(i * step));
                        if let Some(to) = rows.next() {
                            packed[to * part.width + lane..][..S::LANES].copy_from_slice(row);
                        }
                    }
                }
            }
        }
    }
}

impl Explicit for FromRows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { packing, packed, ahead, part, block, gradient } = self;
        let kernel = packing.kernel.len();
        let base = packing.place(part.group, part.first, 0);
        let [mut square, mut turned] = [const { Square([0.0; _]) }; 2];
        for side in sides(packing, part, block) {
            for lane in (0..part.lanes).step_by(S::LANES) {
                let lanes = S::LANES.min(part.lanes - lane);
                let mut rows = Rows { block, kernel, source: side.source, tap: 0 };
                for first in (0..side.len).step_by(S::LANES) {
                    let count = S::LANES.min(side.len - first);
                    // ∇W has one pass with all taps, so each has a row.
                    for to in square.0.chunks_exact_mut(S::LANES).take(count) {
                        // SAFETY: the CPU has the instructions by contract; a row of the square is a vector.
                        unsafe {
                            let sum = match rows.next() {
                                Some(row) => packed.load::<S>(row * part.width + lane, ahead),
                                None => S::zero(),
                            };
                            S::store(to.as_mut_ptr(), sum);
                        }
                    }
                    // SAFETY: the CPU has the instructions by contract; a square has room for the rows.
                    unsafe { S::turn(square.0.as_ptr(), S::LANES, [count, lanes], &mut turned) }
                    let start = side.start - base + lane * side.distance + first;
                    for (i, row) in turned.0.chunks_exact(S::LANES).take(lanes).enumerate() {
                        // SAFETY: weights of the block and of the part's targets, which nobody else touches.
                        let to = unsafe {
                            slice::from_raw_parts_mut(gradient.first().add(start + i * side.distance), count)
                        };
                        S::prefetch(to.as_ptr().wrapping_add(LINES_AHEAD * LINE));
                        // Of a length that is not known a copy is a call.
                        if count == S::LANES {
                            to[..S::LANES].copy_from_slice(&row[..S::LANES]);
                        } else {
                            to.copy_from_slice(&row[..count]);
                        }
                    }
                }
            }
        }
    }
}
