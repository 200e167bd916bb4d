//! One direction: forward or ∇A.
//!
//! A grain computes some tiles of outputs: their inputs are transformed, each of the 16, 49 or 121 points is a matrix product
//! (tiles × sources · sources × targets) on the register tiles of correlation, and the products are transformed back. So many tiles
//! are multiplied together that reading the transformed weights, 16/9, 49/9 or 121/25 of the weights, is cheap beside the products, and so
//! few that one point's inputs stay in the second-level cache. Where that leaves few grains, sources are transformed for all of
//! them in the stage that transforms weights ([`Cut`]).
//!
//! ∇A is forward with a kernel that is turned round, or goes over the tiles of forward ([`Overlap`]).

use std::ops::Range;

use quadrille_core::layer::SubTask;

use super::super::direction::{Arrays, Setup, TILE_VECTORS};
use super::super::weights::{Packing, Words};
use super::cut::{Cut, Whole};
use super::inputs::Inputs;
use super::overlap::Overlap;
use super::{ALIGNMENT, Tiling, apart, can, packing};
use crate::isa::{Isa, Precision};
use crate::kernel::correlate::{End, Kernels, Pixel, Run, Start, Tile, kernels};
use crate::kernel::stored::{Origin, with_stored};
use crate::kernel::vectorised::with_vectors;
use crate::kernel::winograd::{Filter, InputsBack, Outputs, Squares, Store, WeightWords, Weights};
use crate::kernel::words::with_words;
use crate::layer::{Grain, share};
use crate::layout::Arrangement;
use crate::machine::{LINE, Machine};
use crate::memory::{Memory, Span};

/// Most register tiles whose products are held at once: they are found once for all points, since small layers take little longer to
/// multiply.
const MOST_COLUMNS: usize = 32;

/// A register tile of a point's products: where it sees its first source, its first tile of outputs, and how many.
#[derive(Clone, Copy, Default)]
struct Column {
    x: usize,
    first: usize,
    count: usize,
}

/// One direction.
pub(in crate::layer::convolution) struct Winograd {
    isa: Isa,
    /// Whether a ReLU follows: forward.
    relu: bool,
    packing: Packing,
    /// The packing before weights are transformed, and parts of a tile of it that a grain each transforms.
    taps: Packing,
    packing_parts: usize,
    tiling: Tiling,
    /// Of ∇A over the tiles of forward.
    overlap: Option<Overlap>,
    target: Arrangement,
    target_extents: [usize; 2],
    cut: Cut,
    /// How transformed sources lie.
    inputs: Inputs,
    /// The sources of a point, cut into chunks.
    chunks: Vec<Vec<Run>>,
    kernels: Vec<Kernels>,
}

/// What is multiplied together: some tiles of outputs of a group for some tiles of targets.
struct Work {
    group: usize,
    tiles: Range<usize>,
    targets: Range<usize>,
}

impl Winograd {
    /// Prepares a direction; `None` if the transforms cannot do it, or the tier has no tiles.
    pub fn new(setup: &Setup<'_>, filter: Filter) -> Option<Self> {
        let layer = can(setup.layer, filter).then_some(setup.layer)?;
        let forward = setup.sub == SubTask::Forward;
        let machine = Machine::of(setup.numerics.isa);
        let kernels: Vec<Kernels> =
            (1..=TILE_VECTORS).map(|v| kernels(setup.numerics, v, Pixel::Vector)).collect::<Option<_>>()?;
        let (source_extents, target_extents) =
            if forward { (setup.input, setup.output) } else { (setup.output, setup.input) };
        let precision = setup.numerics.precision;
        let tiles = machine.winograd(filter).tiles[precision.in_word() - 1];
        let overlap = match forward {
            true => None,
            false => Overlap::new(layer, filter, [setup.input, setup.output], tiles),
        };
        let turned = !forward && overlap.is_none();
        let [taps, packing] = [Precision::F32, precision].map(|p| packing(setup, filter, turned, p));
        let vector = packing.vector;
        let tiling = Tiling {
            filter,
            isa: setup.numerics.isa,
            squares: if overlap.is_some() { Squares::Outputs } else { Squares::Inputs },
            source: setup.source,
            source_extents,
            target_extents: if overlap.is_some() { source_extents } else { target_extents },
            pad: if forward { layer.pad } else { layer.pad.map(|p| filter.side() - 1 - p) },
            store: if precision == Precision::F32 { Store::Numbers } else { Store::Channels },
        };
        let count = tiling.count();
        let together = overlap.map_or(1, |overlap| overlap.tiles);
        let whole = Whole {
            tiles: count,
            together,
            groups: layer.group,
            targets: packing.tiles(),
            fewest_targets: machine.winograd_targets * precision.in_word(),
            grains: machine.grains(setup.flops, machine.task_grains),
        };
        let cut = Cut::new(&whole, &machine.winograd(filter), tiles);
        let rows = kernels[0].tiles.len().min(cut.held);
        let columns = cut.held.div_ceil(rows);
        assert!(columns <= MOST_COLUMNS, "{} tiles of outputs have {columns} register tiles", cut.held);
        let inputs = Inputs::new(&tiling, rows, packing.sources.div_ceil(vector));
        let most = machine.chunk_bytes / (TILE_VECTORS * vector * size_of::<f32>());
        Some(Self {
            isa: setup.numerics.isa,
            relu: forward && layer.relu,
            tiling,
            overlap,
            target: setup.target,
            target_extents,
            chunks: chunks(&packing, &inputs, most),
            inputs,
            cut,
            packing_parts: taps.parts(filter.transformed(taps.len())),
            packing,
            taps,
            kernels,
        })
    }

