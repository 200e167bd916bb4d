//! RNN and LSTM by matrix products. Streams do not see each other, so each grain takes some of them through all steps; what
//! needs all steps, the products with x before and the gradients of the parameters after, is cut over rows.
//!
//! Forward: the state before the first step; `x̂ = W_x · x + b` of all steps; step by step the rest; an RNN's output.
//! Backward: an RNN's output; the steps backwards, which leave the gradients before the nonlinearities; the bottoms'
//! gradients; the parameters'. Rows are (step, stream).

mod backward;
mod forward;

use quadrille_core::layer::{Cell, Layer, Operand, Recurrent, RecurrentParams, Sequences, SubTask};

use super::{Binder, Grain, LayerKernel, Stages, share};
use crate::isa::Isa;
use crate::kernel::gemm::{Extents, Into, Matrix, Product, gemm, scratch};
use crate::memory::{Memory, Span};

struct Kernel {
    isa: Isa,
    layer: Recurrent,
    params: RecurrentParams,
    extents: Sequences,
    bottoms: Vec<Span>,
    tops: Vec<Span>,
    weights: Vec<Span>,
    /// h, and an LSTM's c.
    states: Vec<Span>,
    /// An LSTM's gates.
    gates: Option<Span>,
    top_grad: Option<Span>,
    bottom_grad: Option<Span>,
    constant_grad: Option<Span>,
    weight_grads: Vec<Option<Span>>,
    work: Work,
    row_grains: usize,
    stream_grains: usize,
}

/// What backward keeps from stage to stage.
struct Work {
    /// Gradients before the nonlinearities (rows, G), and their sums over the steps (N, G).
    gates: Span,
    summed: Span,
    /// `cont_t · h_{t−1}` (rows, D).
    gone_on: Span,
    /// Gradient before the nonlinearity of an RNN's output, and what it is to h (rows, D).
    output: Span,
    hidden: Span,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Recurrent(layer) = &binder.layer().layer else { return None };
    let extents = layer.sequences(&binder.net.bottom_shapes(binder.id)).ok()?;
    let Sequences { steps, streams, outputs, gates, .. } = extents;
    let (rows, is_lstm) = (steps * streams, layer.cell == Cell::Lstm);
    let (bottoms, tops, params) =
        (binder.layer().bottoms.len(), binder.layer().tops.len(), binder.layer().params.len());
    let mut spans = |operand: fn(usize) -> Operand, count| -> Option<Vec<Span>> {
        (0..count).map(|i| binder.span(operand(i))).collect()
    };
    let (bottoms, tops, weights) =
        (spans(Operand::Bottom, bottoms)?, spans(Operand::Top, tops)?, spans(Operand::Param, params)?);
    let mut states = vec![binder.span(Operand::Aux(Recurrent::HIDDEN))?];
    if is_lstm {
        states.push(binder.span(Operand::Aux(Recurrent::CELLS))?);
    }
    let mut work = |len: usize| binder.workspace(SubTask::GradActivation, len);
    let of_output = if is_lstm { 0 } else { rows * outputs };
    let work = Work {
        gates: work(rows * gates),
        summed: work(streams * gates),
        gone_on: work(rows * outputs),
        output: work(of_output),
        hidden: work(of_output),
    };
    let flops = binder.net.flops(binder.id, SubTask::Forward);
    Some(Box::new(Kernel {
        isa: binder.isa,
        layer: layer.clone(),
        params: layer.params(),
        extents,
        bottoms,
        tops,
        weights,
        states,
        gates: if is_lstm { Some(binder.span(Operand::Aux(Recurrent::GATES))?) } else { None },
        top_grad: binder.span(Operand::TopGrad(0)),
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        constant_grad: if layer.has_static() { binder.span(Operand::BottomGrad(2)) } else { None },
        weight_grads: (0..params).map(|i| binder.span(Operand::ParamGrad(i))).collect(),
        work,
        row_grains: binder.machine.grains(flops, rows),
        stream_grains: binder.machine.grains(flops, streams),
    }))
}

/// Some rows of an array whose rows have `len` elements.
fn rows(span: Span, rows: std::ops::Range<usize>, len: usize) -> Span {
    span.part(rows.start * len..rows.end * len)
}

