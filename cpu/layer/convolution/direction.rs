//! One direction of a convolution (forward or ∇A) on register tiles, cut into grains.
//!
//! A grain computes some tiles of target channels for some rows of some images. It copies the rows of the source that
//! it needs into a strip ([`crate::kernel::strip`]), then goes tile by tile of targets, chunk by chunk of sources,
//! pixel by pixel: a chunk's weights stay in the first-level cache while all pixels of the grain use them.

use std::ops::Range;

use quadrille_core::layer::{Convolution, SubTask};

use super::passes::Passes;
use super::weights::Packing;
use crate::isa::Isa;
use crate::kernel::correlate::{Kernels, Pixel, Run, Start, Tile, kernels};
use crate::kernel::strip::Strip;
use crate::layer::{Grain, share};
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::Span;

/// What a direction is made for.
pub(super) struct Setup<'a> {
    pub layer: &'a Convolution,
    pub sub: SubTask,
    pub isa: Isa,
    /// How the source and the target lie; both of the sub-task's own direction.
    pub source: Arrangement,
    pub target: Arrangement,
    /// Rows and columns of bottom and top.
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub flops: u64,
}

/// The cut into grains: images × rows × tiles × groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    images: usize,
    rows: usize,
    tiles: usize,
    groups: usize,
}

/// One direction.
pub(super) struct Direction {
    passes: Passes,
    pub packing: Packing,
    source: Arrangement,
    target: Arrangement,
    /// `None` if taps see the source where it lies.
    strip: Option<Strip>,
    /// Elements of a row, of a plane of the source as the kernels see it, and of its pixels.
    row_len: usize,
    pixel: usize,
    /// Sources of each pass, and the chunks in which they are taken.
    runs: Vec<Vec<Run>>,
    chunks: Vec<Vec<Range<usize>>>,
    /// First column and number of columns of each register tile, for each pass.
    columns: Vec<Vec<(usize, usize)>>,
    /// The kernels by number of vectors, from 1.
    kernels: Vec<Kernels>,
    cut: Cut,
    /// Most images of a grain.
    images: usize,
}

/// Most vectors of a register tile.
pub(super) const TILE_VECTORS: usize = 2;

impl Direction {
    /// Prepares a direction; `None` if the tier has no tiles, or blocks of channels do not fit the groups.
    pub fn new(setup: &Setup<'_>) -> Option<Self> {
        let machine = Machine::of(setup.isa);
        let forward = setup.sub == SubTask::Forward;
        let passes = if forward {
            Passes::forward(setup.layer, setup.input, setup.output)
        } else {
            Passes::backward(setup.layer, setup.input, setup.output)
        };
        let pixel = setup.source.layout.block;
        let kind = if pixel == 1 { Pixel::One } else { Pixel::Vector };
        let kernels: Vec<Kernels> =
            (1..=TILE_VECTORS).map(|v| kernels(setup.isa, v, kind)).collect::<Option<_>>()?;
        let groups = setup.layer.group;
        let (sources, targets) = (setup.source.channels / groups, setup.target.channels / groups);
        let packing = Packing {
            groups,
            sources,
            targets,
            source_block: pixel,
            vector: setup.target.layout.block,
            tile_vectors: TILE_VECTORS,
            targets_are_outputs: forward,
            passes: Packing::taps(&passes),
        };
        let planes = sources.div_ceil(pixel);
        let pointwise = passes.is_pointwise();
        let small = passes.source[0] * passes.source[1] * sources * size_of::<f32>() <= machine.strip_bytes;
        let passes = if pointwise && small { passes.in_one_row() } else { passes };
        let (strip, cut, images) = cut(&machine, &passes, &packing, setup, planes, pixel, pointwise);
        let row_len = strip.as_ref().map_or(passes.source[1] * pixel, Strip::row_len);
        let plane_len = strip.as_ref().map_or(passes.source[0] * row_len, Strip::plane_len);
        let runs = runs(&passes, strip.as_ref(), &packing, plane_len);
        let width = TILE_VECTORS * packing.vector * size_of::<f32>();
        let chunks = runs.iter().map(|runs| chunks(runs, machine.chunk_bytes / width)).collect();
        let most = kernels[TILE_VECTORS - 1].tiles.len();
        let columns = passes.passes.iter().map(|p| even_parts(&p.places[1], most)).collect();
        let (source, target) = (setup.source, setup.target);
        Some(Self {
            passes,
            packing,
            source,
            target,
            strip,
            row_len,
            pixel,
            runs,
            chunks,
            columns,
            kernels,
            cut,
            images,
        })
    }

