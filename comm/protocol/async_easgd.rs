//! Async EASGD and Async MEASGD (SC17): elastic averaging with a master that serves first come, first served.
//!
//! One exchange of worker i, with `W_i` its weights before their update of this step:
//!
//! ```text
//!     worker i:  sends W_i and ηρ, and computes its gradient meanwhile
//!     master:    replies with W̄, then W̄ ← W̄ + ηρ (W_i − W̄)             equation (2), over the one worker served
//!     worker i:  goes on with the W̄ that came in equation (1), or (5) and (6)
//! ```
//!
//! The two methods differ in the worker's rule only: Async MEASGD has momentum. That no update is lost and that it ends is
//! argued at the master, [`super::parameter_server`]. With ηρ ≤ 1 each exchange leaves the centre between where it was and
//! the worker's weights, whatever the order.
//!
//! **It is cheap.** Two messages of one packed buffer for each exchange of a worker, and the same buffer goes there and back.

use std::time::Duration;

use quadrille_core::solver::easgd::meet_centre;

use super::ElasticMember;
use super::letter::Meaning;
use super::line::Line;
use super::parameter_server::Centre;
use crate::collective::Traffic;
use crate::error::CommError;
use crate::transport::Transport;

/// The centre of the master: packed weights, and nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct ElasticCentre {
    weights: Vec<f32>,
}

impl ElasticCentre {
    /// The first centre.
    pub fn new(weights: &[f32]) -> Self {
        ElasticCentre { weights: weights.to_vec() }
    }
}

impl Centre for ElasticCentre {
    fn weights(&self) -> &[f32] {
        &self.weights
    }

    fn serve(&mut self, values: &mut [f32], elastic: f32) {
        meet_centre(&mut self.weights, values, elastic);
    }
}

/// One worker's part in Async EASGD or Async MEASGD.
pub struct AsyncEasgd<T> {
    line: Line<T>,
}

impl<T: Transport> AsyncEasgd<T> {
    /// Joins the method with packed buffers of `len` values. The last rank of `transport` is the master.
    pub fn new(transport: T, len: usize) -> Self {
        AsyncEasgd { line: Line::new(transport, len) }
    }
}

impl<T: Transport> ElasticMember for AsyncEasgd<T> {
    fn rank(&self) -> usize {
        self.line.rank()
    }

    fn size(&self) -> usize {
        self.line.size()
    }

    fn traffic(&self) -> Traffic {
        self.line.traffic()
    }

    fn updating(&self) -> Duration {
        self.line.updating()
    }

    fn exchange(
        &mut self,
        weights: &[f32],
        elastic: f32,
        centre_out: &mut [f32],
    ) -> Result<Duration, CommError> {
        self.line.check_len(centre_out.len())?;
        let start = self.line.now();
        self.line.ask(weights, elastic)?;
        self.line.answer(Meaning::Exchange, centre_out)?;
        Ok(self.line.now().since(start))
    }

    fn centre(&mut self, centre_out: &mut [f32]) -> Result<(), CommError> {
        self.line.check_len(centre_out.len())?;
        self.line.ask_with_all(Meaning::Centre, centre_out.len())?;
        self.line.answer(Meaning::Centre, centre_out)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.line.meet_and_sum(values)
    }

    fn leave(&mut self) -> Result<(), CommError> {
        self.line.ask_with_all(Meaning::Leave, 0)?;
        self.line.answer(Meaning::Leave, &mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::parameter_server::ParameterServer;
    use crate::transport::sim;

    #[test]
    fn the_centre_comes_from_before_the_exchange_and_moves_by_the_one_worker() {
        let out = sim::run(3, 1, |transport| {
            let rank = transport.rank();
            if rank == 2 {
                return ParameterServer::new(transport, ElasticCentre::new(&[8.0]))
                    .serve()
                    .unwrap()
                    .0
                    .weights;
            }
            let mut worker = AsyncEasgd::new(transport, 1);
            let mut seen = [0.0];
            worker.exchange(&[0.0], 0.5, &mut seen).unwrap();
            let first = seen[0];
            worker.centre(&mut seen).unwrap();
            assert_eq!(worker.traffic(), Traffic { messages: 2, bytes: 24 });
            worker.leave().unwrap();
            vec![first, seen[0]]
        })
        .unwrap();
        let mut first = [out[0][0], out[1][0]];
        first.sort_by(f32::total_cmp);
        assert_eq!((first, [out[0][1], out[1][1], out[2][0]]), ([4.0, 8.0], [2.0; 3]));
    }

    #[test]
    fn a_buffer_of_another_length_is_refused() {
        sim::run(2, 0, |transport| {
            if transport.rank() == 1 {
                ParameterServer::new(transport, ElasticCentre::new(&[0.0; 2])).serve().unwrap();
                return;
            }
            let mut worker = AsyncEasgd::new(transport, 2);
            assert!(matches!(
                worker.exchange(&[1.0], 0.5, &mut [0.0; 2]),
                Err(CommError::Protocol { rank: 0, .. })
            ));
            assert!(worker.exchange(&[1.0; 2], 0.5, &mut [0.0; 3]).is_err());
            assert!(worker.centre(&mut []).is_err());
            worker.leave().unwrap();
        })
        .unwrap();
    }

    #[test]
    fn one_buffer_goes_there_and_back() {
        sim::run(3, 4, |transport| {
            if transport.rank() == 2 {
                ParameterServer::new(transport, ElasticCentre::new(&[0.0; 2])).serve().unwrap();
                return;
            }
            let mut worker = AsyncEasgd::new(transport, 2);
            worker.exchange(&[1.0; 2], 0.5, &mut [0.0; 2]).unwrap();
            let place = |worker: &AsyncEasgd<_>| worker.line.spare_place();
            let first = place(&worker);
            assert!(first.is_some());
            for _ in 0..5 {
                worker.exchange(&[1.0; 2], 0.5, &mut [0.0; 2]).unwrap();
                assert_eq!(place(&worker), first);
            }
            worker.leave().unwrap();
        })
        .unwrap();
    }
}
