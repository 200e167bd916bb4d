//! Scale by a factor and perhaps a bias for each channel, and Bias by one.

use std::marker::PhantomData;

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};

use super::channels::Channels;
use super::{Array, Binder, Grain, LayerKernel, Stages};
use crate::isa::{Numerics, Precision};
use crate::kernel::channels::{Add, Affine, Apply, Correlate, ROW};
use crate::kernel::element::{Element, Half};
use crate::memory::Span;

/// Whether the factors, or the bias, are a parameter with one for each channel.
pub(super) fn fits(net: &Net, id: LayerId, _: Numerics) -> bool {
    let shapes = net.bottom_shapes(id);
    let (bottoms, axis, factors) = match &net.layer(id).layer {
        Layer::Scale(layer) => (layer.bottoms, layer.axis, layer.factors(&shapes)),
        Layer::Bias(layer) => (layer.bottoms, layer.axis, layer.factors(&shapes)),
        _ => return false,
    };
    let is_channels = |axis: Result<usize, _>| axis == Ok(1);
    bottoms == 1
        && is_channels(shapes[0].axis(axis, "axis"))
        && factors.is_ok_and(|factors| factors.shape.axes() == 1)
}

struct Kernel<E> {
    channels: Channels,
    bottom: Array,
    top: Array,
    /// Factors, if the layer has any.
    factors: Option<Span>,
    bias: Option<Span>,
    bottom_grad: Option<Array>,
    top_grad: Option<Array>,
    factors_grad: Option<Span>,
    bias_grad: Option<Span>,
    /// Sums of the cells, of ∇W and of ∇B.
    factor_sums: Span,
    bias_sums: Span,
    elements: PhantomData<E>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    match binder.arrangement(Operand::Bottom(0))?.layout.precision {
        Precision::F32 => bind::<f32>(binder),
        Precision::Bf16 => bind::<Half>(binder),
    }
}

fn bind<E: Element>(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let channels = Channels::new(&binder.arrangement(Operand::Bottom(0))?, binder);
    let has_factors = matches!(binder.layer().layer, Layer::Scale(_));
    let bias = usize::from(has_factors);
    Some(Box::new(Kernel::<E> {
        bottom: binder.array(Operand::Bottom(0))?,
        top: binder.array(Operand::Top(0))?,
        factors: if has_factors { Some(binder.span(Operand::Param(0))?) } else { None },
        bias: binder.span(Operand::Param(bias)),
        bottom_grad: binder.array(Operand::BottomGrad(0)),
        top_grad: binder.array(Operand::TopGrad(0)),
        factors_grad: if has_factors { binder.span(Operand::ParamGrad(0)) } else { None },
        bias_grad: binder.span(Operand::ParamGrad(bias)),
        factor_sums: binder.workspace(SubTask::GradWeight, channels.workspace()),
        bias_sums: binder.workspace(SubTask::GradBias, channels.workspace()),
        channels,
        elements: PhantomData,
    }))
}

impl<E: Element> Kernel<E> {
    /// `to ← from · factor`, and `+ bias` in forward.
    fn apply(&self, grain: &Grain<'_>, from: Array, to: Array, bias: Option<Span>) {
        let channels = &self.channels;
        // SAFETY: parameters, only read in this task.
        let (factors, bias) =
            unsafe { (self.factors.map(|f| grain.memory.read(f)), bias.map(|b| grain.memory.read(b))) };
        for cell in channels.cells(grain) {
            let factor = |c: usize| factors.map_or(1.0, |factors| factors[c]);
            let affine = Affine {
                factor: channels.row(&channels.numbers(cell.plane, factor)),
                bias: channels.row(&channels.numbers(cell.plane, |c| bias.map_or(0.0, |bias| bias[c]))),
                ..Affine::IDENTITY
            };
            for place in channels.places(cell) {
                // SAFETY: cells have elements of their own; in place, only the target is made a slice.
                let (x, y): (Option<&[E]>, &mut [E]) = unsafe {
                    ((from != to).then(|| grain.read(from.part(place.clone()))), grain.write(to.part(place)))
                };
                E::on(channels.isa, Apply { affine: &affine, relu: false, x, y });
            }
        }
    }

    /// First the sums of the cells, then those of the planes.
    fn sum(&self, grain: &Grain<'_>, to: Span, with_bottom: bool) {
        let workspace = if with_bottom { self.factor_sums } else { self.bias_sums };
        let (channels, Some(top_grad)) = (&self.channels, self.top_grad) else { return };
        if grain.stage == 1 {
            for plane in grain.share(channels.planes()) {
                let sums = channels.sums(grain, workspace, plane)[usize::from(with_bottom)];
                channels.write(grain, to, plane, &sums.map(|sum| sum as f32));
            }
            return;
        }
        for cell in channels.cells(grain) {
            let mut sums = [[0.0; ROW]; 2];
            for place in channels.places(cell) {
                // SAFETY: arrays that this task only reads.
                let (dy, x): (&[E], Option<&[E]>) = unsafe {
                    (
                        grain.read(top_grad.part(place.clone())),
                        with_bottom.then(|| grain.read(self.bottom.part(place))),
                    )
                };
                match x {
                    Some(x) => {
                        let (affine, sums) = (&Affine::IDENTITY, &mut sums);
                        E::on(channels.isa, Correlate { affine, relu: false, dy, x, sums });
                    }
                    None => E::on(channels.isa, Add { dy, sums: &mut sums[0] }),
                }
            }
            channels.leave_sums(grain, workspace, cell, &sums);
        }
    }
}

impl<E: Element> LayerKernel for Kernel<E> {
    fn stages(&self, sub: SubTask) -> Stages {
        let cells = self.channels.once();
        match sub {
            SubTask::GradWeight | SubTask::GradBias => cells.then(1),
            _ => cells,
        }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        self.apply(grain, self.bottom, self.top, self.bias);
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        if let (Some(to), Some(from)) = (self.bottom_grad, self.top_grad)
            && (self.factors.is_some() || from != to)
        {
            self.apply(grain, from, to, None);
        }
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        if let Some(to) = self.factors_grad {
            self.sum(grain, to, true);
        }
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        if let Some(to) = self.bias_grad {
            self.sum(grain, to, false);
        }
    }
}
