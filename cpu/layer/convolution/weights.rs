//! Weights in the order in which register tiles read them, and back.
//!
//! Caffe's order is (output, input of the group, tap). Packed, they lie group by group, tile of targets by tile, pass
//! by pass, source by source (block of channels, tap, channel), a tile's width of targets each; what a tile lacks in
//! targets is filled up with zeros. In bf16 two weights share a word, and the depth of a tile is counted in words.

use std::ops::Range;

use super::passes::Passes;
use super::pointwise::Pointwise;
use super::transpose::{FromRows, ToRows};
use crate::isa::Isa;
use crate::kernel::stored::Origin;
use crate::kernel::summed::Summed;
use crate::kernel::vectorised::with_vectors;
use crate::kernel::words::{Narrow, Narrowing, Pairs, with_words};
use crate::layer::share;
use crate::machine::Machine;

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
    /// All taps of the kernel, in order.
    pub kernel: Taps,
    /// Floats of a vector.
    pub vector: usize,
    /// Most vectors of a tile.
    pub tile_vectors: usize,
    /// Whether the targets are the layer's outputs (the convolution and ∇W) or its inputs (∇A).
    pub targets_are_outputs: bool,
    /// The tier whose vectors turn weights round.
    pub isa: Isa,
    /// The taps of each pass.
    pub passes: Vec<Taps>,
}

/// The taps of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taps {
    /// Their places in the kernel.
    order: Vec<usize>,
    /// For each place in the kernel, which of them is there, if one is.
    of_place: Vec<Option<usize>>,
}

impl Taps {
    /// Taps at these places of a kernel of so many.
    pub fn new(order: impl Iterator<Item = usize>, kernel: usize) -> Self {
        let order: Vec<usize> = order.collect();
        let of_place = (0..kernel).map(|place| order.iter().position(|tap| *tap == place)).collect();
        Self { order, of_place }
    }

    /// All taps of a kernel.
    pub fn all(kernel: usize) -> Self {
        Self::new(0..kernel, kernel)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Which of them is at a place of the kernel.
    #[inline(always)]
    pub fn at(&self, place: usize) -> Option<usize> {
        self.of_place[place]
    }
}

impl Packing {
    /// The taps of `passes`, of a kernel of so many.
    pub fn taps(passes: &Passes, kernel: usize) -> Vec<Taps> {
        passes.passes.iter().map(|p| Taps::new(p.taps.iter().map(|t| t.index), kernel)).collect()
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
        self.words(self.sources) * self.passes.iter().map(Taps::len).sum::<usize>()
    }

    /// The elements of one tile.
    pub fn tile(&self, group: usize, tile: usize) -> Range<usize> {
        let depth = self.depth();
        let start = group * self.group_len() + tile * depth * self.tile_vectors * self.vector;
        start..start + depth * self.vectors(tile) * self.vector
    }

    /// The blocks of sources of a tile, in their packed order.
    pub fn blocks(&self) -> impl Iterator<Item = Block<'_>> + Clone {
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

    /// Parts into which each tile is cut where tiles are packed or turned back, of `elements` in all: as many as are worth a
    /// grain of their own, since whoever has none waits.
    pub fn parts(&self, elements: usize) -> usize {
        let machine = Machine::of(self.isa);
        let wanted = (elements / machine.grain_elements).clamp(1, machine.task_grains);
        wanted.div_ceil(self.grains(1)).min(self.blocks().count())
    }

    /// Grains that pack or turn back all tiles if each is cut into `parts`.
    pub fn grains(&self, parts: usize) -> usize {
        self.groups * self.tiles() * parts
    }

    /// What a grain packs or turns back if each tile is cut into `parts`.
    pub fn piece(&self, grain: usize, parts: usize) -> Piece {
        let (tile, part) = (grain / parts, grain % parts);
        let blocks = share(self.blocks().count(), part, parts);
        Piece { group: tile / self.tiles(), tile: tile % self.tiles(), blocks }
    }

