//! Convolution: `Y[n,o,y,x] = b[o] + Σ W[o,i,p,q] · X[n, g·C/G + i, y·s + p·d − pad, x·s + q·d − pad]`, where `g`
//! is the group of output channel `o`.

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

/// One product of the sum: which elements of `X`, `W` and `Y` meet.
struct Meeting {
    x: usize,
    w: usize,
    y: usize,
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

    /// Every product that goes into `Y[n,o,y,x]`, in ascending order of (channel in the group, row, column of the
    /// kernel): the order of the sum.
    fn meetings(&self, place: [usize; 4], mut visit: impl FnMut(Meeting)) {
        let [n, o, y, x] = place;
        let [outputs, channels, kh, kw] = self.weight;
        let group = o / (outputs / self.layer.group);
        for i in 0..channels {
            for p in 0..kh {
                for q in 0..kw {
                    if let (Some(row), Some(column)) = (self.source(0, y, p), self.source(1, x, q)) {
                        visit(Meeting {
                            x: at(self.input, [n, group * channels + i, row, column]),
                            w: at(self.weight, [o, i, p, q]),
                            y: at(self.output, place),
                        });
                    }
                }
            }
        }
    }

    /// Every place of Y, in the order of memory.
    fn places(&self) -> impl Iterator<Item = [usize; 4]> {
        let [images, outputs, oh, ow] = self.output;
        (0..images).flat_map(move |n| {
            (0..outputs).flat_map(move |o| (0..oh).flat_map(move |y| (0..ow).map(move |x| [n, o, y, x])))
        })
    }

    /// X (N, C, H, W), W (O, C/G, KH, KW), b (O) → Y (N, O, OH, OW). The bias is added last.
    fn forward<T: Real>(&self, x: &[T], w: &[T], bias: Option<&[T]>) -> Vec<T> {
        let mut top = vec![T::ZERO; self.output.iter().product()];
        for place in self.places() {
            let mut sum = T::ZERO;
            self.meetings(place, |m| sum += w[m.w] * x[m.x]);
            top[at(self.output, place)] = bias.map_or(sum, |b| sum + b[place[1]]);
        }
        top
    }

    /// dY (N, O, OH, OW), W (O, C/G, KH, KW) → dX (N, C, H, W).
    fn grad_activation<T: Real>(&self, dy: &[T], w: &[T]) -> Vec<T> {
        let mut dx = vec![T::ZERO; self.input.iter().product()];
        for place in self.places() {
            self.meetings(place, |m| dx[m.x] += w[m.w] * dy[m.y]);
        }
        dx
    }

    /// dY (N, O, OH, OW), X (N, C, H, W) → dW (O, C/G, KH, KW): each a sum over (image, row, column) ascending.
    fn grad_weight<T: Real>(&self, dy: &[T], x: &[T]) -> Vec<T> {
        let mut dw = vec![T::ZERO; self.weight.iter().product()];
        for place in self.places() {
            self.meetings(place, |m| dw[m.w] += x[m.x] * dy[m.y]);
        }
        dw
    }

    /// dY (N, O, OH, OW) → db (O): each a sum over (image, row, column) ascending.
    fn grad_bias<T: Real>(&self, dy: &[T]) -> Vec<T> {
        let mut db = vec![T::ZERO; self.layer.num_output];
        for place in self.places() {
            db[place[1]] += dy[at(self.output, place)];
        }
        db
    }
}
