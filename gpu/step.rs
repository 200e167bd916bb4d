//! A step: what is put into which stream, at once or as a graph, and when it ran.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quadrille_core::device::{DeviceError, Scalars, Span};
use quadrille_core::plan::Plan;
use quadrille_core::task::Task;

use crate::device::{SCALARS, Shared, words};
use crate::driver::{Event, Gpu, Graph, HostBuffer};

/// What a step does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A lane waits for a task, by its place among the tasks of the step.
    Wait { lane: usize, task: usize },
    /// A lane does a task.
    Task { lane: usize, task: Task },
}

impl Entry {
    /// How many tasks it is: one or none.
    fn tasks(self) -> usize {
        usize::from(matches!(self, Self::Task { .. }))
    }
}

/// What [`quadrille_core::run::run_step`] makes of a plan on one device.
fn script(plan: &Plan) -> Vec<Entry> {
    let of = |node: &quadrille_core::plan::Node| {
        let lane = node.lane.0;
        let waits = node.waits.iter().map(move |task| Entry::Wait { lane, task: task.0 }).collect::<Vec<_>>();
        waits.into_iter().chain([Entry::Task { lane, task: node.task }])
    };
    plan.nodes.iter().flat_map(of).collect()
}

/// A plan as a graph.
pub(crate) struct Recorded {
    script: Vec<Entry>,
    graph: Graph,
}

/// The graphs of a device's programs.
#[derive(Default)]
pub(crate) struct Graphs {
    /// Of each program, those of its plans.
    programs: Vec<Vec<Recorded>>,
    /// Whether they are left aside, so that each task has a time of its own.
    aside: AtomicBool,
}

impl Graphs {
    /// Whether steps of a program are kept back until it is known whether they are one of its graphs.
    fn are_used(&self, program: usize) -> bool {
        !self.aside.load(Ordering::Relaxed) && self.programs.get(program).is_some_and(|all| !all.is_empty())
    }

    /// Uses them or leaves them aside, from the next step on.
    pub fn use_them(&self, them: bool) {
        self.aside.store(!them, Ordering::Relaxed);
    }

    /// Tasks, and kernels and copies, of the largest graph of each program.
    pub fn sizes(&self) -> impl Iterator<Item = [usize; 2]> {
        let tasks = |script: &[Entry]| -> usize { script.iter().map(|entry| entry.tasks()).sum() };
        let size = move |one: &Recorded| [tasks(&one.script), one.graph.nodes];
        self.programs.iter().filter_map(move |graphs| graphs.iter().map(size).max())
    }
}

/// The times of tasks, and what a step needs of the host.
pub(crate) struct Clock {
    /// Begin and end of each task of the step so far. There are as many as the longest step yet had tasks.
    pairs: Vec<[Event; 2]>,
    /// What the step does, as far as it was said, and how many tasks these are.
    script: Vec<Entry>,
    tasks: usize,
    /// Entries that are not in any stream yet.
    kept_back: usize,
    /// Begin and end of the graph with which the step began, and how many tasks it has: 0 if there is none.
    whole: ([Event; 2], usize),
    /// Counts steps, so that an event of an earlier one is known.
    step: u64,
    /// Which program the step belongs to, and whether it may be a graph.
    program: (usize, bool),
    /// Nanoseconds from the device's origin to the begin of the step.
    begun: u64,
    /// What changes from step to step, as the kernels' `struct Scalars` has it.
    scalars: HostBuffer,
}

impl Clock {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        Ok(Self {
            pairs: Vec::new(),
            script: Vec::new(),
            tasks: 0,
            kept_back: 0,
            whole: ([Event::new(gpu)?, Event::new(gpu)?], 0),
            step: 0,
            program: (0, false),
            begun: 0,
            scalars: HostBuffer::new(gpu, SCALARS)?,
        })
    }

    /// Begin and end of a task of this step; `None` if it is not in any stream yet.
    fn pair(&self, task: usize) -> Option<&[Event; 2]> {
        match task < self.whole.1 {
            true => Some(&self.whole.0),
            false => self.pairs.get(task).filter(|_| self.kept_back == 0),
        }
    }
}

