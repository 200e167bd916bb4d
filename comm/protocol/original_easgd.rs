//! Original EASGD (Zhang et al., 2015, as SC17's Algorithm 1): a master that serves workers round robin.
//!
//! Turn t, which is that of worker j = t mod P, with `W_j` its weights before their update:
//!
//! ```text
//!     master:    tells all workers that turn t begins
//!     worker j:  sends W_j and ηρ, and computes its gradient meanwhile
//!     master:    replies with W̄
//!     worker j:  says that its gradient is found, and goes on with this W̄ in equation (1), or (5) and (6)
//!     master:    W̄ ← W̄ + ηρ (W_j − W̄)                                  equation (2), over the one worker served
//! ```
//!
//! So one worker computes at a time: that is what the other methods of the paper do without. P turns are one iteration, in
//! which every worker has had one; the paper counts turns. Weights travel while the worker computes, as in its "Original
//! EASGD", not "Original EASGD*".
//!
//! **It is deterministic.** The order of turns follows from ranks alone.
//!
//! **The centre for all.** A worker that wants the centre, or leaves, says so in its turn instead of its weights. All workers
//! do so in the same round, so the centre does not change meanwhile and all get the same.
//!
//! **It ends.** The master waits for the worker whose turn it is, and that worker needs nobody but the master until its turn
//! is over: so every turn that the worker comes to ends, and by induction each worker's next turn comes. Outside of turns
//! workers wait for each other in sums only, and all of them come to a sum between the same two turns of their own; the
//! master then waits, too, which blocks nobody. Each worker hears of every turn, so no wait is longer than another worker's
//! turn, and at the end of a wait that is, the worker whose turn did not end is named. A worker that dies ends the master's
//! wait, and the master's end that of all others. Who leaves stays until the round is over, since the master would take one
//! that is gone for dead.

use std::ops::Range;
use std::time::Duration;

use quadrille_core::solver::easgd::update_centre;

use super::ElasticMember;
use super::letter::{Letter, Meaning};
use super::line::{Desk, Line};
use crate::collective::Traffic;
use crate::error::CommError;
use crate::transport::{Buffer, Transport};

/// The master of P workers over a transport of P + 1 ranks, of which it is the last.
pub struct RoundRobin<T> {
    desk: Desk<T>,
    centre: Vec<f32>,
    /// The letter in which the centre travels. It changes places with the one that brings a worker's weights.
    spare: Letter,
    /// Where the arrays lie that travel before the letter, and what is in the letter.
    apart: Vec<Range<usize>>,
    last: Range<usize>,
    /// A worker's weights, if they come in several messages.
    whole: Vec<f32>,
    arrays: Vec<Buffer>,
    /// How long the centre took to change in the last turn.
    updating: Duration,
}

impl<T: Transport> RoundRobin<T> {
    /// A master with the first centre.
    pub fn new(transport: T, centre: &[f32]) -> Self {
        let (spare, last) = (Letter::new(centre.len()), 0..centre.len());
        let (apart, whole, arrays) = (Vec::new(), Vec::new(), Vec::new());
        let (desk, centre, updating) = (Desk::new(transport), centre.to_vec(), Duration::ZERO);
        RoundRobin { desk, centre, spare, apart, last, whole, arrays, updating }
    }

    /// The same with a message for each of `parts` of weights and centre, which hold all but zeros: the per-layer way, to
    /// compare with.
    pub fn going(self, mut parts: Vec<Range<usize>>) -> Self {
        let Some(last) = parts.pop() else { return self };
        let (arrays, whole) = (Vec::with_capacity(parts.len()), vec![0.0; self.centre.len()]);
        RoundRobin { apart: parts, last, whole, arrays, ..self }
    }

