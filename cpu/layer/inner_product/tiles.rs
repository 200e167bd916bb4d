//! InnerProduct on register tiles. Its weights are by far its largest array, so each element of the weight is read once
//! (forward, ∇A), a block at a time, or written once (∇W); what is packed as a whole are the activations. Blocks are
//! copied before they are used, since rows of such arrays often begin in the same set of a cache.
//!
//! With N images, K inputs and O outputs, all three are sums `C[s][v] = Σ_d A[s][d] · B[d][v]` over tiles of a few
//! sources s by one or two vectors v ([`WeightTile`]):
//!
//! - forward `Yᵀ = W · Xᵀ`: sources are outputs, vectors run over images, X is packed transposed;
//! - ∇A `dX = dY · W`: sources are images, vectors run along the rows of W;
//! - ∇W `dW = dYᵀ · X`: sources are outputs, vectors run along the rows of X.
//!
//! In bf16 two steps of depth share a word.

mod step;

use std::ops::Range;

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};

use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::correlate::{Kernels, Pixel, WeightTile, kernels};
use crate::kernel::vectorised::prefetch;
use crate::kernel::words::{Neighbours, Pairs, with_words, word};
use crate::layer::{Binder, Grain, LayerKernel, Stages, share};
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::{Memory, Span};

/// Most vectors of a tile.
const TILE_VECTORS: usize = 2;

/// Whether tiles can do a layer: weights must lie as (O, K).
pub(in crate::layer) fn fits(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    let Layer::InnerProduct(ip) = &net.layer(id).layer else { return false };
    let bottom = net.bottom_shapes(id).swap_remove(0);
    numerics.isa != Isa::Portable && !ip.transpose && bottom.axis(ip.axis, "axis") == Ok(1)
}

/// Whether tiles of bf16 can do a layer.
pub(in crate::layer) fn fits_bf16(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    numerics.precision == Precision::Bf16 && fits(net, id, numerics)
}

struct Tiles {
    precision: Precision,
    images: usize,
    inputs: usize,
    outputs: usize,
    /// Floats of a vector.
    lanes: usize,
    /// The kernels by number of vectors, from 1.
    kernels: Vec<Kernels>,
    /// Most sources of their tiles.
    most_sources: usize,
    machine: Machine,
    /// How the bottom lies.
    input: Arrangement,
    bottom: Span,
    top: Span,
    weight: Span,
    bias: Option<Span>,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    weight_grad: Option<Span>,
    bias_grad: Option<Span>,
    /// X transposed: image vector by image vector, input by input (pair by pair), one vector each.
    transposed: Span,
    /// X tile of inputs by tile, image by image (pair by pair), the last tile filled up.
    tiles: Span,
    /// In bf16, the top's gradients in pairs of images.
    gradients: Span,
    grains: usize,
}

pub(in crate::layer) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    build_of(binder, Precision::F32)
}

pub(in crate::layer) fn build_bf16(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    build_of(binder, Precision::Bf16)
}

fn build_of(binder: &mut Binder<'_>, precision: Precision) -> Option<Box<dyn LayerKernel>> {
    let Layer::InnerProduct(ip) = &binder.layer().layer else { return None };
    let [images, inputs] = ip.matrix(&binder.net.bottom_shapes(binder.id)[0]).ok()?;
    let (machine, outputs) = (binder.machine, ip.num_output);
    let lanes = machine.channel_block;
    let numerics = Numerics { isa: binder.isa, precision };
    let kernels: Vec<Kernels> =
        (1..=TILE_VECTORS).map(|v| kernels(numerics, v, Pixel::One)).collect::<Option<_>>()?;
    let flops = binder.net.flops(binder.id, SubTask::Forward);
    let row = inputs.next_multiple_of(lanes * TILE_VECTORS);
    let words = |count: usize| count.div_ceil(precision.in_word());
    let pairs = if precision == Precision::Bf16 { words(images) * outputs } else { 0 };
    Some(Box::new(Tiles {
        precision,
        images,
        inputs,
        outputs,
        lanes,
        most_sources: kernels.iter().map(|k| k.weights.len()).max()?,
        kernels,
        machine,
        input: binder.arrangement(Operand::Bottom(0))?,
        bottom: binder.span(Operand::Bottom(0))?,
        top: binder.span(Operand::Top(0))?,
        weight: binder.span(Operand::Param(0))?,
        bias: binder.span(Operand::Param(1)),
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        weight_grad: binder.span(Operand::ParamGrad(0)),
        bias_grad: binder.span(Operand::ParamGrad(1)),
        transposed: binder.workspace(SubTask::Forward, images.next_multiple_of(lanes) * words(inputs)),
        tiles: binder.workspace(SubTask::GradWeight, words(images) * row),
        gradients: binder.workspace(SubTask::GradWeight, pairs),
        grains: machine.grains(flops, machine.task_grains),
    }))
}

