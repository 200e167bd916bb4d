//! ∇W by the same products: with V the transformed sources and Z = A dY Aᵀ the transformed gradients of tiles,
//! `dW = Gᵀ [Σ_tiles V ⊙ Z] G`. A grain sums some tiles of targets and some sources over some blocks of tiles; a second stage adds the
//! sums in the order of the blocks, transforms them back and turns them into Caffe's order. Where tiles are few and channels many, several
//! grains see the same sources or gradients: a stage before transforms them once.

use std::ops::Range;

use super::super::cut::{cheapest, even_parts};
use super::super::direction::{Setup, TILE_VECTORS};
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
use crate::machine::{LINE, Machine};
use crate::memory::{Memory, Span};

/// Elements from a point of the sums of a tile of targets to the next.
fn point_len_of_sums(packing: &Packing, tile: usize) -> usize {
    apart(packing.sources * packing.vectors(tile) * packing.vector)
}

/// Elements of the sums of all tiles: each has room for as many as the first.
fn part_len(packing: &Packing, filter: Filter) -> usize {
    packing.groups * packing.tiles() * filter.points() * point_len_of_sums(packing, 0)
}

/// How transformed sources or gradients lie. What is transformed for all grains lies plane by plane (a block of channels), each point by
/// point, tile by tile, so that a grain writes one piece; what each transforms for itself point by point, each plane by plane.
#[derive(Clone, Copy)]
struct Transformed {
    /// Most tiles.
    tiles: usize,
    /// Elements from a point to the next, from a plane to the next, and of all.
    point_len: usize,
    plane_len: usize,
    len: usize,
}

impl Transformed {
    fn by_planes(tiling: &Tiling, tiles: usize, planes: usize) -> Self {
        let point_len = tiling.point_len(1, tiles);
        let plane_len = apart(tiling.filter.points() * point_len);
        Self { tiles, point_len, plane_len, len: planes * plane_len }
    }

    fn by_points(tiling: &Tiling, tiles: usize, planes: usize) -> Self {
        let point_len = tiling.point_len(planes, tiles);
        Self { tiles, point_len, plane_len: tiling.row_len(tiles), len: tiling.filter.points() * point_len }
    }
}

/// ∇W of a convolution.
pub(in crate::layer::convolution) struct WinogradGradient {
    isa: Isa,
    tiling: Tiling,
    packing: Packing,
    target: Arrangement,
    /// Whether sources and gradients are transformed for all grains in a stage before, and not by each for itself.
    staged: bool,
    /// Most tiles of a block.
    block: usize,
    /// How sources and gradients lie.
    lie: [Transformed; 2],
    /// Places of all sources, seen from tile 0 of point 0.
    offsets: Vec<u32>,
    kernels: Vec<Kernels>,
    /// Parts of the tiles, of the blocks of source channels, and of the tiles of target channels.
    tile_parts: usize,
    source_parts: usize,
    target_parts: usize,
    /// Parts of a tile of targets that are added up by a grain each.
    unpacking_parts: usize,
}

