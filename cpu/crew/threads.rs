//! The threads of a quadrant. They take grains from the quadrant's lanes, highest priority first, so that threads which
//! the critical lane leaves idle work on what nobody waits for. Whoever finds nothing there helps a quadrant on the same node, whose
//! memory is as near: shares of a mini-batch never take equally long.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::home::shares;
use super::log::{NOTHING, Pen, ThreadLog};
use super::{Awaited, Bell, Claim, Home, Idle, LaneQueue, Offer, Reach, Ticket};
use quadrille_numa::memory::small::SmallPieces;

use crate::arena::Arena;

/// What the crews work on: told how to run a grain, and nothing of tasks or layers.
pub(crate) trait Work: Send + Sync {
    /// Runs one grain of what was pushed as `payload` on a device.
    fn run(&self, device: usize, payload: u64, grain: usize, scratch: &mut [f32]);

    /// Touches the share of one of a device's threads in what the device works on. Each thread does so before any grain
    /// runs, on its CPU, so that memory is filled by who owns it.
    fn touch(&self, device: usize, thread: usize, threads: usize);
}

/// A lane of a quadrant with the times of its latest entries.
struct TimedLane {
    queue: LaneQueue,
    spans: Box<[(AtomicU64, AtomicU64)]>,
    pushing: Mutex<()>,
}

/// What a thread runs grains with.
struct Hand<'a> {
    /// Its quadrant.
    device: usize,
    work: &'a dyn Work,
    scratch: &'a mut [f32],
    pen: Pen<'a>,
    /// Whose grains of its own quadrant it takes first, and of any other.
    home: Home,
    abroad: Home,
}

/// One quadrant's lanes and its bells.
struct Quadrant {
    lanes: Box<[TimedLane]>,
    /// Of each of its threads.
    homes: Vec<Home>,
    /// What its threads ask for, in this order: where all are behind one cache nothing is far.
    asks: &'static [(Reach, Offer)],
    /// The other quadrants on the same node, from the next one on and round.
    near: Box<[usize]>,
    /// Rings for the crew.
    work: Bell,
    /// Where the host waits for the end of a step.
    idle: Idle,
    /// Rings for the host when the one entry that it waits for is done.
    settled: Bell,
    awaited: Awaited,
    /// Whether a step was left before all of it was done, and nobody has waited for the rest since.
    ahead: AtomicBool,
}

/// What a thread asks for where its quadrant is behind one cache. What is bound by memory gets the threads that it needs, and the
/// others look for work in the lanes below before they join them.
const BEHIND_ONE: &[(Reach, Offer)] = &[(Reach::All, Offer::Wanted), (Reach::All, Offer::All)];

/// The same behind one of several caches: first what is near in any lane.
const BEHIND_SEVERAL: &[(Reach, Offer)] = &[
    (Reach::Near, Offer::Wanted),
    (Reach::Near, Offer::All),
    (Reach::All, Offer::Wanted),
    (Reach::All, Offer::All),
];