    /// Elements of the transformed weights, and of the sources if they are transformed before.
    pub fn packed_len(&self) -> usize {
        self.inputs_start() + self.staged_blocks() * self.inputs.block_len
    }

    /// Where transformed sources begin behind the weights: at a cache line.
    fn inputs_start(&self) -> usize {
        self.tiling.filter.transformed(self.packing.len()).next_multiple_of(LINE)
    }

    /// Blocks of sources that are transformed before, with room for as many in each part of the tiles.
    fn staged_blocks(&self) -> usize {
        if self.cut.staged { self.parts() * self.held_blocks() } else { 0 }
    }

    /// Grains of the transformation of weights and of sources.
    pub fn packing_grains(&self) -> usize {
        self.taps.grains(self.packing_parts) + self.staged_blocks()
    }

    /// Grains of the computation.
    pub fn grains(&self) -> usize {
        self.parts() * self.cut.target_parts
    }

    /// Parts of the tiles of all groups.
    fn parts(&self) -> usize {
        self.packing.groups * self.cut.tile_parts
    }

    /// Most blocks of sources of what is multiplied together.
    fn held_blocks(&self) -> usize {
        self.cut.held.div_ceil(self.inputs.block)
    }

    /// Elements from one point of the products of a grain to the next.
    fn product_len(&self) -> usize {
        let tiles = self.packing.tiles().div_ceil(self.cut.target_parts);
        apart(tiles * TILE_VECTORS * self.cut.held * self.packing.vector)
    }

    /// Elements of scratch for a grain.
    pub fn scratch(&self) -> usize {
        let inputs = if self.cut.staged { 0 } else { self.held_blocks() * self.inputs.block_len };
        let products = self.tiling.filter.points() * self.product_len() + self.sums_len();
        (inputs + products).max(self.weights_len()) + ALIGNMENT
    }

    /// Elements of the sums of an image's tiles, of a block of channels.
    fn sums_len(&self) -> usize {
        self.overlap.map_or(0, |overlap| overlap.seen.iter().product::<usize>() * self.packing.vector)
    }

    /// The transformed weights of a tile of targets.
    fn packed_tile(&self, group: usize, tile: usize) -> Range<usize> {
        let taps = self.packing.tile(group, tile);
        self.tiling.filter.transformed(taps.start)..self.tiling.filter.transformed(taps.end)
    }

    /// Elements of the taps of a block of sources for a tile of targets.
    fn weights_len(&self) -> usize {
        self.tiling.filter.taps() * self.taps.source_block * self.packing.vectors(0) * self.packing.vector
    }

    /// Transforms the grain's piece of the weights, or its block of the sources.
    pub fn prepare(&self, grain: &mut Grain<'_>, weights: Span, source: Span, packed: Span) {
        match grain.index.checked_sub(self.taps.grains(self.packing_parts)) {
            None => self.pack(grain, weights, packed),
            Some(index) => self.transform(grain.memory, source, packed, index),
        }
    }

