//! Convolution over any number of axes, and Deconvolution: `small[n,o,y] = Σ W[o,i,p] · large[n, g·C/G + i, x]` with
//! `x = y·stride + p·dilation − pad` along each axis, where `g` is the group of channel `o`. A deconvolution's bottom is
//! small and its top large.

use super::{Arrays, Context, Real};
use crate::layer::{ConvolutionNd, Operand, Side, Sides, SubTask};

pub(super) fn compute<T: Real>(layer: &ConvolutionNd, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let sides = layer.sides(&ctx.bottoms[0]).expect("the windows fit: checked by infer");
    let param = |i| Operand::Param(i);
    match sub {
        SubTask::Forward => {
            let mut y =
                sides.product(!layer.transposed, arrays.get(Operand::Bottom(0)), arrays.get(param(0)));
            if layer.bias {
                let (bias, plane) = (arrays.get(param(1)), ctx.tops[0].count() / y_planes(layer, &sides));
                y.iter_mut().enumerate().for_each(|(i, y)| *y += bias[i / plane % layer.num_output]);
            }
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let dx = sides.product(layer.transposed, arrays.get(Operand::TopGrad(0)), arrays.get(param(0)));
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        SubTask::GradWeight => {
            let (x, dy) = (arrays.get(Operand::Bottom(0)), arrays.get(Operand::TopGrad(0)));
            let dw = if layer.transposed { sides.grad_weight(x, dy) } else { sides.grad_weight(dy, x) };
            arrays.insert(Operand::ParamGrad(0), dw);
        }
        SubTask::GradBias if layer.bias => {
            let dy = arrays.get(Operand::TopGrad(0));
            let (plane, mut db) = (dy.len() / y_planes(layer, &sides), vec![T::ZERO; layer.num_output]);
            dy.iter().enumerate().for_each(|(i, dy)| db[i / plane % layer.num_output] += *dy);
            arrays.insert(Operand::ParamGrad(1), db);
        }
        _ => {}
    }
}

/// Images times channels of the top.
fn y_planes(layer: &ConvolutionNd, sides: &Sides) -> usize {
    sides.images * layer.num_output
}

/// One product of the sum: which elements meet.
struct Meeting {
    small: usize,
    weight: usize,
    large: usize,
}

/// The digits of `index`, the last being the fastest.
fn digits(mut index: usize, extents: &[usize]) -> Vec<usize> {
    let mut digits = vec![0; extents.len()];
    for (digit, extent) in digits.iter_mut().zip(extents).rev() {
        (*digit, index) = (index % extent, index / extent);
    }
    digits
}

impl Sides {
    /// The place in a channel of the large side under a tap of the window at a place of the small one; `None` in the
    /// padding.
    fn source(&self, place: &[usize], tap: &[usize]) -> Option<usize> {
        let w = &self.windows;
        self.large.extents.iter().enumerate().try_fold(0, |at, (a, extent)| {
            let padded = place[a] * w.stride[a] + tap[a] * w.dilation[a];
            padded.checked_sub(w.pad[a]).filter(|x| x < extent).map(|x| at * extent + x)
        })
    }

    /// Every product, by (image, channel and place of the small side, channel of the large side, tap) ascending.
    fn meetings(&self, mut visit: impl FnMut(Meeting)) {
        let Self { images, group, windows, small, large } = self;
        let (taps, channels) = (windows.taps(), large.channels / group);
        let offsets: Vec<Vec<usize>> = (0..taps).map(|tap| digits(tap, &windows.kernel)).collect();
        for n in 0..*images {
            for o in 0..small.channels {
                let first = o / (small.channels / group) * channels;
                for y in 0..small.plane() {
                    let place = digits(y, &small.extents);
                    for i in 0..channels {
                        for (tap, offset) in offsets.iter().enumerate() {
                            let Some(x) = self.source(&place, offset) else { continue };
                            visit(Meeting {
                                small: (n * small.channels + o) * small.plane() + y,
                                weight: (o * channels + i) * taps + tap,
                                large: (n * large.channels + first + i) * large.plane() + x,
                            });
                        }
                    }
                }
            }
        }
    }

    /// The small side of the large one and the weight, or the large one of the small.
    fn product<T: Real>(&self, to_small: bool, from: &[T], w: &[T]) -> Vec<T> {
        let side: &Side = if to_small { &self.small } else { &self.large };
        let mut to = vec![T::ZERO; self.images * side.image()];
        self.meetings(|m| {
            let (target, source) = if to_small { (m.small, m.large) } else { (m.large, m.small) };
            to[target] += w[m.weight] * from[source];
        });
        to
    }

    /// The weight's gradient: each a sum over (image, place) ascending.
    fn grad_weight<T: Real>(&self, small: &[T], large: &[T]) -> Vec<T> {
        let Self { group, windows, .. } = self;
        let mut dw = vec![T::ZERO; self.small.channels * (self.large.channels / group) * windows.taps()];
        self.meetings(|m| dw[m.weight] += small[m.small] * large[m.large]);
        dw
    }
}
