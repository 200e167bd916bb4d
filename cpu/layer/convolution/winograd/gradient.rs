//! ∇W by the same products: with V the transformed sources and Z = A dY Aᵀ the transformed gradients of tiles,
//! `dW = Gᵀ [Σ_tiles V ⊙ Z] G`. A grain sums some tiles of targets and some sources over some blocks of tiles; a second stage adds the
//! sums in the order of the blocks, transforms them back and turns them into Caffe's order.

use std::ops::Range;

use super::super::direction::{Setup, TILE_VECTORS, cheapest, even_parts};
use super::super::weights::Packing;
use super::{ALIGNMENT, Tiling, apart, can, packing};
use crate::isa::{Isa, Precision};
use crate::kernel::correlate::{Kernels, Pixel, WeightTile, kernels};
use crate::kernel::stored::Origin;
use crate::kernel::summed::Summed;
use crate::kernel::vectorised::with_vectors;
use crate::kernel::winograd::{Filter, Sources, Squares, Store, WeightsBack};
use crate::layer::{Grain, share};
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::{Memory, Span};

/// Elements from a point of the sums of a tile of targets to the next.
fn point_len(packing: &Packing, tile: usize) -> usize {
    apart(packing.sources * packing.vectors(tile) * packing.vector)
}

/// Elements of the sums of all tiles: each has room for as many as the first.
fn part_len(packing: &Packing, filter: Filter) -> usize {
    packing.groups * packing.tiles() * filter.points() * point_len(packing, 0)
}

/// ∇W of a convolution.
pub(in crate::layer::convolution) struct WinogradGradient {
    isa: Isa,
    tiling: Tiling,
    packing: Packing,
    target: Arrangement,
    /// Most tiles of a block.
    block: usize,
    /// Places of all sources, seen from tile 0.
    offsets: Vec<u32>,
    kernels: Vec<Kernels>,
    /// Parts of the tiles, of the blocks of source channels, and of the tiles of target channels.
    tile_parts: usize,
    source_parts: usize,
    target_parts: usize,
    /// Parts of a tile of targets that are added up by a grain each.
    unpacking_parts: usize,
}

impl WinogradGradient {
    /// Prepares ∇W; `None` if the transforms cannot do the layer, or the tier has no tiles. `setup` is that of
    /// the forward direction.
    pub fn new(setup: &Setup<'_>, filter: Filter) -> Option<Self> {
        let layer = can(setup.layer, filter).then_some(setup.layer)?;
        let machine = Machine::of(setup.numerics.isa);
        let kernels: Vec<Kernels> =
            (1..=TILE_VECTORS).map(|v| kernels(setup.numerics, v, Pixel::Vector)).collect::<Option<_>>()?;
        let narrow = setup.numerics.precision == Precision::Bf16;
        let packing = packing(setup, filter, false, Precision::F32);
        let vector = packing.vector;
        let tiling = Tiling {
            filter,
            isa: setup.numerics.isa,
            squares: Squares::Inputs,
            source: setup.source,
            source_extents: setup.input,
            target_extents: setup.output,
            pad: layer.pad,
            store: if narrow { Store::Tiles } else { Store::Numbers },
        };
        let block = (machine.winograd(filter).gradient_tiles * setup.numerics.precision.in_word())
            .min(tiling.count());
        let place = |source: usize| (source / vector * tiling.row_len(block) + source % vector) as u32;
        let offsets = (0..packing.sources).map(place).collect();
        let wanted = machine.grains(setup.flops, machine.gradient_grains);
        let fewest = machine.winograd_targets * setup.numerics.precision.in_word();
        // Each part of the tiles costs memory for its sums, and writing, reading and adding them, so it is to have many tiles, and
        // fewer only where channels are too few for some grains; each part of the channels on one side transforms those on the
        // other anew, but has so much less of sums that they may stay in a cache from block to block.
        let sums = part_len(&packing, filter);
        let fitting = (machine.partial_bytes / (sums * size_of::<f32>())).max(1);
        let [few, many] = machine.winograd_part_tiles.map(|tiles| {
            let tiles = tiles * setup.numerics.precision.in_word();
            tiling.count().div_ceil(tiles)
        });
        let most_sources = packing.sources.div_ceil(fewest * TILE_VECTORS * vector);
        let most_targets = packing.tiles().div_ceil(fewest);
        let missing =
            wanted.min(machine.winograd_part_grains).div_ceil(layer.group * most_sources * most_targets);
        let most = [few.max(many.min(missing)).min(fitting), most_sources, most_targets];
        let transformed = machine.winograd(filter).source_cost;
        let costs = [3 * sums, transformed * setup.target.len(), transformed * setup.source.len()];
        let [tile_parts, source_parts, target_parts] =
            cheapest(wanted.div_ceil(layer.group), most.map(|most| 1..=most), costs);
        Some(Self {
            isa: setup.numerics.isa,
            offsets,
            tiling,
            unpacking_parts: packing.parts(tile_parts * sums),
            packing,
            target: setup.target,
            block,
            kernels,
            tile_parts,
            source_parts,
            target_parts,
        })
    }

