//! Ranks in virtual time: the protocols run as they are, on threads, and every message, copy and computation takes what a
//! machine's figures say.
//!
//! # How it works
//!
//! Every rank is a thread with a time of its own. Computing is real work that moves this time by a given amount at its
//! begin, so that others know how far the rank will be ([`TimedClock::pass`]). A message leaves at the sender's time and has a
//! time of arrival; who receives it goes on at this time, or at its own if that is later. An exchange that runs beside
//! forward and backward has a time line of its own, from its begin on ([`TimedClock::aside`]), and whoever waits for it
//! goes on at the later of the two ends.
//!
//! # Why the order is that of virtual time
//!
//! Of what ranks do to each other, only some depends on an order: taking the message that came first, sending over a way that
//! carries one message at a time, changing memory that ranks share. These are *events*, with the pair (time, rank). For every
//! rank the world knows a bound: a time before which it does nothing any more. A rank's bound never falls, since its times
//! never do. An event happens when its pair is the smallest of all ranks' pairs (bound, rank). So:
//!
//! 1. *Events happen in the order of their pairs.* When an event (t, r) happens, every other rank's bound is at least t, and
//!    so are the times of all its events to come; those at t have a larger rank.
//! 2. *A rank that waits for a message needs no bound.* What wakes it was sent by a rank that has one, and arrives at least a
//!    nanosecond after it was sent; so it wakes at a time above that bound, which is at least that of any event that has
//!    happened. From the moment of sending on the arrival is its bound.
//! 3. *Who takes the message that came first takes the right one.* Its pair is (arrival, own rank). Any message still to be
//!    sent leaves at the bound of its sender or later and arrives later than that.
//! 4. *There is always a next event, or a deadlock.* The rank with the smallest pair computes, which ends, or its event
//!    happens. If no rank has a bound, those that are left wait for each other: an error that names them.
//!
//! All else depends on no order: a message of a known sender and tag, and times that follow from a rank's own. So times and
//! bits follow from the figures alone, however the threads are scheduled. Ranks compute at the same time wherever their bounds
//! let them, which are the ends of what they compute.
//!
//! There is no peer timeout here: virtual time does not pass while a thread is stuck. Starting costs nothing.

mod world;

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quadrille_core::machine::{Jitter, Link, Machine};

use self::world::{Want, World};
use super::{Buffer, Tag, Transport, check_peer};
use crate::clock::{Moment, Work};
use crate::error::{CommError, Doing, Peer};
use crate::protocol::{Keeper, Method};

/// In so many parts memory that ranks share is changed, so that others come in between.
const PARTS: usize = 16;

/// The ways of messages and the speed of a centre, as one method uses them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wires {
    /// Between workers.
    pub workers: Link,
    /// Between a worker and the master, and to memory that all share.
    pub master: Link,
    /// From the host to a worker: mini-batches.
    pub data: Link,
    /// Bytes of weights that a centre takes in per nanosecond.
    pub centre: f64,
    /// Nanoseconds of a message without values.
    pub control: f64,
    /// The share of an exchange's own work that does not make computing beside it longer, of 1.
    pub overlap: f64,
    /// The same of a mini-batch's way.
    pub data_overlap: f64,
    /// The last rank is a master.
    pub has_master: bool,
    /// How times vary.
    pub jitter: Option<Jitter>,
}

impl Wires {
    /// Those of a method on a machine.
    pub fn new(machine: &Machine, method: Method, has_master: bool) -> Self {
        // Sync EASGD1 has its centre in the memory of the host, Sync EASGD2 and 3 in that of the first worker.
        let by_host = method == Method::SyncEasgd1;
        let on_worker = method.keeper() == Keeper::Workers && !by_host;
        let in_shared = method.keeper() == Keeper::SharedMemory;
        Wires {
            workers: if by_host { machine.host } else { machine.workers },
            master: if in_shared { machine.shared } else { machine.master },
            data: machine.data,
            centre: if on_worker { machine.worker_update } else { machine.host_update },
            control: machine.control,
            overlap: if in_shared { machine.shared_overlap } else { machine.overlap },
            data_overlap: machine.overlap,
            has_master,
            jitter: machine.jitter,
        }
    }
}

