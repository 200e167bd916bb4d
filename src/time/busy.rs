//! How long threads worked at each task. When a task began and when it ended does not say that where lanes share threads: a
//! small task that is begun may wait for a thread that is at another lane's, and its time would be that task's, too.

use quadrille_core::run::StepTimes;
use quadrille_cpu::Recording;

use crate::engine::{Engine, WorkerEvent};
use crate::entries::Entries;

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
        let entries = times.events().iter().map(WorkerEvent::entries).enumerate();
        let tasks = Entries::new(entries.map(|(task, of)| Some((of?, task))).collect::<Option<_>>()?);
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