    /// Grains of the sums.
    pub fn grains(&self) -> usize {
        self.packing.groups * self.tile_parts * self.source_parts * self.target_parts
    }

    /// Grains that add the sums up.
    pub fn unpacking_grains(&self) -> usize {
        self.packing.grains(self.unpacking_parts)
    }

    /// Elements of the sums of all parts of the tiles.
    pub fn partials(&self) -> usize {
        self.tile_parts * self.part_len()
    }

    fn part_len(&self) -> usize {
        part_len(&self.packing, self.tiling.filter)
    }

    fn planes(&self) -> usize {
        self.packing.sources.div_ceil(self.packing.source_block)
    }

    /// Elements from one point of a block's sources to the next, and of its gradients.
    fn points(&self) -> [usize; 2] {
        let vectors = self.packing.targets.div_ceil(self.packing.vector);
        let planes = self.planes().div_ceil(self.source_parts);
        [planes, vectors].map(|planes| self.tiling.point_len(planes, self.block))
    }

    /// Elements of scratch for a grain.
    pub fn scratch(&self) -> usize {
        let ([sources, gradients], filter) = (self.points(), self.tiling.filter);
        let width = self.packing.vectors(0) * self.packing.vector;
        let taps = filter.taps() * self.packing.source_block * width;
        (filter.points() * (sources + gradients)).max(taps) + ALIGNMENT
    }

    /// The sums of a tile of targets within a part.
    fn sums(&self, group: usize, tile: usize) -> Range<usize> {
        let len = |tile| self.tiling.filter.points() * point_len(&self.packing, tile);
        let start = (group * self.packing.tiles() + tile) * len(0);
        start..start + len(tile)
    }

    /// Sums up a grain's part.
    pub fn sum(&self, grain: &mut Grain<'_>, source: Span, gradient: Span, partials: Span) {
        let (index, targets) = (grain.index / self.target_parts, grain.index % self.target_parts);
        let (index, sources) = (index / self.source_parts, index % self.source_parts);
        let (group, part) = (index / self.tile_parts, index % self.tile_parts);
        let all = share(self.tiling.count(), part, self.tile_parts);
        let planes = share(self.planes(), sources, self.source_parts);
        let targets = share(self.packing.tiles(), targets, self.target_parts);
        let start = part * self.part_len();
        let ([sources, gradients], points) = (self.points(), self.tiling.filter.points());
        let aligned = grain.scratch.as_ptr().align_offset(64).min(ALIGNMENT);
        let (sources, rest) = grain.scratch[aligned..].split_at_mut(points * sources);
        let gradients = &mut rest[..points * gradients];
        let of_group = group * self.planes() + planes.start..group * self.planes() + planes.end;
        let lie = [self.block, self.tiling.point_len(planes.len(), self.block)];
        for (i, (first, count)) in even_parts(&all, self.block).enumerate() {
            let block = first..first + count;
            self.tiling.transform(grain.memory, source, of_group.clone(), block.clone(), lie, sources);
            self.transform_gradients(grain.memory, gradient, group, targets.clone(), block, gradients);
            for tile in targets.clone() {
                let sums = self.sums(group, tile);
                let dw = grain.memory.pointer(partials.part(start + sums.start..start + sums.end));
                self.multiply([tile, count], planes.clone(), [sources, gradients], dw, i > 0);
            }
        }
    }