    /// Gives turns until all workers have left. Returns the last centre, and what was sent.
    ///
    /// # Errors
    /// If a worker is lost, or does what the method does not allow.
    pub fn serve(mut self) -> Result<(Vec<f32>, Traffic), CommError> {
        let workers = self.desk.workers();
        let mut turn = 0;
        loop {
            let mut round = None;
            for worker in 0..workers {
                self.desk.announce(turn)?;
                let meaning = self.turn(worker, turn)?;
                turn += 1;
                // In a round in which some exchange, others would ask for another centre.
                let first = *round.get_or_insert(meaning);
                if meaning != first {
                    let what = format!("means {meaning:?} in a round of {first:?}");
                    return Err(self.desk.unexpected(worker, &what));
                }
            }
            if round.is_none_or(|meaning| meaning == Meaning::Leave) {
                // The turn that nobody takes lets all go.
                self.desk.announce(turn)?;
                return Ok((self.centre, self.desk.traffic()));
            }
        }
    }

    fn turn(&mut self, worker: usize, turn: u64) -> Result<Meaning, CommError> {
        let (from, letter, meaning) = self.desk.next_request()?;
        if from != worker {
            return Err(self.desk.unexpected(from, &format!("came in the turn of rank {worker}")));
        }
        match meaning {
            Meaning::Exchange if !self.whole.is_empty() => self.exchange_arrays(worker, letter, turn)?,
            Meaning::Exchange => self.exchange(worker, letter, turn)?,
            Meaning::Centre => self.reply(worker, letter, meaning)?,
            Meaning::Leave => {}
            Meaning::NotYet => return Err(self.desk.unexpected(from, "means what only a master says")),
        }
        Ok(meaning)
    }

    fn exchange(&mut self, worker: usize, weights: Letter, turn: u64) -> Result<(), CommError> {
        if weights.len() != self.centre.len() {
            return Err(self.desk.unexpected(worker, &format!("has {} values", weights.len())));
        }
        let spare = std::mem::replace(&mut self.spare, weights);
        self.reply(worker, spare, Meaning::Exchange)?;
        self.desk.turn_over(turn)?;
        let (centre, weights) = (&mut self.centre, &self.spare);
        let update = || update_centre(centre, weights.values(), 1, weights.number());
        self.updating = self.desk.update(weights.len(), update);
        Ok(())
    }

    fn exchange_arrays(&mut self, worker: usize, mut letter: Letter, turn: u64) -> Result<(), CommError> {
        if letter.len() != self.last.len() {
            return Err(self.desk.unexpected(worker, &format!("has {} values", letter.len())));
        }
        let elastic = letter.number();
        self.desk.take_arrays(worker, &self.apart, &mut self.whole, &mut self.arrays)?;
        self.whole[self.last.clone()].copy_from_slice(letter.values());
        for (mut array, part) in self.arrays.drain(..).zip(&self.apart) {
            array.copy_from_slice(&self.centre[part.clone()]);
            self.desk.reply_array(worker, array)?;
        }
        letter.values_mut().copy_from_slice(&self.centre[self.last.clone()]);
        self.desk.reply(worker, letter, Meaning::Exchange, 0.0)?;
        self.desk.turn_over(turn)?;
        update_centre(&mut self.centre, &self.whole, 1, elastic);
        Ok(())
    }

    fn reply(&mut self, to: usize, mut letter: Letter, meaning: Meaning) -> Result<(), CommError> {
        if letter.len() != self.centre.len() {
            return Err(self.desk.unexpected(to, &format!("has room for {} values", letter.len())));
        }
        letter.values_mut().copy_from_slice(&self.centre);
        self.desk.reply(to, letter, meaning, self.updating.as_secs_f32())
    }
}

/// One worker's part in Original EASGD.
pub struct OriginalEasgd<T> {
    line: Line<T>,
    /// The next turn to hear of.
    next: u64,
    /// The turn that this worker has.
    turn: Option<u64>,
}

impl<T: Transport> OriginalEasgd<T> {
    /// Joins the method with packed buffers of `len` values. The last rank of `transport` is the master.
    pub fn new(transport: T, len: usize) -> Self {
        OriginalEasgd { line: Line::new(transport, len), next: 0, turn: None }
    }

    /// The same with a message for each of `parts`, which are those of the master.
    pub fn going(self, parts: Vec<Range<usize>>) -> Self {
        OriginalEasgd { line: self.line.going(parts), ..self }
    }