    /// Grains of the computation.
    pub fn grains(&self) -> usize {
        self.cut.images * self.cut.rows * self.cut.tiles * self.cut.groups
    }

    /// Grains of the packing of weights: one for each tile.
    pub fn packing_grains(&self) -> usize {
        self.packing.groups * self.packing.tiles()
    }

    /// Elements of scratch for a grain.
    pub fn scratch(&self) -> usize {
        self.strip.as_ref().map_or(0, |s| s.len() * self.images)
    }

    /// Packs the weights of the grain's tile.
    pub fn pack(&self, grain: &Grain<'_>, weights: Span, packed: Span) {
        let (group, tile) = (grain.index / self.packing.tiles(), grain.index % self.packing.tiles());
        // SAFETY: grains have tiles of their own; weights are only read in this task.
        let (weights, packed) = unsafe {
            (grain.memory.read(weights), grain.memory.write(packed.part(self.packing.tile(group, tile))))
        };
        self.packing.pack(weights, group, tile, packed);
    }

    /// Computes a grain.
    pub fn run(&self, grain: &mut Grain<'_>, arrays: &Arrays) {
        let Cut { images, rows, tiles, groups } = self.cut;
        let index = grain.index;
        let (index, part) = (index / tiles, index % tiles);
        let (index, rows_part) = (index / rows, index % rows);
        let (group, image_part) = (index % groups, index / groups);
        let work = Work {
            images: share(self.source.images, image_part, images),
            rows: share(self.passes.places[0], rows_part, rows),
            tiles: share(self.packing.tiles(), part, tiles),
            group,
        };
        self.fill_strips(grain, arrays.source, &work);
        for tile in work.tiles.clone() {
            self.run_tile(grain, arrays, &work, tile);
        }
    }

    fn group_planes(&self, group: usize) -> Range<usize> {
        let planes = self.packing.sources.div_ceil(self.pixel);
        group * planes..(group + 1) * planes
    }

    /// The group's planes of an image of the source.
    fn source_image(&self, source: Span, image: usize, group: usize) -> Span {
        let plane = self.source.pixels * self.pixel;
        let planes = self.group_planes(group);
        let start = image * self.source.image_len();
        source.part(start + planes.start * plane..start + planes.end * plane)
    }

    fn fill_strips(&self, grain: &mut Grain<'_>, source: Span, work: &Work) {
        let Some(strip) = &self.strip else { return };
        let [least, most] = self.passes.reach(0);
        let first = (work.rows.start * self.passes.source_step[0]) as isize + least;
        let rows =
            work.rows.len().saturating_sub(1) * self.passes.source_step[0] + (most - least) as usize + 1;
        for (i, image) in work.images.clone().enumerate() {
            // SAFETY: only read in this task.
            let planes = unsafe { grain.memory.read(self.source_image(source, image, work.group)) };
            strip.fill(planes, first, rows.min(strip.rows), &mut grain.scratch[i * strip.len()..]);
        }
    }