    /// Transforms a block of the sources, if the part has so many.
    fn transform(&self, memory: &Memory, source: Span, packed: Span, index: usize) {
        let (part, block) = (index / self.held_blocks(), index % self.held_blocks());
        let tiles = self.cut.part(part % self.cut.tile_parts);
        let Some(tiles) = self.inputs.blocks(&tiles).nth(block) else { return };
        let start = self.inputs_start() + index * self.inputs.block_len;
        // SAFETY: each grain has a block of its own, behind the weights.
        let inputs = unsafe { memory.write(packed.part(start..start + self.inputs.block_len)) };
        self.transform_block(memory, source, part / self.cut.tile_parts, tiles, inputs);
    }

    fn transform_block(
        &self,
        memory: &Memory,
        source: Span,
        group: usize,
        tiles: Range<usize>,
        inputs: &mut [f32],
    ) {
        let Inputs { block, planes, point_len, .. } = self.inputs;
        let planes = group * planes..(group + 1) * planes;
        self.tiling.transform(memory, source, planes, tiles, [block, point_len], inputs);
    }

    /// Transforms the weights of the grain's piece.
    fn pack(&self, grain: &mut Grain<'_>, weights: Span, packed: Span) {
        let piece = self.taps.piece(grain.index, self.packing_parts);
        let to = packed.part(self.packed_tile(piece.group, piece.tile));
        // SAFETY: weights are only read in this task.
        let weights = unsafe { grain.memory.read(weights) };
        // SAFETY: grains have sources of their own of each point of a tile.
        let to = |first: usize| unsafe { Origin::new(grain.memory.pointer(to).add(first)) };
        let (filter, part) = (self.tiling.filter, self.taps.targets_of(piece.group, piece.tile));
        let width = part.width;
        let point = self.packing.words(self.packing.sources) * width;
        let taps = &mut grain.scratch[..self.weights_len()];
        for block in self.taps.blocks_of(&piece) {
            let (first, sources) = (self.packing.words(block.sources.start) * width, block.sources.len());
            if self.packing.words == Words::Numbers {
                let (to, count) = (to(first), sources * width);
                self.taps.pack_block(weights, &part, &block, taps);
                with_vectors(self.isa, Weights { filter, taps, tap: count, to, point, count });
                continue;
            }
            // Words are made of a vector of targets at a time.
            for (i, part) in part.vectors(self.taps.vector).enumerate() {
                self.taps.pack_block(weights, &part, &block, taps);
                let (tap, to) = (sources * part.width, to(first + i * part.width));
                with_words(WeightWords { filter, taps, tap, sources, to, point, pair: width });
            }
        }
    }

    /// Computes a grain.
    pub fn run(&self, grain: &mut Grain<'_>, arrays: &Arrays) {
        let Cut { staged, tile_parts, target_parts, .. } = self.cut;
        let (index, targets) = (grain.index / target_parts, grain.index % target_parts);
        let (group, part) = (index / tile_parts, index % tile_parts);
        let targets = share(self.packing.tiles(), targets, target_parts);
        let aligned = grain.scratch.as_ptr().align_offset(64).min(ALIGNMENT);
        let scratch = &mut grain.scratch[aligned..];
        let (block_len, len) = (self.inputs.block_len, self.held_blocks() * self.inputs.block_len);
        if staged {
            let start = self.inputs_start() + index * len;
            // SAFETY: transformed in the stage before.
            let inputs = unsafe { grain.memory.read(arrays.packed.part(start..start + len)) };
            let work = Work { group, tiles: self.cut.part(part), targets };
            return self.run_held(grain.memory, arrays, &work, inputs, scratch);
        }
        let (inputs, rest) = scratch.split_at_mut(len);
        for tiles in self.cut.held(part) {
            for (block, inputs) in self.inputs.blocks(&tiles).zip(inputs.chunks_mut(block_len)) {
                self.transform_block(grain.memory, arrays.source, group, block, inputs);
            }
            let work = Work { group, tiles, targets: targets.clone() };
            self.run_held(grain.memory, arrays, &work, inputs, rest);
        }
    }

