//! Models of a lane's queue and of the bell: loom runs them in every order that the memory model allows.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p quadrille-cpu --release --test loom`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use quadrille_cpu::model::{Awaited, Bell, Claim, Home, Idle, LaneQueue, Offer, Reach, Ticket};

/// Orders with at most this many preemptions are tried, unless LOOM_MAX_PREEMPTIONS says otherwise. More take hours,
/// and two or three find what there is to find (CHESS, OSDI 2008).
const PREEMPTIONS: usize = 3;

fn model(run: impl Fn() + Sync + Send + 'static) {
    model_of(PREEMPTIONS, run);
}

/// A model with so many preemptions at most.
fn model_of(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(run);
}

/// Memory that grains write without any lock, as kernels do; loom reports two accesses that nothing orders.
struct Cells(Vec<UnsafeCell<u32>>);

// SAFETY: loom's cell checks every access itself.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

impl Cells {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add(&self, at: usize) {
        // SAFETY: loom panics if another access is not ordered before or after this one.
        self.0[at].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn get(&self, at: usize) -> u32 {
        // SAFETY: as above.
        self.0[at].with(|cell| unsafe { *cell })
    }
}

fn nobody(_: Ticket) -> bool {
    panic!("no wait was pushed")
}

/// The home of a thread behind one cache with all others, whose share is `share`.
fn home_of(share: usize, shares: usize) -> Home {
    Home { share, near: 0..shares }
}

/// One lane and what its grains touch: entry `seq` with payload `seq` has the cells `2·seq` and `2·seq + 1`.
struct Lane {
    queue: LaneQueue,
    cells: Cells,
    grains: Vec<u32>,
    /// Grains of each entry that were said to be its first.
    begun: Vec<AtomicUsize>,
    shares: usize,
    offer: Offer,
}

impl Lane {
    fn new(capacity: usize, shares: usize, grains: &[u32]) -> Self {
        let cells = Cells::new(2 * grains.len());
        let begun = grains.iter().map(|_| AtomicUsize::new(0)).collect();
        let queue = LaneQueue::new(capacity, shares);
        Self { queue, cells, grains: grains.to_vec(), begun, shares, offer: Offer::All }
    }

    /// Claims and runs one grain. A grain finds all that entries before its own have written, and writes a cell of
    /// its own.
    fn work(&self, home: usize, is_done: impl Fn(Ticket) -> bool) -> Claim {
        let claim = self.queue.claim(&home_of(home, self.shares), Reach::All, self.offer, is_done);
        if let Claim::Grain { seq, payload, grain, first } = claim {
            assert_eq!(payload, seq, "the grain belongs to another entry");
            assert!(grain < self.grains[seq as usize], "the entry has no such grain");
            self.assert_done(seq);
            if first {
                self.begun[seq as usize].fetch_add(1, Ordering::Relaxed);
            }
            self.cells.add(2 * seq as usize + grain as usize);
            if self.queue.finish(seq) {
                // The last finisher sees what all grains wrote.
                self.assert_done(seq + 1);
                self.queue.advance(seq);
            }
        }
        claim
    }

    /// Checks that every grain of the first `entries` entries ran once.
    fn assert_done(&self, entries: u64) {
        for (seq, grains) in self.grains.iter().enumerate().take(entries as usize) {
            for grain in 0..*grains as usize {
                assert_eq!(self.cells.get(2 * seq + grain), 1, "grain {grain} of entry {seq}");
            }
            assert_eq!(self.begun[seq].load(Ordering::Relaxed), 1, "first grains of entry {seq}");
        }
    }

    /// What an event shows: whoever sees an entry done sees what its grains wrote.
    fn observe(&self) {
        self.assert_done(self.queue.passed());
    }