    /// Where place (row, 0) of an image of the grain sees its source.
    fn origin(&self, grain: &Grain<'_>, source: Span, work: &Work, image: usize, row: usize) -> *const f32 {
        match &self.strip {
            Some(strip) => {
                let first =
                    image * strip.len() + (row - work.rows.start) * self.passes.source_step[0] * self.row_len;
                grain.scratch[first..].as_ptr()
            }
            None => {
                let planes = self.source_image(source, work.images.start + image, work.group);
                // SAFETY: only read in this task.
                unsafe { grain.memory.read(planes)[row * self.row_len..].as_ptr() }
            }
        }
    }

    fn run_tile(&self, grain: &Grain<'_>, arrays: &Arrays, work: &Work, tile: usize) {
        let vectors = self.packing.vectors(tile);
        let kernels = &self.kernels[vectors - 1];
        let vector = self.packing.vector;
        let place = self.packing.tile(work.group, tile);
        // SAFETY: packed in the stage before.
        let mut packed = unsafe { grain.memory.read(arrays.packed.part(place)) };
        let first_target = work.group * self.packing.targets + tile * TILE_VECTORS * vector;
        // SAFETY: copied in the stage before, with a full tile for each tile.
        let bias = arrays.bias.map(|bias| unsafe { grain.memory.read(bias)[first_target..].as_ptr() });
        let plane = self.target.pixels * vector;
        for (index, pass) in self.passes.passes.iter().enumerate() {
            let runs = &self.runs[index];
            for (at, chunk) in self.chunks[index].iter().enumerate() {
                let start = match (at, bias) {
                    (0, Some(bias)) => Start::Bias(bias),
                    (0, None) => Start::Zero,
                    _ => Start::There,
                };
                let rows = work.rows.start.max(pass.places[0].start)..work.rows.end.min(pass.places[0].end);
                for (i, image) in work.images.clone().enumerate() {
                    let y = arrays
                        .target
                        .part(image * self.target.image_len()..(image + 1) * self.target.image_len());
                    let y = grain.memory.pointer(y);
                    for row in rows.clone() {
                        let x = self.origin(grain, arrays.source, work, i, row);
                        let target_row = (row * pass.step[0]) as isize + pass.first[0];
                        for (column, count) in &self.columns[index] {
                            let target_column = (column * pass.step[1]) as isize + pass.first[1];
                            let target = target_row as usize * self.passes.target[1] + target_column as usize;
                            // SAFETY: places have target pixels inside the image, taps see the strip or, pointwise,
                            // the source; the packed tile holds as many sources as the runs name; images, rows and
                            // tiles of channels are the grain's own.
                            unsafe {
                                let tile = Tile {
                                    runs: &runs[chunk.clone()],
                                    x: x.add(column * self.pixel),
                                    w: packed.as_ptr(),
                                    y: y.add(first_target / vector * plane + target * vector),
                                    y_pixel: pass.step[1] * vector,
                                    y_vector: plane,
                                    start,
                                };
                                kernels.tiles[count - 1](&tile);
                            }
                        }
                    }
                }
                let sources: usize = runs[chunk.clone()].iter().map(|r| r.len as usize).sum();
                packed = &packed[sources * vectors * vector..];
            }
        }
    }
}

/// Where a direction's arrays lie.
#[derive(Clone, Copy)]
pub(super) struct Arrays {
    pub source: Span,
    pub target: Span,
    pub packed: Span,
    /// A full tile for each tile, padding included.
    pub bias: Option<Span>,
}

/// A grain's part.
struct Work {
    images: Range<usize>,
    rows: Range<usize>,
    tiles: Range<usize>,
    group: usize,
}

/// Near-equal parts of at most `most` of a range: first and length of each.
pub(super) fn even_parts(range: &Range<usize>, most: usize) -> Vec<(usize, usize)> {
    let parts = range.len().div_ceil(most);
    let part = |i| {
        let part = share(range.len(), i, parts);
        (range.start + part.start, part.len())
    };
    (0..parts).map(part).collect()
}