struct Shared {
    world: Mutex<World>,
    /// Entry i wakes rank i.
    turn: Vec<Condvar>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        // Nothing in the world panics, so a poisoned lock still guards a sound one.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, world: MutexGuard<'a, World>, rank: usize) -> MutexGuard<'a, World> {
        self.turn[rank].wait(world).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever comes next, after bounds have changed.
    fn wake_next(&self, world: &mut World) {
        match world.next() {
            Some(rank) => self.turn[rank].notify_one(),
            None => {
                world.note_deadlock();
                self.turn.iter().for_each(Condvar::notify_one);
            }
        }
    }

    /// Waits until an event of `rank` at its time comes next. A world that has failed lets everybody go.
    fn in_order(&self, rank: usize) -> MutexGuard<'_, World> {
        let mut world = self.lock();
        world.begin_event(rank);
        while !world.is_next(rank) && world.runs(rank) {
            self.wake_next(&mut world);
            world = self.wait(world, rank);
        }
        world
    }
}

/// The endpoint of one rank in virtual time.
pub struct TimedTransport {
    rank: usize,
    size: usize,
    shared: Arc<Shared>,
}

/// The time of one rank, for its thread beside the [`TimedTransport`].
#[derive(Clone)]
pub struct TimedClock {
    rank: usize,
    shared: Arc<Shared>,
}

/// Connects `size` ranks by `wires`. Entry i of the result is rank i's; move it to its thread. All begin at time 0.
pub fn endpoints(size: usize, wires: Wires) -> Vec<TimedTransport> {
    let turn = (0..size).map(|_| Condvar::new()).collect();
    let shared = Arc::new(Shared { world: Mutex::new(World::new(size, wires)), turn });
    (0..size).map(|rank| TimedTransport { rank, size, shared: Arc::clone(&shared) }).collect()
}

impl TimedTransport {
    /// The time of this rank. For the thread that has the endpoint, since a rank does one thing after the other.
    pub fn clock(&self) -> TimedClock {
        TimedClock { rank: self.rank, shared: Arc::clone(&self.shared) }
    }

    fn receive(&mut self, from: Peer, tag: Tag) -> Result<(usize, Buffer), CommError> {
        let want = Want { from, tag };
        let mut world = self.shared.lock();
        world.begin_wait(self.rank, want);
        loop {
            if let Some(problem) = world.failure() {
                let problem = problem.to_owned();
                return Err(CommError::Protocol { rank: self.rank, peer: None, problem });
            }
            // A message of a known sender is the same whenever it is looked for.
            if world.has(self.rank, want) && (from != Peer::Any || world.is_next(self.rank)) {
                let found = world.take(self.rank, want);
                self.shared.wake_next(&mut world);
                return found.ok_or_else(|| unreadable(self.rank));
            }
            if let Some(peer) = world.lost(self.rank, want) {
                world.end_wait(self.rank);
                return Err(CommError::PeerLost { rank: self.rank, peer, doing: Doing::Receiving(tag) });
            }
            self.shared.wake_next(&mut world);
            if world.failure().is_none() && !(world.has(self.rank, want) && world.is_next(self.rank)) {
                world = self.shared.wait(world, self.rank);
            }
        }
    }
}

fn unreadable(rank: usize) -> CommError {
    let problem = "a message that was there is gone: this is a defect".to_owned();
    CommError::Protocol { rank, peer: None, problem }
}

