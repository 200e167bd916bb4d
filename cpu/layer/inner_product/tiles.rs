//! InnerProduct on register tiles. Its weights are by far its largest array, so no task copies them: each element of
//! the weight is read once (forward, ∇A) or written once (∇W), and what is packed are the activations.
//!
//! With N images, K inputs and O outputs, all three are sums `C[s][v] = Σ_d A[s][d] · B[d][v]` over tiles of a few
//! sources s by one or two vectors v ([`WeightTile`]):
//!
//! - forward `Yᵀ = W · Xᵀ`: sources are outputs, vectors run over images, X is packed transposed;
//! - ∇A `dX = dY · W`: sources are images, vectors run along the rows of W;
//! - ∇W `dW = dYᵀ · X`: sources are outputs, vectors run along the rows of X.
//!
//! In bf16 two steps of depth share a word. Weights are rounded where they are read, a block at a time, since they are
//! read once.

use std::ops::Range;

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};

use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::correlate::{Kernels, Pixel, WeightTile, kernels};
use crate::kernel::words::{Neighbours, Pairs, rounded, with_words};
use crate::layer::{Binder, Grain, LayerKernel, Stages, share};
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::Span;

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
    /// X row by row (pair of rows by pair), each filled up to whole tiles.
    rows: Span,
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
        rows: binder.workspace(SubTask::GradWeight, words(images) * row),
        gradients: binder.workspace(SubTask::GradWeight, pairs),
        grains: machine.grains(flops, machine.task_grains),
    }))
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
        // SAFETY: only read in this task.
        let x = unsafe { grain.memory.read(self.bottom) };
        for vector in 0..self.image_vectors() {
            let start = vector * depth * self.lanes;
            let part = start + inputs.start * self.lanes..start + inputs.end * self.lanes;
            // SAFETY: grains have inputs of their own.
            let to = unsafe { grain.memory.write(self.transposed.part(part)) };
            to.fill(0.0);
            let first = vector * self.lanes;
            for image in first..(first + self.lanes).min(self.images) {
                let of_image = &x[image * self.input.image_len()..][..self.input.image_len()];
                for (pixel, input) in to.chunks_exact_mut(self.lanes).zip(inputs.clone()) {
                    pixel[image - first] = match self.precision {
                        Precision::F32 => of_image[self.input.place(input)],
                        Precision::Bf16 => self.word_of(of_image, 2 * input),
                    };
                }
            }
        }
    }

    /// Inputs `input` and the next one of an image; after the last comes 0.
    fn word_of(&self, image: &[f32], input: usize) -> f32 {
        let half = |input: usize| u32::from(rounded(image[self.input.place(input)]));
        let second = if input + 1 < self.inputs { half(input + 1) } else { 0 };
        f32::from_bits(half(input) | second << 16)
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
        let (sums, words) = grain.scratch.split_at_mut(outputs.len() * width);
        // Rounded rows are few, so that they stay in the first-level cache, and do not all begin in the same sets of it.
        let (together, gap) = match self.precision {
            Precision::F32 => (outputs.len(), 0),
            Precision::Bf16 => (MAX_SOURCES, self.lanes),
        };
        for depth in blocks(self.inputs, self.machine.inner_depth * self.precision.in_word()) {
            for rows in blocks(outputs.len(), together.max(1)) {
                let steps = self.words(depth.len());
                let from = &weight[rows.start * self.inputs..rows.end * self.inputs];
                let (a, a_source) = match self.precision {
                    Precision::F32 => (&from[depth.start..], self.inputs),
                    Precision::Bf16 => {
                        for (from, to) in from.chunks_exact(self.inputs).zip(words.chunks_mut(steps + gap)) {
                            with_words(Neighbours { from: &from[depth.clone()], to });
                        }
                        (&*words, steps + gap)
                    }
                };
                for first in (0..self.image_vectors()).step_by(TILE_VECTORS) {
                    let plane = self.words(self.inputs) * self.lanes;
                    let sum = Sum {
                        sources: rows.len(),
                        depth: steps,
                        a,
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

    /// Makes words of pairs of images, rows of X filled up with zeros and gradients of the top: the grain's pairs.
    fn pair_rows(&self, grain: &mut Grain<'_>, top_grad: Span) {
        let row = self.row_len();
        let (first, second) = grain.scratch[..2 * row].split_at_mut(row);
        for pair in share(self.words(self.images), grain.index, grain.grains) {
            // SAFETY: grains have pairs of their own; bottom and gradient are only read in this task.
            let (x, dy, rows, gradients) = unsafe {
                let words = pair * self.outputs..(pair + 1) * self.outputs;
                (
                    grain.memory.read(self.bottom),
                    grain.memory.read(top_grad),
                    grain.memory.write(self.rows.part(pair * row..(pair + 1) * row)),
                    grain.memory.write(self.gradients.part(words)),
                )
            };
            let whole = 2 * pair + 1 < self.images;
            let of_pair = |image: usize| &x[image * self.input.image_len()..][..self.input.image_len()];
            self.input.flatten(of_pair(2 * pair), &mut first[..self.inputs]);
            if whole {
                self.input.flatten(of_pair(2 * pair + 1), &mut second[..self.inputs]);
            }
            let b = if whole { &second[..self.inputs] } else { &[] };
            with_words(Pairs { a: &first[..self.inputs], b, to: rows });
            rows[self.inputs..].fill(0.0);
            let mut dy = dy.chunks_exact(self.outputs).skip(2 * pair);
            let (a, b) = (dy.next().unwrap_or(&[]), dy.next().unwrap_or(&[]));
            with_words(Pairs { a, b, to: gradients });
        }
    }

    /// Copies X row by row, filled up with zeros: the grain's images.
    fn copy_rows(&self, grain: &Grain<'_>) {
        let row = self.row_len();
        for image in grain.share(self.images) {
            let start = image * self.input.image_len();
            // SAFETY: grains have images of their own.
            let (x, to) = unsafe {
                (
                    grain.memory.read(self.bottom.part(start..start + self.input.image_len())),
                    grain.memory.write(self.rows.part(image * row..(image + 1) * row)),
                )
            };
            self.input.flatten(x, &mut to[..self.inputs]);
            to[self.inputs..].fill(0.0);
        }
    }

    fn row_len(&self) -> usize {
        self.inputs.next_multiple_of(self.lanes * TILE_VECTORS)
    }

    /// The rows of ∇W of some outputs.
    fn weight_rows(&self, grain: &mut Grain<'_>, weight_grad: Span, top_grad: Span) {
        let outputs = grain.share(self.outputs);
        let (row, width) = (self.row_len(), self.lanes * TILE_VECTORS);
        // SAFETY: X was copied in the stage before; the gradient is only read; grains have rows of their own.
        let (x, dy, dw) = unsafe {
            (
                grain.memory.read(self.rows),
                grain.memory.read(if self.precision == Precision::Bf16 { self.gradients } else { top_grad }),
                grain.memory.write(weight_grad.part(outputs.start * self.inputs..outputs.end * self.inputs)),
            )
        };
        let whole = self.inputs / width * width;
        for columns in blocks(whole, self.machine.inner_columns) {
            for block in blocks(outputs.len(), self.kernels[0].weights.len()) {
                for column in columns.clone().step_by(width) {
                    let sum = self.outer_product(dy, x, outputs.start + block.start, block.len(), column);
                    // SAFETY: the rows are the grain's own and hold a whole tile from this column on.
                    unsafe { self.sum(&sum, dw[block.start * self.inputs + column..].as_mut_ptr()) }
                }
            }
        }
        if whole < self.inputs {
            let sums = &mut grain.scratch[..outputs.len() * width];
            let sum =
                Sum { c_source: width, ..self.outer_product(dy, x, outputs.start, outputs.len(), whole) };
            // SAFETY: the sums are the thread's own, a whole tile for each output.
            unsafe { self.sum(&sum, sums.as_mut_ptr()) }
            for (to, from) in dw.chunks_exact_mut(self.inputs).zip(sums.chunks_exact(width)) {
                to[whole..].copy_from_slice(&from[..self.inputs - whole]);
            }
        }
        debug_assert_eq!(x.len(), self.words(self.images) * row);
    }

    /// The sums over images for `count` outputs and one tile of columns.
    fn outer_product<'a>(
        &self,
        dy: &'a [f32],
        x: &'a [f32],
        output: usize,
        count: usize,
        column: usize,
    ) -> Sum<'a> {
        Sum {
            sources: count,
            depth: self.words(self.images),
            a: &dy[output..],
            a_source: 1,
            a_depth: self.outputs,
            b: &x[column..],
            b_depth: self.row_len(),
            b_vector: self.lanes,
            vectors: TILE_VECTORS,
            c_source: self.inputs,
            add: false,
        }
    }

    /// The columns of ∇A of some inputs.
    fn input_columns(&self, grain: &mut Grain<'_>, bottom_grad: Span, top_grad: Span) {
        let width = self.lanes * TILE_VECTORS;
        let tiles = grain.share(self.inputs.div_ceil(width));
        // SAFETY: only read in this task.
        let (weight, dy) = unsafe { (grain.memory.read(self.weight), grain.memory.read(top_grad)) };
        let step = (self.machine.inner_columns / width).max(1);
        let (sums, rest) = grain.scratch.split_at_mut(self.images * step * width);
        let (tail, words) = rest.split_at_mut(self.machine.inner_rows * width);
        for first in tiles.clone().step_by(step) {
            let block = first..(first + step).min(tiles.end);
            for outputs in blocks(self.outputs, self.machine.inner_rows) {
                if self.precision == Precision::Bf16 {
                    self.add_words(weight, dy, &outputs, &block, sums, words);
                    continue;
                }
                for (i, tile) in block.clone().enumerate() {
                    let column = tile * width;
                    let mut sum = Sum {
                        sources: self.images,
                        depth: outputs.len(),
                        a: &dy[outputs.start..],
                        a_source: self.outputs,
                        a_depth: 1,
                        b: &weight[outputs.start * self.inputs + column..],
                        b_depth: self.inputs,
                        b_vector: self.lanes,
                        vectors: TILE_VECTORS,
                        c_source: width,
                        add: outputs.start > 0,
                    };
                    if column + width > self.inputs {
                        let inside = self.inputs - column;
                        for (to, o) in tail.chunks_exact_mut(width).zip(outputs.clone()) {
                            to[..inside].copy_from_slice(&weight[o * self.inputs + column..][..inside]);
                            to[inside..].fill(0.0);
                        }
                        (sum.b, sum.b_depth) = (&*tail, width);
                    }
                    // SAFETY: the sums are the thread's own, a whole tile for each image.
                    unsafe { self.sum(&sum, sums[i * self.images * width..].as_mut_ptr()) }
                }
            }
            self.scatter(grain.memory, bottom_grad, block, sums);
        }
    }

    /// Adds the products of some outputs to the sums of a block of tiles, in bf16: the weights of the block are made into
    /// words of two outputs, and the gradients, too.
    fn add_words(
        &self,
        weight: &[f32],
        dy: &[f32],
        outputs: &Range<usize>,
        block: &Range<usize>,
        sums: &mut [f32],
        words: &mut [f32],
    ) {
        let width = self.lanes * TILE_VECTORS;
        let (depth, columns) = (self.words(outputs.len()), block.len() * width);
        let (b, a) = words.split_at_mut(depth * columns);
        let inside = block.start * width..(block.end * width).min(self.inputs);
        let rows = |o: usize| &weight[o * self.inputs..][inside.clone()];
        for (first, to) in outputs.clone().step_by(2).zip(b.chunks_exact_mut(columns)) {
            let second = if first + 1 < outputs.end { rows(first + 1) } else { &[] };
            with_words(Pairs { a: rows(first), b: second, to });
            to[inside.len()..].fill(0.0);
        }
        for (dy, to) in dy.chunks_exact(self.outputs).zip(a.chunks_exact_mut(depth)) {
            with_words(Neighbours { from: &dy[outputs.clone()], to });
        }
        for i in 0..block.len() {
            let sum = Sum {
                sources: self.images,
                depth,
                a,
                a_source: depth,
                a_depth: 1,
                b: &b[i * width..],
                b_depth: columns,
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
    fn scatter(&self, memory: &crate::memory::Memory, bottom_grad: Span, tiles: Range<usize>, sums: &[f32]) {
        let width = self.lanes * TILE_VECTORS;
        for (tile, sums) in tiles.zip(sums.chunks(self.images * width)) {
            let inputs = tile * width..((tile + 1) * width).min(self.inputs);
            for (image, row) in sums.chunks(width).enumerate() {
                let to = memory.pointer(bottom_grad);
                for (input, value) in inputs.clone().zip(row) {
                    let place = image * self.input.image_len() + self.input.place(input);
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

/// The most sources of a tile on any tier.
const MAX_SOURCES: usize = 8;

impl LayerKernel for Tiles {
    fn stages(&self, sub: SubTask) -> Stages {
        match sub {
            SubTask::Forward => {
                Stages::one(self.grains.min(self.words(self.inputs))).then(self.grains.min(self.outputs))
            }
            SubTask::GradWeight => {
                Stages::one(self.words(self.images).min(self.grains)).then(self.grains.min(self.outputs))
            }
            SubTask::GradActivation => {
                Stages::one(self.grains.min(self.inputs.div_ceil(self.lanes * TILE_VECTORS)))
            }
            _ => Stages::one(1),
        }
    }

    fn scratch(&self) -> usize {
        let width = self.lanes * TILE_VECTORS;
        let outputs = share(self.outputs, 0, self.grains.min(self.outputs)).len();
        let narrow = self.precision == Precision::Bf16;
        let rounded = if narrow { MAX_SOURCES * (self.machine.inner_depth + self.lanes) } else { 0 };
        let forward = outputs * self.image_vectors() * self.lanes + rounded;
        let columns = self.machine.inner_columns.max(width);
        let steps = if narrow { self.words(self.machine.inner_rows) } else { 0 };
        let activation =
            self.images * columns + self.machine.inner_rows * width + steps * (columns + self.images);
        let pairs = if narrow { 2 * self.row_len() } else { 0 };
        forward.max(activation).max(outputs * width).max(pairs)
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
            0 if self.precision == Precision::Bf16 => self.pair_rows(grain, top_grad),
            0 => self.copy_rows(grain),
            _ => self.weight_rows(grain, weight_grad, top_grad),
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
