//! Weights in the order in which register tiles read them, and back.
//!
//! Caffe's order is (output, input of the group, tap). Packed, they lie group by group, tile of targets by tile, pass
//! by pass, source by source (block of channels, tap, channel), a tile's width of targets each; what a tile lacks in
//! targets is filled up with zeros. In bf16 two weights share a word, and the depth of a tile is counted in words.

use std::ops::Range;

use super::passes::Passes;
use super::pointwise::Pointwise;
use crate::kernel::words::{Pairs, with_words};

/// Which two weights share a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// None: f32.
    Numbers,
    /// Those of two neighbouring sources, in bf16; a last one without a second is multiplied by 0.
    Sources,
    /// Those of two taps side by side, in bf16, in a kernel of so many columns. Only the first of them is listed as a tap.
    Taps(usize),
}

/// Extents of the weights in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packing {
    /// Groups.
    pub groups: usize,
    /// Source channels of a group.
    pub sources: usize,
    /// Target channels of a group.
    pub targets: usize,
    /// Source channels of a block: those that lie side by side.
    pub source_block: usize,
    /// What shares a word.
    pub words: Words,
    /// Places of all taps of the kernel.
    pub kernel: Vec<usize>,
    /// Floats of a vector.
    pub vector: usize,
    /// Most vectors of a tile.
    pub tile_vectors: usize,
    /// Whether the targets are the layer's outputs (the convolution and ∇W) or its inputs (∇A).
    pub targets_are_outputs: bool,
    /// Packed elements that stay in the first-level cache.
    pub cached: usize,
    /// Places of each pass's taps in the kernel.
    pub passes: Vec<Vec<usize>>,
}

impl Packing {
    /// Places of the taps of `passes`.
    pub fn taps(passes: &Passes) -> Vec<Vec<usize>> {
        passes.passes.iter().map(|p| p.taps.iter().map(|t| t.index).collect()).collect()
    }

    /// Tiles of a group.
    pub fn tiles(&self) -> usize {
        self.targets.div_ceil(self.vector).div_ceil(self.tile_vectors)
    }

    /// Vectors of a tile.
    pub fn vectors(&self, tile: usize) -> usize {
        (self.targets.div_ceil(self.vector) - tile * self.tile_vectors).min(self.tile_vectors)
    }

    /// Elements of all tiles.
    pub fn len(&self) -> usize {
        self.groups * self.group_len()
    }

    fn group_len(&self) -> usize {
        self.depth() * self.targets.next_multiple_of(self.vector)
    }

    /// Words of `sources` channels of a block through one tap.
    pub fn words(&self, sources: usize) -> usize {
        if self.words == Words::Sources { sources.div_ceil(2) } else { sources }
    }

    /// Words of all sources through all taps.
    fn depth(&self) -> usize {
        self.words(self.sources) * self.passes.iter().map(Vec::len).sum::<usize>()
    }

    /// The elements of one tile.
    pub fn tile(&self, group: usize, tile: usize) -> Range<usize> {
        let depth = self.depth();
        let start = group * self.group_len() + tile * depth * self.tile_vectors * self.vector;
        start..start + depth * self.vectors(tile) * self.vector
    }

