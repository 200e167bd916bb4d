//! Convolution: `Y[n,o,y,x] = b[o] + Σ W[o,i,p,q] · X[n, g·C/G + i, y·s + p·d − pad, x·s + q·d − pad]`, where `g`
//! is the group of output channel `o`.

use std::ops::Range;

use super::{Arrays, Context, Real, at, image_dims, relu};
use crate::layer::{Convolution, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &Convolution, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let conv = Geometry::new(layer, ctx);
    match sub {
        SubTask::Forward => {
            let bias = layer.bias.then(|| arrays.get(Operand::Param(1)));
            let y = conv.forward(arrays.get(Operand::Bottom(0)), arrays.get(Operand::Param(0)), bias);
            let y = if layer.relu { relu::rectified(&y, T::ZERO) } else { y };
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let dx = conv.grad_activation(arrays.get(Operand::TopGrad(0)), arrays.get(Operand::Param(0)));
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        SubTask::GradWeight => {
            let dw = conv.grad_weight(arrays.get(Operand::TopGrad(0)), arrays.get(Operand::Bottom(0)));
            arrays.insert(Operand::ParamGrad(0), dw);
        }
        SubTask::GradBias if layer.bias => {
            let db = conv.grad_bias(arrays.get(Operand::TopGrad(0)));
            arrays.insert(Operand::ParamGrad(1), db);
        }
        _ => {}
    }
}

/// Products of a row of Y with one weight: for `k` below `len`, `X[x + k · stride]`, `W[w]` and `Y[y + k]` meet.
struct Run {
    x: usize,
    w: usize,
    y: usize,
    len: usize,
}

struct Geometry<'a> {
    layer: &'a Convolution,
    /// Extents of X: (N, C, H, W).
    input: [usize; 4],
    /// Extents of W: (O, C/G, KH, KW).
    weight: [usize; 4],
    /// Extents of Y: (N, O, OH, OW).
    output: [usize; 4],
}

impl<'a> Geometry<'a> {
    fn new(layer: &'a Convolution, ctx: &Context) -> Self {
        let input = image_dims(&ctx.bottoms[0]);
        let [kh, kw] = layer.kernel;
        let weight = [layer.num_output, input[1] / layer.group, kh, kw];
        Self { layer, input, weight, output: image_dims(&ctx.tops[0]) }
    }

    /// Row (`axis` 0) or column (1) of X under tap `tap` of the window at `out`; `None` in the padding.
    fn source(&self, axis: usize, out: usize, tap: usize) -> Option<usize> {
        let padded = out * self.layer.stride[axis] + tap * self.layer.dilation[axis];
        padded.checked_sub(self.layer.pad[axis]).filter(|&source| source < self.input[2 + axis])
    }

    /// Rows (`axis` 0) or columns (1) of Y in whose windows tap `tap` is not in the padding.
    fn inside(&self, axis: usize, tap: usize) -> Range<usize> {
        let all = 0..self.output[2 + axis];
        let start = all.clone().position(|out| self.source(axis, out, tap).is_some()).unwrap_or(all.end);
        let len = (start..all.end).take_while(|out| self.source(axis, *out, tap).is_some()).count();
        start..start + len
    }

    /// Every product, in ascending order of (image, channel of Y, channel in the group), then tap by tap of the kernel in the given
    /// order, then in ascending order of Y's rows and columns.
    fn runs(&self, taps: &[[usize; 2]], mut visit: impl FnMut(Run)) {
        let [outputs, channels, kh, kw] = self.weight;
        let rows: Vec<_> = (0..kh).map(|p| self.inside(0, p)).collect();
        let columns: Vec<_> = (0..kw).map(|q| self.inside(1, q)).collect();
        for (n, o) in (0..self.output[0]).flat_map(|n| (0..outputs).map(move |o| (n, o))) {
            let group = o / (outputs / self.layer.group);
            for (i, [p, q]) in (0..channels).flat_map(|i| taps.iter().map(move |tap| (i, *tap))) {
                let first = columns[q].start;
                let w = at(self.weight, [o, i, p, q]);
                for y in rows[p].clone() {
                    let Some((row, column)) = self.source(0, y, p).zip(self.source(1, first, q)) else {
                        continue;
                    };
                    let x = at(self.input, [n, group * channels + i, row, column]);
                    visit(Run { x, w, y: at(self.output, [n, o, y, first]), len: columns[q].len() });
                }
            }
        }
    }

