//! ∇W over planes ([`PlaneTile`]): sums over pixels and images of source times gradient.
//!
//! The sources of a grain are copied to planes of bf16 ([`blocks`], [`rows`]), in which what a tap sees of a row-by-row walk
//! over the output is one run, if the gradients have zeros where the walk passes padding. So the sum over all pixels of a
//! band is one over a single run. Images of few pixels follow each other in a plane in the same way.
//!
//! Planes are a grain's own, or made for all grains in a stage before ([`shared`]). Grains, and the sums of different images, are
//! those of all gradients ([`super::sums`]).

mod blocks;
mod rows;
mod shared;

use std::ops::Range;

use self::blocks::Blocks;
use self::rows::{Planes, Rows};
use super::cut::even_parts;
use super::direction::{Setup, TILE_VECTORS};
use super::gradient::Columns;
use super::passes::Passes;
use super::sums::{Share, Sums};
use crate::isa::Precision;
use crate::kernel::correlate::planes::{PLANES, PlaneKernels, PlaneTile, STEP, plane_kernels};
use crate::kernel::words::{LANES, with_words};
use crate::layer::Grain;
use crate::layout::{Arrangement, Layout};
use crate::machine::Machine;
use crate::memory::{Memory, Span};

/// How images lie in planes and in the walk over the gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Geometry {
    /// Rows and columns of the gradients.
    output: [usize; 2],
    /// Rows and columns of a plane between the first and the last tap.
    reach: [usize; 2],
    /// Columns that the zeros before a row share with those behind the row above.
    overlap: usize,
    /// Pixels between rows: even, so that pairs of gradients begin with a row.
    row_len: usize,
    /// Rows between images of one plane.
    image_rows: usize,
}

impl Geometry {
    /// Rows of the walk over `rows` rows of the gradients of each of `images` images.
    fn walk(&self, images: usize, rows: usize) -> usize {
        (images - 1) * self.image_rows + rows
    }

    /// Pixels of a plane that so many rows of the walk see, and what copies and last steps go beyond them. An odd number of
    /// cache lines, so that planes do not begin in the same sets of a cache.
    fn plane_len(&self, walk: usize) -> usize {
        const LINE: usize = 64 / size_of::<u16>();
        let beyond = 2 * (2 * STEP) + self.reach[1] + self.overlap;
        let lines = ((walk + self.reach[0]) * self.row_len + beyond).div_ceil(LINE);
        (lines | 1) * LINE
    }
}

/// A tile of sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sources {
    /// Place of the first in the planes, for pixel 0.
    place: usize,
    /// How many.
    count: usize,
    /// The first among the sums.
    first: usize,
}

/// How the source lies.
enum Kind {
    Blocks(Blocks),
    Rows(Rows),
}

impl Kind {
    /// And the geometry; `None` if it lies in neither way.
    fn new(setup: &Setup<'_>) -> Option<(Self, Geometry)> {
        let channels = setup.source.channels / setup.layer.group;
        if setup.source.layout == (Layout { block: PLANES, precision: Precision::Bf16 }) {
            let (blocks, output) = Blocks::new(setup, channels);
            let geometry = blocks.geometry(output);
            return (setup.layer.stride == [1; 2]).then_some((Self::Blocks(blocks), geometry));
        }
        let rows = Rows::new(setup);
        let geometry = rows.geometry(setup.output);
        (setup.source.layout == Layout::PLAIN && setup.layer.group == 1)
            .then_some((Self::Rows(rows), geometry))
    }

    /// Planes of a group.
    fn planes(&self) -> usize {
        match self {
            Self::Blocks(blocks) => blocks.planes(),
            Self::Rows(rows) => rows.planes(),
        }
    }
}

/// ∇W of a convolution.
pub(super) struct PlaneGradient {
    kernels: PlaneKernels,
    pub sums: Sums,
    source: Arrangement,
    target: Arrangement,
    kind: Kind,
    geometry: Geometry,
    /// All sources of a group, in pairs of tiles, and the distance of neighbouring ones in the sums.
    sources: Vec<[Sources; 2]>,
    step: usize,
    /// Bands of rows of the gradients that are worked on at once: first row and rows.
    bands: Vec<(usize, usize)>,
    /// Images that are worked on at once; 1 if there are several bands.
    together: usize,
    plane_len: usize,
    /// Most rows of the walk whose gradients are words at the same time.
    block_rows: usize,
    /// Whether planes of all images are made in a stage of their own, for all grains.
    shared: bool,
}

