//! A blob that is a part of the loss: the gradient of each of its values is the weight.

use quadrille_core::layer::{Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Fill {
    weight: f32,
    bottom_grad: Option<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let bottom_grad = binder.span(Operand::BottomGrad(0));
    Some(Box::new(Fill {
        weight: binder.layer().loss_weights.first().copied().unwrap_or(0.0),
        bottom_grad,
        grains: binder.stream_grains(bottom_grad.map_or(0, |span| span.len())),
    }))
}

impl LayerKernel for Fill {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    /// The top lies in the bottom's memory.
    fn forward(&self, _: &mut Grain<'_>) {}

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(bottom_grad) = self.bottom_grad else { return };
        // SAFETY: grains have values of their own.
        unsafe { grain.memory.write(bottom_grad.part(grain.share(bottom_grad.len()))) }.fill(self.weight);
    }
}
