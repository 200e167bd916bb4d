//! ∇W on register tiles: sums over pixels and images of source times gradient.
//!
//! A grain sums some tiles of weights over some images, block of pixels by block of pixels, so that the gradients of a
//! block stay in the first-level cache while all sources meet them. Grains of different images have sums of their own;
//! a second stage adds them in the order of the images and turns them into Caffe's order.
//!
//! In bf16 the sums run over pairs of neighbouring pixels of a row: each word of the strip holds what the same tap sees
//! from both, and the gradients of a block are made into words just before all sources meet them.

use std::ops::Range;

use quadrille_core::layer::Convolution;

use super::ahead::Rows;
use super::copies::Copies;
use super::cut::even_parts;
use super::direction::{Setup, TILE_VECTORS};
use super::passes::Passes;
use super::sums::{Share, Sums};
use super::weights::Packing;
use crate::isa::Precision;
use crate::kernel::correlate::{Kernels, Pixel, WeightTile, kernels};
use crate::kernel::strip::{Content, Strip};
use crate::kernel::words::{LANES, Narrow, Narrowing, ZEROS, with_words};
use crate::layer::Grain;
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::{Memory, Span};

/// ∇W of a convolution.
pub(super) struct WeightGradient {
    passes: Passes,
    pub sums: Sums,
    source: Arrangement,
    target: Arrangement,
    strip: Option<Strip>,
    /// Instead of strips, of pointwise kernels if several parts of the tiles see each image.
    copies: Option<Copies>,
    row_len: usize,
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
    /// Images of one row each that make a block of pixels together, as its rows; 1 if images have several rows.
    together: usize,
    /// Distance of rows in the source.
    x_row: usize,
    /// Whether source and gradients are words of two pixels.
    narrow: bool,
}

impl WeightGradient {
    /// Prepares ∇W; `None` if the tier has no tiles. `setup` is that of the forward direction.
    pub fn new(setup: &Setup<'_>) -> Option<Self> {
        let machine = Machine::of(setup.numerics.isa);
        let narrow = setup.numerics.precision == Precision::Bf16;
        let layer: &Convolution = setup.layer;
        let pixel = setup.source.layout.block;
        let kind = if pixel == 1 { Pixel::One } else { Pixel::Vector };
        let kernels: Vec<Kernels> =
            (1..=TILE_VECTORS).map(|v| kernels(setup.numerics, v, kind)).collect::<Option<_>>()?;
        let passes = Passes::forward(layer, setup.input, setup.output);
        let sums = Sums::new(setup, &passes, size_of::<f32>() / setup.numerics.precision.in_word(), 1);
        let packing = &sums.packing;
        let planes = packing.sources.div_ceil(pixel);
        let content = if narrow { Content::Pixels(layer.stride[1]) } else { Content::Copy };
        let in_place = passes.is_pointwise();
        // A row is never cut, so a copy of all pixels in one row must be small.
        let bytes = |row: &Passes| row.strip(content, planes, pixel, 1).len() * size_of::<f32>();
        let passes = in_steps(passes, narrow, |row| !narrow || bytes(row) <= machine.strip_bytes);
        let [height, width] = passes.places;
        let columns = even_parts(&(0..width), machine.gradient_row_pixels).collect::<Vec<_>>();
        let strip_of = |rows: usize| passes.strip(content, planes, pixel, rows);
        let bytes = |rows: usize| strip_of(rows).len() * size_of::<f32>();
        let fitting = (1..=height).rev().find(|rows| bytes(*rows) <= machine.strip_bytes).unwrap_or(1);
        let bands: Vec<_> = even_parts(&(0..height), fitting).collect();
        let tallest = bands.first().map_or(1, |band| band.1);
        let most = (machine.gradient_pixels / width).max(1);
        let block_rows = tallest.div_ceil(tallest.div_ceil(most));
        let copies = (narrow && in_place && sums.shares_images())
            .then(|| Copies::new(strip_of(height), packing.groups, setup.source.images));
        let strip = ((narrow || !in_place) && copies.is_none()).then(|| strip_of(tallest));
        let seen = copies.as_ref().map(Copies::strip).or(strip.as_ref());
        let row_len = seen.map_or(passes.source[1] * pixel, Strip::row_len);
        let plane_len = seen.map_or(passes.source[0] * row_len, Strip::plane_len);
        let (offsets, rows_of) = offsets(&passes, seen, packing, plane_len);
        let visible = visible(&rows_of, &kernels[0]);
        let together = if height == 1 && columns.len() == 1 { machine.gradient_pixels / width } else { 1 };
        // Strips are to stay in the second-level cache; copies lie in memory anyway.
        let fit = if copies.is_some() { usize::MAX } else { machine.strip_bytes / bytes(tallest).max(1) };
        let together = together.min(fit).clamp(1, setup.source.images);
        let x_row = match (&strip, together) {
            (_, 1) => passes.source_step[0] / passes.lattice(0) * row_len,
            (Some(strip), _) => strip.len(),
            (None, _) => copies.as_ref().map_or(setup.source.image_stride(), Copies::image_len),
        };
        let block_rows = block_rows.max(together);
        let (source, target) = (setup.source, setup.target);
        Some(Self {
            passes,
            sums,
            source,
            target,
            strip,
            copies,
            row_len,
            pixel,
            offsets,
            visible,
            bands,
            block_rows,
            columns,
            kernels,
            together,
            x_row,
            narrow,
        })
    }