    fn transform_gradients(
        &self,
        memory: &Memory,
        gradient: Span,
        group: usize,
        targets: Range<usize>,
        block: Range<usize>,
        gradients: &mut [f32],
    ) {
        let lanes = self.packing.vector;
        let (plane_len, point) = (self.target.plane_len(), self.points()[1]);
        let last = (targets.end * TILE_VECTORS).min(self.packing.targets.div_ceil(lanes));
        self.tiling.each_image(block, |image, first, tiles| {
            for vector in targets.start * TILE_VECTORS..last {
                let channel = group * self.packing.targets + vector * lanes;
                let start = image * self.target.image_stride() + channel / lanes * plane_len;
                // SAFETY: only read in this task.
                let plane = unsafe { memory.read(gradient.part(start..start + plane_len)) };
                let to = &mut gradients[vector * self.tiling.row_len(self.block)..];
                let (filter, extents) = (self.tiling.filter, self.tiling.target_extents);
                let (squares, beside, pad) = (Squares::Outputs, None, [0; 2]);
                Sources { filter, squares, plane, beside, extents, tiles, pad, to, point, first }
                    .run(self.isa, self.tiling.store);
            }
        });
    }

    /// Adds the products of these blocks of sources over a block of `count` tiles to the sums of a tile of targets.
    fn multiply(
        &self,
        [tile, count]: [usize; 2],
        planes: Range<usize>,
        [x, dy]: [&[f32]; 2],
        dw: *mut f32,
        add: bool,
    ) {
        let (lanes, vectors) = (self.packing.vector, self.packing.vectors(tile));
        let weights = self.kernels[vectors - 1].weights;
        let ([_, gradient_len], sums) = (self.points(), point_len(&self.packing, tile));
        let source_len = self.tiling.point_len(planes.len(), self.block);
        let first_source = planes.start * lanes;
        let sources = (planes.len() * lanes).min(self.packing.sources - first_source);
        for point in 0..self.tiling.filter.points() {
            let x = &x[point * source_len..(point + 1) * source_len];
            let dy = &dy[point * gradient_len..(point + 1) * gradient_len];
            let dy = &dy[tile * TILE_VECTORS * self.tiling.row_len(self.block)..];
            for (i, offsets) in self.offsets[..sources].chunks(weights.len()).enumerate() {
                let first = point * sums + (first_source + i * weights.len()) * vectors * lanes;
                // The gradients of the next point, then the sums of the next sources.
                let row = i * self.tiling.row_len(self.block);
                let ahead = if i < vectors {
                    dy.as_ptr().wrapping_add(gradient_len + row)
                } else {
                    dw.wrapping_add(first + weights.len() * vectors * lanes).cast_const()
                };
                // SAFETY: the block holds `count` tiles of every source and target; the sums are the grain's own, a
                // tile's width for each point and source.
                unsafe {
                    let tile = WeightTile {
                        offsets,
                        x: x.as_ptr(),
                        x_row: 0,
                        dy: dy.as_ptr(),
                        dy_row: 0,
                        dy_vector: self.tiling.row_len(self.block),
                        pixels: [1, self.tiling.row_len(count) / lanes],
                        dw: dw.add(first),
                        dw_source: vectors * lanes,
                        add,
                        ahead,
                        ahead_row: 0,
                    };
                    weights[offsets.len() - 1](&tile);
                }
            }
        }
    }

    /// Adds the sums of the grain's piece in the order of the parts, transforms them back and writes them to the rows of the
    /// gradient, block by block of sources.
    pub fn unpack(&self, grain: &mut Grain<'_>, partials: Span, weight_grad: Span) {
        let piece = self.packing.piece(grain.index, self.unpacking_parts);
        let (group, tile) = (piece.group, piece.tile);
        let place = self.sums(group, tile);
        let last = (self.tile_parts - 1) * self.part_len();
        let rows = weight_grad.part(self.packing.rows(group, tile));
        // SAFETY: grains have pieces of their own, whose weights lie in the rows of their tile; all was summed up in the
        // stage before, and nobody writes sums in this one.
        let (gradient, sums) = unsafe {
            let sums = partials.part(place.start..last + place.end);
            (Origin::new(grain.memory.pointer(rows)), grain.memory.read(sums))
        };
        let sums = Summed::new(sums, self.tile_parts, self.part_len());
        let (filter, part) = (self.tiling.filter, self.packing.targets_of(0, tile));
        let point = point_len(&self.packing, tile);
        for block in self.packing.blocks_of(&piece) {
            let count = block.sources.len() * part.width;
            let taps = &mut grain.scratch[..block.rows() * part.width];
            let points = sums.from(block.sources.start * part.width);
            with_vectors(
                self.isa,
                WeightsBack { filter, points, point, ahead: count, taps: &mut *taps, tap: count, count },
            );
            self.packing.unpack_block(Summed::one(taps), 0, &part, &block, gradient);
        }
    }
}
