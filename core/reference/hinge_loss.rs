//! Hinge loss: with `m = max(0, 1 − s · x)`, where `s` is 1 for an image's own class and −1 for others, `L = Σ m / N` or
//! `Σ m² / N`; `dx = −s · loss_weight / N` where `m` is above 0, times `2 m` in the second.
//!
//! A label that names no class makes the loss NaN, and the gradient of its own image.

use super::softmax_loss::{Truth, truth};
use super::{Arrays, Context, Real};
use crate::layer::{ClassView, HingeLoss, HingeNorm, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &HingeLoss, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let view = ClassView::of_images(&ctx.bottoms[0]);
    let images = T::from_usize(view.outer);
    let (x, labels) = (arrays.get(Operand::Bottom(0)), arrays.get(Operand::Bottom(1)));
    // Side and margin of each score; neither of an image with a label of no class.
    let pairs = x.chunks(view.classes).zip(labels).flat_map(|(x, label)| {
        let truth = truth(*label, None, view.classes);
        x.iter().enumerate().map(move |(k, x)| match truth {
            Truth::Class(class) => {
                let side = if class == k { T::ONE } else { -T::ONE };
                (side, T::ZERO.larger(T::ONE + -side * *x))
            }
            _ => (T::NAN, T::NAN),
        })
    });
    match sub {
        SubTask::Forward if !ctx.tops.is_empty() => {
            let mut sum = T::ZERO;
            for (_, margin) in pairs {
                sum += match layer.norm {
                    HingeNorm::L1 => margin,
                    HingeNorm::L2 => margin * margin,
                };
            }
            arrays.insert(Operand::Top(0), vec![sum / images]);
        }
        SubTask::GradActivation => {
            let weight = T::from_f32(ctx.loss_weights[0]) / images;
            let slope = |(side, margin): (T, T)| match layer.norm {
                // NaN has no sign.
                HingeNorm::L1 => -side * weight * margin.sign(),
                HingeNorm::L2 => -side * weight * (T::ONE + T::ONE) * margin,
            };
            let dx = pairs.map(slope).collect();
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}
