//! Layers whose values are places or are found by them: ArgMax, Embed.

use quadrille_core::layer::{Compared, Layer, Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct ArgMax {
    layer: quadrille_core::layer::ArgMax,
    compared: Compared,
    bottom: Span,
    top: Span,
    grains: usize,
}

pub(super) fn argmax(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::ArgMax(layer) = &binder.layer().layer else { return None };
    let compared = layer.compared(&binder.net.bottom_shapes(binder.id)[0]).ok()?;
    let (bottom, top) = (binder.span(Operand::Bottom(0))?, binder.span(Operand::Top(0))?);
    let grains = binder.stream_grains(bottom.len().saturating_mul(layer.top_k)).min(compared.outer);
    Some(Box::new(ArgMax { layer: layer.clone(), compared, bottom, top, grains }))
}

/// The best of the values that come after the one at `last`, and its place: of equal values the larger place comes first,
/// and what is not a number never comes.
fn next(last: Option<(f32, usize)>, values: impl Iterator<Item = f32>) -> Option<(f32, usize)> {
    let before = |a: (f32, usize), b: (f32, usize)| a.0 > b.0 || (a.0 == b.0 && a.1 > b.1);
    let mut best: Option<(f32, usize)> = None;
    for (place, value) in values.enumerate() {
        let this = (value, place);
        let comes = !value.is_nan() && last.is_none_or(|last| before(last, this));
        if comes && best.is_none_or(|best| before(this, best)) {
            best = Some(this);
        }
    }
    best
}

impl LayerKernel for ArgMax {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let Compared { outer, extent, inner } = self.compared;
        let (row, top_k) = (self.layer.row(self.compared), self.layer.top_k);
        for o in grain.share(outer) {
            let from = o * extent * inner..(o + 1) * extent * inner;
            // SAFETY: grains have rows of their own; bottom and top are different arrays.
            let (x, y) = unsafe {
                (
                    grain.memory.read(self.bottom.part(from)),
                    grain.memory.write(self.top.part(o * row..(o + 1) * row)),
                )
            };
            for i in 0..inner {
                let values = || x[i..].iter().step_by(inner).copied();
                let mut found = next(None, values());
                for k in 0..top_k {
                    let (value, place) =
                        found.map_or((f32::NAN, f32::NAN), |(value, place)| (value, place as f32));
                    match (self.layer.axis, self.layer.out_max_val) {
                        (None, true) => (y[k], y[top_k + k]) = (place, value),
                        (_, true) => y[k * inner + i] = value,
                        (_, false) => y[k * inner + i] = place,
                    }
                    found = found.and_then(|last| next(Some(last), values()));
                }
            }
        }
    }
}

struct Embed {
    layer: quadrille_core::layer::Embed,
    indices: Span,
    top: Span,
    weight: Span,
    bias: Option<Span>,
    top_grad: Option<Span>,
    weight_grad: Option<Span>,
    bias_grad: Option<Span>,
    grains: usize,
    weight_grains: usize,
}

pub(super) fn embed(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Embed(layer) = &binder.layer().layer else { return None };
    let (top, weight) = (binder.span(Operand::Top(0))?, binder.span(Operand::Param(0))?);
    Some(Box::new(Embed {
        layer: layer.clone(),
        indices: binder.span(Operand::Bottom(0))?,
        top,
        weight,
        bias: binder.span(Operand::Param(1)),
        top_grad: binder.span(Operand::TopGrad(0)),
        weight_grad: binder.span(Operand::ParamGrad(0)),
        bias_grad: binder.span(Operand::ParamGrad(1)),
        grains: binder.stream_grains(top.len()),
        weight_grains: binder.stream_grains(weight.len().max(top.len())),
    }))
}

impl LayerKernel for Embed {
    fn stages(&self, sub: SubTask) -> Stages {
        match sub {
            SubTask::GradWeight => Stages::one(self.weight_grains),
            SubTask::GradBias => Stages::one(1),
            _ => Stages::one(self.grains),
        }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let outputs = self.layer.num_output;
        // SAFETY: only read in this task.
        let (indices, weight, bias) = unsafe {
            (
                grain.memory.read(self.indices),
                grain.memory.read(self.weight),
                self.bias.map_or(&[][..], |bias| grain.memory.read(bias)),
            )
        };
        for m in grain.share(indices.len()) {
            // SAFETY: grains have rows of their own.
            let y = unsafe { grain.memory.write(self.top.part(m * outputs..(m + 1) * outputs)) };
            match self.layer.row(f64::from(indices[m])) {
                Some(row) => y.copy_from_slice(&weight[row * outputs..(row + 1) * outputs]),
                None => y.fill(f32::NAN),
            }
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
    }

    /// Each grain looks at all indices and adds to rows of its own, so that their sums have one order.
    fn grad_weight(&self, grain: &mut Grain<'_>) {
        let (Some(weight_grad), Some(top_grad)) = (self.weight_grad, self.top_grad) else { return };
        let (outputs, rows) = (self.layer.num_output, grain.share(self.layer.input_dim));
        let own = weight_grad.part(rows.start * outputs..rows.end * outputs);
        // SAFETY: grains have rows of their own; the rest is only read in this task.
        let (dw, indices, dy) = unsafe {
            (grain.memory.write(own), grain.memory.read(self.indices), grain.memory.read(top_grad))
        };
        dw.fill(0.0);
        for (index, dy) in indices.iter().zip(dy.chunks(outputs)) {
            let Some(row) = self.layer.row(f64::from(*index)).filter(|row| rows.contains(row)) else {
                continue;
            };
            let first = (row - rows.start) * outputs;
            dw[first..first + outputs].iter_mut().zip(dy).for_each(|(dw, dy)| *dw += dy);
        }
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        let (Some(bias_grad), Some(top_grad)) = (self.bias_grad, self.top_grad) else { return };
        // SAFETY: the task's only grain.
        let (db, dy) = unsafe { (grain.memory.write(bias_grad), grain.memory.read(top_grad)) };
        db.fill(0.0);
        for dy in dy.chunks(self.layer.num_output) {
            db.iter_mut().zip(dy).for_each(|(db, dy)| *db += dy);
        }
    }
}
