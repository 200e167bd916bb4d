//! Reductions of rows to one value each: rows are cut into parts, so that a single long one keeps all threads busy.

use std::ops::Range;

use quadrille_core::layer::{Layer, Operand, ReductionOperation, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::isa::Isa;
use crate::kernel::elements::{Change, Map};
use crate::kernel::sums::Sum;
use crate::kernel::vectorised::on;
use crate::memory::Span;

struct Rows {
    isa: Isa,
    operation: ReductionOperation,
    /// Factor of a sum.
    coeff: f32,
    rows: usize,
    /// Values of a row, and of a part of it.
    count: usize,
    part: usize,
    /// Parts of a row.
    parts: usize,
    bottom: Span,
    top: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    /// Sums of the parts.
    sums: Span,
    grains: usize,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Reduction(layer) = &binder.layer().layer else { return None };
    let [rows, count] = layer.rows(&binder.net.bottom_shapes(binder.id)[0]).ok()?;
    let (operation, coeff) = (layer.operation, layer.coeff);
    let is_mean = operation == ReductionOperation::Mean;
    let bottom = binder.span(Operand::Bottom(0))?;
    let part = binder.machine.grain_elements.clamp(1, count.max(1));
    let parts = count.div_ceil(part).max(1);
    Some(Box::new(Rows {
        isa: binder.isa,
        operation,
        coeff: if is_mean { coeff / count as f32 } else { coeff },
        rows,
        count,
        part,
        parts,
        bottom,
        top: binder.span(Operand::Top(0))?,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        sums: binder.workspace(SubTask::Forward, rows * parts),
        grains: binder.stream_grains(rows * count).min(rows * parts),
    }))
}

impl Rows {
    /// The row of a part, and where the part lies.
    fn place(&self, index: usize) -> (usize, Range<usize>) {
        let (row, part) = (index / self.parts, index % self.parts);
        let start = row * self.count;
        (row, start + part * self.part..start + ((part + 1) * self.part).min(self.count))
    }

    fn sum(&self, x: &[f32]) -> f32 {
        let mut sum = 0.0;
        let to = &mut sum;
        match self.operation {
            ReductionOperation::Sum | ReductionOperation::Mean => on(self.isa, Sum { x, f: |x| x, to }),
            ReductionOperation::AbsoluteSum => on(self.isa, Sum { x, f: f32::abs, to }),
            ReductionOperation::SumOfSquares => on(self.isa, Sum { x, f: |x| x * x, to }),
        }
        sum as f32
    }
}

impl LayerKernel for Rows {
    fn stages(&self, sub: SubTask) -> Stages {
        let parts = Stages::one(self.grains);
        if sub == SubTask::Forward { parts.then(1) } else { parts }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        if grain.stage == 0 {
            for index in grain.share(self.rows * self.parts) {
                // SAFETY: parts have places of their own; the bottom is another array.
                let (x, sum) = unsafe {
                    (
                        grain.memory.read(self.bottom.part(self.place(index).1)),
                        grain.memory.write(self.sums.part(index..index + 1)),
                    )
                };
                sum[0] = self.sum(x);
            }
            return;
        }
        // SAFETY: the stage's only grain; the sums were written in the one before.
        let (sums, y) = unsafe { (grain.memory.read(self.sums), grain.memory.write(self.top)) };
        for (y, sums) in y.iter_mut().zip(sums.chunks_exact(self.parts)) {
            let sum: f64 = sums.iter().map(|sum| f64::from(*sum)).sum();
            *y = self.coeff * sum as f32;
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        for index in grain.share(self.rows * self.parts) {
            let (row, place) = self.place(index);
            // SAFETY: parts have places of their own; the top's gradient is another array, only read in this task.
            let (dy, y) = unsafe {
                (grain.memory.read(top_grad)[row], grain.memory.write(bottom_grad.part(place.clone())))
            };
            // SAFETY: another array, which this task only reads, and only where its values count.
            let x = || unsafe { grain.memory.read(self.bottom.part(place)) };
            let slope = dy * self.coeff;
            match self.operation {
                ReductionOperation::Sum | ReductionOperation::Mean => {
                    on(self.isa, Change { y, f: |_| slope })
                }
                ReductionOperation::AbsoluteSum => {
                    let sign = |x: f32| {
                        let above = if x > 0.0 { 1.0 } else { 0.0 };
                        slope * if x < 0.0 { -1.0 } else { above }
                    };
                    on(self.isa, Map { x: x(), y, f: sign });
                }
                ReductionOperation::SumOfSquares => on(self.isa, Map { x: x(), y, f: |x| slope * (2.0 * x) }),
            }
        }
    }
}
