//! Multinomial logistic loss of a softmax: `L = −Σ ln max(p[label], FLT_MIN) / divisor`, and its gradient
//! `dx_i = loss_weight / divisor · (p_i − [i = label])`, which takes no notice of the floor.
//!
//! Caffe aborts on a label that names no class, or does not look. Here such a label makes the loss NaN, and the
//! gradient of its own prediction, so that it is seen and spreads no further.

use super::softmax::{predictions, probabilities, view_of};
use super::{Arrays, Context, Real};
use crate::layer::{ClassView, Operand, SoftmaxWithLoss, SubTask};

pub(super) fn compute<T: Real>(layer: &SoftmaxWithLoss, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let view = view_of(&ctx.bottoms[0], layer.axis);
    match sub {
        SubTask::Forward => {
            let p = probabilities(&view, arrays.get(Operand::Bottom(0)));
            let loss = loss(layer, &view, &p, arrays.get(Operand::Bottom(1)));
            if !ctx.tops.is_empty() {
                arrays.insert(Operand::Top(0), vec![loss]);
            }
            if ctx.tops.len() > 1 {
                arrays.insert(Operand::Top(1), p.clone());
            }
            arrays.insert(Operand::Aux(0), p);
        }
        SubTask::GradActivation => {
            let (p, labels) = (arrays.get(Operand::Aux(0)), arrays.get(Operand::Bottom(1)));
            let weight = T::from_f32(ctx.loss_weights[0]);
            let dx = grad_activation(layer, &view, weight, p, labels);
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

/// What a label says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    /// This prediction does not count.
    Ignored,
    /// The class.
    Class(usize),
    /// No class that exists.
    Nonsense,
}

/// Reads a label; a fraction is cut off, as by a C cast.
pub(super) fn truth<T: Real>(label: T, ignore_label: Option<i32>, classes: usize) -> Truth {
    let label = label.to_f64().trunc();
    if ignore_label.is_some_and(|ignored| label == f64::from(ignored)) {
        Truth::Ignored
    } else if label >= 0.0 && label < classes as f64 {
        Truth::Class(label as usize)
    } else {
        Truth::Nonsense
    }
}

/// The divisor for these labels; a label that names no class counts.
fn divisor<T: Real>(layer: &SoftmaxWithLoss, view: &ClassView, labels: &[T]) -> T {
    let counts = |label: &&T| truth(**label, layer.ignore_label, view.classes) != Truth::Ignored;
    T::from_f32(layer.divisor(view, labels.iter().filter(counts).count()))
}

/// p (outer, classes, inner), labels (outer, inner) → L.
fn loss<T: Real>(layer: &SoftmaxWithLoss, view: &ClassView, p: &[T], labels: &[T]) -> T {
    let floor = T::from_f32(f32::MIN_POSITIVE);
    let mut sum = T::ZERO;
    for (classes, &label) in predictions(view).zip(labels) {
        match truth(label, layer.ignore_label, view.classes) {
            Truth::Ignored => {}
            Truth::Class(k) => sum += -p[classes[k]].larger(floor).ln(),
            Truth::Nonsense => sum += T::NAN,
        }
    }
    sum / divisor(layer, view, labels)
}

/// p (outer, classes, inner), labels (outer, inner) → dx (outer, classes, inner).
fn grad_activation<T: Real>(
    layer: &SoftmaxWithLoss,
    view: &ClassView,
    loss_weight: T,
    p: &[T],
    labels: &[T],
) -> Vec<T> {
    let scale = loss_weight / divisor(layer, view, labels);
    let mut dx = vec![T::ZERO; p.len()];
    for (classes, &label) in predictions(view).zip(labels) {
        let truth = truth(label, layer.ignore_label, view.classes);
        for (k, &i) in classes.iter().enumerate() {
            dx[i] = match truth {
                Truth::Ignored => T::ZERO,
                Truth::Class(class) if class == k => scale * (p[i] - T::ONE),
                Truth::Class(_) => scale * p[i],
                Truth::Nonsense => T::NAN,
            };
        }
    }
    dx
}
