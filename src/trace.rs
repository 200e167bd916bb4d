//! `--trace`: the timeline of a run's first iterations.
//!
//! What ran when is known from [`run_step`](quadrille_core::run::run_step), which takes the times of all tasks anyway. A trace
//! copies them, some fifty bytes a task, into room that was made before the first iteration. Which thread ran grains of which task
//! the threads of quadrants note themselves, each in a log of its own, while iterations are traced. Everything else is done when the
//! run is over. So an iteration that is traced takes a copy of some kilobytes and a look at the clock a grain longer, and all
//! others nothing.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use quadrille_comm::Moment;
use quadrille_core::device::Span;
use quadrille_core::net::Net;
use quadrille_core::plan::{Node, Overlap, Plan, Stage};
use quadrille_core::run::StepTimes;
use quadrille_core::task::TaskId;
use quadrille_cpu::{CrewThread, Recording, Ticket};
use quadrille_io::trace::{Event, Row, TraceText, TraceWriter};

use crate::engine::{Engine, WorkerEvent};
use crate::entries::Entries;
use crate::failure::Failure;
use crate::output;
use crate::pool::chunk_name;
use crate::world::World;

/// What a trace is made of.
pub struct Traced<'a> {
    /// The worker's number.
    pub rank: usize,
    /// One net for each device.
    pub nets: &'a [Net],
    /// All plans of steps.
    pub plans: &'a [&'a Plan],
    /// How steps of whole iterations follow each other, where one begins before that before has ended; each is an iteration then.
    pub overlap: Option<&'a Overlap>,
    /// The devices.
    pub engine: &'a Engine,
    /// How many iterations are traced.
    pub iterations: u64,
    /// Steps of an iteration, at most.
    pub steps: u64,
}

/// A task as it is drawn.
struct DrawnTask {
    name: String,
    kind: String,
    device: usize,
    row: usize,
    /// What it waits for in its step.
    waits: Vec<usize>,
    /// What it waits for in the step before, if that has not ended.
    waits_before: Vec<usize>,
}

/// A plan as it is drawn.
struct Drawn {
    stage: Stage,
    tasks: Vec<DrawnTask>,
}

/// A step that ran.
struct Step {
    plan: usize,
    /// The first of its tasks in all that were noted.
    first: usize,
    /// Whether it began before that before had ended.
    follows: bool,
}

/// A thread at a task.
struct Part {
    row: usize,
    /// The task in all that were noted, and in its plan.
    at: usize,
    plan: usize,
    task: usize,
    /// The device whose thread it is.
    device: usize,
    start: u64,
    end: u64,
}

