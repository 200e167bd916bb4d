//! Split: the sum of the readers' gradients, in their order.

use quadrille_core::layer::{Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Stream {
    bottom_grad: Option<Span>,
    top_grads: Vec<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let tops = binder.layer().tops.len();
    let bottom = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Stream {
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grads: (0..tops).filter_map(|i| binder.span(Operand::TopGrad(i))).collect(),
        grains: binder.stream_grains(bottom.len()),
    }))
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
        // SAFETY: grains have elements of their own.
        let dx = unsafe { grain.memory.write(bottom_grad.part(part.clone())) };
        dx.fill(0.0);
        for top in &self.top_grads {
            // SAFETY: only read in this task.
            let dy = unsafe { grain.memory.read(top.part(part.clone())) };
            for (sum, value) in dx.iter_mut().zip(dy) {
                *sum += value;
            }
        }
    }
}
