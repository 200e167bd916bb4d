//! Crews on work that kernels cannot do: panics, gates, records of what ran when.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Claim, Crews, Home, Interval, LaneQueue, Lanes, Offer, Reach, Recording, Scratch, Work, homes};

#[path = "../tests/engine/watchdog.rs"]
mod watchdog;
use watchdog::must_end;

/// Payloads with a meaning of their own; all others are only recorded.
const PANIC: u64 = 1 << 40;
/// Comes behind another entry and notes whether all of that one's grains are done.
const AFTER: u64 = 2 << 40;
const GATE: u64 = 3 << 40;

/// Records what runs.
#[derive(Default)]
struct Recorder {
    gate: AtomicBool,
    /// Whether a thread stands before the gate.
    waiting: AtomicBool,
    order: Mutex<Vec<u64>>,
    grains: AtomicU32,
    after: AtomicU32,
    early: AtomicU64,
    expected: AtomicU32,
}

impl Work for Recorder {
    fn touch(&self, _: usize, _: usize, _: usize) {}

    fn run(&self, _: usize, payload: u64, grain: usize, scratch: &mut [f32]) {
        assert_eq!(scratch.len(), 3);
        match payload {
            PANIC if grain == 1 => panic!("grain {grain} is broken"),
            GATE => {
                self.waiting.store(true, Ordering::Release);
                while !self.gate.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            }
            AFTER => {
                if self.grains.load(Ordering::Relaxed) < self.expected.load(Ordering::Relaxed) {
                    self.early.fetch_add(1, Ordering::Relaxed);
                }
                self.after.fetch_add(1, Ordering::Relaxed);
                return;
            }
            _ => {}
        }
        if grain == 0 {
            self.order.lock().expect("a sound lock").push(payload);
        }
        self.grains.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lanes of a quadrant, unless a test says otherwise.
const LANES: usize = 4;

/// Lanes and a crew of `threads` for each quadrant.
fn start(quadrants: usize, threads: usize, spin: u32) -> (Arc<Lanes>, Arc<Recorder>, Crews) {
    start_with(&[0, 1, 2, 3], quadrants, threads, spin)
}

/// The same with lanes of these priorities.
fn start_with(
    priorities: &[u8],
    quadrants: usize,
    threads: usize,
    spin: u32,
) -> (Arc<Lanes>, Arc<Recorder>, Crews) {
    let nodes: Vec<usize> = (0..quadrants).collect();
    start_on(&nodes, priorities, threads, spin)
}

/// The homes of quadrants' threads, each with a share of its own, behind one cache.
fn homes_of(quadrants: usize, threads: usize) -> Vec<Vec<Home>> {
    vec![homes(&vec![0; threads], threads); quadrants]
}

/// The same for quadrants on these nodes.
fn start_on(
    nodes: &[usize],
    priorities: &[u8],
    threads: usize,
    spin: u32,
) -> (Arc<Lanes>, Arc<Recorder>, Crews) {
    let lanes = Arc::new(Lanes::new(nodes, &[priorities.to_vec()], 64, &homes_of(nodes.len(), threads)));
    let recorder = Arc::new(Recorder::default());
    let work: Arc<dyn Work> = recorder.clone();
    let cpus = vec![vec![None; threads]; nodes.len()];
    let scratch = vec![Scratch { len: 3, home: None }; nodes.len()];
    let (crews, refused) = Crews::start(lanes.clone(), &work, &cpus, &scratch, spin).expect("threads");
    assert!(refused.is_empty());
    (lanes, recorder, crews)
}

fn failure_of(payload: u64, threads: usize) -> (Option<String>, Option<String>) {
    must_end("a crew with a panic", move || {
        let (lanes, _, crews) = start(2, threads, 10);
        let before = lanes.failure();
        lanes.push_task(0, payload, 3).unwrap();
        let last = lanes.push_task(0, 7, 1).unwrap();
        // Both: a worker with a broken quadrant is broken.
        lanes.wait_idle(0);
        lanes.push_wait(LANES as u32, last).unwrap();
        lanes.wait_idle(1);
        assert!(!lanes.is_done(last), "nothing runs behind a task that failed");
        let after = lanes.failure();
        drop(crews);
        (before, after)
    })
}

#[test]
fn a_panic_in_a_grain_fails_the_worker() {
    for threads in [1, 2, 3] {
        assert_eq!(failure_of(PANIC, threads), (None, Some("grain 1 is broken".into())));
    }
}

/// What one thread does in which order if it finds three tasks of each lane, `10 · lane + task`, and is held by one in the
/// last lane until all are there.
fn order_of(priorities: &'static [u8]) -> Vec<u64> {
    let order = must_end("a crew of one", move || {
        let (lanes, recorder, _crews) = start_with(priorities, 1, 1, 0);
        lanes.push_task(priorities.len() as u32 - 1, GATE, 1).unwrap();
        while !recorder.waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // The thread is held while the lanes are filled, lowest first.
        for lane in (0..priorities.len() as u32).rev() {
            for task in 0..3 {
                lanes.push_task(lane, u64::from(10 * lane + task), 1).unwrap();
            }
        }
        recorder.gate.store(true, Ordering::Release);
        lanes.wait_idle(0);
        recorder.order.lock().unwrap().clone()
    });
    assert_eq!(order[0], GATE);
    order[1..].to_vec()
}

#[test]
fn higher_lanes_come_first() {
    assert_eq!(order_of(&[0, 1, 2, 3]), [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]);
    assert_eq!(
        order_of(&[2, 0, 1]),
        [10, 11, 12, 20, 21, 22, 0, 1, 2],
        "the number of a lane does not count"
    );
}

/// Each program has priorities of its own, and lanes that it does not use are looked at all the same.
#[test]
fn the_program_that_runs_decides_which_lanes_come_first() {
    let order = must_end("a crew of one", || {
        let lanes = Arc::new(Lanes::new(&[0], &[vec![0, 1, 2], vec![1, 0]], 64, &homes_of(1, 1)));
        for lane in 0..3 {
            lanes.push_task(lane, u64::from(lane), 1).unwrap();
        }
        lanes.serve_program(1);
        let recorder = Arc::new(Recorder::default());
        let work: Arc<dyn Work> = recorder.clone();
        let scratch = [Scratch { len: 3, home: None }];
        let started = Crews::start(lanes.clone(), &work, &[vec![None]], &scratch, 0);
        let _crews = started.expect("a thread");
        lanes.wait_idle(0);
        recorder.order.lock().unwrap().clone()
    });
    assert_eq!(order, [1, 0, 2]);
}

#[test]
fn lanes_of_one_priority_take_turns() {
    assert_eq!(order_of(&[1, 0, 0]), [20, 10, 21, 11, 22, 12, 0, 1, 2]);
}

/// A thread behind one of two caches, which finds work of the other's in a higher lane: a task of one grain is that of the last share.
#[test]
fn what_is_near_comes_before_higher_lanes() {
    let order = |caches: &'static [usize]| {
        must_end("one thread of two", move || {
            let lanes = Arc::new(Lanes::new(&[0], &[vec![0, 1]], 64, &[homes(caches, 2)]));
            lanes.push_task(0, 1, 1).unwrap();
            lanes.push_task(1, 2, 2).unwrap();
            let recorder = Arc::new(Recorder::default());
            let work: Arc<dyn Work> = recorder.clone();
            let scratch = [Scratch { len: 3, home: None }];
            let started = Crews::start(lanes.clone(), &work, &[vec![None]], &scratch, 0);
            let _crews = started.expect("a thread");
            lanes.wait_idle(0);
            assert_eq!(recorder.grains.load(Ordering::Relaxed), 3, "what is far is not left");
            recorder.order.lock().unwrap().clone()
        })
    };
    assert_eq!(order(&[0, 0]), [1, 2]);
    assert_eq!(order(&[0, 1]), [2, 1]);
}

#[test]
fn a_narrow_task_is_offered_to_as_many_as_it_wants() {
    let queue = LaneQueue::new(2, 1);
    let claim = |offer| {
        queue.claim(&Home { share: 0, near: 0..1 }, Reach::All, offer, |_| panic!("no wait was pushed"))
    };
    let grain = |grain| Claim::Grain { seq: 0, payload: 7, grain, first: grain == 0 };
    queue.push_narrow(7, 4, 2).unwrap();
    assert_eq!([claim(Offer::Wanted), claim(Offer::Wanted)], [grain(0), grain(1)]);
    assert_eq!(claim(Offer::Wanted), Claim::Busy, "two of them run");
    assert_eq!(claim(Offer::All), grain(2), "whoever has nothing else to do may");
    assert!(!queue.finish(0));
    assert_eq!(claim(Offer::Wanted), Claim::Busy, "two are left");
    assert!(!queue.finish(0));
    assert_eq!(claim(Offer::Wanted), grain(3));
    assert_eq!(claim(Offer::All), Claim::Busy, "all are taken");
}

/// The last entry of a quadrant waits for another quadrant's task, after which more comes there.
#[test]
fn a_wait_at_the_end_of_a_lane_ends() {
    must_end("a host that waits for a wait", || {
        let (lanes, recorder, _crews) = start(2, 1, 0);
        let gate = lanes.push_task(LANES as u32, GATE, 1).unwrap();
        lanes.push_task(LANES as u32, 1, 1).unwrap();
        lanes.push_task(0, 2, 1).unwrap();
        lanes.push_wait(0, gate).unwrap();
        let opener = recorder.clone();
        let opener = std::thread::spawn(move || {
            // Time for the host to fall asleep; the test is right, if weaker, without it.
            std::thread::sleep(Duration::from_millis(100));
            opener.gate.store(true, Ordering::Release);
        });
        lanes.wait_idle(0);
        assert!(lanes.is_done(gate));
        opener.join().unwrap();
        lanes.wait_idle(1);
    });
}

#[test]
fn every_grain_runs_once_and_the_next_entry_comes_after_all() {
    for threads in [1, 2, 3, 8] {
        must_end("a crew", move || {
            let (lanes, recorder, _crews) = start(1, threads, 100);
            for round in 1..=500 {
                recorder.expected.fetch_add(7, Ordering::Relaxed);
                let ticket = lanes.push_task(0, 5, 7).unwrap();
                lanes.push_task(0, AFTER, 2).unwrap();
                lanes.wait_idle(0);
                assert!(lanes.is_done(ticket));
                assert_eq!(recorder.grains.load(Ordering::Relaxed), 7 * round);
                assert_eq!(recorder.after.load(Ordering::Relaxed), 2 * round);
                let (start, end) = lanes.span(ticket);
                assert!(start <= end, "{start} to {end}");
            }
            assert_eq!(
                recorder.early.load(Ordering::Relaxed),
                0,
                "an entry started before the one before it was done"
            );
        });
    }
}

#[test]
fn a_full_lane_takes_nothing_and_loses_nothing() {
    must_end("a full lane", || {
        let (lanes, recorder, _crews) = start(1, 1, 0);
        lanes.push_task(0, GATE, 1).unwrap();
        let more = (1..).take_while(|task| lanes.push_task(0, *task, 1).is_some()).count();
        assert_eq!(more + 1, lanes.capacity());
        recorder.gate.store(true, Ordering::Release);
        lanes.wait_idle(0);
        assert_eq!(recorder.order.lock().unwrap().len(), lanes.capacity());
        assert!(lanes.push_task(0, 1, 1).is_some());
        lanes.wait_idle(0);
    });
}

/// One of the two threads on a node is held, and what is in the lanes of both quadrants is done all the same; on two nodes what is
/// behind the held thread waits for it.
#[test]
fn quadrants_on_one_node_help_each_other() {
    for (nodes, spin) in [([0, 0], 0), ([0, 0], 100), ([0, 1], 0), ([0, 1], 100)] {
        must_end("quadrants of one thread", move || {
            let (lanes, recorder, _crews) = start_on(&nodes, &[0, 1, 2, 3], 1, spin);
            lanes.push_task(0, GATE, 1).unwrap();
            while !recorder.waiting.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let [own, other] = [1, LANES as u32].map(|lane| lanes.push_task(lane, 1, 3).unwrap());
            while !lanes.is_done(other) || (nodes == [0, 0] && !lanes.is_done(own)) {
                std::thread::yield_now();
            }
            // Time for the other thread to do what it must not.
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(lanes.is_done(own), nodes == [0, 0]);
            recorder.gate.store(true, Ordering::Release);
            (0..2).for_each(|device| lanes.wait_idle(device));
            assert!(lanes.is_done(own));
        });
    }
}

/// The intervals of each thread, for each with its device.
fn intervals(recording: &Recording) -> Vec<(usize, Vec<Interval>)> {
    let threads = recording.threads().inspect(|record| assert_eq!(record.lost, 0));
    threads.map(|record| (record.thread.device, record.intervals)).collect()
}

/// Only a program that is recorded is, all of it, within the times of its entries; and whoever helps another quadrant says so.
#[test]
fn threads_note_what_they_run_while_that_is_recorded() {
    must_end("quadrants that are recorded", || {
        let lanes = Arc::new(Lanes::new(&[0, 0], &[vec![0, 1, 2, 3], vec![0, 1]], 64, &homes_of(2, 1)));
        let recorder = Arc::new(Recorder::default());
        let work: Arc<dyn Work> = recorder.clone();
        let scratch = [Scratch { len: 3, home: None }; 2];
        let started = Crews::start(lanes.clone(), &work, &[vec![None], vec![None]], &scratch, 100);
        let (crews, _) = started.expect("threads");
        let recording = Recording::new(lanes.clone(), crews.logs(), 0);
        let run = |payload| {
            let tickets = [1, LANES as u32].map(|lane| lanes.push_task(lane, payload, 5).unwrap());
            (0..2).for_each(|device| lanes.wait_idle(device));
            tickets
        };
        run(1);
        assert!(intervals(&recording).iter().all(|(_, noted)| noted.is_empty()));
        recording.start(16, 1000);
        lanes.serve_program(1);
        run(2);
        assert!(intervals(&recording).iter().all(|(_, noted)| noted.is_empty()), "another program");
        lanes.serve_program(0);
        let gate = lanes.push_task(0, GATE, 1).unwrap();
        while !recorder.waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // One thread is held, so the other one does all of both quadrants.
        let tickets = [1, LANES as u32].map(|lane| lanes.push_task(lane, 3, 5).unwrap());
        while !tickets.iter().all(|ticket| lanes.is_done(*ticket)) {
            std::thread::yield_now();
        }
        recorder.gate.store(true, Ordering::Release);
        (0..2).for_each(|device| lanes.wait_idle(device));
        recording.stop();
        run(4);
        let noted = intervals(&recording);
        assert_eq!(noted.iter().map(|(device, _)| *device).collect::<Vec<_>>(), [0, 1]);
        for (device, intervals) in &noted {
            let held = intervals.iter().any(|interval| interval.entry == gate);
            for ticket in tickets {
                let of_task = intervals.iter().filter(|interval| interval.entry == ticket);
                assert_eq!(of_task.count() > 0, !held, "{ticket:?} on the thread of quadrant {device}");
            }
            let known = |entry| entry == gate || tickets.contains(&entry);
            for interval in intervals {
                let (start, end) = lanes.span(interval.entry);
                assert!(known(interval.entry) && start <= interval.start && interval.end <= end);
            }
            assert!(intervals.windows(2).all(|pair| pair[0].end <= pair[1].start), "{intervals:?}");
        }
        assert_eq!(noted.iter().filter(|(_, noted)| noted.iter().any(|i| i.entry == gate)).count(), 1);
    });
}

/// Crews end with work in their lanes: what runs is finished, what waits is left.
#[test]
fn dropping_crews_ends_their_threads() {
    must_end("crews that are dropped", || {
        let (lanes, recorder, crews) = start(2, 2, 0);
        recorder.gate.store(true, Ordering::Release);
        let never = lanes.push_task(0, 1, 1).unwrap();
        lanes.push_wait(LANES as u32, super::Ticket { seq: never.seq + 5, ..never }).unwrap();
        lanes.push_task(LANES as u32, GATE, 9).unwrap();
        drop(crews);
    });
}
