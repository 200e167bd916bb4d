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

mod activation;
mod ahead;
mod cut;
mod few;
mod gradient;
mod passing;
mod step;
mod turned;

use std::ops::Range;

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net, rows_to_step};

use self::ahead::{Ahead, ask_for};
use self::cut::ActivationCut;
use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::correlate::{Kernels, Pixel, WeightTile, kernels};
use crate::kernel::words::{Neighbours, Pairs, with_words};
use crate::layer::{Binder, GradientSource, Grain, LayerKernel, Stages, share};
use crate::layout::{Arrangement, Layout};
use crate::machine::{LINE, Machine};
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
    isa: Isa,
    precision: Precision,
    images: usize,
    /// Whether these are few: ∇A then has no tiles.
    few: bool,
    /// Whether those of all devices of the worker are few: forward then has no tiles. Its sums have another order than those of
    /// tiles, and are not to depend on how the worker's images are shared out.
    few_everywhere: bool,
    /// Images of each device of the worker whose weight is updated as its gradient is found: ∇W is then that of all of them.
    /// Otherwise those of this device alone.
    everywhere: Vec<usize>,
    inputs: usize,
    outputs: usize,
    /// Whether ∇A updates the weight.
    passing: bool,
    /// Those whose rows of the weight this device updates, if the weight is updated as its gradient is found.
    own: Range<usize>,
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
    /// X transposed: image vector by image vector, input by input (pair by pair), one vector each. Of few images: vector of
    /// inputs (pairs) by vector, image by image.
    transposed: Span,
    /// X tile of inputs by tile, image by image (pair by pair), the last tile filled up.
    tiles: Span,
    /// In bf16, the top's gradients in pairs of images.
    gradients: Span,
    /// The grains of ∇A.
    cut: ActivationCut,
    /// Whether its sums are kept for a stage behind: of few images, and of several parts.
    keeps_sums: bool,
    /// Those sums: part of the rows by part, tile of inputs by tile, image by image.
    part_sums: Span,
    grains: usize,
    /// Of packing X transposed, which is long beside the products of a few outputs.
    transposing: usize,
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
    let (isa, lanes) = (binder.isa, machine.channel_block);
    let row = inputs.next_multiple_of(lanes * TILE_VECTORS);
    let rows = |net: &Net| ip.matrix(&net.bottom_shapes(binder.id)[0]).ok().map(|[images, _]| images);
    let everywhere = match binder.layer().steps_weight {
        true => binder.everywhere.iter().map(rows).collect::<Option<Vec<usize>>>()?,
        false => vec![images],
    };
    let few = few::are_few(images, lanes);
    let all: usize = binder.everywhere.iter().map(rows).sum::<Option<usize>>()?;
    let few_everywhere = few::are_few(all, lanes);
    let precision = if few_everywhere { few::precision_of_few(isa, precision) } else { precision };
    let words = |count: usize| count.div_ceil(precision.in_word());
    let depth: usize = everywhere.iter().map(|images| words(*images)).sum();
    let of_vectors = |v| kernels(Numerics { isa, precision }, v, Pixel::One);
    let kernels: Vec<Kernels> = (1..=TILE_VECTORS).map(of_vectors).collect::<Option<_>>()?;
    // Vectors of words of a few images, or of each word of all images.
    let transposed = match few_everywhere {
        true => images * words(inputs).next_multiple_of(lanes),
        false => images.next_multiple_of(lanes) * words(inputs),
    };
    let pairs = if precision == Precision::Bf16 { depth * outputs } else { 0 };
    let grains = machine.grains(binder.net.flops(binder.id, SubTask::Forward), machine.task_grains);
    let finds = binder.net.stepping_task(binder.id).unwrap_or(SubTask::GradWeight);
    let most_sources = kernels.iter().map(|k| k.weights.len()).max()?;
    let cut = match few_everywhere {
        true => ActivationCut::of_few_everywhere(&machine, [inputs, outputs], most_sources),
        false => ActivationCut::new(&machine, [all, inputs, outputs], grains, few),
    };
    let bottom_grad = binder.span(Operand::BottomGrad(0));
    let keeps_sums = few || cut.parts > 1;
    let part_sums = bottom_grad.filter(|_| keeps_sums).map_or(0, |_| cut.parts * images * row);
    Some(Box::new(Tiles {
        isa,
        precision,
        images,
        few,
        few_everywhere,
        everywhere,
        inputs,
        outputs,
        passing: binder.layer().steps_in_passing,
        own: match binder.layer().steps_weight {
            true => rows_to_step(binder.everywhere, binder.layer().params[0], binder.device),
            false => 0..outputs,
        },
        lanes,
        most_sources,
        kernels,
        machine,
        input: binder.arrangement(Operand::Bottom(0))?,
        bottom: binder.span(Operand::Bottom(0))?,
        top: binder.span(Operand::Top(0))?,
        weight: binder.span(Operand::Param(0))?,
        bias: binder.span(Operand::Param(1)),
        bottom_grad,
        top_grad: binder.span(Operand::TopGrad(0)),
        weight_grad: binder.span(Operand::ParamGrad(0)),
        bias_grad: binder.span(Operand::ParamGrad(1)),
        transposed: binder.workspace(SubTask::Forward, transposed),
        tiles: binder.workspace(finds, depth * row),
        gradients: binder.workspace(finds, pairs),
        cut,
        keeps_sums,
        part_sums: binder.workspace(SubTask::GradActivation, part_sums),
        grains,
        transposing: binder.stream_grains(images * inputs).clamp(grains, machine.task_grains),
    }))
}

