//! A worker: one replica in the sense of SGD and EASGD, with its devices, plans, data and place in the method.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quadrille_comm::Moment as At;
use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::SubTask;
use quadrille_core::net::Net;
use quadrille_core::rng::step_seed;
use quadrille_core::run::{StepTimes, StepsAhead, run_step, run_step_beside};
use quadrille_cpu::{BlobBytes, CrewSpec, Homes};
use quadrille_io::weights::Tensors;

use crate::breakdown::Clock;
use crate::crews::Crews;
use crate::debug;
use crate::draft::Draft;
use crate::engine::{Engine, WorkerEvent};
use crate::exchange::Exchange;
use crate::failure::{Code, Failure};
use crate::feed::{Batches, Draw};
use crate::job::{PhaseJob, TestJob};
use crate::memory;
use crate::nonfinite::{self, Moment, Watch};
use crate::output;
use crate::pace::Pace;
use crate::pass::Pass;
use crate::places::Places;
use crate::plan::training::Plans;
use crate::progress::{Output, TestResult};
use crate::rewriting::Rewriting;
use crate::settings::Settings;
use crate::signal::StopAgreement;
use crate::state::{Course, WorkerArrays, WorkerState};
use crate::tester::Tester;
use crate::trace::{Trace, Traced};

/// Room for the losses of so many mini-batches is made at the start; more make it as they come.
const MOST_LOSSES: u64 = 1024;

/// One worker.
pub struct Worker {
    /// Its number.
    pub rank: usize,
    /// Its number among the workers of this process.
    pub seat: usize,
    /// Training.
    pub pass: Pass,
    /// What an iteration runs.
    pub plans: Plans,
    /// When the tasks of the last step ran.
    pub times: StepTimes<WorkerEvent>,
    /// Its iterations, where one may begin before the updates of that before have ended.
    ahead: Option<StepsAhead<WorkerEvent>>,
    /// Its devices' memory and threads.
    pub engine: Engine,
    /// Its mini-batches.
    pub batches: Batches,
    /// The loss of each mini-batch of the last iteration.
    pub losses: Vec<f32>,
    /// Its place in the method.
    pub exchange: Exchange,
    /// What it does about values that are not finite.
    pub watch: Watch,
    /// Whether the update of this iteration is left out.
    leaves_out: bool,
    /// The clock that it lives by.
    pub pace: Pace,
    /// Where its time went.
    pub clock: Clock,
    /// When the tasks of its first iterations ran, if that is asked for.
    pub trace: Option<Trace>,
    /// What rate and display remember.
    pub course: Course,
    /// Where its threads that do not compute run.
    pub places: Places,
    testers: Vec<Tester>,
    /// The worker's own weights while those to be tested are in their place.
    aside: Vec<f32>,
    workers: usize,
    /// Histories of each weight.
    histories: usize,
    /// Lines of `debug_info` that nobody has printed yet.
    pub shown: Vec<String>,
    /// Implementations and refusals, for the first lines.
    pub notes: Vec<String>,
}

/// What values and gradients take in memory, for people.
pub fn blob_memory(programs: impl Iterator<Item = BlobBytes>) -> String {
    let [taken, apart] = programs.fold([0, 0], |[t, a], blobs| [t + blobs.taken, a + blobs.apart]);
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let kept = if taken < apart { format!("; without sharing {:.1} MiB", mib(apart)) } else { String::new() };
    format!("{:.1} MiB for values and gradients{kept}", mib(taken))
}