    /// The blocks of sources of a tile, in their packed order.
    fn blocks(&self) -> impl Iterator<Item = Block<'_>> + Clone {
        let mut depth = 0;
        self.passes.iter().flat_map(move |taps| {
            let start = depth;
            depth += self.words(self.sources) * taps.len();
            (0..self.sources).step_by(self.source_block).map(move |first| Block {
                sources: first..(first + self.source_block).min(self.sources),
                taps,
                depth: start + self.words(first) * taps.len(),
            })
        })
    }

    /// Where the weight of (target, source, tap 0) of a group stands in Caffe's order.
    fn place(&self, group: usize, target: usize, source: usize) -> usize {
        let kernel = self.kernel.len();
        if self.targets_are_outputs {
            ((group * self.targets + target) * self.sources + source) * kernel
        } else {
            ((group * self.sources + source) * self.targets + target) * kernel
        }
    }

    /// Packs one tile of `weights` into `packed`, which is that tile alone. `scratch` holds [`Packing::scratch`] elements.
    pub fn pack(&self, weights: &[f32], group: usize, tile: usize, packed: &mut [f32], scratch: &mut [f32]) {
        let width = self.vectors(tile) * self.vector;
        let first = tile * self.tile_vectors * self.vector;
        let lanes = width.min(self.targets - first);
        let part = Part { group, first, lanes, width };
        if self.words != Words::Numbers {
            return self.pack_words(weights, &part, packed, scratch);
        }
        if lanes < width {
            packed.fill(0.0);
        }
        let place = |block: &Block<'_>| {
            let start = block.depth * width;
            start..start + block.sources.len() * block.taps.len() * width
        };
        if self.targets_are_outputs {
            return self.for_rows(lanes, |lane, block| {
                self.pack_lane(weights, &part, block, lane, &mut packed[place(block)]);
            });
        }
        for block in self.blocks() {
            self.pack_block(weights, &part, &block, &mut packed[place(&block)]);
        }
    }

    /// Calls `copy` with each lane and each block: some blocks of a lane, whose weights lie side by side in Caffe's
    /// order, then the same blocks of the next lane, while what is packed of them stays in the first-level cache.
    fn for_rows(&self, lanes: usize, mut copy: impl FnMut(usize, &Block<'_>)) {
        let elements = self.source_block * self.kernel.len() * self.tile_vectors * self.vector;
        let together = (self.cached / elements).max(1);
        let mut blocks = self.blocks().peekable();
        while blocks.peek().is_some() {
            for lane in 0..lanes {
                blocks.clone().take(together).for_each(|block| copy(lane, &block));
            }
            blocks.nth(together - 1);
        }
    }

    /// Packs the numbers of one block. They are read in the order in which they lie: steps across them may fall on the same
    /// sets of the cache each time.
    fn pack_block(&self, weights: &[f32], part: &Part, block: &Block<'_>, packed: &mut [f32]) {
        let Part { group, first, lanes, width } = *part;
        let (count, kernel) = (block.sources.len(), self.kernel.len());
        if self.targets_are_outputs {
            return (0..lanes).for_each(|lane| self.pack_lane(weights, part, block, lane, packed));
        }
        for (i, source) in block.sources.clone().enumerate() {
            let start = self.place(group, first, source);
            let from = &weights[start..start + lanes * kernel];
            for (t, tap) in block.taps.iter().enumerate() {
                let to = &mut packed[(t * count + i) * width..][..lanes];
                for (to, value) in to.iter_mut().zip(from[*tap..].iter().step_by(kernel)) {
                    *to = *value;
                }
            }
        }
    }

    /// Packs the numbers of one block and one target, of a convolution or ∇W.
    fn pack_lane(&self, weights: &[f32], part: &Part, block: &Block<'_>, lane: usize, packed: &mut [f32]) {
        let (count, kernel, width) = (block.sources.len(), self.kernel.len(), part.width);
        let start = self.place(part.group, part.first + lane, block.sources.start);
        let from = &weights[start..start + count * kernel];
        for (to, tap) in packed.chunks_exact_mut(count * width).zip(block.taps) {
            let weights = from[*tap..].iter().step_by(kernel);
            to.chunks_exact_mut(width).zip(weights).for_each(|(to, value)| to[lane] = *value);
        }
    }

    /// Elements of a block of numbers before they are made into words.
    pub fn scratch(&self) -> usize {
        let widest = self.tile_vectors * self.vector;
        let sources = self.source_block.min(self.sources);
        match self.words {
            Words::Numbers => 0,
            Words::Sources if self.kernel.len() == 1 => Pointwise::scratch(self.sources, widest),
            _ => sources * self.kernel.len() * widest,
        }
    }

    /// Packs a tile in words: each block in numbers first, then row by row.
    fn pack_words(&self, weights: &[f32], part: &Part, packed: &mut [f32], scratch: &mut [f32]) {
        let width = part.width;
        if self.kernel.len() == 1 && self.words == Words::Sources {
            let start = self.place(part.group, part.first, 0);
            let steps = if self.targets_are_outputs { [1, self.sources] } else { [self.targets, 1] };
            let (weights, sources, lanes) = (&weights[start..], self.sources, part.lanes);
            return with_words(Pointwise { weights, sources, steps, lanes, width, packed, scratch });
        }
        for block in self.blocks() {
            let count = block.sources.len();
            let words = self.words(count);
            let packed =
                packed[block.depth * width..][..words * block.taps.len() * width].chunks_exact_mut(width);
            let taps = if self.words == Words::Sources { block.taps } else { &self.kernel };
            let numbers = &mut scratch[..count * taps.len() * width];
            if part.lanes < width {
                numbers.fill(0.0);
            }
            self.pack_block(weights, part, &Block { taps, ..block.clone() }, numbers);
            for (i, to) in packed.enumerate() {
                let (t, word) = (i / words, i % words);
                let (first, second) = match self.words {
                    Words::Taps(columns) => {
                        let tap = block.taps[t];
                        let second = (tap % columns + 1 < columns).then_some((tap + 1) * count + word);
                        (tap * count + word, second)
                    }
                    Words::Sources | Words::Numbers => {
                        let first = t * count + 2 * word;
                        (first, (2 * word + 1 < count).then_some(first + 1))
                    }
                };
                let row = |row: usize| &numbers[row * width..(row + 1) * width];
                with_words(Pairs { a: row(first), b: second.map_or(&[], row), to });
            }
        }
    }

    /// Writes one packed tile of ∇W into the rows of `gradient` that belong to its targets: `gradient` begins at the
    /// first of them.
    pub fn unpack(&self, packed: &[f32], tile: usize, gradient: &mut [f32]) {
        let width = self.vectors(tile) * self.vector;
        let first = tile * self.tile_vectors * self.vector;
        let (base, kernel) = (self.place(0, first, 0), self.kernel.len());
        self.for_rows(width.min(self.targets - first), |lane, block| {
            let count = block.sources.len();
            let start = self.place(0, first + lane, block.sources.start) - base;
            let to = &mut gradient[start..start + count * kernel];
            let packed = &packed[block.depth * width..][..count * block.taps.len() * width];
            for (from, tap) in packed.chunks_exact(count * width).zip(block.taps) {
                let places = to[*tap..].iter_mut().step_by(kernel);
                places.zip(from.chunks_exact(width)).for_each(|(to, from)| *to = from[lane]);
            }
        });
    }

    /// The elements of Caffe's order that belong to the targets of a tile; only where targets are outputs.
    pub fn rows(&self, group: usize, tile: usize) -> Range<usize> {
        let first = tile * self.tile_vectors * self.vector;
        let end = (first + self.vectors(tile) * self.vector).min(self.targets);
        let start = self.place(group, first, 0);
        start..start + (end - first) * self.sources * self.kernel.len()
    }
}

/// The targets of one tile.
struct Part {
    group: usize,
    /// First target and targets.
    first: usize,
    lanes: usize,
    /// Targets with what fills them up.
    width: usize,
}

/// The sources of one block of channels in one pass.
#[derive(Clone)]
struct Block<'a> {
    /// Channels.
    sources: Range<usize>,
    /// Taps of the pass.
    taps: &'a [usize],
    /// Place of the first source in the tile.
    depth: usize,
}
