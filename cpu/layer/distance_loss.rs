//! Losses of predictions and targets value by value: squared distances, and cross entropies of sigmoids.

use quadrille_core::layer::{Layer, Operand, SigmoidCrossEntropyLoss, SubTask};
use quadrille_core::shape::Shape;

use super::tally::Tally;
use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::Isa;
use crate::kernel::elements::Zip;
use crate::kernel::functions::sigmoid;
use crate::kernel::sums::SumOfPairs;
use crate::kernel::vectorised::on;
use crate::memory::Span;

struct Euclidean {
    isa: Isa,
    images: f32,
    weight: f32,
    sides: [Span; 2],
    loss: Option<Span>,
    gradients: [Option<Span>; 2],
    tally: Tally,
    grains: usize,
}

pub(super) fn euclidean(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let sides = [binder.span(Operand::Bottom(0))?, binder.span(Operand::Bottom(1))?];
    let count = binder.net.bottom_shapes(binder.id)[0].count();
    Some(Box::new(Euclidean {
        isa: binder.isa,
        images: binder.net.bottom_shapes(binder.id)[0].images() as f32,
        weight: binder.layer().loss_weights.first().copied().unwrap_or(0.0),
        sides,
        loss: binder.span(Operand::Top(0)),
        gradients: [0, 1].map(|i| binder.span(Operand::BottomGrad(i))),
        tally: Tally::new(binder, count, 1),
        grains: binder.stream_grains(count),
    }))
}

impl LayerKernel for Euclidean {
    fn stages(&self, sub: SubTask) -> Stages {
        if sub == SubTask::Forward { self.tally.stages() } else { Stages::one(self.grains) }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let Some(loss) = self.loss else { return };
        if grain.stage == 0 {
            return self.tally.leave(grain, |part| {
                // SAFETY: arrays that this task only reads.
                let [a, b] = self.sides.map(|side| unsafe { grain.memory.read(side.part(part.clone())) });
                let mut sum = 0.0;
                on(self.isa, SumOfPairs { a, b, f: |a, b| (a - b) * (a - b), to: &mut sum });
                [sum, 0.0]
            });
        }
        let [sum, _] = self.tally.total(grain);
        // SAFETY: the stage's only grain.
        (unsafe { grain.memory.write(loss) })[0] = sum as f32 / self.images / 2.0;
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let part = grain.share(self.sides[0].len());
        // SAFETY: arrays that this task only reads.
        let [a, b] = self.sides.map(|side| unsafe { grain.memory.read(side.part(part.clone())) });
        let scale = self.weight / self.images;
        for (gradient, scale) in self.gradients.into_iter().zip([scale, -scale]) {
            if let Some(gradient) = gradient {
                // SAFETY: grains have values of their own.
                let y = unsafe { grain.memory.write(gradient.part(part.clone())) };
                on(self.isa, Zip { a, b, y, f: |a, b| scale * (a - b) });
            }
        }
    }
}

struct CrossEntropy {
    isa: Isa,
    layer: SigmoidCrossEntropyLoss,
    shape: Shape,
    weight: f32,
    scores: Span,
    targets: Span,
    loss: Option<Span>,
    /// What forward divided the loss by.
    divisor: Span,
    scores_grad: Option<Span>,
    tally: Tally,
    grains: usize,
}

pub(super) fn sigmoid_cross_entropy(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::SigmoidCrossEntropyLoss(layer) = &binder.layer().layer else { return None };
    let layer = layer.clone();
    let scores = binder.span(Operand::Bottom(0))?;
    Some(Box::new(CrossEntropy {
        isa: binder.isa,
        layer,
        shape: binder.net.bottom_shapes(binder.id).swap_remove(0),
        weight: binder.layer().loss_weights.first().copied().unwrap_or(0.0),
        scores,
        targets: binder.span(Operand::Bottom(1))?,
        loss: binder.span(Operand::Top(0)),
        divisor: binder.span(Operand::Aux(0))?,
        scores_grad: binder.span(Operand::BottomGrad(0)),
        tally: Tally::new(binder, scores.len(), 1),
        grains: binder.stream_grains(scores.len()),
    }))
}

impl CrossEntropy {
    /// Whether a target is not ignored; its fraction is cut off, as by a C cast.
    #[inline(always)]
    fn counts(&self, target: f32) -> bool {
        self.layer.ignore_label.is_none_or(|ignored| f64::from(target.trunc()) != f64::from(ignored))
    }
}

/// `ln(1 + eˣ) − t · x`, by way of the exponential of what is not above 0.
fn cross_entropy(x: f32, target: f32) -> f32 {
    let above = if x >= 0.0 { 1.0 } else { 0.0 };
    -(x * (target - above) - (1.0 + (x - 2.0 * x * above).exp()).ln())
}

impl LayerKernel for CrossEntropy {
    fn stages(&self, sub: SubTask) -> Stages {
        if sub == SubTask::Forward { self.tally.stages() } else { Stages::one(self.grains) }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        if grain.stage == 0 {
            return self.tally.leave(grain, |part| {
                // SAFETY: arrays that this task only reads.
                let [x, targets] = [self.scores, self.targets]
                    .map(|array| unsafe { grain.memory.read(array.part(part.clone())) });
                let (mut sum, mut valid) = (0.0, 0.0);
                for (x, target) in x.iter().zip(targets) {
                    if self.counts(*target) {
                        sum += f64::from(cross_entropy(*x, *target));
                        valid += 1.0;
                    }
                }
                [sum, valid]
            });
        }
        let [sum, valid] = self.tally.total(grain);
        let divisor = self.layer.divisor(&self.shape, valid as usize);
        // SAFETY: the stage's only grain.
        (unsafe { grain.memory.write(self.divisor) })[0] = divisor;
        if let Some(loss) = self.loss {
            // SAFETY: as above.
            (unsafe { grain.memory.write(loss) })[0] = sum as f32 / divisor;
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(scores_grad) = self.scores_grad else { return };
        let part = grain.share(self.scores.len());
        // SAFETY: arrays that this task only reads.
        let [a, b, divisor] = unsafe {
            [
                grain.memory.read(self.scores.part(part.clone())),
                grain.memory.read(self.targets.part(part.clone())),
                grain.memory.read(self.divisor),
            ]
        };
        let scale = self.weight / divisor[0];
        let f = |x: f32, t: f32| if self.counts(t) { scale * (sigmoid(x) - t) } else { 0.0 };
        // SAFETY: grains have values of their own.
        let y = unsafe { grain.memory.write(scores_grad.part(part)) };
        on(self.isa, Zip { a, b, y, f });
    }
}
