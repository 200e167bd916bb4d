//! Sync SGD in an iteration: the gradients of all workers are averaged part by part, beside backward where that can be.
//!
//! # Why the bits do not depend on when
//!
//! The parts are those of the packed gradients from its end on, which is the order in which backward finds them. They follow from
//! the network and the number of workers, and all workers exchange them in that order, beside backward or behind it. A part
//! leaves when no task of the step is left that touches it, on any quadrant, so what is sent is what would be sent behind
//! the step, and nobody but the host touches what comes back.
//!
//! # Why it ends
//!
//! A worker waits for tasks of its own, which wait for no worker, and for parts of other workers, which are bounded waits of the
//! transport. All send their parts in the same order, so the one that is furthest behind never waits for one ahead of it.
//!
//! # By a virtual clock
//!
//! The step is run as a whole, and its time told in pieces: each part leaves when the share of the step's work that stands before
//! its last task has gone by, on a time line of its own ([`TimedClock::aside`]), behind the part before it.
//!
//! # What is not finite
//!
//! Losses are looked at before the first part leaves: a worker that will end for its loss has sent nothing.

use std::ops::Range;
use std::time::Duration;

use quadrille_comm::Moment;
use quadrille_comm::choice::bucket_len;
use quadrille_comm::protocol::sync_sgd::SyncSgd;
use quadrille_comm::transport::Endpoint;
use quadrille_comm::transport::timed::TimedClock;
use quadrille_core::device::{Packed, Region};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, ParamLayout};
use quadrille_core::plan::Plan;
use quadrille_core::run::Running;
use quadrille_core::task::TaskId;

use crate::breakdown::Spent;
use crate::engine::WorkerDevice;
use crate::failure::Failure;
use crate::pace::Pace;
use crate::pass::Pass;

/// A part of the packed gradients, and the tasks behind which it is whole.
#[derive(Debug)]
struct Part {
    range: Range<usize>,
    tasks: Vec<TaskId>,
    /// By a virtual clock, the share of the step that has gone by then.
    share: f64,
}

/// The parts in which gradients travel: one for each parameter if they are not packed.
pub fn parts(layout: &ParamLayout, workers: usize, unpacked: bool) -> Vec<Range<usize>> {
    layout.buckets(if unpacked { 1 } else { bucket_len(workers) })
}

/// A worker's part in Sync SGD.
pub struct Averaging {
    group: SyncSgd<Endpoint>,
    /// The packed gradients on their way.
    gradients: Vec<f32>,
    parts: Vec<Part>,
    /// The tasks behind which all losses are known.
    forward: Vec<TaskId>,
    /// When each part was exchanged beside this iteration's step, and how long that took; nothing if none was.
    exchanged: Vec<(Moment, Duration)>,
}

impl Averaging {
    /// Of a worker that lives by `pace`, whose gradients `plan` of `nets` finds; they travel in `parts`.
    pub fn new(
        group: SyncSgd<Endpoint>,
        pace: &Pace,
        nets: &[Net],
        plan: &Plan,
        parts: Vec<Range<usize>>,
    ) -> Self {
        let part = |range| {
            let tasks = plan.gradient_tasks(nets, &range);
            Part { range, share: pace.share_until(nets, plan, &tasks), tasks }
        };
        let parts: Vec<Part> = parts.into_iter().map(part).collect();
        let is_forward = |id: &TaskId| plan.nodes[id.0].task.sub == SubTask::Forward;
        let forward = (0..plan.nodes.len()).map(TaskId).filter(is_forward).collect();
        let exchanged = Vec::with_capacity(parts.len());
        Self { group, gradients: vec![0.0; nets[0].params.len()], parts, forward, exchanged }
    }

    /// The group of workers.
    pub fn group(&mut self) -> &mut SyncSgd<Endpoint> {
        &mut self.group
    }

