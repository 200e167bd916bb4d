//! Convolution: by cuDNN where it is, else by products whose second matrix is never made. What lies in another order than
//! they take is turned first.

use quadrille_core::layer::{Convolution, Operand, SubTask};
use quadrille_core::shape::Shape;

use super::inner_product::{TILE, splits};
use super::scale::{Summed, View, channel_sums, scaled};
use super::{Binder, turn};
use crate::op::{Convolve, Direction, Geometry, Op, Span, arguments};
use crate::spec::Arithmetic;

impl Geometry {
    /// That of a layer.
    fn new(layer: &Convolution, at: &Binder<'_>) -> Self {
        let (bottom, top) = (at.bottom(0), at.top(0));
        let Convolution { kernel, pad, stride, dilation, group, .. } = *layer;
        let extents = |shape: &Shape| [1, 2, 3].map(|axis| shape.dim(axis));
        let (input, output) = (extents(&bottom), extents(&top));
        Self {
            images: bottom.images(),
            all_images: at.batch(),
            input,
            output,
            kernel,
            pad,
            stride,
            dilation,
            group,
            channels_last: false,
        }
    }

    /// Channels and places of an image or filter of an operand.
    fn extents(&self, operand: Operand) -> [usize; 2] {
        let [kh, kw] = self.kernel;
        let ([c, h, w], [o, oh, ow]) = (self.input, self.output);
        match operand {
            Operand::Bottom(_) | Operand::BottomGrad(_) => [c, h * w],
            Operand::Top(_) | Operand::TopGrad(_) => [o, oh * ow],
            _ => [c / self.group, kh * kw],
        }
    }

    /// `struct Convolution` of the kernels.
    fn fields(&self, splits: usize, at: &Binder<'_>) -> [usize; 18] {
        let bf16 = usize::from(at.options.arithmetic == Arithmetic::Bf16);
        let Self { images, input, output, kernel, pad, stride, dilation, group, .. } = *self;
        let ([c, h, w], [o, oh, ow]) = (input, output);
        let ([kh, kw], [ph, pw], [sh, sw], [dh, dw]) = (kernel, pad, stride, dilation);
        [images, c, h, w, o, oh, ow, kh, kw, ph, pw, sh, sw, dh, dw, group, splits, bf16]
    }

    /// Rows, columns and terms of the product that a direction is for each group.
    fn product(&self, direction: Direction) -> [usize; 3] {
        let taps = self.kernel[0] * self.kernel[1];
        let [channels, outputs] = [self.input[0], self.output[0]].map(|all| all / self.group);
        let [pixels, places] = [self.input, self.output].map(|[_, h, w]| self.images * h * w);
        match direction {
            Direction::Forward => [outputs, places, channels * taps],
            Direction::GradActivation => [channels, pixels, outputs * taps],
            Direction::GradWeight => [outputs, channels * taps, places],
        }
    }
}

/// What a direction reads, in two operands, and writes.
fn operands(direction: Direction) -> [Operand; 3] {
    match direction {
        Direction::Forward => [Operand::Bottom(0), Operand::Param(0), Operand::Top(0)],
        Direction::GradActivation => [Operand::TopGrad(0), Operand::Param(0), Operand::BottomGrad(0)],
        Direction::GradWeight => [Operand::TopGrad(0), Operand::Bottom(0), Operand::ParamGrad(0)],
    }
}

/// The arrays of a direction in one order, and what turns those that lie in the other, before and after.
struct Ordered {
    arrays: [Span; 3],
    before: Vec<Op>,
    after: Option<Op>,
}

impl Ordered {
    fn new(at: &mut Binder<'_>, geometry: &Geometry, direction: Direction) -> Result<Self, String> {
        let (mut before, mut after) = (Vec::new(), None);
        let [to, back] = match geometry.channels_last {
            true => ["channels_last", "channels_first"],
            false => ["channels_first", "channels_last"],
        };
        let mut arrays = Vec::new();
        for (index, operand) in operands(direction).into_iter().enumerate() {
            let (span, extents) = (at.get(operand)?, geometry.extents(operand));
            let fits = at.channels_last(operand).is_some() == geometry.channels_last || extents.contains(&1);
            let turned = if fits { span } else { at.workspace(span.len) };
            match (fits, index) {
                (true, _) => {}
                (false, 2) => after = Some(turn(back, turned, span, extents)),
                (false, _) => before.push(turn(to, span, turned, extents)),
            }
            arrays.push(turned);
        }
        Ok(Self { arrays: [arrays[0], arrays[1], arrays[2]], before, after })
    }

    fn around(self, ops: Vec<Op>) -> Vec<Op> {
        self.before.into_iter().chain(ops).chain(self.after).collect()
    }
}

/// The operations that compute one direction by cuDNN, if it is there and can: in the order of the layer's blobs, or in the
/// usual one.
fn library(at: &mut Binder<'_>, geometry: Geometry, direction: Direction) -> Result<Option<Vec<Op>>, String> {
    let Some(ask) = at.dnn else { return Ok(None) };
    let last = operands(direction).into_iter().any(|operand| at.channels_last(operand).is_some());
    let orders = if last { &[true, false][..] } else { &[false] };
    for channels_last in orders {
        let geometry = Geometry { channels_last: *channels_last, ..geometry };
        if let Some(workspace) = ask(&geometry, direction) {
            let ordered = Ordered::new(at, &geometry, direction)?;
            let ops = by_library(at, geometry, direction, ordered.arrays, workspace);
            return Ok(Some(ordered.around(ops)));
        }
    }
    Ok(None)
}

