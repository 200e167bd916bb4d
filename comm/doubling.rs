//! Recursive doubling: in step k = 0, 1, … each rank exchanges its partial sum with the rank whose number differs in bit k.
//!
//! **The order of addition is that of the tree.** After step k a rank has the sum over the block of 2^(k+1) ranks that it is
//! in: the sum over the block's lower half plus that over its upper half, both of which were made the same way. The tree
//! ([`crate::collective`]) adds the same halves: the rank at the begin of a block adds the partial sum of the child at its
//! middle to its own. A sum of two is the same from either side, so the bits are those of the tree, and the same on all ranks.
//!
//! **It ends.** Sends never wait, and in step k two ranks wait for each other's step k only; each has sent that before
//! it waits. So whoever is furthest behind never waits for one ahead of it.
//!
//! **It allocates nothing** from the second time on: in each step a rank gives a buffer and gets one of the same length.

use crate::collective::{Collective, add};
use crate::error::CommError;
use crate::transport::{Kind, Tag, Transport};

impl<T: Transport> Collective<T> {
    /// Replaces `values` on every rank by their sum. The number of ranks is a power of two.
    pub(crate) fn double(&mut self, values: &mut [f32], exchange: u64) -> Result<(), CommError> {
        if !self.size().is_power_of_two() {
            let problem = format!("recursive doubling over {} ranks, no power of two", self.size());
            return Err(CommError::Protocol { rank: self.rank(), peer: None, problem });
        }
        let tag = Tag { exchange, kind: Kind::Reduce };
        for step in 0..self.size().trailing_zeros() {
            let partner = self.rank() ^ (1 << step);
            let partial = self.pool.copy_of(values);
            self.send(partner, tag, partial)?;
            let arrived = self.receive(partner, tag, values.len())?;
            add(values, &arrived);
            self.pool.put(arrived);
        }
        Ok(())
    }
}
