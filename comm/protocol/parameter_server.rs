//! The master of the asynchronous methods: it holds the centre and serves workers first come, first served.
//!
//! ```text
//!     worker:  sends a request with packed values, goes on computing if the method allows it, waits for the reply
//!     master:  takes the request that came first, lets the centre change by it, replies in the same buffer
//! ```
//!
//! What a request means to the centre is the method's: [`Centre`].
//!
//! **No update is lost, none is seen by halves.** The master handles one request from its arrival to its reply before it
//! looks at the next, so all exchanges are in one order, that of their arrival, and each sees the centre as the one before
//! left it. Arrival is not reproducible, so neither are these methods.
//!
//! **The centre for all.** Tests, snapshots and the end need the same centre on all workers. Each asks for it at the same
//! point of its own sequence. The master keeps these requests until it has all P of them; then nobody is inside an
//! exchange, so it is the centre after everything that was sent. Sums over the workers, in which the master has no part, begin
//! with such a meeting, without values: alone they would bound by one peer timeout how far workers may drift apart.
//!
//! **It ends.** The master waits for nobody in particular. A worker waits for the master only, and has one request at a time.
//! An exchange is answered at once. A request for the centre is answered when the last worker asks: every other one
//! comes there, since its own exchanges are answered at once. Workers drift apart, and the first may wait for long; so
//! whenever the master serves an exchange, or the one whom they wait for comes, it tells those who wait that they wait,
//! and for whom. Each of these waits is bounded by the peer timeout, and at its end the worker that is missing is named. A
//! worker that dies ends the master's wait, the master drops its endpoint, and all others lose the master. At the end a
//! worker may not go before all others need no more of it, or it would look as if it had died: who leaves waits until all do.

use super::letter::{Letter, Meaning};
use super::line::Desk;
use crate::collective::Traffic;
use crate::error::CommError;
use crate::transport::Transport;

/// What a master holds, and how it changes.
pub trait Centre: Send {
    /// The packed weights of the centre.
    fn weights(&self) -> &[f32];

    /// The packed histories, if the centre has momentum or the like; else nothing.
    fn history(&self) -> &[f32] {
        &[]
    }

    /// One exchange. `values` are what the worker sent, as long as the weights, and become what it gets; `number` came with
    /// them.
    fn serve(&mut self, values: &mut [f32], number: f32);
}

/// The master of P workers over a transport of P + 1 ranks, of which it is the last.
pub struct ParameterServer<T, C> {
    desk: Desk<T>,
    centre: C,
    /// The requests that need all workers, by worker.
    held: Vec<Option<(Letter, Meaning)>>,
}

impl<T: Transport, C: Centre> ParameterServer<T, C> {
    /// A master with the first centre.
    pub fn new(transport: T, centre: C) -> Self {
        let desk = Desk::new(transport);
        let held = (0..desk.workers()).map(|_| None).collect();
        ParameterServer { desk, centre, held }
    }

    /// Serves until all workers have left. Returns the last centre, and what was sent.
    ///
    /// # Errors
    /// If a worker is lost, or sends what the method does not allow.
    pub fn serve(mut self) -> Result<(C, Traffic), CommError> {
        loop {
            let (from, letter, meaning) = self.desk.next_request()?;
            match meaning {
                Meaning::Exchange => self.exchange(from, letter)?,
                Meaning::Centre | Meaning::Leave => {
                    let before = self.missing();
                    self.hold(from, letter, meaning)?;
                    match self.missing() {
                        // Those who were told that this one is missing would blame it for another's silence.
                        Some(missing) if before == Some(from) => self.tell_waiting(missing)?,
                        Some(missing) => self.not_yet(from, missing)?,
                        None if self.answer_all()? == Meaning::Leave => {
                            return Ok((self.centre, self.desk.traffic()));
                        }
                        None => {}
                    }
                }
                Meaning::NotYet => return Err(self.desk.unexpected(from, "means what only a master says")),
            }
        }
    }

    fn exchange(&mut self, from: usize, mut letter: Letter) -> Result<(), CommError> {
        let len = self.centre.weights().len();
        if letter.len() != len {
            let what = format!("has {} values, the centre has {len}", letter.len());
            return Err(self.desk.unexpected(from, &what));
        }
        let (number, centre) = (letter.number(), &mut self.centre);
        let took = self.desk.update(len, || centre.serve(letter.values_mut(), number));
        self.desk.reply(from, letter, Meaning::Exchange, took.as_secs_f32())?;
        // Somebody is missing: the one that was just served.
        self.missing().map_or(Ok(()), |missing| self.tell_waiting(missing))
    }

