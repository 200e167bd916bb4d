//! ∇W on register tiles: sums over pixels and images of source times gradient.
//!
//! A grain sums some tiles of weights over some images, block of pixels by block of pixels, so that the gradients of a
//! block stay in the first-level cache while all sources meet them. Small images of a pointwise convolution make up a
//! block together, one row each. Grains of different images have sums of their own; a second stage adds them in the
//! order of the images and turns them into Caffe's order.

use std::ops::Range;

use quadrille_core::layer::Convolution;

use super::direction::{Setup, TILE_VECTORS, cheapest, even_parts};
use super::passes::Passes;
use super::weights::Packing;
use crate::kernel::correlate::{Kernels, Pixel, WeightTile, kernels};
use crate::kernel::strip::Strip;
use crate::layer::{Grain, share};
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::Span;

/// ∇W of a convolution.
pub(super) struct WeightGradient {
    passes: Passes,
    packing: Packing,
    source: Arrangement,
    target: Arrangement,
    strip: Option<Strip>,
    /// Distance of rows of pixels in the source as the kernels see it, and in the gradient of the target.
    x_row: usize,
    dy_row: usize,
    pixel: usize,
    /// Place of each source, in packed order.
    offsets: Vec<u32>,
    /// Rows of the target that see each tile of sources inside the image.
    visible: Vec<Range<usize>>,
    /// Bands of rows that are copied into a strip at once: first row and rows.
    bands: Vec<(usize, usize)>,
    /// Most rows of a block of pixels, and first and number of its columns.
    block_rows: usize,
    columns: Vec<(usize, usize)>,
    kernels: Vec<Kernels>,
    /// Images of a block: one, unless the convolution is pointwise.
    together: usize,
    image_parts: usize,
    tile_parts: usize,
}

impl WeightGradient {
    /// Prepares ∇W; `None` if the tier has no tiles. `setup` is that of the forward direction.
    pub fn new(setup: &Setup<'_>) -> Option<Self> {
        let machine = Machine::of(setup.isa);
        let layer: &Convolution = setup.layer;
        let pixel = setup.source.layout.block;
        let kind = if pixel == 1 { Pixel::One } else { Pixel::Vector };
        let kernels: Vec<Kernels> =
            (1..=TILE_VECTORS).map(|v| kernels(setup.isa, v, kind)).collect::<Option<_>>()?;
        let passes = Passes::forward(layer, setup.input, setup.output);
        let pointwise = passes.is_pointwise();
        let passes = if pointwise { passes.in_one_row() } else { passes };
        let (sources, targets) = (setup.source.channels / layer.group, setup.target.channels / layer.group);
        let packing = Packing {
            groups: layer.group,
            sources,
            targets,
            source_block: pixel,
            vector: setup.target.layout.block,
            tile_vectors: TILE_VECTORS,
            targets_are_outputs: true,
            cached: machine.packed_bytes / size_of::<f32>(),
            passes: Packing::taps(&passes),
        };
        let [height, width] = passes.target;
        let columns = even_parts(&(0..width), machine.gradient_pixels).collect::<Vec<_>>();
        let planes = sources.div_ceil(pixel);
        let bytes = |rows: usize| passes.strip(planes, pixel, rows).len() * size_of::<f32>();
        let fitting = (1..=height).rev().find(|rows| bytes(*rows) <= machine.strip_bytes).unwrap_or(1);
        let bands: Vec<_> = even_parts(&(0..height), fitting).collect();
        let tallest = bands.first().map_or(1, |band| band.1);
        let most = (machine.gradient_pixels / width).max(1);
        let together = if pointwise { most.min(setup.source.images) } else { 1 };
        let block_rows = tallest.div_ceil(tallest.div_ceil(most)).max(together);
        let strip = (!pointwise).then(|| passes.strip(planes, pixel, tallest));
        let plane_len = strip.as_ref().map_or(setup.source.pixels * pixel, Strip::plane_len);
        let [x_row, dy_row] = match &strip {
            Some(strip) => {
                let apart = passes.source_step[0] / passes.lattice(0);
                [apart * strip.row_len(), width * setup.target.layout.block]
            }
            None => [setup.source.image_len(), setup.target.image_len()],
        };
        let (offsets, rows_of) = offsets(&passes, strip.as_ref(), &packing, plane_len);
        let visible = rows_of
            .chunks(kernels[0].weights.len())
            .map(|rows| {
                let start = rows.iter().map(|r| r.start).min().unwrap_or(0);
                start..rows.iter().map(|r| r.end).max().unwrap_or(0).max(start) * together
            })
            .collect();
        let wanted = machine.grains(setup.flops, machine.task_grains);
        // Every part of the tiles reads the source; each part of the images costs memory for its sums, and writing,
        // reading and adding them.
        let bytes = size_of::<f32>() * packing.len();
        let most = (machine.partial_bytes / bytes).clamp(1, setup.source.images);
        let costs = [3 * packing.len(), setup.source.len()];
        let [image_parts, tile_parts] =
            cheapest(wanted.div_ceil(layer.group), [1..=most, 1..=packing.tiles()], costs);
        let (source, target) = (setup.source, setup.target);
        Some(Self {
            passes,
            packing,
            source,
            target,
            strip,
            x_row,
            dy_row,
            pixel,
            offsets,
            visible,
            bands,
            block_rows,
            columns,
            kernels,
            together,
            image_parts,
            tile_parts,
        })
    }

