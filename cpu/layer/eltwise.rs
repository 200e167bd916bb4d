//! Product, weighted sum or maximum, run by run: what is read and written comes from and goes to memory once, and the
//! steps of an operation on several bottoms find the run in the cache.

use std::marker::PhantomData;
use std::ops::Range;

use quadrille_core::layer::{Eltwise, EltwiseOperation, Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::element::{Element, Half};
use crate::kernel::elements::{Change, Fold, Map, RUN, Zip, passes, rectified};
use crate::memory::Span;

/// Whether zeros stay zeros, so that padding does.
pub(super) fn keeps_zeros(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    !divides(net, id, numerics)
}

/// Whether the gradient is a quotient, which is NaN at 0.
pub(super) fn divides(net: &Net, id: LayerId, _: Numerics) -> bool {
    let Layer::Eltwise(layer) = &net.layer(id).layer else { return false };
    layer.operation == EltwiseOperation::Product { stable_gradient: false }
}

struct Stream<E> {
    isa: Isa,
    layer: Eltwise,
    bottoms: Vec<Span>,
    top: Span,
    /// Which bottom each maximum comes from, a word for each.
    from: Option<Span>,
    bottom_grads: Vec<Option<Span>>,
    top_grad: Option<Span>,
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
    let Layer::Eltwise(layer) = &binder.layer().layer else { return None };
    let top = binder.span(Operand::Top(0))?;
    let is_max = layer.operation == EltwiseOperation::Max;
    Some(Box::new(Stream::<E> {
        isa: binder.isa,
        layer: layer.clone(),
        bottoms: (0..layer.bottoms).map(|b| binder.span(Operand::Bottom(b))).collect::<Option<_>>()?,
        top,
        from: if is_max { binder.state(0, top.len() * E::PRECISION.in_word()) } else { None },
        bottom_grads: (0..layer.bottoms).map(|b| binder.span(Operand::BottomGrad(b))).collect(),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(top.len()),
        elements: PhantomData,
    }))
}

/// A run of a task's arrays, counted in words.
struct Run<'a, E> {
    kernel: &'a Stream<E>,
    grain: &'a Grain<'a>,
    at: Range<usize>,
}

