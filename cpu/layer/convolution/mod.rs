//! Convolution: on register tiles over blocked channels, or as a matrix product over unfolded windows.

mod ahead;
mod copies;
mod cut;
mod direction;
mod gradient;
mod im2col;
mod passes;
mod planes;
mod pointwise;
mod sources;
mod subsample;
mod sums;
mod transpose;
mod unfolded;
mod ways;
mod weights;
mod winograd;

pub(super) use im2col::build as im2col;

use quadrille_core::layer::{Convolution, Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};
use quadrille_core::shape::Shape;

use self::direction::{Arrays, Direction, Setup, TILE_VECTORS};
use self::gradient::WeightGradient;
use self::passes::Passes;
use self::planes::PlaneGradient;
use self::subsample::Subsample;
use self::unfolded::Unfolded;
use self::ways::{Way, WeightWay};
use self::winograd::{EntryWinograd, Winograd, WinogradGradient};
use super::channels::Totals;
use super::{Array, Binder, Grain, LayerKernel, Stages};
use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::winograd::Filter;
use crate::machine::Machine;
use crate::memory::Span;

/// Whether tiles over blocked bottoms can do a layer: groups must begin at blocks.
pub(super) fn fits_blocked(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    fits(net, id, numerics, true)
}

/// Whether tiles of bf16 over blocked bottoms can do a layer.
pub(super) fn fits_bf16(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    numerics.precision == Precision::Bf16 && fits(net, id, numerics, true)
}

/// Whether tiles over plain bottoms should do a layer: images of a few channels, which blocks would mostly fill with
/// zeros, and which get no gradient.
pub(super) fn fits_entry(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    let few = net.bottom_shapes(id)[0].dim(1) <= Machine::of(numerics.isa).channel_block / 2;
    few && net.accesses(id, SubTask::GradActivation).is_none() && fits(net, id, numerics, false)
}

fn fits(net: &Net, id: LayerId, numerics: Numerics, blocked: bool) -> bool {
    let Layer::Convolution(layer) = &net.layer(id).layer else { return false };
    let block = Machine::of(numerics.isa).channel_block;
    let whole = |channels: usize| layer.group == 1 || (channels / layer.group).is_multiple_of(block);
    let bottom = &net.bottom_shapes(id)[0];
    let extents = [bottom.dim(2), bottom.dim(3)];
    numerics.isa != Isa::Portable
        // A stride has as many passes of ∇A as pixels; one that leaves the image has no use for them.
        && (0..2).all(|a| layer.stride[a] <= extents[a] + 2 * layer.pad[a])
        && whole(layer.num_output)
        && (!blocked || whole(bottom.dim(1)))
        // Places in a strip are 32-bit numbers; the source of ∇A is the top.
        && [bottom, &net.top_shapes(id)[0]].into_iter().all(|shape| shape.per_image() < (1 << 28))
}

/// Whether tiles can add ∇A to what is there: each of its pixels must be summed up at once.
pub(super) fn tiles_add(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    let Layer::Convolution(layer) = &net.layer(id).layer else { return false };
    let extents =
        [net.bottom_shapes(id), net.top_shapes(id)].map(|shapes| [shapes[0].dim(2), shapes[0].dim(3)]);
    // With a stride, what is seen is gathered first, and its gradient added in its place.
    let pointwise = layer.kernel == [1; 2] && layer.pad == [0; 2];
    pointwise || Passes::cheaper_backward(layer, extents, numerics).sum_at_once()
}

/// Whether tiles can do the backward of the ReLU before a layer: each pixel of ∇A must be stored by one pass, in its place.
pub(super) fn tiles_rectify(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    let Layer::Convolution(layer) = &net.layer(id).layer else { return false };
    let extents = shapes(net, id).map(|shape| [shape.dim(2), shape.dim(3)]);
    !Subsample::fits(layer) && !Passes::cheaper_backward(layer, extents, numerics).overlap
}

struct Tiles {
    isa: Isa,
    forward: Way,
    activation: Option<Way>,
    weight: Option<WeightWay>,
    bottom: Array,
    top: Array,
    weights: Span,
    bias: Option<Span>,
    bottom_grad: Option<Array>,
    top_grad: Option<Array>,
    weight_grad: Option<Span>,
    bias_grad: Option<Totals>,
    /// Whether ∇A is added to what is there.
    adds: bool,
    /// Whether the backward of a ReLU goes over ∇A, whose values are the bottom.
    rectifies: bool,
    /// For a layer that does not see every pixel of its bottom.
    seen: Option<Seen>,
    /// Packed weights of forward and of ∇A, the padded bias, and the sums of ∇W.
    packed: Span,
    packed_bias: Option<Span>,
    packed_back: Span,
    sums: Span,
}

