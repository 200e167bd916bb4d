//! A campaign over threads: in each trial one rank, of any method, dies or falls silent at a random operation. All others end,
//! and each names another rank. The usual number of trials is small; `QUADRILLE_TRIALS` and `QUADRILLE_SEED` ask for others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use quadrille_comm::protocol::hogwild::{HogwildEasgd, HogwildSgd, SharedCentre};
use quadrille_comm::protocol::sync_easgd::SyncEasgd;
use quadrille_comm::protocol::sync_sgd::SyncSgd;
use quadrille_comm::transport::threads::{ThreadTransport, endpoints};
use quadrille_comm::transport::{Buffer, Tag, Transport};
use quadrille_comm::{CommError, Peer};
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::solver::Rule;

use crate::training::{self, LEN, first_centre};

/// How long a rank may be silent where one falls silent: every such trial takes at least as long. Much longer than a rank that works
/// is held up on a busy machine, or it would be blamed.
const PEER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same where nobody does: whoever dies is noticed without it.
const LONG: Duration = Duration::from_secs(60);
/// Far beyond what a trial takes, also on a busy machine: only a hang gets there.
const PATIENCE: Duration = Duration::from_secs(120);
/// Trials at a time: most of a trial is waiting.
const AT_ONCE: u64 = 16;

/// What goes wrong with a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It ends, as a thread that panics or a process that is killed.
    Death,
    /// It does nothing any more, but does not go, as a process that is stopped.
    Silence,
}

/// Where silent ranks wait until everybody else has ended.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().expect("nobody panics inside") = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let open = self.open.lock().expect("nobody panics inside");
        drop(self.changed.wait_while(open, |open| !*open).expect("nobody panics inside"));
    }
}

/// An endpoint whose rank can do so many operations.
struct Faulty {
    inner: ThreadTransport,
    fault: Fault,
    operations: Option<u64>,
    done: u64,
    gate: Arc<Gate>,
}

impl Faulty {
    fn operate(&mut self) -> Result<(), CommError> {
        let operation = self.done;
        self.done += 1;
        if self.operations.is_none_or(|operations| operation < operations) {
            return Ok(());
        }
        if self.fault == Fault::Silence {
            self.gate.wait();
        }
        Err(CommError::Stopped { rank: self.inner.rank(), operation })
    }
}

impl Transport for Faulty {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError> {
        self.operate()?;
        self.inner.send(to, tag, payload)
    }

    fn recv(&mut self, from: usize, tag: Tag) -> Result<Buffer, CommError> {
        self.operate()?;
        self.inner.recv(from, tag)
    }

    fn recv_any(&mut self, tag: Tag) -> Result<(usize, Buffer), CommError> {
        self.operate()?;
        self.inner.recv_any(tag)
    }

    fn try_recv(&mut self, from: usize, tag: Tag) -> Result<Option<Buffer>, CommError> {
        self.operate()?;
        self.inner.try_recv(from, tag)
    }
}

/// A rank's code; the centre is that of the methods that share one.
type Rank = fn(Faulty, &Arc<SharedCentre>) -> Result<(), CommError>;

/// Every way of exchanging, and whether it has a master.
const METHODS: [(&str, bool, Rank); 8] = [
    ("original-easgd", true, |end, _| training::original(end).map(drop)),
    ("async-sgd", true, |end, _| training::async_sgd(end).map(drop)),
    ("async-msgd", true, |end, _| training::async_msgd(end).map(drop)),
    ("async-easgd", true, |end, _| training::async_easgd(end).map(drop)),
    ("hogwild-sgd", false, hogwild_sgd),
    ("hogwild-easgd", false, |end, shared| {
        training::elastic(HogwildEasgd::new(end, shared.clone())).map(drop)
    }),
    ("sync-sgd", false, sync_sgd),
    ("sync-easgd3", false, |end, _| training::elastic(SyncEasgd::new(end, &first_centre())).map(drop)),
];

fn hogwild_sgd(end: Faulty, shared: &Arc<SharedCentre>) -> Result<(), CommError> {
    let mut worker = HogwildSgd::new(end, shared.clone(), training::packed(Rule::default()));
    for _ in 0..2 {
        for _ in 0..4 {
            worker.exchange(&mut [1.0; LEN], 0.5)?;
        }
        worker.centre(&mut [0.0; LEN])?;
    }
    worker.leave()
}

fn sync_sgd(end: Faulty, _: &Arc<SharedCentre>) -> Result<(), CommError> {
    let mut worker = SyncSgd::new(end);
    (0..6).try_for_each(|_| worker.exchange(&mut [1.0; LEN]).map(drop))
}