    /// Tells all who wait for whom they do.
    fn tell_waiting(&mut self, missing: usize) -> Result<(), CommError> {
        for waiting in 0..self.held.len() {
            if self.held[waiting].is_some() {
                self.not_yet(waiting, missing)?;
            }
        }
        Ok(())
    }

    fn hold(&mut self, from: usize, letter: Letter, meaning: Meaning) -> Result<(), CommError> {
        if let Some((_, other)) = self.held.iter().flatten().find(|(_, other)| *other != meaning) {
            let what = format!("means {meaning:?} while others ask for {other:?}");
            return Err(self.desk.unexpected(from, &what));
        }
        match self.held[from].replace((letter, meaning)) {
            None => Ok(()),
            Some(_) => Err(self.desk.unexpected(from, "came before the reply to the last one")),
        }
    }

    /// The first worker that has not asked for what needs all.
    fn missing(&self) -> Option<usize> {
        self.held.iter().position(Option::is_none)
    }

    fn not_yet(&mut self, to: usize, missing: usize) -> Result<(), CommError> {
        self.desk.reply(to, Letter::new(0), Meaning::NotYet, missing as f32)
    }

    /// Answers the request of every worker, with as much of the centre's state as the request has room for.
    fn answer_all(&mut self) -> Result<Meaning, CommError> {
        let mut all = Meaning::Centre;
        for to in 0..self.held.len() {
            let Some((mut letter, meaning)) = self.held[to].take() else { continue };
            let (weights, history) = (self.centre.weights(), self.centre.history());
            let room = letter.len();
            // Without room it is a meeting.
            if meaning == Meaning::Centre && room > 0 {
                if room != weights.len() && room != weights.len() + history.len() {
                    let what = format!("has room for {room} values of {} + {}", weights.len(), history.len());
                    return Err(self.desk.unexpected(to, &what));
                }
                let (first, rest) = letter.values_mut().split_at_mut(weights.len());
                first.copy_from_slice(weights);
                rest.copy_from_slice(&history[..rest.len()]);
            }
            self.desk.reply(to, letter, meaning, 0.0)?;
            all = meaning;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Peer;
    use crate::protocol::ElasticMember;
    use crate::protocol::async_easgd::{AsyncEasgd, ElasticCentre};
    use crate::protocol::line::Line;
    use crate::transport::threads::{ThreadTransport, endpoints};

    /// P workers and the thread of their master, whose centre is 8 and which waits long.
    type Master = std::thread::JoinHandle<Result<(ElasticCentre, Traffic), CommError>>;

    fn served(workers: usize, timeout: Duration) -> (Vec<ThreadTransport>, Master) {
        let mut ends = endpoints(workers + 1, Duration::from_secs(60));
        let master = ParameterServer::new(ends.pop().unwrap(), ElasticCentre::new(&[8.0]));
        let ends = ends.into_iter().map(|end| end.waiting_for(timeout)).collect();
        (ends, std::thread::spawn(move || master.serve()))
    }

    #[test]
    fn who_waits_for_all_is_told_so_with_every_exchange() {
        let (mut ends, master) = served(2, Duration::from_secs(60));
        let mut late = AsyncEasgd::new(ends.pop().unwrap(), 1);
        let mut early = ends.pop().unwrap();
        let reply = crate::transport::Tag { exchange: 0, kind: crate::transport::Kind::Reply };
        let request = crate::transport::Tag { exchange: 0, kind: crate::transport::Kind::Request };
        let heard = |early: &mut ThreadTransport| {
            let (letter, meaning) = Letter::read(early.recv(2, reply).unwrap()).unwrap();
            (meaning, letter.number(), letter.values().to_vec())
        };
        early.send(2, request, Letter::new(1).seal(Meaning::Centre, 0.0)).unwrap();
        assert_eq!(heard(&mut early), (Meaning::NotYet, 1.0, vec![]));
        let mut centre = [0.0];
        for _ in 0..3 {
            late.exchange(&[4.0], 0.5, &mut centre).unwrap();
            assert_eq!(heard(&mut early), (Meaning::NotYet, 1.0, vec![]));
        }
        // 8 → 6 → 5 → 4.5, each time the mean with 4.
        late.centre(&mut centre).unwrap();
        assert_eq!((centre, heard(&mut early)), ([4.5], (Meaning::Centre, 0.0, vec![4.5])));
        early.send(2, request, Letter::new(0).seal(Meaning::Leave, 0.0)).unwrap();
        late.leave().unwrap();
        assert_eq!(master.join().unwrap().unwrap().0.weights(), &[4.5]);
    }

    #[test]
    fn who_waits_with_a_sum_hears_of_those_who_still_exchange() {
        let (mut ends, master) = served(2, Duration::from_millis(500));
        let mut late = AsyncEasgd::new(ends.pop().unwrap(), 1);
        let mut early = AsyncEasgd::new(ends.pop().unwrap(), 1);
        let waiting = std::thread::spawn(move || {
            let mut sum = [1.0];
            early.all_reduce_sum(&mut sum).map(|()| (sum, early))
        });
        let mut centre = [0.0];
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(100));
            late.exchange(&[8.0], 0.5, &mut centre).unwrap();
        }
        let mut sum = [2.0];
        late.all_reduce_sum(&mut sum).unwrap();
        let (other, mut early) = waiting.join().unwrap().unwrap();
        assert_eq!((sum, other), ([3.0], [3.0]));
        let leaving = std::thread::spawn(move || early.leave());
        late.leave().unwrap();
        leaving.join().unwrap().unwrap();
        assert_eq!(master.join().unwrap().unwrap().0.weights(), &[8.0]);
    }

