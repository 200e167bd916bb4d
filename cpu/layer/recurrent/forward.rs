//! Forward through the steps.

use quadrille_core::layer::{Operand, Sequences};

use super::{Kernel, rows, sigmoid, tanh};
use crate::kernel::gemm::Into;
use crate::layer::Grain;
use crate::memory::{Memory, Span};

impl Kernel {
    /// Where rows of `x̂` are made, and then what comes of them: gates, or an RNN's h behind the one before the first step.
    fn gate_rows(&self) -> Span {
        let Sequences { steps, streams, outputs, .. } = self.extents;
        self.gates.unwrap_or_else(|| rows(self.states[0], streams..(steps + 1) * streams, outputs))
    }

    /// The states before the first step: those of a bottom, or those after the last step of the mini-batch before.
    pub(super) fn begin(&self, memory: &Memory) {
        let Sequences { steps, streams, outputs, .. } = self.extents;
        for (index, state) in self.states.iter().enumerate() {
            let from = match self.layer.start(index) {
                Some(Operand::Bottom(i)) => self.bottoms[i],
                _ => rows(*state, steps * streams..(steps + 1) * streams, outputs),
            };
            // SAFETY: the stage's only grain; before and after are different rows.
            unsafe { memory.write(rows(*state, 0..streams, outputs)).copy_from_slice(memory.read(from)) }
        }
    }

    /// `W_x · x + b + W_s · s` for some rows.
    pub(super) fn transform_inputs(&self, grain: &mut Grain<'_>) {
        let Sequences { steps, streams, inputs, constants, gates, .. } = self.extents;
        let own = grain.share(steps * streams);
        if own.is_empty() {
            return;
        }
        // SAFETY: grains have rows of their own; the rest is only read in this task.
        let (x, to) = unsafe {
            (
                grain.memory.read(rows(self.bottoms[0], own.clone(), inputs)),
                grain.memory.write(rows(self.gate_rows(), own.clone(), gates)),
            )
        };
        let weight = |i| self.weight(grain.memory, i);
        self.by_rows(x, weight(self.params.input), inputs, Into::Replace, to, grain.scratch);
        let bias = weight(self.params.bias);
        to.chunks_mut(gates).for_each(|row| row.iter_mut().zip(bias).for_each(|(gate, b)| *gate += b));
        let Some(constant) = self.params.constant else { return };
        // SAFETY: only read in this task.
        let s = unsafe { grain.memory.read(self.bottoms[2]) };
        for (row, to) in own.zip(to.chunks_mut(gates)) {
            let stream = row % streams;
            let s = &s[stream * constants..(stream + 1) * constants];
            self.by_rows(s, weight(constant), constants, Into::Add, to, grain.scratch);
        }
    }

    /// Takes some streams through all steps.
    pub(super) fn steps(&self, grain: &mut Grain<'_>) {
        let Sequences { steps, streams, outputs: d, gates, .. } = self.extents;
        let own = grain.share(streams);
        if own.is_empty() {
            return;
        }
        let (gone_on, scratch) = std::mem::take(&mut grain.scratch).split_at_mut(own.len() * d);
        for t in 0..steps {
            let now = t * streams + own.start..t * streams + own.end;
            let after = now.start + streams..now.end + streams;
            self.go_on(grain.memory, now.clone(), gone_on);
            // SAFETY: grains have streams of their own.
            let gate = unsafe { grain.memory.write(rows(self.gate_rows(), now.clone(), gates)) };
            let weight = self.weight(grain.memory, self.params.hidden);
            self.by_rows(gone_on, weight, d, Into::Add, gate, scratch);
            match self.gates {
                // An RNN's h lies where its gates do.
                None => gate.iter_mut().for_each(|h| *h = tanh(*h)),
                Some(_) => self.lstm_step(grain.memory, now, after, gate),
            }
        }
    }

    /// `cont_t · h_{t−1}` of some rows.
    pub(super) fn go_on(&self, memory: &Memory, now: std::ops::Range<usize>, to: &mut [f32]) {
        let d = self.extents.outputs;
        // SAFETY: states of earlier steps, which nobody else changes in this stage.
        let before = unsafe { memory.read(rows(self.states[0], now.clone(), d)) };
        let cont = self.cont(memory, now);
        for ((to, before), cont) in to.chunks_mut(d).zip(before.chunks(d)).zip(cont) {
            to.iter_mut().zip(before).for_each(|(to, h)| *to = cont * h);
        }
    }

    /// Gates, cell and h of some streams in a step, of what comes into the gates.
    fn lstm_step(
        &self,
        memory: &Memory,
        now: std::ops::Range<usize>,
        after: std::ops::Range<usize>,
        gate: &mut [f32],
    ) {
        let d = self.extents.outputs;
        // SAFETY: grains have streams of their own; before and after are rows of different steps.
        let (before, cell, h, top) = unsafe {
            (
                memory.read(rows(self.states[1], now.clone(), d)),
                memory.write(rows(self.states[1], after.clone(), d)),
                memory.write(rows(self.states[0], after, d)),
                memory.write(rows(self.tops[0], now.clone(), d)),
            )
        };
        let cont = self.cont(memory, now);
        for (stream, gate) in gate.chunks_mut(4 * d).enumerate() {
            let (sigmoids, candidates) = gate.split_at_mut(3 * d);
            sigmoids.iter_mut().for_each(|gate| *gate = sigmoid(*gate));
            candidates.iter_mut().for_each(|candidate| *candidate = tanh(*candidate));
            let goes_on = cont[stream];
            sigmoids[d..2 * d].iter_mut().for_each(|f| *f = if goes_on == 0.0 { 0.0 } else { goes_on * *f });
            for k in 0..d {
                let at = stream * d + k;
                cell[at] = sigmoids[d + k] * before[at] + sigmoids[k] * candidates[k];
                h[at] = sigmoids[2 * d + k] * tanh(cell[at]);
                top[at] = h[at];
            }
        }
    }

    /// An RNN's output, and the states after the last step where they are tops.
    pub(super) fn finish(&self, grain: &mut Grain<'_>) {
        let Sequences { steps, streams, outputs: d, .. } = self.extents;
        if grain.index == 0 {
            for (state, top) in self.states.iter().zip(&self.tops[1..]) {
                let last = rows(*state, steps * streams..(steps + 1) * streams, d);
                // SAFETY: one grain does this; the states are only read in this stage.
                unsafe { grain.memory.write(*top).copy_from_slice(grain.memory.read(last)) }
            }
        }
        let Some([weight, bias]) = self.params.output else { return };
        let own = grain.share(steps * streams);
        if own.is_empty() {
            return;
        }
        // SAFETY: grains have rows of their own; h is only read in this stage.
        let (h, top) = unsafe {
            (
                grain.memory.read(rows(self.states[0], own.start + streams..own.end + streams, d)),
                grain.memory.write(rows(self.tops[0], own, d)),
            )
        };
        let [weight, bias] = [weight, bias].map(|i| self.weight(grain.memory, i));
        self.by_rows(h, weight, d, Into::Replace, top, grain.scratch);
        for row in top.chunks_mut(d) {
            row.iter_mut().zip(bias).for_each(|(o, b)| *o = tanh(*o + b));
        }
    }
}