    /// Waits for the next turn of this worker, which must have none.
    fn await_turn(&mut self) -> Result<u64, CommError> {
        if let Some(turn) = self.turn {
            let problem = format!("turn {turn} is not over: this is a defect");
            return Err(CommError::Protocol { rank: self.rank(), peer: None, problem });
        }
        self.await_turn_of(self.rank())
    }

    /// Waits until a turn of worker `whose` begins, and returns its number.
    fn await_turn_of(&mut self, whose: usize) -> Result<u64, CommError> {
        let workers = self.size().max(1) as u64;
        loop {
            let turn = self.next;
            self.line.await_turn(turn)?;
            self.next += 1;
            if turn % workers == whose as u64 {
                return Ok(turn);
            }
        }
    }
}

impl<T: Transport> ElasticMember for OriginalEasgd<T> {
    fn rank(&self) -> usize {
        self.line.rank()
    }

    fn size(&self) -> usize {
        self.line.size()
    }

    fn traffic(&self) -> Traffic {
        self.line.traffic()
    }

    /// Each time that of the turn before.
    fn updating(&self) -> Duration {
        self.line.updating()
    }

    fn begin_turn(&mut self) -> Result<(), CommError> {
        self.turn = Some(self.await_turn()?);
        Ok(())
    }

    fn exchange(
        &mut self,
        weights: &[f32],
        elastic: f32,
        centre_out: &mut [f32],
    ) -> Result<Duration, CommError> {
        self.line.check_len(centre_out.len())?;
        let start = self.line.now();
        if self.turn.is_none() {
            self.begin_turn()?;
        }
        self.line.ask(weights, elastic)?;
        self.line.answer_exchange(centre_out)?;
        Ok(self.line.now().since(start))
    }

    fn end_turn(&mut self) -> Result<(), CommError> {
        match self.turn.take() {
            Some(turn) => self.line.end_turn(turn),
            None => Ok(()),
        }
    }

    fn centre(&mut self, centre_out: &mut [f32]) -> Result<(), CommError> {
        self.line.check_len(centre_out.len())?;
        self.await_turn()?;
        self.line.ask_with_all(Meaning::Centre, centre_out.len())?;
        self.line.answer(Meaning::Centre, centre_out)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.line.all_reduce_sum(values)
    }