/// What a worker's engine decided, for the first lines: of `net` on its first device, and of the memory of all `programs`.
fn notes(engine: &Engine, net: &Net, programs: usize) -> Vec<String> {
    let mut notes = engine.notes().to_vec();
    let choices = engine.choices(net);
    let chosen: Vec<String> = choices.iter().map(|c| format!("{}={}", c.layer, c.implementation)).collect();
    notes.push(format!("kernels     {}", chosen.join(" ")));
    let fused: Vec<&str> = choices.iter().filter(|c| c.label != c.layer).map(|c| c.label.as_str()).collect();
    if !fused.is_empty() {
        notes.push(format!("fused       {}", fused.join(", ")));
    }
    let stepping: Vec<&str> = net.layers.iter().filter(|l| l.steps_weight).map(|l| l.name.as_str()).collect();
    if !stepping.is_empty() {
        let whole = if net.share < 1.0 { ", each quadrant for all images" } else { "" };
        notes.push(format!("one pass    grad-weight and update of {}{whole}", stepping.join(", ")));
    }
    let passing: Vec<&str> =
        net.layers.iter().filter(|l| l.steps_in_passing).map(|l| l.name.as_str()).collect();
    if !passing.is_empty() {
        notes.push(format!("            with grad-activation of {}", passing.join(", ")));
    }
    let rectifying: Vec<&str> =
        net.layers.iter().filter(|l| l.rectifies_gradient).map(|l| l.name.as_str()).collect();
    if !rectifying.is_empty() {
        notes.push(format!(
            "rectified   the gradient of a ReLU by the layer behind it: {}",
            rectifying.join(", ")
        ));
    }
    let adding: Vec<&str> = net.layers.iter().filter(|l| l.adds_gradient).map(|l| l.name.as_str()).collect();
    if !adding.is_empty() {
        notes.push(format!("added up    in its place, the gradient of the bottom of {}", adding.join(", ")));
    }
    let bytes = (0..programs).map(|program| engine.blob_bytes(program));
    notes.push(format!("memory      {}", blob_memory(bytes)));
    notes
}

/// What a worker is made of.
pub struct WorkerParts<'a> {
    /// Its number.
    pub rank: usize,
    /// Its number among the workers of this process.
    pub seat: usize,
    /// What the run was told.
    pub settings: &'a Settings,
    /// Its crews, one a quadrant.
    pub crews: &'a [CrewSpec],
    /// How the machine was cut.
    pub machine: &'a Crews,
    /// Forced implementations.
    pub kernels: &'a [(String, String)],
    /// How nets are rewritten for devices.
    pub rewriting: Rewriting<'a>,
    /// Training.
    pub train: &'a PhaseJob,
    /// The tests.
    pub tests: &'a [TestJob],
    /// The first iteration.
    pub first: u64,
    /// The state to start from.
    pub state: &'a WorkerState,
}

impl Worker {
    /// Makes devices with memory on these nodes, and data; the exchange comes with [`Worker::exchange`] later.
    pub fn new(parts: &WorkerParts<'_>, draft: Draft, homes: &[Homes]) -> Result<Self, Failure> {
        let settings = parts.settings;
        let Draft { nets, test_nets, plans, forward, mapped, pool } = draft;
        let engine = mapped.place(homes)?;
        memory::check(&engine, parts.machine)?;
        let mut notes = notes(&engine, &nets[0], 1 + test_nets.len());
        notes.push(settings.scheduling.describe(&plans.gradients));
        notes.extend(pool);
        let first = parts.first.saturating_mul(settings.solver.iter_size);
        let draw = Draw::Train { seed: settings.seed, rank: parts.rank, workers: settings.workers };
        let places = parts.machine.places.get(parts.seat).cloned().unwrap_or_default();
        let batches = parts.train.feed.start(draw, parts.train.batch, first, places.readers())?;
        let testers = parts.tests.iter().zip(test_nets).zip(forward).enumerate();
        let testers = testers.map(|(index, ((test, nets), forward))| Tester {
            pass: Pass::new(nets, engine.devices(1 + index)),
            forward,
            times: StepTimes::default(),
            test: test.clone(),
        });
        let len = nets[0].params.len();
        let overlaps = engine.devices(0).iter().all(Device::tells_tasks);
        let overlap = plans.overlap(&nets).filter(|_| overlaps);
        let trace = settings.scheduling.traced.map(|iterations| {
            let (rank, nets, overlap, engine) = (parts.rank, &nets, overlap.as_ref(), &engine);
            let (plans, steps) = (&plans.all(), settings.solver.iter_size + 1);
            Trace::new(&Traced { rank, nets, plans, overlap, engine, iterations, steps })
        });
        trace.iter().for_each(Trace::begin);
        let ahead = overlap.map(StepsAhead::new);
        let worker = Self {
            rank: parts.rank,
            seat: parts.seat,
            pass: Pass::new(nets, engine.devices(0)),
            plans,
            times: StepTimes::default(),
            ahead,
            batches,
            losses: Vec::with_capacity(settings.solver.iter_size.min(MOST_LOSSES) as usize),
            exchange: Exchange::Alone,
            watch: Watch::new(settings.on_nonfinite, &[]),
            leaves_out: false,
            pace: Pace::Real,
            clock: Clock::default(),
            trace,
            course: parts.state.course.clone(),
            places,
            testers: testers.collect(),
            engine,
            aside: vec![0.0; if parts.tests.is_empty() { 0 } else { len }],
            workers: settings.workers,
            histories: settings.solver.rule.kind.histories(),
            shown: Vec::new(),
            notes,
        };
        worker.pass.write_all(Region::Packed(Packed::Weights), &parts.state.arrays.weights)?;
        worker.pass.write_all(Region::Packed(Packed::Histories), &parts.state.arrays.history)?;
        worker.put_kept(&parts.state.kept)?;
        Ok(worker)
    }