/// What one worker's devices did.
pub struct Trace {
    rank: usize,
    /// Nanoseconds from the origin of the file to that of the devices' times.
    devices: u64,
    /// The same to `started`.
    begin: u64,
    started: Instant,
    rows: Rows,
    plans: Vec<Drawn>,
    steps: Vec<Step>,
    spans: Vec<Span>,
    /// Of each task that was noted; nothing of a GPU's.
    entries: Vec<[Ticket; 2]>,
    /// Row, name, start and end.
    phases: Vec<(usize, &'static str, u64, u64)>,
    recording: Option<Recording>,
    /// Intervals of each thread for which memory is reserved.
    usual: usize,
    /// If each iteration is a step that may end only in the next: how many are traced.
    most: Option<usize>,
    /// Iterations that are still to be traced.
    left: u64,
}

/// The names of rows, from the top.
struct Rows {
    names: Vec<String>,
    /// The first lane of each device.
    lanes: Vec<usize>,
    /// Of each thread, in the order in which the recording has them.
    threads: Vec<usize>,
}

/// The first row, above those of lanes.
const PHASES: &str = "iteration";
/// The last row: what the host does while a step runs.
const BESIDE: &str = "beside the step";
/// Arrows within a step, and from one to the next.
const WAITS: &str = "waits";
const WAITS_BEFORE: &str = "waits for the step before";
/// More intervals are not kept of a thread: 32 MiB.
const MOST_INTERVALS: usize = 1 << 20;

impl Rows {
    /// Below the phases the lanes of each device and then its threads.
    fn new(devices: usize, lanes: usize, crew: &[CrewThread]) -> Self {
        let mut rows =
            Self { names: vec![PHASES.to_owned()], lanes: Vec::new(), threads: vec![0; crew.len()] };
        for device in 0..devices {
            rows.lanes.push(rows.names.len());
            rows.names.extend((0..lanes).map(|lane| format!("quadrant {device} lane {lane}")));
            for (index, thread) in crew.iter().enumerate().filter(|(_, thread)| thread.device == device) {
                rows.threads[index] = rows.names.len();
                let on = thread.cpu.map_or(String::new(), |cpu| format!(" on CPU {cpu}"));
                rows.names.push(format!("quadrant {device} thread {}{on}", thread.number));
            }
        }
        rows.names.push(BESIDE.to_owned());
        rows
    }
}

impl Drawn {
    fn new(plan: &Plan, nets: &[Net], overlap: Option<&Overlap>, rows: &Rows) -> Self {
        let overlap = overlap.filter(|_| plan.stage == Stage::Iteration);
        let numbers = |tasks: &[TaskId]| tasks.iter().map(|task| task.0).collect();
        let task = |(index, node): (usize, &Node)| {
            let net = &nets[node.device.0];
            let images = chunk_name(net, node);
            DrawnTask {
                name: format!("{}/{}{images}", net.layer(node.task.layer).label(), node.task.sub),
                kind: node.task.sub.to_string(),
                device: node.device.0,
                row: rows.lanes[node.device.0] + node.lane.0,
                waits: numbers(&node.waits),
                waits_before: overlap.map_or(Vec::new(), |overlap| numbers(&overlap.waits[index])),
            }
        };
        Self { stage: plan.stage, tasks: plan.nodes.iter().enumerate().map(task).collect() }
    }
}

impl Trace {
    /// Room for what is traced, and threads that begin to note what they run with [`Trace::begin`].
    pub fn new(of: &Traced<'_>) -> Self {
        // All processes of a run have the clock on the wall in common; a day is short enough for fractions of microseconds.
        const DAY: u128 = 86_400_000_000_000;
        let started = Instant::now();
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let begin = (wall.as_nanos() % DAY) as u64 + DAY as u64;
        let before = started.saturating_duration_since(of.engine.origin()).as_nanos() as u64;
        let lanes = of.plans.iter().map(|plan| plan.lanes.len()).max().unwrap_or(0);
        let recording = of.engine.recording();
        let crew: Vec<CrewThread> = recording.iter().flat_map(Recording::crew).collect();
        let rows = Rows::new(of.nets.len(), lanes, &crew);
        let longest = of.plans.iter().map(|plan| plan.nodes.len()).max().unwrap_or(0);
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let steps = count(of.iterations.saturating_mul(of.steps)).min(1 << 16);
        let tasks = (steps * longest).min(1 << 24);
        Self {
            rank: of.rank,
            devices: begin.saturating_sub(before),
            begin,
            started,
            plans: of.plans.iter().map(|plan| Drawn::new(plan, of.nets, of.overlap, &rows)).collect(),
            rows,
            steps: Vec::with_capacity(steps),
            spans: Vec::with_capacity(tasks),
            entries: Vec::with_capacity(if recording.is_some() { tasks } else { 0 }),
            phases: Vec::with_capacity(8 * steps),
            recording,
            usual: 4 * tasks,
            most: of.overlap.map(|_| count(of.iterations)),
            left: of.iterations,
        }
    }

    /// Lets threads note what they run from now on. Only between steps.
    pub fn begin(&self) {
        self.recording.iter().for_each(|recording| recording.start(self.usual, MOST_INTERVALS));
    }

    /// Whether all steps that are to be traced have ended.
    fn is_over(&self) -> bool {
        self.most.map_or(self.left == 0, |most| self.steps.len() >= most)
    }

    fn end_if_over(&self) {
        self.recording.iter().filter(|_| self.is_over()).for_each(Recording::stop);
    }

    /// Notes when the tasks of a step ran that has ended, if one has.
    pub fn step(&mut self, stage: Stage, times: &StepTimes<WorkerEvent>) {
        let plan = self.plans.iter().position(|plan| plan.stage == stage);
        if let Some(plan) = plan.filter(|_| !times.spans().is_empty() && !self.is_over()) {
            self.steps.push(Step { plan, first: self.spans.len(), follows: times.follows() });
            self.spans.extend_from_slice(times.spans());
            self.entries.extend(times.events().iter().filter_map(WorkerEvent::entries));
            self.end_if_over();
        }
    }

    /// Notes a phase of an iteration.
    pub fn phase(&mut self, name: &'static str, begin: Instant, took: Duration) {
        self.note(0, name, begin, took);
    }

