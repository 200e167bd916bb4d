//! Softmax, one outer row at a time.

use quadrille_core::layer::{ClassView, Layer, Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Rows {
    view: ClassView,
    bottom: Span,
    top: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Softmax(softmax) = &binder.layer().layer else { return None };
    let view = ClassView::new(&binder.net.bottom_shapes(binder.id)[0], softmax.axis, "axis").ok()?;
    let bottom = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Rows {
        view,
        bottom,
        top: binder.span(Operand::Top(0))?,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(bottom.len()).min(view.outer),
    }))
}

/// Softmax of `x` (classes × inner) into `y`.
pub(super) fn softmax(view: &ClassView, x: &[f32], y: &mut [f32]) {
    let class = |c: usize, i: usize| c * view.inner + i;
    for i in 0..view.inner {
        let largest = (0..view.classes).map(|c| x[class(c, i)]).fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for c in 0..view.classes {
            let e = (x[class(c, i)] - largest).exp();
            y[class(c, i)] = e;
            sum += e;
        }
        for c in 0..view.classes {
            y[class(c, i)] /= sum;
        }
    }
}

impl LayerKernel for Rows {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let len = self.view.classes * self.view.inner;
        for n in grain.share(self.view.outer) {
            let row = n * len..(n + 1) * len;
            // SAFETY: grains have rows of their own.
            let (x, y) = unsafe {
                (grain.memory.read(self.bottom.part(row.clone())), grain.memory.write(self.top.part(row)))
            };
            softmax(&self.view, x, y);
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let len = self.view.classes * self.view.inner;
        for n in grain.share(self.view.outer) {
            let row = n * len..(n + 1) * len;
            // SAFETY: grains have rows of their own.
            let (dx, dy, y) = unsafe {
                (
                    grain.memory.write(bottom_grad.part(row.clone())),
                    grain.memory.read(top_grad.part(row.clone())),
                    grain.memory.read(self.top.part(row)),
                )
            };
            for i in 0..self.view.inner {
                let class = |c: usize| c * self.view.inner + i;
                let dot: f32 = (0..self.view.classes).map(|c| dy[class(c)] * y[class(c)]).sum();
                for c in 0..self.view.classes {
                    dx[class(c)] = (dy[class(c)] - dot) * y[class(c)];
                }
            }
        }
    }
}
