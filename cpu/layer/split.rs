//! Split: the sum of the readers' gradients, in their order.

use std::marker::PhantomData;
use std::ops::Range;

use quadrille_core::layer::{Operand, SubTask};

use super::array::runs;
use super::{Array, Binder, Grain, LayerKernel, Stages};
use crate::isa::{Isa, Precision};
use crate::kernel::element::{Element, Half};
use crate::kernel::elements::{Change, Fold, RUN, Zip};

struct Stream<E> {
    isa: Isa,
    bottom_grad: Option<Array>,
    top_grads: Vec<Array>,
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
    let tops = binder.layer().tops.len();
    let bottom = binder.arrangement(Operand::Bottom(0))?;
    Some(Box::new(Stream::<E> {
        isa: binder.isa,
        bottom_grad: binder.array(Operand::BottomGrad(0)),
        top_grads: (0..tops).filter_map(|i| binder.array(Operand::TopGrad(i))).collect(),
        grains: binder.stream_grains(bottom.len()),
        elements: PhantomData,
    }))
}

impl<E: Element> Stream<E> {
    /// The sum of a run of words, which stays in the cache until all readers are added.
    fn add(&self, grain: &Grain<'_>, scratch: &mut [f32], bottom_grad: Array, run: Range<usize>) {
        // SAFETY: grains have elements of their own.
        let dx: &mut [E] = unsafe { grain.write(bottom_grad.part(run.clone())) };
        // SAFETY: other arrays, only read in this task.
        let read = |array: &Array| -> &[E] { unsafe { grain.read(array.part(run.clone())) } };
        let (isa, f) = (self.isa, |sum: f32, dy: f32| sum + dy);
        match &self.top_grads[..] {
            [] => E::on(isa, Change { y: dx, f: |_| 0.0 }),
            [one] => dx.copy_from_slice(read(one)),
            [first, second] => E::on(isa, Zip { a: read(first), b: read(second), y: dx, f }),
            [first, second, rest @ ..] => E::staged(dx, scratch, |dx| {
                E::on(isa, Zip { a: read(first), b: read(second), y: &mut *dx, f });
                rest.iter().for_each(|top| E::on(isa, Fold { x: read(top), y: &mut *dx, f }));
            }),
        }
    }
}

impl<E: Element> LayerKernel for Stream<E> {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn scratch(&self) -> usize {
        E::scratch(RUN * E::PRECISION.in_word())
    }

    /// The tops lie in the bottom's memory.
    fn forward(&self, _: &mut Grain<'_>) {}

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(bottom_grad) = self.bottom_grad else { return };
        let scratch = std::mem::take(&mut grain.scratch);
        let arrays = self.top_grads.iter().chain([&bottom_grad]);
        for piece in runs(grain.share(bottom_grad.len()), arrays) {
            for start in piece.clone().step_by(RUN) {
                self.add(grain, scratch, bottom_grad, start..(start + RUN).min(piece.end));
            }
        }
    }
}