impl<'a, E: Element> Run<'a, E> {
    fn read(&self, span: Span) -> &'a [E] {
        // SAFETY: an array that this task only reads, or the top's run, which only this grain has written.
        unsafe { self.grain.read(span.part(self.at.clone())) }
    }

    fn bottom(&self, b: usize) -> &'a [E] {
        self.read(self.kernel.bottoms[b])
    }

    fn write(&self, span: Span) -> &'a mut [E] {
        // SAFETY: grains have elements of their own, and each array is written through one slice at a time.
        unsafe { self.grain.write(span.part(self.at.clone())) }
    }

    /// Where the run's numbers are in an array with a word for each.
    fn numbers(&self, span: Span) -> Span {
        let count = E::PRECISION.in_word();
        span.part(self.at.start * count..self.at.end * count)
    }

    fn forward(&self, scratch: &mut [f32]) {
        let (isa, y) = (self.kernel.isa, self.write(self.kernel.top));
        let later = 2..self.kernel.layer.bottoms;
        match &self.kernel.layer.operation {
            EltwiseOperation::Sum { coefficients, relu } => self.sum(coefficients, *relu, y, scratch),
            EltwiseOperation::Product { .. } => E::staged(y, scratch, |y| {
                E::on(isa, Zip { a: self.bottom(0), b: self.bottom(1), y: &mut *y, f: |a, b| a * b });
                for b in later {
                    E::on(isa, Fold { x: self.bottom(b), y: &mut *y, f: |y, x| y * x });
                }
            }),
            EltwiseOperation::Max => {
                let Some(from) = self.kernel.from else { return };
                // SAFETY: as in `write`.
                let from = unsafe { self.grain.memory.write(self.numbers(from)) };
                // The comparisons of the oracle, with what they say of NaN.
                let (a, b) = (self.bottom(0), self.bottom(1));
                E::on(isa, Zip { a, b, y: &mut *from, f: |a, b| if a > b { 0.0 } else { 1.0 } });
                E::on(isa, Zip { a, b, y: &mut *y, f: |a, b| if a > b { a } else { b } });
                for b in later {
                    let (x, b) = (self.bottom(b), b as f32);
                    for ((y, from), x) in y.iter_mut().zip(from.iter_mut()).zip(x) {
                        (*y, *from) = if x.wide() > y.wide() { (*x, b) } else { (*y, *from) };
                    }
                }
            }
        }
    }

    fn sum(&self, coefficients: &[f32], relu: bool, y: &mut [E], scratch: &mut [f32]) {
        let isa = self.kernel.isa;
        let of = |b: usize| coefficients.get(b).copied().unwrap_or(1.0);
        let (first, second) = (of(0), of(1));
        let (a, b, add) = (self.bottom(0), self.bottom(1), |a: f32, b: f32| first * a + second * b);
        match (self.kernel.layer.bottoms, relu) {
            (2, false) => E::on(isa, Zip { a, b, y, f: add }),
            (2, true) => E::on(isa, Zip { a, b, y, f: |a, b| rectified(add(a, b), 0.0) }),
            (bottoms, _) => E::staged(y, scratch, |y| {
                E::on(isa, Zip { a, b, y: &mut *y, f: add });
                for b in 2..bottoms {
                    let factor = of(b);
                    E::on(isa, Fold { x: self.bottom(b), y: &mut *y, f: |y, x| y + factor * x });
                }
                if relu {
                    E::on(isa, Change { y, f: |y| rectified(y, 0.0) });
                }
            }),
        }
    }

    fn grad_activation(&self, top_grad: Span, scratch: &mut [f32]) {
        if self.kernel.bottom_grads.iter().all(|grad| *grad == Some(top_grad)) {
            return self.pass_on(self.write(top_grad));
        }
        for (b, grad) in self.kernel.bottom_grads.iter().enumerate() {
            if let Some(grad) = grad {
                self.gradient(b, self.read(top_grad), self.write(*grad), scratch);
            }
        }
    }

    /// The gradient of a sum's top becomes that of all its bottoms ([`Net::adding`]): only what the ReLU lets pass stays.
    fn pass_on(&self, dy: &mut [E]) {
        if let EltwiseOperation::Sum { relu: true, .. } = self.kernel.layer.operation {
            let y = self.read(self.kernel.top);
            E::on(self.kernel.isa, Fold { x: y, y: dy, f: |dy, y| dy * passes(y, 0.0) });
        }
    }

    /// The gradient of bottom `b`.
    fn gradient(&self, b: usize, dy: &[E], dx: &mut [E], scratch: &mut [f32]) {
        let isa = self.kernel.isa;
        match &self.kernel.layer.operation {
            EltwiseOperation::Sum { coefficients, relu } => {
                let factor = coefficients.get(b).copied().unwrap_or(1.0);
                if !relu {
                    return E::on(isa, Map { x: dy, y: dx, f: |dy| factor * dy });
                }
                let f = |dy: f32, y: f32| factor * (dy * passes(y, 0.0));
                E::on(isa, Zip { a: dy, b: self.read(self.kernel.top), y: dx, f });
            }
            EltwiseOperation::Product { stable_gradient: true } => E::staged(dx, scratch, |dx| {
                dx.fill(1.0);
                for other in (0..self.kernel.layer.bottoms).filter(|other| *other != b) {
                    E::on(isa, Fold { x: self.bottom(other), y: &mut *dx, f: |product, x| product * x });
                }
                E::on(isa, Fold { x: dy, y: dx, f: |product, dy| dy * product });
            }),
            EltwiseOperation::Product { stable_gradient: false } => E::staged(dx, scratch, |dx| {
                let (a, b) = (self.read(self.kernel.top), self.bottom(b));
                E::on(isa, Zip { a, b, y: &mut *dx, f: |y, x| y / x });
                E::on(isa, Fold { x: dy, y: dx, f: |quotient, dy| dy * quotient });
            }),
            EltwiseOperation::Max => {
                let Some(from) = self.kernel.from else { return };
                // SAFETY: only read in this task.
                let from = unsafe { self.grain.memory.read(self.numbers(from)) };
                let b = b as f32;
                let f = |dy: f32, from: f32| if from == b { dy } else { 0.0 };
                E::on(isa, Zip { a: dy, b: from, y: dx, f });
            }
        }
    }
}

impl<E: Element> Stream<E> {
    fn runs(&self, grain: &Grain<'_>, mut each: impl FnMut(&Run<'_, E>)) {
        let part = grain.share(self.top.len());
        for start in part.clone().step_by(RUN) {
            each(&Run { kernel: self, grain, at: start..(start + RUN).min(part.end) });
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

    fn forward(&self, grain: &mut Grain<'_>) {
        let scratch = std::mem::take(&mut grain.scratch);
        self.runs(grain, |run| run.forward(scratch));
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(top_grad) = self.top_grad else { return };
        let scratch = std::mem::take(&mut grain.scratch);
        self.runs(grain, |run| run.grad_activation(top_grad, scratch));
    }
}
