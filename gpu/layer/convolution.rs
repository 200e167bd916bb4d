//! Convolution: by cuDNN where it is, else by products whose second matrix is never made.

use quadrille_core::layer::{Convolution, Operand, SubTask};
use quadrille_core::shape::Shape;

use super::Binder;
use super::inner_product::{TILE, splits};
use super::scale::{Summed, View, channel_sums, scaled};
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

/// The operations that compute one direction by cuDNN, if it is there and can.
fn library(
    at: &mut Binder<'_>,
    geometry: Geometry,
    direction: Direction,
    arrays: [Span; 3],
) -> Option<Vec<Op>> {
    let workspace = (at.dnn?)(&geometry, direction)?;
    let workspace = at.workspace(workspace);
    let [first, second, result] = arrays;
    let whole = Convolve { direction, geometry, first, second, result, workspace };
    if at.options.arithmetic != Arithmetic::Bf16 {
        return Some(vec![Op::Convolve(whole)]);
    }
    let packed = Convolve::is_packed(direction, at.options.arithmetic);
    let mut rounded = |kernel, array: Span, words: usize| {
        let to = at.workspace(words);
        (to, Op::each(kernel, words, arguments![array, to, array.len]))
    };
    if !packed {
        let (first, of_first) = rounded("round_to_bf16", first, first.len);
        let (second, of_second) = rounded("round_to_bf16", second, second.len);
        return Some(vec![of_first, of_second, Op::Convolve(Convolve { first, second, ..whole })]);
    }
    let (first, of_first) = rounded("pack_bf16", first, first.len.div_ceil(2));
    let (second, of_second) = rounded("pack_bf16", second, second.len.div_ceil(2));
    let pairs = at.workspace(result.len.div_ceil(2));
    let convolve = Op::Convolve(Convolve { first, second, result: pairs, ..whole });
    let unpack = Op::each("unpack_bf16", result.len, arguments![pairs, result, result.len]);
    Some(vec![of_first, of_second, convolve, unpack])
}

/// The blocks of our own kernels, but for those that share the sums.
fn tiles([rows, columns, _]: [usize; 3]) -> [usize; 2] {
    [columns.div_ceil(TILE), rows.div_ceil(TILE)]
}

fn forward(layer: &Convolution, at: &mut Binder<'_>, geometry: Geometry) -> Result<Vec<Op>, String> {
    let arrays = [at.get(Operand::Bottom(0))?, at.get(Operand::Param(0))?, at.get(Operand::Top(0))?];
    let bias = layer.bias.then(|| at.get(Operand::Param(1))).transpose()?;
    let [x, w, y] = arrays;
    if let Some(ops) = library(at, geometry, Direction::Forward, arrays) {
        let ends = (layer.bias || layer.relu).then(|| scaled(y, None, bias, y, layer.relu, outputs(at)));
        return Ok(ops.into_iter().chain(ends).collect());
    }
    let [across, down] = tiles(geometry.product(Direction::Forward));
    let arguments = arguments![x, w, bias, y, layer.relu, geometry.fields(1, at)];
    Ok(vec![Op::blocks("convolution", [across, down, geometry.group], arguments)])
}

fn grad_weight(at: &mut Binder<'_>, geometry: Geometry) -> Result<Vec<Op>, String> {
    let arrays = [at.get(Operand::TopGrad(0))?, at.get(Operand::Bottom(0))?, at.get(Operand::ParamGrad(0))?];
    if let Some(ops) = library(at, geometry, Direction::GradWeight, arrays) {
        return Ok(ops);
    }
    let [dy, x, dw] = arrays;
    let product = geometry.product(Direction::GradWeight);
    let [across, down] = tiles(product);
    let splits = splits(across * down * geometry.group, product[2]);
    let grid = [across, down, geometry.group * splits];
    let fields = geometry.fields(splits, at);
    if splits == 1 {
        return Ok(vec![Op::blocks("convolution_grad_weight", grid, arguments![dy, x, dw, fields])]);
    }
    let count = dw.len;
    let (parts, none) = (at.workspace(splits * count), None::<Span>);
    Ok(vec![
        Op::blocks("convolution_grad_weight", grid, arguments![dy, x, parts, fields]),
        Op::each("sum_parts", count, arguments![parts, none, dw, splits, 1, count]),
    ])
}

/// The top as images × channels × places.
fn outputs(at: &Binder<'_>) -> View {
    let top = at.top(0);
    View { outer: top.images(), channels: top.dim(1), inner: top.dim(2) * top.dim(3) }
}

pub(super) fn ops(layer: &Convolution, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let geometry = Geometry::new(layer, at);
    match sub {
        SubTask::Forward => forward(layer, at, geometry),
        SubTask::GradActivation => {
            let arrays =
                [at.get(Operand::TopGrad(0))?, at.get(Operand::Param(0))?, at.get(Operand::BottomGrad(0))?];
            if let Some(ops) = library(at, geometry, Direction::GradActivation, arrays) {
                return Ok(ops);
            }
            let [dy, w, dx] = arrays;
            let [across, down] = tiles(geometry.product(Direction::GradActivation));
            let grid = [across, down, geometry.group];
            let arguments = arguments![dy, w, dx, geometry.fields(1, at)];
            Ok(vec![Op::blocks("convolution_grad_activation", grid, arguments)])
        }
        SubTask::GradWeight => grad_weight(at, geometry),
        _ => {
            let [dy, db] = [at.get(Operand::TopGrad(0))?, at.get(Operand::ParamGrad(1))?];
            let view = outputs(at);
            Ok(channel_sums(at, Summed::Values(dy), db, view, 1.0))
        }
    }
}
