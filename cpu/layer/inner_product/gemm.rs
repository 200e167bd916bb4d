//! InnerProduct as three matrix products, each cut along what it writes:
//! forward `Y[N×O] = X[N×K] · Wᵀ + b`; ∇A `dX[N×K] = dY · W`; ∇W `dW[O×K] = dYᵀ · X`.

use std::ops::Range;

use quadrille_core::layer::{Layer, Operand, SubTask};

use crate::isa::Isa;
use crate::kernel::gemm::{Extents, Into, Matrix, Product, gemm, scratch};
use crate::layer::{Binder, Grain, LayerKernel, Stages, share};
use crate::memory::Span;

struct Gemm {
    isa: Isa,
    rows: usize,
    inputs: usize,
    outputs: usize,
    transpose: bool,
    bottom: Span,
    top: Span,
    weight: Span,
    bias: Option<Span>,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    weight_grad: Option<Span>,
    bias_grad: Option<Span>,
    grains: usize,
}

pub(in crate::layer) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::InnerProduct(ip) = &binder.layer().layer else { return None };
    let [rows, inputs] = ip.matrix(&binder.net.bottom_shapes(binder.id)[0]).ok()?;
    let flops = binder.net.flops(binder.id, SubTask::Forward);
    Some(Box::new(Gemm {
        isa: binder.isa,
        rows,
        inputs,
        outputs: ip.num_output,
        transpose: ip.transpose,
        bottom: binder.span(Operand::Bottom(0))?,
        top: binder.span(Operand::Top(0))?,
        weight: binder.span(Operand::Param(0))?,
        bias: binder.span(Operand::Param(1)),
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        weight_grad: binder.span(Operand::ParamGrad(0)),
        bias_grad: binder.span(Operand::ParamGrad(1)),
        // The narrowest side that is cut has at least one register tile a grain.
        grains: binder.machine.grains(flops, ip.num_output.min(inputs).div_ceil(binder.machine.tile_columns)),
    }))
}

impl Gemm {
    /// The weight as a matrix outputs × inputs.
    fn weight<'a>(&self, values: &'a [f32]) -> Matrix<'a> {
        if self.transpose {
            Matrix::rows(values, self.outputs).transposed()
        } else {
            Matrix::rows(values, self.inputs)
        }
    }

    /// Some columns of a product of `rows` rows, through a buffer of its own: grains share rows of the result, and
    /// no two may hold slices that overlap.
    fn columns_of(&self, grain: &mut Grain<'_>, part: Part<'_>, a: Matrix<'_>, b: Matrix<'_>, depth: usize) {
        let Part { columns, to, row_len, bias } = part;
        let extents = Extents { rows: self.rows, columns: columns.len(), depth };
        let (result, scratch) = grain.scratch.split_at_mut(self.rows * columns.len());
        let b = Matrix { values: &b.values[columns.start * b.column_stride..], ..b };
        gemm(self.isa, &Product { extents, a, b, into: Into::Replace }, result, columns.len(), scratch);
        for (row, from) in result.chunks(columns.len()).enumerate() {
            let part = to.part(row * row_len + columns.start..row * row_len + columns.end);
            // SAFETY: grains have columns of their own.
            let to = unsafe { grain.memory.write(part) };
            to.copy_from_slice(from);
            for (value, b) in to.iter_mut().zip(bias) {
                *value += b;
            }
        }
    }
}

/// The columns of a result that a grain computes.
struct Part<'a> {
    columns: Range<usize>,
    /// The whole result, whose rows have `row_len` columns.
    to: Span,
    row_len: usize,
    /// Added to each row; empty for none.
    bias: &'a [f32],
}

impl LayerKernel for Gemm {
    fn stages(&self, sub: SubTask) -> Stages {
        Stages::one(if sub == SubTask::GradBias { 1 } else { self.grains })
    }

    fn scratch(&self) -> usize {
        let widest = |n: usize| share(n, 0, self.grains).len();
        let of = |rows, columns, depth| scratch(self.isa, Extents { rows, columns, depth });
        let forward = self.rows * widest(self.outputs) + of(self.rows, widest(self.outputs), self.inputs);
        let activation = self.rows * widest(self.inputs) + of(self.rows, widest(self.inputs), self.outputs);
        let (o, i) = if self.transpose { (self.inputs, self.outputs) } else { (self.outputs, self.inputs) };
        forward.max(activation).max(of(widest(o), i, self.rows))
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let columns = grain.share(self.outputs);
        // SAFETY: only read in this task.
        let (x, weight, bias) = unsafe {
            (
                grain.memory.read(self.bottom),
                grain.memory.read(self.weight),
                self.bias.map_or(&[][..], |b| grain.memory.read(b.part(columns.clone()))),
            )
        };
        let (a, b) = (Matrix::rows(x, self.inputs), self.weight(weight).transposed());
        let part = Part { columns, to: self.top, row_len: self.outputs, bias };
        self.columns_of(grain, part, a, b, self.inputs);
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        // SAFETY: only read in this task.
        let (dy, weight) = unsafe { (grain.memory.read(top_grad), grain.memory.read(self.weight)) };
        let (a, b) = (Matrix::rows(dy, self.outputs), self.weight(weight));
        let part =
            Part { columns: grain.share(self.inputs), to: bottom_grad, row_len: self.inputs, bias: &[] };
        self.columns_of(grain, part, a, b, self.outputs);
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        let (Some(weight_grad), Some(top_grad)) = (self.weight_grad, self.top_grad) else { return };
        // SAFETY: only read in this task.
        let (x, dy) = unsafe { (grain.memory.read(self.bottom), grain.memory.read(top_grad)) };
        let (dy, x) = (Matrix::rows(dy, self.outputs), Matrix::rows(x, self.inputs));
        // (O, K) = dYᵀ·X, or (K, O) = Xᵀ·dY for a transposed weight.
        let (a, b, rows, columns) = if self.transpose {
            (x.transposed(), dy, self.inputs, self.outputs)
        } else {
            (dy.transposed(), x, self.outputs, self.inputs)
        };
        let share = grain.share(rows);
        if share.is_empty() {
            return;
        }
        // SAFETY: grains have rows of their own.
        let dw = unsafe { grain.memory.write(weight_grad.part(share.start * columns..share.end * columns)) };
        let a = Matrix { values: &a.values[share.start * a.row_stride..], ..a };
        let extents = Extents { rows: share.len(), columns, depth: self.rows };
        gemm(self.isa, &Product { extents, a, b, into: Into::Replace }, dw, columns, grain.scratch);
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        let (Some(bias_grad), Some(top_grad)) = (self.bias_grad, self.top_grad) else { return };
        // SAFETY: the task's only grain.
        let (db, dy) = unsafe { (grain.memory.write(bias_grad), grain.memory.read(top_grad)) };
        db.fill(0.0);
        for row in dy.chunks(self.outputs) {
            for (sum, value) in db.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}