    /// Notes what the host did while a step ran.
    pub fn beside(&mut self, name: &'static str, begin: Instant, took: Duration) {
        self.note(self.rows.names.len() - 1, name, begin, took);
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
        self.end_if_over();
    }

    /// What the threads did at tasks that were noted. A thread that goes from one stage of a task to the next without rest is at it
    /// all the while.
    fn parts(&self) -> Vec<Part> {
        let tasks = self.steps.iter().flat_map(|step| {
            let count = self.plans[step.plan].tasks.len();
            (0..count).map(move |task| (step.first + task, step.plan, task))
        });
        let entries =
            Entries::new(tasks.filter_map(|task| Some((*self.entries.get(task.0)?, task))).collect());
        let mut parts: Vec<Part> = Vec::new();
        let records = self.recording.iter().flat_map(Recording::threads);
        for (record, row) in records.zip(&self.rows.threads) {
            for interval in &record.intervals {
                // What is not of a step that was noted came before the first or behind the last.
                let Some((at, plan, task)) = entries.of(interval.entry) else { continue };
                let [start, end] = [interval.start, interval.end].map(|time| self.devices + time);
                match parts.last_mut().filter(|part| part.row == *row && part.at == at) {
                    Some(part) if !interval.rested => part.end = end,
                    _ => {
                        let device = record.thread.device;
                        parts.push(Part { row: *row, at, plan, task, device, start, end });
                    }
                }
            }
        }
        parts
    }

    /// How many intervals of threads there was no room for.
    fn lost(&self) -> u64 {
        self.recording.iter().flat_map(Recording::threads).map(|thread| thread.lost).sum()
    }

    fn row(&self, thread: usize) -> Row {
        Row { process: self.rank, thread }
    }

    /// Gives all that was traced to `to`, event by event.
    fn tell(&self, mut to: impl FnMut(&Event<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
        let process = format!("worker {}", self.rank);
        for (thread, name) in self.rows.names.iter().enumerate() {
            to(&Event::Named { row: self.row(thread), name, process: &process })?;
        }
        for (thread, name, start, end) in &self.phases {
            let row = self.row(*thread);
            to(&Event::Slice { row, name, category: PHASES, start: *start, end: *end })?;
        }
        let parts = self.parts();
        self.tell_steps(&parts, &mut to)?;
        for Part { row, plan, task, device, start, end, .. } in parts {
            let DrawnTask { name, kind, device: of, .. } = &self.plans[plan].tasks[task];
            let helping = (*of != device).then(|| format!("quadrant {of}: {name}"));
            let name = helping.as_deref().unwrap_or(name);
            to(&Event::Slice { row: self.row(row), name, category: kind, start, end })?;
        }
        let lost = self.lost();
        if lost > 0 {
            output::note(&format!(
                "note        the timeline lacks {lost} intervals of threads: trace fewer iterations"
            ));
        }
        Ok(())
    }

    /// Gives the tasks in their lanes to `to`, with arrows from what they waited for.
    fn tell_steps(
        &self,
        parts: &[Part],
        mut to: impl FnMut(&Event<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut spans: Vec<[u64; 2]> =
            self.spans.iter().map(|span| [span.start, span.end].map(|time| self.devices + time)).collect();
        // Who takes the first grain may be held up before it looks at the clock, while others run the next ones.
        for part in parts {
            spans[part.at][0] = spans[part.at][0].min(part.start);
        }
        // Arrows of several workers have numbers of their own.
        let mut id = (self.rank as u64) << 40;
        for (index, step) in self.steps.iter().enumerate() {
            let tasks = &self.plans[step.plan].tasks;
            let before = index.checked_sub(1).map(|before| &self.steps[before]);
            let before = before.filter(|before| step.follows && before.plan == step.plan);
            for (task, [start, end]) in tasks.iter().zip(&spans[step.first..]) {
                let row = self.row(task.row);
                to(&Event::Slice { row, name: &task.name, category: &task.kind, start: *start, end: *end })?;
                let within = task.waits.iter().map(|wait| (WAITS, step.first, *wait));
                let across = before.into_iter().flat_map(|before| {
                    task.waits_before.iter().map(|wait| (WAITS_BEFORE, before.first, *wait))
                });
                for (name, first, wait) in within.chain(across) {
                    let from = (self.row(tasks[wait].row), spans[first + wait][1]);
                    to(&Event::Arrow { id, name, from, to: (row, *start) })?;
                    id += 1;
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
