//! Layers that work value by value, as one pass over memory; in place if the net says so.

use std::marker::PhantomData;

use quadrille_core::layer::{Layer, Neuron, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};

use super::array::runs;
use super::{Array, Binder, Grain, LayerKernel, Stages};
use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::element::{Element, Half};
use crate::kernel::elements::{Change, Fold, Map, Zip};
use crate::kernel::functions::{Function, OnFunction, with_function};
use crate::machine::Machine;

/// Whether what fills up blocks of channels stays zero: because the function keeps zeros, or because nothing does.
pub(super) fn fits_blocks(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    struct KeepsZeros;
    impl OnFunction for KeepsZeros {
        type Output = bool;
        fn run<F: Function>(self, function: F) -> bool {
            function.value(0.0) == 0.0 && function.back(0.0, 0.0) == 0.0
        }
    }
    let Layer::Neuron(neuron) = &net.layer(id).layer else { return false };
    let block = Machine::of(numerics.isa).channel_block;
    with_function(neuron, KeepsZeros) || net.bottom_shapes(id)[0].dim(1).is_multiple_of(block)
}

/// Whether it would not.
pub(super) fn fits_plain(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    !fits_blocks(net, id, numerics)
}

struct Stream<E, F> {
    isa: Isa,
    function: F,
    bottom: Array,
    top: Array,
    /// What the derivative follows from, unless it is the same everywhere.
    at: Option<Array>,
    bottom_grad: Option<Array>,
    top_grad: Option<Array>,
    grains: usize,
    elements: PhantomData<E>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Neuron(neuron) = binder.layer().layer else { return None };
    match binder.arrangement(Operand::Bottom(0))?.layout.precision {
        Precision::F32 => with_function(&neuron, Bind { neuron, binder, elements: PhantomData::<f32> }),
        Precision::Bf16 => with_function(&neuron, Bind { neuron, binder, elements: PhantomData::<Half> }),
    }
}

/// Binds a function to a layer whose values are kept as `E`.
struct Bind<'a, 'b, E> {
    neuron: Neuron,
    binder: &'a mut Binder<'b>,
    elements: PhantomData<E>,
}

impl<E: Element> OnFunction for Bind<'_, '_, E> {
    type Output = Option<Box<dyn LayerKernel>>;

    fn run<F: Function>(self, function: F) -> Self::Output {
        let Self { neuron, binder, elements } = self;
        let bottom = binder.array(Operand::Bottom(0))?;
        Some(Box::new(Stream::<E, F> {
            isa: binder.isa,
            function,
            bottom,
            top: binder.array(Operand::Top(0))?,
            at: neuron.derivative_of().and_then(|operand| binder.array(operand)),
            bottom_grad: binder.array(Operand::BottomGrad(0)),
            top_grad: binder.array(Operand::TopGrad(0)),
            grains: binder.stream_grains(bottom.len()),
            elements,
        }))
    }
}

impl<E: Element, F: Function> LayerKernel for Stream<E, F> {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let f = |x: f32| self.function.value(x);
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
        let (function, isa) = (self.function, self.isa);
        let arrays = [&bottom_grad, &top_grad].into_iter().chain(&self.at);
        for run in runs(grain.share(bottom_grad.len()), arrays) {
            // SAFETY: grains have elements of their own; in place, only the bottom's gradient is made a slice.
            let dx: &mut [E] = unsafe { grain.write(bottom_grad.part(run.clone())) };
            // SAFETY: values, which this task only reads.
            let at: Option<&[E]> = self.at.map(|at| unsafe { grain.read(at.part(run.clone())) });
            if bottom_grad == top_grad {
                match at {
                    Some(x) => E::on(isa, Fold { x, y: dx, f: |dy, at| function.back(dy, at) }),
                    None => E::on(isa, Change { y: dx, f: |dy| function.back(dy, 0.0) }),
                }
                continue;
            }
            // SAFETY: another array, only read in this task.
            let dy: &[E] = unsafe { grain.read(top_grad.part(run)) };
            match at {
                Some(b) => E::on(isa, Zip { a: dy, b, y: dx, f: |dy, at| function.back(dy, at) }),
                None => E::on(isa, Map { x: dy, y: dx, f: |dy| function.back(dy, 0.0) }),
            }
        }
    }
}