    /// The blocks of a piece.
    pub fn blocks_of(&self, piece: &Piece) -> impl Iterator<Item = Block<'_>> + Clone {
        self.blocks().skip(piece.blocks.start).take(piece.blocks.len())
    }

    /// The elements of a piece.
    pub fn elements_of(&self, piece: &Piece) -> Range<usize> {
        let mut blocks = self.blocks_of(piece);
        let first = blocks.next().map_or(0, |block| block.depth);
        let end = self.blocks().nth(piece.blocks.end).map_or(self.depth(), |block| block.depth);
        let (start, width) =
            (self.tile(piece.group, piece.tile).start, self.vectors(piece.tile) * self.vector);
        start + first * width..start + end * width
    }

    /// Where the weight of (target, source, tap 0) of a group stands in Caffe's order.
    pub fn place(&self, group: usize, target: usize, source: usize) -> usize {
        let kernel = self.kernel.len();
        if self.targets_are_outputs {
            ((group * self.targets + target) * self.sources + source) * kernel
        } else {
            ((group * self.sources + source) * self.targets + target) * kernel
        }
    }

    /// The targets of a tile, and of one of its vectors.
    pub fn targets_of(&self, group: usize, tile: usize) -> Part {
        let first = tile * self.tile_vectors * self.vector;
        let width = self.vectors(tile) * self.vector;
        Part { group, first, lanes: width.min(self.targets - first), width }
    }

    /// Packs a piece of `weights` into `packed`, which is that piece alone. `scratch` holds [`Packing::scratch`] elements.
    pub fn pack(&self, weights: &[f32], piece: &Piece, mut packed: &mut [f32], scratch: &mut [f32]) {
        let part = self.targets_of(piece.group, piece.tile);
        if self.words != Words::Numbers {
            return self.pack_words(weights, &part, piece, packed, scratch);
        }
        for block in self.blocks_of(piece) {
            let (rows, rest) = packed.split_at_mut(block.rows() * part.width);
            self.pack_block(weights, &part, &block, rows);
            packed = rest;
        }
    }