    /// The passes with what stands before the names of their states.
    fn passes(&self) -> impl Iterator<Item = (String, &Pass)> {
        let tests = self.testers.iter().enumerate();
        let tests = tests.map(|(index, tester)| (format!("test{index}/"), &tester.pass));
        std::iter::once(("train/".to_owned(), &self.pass)).chain(tests)
    }

    /// The states that layers keep from step to step.
    fn kept(&self) -> Result<Tensors, Failure> {
        let mut kept = Tensors::new();
        for (prefix, pass) in self.passes() {
            kept.extend(pass.kept()?.into_iter().map(|(name, state)| (format!("{prefix}{name}"), state)));
        }
        Ok(kept)
    }

    /// Gives layers the states that they kept, where a snapshot has them: other tests than before begin anew.
    fn put_kept(&self, kept: &Tensors) -> Result<(), Failure> {
        for (prefix, pass) in self.passes() {
            let own = kept.iter().filter_map(|(name, state)| Some((name.strip_prefix(&prefix)?, state)));
            let own: Tensors = own.map(|(name, state)| (name.to_owned(), state.clone())).collect();
            if !own.is_empty() && !pass.put_kept(&own)? {
                let message =
                    "the states that layers keep are of another cut into quadrants or size of mini-batch";
                return Err(Failure::new(Code::Data, format!("this snapshot does not fit: {message}")));
            }
        }
        Ok(())
    }

    /// Finds the gradients of an iteration: those of each of its mini-batches, added up, and what other workers have to say.
    /// Returns the mean loss. Without a plan of its own the update is done, too.
    ///
    /// # Errors
    /// Also if something is not finite and the run cannot go on with that.
    pub fn find_gradients(&mut self, settings: &Settings, scalars: &Scalars) -> Result<f32, Failure> {
        let parts = settings.solver.iter_size;
        let known = self.watch.leaves_out(scalars.iteration);
        let mut found = None;
        self.losses.clear();
        for part in 0..parts {
            if part == 0 {
                let pull = settings.exchanges_in(scalars.iteration).then_some(scalars.elastic);
                self.clock.note(self.exchange.start(&self.pass, &self.pace, pull)?);
            }
            self.load()?;
            self.exchange.proceed();
            // Every mini-batch draws numbers of its own.
            let drawn = scalars.iteration.saturating_mul(parts).saturating_add(part);
            let scalars = Scalars { seed: step_seed(settings.seed, self.rank as u32, drawn), ..*scalars };
            let last = part + 1 == parts;
            // Nothing leaves before it is looked at, where that was asked for.
            let leaves = last && found.is_none() && !self.watch.is_close();
            self.compute(settings, &scalars, last, leaves)?;
            let loss = self.pass.loss()?;
            self.losses.push(loss);
            let looks_closely = last && self.watch.is_close();
            let sound =
                loss.is_finite() && (!looks_closely || nonfinite::is_finite(&self.pass, Packed::Gradients)?);
            if !sound && !known && found.is_none() {
                self.finish_steps()?;
                self.batches.load_again(&self.pass)?;
                found = Some(nonfinite::first(&self.pass, self.plans.of_part(last), &scalars)?);
            }
        }
        self.note_transfers();
        let at = Moment { rank: self.rank, iteration: scalars.iteration, rate: scalars.rate };
        if let Some(found) = &found {
            self.watch.judge(at, &self.losses, found)?;
            self.tell(format!("note        {}", found.left_out(at)));
        }
        let vote = self.watch.is_close().then_some(known || found.is_some());
        let begin = Instant::now();
        let (spent, leaves_out) = self.exchange.finish(&self.pass, &self.pace, vote)?;
        self.clock.note(spent);
        if let Some(trace) = &mut self.trace {
            trace.phase("communication", begin, begin.elapsed());
        }
        self.leaves_out = leaves_out;
        self.watch.note(at, leaves_out)?;
        Ok(self.losses.iter().sum::<f32>() / parts as f32)
    }

