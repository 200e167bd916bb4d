//! Infogain loss of a softmax: `L = −Σ_n Σ_k H[label_n, k] · ln max(p_nk, 1e-20) / divisor`, and its gradient
//! `dx_k = loss_weight / divisor · (p_k · Σ_j H[label, j] − H[label, k])`, which takes no notice of the floor.
//!
//! A label that names no class makes the loss NaN, and the gradient of its own prediction.

use super::softmax::{predictions, probabilities, view_of};
use super::softmax_loss::{Truth, truth};
use super::{Arrays, Context, Real};
use crate::layer::{InfogainLoss, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &InfogainLoss, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let view = view_of(&ctx.bottoms[0], layer.axis);
    let matrix = match &layer.matrix {
        Some(matrix) => matrix.iter().map(|value| T::from_f32(*value)).collect(),
        None => arrays.get(Operand::Bottom(2)).to_vec(),
    };
    let row = |class: usize| &matrix[class * view.classes..(class + 1) * view.classes];
    let labels = arrays.get(Operand::Bottom(1));
    let truths: Vec<Truth> =
        labels.iter().map(|label| truth(*label, layer.ignore_label, view.classes)).collect();
    let valid = truths.iter().filter(|truth| **truth != Truth::Ignored).count();
    let divisor = T::from_f32(layer.divisor(&view, valid));
    match sub {
        SubTask::Forward => {
            let p = probabilities(&view, arrays.get(Operand::Bottom(0)));
            let mut sum = T::ZERO;
            for (classes, truth) in predictions(&view).zip(&truths) {
                match *truth {
                    Truth::Ignored => {}
                    Truth::Class(label) => classes.iter().zip(row(label)).for_each(|(&i, h)| {
                        sum += -(*h * p[i].larger(T::from_f32(InfogainLoss::LEAST)).ln());
                    }),
                    Truth::Nonsense => sum += T::NAN,
                }
            }
            if !ctx.tops.is_empty() {
                arrays.insert(Operand::Top(0), vec![sum / divisor]);
            }
            if ctx.tops.len() > 1 {
                arrays.insert(Operand::Top(1), p.clone());
            }
            arrays.insert(Operand::Aux(0), p);
        }
        SubTask::GradActivation => {
            let p = arrays.get(Operand::Aux(0));
            let scale = T::from_f32(ctx.loss_weights[0]) / divisor;
            let mut dx = vec![T::ZERO; p.len()];
            for (classes, truth) in predictions(&view).zip(&truths) {
                match *truth {
                    Truth::Ignored => {}
                    Truth::Class(label) => {
                        let mut sum = T::ZERO;
                        row(label).iter().for_each(|h| sum += *h);
                        classes.iter().zip(row(label)).for_each(|(&i, h)| dx[i] = scale * (p[i] * sum - *h));
                    }
                    Truth::Nonsense => classes.iter().for_each(|&i| dx[i] = T::NAN),
                }
            }
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}
