//! One direction of a convolution (forward or ∇A) on register tiles, cut into grains.
//!
//! A grain computes some tiles of target channels for some rows of some images. It copies the rows of the source that
//! it needs into a strip ([`crate::kernel::strip`]), then goes tile by tile of targets, chunk by chunk of sources,
//! pixel by pixel: a chunk's weights stay in the first-level cache while all pixels of the grain use them. Of some layers all
//! tiles go through a chunk before the next ([`super::cut::Order`]).

use std::ops::Range;

use quadrille_core::layer::{Convolution, SubTask};

use super::ahead::Rows;
use super::cut::{Cut, Order, cut, even_parts};
use super::passes::Passes;
use super::sources::{Sources, sources_of};
use super::weights::{Packing, Taps, Words};
use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::correlate::{Apart, End, Kept, Kernels, Pixel, Run, Start, Tile, kernels};
use crate::kernel::strip::{Content, Strip};
use crate::kernel::words::{Neighbours, with_words};
use crate::layer::{Array, Grain, share};
use crate::layout::Arrangement;
use crate::machine::{LINE, Machine};
use crate::memory::{Memory, Span};

/// What a direction is made for.
pub(super) struct Setup<'a> {
    pub layer: &'a Convolution,
    pub sub: SubTask,
    pub numerics: Numerics,
    /// How the source and the target lie; both of the sub-task's own direction.
    pub source: Arrangement,
    pub target: Arrangement,
    /// Rows and columns of bottom and top.
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub flops: u64,
}

/// One direction.
pub(super) struct Direction {
    passes: Passes,
    pub packing: Packing,
    /// Parts of a tile that are packed by a grain each.
    packing_parts: usize,
    source: Arrangement,
    target: Arrangement,
    /// `None` if taps see the source where it lies.
    strip: Option<Strip>,
    /// Elements of a row, of a plane of the source as the kernels see it, and of its pixels.
    row_len: usize,
    pixel: usize,
    /// Elements between the rows that neighbouring rows of places see.
    place_len: usize,
    /// The sources of each pass.
    sources: Vec<Sources>,
    /// First column and number of columns of each register tile, for each pass.
    columns: Vec<Vec<(usize, usize)>>,
    /// The kernels by number of vectors, from 1.
    kernels: Vec<Kernels>,
    /// Whether they are tiles of AMX, which may be of two rows, and see all sources at once.
    amx: bool,
    cut: Cut,
    /// Most images of a grain.
    images: usize,
    /// Whether a grain takes all tiles through a chunk of sources before the next.
    by_chunk: bool,
    /// Whether tiles ask for the weights of the next.
    asks: bool,
    /// Whether a ReLU follows: forward, which has one pass.
    relu: bool,
    /// For a target in bf16: elements of a vector of the sums of an image of a grain; 0 if all sums end in registers.
    sums: Option<usize>,
}

/// Most vectors of a register tile.
pub(super) const TILE_VECTORS: usize = 2;

