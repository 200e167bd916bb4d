//! Recurrent layers, RNN and LSTM, over sequences of (T steps, N streams, …).
//!
//! With `x̂_t = W_x · x_t + b + W_s · s` for a static input s, and `ĥ_t = cont_t · h_{t−1}`, where cont is 0 for the first
//! step of a sequence and 1 for the others:
//!
//! - RNN: `h_t = tanh(x̂_t + W_h · ĥ_t)`, top `o_t = tanh(W_o · h_t + b_o)`;
//! - LSTM: `(i, f, o, g) = x̂_t + W_h · ĥ_t`, `c_t = cont_t · σ(f) · c_{t−1} + σ(i) · tanh(g)`, top `h_t = σ(o) · tanh(c_t)`.
//!
//! Caffe makes a net of simple layers of it, one set for each step, which share their parameters. Here it is one layer: a
//! kernel goes through the steps of each stream, streams are independent, and gradients of the parameters are one product
//! over all steps at the end, instead of a gradient for each step. The parameters are those of Caffe's layer, in its order.
//!
//! A mini-batch goes on where the one before ended: the state after the last step is the first one's before it. It belongs
//! to the layer ([`Operand::Aux`]) and is 0 at first. Snapshots hold it, which those of Caffe do not. With `expose_hidden`
//! bottoms say how a mini-batch starts and tops how it ends; as in Caffe no gradient goes through them.

use super::{Accesses, Arity, Filler, Inferred, Meaning, Operand, ParamShape, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// What is computed in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A hidden state, and an output from it.
    Rnn,
    /// A cell behind three gates.
    Lstm,
}

impl Cell {
    /// Numbers that a step computes for each of `num_output` outputs before their nonlinearity.
    pub fn gates(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Lstm => 4,
        }
    }

    /// States that go from step to step: h, and c of an LSTM.
    pub fn states(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Lstm => 2,
        }
    }
}

/// A recurrent layer. Bottoms: x (T, N, …), cont (T, N), perhaps a static input (N, …), and exposed states (1, N, D); tops:
/// (T, N, D), and exposed states (1, N, D).
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// What is computed in a step.
    pub cell: Cell,
    /// D: outputs.
    pub num_output: usize,
    /// Whether the states before the first step are bottoms and those after the last are tops.
    pub expose_hidden: bool,
    /// Number of bottoms.
    pub bottoms: usize,
    /// How weights start.
    pub weight_filler: Filler,
    /// How biases start.
    pub bias_filler: Filler,
}

/// The extents of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// T.
    pub steps: usize,
    /// N.
    pub streams: usize,
    /// Numbers of x in a step of a stream.
    pub inputs: usize,
    /// Numbers of the static input of a stream; 0 without one.
    pub constants: usize,
    /// D.
    pub outputs: usize,
    /// G: numbers that a step of a stream computes before their nonlinearity.
    pub gates: usize,
}

/// Which parameter is what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentParams {
    /// W_x (G, inputs), first of all.
    pub input: usize,
    /// b (G).
    pub bias: usize,
    /// W_s (G, constants).
    pub constant: Option<usize>,
    /// W_h (G, D).
    pub hidden: usize,
    /// W_o (D, D) and b_o (D) of an RNN.
    pub output: Option<[usize; 2]>,
}

impl Recurrent {
    /// State 0 of the layer: h before the first step and after each (T + 1, N, D).
    pub const HIDDEN: usize = 0;
    /// What a step computed, after its nonlinearity: (T, N, 4D) in the order i, f · cont, o, g; of an LSTM.
    pub const GATES: usize = 1;
    /// c before the first step and after each (T + 1, N, D); of an LSTM.
    pub const CELLS: usize = 2;

    /// How many states are bottoms and tops.
    fn exposed(&self) -> usize {
        if self.expose_hidden { self.cell.states() } else { 0 }
    }

    /// Whether bottom 2 is a static input.
    pub fn has_static(&self) -> bool {
        self.bottoms > 2 + self.exposed()
    }

    /// The bottom that state `index` (h, c) starts from, if states are exposed.
    pub fn start(&self, index: usize) -> Option<Operand> {
        let first = 2 + usize::from(self.has_static());
        (index < self.exposed()).then(|| Operand::Bottom(first + index))
    }

    /// The parameters' places.
    pub fn params(&self) -> RecurrentParams {
        let constant = self.has_static().then_some(2);
        let hidden = 2 + usize::from(self.has_static());
        let output = (self.cell == Cell::Rnn).then_some([hidden + 1, hidden + 2]);
        RecurrentParams { input: 0, bias: 1, constant, hidden, output }
    }