    fn leave(&mut self) -> Result<(), CommError> {
        self.await_turn()?;
        self.line.ask_with_all(Meaning::Leave, 0)?;
        self.await_turn_of(0).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Peer;
    use crate::transport::threads::endpoints;
    use crate::transport::{sim, threads};

    #[test]
    fn two_rounds_by_hand() {
        let out = sim::run(3, 5, |transport| {
            let rank = transport.rank();
            if rank == 2 {
                return RoundRobin::new(transport, &[8.0]).serve().unwrap().0;
            }
            let mut worker = OriginalEasgd::new(transport, 1);
            let mut seen = [0.0; 3];
            for (step, weight) in [[2.0, 4.0], [8.0, 16.0]].iter().enumerate() {
                worker.begin_turn().unwrap();
                worker.exchange(&weight[rank..=rank], 0.5, &mut seen[step..=step]).unwrap();
                worker.end_turn().unwrap();
            }
            worker.centre(&mut seen[2..]).unwrap();
            worker.leave().unwrap();
            seen.to_vec()
        });
        // The centre is each time the mean with the worker whose turn it is: 8, 5, 4.5, 6.25, 11.125.
        assert_eq!(out.unwrap(), [vec![8.0, 4.5, 11.125], vec![5.0, 6.25, 11.125], vec![11.125]]);
    }

    #[test]
    fn a_message_for_each_array_changes_no_bit() {
        let run = |seed: u64, parts: &[Range<usize>]| {
            sim::run(4, seed, |transport| {
                let (rank, first) = (transport.rank(), [0.3, 0.7, 0.0, -1.1, 0.2, 0.0]);
                if rank == 3 {
                    return RoundRobin::new(transport, &first).going(parts.to_vec()).serve().unwrap().0;
                }
                let mut worker = OriginalEasgd::new(transport, 6).going(parts.to_vec());
                let (mut weights, mut seen, mut centre) = (first, vec![], [0.0; 6]);
                for step in 0..3 {
                    [0, 1, 3, 4]
                        .iter()
                        .for_each(|index| weights[*index] += 0.1 * (rank + step + *index) as f32);
                    worker.begin_turn().unwrap();
                    worker.exchange(&weights, 0.3, &mut centre).unwrap();
                    worker.end_turn().unwrap();
                    seen.extend(centre);
                }
                worker.centre(&mut centre).unwrap();
                seen.extend(centre);
                let sent = worker.traffic().messages;
                // Three exchanges, each with an end of the turn, and the question for the centre.
                assert_eq!(sent, 3 * (parts.len().max(1) as u64 + 1) + 1);
                worker.leave().unwrap();
                seen
            })
            .unwrap()
        };
        let packed = run(0, &[]);
        for seed in 0..1_000 {
            assert_eq!(run(seed, &[0..2, 3..4, 4..5]), packed, "seed {seed}");
        }
        let whole = 0..6;
        assert_eq!(run(1, &vec![whole; 1]), packed);
    }

    #[test]
    fn only_one_worker_is_inside_a_turn() {
        let inside = std::sync::atomic::AtomicUsize::new(0);
        let order = std::sync::atomic::Ordering::SeqCst;
        for seed in 0..200 {
            sim::run(4, seed, |transport| {
                if transport.rank() == 3 {
                    RoundRobin::new(transport, &[0.0]).serve().unwrap();
                    return;
                }
                let mut worker = OriginalEasgd::new(transport, 1);
                for _ in 0..3 {
                    worker.begin_turn().unwrap();
                    assert_eq!(inside.fetch_add(1, order), 0);
                    // Waits for the reply, so others go on meanwhile if they may.
                    worker.exchange(&[1.0], 0.5, &mut [0.0]).unwrap();
                    assert_eq!(inside.fetch_sub(1, order), 1);
                    worker.end_turn().unwrap();
                }
                worker.leave().unwrap();
            })
            .unwrap();
        }
    }

    #[test]
    fn a_worker_that_keeps_its_turn_is_named_by_the_others() {
        let mut ends = endpoints(4, Duration::from_secs(60));
        let master = RoundRobin::new(ends.pop().unwrap(), &[0.0]);
        let master = std::thread::spawn(move || master.serve().map(|_| ()));
        let mut ends = ends.into_iter();
        let mut first = OriginalEasgd::new(ends.next().unwrap(), 1);
        let mut silent = OriginalEasgd::new(ends.next().unwrap(), 1);
        let last = ends.next().unwrap().waiting_for(Duration::from_millis(200));
        let mut last = OriginalEasgd::new(last, 1);
        first.exchange(&[1.0], 0.5, &mut [0.0]).unwrap();
        first.end_turn().unwrap();
        silent.begin_turn().unwrap();
        let error = last.begin_turn().unwrap_err();
        assert!(matches!(error, CommError::Timeout { rank: 2, peer: Peer::Rank(1), .. }), "{error}");
        assert!(error.to_string().contains("turn 2"), "{error}");
        drop(last);
        assert_eq!(master.join().unwrap().unwrap_err().peer(), Some(2));
    }

    #[test]
    fn what_the_method_does_not_allow_is_refused() {
        let mut ends = endpoints(3, Duration::from_secs(60));
        let master = RoundRobin::new(ends.pop().unwrap(), &[0.0]);
        let master = std::thread::spawn(move || master.serve().map(|_| ()));
        let mut other = OriginalEasgd::<threads::ThreadTransport>::new(ends.pop().unwrap(), 1);
        let mut worker = OriginalEasgd::new(ends.pop().unwrap(), 1);
        assert!(matches!(worker.exchange(&[1.0], 0.5, &mut []), Err(CommError::Protocol { .. })));
        worker.exchange(&[1.0], 0.5, &mut [0.0]).unwrap();
        let error = worker.centre(&mut [0.0]).unwrap_err().to_string();
        assert!(error.contains("turn 0 is not over"), "{error}");
        worker.end_turn().unwrap();
        // Nobody else may ask for the centre in a round in which it changes.
        other.centre(&mut [0.0]).unwrap();
        let error = master.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("rank 1 means Centre in a round of Exchange"), "{error}");
    }
}