impl Direction {
    /// Prepares a direction; `None` if the tier has no tiles, or blocks of channels do not fit the groups.
    pub fn new(setup: &Setup<'_>) -> Option<Self> {
        let machine = Machine::of(setup.numerics.isa);
        let forward = setup.sub == SubTask::Forward;
        let passes = passes_of(setup);
        let View { words, in_place, content, pixel, kind, block } = View::new(setup, &passes);
        let passes = if let Words::Taps(columns) = words { passes.paired_taps(columns) } else { passes };
        let passes = if block == 1 { passes.by_phase() } else { passes };
        let kernels: Vec<Kernels> =
            (1..=TILE_VECTORS).map(|v| kernels(setup.numerics, v, kind)).collect::<Option<_>>()?;
        let groups = setup.layer.group;
        let (sources, targets) = (setup.source.channels / groups, setup.target.channels / groups);
        let packing = Packing {
            groups,
            sources,
            targets,
            source_block: block,
            words,
            kernel: Taps::all(setup.layer.kernel.iter().product()),
            vector: setup.target.layout.block,
            tile_vectors: TILE_VECTORS,
            targets_are_outputs: forward,
            isa: setup.numerics.isa,
            passes: Packing::taps(&passes, setup.layer.kernel.iter().product()),
        };
        let pointwise = passes.is_pointwise();
        let depth = packing.words(sources);
        let order = Order::new(&machine, setup, depth, pointwise && in_place);
        let small = order.bytes(passes.source[0] * passes.source[1] * depth) <= order.room;
        let passes = if pointwise && small { passes.in_one_row() } else { passes };
        let planes = packing.sources.div_ceil(packing.source_block);
        let strip = |places: usize| passes.strip(content, planes, pixel, places);
        let bytes = |places: usize| order.bytes(strip(places).len());
        let (cut, images) = cut(&machine, &passes, &packing, setup, order.room, bytes);
        let grain_rows = passes.places[0].div_ceil(cut.rows);
        let strip = (!in_place).then(|| strip(grain_rows));
        let row_len = strip.as_ref().map_or(passes.source[1] * pixel, Strip::row_len);
        let plane_len = strip.as_ref().map_or(passes.source[0] * row_len, Strip::plane_len);
        let sources = sources_of(&passes, strip.as_ref(), &packing, plane_len, order.most);
        let most = kernels[TILE_VECTORS - 1].tiles.len();
        let columns = passes.passes.iter().map(|p| even_parts(&p.places[1], most).collect()).collect();
        let (source, target) = (setup.source, setup.target);
        // Of passes that overlap all rows are summed up, those that no window sees, too.
        let rows = match passes.overlap {
            true => passes.target[0],
            false if sources.iter().any(|sources| sources.chunks() > 1) => passes.target_rows(grain_rows),
            false => 0,
        };
        let sums = rows * passes.target[1] * packing.vector;
        let place_len = passes.source_step[0] / passes.lattice(0) * row_len;
        let amx = kind == Pixel::Vector && setup.numerics == Numerics::bf16(Isa::AmxBf16);
        Some(Self {
            passes,
            packing_parts: packing.parts(packing.len()),
            packing,
            source,
            target,
            strip,
            row_len,
            pixel,
            place_len,
            sources,
            columns,
            kernels,
            amx,
            cut,
            images,
            by_chunk: order.by_chunk,
            asks: amx || order.by_chunk,
            relu: forward && setup.layer.relu,
            sums: (target.layout.precision != Precision::F32).then_some(sums),
        })
    }

    /// Whether it can add to what the target holds.
    pub fn can_add(&self) -> bool {
        self.passes.sum_at_once()
    }

    /// Whether each target pixel is stored from registers, by one pass.
    pub fn stores_once(&self) -> bool {
        !self.passes.overlap
    }

    /// Grains of the computation.
    pub fn grains(&self) -> usize {
        self.cut.images * self.cut.rows * self.cut.tiles * self.cut.groups
    }

    /// Grains of the packing of weights.
    pub fn packing_grains(&self) -> usize {
        self.packing.grains(self.packing_parts)
    }

    /// Elements of scratch for a grain: strips, then sums.
    pub fn scratch(&self) -> usize {
        let sums = self.images * TILE_VECTORS * self.sums.unwrap_or(0);
        (self.strips_len() + sums).max(self.packing.scratch())
    }

    fn strips_len(&self) -> usize {
        self.strip.as_ref().map_or(0, |s| s.len() * self.images)
    }

