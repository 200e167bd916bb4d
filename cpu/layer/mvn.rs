//! Mean-variance normalisation, row by row: a row is read and written where it lies, three times.

use std::ops::Range;

use quadrille_core::layer::{Layer, Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::Isa;
use crate::kernel::elements::{Change, Fold, Map, Zip};
use crate::kernel::sums::{Sum, SumOfPairs};
use crate::kernel::vectorised::on;
use crate::memory::Span;

struct Rows {
    isa: Isa,
    rows: usize,
    /// Values of a row.
    count: usize,
    eps: f32,
    bottom: Span,
    top: Span,
    /// Deviation plus eps of each row, if it is divided by.
    divisors: Option<Span>,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Mvn(layer) = &binder.layer().layer else { return None };
    let (eps, normalize_variance) = (layer.eps, layer.normalize_variance);
    let shape = &binder.net.bottom_shapes(binder.id)[0];
    // Of what a sub-task does not touch, the span is not that of a plain array.
    let (rows, count) = (layer.rows(shape), shape.count());
    let bottom = binder.span(Operand::Bottom(0))?;
    Some(Box::new(Rows {
        isa: binder.isa,
        rows,
        count: count / rows.max(1),
        eps,
        bottom,
        top: binder.span(Operand::Top(0))?,
        divisors: if normalize_variance { Some(binder.span(Operand::Aux(0))?) } else { None },
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(count).min(rows),
    }))
}

impl Rows {
    fn row(&self, row: usize) -> Range<usize> {
        row * self.count..(row + 1) * self.count
    }

    fn mean(&self, x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
        let mut sum = 0.0;
        on(self.isa, Sum { x, f, to: &mut sum });
        (sum / self.count as f64) as f32
    }
}

impl LayerKernel for Rows {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        for row in grain.share(self.rows) {
            // SAFETY: grains have rows of their own; in place, only the top is made a slice.
            let y = unsafe { grain.memory.write(self.top.part(self.row(row))) };
            if self.bottom == self.top {
                let mean = self.mean(y, |x| x);
                on(self.isa, Change { y: &mut *y, f: |x| x - mean });
            } else {
                // SAFETY: another array, only read in this task.
                let x = unsafe { grain.memory.read(self.bottom.part(self.row(row))) };
                let mean = self.mean(x, |x| x);
                on(self.isa, Map { x, y: &mut *y, f: |x| x - mean });
            }
            let Some(divisors) = self.divisors else { continue };
            let divisor = self.mean(y, |y| y * y).sqrt() + self.eps;
            on(self.isa, Change { y, f: |y| y / divisor });
            // SAFETY: grains have rows of their own.
            (unsafe { grain.memory.write(divisors.part(row..row + 1)) })[0] = divisor;
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let in_place = bottom_grad == top_grad;
        for row in grain.share(self.rows) {
            // SAFETY: grains have rows of their own; in place, only the bottom's gradient is made a slice.
            let dx = unsafe { grain.memory.write(bottom_grad.part(self.row(row))) };
            // SAFETY: another array, only read in this task.
            let dy = (!in_place).then(|| unsafe { grain.memory.read(top_grad.part(self.row(row))) });
            let offset = self.mean(dy.unwrap_or(dx), |dy| dy);
            let Some(divisors) = self.divisors else {
                match dy {
                    Some(x) => on(self.isa, Map { x, y: dx, f: |dy| dy - offset }),
                    None => on(self.isa, Change { y: dx, f: |dy| dy - offset }),
                }
                continue;
            };
            // SAFETY: arrays that this task only reads.
            let (y, divisor) = unsafe {
                (
                    grain.memory.read(self.top.part(self.row(row))),
                    grain.memory.read(divisors.part(row..row + 1))[0],
                )
            };
            let mut sum = 0.0;
            on(self.isa, SumOfPairs { a: dy.unwrap_or(dx), b: y, f: |dy, y| dy * y, to: &mut sum });
            let slope = (sum / self.count as f64) as f32;
            let f = |dy: f32, y: f32| (dy - (offset + y * slope)) / divisor;
            match dy {
                Some(a) => on(self.isa, Zip { a, b: y, y: dx, f }),
                None => on(self.isa, Fold { x: y, y: dx, f }),
            }
        }
    }
}
