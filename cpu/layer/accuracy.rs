//! Accuracy, by one thread: it is a count.

use quadrille_core::layer::{Accuracy, ClassView, Layer, Operand, SubTask};

use super::{Binder, Grain, LayerKernel};
use crate::memory::Span;

struct Rows {
    layer: Accuracy,
    view: ClassView,
    scores: Span,
    labels: Span,
    accuracy: Span,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Accuracy(layer) = &binder.layer().layer else { return None };
    Some(Box::new(Rows {
        layer: layer.clone(),
        view: ClassView::new(&binder.net.bottom_shapes(binder.id)[0], layer.axis, "axis").ok()?,
        scores: binder.span(Operand::Bottom(0))?,
        labels: binder.span(Operand::Bottom(1))?,
        accuracy: binder.span(Operand::Top(0))?,
    }))
}

impl LayerKernel for Rows {
    fn grains(&self, _: SubTask) -> usize {
        1
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        // SAFETY: the task's only grain.
        let (scores, labels, accuracy) = unsafe {
            (
                grain.memory.read(self.scores),
                grain.memory.read(self.labels),
                grain.memory.write(self.accuracy),
            )
        };
        let ClassView { classes, inner, .. } = self.view;
        let (mut right, mut counted) = (0usize, 0usize);
        for (at, label) in labels.iter().enumerate() {
            if self.layer.ignore_label.is_some_and(|ignored| *label == ignored as f32) {
                continue;
            }
            counted += 1;
            if !(*label >= 0.0 && *label < classes as f32) {
                continue;
            }
            let row = &scores[at / inner * classes * inner..];
            let score = |class: usize| row[class * inner + at % inner];
            let truth = *label as usize;
            // The true class itself is one of those at least as good.
            let as_good = (0..classes).filter(|c| score(*c) >= score(truth)).count();
            right += usize::from(as_good >= 1 && as_good <= self.layer.top_k);
        }
        accuracy[0] = if counted == 0 { 0.0 } else { right as f32 / counted as f32 };
    }
}
