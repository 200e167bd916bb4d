//! ∇W at stride 1 over planes ([`PlaneTile`]): sums over pixels and images of source times gradient.
//!
//! The sources of a grain are copied to planes of bf16, channel by channel, each row with zeros behind it that serve as the
//! padding of its right side and of the next row's left side. In such a plane output pixel q of a row-by-row walk sees
//! `q + place(tap)`, whatever its row, so the sum over all pixels of a band is one over a single run, if the gradients have
//! zeros where the walk passes padding. Images of few pixels follow each other in a plane in the same way.
//!
//! Grains, and the sums of different images, are those of [`super::gradient`].

use std::ops::Range;

use super::direction::{Setup, TILE_VECTORS, cheapest, even_parts};
use super::gradient::{Columns, add_up, packing};
use super::passes::Passes;
use super::weights::Packing;
use crate::isa::{Numerics, Precision};
use crate::kernel::correlate::planes::{PLANES, PlaneKernels, PlaneTile, STEP, plane_kernels};
use crate::kernel::words::{LANES, with_words};
use crate::layer::{Grain, share};
use crate::layout::{Arrangement, Layout};
use crate::machine::Machine;
use crate::memory::{Memory, Span};

/// How images lie in planes and in the walk over the gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Geometry {
    /// Rows and columns of the source and of the target.
    input: [usize; 2],
    output: [usize; 2],
    pad: [usize; 2],
    /// Rows and columns between the first and the last tap.
    reach: [usize; 2],
    /// Pixels between rows: even, so that pairs of gradients begin with a row.
    row_len: usize,
    /// Rows between images of one plane.
    image_rows: usize,
    /// Place of each tap in a plane.
    taps: Vec<usize>,
}

impl Geometry {
    fn new(setup: &Setup<'_>) -> Self {
        let layer = setup.layer;
        let pointwise = Passes::forward(layer, setup.input, setup.output).is_pointwise();
        // Without taps beside each other rows need no zeros between them, and an odd length none behind it.
        let one_row = |[h, w]: [usize; 2]| if pointwise && w % 2 == 1 { [1, h * w] } else { [h, w] };
        let (input, output, pad) = (one_row(setup.input), one_row(setup.output), layer.pad);
        let reach = [0, 1].map(|a| (layer.kernel[a] - 1) * layer.dilation[a]);
        let row_len = (input[1] + pad[1]).max(output[1]).next_multiple_of(2);
        let [rows, columns] = layer.kernel;
        let place =
            |r: usize, c: usize| r * layer.dilation[0] * row_len + c * layer.dilation[1];
        let taps = (0..rows).flat_map(|r| (0..columns).map(move |c| place(r, c))).collect();
        let image_rows = (input[0] + pad[0]).max(output[0]);
        Self { input, output, pad, reach, row_len, image_rows, taps }
    }

    /// Rows of the walk over `rows` rows of the gradients of each of `images` images.
    fn walk(&self, images: usize, rows: usize) -> usize {
        (images - 1) * self.image_rows + rows
    }

    /// Pixels of a plane that so many rows of the walk see, and what copies and last steps go beyond them. An odd number of
    /// cache lines, so that planes do not begin in the same sets of a cache.
    fn plane_len(&self, walk: usize) -> usize {
        const LINE: usize = 64 / size_of::<u16>();
        let beyond = 2 * (2 * STEP) + self.reach[1] + self.pad[1];
        let lines = ((walk + self.reach[0]) * self.row_len + beyond).div_ceil(LINE);
        (lines | 1) * LINE
    }
}

/// ∇W of a convolution.
pub(super) struct PlaneGradient {
    kernels: PlaneKernels,
    packing: Packing,
    source: Arrangement,
    target: Arrangement,
    geometry: Geometry,
    /// Bands of rows of the gradients that are worked on at once: first row and rows.
    bands: Vec<(usize, usize)>,
    /// Images that are worked on at once; 1 if there are several bands.
    together: usize,
    plane_len: usize,
    /// Rows of the walk whose gradients stay in the first-level cache.
    block_rows: usize,
    image_parts: usize,
    tile_parts: usize,
}