/// Tiles between the one that is worked on and the one that is asked for.
const AHEAD: usize = 2;

/// Asks for the cache lines of `len` elements from `start` on, if the array has them. Tiles of a weight's gradient are
/// pieces of rows that lie far apart, and what little is computed for each does not hide that its lines must be read before
/// they are written.
#[inline(always)]
fn ask_for(array: &[f32], start: usize, len: usize) {
    const LINE: usize = 64 / size_of::<f32>();
    if let Some(lines) = array.get(start..start + len) {
        lines.iter().step_by(LINE).for_each(|line| prefetch(line));
    }
}

/// A block of sums: sources × depth × vectors, and where each array has its next element.
struct Sum<'a> {
    sources: usize,
    depth: usize,
    /// A: place of source 0 at depth 0, distance of sources and of steps of depth.
    a: &'a [f32],
    a_source: usize,
    a_depth: usize,
    /// B: place of depth 0, distance of steps of depth and of vectors.
    b: &'a [f32],
    b_depth: usize,
    b_vector: usize,
    vectors: usize,
    /// C: distance of sources; vectors lie side by side.
    c_source: usize,
    add: bool,
}

impl Tiles {
    /// Computes a block of sums into `c`.
    ///
    /// # Safety
    /// `c` leads to `sources` rows of `vectors` vectors, `c_source` apart, that nobody else touches.
    unsafe fn sum(&self, s: &Sum<'_>, c: *mut f32) {
        let tiles = self.kernels[s.vectors - 1].weights;
        let mut first = 0;
        while first < s.sources {
            let count = tiles.len().min(s.sources - first);
            let mut offsets = [0u32; MAX_SOURCES];
            for (i, offset) in offsets[..count].iter_mut().enumerate() {
                *offset = (i * s.a_source) as u32;
            }
            let (a, last_b) =
                (&s.a[first * s.a_source..], (s.depth - 1) * s.b_depth + (s.vectors - 1) * s.b_vector);
            assert!((count - 1) * s.a_source + (s.depth - 1) * s.a_depth < a.len(), "A is too short");
            assert!(last_b + self.lanes <= s.b.len(), "B is too short");
            // SAFETY: A and B hold all sources and steps, as asserted; C by contract. The tier is available, or there
            // were no kernels.
            unsafe {
                let tile = WeightTile {
                    offsets: &offsets[..count],
                    x: a.as_ptr(),
                    x_row: s.a_depth,
                    dy: s.b.as_ptr(),
                    dy_row: s.b_depth,
                    dy_vector: s.b_vector,
                    pixels: [s.depth, 1],
                    dw: c.add(first * s.c_source),
                    dw_source: s.c_source,
                    add: s.add,
                    ahead: s.b.as_ptr(),
                    ahead_row: 0,
                };
                tiles[count - 1](&tile);
            }
            first += count;
        }
    }

    /// Vectors of images.
    fn image_vectors(&self) -> usize {
        self.images.div_ceil(self.lanes)
    }

    /// Words of so many steps of depth.
    fn words(&self, depth: usize) -> usize {
        depth.div_ceil(self.precision.in_word())
    }

