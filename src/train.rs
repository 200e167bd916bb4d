//! `quadrille train`: the training loop, and what it needs around it.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};

use quadrille_comm::transport::Endpoint;
use quadrille_core::device::{Packed, Region, Scalars};
use quadrille_numa::Role;

use crate::announce::announce;
use crate::board::Records;
use crate::breakdown::{Breakdown, Clock};
use crate::bundled;
use crate::centre::Common;
use crate::cli::TrainArgs;
use crate::conclude::{conclude, gather_bad_records};
use crate::desk::{Binder, SnapshotDesk};
use crate::draft::Draft;
use crate::ends::{self, joined, telling};
use crate::exchange::{Exchange, peer_timeout};
use crate::failure::{Code, Failure};
use crate::identity::{configuration, fingerprint};
use crate::memory::{self, Placement};
use crate::nonfinite::{self, Mishaps, Moment, Watch};
use crate::output::set_style;
use crate::pace;
use crate::pool::Pools;
use crate::prepare::{Prepared, prepare};
use crate::progress::{Progress, Report, TestResult, Tested};
use crate::resume::Home;
use crate::settings::Settings;
use crate::signal::{self, StopAgreement, Wall};
use crate::trace::{self, Trace};
use crate::worker::{Worker, WorkerParts};
use crate::world::World;

/// How a training ended.
struct End {
    /// Iterations that are done.
    iterations: u64,
    /// The test that reached the accuracy that was asked for, after which nothing is left to do.
    reached: Option<TestResult>,
}

/// THE training loop, as every worker runs it.
fn train(worker: &mut Worker, run: &Run<'_>, mut progress: Option<&mut Progress>) -> Result<End, Failure> {
    let settings = run.settings;
    let mut iteration = run.first;
    while iteration < settings.solver.max_iter && !run.stop.stops_before(iteration) {
        if worker.seat == 0 {
            run.desk.look()?;
        }
        if settings.tests_before(iteration) {
            let (found, whole) = test(worker, run, iteration, progress.as_deref_mut())?;
            if settings.is_reached(found) {
                return Ok(End { iterations: iteration, reached: Some(found) });
            }
            if !whole {
                // All have left it, so all end here; whoever goes on from here begins with this test.
                return Ok(End { iterations: iteration, reached: None });
            }
        }
        let done = step(worker, run, iteration, progress.as_deref_mut());
        done.inspect_err(|failure| run.mishaps.note(failure, iteration))?;
        iteration += 1;
    }
    Ok(End { iterations: iteration, reached: None })
}

/// One iteration of a worker, and what is told and stored behind it.
fn step(
    worker: &mut Worker,
    run: &Run<'_>,
    iteration: u64,
    progress: Option<&mut Progress>,
) -> Result<(), Failure> {
    let settings = run.settings;
    let (start, before) = (worker.pace.now(), worker.clock);
    let rate = settings.solver.rate(iteration, &worker.course.plateau);
    let elastic = if settings.exchanges_in(iteration) { rate * settings.rho } else { 0.0 };
    let scalars = Scalars { iteration, rate, elastic, ..Scalars::default() };

    let loss = worker.find_gradients(settings, &scalars)?;
    let smoothed = worker.note_loss(settings, iteration, loss)?;
    let rate = settings.solver.rate(iteration, &worker.course.plateau);
    // The centre has moved by the pull that was known when the exchange began, and so does the worker.
    worker.update(settings, &Scalars { rate, ..scalars })?;
    if settings.on_nonfinite.is_close() || settings.displays(iteration) {
        worker.finish_steps()?;
        nonfinite::check_weights(&worker.pass, Moment { rank: worker.rank, iteration, rate })?;
    }

    worker.clock.training += worker.pace.now().since(start);
    worker.trace.iter_mut().for_each(Trace::iteration);
    if run.verifies && iteration == run.first {
        let quadrants = worker.pass.devices.len();
        memory::verify(&worker.engine, worker.seat * quadrants)?;
    }
    if let Some(progress) = progress {
        worker.shown.drain(..).for_each(|line| progress.say(&line));
        let shows = progress.shows_outputs(iteration);
        let outputs = if shows { worker.outputs()? } else { Vec::new() };
        let (losses, seconds) = (worker.losses.as_slice(), worker.clock.training.as_secs_f64());
        let (outputs, time) = (outputs.as_slice(), worker.clock.since(&before));
        let time = Breakdown::new(&time, settings.method);
        progress.iteration(Report { iteration, loss, losses, smoothed, rate, seconds, time, outputs })?;
    }
    if settings.leaves_snapshot_after(iteration + 1) {
        leave_snapshot(worker, run, iteration + 1)?;
    }
    Ok(())
}

