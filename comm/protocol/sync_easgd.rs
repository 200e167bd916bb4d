//! Sync EASGD3, "Communication Efficient EASGD" (SC17).
//!
//! Exchange t, with `W_i` the weights of rank i before its update of step t:
//!
//! ```text
//!     all ranks:  W̄_t goes from rank 0 down the tree; Σ W_i goes up the tree
//!     rank 0:     W̄_{t+1} = W̄_t + ηρ (Σ W_i − P·W̄_t)          equation (2)
//!     each rank:  goes on with W̄_t in equation (1), or (5) and (6)
//! ```
//!
//! Both right-hand sides use the values before the update, so neither waits for the other, and the whole exchange can
//! run beside forward and backward ([`crate::overlap`]).
//!
//! **It ends.** An exchange is a broadcast followed by a sum. In the broadcast a rank waits for its parent only;
//! rank 0 waits for nobody, so by induction on the depth all ranks get the centre. In the sum a rank waits for its
//! children only; leaves wait for nobody, so by induction on the height rank 0 gets the sum. Messages carry the number
//! of the exchange, so a rank that is one exchange ahead is not misread. A dead rank fails its neighbours, and those
//! fail theirs: nobody waits longer than one peer timeout per failed neighbour.
//!
//! **It is deterministic.** The order of addition is that of the tree ([`crate::collective`]), and equation (2) is
//! computed once, on rank 0.
//!
//! **Without a tree.** Where sums are to go another way ([`crate::choice`]), all ranks get Σ W_i, every rank keeps the centre,
//! and none of them is sent: one sum for all instead of a broadcast and a sum at the root, and as much memory more on each
//! rank. All centres change by the same sum in the same equation, so they are the same bits; and where the sum's order is that
//! of the tree, those that the tree gives.
//!
//! **It is cheap.** By tree 2(P − 1) messages of one packed buffer each per exchange, at most 2⌈log₂ P⌉ deep.

use std::time::{Duration, Instant};

use quadrille_core::solver::easgd::update_centre;

use super::ElasticMember;
use crate::choice::{Algorithm, Way};
use crate::clock::Work;
use crate::collective::{Collective, Traffic};
use crate::error::CommError;
use crate::transport::{Buffer, Transport};

/// One rank's part in Sync EASGD3.
///
/// By tree the centre is kept on rank 0 only; the others see it as it passes, so it costs no memory on them.
pub struct SyncEasgd<T> {
    group: Collective<T>,
    /// The centre on the ranks that keep it, empty elsewhere.
    centre: Buffer,
    /// Where weights are added up, if all ranks keep the centre; else empty.
    sum: Buffer,
    len: usize,
    /// The number of the next collective call; the same on all ranks.
    next: u64,
    /// How long the centre took to change so far; on rank 0 only.
    updating: Duration,
}

impl<T: Transport> SyncEasgd<T> {
    /// Joins the method with the given first centre, a packed buffer of the length of the weights. Its values count
    /// on rank 0 only; the others give theirs (the same, if all start from one seed) for the length.
    pub fn new(transport: T, centre: &[f32]) -> Self {
        Self::going(transport, centre, Way::TREE)
    }

    /// The same with a way that all ranks choose alike; the centre counts on all ranks that keep it.
    pub fn going(transport: T, centre: &[f32], way: Way) -> Self {
        let group = Collective::new(transport).going(way);
        let everywhere = group.algorithm(centre.len()) != Algorithm::Tree;
        let kept = if everywhere || group.rank() == 0 { centre.to_vec() } else { Vec::new() };
        let sum = Buffer::zeros(if everywhere { centre.len() } else { 0 });
        SyncEasgd { group, centre: kept.into(), sum, len: centre.len(), next: 0, updating: Duration::ZERO }
    }

    fn is_everywhere(&self) -> bool {
        self.group.algorithm(self.len) != Algorithm::Tree
    }

    /// How many buffers this rank had to allocate so far; constant from the second exchange on.
    pub fn pool_misses(&self) -> u64 {
        self.group.pool_misses()
    }

    /// The centre after the last exchange, which is the result of training; on rank 0 only.
    pub fn final_centre(&self) -> Option<&[f32]> {
        (self.rank() == 0).then_some(&*self.centre)
    }

    fn send_centre(&mut self, number: u64, centre_out: &mut [f32]) -> Result<(), CommError> {
        let everywhere = self.is_everywhere();
        if everywhere || self.rank() == 0 {
            centre_out.copy_from_slice(&self.centre);
        }
        if everywhere {
            return Ok(());
        }
        self.group.broadcast(centre_out, number)
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn check_len(&self, got: usize) -> Result<(), CommError> {
        if got == self.len {
            return Ok(());
        }
        let problem = format!("the centre has {} values, but a buffer of {got} was given", self.len);
        Err(CommError::Protocol { rank: self.rank(), peer: None, problem })
    }
}

impl<T: Transport> ElasticMember for SyncEasgd<T> {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn traffic(&self) -> Traffic {
        self.group.traffic()
    }

    fn updating(&self) -> Duration {
        self.updating
    }

