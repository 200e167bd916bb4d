//! RNN and LSTM, step by step and stream by stream; the formulas stand in [`crate::layer::Recurrent`].

use super::{Arrays, Context, Real};
use crate::layer::{Cell, Operand, Recurrent, Sequences, SubTask};

pub(super) fn compute<T: Real>(layer: &Recurrent, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let extents = layer.sequences(ctx.bottoms).expect("the bottoms fit: checked by infer");
    let run = Run { layer, extents };
    match sub {
        SubTask::Forward => run.forward(arrays),
        SubTask::GradActivation => run.backward(arrays),
        _ => {}
    }
}

fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// As Caffe computes it in an LSTM.
fn tanh<T: Real>(x: T) -> T {
    let two = T::ONE + T::ONE;
    two * sigmoid(two * x) - T::ONE
}

/// `y += W · x` for W (rows of y, columns of x).
fn add_product<T: Real>(y: &mut [T], w: &[T], x: &[T]) {
    for (y, row) in y.iter_mut().zip(w.chunks(x.len())) {
        row.iter().zip(x).for_each(|(w, x)| *y += *w * *x);
    }
}

/// `x += Wᵀ · y`.
fn add_transposed<T: Real>(x: &mut [T], w: &[T], y: &[T]) {
    for (row, y) in w.chunks(x.len()).zip(y) {
        x.iter_mut().zip(row).for_each(|(x, w)| *x += *w * *y);
    }
}

/// `W += y · xᵀ`.
fn add_outer<T: Real>(w: &mut [T], y: &[T], x: &[T]) {
    for (row, y) in w.chunks_mut(x.len()).zip(y) {
        row.iter_mut().zip(x).for_each(|(w, x)| *w += *y * *x);
    }
}

struct Run<'a> {
    layer: &'a Recurrent,
    extents: Sequences,
}

/// Part `i` of equal parts.
fn part<T>(values: &[T], i: usize, len: usize) -> &[T] {
    &values[i * len..(i + 1) * len]
}