    /// Packs X transposed: the grain's inputs.
    fn transpose(&self, grain: &Grain<'_>) {
        let (inputs, depth) = (grain.share(self.words(self.inputs)), self.words(self.inputs));
        let in_word = self.precision.in_word();
        // SAFETY: only read in this task.
        let x = unsafe { grain.memory.read(self.bottom) };
        let together = TOGETHER / in_word;
        for first_word in inputs.clone().step_by(together) {
            let words = first_word..(first_word + together).min(inputs.end);
            let of_words = words.start * in_word..(words.end * in_word).min(self.inputs);
            let places = self.places(of_words.clone());
            for vector in 0..self.image_vectors() {
                let start = vector * depth * self.lanes;
                let part = start + words.start * self.lanes..start + words.end * self.lanes;
                // SAFETY: grains have inputs of their own.
                let to = unsafe { grain.memory.write(self.transposed.part(part)) };
                to.fill(0.0);
                let first = vector * self.lanes;
                for image in first..(first + self.lanes).min(self.images) {
                    let of_image = &x[image * self.input.image_len()..][..self.input.image_len()];
                    let places = places[..of_words.len()].chunks(in_word);
                    for (pixel, places) in to.chunks_exact_mut(self.lanes).zip(places) {
                        pixel[image - first] = match (self.precision, places) {
                            (Precision::Bf16, [a, b]) => word(of_image[*a], of_image[*b]),
                            (Precision::Bf16, _) => word(of_image[places[0]], 0.0),
                            (Precision::F32, _) => of_image[places[0]],
                        };
                    }
                }
            }
        }
    }

    /// Where some inputs lie in an image of the bottom: at most [`TOGETHER`].
    fn places(&self, inputs: Range<usize>) -> [usize; TOGETHER] {
        let mut places = [0; TOGETHER];
        places.iter_mut().zip(inputs).for_each(|(place, input)| *place = self.input.place(input));
        places
    }

    fn product(&self, grain: &mut Grain<'_>) {
        let outputs = grain.share(self.outputs);
        // SAFETY: only read in this task; X was packed in the stage before.
        let (weight, transposed, bias) = unsafe {
            (
                grain.memory.read(self.weight.part(outputs.start * self.inputs..outputs.end * self.inputs)),
                grain.memory.read(self.transposed),
                self.bias.map(|b| grain.memory.read(b.part(outputs.clone()))),
            )
        };
        let width = self.image_vectors() * self.lanes;
        let (sums, packed) = grain.scratch.split_at_mut(outputs.len() * width);
        let plane = self.words(self.inputs) * self.lanes;
        for depth in blocks(self.inputs, self.machine.inner_depth * self.precision.in_word()) {
            let steps = self.words(depth.len());
            // So that rows do not all begin in the same sets of a cache.
            let a_source = steps + self.lanes;
            for rows in blocks(outputs.len(), self.most_sources) {
                let from = weight[rows.start * self.inputs..rows.end * self.inputs].chunks_exact(self.inputs);
                for (from, to) in from.zip(packed.chunks_mut(a_source)) {
                    self.pack(&from[depth.clone()], &mut to[..steps]);
                }
                for first in (0..self.image_vectors()).step_by(TILE_VECTORS) {
                    let sum = Sum {
                        sources: rows.len(),
                        depth: steps,
                        a: packed,
                        a_source,
                        a_depth: 1,
                        b: &transposed[first * plane + self.words(depth.start) * self.lanes..],
                        b_depth: self.lanes,
                        b_vector: plane,
                        vectors: TILE_VECTORS.min(self.image_vectors() - first),
                        c_source: width,
                        add: depth.start > 0,
                    };
                    // SAFETY: the sums are the thread's own, `width` for each output.
                    unsafe { self.sum(&sum, sums[rows.start * width + first * self.lanes..].as_mut_ptr()) }
                }
            }
        }
        for image in 0..self.images {
            let part = image * self.outputs + outputs.start..image * self.outputs + outputs.end;
            // SAFETY: grains have outputs of their own.
            let to = unsafe { grain.memory.write(self.top.part(part)) };
            for (o, value) in to.iter_mut().enumerate() {
                *value = sums[o * width + image] + bias.map_or(0.0, |b| b[o]);
            }
        }
    }

    /// Copies numbers that follow each other in depth: as they are, or two in a word.
    fn pack(&self, from: &[f32], to: &mut [f32]) {
        match self.precision {
            Precision::F32 => to.copy_from_slice(from),
            Precision::Bf16 => with_words(Neighbours { from, to }),
        }
    }

