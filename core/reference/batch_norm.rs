//! Batch normalisation: `y = (x − mean) / √(variance + eps)`, channel by channel.

use super::{Arrays, Context, Real};
use crate::layer::{BatchNorm, ClassView, Operand, SubTask};
use crate::shape::Shape;

pub(super) fn compute<T: Real>(layer: &BatchNorm, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let channels = Channels::new(&ctx.bottoms[0]);
    match sub {
        SubTask::Forward => {
            let x = arrays.get(Operand::Bottom(0));
            let (mean, variance) = if layer.uses_kept_statistics() {
                let sums = [0, 1, 2].map(|i| arrays.get(Operand::Param(i)));
                (kept(sums[0], sums[2][0]), kept(sums[1], sums[2][0]))
            } else {
                channels.statistics(x)
            };
            let x = x.to_vec();
            arrays.insert(Operand::Aux(0), mean);
            arrays.insert(Operand::Aux(1), variance);
            arrays.insert(Operand::Top(0), normalise(layer, ctx, &x, arrays));
        }
        SubTask::GradActivation => {
            let dy = arrays.get(Operand::TopGrad(0));
            let deviation = deviation(layer, arrays.get(Operand::Aux(1)));
            let dx = if layer.uses_kept_statistics() {
                channels.map(|c, i| dy[i] / deviation[c])
            } else {
                channels.grad_activation(dy, arrays.get(Operand::Top(0)), &deviation)
            };
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        SubTask::GradWeight if !layer.uses_kept_statistics() => {
            let share = T::from_f32(ctx.share);
            let correction: T = bias_correction(channels.values());
            let mean = arrays.get(Operand::Aux(0)).iter().map(|m| share * *m).collect();
            let variance = arrays.get(Operand::Aux(1)).iter().map(|v| share * (correction * *v)).collect();
            arrays.insert(Operand::ParamGrad(0), mean);
            arrays.insert(Operand::ParamGrad(1), variance);
            arrays.insert(Operand::ParamGrad(2), vec![share]);
        }
        _ => {}
    }
}

/// [`BatchNorm::bias_correction`] in the precision `T`.
fn bias_correction<T: Real>(count: usize) -> T {
    if count > 1 { T::from_usize(count) / T::from_usize(count - 1) } else { T::ONE }
}

/// X normalised by the statistics that forward left in `arrays`.
pub(super) fn normalise<T: Real>(layer: &BatchNorm, ctx: &Context, x: &[T], arrays: &Arrays<T>) -> Vec<T> {
    let (mean, deviation) = (arrays.get(Operand::Aux(0)), deviation(layer, arrays.get(Operand::Aux(1))));
    Channels::new(&ctx.bottoms[0]).map(|c, i| (x[i] - mean[c]) / deviation[c])
}

/// `√(variance + eps)` (C).
fn deviation<T: Real>(layer: &BatchNorm, variance: &[T]) -> Vec<T> {
    variance.iter().map(|v| (*v + T::from_f32(layer.eps)).sqrt()).collect()
}

/// What running sums (C) say of the statistic that they are sums of: `sum / factor`, and 0 for a factor of 0.
fn kept<T: Real>(sums: &[T], factor: T) -> Vec<T> {
    let scale = if factor == T::ZERO { T::ZERO } else { T::ONE / factor };
    sums.iter().map(|sum| scale * *sum).collect()
}

/// A blob as images × channels × places.
struct Channels(ClassView);

impl Channels {
    fn new(shape: &Shape) -> Self {
        let (outer, classes) = (shape.images(), shape.dim(1));
        Self(ClassView { outer, classes, inner: shape.count() / (outer * classes) })
    }

    /// Values of a channel.
    fn values(&self) -> usize {
        self.0.outer * self.0.inner
    }

    /// Calls `visit` with the channel and the place of every element, in the order of memory.
    fn each(&self, mut visit: impl FnMut(usize, usize)) {
        let ClassView { outer, classes, inner } = self.0;
        for image in 0..outer {
            for channel in 0..classes {
                for place in 0..inner {
                    visit(channel, (image * classes + channel) * inner + place);
                }
            }
        }
    }

    /// The blob whose elements are `value` of the channel and the place.
    fn map<T: Real>(&self, value: impl Fn(usize, usize) -> T) -> Vec<T> {
        let mut out = Vec::new();
        self.each(|channel, i| out.push(value(channel, i)));
        out
    }

    /// The mean (C) over images and places of what `value` gives for each element.
    fn mean<T: Real>(&self, value: impl Fn(usize, usize) -> T) -> Vec<T> {
        let mut sums = vec![T::ZERO; self.0.classes];
        self.each(|channel, i| sums[channel] += value(channel, i));
        sums.into_iter().map(|sum| sum / T::from_usize(self.values())).collect()
    }

    /// Mean and variance (C each) of X; the variance is the mean of the squared distances from the mean.
    fn statistics<T: Real>(&self, x: &[T]) -> (Vec<T>, Vec<T>) {
        let mean = self.mean(|_, i| x[i]);
        let variance = self.mean(|c, i| (x[i] - mean[c]) * (x[i] - mean[c]));
        (mean, variance)
    }

    /// dY, Y, deviation (C) → `dX = (dY − mean(dY) − mean(dY · Y) · Y) / deviation`.
    fn grad_activation<T: Real>(&self, dy: &[T], y: &[T], deviation: &[T]) -> Vec<T> {
        let mean = self.mean(|_, i| dy[i]);
        let product = self.mean(|_, i| dy[i] * y[i]);
        self.map(|c, i| (dy[i] - mean[c] - product[c] * y[i]) / deviation[c])
    }
}
