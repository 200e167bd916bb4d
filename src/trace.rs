//! `--trace`: the timeline of a run's first iterations.
//!
//! What ran when is known from [`run_step`](quadrille_core::run::run_step), which takes the times of all tasks anyway. A trace
//! copies them, sixteen bytes a task, into room that was made before the first iteration; everything else is done when the
//! run is over. So an iteration that is traced takes a copy of some kilobytes longer, and all others nothing.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use quadrille_comm::Moment;
use quadrille_core::device::Span;
use quadrille_core::net::Net;
use quadrille_core::plan::{Plan, Stage};
use quadrille_io::trace::{Event, Row, TraceText, TraceWriter};

use crate::failure::Failure;
use crate::pool::chunk_name;
use crate::world::World;

/// A plan as it is drawn.
struct Drawn {
    stage: Stage,
    /// Name, kind, row and waits of each task.
    tasks: Vec<(String, String, usize, Vec<usize>)>,
}

/// What one worker's devices did.
pub struct Trace {
    rank: usize,
    /// Nanoseconds from the origin of the file to that of the devices' times.
    devices: u64,
    /// The same to `started`.
    begin: u64,
    started: Instant,
    rows: Vec<String>,
    plans: Vec<Drawn>,
    steps: Vec<(usize, usize)>,
    spans: Vec<Span>,
    /// Row, name, start and end.
    phases: Vec<(usize, &'static str, u64, u64)>,
    /// Iterations that are still to be traced.
    left: u64,
}

/// The first row, above those of lanes.
const PHASES: &str = "iteration";
/// The last row: what the host does while a step runs.
const BESIDE: &str = "beside the step";

impl Trace {
    /// Room for so many iterations of a worker's plans, which run `most` steps in each; `origin` is that of the devices' times.
    pub fn new(
        rank: usize,
        nets: &[Net],
        plans: &[&Plan],
        origin: Instant,
        iterations: u64,
        most: u64,
    ) -> Self {
        // All processes of a run have the clock on the wall in common; a day is short enough for fractions of microseconds.
        const DAY: u128 = 86_400_000_000_000;
        let started = Instant::now();
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let begin = (wall.as_nanos() % DAY) as u64 + DAY as u64;
        let before = started.saturating_duration_since(origin).as_nanos() as u64;
        let lanes = plans.iter().map(|plan| plan.lanes.len()).max().unwrap_or(0);
        let mut rows = vec![PHASES.to_owned()];
        for device in 0..nets.len() {
            rows.extend((0..lanes).map(|lane| format!("quadrant {device} lane {lane}")));
        }
        rows.push(BESIDE.to_owned());
        let drawn = |plan: &&Plan| Drawn {
            stage: plan.stage,
            tasks: plan
                .nodes
                .iter()
                .map(|node| {
                    let net = &nets[node.device.0];
                    let images = chunk_name(net, node);
                    let name = format!("{}/{}{images}", net.layer(node.task.layer).label(), node.task.sub);
                    let waits = node.waits.iter().map(|wait| wait.0).collect();
                    (name, node.task.sub.to_string(), 1 + node.device.0 * lanes + node.lane.0, waits)
                })
                .collect(),
        };
        let longest = plans.iter().map(|plan| plan.nodes.len()).max().unwrap_or(0);
        let steps = usize::try_from(iterations.saturating_mul(most)).unwrap_or(usize::MAX).min(1 << 16);
        Self {
            rank,
            devices: begin.saturating_sub(before),
            begin,
            started,
            rows,
            plans: plans.iter().map(drawn).collect(),
            steps: Vec::with_capacity(steps),
            spans: Vec::with_capacity((steps * longest).min(1 << 24)),
            phases: Vec::with_capacity(8 * steps),
            left: iterations,
        }
    }

    /// Notes when the tasks of a step ran.
    pub fn step(&mut self, stage: Stage, spans: &[Span]) {
        let plan = self.plans.iter().position(|plan| plan.stage == stage);
        if let Some(plan) = plan.filter(|_| self.left > 0) {
            self.steps.push((plan, self.spans.len()));
            self.spans.extend_from_slice(spans);
        }
    }