    /// Elements of scratch for a grain: the strip, and the words of a block of gradients.
    pub fn scratch(&self) -> usize {
        self.strips_len() + self.words_len()
    }

    /// Elements of the workspace: the sums of all grains, then copies of the source.
    pub fn workspace(&self) -> usize {
        self.sums.partials() + self.copies.as_ref().map_or(0, Copies::len)
    }

    /// The grains of the stage that copies the source, if there is one.
    pub fn copying_grains(&self) -> Option<usize> {
        let machine = Machine::of(self.sums.packing.isa);
        self.copies.as_ref().map(|copies| copies.grains(&machine))
    }

    /// Where the workspace holds copies.
    fn copied(&self, workspace: Span) -> Span {
        workspace.part(self.sums.partials()..workspace.len())
    }

    /// Copies the grain's part of the source.
    pub fn copy(&self, grain: &Grain<'_>, source: Span, workspace: Span) {
        if let Some(copies) = &self.copies {
            copies.fill(grain, (source, &self.source), self.copied(workspace));
        }
    }

    /// Elements of a vector of a block's gradients, which are words.
    fn vector_len(&self) -> usize {
        let widest = self.columns.first().map_or(0, |columns| columns.1);
        self.block_rows * widest * self.sums.packing.vector
    }

    fn strips_len(&self) -> usize {
        self.together * self.strip.as_ref().map_or(0, Strip::len)
    }

    fn words_len(&self) -> usize {
        if self.narrow { TILE_VECTORS * self.vector_len() } else { 0 }
    }

    fn source_image(&self, source: Span, image: usize, group: usize) -> Span {
        let (plane, planes) =
            (self.source.plane_len(), self.sums.packing.sources.div_ceil(self.source.layout.block));
        let start = image * self.source.image_stride() + group * planes * plane;
        source.part(start..start + planes * plane)
    }

    /// Sums up a grain's part.
    pub fn sum(&self, grain: &mut Grain<'_>, source: Span, gradient: Span, workspace: Span) {
        let Share { group, images: all, tiles, sums, .. } = self.sums.share(grain.index, workspace);
        let (strips, words) = grain.scratch.split_at_mut(self.strips_len());
        let mut add = false;
        for (image, images) in even_parts(&all, self.together) {
            for (number, band) in self.bands.iter().enumerate() {
                let x = match &self.copies {
                    Some(copies) => {
                        let place = self.copied(workspace).part(copies.place(image, group));
                        grain.memory.pointer(place).wrapping_add(band.0 * self.row_len).cast_const()
                    }
                    None => self.bands(grain.memory, strips, (source, group), (image, images), band),
                };
                let next = match self.bands.get(number + 1) {
                    Some(band) => Some((image, band)),
                    None => Some((image + images, &self.bands[0])).filter(|(image, _)| *image < all.end),
                };
                let mut source_ahead = next.map_or(Rows::none(), |(image, band)| {
                    self.rows_of_band(grain.memory, self.source_image(source, image, group), band)
                });
                let last = if self.together > 1 { images } else { band.0 + band.1 };
                for first in (band.0..last).step_by(self.block_rows) {
                    let rows = first..(first + self.block_rows).min(last);
                    for tile in tiles.clone() {
                        let dw = grain.memory.pointer(sums.part(self.sums.packing.tile(group, tile)));
                        let dy = |i| self.sums.gradient(gradient, image + i, group, tile);
                        for (i, columns) in self.columns.iter().enumerate() {
                            let (add, rows) = (add || i > 0, rows.clone());
                            let ahead = match self.columns.get(i + 1) {
                                Some(columns) => (tile, rows.start, columns.0),
                                None if tile + 1 < tiles.end => (tile + 1, rows.start, 0),
                                None => (tiles.start, rows.end, 0),
                            };
                            let ahead = self.place(grain.memory, gradient, image, group, ahead);
                            let block = Block { x, band: band.0, dw, rows, columns, add, ahead };
                            let gradients = self.gradients(grain.memory, dy, &block, words);
                            self.add_block(tile, &block, &gradients, &mut source_ahead);
                        }
                    }
                    add = true;
                }
            }
        }
    }