    /// Grains of the sums.
    pub fn grains(&self) -> usize {
        self.packing.groups * self.image_parts * self.tile_parts
    }

    /// Grains that add the sums up: one for each tile.
    pub fn unpacking_grains(&self) -> usize {
        self.packing.groups * self.packing.tiles()
    }

    /// Elements of the sums of all grains.
    pub fn partials(&self) -> usize {
        self.image_parts * self.packing.len()
    }

    /// Elements of scratch for a grain.
    pub fn scratch(&self) -> usize {
        self.strip.as_ref().map_or(0, Strip::len)
    }

    fn source_image(&self, source: Span, image: usize, group: usize) -> Span {
        let (plane, planes) = (self.source.pixels * self.pixel, self.packing.sources.div_ceil(self.pixel));
        let start = image * self.source.image_len() + group * planes * plane;
        source.part(start..start + planes * plane)
    }

    /// Sums up a grain's part.
    pub fn sum(&self, grain: &mut Grain<'_>, source: Span, gradient: Span, partials: Span) {
        let (index, tile_part) = (grain.index / self.tile_parts, grain.index % self.tile_parts);
        let (group, image_part) = (index / self.image_parts, index % self.image_parts);
        let tiles = share(self.packing.tiles(), tile_part, self.tile_parts);
        let sums = partials.part(image_part * self.packing.len()..(image_part + 1) * self.packing.len());
        let mut add = false;
        let images = share(self.source.images, image_part, self.image_parts);
        for image in images.clone().step_by(self.together) {
            for band in &self.bands {
                let x = self.band(grain, source, image, group, band);
                let end = match self.together {
                    1 => band.0 + band.1,
                    most => most.min(images.end - image),
                };
                for first in (band.0..end).step_by(self.block_rows) {
                    let rows = first..(first + self.block_rows).min(end);
                    for tile in tiles.clone() {
                        let dw = grain.memory.pointer(sums.part(self.packing.tile(group, tile)));
                        let dy = self.gradient(grain, gradient, image, group, tile);
                        for (i, columns) in self.columns.iter().enumerate() {
                            let (add, rows) = (add || i > 0, rows.clone());
                            self.add_block(tile, Block { x, band: band.0, dy, dw, rows, columns, add });
                        }
                    }
                    add = true;
                }
            }
        }
    }

    /// Where the source of a band of rows begins, copied into a strip unless the convolution is pointwise.
    fn band(
        &self,
        grain: &mut Grain<'_>,
        source: Span,
        image: usize,
        group: usize,
        rows: &(usize, usize),
    ) -> *const f32 {
        let planes = self.source_image(source, image, group);
        let Some(strip) = &self.strip else { return grain.memory.pointer(planes) };
        // SAFETY: only read in this task.
        let planes = unsafe { grain.memory.read(planes) };
        let first = (rows.0 * self.passes.source_step[0]) as isize + self.passes.reach(0)[0];
        let tall = self.passes.strip(strip.planes, strip.pixel, rows.1).rows;
        strip.fill(planes, first, tall, grain.scratch);
        grain.scratch.as_ptr()
    }

