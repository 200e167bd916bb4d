//! A bias that is repeated over the other axes, of any shape, a parameter or a bottom. One for each channel is a
//! [`super::scale`] without factors.

use std::ops::Range;

use quadrille_core::layer::{Layer, Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::Isa;
use crate::kernel::elements::{Change, Fold, Map, Zip};
use crate::kernel::sums::Sum;
use crate::kernel::vectorised::on;
use crate::memory::Span;

struct Spread {
    isa: Isa,
    outer: usize,
    /// Numbers of the bias.
    count: usize,
    inner: usize,
    bottom: Span,
    top: Span,
    bias: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    bias_grad: Option<Span>,
    /// Whether the bias is a bottom, so that ∇A finds its gradient, too.
    is_bottom: bool,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Bias(layer) = &binder.layer().layer else { return None };
    let is_bottom = layer.bottoms == 2;
    let view = layer.factors(&binder.net.bottom_shapes(binder.id)).ok()?;
    let (bias, bias_grad) = if is_bottom {
        (Operand::Bottom(1), Operand::BottomGrad(1))
    } else {
        (Operand::Param(0), Operand::ParamGrad(0))
    };
    let bottom = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Spread {
        isa: binder.isa,
        outer: view.outer,
        count: view.shape.count(),
        inner: view.inner,
        bottom,
        top: binder.span(Operand::Top(0))?,
        bias: binder.span(bias)?,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        bias_grad: binder.span(bias_grad),
        is_bottom,
        grains: binder.stream_grains(bottom.len()),
    }))
}

impl Spread {
    /// The runs of a grain that have one number of the bias each, or the next number for each value: where they lie, and
    /// which numbers.
    fn runs(&self, grain: &Grain<'_>) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<> {
        let by_value = self.inner == 1;
        let (units, unit) =
            if by_value { (self.outer, self.count) } else { (self.outer * self.count, self.inner) };
        let count = self.count;
        grain.share(units).map(move |i| {
            let numbers = if by_value { 0..count } else { i % count..i % count + 1 };
            (i * unit..(i + 1) * unit, numbers)
        })
    }

    /// The gradient of a share of the bias: sums over everything that it was added to.
    fn sum(&self, grain: &Grain<'_>, from: Span, to: Span) {
        let share = grain.share(self.count);
        let places = |o: usize, f: Range<usize>| {
            from.part((o * self.count + f.start) * self.inner..(o * self.count + f.end) * self.inner)
        };
        // SAFETY: grains have numbers of their own.
        let to = unsafe { grain.memory.write(to.part(share.clone())) };
        if self.inner == 1 {
            to.fill(0.0);
            for o in 0..self.outer {
                // SAFETY: an array that this task only reads.
                let x = unsafe { grain.memory.read(places(o, share.clone())) };
                on(self.isa, Fold { x, y: &mut *to, f: |sum, dy| sum + dy });
            }
            return;
        }
        for (to, f) in to.iter_mut().zip(share) {
            let mut sum = 0.0;
            for o in 0..self.outer {
                // SAFETY: an array that this task only reads.
                let x = unsafe { grain.memory.read(places(o, f..f + 1)) };
                on(self.isa, Sum { x, f: |dy| dy, to: &mut sum });
            }
            *to = sum as f32;
        }
    }
}

impl LayerKernel for Spread {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        // SAFETY: only read in this task.
        let bias = unsafe { grain.memory.read(self.bias) };
        let in_place = self.bottom == self.top;
        for (run, numbers) in self.runs(grain) {
            let b = &bias[numbers];
            // SAFETY: grains have values of their own; in place, only the top is made a slice.
            let y = unsafe { grain.memory.write(self.top.part(run.clone())) };
            // SAFETY: another array, only read in this task.
            let x = (!in_place).then(|| unsafe { grain.memory.read(self.bottom.part(run)) });
            match (x, self.inner, b) {
                (None, 1, b) => on(self.isa, Fold { x: b, y, f: |x, b| x + b }),
                (None, _, b) => on(self.isa, Change { y, f: |x| x + b[0] }),
                (Some(a), 1, b) => on(self.isa, Zip { a, b, y, f: |x, b| x + b }),
                (Some(x), _, b) => on(self.isa, Map { x, y, f: |x| x + b[0] }),
            }
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some(from) = self.top_grad else { return };
        if let Some(to) = self.bottom_grad.filter(|to| *to != from) {
            for (run, _) in self.runs(grain) {
                // SAFETY: grains have values of their own; what is read is another array.
                unsafe {
                    grain
                        .memory
                        .write(to.part(run.clone()))
                        .copy_from_slice(grain.memory.read(from.part(run)));
                }
            }
        }
        if let Some(to) = self.bias_grad.filter(|_| self.is_bottom) {
            self.sum(grain, from, to);
        }
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        if let (Some(from), Some(to)) = (self.top_grad, self.bias_grad) {
            self.sum(grain, from, to);
        }
    }
}
