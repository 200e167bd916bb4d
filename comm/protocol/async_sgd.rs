//! Async SGD and Async MSGD (SC17, after Dean et al., 2012): a parameter server that serves first come, first served.
//!
//! One exchange of worker i, with `W_i` the weights that it got last:
//!
//! ```text
//!     worker i:  computes ΔW_i at W_i, sends ΔW_i and η, waits
//!     master:    W̄ ← W̄ − η ΔW_i, or with momentum V ← μV − η ΔW_i, W̄ ← W̄ + V      equations (3) and (4)
//!     master:    replies with this W̄
//!     worker i:  W_i ← W̄
//! ```
//!
//! The two methods differ in the master's rule only. Between the reply to worker i and its next request other workers are
//! served, so its gradient is that of an older W̄: that is what makes the method asynchronous, and the weights of different
//! workers different. Nothing of the exchange can be hidden behind computing, since the next forward needs the reply.
//!
//! That no update is lost and that it ends is argued at the master, [`super::parameter_server`]. Without momentum and decay
//! the centre is the first one minus the sum of all `η ΔW` that were sent, up to rounding in the order of arrival.

use std::time::Duration;

use quadrille_core::solver::PackedRule;

use super::letter::Meaning;
use super::line::Line;
use super::parameter_server::Centre;
use crate::collective::Traffic;
use crate::error::CommError;
use crate::transport::Transport;

/// The centre of the master: packed weights, the rule that changes them, and its histories.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientCentre {
    rule: PackedRule,
    weights: Vec<f32>,
    history: Vec<f32>,
    /// Updates so far, of all workers.
    updates: u64,
}

impl GradientCentre {
    /// A centre with packed `weights` and `history` behind so many updates.
    ///
    /// # Panics
    /// If the buffers have not the lengths that `rule` asks for.
    pub fn new(rule: PackedRule, weights: &[f32], history: &[f32], updates: u64) -> Self {
        let lens = [weights.len(), history.len()];
        assert_eq!(lens, [rule.len(), rule.history_len()], "packed buffers of one net");
        GradientCentre { rule, weights: weights.to_vec(), history: history.to_vec(), updates }
    }
}

impl Centre for GradientCentre {
    fn weights(&self) -> &[f32] {
        &self.weights
    }

    fn history(&self) -> &[f32] {
        &self.history
    }

    fn serve(&mut self, values: &mut [f32], rate: f32) {
        self.rule.apply(self.updates, rate, &mut self.weights, values, &mut self.history);
        self.updates += 1;
        values.copy_from_slice(&self.weights);
    }
}

/// One worker's part in Async SGD or Async MSGD.
pub struct AsyncSgd<T> {
    line: Line<T>,
}

impl<T: Transport> AsyncSgd<T> {
    /// Joins the method with packed buffers of `len` values. The last rank of `transport` is the master.
    pub fn new(transport: T, len: usize) -> Self {
        AsyncSgd { line: Line::new(transport, len) }
    }

    /// This worker, `0 ≤ rank < size`.
    pub fn rank(&self) -> usize {
        self.line.rank()
    }

    /// The number of workers, P.
    pub fn size(&self) -> usize {
        self.line.size()
    }

    /// What this worker has sent so far.
    pub fn traffic(&self) -> Traffic {
        self.line.traffic()
    }

    /// How long the master took for its steps in this worker's exchanges so far.
    pub fn updating(&self) -> Duration {
        self.line.updating()
    }

    /// Sends the packed `gradient`, which the master applies at the learning rate `rate`, and replaces it by the weights
    /// that the worker goes on with. Returns how long it took.
    pub fn exchange(&mut self, gradient: &mut [f32], rate: f32) -> Result<Duration, CommError> {
        let start = self.line.now();
        self.line.ask(gradient, rate)?;
        self.line.answer(Meaning::Exchange, gradient)?;
        Ok(self.line.now().since(start))
    }

    /// Gives every worker the centre's weights after all exchanges, and behind them, if `state` has room for it, the
    /// histories: the same bits everywhere. All workers call it after as many exchanges.
    pub fn state(&mut self, state: &mut [f32]) -> Result<(), CommError> {
        self.line.ask_with_all(Meaning::Centre, state.len())?;
        self.line.answer(Meaning::Centre, state)
    }

    /// Sums a few values over all workers. All workers call it at the same point and get the same bits.
    pub fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.line.meet_and_sum(values)
    }

    /// Ends this worker's part in good order; all workers call it last. Who drops its part without it is lost to the others.
    pub fn leave(&mut self) -> Result<(), CommError> {
        self.line.ask_with_all(Meaning::Leave, 0)?;
        self.line.answer(Meaning::Leave, &mut [])
    }
}

#[cfg(test)]
mod tests {
    use quadrille_core::layer::Filler;
    use quadrille_core::net::{ParamLayout, ParamRule, ParamView};
    use quadrille_core::shape::Shape;
    use quadrille_core::solver::Rule;

    use super::*;
    use crate::protocol::parameter_server::ParameterServer;
    use crate::transport::sim;

    /// One parameter of one value; the packed buffer has padding behind it.
    fn rule(momentum: f32) -> PackedRule {
        let view = ParamView {
            name: "p/0".to_owned(),
            shape: Shape::new([1]),
            offset: 0,
            rule: ParamRule::Gradient,
            lr_mult: 2.0,
            decay_mult: 1.0,
            filler: Filler::default(),
        };
        PackedRule::new(&ParamLayout::from_iter([view]), Rule::sgd(momentum, 0.0), 1)
    }

    #[test]
    fn the_master_takes_the_steps_and_its_momentum_is_part_of_the_state() {
        let out = sim::run(2, 1, |transport| {
            let rule = rule(0.5);
            let len = rule.len();
            let padded = |value: f32| {
                let mut packed = vec![0.0; len];
                packed[0] = value;
                packed
            };
            if transport.rank() == 1 {
                let centre = GradientCentre::new(rule, &padded(16.0), &padded(4.0), 0);
                let centre = ParameterServer::new(transport, centre).serve().unwrap().0;
                return vec![centre.weights[0], centre.history[0], centre.updates as f32];
            }
            let mut worker = AsyncSgd::new(transport, len);
            let mut values = padded(3.0);
            worker.exchange(&mut values, 0.5).unwrap();
            let first = values[0];
            values[0] = -1.0;
            worker.exchange(&mut values, 0.25).unwrap();
            let mut state = vec![0.0; 2 * len];
            worker.state(&mut state).unwrap();
            worker.leave().unwrap();
            vec![first, values[0], state[0], state[len]]
        });
        // V = 2 + 2·0.5·3 = 5, W = 11; V = 2.5 − 2·0.25 = 2, W = 9.
        assert_eq!(out.unwrap(), [vec![11.0, 9.0, 9.0, 2.0], vec![9.0, 2.0, 2.0]]);
    }
}
