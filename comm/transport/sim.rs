//! A simulated network: same seed, same order of everything.
//!
//! Every rank runs its ordinary blocking code on a thread of its own, but a baton lets only one of them run at a
//! time. A rank keeps the baton until it has to wait for a message, polls for one, or ends; then the scheduler
//! advances a virtual clock to the next event, which is either a message that arrives or a rank that goes on.
//! Delays are drawn from a counter-based generator, and every ordered pair of ranks gets a pace of its own, from
//! prompt to clogged, so that messages of different pairs, and messages of one pair with different tags, overtake
//! each other freely. Only messages of one pair with one tag keep their order, which is all that
//! [`Transport`] promises. (The idea is that of TigerBeetle's `packet_simulator.zig`.)
//!
//! When all ranks wait and nothing is on its way, that is a deadlock; it ends the run with the names of the ranks and
//! of what they wait for. A rank may be stopped at a chosen operation: what it sent and has not arrived yet is lost
//! or not, by the seed. Time is virtual, so there is no peer timeout here.

mod network;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use self::network::{Network, Want};
use super::{Buffer, Tag, Transport, check_peer};
use crate::error::{CommError, Doing, Peer};

/// A fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kill {
    /// The rank that is stopped.
    pub rank: usize,
    /// Which of its calls of send, recv, recv_any or try_recv, counted from 0, it can no longer do.
    pub operation: u64,
}

/// Why a simulated run has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimFailure {
    /// All ranks that had not ended were waiting, and nothing was on its way.
    #[error("sim: deadlock with seed {seed}: {}", describe_waiting(.waiting))]
    Deadlock {
        /// The seed of the run.
        seed: u64,
        /// Each waiting rank: who, for whom, for what.
        waiting: Vec<(usize, Peer, Tag)>,
    },
    /// The ranks went on for too many events; somebody polls for what will never come.
    #[error("sim: no end after {events} events with seed {seed}")]
    Endless {
        /// The seed of the run.
        seed: u64,
        /// Where the scheduler gave up.
        events: u64,
    },
    /// The code of a rank panicked.
    #[error("sim: rank {rank} panicked with seed {seed}: {message}")]
    Panicked {
        /// The seed of the run.
        seed: u64,
        /// The rank.
        rank: usize,
        /// What it said.
        message: String,
    },
}

fn describe_waiting(waiting: &[(usize, Peer, Tag)]) -> String {
    let lines: Vec<String> =
        waiting.iter().map(|(rank, peer, tag)| format!("rank {rank} waits for {tag} from {peer}")).collect();
    lines.join(", ")
}

struct World {
    network: Mutex<Network>,
    /// The thread of each rank that waits for its turn, or did so last: a rank may hand its endpoint to another one.
    waiting: Vec<Mutex<Option<Thread>>>,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, Network> {
        // The network is checked state and nothing in it panics; a rank that panics does so outside of the lock.
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whom the scheduler gave the baton, or all if a failure ended the run. Without the lock, for which they would wait at once.
    fn wake(&self, network: MutexGuard<'_, Network>) {
        let next = network.running();
        drop(network);
        let ranks = match next {
            Some(rank) => &self.waiting[rank..=rank],
            None => &self.waiting[..],
        };
        for waiting in ranks {
            let thread = waiting.lock().unwrap_or_else(PoisonError::into_inner).clone();
            thread.inspect(Thread::unpark);
        }
    }

    /// Waits until it is `rank`'s turn. Ends because whoever holds the baton passes it on when it waits or ends, and
    /// a failure wakes all. No wake is missed: a thread names itself before it looks whose turn it is, under the lock under which
    /// the turn was decided before it was woken.
    fn await_turn(&self, rank: usize) -> MutexGuard<'_, Network> {
        *self.waiting[rank].lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        loop {
            let network = self.lock();
            if network.running() == Some(rank) || network.failure().is_some() {
                return network;
            }
            drop(network);
            std::thread::park();
        }
    }

    /// Passes the baton on as the scheduler decided, and waits until `rank` has it again.
    fn pass_on<'a>(&'a self, network: MutexGuard<'a, Network>, rank: usize) -> MutexGuard<'a, Network> {
        if network.running() == Some(rank) {
            return network;
        }
        self.wake(network);
        self.await_turn(rank)
    }
}

/// The endpoint of one simulated rank; [`run`] hands it to the rank's code.
pub struct SimTransport {
    rank: usize,
    size: usize,
    world: Arc<World>,
}

/// Runs `body` once for each of `size` ranks over a network that behaves as `seed` says, and returns what each rank
/// returned, in the order of ranks.
pub fn run<R: Send>(
    size: usize,
    seed: u64,
    body: impl Fn(SimTransport) -> R + Sync,
) -> Result<Vec<R>, SimFailure> {
    simulate(Network::new(size, seed, None), body)
}

