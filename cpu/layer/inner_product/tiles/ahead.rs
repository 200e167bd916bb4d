//! What tiles ask for before they read it.

use crate::kernel::vectorised::prefetch;
use crate::machine::LINE;

/// Asks for the cache lines of `len` elements from `start` on, if the array has them. Tiles of a weight's gradient are
/// pieces of rows that lie far apart, and what little is computed for each does not hide that its lines must be read before
/// they are written.
#[inline(always)]
pub(super) fn ask_for(array: &[f32], start: usize, len: usize) {
    if let Some(lines) = array.get(start..start + len) {
        lines.iter().step_by(LINE).for_each(|line| prefetch(line));
    }
}

/// What will soon be read: rows of cache lines. One line is asked for with each step of depth, since all at once would wait for
/// memory, and nothing would be computed meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// The first line.
    pub first: *const f32,
    /// Distance of rows.
    pub row: usize,
    /// Lines of a row.
    pub lines: usize,
    /// From what is asked for with a block of sources to what is with the next.
    pub block: usize,
}

impl Ahead {
    /// Nothing but one line, over and over.
    pub fn nothing(line: *const f32) -> Self {
        Self { first: line, row: 0, lines: 1, block: 0 }
    }

    /// The beginnings of `rows` rows, the first at `first` and `row` elements apart, on the way of `steps`; nothing if these
    /// cannot be cut so. What is asked for beyond an array is no error.
    pub fn rows(first: *const f32, row: usize, [rows, steps]: [usize; 2]) -> Self {
        match steps.is_multiple_of(rows) && steps > 0 {
            true => Self { first, row, lines: steps / rows, block: 0 },
            false => Self::nothing(first),
        }
    }
}
