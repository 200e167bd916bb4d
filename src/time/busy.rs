//! How long threads worked at each task. When a task began and when it ended does not say that where lanes share threads: a
//! small task that is begun may wait for a thread that is at another lane's, and its time would be that task's, too.

use quadrille_core::run::StepTimes;
use quadrille_cpu::{Recording, Ticket};

use crate::engine::{Engine, WorkerEvent};

/// More intervals of a thread in one iteration are not kept: 40 MiB.
const MOST_INTERVALS: usize = 1 << 20;

/// What the threads of quadrants note of what they run.
pub struct Busy {
    recording: Recording,
    /// Threads of each device.
    threads: Vec<usize>,
    /// How many intervals of each thread were counted.
    counted: Vec<usize>,
    /// Whether a trace is recorded meanwhile, which keeps them all.
    traced: bool,
}

impl Busy {
    /// Of `devices` devices; `None` of GPUs, whose lanes do not share threads.
    pub fn new(engine: &Engine, devices: usize, traced: bool) -> Option<Self> {
        let recording = engine.recording()?;
        let mut threads = vec![0; devices];
        recording.crew().for_each(|thread| threads[thread.device] += 1);
        let counted = vec![0; recording.crew().count()];
        Some(Self { recording, threads, counted, traced })
    }

    /// Threads of each device.
    pub fn threads(&self) -> &[usize] {
        &self.threads
    }

    /// To be called before a step of so many tasks.
    pub fn begin(&mut self, tasks: usize) {
        if !self.traced {
            self.recording.start(8 * tasks, MOST_INTERVALS);
            self.counted.fill(0);
        }
    }

    /// Nanoseconds that threads were at each task of the step that has ended, all threads added up; `None` if nothing was
    /// recorded, or not all of it.
    pub fn of_step(&mut self, times: &StepTimes<WorkerEvent>) -> Option<Vec<u64>> {
        let tasks = Tasks::new(times.events().iter().map(WorkerEvent::entries))?;
        let mut sums = vec![0; times.events().len()];
        let mut complete = true;
        for (record, counted) in self.recording.threads().zip(&mut self.counted) {
            complete &= record.lost == 0;
            for interval in &record.intervals[*counted..] {
                if let Some(task) = tasks.of(interval.entry) {
                    sums[task] += interval.end - interval.start;
                }
            }
            *counted = record.intervals.len();
        }
        (complete && sums.iter().any(|sum| *sum > 0)).then_some(sums)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if !self.traced {
            self.recording.stop();
        }
    }
}

/// The tasks of a step by their entries in lanes.
struct Tasks(Vec<([Ticket; 2], usize)>);

impl Tasks {
    /// `None` if some task has no entries.
    fn new(entries: impl Iterator<Item = Option<[Ticket; 2]>>) -> Option<Self> {
        let tasks = entries.enumerate().map(|(task, entries)| Some((entries?, task)));
        let mut tasks = tasks.collect::<Option<Vec<_>>>()?;
        tasks.sort_unstable_by_key(|([first, _], _)| (first.lane, first.seq));
        Some(Self(tasks))
    }

    /// Whose entry it is.
    fn of(&self, entry: Ticket) -> Option<usize> {
        let place = |ticket: Ticket| (ticket.lane, ticket.seq);
        let behind = self.0.partition_point(|([first, _], _)| place(*first) <= place(entry));
        let ([_, last], task) = self.0[..behind].last()?;
        (last.lane == entry.lane && entry.seq <= last.seq).then_some(*task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_belong_to_the_task_that_has_them() {
        let entry = |lane, seq| Ticket { lane, seq };
        let tasks = [[entry(1, 4), entry(1, 5)], [entry(0, 9), entry(0, 9)], [entry(1, 7), entry(1, 7)]];
        let tasks = Tasks::new(tasks.into_iter().map(Some)).expect("entries");
        let of = |lane, seq| tasks.of(entry(lane, seq));
        assert_eq!([of(1, 4), of(1, 5), of(0, 9), of(1, 7)], [Some(0), Some(0), Some(1), Some(2)]);
        assert_eq!([of(0, 8), of(0, 10), of(1, 3), of(1, 6), of(1, 8), of(2, 4)], [None; 6]);
        assert!(Tasks::new([Some([entry(0, 1); 2]), None].into_iter()).is_none());
    }
}