/// Like [`run`], with one rank stopped as `kill` says: from there on all its calls return
/// [`CommError::Stopped`], and to the others it is gone.
pub fn run_with_kill<R: Send>(
    size: usize,
    seed: u64,
    kill: Kill,
    body: impl Fn(SimTransport) -> R + Sync,
) -> Result<Vec<R>, SimFailure> {
    simulate(Network::new(size, seed, Some(kill)), body)
}

fn simulate<R: Send>(
    mut network: Network,
    body: impl Fn(SimTransport) -> R + Sync,
) -> Result<Vec<R>, SimFailure> {
    let (size, seed) = (network.size(), network.seed());
    network.schedule();
    let waiting = (0..size).map(|_| Mutex::new(None)).collect();
    let world = Arc::new(World { network: Mutex::new(network), waiting });
    let outcomes = on_one_cpu(|| {
        std::thread::scope(|scope| {
            let start = |rank| {
                let (world, body) = (Arc::clone(&world), &body);
                scope.spawn(move || {
                    let _ending = Ending { rank, world: Arc::clone(&world) };
                    drop(world.await_turn(rank));
                    body(SimTransport { rank, size, world })
                })
            };
            let threads: Vec<_> = (0..size).map(start).collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        })
    });
    if let Some(failure) = world.lock().failure() {
        return Err(failure.clone());
    }
    let mut results = Vec::with_capacity(size);
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        results.push(outcome.map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let message = text.or_else(|| panic.downcast_ref().copied()).unwrap_or("no text").to_owned();
            SimFailure::Panicked { seed, rank, message }
        })?);
    }
    Ok(results)
}

/// Does something on a thread that stays on one CPU, as do the threads that it starts: only one of them runs at a time, and to
/// wake a thread of another CPU takes several times as long.
fn on_one_cpu<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let pinned = || {
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        let cpu = Cpu::of(cpus.len());
        if let Some(cpu) = &cpu {
            // Where the system refuses, it only takes longer.
            core_affinity::set_for_current(cpus[cpu.0]);
        }
        work()
    };
    std::thread::scope(|scope| {
        scope.spawn(pinned).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The CPU that a run has while this lives, by its number among those that are allowed.
struct Cpu(usize);

/// Runs on each CPU.
static RUNS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl Cpu {
    /// One of `cpus`, of which none has fewer runs; `None` if there are none.
    fn of(cpus: usize) -> Option<Self> {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let len = runs.len().max(cpus);
        runs.resize(len, 0);
        let cpu = (0..cpus).min_by_key(|cpu| runs[*cpu])?;
        runs[cpu] += 1;
        Some(Self(cpu))
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        RUNS.lock().unwrap_or_else(PoisonError::into_inner)[self.0] -= 1;
    }
}

/// Passes the baton on when a rank's code ends, by return or by panic.
struct Ending {
    rank: usize,
    world: Arc<World>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut network = self.world.lock();
        network.end(self.rank);
        self.world.wake(network);
    }
}

impl SimTransport {
    fn stuck(&self) -> CommError {
        let problem = "the simulated run has failed; its own error says why".to_owned();
        CommError::Protocol { rank: self.rank, peer: None, problem }
    }

    /// Counts an operation, after which the network may be used.
    fn begin(&self) -> Result<MutexGuard<'_, Network>, CommError> {
        let mut network = self.world.lock();
        if network.failure().is_some() {
            return Err(self.stuck());
        }
        network.count_operation(self.rank)?;
        Ok(network)
    }

    fn wait_for(&self, from: Peer, tag: Tag) -> Result<(usize, Buffer), CommError> {
        let want = Want { from, tag };
        let mut network = self.begin()?;
        loop {
            if let Some(found) = network.look(self.rank, want)? {
                return Ok(found);
            }
            // Also after a turn: a rank is woken because nothing can come any more, and until it runs another rank
            // may have sent what it waits for.
            network.block(self.rank, want);
            network = self.world.pass_on(network, self.rank);
            if network.failure().is_some() {
                return Err(self.stuck());
            }
        }
    }
}

