//! What each thread of a crew ran from when to when, for timelines. Nothing is noted, nor any time taken for it, unless a program is
//! recorded.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::{CrewThread, Lanes, Ticket};

/// A while in which a thread ran grains of one entry of a lane, and nothing else. Times are in nanoseconds since the lanes' origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The entry.
    pub entry: Ticket,
    /// Whether the thread had looked for work in vain right before.
    pub rested: bool,
    /// When it had taken the first grain.
    pub start: u64,
    /// When it had run the last.
    pub end: u64,
}

#[derive(Debug, Default)]
struct Notes {
    intervals: Vec<Interval>,
    /// How many there is room for.
    most: usize,
    lost: u64,
}

/// The intervals of one thread. It alone writes, so its lock is free while a step runs.
#[derive(Debug, Default)]
pub(crate) struct ThreadLog(Mutex<Notes>);

impl ThreadLog {
    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        // Notes are whole between any two instructions that may panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for so many intervals, of which `usual` need no more memory than is reserved here, and forgets what was noted.
    fn clear(&self, usual: usize, most: usize) {
        let mut intervals = Vec::new();
        intervals.reserve_exact(usual.min(most));
        *self.notes() = Notes { intervals, most, lost: 0 };
    }
}

/// A thread that writes its log.
#[derive(Debug)]
pub(super) struct Pen<'a> {
    log: &'a ThreadLog,
    /// What it is at, unless it rests.
    at: Option<Ticket>,
}

impl<'a> Pen<'a> {
    pub fn new(log: &'a ThreadLog) -> Self {
        Self { log, at: None }
    }

    /// The thread has found nothing to do.
    pub fn rest(&mut self) {
        self.at = None;
    }

    /// Whether the last grain was one of `entry`, too, so that nobody asks when the next one starts.
    pub fn is_at(&self, entry: Ticket) -> bool {
        self.at == Some(entry)
    }

    /// The thread ran a grain of `entry`. To be called before that is said to be finished, so that whoever sees the entry done sees
    /// the note, too.
    pub fn note(&mut self, entry: Ticket, start: u64, end: u64) {
        let (goes_on, rested) = (self.is_at(entry), self.at.is_none());
        self.at = Some(entry);
        let mut notes = self.log.notes();
        let is_full = notes.intervals.len() >= notes.most;
        match notes.intervals.last_mut() {
            Some(last) if last.entry == entry && goes_on => last.end = end,
            _ if is_full => notes.lost += 1,
            _ => notes.intervals.push(Interval { entry, rested, start, end }),
        }
    }
}

/// What one thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRecord {
    /// The thread.
    pub thread: CrewThread,
    /// In the order of time; none begins before that before it has ended.
    pub intervals: Vec<Interval>,
    /// How many more there would be if there had been room.
    pub lost: u64,
}

/// Notes what the threads of a worker run while one of its programs does, those that help another quadrant included.
pub struct Recording {
    lanes: Arc<Lanes>,
    logs: Vec<(CrewThread, Arc<ThreadLog>)>,
    program: usize,
}

impl Recording {
    pub(crate) fn new(lanes: Arc<Lanes>, logs: Vec<(CrewThread, Arc<ThreadLog>)>, program: usize) -> Self {
        Self { lanes, logs, program }
    }

    /// Begins, with room for `most` intervals of each thread and memory for `usual`. Only between steps. What was noted before is
    /// forgotten.
    pub fn start(&self, usual: usize, most: usize) {
        self.logs.iter().for_each(|(_, log)| log.clear(usual, most));
        self.lanes.recorded.store(self.program, Ordering::Release);
    }

    /// Ends; what was noted stays.
    pub fn stop(&self) {
        self.lanes.recorded.store(NOTHING, Ordering::Release);
    }

    /// Who the threads are.
    pub fn crew(&self) -> impl Iterator<Item = CrewThread> {
        self.logs.iter().map(|(thread, _)| *thread)
    }

    /// What they did: all of a task that the host has seen done.
    pub fn threads(&self) -> impl Iterator<Item = ThreadRecord> {
        self.logs.iter().map(|(thread, log)| {
            let notes = log.notes();
            ThreadRecord { thread: *thread, intervals: notes.intervals.clone(), lost: notes.lost }
        })
    }
}

/// In the place of the program that is recorded if none is.
pub(super) const NOTHING: usize = usize::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grains_of_one_entry_are_one_interval_until_the_thread_turns_elsewhere_or_rests() {
        let log = ThreadLog::default();
        log.clear(1, 4);
        let mut pen = Pen::new(&log);
        let entry = |seq| Ticket { lane: 0, seq };
        pen.note(entry(1), 0, 5);
        pen.note(entry(1), 6, 9);
        pen.note(entry(2), 10, 12);
        pen.note(entry(1), 13, 14);
        pen.rest();
        pen.note(entry(1), 20, 21);
        // There is no room for it, but for what belongs to an interval that has some.
        pen.note(entry(1), 22, 23);
        pen.note(entry(3), 30, 31);
        let interval = |seq, rested, start, end| Interval { entry: entry(seq), rested, start, end };
        let notes = log.notes();
        assert_eq!(
            notes.intervals,
            [
                interval(1, true, 0, 9),
                interval(2, false, 10, 12),
                interval(1, false, 13, 14),
                interval(1, true, 20, 23)
            ]
        );
        assert_eq!(notes.lost, 1);
    }
}
