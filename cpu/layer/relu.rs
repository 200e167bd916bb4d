//! ReLU as one pass over memory; in place if the net says so.

use std::marker::PhantomData;

use quadrille_core::layer::{Layer, Operand, SubTask};

use super::array::runs;
use super::{Array, Binder, Grain, LayerKernel, Stages};
use crate::isa::{Isa, Precision};
use crate::kernel::element::{Element, Half};
use crate::kernel::elements::{Change, Fold, Map, Zip, passes, rectified};

struct Stream<E> {
    isa: Isa,
    slope: f32,
    bottom: Array,
    top: Array,
    /// Whose sign tells the side in backward.
    sign: Array,
    bottom_grad: Option<Array>,
    top_grad: Option<Array>,
    grains: usize,
    elements: PhantomData<E>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    match binder.arrangement(Operand::Bottom(0))?.layout.precision {
        Precision::F32 => bind::<f32>(binder),
        Precision::Bf16 => bind::<Half>(binder),
    }
}

fn bind<E: Element>(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Relu(relu) = &binder.layer().layer else { return None };
    let bottom = binder.array(Operand::Bottom(0))?;
    Some(Box::new(Stream::<E> {
        isa: binder.isa,
        slope: relu.negative_slope,
        bottom,
        top: binder.array(Operand::Top(0))?,
        sign: binder.array(relu.sign())?,
        bottom_grad: binder.array(Operand::BottomGrad(0)),
        top_grad: binder.array(Operand::TopGrad(0)),
        grains: binder.stream_grains(bottom.len()),
        elements: PhantomData,
    }))
}

impl<E: Element> LayerKernel for Stream<E> {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let slope = self.slope;
        let f = |x: f32| rectified(x, slope);
        for run in runs(grain.share(self.top.len()), [&self.bottom, &self.top]) {
            // SAFETY: grains have elements of their own; in place, only the top is made a slice.
            let y: &mut [E] = unsafe { grain.write(self.top.part(run.clone())) };
            if self.bottom == self.top {
                E::on(self.isa, Change { y, f });
                continue;
            }
            // SAFETY: another array, only read in this task.
            let x: &[E] = unsafe { grain.read(self.bottom.part(run)) };
            E::on(self.isa, Map { x, y, f });
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let slope = self.slope;
        let f = |dy: f32, sign: f32| dy * passes(sign, slope);
        for run in runs(grain.share(bottom_grad.len()), [&bottom_grad, &top_grad, &self.sign]) {
            // SAFETY: grains have elements of their own; in place, only the bottom's gradient is made a slice.
            let (dx, sign): (&mut [E], &[E]) = unsafe {
                (grain.write(bottom_grad.part(run.clone())), grain.read(self.sign.part(run.clone())))
            };
            if bottom_grad == top_grad {
                E::on(self.isa, Fold { x: sign, y: dx, f });
                continue;
            }
            // SAFETY: another array, only read in this task.
            let dy: &[E] = unsafe { grain.read(top_grad.part(run)) };
            E::on(self.isa, Zip { a: dy, b: sign, y: dx, f });
        }
    }
}