    /// Copies a row, or makes words of two rows that follow each other in depth, and fills up with zeros. The second of
    /// two may be empty, which stands for zeros.
    fn pack_rows(&self, first: &[f32], second: &[f32], to: &mut [f32]) {
        let (to, rest) = to.split_at_mut(first.len());
        match self.precision {
            Precision::F32 => to.copy_from_slice(first),
            Precision::Bf16 => with_words(Pairs { a: first, b: second, to }),
        }
        rest.fill(0.0);
    }

    /// Packs X tile of inputs by tile, image by image (pair by pair), and in bf16 the top's gradients: the grain's images.
    fn pack_images(&self, grain: &mut Grain<'_>, top_grad: Span) {
        let (width, depth, in_word) =
            (self.lanes * TILE_VECTORS, self.words(self.images), self.precision.in_word());
        let (first, second) = grain.scratch[..2 * self.inputs].split_at_mut(self.inputs);
        // SAFETY: bottom and gradient are only read in this task.
        let (x, dy) = unsafe { (grain.memory.read(self.bottom), grain.memory.read(top_grad)) };
        let of_image = |image: usize| &x[image * self.input.image_len()..][..self.input.image_len()];
        for step in share(depth, grain.index, grain.grains) {
            let image = step * in_word;
            let whole = image + in_word <= self.images;
            self.input.flatten(of_image(image), first);
            if in_word > 1 && whole {
                self.input.flatten(of_image(image + 1), second);
            }
            for (tile, first) in first.chunks(width).enumerate() {
                let second = if in_word > 1 && whole { &second[tile * width..][..first.len()] } else { &[] };
                let start = (tile * depth + step) * width;
                // SAFETY: grains have images of their own.
                let to = unsafe { grain.memory.write(self.tiles.part(start..start + width)) };
                self.pack_rows(first, second, to);
            }
            if in_word > 1 {
                let part = self.gradients.part(step * self.outputs..(step + 1) * self.outputs);
                let mut dy = dy.chunks_exact(self.outputs).skip(image);
                // SAFETY: as above.
                let to = unsafe { grain.memory.write(part) };
                self.pack_rows(dy.next().unwrap_or(&[]), dy.next().unwrap_or(&[]), to);
            }
        }
    }

    /// Elements of the packed gradients of some outputs.
    fn sources(&self, outputs: usize) -> usize {
        outputs.next_multiple_of(self.most_sources) * self.words(self.images)
    }

    /// Packs the top's gradients of some outputs: a block of sources after the other, each step by step of depth.
    fn pack_sources(&self, memory: &Memory, top_grad: Span, outputs: &Range<usize>, to: &mut [f32]) {
        let depth = self.words(self.images);
        let from = if self.precision == Precision::Bf16 { self.gradients } else { top_grad };
        // SAFETY: the gradient is only read in this task; in bf16 it was packed in the stage before.
        let dy = unsafe { memory.read(from) };
        for (step, dy) in dy.chunks_exact(self.outputs).enumerate() {
            for (block, from) in dy[outputs.clone()].chunks(self.most_sources).enumerate() {
                to[(block * depth + step) * self.most_sources..][..from.len()].copy_from_slice(from);
            }
        }
    }

    /// The sums of ∇W of a block of packed sources and a tile of inputs, to where rows of the weight lie.
    fn weight_sum<'a>(&self, a: &'a [f32], x: &'a [f32], tile: usize, block: &Range<usize>) -> Sum<'a> {
        let (width, depth) = (self.lanes * TILE_VECTORS, self.words(self.images));
        Sum {
            sources: block.len(),
            depth,
            a: &a[block.start * depth..],
            a_source: 1,
            a_depth: self.most_sources,
            b: &x[tile * depth * width..],
            b_depth: width,
            b_vector: self.lanes,
            vectors: TILE_VECTORS,
            c_source: self.inputs,
            add: false,
        }
    }