impl Transport for SimTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError> {
        check_peer(self.rank, self.size, to, Doing::Sending(tag))?;
        self.begin()?.send(self.rank, to, tag, payload)
    }

    fn recv(&mut self, from: usize, tag: Tag) -> Result<Buffer, CommError> {
        check_peer(self.rank, self.size, from, Doing::Receiving(tag))?;
        self.wait_for(Peer::Rank(from), tag).map(|(_, payload)| payload)
    }

    fn recv_any(&mut self, tag: Tag) -> Result<(usize, Buffer), CommError> {
        self.wait_for(Peer::Any, tag)
    }

    fn try_recv(&mut self, from: usize, tag: Tag) -> Result<Option<Buffer>, CommError> {
        check_peer(self.rank, self.size, from, Doing::Receiving(tag))?;
        let mut network = self.begin()?;
        // Polling takes time, in which others go on; else a loop of polls would never end.
        network.pause(self.rank);
        network = self.world.pass_on(network, self.rank);
        if network.failure().is_some() {
            return Err(self.stuck());
        }
        let found = network.look(self.rank, Want { from: Peer::Rank(from), tag })?;
        Ok(found.map(|(_, payload)| payload))
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        self.world.lock().leave(self.rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Kind;

    fn tag(exchange: u64) -> Tag {
        Tag { exchange, kind: Kind::Reduce }
    }

    /// The order in which rank 0 receives one message from each other rank.
    fn order(seed: u64) -> Vec<usize> {
        let mut out = run(6, seed, |mut end| {
            if end.rank() == 0 {
                return (1..6).map(|_| end.recv_any(tag(0)).unwrap().0).collect();
            }
            end.send(0, tag(0), Buffer::zeros(1)).unwrap();
            // Stays until told, so that recv_any never meets a rank that is gone.
            assert!(end.recv(0, tag(1)).is_err());
            Vec::new()
        })
        .unwrap();
        out.swap_remove(0)
    }

    #[test]
    fn a_seed_fixes_the_order_and_seeds_differ() {
        let orders: Vec<_> = (0..50).map(order).collect();
        assert_eq!(orders, (0..50).map(order).collect::<Vec<_>>());
        let distinct: std::collections::HashSet<_> = orders.iter().collect();
        assert!(distinct.len() > 20, "only {} orders among 50 seeds", distinct.len());
    }

    #[test]
    fn tags_of_one_pair_overtake_each_other_but_one_tag_keeps_its_order() {
        let mut overtaken = 0;
        for seed in 0..100 {
            let out = run(2, seed, |mut end| {
                if end.rank() == 0 {
                    for value in [1.0, 2.0, 3.0] {
                        end.send(1, tag(0), vec![value].into()).unwrap();
                    }
                    end.send(1, tag(1), vec![4.0].into()).unwrap();
                    return false;
                }
                end.recv(0, tag(1)).unwrap();
                let late = end.try_recv(0, tag(0)).unwrap();
                let overtook = late.is_none();
                let mut rest: Vec<f32> = late.iter().map(|buffer| buffer[0]).collect();
                while rest.len() < 3 {
                    rest.push(end.recv(0, tag(0)).unwrap()[0]);
                }
                assert_eq!(rest, [1.0, 2.0, 3.0]);
                overtook
            });
            overtaken += usize::from(out.unwrap()[1]);
        }
        assert!((5..96).contains(&overtaken), "{overtaken} of 100");
    }

    #[test]
    fn a_deadlock_is_found_and_names_who_waits_for_what() {
        let failure = run(3, 1, |mut end| {
            let next = (end.rank() + 1) % 3;
            end.recv(next, tag(end.rank() as u64))
        })
        .unwrap_err();
        let waiting = (0..3).map(|rank| (rank, Peer::Rank((rank + 1) % 3), tag(rank as u64))).collect();
        assert_eq!(failure, SimFailure::Deadlock { seed: 1, waiting });
        let text = failure.to_string();
        assert!(text.contains("rank 2 waits for the partial sum of exchange 2 from rank 0"), "{text}");
    }

    #[test]
    fn endless_polling_is_found() {
        let failure = run(2, 1, |mut end| {
            let peer = 1 - end.rank();
            while end.try_recv(peer, tag(0)).is_ok_and(|message| message.is_none()) {}
        });
        assert!(matches!(failure, Err(SimFailure::Endless { seed: 1, .. })), "{failure:?}");
    }

    #[test]
    fn a_panic_names_its_rank_and_frees_the_others() {
        let failure = run(2, 1, |mut end| {
            assert!(end.rank() == 0, "rank 1 is wrong");
            end.recv(1, tag(0)).unwrap_err()
        });
        let message = "rank 1 is wrong".to_owned();
        assert_eq!(failure.unwrap_err(), SimFailure::Panicked { seed: 1, rank: 1, message });
    }

    #[test]
    fn a_stopped_rank_loses_some_messages_and_is_noticed() {
        let mut arrived = 0;
        for seed in 0..100 {
            let out = run_with_kill(2, seed, Kill { rank: 0, operation: 1 }, |mut end| {
                if end.rank() == 0 {
                    end.send(1, tag(0), Buffer::zeros(1)).unwrap();
                    return end.send(1, tag(1), Buffer::zeros(1)).map(|()| false);
                }
                let first = end.recv(0, tag(0)).is_ok();
                let lost = CommError::PeerLost { rank: 1, peer: 0, doing: Doing::Receiving(tag(1)) };
                assert_eq!(end.recv(0, tag(1)), Err(lost));
                Ok(first)
            })
            .unwrap();
            assert_eq!(out[0], Err(CommError::Stopped { rank: 0, operation: 1 }));
            arrived += usize::from(*out[1].as_ref().unwrap());
        }
        assert!((20..81).contains(&arrived), "{arrived} of 100");
    }
}