/// A block of sums: sources × depth × vectors, and where each array has its next element.
struct Sum<'a> {
    sources: usize,
    depth: usize,
    /// What is asked for on the way.
    ahead: Ahead,
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
        let lines = s.ahead.lines;
        assert!(s.depth.is_multiple_of(lines), "{lines} lines do not cut {} steps into rows", s.depth);
        assert!(lines == 1 || (s.a_depth, s.b_depth) == (1, self.lanes), "rows of steps with gaps");
        let mut first = 0;
        while first < s.sources {
            let count = tiles.len().min(s.sources - first);
            let block = first / tiles.len();
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
                    x_row: s.a_depth * lines,
                    dy: s.b.as_ptr(),
                    dy_row: s.b_depth * lines,
                    dy_vector: s.b_vector,
                    pixels: [s.depth / lines, lines],
                    dw: c.add(first * s.c_source),
                    dw_source: s.c_source,
                    add: s.add,
                    ahead: s.ahead.first.wrapping_add(block * s.ahead.block),
                    ahead_row: s.ahead.row,
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

    /// Grains of the rows of ∇W that are this device's: as long as if it had all.
    fn row_grains(&self) -> usize {
        let rows = (self.grains * self.own.len()).div_ceil(self.outputs);
        rows.clamp(1, self.own.len().div_ceil(self.most_sources).max(1))
    }

    /// Grains of forward's products.
    fn product_grains(&self) -> usize {
        let most = if self.few_everywhere { 1 } else { self.most_sources };
        self.grains.min(self.outputs.div_ceil(most))
    }

    /// The outputs of a grain of forward's products.
    fn share_of_outputs(&self, grain: usize, grains: usize) -> Range<usize> {
        match self.few_everywhere {
            true => share(self.outputs, grain, grains),
            false => self.share_of_rows(self.outputs, grain, grains),
        }
    }

    /// A grain's rows of `count`: whole blocks of tiles, of which a smaller one takes nearly as long.
    fn share_of_rows(&self, count: usize, grain: usize, grains: usize) -> Range<usize> {
        let blocks = share(count.div_ceil(self.most_sources), grain, grains);
        (blocks.start * self.most_sources).min(count)..(blocks.end * self.most_sources).min(count)
    }

    /// Words of so many steps of depth.
    fn words(&self, depth: usize) -> usize {
        depth.div_ceil(self.precision.in_word())
    }

    /// Inputs of a row of weights that are packed together.
    fn near(&self) -> usize {
        match self.precision {
            Precision::F32 => self.machine.inner_depth,
            Precision::Bf16 => self.machine.inner_depth_bf16 * self.precision.in_word(),
        }
    }

    /// Some inputs of an image of the bottom, at most [`TOGETHER`], of which [`Tiles::places`] says where they lie: there, if side by
    /// side, or gathered.
    fn row<'a>(
        &self,
        of_image: &'a [f32],
        inputs: Range<usize>,
        places: &[usize; TOGETHER],
        gathered: &'a mut [f32; TOGETHER],
    ) -> &'a [f32] {
        if self.input.layout == Layout::PLAIN {
            return &of_image[inputs];
        }
        let gathered = &mut gathered[..inputs.len()];
        gathered.iter_mut().zip(places).for_each(|(to, place)| *to = of_image[*place]);
        gathered
    }

    /// Where some inputs lie in an image of the bottom: at most [`TOGETHER`].
    fn places(&self, inputs: Range<usize>) -> [usize; TOGETHER] {
        let mut places = [0; TOGETHER];
        places.iter_mut().zip(inputs).for_each(|(place, input)| *place = self.input.place(input));
        places
    }

    fn product(&self, grain: &mut Grain<'_>) {
        let outputs = self.share_of_outputs(grain.index, grain.grains);
        // SAFETY: only read in this task; X was packed in the stage before.
        let (weight, transposed, bias) = unsafe {
            (
                grain.memory.read(self.weight.part(outputs.start * self.inputs..outputs.end * self.inputs)),
                grain.memory.read(self.transposed),
                self.bias.map_or(&[][..], |b| grain.memory.read(b.part(outputs.clone()))),
            )
        };
        // From the sums of an output to those of the next, before and after they are totals.
        let vectors = if self.few_everywhere { self.images } else { self.image_vectors() };
        let width = if self.few_everywhere { self.images } else { vectors * self.lanes };
        let (sums, packed) = grain.scratch.split_at_mut(outputs.len() * vectors * self.lanes);
        match self.few_everywhere {
            true => self.few_products(weight, transposed, outputs.len(), sums),
            false => self.tile_products(weight, transposed, outputs.len(), [sums, packed]),
        }
        self.write_top(grain.memory, outputs, [sums, bias], width);
    }

    /// Adds up the products of the grain's outputs: output by output, vectors of images.
    fn tile_products(
        &self,
        weight: &[f32],
        transposed: &[f32],
        outputs: usize,
        [sums, packed]: [&mut [f32]; 2],
    ) {
        let width = self.image_vectors() * self.lanes;
        let near = self.near();
        // X of so many inputs stays in the second-level cache. Each row is read on and on meanwhile, as the machine foresees.
        let far = self.machine.strip_bytes / size_of::<f32>() * self.precision.in_word() / width;
        let far = (far / near).max(1) * near;
        for part in blocks(self.inputs, far) {
            for rows in blocks(outputs, self.most_sources) {
                for depth in blocks(part.len(), near) {
                    let depth = part.start + depth.start..part.start + depth.end;
                    self.add_rows(
                        weight,
                        transposed,
                        [&rows, &depth],
                        packed,
                        &mut sums[rows.start * width..],
                    );
                }
            }
        }
    }

    /// Adds the products of some rows and inputs to the sums of these rows.
    fn add_rows(
        &self,
        weight: &[f32],
        transposed: &[f32],
        [rows, depth]: [&Range<usize>; 2],
        packed: &mut [f32],
        sums: &mut [f32],
    ) {
        let (width, plane) = (self.image_vectors() * self.lanes, self.words(self.inputs) * self.lanes);
        let steps = self.words(depth.len());
        // So that rows do not all begin in the same sets of a cache.
        let a_source = steps + self.lanes;
        let from = weight[rows.start * self.inputs..rows.end * self.inputs].chunks_exact(self.inputs);
        for (from, to) in from.zip(packed.chunks_mut(a_source)) {
            self.pack(&from[depth.clone()], &mut to[..steps]);
        }
        let next = rows.start * self.inputs + depth.end;
        for first in (0..self.image_vectors()).step_by(TILE_VECTORS) {
            let ahead = match (first, self.precision) {
                (0, Precision::F32) => {
                    let next = weight.as_ptr().wrapping_add(next);
                    Ahead::rows(next, self.inputs, [self.machine.inner_ahead, steps])
                }
                _ => Ahead::nothing(packed.as_ptr()),
            };
            let sum = Sum {
                sources: rows.len(),
                depth: steps,
                ahead,
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
            let sums = &mut sums[first * self.lanes..];
            assert!((rows.len() - 1) * width + sum.vectors * self.lanes <= sums.len(), "sums are too short");
            // SAFETY: the sums are the thread's own, `width` for each output.
            unsafe { self.sum(&sum, sums.as_mut_ptr()) }
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
            // A call to copy a few lines would take longer than the copy.
            Precision::F32 => {
                let ((to, last), (from, rest)) = (to.as_chunks_mut::<LINE>(), first.as_chunks::<LINE>());
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                last.copy_from_slice(rest);
            }
            Precision::Bf16 => with_words(Pairs { a: first, b: second, to }),
        }
        rest.fill(0.0);
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
                let transposing = self.transposing.min(self.pieces());
                Stages::one(transposing).then(self.product_grains())
            }
            SubTask::GradWeight | SubTask::StepWeight => {
                Stages::one(self.gradient_depth().min(self.grains)).then(self.row_grains())
            }
            SubTask::GradActivation => {
                let sums = self.sum_stages();
                match self.passing {
                    true => Stages::one(self.gradient_depth().min(self.grains)).followed_by(sums),
                    false => sums,
                }
            }
            _ => Stages::one(1),
        }
    }

    fn gradient_source(&self) -> Option<GradientSource> {
        let (bottom, lies, images) = (self.bottom, self.input, self.images);
        self.top_grad.map(|top_grad| GradientSource { bottom, lies, top_grad, images })
    }

    fn scratch(&self) -> usize {
        let width = self.lanes * TILE_VECTORS;
        let outputs = self.share_of_outputs(0, self.product_grains()).len();
        let vectors = if self.few_everywhere { self.images } else { self.image_vectors() };
        let forward = outputs * vectors * self.lanes;
        let forward = forward + self.most_sources * (self.words(self.near()) + self.lanes);
        let activation = if self.few { self.few_scratch() } else { self.input_scratch() };
        let own = self.share_of_rows(self.own.len(), 0, self.row_grains()).len();
        let weight = self.sources(own) + self.most_sources * self.machine.inner_columns.max(width);
        forward.max(activation).max(weight).max(2 * self.inputs)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        match grain.stage {
            0 if self.few_everywhere => self.pack_few(grain),
            0 => self.transpose(grain),
            _ => self.product(grain),
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let last = grain.stage + 1 == self.stages(SubTask::GradActivation).len();
        match (self.passing, self.few) {
            (true, _) if grain.stage == 0 => self.pack_images(grain),
            _ if last && self.keeps_sums => self.add_part_sums(grain, bottom_grad),
            (true, true) => self.pass_columns(grain, top_grad),
            (true, false) => self.step_columns(grain, bottom_grad, top_grad),
            (false, true) => self.few_columns(grain, top_grad),
            (false, false) => self.input_columns(grain, bottom_grad, top_grad),
        }
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        match (grain.stage, self.weight_grad) {
            (0, _) => self.pack_images(grain),
            (_, Some(weight_grad)) => self.weight_rows(grain, weight_grad),
            _ => {}
        }
    }

    fn step_weight(&self, grain: &mut Grain<'_>) {
        match grain.stage {
            0 => self.pack_images(grain),
            _ => self.step_rows(grain),
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
