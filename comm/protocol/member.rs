//! What all elastic methods have in common, as the communication thread of a worker sees it.

use std::time::Duration;

use crate::collective::Traffic;
use crate::error::CommError;

/// One worker's part in a method whose centre pulls on the workers.
///
/// After an error it cannot be used again: whoever gets one drops it, and the others learn of it.
pub trait ElasticMember: Send {
    /// This worker, `0 ≤ rank < size`.
    fn rank(&self) -> usize;

    /// The number of workers, P.
    fn size(&self) -> usize;

    /// What this worker has sent so far.
    fn traffic(&self) -> Traffic;

    /// How long centres took to change in this worker's exchanges so far, by itself or by whoever did it for all.
    fn updating(&self) -> Duration {
        Duration::ZERO
    }

    /// Waits until this worker may compute its gradients. Only Original EASGD lets workers wait here.
    fn begin_turn(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    /// One exchange, which may run beside forward and backward. `weights` are this worker's weights before their update,
    /// `elastic` is ηρ of this step; `centre_out` receives the centre of before this exchange, which equations (1), (5) and
    /// (6) ask for. All lengths are that of the first centre; another one is a `Protocol` error. Returns how long it took.
    fn exchange(
        &mut self,
        weights: &[f32],
        elastic: f32,
        centre_out: &mut [f32],
    ) -> Result<Duration, CommError>;

    /// Tells the others that this worker's gradients are found, after an exchange. Only Original EASGD has to know.
    fn end_turn(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    /// Gives every worker the centre after all exchanges that any of them has begun: the same bits everywhere. All workers
    /// call it after as many exchanges.
    fn centre(&mut self, centre_out: &mut [f32]) -> Result<(), CommError>;

    /// Sums a few values over all workers, for example losses. All workers call it at the same point and get the same bits.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError>;

    /// Ends this worker's part in good order; all workers call it last. Who drops its part without it is lost to the others.
    fn leave(&mut self) -> Result<(), CommError> {
        Ok(())
    }
}