    /// Hands the next mini-batch over, unless that was done beside the step before.
    fn load(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        let loaded = self.pace.load(|| self.batches.load(&self.pass))?;
        self.clock.data_wait += loaded.waited;
        self.clock.data_copy += loaded.copied;
        self.clock.data_copied_beside += loaded.hidden;
        if let Some(trace) = &mut self.trace {
            trace.phase("data_wait", begin, loaded.waited);
            trace.phase("data_copy", begin + loaded.waited, loaded.copied);
        }
        Ok(())
    }

    /// Forward and backward of a mini-batch, the `last` of the iteration or an earlier one. Beside it the next mini-batch is
    /// handed over, and what it found `leaves` if the method lets it.
    fn compute(
        &mut self,
        settings: &Settings,
        scalars: &Scalars,
        last: bool,
        leaves: bool,
    ) -> Result<(), Failure> {
        let shows = self.shows(settings, scalars.iteration);
        if shows {
            self.finish_steps()?;
        }
        let plan = self.plans.of_part(last);
        let (pass, times, shown, batches) = (&self.pass, &mut self.times, &mut self.shown, &mut self.batches);
        let (mut loaded, mut left) = (Ok(None), Ok(()));
        let exchange = &mut self.exchange;
        let gone = if leaves { exchange.first_share() } else { 1.0 };
        let leaves = leaves && self.pace.is_real();
        let mut load_ahead = || {
            let start = Instant::now();
            loaded = batches.load_ahead(pass).map(|()| Some((start, start.elapsed())));
        };
        let (begin, start) = (Instant::now(), self.pace.now());
        let steps = &mut self.ahead;
        self.pace.compute(gone, || match steps {
            // It runs a step for each task.
            _ if shows => debug::run(pass, plan, scalars, times, shown),
            Some(steps) => Ok(steps.run(&pass.devices, plan, scalars, load_ahead)?),
            None => Ok(run_step_beside(&pass.devices, plan, scalars, times, |step| {
                load_ahead();
                if leaves {
                    left = exchange.beside(pass, step);
                }
            })?),
        })?;
        left?;
        let ended_virtually = self.exchange.beside_virtually(&self.pass, &self.pace, gone)?;
        let took = self.pace.now().since(start);
        self.pace.end_iteration();
        let loaded = loaded?.filter(|_| self.pace.is_real());
        self.clock.data_copied_beside += loaded.map_or(Duration::ZERO, |(_, took)| took);
        let ended = self.ahead.as_ref().map_or(&self.times, StepsAhead::ended);
        let last_task = ended.spans().iter().map(|span| span.end).max().unwrap_or(0);
        let computed = At::Real(self.engine.origin() + Duration::from_nanos(last_task));
        let (spent, exchanges) = self.exchange.spent_beside(ended_virtually.unwrap_or(computed));
        self.clock.note(spent);
        let computing = took.saturating_sub(spent.waited);
        self.clock.computing += computing;
        if let Some(trace) = self.trace.as_mut().filter(|_| !shows) {
            trace.phase("forward_backward", begin, computing);
            trace.phase("communication", begin + computing, spent.waited);
            trace.exchanged_beside(exchanges);
            if let Some((begin, took)) = loaded {
                trace.beside("data_copy", begin, took);
            }
            trace.step(plan.stage, ended);
        }
        Ok(())
    }