    /// Multiplies the transformed sources of some tiles, and transforms the products back.
    fn run_held(&self, memory: &Memory, arrays: &Arrays, work: &Work, inputs: &[f32], scratch: &mut [f32]) {
        let (points, product_len) = (self.tiling.filter.points(), self.product_len());
        let (products, sums) = scratch.split_at_mut(points * product_len);
        let mut columns = [Column::default(); MOST_COLUMNS];
        let count = self.columns(&work.tiles).zip(&mut columns).map(|(column, to)| *to = column).count();
        let columns = &columns[..count];
        // SAFETY: transformed in the stage before.
        let packed = |tile| unsafe { memory.read(arrays.packed.part(self.packed_tile(work.group, tile))) };
        // A single column reads weights as fast as it could ask for them.
        let asks = columns.len() > 1;
        let targets = &work.targets;
        for point in 0..points {
            let inputs = &inputs[point * self.inputs.point_len..];
            let products = &mut products[point * product_len..(point + 1) * product_len];
            for tile in targets.clone() {
                let next =
                    if tile + 1 < targets.end { [point, tile + 1] } else { [point + 1, targets.start] };
                let soon = asks.then(|| match next[0] < points {
                    true => self.first_chunk(next, packed(next[1])),
                    false => &[],
                });
                let first = (tile - targets.start) * TILE_VECTORS * self.cut.held * self.packing.vector;
                self.multiply([point, tile], packed(tile), soon, inputs, &mut products[first..], columns);
            }
        }
        for tile in targets.clone() {
            match self.overlap {
                Some(_) => self.add_inputs(memory, arrays, work, tile, products, sums),
                None => self.transform_outputs(memory, arrays, work, tile, products),
            }
        }
    }

    /// The register tiles of a point's products.
    fn columns(&self, tiles: &Range<usize>) -> impl Iterator<Item = Column> {
        let first = tiles.start;
        let (block_len, blocks) = (self.inputs.block_len, self.inputs.blocks(tiles));
        blocks.enumerate().map(move |(i, block)| Column {
            x: i * block_len,
            first: block.start - first,
            count: block.len(),
        })
    }