    /// The rows of ∇W of some outputs.
    fn weight_rows(&self, grain: &mut Grain<'_>, weight_grad: Span, top_grad: Span) {
        let outputs = grain.share(self.outputs);
        let width = self.lanes * TILE_VECTORS;
        // SAFETY: X was packed in the stage before; grains have rows of their own.
        let (x, dw) = unsafe {
            (
                grain.memory.read(self.tiles),
                grain.memory.write(weight_grad.part(outputs.start * self.inputs..outputs.end * self.inputs)),
            )
        };
        let (a, sums) = grain.scratch.split_at_mut(self.sources(outputs.len()));
        self.pack_sources(grain.memory, top_grad, &outputs, a);
        let a = &*a;
        let of_tile = |tile: usize, block: &Range<usize>| self.weight_sum(a, x, tile, block);
        let whole = self.inputs / width;
        for tiles in blocks(whole, (self.machine.inner_columns / width).max(1)) {
            for block in blocks(outputs.len(), self.most_sources) {
                for tile in tiles.clone() {
                    for row in block.clone() {
                        ask_for(dw, row * self.inputs + (tile + AHEAD) * width, width);
                    }
                    let dw = dw[block.start * self.inputs + tile * width..].as_mut_ptr();
                    // SAFETY: the rows are the grain's own and hold a whole tile from this column on.
                    unsafe { self.sum(&of_tile(tile, &block), dw) }
                }
            }
        }
        if whole * width < self.inputs {
            for block in blocks(outputs.len(), self.most_sources) {
                let sum = Sum { c_source: width, ..of_tile(whole, &block) };
                // SAFETY: the sums are the thread's own, a whole tile for each output of the block.
                unsafe { self.sum(&sum, sums[..block.len() * width].as_mut_ptr()) }
                let rows = dw.chunks_exact_mut(self.inputs).skip(block.start);
                for (to, from) in rows.zip(sums[..block.len() * width].chunks_exact(width)) {
                    let to = &mut to[whole * width..];
                    to.copy_from_slice(&from[..to.len()]);
                }
            }
        }
    }

    /// The columns of ∇A of some inputs.
    fn input_columns(&self, grain: &mut Grain<'_>, bottom_grad: Span, top_grad: Span) {
        let width = self.lanes * TILE_VECTORS;
        let tiles = grain.share(self.inputs.div_ceil(width));
        // SAFETY: only read in this task.
        let (weight, dy) = unsafe { (grain.memory.read(self.weight), grain.memory.read(top_grad)) };
        let step = (self.machine.inner_columns / width).max(1);
        let (sums, packed) = grain.scratch.split_at_mut(self.images * step * width);
        for first in tiles.clone().step_by(step) {
            let block = first..(first + step).min(tiles.end);
            for outputs in blocks(self.outputs, self.machine.inner_rows) {
                self.add_products(weight, dy, &outputs, &block, sums, packed);
            }
            self.scatter(grain.memory, bottom_grad, block, sums);
        }
    }

    /// Adds the products of some outputs to the sums of a block of tiles. The weights of each tile and the gradients are
    /// packed first: in place, rows would lie so far apart that many begin in the same set of a cache.
    fn add_products(
        &self,
        weight: &[f32],
        dy: &[f32],
        outputs: &Range<usize>,
        block: &Range<usize>,
        sums: &mut [f32],
        packed: &mut [f32],
    ) {
        let width = self.lanes * TILE_VECTORS;
        let (depth, in_word) = (self.words(outputs.len()), self.precision.in_word());
        let (a, b) = packed.split_at_mut(self.images * depth);
        for (dy, to) in dy.chunks_exact(self.outputs).zip(a.chunks_exact_mut(depth)) {
            self.pack(&dy[outputs.clone()], to);
        }
        let tile_len = depth * width;
        // Whole pieces of rows one after the other, so that the machine sees that they will be read on.
        let columns = block.start * width..(block.end * width).min(self.inputs);
        let row = |o: usize| &weight[o * self.inputs..][columns.clone()];
        for (step, o) in outputs.clone().step_by(in_word).enumerate() {
            for next in (o + in_word..o + 2 * in_word).filter(|next| *next < self.outputs) {
                ask_for(weight, next * self.inputs + columns.start, columns.len());
            }
            let (first, second) = (row(o), if o + 1 < outputs.end { row(o + 1) } else { &[] });
            for (tile, to) in b.chunks_exact_mut(tile_len).take(block.len()).enumerate() {
                let part = tile * width..((tile + 1) * width).min(columns.len());
                let second = second.get(part.clone()).unwrap_or(&[]);
                self.pack_rows(&first[part], second, &mut to[step * width..][..width]);
            }
        }
        for (i, b) in b.chunks_exact(tile_len).take(block.len()).enumerate() {
            let sum = Sum {
                sources: self.images,
                depth,
                a,
                a_source: depth,
                a_depth: 1,
                b,
                b_depth: width,
                b_vector: self.lanes,
                vectors: TILE_VECTORS,
                c_source: width,
                add: outputs.start > 0,
            };
            // SAFETY: the sums are the thread's own, a whole tile for each image.
            unsafe { self.sum(&sum, sums[i * self.images * width..].as_mut_ptr()) }
        }
    }