    /// Says a line, through the first worker's progress if it is this one's.
    fn tell(&mut self, line: String) {
        match self.rank {
            0 => self.shown.push(line),
            _ => output::note(&line),
        }
    }

    /// Takes the loss of an iteration into account, which may change its rate. A rate that follows the loss follows that of
    /// all workers, and they have the same rate. Returns the smoothed loss.
    pub fn note_loss(&mut self, settings: &Settings, iteration: u64, loss: f32) -> Result<f32, Failure> {
        // That of an iteration that is left out says nothing.
        let mut loss = [if loss.is_finite() { loss } else { self.course.loss.mean() }];
        if settings.solver.rate_follows_loss() {
            self.exchange.sum(&mut loss)?;
            loss[0] /= self.workers as f32;
        }
        let smoothed = self.course.loss.note(loss[0]);
        settings.solver.note_loss(&mut self.course.plateau, iteration, smoothed);
        Ok(smoothed)
    }

    /// Runs the update if it was no part of the plan that found the gradients, or lets whoever takes steps for all do so,
    /// unless it is left out.
    pub fn update(&mut self, settings: &Settings, scalars: &Scalars) -> Result<(), Failure> {
        if self.leaves_out {
            return Ok(());
        }
        if let Some(spent) = self.exchange.step(&self.pass, &self.pace, scalars.rate)? {
            self.clock.note(spent);
            return Ok(());
        }
        let shows = self.shows(settings, scalars.iteration);
        let (pass, times, shown) = (&self.pass, &mut self.times, &mut self.shown);
        let begin = Instant::now();
        let took = self.pace.update(|| match &self.plans.update {
            Some(update) if shows => debug::run(pass, update, scalars, times, shown),
            Some(update) => Ok(run_step(&pass.devices, update, scalars, times)?),
            None => Ok(()),
        })?;
        self.clock.updates += took;
        if let (Some(trace), Some(update), false) = (&mut self.trace, &self.plans.update, shows) {
            trace.phase("worker_update", begin, took);
            trace.step(update.stage, &self.times);
        }
        Ok(())
    }

    /// Whether the first worker shows all arrays in an iteration.
    fn shows(&self, settings: &Settings, iteration: u64) -> bool {
        settings.solver.debug_info && self.rank == 0 && settings.displays(iteration)
    }

    /// Notes how long the quadrants moved gradients in the last step that has ended.
    fn note_transfers(&mut self) {
        let ended = self.ahead.as_ref().map_or(&self.times, StepsAhead::ended);
        let spans = self.plans.gradients.nodes.iter().zip(ended.spans());
        let transfers = spans.filter(|(n, _)| {
            n.device.0 == 0 && matches!(n.task.sub, SubTask::Accumulate | SubTask::Broadcast)
        });
        self.clock.transfers += Duration::from_nanos(transfers.map(|(_, span)| span.end - span.start).sum());
    }

    /// Waits for what the last iteration has left to do. Tests and whatever ends a training come behind it.
    ///
    /// # Errors
    /// If a device fails.
    pub fn finish_steps(&mut self) -> Result<(), Failure> {
        let Some(steps) = &mut self.ahead else { return Ok(()) };
        let runs = steps.is_running();
        steps.finish(&self.pass.devices)?;
        if let Some(trace) = self.trace.as_mut().filter(|_| runs) {
            trace.step(self.plans.gradients.stage, steps.ended());
        }
        Ok(())
    }