/// What all workers of a run share.
pub struct Run<'a> {
    /// What the run was told.
    pub settings: &'a Settings,
    /// The iteration at which it begins.
    pub first: u64,
    /// Whether the system is asked where memory and threads are.
    verifies: bool,
    stop: Arc<StopAgreement>,
    /// The processes.
    pub world: Arc<World>,
    /// Where snapshots are left.
    pub desk: &'a SnapshotDesk,
    common: Common,
    /// What was not finite before.
    pub mishaps: &'a Mishaps,
}

/// What a worker ends with.
pub struct Outcome {
    /// Iterations that are done.
    pub iterations: u64,
    /// Whether it went on as long as it was to: to the last iteration, or to the accuracy that was asked for.
    pub complete: bool,
    /// Where its time went.
    pub clock: Clock,
    /// How many of its updates were left out.
    pub left_out: u64,
    /// The weights that count.
    pub result: Vec<f32>,
    /// What the last test found.
    pub test: TestResult,
    /// When the tasks of its first iterations ran.
    trace: Option<Trace>,
}

/// Tests with every network; the result is that of the first. A test is left when a signal comes, since it may take longer than
/// a batch system waits between its signals; whether all was tested is the second answer.
fn test(
    worker: &mut Worker,
    run: &Run<'_>,
    iteration: u64,
    mut progress: Option<&mut Progress>,
) -> Result<(TestResult, bool), Failure> {
    let mut first = None;
    for net in 0..worker.tests() {
        let Some((outputs, result)) = worker.test(net, &run.stop)? else {
            if let Some(progress) = progress {
                progress.say(&format!(
                    "note        the test at iteration {iteration} was left: the run is to stop"
                ));
            }
            return Ok((first.unwrap_or_default(), false));
        };
        first.get_or_insert(result);
        if let Some(progress) = progress.as_deref_mut() {
            let (nets, seconds) = (worker.tests(), worker.clock.training.as_secs_f64());
            let shows_loss = run.settings.solver.test_compute_loss;
            progress.test(Tested { iteration, net, nets, seconds, shows_loss }, &outputs, result)?;
        }
    }
    Ok((first.unwrap_or_default(), true))
}

fn leave_snapshot(worker: &mut Worker, run: &Run<'_>, iteration: u64) -> Result<(), Failure> {
    let state = worker.state()?;
    // Of replicas each has the weights that count.
    let centre = if run.settings.is_elastic() { Some(worker.result()?) } else { None };
    let counting = centre.as_deref().unwrap_or_default();
    let arrays = [&state.arrays.weights, &state.arrays.history, counting];
    nonfinite::check_arrays(&worker.pass.nets[0].params, worker.rank, iteration, &arrays)?;
    run.desk.leave(worker.rank, iteration, state, centre)
}

/// A worker's life: join, train, last test, last snapshot.
fn live(
    mut worker: Worker,
    run: &Run<'_>,
    transport: Endpoint,
    mut progress: Option<&mut Progress>,
) -> Result<Outcome, Failure> {
    worker.places.settle(Role::Main, 0);
    worker.watch = Watch::new(run.settings.on_nonfinite, &run.mishaps.known);
    if run.settings.workers > 1 {
        worker.exchange = Exchange::join(&run.common, &worker, transport)?;
    }
    let End { iterations, reached } = train(&mut worker, run, progress.as_deref_mut())?;
    worker.finish_steps()?;
    let len = worker.pass.nets[0].params.len();
    worker.pass.check_replicas(Region::Packed(Packed::Weights), len)?;
    // A snapshot may be of more iterations than are asked for now.
    let trained = reached.is_some() || iterations >= run.settings.solver.max_iter;
    let (test, is_tested) = match reached {
        None if trained && run.settings.solver.test_interval > 0 => {
            test(&mut worker, run, iterations, progress)?
        }
        reached => (reached.unwrap_or_default(), true),
    };
    // A last test that was left is made up for by whoever goes on from the snapshot.
    let complete = trained && is_tested;
    let left = iterations > run.first && run.settings.leaves_snapshot_after(iterations);
    if !left && (!complete || run.settings.solver.snapshot_after_train) {
        leave_snapshot(&mut worker, run, iterations)?;
    }
    let result = worker.result()?;
    worker.exchange.leave()?;
    nonfinite::check_arrays(&worker.pass.nets[0].params, worker.rank, iterations, &[&result])?;
    let left_out = worker.watch.left_out;
    Ok(Outcome { iterations, complete, clock: worker.clock, left_out, result, test, trace: worker.trace })
}