    /// Packs a block's weights of some targets as numbers: a row for each tap and source.
    pub fn pack_block(&self, weights: &[f32], part: &Part, block: &Block<'_>, packed: &mut [f32]) {
        with_vectors(self.isa, ToRows { packing: self, weights, part, block, packed });
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

    /// Packs a piece in words: each block in numbers first, then row by row.
    fn pack_words(
        &self,
        weights: &[f32],
        part: &Part,
        piece: &Piece,
        mut packed: &mut [f32],
        scratch: &mut [f32],
    ) {
        let width = part.width;
        if self.kernel.len() == 1 && self.words == Words::Sources {
            let first = piece.blocks.start * self.source_block;
            let sources = self.sources.min(piece.blocks.end * self.source_block) - first;
            let start = self.place(part.group, part.first, first);
            let steps = if self.targets_are_outputs { [1, self.sources] } else { [self.targets, 1] };
            let (weights, lanes) = (&weights[start..], part.lanes);
            return with_words(Pointwise { weights, sources, steps, lanes, width, packed, scratch });
        }
        for block in self.blocks_of(piece) {
            let count = block.sources.len();
            let words = self.words(count);
            let (to, rest) = packed.split_at_mut(words * block.taps.len() * width);
            packed = rest;
            let all = if self.words == Words::Sources {
                block.clone()
            } else {
                Block { taps: &self.kernel, ..block.clone() }
            };
            let numbers = &mut scratch[..all.rows() * width];
            self.pack_block(weights, part, &all, numbers);
            let rows = |i: usize| {
                let (t, word) = (i / words, i % words);
                match self.words {
                    Words::Taps(columns) => {
                        let tap = block.taps.order[t];
                        let second = (tap % columns + 1 < columns).then_some((tap + 1) * count + word);
                        (tap * count + word, second)
                    }
                    Words::Sources | Words::Numbers => {
                        let first = t * count + 2 * word;
                        (first, (2 * word + 1 < count).then_some(first + 1))
                    }
                }
            };
            with_words(PairedRows { numbers, width, rows, packed: to });
        }
    }

    /// Writes a piece of ∇W, of which `packed` has the whole tile, into the rows of `gradient` that belong to the tile's targets:
    /// `gradient` begins at the first of them, and nobody else touches the piece's sources there.
    pub fn unpack(&self, packed: Summed<'_>, piece: &Piece, gradient: Origin) {
        let part = self.targets_of(0, piece.tile);
        for block in self.blocks_of(piece) {
            let len = block.rows() * part.width;
            let ahead = len * ELEMENTS_AHEAD.div_ceil(len);
            self.unpack_block(packed.from(block.depth * part.width), ahead, &part, &block, gradient);
        }
    }

    /// Writes the rows of one block, as [`Packing::pack_block`] packs them. What is `ahead` of them is asked for, element by element.
    pub fn unpack_block(
        &self,
        packed: Summed<'_>,
        ahead: usize,
        part: &Part,
        block: &Block<'_>,
        gradient: Origin,
    ) {
        with_vectors(self.isa, FromRows { packing: self, packed, ahead, part, block, gradient });
    }

    /// The elements of Caffe's order that belong to the targets of a tile; only where targets are outputs.
    pub fn rows(&self, group: usize, tile: usize) -> Range<usize> {
        let first = tile * self.tile_vectors * self.vector;
        let end = (first + self.vectors(tile) * self.vector).min(self.targets);
        let start = self.place(group, first, 0);
        start..start + (end - first) * self.sources * self.kernel.len()
    }
}

/// Rows of numbers that become rows of words: for each of these the one or two rows that share its words.
struct PairedRows<'a, F> {
    numbers: &'a [f32],
    width: usize,
    rows: F,
    packed: &'a mut [f32],
}

impl<F: Fn(usize) -> (usize, Option<usize>)> Narrowing for PairedRows<'_, F> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(self) {
        let row = |row: usize| &self.numbers[row * self.width..(row + 1) * self.width];
        for (i, to) in self.packed.chunks_exact_mut(self.width).enumerate() {
            let (first, second) = (self.rows)(i);
            // SAFETY: by contract.
            unsafe { Pairs { a: row(first), b: second.map_or(&[], row), to }.run::<N>() }
        }
    }
}

/// Elements of packed sums between those that are read and those that are asked for, at least.
const ELEMENTS_AHEAD: usize = 4096;

/// Some blocks of a tile: what a grain packs or turns back.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub group: usize,
    pub tile: usize,
    /// Which of [`Packing::blocks`].
    pub blocks: Range<usize>,
}

/// Some targets that lie side by side.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub group: usize,
    /// First target and targets.
    pub first: usize,
    pub lanes: usize,
    /// Targets with what fills them up.
    pub width: usize,
}

impl Part {
    /// Its vectors.
    pub fn vectors(&self, vector: usize) -> impl Iterator<Item = Self> + use<> {
        let Self { group, first, lanes, width } = *self;
        (0..width).step_by(vector).map(move |at| Self {
            group,
            first: first + at,
            lanes: vector.min(lanes.saturating_sub(at)),
            width: vector,
        })
    }
}

/// The sources of one block of channels in one pass.
#[derive(Clone, Debug)]
pub(super) struct Block<'a> {
    /// Channels.
    pub sources: Range<usize>,
    /// Taps of the pass.
    pub taps: &'a Taps,
    /// Place of the first source in the tile.
    pub depth: usize,
}

impl Block<'_> {
    /// Rows of targets: one for each tap and source.
    pub fn rows(&self) -> usize {
        self.taps.len() * self.sources.len()
    }
}