    /// The rows of the source that a band of rows is copied from.
    fn rows_of_band(&self, memory: &Memory, image: Span, rows: &(usize, usize)) -> Rows {
        let Some(Strip { content, planes, pixel, .. }) = self.strip else { return Rows::none() };
        let first = (rows.0 * self.passes.source_step[0]) as isize + self.passes.reach(0)[0];
        let tall = self.passes.strip(content, planes, pixel, rows.1).rows;
        let row = self.passes.source[1] * self.source.layout.pixel();
        Rows {
            first: memory.pointer(image).wrapping_add(first.max(0).unsigned_abs() * row),
            plane: self.source.plane_len(),
            len: tall * row,
            planes,
            done: 0,
        }
    }

    /// Where the source of a band of rows of some images begins, copied into strips if taps need it.
    fn bands(
        &self,
        memory: &Memory,
        strips: &mut [f32],
        (source, group): (Span, usize),
        (image, images): (usize, usize),
        band: &(usize, usize),
    ) -> *const f32 {
        let each = self.strip.as_ref().map_or(0, Strip::len);
        for i in (1..images).rev() {
            let planes = self.source_image(source, image + i, group);
            self.band(memory, &mut strips[i * each..], planes, band);
        }
        self.band(memory, strips, self.source_image(source, image, group), band)
    }

    /// Where the source of a band of rows begins, copied into a strip if taps need it.
    fn band(&self, memory: &Memory, strip: &mut [f32], image: Span, rows: &(usize, usize)) -> *const f32 {
        let Some(geometry) = &self.strip else {
            return memory.pointer(image).wrapping_add(rows.0 * self.row_len);
        };
        // SAFETY: only read in this task.
        let planes = unsafe { memory.read(image) };
        let first = (rows.0 * self.passes.source_step[0]) as isize + self.passes.reach(0)[0];
        let Strip { content, planes: count, pixel, .. } = *geometry;
        let tall = self.passes.strip(content, count, pixel, rows.1).rows;
        geometry.fill(planes, first, tall, strip);
        strip.as_ptr()
    }

    /// The gradients of a block, where they lie or made into `words`; `dy` says where those of an image are.
    fn gradients(
        &self,
        memory: &Memory,
        dy: impl Fn(usize) -> Span,
        block: &Block<'_>,
        words: &mut [f32],
    ) -> Gradients {
        let (vector, width) = (self.sums.packing.vector, self.passes.target[1]);
        let (plane, pixel) = (self.target.plane_len(), self.target.layout.pixel());
        if !self.narrow {
            let first = (block.rows.start * width + block.columns.0) * vector;
            let row = if self.together > 1 { self.target.image_stride() } else { width * vector };
            return Gradients { first: memory.pointer(dy(0)).wrapping_add(first), row, vector: plane };
        }
        let row = block.columns.1 * vector;
        for i in block.rows.clone() {
            // A row of the image, or the only row of one of several.
            let (image, at) = if self.together > 1 { (i, 0) } else { (0, i * width * pixel) };
            // SAFETY: only read in this task.
            let planes = unsafe { memory.read(dy(image)) };
            for (v, plane) in planes.chunks(plane).enumerate() {
                let from = &plane[at..at + width * pixel][2 * block.columns.0 * pixel..];
                let to = &mut words[v * self.vector_len() + (i - block.rows.start) * row..][..row];
                with_words(Columns { from, to });
            }
        }
        Gradients { first: words.as_ptr(), row, vector: self.vector_len() }
    }

    /// Where the gradient of a tile's targets lies at a row and a column (of pixels, or of pairs) of a block that begins in
    /// an image.
    fn place(
        &self,
        memory: &Memory,
        gradient: Span,
        image: usize,
        group: usize,
        (tile, row, column): (usize, usize, usize),
    ) -> *const f32 {
        let pixels = if self.narrow { 2 * column } else { column };
        let pixel = self.target.layout.pixel();
        let first = memory.pointer(self.sums.gradient(gradient, image, group, tile)).cast_const();
        first.wrapping_add(row * self.gradient_row() + pixels * pixel)
    }