/// The lanes of all quadrants of a worker, shared by their crews.
pub(crate) struct Lanes {
    quadrants: Vec<Quadrant>,
    /// For each program all lanes of a quadrant in groups of one priority, the most urgent first.
    groups: Vec<Vec<Vec<usize>>>,
    /// The program that runs. Whoever looks at another's meanwhile finds all lanes in another order.
    program: AtomicUsize,
    /// The program whose tasks the threads note in their logs, if any.
    pub(super) recorded: AtomicUsize,
    each: usize,
    origin: Instant,
    stopping: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Lanes {
    /// For each quadrant, with the homes of its threads, of which those with one number in `nodes` help each other, as many lanes as any
    /// of `programs` has priorities, one for each of its lanes, of which 0 is served first; each lane holds at least `capacity`
    /// entries.
    pub fn new(nodes: &[usize], programs: &[Vec<u8>], capacity: usize, homes: &[Vec<Home>]) -> Self {
        let each = programs.iter().map(Vec::len).max().unwrap_or(0);
        let lane = |shares: usize| {
            let queue = LaneQueue::new(capacity, shares);
            let spans = (0..queue.capacity()).map(|_| Default::default()).collect();
            TimedLane { queue, spans, pushing: Mutex::new(()) }
        };
        let near = |quadrant: usize| {
            let others = (quadrant + 1..nodes.len()).chain(0..quadrant);
            others.filter(|other| nodes[*other] == nodes[quadrant]).collect()
        };
        let quadrant = |index: usize| Quadrant {
            lanes: (0..each).map(|_| lane(shares(&homes[index]))).collect(),
            asks: match homes[index].iter().any(|home| home.near.len() < shares(&homes[index])) {
                true => BEHIND_SEVERAL,
                false => BEHIND_ONE,
            },
            homes: homes[index].clone(),
            near: near(index),
            work: Bell::default(),
            idle: Idle::default(),
            settled: Bell::default(),
            awaited: Awaited::default(),
            ahead: AtomicBool::new(false),
        };
        Self {
            quadrants: (0..nodes.len()).map(quadrant).collect(),
            groups: programs.iter().map(|priorities| groups(priorities, each)).collect(),
            program: AtomicUsize::new(0),
            recorded: AtomicUsize::new(NOTHING),
            each,
            origin: Instant::now(),
            stopping: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// From when on times count.
    pub fn origin(&self) -> Instant {
        self.origin
    }

    fn lane(&self, lane: u32) -> &TimedLane {
        &self.quadrants[lane as usize / self.each()].lanes[lane as usize % self.each()]
    }

    /// Lanes of a quadrant.
    pub fn each(&self) -> usize {
        self.each
    }

    /// Says which program's tasks come now.
    pub fn serve_program(&self, program: usize) {
        self.program.store(program, Ordering::Relaxed);
    }

    /// Entries that a lane holds.
    pub fn capacity(&self) -> usize {
        self.lane(0).queue.capacity()
    }

    /// Whether an entry is done.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.lane(ticket.lane).queue.passed() > ticket.seq
    }

    /// When an entry started and ended, in nanoseconds; only until its slot is used again.
    pub fn span(&self, ticket: Ticket) -> (u64, u64) {
        let lane = self.lane(ticket.lane);
        let (start, end) = &lane.spans[lane.queue.slot_of(ticket.seq)];
        (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed))
    }

    /// Pushes a task. `None` if the lane is full.
    #[cfg(test)]
    pub fn push_task(&self, lane: u32, payload: u64, grains: u32) -> Option<Ticket> {
        self.push_narrow(lane, payload, grains, u32::MAX)
    }

    /// Pushes a task of which at most `width` grains are worth running at once. `None` if the lane is full.
    pub fn push_narrow(&self, lane: u32, payload: u64, grains: u32, width: u32) -> Option<Ticket> {
        self.push(lane, |queue| queue.push_narrow(payload, grains, width))
    }

    /// Pushes a wait. `None` if the lane is full.
    pub fn push_wait(&self, lane: u32, on: Ticket) -> Option<Ticket> {
        self.push(lane, |queue| queue.push_wait(on))
    }

    fn push(&self, lane: u32, push: impl Fn(&LaneQueue) -> Option<u64>) -> Option<Ticket> {
        let timed = self.lane(lane);
        // The queue allows one pusher at a time; nothing is left half-done by a panic inside.
        let guard = timed.pushing.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = push(&timed.queue);
        drop(guard);
        let quadrant = &self.quadrants[lane as usize / self.each()];
        quadrant.work.ring();
        quadrant.near.iter().for_each(|other| self.quadrants[*other].work.ring());
        seq.map(|seq| Ticket { lane, seq })
    }

    /// What went wrong, if anything did.
    pub fn failure(&self) -> Option<String> {
        let failure = || self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.failed.load(Ordering::Acquire).then(|| failure().unwrap_or_default())
    }

    /// Waits until the lanes of a quadrant are empty, or something has failed.
    pub fn wait_idle(&self, device: usize) {
        let quadrant = &self.quadrants[device];
        quadrant.idle.wait(|| self.is_drained(quadrant) || self.failed.load(Ordering::Acquire));
    }

    /// Whether all lanes of a quadrant are empty.
    fn is_drained(&self, quadrant: &Quadrant) -> bool {
        quadrant.lanes.iter().all(|lane| lane.queue.is_drained(|ticket| self.is_done(ticket)))
    }

    /// Waits until the lanes of a quadrant are empty: no step is left.
    pub fn synchronize(&self, device: usize) {
        self.wait_idle(device);
        self.quadrants[device].ahead.store(false, Ordering::Relaxed);
    }

    /// Waits until an entry of a quadrant is done, or something has failed; others of its step may be left. One thread at a time
    /// waits so.
    pub fn settle(&self, device: usize, ticket: Ticket) {
        let quadrant = &self.quadrants[device];
        if self.is_done(ticket) {
            return;
        }
        quadrant.awaited.name(ticket);
        quadrant.settled.wait(|| self.is_done(ticket) || self.failed.load(Ordering::Acquire));
        quadrant.awaited.forget();
    }

    /// Says that a step of a quadrant was left before all of it was done.
    pub fn run_ahead(&self, device: usize) {
        self.quadrants[device].ahead.store(true, Ordering::Relaxed);
    }

    /// Whether a step was left before all of it was done, on any quadrant.
    pub fn runs_ahead(&self) -> bool {
        self.quadrants.iter().any(|quadrant| quadrant.ahead.load(Ordering::Relaxed))
    }

    /// Tells the crews to go home.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.ring_all();
    }