    /// The channels of the planes of Y, image by image.
    fn planes(&self) -> impl Iterator<Item = usize> {
        let [images, outputs, ..] = self.output;
        (0..images).flat_map(move |_| 0..outputs)
    }

    /// Elements of a plane of Y.
    fn plane(&self) -> usize {
        self.output[2] * self.output[3]
    }

    /// The taps of the kernel in ascending order of (row, column).
    fn taps(&self) -> Vec<[usize; 2]> {
        let [_, _, kh, kw] = self.weight;
        (0..kh).flat_map(|p| (0..kw).map(move |q| [p, q])).collect()
    }

    /// The elements of X in a run.
    fn sources<'x, T>(&self, x: &'x [T], run: &Run) -> impl Iterator<Item = &'x T> + use<'x, T> {
        x[run.x..].iter().step_by(self.layer.stride[1]).take(run.len)
    }

    /// X (N, C, H, W), W (O, C/G, KH, KW), b (O) → Y (N, O, OH, OW): each a sum over (channel in the group, row, column of the
    /// kernel) ascending. The bias is added last.
    fn forward<T: Real>(&self, x: &[T], w: &[T], bias: Option<&[T]>) -> Vec<T> {
        let mut top = vec![T::ZERO; self.output.iter().product()];
        self.runs(&self.taps(), |run| {
            let sums = &mut top[run.y..run.y + run.len];
            sums.iter_mut().zip(self.sources(x, &run)).for_each(|(sum, x)| *sum += w[run.w] * *x);
        });
        let Some(bias) = bias else { return top };
        for (o, plane) in self.planes().zip(top.chunks_mut(self.plane())) {
            plane.iter_mut().for_each(|sum| *sum += bias[o]);
        }
        top
    }

    /// dY (N, O, OH, OW), W (O, C/G, KH, KW) → dX (N, C, H, W): each a sum over (channel, row, column of Y) ascending, thus the
    /// last taps first.
    fn grad_activation<T: Real>(&self, dy: &[T], w: &[T]) -> Vec<T> {
        let mut dx = vec![T::ZERO; self.input.iter().product()];
        let mut taps = self.taps();
        taps.reverse();
        self.runs(&taps, |run| {
            let sums = dx[run.x..].iter_mut().step_by(self.layer.stride[1]);
            let dy = &dy[run.y..run.y + run.len];
            sums.zip(dy).for_each(|(sum, dy)| *sum += w[run.w] * *dy);
        });
        dx
    }

    /// dY (N, O, OH, OW), X (N, C, H, W) → dW (O, C/G, KH, KW): each a sum over (image, row, column) ascending.
    fn grad_weight<T: Real>(&self, dy: &[T], x: &[T]) -> Vec<T> {
        let mut dw = vec![T::ZERO; self.weight.iter().product()];
        self.runs(&self.taps(), |run| {
            let dy = &dy[run.y..run.y + run.len];
            self.sources(x, &run).zip(dy).for_each(|(x, dy)| dw[run.w] += *x * *dy);
        });
        dw
    }

    /// dY (N, O, OH, OW) → db (O): each a sum over (image, row, column) ascending.
    fn grad_bias<T: Real>(&self, dy: &[T]) -> Vec<T> {
        let mut db = vec![T::ZERO; self.layer.num_output];
        for (o, plane) in self.planes().zip(dy.chunks(self.plane())) {
            plane.iter().for_each(|dy| db[o] += *dy);
        }
        db
    }
}