    /// Words between the rows of a block's gradients as they lie: those of an image, or the only ones of several images.
    fn gradient_row(&self) -> usize {
        let alone = self.together == 1;
        if alone { self.passes.target[1] * self.target.layout.pixel() } else { self.target.image_stride() }
    }

    fn add_block(&self, tile: usize, block: &Block<'_>, gradients: &Gradients, source_ahead: &mut Rows) {
        let (vector, vectors) = (self.sums.packing.vector, self.sums.packing.vectors(tile));
        let kernels = &self.kernels[vectors - 1];
        let mut dw = block.dw;
        let tiles = kernels.source_tiles(self.offsets.len()).zip(&self.visible);
        for (i, ((source, count), visible)) in tiles.enumerate() {
            let offsets = &self.offsets[source..source + count];
            // Of several images in one row all is visible.
            let visible = if self.together > 1 { &block.rows } else { visible };
            let first = visible.start.clamp(block.rows.start, block.rows.end);
            let rows = visible.end.clamp(first, block.rows.end) - first;
            let pixels = [rows, block.columns.1];
            // First the gradients, then the source, then the sums of the next sources.
            let ahead = if i < vectors {
                block.ahead.wrapping_add(i * self.target.plane_len())
            } else {
                let sums = dw.wrapping_add(count * vectors * vector).cast_const();
                source_ahead.take(rows * block.columns.1 * vector).unwrap_or(sums)
            };
            // SAFETY: the block's pixels lie inside the image, and its taps inside the strip or, pointwise, the
            // source; the sums are the grain's own, a tile's width for each source.
            unsafe {
                let tile = WeightTile {
                    offsets,
                    x: block.x.add((first - block.band) * self.x_row + block.columns.0 * self.pixel),
                    x_row: self.x_row,
                    dy: gradients.first.add((first - block.rows.start) * gradients.row),
                    dy_row: gradients.row,
                    dy_vector: gradients.vector,
                    pixels,
                    dw,
                    dw_source: vectors * vector,
                    add: block.add,
                    ahead,
                    ahead_row: self.gradient_row(),
                };
                kernels.weights[count - 1](&tile);
                dw = dw.add(count * vectors * vector);
            }
        }
    }
}

/// The passes in the steps of the sums: pixels, or pairs of them; all in one row if they are pointwise and `fits`.
fn in_steps(passes: Passes, narrow: bool, fits: impl Fn(&Passes) -> bool) -> Passes {
    let steps = |passes: Passes| if narrow { passes.in_pairs() } else { passes };
    let row = passes.is_pointwise().then(|| steps(passes.clone().in_one_row())).filter(fits);
    row.unwrap_or_else(|| steps(passes))
}

/// Rows that see each tile of sources.
fn visible(rows: &[Range<usize>], kernels: &Kernels) -> Vec<Range<usize>> {
    let of_tile = |rows: &[Range<usize>]| {
        let start = rows.iter().map(|r| r.start).min().unwrap_or(0);
        start..rows.iter().map(|r| r.end).max().unwrap_or(0).max(start)
    };
    kernels.source_tiles(rows.len()).map(|(first, count)| of_tile(&rows[first..first + count])).collect()
}

/// A block of pixels for one tile.
struct Block<'a> {
    /// Where the band's first row sees its source.
    x: *const f32,
    band: usize,
    dw: *mut f32,
    rows: Range<usize>,
    /// First column and columns: of pixels, or of pairs of them.
    columns: &'a (usize, usize),
    add: bool,
    /// What comes next of the gradient.
    ahead: *const f32,
}

/// The gradients of a block: those of its first pixel, and the distances of rows and of vectors.
struct Gradients {
    first: *const f32,
    row: usize,
    vector: usize,
}

/// Pixels of a row, of which each pair becomes a vector of words; what the last pair lacks is 0.
pub(super) struct Columns<'a> {
    /// From the first of them to the end of the row, in bf16.
    pub from: &'a [f32],
    /// A vector for each pair.
    pub to: &'a mut [f32],
}

impl Narrowing for Columns<'_> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(self) {
        for (pair, to) in self.from.chunks(LANES).zip(self.to.chunks_exact_mut(LANES)) {
            let second = if pair.len() == LANES { pair[LANES / 2..].as_ptr() } else { ZEROS.as_ptr() };
            // SAFETY: the CPU has the instructions by contract; a pair is two blocks of channels, or one.
            unsafe { N::pairs_of_words(pair.as_ptr(), second, to.as_mut_ptr()) }
        }
    }
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