    /// The weights of the first sources of one point for one tile of targets.
    fn first_chunk<'a>(&self, [point, tile]: [usize; 2], packed: &'a [f32]) -> &'a [f32] {
        let width = self.packing.vectors(tile) * self.packing.vector;
        let weights = &packed[point * self.packing.words(self.packing.sources) * width..];
        &weights[..self.chunks.first().map_or(0, |runs| words(runs).len() * width)]
    }

    /// The products of one point for one tile of targets. Meanwhile the weights that come next are asked for, at last `soon`, unless
    /// that is `None`: they are read once for each block, and the third-level cache holds them only if nobody else needs it.
    fn multiply(
        &self,
        [point, tile]: [usize; 2],
        packed: &[f32],
        soon: Option<&[f32]>,
        inputs: &[f32],
        products: &mut [f32],
        columns: &[Column],
    ) {
        let (lanes, vectors) = (self.packing.vector, self.packing.vectors(tile));
        let sources = self.packing.words(self.packing.sources);
        let weights = &packed[point * sources * vectors * lanes..];
        let y = products.as_mut_ptr();
        for (i, runs) in self.chunks.iter().enumerate() {
            let (ahead, lines) = soon.map_or((&[][..], 0), |soon| {
                let next = self.chunks.get(i + 1).map(|next| words(next));
                let soon =
                    next.map_or(soon, |n| &weights[n.start * vectors * lanes..n.end * vectors * lanes]);
                (soon, soon.len().div_ceil(LINE * runs.len() * columns.len()))
            });
            let mut tile = Tile {
                runs,
                x: inputs.as_ptr(),
                x_pixel: lanes,
                w: weights.as_ptr(),
                y,
                y_pixel: lanes,
                y_vector: self.cut.held * lanes,
                below: None,
                start: if i == 0 { Start::Zero } else { Start::There },
                end: End::There,
                relu: false,
                sign: None,
                ahead: ahead.as_ptr(),
                ahead_lines: lines,
            };
            for column in columns {
                tile.x = inputs.as_ptr().wrapping_add(column.x);
                tile.y = y.wrapping_add(column.first * lanes);
                // SAFETY: the block's inputs hold all planes of its tiles, the packed weights all sources, and the
                // products, which are the thread's own, all vectors of targets.
                unsafe { self.kernels[vectors - 1].tiles[column.count - 1](&tile) }
                tile.ahead = tile.ahead.wrapping_add(runs.len() * lines * LINE);
            }
        }
    }

    fn transform_outputs(
        &self,
        memory: &Memory,
        arrays: &Arrays,
        work: &Work,
        tile: usize,
        products: &[f32],
    ) {
        let lanes = self.packing.vector;
        let (plane_len, point) = (self.target.plane_len(), self.product_len());
        let first_vector = work.targets.start * TILE_VECTORS;
        self.tiling.each_image(work.tiles.clone(), |image, first, tiles| {
            for vector in tile * TILE_VECTORS..tile * TILE_VECTORS + self.packing.vectors(tile) {
                let channel = work.group * self.packing.targets + vector * lanes;
                let start = image * self.target.image_stride() + channel / lanes * plane_len;
                let outputs = Outputs {
                    filter: self.tiling.filter,
                    products: &products[((vector - first_vector) * self.cut.held + first) * lanes..],
                    point,
                    tiles,
                    relu: self.relu,
                    adds: arrays.adds,
                    // SAFETY: copied in the stage before, with a full tile for each tile.
                    bias: arrays.bias.map(|bias| unsafe { &memory.read(bias)[channel..channel + lanes] }),
                    sign: self.sign(memory, arrays, image, channel),
                    // SAFETY: the part is the whole plane, and the grain's own.
                    plane: unsafe {
                        Origin::new(memory.pointer(arrays.target.part(start..start + plane_len)))
                    },
                    extents: self.target_extents,
                };
                with_stored(self.isa, self.target.layout.precision, outputs);
            }
        });
    }

    /// Where a ReLU's values lie for a block of channels of an image.
    fn sign(&self, memory: &Memory, arrays: &Arrays, image: usize, channel: usize) -> Option<Origin> {
        let plane_len = self.target.plane_len();
        arrays.sign.map(|sign| {
            let start = image * sign.lies.image_stride() + channel / self.packing.vector * plane_len;
            // SAFETY: the part is the whole plane, which is only read in this task.
            unsafe { Origin::new(memory.pointer(sign.span.part(start..start + plane_len))) }
        })
    }

    /// Transforms the products of whole images to gradients of their inputs.
    fn add_inputs(
        &self,
        memory: &Memory,
        arrays: &Arrays,
        work: &Work,
        tile: usize,
        products: &[f32],
        sums: &mut [f32],
    ) {
        let Some(Overlap { seen, pad, .. }) = self.overlap else { return };
        let lanes = self.packing.vector;
        let (plane_len, point) = (self.target.plane_len(), self.product_len());
        let first_vector = work.targets.start * TILE_VECTORS;
        let sums = &mut sums[..self.sums_len()];
        self.tiling.each_image(work.tiles.clone(), |image, first, tiles| {
            for vector in tile * TILE_VECTORS..tile * TILE_VECTORS + self.packing.vectors(tile) {
                let channel = work.group * self.packing.targets + vector * lanes;
                let start = image * self.target.image_stride() + channel / lanes * plane_len;
                let back = InputsBack {
                    filter: self.tiling.filter,
                    products: &products[((vector - first_vector) * self.cut.held + first) * lanes..],
                    point,
                    tiles,
                    sums,
                    seen,
                    adds: arrays.adds,
                    sign: self.sign(memory, arrays, image, channel),
                    // SAFETY: the part is the whole plane, and the grain's own.
                    plane: unsafe {
                        Origin::new(memory.pointer(arrays.target.part(start..start + plane_len)))
                    },
                    extents: self.target_extents,
                    pad,
                };
                with_stored(self.isa, self.target.layout.precision, back);
            }
        });
    }
}

/// The words of a chunk of sources, which follow each other.
fn words(runs: &[Run]) -> Range<usize> {
    let first = runs.first().map_or(0, |run| run.first as usize);
    first..runs.last().map_or(first, |run| (run.first + run.len) as usize)
}

/// The sources of a point: blocks of channels, cut into chunks of at most `most` sources, but at least one block.
fn chunks(packing: &Packing, inputs: &Inputs, most: usize) -> Vec<Vec<Run>> {
    let step = packing.source_block;
    let run = |row: usize| Run {
        offset: (row * inputs.row_len) as u32,
        len: packing.words(step.min(packing.sources - row * step)) as u32,
        first: packing.words(row * step) as u32,
    };
    let runs: Vec<Run> = (0..packing.sources.div_ceil(step)).map(run).collect();
    runs.chunks((most / packing.words(step)).max(1)).map(<[Run]>::to_vec).collect()
}