/// A grain's part: of the tiles, of the blocks of source channels, and of the tiles of targets of a group.
struct Work<'a> {
    memory: &'a Memory,
    workspace: Span,
    group: usize,
    part: usize,
    planes: Range<usize>,
    targets: Range<usize>,
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
        // What is transformed once is to stay in the third-level cache.
        let planes = [packing.sources, packing.targets].map(|channels| channels.div_ceil(vector));
        let all = planes.map(|planes| Transformed::by_planes(&tiling, tiling.count(), planes));
        let bytes = layer.group * all.iter().map(|all| all.len).sum::<usize>() * size_of::<f32>();
        let staged = tile_parts == 1
            && source_parts.max(target_parts) >= machine.winograd_gradient_staged_parts
            && tiling.count() <= machine.winograd_gradient_staged_tiles
            && bytes <= machine.winograd_gradient_staged_bytes;
        let of_grain =
            [planes[0].div_ceil(source_parts), packing.tiles().div_ceil(target_parts) * TILE_VECTORS];
        let own = of_grain.map(|planes| Transformed::by_points(&tiling, block, planes));
        let lie = if staged { all } else { own };
        let place = |source: usize| (source / vector * lie[0].plane_len + source % vector) as u32;
        Some(Self {
            isa: setup.numerics.isa,
            offsets: (0..packing.sources).map(place).collect(),
            tiling,
            staged,
            lie,
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

    /// Elements of the workspace: the sums of all parts of the tiles, then what is transformed before.
    pub fn workspace(&self) -> usize {
        self.partials() + self.transforming_grains().unwrap_or(0) * self.lie[0].plane_len
    }

    fn partials(&self) -> usize {
        (self.tile_parts * self.part_len()).next_multiple_of(LINE)
    }

    fn part_len(&self) -> usize {
        part_len(&self.packing, self.tiling.filter)
    }

    /// Blocks of channels of a group: of sources and of targets.
    fn planes(&self) -> [usize; 2] {
        [self.packing.sources, self.packing.targets].map(|channels| channels.div_ceil(self.packing.vector))
    }

    /// Grains of the stage that transforms sources and gradients, if there is one: a plane each, group by group.
    pub fn transforming_grains(&self) -> Option<usize> {
        let [sources, targets] = self.planes();
        self.staged.then_some(self.packing.groups * (sources + targets))
    }

    /// Elements of scratch for a grain.
    pub fn scratch(&self) -> usize {
        let width = self.packing.vectors(0) * self.packing.vector;
        let taps = self.tiling.filter.taps() * self.packing.source_block * width;
        let transformed = if self.staged { 0 } else { self.lie.iter().map(|lie| lie.len).sum() };
        taps.max(transformed) + ALIGNMENT
    }

    /// Transforms the grain's plane.
    pub fn transform(&self, grain: &Grain<'_>, source: Span, gradient: Span, workspace: Span) {
        let [sources, targets] = self.planes();
        let (group, plane) = (grain.index / (sources + targets), grain.index % (sources + targets));
        let len = self.lie[0].plane_len;
        let place =
            workspace.part(self.partials() + grain.index * len..self.partials() + (grain.index + 1) * len);
        // SAFETY: each grain has a plane of its own, behind the sums.
        let to = unsafe { grain.memory.write(place) };
        let tiles = 0..self.tiling.count();
        match plane.checked_sub(sources) {
            None => self.transform_source(grain.memory, source, [group, plane], tiles, to),
            Some(vector) => self.transform_gradient(grain.memory, gradient, [group, vector], tiles, to),
        }
    }

    /// The sums of a tile of targets within a part.
    fn sums(&self, group: usize, tile: usize) -> Range<usize> {
        let len = |tile| self.tiling.filter.points() * point_len_of_sums(&self.packing, tile);
        let start = (group * self.packing.tiles() + tile) * len(0);
        start..start + len(tile)
    }

    /// Sums up a grain's part.
    pub fn sum(&self, grain: &mut Grain<'_>, source: Span, gradient: Span, workspace: Span) {
        let (index, targets) = (grain.index / self.target_parts, grain.index % self.target_parts);
        let (index, sources) = (index / self.source_parts, index % self.source_parts);
        let (group, part) = (index / self.tile_parts, index % self.tile_parts);
        let planes = share(self.planes()[0], sources, self.source_parts);
        let targets = share(self.packing.tiles(), targets, self.target_parts);
        let work = Work { memory: grain.memory, workspace, group, part, planes, targets };
        if self.staged {
            let [sources, gradients] = self.lie;
            let start = self.partials() + group * (sources.len + gradients.len);
            let all = workspace.part(start..start + sources.len + gradients.len);
            // SAFETY: transformed in the stage before.
            let (x, dy) = unsafe { grain.memory.read(all) }.split_at(sources.len);
            let first = [work.planes.start, work.targets.start * TILE_VECTORS].map(|f| f * sources.plane_len);
            return self.multiply(&work, self.tiling.count(), [&x[first[0]..], &dy[first[1]..]], false);
        }
        let aligned = grain.scratch.as_ptr().align_offset(64).min(ALIGNMENT);
        let (sources, gradients) = grain.scratch[aligned..].split_at_mut(self.lie[0].len);
        let all = share(self.tiling.count(), part, self.tile_parts);
        for (i, (first, count)) in even_parts(&all, self.block).enumerate() {
            let block = first..first + count;
            for (row, plane) in work.planes.clone().enumerate() {
                let to = &mut sources[row * self.lie[0].plane_len..];
                self.transform_source(grain.memory, source, [group, plane], block.clone(), to);
            }
            let first = work.targets.start * TILE_VECTORS;
            let last = (work.targets.end * TILE_VECTORS).min(self.planes()[1]);
            for (row, vector) in (first..last).enumerate() {
                let to = &mut gradients[row * self.lie[1].plane_len..];
                self.transform_gradient(grain.memory, gradient, [group, vector], block.clone(), to);
            }
            self.multiply(&work, count, [sources, gradients], i > 0);
        }
    }

    /// Transforms a block of channels of the source.
    fn transform_source(
        &self,
        memory: &Memory,
        source: Span,
        [group, plane]: [usize; 2],
        tiles: Range<usize>,
        to: &mut [f32],
    ) {
        let (lie, plane) = ([self.lie[0].tiles, self.lie[0].point_len], group * self.planes()[0] + plane);
        self.tiling.transform(memory, source, plane..plane + 1, tiles, lie, to);
    }

    /// Transforms a vector of channels of the gradients.
    fn transform_gradient(
        &self,
        memory: &Memory,
        gradient: Span,
        [group, vector]: [usize; 2],
        tiles: Range<usize>,
        to: &mut [f32],
    ) {
        let (plane_len, point) = (self.target.plane_len(), self.lie[1].point_len);
        let channel = group * self.packing.targets + vector * self.packing.vector;
        self.tiling.each_image(tiles, |image, first, tiles| {
            let start = image * self.target.image_stride() + channel / self.packing.vector * plane_len;
            // SAFETY: only read in this task.
            let plane = unsafe { memory.read(gradient.part(start..start + plane_len)) };
            let (filter, extents) = (self.tiling.filter, self.tiling.target_extents);
            let (squares, beside, pad) = (Squares::Outputs, None, [0; 2]);
            let to = &mut *to;
            Sources { filter, squares, plane, beside, extents, tiles, pad, to, point, first }
                .run(self.isa, self.tiling.store);
        });
    }

    /// Adds the products of the grain's sources and gradients over so many tiles to its sums.
    fn multiply(&self, work: &Work<'_>, count: usize, [x, dy]: [&[f32]; 2], add: bool) {
        let start = work.part * self.part_len();
        for tile in work.targets.clone() {
            let sums = self.sums(work.group, tile);
            let dw = work.memory.pointer(work.workspace.part(start + sums.start..start + sums.end));
            let dy = &dy[(tile - work.targets.start) * TILE_VECTORS * self.lie[1].plane_len..];
            for point in 0..self.tiling.filter.points() {
                let [x_from, dy_from] = self.lie.map(|lie| point * lie.point_len);
                self.multiply_point(work, [tile, point, count], [&x[x_from..], &dy[dy_from..]], dw, add);
            }
        }
    }

    /// The same of one point for one tile of targets, a block of tiles at a time: its gradients stay in the first-level cache while all
    /// sources meet them.
    fn multiply_point(
        &self,
        work: &Work<'_>,
        [tile, point, count]: [usize; 3],
        [x, dy]: [&[f32]; 2],
        dw: *mut f32,
        add: bool,
    ) {
        let (lanes, vectors) = (self.packing.vector, self.packing.vectors(tile));
        let kernels = &self.kernels[vectors - 1];
        let Transformed { point_len, plane_len, .. } = self.lie[1];
        let first_source = work.planes.start * lanes;
        let sources = (work.planes.len() * lanes).min(self.packing.sources - first_source);
        let sums = point * point_len_of_sums(&self.packing, tile);
        // Vectors, of which each may hold a pair of tiles.
        let [all, most] = [count, self.block].map(|tiles| self.tiling.row_len(tiles) / lanes);
        for (begin, len) in even_parts(&(0..all), most) {
            let dy = dy.as_ptr().wrapping_add(begin * lanes);
            for (i, (source, count)) in kernels.source_tiles(sources).enumerate() {
                let offsets = &self.offsets[source..source + count];
                let first = sums + (first_source + source) * vectors * lanes;
                // The gradients of the next point, then the sums of the next sources.
                let ahead = if i < vectors {
                    dy.wrapping_add(point_len + i * plane_len)
                } else {
                    dw.wrapping_add(first + count * vectors * lanes).cast_const()
                };
                // SAFETY: what is transformed has so many tiles of every source and target; the sums are the grain's own, a
                // tile's width for each point and source.
                unsafe {
                    let tile = WeightTile {
                        offsets,
                        x: x.as_ptr().wrapping_add(begin * lanes),
                        x_row: 0,
                        dy,
                        dy_row: 0,
                        dy_vector: plane_len,
                        pixels: [1, len],
                        dw: dw.add(first),
                        dw_source: vectors * lanes,
                        add: add || begin > 0,
                        ahead,
                        ahead_row: 0,
                    };
                    kernels.weights[count - 1](&tile);
                }
            }
        }
    }

    /// Adds the sums of the grain's piece in the order of the parts, transforms them back and writes them to the rows of the
    /// gradient, block by block of sources.
    pub fn unpack(&self, grain: &mut Grain<'_>, workspace: Span, weight_grad: Span) {
        let piece = self.packing.piece(grain.index, self.unpacking_parts);
        let (group, tile) = (piece.group, piece.tile);
        let place = self.sums(group, tile);
        let last = (self.tile_parts - 1) * self.part_len();
        let rows = weight_grad.part(self.packing.rows(group, tile));
        // SAFETY: grains have pieces of their own, whose weights lie in the rows of their tile; all was summed up in the
        // stage before, and nobody writes sums in this one.
        let (gradient, sums) = unsafe {
            let sums = workspace.part(place.start..last + place.end);
            (Origin::new(grain.memory.pointer(rows)), grain.memory.read(sums))
        };
        let sums = Summed::new(sums, self.tile_parts, self.part_len());
        let (filter, part) = (self.tiling.filter, self.packing.targets_of(0, tile));
        let point = point_len_of_sums(&self.packing, tile);
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
