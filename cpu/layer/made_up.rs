//! Layers without a bottom to compute from, and without a top: Parameter, DummyData, Silence.

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::LayerId;
use quadrille_core::rng::Draw;
use quadrille_core::shape::Shape;

use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Parameter {
    top: Span,
    param: Span,
    top_grad: Option<Span>,
    param_grad: Option<Span>,
    grains: usize,
}

pub(super) fn parameter(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let top = binder.span(Operand::Top(0))?;
    Some(Box::new(Parameter {
        top,
        param: binder.span(Operand::Param(0))?,
        top_grad: binder.span(Operand::TopGrad(0)),
        param_grad: binder.span(Operand::ParamGrad(0)),
        grains: binder.stream_grains(top.len()),
    }))
}

fn copy(grain: &Grain<'_>, from: Span, to: Span) {
    let share = grain.share(to.len());
    // SAFETY: grains have elements of their own; the arrays are different ones.
    unsafe { grain.memory.write(to.part(share.clone())).copy_from_slice(grain.memory.read(from.part(share))) }
}

impl LayerKernel for Parameter {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        copy(grain, self.param, self.top);
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        if let (Some(from), Some(to)) = (self.top_grad, self.param_grad) {
            copy(grain, from, to);
        }
    }
}

/// A top is filled by one grain.
struct DummyData {
    id: LayerId,
    layer: quadrille_core::layer::DummyData,
    tops: Vec<(Span, Shape)>,
}

pub(super) fn dummy_data(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::DummyData(layer) = &binder.layer().layer else { return None };
    let shapes = binder.net.top_shapes(binder.id).into_iter().enumerate();
    let tops =
        shapes.map(|(i, shape)| Some((binder.span(Operand::Top(i))?, shape))).collect::<Option<_>>()?;
    Some(Box::new(DummyData { id: binder.id, layer: layer.clone(), tops }))
}

impl LayerKernel for DummyData {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.tops.len())
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let draw =
            Draw { seed: grain.scalars.seed, layer: self.id.0 as u32, first_image: grain.first_image as u64 };
        for top in grain.share(self.tops.len()) {
            let (span, shape) = &self.tops[top];
            // SAFETY: grains have tops of their own.
            self.layer.fill(top, shape, draw, unsafe { grain.memory.write(*span) });
        }
    }
}

struct Silence {
    gradients: Vec<Span>,
}

pub(super) fn silence(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let bottoms = binder.layer().bottoms.len();
    let gradients = (0..bottoms).filter_map(|i| binder.span(Operand::BottomGrad(i))).collect();
    Some(Box::new(Silence { gradients }))
}

impl LayerKernel for Silence {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.gradients.len())
    }

    fn forward(&self, _: &mut Grain<'_>) {}

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        for gradient in &self.gradients[grain.share(self.gradients.len())] {
            // SAFETY: grains have gradients of their own.
            unsafe { grain.memory.write(*gradient) }.fill(0.0);
        }
    }
}