fn by_library(
    at: &mut Binder<'_>,
    geometry: Geometry,
    direction: Direction,
    arrays: [Span; 3],
    workspace: usize,
) -> Vec<Op> {
    let workspace = at.workspace(workspace);
    let [first, second, result] = arrays;
    let whole = Convolve { direction, geometry, first, second, result, workspace };
    if at.options.arithmetic != Arithmetic::Bf16 {
        return vec![Op::Convolve(whole)];
    }
    let packed = Convolve::is_packed(direction, at.options.arithmetic);
    let mut rounded = |kernel, array: Span, words: usize| {
        let to = at.workspace(words);
        (to, Op::each(kernel, words, arguments![array, to, array.len]))
    };
    if !packed {
        let (first, of_first) = rounded("round_to_bf16", first, first.len);
        let (second, of_second) = rounded("round_to_bf16", second, second.len);
        return vec![of_first, of_second, Op::Convolve(Convolve { first, second, ..whole })];
    }
    let (first, of_first) = rounded("pack_bf16", first, first.len.div_ceil(2));
    let (second, of_second) = rounded("pack_bf16", second, second.len.div_ceil(2));
    let pairs = at.workspace(result.len.div_ceil(2));
    let convolve = Op::Convolve(Convolve { first, second, result: pairs, ..whole });
    let unpack = Op::each("unpack_bf16", result.len, arguments![pairs, result, result.len]);
    vec![of_first, of_second, convolve, unpack]
}

/// The blocks of our own kernels, but for those that share the sums.
fn tiles([rows, columns, _]: [usize; 3]) -> [usize; 2] {
    [columns.div_ceil(TILE), rows.div_ceil(TILE)]
}

fn forward(layer: &Convolution, at: &mut Binder<'_>, geometry: Geometry) -> Result<Vec<Op>, String> {
    let bias = layer.bias.then(|| at.get(Operand::Param(1))).transpose()?;
    if let Some(ops) = library(at, geometry, Direction::Forward)? {
        let (y, view) = (at.get(Operand::Top(0))?, outputs(at, Operand::Top(0)));
        let ends = (layer.bias || layer.relu).then(|| scaled(y, None, bias, y, layer.relu, view));
        return Ok(ops.into_iter().chain(ends).collect());
    }
    let ordered = Ordered::new(at, &geometry, Direction::Forward)?;
    let [x, w, y] = ordered.arrays;
    let [across, down] = tiles(geometry.product(Direction::Forward));
    let arguments = arguments![x, w, bias, y, layer.relu, geometry.fields(1, at)];
    Ok(ordered.around(vec![Op::blocks("convolution", [across, down, geometry.group], arguments)]))
}

fn grad_activation(at: &mut Binder<'_>, geometry: Geometry) -> Result<Vec<Op>, String> {
    if let Some(ops) = library(at, geometry, Direction::GradActivation)? {
        return Ok(ops);
    }
    let ordered = Ordered::new(at, &geometry, Direction::GradActivation)?;
    let [dy, w, dx] = ordered.arrays;
    let [across, down] = tiles(geometry.product(Direction::GradActivation));
    let grid = [across, down, geometry.group];
    let arguments = arguments![dy, w, dx, geometry.fields(1, at)];
    Ok(ordered.around(vec![Op::blocks("convolution_grad_activation", grid, arguments)]))
}

fn grad_weight(at: &mut Binder<'_>, geometry: Geometry) -> Result<Vec<Op>, String> {
    if let Some(ops) = library(at, geometry, Direction::GradWeight)? {
        return Ok(ops);
    }
    let ordered = Ordered::new(at, &geometry, Direction::GradWeight)?;
    let [dy, x, dw] = ordered.arrays;
    let product = geometry.product(Direction::GradWeight);
    let [across, down] = tiles(product);
    let splits = splits(across * down * geometry.group, product[2]);
    let grid = [across, down, geometry.group * splits];
    let fields = geometry.fields(splits, at);
    if splits == 1 {
        let ops = vec![Op::blocks("convolution_grad_weight", grid, arguments![dy, x, dw, fields])];
        return Ok(ordered.around(ops));
    }
    let count = dw.len;
    let (parts, none) = (at.workspace(splits * count), None::<Span>);
    let ops = vec![
        Op::blocks("convolution_grad_weight", grid, arguments![dy, x, parts, fields]),
        Op::each("sum_parts", count, arguments![parts, none, dw, splits, 1, count]),
    ];
    Ok(ordered.around(ops))
}

/// The top, or its gradient, by channels.
fn outputs(at: &Binder<'_>, which: Operand) -> View {
    View::of_blob(&at.top(0), at.channels_last(which).is_some())
}

pub(super) fn ops(layer: &Convolution, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let geometry = Geometry::new(layer, at);
    match sub {
        SubTask::Forward => forward(layer, at, geometry),
        SubTask::GradActivation => grad_activation(at, geometry),
        SubTask::GradWeight => grad_weight(at, geometry),
        _ => {
            let [dy, db] = [at.get(Operand::TopGrad(0))?, at.get(Operand::ParamGrad(1))?];
            let view = outputs(at, Operand::TopGrad(0));
            Ok(channel_sums(at, Summed::Values(dy), db, view, 1.0))
        }
    }
}
