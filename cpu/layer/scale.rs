//! Scale by a factor and perhaps a bias for each channel, and Bias by one.

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};

use super::channels::{Channels, Totals};
use super::{Array, Binder, Grain, LayerKernel, Stages};
use crate::isa::Numerics;
use crate::kernel::channels::Affine;
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

struct Kernel {
    channels: Channels,
    bottom: Array,
    top: Array,
    /// Factors, if the layer has any.
    factors: Option<Span>,
    bias: Option<Span>,
    bottom_grad: Option<Array>,
    top_grad: Option<Array>,
    factors_grad: Option<Span>,
    /// Sums of the cells of ∇W.
    factor_sums: Span,
    bias_grad: Option<Totals>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let channels = Channels::new(&binder.arrangement(Operand::Bottom(0))?, binder);
    let has_factors = matches!(binder.layer().layer, Layer::Scale(_));
    let bias = usize::from(has_factors);
    let top_grad = binder.array(Operand::TopGrad(0));
    let bias_grad = top_grad.zip(binder.span(Operand::ParamGrad(bias)));
    Some(Box::new(Kernel {
        bottom: binder.array(Operand::Bottom(0))?,
        top: binder.array(Operand::Top(0))?,
        factors: if has_factors { Some(binder.span(Operand::Param(0))?) } else { None },
        bias: binder.span(Operand::Param(bias)),
        bottom_grad: binder.array(Operand::BottomGrad(0)),
        top_grad,
        factors_grad: if has_factors { binder.span(Operand::ParamGrad(0)) } else { None },
        factor_sums: binder.workspace(SubTask::GradWeight, channels.workspace()),
        bias_grad: bias_grad.map(|(from, to)| Totals::new(binder, SubTask::GradBias, from, to)),
        channels,
    }))
}

impl Kernel {
    /// `to ← from · factor`, and `+ bias` in forward.
    fn apply(&self, grain: &Grain<'_>, from: Array, to: Array, bias: Option<Span>) {
        let channels = &self.channels;
        // SAFETY: parameters, only read in this task.
        let (factors, bias) =
            unsafe { (self.factors.map(|f| grain.memory.read(f)), bias.map(|b| grain.memory.read(b))) };
        for cell in channels.cells(grain) {
            let factor = |c: usize| factors.map_or(1.0, |factors| factors[c]);
            let affine = Affine {
                factor: channels.numbers(cell.plane, factor),
                bias: channels.numbers(cell.plane, |c| bias.map_or(0.0, |bias| bias[c])),
                ..Affine::IDENTITY
            };
            // SAFETY: cells have elements of their own; in place, only the target is made a slice.
            let planes = channels.places(cell).map(|place| unsafe {
                let memory = grain.memory;
                ((from != to).then(|| memory.read(from.part(place.clone()))), memory.write(to.part(place)))
            });
            channels.passes.apply(&affine, false, planes);
        }
    }

    /// Sums of the gradient of the top times the bottom: first those of the cells, then those of the planes.
    fn correlate(&self, grain: &Grain<'_>, to: Span) {
        let (channels, Some(top_grad)) = (&self.channels, self.top_grad) else { return };
        if grain.stage == 1 {
            for plane in grain.share(channels.planes()) {
                let [_, sums] = channels.sums(grain, self.factor_sums, plane);
                channels.write(grain, to, plane, &sums.map(|sum| sum as f32));
            }
            return;
        }
        for cell in channels.cells(grain) {
            // SAFETY: arrays that this task only reads.
            let read = |array: Array, place| unsafe { grain.memory.read(array.part(place)) };
            let planes =
                channels.places(cell).map(|place| (read(top_grad, place.clone()), read(self.bottom, place)));
            let sums = channels.passes.correlate(&Affine::IDENTITY, false, planes);
            channels.leave(grain, self.factor_sums, cell, sums);
        }
    }
}

impl LayerKernel for Kernel {
    fn stages(&self, sub: SubTask) -> Stages {
        let cells = self.channels.once();
        match (sub, &self.bias_grad) {
            (SubTask::GradWeight, _) => cells.then(1),
            (SubTask::GradBias, Some(bias)) => bias.stages(),
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
            self.correlate(grain, to);
        }
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        if let Some(bias) = &self.bias_grad {
            bias.run(grain);
        }
    }
}