/// One trial: which rank of how many does what after how many operations.
#[derive(Clone, Copy, Debug)]
struct Trial {
    method: usize,
    workers: usize,
    victim: usize,
    fault: Fault,
    operations: u64,
}

impl Trial {
    fn draw(seed: u64, number: u64) -> Self {
        let [a, b, c, d] = Stream::new(seed, Purpose::Filler(0), 0).block(number);
        let pick = |word: u32, of: usize| word as usize % of;
        let method = pick(a, METHODS.len());
        let workers = 2 + pick(b, 4);
        let victim = pick(c, workers + usize::from(METHODS[method].1));
        let fault = if d & 1 == 0 { Fault::Death } else { Fault::Silence };
        Self { method, workers, victim, fault, operations: u64::from(d >> 1) % 12 }
    }

    /// Runs all ranks. Returns whether the fault came.
    fn run(self) -> bool {
        let (_, has_master, body) = METHODS[self.method];
        let ranks = self.workers + usize::from(has_master);
        let (gate, shared) = (Arc::new(Gate::default()), Arc::new(SharedCentre::new(&first_centre(), ranks)));
        let (tell, told) = channel();
        let timeout = if self.fault == Fault::Silence { PEER_TIMEOUT } else { LONG };
        for (rank, inner) in endpoints(ranks, timeout).into_iter().enumerate() {
            let operations = (rank == self.victim).then_some(self.operations);
            let end = Faulty { inner, fault: self.fault, operations, done: 0, gate: gate.clone() };
            let (shared, tell) = (shared.clone(), tell.clone());
            std::thread::spawn(move || drop(tell.send((rank, body(end, &shared)))));
        }
        self.judge(ranks, &told, &gate)
    }

    fn judge(self, ranks: usize, told: &Receiver<(usize, Result<(), CommError>)>, gate: &Gate) -> bool {
        let next = || match told.recv_timeout(PATIENCE) {
            Ok(told) => told,
            Err(RecvTimeoutError::Timeout) => panic!("{self:?}: somebody hangs"),
            Err(RecvTimeoutError::Disconnected) => panic!("{self:?}: somebody panicked"),
        };
        let mut results = vec![None; ranks];
        let mut others = ranks - 1;
        while others > 0 {
            let (rank, result) = next();
            others -= usize::from(rank != self.victim);
            results[rank] = Some(result);
        }
        gate.open();
        while results[self.victim].is_none() {
            let (rank, result) = next();
            results[rank] = Some(result);
        }
        let results: Vec<_> = results.into_iter().flatten().collect();
        let came = matches!(results[self.victim], Err(CommError::Stopped { .. }));
        let named = |error: &CommError| match error.peer() {
            Some(peer) => Some(Peer::Rank(peer)),
            None => matches!(error, CommError::Timeout { .. }).then_some(Peer::Any),
        };
        for (rank, result) in results.iter().enumerate().filter(|(rank, _)| *rank != self.victim) {
            if let Err(error) = result {
                let peer =
                    named(error).unwrap_or_else(|| panic!("{self:?}: rank {rank} names nobody: {error}"));
                assert_ne!(peer, Peer::Rank(rank), "{self:?}: {error}");
            }
        }
        let mut errors = results.iter().filter_map(|result| result.as_ref().err());
        let blamed = errors.any(|error| named(error) == Some(Peer::Rank(self.victim)));
        let all_done = results.iter().enumerate().all(|(rank, result)| rank == self.victim || result.is_ok());
        // Who waits for a turn cannot tell a master that is silent from a worker that keeps its turn.
        let hidden = METHODS[self.method].0 == "original-easgd" && self.victim == self.workers;
        assert!(
            !came || blamed || all_done || hidden,
            "{self:?}: nobody names the one that is lost: {results:?}"
        );
        came
    }
}

fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name)
        .map_or(usual, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}: no number")))
}

#[test]
fn whoever_dies_or_falls_silent_all_others_end_and_name_a_rank() {
    let trials = from_environment("QUADRILLE_TRIALS", 60);
    let seed = from_environment("QUADRILLE_SEED", 1);
    let (next, came) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= trials {
                        break;
                    }
                    came.fetch_add(u64::from(Trial::draw(seed, number).run()), Ordering::Relaxed);
                }
            });
        }
    });
    let came = came.into_inner();
    println!("{trials} trials with seed {seed}: a rank was lost in {came}, nobody hung");
    assert!(2 * came >= trials, "only {came} of {trials} trials lost a rank");
}