    fn ring_all(&self) {
        for quadrant in &self.quadrants {
            quadrant.work.ring();
            quadrant.idle.ring();
            quadrant.settled.ring();
        }
    }

    fn fail(&self, reason: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(reason);
        drop(failure);
        self.failed.store(true, Ordering::Release);
        self.ring_all();
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Takes and runs one grain of a quadrant, in the order of `asks`. False if there was none to take. Of lanes of one priority,
    /// those from number `turn` on come first.
    fn work_once(&self, device: usize, of: &mut Hand<'_>, asks: &[(Reach, Offer)], turn: usize) -> bool {
        let lanes = &self.quadrants[device].lanes;
        let Some(groups) = self.groups.get(self.program.load(Ordering::Relaxed)) else { return false };
        let in_order = |ask| {
            let in_turn = groups.iter().flat_map(move |group| rotated(group, turn));
            in_turn.map(move |lane| (ask, *lane))
        };
        for (&(reach, offer), index) in asks.iter().flat_map(in_order) {
            let lane = &lanes[index];
            let home = if device == of.device { &of.home } else { &of.abroad };
            let claim = lane.queue.claim(home, reach, offer, |ticket| self.is_done(ticket));
            let Claim::Grain { seq, payload, grain, first } = claim else { continue };
            let ticket = Ticket { lane: (device * self.each() + index) as u32, seq };
            let span = &lane.spans[lane.queue.slot_of(seq)];
            // The program may be another one by now. That of the entry was named before it was pushed, and stays until it is done.
            let is_recorded = self.recorded.load(Ordering::Relaxed) == self.program.load(Ordering::Relaxed);
            let begins = first || (is_recorded && !of.pen.is_at(ticket));
            let start = if begins { self.now() } else { 0 };
            if first {
                span.0.store(start, Ordering::Relaxed);
            }
            let run = || of.work.run(device, payload, grain as usize, of.scratch);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                self.fail(describe_panic(&*panic));
                return false;
            }
            if is_recorded {
                of.pen.note(ticket, start, self.now());
            }
            if lane.queue.finish(seq) {
                span.1.store(self.now(), Ordering::Relaxed);
                lane.queue.advance(seq);
                self.finished(lane.queue.is_drained(|ticket| self.is_done(ticket)));
                if self.quadrants[device].awaited.is(ticket) {
                    self.quadrants[device].settled.ring();
                }
            }
            return true;
        }
        false
    }

    /// An entry is done: the next of its lane may start, and so may those that waited for it, in other quadrants,
    /// too. If its lane is empty now, any quadrant may be idle: its last entry may have been a wait for this one.
    fn finished(&self, empty: bool) {
        for quadrant in &self.quadrants {
            quadrant.work.ring();
            if empty {
                quadrant.idle.emptied(|| self.is_drained(quadrant));
            }
        }
    }