/// A task of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    step: u64,
    task: usize,
}

impl Shared {
    /// Begins a step of a program: puts its scalars on the GPU, and lets all lanes wait for them and for what the host has
    /// written.
    pub fn begin_step(&self, program: usize, scalars: &Scalars) -> Result<(), DeviceError> {
        // What nobody has waited for is a step all the same.
        self.flush()?;
        let copier = self.lock(&self.copier)?;
        let mut clock = self.lock(&self.clock)?;
        let Some((first, others)) = self.streams.split_first() else { return Ok(()) };
        clock.script.clear();
        (clock.tasks, clock.kept_back, clock.whole.1) = (0, 0, 0);
        clock.step += 1;
        clock.program = (program, self.graphs.are_used(program));
        clock.scalars.values_mut()[..SCALARS].copy_from_slice(&words(scalars, self.rule));
        let started = || -> Result<(), String> {
            for done in &copier.done {
                first.stream.wait(done)?;
            }
            first.stream.copy_in(&clock.scalars, 0, self.scalars)?;
            first.stream.record(&self.ready)?;
            others.iter().try_for_each(|lane| lane.stream.wait(&self.ready))
        };
        self.done(started())?;
        clock.begun = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Adds a task to the step.
    pub fn add_task(&self, lane: usize, task: Task) -> Result<Moment, DeviceError> {
        let mut clock = self.lock(&self.clock)?;
        let moment = Moment { step: clock.step, task: clock.tasks };
        self.add(&mut clock, Entry::Task { lane, task })?;
        Ok(moment)
    }

    /// Lets a lane wait for a task. Those of earlier steps are done.
    pub fn add_wait(&self, lane: usize, moment: Moment) -> Result<(), DeviceError> {
        let mut clock = self.lock(&self.clock)?;
        match moment.step == clock.step {
            true => self.add(&mut clock, Entry::Wait { lane, task: moment.task }),
            false => Ok(()),
        }
    }

    fn add(&self, clock: &mut Clock, entry: Entry) -> Result<(), DeviceError> {
        let task = clock.tasks;
        clock.script.push(entry);
        clock.tasks += entry.tasks();
        if clock.program.1 {
            clock.kept_back += 1;
            return Ok(());
        }
        self.issue(clock, task, entry)
    }

    /// Puts an entry into its stream; it is, or comes behind, task number `task`.
    fn issue(&self, clock: &mut Clock, task: usize, entry: Entry) -> Result<(), DeviceError> {
        if clock.pairs.len() <= task {
            let event = || self.done(Event::new(&self.gpu));
            clock.pairs.push([event()?, event()?]);
        }
        let Clock { pairs, program, whole, .. } = clock;
        match entry {
            Entry::Wait { lane, task } => {
                let end = if task < whole.1 { &whole.0[1] } else { &pairs[task][1] };
                self.done(self.streams[lane].stream.wait(end))
            }
            Entry::Task { lane, task: what } => {
                let stream = &self.streams[lane].stream;
                let submitted = stream
                    .record(&pairs[task][0])
                    .and_then(|()| self.run_ops(program.0, lane, &what))
                    .and_then(|()| stream.record(&pairs[task][1]));
                self.done(submitted)
            }
        }
    }

    fn run_ops(&self, program: usize, lane: usize, task: &Task) -> Result<(), String> {
        let Task { layer, sub, .. } = task;
        let unknown = || format!("{sub} of layer {} is unknown", layer.0);
        let ops = self.programs[program].tasks.get(task).ok_or_else(unknown)?;
        let run = ops.iter().try_for_each(|op| self.streams[lane].run(op));
        run.map_err(|reason| format!("{sub} of layer {}: {reason}", layer.0))
    }

    /// Puts what was kept back into streams, as a graph if it is one.
    pub fn flush(&self) -> Result<(), DeviceError> {
        let mut clock = self.lock(&self.clock)?;
        if clock.kept_back == 0 {
            return Ok(());
        }
        let begin = clock.script.len() - clock.kept_back;
        let known = self.graphs.programs.get(clock.program.0).into_iter().flatten();
        let known = known.into_iter().find(|one| begin == 0 && one.script == clock.script);
        if let (Some(Recorded { graph, .. }), Some(first)) = (known, self.streams.first()) {
            let [start, end] = &clock.whole.0;
            let launched = first
                .stream
                .record(start)
                .and_then(|()| graph.launch(&first.stream))
                .and_then(|()| first.stream.record(end));
            (clock.whole.1, clock.kept_back) = (clock.tasks, 0);
            return self.done(launched);
        }
        let mut task = clock.script[..begin].iter().map(|entry| entry.tasks()).sum();
        for at in begin..clock.script.len() {
            let entry = clock.script[at];
            self.issue(&mut clock, task, entry)?;
            task += entry.tasks();
        }
        clock.kept_back = 0;
        Ok(())
    }

    /// Whether a task is done.
    pub fn is_done(&self, moment: Moment) -> bool {
        let Ok(clock) = self.clock.lock() else { return false };
        clock.step != moment.step || clock.pair(moment.task).is_some_and(|pair| pair[1].is_done())
    }

    /// When a task of the last step ran.
    pub fn span(&self, moment: Moment) -> Option<Span> {
        let clock = self.clock.lock().ok().filter(|clock| clock.step == moment.step)?;
        let [start, end] = clock.pair(moment.task)?.each_ref().map(|event| self.ready.until(event));
        Some(Span { start: clock.begun + start?, end: clock.begun + end? })
    }

    /// Runs every plan once on arrays of zeros, so that libraries have made what they make at their first call; after that all
    /// memory is 0 again.
    ///
    /// # Errors
    /// If the device fails.
    pub fn warm_up(&self, programs: &[&[&Plan]]) -> Result<(), DeviceError> {
        for (program, plans) in programs.iter().enumerate() {
            for plan in *plans {
                self.begin_step(program, &Scalars::default())?;
                let mut clock = self.lock(&self.clock)?;
                script(plan).into_iter().try_for_each(|entry| self.add(&mut clock, entry))?;
                drop(clock);
                self.synchronize()?;
            }
        }
        self.done(self.arena.clear())
    }

    /// Records the plans of each program as graphs.
    ///
    /// # Errors
    /// If something that a plan does cannot be recorded. The device works all the same, without graphs.
    pub fn record_graphs(&mut self, programs: &[&[&Plan]]) -> Result<(), String> {
        let recorded = programs.iter().enumerate().map(|(program, plans)| {
            plans.iter().map(|plan| self.recorded(program, script(plan))).collect::<Result<Vec<_>, _>>()
        });
        self.graphs.programs = recorded.collect::<Result<_, _>>()?;
        Ok(())
    }

    fn recorded(&self, program: usize, script: Vec<Entry>) -> Result<Recorded, String> {
        let (first, others) = self.streams.split_first().ok_or("a device without lanes")?;
        let events = script.len() + self.streams.len();
        let events: Vec<Event> = (0..events).map(|_| Event::new(&self.gpu)).collect::<Result<_, _>>()?;
        let (of_tasks, ends) = events.split_at(script.len());
        let submit = || {
            first.stream.record(&ends[0])?;
            others.iter().try_for_each(|lane| lane.stream.wait(&ends[0]))?;
            let mut tasks = of_tasks.iter();
            for entry in &script {
                match *entry {
                    Entry::Wait { lane, task } => self.streams[lane].stream.wait(&of_tasks[task])?,
                    Entry::Task { lane, task } => {
                        self.run_ops(program, lane, &task)?;
                        tasks.next().map_or(Ok(()), |done| self.streams[lane].stream.record(done))?;
                    }
                }
            }
            for (lane, end) in others.iter().zip(&ends[1..]) {
                lane.stream.record(end)?;
                first.stream.wait(end)?;
            }
            Ok(())
        };
        let graph = Graph::record(&first.stream, submit)?;
        Ok(Recorded { script, graph })
    }
}
