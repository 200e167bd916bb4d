//! A sum around a ring: the values are cut into P pieces, each of which goes around twice, first to be added up, then to be
//! handed out.
//!
//! **The order of addition.** Piece s starts at rank s with that rank's values; the ranks s + 1, s + 2, … add theirs, each
//! `sum + own`, until rank s − 1 (all modulo P) has added the last. So the order is fixed by ranks alone, but it is another for
//! each piece, and another than that of the tree: sums of three and more differ in their last bits. Each piece is completed on one
//! rank and copied from there, so all ranks have the same bits.
//!
//! **It ends.** Each rank sends to the next and receives from the one before. Sends never wait. What a rank waits for in step k
//! its neighbour sends after its own step k − 1, and everybody begins by sending: by induction on k all steps are done.
//!
//! **It is cheap.** 2(P − 1) messages a rank, of n/P values and the number of the step each. What came is added to and sent on in the same buffer. All
//! buffers have the length of the longest piece, so one that comes serves for any other, and nothing is allocated from the
//! second time on.

use std::ops::Range;

use crate::collective::{Collective, add};
use crate::error::CommError;
use crate::transport::{Buffer, Kind, Tag, Transport};

/// Where piece number `piece` of `len` values lies, of so many pieces as there are ranks.
fn range(piece: usize, ranks: usize, len: usize) -> Range<usize> {
    len * piece / ranks..len * (piece + 1) / ranks
}

impl<T: Transport> Collective<T> {
    /// Replaces `values` on every rank by their sum.
    pub(crate) fn go_around(&mut self, values: &mut [f32], exchange: u64) -> Result<(), CommError> {
        let (rank, ranks, len) = (self.rank(), self.size(), values.len());
        if ranks == 1 {
            return Ok(());
        }
        let piece = |step: usize| range((rank + 2 * ranks - step) % ranks, ranks, len);
        let own = piece(0);
        let mut travelling = self.pool.take(len.div_ceil(ranks) + 1);
        travelling[..own.len()].copy_from_slice(&values[own]);
        for step in 1..ranks {
            travelling = self.pass_on(travelling, Tag { exchange, kind: Kind::Reduce }, step)?;
            let here = piece(step);
            add(&mut travelling[..here.len()], &values[here]);
        }
        // What is complete here is the piece behind this rank's own; the others come as they were completed.
        for step in ranks - 1..2 * ranks - 1 {
            let here = piece(step);
            values[here.clone()].copy_from_slice(&travelling[..here.len()]);
            if step + 1 < 2 * ranks - 1 {
                travelling = self.pass_on(travelling, Tag { exchange, kind: Kind::Broadcast }, step)?;
            }
        }
        self.pool.put(travelling);
        Ok(())
    }

    /// Sends to the next rank, and takes what the one before has sent in the same step, whose number is behind the values:
    /// of what a dying rank sent, what came later may arrive alone.
    fn pass_on(&mut self, mut buffer: Buffer, tag: Tag, step: usize) -> Result<Buffer, CommError> {
        let (rank, ranks, len) = (self.rank(), self.size(), buffer.len());
        let before = (rank + ranks - 1) % ranks;
        buffer[len - 1] = step as f32;
        self.send((rank + 1) % ranks, tag, buffer)?;
        let arrived = self.receive(before, tag, len)?;
        if arrived[len - 1] == step as f32 {
            return Ok(arrived);
        }
        let problem = format!("{tag} of rank {before} is of step {}, not of step {step}", arrived[len - 1]);
        Err(CommError::Protocol { rank, peer: Some(before), problem })
    }
}