/// Trains, together with the other processes that were started with this one.
pub fn run(args: &TrainArgs) -> Result<(), Failure> {
    set_style(args.log_style);
    let timeout = peer_timeout(args.peer_timeout)?;
    let asked = signal::listen()?;
    let world = Arc::new(World::join(timeout, asked.clone())?);
    let wall = Wall::of_job(args.stop_margin, SystemTime::now());
    let stop = Arc::new(StopAgreement::new(asked, wall, world.clone()));
    let outcome = attempts(args, timeout, &stop, &world);
    drop(stop);
    match Arc::try_unwrap(world) {
        Ok(world) => world.close(outcome),
        Err(_) => Err(Failure::new(Code::Bug, "somebody still talks to other processes")),
    }
}

/// Trains, and goes back to a snapshot as often as something is not finite and that is wanted.
fn attempts(
    args: &TrainArgs,
    timeout: Duration,
    stop: &Arc<StopAgreement>,
    world: &Arc<World>,
) -> Result<(), Failure> {
    let (mut args, mut mishaps) = (args.clone(), Mishaps::default());
    args.solver = args.solver.or_else(|| args.model.as_deref().and_then(bundled::solver_file));
    loop {
        match attempt(&args, timeout, stop.clone(), world, &mishaps) {
            Ok(()) => return Ok(()),
            Err(failure) => args = mishaps.back(&args, failure)?,
        }
    }
}

/// Trains from where the flags say to the end, or to where something is not finite.
fn attempt(
    args: &TrainArgs,
    timeout: Duration,
    stop: Arc<StopAgreement>,
    world: &Arc<World>,
    mishaps: &Mishaps,
) -> Result<(), Failure> {
    let mut prepared = prepare(args, world)?;
    let (workers, placement) = make_workers(args, &prepared, world)?;
    if args.target_accuracy.is_some() && !workers[0].tests_accuracy() {
        let message = "--target-accuracy: the network that is tested has no Accuracy layer";
        return Err(Failure::new(Code::Usage, message));
    }
    let trace_to = trace::open(args.tracing.trace.as_deref(), world.leads())?;
    world.settle(&workers[0].places);
    let home = world.leads().then(|| prepared.start.open_home(args, &prepared.net.name, &prepared.settings));
    let home = home.transpose()?;
    let (first, arrays) = (prepared.start.state.iteration, prepared.start.common_arrays());
    let settings = &prepared.settings;
    if let Some(home) = &home {
        let stops = stop.line(args.stop_margin.is_some());
        announce(args, &prepared, home, placement.lines.iter().chain(&workers[0].notes).chain(&stops));
        home.folder.store_configuration(&format!("{:#}\n", configuration(&prepared)))?;
    }
    let binder = Binder {
        folder: home.as_ref().map(|home| home.folder.clone()),
        layout: prepared.net.params.clone(),
        about: prepared.about.clone(),
        keep: args.keep_snapshots,
        present: home.as_ref().and_then(|home| home.present),
    };
    if args.verify_placement {
        prepared.holdings().verify(placement.data)?;
    }
    let desk = SnapshotDesk::new(binder, workers.len(), world.clone());
    let common = Common::new(settings, &prepared.net, fingerprint(&prepared), first, arrays, world);
    if let Some(home) = &home {
        mishaps.note_folder(&home.folder);
    }
    let (desk, world) = (&desk, world.clone());
    let run = Run { settings, first, verifies: args.verify_placement, stop, world, desk, common, mishaps };
    let progress = |home: &Home| {
        let images = prepared.images_per_iteration();
        let records = Records::open(&home.folder, args.tensorboard, first, images)?;
        let solver = &settings.solver;
        Ok::<_, Failure>(Progress::new(
            records,
            first..solver.max_iter,
            home.seconds,
            solver.display,
            settings.label(),
            images,
        ))
    };
    let mut progress = home.as_ref().map(progress).transpose()?;
    let outcomes = live_together(workers, &run, timeout, progress.as_mut());
    // The others wait for this process; the snapshot that is being written may take longer.
    let outcomes = outcomes.map_err(|failure| run.world.warn(failure))?;
    if args.tracing.trace.is_some() {
        // What processes say of the last snapshot is text as timelines are.
        run.desk.settle()?;
        trace::gather(trace_to, outcomes.iter().filter_map(|o| o.trace.as_ref()), &run.world)?;
    }
    match &mut progress {
        Some(progress) => conclude(&prepared, &run, &outcomes, progress),
        None => {
            run.desk.finish()?;
            gather_bad_records(&prepared, &run.world)?;
            if outcomes[0].complete { Ok(()) } else { Err(Failure::new(Code::Stopped, "stopped")) }
        }
    }
}

