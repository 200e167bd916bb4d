//! Contrastive loss, pair by pair. Pairs are few beside what makes their features: one thread adds up the loss.

use quadrille_core::layer::{ContrastiveLoss, Layer, Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Pairs {
    layer: ContrastiveLoss,
    pairs: usize,
    channels: usize,
    weight: f32,
    features: [Span; 2],
    similar: Span,
    loss: Option<Span>,
    gradients: [Option<Span>; 2],
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let net_layer = binder.layer();
    let Layer::ContrastiveLoss(layer) = &net_layer.layer else { return None };
    let shape = &binder.net.bottom_shapes(binder.id)[0];
    let features = [binder.span(Operand::Bottom(0))?, binder.span(Operand::Bottom(1))?];
    Some(Box::new(Pairs {
        layer: layer.clone(),
        pairs: shape.images(),
        channels: shape.per_image(),
        weight: net_layer.loss_weights.first().copied().unwrap_or(0.0),
        features,
        similar: binder.span(Operand::Bottom(2))?,
        loss: binder.span(Operand::Top(0)),
        gradients: [0, 1].map(|i| binder.span(Operand::BottomGrad(i))),
        grains: binder.stream_grains(features[0].len()).min(shape.images()),
    }))
}

/// What a pair is and how far apart it is.
struct Pair<'a> {
    a: &'a [f32],
    b: &'a [f32],
    is_similar: bool,
    square: f32,
}

impl Pairs {
    fn row(&self, pair: usize) -> std::ops::Range<usize> {
        pair * self.channels..(pair + 1) * self.channels
    }

    fn pair<'a>(&self, grain: &Grain<'a>, pair: usize) -> Pair<'a> {
        // SAFETY: only read in this task.
        let ([a, b], similar) = unsafe {
            (
                self.features.map(|span| grain.memory.read(span.part(self.row(pair)))),
                grain.memory.read(self.similar.part(pair..pair + 1))[0],
            )
        };
        let mut square = 0.0;
        for (a, b) in a.iter().zip(b) {
            square += (a - b) * (a - b);
        }
        // A fraction is cut off, as by a C cast.
        Pair { a, b, is_similar: similar.trunc() != 0.0, square }
    }

    /// What is missing of a pair's margin.
    fn missing(&self, pair: &Pair<'_>) -> f32 {
        self.layer.margin - if self.layer.legacy_version { pair.square } else { pair.square.sqrt() }
    }

    fn loss(&self, pair: &Pair<'_>) -> f32 {
        if pair.is_similar {
            return pair.square;
        }
        let missing = self.missing(pair);
        // Not `f32::max`, which would hide a NaN.
        let missing = if missing < 0.0 { 0.0 } else { missing };
        if self.layer.legacy_version { missing } else { missing * missing }
    }

    /// What a − b is multiplied by in the gradient of a.
    fn factor(&self, pair: &Pair<'_>, weight: f32) -> f32 {
        let missing = self.missing(pair);
        if pair.is_similar {
            weight
        } else if missing <= 0.0 {
            0.0
        } else if self.layer.legacy_version {
            -weight
        } else {
            -weight * missing / (pair.square.sqrt() + 1e-4)
        }
    }
}

impl LayerKernel for Pairs {
    fn stages(&self, sub: SubTask) -> Stages {
        Stages::one(if sub == SubTask::Forward { 1 } else { self.grains })
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let Some(loss) = self.loss else { return };
        let mut sum = 0.0;
        for pair in 0..self.pairs {
            sum += self.loss(&self.pair(grain, pair));
        }
        // SAFETY: the task's only grain; the loss is another array than the features.
        let loss = unsafe { grain.memory.write(loss) };
        loss[0] = sum / self.pairs as f32 / 2.0;
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let weight = self.weight / self.pairs as f32;
        for at in grain.share(self.pairs) {
            let pair = self.pair(grain, at);
            let factor = self.factor(&pair, weight);
            for (gradient, sign) in self.gradients.into_iter().zip([1.0, -1.0]) {
                let Some(gradient) = gradient else { continue };
                // SAFETY: grains have pairs of their own; features and their gradients are different arrays.
                let gradient = unsafe { grain.memory.write(gradient.part(self.row(at))) };
                for ((value, a), b) in gradient.iter_mut().zip(pair.a).zip(pair.b) {
                    *value = sign * (factor * (a - b));
                }
            }
        }
    }
}
