//! Weights in the order in which register tiles read them, and back.
//!
//! Caffe's order is (output, input of the group, tap). Packed, they lie group by group, tile of targets by tile, pass
//! by pass, source by source (block of channels, tap, channel), a tile's width of targets each; what a tile lacks in
//! targets is filled up with zeros. In bf16 two weights share a word, and the depth of a tile is counted in words.

use std::ops::Range;

use super::passes::Passes;
use super::pointwise::Pointwise;
use crate::isa::Isa;
use crate::kernel::simd::{Simd, Square};
use crate::kernel::vectorised::{Explicit, with_vectors};
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
    /// The tier whose vectors turn weights round.
    pub isa: Isa,
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
        for block in self.blocks() {
            let start = block.depth * width;
            let packed = &mut packed[start..start + block.sources.len() * block.taps.len() * width];
            self.pack_block(weights, &part, &block, packed);
        }
    }

    fn pack_block(&self, weights: &[f32], part: &Part, block: &Block<'_>, packed: &mut [f32]) {
        with_vectors(self.isa, ToRows { packing: self, weights, part, block, packed });
    }

    /// How the weights of a block lie in Caffe's order: where a target's begin, what lies between neighbouring targets, and
    /// how many sources, with all their taps, lie side by side. That is all sources, or one where targets are inputs.
    fn runs(&self, part: &Part, block: &Block<'_>) -> impl Iterator<Item = Side> + use<> {
        let (kernel, sources) = (self.kernel.len(), block.sources.clone());
        let (together, distance) =
            if self.targets_are_outputs { (sources.len(), self.sources * kernel) } else { (1, kernel) };
        let place = self.place(part.group, part.first, sources.start);
        let next = self.place(part.group, part.first, sources.start + 1) - place;
        (0..sources.len().div_ceil(together)).map(move |i| Side {
            start: place + i * next,
            distance,
            source: i,
            len: together * kernel,
        })
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
        let part = Part { group: 0, first, lanes: width.min(self.targets - first), width };
        for block in self.blocks() {
            let packed = &packed[block.depth * width..][..block.sources.len() * block.taps.len() * width];
            with_vectors(self.isa, FromRows { packing: self, packed, part: &part, block: &block, gradient });
        }
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

/// Weights that lie side by side in Caffe's order, for each of some targets.
struct Side {
    /// Where those of the first target begin, and what lies between neighbouring targets.
    start: usize,
    distance: usize,
    /// The block's source that they begin with.
    source: usize,
    /// How many: sources with all their taps.
    len: usize,
}

impl Block<'_> {
    /// The row, of a vector of targets or more, of weight `index` of a run; `None` if the pass does not have its tap.
    #[inline(always)]
    fn row(&self, run: &Side, index: usize, kernel: usize) -> Option<usize> {
        let (source, tap) = (run.source + index / kernel, index % kernel);
        let place = if self.taps.get(tap) == Some(&tap) {
            Some(tap)
        } else {
            self.taps.iter().position(|t| *t == tap)
        };
        place.map(|place| place * self.sources.len() + source)
    }
}

/// Turns the weights of a block into rows of targets, square by square. What rows lack in targets becomes 0.
struct ToRows<'a> {
    packing: &'a Packing,
    weights: &'a [f32],
    part: &'a Part,
    block: &'a Block<'a>,
    packed: &'a mut [f32],
}

/// Rows of weights between the one that is copied and the one that is asked for.
const ROWS_AHEAD: usize = 8;

impl ToRows<'_> {
    /// Copies the targets of each source, which lie side by side as they are to. They are short pieces of rows far apart, so those
    /// that come next are asked for.
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
        for run in packing.runs(part, block) {
            for lane in (0..part.lanes).step_by(S::LANES) {
                let lanes = S::LANES.min(part.lanes - lane);
                for first in (0..run.len).step_by(S::LANES) {
                    let count = S::LANES.min(run.len - first);
                    let start = run.start + lane * run.distance + first;
                    let from = &weights[start..start + (lanes - 1) * run.distance + count];
                    // SAFETY: the CPU has the instructions by contract; the rows lie in `from`.
                    unsafe { S::turn(from.as_ptr(), run.distance, [lanes, count], &mut square) }
                    for (i, row) in square.0.chunks_exact(S::LANES).take(count).enumerate() {
                        if let Some(to) = block.row(&run, first + i, kernel) {
                            packed[to * part.width + lane..][..S::LANES].copy_from_slice(row);
                        }
                    }
                }
            }
        }
    }
}

/// Turns rows of targets back into the weights of a block.
struct FromRows<'a> {
    packing: &'a Packing,
    packed: &'a [f32],
    part: &'a Part,
    block: &'a Block<'a>,
    /// From the first of the part's targets on.
    gradient: &'a mut [f32],
}

impl Explicit for FromRows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { packing, packed, part, block, gradient } = self;
        let kernel = packing.kernel.len();
        let base = packing.place(part.group, part.first, 0);
        let [mut rows, mut turned] = [const { Square([0.0; _]) }; 2];
        for run in packing.runs(part, block) {
            for lane in (0..part.lanes).step_by(S::LANES) {
                let lanes = S::LANES.min(part.lanes - lane);
                for first in (0..run.len).step_by(S::LANES) {
                    let count = S::LANES.min(run.len - first);
                    // ∇W has one pass with all taps, so each has a row.
                    for (i, to) in rows.0.chunks_exact_mut(S::LANES).take(count).enumerate() {
                        match block.row(&run, first + i, kernel) {
                            Some(row) => to.copy_from_slice(&packed[row * part.width + lane..][..S::LANES]),
                            None => to.fill(0.0),
                        }
                    }
                    // SAFETY: the CPU has the instructions by contract; a square has room for the rows.
                    unsafe { S::turn(rows.0.as_ptr(), S::LANES, [count, lanes], &mut turned) }
                    let start = run.start - base + lane * run.distance + first;
                    for (i, row) in turned.0.chunks_exact(S::LANES).take(lanes).enumerate() {
                        gradient[start + i * run.distance..][..count].copy_from_slice(&row[..count]);
                    }
                }
            }
        }
    }
}