    /// Notes a phase of an iteration.
    pub fn phase(&mut self, name: &'static str, begin: Instant, took: Duration) {
        self.note(0, name, begin, took);
    }

    /// Notes what the host did while a step ran.
    pub fn beside(&mut self, name: &'static str, begin: Instant, took: Duration) {
        self.note(self.rows.len() - 1, name, begin, took);
    }

    /// The same of what was exchanged meanwhile, each from its begin on. Timelines are by the real clock.
    pub fn exchanged_beside(&mut self, exchanges: &[(Moment, Duration)]) {
        for (begin, took) in exchanges {
            if let Moment::Real(begin) = begin {
                self.beside("communication", *begin, *took);
            }
        }
    }

    fn note(&mut self, row: usize, name: &'static str, begin: Instant, took: Duration) {
        if self.left > 0 && !took.is_zero() {
            let start = self.begin + begin.saturating_duration_since(self.started).as_nanos() as u64;
            self.phases.push((row, name, start, start + took.as_nanos() as u64));
        }
    }

    /// An iteration is over.
    pub fn iteration(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Gives all that was traced to `to`, event by event.
    fn tell(&self, mut to: impl FnMut(&Event<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
        // Arrows of several workers have numbers of their own.
        let mut arrows = (self.rank as u64) << 40;
        let row = |thread: usize| Row { process: self.rank, thread };
        let process = format!("worker {}", self.rank);
        for (thread, name) in self.rows.iter().enumerate() {
            to(&Event::Named { row: row(thread), name, process: &process })?;
        }
        for (thread, name, start, end) in &self.phases {
            to(&Event::Slice { row: row(*thread), name, category: PHASES, start: *start, end: *end })?;
        }
        for (plan, first) in &self.steps {
            let tasks = &self.plans[*plan].tasks;
            let spans = &self.spans[*first..first + tasks.len()];
            for ((name, category, thread, waits), span) in tasks.iter().zip(spans) {
                let [start, end] = [span.start, span.end].map(|time| self.devices + time);
                to(&Event::Slice { row: row(*thread), name, category, start, end })?;
                for wait in waits {
                    let from = (row(tasks[*wait].2), self.devices + spans[*wait].end);
                    to(&Event::Arrow { id: arrows, from, to: (row(*thread), start) })?;
                    arrows += 1;
                }
            }
        }
        Ok(())
    }
}

/// Opens the file of a run, in the process that leads, before anything is trained.
pub fn open(asked: Option<&Path>, leads: bool) -> Result<Option<TraceWriter>, Failure> {
    Ok(asked.filter(|_| leads).map(TraceWriter::create).transpose()?)
}

/// Writes the timelines of this process's workers.
pub fn write<'a>(mut to: TraceWriter, traces: impl Iterator<Item = &'a Trace>) -> Result<(), Failure> {
    write_to(&mut to, traces)?;
    Ok(to.finish()?)
}

fn write_to<'a>(to: &mut TraceWriter, mut traces: impl Iterator<Item = &'a Trace>) -> Result<(), Failure> {
    traces.try_for_each(|trace| trace.tell(|event| Ok(to.write(event)?)))
}

/// Bytes of events that are sent in one message.
const PIECE: usize = 1 << 16;

/// Writes the timelines of all processes into the file of the one that leads, to which the others send theirs. Every process that was
/// asked for a timeline calls this.
pub fn gather<'a>(
    to: Option<TraceWriter>,
    traces: impl Iterator<Item = &'a Trace>,
    world: &World,
) -> Result<(), Failure> {
    let Some(mut to) = to else {
        let mut text = TraceText::default();
        for trace in traces {
            trace.tell(|event| {
                text.add(event);
                Ok(())
            })?;
        }
        text.pieces(PIECE).try_for_each(|piece| world.tell(0, piece))?;
        // No piece is empty.
        return world.tell(0, "");
    };
    write_to(&mut to, traces)?;
    for other in 1..world.size().unwrap_or(1) {
        loop {
            let piece = world.hear(other)?;
            if piece.is_empty() {
                break;
            }
            to.append(&piece)?;
        }
    }
    Ok(to.finish()?)
}