/// The sources of each pass in their packed order: block of channels, tap.
fn runs(passes: &Passes, strip: Option<&Strip>, packing: &Packing, plane_len: usize) -> Vec<Vec<Run>> {
    let least = [0, 1].map(|a| passes.reach(a)[0]);
    let run = |plane: usize, offset: [isize; 2]| {
        let tap = [0, 1].map(|a| (offset[a] - least[a]) as usize);
        let place = plane * plane_len + strip.map_or(0, |s| s.tap(tap[0], tap[1]));
        let len = packing.source_block.min(packing.sources - plane * packing.source_block);
        Run { offset: place as u32, len: len as u32 }
    };
    let planes = packing.sources.div_ceil(packing.source_block);
    let of = |pass: &super::passes::Pass| {
        (0..planes).flat_map(|plane| pass.taps.iter().map(move |t| run(plane, t.offset))).collect()
    };
    passes.passes.iter().map(of).collect()
}

/// Cuts runs into chunks of at most `most` sources, but at least one run; always one chunk, even of no run.
fn chunks(runs: &[Run], most: usize) -> Vec<Range<usize>> {
    let mut chunks: Vec<Range<usize>> = Vec::new();
    let (mut start, mut sources) = (0, 0);
    for (i, run) in runs.iter().enumerate() {
        if sources > 0 && sources + run.len as usize > most {
            chunks.push(start..i);
            (start, sources) = (i, 0);
        }
        sources += run.len as usize;
    }
    chunks.push(start..runs.len());
    chunks
}

/// Cuts a direction into grains: as many images at once as strips fit, fewer where that leaves too few grains; where
/// the weights outweigh the source, tiles of channels are shared out first, so that fewer threads read all weights.
fn cut(
    machine: &Machine,
    passes: &Passes,
    packing: &Packing,
    setup: &Setup<'_>,
    planes: usize,
    pixel: usize,
    pointwise: bool,
) -> (Option<Strip>, Cut, usize) {
    let (images, places) = (setup.source.images, passes.places[0]);
    let [least, most] = passes.reach(0);
    let [left, right] = passes.reach(1);
    let (step, tall) = (passes.source_step, (most - least) as usize);
    let columns = passes.places[1].saturating_sub(1) * step[1] + (right - left) as usize + 1;
    let phase_len = columns.div_ceil(step[1]);
    let row_bytes = planes * step[1] * phase_len * pixel * size_of::<f32>();
    let rows_of = |places: usize| places.saturating_sub(1) * step[0] + tall + 1;
    let fitting = (machine.strip_bytes / row_bytes.max(1)).saturating_sub(tall + 1) / step[0] + 1;
    let mut rows = places.div_ceil(fitting.max(1)).clamp(1, places.max(1));
    let wanted = machine.grains(setup.flops, machine.task_grains);
    let groups = packing.groups;
    let heavy = packing.len() > setup.source.len();
    let mut tiles = if heavy { packing.tiles().min(wanted) } else { 1 };
    let image_bytes = row_bytes * rows_of(places.div_ceil(rows));
    let together = if rows > 1 { 1 } else { (machine.strip_bytes / image_bytes.max(1)).clamp(1, images) };
    let together = together.min((images * groups * tiles).div_ceil(wanted)).max(1);
    let image_parts = images.div_ceil(together);
    let missing = |done: usize| wanted.div_ceil(done.max(1));
    if !heavy {
        tiles = missing(groups * image_parts * rows).min(packing.tiles());
    }
    rows = rows.max(missing(groups * image_parts * tiles).min(places.max(1)));
    let strip = Strip {
        pixel,
        planes,
        rows: rows_of(places.div_ceil(rows)),
        phases: step[1],
        phase_len,
        first_column: left,
        source: passes.source,
    };
    let cut = Cut { images: image_parts, rows, tiles, groups };
    ((!pointwise).then_some(strip), cut, images.div_ceil(image_parts))
}