impl Kernel {
    fn is_lstm(&self) -> bool {
        self.layer.cell == Cell::Lstm
    }

    /// The parameter's values.
    fn weight<'a>(&self, memory: &'a Memory, i: usize) -> &'a [f32] {
        // SAFETY: only read in this task.
        unsafe { memory.read(self.weights[i]) }
    }

    /// What of h goes on into each stream of a step: 1, or 0 where a sequence begins.
    fn cont<'a>(&self, memory: &'a Memory, rows: std::ops::Range<usize>) -> &'a [f32] {
        // SAFETY: only read in this task.
        unsafe { memory.read(self.bottoms[1].part(rows)) }
    }

    /// `to = a · bᵀ`, or adds that to it, for `a` of rows of `depth` elements and `b` of as many as `to` has columns.
    fn by_rows(&self, a: &[f32], b: &[f32], depth: usize, into: Into, to: &mut [f32], scratch: &mut [f32]) {
        let (rows, columns) = (a.len() / depth, b.len() / depth);
        let (a, b) = (Matrix::rows(a, depth), Matrix::rows(b, depth).transposed());
        let product = Product { extents: Extents { rows, columns, depth }, a, b, into };
        gemm(self.isa, &product, to, columns, scratch);
    }

    /// `to = a · b` for `a` of rows of `depth` elements and `b` of `depth` rows.
    fn through(&self, a: &[f32], b: &[f32], depth: usize, to: &mut [f32], scratch: &mut [f32]) {
        let (rows, columns) = (a.len() / depth, b.len() / depth);
        let (a, b) = (Matrix::rows(a, depth), Matrix::rows(b, columns));
        let extents = Extents { rows, columns, depth };
        gemm(self.isa, &Product { extents, a, b, into: Into::Replace }, to, columns, scratch);
    }

    /// Elements of scratch that products need, whichever way they are cut.
    fn product_scratch(&self) -> usize {
        let Sequences { steps, streams, inputs, constants, outputs, gates } = self.extents;
        let of = |rows, columns, depth| scratch(self.isa, Extents { rows, columns, depth });
        let rows = share(steps * streams, 0, self.row_grains).len();
        let some = share(streams, 0, self.stream_grains).len();
        let widest = inputs.max(outputs).max(constants);
        let by_step = of(some, gates, outputs).max(of(some, outputs, gates));
        let by_rows = of(rows, gates, inputs).max(of(rows, widest, gates)).max(of(rows, outputs, outputs));
        let constant = of(some, gates, constants.max(1)).max(of(streams, constants.max(1), gates));
        let weights = of(share(gates.max(outputs), 0, self.row_grains).len(), widest, steps * streams);
        by_step.max(by_rows).max(constant).max(weights)
    }
}

impl LayerKernel for Kernel {
    fn stages(&self, sub: SubTask) -> Stages {
        let (rows, streams) = (self.row_grains, self.stream_grains);
        match (sub, self.is_lstm()) {
            (SubTask::Forward, _) => Stages::one(1).then(rows).then(streams).then(rows),
            (SubTask::GradActivation, false) => Stages::one(rows).then(streams).then(rows).then(rows),
            _ => Stages::one(streams).then(rows).then(rows),
        }
    }

    fn scratch(&self) -> usize {
        let some = share(self.extents.streams, 0, self.stream_grains).len();
        // What goes on, the gradients of h and c; an RNN's output needs none.
        some * 3 * self.extents.outputs + self.product_scratch()
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        match grain.stage {
            0 => self.begin(grain.memory),
            1 => self.transform_inputs(grain),
            2 => self.steps(grain),
            _ => self.finish(grain),
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        // An LSTM has no output of its own.
        match grain.stage + usize::from(self.is_lstm()) {
            0 => self.through_output(grain),
            1 => self.steps_back(grain),
            2 => self.to_bottoms(grain),
            _ => self.to_weights(grain),
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// As Caffe computes it in an LSTM.
fn tanh(x: f32) -> f32 {
    2.0 * sigmoid(2.0 * x) - 1.0
}
