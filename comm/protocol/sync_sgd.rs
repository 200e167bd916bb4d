//! Sync SGD (SC17): the gradients of all workers are summed by tree, everybody gets the mean, and equal weights stay
//! equal because every rank applies the same bits to them.
//!
//! It ends, is deterministic and costs 2(P − 1) messages of one packed buffer per exchange, for the reasons given in
//! [`crate::collective`]: a sum up the tree, then a broadcast of it down the tree.

use std::time::Duration;

use crate::choice::Way;
use crate::collective::{Collective, Traffic};
use crate::error::CommError;
use crate::transport::Transport;

/// One rank's part in Sync SGD.
pub struct SyncSgd<T> {
    group: Collective<T>,
    /// The number of the next collective call; the same on all ranks.
    next: u64,
}

impl<T: Transport> SyncSgd<T> {
    /// Joins the method.
    pub fn new(transport: T) -> Self {
        SyncSgd { group: Collective::new(transport), next: 0 }
    }

    /// The same with a way for gradients that all ranks choose alike.
    pub fn going(self, way: Way) -> Self {
        SyncSgd { group: self.group.going(way), ..self }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The number of workers, P.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// What this rank has sent so far.
    pub fn traffic(&self) -> Traffic {
        self.group.traffic()
    }

    /// How many buffers this rank had to allocate so far; constant from the second exchange on.
    pub fn pool_misses(&self) -> u64 {
        self.group.pool_misses()
    }

    /// Replaces the packed `gradient` of every rank by its mean over all ranks, and says how long that took. The length
    /// is the same on all ranks.
    pub fn exchange(&mut self, gradient: &mut [f32]) -> Result<Duration, CommError> {
        let start = self.group.now();
        self.all_reduce_sum(gradient)?;
        let scale = 1.0 / self.size() as f32;
        for value in gradient {
            *value *= scale;
        }
        Ok(self.group.now().since(start))
    }

    /// Sums a few values over all ranks, for example losses, or the wish to stop. All ranks call it at the same point
    /// and get the same bits.
    pub fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.next += 1;
        self.group.all_reduce_sum(values, self.next - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::sim;

    #[test]
    fn everybody_gets_the_mean() {
        let out = sim::run(4, 9, |transport| {
            let mut gradient = [transport.rank() as f32 * 4.0, 1.0];
            let mut method = SyncSgd::new(transport);
            method.exchange(&mut gradient).unwrap();
            let mut stop = [f32::from(method.rank() == 2)];
            method.all_reduce_sum(&mut stop).unwrap();
            (gradient, stop, method.traffic().messages)
        })
        .unwrap();
        assert!(out.iter().all(|result| (result.0, result.1) == ([6.0, 1.0], [1.0])), "{out:?}");
        assert_eq!(out.iter().map(|result| result.2).sum::<u64>(), 2 * 2 * 3);
    }
}