    /// Where the gradient of a tile's targets begins in an image.
    fn gradient(
        &self,
        grain: &Grain<'_>,
        gradient: Span,
        image: usize,
        group: usize,
        tile: usize,
    ) -> *const f32 {
        let first = group * self.packing.targets + tile * TILE_VECTORS * self.packing.vector;
        let start = image * self.target.image_len() + first * self.target.pixels;
        // SAFETY: only read in this task.
        unsafe { grain.memory.read(gradient)[start..].as_ptr() }
    }

    fn add_block(&self, tile: usize, block: Block<'_>) {
        let (vector, vectors) = (self.packing.vector, self.packing.vectors(tile));
        let weights = self.kernels[vectors - 1].weights;
        let mut dw = block.dw;
        for (offsets, visible) in self.offsets.chunks(weights.len()).zip(&self.visible) {
            let first = visible.start.clamp(block.rows.start, block.rows.end);
            let rows = visible.end.clamp(first, block.rows.end) - first;
            // SAFETY: the block's pixels lie inside the image, and its taps inside the strip or, pointwise, the
            // source; the sums are the grain's own, a tile's width for each source.
            unsafe {
                let tile = WeightTile {
                    offsets,
                    x: block.x.add((first - block.band) * self.x_row + block.columns.0 * self.pixel),
                    x_row: self.x_row,
                    dy: block.dy.add(first * self.dy_row + block.columns.0 * vector),
                    dy_row: self.dy_row,
                    dy_vector: self.target.pixels * vector,
                    pixels: [rows, block.columns.1],
                    dw,
                    dw_source: vectors * vector,
                    add: block.add,
                };
                weights[offsets.len() - 1](&tile);
                dw = dw.add(offsets.len() * vectors * vector);
            }
        }
    }

    /// Adds the sums of the grain's tile in the order of the images and turns them into Caffe's order of weights.
    pub fn unpack(&self, grain: &Grain<'_>, partials: Span, weight_grad: Span) {
        let (group, tile) = (grain.index / self.packing.tiles(), grain.index % self.packing.tiles());
        let place = self.packing.tile(group, tile);
        // SAFETY: grains have tiles of their own, whose targets' weights lie together; all was summed up in the stage
        // before.
        let (gradient, sums) = unsafe {
            let rows = self.packing.rows(group, tile);
            (grain.memory.write(weight_grad.part(rows)), grain.memory.write(partials.part(place.clone())))
        };
        for part in 1..self.image_parts {
            let start = part * self.packing.len();
            // SAFETY: as above; another part than the first.
            let others = unsafe { grain.memory.read(partials.part(start + place.start..start + place.end)) };
            sums.iter_mut().zip(others).for_each(|(sum, value)| *sum += value);
        }
        self.packing.unpack(sums, tile, gradient);
    }
}

/// A block of pixels for one tile.
struct Block<'a> {
    /// Where the band's first row sees its source.
    x: *const f32,
    band: usize,
    dy: *const f32,
    dw: *mut f32,
    rows: Range<usize>,
    columns: &'a (usize, usize),
    add: bool,
}

/// The place of every source (block of channels, tap, channel) and the rows of the target that see it inside the image.
fn offsets(
    passes: &Passes,
    strip: Option<&Strip>,
    packing: &Packing,
    plane_len: usize,
) -> (Vec<u32>, Vec<Range<usize>>) {
    let least = [0, 1].map(|a| passes.reach(a)[0]);
    let (mut offsets, mut rows) = (Vec::new(), Vec::new());
    let step = passes.source_step[0] as isize;
    for first in (0..packing.sources).step_by(packing.source_block) {
        let channels: Range<usize> = 0..packing.source_block.min(packing.sources - first);
        for tap in passes.passes.iter().flat_map(|p| &p.taps) {
            let seen = [0, 1].map(|a| (tap.offset[a] - least[a]) as usize);
            let place =
                first / packing.source_block * plane_len + strip.map_or(0, |s| s.tap(seen[0], seen[1]));
            offsets.extend(channels.clone().map(|c| (place + c) as u32));
            let above = (-tap.offset[0]).max(0).unsigned_abs().div_ceil(step as usize);
            let below = (passes.source[0] as isize - tap.offset[0]).max(0).unsigned_abs();
            let end = below.div_ceil(step as usize).min(passes.target[0]);
            rows.extend(channels.clone().map(|_| above.min(end)..end));
        }
    }
    (offsets, rows)
}
