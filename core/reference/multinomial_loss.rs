//! Multinomial logistic loss: `L = −Σ ln max(p[label], 1e-20) / N`, `dp[label] = −loss_weight / (N · max(p[label], 1e-20))`,
//! and 0 for the other classes.
//!
//! A label that names no class makes the loss NaN, and the gradient of its own image.

use super::softmax_loss::{Truth, truth};
use super::{Arrays, Context, Real};
use crate::layer::{ClassView, MultinomialLogisticLoss, Operand, SubTask};

pub(super) fn compute<T: Real>(ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let view = ClassView::of_images(&ctx.bottoms[0]);
    let images = T::from_usize(view.outer);
    let least = T::from_f32(MultinomialLogisticLoss::LEAST);
    let (p, labels) = (arrays.get(Operand::Bottom(0)), arrays.get(Operand::Bottom(1)));
    let truths = labels.iter().map(|label| truth(*label, None, view.classes));
    match sub {
        SubTask::Forward if !ctx.tops.is_empty() => {
            let mut sum = T::ZERO;
            for (p, truth) in p.chunks(view.classes).zip(truths) {
                sum += match truth {
                    Truth::Class(class) => -p[class].larger(least).ln(),
                    _ => T::NAN,
                };
            }
            arrays.insert(Operand::Top(0), vec![sum / images]);
        }
        SubTask::GradActivation => {
            let scale = -T::from_f32(ctx.loss_weights[0]) / images;
            let mut dp = vec![T::ZERO; p.len()];
            for ((dp, p), truth) in dp.chunks_mut(view.classes).zip(p.chunks(view.classes)).zip(truths) {
                match truth {
                    Truth::Class(class) => dp[class] = scale / p[class].larger(least),
                    _ => dp.fill(T::NAN),
                }
            }
            arrays.insert(Operand::BottomGrad(0), dp);
        }
        _ => {}
    }
}