impl Run<'_> {
    /// A state with what it was before the first step in its first row, and room for the others.
    fn started<T: Real>(&self, arrays: &Arrays<T>, index: usize, state: usize) -> Vec<T> {
        let Sequences { steps, streams, outputs, .. } = self.extents;
        let row = streams * outputs;
        let first = match self.layer.start(index) {
            Some(bottom) => arrays.get(bottom),
            None => part(arrays.get(Operand::Aux(state)), steps, row),
        };
        let mut states = vec![T::ZERO; (steps + 1) * row];
        states[..row].copy_from_slice(first);
        states
    }

    fn forward<T: Real>(&self, arrays: &mut Arrays<T>) {
        let Sequences { steps, streams, outputs: d, gates, .. } = self.extents;
        let mut h = self.started(arrays, 0, Recurrent::HIDDEN);
        let is_lstm = self.layer.cell == Cell::Lstm;
        let mut c = if is_lstm { self.started(arrays, 1, Recurrent::CELLS) } else { Vec::new() };
        let (mut top, mut all_gates) = (Vec::new(), Vec::new());
        for t in 0..steps {
            for n in 0..streams {
                let at = t * streams + n;
                let mut gate = self.before_nonlinearity(arrays, &h, t, n);
                let cont = arrays.get(Operand::Bottom(1))[at];
                let (before, after) = (at * d, (at + streams) * d);
                if is_lstm {
                    for (i, value) in gate.iter_mut().enumerate() {
                        *value = if i < 3 * d { sigmoid(*value) } else { tanh(*value) };
                    }
                    gate[d..2 * d]
                        .iter_mut()
                        .for_each(|f| *f = if cont == T::ZERO { T::ZERO } else { cont * *f });
                    for k in 0..d {
                        c[after + k] = gate[d + k] * c[before + k] + gate[k] * gate[3 * d + k];
                        h[after + k] = gate[2 * d + k] * tanh(c[after + k]);
                    }
                    top.extend_from_slice(&h[after..after + d]);
                    all_gates.extend(gate);
                } else {
                    debug_assert_eq!(gates, d);
                    h[after..after + d].iter_mut().zip(gate).for_each(|(h, value)| *h = tanh(value));
                    top.extend(self.output(arrays, &h[after..after + d]));
                }
            }
        }
        let last = |states: &[T]| part(states, steps, streams * d).to_vec();
        if self.layer.expose_hidden {
            arrays.insert(Operand::Top(1), last(&h));
            if is_lstm {
                arrays.insert(Operand::Top(2), last(&c));
            }
        }
        arrays.insert(Operand::Top(0), top);
        arrays.insert(Operand::Aux(Recurrent::HIDDEN), h);
        if is_lstm {
            arrays.insert(Operand::Aux(Recurrent::GATES), all_gates);
            arrays.insert(Operand::Aux(Recurrent::CELLS), c);
        }
    }

    /// `W_x · x_t + b + W_s · s + W_h · (cont_t · h_{t−1})`.
    fn before_nonlinearity<T: Real>(&self, arrays: &Arrays<T>, h: &[T], t: usize, n: usize) -> Vec<T> {
        let Sequences { streams, inputs, constants, outputs, gates, .. } = self.extents;
        let (params, at) = (self.layer.params(), t * streams + n);
        let mut gate = vec![T::ZERO; gates];
        let weight = |i| arrays.get(Operand::Param(i));
        add_product(&mut gate, weight(params.input), part(arrays.get(Operand::Bottom(0)), at, inputs));
        gate.iter_mut().zip(weight(params.bias)).for_each(|(gate, b)| *gate += *b);
        if let Some(constant) = params.constant {
            add_product(&mut gate, weight(constant), part(arrays.get(Operand::Bottom(2)), n, constants));
        }
        let goes_on = self.goes_on(arrays, h, at);
        debug_assert_eq!(goes_on.len(), outputs);
        add_product(&mut gate, weight(params.hidden), &goes_on);
        gate
    }

    /// `cont_t · h_{t−1}`.
    fn goes_on<T: Real>(&self, arrays: &Arrays<T>, h: &[T], at: usize) -> Vec<T> {
        let cont = arrays.get(Operand::Bottom(1))[at];
        part(h, at, self.extents.outputs).iter().map(|h| cont * *h).collect()
    }

    /// `tanh(W_o · h_t + b_o)`.
    fn output<T: Real>(&self, arrays: &Arrays<T>, h: &[T]) -> Vec<T> {
        let [weight, bias] = self.layer.params().output.expect("an RNN has an output");
        let mut output = vec![T::ZERO; h.len()];
        add_product(&mut output, arrays.get(Operand::Param(weight)), h);
        output.iter().zip(arrays.get(Operand::Param(bias))).map(|(o, b)| tanh(*o + *b)).collect()
    }

    fn backward<T: Real>(&self, arrays: &mut Arrays<T>) {
        let Sequences { steps, streams, inputs, constants, outputs: d, gates } = self.extents;
        let (params, is_lstm) = (self.layer.params(), self.layer.cell == Cell::Lstm);
        let zeros = |operand| vec![T::ZERO; arrays.get(operand).len()];
        let count = params.output.map_or(params.hidden, |[_, bias]| bias) + 1;
        let mut grads: Vec<Vec<T>> = (0..count).map(|i| zeros(Operand::Param(i))).collect();
        let mut dx = zeros(Operand::Bottom(0));
        let mut ds = vec![T::ZERO; streams * constants];
        // Of h and c between the step that is looked at and the one before it.
        let (mut dh, mut dc) = (vec![T::ZERO; streams * d], vec![T::ZERO; streams * d]);
        // Where only exposed states lead to a loss, the top has no gradient, and no gradient goes through them.
        let none = vec![T::ZERO; steps * streams * d];
        let top_grad = arrays.find(Operand::TopGrad(0)).unwrap_or(&none);
        for at in (0..steps * streams).rev() {
            let n = at % streams;
            let own = n * d..(n + 1) * d;
            let dy = part(top_grad, at, d);
            let gate = if is_lstm {
                dh[own.clone()].iter_mut().zip(dy).for_each(|(dh, dy)| *dh += *dy);
                self.lstm_step(arrays, at, &dh[own.clone()], &mut dc[own.clone()])
            } else {
                self.rnn_step(arrays, at, dy, &mut dh[own.clone()], &mut grads)
            };
            debug_assert_eq!(gate.len(), gates);
            let weight = |i| arrays.get(Operand::Param(i));
            let x = part(arrays.get(Operand::Bottom(0)), at, inputs);
            add_transposed(&mut dx[at * inputs..(at + 1) * inputs], weight(params.input), &gate);
            add_outer(&mut grads[params.input], &gate, x);
            grads[params.bias].iter_mut().zip(&gate).for_each(|(db, gate)| *db += *gate);
            if let Some(constant) = params.constant {
                let s = part(arrays.get(Operand::Bottom(2)), n, constants);
                add_transposed(&mut ds[n * constants..(n + 1) * constants], weight(constant), &gate);
                add_outer(&mut grads[constant], &gate, s);
            }
            let goes_on = self.goes_on(arrays, arrays.get(Operand::Aux(Recurrent::HIDDEN)), at);
            add_outer(&mut grads[params.hidden], &gate, &goes_on);
            let mut before = vec![T::ZERO; d];
            add_transposed(&mut before, weight(params.hidden), &gate);
            let cont = arrays.get(Operand::Bottom(1))[at];
            dh[own].iter_mut().zip(before).for_each(|(dh, before)| *dh = cont * before);
        }
        arrays.insert(Operand::BottomGrad(0), dx);
        if params.constant.is_some() {
            arrays.insert(Operand::BottomGrad(2), ds);
        }
        grads.into_iter().enumerate().for_each(|(i, grad)| arrays.insert(Operand::ParamGrad(i), grad));
    }

    /// The gradient before the nonlinearity of h_t, of the output's gradient and of that of h_t from the step after.
    fn rnn_step<T: Real>(
        &self,
        arrays: &Arrays<T>,
        at: usize,
        dy: &[T],
        dh: &mut [T],
        grads: &mut [Vec<T>],
    ) -> Vec<T> {
        let (d, streams) = (self.extents.outputs, self.extents.streams);
        let [weight, bias] = self.layer.params().output.expect("an RNN has an output");
        let (y, h) = (
            part(arrays.get(Operand::Top(0)), at, d),
            part(arrays.get(Operand::Aux(Recurrent::HIDDEN)), at + streams, d),
        );
        let through = |dy: &T, y: &T| *dy * (T::ONE - *y * *y);
        let output: Vec<T> = dy.iter().zip(y).map(|(dy, y)| through(dy, y)).collect();
        add_outer(&mut grads[weight], &output, h);
        grads[bias].iter_mut().zip(&output).for_each(|(db, o)| *db += *o);
        add_transposed(dh, arrays.get(Operand::Param(weight)), &output);
        dh.iter().zip(h).map(|(dh, h)| through(dh, h)).collect()
    }

    /// The gradients before the nonlinearities of an LSTM's gates, of those of h_t and c_t; leaves that of c_{t−1}.
    fn lstm_step<T: Real>(&self, arrays: &Arrays<T>, at: usize, dh: &[T], dc: &mut [T]) -> Vec<T> {
        let (d, streams) = (self.extents.outputs, self.extents.streams);
        let gate = part(arrays.get(Operand::Aux(Recurrent::GATES)), at, 4 * d);
        let cells = arrays.get(Operand::Aux(Recurrent::CELLS));
        let (before, after) = (part(cells, at, d), part(cells, at + streams, d));
        let mut grad = vec![T::ZERO; 4 * d];
        for k in 0..d {
            let [i, f, o, g] = [0, 1, 2, 3].map(|which| gate[which * d + k]);
            let tanh_c = tanh(after[k]);
            let dcell = dc[k] + dh[k] * o * (T::ONE - tanh_c * tanh_c);
            grad[k] = dcell * g * i * (T::ONE - i);
            // With f as cont times the gate, as in Caffe: exact where cont is 0 or 1.
            grad[d + k] = dcell * before[k] * f * (T::ONE - f);
            grad[2 * d + k] = dh[k] * tanh_c * o * (T::ONE - o);
            grad[3 * d + k] = dcell * i * (T::ONE - g * g);
            dc[k] = dcell * f;
        }
        grad
    }
}
