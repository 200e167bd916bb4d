//! Softmax and its loss. The probabilities are computed by rows; the loss is added up by one thread, in order.

use quadrille_core::layer::{ClassView, Layer, Operand, SoftmaxWithLoss, SubTask};

use super::softmax::softmax;
use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Rows {
    layer: SoftmaxWithLoss,
    view: ClassView,
    weight: f32,
    scores: Span,
    labels: Span,
    probabilities: Span,
    loss: Span,
    top_probabilities: Option<Span>,
    scores_grad: Option<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let net_layer = binder.layer();
    let Layer::SoftmaxWithLoss(layer) = &net_layer.layer else { return None };
    let view = ClassView::new(&binder.net.bottom_shapes(binder.id)[0], layer.axis, "axis").ok()?;
    let scores = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Rows {
        layer: layer.clone(),
        view,
        weight: net_layer.loss_weights.first().copied().unwrap_or(0.0),
        scores,
        labels: binder.span(Operand::Bottom(1))?,
        probabilities: binder.span(Operand::Aux(0))?,
        loss: binder.span(Operand::Top(0))?,
        top_probabilities: binder.span(Operand::Top(1)),
        scores_grad: binder.span(Operand::BottomGrad(0)),
        grains: binder.stream_grains(scores.len()).min(view.outer),
    }))
}

/// What a label says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Truth {
    /// This prediction does not count.
    Ignored,
    /// The class.
    Class(usize),
    /// No class that exists.
    Nonsense,
}

impl Truth {
    /// Reads a label; a fraction is cut off, as by a C cast.
    pub fn of(label: f32, ignore_label: Option<i32>, classes: usize) -> Self {
        let label = label.trunc();
        if ignore_label.is_some_and(|ignored| f64::from(label) == f64::from(ignored)) {
            Self::Ignored
        } else if label >= 0.0 && f64::from(label) < classes as f64 {
            Self::Class(label as usize)
        } else {
            Self::Nonsense
        }
    }
}

impl Rows {
    fn row(&self, n: usize) -> std::ops::Range<usize> {
        let len = self.view.classes * self.view.inner;
        n * len..(n + 1) * len
    }

    fn truth(&self, label: f32) -> Truth {
        Truth::of(label, self.layer.ignore_label, self.view.classes)
    }

    /// What the loss is divided by.
    fn divisor(&self, labels: &[f32]) -> f32 {
        let valid = labels.iter().filter(|l| self.truth(**l) != Truth::Ignored).count();
        self.layer.divisor(&self.view, valid)
    }

    /// The loss: `−Σ log max(p, smallest positive) / divisor`. A label that names no class gives NaN.
    fn add_up(&self, grain: &Grain<'_>) {
        let memory = grain.memory;
        // SAFETY: the stage's only grain.
        let (labels, p, loss, copy) = unsafe {
            (
                memory.read(self.labels),
                memory.read(self.probabilities),
                memory.write(self.loss),
                self.top_probabilities.map(|t| memory.write(t)),
            )
        };
        // As wide as a mini-batch of large images needs, each of whose pixels has a label.
        let mut sum = 0.0f64;
        for (at, label) in labels.iter().enumerate() {
            let (n, i) = (at / self.view.inner, at % self.view.inner);
            match self.truth(*label) {
                Truth::Ignored => {}
                Truth::Class(class) => {
                    let p = p[self.row(n)][class * self.view.inner + i];
                    // Not `f32::max`, which would hide a NaN: a net that has diverged must be seen to have.
                    sum -= f64::from((if p < f32::MIN_POSITIVE { f32::MIN_POSITIVE } else { p }).ln());
                }
                Truth::Nonsense => sum += f64::NAN,
            }
        }
        loss[0] = (sum / f64::from(self.divisor(labels))) as f32;
        if let Some(copy) = copy {
            copy.copy_from_slice(p);
        }
    }
}

impl LayerKernel for Rows {
    fn stages(&self, sub: SubTask) -> Stages {
        let rows = Stages::one(self.grains);
        if sub == SubTask::Forward { rows.then(1) } else { rows }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        if grain.stage == 1 {
            return self.add_up(grain);
        }
        for n in grain.share(self.view.outer) {
            // SAFETY: grains have rows of their own.
            let (x, p) = unsafe {
                (
                    grain.memory.read(self.scores.part(self.row(n))),
                    grain.memory.write(self.probabilities.part(self.row(n))),
                )
            };
            softmax(&self.view, x, p);
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(scores_grad) = self.scores_grad else { return };
        // SAFETY: only read in this task.
        let labels = unsafe { grain.memory.read(self.labels) };
        let scale = self.weight / self.divisor(labels);
        for n in grain.share(self.view.outer) {
            // SAFETY: grains have rows of their own.
            let (dx, p) = unsafe {
                (
                    grain.memory.write(scores_grad.part(self.row(n))),
                    grain.memory.read(self.probabilities.part(self.row(n))),
                )
            };
            dx.copy_from_slice(p);
            for (i, label) in labels[n * self.view.inner..(n + 1) * self.view.inner].iter().enumerate() {
                let entry = |class: usize| class * self.view.inner + i;
                match self.truth(*label) {
                    Truth::Ignored => (0..self.view.classes).for_each(|c| dx[entry(c)] = 0.0),
                    Truth::Class(class) => dx[entry(class)] -= 1.0,
                    Truth::Nonsense => (0..self.view.classes).for_each(|c| dx[entry(c)] = f32::NAN),
                }
            }
            dx.iter_mut().for_each(|v| *v *= scale);
        }
    }
}
