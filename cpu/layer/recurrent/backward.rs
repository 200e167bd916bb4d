//! Backward through the steps.

use std::ops::Range;

use quadrille_core::layer::Sequences;

use super::{Kernel, rows, tanh};
use crate::kernel::gemm::{Extents, Into, Matrix, Product, gemm};
use crate::layer::Grain;
use crate::memory::{Memory, Span};

impl Kernel {
    /// The gradient of an RNN's output before its nonlinearity, and what it is to h.
    pub(super) fn through_output(&self, grain: &mut Grain<'_>) {
        let Sequences { steps, streams, outputs: d, .. } = self.extents;
        let (Some([weight, _]), own) = (self.params.output, grain.share(steps * streams)) else { return };
        if own.is_empty() {
            return;
        }
        // SAFETY: grains have rows of their own; the rest is only read in this task.
        let (y, output, hidden) = unsafe {
            (
                grain.memory.read(rows(self.tops[0], own.clone(), d)),
                grain.memory.write(rows(self.work.output, own.clone(), d)),
                grain.memory.write(rows(self.work.hidden, own.clone(), d)),
            )
        };
        output.fill(0.0);
        if let Some(top_grad) = self.top_grad {
            // SAFETY: only read in this task.
            let dy = unsafe { grain.memory.read(rows(top_grad, own, d)) };
            for ((output, dy), y) in output.iter_mut().zip(dy).zip(y) {
                *output = dy * (1.0 - y * y);
            }
        }
        self.through(output, self.weight(grain.memory, weight), d, hidden, grain.scratch);
    }

    /// Takes some streams through all steps backwards.
    pub(super) fn steps_back(&self, grain: &mut Grain<'_>) {
        let Sequences { steps, streams, outputs: d, gates, .. } = self.extents;
        let own = grain.share(streams);
        if own.is_empty() {
            return;
        }
        let (dh, scratch) = std::mem::take(&mut grain.scratch).split_at_mut(own.len() * d);
        let (dc, scratch) = scratch.split_at_mut(own.len() * d);
        dh.fill(0.0);
        dc.fill(0.0);
        let from_top = if self.is_lstm() { self.top_grad } else { Some(self.work.hidden) };
        let memory = grain.memory;
        for t in (0..steps).rev() {
            let now = t * streams + own.start..t * streams + own.end;
            if let Some(from_top) = from_top {
                // SAFETY: nobody changes it in this stage.
                let from_top = unsafe { memory.read(rows(from_top, now.clone(), d)) };
                dh.iter_mut().zip(from_top).for_each(|(dh, dy)| *dh += dy);
            }
            // SAFETY: grains have streams of their own.
            let (gate, gone_on) = unsafe {
                (
                    memory.write(rows(self.work.gates, now.clone(), gates)),
                    memory.write(rows(self.work.gone_on, now.clone(), d)),
                )
            };
            self.go_on(memory, now.clone(), gone_on);
            match self.gates {
                Some(values) => self.lstm_step_back(memory, values, now.clone(), dh, dc, gate),
                None => {
                    // SAFETY: only read in this task.
                    let h = unsafe {
                        memory.read(rows(self.states[0], now.start + streams..now.end + streams, d))
                    };
                    for ((gate, dh), h) in gate.iter_mut().zip(&*dh).zip(h) {
                        *gate = dh * (1.0 - h * h);
                    }
                }
            }
            self.through(gate, self.weight(memory, self.params.hidden), gates, dh, scratch);
            for (dh, cont) in dh.chunks_mut(d).zip(self.cont(memory, now)) {
                dh.iter_mut().for_each(|dh| *dh *= cont);
            }
        }
    }

    /// The gradients before the nonlinearities of the gates of some streams, of those of h and c; leaves that of c before.
    fn lstm_step_back(
        &self,
        memory: &Memory,
        values: Span,
        now: Range<usize>,
        dh: &[f32],
        dc: &mut [f32],
        gate: &mut [f32],
    ) {
        let Sequences { streams, outputs: d, .. } = self.extents;
        // SAFETY: only read in this task.
        let (values, before, after) = unsafe {
            (
                memory.read(rows(values, now.clone(), 4 * d)),
                memory.read(rows(self.states[1], now.clone(), d)),
                memory.read(rows(self.states[1], now.start + streams..now.end + streams, d)),
            )
        };
        for (stream, (values, gate)) in values.chunks(4 * d).zip(gate.chunks_mut(4 * d)).enumerate() {
            for k in 0..d {
                let at = stream * d + k;
                let [i, f, o, g] = [0, 1, 2, 3].map(|which| values[which * d + k]);
                let tanh_c = tanh(after[at]);
                let cell = dc[at] + dh[at] * o * (1.0 - tanh_c * tanh_c);
                gate[k] = cell * g * i * (1.0 - i);
                gate[d + k] = cell * before[at] * f * (1.0 - f);
                gate[2 * d + k] = dh[at] * tanh_c * o * (1.0 - o);
                gate[3 * d + k] = cell * i * (1.0 - g * g);
                dc[at] = cell * f;
            }
        }
    }