    /// Writes the sums of some tiles of inputs to where the bottom's gradient has them.
    fn scatter(&self, memory: &Memory, bottom_grad: Span, tiles: Range<usize>, sums: &[f32]) {
        let width = self.lanes * TILE_VECTORS;
        for (tile, sums) in tiles.zip(sums.chunks(self.images * width)) {
            let inputs = tile * width..((tile + 1) * width).min(self.inputs);
            let places = &self.places(inputs.clone())[..inputs.len()];
            for (image, row) in sums.chunks(width).enumerate() {
                let to = memory.pointer(bottom_grad);
                for (place, value) in places.iter().zip(row) {
                    let place = image * self.input.image_len() + place;
                    assert!(place < bottom_grad.len(), "an input beyond the bottom");
                    // SAFETY: inside the span, as asserted; grains have inputs of their own.
                    unsafe { *to.add(place) = *value }
                }
            }
        }
    }
}

/// Blocks of at most `most` of `count` things in a row.
fn blocks(count: usize, most: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..count).step_by(most).map(move |first| first..(first + most).min(count))
}

/// Inputs whose places are found once for all images: no fewer than a tile has.
const TOGETHER: usize = 64;

/// The most sources of a tile on any tier; [`Tiles::most_sources`] has those of this one.
const MAX_SOURCES: usize = 16;

impl LayerKernel for Tiles {
    fn stages(&self, sub: SubTask) -> Stages {
        match sub {
            SubTask::Forward => {
                Stages::one(self.grains.min(self.words(self.inputs))).then(self.grains.min(self.outputs))
            }
            SubTask::GradWeight | SubTask::StepWeight => {
                Stages::one(self.words(self.images).min(self.grains)).then(self.grains.min(self.outputs))
            }
            SubTask::GradActivation => {
                Stages::one(self.grains.min(self.inputs.div_ceil(self.lanes * TILE_VECTORS)))
            }
            _ => Stages::one(1),
        }
    }

    fn scratch(&self) -> usize {
        let (width, rows) = (self.lanes * TILE_VECTORS, self.words(self.machine.inner_rows));
        let outputs = share(self.outputs, 0, self.grains.min(self.outputs)).len();
        let forward = outputs * self.image_vectors() * self.lanes;
        let forward = forward + self.most_sources * (self.machine.inner_depth + self.lanes);
        let sums = self.images * self.machine.inner_columns.max(width);
        let activation = sums + self.images * rows + rows * self.machine.inner_columns.max(width);
        let weight = self.sources(outputs) + self.most_sources * self.machine.inner_columns.max(width);
        forward.max(activation).max(weight).max(2 * self.inputs)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        match grain.stage {
            0 => self.transpose(grain),
            _ => self.product(grain),
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        if let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) {
            self.input_columns(grain, bottom_grad, top_grad);
        }
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        let (Some(weight_grad), Some(top_grad)) = (self.weight_grad, self.top_grad) else { return };
        match grain.stage {
            0 => self.pack_images(grain, top_grad),
            _ => self.weight_rows(grain, weight_grad, top_grad),
        }
    }

    fn step_weight(&self, grain: &mut Grain<'_>) {
        let Some(top_grad) = self.top_grad else { return };
        match grain.stage {
            0 => self.pack_images(grain, top_grad),
            _ => self.step_rows(grain, top_grad),
        }
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        let (Some(bias_grad), Some(top_grad)) = (self.bias_grad, self.top_grad) else { return };
        // SAFETY: the task's only grain.
        let (db, dy) = unsafe { (grain.memory.write(bias_grad), grain.memory.read(top_grad)) };
        db.fill(0.0);
        for row in dy.chunks(self.outputs) {
            db.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    }
}