    /// The extents on bottoms of these shapes.
    ///
    /// # Errors
    /// If the bottoms do not fit each other, or there is no output.
    pub fn sequences(&self, bottoms: &[Shape]) -> Result<Sequences, Fault> {
        let outputs = self.num_output;
        if outputs == 0 {
            let fault = Fault::new("recurrent_param.num_output", "0 or missing; expected at least 1 output");
            return Err(fault.hint("write recurrent_param { num_output: 64 }, for example"));
        }
        let x = &bottoms[0];
        if x.axes() < 2 {
            let message =
                format!("the first has shape {x}; expected at least two axes (steps, streams, ...)");
            return Err(Fault::new("bottom", message));
        }
        let (steps, streams) = (x.dim(0), x.dim(1));
        let expect = |i: usize, what: &str, expected: &Shape| {
            let message = || format!("bottom {i}, {what}, has shape {}; expected {expected}", bottoms[i]);
            if bottoms[i] == *expected { Ok(()) } else { Err(Fault::new("bottom", message())) }
        };
        expect(1, "which says where sequences go on", &Shape::new([steps, streams]))?;
        let mut constants = 0;
        if self.has_static() {
            if bottoms[2].axes() == 0 || bottoms[2].dim(0) != streams {
                let message = format!(
                    "bottom 2, the static input, has shape {}; expected {streams} streams first",
                    bottoms[2]
                );
                return Err(Fault::new("bottom", message));
            }
            constants = bottoms[2].per_image();
        }
        for index in 0..self.exposed() {
            if let Some(Operand::Bottom(i)) = self.start(index) {
                expect(i, "a state before the first step", &Shape::new([1, streams, outputs]))?;
            }
        }
        let (inputs, gates) = (x.count_from(2), self.cell.gates().saturating_mul(outputs));
        Ok(Sequences { steps, streams, inputs, constants, outputs, gates })
    }

    fn param_shapes(&self, extents: &Sequences) -> Result<Vec<ParamShape>, Fault> {
        let Sequences { inputs, constants, outputs, gates, .. } = *extents;
        let shape = |dims: &[usize]| Shape::checked(dims, "recurrent_param.num_output");
        let weight = |rows, columns| {
            Ok(ParamShape { shape: shape(&[rows, columns])?, filler: self.weight_filler.clone() })
        };
        let bias = |count| Ok(ParamShape { shape: shape(&[count])?, filler: self.bias_filler.clone() });
        let mut params = vec![weight(gates, inputs)?, bias(gates)?];
        if self.has_static() {
            params.push(weight(gates, constants)?);
        }
        params.push(weight(gates, outputs)?);
        if self.cell == Cell::Rnn {
            params.extend([weight(outputs, outputs)?, bias(outputs)?]);
        }
        Ok(params)
    }

    fn states(&self) -> Vec<Operand> {
        let all = [Self::HIDDEN, Self::GATES, Self::CELLS].map(Operand::Aux);
        if self.cell == Cell::Lstm { all.to_vec() } else { all[..1].to_vec() }
    }
}

