//! Where the transformed sources of a direction lie.

use std::ops::Range;

use super::super::cut::even_parts;
use super::Tiling;

/// How the transformed sources of a group lie: block of tiles by block, each point by point, row by row (a block of channels, or two of
/// them), tile by tile. A block is what one register tile sees, so that it reads what lies in one piece, which the prefetchers find.
/// With all tiles of a grain in one row it read a piece of each row, and waited: on a Zen 3 F(2×2, 3×3) took 1.01 to 1.1 of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inputs {
    /// Most tiles of a block.
    pub block: usize,
    /// Blocks of channels.
    pub planes: usize,
    /// Elements from a row to the next, from a point to the next, and of a block.
    pub row_len: usize,
    pub point_len: usize,
    pub block_len: usize,
}

impl Inputs {
    /// Of so many blocks of channels, in blocks of at most so many tiles.
    pub fn new(tiling: &Tiling, block: usize, planes: usize) -> Self {
        let (row_len, point_len) = (tiling.row_len(block), tiling.point_len(planes, block));
        Self { block, planes, row_len, point_len, block_len: tiling.filter.points() * point_len }
    }

    /// The blocks of these tiles, near-equal.
    pub fn blocks(&self, tiles: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        even_parts(tiles, self.block).map(|(first, count)| first..first + count)
    }
}