    /// Packs the weights of the grain's piece.
    pub fn pack(&self, grain: &mut Grain<'_>, weights: Span, packed: Span) {
        let piece = self.packing.piece(grain.index, self.packing_parts);
        let packed = packed.part(self.packing.elements_of(&piece));
        // SAFETY: grains have pieces of their own; weights are only read in this task.
        let (weights, packed) = unsafe { (grain.memory.read(weights), grain.memory.write(packed)) };
        self.packing.pack(weights, &piece, packed, grain.scratch);
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
        let (strips, sums) = grain.scratch.split_at_mut(self.strips_len());
        let part = Part { memory: grain.memory, arrays, work: &work, strips, sums: sums.as_mut_ptr() };
        if !self.by_chunk {
            return work.tiles.clone().for_each(|tile| self.run_tile(&part, tile, None));
        }
        for chunk in 0..self.sources[0].chunks() {
            work.tiles.clone().for_each(|tile| self.run_tile(&part, tile, Some(chunk)));
        }
    }

    /// The group's planes of an image of the source.
    fn source_image(&self, source: Span, image: usize, group: usize) -> Span {
        let planes = self.packing.sources.div_ceil(self.source.layout.block) * self.source.plane_len();
        let start = image * self.source.image_stride() + group * planes;
        source.part(start..start + planes)
    }

    fn fill_strips(&self, grain: &mut Grain<'_>, source: Span, work: &Work) {
        let Some(strip) = &self.strip else { return };
        let first = (work.rows.start * self.passes.source_step[0]) as isize + self.passes.reach(0)[0];
        let rows = self.passes.strip(strip.content, strip.planes, strip.pixel, work.rows.len()).rows;
        for (i, image) in work.images.clone().enumerate() {
            // SAFETY: only read in this task.
            let planes = unsafe { grain.memory.read(self.source_image(source, image, work.group)) };
            strip.fill(planes, first, rows.min(strip.rows), &mut grain.scratch[i * strip.len()..]);
        }
    }

    /// Where place (row, 0) of an image of the grain sees its source.
    fn origin(&self, part: &Part<'_>, image: usize, row: usize) -> *const f32 {
        match &self.strip {
            Some(strip) => {
                let first = image * strip.len() + (row - part.work.rows.start) * self.place_len;
                part.strips[first..].as_ptr()
            }
            None => {
                let image = part.work.images.start + image;
                let planes = self.source_image(part.arrays.source, image, part.work.group);
                // SAFETY: only read in this task.
                unsafe { part.memory.read(planes)[row * self.row_len..].as_ptr() }
            }
        }
    }

    /// Where the targets of an image of the grain go, from one on.
    fn outputs(&self, part: &Part<'_>, image: usize, first_target: usize) -> Outputs {
        let (len, vector) = (self.target.image_len(), self.packing.vector);
        let start = (part.work.images.start + image) * self.target.image_stride();
        let kept = part.memory.pointer(part.arrays.target.part(start..start + len));
        let first = first_target / vector * self.target.plane_len();
        let kept = kept.wrapping_add(first);
        let sign = part.arrays.sign.map(|sign| {
            let start = (part.work.images.start + image) * sign.lies.image_stride();
            part.memory.pointer(sign.span.part(start..start + len)).wrapping_add(first).cast_const()
        });
        match self.sums {
            None => Outputs { sums: kept, vector: self.target.plane_len(), first_row: 0, kept: None, sign },
            Some(sums) => Outputs {
                sums: part.sums.wrapping_add(image * TILE_VECTORS * sums),
                vector: sums,
                first_row: self.passes.first_target_row(part.work.rows.start),
                kept: Some(kept),
                sign,
            },
        }
    }