    fn drain(&self) {
        while let Claim::Grain { .. } = self.work(0, nobody) {}
        assert_eq!(self.queue.passed(), self.grains.len() as u64);
        assert!(self.queue.is_drained(nobody));
        self.observe();
    }
}

fn run_once(shares: usize) {
    model(move || {
        let lane = Arc::new(Lane::new(2, shares, &[2, 1]));
        let claimers: Vec<_> = (0..2)
            .map(|home| {
                let lane = lane.clone();
                thread::spawn(move || {
                    lane.work(home, nobody);
                    lane.work(home, nobody);
                })
            })
            .collect();
        lane.queue.push_task(0, 2);
        lane.queue.push_task(1, 1);
        lane.observe();
        claimers.into_iter().for_each(|c| c.join().unwrap());
        lane.drain();
    });
}

#[test]
fn every_grain_runs_once_and_done_means_done() {
    run_once(1);
}

#[test]
fn every_grain_of_every_share_runs_once() {
    run_once(2);
}

/// What is not wanted of a narrow task is left, and not lost.
#[test]
fn a_narrow_task_is_taken_by_those_that_it_wants() {
    // As above.
    model_of(PREEMPTIONS - 1, || {
        let lane = Arc::new(Lane { offer: Offer::Wanted, ..Lane::new(2, 2, &[2, 1]) });
        let claimers: Vec<_> = (0..2)
            .map(|home| {
                let lane = lane.clone();
                thread::spawn(move || {
                    lane.work(home, nobody);
                    lane.work(home, nobody);
                })
            })
            .collect();
        lane.queue.push_narrow(0, 2, 1);
        lane.queue.push_task(1, 1);
        claimers.into_iter().for_each(|c| c.join().unwrap());
        // Nothing runs any more, so all that is left is wanted.
        lane.drain();
    });
}

#[test]
fn slots_are_used_again_around_the_ring() {
    // One preemption more takes minutes.
    model_of(PREEMPTIONS - 1, || {
        // Four entries through two slots, of different numbers of grains, so that a stale look at a slot shows.
        let lane = Arc::new(Lane::new(2, 2, &[1, 2, 1, 1]));
        let claimer = {
            let lane = lane.clone();
            thread::spawn(move || {
                (0..3).for_each(|_| {
                    lane.work(1, nobody);
                })
            })
        };
        for (seq, grains) in lane.grains.iter().enumerate() {
            while lane.queue.push_task(seq as u64, *grains).is_none() {
                // Full: this thread makes room, or the other does while it holds the last grain.
                if lane.work(0, nobody) == Claim::Busy {
                    thread::yield_now();
                }
            }
        }
        claimer.join().unwrap();
        lane.drain();
    });
}

#[test]
fn two_claimers_meet_while_slots_are_used_again() {
    model(|| {
        let lane = Arc::new(Lane::new(2, 2, &[1, 1, 2]));
        assert!(lane.queue.push_task(0, 1).is_some() && lane.queue.push_task(1, 1).is_some());
        assert!(lane.queue.push_task(2, 2).is_none(), "the ring has two slots");
        let claimers: Vec<_> = (0..2)
            .map(|home| {
                let lane = lane.clone();
                thread::spawn(move || {
                    (0..2).for_each(|_| {
                        lane.work(home, nobody);
                    })
                })
            })
            .collect();
        let pushed = lane.queue.push_task(2, 2).is_some();
        claimers.into_iter().for_each(|c| c.join().unwrap());
        if !pushed {
            while let Claim::Grain { .. } = lane.work(0, nobody) {}
            assert!(lane.queue.push_task(2, 2).is_some(), "all slots are free");
        }
        lane.drain();
    });
}

/// Whoever has read an old head finds more grains in its slot than the entry had, which is used again meanwhile.
#[test]
fn a_late_claimer_takes_nothing_of_a_slot_that_is_used_again() {
    model(|| {
        let lane = Arc::new(Lane::new(2, 2, &[1, 1, 2]));
        lane.queue.push_task(0, 1);
        lane.queue.push_task(1, 1);
        let late = {
            let lane = lane.clone();
            thread::spawn(move || lane.work(1, nobody))
        };
        lane.work(1, nobody);
        lane.work(1, nobody);
        let pushed = lane.queue.push_task(2, 2).is_some();
        late.join().unwrap();
        if !pushed {
            while let Claim::Grain { .. } = lane.work(0, nobody) {}
            assert!(lane.queue.push_task(2, 2).is_some(), "all slots are free");
        }
        lane.drain();
    });
}

/// What a task wrote in one lane is seen by a task of another lane that waited for it, whoever passed the wait.
#[test]
fn a_wait_orders_two_lanes() {
    model(|| {
        let (first, second) = (Arc::new(Lane::new(2, 1, &[1])), Arc::new(LaneQueue::new(2, 2)));
        let read = Arc::new(AtomicUsize::new(0));
        second.push_wait(Ticket { lane: 0, seq: 0 });
        second.push_task(7, 1);
        let follow = {
            let (first, second, read) = (first.clone(), second.clone(), read.clone());
            move || match second
                .claim(&home_of(0, 2), Reach::All, Offer::All, |ticket| first.queue.passed() > ticket.seq)
            {
                Claim::Grain { seq, payload, grain, first: begins } => {
                    assert_eq!((seq, payload, grain, begins), (1, 7, 0, true));
                    first.assert_done(1);
                    read.fetch_add(1, Ordering::Relaxed);
                    assert!(second.finish(seq));
                    second.advance(seq);
                }
                claim => assert!(matches!(claim, Claim::Blocked | Claim::Busy | Claim::Empty)),
            }
        };
        let followers: Vec<_> = (0..2).map(|_| thread::spawn(follow.clone())).collect();
        first.queue.push_task(0, 1);
        first.work(0, nobody);
        followers.into_iter().for_each(|f| f.join().unwrap());
        follow();
        assert_eq!(read.load(Ordering::Relaxed), 1, "once, in one of the three");
    });
}

/// Nobody sleeps through the only ring: a sleeper that does would be a deadlock, which loom reports. The work is made
/// with no order of its own, so it is the bell that must pass it on.
fn ring_for(sleepers: usize) {
    model(move || {
        let (bell, work) = (Arc::new(Bell::default()), Arc::new(AtomicBool::new(false)));
        let sleepers: Vec<_> = (0..sleepers)
            .map(|_| {
                let (bell, work) = (bell.clone(), work.clone());
                thread::spawn(move || {
                    loop {
                        let heard = bell.listen();
                        if work.load(Ordering::Relaxed) {
                            return;
                        }
                        bell.sleep(heard);
                    }
                })
            })
            .collect();
        work.store(true, Ordering::Relaxed);
        bell.ring();
        sleepers.into_iter().for_each(|s| s.join().expect("a sleeper that wakes"));
    });
}

#[test]
fn a_sleeper_hears_the_ring() {
    ring_for(1);
}

#[test]
fn two_sleepers_hear_the_ring() {
    ring_for(2);
}

/// A host and a crew of one as the engine puts them together: the crew sleeps when it finds nothing, the host until
/// the lane is empty. Either would sleep forever if a push or the end of the last grain went unheard.
#[test]
fn host_and_crew_wake_each_other() {
    model(|| {
        let lane = Arc::new(Lane::new(2, 2, &[1, 1]));
        let (work, idle) = (Arc::new(Bell::default()), Arc::new(Idle::default()));
        let crew = {
            let (lane, work, idle) = (lane.clone(), work.clone(), idle.clone());
            thread::spawn(move || {
                while lane.queue.passed() < 2 {
                    let heard = work.listen();
                    match lane.work(0, nobody) {
                        Claim::Grain { .. } if lane.queue.is_drained(nobody) => {
                            idle.emptied(|| lane.queue.is_drained(nobody));
                        }
                        Claim::Grain { .. } => {}
                        _ => work.sleep(heard),
                    }
                }
            })
        };
        for seq in 0..2 {
            lane.queue.push_task(seq, 1);
            work.ring();
        }
        idle.wait(|| lane.queue.is_drained(nobody));
        lane.observe();
        crew.join().unwrap();
    });
}

/// Two threads end the last entries of two lanes at once, and each may see the other's lane as not empty yet, but not both: the
/// host would sleep forever.
#[test]
fn the_host_is_woken_when_the_last_of_several_lanes_runs_empty() {
    model(|| {
        let lanes = Arc::new([Lane::new(2, 1, &[1]), Lane::new(2, 1, &[1])]);
        let idle = Arc::new(Idle::default());
        lanes.iter().for_each(|lane| assert!(lane.queue.push_task(0, 1).is_some()));
        let are_drained = |lanes: &[Lane]| lanes.iter().all(|lane| lane.queue.is_drained(nobody));
        let crew: Vec<_> = (0..2)
            .map(|own| {
                let (lanes, idle) = (lanes.clone(), idle.clone());
                thread::spawn(move || {
                    assert!(matches!(lanes[own].work(0, nobody), Claim::Grain { .. }));
                    idle.emptied(|| are_drained(&lanes[..]));
                })
            })
            .collect();
        idle.wait(|| are_drained(&lanes[..]));
        lanes.iter().for_each(Lane::observe);
        crew.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A host that waits for one entry of two is woken for it, and only for it: it would sleep forever if the end of the entry went
/// unseen.
#[test]
fn the_host_is_woken_for_what_it_waits_for() {
    model(|| {
        let lane = Arc::new(Lane::new(2, 2, &[1, 1]));
        let (awaited, idle) = (Arc::new(Awaited::default()), Arc::new(Bell::default()));
        lane.queue.push_task(0, 1);
        lane.queue.push_task(1, 1);
        let crew = {
            let (lane, awaited, idle) = (lane.clone(), awaited.clone(), idle.clone());
            thread::spawn(move || {
                while let Claim::Grain { seq, .. } = lane.work(0, nobody) {
                    if awaited.is(Ticket { lane: 0, seq }) {
                        idle.ring();
                    }
                }
            })
        };
        awaited.name(Ticket { lane: 0, seq: 0 });
        loop {
            let heard = idle.listen();
            if lane.queue.passed() > 0 {
                break;
            }
            idle.sleep(heard);
        }
        awaited.forget();
        lane.assert_done(1);
        crew.join().unwrap();
    });
}