/// The shapes of the bottom and the top of a convolution.
fn shapes(net: &Net, id: LayerId) -> [Shape; 2] {
    [net.bottom_shapes(id), net.top_shapes(id)].map(|mut shapes| shapes.swap_remove(0))
}

/// One for each kernel that can be filtered.
const SMALL_FILTERS: [Filter; 2] = [Filter::F2x3, Filter::F4x5];

/// Whether Winograd's transforms fit: 3×3 or 5×5 taps at stride 1, between enough channels.
pub(super) fn fits_winograd(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    SMALL_FILTERS.into_iter().any(|filter| fits_filter(net, id, numerics, filter))
}

/// Whether those of tiles of 4×4 outputs fit a 3×3 kernel.
pub(super) fn fits_winograd_4x4(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    fits_filter(net, id, numerics, Filter::F4x3)
}

/// Whether these pay more than those of 2×2.
pub(super) fn pays_winograd_4x4(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    let [bottom, top] = shapes(net, id);
    winograd::pays_4x3([&bottom, &top], numerics)
}

fn fits_filter(net: &Net, id: LayerId, numerics: Numerics, filter: Filter) -> bool {
    let Layer::Convolution(layer) = &net.layer(id).layer else { return false };
    let [bottom, top] = shapes(net, id);
    winograd::fits(layer, [&bottom, &top], numerics, filter) && fits(net, id, numerics, true)
}

/// What filters images: F(4×4, 3×3) pays more than F(2×2, 3×3) for any, since their transformed weights are few.
const ENTRY_FILTERS: [Filter; 2] = [Filter::F4x3, Filter::F4x5];

/// Whether Winograd's transforms of plain bottoms can do forward of a layer: where tiles over them could, in f32.
pub(super) fn fits_entry_winograd(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    fits_entry(net, id, numerics) && entry_filter(net, id).is_some()
}

/// Whether they pay more than tiles.
pub(super) fn pays_entry_winograd(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    let fewest = |filter| Machine::of(numerics.isa).winograd(filter).fewest_of_images;
    entry_filter(net, id).is_some_and(|filter| net.bottom_shapes(id)[0].dim(1) >= fewest(filter))
}

/// The filter for a layer of images.
fn entry_filter(net: &Net, id: LayerId) -> Option<Filter> {
    let Layer::Convolution(layer) = &net.layer(id).layer else { return None };
    let [bottom, top] = shapes(net, id);
    ENTRY_FILTERS.into_iter().find(|filter| winograd::fits_entry(layer, [&bottom, &top], *filter))
}

/// The same as [`fits_entry`] in bf16.
pub(super) fn fits_entry_bf16(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    numerics.precision == Precision::Bf16 && fits_entry(net, id, numerics)
}

/// The same as [`fits_winograd`] in bf16.
pub(super) fn fits_winograd_bf16(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    numerics.precision == Precision::Bf16 && fits_winograd(net, id, numerics)
}

/// The same as [`fits_winograd_4x4`] in bf16.
pub(super) fn fits_winograd_4x4_bf16(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    numerics.precision == Precision::Bf16 && fits_winograd_4x4(net, id, numerics)
}

/// The pixels that a layer sees, gathered for forward and for ∇W, and their gradients.
struct Seen {
    subsample: Subsample,
    grains: usize,
    bottom: Span,
    bottom_again: Span,
    bottom_grad: Span,
}

impl Seen {
    fn new(binder: &mut Binder<'_>, subsample: Subsample) -> Self {
        let len = subsample.seen().len();
        Self {
            subsample,
            grains: subsample.planes().min(binder.machine.task_grains),
            bottom: binder.workspace(SubTask::Forward, len),
            bottom_again: binder.workspace(SubTask::GradWeight, len),
            bottom_grad: binder.workspace(SubTask::GradActivation, len),
        }
    }
}

pub(super) fn tiles(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    tiles_of(binder, Precision::F32)
}

pub(super) fn tiles_bf16(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    tiles_of(binder, Precision::Bf16)
}

fn tiles_of(binder: &mut Binder<'_>, precision: Precision) -> Option<Box<dyn LayerKernel>> {
    let way = |setup: &Setup<'_>| {
        let unfolded = (setup.sub == SubTask::Forward).then(|| Unfolded::new(setup)).flatten();
        unfolded.map(Way::Unfolded).or_else(|| Direction::new(setup).map(Way::Direct))
    };
    build(binder, precision, way, weight_of_tiles)
}

/// ∇W on tiles.
fn weight_of_tiles(setup: &Setup<'_>) -> Option<WeightWay> {
    let planes = PlaneGradient::new(setup).map(|planes| WeightWay::Planes(Box::new(planes)));
    planes.or_else(|| WeightGradient::new(setup).map(|direct| WeightWay::Direct(Box::new(direct))))
}

