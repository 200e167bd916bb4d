//! Parametric ReLU: a pass over each channel with its slope. Its gradient needs the bottom, so it is never in place.

use std::marker::PhantomData;

use quadrille_core::layer::{Layer, Operand, SubTask};

use super::channels::Channels;
use super::{Array, Binder, Grain, LayerKernel, Stages};
use crate::isa::Precision;
use crate::kernel::bends::{Bend, BendBack, SumBelow};
use crate::kernel::channels::{ROW, Row, folded, row};
use crate::kernel::element::{Element, Half};
use crate::memory::Span;

struct Kernel<E> {
    channels: Channels,
    channel_shared: bool,
    bottom: Array,
    top: Array,
    slopes: Span,
    bottom_grad: Option<Array>,
    top_grad: Option<Array>,
    slopes_grad: Option<Span>,
    /// Sums of the cells.
    sums: Span,
    elements: PhantomData<E>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    match binder.arrangement(Operand::Bottom(0))?.layout.precision {
        Precision::F32 => bind::<f32>(binder),
        Precision::Bf16 => bind::<Half>(binder),
    }
}

fn bind<E: Element>(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Prelu(prelu) = &binder.layer().layer else { return None };
    let channel_shared = prelu.channel_shared;
    let channels = Channels::new(&binder.arrangement(Operand::Bottom(0))?, binder);
    Some(Box::new(Kernel::<E> {
        channel_shared,
        bottom: binder.array(Operand::Bottom(0))?,
        top: binder.array(Operand::Top(0))?,
        slopes: binder.span(Operand::Param(0))?,
        bottom_grad: binder.array(Operand::BottomGrad(0)),
        top_grad: binder.array(Operand::TopGrad(0)),
        slopes_grad: binder.span(Operand::ParamGrad(0)),
        sums: binder.workspace(SubTask::GradWeight, channels.workspace()),
        channels,
        elements: PhantomData,
    }))
}

impl<E: Element> Kernel<E> {
    /// The slope of each place of a row of a plane.
    fn row(&self, grain: &Grain<'_>, plane: usize) -> Row {
        // SAFETY: a parameter, only read in this task.
        let slopes = unsafe { grain.memory.read(self.slopes) };
        let of = |channel: usize| slopes[if self.channel_shared { 0 } else { channel }];
        row(&self.channels.numbers(plane, of), self.channels.passes.block)
    }

    /// The slopes' gradients from the sums of the cells.
    fn add_up(&self, grain: &Grain<'_>, to: Span) {
        let channels = &self.channels;
        if !self.channel_shared {
            for plane in grain.share(channels.planes()) {
                let [sums, _] = channels.sums(grain, self.sums, plane);
                channels.write(grain, to, plane, &sums.map(|sum| sum as f32));
            }
            return;
        }
        // What fills up a block adds 0.
        let planes = (0..channels.planes()).map(|plane| channels.sums(grain, self.sums, plane)[0]);
        let sum: f64 = planes.flatten().sum();
        // SAFETY: the stage's only grain.
        (unsafe { grain.memory.write(to) })[0] = sum as f32;
    }
}

impl<E: Element> LayerKernel for Kernel<E> {
    fn stages(&self, sub: SubTask) -> Stages {
        let cells = self.channels.once();
        if sub == SubTask::GradWeight { cells.then(1) } else { cells }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let channels = &self.channels;
        for cell in channels.cells(grain) {
            let slope = &self.row(grain, cell.plane);
            for place in channels.places(cell) {
                // SAFETY: cells have elements of their own; the bottom is another array.
                let (x, y): (&[E], &mut [E]) = unsafe {
                    (grain.read(self.bottom.part(place.clone())), grain.write(self.top.part(place)))
                };
                E::on(channels.passes.isa, Bend { slope, x, y });
            }
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (channels, Some(bottom_grad), Some(top_grad)) = (&self.channels, self.bottom_grad, self.top_grad)
        else {
            return;
        };
        for cell in channels.cells(grain) {
            let slope = &self.row(grain, cell.plane);
            for place in channels.places(cell) {
                // SAFETY: cells have elements of their own; the others are other arrays.
                let (dy, x, dx): (&[E], &[E], &mut [E]) = unsafe {
                    (
                        grain.read(top_grad.part(place.clone())),
                        grain.read(self.bottom.part(place.clone())),
                        grain.write(bottom_grad.part(place)),
                    )
                };
                E::on(channels.passes.isa, BendBack { slope, dy, x, dx });
            }
        }
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        let (channels, Some(to), Some(top_grad)) = (&self.channels, self.slopes_grad, self.top_grad) else {
            return;
        };
        if grain.stage == 1 {
            return self.add_up(grain, to);
        }
        for cell in channels.cells(grain) {
            let mut sums = [[0.0; ROW]; 2];
            for place in channels.places(cell) {
                // SAFETY: arrays that this task only reads.
                let (dy, x): (&[E], &[E]) = unsafe {
                    (grain.read(top_grad.part(place.clone())), grain.read(self.bottom.part(place)))
                };
                E::on(channels.passes.isa, SumBelow { dy, x, sums: &mut sums[0] });
            }
            let sums = sums.map(|sums| folded(&sums, channels.passes.block));
            channels.leave(grain, self.sums, cell, sums);
        }
    }
}
