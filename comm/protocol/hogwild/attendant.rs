//! Workers of Hogwild in other processes than the centre, and who changes it for them.
//!
//! In the process of the centre every such worker has an attendant, a thread with a rank of its own behind all workers, that
//! does with the shared memory what the worker would do: it takes letters, changes the centre without a lock, beside worker 0
//! and all other attendants, and writes back. So a worker far away differs from one at hand in a message each way, and in
//! nothing else.
//!
//! **It ends.** A worker waits for its attendant, which waits for nobody once it has a letter. An attendant waits for its
//! worker for as long as that lives: it owes nobody a letter while it computes many iterations between two exchanges, tests, or waits
//! at a meeting. One that is lost ends the wait, as the transport says of every rank that is gone.

use std::sync::Arc;

use quadrille_core::solver::PackedRule;

use super::shared::SharedCentre;
use crate::collective::Collective;
use crate::error::CommError;
use crate::protocol::letter::{Letter, Meaning};
use crate::transport::{Kind, Tag, Transport};

const REQUEST: Tag = Tag { exchange: 0, kind: Kind::Request };
const REPLY: Tag = Tag { exchange: 0, kind: Kind::Reply };

/// The rank of the attendant of `worker`, of `workers`. Worker 0 has none.
fn attendant_of(worker: usize, workers: usize) -> usize {
    workers + worker - 1
}

/// A centre in another process, as a worker sees it.
pub(super) struct Far {
    attendant: usize,
    len: usize,
    /// Who waits for the others, by worker, as of the last exchange.
    waiting: Vec<bool>,
    /// The letter that goes there and back.
    letter: Option<Letter>,
}

impl Far {
    pub(super) fn new(worker: usize, workers: usize, len: usize) -> Self {
        Far { attendant: attendant_of(worker, workers), len, waiting: vec![false; workers], letter: None }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Puts `values` into the letter that goes with the next [`Far::ask`].
    pub(super) fn put(&mut self, values: &[f32]) {
        let room = self.len + self.waiting.len();
        let letter = self.letter.get_or_insert_with(|| Letter::new(room));
        letter.values_mut()[..values.len()].copy_from_slice(values);
    }

    /// Has the attendant do what an exchange does with the values that were put into the letter and the number that belongs
    /// to them, or, for the meaning `Centre`, read. `out` receives what comes of it.
    pub(super) fn ask<T: Transport>(
        &mut self,
        group: &mut Collective<T>,
        meaning: Meaning,
        number: f32,
        out: &mut [f32],
    ) -> Result<(), CommError> {
        let letter = self.letter.take().unwrap_or_else(|| Letter::new(self.len + self.waiting.len()));
        group.send(self.attendant, REQUEST, letter.seal(meaning, number))?;
        let reply = Letter::read(group.receive_any_length(self.attendant, REPLY)?);
        let expected = self.len + self.waiting.len();
        let Some((letter, _)) = reply.filter(|(letter, _)| letter.len() == expected) else {
            let problem = format!("a reply of the centre is not one of {expected} values");
            return Err(CommError::Protocol { rank: group.rank(), peer: Some(self.attendant), problem });
        };
        let (centre, waiting) = letter.values().split_at(self.len);
        out.copy_from_slice(centre);
        self.waiting.iter_mut().zip(waiting).for_each(|(waits, value)| *waits = *value > 0.0);
        self.letter = Some(letter);
        Ok(())
    }

    /// Says something that needs no reply.
    pub(super) fn say<T: Transport>(
        &self,
        group: &mut Collective<T>,
        meaning: Meaning,
        number: f32,
    ) -> Result<(), CommError> {
        group.send(self.attendant, REQUEST, Letter::new(0).seal(meaning, number))
    }

    /// Who waited for the others at the last exchange.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        self.waiting.iter().enumerate().filter(|(_, waits)| **waits).map(|(worker, _)| worker)
    }
}

/// Changes the centre for a worker in another process.
pub struct Attendant<T> {
    transport: T,
    worker: usize,
    workers: usize,
    shared: Arc<SharedCentre>,
    /// With it steps are taken down gradients; without, weights meet the centre.
    rule: Option<PackedRule>,
}

impl<T: Transport> Attendant<T> {
    /// The attendant whose endpoint this is, of one of `workers`.
    ///
    /// # Panics
    /// If the rank is that of a worker.
    pub fn new(transport: T, workers: usize, shared: Arc<SharedCentre>, rule: Option<PackedRule>) -> Self {
        let rank = transport.rank();
        assert!((workers..2 * workers - 1).contains(&rank), "behind the workers, one for each but the first");
        Attendant { worker: rank + 1 - workers, transport, workers, shared, rule }
    }

    /// Serves until the worker leaves.
    ///
    /// # Errors
    /// If the worker is lost, or says what it may not.
    pub fn serve(mut self) -> Result<(), CommError> {
        let served = self.serve_worker();
        if served.is_err() {
            self.shared.set_lost(self.worker);
        }
        served
    }

    fn serve_worker(&mut self) -> Result<(), CommError> {
        let len = self.shared.len();
        let mut own = vec![0.0; len];
        loop {
            let buffer = match self.transport.recv(self.worker, REQUEST) {
                Ok(buffer) => buffer,
                // Whoever computes, tests or waits for the others has nothing to say; one that is lost is another error.
                Err(CommError::Timeout { .. }) => continue,
                Err(error) => return Err(error),
            };
            let (mut letter, meaning) = Letter::read(buffer).ok_or_else(|| self.unexpected("is none"))?;
            match meaning {
                Meaning::Leave => return Ok(()),
                Meaning::NotYet => {
                    self.shared.set_waiting(self.worker, letter.number() > 0.0);
                    continue;
                }
                _ if letter.len() != len + self.workers => {
                    return Err(self.unexpected(&format!("has {} values", letter.len())));
                }
                Meaning::Exchange => {
                    own.copy_from_slice(&letter.values()[..len]);
                    let (number, out) = (letter.number(), &mut letter.values_mut()[..len]);
                    match &self.rule {
                        None => self.shared.meet(0..len, &own, number, out),
                        Some(rule) => {
                            self.shared.descend(0..len, rule, [number, rule.scale(&own)], &own);
                            self.shared.read(out);
                        }
                    }
                }
                Meaning::Centre => self.shared.read(&mut letter.values_mut()[..len]),
            }
            let waiting = &mut letter.values_mut()[len..];
            waiting.fill(0.0);
            self.shared.waiting().for_each(|worker| waiting[worker] = 1.0);
            self.transport.send(self.worker, REPLY, letter.seal(meaning, 0.0))?;
        }
    }

    fn unexpected(&self, what: &str) -> CommError {
        let problem = format!("a letter to the centre {what}");
        CommError::Protocol { rank: self.transport.rank(), peer: Some(self.worker), problem }
    }
}
