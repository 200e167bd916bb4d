//! How a direction is cut into grains.

use std::ops::Range;

use super::super::cut::even_parts;
use crate::layer::share;
use crate::machine::Filtering;

/// What is to be cut.
#[derive(Clone, Copy)]
pub(super) struct Whole {
    /// Tiles of outputs of all images, and how many of them stay together.
    pub tiles: usize,
    pub together: usize,
    pub groups: usize,
    /// Tiles of target channels of a group, and fewest of a part of them.
    pub targets: usize,
    pub fewest_targets: usize,
    /// Grains that are wanted.
    pub grains: usize,
}

/// The cut into grains: groups × parts of the tiles of outputs × parts of the tiles of target channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Whether sources are transformed for all grains in the stage before, and not by each for itself.
    pub staged: bool,
    /// Most tiles that are multiplied together, and whose products are held meanwhile: a multiple of those that stay together.
    pub held: usize,
    /// Parts of the tiles of outputs and of target channels.
    pub tile_parts: usize,
    pub target_parts: usize,
    tiles: usize,
    together: usize,
}

impl Cut {
    /// By the constants of a filter, of which `tiles` is that for the precision.
    ///
    /// Where tiles are few, as those of a network's last layers, grains are made of parts of the target channels. Each would transform all
    /// sources anew, and read all weights for few tiles; where that were three grains and more, sources are transformed once for all, in
    /// memory, and grains have more tiles. Sources in memory are read by each grain, where weights were by each block of tiles.
    pub fn new(whole: &Whole, filtering: &Filtering, tiles: usize) -> Self {
        let Whole { tiles: count, together, groups, targets, grains, .. } = *whole;
        let held = |tiles: usize| (tiles / together * together).min(count);
        let missing = |tile_parts: usize| (grains / (tile_parts * groups)).max(1);
        // An even number, which two threads share evenly.
        let tile_parts = count.div_ceil(held(tiles)).next_multiple_of(2).min(grains).min(count / together);
        let parts = |tile_parts: usize| missing(tile_parts).min(targets.div_ceil(whole.fewest_targets));
        let target_parts = parts(tile_parts);
        if target_parts < filtering.staged_parts {
            return Self {
                staged: false,
                held: held(tiles),
                tile_parts,
                target_parts,
                tiles: count,
                together,
            };
        }
        let tile_parts = count.div_ceil(held(filtering.staged_tiles));
        let target_parts = parts(tile_parts);
        let held = (count / together).div_ceil(tile_parts) * together;
        Self { staged: true, held, tile_parts, target_parts, tiles: count, together }
    }

    /// The tiles of a part.
    pub fn part(&self, part: usize) -> Range<usize> {
        let part = share(self.tiles / self.together, part, self.tile_parts);
        part.start * self.together..part.end * self.together
    }

    /// What of a part is multiplied together, near-equal.
    pub fn held(&self, part: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (together, all) = (self.together, self.part(part));
        let parts = even_parts(&(all.start / together..all.end / together), self.held / together);
        parts.map(move |(first, count)| first * together..(first + count) * together)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernel::winograd::Filter;
    use crate::machine::Machine;

    fn cut(whole: Whole) -> Cut {
        let filtering = Machine::of(Isa::Avx512).winograd(Filter::F2x3);
        Cut::new(&whole, &filtering, filtering.tiles[0])
    }

    #[test]
    fn sources_that_many_grains_see_are_transformed_once() {
        // res5 of ResNet-50: 16 images of 7×7 pixels, 512 channels.
        let res5 = Whole { tiles: 256, together: 1, groups: 1, targets: 16, fewest_targets: 2, grains: 32 };
        let few = cut(res5);
        assert!(few.staged, "{few:?}");
        assert_eq!([few.tile_parts, few.target_parts, few.held], [2, 8, 128]);
        let many = cut(Whole { tiles: 6272, ..res5 });
        assert!(!many.staged, "{many:?}");
        assert_eq!([many.tile_parts, many.target_parts, many.held], [32, 1, 56]);
    }

    #[test]
    fn parts_are_all_tiles_in_order_and_what_stays_together_is_in_one() {
        let shapes = [[1, 1, 1], [7, 1, 1], [256, 1, 16], [130, 5, 16], [60, 4, 3], [4, 4, 9], [3000, 4, 1]];
        for [tiles, together, targets] in shapes {
            for grains in [1, 8, 32] {
                let cut = cut(Whole { tiles, together, groups: 1, targets, fewest_targets: 2, grains });
                let held: Vec<_> = (0..cut.tile_parts).flat_map(|part| cut.held(part)).collect();
                assert_eq!(held.first().map(|h| h.start), Some(0), "{cut:?}");
                assert_eq!(held.last().map(|h| h.end), Some(tiles), "{cut:?}");
                assert!(held.is_sorted_by(|a, b| a.end == b.start), "{cut:?}: {held:?}");
                assert!(
                    held.iter().all(|h| h.len() <= cut.held && h.start % together == 0),
                    "{cut:?}: {held:?}"
                );
                assert!((1..=targets).contains(&cut.target_parts), "{cut:?}");
                assert!(!cut.staged || held.len() == cut.tile_parts, "{cut:?}: {held:?}");
            }
        }
    }
}
