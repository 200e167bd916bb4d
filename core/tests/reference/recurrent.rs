//! RNN and LSTM: a sequence worked by hand, state that goes on, and gradients through time.

use quadrille_core::layer::{Cell, Filler, Layer, Operand, Recurrent, SubTask};
use quadrille_core::reference::Arrays;

use crate::case::{Case, distinct};

fn layer(cell: Cell, num_output: usize, expose_hidden: bool, bottoms: usize) -> Layer {
    let [weight_filler, bias_filler] = [Filler::default(), Filler::default()];
    Layer::Recurrent(Recurrent { cell, num_output, expose_hidden, bottoms, weight_filler, bias_filler })
}

/// Arrays with a state of 0 before the first step.
fn with_state(case: &Case, mut arrays: Arrays<f64>) -> Arrays<f64> {
    for (i, aux) in case.layer.infer(&case.bottoms).expect("possible").aux.iter().enumerate() {
        arrays.insert(Operand::Aux(i), vec![0.0; aux.count()]);
    }
    arrays
}

fn given(case: &Case, bottoms: &[&[f64]], params: &[&[f64]]) -> Arrays<f64> {
    let mut arrays = with_state(case, Arrays::new());
    bottoms.iter().enumerate().for_each(|(i, b)| arrays.insert(Operand::Bottom(i), b.to_vec()));
    params.iter().enumerate().for_each(|(i, p)| arrays.insert(Operand::Param(i), p.to_vec()));
    arrays
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let near = found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-12);
    assert!(near, "{found:?} is not {expected:?}");
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn an_rnn_goes_on_where_its_last_mini_batch_ended() {
    let case = Case::new(layer(Cell::Rnn, 1, false, 2), &[&[2, 1, 1], &[2, 1]]);
    let params: [&[f64]; 5] = [&[0.5], &[0.1], &[0.8], &[2.0], &[-0.3]];
    let mut arrays = given(&case, &[&[1.0, -2.0], &[1.0, 1.0]], &params);
    let output = |h: f64| (2.0 * h - 0.3).tanh();
    case.run(SubTask::Forward, &mut arrays);
    let h1 = (0.5f64 + 0.1).tanh();
    let h2 = (-1.0 + 0.1 + 0.8 * h1).tanh();
    close(arrays.get(Operand::Top(0)), &[output(h1), output(h2)]);
    case.run(SubTask::Forward, &mut arrays);
    let h3 = (0.5 + 0.1 + 0.8 * h2).tanh();
    let h4 = (-1.0 + 0.1 + 0.8 * h3).tanh();
    close(arrays.get(Operand::Top(0)), &[output(h3), output(h4)]);
    // Where a sequence begins, nothing goes on.
    arrays.insert(Operand::Bottom(1), vec![0.0, 1.0]);
    case.run(SubTask::Forward, &mut arrays);
    close(arrays.get(Operand::Top(0)), &[output(h1), output(h2)]);
}

#[test]
fn an_lstm_keeps_its_cell_behind_gates() {
    let case = Case::new(layer(Cell::Lstm, 1, false, 2), &[&[2, 1, 1], &[2, 1]]);
    // Gates i, f, o, g.
    let params: [&[f64]; 3] = [&[0.5, -0.4, 0.3, 1.2], &[0.1, 0.2, -0.1, 0.0], &[0.7, 0.6, -0.5, 0.9]];
    let mut arrays = given(&case, &[&[1.0, -2.0], &[0.0, 1.0]], &params);
    case.run(SubTask::Forward, &mut arrays);
    let step = |x: f64, h: f64, c: f64| {
        let gate = |k: usize| params[0][k] * x + params[1][k] + params[2][k] * h;
        let cell = sigmoid(gate(1)) * c + sigmoid(gate(0)) * gate(3).tanh();
        (sigmoid(gate(2)) * cell.tanh(), cell)
    };
    let (h1, c1) = step(1.0, 0.0, 0.0);
    let (h2, c2) = step(-2.0, h1, c1);
    close(arrays.get(Operand::Top(0)), &[h1, h2]);
    arrays.insert(Operand::Bottom(1), vec![1.0, 1.0]);
    case.run(SubTask::Forward, &mut arrays);
    let (h3, c3) = step(1.0, h2, c2);
    close(arrays.get(Operand::Top(0)), &[h3, step(-2.0, h3, c3).0]);
}