pub(super) fn winograd(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    winograd_of(binder, Precision::F32, &SMALL_FILTERS)
}

pub(super) fn winograd_bf16(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    winograd_of(binder, Precision::Bf16, &SMALL_FILTERS)
}

pub(super) fn winograd_4x4(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    winograd_of(binder, Precision::F32, &[Filter::F4x3])
}

pub(super) fn winograd_4x4_bf16(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    winograd_of(binder, Precision::Bf16, &[Filter::F4x3])
}

pub(super) fn entry_winograd(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let filter = entry_filter(binder.net, binder.id)?;
    let way = |setup: &Setup<'_>| EntryWinograd::new(setup, filter).map(Way::Entry);
    build(binder, Precision::F32, way, weight_of_tiles)
}

/// By the first of the filters that can do the layer.
fn winograd_of(
    binder: &mut Binder<'_>,
    precision: Precision,
    filters: &[Filter],
) -> Option<Box<dyn LayerKernel>> {
    let Layer::Convolution(layer) = &binder.layer().layer else { return None };
    let filter = *filters.iter().find(|filter| winograd::can(layer, **filter))?;
    let weight = |setup: &Setup<'_>| {
        WinogradGradient::new(setup, filter).map(|products| WeightWay::Winograd(Box::new(products)))
    };
    build(binder, precision, |setup| Winograd::new(setup, filter).map(Way::Winograd), weight)
}

