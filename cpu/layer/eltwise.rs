//! Product, weighted sum or maximum, run by run: what is read and written comes from and goes to memory once, and the
//! steps of an operation on several bottoms find the run in the cache.

use std::ops::Range;

use quadrille_core::layer::{Eltwise, EltwiseOperation, Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::{Isa, Numerics};
use crate::kernel::elements::{Change, Fold, Map, RUN, Zip, passes, rectified};
use crate::kernel::vectorised::on;
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

struct Stream {
    isa: Isa,
    layer: Eltwise,
    bottoms: Vec<Span>,
    top: Span,
    /// Which bottom each maximum comes from.
    from: Option<Span>,
    bottom_grads: Vec<Option<Span>>,
    top_grad: Option<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Eltwise(layer) = &binder.layer().layer else { return None };
    let top = binder.span(Operand::Top(0))?;
    let is_max = layer.operation == EltwiseOperation::Max;
    Some(Box::new(Stream {
        isa: binder.isa,
        layer: layer.clone(),
        bottoms: (0..layer.bottoms).map(|b| binder.span(Operand::Bottom(b))).collect::<Option<_>>()?,
        top,
        from: if is_max { binder.state(0, top.len()) } else { None },
        bottom_grads: (0..layer.bottoms).map(|b| binder.span(Operand::BottomGrad(b))).collect(),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(top.len()),
    }))
}

/// A run of a task's arrays.
struct Run<'a> {
    kernel: &'a Stream,
    grain: &'a Grain<'a>,
    at: Range<usize>,
}

impl<'a> Run<'a> {
    fn read(&self, span: Span) -> &'a [f32] {
        // SAFETY: an array that this task only reads, or the top's run, which only this grain has written.
        unsafe { self.grain.memory.read(span.part(self.at.clone())) }
    }

    fn bottom(&self, b: usize) -> &'a [f32] {
        self.read(self.kernel.bottoms[b])
    }

    #[allow(clippy::mut_from_ref)]
    fn write(&self, span: Span) -> &'a mut [f32] {
        // SAFETY: grains have elements of their own, and each array is written through one slice at a time.
        unsafe { self.grain.memory.write(span.part(self.at.clone())) }
    }

    fn forward(&self) {
        let (isa, y) = (self.kernel.isa, self.write(self.kernel.top));
        let later = 2..self.kernel.layer.bottoms;
        match &self.kernel.layer.operation {
            EltwiseOperation::Sum { coefficients, relu } => self.sum(coefficients, *relu, y),
            EltwiseOperation::Product { .. } => {
                on(isa, Zip { a: self.bottom(0), b: self.bottom(1), y, f: |a, b| a * b });
                for b in later {
                    on(isa, Fold { x: self.bottom(b), y, f: |y, x| y * x });
                }
            }
            EltwiseOperation::Max => {
                let Some(from) = self.kernel.from.map(|span| self.write(span)) else { return };
                // The comparisons of the oracle, with what they say of NaN.
                let (a, b) = (self.bottom(0), self.bottom(1));
                on(isa, Zip { a, b, y: from, f: |a, b| if a > b { 0.0 } else { 1.0 } });
                on(isa, Zip { a, b, y, f: |a, b| if a > b { a } else { b } });
                for b in later {
                    let (x, b) = (self.bottom(b), b as f32);
                    for ((y, from), x) in y.iter_mut().zip(from.iter_mut()).zip(x) {
                        (*y, *from) = if *x > *y { (*x, b) } else { (*y, *from) };
                    }
                }
            }
        }
    }

    fn sum(&self, coefficients: &[f32], relu: bool, y: &mut [f32]) {
        let isa = self.kernel.isa;
        let of = |b: usize| coefficients.get(b).copied().unwrap_or(1.0);
        let (first, second) = (of(0), of(1));
        on(isa, Zip { a: self.bottom(0), b: self.bottom(1), y, f: |a, b| first * a + second * b });
        for b in 2..self.kernel.layer.bottoms {
            let factor = of(b);
            on(isa, Fold { x: self.bottom(b), y, f: |y, x| y + factor * x });
        }
        if relu {
            on(isa, Change { y, f: |y| rectified(y, 0.0) });
        }
    }

    fn grad_activation(&self, top_grad: Span) {
        for (b, grad) in self.kernel.bottom_grads.iter().enumerate() {
            if let Some(grad) = grad {
                self.gradient(b, self.read(top_grad), self.write(*grad));
            }
        }
    }

    /// The gradient of bottom `b`.
    fn gradient(&self, b: usize, dy: &[f32], dx: &mut [f32]) {
        let isa = self.kernel.isa;
        match &self.kernel.layer.operation {
            EltwiseOperation::Sum { coefficients, relu } => {
                let factor = coefficients.get(b).copied().unwrap_or(1.0);
                if !relu {
                    return on(isa, Map { x: dy, y: dx, f: |dy| factor * dy });
                }
                let f = |dy: f32, y: f32| factor * (dy * passes(y, 0.0));
                on(isa, Zip { a: dy, b: self.read(self.kernel.top), y: dx, f });
            }
            EltwiseOperation::Product { stable_gradient: true } => {
                dx.fill(1.0);
                for other in (0..self.kernel.layer.bottoms).filter(|other| *other != b) {
                    on(isa, Fold { x: self.bottom(other), y: dx, f: |product, x| product * x });
                }
                on(isa, Fold { x: dy, y: dx, f: |product, dy| dy * product });
            }
            EltwiseOperation::Product { stable_gradient: false } => {
                on(isa, Zip { a: self.read(self.kernel.top), b: self.bottom(b), y: dx, f: |y, x| y / x });
                on(isa, Fold { x: dy, y: dx, f: |quotient, dy| dy * quotient });
            }
            EltwiseOperation::Max => {
                let Some(from) = self.kernel.from else { return };
                let b = b as f32;
                let f = |dy: f32, from: f32| if from == b { dy } else { 0.0 };
                on(isa, Zip { a: dy, b: self.read(from), y: dx, f });
            }
        }
    }
}

impl Stream {
    fn runs(&self, grain: &Grain<'_>, each: impl Fn(&Run<'_>)) {
        let part = grain.share(self.top.len());
        for start in part.clone().step_by(RUN) {
            each(&Run { kernel: self, grain, at: start..(start + RUN).min(part.end) });
        }
    }
}

impl LayerKernel for Stream {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        self.runs(grain, |run| run.forward());
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(top_grad) = self.top_grad else { return };
        self.runs(grain, |run| run.grad_activation(top_grad));
    }
}