/// What a part of the tiles costs for each element of the source, in bytes to and from memory: it copies all of them to planes.
const COPY_BYTES: usize = 16;

/// The same where planes are there: it reads them.
const SHARED_BYTES: usize = 4;

impl PlaneGradient {
    /// Prepares ∇W; `None` if the tier has no planes, or another way is needed. `setup` is that of the forward direction.
    pub fn new(setup: &Setup<'_>) -> Option<Self> {
        let kernels = plane_kernels(setup.numerics)?;
        let blocks = Layout { block: LANES, precision: Precision::Bf16 };
        let (kind, geometry) = Kind::new(setup).filter(|_| setup.target.layout == blocks)?;
        let machine = Machine::of(setup.numerics.isa);
        let (source, target) = (setup.source, setup.target);
        let passes = Passes::forward(setup.layer, setup.input, setup.output);
        let bytes = |walk: usize| kind.planes() * geometry.plane_len(walk) * size_of::<u16>();
        let height = geometry.output[0];
        let shared = shared::pays(&machine, setup, &kind, bytes(height));
        let room = if shared { usize::MAX } else { machine.plane_bytes };
        let bands = bands(height, room, bytes);
        let sums = Sums::new(setup, &passes, if shared { SHARED_BYTES } else { COPY_BYTES }, bands.len());
        let tallest = bands.first().map_or(1, |band| band.1);
        let most = if bands.len() > 1 { 1 } else { sums.images() };
        let walk_bytes = if shared { machine.plane_walk_bytes } else { machine.plane_bytes };
        let fits = |images: &usize| bytes(geometry.walk(*images, height)) <= walk_bytes;
        let together = (1..=most).rev().find(fits).unwrap_or(1);
        let walk = geometry.walk(together, tallest);
        let block_rows = (2 * machine.plane_pairs / geometry.row_len).clamp(1, walk);
        let block_rows = walk.div_ceil(walk.div_ceil(block_rows));
        let plane_len = geometry.plane_len(walk);
        let (sources, step) = match &kind {
            Kind::Blocks(blocks) => (blocks.sources(geometry.row_len, plane_len), 1),
            Kind::Rows(rows) => (rows.sources(plane_len), rows.step()),
        };
        let pairs = sources.chunks(2).map(|pair| [pair[0], pair.get(1).copied().unwrap_or_default()]);
        Some(Self {
            kernels,
            sums,
            source,
            target,
            kind,
            geometry,
            sources: pairs.collect(),
            step,
            plane_len,
            bands,
            together,
            block_rows,
            shared,
        })
    }

    /// Elements of scratch for a grain: its own planes with a row on its way there, and the gradients of a block.
    pub fn scratch(&self) -> usize {
        let planes = if self.shared { 0 } else { self.planes_len() };
        planes + TILE_VECTORS * self.vector_len()
    }

    /// Elements of the workspace: planes that grains share, and sums.
    pub fn workspace(&self) -> usize {
        self.shared_len() + self.sums.partials()
    }

    /// The sums in the workspace.
    pub fn partials(&self, workspace: Span) -> Span {
        workspace.part(self.shared_len()..workspace.len())
    }