impl Meaning for Recurrent {
    fn arity(&self) -> Arity {
        let least = 2 + self.exposed();
        Arity { bottoms: least..=least + 1, tops: 1 + self.exposed()..=1 + self.exposed() }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let extents = self.sequences(bottoms)?;
        let Sequences { steps, streams, outputs, gates, .. } = extents;
        let shape = |dims: &[usize]| Shape::checked(dims, "recurrent_param.num_output");
        let mut tops = vec![shape(&[steps, streams, outputs])?];
        tops.extend((0..self.exposed()).map(|_| Shape::new([1, streams, outputs])));
        let state = shape(&[steps + 1, streams, outputs])?;
        let aux = match self.cell {
            Cell::Rnn => vec![state],
            Cell::Lstm => vec![state.clone(), shape(&[steps, streams, gates])?, state],
        };
        Ok(Inferred { tops, params: self.param_shapes(&extents)?, aux })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Param, ParamGrad, Top, TopGrad};
        let params = self.params();
        let count = params.output.map_or(params.hidden, |[_, bias]| bias) + 1;
        let inputs = || (0..2 + usize::from(self.has_static())).map(Bottom);
        match sub {
            SubTask::Forward => {
                let starts = (0..self.exposed()).filter_map(|index| self.start(index));
                // Without bottoms to start from, the state is what the last mini-batch left.
                let goes_on = |state: &Operand| !self.expose_hidden && *state != Operand::Aux(Self::GATES);
                let left = self.states().into_iter().filter(goes_on);
                let reads = inputs().chain(starts).chain((0..count).map(Param)).chain(left);
                let tops = (0..1 + self.exposed()).map(Top);
                Some(Accesses::new(reads.collect::<Vec<_>>(), tops.chain(self.states()).collect::<Vec<_>>()))
            }
            // All gradients follow from those before the nonlinearities, which go through the steps backwards.
            SubTask::GradActivation => {
                let weights = (0..count).map(Param);
                let reads =
                    [TopGrad(0), Top(0)].into_iter().chain(inputs()).chain(weights).chain(self.states());
                let bottoms = [0].into_iter().chain(self.has_static().then_some(2)).map(BottomGrad);
                Some(Accesses::new(
                    reads.collect::<Vec<_>>(),
                    bottoms.chain((0..count).map(ParamGrad)).collect::<Vec<_>>(),
                ))
            }
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let Ok(Sequences { steps, streams, inputs, outputs, gates, constants }) = self.sequences(bottoms)
        else {
            return 0;
        };
        let wide = |n: usize| n as u64;
        let of_output = if self.cell == Cell::Rnn { wide(outputs).saturating_mul(wide(outputs)) } else { 0 };
        let step = wide(gates).saturating_mul(wide(inputs.saturating_add(outputs))).saturating_add(of_output);
        let once = wide(gates).saturating_mul(wide(constants)).saturating_mul(wide(streams));
        let rows = wide(steps).saturating_mul(wide(streams));
        let products = rows.saturating_mul(step).saturating_add(once).saturating_mul(2);
        match sub {
            SubTask::Forward => products,
            SubTask::GradActivation => products.saturating_mul(2),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(cell: Cell, expose_hidden: bool, bottoms: usize) -> Recurrent {
        let [weight_filler, bias_filler] = [Filler::default(), Filler::default()];
        Recurrent { cell, num_output: 5, expose_hidden, bottoms, weight_filler, bias_filler }
    }

    fn shapes(layer: &Recurrent, dims: &[&[usize]]) -> Result<[Vec<String>; 2], Fault> {
        let bottoms: Vec<Shape> = dims.iter().map(|dims| Shape::new(*dims)).collect();
        let inferred = layer.infer(&bottoms)?;
        let params = inferred.params.iter().map(|param| param.shape.to_string());
        Ok([inferred.tops.iter().map(Shape::to_string).collect(), params.collect()])
    }

    #[test]
    fn parameters_are_those_of_caffe_in_its_order() {
        let of = |cell, exposes, dims: &[&[usize]]| {
            shapes(&layer(cell, exposes, dims.len()), dims).expect("possible")
        };
        let (x, cont, constant, state): (&[usize], &[usize], &[usize], &[usize]) =
            (&[4, 3, 2, 6], &[4, 3], &[3, 7], &[1, 3, 5]);
        assert_eq!(of(Cell::Rnn, false, &[x, cont])[1], ["5x12", "5", "5x5", "5x5", "5"]);
        assert_eq!(of(Cell::Rnn, false, &[x, cont, constant])[1], ["5x12", "5", "5x7", "5x5", "5x5", "5"]);
        assert_eq!(of(Cell::Lstm, false, &[x, cont]), [vec!["4x3x5"], vec!["20x12", "20", "20x5"]]);
        assert_eq!(
            of(Cell::Lstm, true, &[x, cont, constant, state, state]),
            [vec!["4x3x5", "1x3x5", "1x3x5"], vec!["20x12", "20", "20x7", "20x5"]]
        );
    }

    #[test]
    fn bottoms_that_do_not_fit_are_refused() {
        let refused =
            |layer: &Recurrent, dims: &[&[usize]]| shapes(layer, dims).expect_err("impossible").field;
        let lstm = |expose, bottoms| layer(Cell::Lstm, expose, bottoms);
        for dims in [[&[4][..], &[4, 3]], [&[4, 3, 2], &[3, 4]], [&[4, 3, 2], &[4, 3, 1]]] {
            assert_eq!(refused(&lstm(false, 2), &dims), "bottom", "{dims:?}");
        }
        assert_eq!(refused(&lstm(false, 3), &[&[4, 3, 2], &[4, 3], &[4, 7]]), "bottom");
        let states: [&[usize]; 2] = [&[1, 3, 5], &[1, 3, 4]];
        assert_eq!(refused(&lstm(true, 4), &[&[4, 3, 2], &[4, 3], states[0], states[1]]), "bottom");
        let none = Recurrent { num_output: 0, ..lstm(false, 2) };
        assert_eq!(refused(&none, &[&[4, 3, 2], &[4, 3]]), "recurrent_param.num_output");
        assert_eq!(lstm(true, 4).arity(), Arity { bottoms: 4..=5, tops: 3..=3 });
        assert_eq!(layer(Cell::Rnn, false, 9).arity(), Arity { bottoms: 2..=3, tops: 1..=1 });
    }
}
