//! ReLU as one pass over memory; in place if the net says so.

use quadrille_core::layer::{Layer, Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Stream {
    slope: f32,
    bottom: Span,
    top: Span,
    /// Whose sign tells the side in backward.
    sign: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Relu(relu) = &binder.layer().layer else { return None };
    let bottom = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Stream {
        slope: relu.negative_slope,
        bottom,
        top: binder.span(Operand::Top(0))?,
        sign: binder.span(relu.sign())?,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(bottom.len()),
    }))
}

impl LayerKernel for Stream {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let part = grain.share(self.top.len());
        // SAFETY: grains have elements of their own; in place, only the top is made a slice.
        let y = unsafe { grain.memory.write(self.top.part(part.clone())) };
        if self.bottom != self.top {
            // SAFETY: another array, only read in this task.
            y.copy_from_slice(unsafe { grain.memory.read(self.bottom.part(part)) });
        }
        for value in y {
            // Not `f32::max` and `f32::min`, which would hide a NaN.
            let (above, below) =
                (if *value < 0.0 { 0.0 } else { *value }, if *value > 0.0 { 0.0 } else { *value });
            *value = above + self.slope * below;
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let part = grain.share(bottom_grad.len());
        // SAFETY: grains have elements of their own; in place, only the bottom's gradient is made a slice.
        let (dx, sign) = unsafe {
            (
                grain.memory.write(bottom_grad.part(part.clone())),
                grain.memory.read(self.sign.part(part.clone())),
            )
        };
        if bottom_grad != top_grad {
            // SAFETY: another array, only read in this task.
            dx.copy_from_slice(unsafe { grain.memory.read(top_grad.part(part)) });
        }
        for (value, sign) in dx.iter_mut().zip(sign) {
            *value *= if *sign > 0.0 { 1.0 } else { self.slope };
        }
    }
}