    /// Takes and runs one grain of a quadrant on the same node, for a thread that has found none in its own. As long as the thread
    /// looks around it asks one of them at a time, so that many idle threads do not hold up those that work; then, before it
    /// sleeps, all.
    fn help(&self, of: &mut Hand<'_>, look: Option<u32>) -> bool {
        let near = &self.quadrants[of.device].near;
        let asked = match look {
            Some(look) if !near.is_empty() => std::slice::from_ref(&near[look as usize % near.len()]),
            _ => near,
        };
        asked.iter().any(|other| self.work_once(*other, of, BEHIND_ONE, 0))
    }

    /// The life of a crew's thread.
    fn serve(&self, mut of: Hand<'_>, spin_looks: u32) {
        let device = of.device;
        let quadrant = &self.quadrants[device];
        let (mut looks, mut turn) = (0, 0usize);
        while !self.stopping.load(Ordering::Acquire) {
            let heard = quadrant.work.listen();
            let failed = self.failed.load(Ordering::Acquire);
            let look = (looks < spin_looks).then_some(looks);
            if !failed && self.work_once(device, &mut of, quadrant.asks, turn) {
                looks = 0;
                turn = turn.wrapping_add(1);
            } else if !failed && self.help(&mut of, look) {
                looks = 0;
            } else if self.stopping.load(Ordering::Acquire) {
                return;
            } else if look.is_some() {
                of.pen.rest();
                looks += 1;
                std::hint::spin_loop();
            } else {
                of.pen.rest();
                quadrant.work.sleep(heard);
                looks = 0;
            }
        }
    }
}

/// `each` lanes in groups of one priority; those that have none come last.
fn groups(priorities: &[u8], each: usize) -> Vec<Vec<usize>> {
    let priority = |lane: usize| priorities.get(lane).map_or(u16::MAX, |priority| u16::from(*priority));
    let mut lanes: Vec<usize> = (0..each).collect();
    lanes.sort_by_key(|lane| priority(*lane));
    lanes.chunk_by(|a, b| priority(*a) == priority(*b)).map(<[usize]>::to_vec).collect()
}

/// All of a group, which is not empty, from number `turn` on and round.
fn rotated(group: &[usize], turn: usize) -> impl Iterator<Item = &usize> {
    let (before, after) = group.split_at(turn % group.len());
    after.iter().chain(before)
}

fn describe_panic(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a kernel panicked".into())
}

/// A thread of a crew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrewThread {
    /// The device whose grains it runs.
    pub device: usize,
    /// Its number in that device's crew.
    pub number: usize,
    /// The CPU that it is pinned to; `None` if it may roam.
    pub cpu: Option<usize>,
    /// The system's number for it, where there is one.
    pub id: Option<u32>,
}

/// What a thread reports when it is ready.
struct Arrival {
    thread: CrewThread,
    refused: Option<String>,
    /// `None` if the system did not give it.
    scratch: Option<Arc<Arena>>,
}

/// What the threads of a quadrant use while they run a grain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scratch {
    /// Elements for each thread.
    pub len: usize,
    /// The node.
    pub home: Option<usize>,
}

/// The threads of all crews of a worker; they end when this is dropped.
pub(crate) struct Crews {
    lanes: Arc<Lanes>,
    handles: Vec<std::thread::JoinHandle<()>>,
    threads: Vec<CrewThread>,
    /// Of each thread, with its device. Outlives the threads, since `drop` joins them.
    scratch: Vec<(usize, Arc<Arena>)>,
    /// Of each thread, with its device and its number there.
    logs: Vec<([usize; 2], Arc<ThreadLog>)>,
}