    /// The worker's state after an iteration; every worker calls this.
    pub fn state(&mut self) -> Result<WorkerState, Failure> {
        self.finish_steps()?;
        let len = self.pass.nets[0].params.len();
        let histories = self.histories * len;
        let course = self.course.clone();
        let mut arrays = WorkerArrays { weights: vec![0.0; len], history: vec![0.0; histories] };
        self.pass.read(Region::Packed(Packed::Weights), &mut arrays.weights)?;
        self.pass.read(Region::Packed(Packed::Histories), &mut arrays.history)?;
        self.exchange.adopt(&self.pass, &mut arrays)?;
        Ok(WorkerState { arrays: Arc::new(arrays), kept: self.kept()?, course })
    }

    /// The weights that count, on every worker; every worker calls this.
    pub fn result(&mut self) -> Result<Vec<f32>, Failure> {
        let mut weights = vec![0.0; self.pass.nets[0].params.len()];
        self.exchange.result(&self.pass, &mut weights)?;
        Ok(weights)
    }

    /// The outputs of the last mini-batch.
    pub fn outputs(&self) -> Result<Vec<Output>, Failure> {
        let mut outputs = self.pass.outputs();
        let mut values = vec![0.0; outputs.len()];
        self.pass.add_outputs(&mut values)?;
        outputs.iter_mut().zip(values).for_each(|(output, value)| output.value = value);
        Ok(outputs)
    }

    /// How many networks there are to test.
    pub fn tests(&self) -> usize {
        self.testers.len()
    }

    /// Whether the first of the tests has an accuracy.
    pub fn tests_accuracy(&self) -> bool {
        self.testers.first().is_some_and(|tester| tester.accuracy_output().is_some())
    }

    /// Waits until all workers are where this one is. What others still have to do is training, not testing: under Original
    /// EASGD the turns of the iteration that this worker has behind it.
    fn meet(&mut self) -> Result<(), Failure> {
        if self.workers == 1 {
            return Ok(());
        }
        let start = self.pace.now();
        self.exchange.sum(&mut [0.0])?;
        let waited = self.pace.now().since(start);
        self.clock.training += waited;
        self.clock.note(self.exchange.meeting(waited));
        Ok(())
    }

    /// Tests the weights that count with one of the networks, each worker on its share of the mini-batches. Every worker
    /// calls this; all get the same means. `None`, for all of them, if one has left it because the run is to stop.
    ///
    /// # Panics
    /// If there is no such network.
    pub fn test(
        &mut self,
        index: usize,
        stop: &StopAgreement,
    ) -> Result<Option<(Vec<Output>, TestResult)>, Failure> {
        self.meet()?;
        let start = self.pace.now();
        self.finish_steps()?;
        let weights = self.result()?;
        let tester = &mut self.testers[index];
        let batches = tester.test.batches;
        self.pass.read(Region::Packed(Packed::Weights), &mut self.aside)?;
        self.pass.write_all(Region::Packed(Packed::Weights), &weights)?;
        let mut outputs = tester.pass.outputs();
        // One more for the loss, and one for who has left.
        let mut sums = vec![0.0; outputs.len() + 1];
        let whole =
            tester.run(batches, [self.rank as u64, self.workers as u64], &self.places, stop, &mut sums)?;
        self.pass.write_all(Region::Packed(Packed::Weights), &self.aside)?;
        sums.push(if whole { 0.0 } else { 1.0 });
        self.exchange.sum(&mut sums)?;
        self.clock.testing += self.pace.now().since(start);
        if sums.pop().is_some_and(|left| left > 0.0) {
            return Ok(None);
        }
        sums.iter_mut().for_each(|sum| *sum /= batches.max(1) as f32);
        let has_loss = tester.pass.nets[0].losses().next().is_some();
        let result = TestResult {
            accuracy: tester.accuracy_output().and_then(|i| sums.get(i).copied()),
            loss: sums.pop().filter(|_| has_loss),
        };
        outputs.iter_mut().zip(sums).for_each(|(output, mean)| output.value = mean);
        Ok(Some((outputs, result)))
    }
}