    /// Takes a tile of targets through all chunks of sources, or through one.
    fn run_tile(&self, part: &Part<'_>, tile: usize, chunk: Option<usize>) {
        let (work, vector) = (part.work, self.packing.vector);
        let vectors = self.packing.vectors(tile);
        let place = self.packing.tile(work.group, tile);
        // SAFETY: packed in the stage before.
        let mut packed = unsafe { part.memory.read(part.arrays.packed.part(place)) };
        let first_target = work.group * self.packing.targets + tile * TILE_VECTORS * vector;
        // SAFETY: copied in the stage before, with a full tile for each tile.
        let bias = part.arrays.bias.map(|bias| unsafe { part.memory.read(bias)[first_target..].as_ptr() });
        let outputs = |i: usize| self.outputs(part, i, first_target);
        let mut ahead = self.ahead(part, tile, chunk);
        let lines = ahead.len.div_ceil(LINE).div_ceil(self.runs(work, chunk).max(1));
        if self.passes.overlap {
            for sums in (0..work.images.len()).flat_map(|i| self.whole(outputs(i), vectors)) {
                // SAFETY: images and tiles of channels are the grain's own, and so are its sums.
                unsafe { std::slice::from_raw_parts_mut(sums.0, self.target.pixels * vector) }.fill(0.0);
            }
        }
        for (index, sources) in self.sources.iter().enumerate() {
            for chunk in sources.those(chunk) {
                let start = match (chunk, bias) {
                    (0, _) if part.arrays.adds => None,
                    (0, Some(bias)) => Some(Start::Bias(bias)),
                    (0, None) if !self.passes.overlap => Some(Start::Zero),
                    _ => Some(Start::There),
                };
                for i in 0..work.images.len() {
                    let step = Step { index, chunk, start, image: i, packed, vectors, lines };
                    self.run_image(part, &step, &outputs(i), &mut ahead);
                }
            }
            packed = &packed[sources.count * vectors * vector..];
        }
        if self.passes.overlap && self.sums.is_some() {
            for (sums, kept) in (0..work.images.len()).flat_map(|i| self.whole(outputs(i), vectors)) {
                // SAFETY: as above.
                let (from, to) = unsafe {
                    (
                        std::slice::from_raw_parts(sums, self.target.pixels * vector),
                        std::slice::from_raw_parts_mut(kept, self.target.plane_len()),
                    )
                };
                with_words(Neighbours { from, to });
            }
        }
    }

    /// What the next tile has of the weights, of which each run of this one asks for so many lines. Of the tiles of AMX each sees all
    /// its weights, which are a part of the second-level cache, for a short time, and of few pixels each sees a chunk's for as short a one.
    fn ahead(&self, part: &Part<'_>, tile: usize, chunk: Option<usize>) -> Rows {
        let (work, next) = (part.work, tile + 1);
        if !self.asks || next == work.tiles.end {
            return Rows::none();
        }
        let width = self.packing.vectors(next) * self.packing.vector;
        let whole = part.arrays.packed.part(self.packing.tile(work.group, next));
        let seen = chunk.map_or(whole, |chunk| {
            let Range { start, end } = self.sources[0].of_chunk(chunk);
            whole.part(start * width..end * width)
        });
        Rows { first: part.memory.pointer(seen), plane: 0, len: seen.len(), planes: 1, done: 0 }
    }

    /// About as many runs as a tile of targets has for all places of a grain: those of a row in the middle.
    fn runs(&self, work: &Work, chunk: Option<usize>) -> usize {
        let of_pass = |(index, sources): (usize, &Sources)| {
            let rows = &self.passes.passes[index].places[0];
            if rows.is_empty() {
                return 0;
            }
            let middle = (work.rows.start + work.rows.len() / 2).clamp(rows.start, rows.end - 1);
            let height = if self.is_narrow(index) { 2 } else { 1 };
            let runs = sources.those(chunk).map(|chunk| sources.of_row(middle, chunk).len()).sum::<usize>();
            work.rows.len() / height * self.columns[index].len() * runs
        };
        work.images.len() * self.sources.iter().enumerate().map(of_pass).sum::<usize>()
    }

    /// The sums of all pixels of an image, vector by vector, and where they go.
    fn whole(&self, outputs: Outputs, vectors: usize) -> impl Iterator<Item = (*mut f32, *mut f32)> + use<> {
        let (vector, plane) = (outputs.vector, self.target.plane_len());
        let kept = outputs.kept.unwrap_or(outputs.sums);
        (0..vectors).map(move |v| (outputs.sums.wrapping_add(v * vector), kept.wrapping_add(v * plane)))
    }