impl PlaneGradient {
    /// Prepares ∇W; `None` if the tier has no planes, or another way is needed. `setup` is that of the forward direction.
    pub fn new(setup: &Setup<'_>) -> Option<Self> {
        let Numerics { isa, precision } = setup.numerics;
        let kernels = plane_kernels(setup.numerics)?;
        let blocks = Layout { block: PLANES, precision: Precision::Bf16 };
        if setup.layer.stride != [1; 2] || precision != Precision::Bf16 || setup.source.layout != blocks {
            return None;
        }
        let machine = Machine::of(isa);
        let (source, target) = (setup.source, setup.target);
        let geometry = Geometry::new(setup);
        let packing = packing(setup, &Passes::forward(setup.layer, setup.input, setup.output));
        let channels = packing.sources.next_multiple_of(PLANES);
        let bytes = |walk: usize| channels * geometry.plane_len(walk) * size_of::<u16>();
        let height = geometry.output[0];
        let fits = |walk: usize| bytes(walk) <= machine.plane_bytes;
        let fitting = (1..=height).rev().find(|rows| fits(*rows)).unwrap_or(1);
        let bands: Vec<_> = even_parts(&(0..height), fitting).collect();
        let tallest = bands.first().map_or(1, |band| band.1);
        let wanted = machine.grains(setup.flops, machine.gradient_grains);
        // Every part of the tiles copies the source, which costs more than reading it; each part of the images costs memory
        // for its sums, and writing, reading and adding them.
        let costs = [3 * packing.len(), 4 * source.len()];
        let most = (machine.partial_bytes / (size_of::<f32>() * packing.len())).clamp(1, source.images);
        let [image_parts, tile_parts] =
            cheapest(wanted.div_ceil(packing.groups), [1..=most, 1..=packing.tiles()], costs);
        let most = if bands.len() > 1 { 1 } else { source.images.div_ceil(image_parts) };
        let together = (1..=most).rev().find(|n| fits(geometry.walk(*n, height))).unwrap_or(1);
        let walk = geometry.walk(together, tallest);
        let block_rows = (2 * machine.plane_pairs / geometry.row_len).clamp(1, walk);
        let block_rows = walk.div_ceil(walk.div_ceil(block_rows));
        Some(Self {
            kernels,
            packing,
            source,
            target,
            plane_len: geometry.plane_len(walk),
            geometry,
            bands,
            together,
            block_rows,
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

    /// Elements of scratch for a grain: the planes, and the gradients of a block.
    pub fn scratch(&self) -> usize {
        self.planes_len() + TILE_VECTORS * self.vector_len()
    }

    /// Blocks of channels of a group.
    fn blocks(&self) -> usize {
        self.packing.sources.div_ceil(PLANES)
    }

    /// Words of all planes.
    fn planes_len(&self) -> usize {
        self.blocks() * PLANES * self.plane_len / 2
    }

    /// Steps over so many rows of the walk.
    fn steps(&self, rows: usize) -> usize {
        (rows * self.geometry.row_len).div_ceil(2 * STEP)
    }

    /// Words of a vector of a block's gradients.
    fn vector_len(&self) -> usize {
        self.steps(self.block_rows) * STEP * LANES
    }

    /// Sums up a grain's part.
    pub fn sum(&self, grain: &mut Grain<'_>, source: Span, gradient: Span, partials: Span) {
        let (index, tile_part) = (grain.index / self.tile_parts, grain.index % self.tile_parts);
        let (group, image_part) = (index / self.image_parts, index % self.image_parts);
        let tiles = share(self.packing.tiles(), tile_part, self.tile_parts);
        let sums = partials.part(image_part * self.packing.len()..(image_part + 1) * self.packing.len());
        let (planes, words) = grain.scratch[..self.scratch()].split_at_mut(self.planes_len());
        let all = share(self.source.images, image_part, self.image_parts);
        let mut add = false;
        for (first, images) in even_parts(&all, self.together) {
            for band in &self.bands {
                self.fill(grain.memory, source, group, first..first + images, band, planes);
                let walk = self.geometry.walk(images, band.1);
                for start in (0..walk).step_by(self.block_rows) {
                    let rows = start..(start + self.block_rows).min(walk);
                    for tile in tiles.clone() {
                        let of_image = |i: usize| self.gradient(gradient, first + i, group, tile);
                        self.gradients(grain.memory, of_image, band, &rows, words);
                        let dw = grain.memory.pointer(sums.part(self.packing.tile(group, tile)));
                        self.add_block(tile, planes, words, &rows, dw, add);
                    }
                    add = true;
                }
            }
        }
    }

    /// Copies what a band of rows of some images sees of a group's channels to planes.
    fn fill(
        &self,
        memory: &Memory,
        source: Span,
        group: usize,
        images: Range<usize>,
        band: &(usize, usize),
        planes: &mut [f32],
    ) {
        let Geometry { input: [height, width], pad, reach, row_len, image_rows, .. } = self.geometry;
        let (pixel, plane) = (self.source.layout.pixel(), self.source.plane_len());
        planes.fill(0.0);
        // Rows of the source that the band sees, and where the first of them lies in a plane.
        let seen = band.0.saturating_sub(pad[0])..(band.0 + band.1 + reach[0]).saturating_sub(pad[0]).min(height);
        let above = pad[0].saturating_sub(band.0);
        let whole = row_len == width;
        let (runs, run) = if whole { (1, seen.len()) } else { (seen.len(), 1) };
        for (block, to) in planes.chunks_exact_mut(PLANES * self.plane_len / 2).enumerate() {
            for (i, image) in images.clone().enumerate() {
                let start = image * self.source.image_stride() + (group * self.blocks() + block) * plane;
                // SAFETY: only read in this task.
                let from = unsafe { memory.read(source.part(start..start + plane)) };
                for r in 0..runs {
                    let pixels = &from[(seen.start + r) * width * pixel..][..run * width * pixel];
                    let place = (i * image_rows + above + r) * row_len + pad[1];
                    let end = place + (run * width).next_multiple_of(2 * STEP);
                    assert!(end <= self.plane_len, "a run beyond its plane");
                    // SAFETY: the tier has the kernel; each plane has room for the whole steps of the run, as asserted.
                    unsafe {
                        let to = to.as_mut_ptr().cast::<u16>().add(place);
                        (self.kernels.fill)(pixels, to, self.plane_len);
                    }
                }
            }
        }
    }

    /// The gradients of a tile's targets in an image.
    fn gradient(&self, gradient: Span, image: usize, group: usize, tile: usize) -> Span {
        let first = group * self.packing.targets + tile * TILE_VECTORS * self.packing.vector;
        let plane = self.target.plane_len();
        let start = image * self.target.image_stride() + first / self.packing.vector * plane;
        gradient.part(start..start + self.packing.vectors(tile) * plane)
    }

    /// Makes words of the gradients of some rows of the walk, with zeros where it passes padding; `of_image` says where
    /// those of an image lie.
    fn gradients(
        &self,
        memory: &Memory,
        of_image: impl Fn(usize) -> Span,
        band: &(usize, usize),
        rows: &Range<usize>,
        words: &mut [f32],
    ) {
        let Geometry { output: [_, width], row_len, image_rows, .. } = self.geometry;
        let (pixel, plane) = (self.target.layout.pixel(), self.target.plane_len());
        for row in rows.clone() {
            let (image, of_band) = (row / image_rows, row % image_rows);
            let at = (row - rows.start) * row_len / 2 * LANES;
            // SAFETY: only read in this task.
            let planes = unsafe { memory.read(of_image(image)) };
            for (plane, words) in planes.chunks(plane).zip(words.chunks_mut(self.vector_len())) {
                let to = &mut words[at..][..row_len / 2 * LANES];
                if of_band >= band.1 {
                    to.fill(0.0);
                    continue;
                }
                let from = &plane[(band.0 + of_band) * width * pixel..][..width * pixel];
                let (to, beyond) = to.split_at_mut(width.div_ceil(2) * LANES);
                with_words(Columns { from, to });
                beyond.fill(0.0);
            }
        }
        let (end, whole) = (rows.len() * row_len / 2, self.steps(rows.len()) * STEP);
        for words in words.chunks_mut(self.vector_len()) {
            words[end * LANES..whole * LANES].fill(0.0);
        }
    }

    /// Adds what a block of gradients and all sources of a group make to the sums of a tile.
    fn add_block(
        &self,
        tile: usize,
        planes: &[f32],
        words: &[f32],
        rows: &Range<usize>,
        dw: *mut f32,
        add: bool,
    ) {
        let vectors = self.packing.vectors(tile);
        let width = vectors * self.packing.vector;
        let x = planes.as_ptr().cast::<u16>().wrapping_add(rows.start * self.geometry.row_len);
        let taps = &self.geometry.taps;
        // Block and tap, sources, and the first of them in the sums.
        let part = |index: usize| {
            let (block, tap) = (index / taps.len(), index % taps.len());
            let sources = self.packing.sources.saturating_sub(block * PLANES).min(PLANES);
            let first = block * PLANES * taps.len() + tap * sources;
            let x = x.wrapping_add(block * PLANES * self.plane_len + taps[tap]);
            (x, sources, dw.wrapping_add(first * width))
        };
        for index in (0..self.blocks() * taps.len()).step_by(2) {
            let (first, second) = (part(index), part(index + 1));
            let tile = PlaneTile {
                x: [first.0, second.0],
                sources: [first.1, second.1],
                distance: self.plane_len,
                dy: words.as_ptr(),
                dy_vector: self.vector_len(),
                steps: self.steps(rows.len()),
                two: vectors > 1,
                dw: [first.2, second.2],
                dw_source: width,
                add,
            };
            // SAFETY: the tier has the kernel; planes reach beyond the last step of the last tap; the sums are the grain's
            // own, a tile's width for each source.
            unsafe { (self.kernels.tile)(&tile) }
        }
    }

    /// Adds the sums of the grain's tile in the order of the images and turns them into Caffe's order of weights.
    pub fn unpack(&self, grain: &Grain<'_>, partials: Span, weight_grad: Span) {
        add_up(&self.packing, self.image_parts, grain, [partials, weight_grad]);
    }
}
