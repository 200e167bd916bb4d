//! Losses of a label for each image that need no softmax: hinge losses, and the logarithm of a given probability.

use std::ops::Range;

use quadrille_core::layer::{ClassView, HingeNorm, Layer, MultinomialLogisticLoss, Operand, SubTask};

use super::softmax_loss::Truth;
use super::tally::Tally;
use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

/// What is made of an image's scores.
#[derive(Clone, Copy)]
enum Rule {
    Hinge(HingeNorm),
    Logarithm,
}

struct Images {
    rule: Rule,
    view: ClassView,
    weight: f32,
    scores: Span,
    labels: Span,
    loss: Option<Span>,
    scores_grad: Option<Span>,
    tally: Tally,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let rule = match &binder.layer().layer {
        Layer::HingeLoss(layer) => Rule::Hinge(layer.norm),
        Layer::MultinomialLogisticLoss(_) => Rule::Logarithm,
        _ => return None,
    };
    let view = ClassView::of_images(&binder.net.bottom_shapes(binder.id)[0]);
    let scores = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Images {
        rule,
        view,
        weight: binder.layer().loss_weights.first().copied().unwrap_or(0.0),
        scores,
        labels: binder.span(Operand::Bottom(1))?,
        loss: binder.span(Operand::Top(0)),
        scores_grad: binder.span(Operand::BottomGrad(0)),
        tally: Tally::new(binder, view.outer, view.classes),
        grains: binder.stream_grains(scores.len()).min(view.outer),
    }))
}

/// The side of a class, and what is missing of its margin.
fn margin(x: f32, is_own: bool) -> (f32, f32) {
    let side = if is_own { 1.0 } else { -1.0 };
    let missing = 1.0 - side * x;
    // As in C++: what is not a number is not above 0.
    (side, if 0.0 < missing { missing } else { 0.0 })
}

/// A probability, or the least that counts. Not `f32::max`, which would hide a NaN.
fn floored(p: f32) -> f32 {
    if p < MultinomialLogisticLoss::LEAST { MultinomialLogisticLoss::LEAST } else { p }
}

impl Images {
    fn row(&self, image: usize) -> Range<usize> {
        image * self.view.classes..(image + 1) * self.view.classes
    }

    /// Scores and label of an image.
    fn image<'a>(&self, grain: &Grain<'a>, image: usize) -> (&'a [f32], Truth) {
        // SAFETY: arrays that this task only reads.
        let (x, label) = unsafe {
            (
                grain.memory.read(self.scores.part(self.row(image))),
                grain.memory.read(self.labels.part(image..image + 1))[0],
            )
        };
        (x, Truth::of(label, None, self.view.classes))
    }

    fn loss(&self, (x, truth): (&[f32], Truth)) -> f64 {
        let Truth::Class(own) = truth else { return f64::NAN };
        let missing = || x.iter().enumerate().map(|(k, x)| margin(*x, k == own).1);
        match self.rule {
            Rule::Hinge(HingeNorm::L1) => missing().map(f64::from).sum(),
            Rule::Hinge(HingeNorm::L2) => missing().map(|m| f64::from(m * m)).sum(),
            Rule::Logarithm => f64::from(-floored(x[own]).ln()),
        }
    }

    fn gradient(&self, (x, truth): (&[f32], Truth), dx: &mut [f32]) {
        let Truth::Class(own) = truth else { return dx.fill(f32::NAN) };
        let weight = self.weight / self.view.outer as f32;
        match self.rule {
            Rule::Hinge(norm) => {
                for (k, (dx, x)) in dx.iter_mut().zip(x).enumerate() {
                    let (side, missing) = margin(*x, k == own);
                    *dx = match norm {
                        HingeNorm::L1 => -side * weight * if missing > 0.0 { 1.0 } else { 0.0 },
                        HingeNorm::L2 => -side * weight * 2.0 * missing,
                    };
                }
            }
            Rule::Logarithm => {
                dx.fill(0.0);
                dx[own] = -weight / floored(x[own]);
            }
        }
    }
}

impl LayerKernel for Images {
    fn stages(&self, sub: SubTask) -> Stages {
        if sub == SubTask::Forward { self.tally.stages() } else { Stages::one(self.grains) }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let Some(loss) = self.loss else { return };
        if grain.stage == 0 {
            return self
                .tally
                .leave(grain, |images| [images.map(|image| self.loss(self.image(grain, image))).sum(), 0.0]);
        }
        let [sum, _] = self.tally.total(grain);
        // SAFETY: the stage's only grain.
        (unsafe { grain.memory.write(loss) })[0] = sum as f32 / self.view.outer as f32;
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(scores_grad) = self.scores_grad else { return };
        for image in grain.share(self.view.outer) {
            // SAFETY: grains have images of their own.
            let dx = unsafe { grain.memory.write(scores_grad.part(self.row(image))) };
            self.gradient(self.image(grain, image), dx);
        }
    }
}
