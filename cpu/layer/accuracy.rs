//! Accuracy, by one thread: it is a count.

use quadrille_core::layer::{Accuracy, ClassView, Layer, Operand, SubTask};

use super::softmax_loss::Truth;
use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Rows {
    layer: Accuracy,
    view: ClassView,
    scores: Span,
    labels: Span,
    accuracy: Span,
    by_class: Option<Span>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Accuracy(layer) = &binder.layer().layer else { return None };
    Some(Box::new(Rows {
        layer: layer.clone(),
        view: ClassView::new(&binder.net.bottom_shapes(binder.id)[0], layer.axis, "axis").ok()?,
        scores: binder.span(Operand::Bottom(0))?,
        labels: binder.span(Operand::Bottom(1))?,
        accuracy: binder.span(Operand::Top(0))?,
        by_class: (binder.layer().tops.len() > 1).then(|| binder.span(Operand::Top(1))).flatten(),
    }))
}

impl Rows {
    /// Right predictions and predictions that count, of those whose label `wanted` asks for.
    fn count(&self, scores: &[f32], labels: &[f32], wanted: impl Fn(Truth) -> bool) -> (f64, usize) {
        let ClassView { classes, inner, .. } = self.view;
        let (mut right, mut counted) = (0.0f64, 0usize);
        for (at, label) in labels.iter().enumerate() {
            let truth = Truth::of(*label, self.layer.ignore_label, classes);
            match truth {
                _ if !wanted(truth) => continue,
                Truth::Ignored => continue,
                Truth::Nonsense => right += f64::NAN,
                Truth::Class(truth) => {
                    let row = &scores[at / inner * classes * inner..];
                    let score = |class: usize| row[class * inner + at % inner];
                    // "Not lower" and not "at least as high", so that NaN is never right.
                    let lower = |class: usize| score(class) < score(truth);
                    let rivals = (0..classes).filter(|c| *c != truth && !lower(*c)).count();
                    right += if rivals < self.layer.top_k { 1.0 } else { 0.0 };
                }
            }
            counted += 1;
        }
        (right, counted)
    }
}

fn share((right, counted): (f64, usize)) -> f32 {
    if counted == 0 { 0.0 } else { (right / counted as f64) as f32 }
}

impl LayerKernel for Rows {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(1)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        // SAFETY: the task's only grain; bottoms and tops are different arrays.
        let (scores, labels, accuracy) = unsafe {
            (
                grain.memory.read(self.scores),
                grain.memory.read(self.labels),
                grain.memory.write(self.accuracy),
            )
        };
        accuracy[0] = share(self.count(scores, labels, |_| true));
        if let Some(by_class) = self.by_class {
            // SAFETY: as above.
            let by_class = unsafe { grain.memory.write(by_class) };
            for (class, own) in by_class.iter_mut().enumerate() {
                *own = share(self.count(scores, labels, |truth| truth == Truth::Class(class)));
            }
        }
    }
}