    #[test]
    fn a_worker_that_stays_silent_is_named_by_those_who_wait_for_it() {
        let (mut ends, master) = served(3, Duration::from_secs(1));
        let silent = ends.remove(1);
        let waiting = ends
            .into_iter()
            .map(|end| std::thread::spawn(move || AsyncEasgd::new(end, 1).centre(&mut [0.0]).unwrap_err()));
        let errors: Vec<_> = waiting.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect();
        // The second of them may already have lost the master, over the first.
        let named = |e: &CommError| matches!(e, CommError::Timeout { peer: Peer::Rank(1), .. });
        assert!(errors.iter().any(named), "{errors:?}");
        assert!(errors.iter().all(|e| named(e) || matches!(e, CommError::PeerLost { .. })), "{errors:?}");
        assert!(matches!(master.join().unwrap(), Err(CommError::PeerLost { rank: 3, .. })));
        drop(silent);
    }

    #[test]
    fn what_the_method_does_not_allow_is_refused_with_the_rank() {
        type Misuse = fn(&mut Line<ThreadTransport>) -> Result<(), CommError>;
        let misuses: [(Misuse, &str); 4] = [
            (|line| line.ask_with_all(Meaning::NotYet, 0), "only a master"),
            (|line| line.ask_with_all(Meaning::Exchange, 5), "has 5 values"),
            (|line| line.ask_with_all(Meaning::Centre, 2), "has room for 2 values"),
            (
                |line| {
                    line.ask_with_all(Meaning::Centre, 1)?;
                    line.ask_with_all(Meaning::Centre, 1)
                },
                "before the reply",
            ),
        ];
        for (misuse, expected) in misuses {
            let alone = expected.contains("room");
            let (mut ends, master) = served(if alone { 1 } else { 2 }, Duration::from_secs(60));
            let mut line = Line::new(ends.remove(0), 1);
            misuse(&mut line).unwrap();
            let error = master.join().unwrap().map(|_| ()).unwrap_err();
            assert_eq!(error.peer(), Some(0));
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn workers_that_ask_for_different_things_are_refused() {
        let (ends, master) = served(2, Duration::from_secs(60));
        for (end, meaning) in ends.into_iter().zip([Meaning::Leave, Meaning::Centre]) {
            std::thread::spawn(move || {
                let mut line = Line::new(end, 1);
                line.ask_with_all(meaning, usize::from(meaning == Meaning::Centre)).unwrap();
                line.answer(meaning, &mut [0.0]).unwrap_err()
            });
        }
        let error = master.join().unwrap().map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("Leave") && error.contains("Centre"), "{error}");
    }
}