    /// Words of all planes and of a row on its way.
    fn planes_len(&self) -> usize {
        let way = if let Kind::Rows(rows) = &self.kind { rows.on_the_way() } else { 0 };
        (self.kind.planes() * self.plane_len + way).div_ceil(2)
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
    pub fn sum(&self, grain: &mut Grain<'_>, source: Span, gradient: Span, workspace: Span) {
        let share = self.sums.share(grain.index, self.partials(workspace));
        match self.shared {
            true => self.sum_shared(grain, &share, gradient, workspace),
            false => self.sum_own(grain, &share, source, gradient),
        }
    }

    /// By planes of the grain's own.
    fn sum_own(&self, grain: &mut Grain<'_>, share: &Share, source: Span, gradient: Span) {
        let Share { group, images: all, bands, tiles, sums } = share;
        let (planes, words) = grain.scratch[..self.scratch()].split_at_mut(self.planes_len());
        let mut add = false;
        planes.fill(0.0);
        for (first, images) in even_parts(all, self.together) {
            for band in &self.bands[bands.clone()] {
                if self.bands.len() > 1 {
                    // What is padding of one band is none of another; whole images have theirs in the same places.
                    planes.fill(0.0);
                }
                self.fill(grain.memory, source, (*group, first..first + images), band, planes);
                let walk = self.geometry.walk(images, band.1);
                // All blocks of a tile before the next tile, whose sums push its own out of the second-level cache.
                for tile in tiles.clone() {
                    let of_image = |i: usize| self.sums.gradient(gradient, first + i, *group, tile);
                    let dw = grain.memory.pointer(sums.part(self.sums.packing.tile(*group, tile)));
                    for rows in self.blocks_of(walk) {
                        self.gradients(grain.memory, of_image, band, &rows, words);
                        let block = Block {
                            x: self.row_of(planes, rows.start),
                            words,
                            steps: self.steps(rows.len()),
                            add: add || rows.start > 0,
                            next: None,
                        };
                        self.add_block(tile, &block, dw);
                    }
                }
                add = true;
            }
        }
    }

    /// Rows of a walk whose gradients are words at the same time.
    fn blocks_of(&self, walk: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let rows = self.block_rows;
        (0..walk).step_by(rows).map(move |start| start..(start + rows).min(walk))
    }

    /// Where a row of the walk begins in the first of some planes.
    fn row_of(&self, planes: &[f32], row: usize) -> *const u16 {
        planes[row * self.geometry.row_len / 2..].as_ptr().cast()
    }

    /// Copies what a band of rows of some images sees of a group's channels to planes, whose padding is 0.
    fn fill(
        &self,
        memory: &Memory,
        source: Span,
        (group, images): (usize, Range<usize>),
        band: &(usize, usize),
        words: &mut [f32],
    ) {
        let (pixels, way) = pixels(words).split_at_mut(self.kind.planes() * self.plane_len);
        let (source, geometry) = ((source, &self.source), &self.geometry);
        match &self.kind {
            Kind::Blocks(blocks) => {
                let kernels = (&self.kernels, geometry);
                let all = (0..self.kind.planes() / PLANES, pixels);
                blocks.fill(memory, source, (group, images), band, kernels, all);
            }
            Kind::Rows(rows) => {
                let mut planes = Planes { pixels, plane_len: self.plane_len, row_len: geometry.row_len };
                for (i, image) in images.enumerate() {
                    rows.fill(memory, source, (image, i * geometry.image_rows), band, &mut planes, way);
                }
            }
        }
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
    fn add_block(&self, tile: usize, block: &Block<'_>, dw: *mut f32) {
        let vectors = self.sums.packing.vectors(tile);
        let width = vectors * self.sums.packing.vector;
        let sums = |pair: &[Sources; 2]| pair.map(|sources| dw.wrapping_add(sources.first * width));
        for (i, pair) in self.sources.iter().enumerate() {
            let next = self
                .sources
                .get(i + 1)
                .map_or([std::ptr::null(); 2], |next| sums(next).map(<*mut _>::cast_const));
            let tile = PlaneTile {
                x: pair.map(|sources| block.x.wrapping_add(sources.place)),
                sources: pair.map(|sources| sources.count),
                distance: self.plane_len,
                dy: block.words.as_ptr(),
                dy_vector: self.vector_len(),
                steps: block.steps,
                ahead: block.next.and_then(|next| self.ahead(i, block.x, next)),
                two: vectors > 1,
                dw: sums(pair),
                dw_source: self.step * width,
                add: block.add,
                next,
            };
            // SAFETY: the tier has the kernel; planes reach beyond the last step of the last tap; the sums are the grain's
            // own, a tile's width for each source.
            unsafe { (self.kernels.tile)(&tile) }
        }
    }
}

/// Some rows of the walk.
struct Block<'a> {
    /// Where they begin in the first plane.
    x: *const u16,
    /// Their gradients.
    words: &'a [f32],
    steps: usize,
    /// Whether products are added to the sums that are there.
    add: bool,
    /// Where the rows begin that are seen next, if they are to be asked for.
    next: Option<*const u16>,
}

/// Bands of rows of gradients that have `height`: no more than have room for their planes, and two at least of an image whose
/// planes take more than half of it, so that grains can share its rows.
fn bands(height: usize, room: usize, bytes: impl Fn(usize) -> usize) -> Vec<(usize, usize)> {
    let fitting = (1..=height).rev().find(|rows| bytes(*rows) <= room).unwrap_or(1);
    let half = if bytes(height) > room / 2 { height.div_ceil(2) } else { height };
    even_parts(&(0..height), fitting.min(half)).collect()
}

/// Words as numbers.
fn pixels(words: &mut [f32]) -> &mut [u16] {
    // SAFETY: a word is two numbers in bf16 without padding, every value of either is allowed, and numbers need less
    // alignment.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u16>(), 2 * words.len()) }
}
