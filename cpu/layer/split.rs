//! Split: the sum of the readers' gradients, in their order.

use std::ops::Range;

use quadrille_core::layer::{Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::Isa;
use crate::kernel::elements::{Fold, RUN, Zip};
use crate::kernel::vectorised::on;
use crate::memory::Span;

struct Stream {
    isa: Isa,
    bottom_grad: Option<Span>,
    top_grads: Vec<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let tops = binder.layer().tops.len();
    let bottom = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Stream {
        isa: binder.isa,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grads: (0..tops).filter_map(|i| binder.span(Operand::TopGrad(i))).collect(),
        grains: binder.stream_grains(bottom.len()),
    }))
}

impl Stream {
    /// The sum of a run of elements, which stays in the cache until all readers are added.
    fn add(&self, grain: &Grain<'_>, bottom_grad: Span, run: Range<usize>) {
        // SAFETY: grains have elements of their own.
        let dx = unsafe { grain.memory.write(bottom_grad.part(run.clone())) };
        // SAFETY: other arrays, only read in this task.
        let read = |span: &Span| unsafe { grain.memory.read(span.part(run.clone())) };
        let f = |sum: f32, dy: f32| sum + dy;
        match &self.top_grads[..] {
            [] => dx.fill(0.0),
            [one] => dx.copy_from_slice(read(one)),
            [first, second, rest @ ..] => {
                on(self.isa, Zip { a: read(first), b: read(second), y: dx, f });
                rest.iter().for_each(|top| on(self.isa, Fold { x: read(top), y: dx, f }));
            }
        }
    }
}

impl LayerKernel for Stream {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    /// The tops lie in the bottom's memory.
    fn forward(&self, _: &mut Grain<'_>) {}

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(bottom_grad) = self.bottom_grad else { return };
        let part = grain.share(bottom_grad.len());
        for start in part.clone().step_by(RUN) {
            self.add(grain, bottom_grad, start..(start + RUN).min(part.end));
        }
    }
}
