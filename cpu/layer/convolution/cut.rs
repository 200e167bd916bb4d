//! How a direction is cut into grains, and in which order a grain goes through tiles of targets and chunks of sources.

use std::ops::{Range, RangeInclusive};

use super::direction::{Setup, TILE_VECTORS};
use super::passes::Passes;
use super::weights::Packing;
use crate::isa::Precision;
use crate::layer::share;
use crate::machine::Machine;

/// The cut into grains: images × rows × tiles × groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub images: usize,
    pub rows: usize,
    pub tiles: usize,
    pub groups: usize,
}

/// The order in which a grain goes through its tiles of targets and the chunks of their sources.
///
/// As a rule a tile sees all chunks before the next tile begins: its sums stay near, and all sources of the grain's pixels are read
/// for each tile. Where those do not fit the second-level cache, all tiles see a chunk before the next chunk begins: the sources of
/// one chunk are read for each tile, and the sums of all tiles for each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// Whether all tiles see a chunk before the next.
    pub by_chunk: bool,
    /// Most sources of a chunk.
    pub most: usize,
    /// Sources of a pixel, and those of them that stay in the second-level cache together.
    depth: usize,
    together: usize,
    /// Bytes of them there.
    pub room: usize,
}

impl Order {
    /// The order for pixels of `depth` words of sources, which are seen where they lie, by one tap, or not so.
    pub fn new(machine: &Machine, setup: &Setup<'_>, depth: usize, pointwise: bool) -> Self {
        let width = TILE_VECTORS * setup.target.layout.block;
        let most = machine.chunk_bytes(setup.numerics) / (width * size_of::<f32>());
        // What is rounded to bf16 has its sums in scratch, tile by tile.
        let sums_stay = setup.target.layout.precision == Precision::F32;
        let by_chunk = pointwise && sums_stay && depth > most && machine.by_chunk_bytes > 0;
        let (together, room) = match by_chunk {
            true => (most, machine.by_chunk_bytes),
            false => (depth, machine.strip_bytes),
        };
        Self { by_chunk, most, depth, together, room }
    }

    /// Of all sources of some pixels, so many elements, the bytes that stay together.
    pub fn bytes(&self, elements: usize) -> usize {
        elements * self.together / self.depth.max(1) * size_of::<f32>()
    }
}

/// Cuts a direction into grains: as many rows and images at once as strips fit, so that each reading of the weights
/// serves many pixels; where that leaves too few grains, the tiles of channels are shared out, then rows. `bytes` says what
/// so many rows of places see of an image, and `room` what fits. Also says how many images a grain has at most.
pub(super) fn cut(
    machine: &Machine,
    passes: &Passes,
    packing: &Packing,
    setup: &Setup<'_>,
    room: usize,
    bytes: impl Fn(usize) -> usize,
) -> (Cut, usize) {
    let (images, places) = (setup.source.images, passes.places[0]);
    let fitting = (1..=places).rev().find(|p| bytes(*p) <= room).unwrap_or(1);
    // Rows that add to the same target cannot be apart.
    let mut rows = if passes.overlap { 1 } else { places.div_ceil(fitting).max(1) };
    let wanted = machine.grains(setup.flops, machine.task_grains);
    let (groups, most_tiles) = (packing.groups, packing.tiles());
    let image_bytes = bytes(places.div_ceil(rows));
    let fit = if rows > 1 { 1 } else { room / image_bytes.max(1) };
    let parts = wanted.div_ceil(groups * rows);
    let fewest = images.div_ceil(fit.clamp(1, images));
    // Every part of the tiles reads the source, and every part of the images and of their rows all weights.
    let read = [0, packing.len() * rows, setup.source.len()];
    let [_, image_parts, tiles] = cheapest(parts, [1..=1, fewest..=images, 1..=most_tiles], read);
    let missing = |done: usize| wanted.div_ceil(done);
    if !passes.overlap {
        rows = rows.max(missing(groups * image_parts * tiles).min(places.max(1)));
    }
    let cut = Cut { images: image_parts, rows, tiles, groups };
    (cut, images.div_ceil(image_parts))
}

/// Near-equal parts of at most `most` of a range: first and length of each.
pub(super) fn even_parts(
    range: &Range<usize>,
    most: usize,
) -> impl Iterator<Item = (usize, usize)> + Clone + use<> {
    let (start, len) = (range.start, range.len());
    let parts = len.div_ceil(most);
    (0..parts).map(move |i| {
        let part = share(len, i, parts);
        (start + part.start, part.len())
    })
}

/// The numbers of parts, from these ranges, whose product is at least `parts`, or as large as can be, and that together cost
/// least.
pub(super) fn cheapest(parts: usize, ranges: [RangeInclusive<usize>; 3], costs: [usize; 3]) -> [usize; 3] {
    let parts = parts.min(ranges.iter().map(RangeInclusive::end).product());
    let [first, second, third] = ranges;
    let pairs = first.flat_map(|a| second.clone().map(move |b| [a, b]));
    let all = pairs.filter_map(|[a, b]| {
        let c = parts.div_ceil(a * b).max(*third.start());
        (c <= *third.end()).then_some([a, b, c])
    });
    let cost = |numbers: &[usize; 3]| numbers.iter().zip(costs).map(|(n, cost)| n * cost).sum::<usize>();
    all.min_by_key(cost).unwrap_or([1; 3])
}