    /// One chunk of sources of a pass for all places of an image.
    fn run_image(&self, part: &Part<'_>, step: &Step<'_>, outputs: &Outputs, ahead: &mut Rows) {
        let (pass, sources) = (&self.passes.passes[step.index], &self.sources[step.index]);
        let kernels = &self.kernels[step.vectors - 1];
        let rows = part.work.rows.start.max(pass.places[0].start)..part.work.rows.end.min(pass.places[0].end);
        let last = step.chunk + 1 == sources.chunks();
        // The sums of passes that overlap are rounded when all are done.
        let kept = outputs.kept.filter(|_| last && !self.passes.overlap);
        let relu = self.relu && last;
        let sign = outputs.sign.filter(|_| last);
        let (vector, pixel) = (self.packing.vector, self.target.layout.pixel());
        let mut row = rows.start;
        while row < rows.end {
            let pair = if row + 1 < rows.end { self.pair(step, row) } else { None };
            let (runs, height) = match pair {
                Some(runs) => (runs, 2),
                None => (sources.of_row(row, step.chunk), 1),
            };
            let of_row = row;
            row += height;
            if runs.is_empty() && step.chunk > 0 && !relu && kept.is_none() && sign.is_none() {
                continue;
            }
            let x = self.origin(part, step.image, of_row);
            let target_row = ((of_row * pass.step[0]) as isize + pass.first[0]) as usize;
            let target_below = pass.step[0] * self.passes.target[1];
            let next = Apart { x: self.pixel, y: pass.step[1] * vector, kept: pass.step[1] * pixel };
            let below = Apart { x: self.place_len, y: target_below * vector, kept: target_below * pixel };
            let Some((column, _)) = self.columns[step.index].first() else { return };
            let target_column = ((column * pass.step[1]) as isize + pass.first[1]) as usize;
            let at = |row: usize| row * self.passes.target[1] + target_column;
            let place = |y: *mut f32| Kept {
                y: y.wrapping_add(at(target_row) * pixel),
                pixel: next.kept,
                vector: self.target.plane_len(),
            };
            let held = || outputs.kept.map_or(Start::There, |y| Start::Kept(place(y)));
            let mut tile = Tile {
                runs,
                x: x.wrapping_add(column * self.pixel),
                x_pixel: self.pixel,
                w: step.packed.as_ptr(),
                y: outputs.sums.wrapping_add(at(target_row - outputs.first_row) * vector),
                y_pixel: next.y,
                y_vector: outputs.vector,
                below: pair.map(|_| below),
                start: step.start.unwrap_or_else(held),
                end: kept.map_or(End::There, |y| End::Kept(place(y))),
                relu,
                sign: sign.map(|sign| sign.wrapping_add(at(target_row) * pixel)),
                ahead: std::ptr::null(),
                ahead_lines: 0,
            };
            for (_, count) in &self.columns[step.index] {
                if let Some(soon) = ahead.take(runs.len() * step.lines * LINE) {
                    (tile.ahead, tile.ahead_lines) = (soon, step.lines);
                } else {
                    tile.ahead_lines = 0;
                }
                // SAFETY: places have target pixels inside the image, taps see the strip or, pointwise, the source; the
                // packed tile holds as many sources as the runs name; images, rows and tiles of channels are the
                // grain's own, and so are its sums.
                unsafe { kernels.tiles[height * count - 1](&tile) }
                // With few sources, to say all of a tile anew takes a third of the time that its products do.
                tile.go_on(*count, next);
            }
        }
    }

    /// What a row and the next see, where one tile computes both: on AMX, of rows that leave half of its pixels free.
    fn pair(&self, step: &Step<'_>, row: usize) -> Option<&[Run]> {
        let pair = || self.sources[step.index].of_pair(row, step.chunk);
        if self.is_narrow(step.index) { pair() } else { None }
    }

