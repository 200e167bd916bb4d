//! The last of every list: the naive loops of `quadrille_core::reference`, in one grain.
//!
//! It copies every array in and out, so it is slow and allocates; it is there to be right, for layers that nothing
//! else can do and to compare others with.

use quadrille_core::layer::{Accesses, Layer, Operand, SubTask};
use quadrille_core::net::LayerId;
use quadrille_core::reference::{Arrays, Context, compute};
use quadrille_core::rng::Draw;
use quadrille_core::shape::Shape;

use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Reference {
    id: LayerId,
    layer: Layer,
    bottoms: Vec<Shape>,
    tops: Vec<Shape>,
    loss_weights: Vec<f32>,
    share: f32,
    subs: Vec<(SubTask, Accesses)>,
    spans: Vec<(Operand, Span)>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let (net, id) = (binder.net, binder.id);
    let computed = [SubTask::Forward, SubTask::GradActivation, SubTask::GradWeight, SubTask::GradBias];
    let subs: Vec<(SubTask, Accesses)> =
        computed.into_iter().filter_map(|sub| net.accesses(id, sub).map(|a| (sub, a))).collect();
    let operands = subs.iter().flat_map(|(_, a)| a.reads.iter().chain(&a.writes));
    let spans = operands.filter_map(|o| binder.span(*o).map(|s| (*o, s))).collect();
    Some(Box::new(Reference {
        id,
        layer: binder.layer().layer.clone(),
        bottoms: net.bottom_shapes(id),
        tops: net.top_shapes(id),
        loss_weights: binder.layer().loss_weights.clone(),
        share: net.share,
        subs,
        spans,
    }))
}

impl Reference {
    fn span(&self, operand: &Operand) -> Option<Span> {
        self.spans.iter().find(|(o, _)| o == operand).map(|(_, s)| *s)
    }

    fn run(&self, sub: SubTask, grain: &mut Grain<'_>) {
        let Some((_, accesses)) = self.subs.iter().find(|(s, _)| *s == sub) else { return };
        let mut arrays = Arrays::<f32>::new();
        let mut insert = |operand: &Operand, span: Span| {
            // SAFETY: the task's only grain, and no other slice of its arrays lives.
            arrays.insert(*operand, unsafe { grain.memory.read(span) }.to_vec());
        };
        for operand in accesses.writes.iter().chain(&accesses.reads) {
            if let Some(span) = self.span(operand) {
                insert(operand, span);
            }
        }
        let context = Context {
            layer: &self.layer,
            bottoms: &self.bottoms,
            tops: &self.tops,
            loss_weights: &self.loss_weights,
            draw: Draw {
                seed: grain.scalars.seed,
                layer: self.id.0 as u32,
                first_image: grain.first_image as u64,
            },
            share: self.share,
        };
        compute(&context, sub, &mut arrays);
        for operand in &accesses.writes {
            if let Some(span) = self.span(operand) {
                // SAFETY: the task's only grain, and no other slice of its arrays lives.
                unsafe { grain.memory.write(span) }.copy_from_slice(arrays.get(*operand));
            }
        }
    }
}

impl LayerKernel for Reference {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(1)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        self.run(SubTask::Forward, grain);
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        self.run(SubTask::GradActivation, grain);
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        self.run(SubTask::GradWeight, grain);
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        self.run(SubTask::GradBias, grain);
    }
}