impl Crews {
    /// Starts the threads: for each quadrant one for each entry, pinned to the CPU that the entry names, with scratch of its
    /// own. Returns when all are where they belong and have touched what is theirs, with what the system refused.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(
        lanes: Arc<Lanes>,
        work: &Arc<dyn Work>,
        cpus: &[Vec<Option<usize>>],
        scratch: &[Scratch],
        spin_looks: u32,
    ) -> std::io::Result<(Self, Vec<String>)> {
        let mut crews = Self {
            lanes: lanes.clone(),
            handles: Vec::new(),
            threads: Vec::new(),
            scratch: Vec::new(),
            logs: Vec::new(),
        };
        let (report, arrivals) = std::sync::mpsc::channel();
        let is_bound = scratch.iter().any(|scratch| scratch.home.is_some());
        let pieces = if is_bound { SmallPieces::load() } else { SmallPieces::default() };
        for (device, (cpus, scratch)) in cpus.iter().zip(scratch.iter().copied()).enumerate() {
            let threads = cpus.len();
            for (thread, cpu) in cpus.iter().copied().enumerate() {
                let (lanes, work, report) = (lanes.clone(), work.clone(), report.clone());
                let (pieces, log) = (pieces.clone(), Arc::new(ThreadLog::default()));
                crews.logs.push(([device, thread], log.clone()));
                let home = lanes.quadrants[device].homes[thread].clone();
                let body = move || {
                    let arrival = arrive([device, thread], cpu, scratch, &pieces);
                    let scratch = arrival.scratch.clone();
                    work.touch(device, thread, threads);
                    // Nobody listens any more only if the start itself has failed.
                    report.send(arrival).ok();
                    drop(report);
                    let Some(scratch) = scratch else { return };
                    // SAFETY: the arena is this thread's alone; others ask the system where it is, and read nothing.
                    let scratch =
                        unsafe { std::slice::from_raw_parts_mut(scratch.start().as_ptr(), scratch.len) };
                    let (pen, abroad) = (Pen::new(&log), Home::elsewhere(home.share));
                    lanes.serve(Hand { device, work: &*work, scratch, pen, home, abroad }, spin_looks);
                };
                let name = format!("crew {device}.{thread}");
                crews.handles.push(std::thread::Builder::new().name(name).spawn(body)?);
            }
        }
        drop(report);
        let mut refused: Vec<String> = Vec::new();
        for arrival in arrivals {
            let missing = std::io::ErrorKind::OutOfMemory;
            crews.scratch.push((arrival.thread.device, arrival.scratch.ok_or(missing)?));
            crews.threads.push(arrival.thread);
            refused.extend(arrival.refused);
        }
        crews.threads.sort_by_key(|thread| (thread.device, thread.cpu, thread.id));
        refused.sort();
        refused.dedup();
        Ok((crews, refused))
    }

    /// Who they are.
    pub fn threads(&self) -> &[CrewThread] {
        &self.threads
    }

    /// Their logs, in the order of devices and numbers.
    pub fn logs(&self) -> Vec<(CrewThread, Arc<ThreadLog>)> {
        let of = |place: &[usize; 2]| self.threads.iter().find(|t| [t.device, t.number] == *place);
        self.logs.iter().filter_map(|(place, log)| Some((*of(place)?, log.clone()))).collect()
    }

    /// The scratch of all threads, with their devices.
    pub fn scratch(&self) -> impl Iterator<Item = (usize, &Arena)> {
        self.scratch.iter().map(|(device, arena)| (*device, &**arena))
    }
}

/// A new thread goes to its CPU and takes its scratch there.
fn arrive(
    [device, number]: [usize; 2],
    cpu: Option<usize>,
    scratch: Scratch,
    pieces: &SmallPieces,
) -> Arrival {
    let refused = match cpu.map(quadrille_numa::pin_current_thread) {
        Some(quadrille_numa::Pinning::Refused(reason)) => Some(reason),
        _ => None,
    };
    let cpu = cpu.filter(|_| refused.is_none());
    let scratch = Arena::own(scratch.len, scratch.home, pieces).ok().map(Arc::new);
    if let Some(scratch) = &scratch {
        scratch.touch_share(0, 1);
    }
    let thread = CrewThread { device, number, cpu, id: quadrille_numa::verify::thread_id() };
    Arrival { thread, refused, scratch }
}

impl Drop for Crews {
    fn drop(&mut self) {
        self.lanes.stop();
        for thread in self.handles.drain(..) {
            // A crew's panics were caught and reported; there is nothing more to learn here.
            thread.join().ok();
        }
    }
}