    /// Whether that is so of a pass.
    fn is_narrow(&self, pass: usize) -> bool {
        let most = self.kernels[0].tiles.len();
        self.amx && matches!(self.columns[pass][..], [(_, count)] if 2 * count <= most)
    }
}

/// What the tiles of a grain work on.
struct Part<'a> {
    memory: &'a Memory,
    arrays: &'a Arrays,
    work: &'a Work,
    strips: &'a [f32],
    /// Memory for sums, if the target is in bf16 and they do not end in registers.
    sums: *mut f32,
}

/// One step of a tile: a chunk of the sources of a pass, on an image.
struct Step<'a> {
    /// The pass and the chunk.
    index: usize,
    chunk: usize,
    /// What the sums start from, if not from what the target holds.
    start: Option<Start>,
    /// Which image of the grain.
    image: usize,
    /// The weights of the pass.
    packed: &'a [f32],
    vectors: usize,
    /// Lines that each run asks for ahead.
    lines: usize,
}

/// Where the targets of an image go.
struct Outputs {
    /// Sums of the first pixel of a row of the target; the distance of vectors.
    sums: *mut f32,
    vector: usize,
    /// Which row of the target that is.
    first_row: usize,
    /// Where sums are rounded to: pixel 0 of the image.
    kept: Option<*mut f32>,
    /// Where a ReLU's values lie: those of pixel 0 of the image.
    sign: Option<*const f32>,
}

/// The passes of a sub-task.
fn passes_of(setup: &Setup<'_>) -> Passes {
    match setup.sub {
        SubTask::Forward => Passes::forward(setup.layer, setup.input, setup.output),
        _ => Passes::cheaper_backward(setup.layer, [setup.input, setup.output], setup.numerics),
    }
}

/// How taps see the source.
struct View {
    words: Words,
    /// Whether it is seen where it lies, and not in a strip.
    in_place: bool,
    content: Content,
    /// Elements between pixels.
    pixel: usize,
    kind: Pixel,
    /// Channels of a pixel of a plane.
    block: usize,
}

impl View {
    fn new(setup: &Setup<'_>, passes: &Passes) -> Self {
        let block = setup.source.layout.block;
        let words = match (setup.numerics.precision, block) {
            (Precision::F32, _) => Words::Numbers,
            (Precision::Bf16, 1) => Words::Taps(setup.layer.kernel[1]),
            (Precision::Bf16, _) => Words::Sources,
        };
        let (content, in_place) = match words {
            Words::Numbers => (Content::Copy, passes.sees_in_place()),
            // A row of a register of AMX has two blocks.
            Words::Sources => {
                (Content::Channels, passes.sees_in_place() && setup.numerics.isa != Isa::AmxBf16)
            }
            Words::Taps(_) => (Content::Pixels(setup.layer.dilation[1]), false),
        };
        let kind = if block == 1 { Pixel::One } else { Pixel::Vector };
        match words {
            Words::Sources if in_place => {
                let pixel = setup.source.layout.pixel();
                Self { words, in_place, content: Content::Copy, pixel, kind: Pixel::Half, block }
            }
            Words::Sources => Self { words, in_place, content, pixel: block, kind, block: 2 * block },
            _ => Self { words, in_place, content, pixel: block, kind, block },
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
    /// Whether the target is added to: of directions that say so ([`Direction::can_add`], [`super::Winograd`]).
    pub adds: bool,
    /// The values of a ReLU whose backward goes over the target, and which lie as it does: of directions that say so
    /// ([`Direction::stores_once`], [`super::Winograd`]).
    pub sign: Option<Array>,
}

/// A grain's part.
struct Work {
    images: Range<usize>,
    rows: Range<usize>,
    tiles: Range<usize>,
    group: usize,
}