    /// `elastic` is the same on all ranks, and that of rank 0 counts.
    fn exchange(
        &mut self,
        weights: &[f32],
        elastic: f32,
        centre_out: &mut [f32],
    ) -> Result<Duration, CommError> {
        self.check_len(weights.len())?;
        self.check_len(centre_out.len())?;
        let number = self.take_number();
        let workers = self.size();
        let start = self.group.now();
        self.send_centre(number, centre_out)?;
        let mut took = None;
        let mut update = |centre: &mut Buffer, sum: &[f32]| {
            let start = Instant::now();
            update_centre(centre, sum, workers, elastic);
            took = Some(start.elapsed());
        };
        if self.is_everywhere() {
            self.sum.copy_from_slice(weights);
            self.group.all_reduce_sum(&mut self.sum, number)?;
            update(&mut self.centre, &self.sum);
        } else {
            let centre = &mut self.centre;
            self.group.reduce_sum(weights, number, |sum| update(centre, sum))?;
        }
        if let Some(took) = took {
            self.updating += self.group.spend(Work::Centre { values: self.len, workers }, took);
        }
        Ok(self.group.now().since(start))
    }

    /// Not for every step: the buffers that it moves come back with the next exchange only.
    fn centre(&mut self, centre_out: &mut [f32]) -> Result<(), CommError> {
        self.check_len(centre_out.len())?;
        let number = self.take_number();
        self.send_centre(number, centre_out)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let number = self.take_number();
        self.group.all_reduce_sum(values, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::sim;

    #[test]
    fn one_exchange_by_hand() {
        let out = sim::run(2, 3, |transport| {
            let rank = transport.rank();
            let mut method = SyncEasgd::new(transport, &[8.0]);
            let mut seen = [0.0];
            // Σ W = 2 + 6, P·W̄ = 16, so the centre becomes 8 + 0.25·(8 − 16) = 6; the ranks see the 8.
            method.exchange(&[[2.0], [6.0]][rank], 0.25, &mut seen).unwrap();
            let kept = method.final_centre().map(<[f32]>::to_vec);
            let mut last = [0.0];
            method.centre(&mut last).unwrap();
            (seen, kept, last)
        });
        assert_eq!(out.unwrap(), [([8.0], Some(vec![6.0]), [6.0]), ([8.0], None, [6.0])]);
    }

    #[test]
    fn one_worker_is_its_own_centre_keeper() {
        sim::run(1, 0, |transport| {
            let mut method = SyncEasgd::new(transport, &[1.0, 2.0]);
            let mut seen = [0.0; 2];
            method.exchange(&[3.0, 2.0], 0.5, &mut seen).unwrap();
            assert_eq!(seen, [1.0, 2.0]);
            assert_eq!(method.final_centre(), Some(&[2.0, 2.0][..]));
            assert_eq!(method.traffic(), Traffic::default());
        })
        .unwrap();
    }

    #[test]
    fn traffic_is_one_packed_message_up_and_down_each_edge_and_nothing_is_allocated_later() {
        for size in [2, 3, 4, 5, 7] {
            let out = sim::run(size, 1, |transport| {
                let mut method = SyncEasgd::new(transport, &[0.5; 25]);
                let mut seen = [0.0; 25];
                method.exchange(&[1.0; 25], 0.1, &mut seen).unwrap();
                let misses = method.pool_misses();
                for _ in 1..10 {
                    method.exchange(&[1.0; 25], 0.1, &mut seen).unwrap();
                    assert_eq!(method.pool_misses(), misses);
                }
                method.traffic()
            })
            .unwrap();
            let edges = size as u64 - 1;
            assert_eq!(out.iter().map(|traffic| traffic.messages).sum::<u64>(), 10 * 2 * edges);
            assert_eq!(out.iter().map(|traffic| traffic.bytes).sum::<u64>(), 10 * 2 * edges * 100);
        }
    }

    #[test]
    fn an_error_says_in_which_exchange() {
        let out = sim::run(2, 1, |transport| {
            let rank = transport.rank();
            let mut method = SyncEasgd::new(transport, &[1.0]);
            method.exchange(&[2.0], 0.5, &mut [0.0]).unwrap();
            // Rank 1 leaves here.
            (rank == 0).then(|| method.exchange(&[2.0], 0.5, &mut [0.0]).unwrap_err().to_string())
        });
        let text = out.unwrap().swap_remove(0).unwrap();
        assert!(text.contains("rank 0 lost rank 1") && text.contains("of exchange 1"), "{text}");
    }

    #[test]
    fn a_buffer_of_another_length_is_refused() {
        sim::run(1, 0, |transport| {
            let mut method = SyncEasgd::new(transport, &[1.0, 2.0]);
            let short = method.exchange(&[1.0], 0.5, &mut [0.0; 2]);
            assert!(matches!(short, Err(CommError::Protocol { rank: 0, .. })));
            assert!(method.exchange(&[1.0; 2], 0.5, &mut [0.0; 3]).is_err());
            assert!(method.centre(&mut []).is_err());
        })
        .unwrap();
    }
}
