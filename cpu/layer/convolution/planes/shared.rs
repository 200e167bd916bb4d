//! Planes of all images, made once in a stage of their own: where many tiles of targets see the same source, each grain would
//! otherwise make planes of its own. Grains then have few tiles and many images, whose sums stay in the second-level cache, so that
//! few partial sums, or none, are left to be added up.
//!
//! Planes come from the third-level cache or from memory, a line of 16 planes at a time, which no prefetcher foresees: tiles
//! ask for them. A block of channels is read again by each tap, so that one tile has to ask for a few planes only.

use std::ops::Range;

use super::{Block, Kind, PlaneGradient, pixels};
use crate::kernel::correlate::planes::{AHEAD, PLANES};
use crate::layer::Grain;
use crate::layer::convolution::cut::even_parts;
use crate::layer::convolution::direction::{Setup, TILE_VECTORS};
use crate::layer::convolution::sums::Share;
use crate::machine::Machine;
use crate::memory::Span;

/// Planes between those that a tile reads and those that it asks for, beside a block of channels.
const LATER: usize = 4;

/// Whether it pays: where there are many tiles. `bytes` are those of the planes of a group of an image.
pub(super) fn pays(machine: &Machine, setup: &Setup<'_>, kind: &Kind, bytes: usize) -> bool {
    let tile = TILE_VECTORS * setup.target.layout.block;
    let tiles = (setup.target.channels / setup.layer.group).div_ceil(tile);
    matches!(kind, Kind::Blocks(_))
        && tiles >= machine.plane_shared_tiles
        && bytes * setup.layer.group * setup.source.images <= machine.plane_shared_bytes
}

impl PlaneGradient {
    /// Words of the planes of all groups and images that grains share: group by group, walk by walk.
    pub(super) fn shared_len(&self) -> usize {
        if self.shared { self.sums.packing.groups * self.walks().count() * self.planes_len() } else { 0 }
    }

    /// The first images of all walks, and how many follow each other there.
    fn walks(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.sums.image_parts().flat_map(|images| even_parts(&images, self.together))
    }

    /// Where the planes of a walk lie in the workspace.
    fn place(&self, group: usize, walk: usize) -> Range<usize> {
        let start = (group * self.walks().count() + walk) * self.planes_len();
        start..start + self.planes_len()
    }

    /// Grains of the stage that makes the planes, if there is one: a block of channels of a walk each.
    pub fn copying_grains(&self) -> Option<usize> {
        let grains = self.sums.packing.groups * self.walks().count() * self.kind.planes() / PLANES;
        self.shared.then_some(grains)
    }

    /// Makes the grain's planes.
    pub fn copy(&self, grain: &Grain<'_>, source: Span, workspace: Span) {
        let Kind::Blocks(blocks) = &self.kind else { return };
        let of_group = self.kind.planes() / PLANES;
        let (walk, block) = (grain.index / of_group, grain.index % of_group);
        let (group, walk) = (walk / self.walks().count(), walk % self.walks().count());
        let Some((first, images)) = self.walks().nth(walk) else { return };
        let len = PLANES * self.plane_len / 2;
        let start = self.place(group, walk).start + block * len;
        // SAFETY: grains have planes of their own.
        let words = unsafe { grain.memory.write(workspace.part(start..start + len)) };
        words.fill(0.0);
        let (source, images) = ((source, &self.source), (group, first..first + images));
        let (band, kernels) = (&self.bands[0], (&self.kernels, &self.geometry));
        blocks.fill(grain.memory, source, images, band, kernels, (block..block + 1, pixels(words)));
    }

    /// Sums up a grain's part. All images of a tile come before the next tile, so that its sums stay in the second-level cache.
    pub(super) fn sum_shared(&self, grain: &mut Grain<'_>, share: &Share, gradient: Span, workspace: Span) {
        let Share { group, images: all, tiles, sums, .. } = share;
        let (words, band) = (&mut grain.scratch[..self.scratch()], self.bands[0]);
        let own = |walk: &(usize, (usize, usize))| all.contains(&walk.1.0);
        for tile in tiles.clone() {
            let dw = grain.memory.pointer(sums.part(self.sums.packing.tile(*group, tile)));
            let mut walks = self.walks().enumerate().filter(own).peekable();
            while let Some((walk, (first, images))) = walks.next() {
                // SAFETY: made in the stage before.
                let planes = |walk| unsafe { grain.memory.read(workspace.part(self.place(*group, walk))) };
                let next = planes(walks.peek().map_or(walk, |next| next.0));
                let of_image = |i: usize| self.sums.gradient(gradient, first + i, *group, tile);
                let rows_of_walk = self.geometry.walk(images, band.1);
                for rows in self.blocks_of(rows_of_walk) {
                    self.gradients(grain.memory, of_image, &band, &rows, words);
                    let block = Block {
                        x: self.row_of(planes(walk), rows.start),
                        words,
                        steps: self.steps(rows.len()),
                        add: first > all.start || rows.start > 0,
                        next: Some(match rows.end < rows_of_walk {
                            true => self.row_of(planes(walk), rows.end),
                            false => self.row_of(next, 0),
                        }),
                    };
                    self.add_block(tile, &block, dw);
                }
            }
        }
    }

    /// The planes that pair number `pair` of the sources asks for, of rows that begin at `x` and then of those that are seen next; none
    /// where the kernel has so few taps that there are more planes to ask for.
    pub(super) fn ahead(&self, pair: usize, x: *const u16, next: *const u16) -> Option<[*const u16; AHEAD]> {
        let (planes, pairs) = (self.kind.planes(), self.sources.len());
        let first = pair * planes / pairs + PLANES + LATER;
        let place = |plane: usize| match plane.checked_sub(planes) {
            None => x.wrapping_add(plane * self.plane_len),
            Some(plane) => next.wrapping_add(plane * self.plane_len),
        };
        (planes <= AHEAD * pairs).then(|| std::array::from_fn(|i| place(first + i)))
    }
}
