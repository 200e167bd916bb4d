//! Infogain loss of a softmax, row by row.

use std::ops::Range;
use std::sync::Arc;

use quadrille_core::layer::{ClassView, InfogainLoss, Layer, Operand, SubTask};

use super::softmax::softmax;
use super::softmax_loss::Truth;
use super::tally::Tally;
use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

/// The matrix: the layer's own, or a bottom.
enum Matrix {
    Own(Arc<[f32]>),
    Bottom(Span),
}

struct Rows {
    layer: InfogainLoss,
    view: ClassView,
    weight: f32,
    matrix: Matrix,
    scores: Span,
    labels: Span,
    probabilities: Span,
    loss: Option<Span>,
    top_probabilities: Option<Span>,
    scores_grad: Option<Span>,
    tally: Tally,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::InfogainLoss(layer) = &binder.layer().layer else { return None };
    let layer = layer.clone();
    let view = ClassView::new(&binder.net.bottom_shapes(binder.id)[0], layer.axis, "axis").ok()?;
    let scores = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Rows {
        matrix: match &layer.matrix {
            Some(matrix) => Matrix::Own(matrix.clone()),
            None => Matrix::Bottom(binder.span(Operand::Bottom(2))?),
        },
        layer,
        view,
        weight: binder.layer().loss_weights.first().copied().unwrap_or(0.0),
        scores,
        labels: binder.span(Operand::Bottom(1))?,
        probabilities: binder.span(Operand::Aux(0))?,
        loss: binder.span(Operand::Top(0)),
        top_probabilities: binder.span(Operand::Top(1)),
        scores_grad: binder.span(Operand::BottomGrad(0)),
        tally: Tally::new(binder, view.outer, view.classes * view.inner),
        grains: binder.stream_grains(scores.len()).min(view.outer),
    }))
}

impl Rows {
    fn row(&self, n: usize) -> Range<usize> {
        let len = self.view.classes * self.view.inner;
        n * len..(n + 1) * len
    }

    fn truth(&self, label: f32) -> Truth {
        Truth::of(label, self.layer.ignore_label, self.view.classes)
    }

    /// The labels of a row.
    fn labels<'a>(&self, grain: &Grain<'a>, n: usize) -> &'a [f32] {
        // SAFETY: only read in this task.
        unsafe { grain.memory.read(self.labels.part(n * self.view.inner..(n + 1) * self.view.inner)) }
    }

    /// The row of the matrix for a class.
    fn gains<'a>(&'a self, grain: &Grain<'a>, class: usize) -> &'a [f32] {
        let row = class * self.view.classes..(class + 1) * self.view.classes;
        match &self.matrix {
            Matrix::Own(matrix) => &matrix[row],
            // SAFETY: only read in this task.
            Matrix::Bottom(span) => unsafe { grain.memory.read(span.part(row)) },
        }
    }

    /// Probabilities of a row, and its losses with the number of labels that count.
    fn predict(&self, grain: &Grain<'_>, n: usize) -> [f64; 2] {
        // SAFETY: grains have rows of their own.
        let (x, p) = unsafe {
            (
                grain.memory.read(self.scores.part(self.row(n))),
                grain.memory.write(self.probabilities.part(self.row(n))),
            )
        };
        softmax(&self.view, x, p);
        if let Some(copy) = self.top_probabilities {
            // SAFETY: as above.
            unsafe { grain.memory.write(copy.part(self.row(n))) }.copy_from_slice(p);
        }
        let (mut sum, mut valid) = (0.0, 0.0);
        for (i, label) in self.labels(grain, n).iter().enumerate() {
            match self.truth(*label) {
                Truth::Ignored => continue,
                Truth::Class(class) => {
                    for (k, gain) in self.gains(grain, class).iter().enumerate() {
                        let p = p[k * self.view.inner + i];
                        // Not `f32::max`, which would hide a NaN.
                        let p = if p < InfogainLoss::LEAST { InfogainLoss::LEAST } else { p };
                        sum -= f64::from(gain * p.ln());
                    }
                }
                Truth::Nonsense => sum += f64::NAN,
            }
            valid += 1.0;
        }
        [sum, valid]
    }

    /// What the loss is divided by.
    fn divisor(&self, grain: &Grain<'_>) -> f32 {
        // SAFETY: only read in this task.
        let labels = unsafe { grain.memory.read(self.labels) };
        let valid = labels.iter().filter(|label| self.truth(**label) != Truth::Ignored).count();
        self.layer.divisor(&self.view, valid)
    }
}

impl LayerKernel for Rows {
    fn stages(&self, sub: SubTask) -> Stages {
        if sub == SubTask::Forward { self.tally.stages() } else { Stages::one(self.grains) }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        if grain.stage == 0 {
            return self.tally.leave(grain, |rows| {
                let mut sums = [0.0; 2];
                for n in rows {
                    let row = self.predict(grain, n);
                    (0..2).for_each(|i| sums[i] += row[i]);
                }
                sums
            });
        }
        let [sum, valid] = self.tally.total(grain);
        if let Some(loss) = self.loss {
            // SAFETY: the stage's only grain.
            (unsafe { grain.memory.write(loss) })[0] =
                sum as f32 / self.layer.divisor(&self.view, valid as usize);
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(scores_grad) = self.scores_grad else { return };
        let scale = self.weight / self.divisor(grain);
        let inner = self.view.inner;
        for n in grain.share(self.view.outer) {
            // SAFETY: grains have rows of their own.
            let (dx, p) = unsafe {
                (
                    grain.memory.write(scores_grad.part(self.row(n))),
                    grain.memory.read(self.probabilities.part(self.row(n))),
                )
            };
            for (i, label) in self.labels(grain, n).iter().enumerate() {
                let column = (0..self.view.classes).map(|k| k * inner + i);
                match self.truth(*label) {
                    Truth::Ignored => column.for_each(|at| dx[at] = 0.0),
                    Truth::Class(class) => {
                        let gains = self.gains(grain, class);
                        let sum: f64 = gains.iter().map(|gain| f64::from(*gain)).sum();
                        let sum = sum as f32;
                        column.zip(gains).for_each(|(at, gain)| dx[at] = scale * (p[at] * sum - gain));
                    }
                    Truth::Nonsense => column.for_each(|at| dx[at] = f32::NAN),
                }
            }
        }
    }
}