    /// Averages each part as soon as the step has found it, unless a loss is not finite.
    ///
    /// # Errors
    /// If a device or another worker fails.
    pub fn beside(&mut self, pass: &Pass, step: &Running<'_, WorkerDevice>) -> Result<(), Failure> {
        self.exchanged.clear();
        self.forward.iter().try_for_each(|task| step.settle(*task))?;
        if !pass.losses_are_finite()? {
            return Ok(());
        }
        for part in 0..self.parts.len() {
            self.parts[part].tasks.iter().try_for_each(|task| step.settle(*task))?;
            let begin = Moment::real();
            self.average(pass, part)?;
            self.exchanged.push((begin, Moment::real().since(begin)));
        }
        Ok(())
    }

    /// By a virtual clock, the share of the step that has gone by when the first part leaves, of 1.
    pub fn first_share(&self) -> f64 {
        self.parts.first().map_or(1.0, |part| part.share)
    }

    /// The same by a virtual clock, of a step that was run, and of which the first share has gone by: it goes on, and parts leave
    /// meanwhile. Ends when the step and all parts have. Returns when the step ended.
    ///
    /// # Errors
    /// If a device or another worker fails.
    pub fn beside_virtually(
        &mut self,
        pass: &Pass,
        pace: &Pace,
        clock: &TimedClock,
    ) -> Result<Moment, Failure> {
        self.exchanged.clear();
        let mut gone = self.first_share();
        let leaving = if pass.losses_are_finite()? { self.parts.len() } else { 0 };
        for part in 0..leaving {
            let share = self.parts[part].share.max(gone);
            pace.go_on(gone, share);
            gone = share;
            clock.begin_aside();
            let (left, end) = clock.aside(|| {
                let begin = clock.now();
                self.average(pass, part).map(|()| begin)
            });
            let begin = left?;
            self.exchanged.push((begin, end.since(begin)));
        }
        pace.go_on(gone, 1.0);
        let computed = clock.now();
        if let Some((begin, took)) = self.exchanged.last() {
            clock.wait_until(begin.after(*took));
        }
        Ok(computed)
    }

    /// What the exchanges beside a step took whose last task ended at `computed`, with each of them.
    pub fn spent_beside(&self, computed: Moment) -> (Spent, &[(Moment, Duration)]) {
        (spent(&self.exchanged, computed), &self.exchanged)
    }

    /// Averages all parts, unless that was done beside the step.
    ///
    /// # Errors
    /// If a device or another worker fails.
    pub fn finish(&mut self, pass: &Pass) -> Result<(), Failure> {
        if self.exchanged.is_empty() {
            (0..self.parts.len()).try_for_each(|part| self.average(pass, part))?;
        }
        self.exchanged.clear();
        Ok(())
    }

    fn average(&mut self, pass: &Pass, part: usize) -> Result<(), Failure> {
        let range = self.parts[part].range.clone();
        let region = Region::PackedFrom(Packed::Gradients, range.start);
        let values = &mut self.gradients[range];
        pass.read(region, values)?;
        self.group.exchange(values)?;
        pass.write_all(region, values)
    }
}

/// What exchanges took, of which the worker waits for what comes behind `computed`.
fn spent(exchanged: &[(Moment, Duration)], computed: Moment) -> Spent {
    let alone = |(begin, took): &(Moment, Duration)| begin.after(*took).since(computed.or_later(*begin));
    let took = exchanged.iter().map(|(_, took)| *took).sum();
    let waited = exchanged.iter().map(alone).sum();
    Spent { waited, took, beside: took - waited, ..Spent::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sticks_out_of_the_step_is_waited_for() {
        let ms = Duration::from_millis;
        let at = |time| Moment::Virtual(ms(time));
        let exchanged = [(at(0), ms(4)), (at(8), ms(4)), (at(20), ms(2))];
        let found = spent(&exchanged, at(10));
        assert_eq!((found.took, found.waited, found.beside), (ms(10), ms(4), ms(6)));
    }
}