/// Makes the workers once it is known where the memory of all of them goes, and says where.
fn make_workers(
    args: &TrainArgs,
    p: &Prepared<'_>,
    world: &World,
) -> Result<(Vec<Worker>, Placement), Failure> {
    let own = world.own(p.settings.workers);
    let parts: Vec<WorkerParts<'_>> = p
        .machine
        .workers
        .iter()
        .zip(own.clone().zip(&p.start.state.workers[own]))
        .enumerate()
        .map(|(seat, (crews, (rank, state)))| WorkerParts {
            rank,
            seat,
            settings: &p.settings,
            crews,
            machine: &p.machine,
            kernels: &args.machine.kernels,
            rewriting: p.rewriting,
            train: &p.train,
            tests: &p.tests,
            first: p.start.state.iteration,
            state,
        })
        .collect();
    let mut pools = Pools::new(p.settings.scheduling.pool);
    let drafts = parts.iter().map(|parts| Draft::new(parts, &mut pools)).collect::<Result<Vec<_>, _>>()?;
    let needs: Vec<_> = drafts.iter().zip(&parts).map(|(draft, parts)| draft.needs(parts)).collect();
    let data = p.holdings();
    let placement = memory::plan(&p.machine, &needs, &data)?;
    data.settle(placement.data);
    let workers = parts.iter().zip(drafts).zip(&placement.homes);
    let workers = workers.map(|((parts, draft), homes)| Worker::new(parts, draft, homes));
    Ok((workers.collect::<Result<_, _>>()?, placement))
}

/// Runs every worker in a thread of its own, and those who serve them beside them. If one fails the others lose a
/// peer and end, too; the failure that came first is the one that is told.
fn live_together(
    mut workers: Vec<Worker>,
    run: &Run<'_>,
    timeout: Duration,
    mut progress: Option<&mut Progress>,
) -> Result<Vec<Outcome>, Failure> {
    let servants = run.common.servants();
    let mut transports = match &run.settings.machine {
        None => run.world.endpoints(run.settings.workers, servants, timeout),
        Some(machine) => pace::connect(machine, run.settings.method, &mut workers, servants > 0),
    };
    workers[0].pace.describe().iter().for_each(|line| say!("            {line}"));
    // The servants are where the first worker is.
    let servants = transports.split_off(workers.len());
    let place = workers[0].places.clone();
    let refused = |error| Failure::new(Code::Environment, format!("cannot start a worker: {error}"));
    let (tell, told) = channel();
    let (served, results) = std::thread::scope(|scope| {
        let serve = |transport: Endpoint| {
            let (tell, place) = (tell.clone(), place.clone());
            let serve = move || {
                place.settle(Role::Comm, 0);
                telling(&tell, run.common.serve(transport))
            };
            std::thread::Builder::new().name("master".to_owned()).spawn_scoped(scope, serve)
        };
        let served: Vec<_> = servants.into_iter().map(serve).collect();
        let handles: Vec<_> = workers
            .into_iter()
            .zip(transports)
            .map(|(worker, transport)| {
                let progress = progress.take();
                let thread = std::thread::Builder::new().name(format!("worker {}", worker.rank));
                let tell = tell.clone();
                thread.spawn_scoped(scope, move || telling(&tell, live(worker, run, transport, progress)))
            })
            .collect();
        drop(tell);
        // A run that is to go back does so once all have ended what they compute, however long an iteration is.
        let goes_back = |failure: &Failure| run.settings.on_nonfinite.goes_back_over(failure);
        let patience =
            |failure: &Failure| if goes_back(failure) { timeout + ends::GRACE } else { ends::GRACE };
        if let Some((failure, waited)) = ends::wait_for_all(&told, patience) {
            let failure = run.world.warn(failure);
            let _ = run.desk.finish();
            ends::leave_behind(&failure, waited, &run.world);
        }
        let results = handles.into_iter().map(|handle| handle.map_err(refused).and_then(joined));
        let results: Vec<Result<Outcome, Failure>> = results.collect();
        let served = served.into_iter().map(|handle| handle.map_err(refused).and_then(joined));
        (served.collect::<Vec<Result<(), Failure>>>(), results)
    });
    let failures = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .chain(served.iter().filter_map(|served| served.as_ref().err()));
    match failures.min_by_key(|failure| failure.remoteness()).cloned() {
        Some(failure) => Err(failure),
        None => results.into_iter().collect(),
    }
}