    /// The gradients of x, and the sums over the steps of those before the nonlinearities, with which a static input met.
    pub(super) fn to_bottoms(&self, grain: &mut Grain<'_>) {
        let Sequences { steps, streams, inputs, gates, constants, .. } = self.extents;
        let own = grain.share(steps * streams);
        if let Some(bottom_grad) = self.bottom_grad.filter(|_| !own.is_empty()) {
            // SAFETY: grains have rows of their own; the gates' are only read in this stage.
            let (gate, dx) = unsafe {
                (
                    grain.memory.read(rows(self.work.gates, own.clone(), gates)),
                    grain.memory.write(rows(bottom_grad, own, inputs)),
                )
            };
            self.through(gate, self.weight(grain.memory, self.params.input), gates, dx, grain.scratch);
        }
        let (Some(constant), own) = (self.params.constant, grain.share(streams)) else { return };
        if own.is_empty() {
            return;
        }
        // SAFETY: grains have streams of their own; the gates' are only read in this stage.
        let (all, summed) = unsafe {
            (
                grain.memory.read(self.work.gates),
                grain.memory.write(rows(self.work.summed, own.clone(), gates)),
            )
        };
        summed.fill(0.0);
        for t in 0..steps {
            let now = &all[(t * streams + own.start) * gates..(t * streams + own.end) * gates];
            summed.iter_mut().zip(now).for_each(|(sum, gate)| *sum += gate);
        }
        if let Some(constant_grad) = self.constant_grad {
            // SAFETY: grains have streams of their own.
            let ds = unsafe { grain.memory.write(rows(constant_grad, own, constants)) };
            self.through(summed, self.weight(grain.memory, constant), gates, ds, grain.scratch);
        }
    }

    /// The gradients of all parameters, each by rows.
    pub(super) fn to_weights(&self, grain: &mut Grain<'_>) {
        let Sequences { steps, streams, inputs, constants, outputs: d, gates } = self.extents;
        let all = steps * streams;
        let params = self.params;
        let gate = Factor { of: self.work.gates, rows: all, len: gates };
        let met = |of: Span, len: usize| Factor { of, rows: all, len };
        self.outer(grain, params.input, gate, met(self.bottoms[0], inputs));
        self.outer(grain, params.hidden, gate, met(self.work.gone_on, d));
        self.sum(grain, params.bias, gate);
        if let Some(constant) = params.constant {
            let summed = Factor { of: self.work.summed, rows: streams, len: gates };
            self.outer(
                grain,
                constant,
                summed,
                Factor { of: self.bottoms[2], rows: streams, len: constants },
            );
        }
        if let Some([weight, bias]) = params.output {
            let output = Factor { of: self.work.output, rows: all, len: d };
            let after = rows(self.states[0], streams..(steps + 1) * streams, d);
            self.outer(grain, weight, output, met(after, d));
            self.sum(grain, bias, output);
        }
    }

    /// `dW = aᵀ · b` for some rows of dW.
    fn outer(&self, grain: &mut Grain<'_>, param: usize, a: Factor, b: Factor) {
        let (Some(to), own) = (self.weight_grads[param], grain.share(a.len)) else { return };
        if own.is_empty() {
            return;
        }
        // SAFETY: grains have rows of their own; the factors are only read in this stage.
        let (dw, left, right) = unsafe {
            (
                grain.memory.write(rows(to, own.clone(), b.len)),
                grain.memory.read(a.of),
                grain.memory.read(b.of),
            )
        };
        let left = Matrix::rows(&left[own.start..], a.len).transposed();
        let extents = Extents { rows: own.len(), columns: b.len, depth: a.rows };
        let right = Matrix::rows(right, b.len);
        let product = Product { extents, a: left, b: right, into: Into::Replace };
        gemm(self.isa, &product, dw, b.len, grain.scratch);
    }

    /// The sums of some columns.
    fn sum(&self, grain: &Grain<'_>, param: usize, a: Factor) {
        let (Some(to), own) = (self.weight_grads[param], grain.share(a.len)) else { return };
        // SAFETY: grains have elements of their own; the factor is only read in this stage.
        let (db, all) = unsafe { (grain.memory.write(to.part(own.clone())), grain.memory.read(a.of)) };
        db.fill(0.0);
        for row in all.chunks(a.len) {
            db.iter_mut().zip(&row[own.clone()]).for_each(|(db, value)| *db += value);
        }
    }
}

/// A matrix of so many rows.
#[derive(Clone, Copy)]
struct Factor {
    of: Span,
    rows: usize,
    len: usize,
}