impl Transport for TimedTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError> {
        let doing = Doing::Sending(tag);
        check_peer(self.rank, self.size, to, doing)?;
        let in_turn = self.shared.lock().is_shared_way(self.rank, to, payload.len());
        let mut world = if in_turn { self.shared.in_order(self.rank) } else { self.shared.lock() };
        if world.is_gone(to) {
            return Err(CommError::PeerLost { rank: self.rank, peer: to, doing });
        }
        world.send(self.rank, to, tag, payload);
        drop(world);
        self.shared.turn[to].notify_one();
        Ok(())
    }

    fn recv(&mut self, from: usize, tag: Tag) -> Result<Buffer, CommError> {
        check_peer(self.rank, self.size, from, Doing::Receiving(tag))?;
        self.receive(Peer::Rank(from), tag).map(|(_, payload)| payload)
    }

    fn recv_any(&mut self, tag: Tag) -> Result<(usize, Buffer), CommError> {
        self.receive(Peer::Any, tag)
    }

    /// Takes a microsecond, so that polling comes to an end.
    fn try_recv(&mut self, from: usize, tag: Tag) -> Result<Option<Buffer>, CommError> {
        check_peer(self.rank, self.size, from, Doing::Receiving(tag))?;
        let want = Want { from: Peer::Rank(from), tag };
        let mut world = self.shared.in_order(self.rank);
        let found = world.take_arrived(self.rank, want);
        let lost = world.lost(self.rank, want);
        world.pass(self.rank, 1_000);
        self.shared.wake_next(&mut world);
        match (found, lost) {
            (None, Some(peer)) => {
                Err(CommError::PeerLost { rank: self.rank, peer, doing: Doing::Receiving(tag) })
            }
            (found, _) => Ok(found),
        }
    }

    fn now(&self) -> Moment {
        Moment::Virtual(Duration::from_nanos(self.shared.lock().time(self.rank)))
    }

    fn spend(&mut self, work: Work, _took: Duration) -> Duration {
        let Work::Centre { values, workers } = work;
        let mut world = self.shared.lock();
        let bytes = values * workers * size_of::<f32>();
        let centre = world.wires().centre;
        let took = world.varied(self.rank, bytes as f64 / centre);
        world.work(self.rank, took);
        self.shared.wake_next(&mut world);
        Duration::from_nanos(took)
    }

    /// The worker's values go to the memory, change it there in parts, and what was there comes back. Returns the time of the
    /// change without the ways.
    fn change_shared(&mut self, len: usize, access: &mut dyn FnMut(Range<usize>)) -> Duration {
        let mut world = self.shared.lock();
        let bytes = len * size_of::<f32>();
        let wires = world.wires();
        let (way, change) = (wires.master.message(bytes), bytes as f64 / wires.centre);
        let [there, change, back] = [way, change, way].map(|cost| world.varied(self.rank, cost));
        world.work(self.rank, there);
        self.shared.wake_next(&mut world);
        drop(world);
        for part in 0..PARTS {
            let mut world = self.shared.in_order(self.rank);
            access(len * part / PARTS..len * (part + 1) / PARTS);
            let step = change * (part as u64 + 1) / PARTS as u64 - change * part as u64 / PARTS as u64;
            world.work(self.rank, step);
            self.shared.wake_next(&mut world);
        }
        let mut world = self.shared.lock();
        world.work(self.rank, back);
        self.shared.wake_next(&mut world);
        Duration::from_nanos(change)
    }

    fn keep_order(&mut self) {
        drop(self.shared.in_order(self.rank));
    }
}

impl Drop for TimedTransport {
    fn drop(&mut self) {
        let mut world = self.shared.lock();
        world.leave(self.rank);
        self.shared.wake_next(&mut world);
        drop(world);
        self.shared.turn.iter().for_each(Condvar::notify_one);
    }
}

impl TimedClock {
    /// What time it is for this rank.
    pub fn now(&self) -> Moment {
        Moment::Virtual(Duration::from_nanos(self.shared.lock().time(self.rank)))
    }

    /// The rank computes for `cost` nanoseconds, or a little longer where times vary. Called before it really does, so that
    /// others need not wait for it. Returns how long.
    pub fn pass(&self, cost: f64) -> Duration {
        let mut world = self.shared.lock();
        let took = world.varied(self.rank, cost);
        world.pass(self.rank, took);
        self.shared.wake_next(&mut world);
        Duration::from_nanos(took)
    }