#[test]
fn exposed_states_come_in_and_go_out() {
    let case = Case::new(layer(Cell::Lstm, 2, true, 4), &[&[1, 1, 1], &[1, 1], &[1, 1, 2], &[1, 1, 2]]);
    let weights = distinct(1, 8);
    let params: [&[f64]; 3] = [&weights, &[0.0; 8], &[0.0; 16]];
    let arrays = given(&case, &[&[0.0], &[1.0], &[0.3, 0.4], &[0.5, -2.0]], &params);
    let mut arrays = arrays;
    case.run(SubTask::Forward, &mut arrays);
    // Every gate is a half, and nothing comes in.
    let cells = [0.25, -1.0];
    close(arrays.get(Operand::Top(2)), &cells);
    close(arrays.get(Operand::Top(1)), &cells.map(|c: f64| 0.5 * c.tanh()));
    close(arrays.get(Operand::Top(0)), arrays.get(Operand::Top(1)));
}

/// Central differences of `Σ dY · Y` for random dY, by every input that has a gradient.
fn check_gradients(case: &Case, mut arrays: Arrays<f64>, seed: u64) {
    const H: f64 = 1e-5;
    let dy = distinct(seed, case.tops[0].count());
    let value = |arrays: &Arrays<f64>| -> f64 {
        let mut arrays = arrays.clone();
        case.run(SubTask::Forward, &mut arrays);
        arrays.get(Operand::Top(0)).iter().zip(&dy).map(|(y, dy)| y * dy).sum()
    };
    let at_first = arrays.clone();
    case.run(SubTask::Forward, &mut arrays);
    arrays.insert(Operand::TopGrad(0), dy.clone());
    case.run(SubTask::GradActivation, &mut arrays);
    let written = case.layer.accesses(SubTask::GradActivation).expect("it has gradients").writes;
    for operand in written {
        let input = match operand {
            Operand::BottomGrad(i) => Operand::Bottom(i),
            Operand::ParamGrad(i) => Operand::Param(i),
            other => panic!("{other:?} is no gradient"),
        };
        let gradient = arrays.get(operand);
        assert!(gradient.iter().any(|g| g.abs() > 1e-3), "mistrusted: {operand:?} of {case}");
        for (i, computed) in gradient.iter().enumerate() {
            let moved = |by: f64| {
                let mut arrays = at_first.clone();
                arrays.get_mut(input)[i] += by;
                value(&arrays)
            };
            let expected = (moved(H) - moved(-H)) / (2.0 * H);
            // What is summed is below 1, and so are all third derivatives but for factors of a few: h² and ε/h.
            let bound = 1e-8 * dy.iter().map(|dy| dy.abs()).sum::<f64>();
            assert!(
                (computed - expected).abs() <= bound,
                "{operand:?} of {case} at {i}: {computed} is not {expected}"
            );
        }
    }
}

#[test]
fn gradients_go_through_time() {
    let (steps, streams) = (4, 3);
    let cont = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0];
    for cell in [Cell::Rnn, Cell::Lstm] {
        for bottoms in [2, 3] {
            let dims: [&[usize]; 3] = [&[steps, streams, 2, 2], &[steps, streams], &[streams, 3]];
            let case = Case::new(layer(cell, 3, false, bottoms), &dims[..bottoms]);
            let mut arrays = with_state(&case, case.random(1, &[]));
            arrays.insert(Operand::Bottom(1), cont.to_vec());
            check_gradients(&case, arrays, 5);
        }
    }
}

/// A mini-batch that starts from a state: it is a constant, through which no gradient goes.
#[test]
fn a_state_from_before_is_a_constant() {
    for cell in [Cell::Rnn, Cell::Lstm] {
        let case = Case::new(layer(cell, 2, false, 2), &[&[3, 2, 3], &[3, 2]]);
        let mut arrays = with_state(&case, case.random(2, &[]));
        for (i, aux) in case.layer.infer(&case.bottoms).expect("possible").aux.iter().enumerate() {
            arrays.insert(Operand::Aux(i), distinct(30 + i as u64, aux.count()));
        }
        arrays.insert(Operand::Bottom(1), vec![1.0; 6]);
        check_gradients(&case, arrays, 6);
    }
}
