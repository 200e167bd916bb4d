//! One direction: forward or ∇A.
//!
//! A grain computes some tiles of outputs, a block of them at a time: their inputs are transformed, each of the 16, 49 or 121
//! points is a matrix product (tiles × sources · sources × targets) on the register tiles of correlation, and the
//! products are transformed back. A block is so large that reading the transformed weights, 16/9, 49/9 or 121/25 of the weights,
//! is cheap beside the products, and so small that one point's inputs stay in the second-level cache.
//!
//! ∇A is forward with a kernel that is turned round, or goes over the tiles of forward ([`Overlap`]).

use std::ops::Range;

use quadrille_core::layer::SubTask;

use super::super::direction::{Arrays, Setup, TILE_VECTORS, even_parts};
use super::super::weights::{Packing, Words};
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

/// Most register tiles of a block: they are found once for all points, since small layers take little longer to multiply.
const MOST_COLUMNS: usize = 32;

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
    /// Most tiles of a block.
    block: usize,
    /// The sources of a point, cut into chunks.
    chunks: Vec<Vec<Run>>,
    kernels: Vec<Kernels>,
    /// Parts of the tiles, and of the tiles of target channels.
    tile_parts: usize,
    target_parts: usize,
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
        let block = machine.winograd(filter).tiles * precision.in_word();
        let overlap = match forward {
            true => None,
            false => Overlap::new(layer, filter, [setup.input, setup.output], block),
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
        let block = (block / together * together).min(count);
        let columns = block.div_ceil(kernels[0].tiles.len());
        assert!(columns <= MOST_COLUMNS, "a block of {block} tiles of outputs has {columns} register tiles");
        let most = machine.chunk_bytes / (TILE_VECTORS * vector * size_of::<f32>());
        let wanted = machine.grains(setup.flops, machine.task_grains);
        // An even number, which two threads share evenly.
        let tile_parts = count.div_ceil(block).next_multiple_of(2).min(wanted).min(count / together);
        // Each part of the targets transforms the sources anew: that is for where half of the grains or more are missing.
        let missing = (wanted / (tile_parts * layer.group)).max(1);
        let fewest = machine.winograd_targets * precision.in_word();
        let target_parts = missing.min(packing.tiles().div_ceil(fewest));
        Some(Self {
            isa: setup.numerics.isa,
            relu: forward && layer.relu,
            tiling,
            overlap,
            target: setup.target,
            target_extents,
            block,
            chunks: chunks(&packing, block, most),
            packing_parts: taps.parts(filter.transformed(taps.len())),
            packing,
            taps,
            kernels,
            tile_parts,
            target_parts,
        })
    }

    /// Elements of the transformed weights.
    pub fn packed_len(&self) -> usize {
        self.tiling.filter.transformed(self.packing.len())
    }

    /// Grains of the transformation of weights.
    pub fn packing_grains(&self) -> usize {
        self.taps.grains(self.packing_parts)
    }

    /// Grains of the computation.
    pub fn grains(&self) -> usize {
        self.packing.groups * self.tile_parts * self.target_parts
    }

    fn planes(&self) -> usize {
        self.taps.sources.div_ceil(self.taps.source_block)
    }

    /// Elements from one point of a block's inputs to the next, and of its products.
    fn points(&self) -> [usize; 2] {
        let vectors = self.packing.targets.div_ceil(self.packing.vector);
        let products = vectors * self.block * self.packing.vector;
        [self.tiling.point_len(self.planes(), self.block), apart(products)]
    }

    /// Elements of scratch for a grain.
    pub fn scratch(&self) -> usize {
        let [inputs, products] = self.points();
        let products = self.tiling.filter.points() * (inputs + products) + self.sums_len();
        products.max(self.weights_len()) + ALIGNMENT
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

    /// Transforms the weights of the grain's piece.
    pub fn pack(&self, grain: &mut Grain<'_>, weights: Span, packed: Span) {
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
        let (index, targets) = (grain.index / self.target_parts, grain.index % self.target_parts);
        let (group, part) = (index / self.tile_parts, index % self.tile_parts);
        // Tiles that overlap stay together.
        let together = self.overlap.map_or(1, |overlap| overlap.tiles);
        let all = share(self.tiling.count() / together, part, self.tile_parts);
        let targets = share(self.packing.tiles(), targets, self.target_parts);
        for (first, count) in even_parts(&all, self.block / together) {
            let block = first * together..(first + count) * together;
            self.run_block(grain, arrays, group, block, targets.clone());
        }
    }

    fn run_block(
        &self,
        grain: &mut Grain<'_>,
        arrays: &Arrays,
        group: usize,
        block: Range<usize>,
        targets: Range<usize>,
    ) {
        let ([inputs, products], points) = (self.points(), self.tiling.filter.points());
        let aligned = grain.scratch.as_ptr().align_offset(64).min(ALIGNMENT);
        let (inputs, rest) = grain.scratch[aligned..].split_at_mut(points * inputs);
        let (products, sums) = rest.split_at_mut(points * products);
        let planes = group * self.planes()..(group + 1) * self.planes();
        self.tiling.transform(grain.memory, arrays.source, planes, block.clone(), self.block, inputs);
        let mut parts = [(0, 0); MOST_COLUMNS];
        let columns = even_parts(&(0..block.len()), self.kernels[0].tiles.len());
        let count = columns.zip(&mut parts).map(|(column, to)| *to = column).count();
        let columns = &parts[..count];
        // SAFETY: transformed in the stage before.
        let packed = |tile| unsafe { grain.memory.read(arrays.packed.part(self.packed_tile(group, tile))) };
        // A single column reads weights as fast as it could ask for them.
        let asks = columns.len() > 1;
        for point in 0..points {
            for tile in targets.clone() {
                let next =
                    if tile + 1 < targets.end { [point, tile + 1] } else { [point + 1, targets.start] };
                let soon = asks.then(|| match next[0] < points {
                    true => self.first_chunk(next, packed(next[1])),
                    false => &[],
                });
                self.multiply([point, tile], packed(tile), soon, inputs, products, columns);
            }
        }
        for tile in targets {
            match self.overlap {
                Some(_) => {
                    self.add_inputs(grain.memory, arrays, [group, tile], block.clone(), products, sums)
                }
                None => self.transform_outputs(grain.memory, arrays, group, tile, block.clone(), products),
            }
        }
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
        columns: &[(usize, usize)],
    ) {
        let (lanes, vectors) = (self.packing.vector, self.packing.vectors(tile));
        let sources = self.packing.words(self.packing.sources);
        let weights = &packed[point * sources * vectors * lanes..];
        let [input_len, product_len] = self.points();
        let inputs = &inputs[point * input_len..(point + 1) * input_len];
        let products = &mut products[point * product_len..(point + 1) * product_len];
        let y = products[tile * TILE_VECTORS * self.block * lanes..].as_mut_ptr();
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
                y_vector: self.block * lanes,
                below: None,
                start: if i == 0 { Start::Zero } else { Start::There },
                end: End::There,
                relu: false,
                sign: None,
                ahead: ahead.as_ptr(),
                ahead_lines: lines,
            };
            for (column, count) in columns {
                tile.x = inputs.as_ptr().wrapping_add(column * lanes);
                tile.y = y.wrapping_add(column * lanes);
                // SAFETY: the block's inputs hold all planes of its tiles, the packed weights all sources, and the
                // products, which are the thread's own, all vectors of targets.
                unsafe { self.kernels[vectors - 1].tiles[count - 1](&tile) }
                tile.ahead = tile.ahead.wrapping_add(runs.len() * lines * LINE);
            }
        }
    }

    fn transform_outputs(
        &self,
        memory: &Memory,
        arrays: &Arrays,
        group: usize,
        tile: usize,
        block: Range<usize>,
        products: &[f32],
    ) {
        let lanes = self.packing.vector;
        let (plane_len, point) = (self.target.plane_len(), self.points()[1]);
        self.tiling.each_image(block, |image, first, tiles| {
            for vector in tile * TILE_VECTORS..tile * TILE_VECTORS + self.packing.vectors(tile) {
                let channel = group * self.packing.targets + vector * lanes;
                let start = image * self.target.image_stride() + channel / lanes * plane_len;
                let outputs = Outputs {
                    filter: self.tiling.filter,
                    products: &products[(vector * self.block + first) * lanes..],
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
        [group, tile]: [usize; 2],
        block: Range<usize>,
        products: &[f32],
        sums: &mut [f32],
    ) {
        let Some(Overlap { seen, pad, .. }) = self.overlap else { return };
        let lanes = self.packing.vector;
        let (plane_len, point) = (self.target.plane_len(), self.points()[1]);
        let sums = &mut sums[..self.sums_len()];
        self.tiling.each_image(block, |image, first, tiles| {
            for vector in tile * TILE_VECTORS..tile * TILE_VECTORS + self.packing.vectors(tile) {
                let channel = group * self.packing.targets + vector * lanes;
                let start = image * self.target.image_stride() + channel / lanes * plane_len;
                let back = InputsBack {
                    filter: self.tiling.filter,
                    products: &products[(vector * self.block + first) * lanes..],
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
fn chunks(packing: &Packing, block: usize, most: usize) -> Vec<Vec<Run>> {
    let step = packing.source_block;
    let run = |first: usize| Run {
        offset: (packing.words(first) * block) as u32,
        len: packing.words(step.min(packing.sources - first)) as u32,
        first: packing.words(first) as u32,
    };
    let runs: Vec<Run> = (0..packing.sources).step_by(step).map(run).collect();
    runs.chunks((most / packing.words(step)).max(1)).map(<[Run]>::to_vec).collect()
}