    /// A mini-batch of `bytes` comes to this rank, once the way is free. Returns how long that took.
    pub fn copy_data(&self, bytes: usize) -> Duration {
        let (mut world, (_, arrives)) = self.data_leaves(bytes);
        let took = arrives - world.time(self.rank);
        world.pass(self.rank, took);
        self.shared.wake_next(&mut world);
        Duration::from_nanos(took)
    }

    /// The same beside what the rank does next: its time goes on only by what the copy takes away from computing
    /// ([`Wires::data_overlap`]). Returns how long the way takes, and when the mini-batch arrives, for [`TimedClock::wait_until`].
    fn copy_data_beside(&self, bytes: usize) -> (Duration, Moment) {
        let (mut world, (cost, arrives)) = self.data_leaves(bytes);
        let overlap = world.wires().data_overlap;
        world.take_from_computing(self.rank, cost, overlap);
        self.shared.wake_next(&mut world);
        (Duration::from_nanos(cost), Moment::Virtual(Duration::from_nanos(arrives)))
    }

    fn data_leaves(&self, bytes: usize) -> (MutexGuard<'_, World>, (u64, u64)) {
        let mut world = self.shared.lock();
        if world.wires().data.serial {
            drop(world);
            world = self.shared.in_order(self.rank);
        }
        let leaves = world.copy_data(self.rank, bytes);
        (world, leaves)
    }

    /// From now on this rank has an exchange before it, which begins now on a time line of its own: until it has been done by
    /// [`TimedClock::aside`], others wait for what it may send.
    pub fn begin_aside(&self) {
        self.shared.lock().begin_aside(self.rank);
    }

    /// Does the exchange, on the time line that [`TimedClock::begin_aside`] began. The rank's own time does not go on, but for
    /// what the exchange takes away from computing ([`Wires::overlap`]).
    /// Returns when the exchange ends, for [`TimedClock::wait_until`].
    pub fn aside<R>(&self, exchange: impl FnOnce() -> R) -> (R, Moment) {
        self.shared.lock().enter_aside(self.rank);
        let result = exchange();
        let mut world = self.shared.lock();
        let end = world.end_aside(self.rank);
        self.shared.wake_next(&mut world);
        (result, Moment::Virtual(Duration::from_nanos(end)))
    }

    /// The rank waits until `moment`, if that is not behind it.
    pub fn wait_until(&self, moment: Moment) -> Duration {
        let mut world = self.shared.lock();
        let now = world.time(self.rank);
        let left = moment.since(Moment::Virtual(Duration::from_nanos(now)));
        world.pass(self.rank, left.as_nanos() as u64);
        self.shared.wake_next(&mut world);
        left
    }
}

/// Mini-batches that come to a rank one ahead: beside a step the next one is on its way.
#[derive(Default)]
pub struct Staging {
    /// How long the way of the next takes, and when it arrives.
    next: Option<(Duration, Moment)>,
}

/// What the way of a mini-batch took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staged {
    /// The rank waited for it.
    pub waited: Duration,
    /// The rank did something else meanwhile.
    pub hidden: Duration,
}

impl Staging {
    /// Waits for a mini-batch of `bytes`, and sends the next one on its way. To be called before an exchange that has begun is
    /// done ([`TimedClock::aside`]), since that may end behind the begin of this way.
    pub fn turn(&mut self, clock: &TimedClock, bytes: usize) -> Staged {
        let staged = match self.next.take() {
            Some((way, arrives)) => {
                let waited = clock.wait_until(arrives);
                Staged { waited, hidden: way.saturating_sub(waited) }
            }
            None => Staged { waited: clock.copy_data(bytes), hidden: Duration::ZERO },
        };
        self.next = Some(clock.copy_data_beside(bytes));
        staged
    }
}

#[cfg(test)]
mod tests;