fn build(
    binder: &mut Binder<'_>,
    precision: Precision,
    way: impl Fn(&Setup<'_>) -> Option<Way>,
    weight_way: impl Fn(&Setup<'_>) -> Option<WeightWay>,
) -> Option<Box<dyn LayerKernel>> {
    let Layer::Convolution(layer) = &binder.layer().layer else { return None };
    let (net, id) = (binder.net, binder.id);
    let lies = |operand| binder.arrangement(operand);
    let (input, output) = (lies(Operand::Bottom(0))?, lies(Operand::Top(0))?);
    let (input_grad, output_grad) = (lies(Operand::BottomGrad(0))?, lies(Operand::TopGrad(0))?);
    let extents = |shape: quadrille_core::shape::Shape| [shape.dim(2), shape.dim(3)];
    let rows_and_columns =
        [net.bottom_shapes(id), net.top_shapes(id)].map(|mut shapes| extents(shapes.swap_remove(0)));
    let subsample = Subsample::new(layer, input, rows_and_columns[0], rows_and_columns[1]);
    // What is gathered is convolved at stride 1.
    let stride = if subsample.is_some() { [1; 2] } else { layer.stride };
    let layer = &Convolution { stride, ..layer.clone() };
    let [source, source_grad] =
        [input, input_grad].map(|input| subsample.map_or(input, |subsample| subsample.seen()));
    let setup = |sub: SubTask, from, to| Setup {
        layer,
        sub,
        numerics: Numerics { isa: binder.isa, precision },
        source: from,
        target: to,
        input: if subsample.is_some() { rows_and_columns[1] } else { rows_and_columns[0] },
        output: rows_and_columns[1],
        flops: net.flops(id, SubTask::Forward),
    };
    let forward = way(&setup(SubTask::Forward, source, output))?;
    let has = |sub| net.accesses(id, sub).is_some();
    let activation = match has(SubTask::GradActivation) {
        true => Some(way(&setup(SubTask::GradActivation, output_grad, source_grad))?),
        false => None,
    };
    let (adds, rectifies) = (binder.layer().adds_gradient, binder.layer().rectifies_gradient);
    let can = |can: fn(&Way) -> bool| activation.as_ref().is_some_and(can);
    if adds && !can(Way::can_add) || rectifies && (subsample.is_some() || !can(Way::can_rectify)) {
        return None;
    }
    let weight = match has(SubTask::GradWeight) {
        true => Some(weight_way(&setup(SubTask::Forward, source, output_grad))?),
        false => None,
    };
    let padded = padded_outputs(layer, output.layout.block);
    let bias = binder.span(Operand::Param(1));
    let top_grad = binder.array(Operand::TopGrad(0));
    let bias_grad = top_grad.zip(binder.span(Operand::ParamGrad(1)));
    Some(Box::new(Tiles {
        isa: binder.isa,
        packed: binder.workspace(SubTask::Forward, forward.packed_len()),
        packed_bias: bias.map(|_| binder.workspace(SubTask::Forward, padded)),
        packed_back: {
            let len = activation.as_ref().map_or(0, Way::packed_len);
            binder.workspace(SubTask::GradActivation, len)
        },
        sums: binder.workspace(SubTask::GradWeight, weight.as_ref().map_or(0, WeightWay::workspace)),
        forward,
        activation,
        weight,
        bottom: binder.array(Operand::Bottom(0))?,
        top: binder.array(Operand::Top(0))?,
        weights: binder.span(Operand::Param(0))?,
        bias,
        bottom_grad: binder.array(Operand::BottomGrad(0)),
        top_grad,
        weight_grad: binder.span(Operand::ParamGrad(0)),
        bias_grad: bias_grad.map(|(from, to)| Totals::new(binder, SubTask::GradBias, from, to)),
        adds,
        rectifies,
        seen: subsample.map(|subsample| Seen::new(binder, subsample)),
    }))
}

/// Outputs with the padding of the last tile.
fn padded_outputs(layer: &Convolution, vector: usize) -> usize {
    layer.num_output.next_multiple_of(vector * TILE_VECTORS)
}

impl Tiles {
    /// Copies the bias and fills it up with zeros.
    fn pad_bias(&self, grain: &Grain<'_>) {
        if let (Some(bias), Some(padded)) = (self.bias, self.packed_bias) {
            // SAFETY: one grain does this; the stage reads neither elsewhere.
            let (bias, padded) = unsafe { (grain.memory.read(bias), grain.memory.write(padded)) };
            padded[..bias.len()].copy_from_slice(bias);
            padded[bias.len()..].fill(0.0);
        }
    }
}

impl LayerKernel for Tiles {
    fn stages(&self, sub: SubTask) -> Stages {
        let seen = self.seen.as_ref().map(|seen| Stages::one(seen.grains));
        let before = |stages: Stages| seen.map_or(stages, |gather| gather.followed_by(stages));
        let after = |stages: Stages| seen.map_or(stages, |gather| stages.followed_by(gather));
        let stages = match sub {
            SubTask::Forward => Some(before(self.forward.stages())),
            SubTask::GradActivation => self.activation.as_ref().map(|way| after(way.stages())),
            SubTask::GradWeight => self.weight.as_ref().map(|way| before(way.stages())),
            _ => self.bias_grad.as_ref().map(Totals::stages),
        };
        stages.unwrap_or(Stages::one(1))
    }

    fn scratch(&self) -> usize {
        let activation = self.activation.as_ref().map_or(0, Way::scratch);
        let weight = self.weight.as_ref().map_or(0, WeightWay::scratch);
        self.forward.scratch().max(activation).max(weight)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let mut source = self.bottom.span;
        if let Some(seen) = &self.seen {
            if grain.stage == 0 {
                return seen.subsample.gather(grain, self.isa, self.bottom, seen.bottom);
            }
            grain.stage -= 1;
            source = seen.bottom;
        }
        if grain.stage == 0 {
            if grain.index == 0 {
                self.pad_bias(grain);
            }
            return self.forward.pack(grain, self.weights, source, self.packed);
        }
        let (target, packed, bias) = (self.top.span, self.packed, self.packed_bias);
        let arrays = Arrays { source, target, packed, bias, adds: false, sign: None };
        self.forward.run(grain, &arrays);
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(activation), Some(target), Some(source)) =
            (&self.activation, self.bottom_grad, self.top_grad)
        else {
            return;
        };
        if grain.stage == 0 {
            return activation.pack(grain, self.weights, source.span, self.packed_back);
        }
        let seen = self.seen.as_ref();
        match seen.filter(|_| grain.stage == activation.stages().len()) {
            Some(seen) if self.adds => {
                seen.subsample.add(grain, self.isa, seen.bottom_grad, target);
            }
            Some(seen) => seen.subsample.scatter(grain, self.isa, seen.bottom_grad, target),
            None => {
                let (source, packed) = (source.span, self.packed_back);
                let (target, adds) = seen.map_or((target.span, self.adds), |seen| (seen.bottom_grad, false));
                let sign = self.rectifies.then_some(self.bottom);
                activation.run(grain, &Arrays { source, target, packed, bias: None, adds, sign });
            }
        }
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        let (Some(weight), Some(weight_grad), Some(top_grad)) =
            (&self.weight, self.weight_grad, self.top_grad)
        else {
            return;
        };
        let mut source = self.bottom.span;
        if let Some(seen) = &self.seen {
            if grain.stage == 0 {
                return seen.subsample.gather(grain, self.isa, self.bottom, seen.bottom_again);
            }
            grain.stage -= 1;
            source = seen.bottom_again;
        }
        weight.run(grain, [source, top_grad.span, self.sums, weight_grad]);
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        if let Some(bias) = &self.bias_grad {
            bias.run(grain);
        }
    }
}
