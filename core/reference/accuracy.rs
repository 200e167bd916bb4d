//! Share of predictions for which fewer than `top_k` other classes have a score as high as the true one; 0 if every
//! label is ignored, NaN if a label names no class (Caffe aborts or does not look). A second top has the share of each
//! class: of the predictions whose label names it, and 0 if there is none.

use super::softmax::{predictions, view_of};
use super::softmax_loss::{Truth, truth};
use super::{Arrays, Context, Real};
use crate::layer::{Accuracy, ClassView, Operand, SubTask};

/// No class.
const IGNORED: f32 = -1.0;

pub(super) fn compute<T: Real>(layer: &Accuracy, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    if sub == SubTask::Forward {
        let view = view_of(&ctx.bottoms[0], layer.axis);
        let (scores, labels) = (arrays.get(Operand::Bottom(0)), arrays.get(Operand::Bottom(1)));
        let share = accuracy(layer, &view, scores, labels);
        let by_class = (0..view.classes).map(|class| {
            // What remains when every other label is ignored.
            let own = labels.iter().map(|label| match truth(*label, layer.ignore_label, view.classes) {
                Truth::Class(named) if named == class => *label,
                _ => T::from_f32(IGNORED),
            });
            let layer = Accuracy { ignore_label: Some(IGNORED as i32), ..layer.clone() };
            accuracy(&layer, &view, scores, &own.collect::<Vec<T>>())
        });
        if ctx.tops.len() > 1 {
            let by_class = by_class.collect();
            arrays.insert(Operand::Top(1), by_class);
        }
        arrays.insert(Operand::Top(0), vec![share]);
    }
}

/// Scores (outer, classes, inner), labels (outer, inner) → share of right predictions.
fn accuracy<T: Real>(layer: &Accuracy, view: &ClassView, scores: &[T], labels: &[T]) -> T {
    let (mut right, mut counted) = (T::ZERO, 0);
    for (classes, &label) in predictions(view).zip(labels) {
        match truth(label, layer.ignore_label, view.classes) {
            Truth::Ignored => continue,
            Truth::Nonsense => right += T::NAN,
            Truth::Class(class) => {
                let of_truth = scores[classes[class]];
                // "Not lower" and not "at least as high", so that NaN is never right. (Caffe counts classes that are
                // at least as high, and so calls every prediction right once the scores are NaN: a defect.)
                let not_lower = |&(k, &i): &(usize, &usize)| {
                    k != class && scores[i].partial_cmp(&of_truth) != Some(std::cmp::Ordering::Less)
                };
                if classes.iter().enumerate().filter(not_lower).count() < layer.top_k {
                    right += T::ONE;
                }
            }
        }
        counted += 1;
    }
    if counted == 0 { T::ZERO } else { right / T::from_usize(counted) }
}
