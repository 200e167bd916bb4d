//! `quadrille train`: the training loop, and what it needs around it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quadrille_comm::handshake::Fingerprint;
use quadrille_comm::transport::threads::{ThreadTransport, endpoints};
use quadrille_core::device::{Packed, Region, Scalars};
use quadrille_core::net::{Net, Phase};
use quadrille_core::rng::step_seed;
use quadrille_core::run::run_step;
use quadrille_io::{IoError, RunFolder, weights_hash};
use serde_json::{Value, json};

use crate::bundled;
use crate::cli::TrainArgs;
use crate::exchange::{Exchange, fingerprint_of, peer_timeout};
use crate::failure::{Code, Failure};
use crate::job::{
    Crews, PhaseJob, Rewriting, Samples, check_same_parameters, crews, load_net, load_solver, no_data,
    say_bad_records,
};
use crate::progress::{Clock, Progress, Report, TestResult, six_digits};
use crate::settings::Settings;
use crate::signal::StopAgreement;
use crate::state::{RunState, SnapshotDesk, WorkerState, read_weights, write_caffemodel};
use crate::worker::{Worker, WorkerParts};

/// THE training loop, as every worker runs it. Returns the iterations that are done.
fn train(worker: &mut Worker, run: &Run<'_>, mut progress: Option<&mut Progress>) -> Result<u64, Failure> {
    let settings = run.settings;
    let mut iteration = run.first;
    while iteration < settings.solver.max_iter && !run.stop.stops_before(iteration, worker.rank) {
        if settings.tests_before(iteration) {
            test(worker, settings, iteration, progress.as_deref_mut())?;
        }
        let start = Instant::now();
        let rate = settings.rate(iteration);
        let seed = step_seed(settings.seed, worker.rank as u32, iteration);
        let scalars = Scalars { iteration, rate, elastic: rate * settings.rho, seed };

        let batch = worker.batches.next_batch()?;
        worker.clock.data += start.elapsed();
        worker.pass.load(&batch.data, &batch.labels)?;
        worker.exchange.start(&worker.pass, scalars.elastic)?;
        run_step(&worker.pass.devices, &worker.plans.gradients, &scalars, &mut worker.times)?;
        worker.note_transfers();
        worker.clock.waiting += worker.exchange.finish(&worker.pass)?;
        worker.update(&scalars)?;

        worker.batches.recycle(batch);
        let loss = worker.pass.loss()?;
        worker.clock.training += start.elapsed();
        if !loss.is_finite() {
            return Err(not_finite(worker.rank, iteration, loss, rate));
        }
        if let Some(progress) = progress.as_deref_mut() {
            let seconds = worker.clock.training.as_secs_f64();
            progress.iteration(Report { iteration, loss, rate, seconds })?;
        }
        iteration += 1;
        if settings.solver.snapshot > 0 && iteration.is_multiple_of(settings.solver.snapshot) {
            leave_snapshot(worker, run, iteration)?;
        }
    }
    Ok(iteration)
}

/// What all workers of a run share.
struct Run<'a> {
    settings: &'a Settings,
    first: u64,
    stop: Arc<StopAgreement>,
    desk: &'a SnapshotDesk<'a>,
    fingerprint: Fingerprint,
}

/// What a worker ends with.
struct Outcome {
    iterations: u64,
    clock: Clock,
    result: Vec<f32>,
    test: TestResult,
}

fn not_finite(rank: usize, iteration: u64, loss: f32, rate: f32) -> Failure {
    Failure::new(
        Code::NotFinite,
        format!(
            "the loss of worker {rank} in iteration {iteration} is {loss} (learning rate {rate}); \
             nothing was written after the last snapshot\n  hint: lower base_lr, or look for bad values in the data"
        ),
    )
}

fn test(
    worker: &mut Worker,
    settings: &Settings,
    iteration: u64,
    progress: Option<&mut Progress>,
) -> Result<TestResult, Failure> {
    let (outputs, result) = worker.test(settings.solver.test_iter)?;
    if let Some(progress) = progress.filter(|_| worker.has_test()) {
        progress.test(iteration, worker.clock.training.as_secs_f64(), &outputs, result)?;
    }
    Ok(result)
}

fn leave_snapshot(worker: &mut Worker, run: &Run<'_>, iteration: u64) -> Result<(), Failure> {
    let (state, result) = (worker.state()?, worker.result()?);
    check_finite(worker.rank, iteration, &[&state.weights, &state.history, &result])?;
    run.desk.leave(worker.rank, iteration, state, &result)
}

/// Weights that are not finite are worth no snapshot: whoever went on from it would fail at once.
fn check_finite(rank: usize, iteration: u64, arrays: &[&[f32]]) -> Result<(), Failure> {
    if arrays.iter().all(|array| array.iter().all(|value| value.is_finite())) {
        return Ok(());
    }
    Err(Failure::new(
        Code::NotFinite,
        format!(
            "worker {rank}: weights are not finite after {iteration} iterations; no snapshot was written of them\n  \
             hint: lower base_lr"
        ),
    ))
}

/// A worker's life: join, train, last test, last snapshot.
fn live(
    mut worker: Worker,
    run: &Run<'_>,
    transport: ThreadTransport,
    mut progress: Option<&mut Progress>,
    centre: Vec<f32>,
) -> Result<Outcome, Failure> {
    if run.settings.workers > 1 {
        worker.exchange = Exchange::join(run.settings.method, transport, run.fingerprint, centre)?;
    }
    let iterations = train(&mut worker, run, progress.as_deref_mut())?;
    let len = worker.pass.nets[0].params.len();
    worker.pass.check_replicas(Region::Packed(Packed::Weights), len)?;
    let stopped = iterations < run.settings.solver.max_iter;
    let test = if stopped || run.settings.solver.test_interval == 0 {
        TestResult::default()
    } else {
        test(&mut worker, run.settings, iterations, progress)?
    };
    if stopped || run.settings.solver.snapshot_after_train {
        leave_snapshot(&mut worker, run, iterations)?;
    }
    let result = worker.result()?;
    check_finite(worker.rank, iterations, &[&result])?;
    Ok(Outcome { iterations, clock: worker.clock, result, test })
}

/// Everything that is decided before the first worker starts.
struct Prepared<'a> {
    settings: Settings,
    train: PhaseJob,
    test: Option<PhaseJob>,
    machine: Crews,
    net: Net,
    state: RunState,
    /// What a snapshot must have in common with the run that goes on from it.
    identity: BTreeMap<String, String>,
    /// How nets are rewritten for devices.
    rewriting: Rewriting<'a>,
    lines: Vec<String>,
}

/// Where the samples come from.
fn samples(args: &TrainArgs) -> Result<Samples<'_>, Failure> {
    let (made_up, shape) = (args.made_up.dummy_data, args.made_up.shape);
    let conflict = |message: &str| Err(Failure::new(Code::Usage, message));
    if made_up && args.data.is_some() {
        return conflict("--dummy-data: data that is made up does not come from the folder of --data");
    }
    if shape.is_some() && !made_up {
        return conflict("--data-shape: only data that is made up (--dummy-data) can have any shape");
    }
    Ok(Samples { folder: args.data.as_deref(), made_up, shape, tolerance: args.bad_record })
}

fn prepare(args: &TrainArgs) -> Result<Prepared<'_>, Failure> {
    let solver = load_solver(args.solver.as_deref())?;
    let settings = Settings::new(solver, args)?;
    let named = args.solver.as_deref().map(|path| (path, &settings.solver));
    let (spec, file) = load_net(args.model.as_deref(), named)?;
    let data = samples(args)?;
    let train = PhaseJob::open(&spec, Phase::Train, &file, data, args.batch)?;
    let train = train.ok_or_else(|| no_data(&spec, Phase::Train))?;
    let test = match settings.solver.test_interval {
        0 => None,
        _ => PhaseJob::open(&spec, Phase::Test, &file, data, None)?,
    };
    if let Some(test) = &test {
        check_same_parameters(&train, test)?;
    }
    let smallest = test.as_ref().map_or(train.batch, |t| t.batch.min(train.batch));
    let machine = crews(&args.machine, settings.workers, smallest)?;
    let net = train.nets(1)?.swap_remove(0);
    let mut lines = Vec::new();
    let identity = identity(&settings, &train, &net, &machine);
    let state = initial_state(args, &settings, &net, &identity, &mut lines)?;
    let rewriting = Rewriting::new(&args.machine, machine.numerics, settings.workers);
    Ok(Prepared { settings, train, test, machine, net, state, identity, rewriting, lines })
}

/// What decides which samples a run sees, what its state means, and in which order its sums are formed.
fn identity(settings: &Settings, train: &PhaseJob, net: &Net, machine: &Crews) -> BTreeMap<String, String> {
    let layers: Vec<_> = net.layers.iter().map(|l| (&l.name, &l.layer)).collect();
    [
        ("list of layers", format!("{:016x}", fingerprint_of(&format!("{layers:?}")))),
        ("method", settings.method_name().to_owned()),
        ("seed", settings.seed.to_string()),
        ("batch", train.batch.to_string()),
        ("quadrants", machine.workers[0].len().to_string()),
        ("data", train.dataset.hash().to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn initial_state(
    args: &TrainArgs,
    settings: &Settings,
    net: &Net,
    identity: &BTreeMap<String, String>,
    lines: &mut Vec<String>,
) -> Result<RunState, Failure> {
    if let Some(path) = &args.snapshot {
        lines.push(format!("start       snapshot {}", path.display()));
        return RunState::read(path, &net.params, settings.workers, identity);
    }
    let mut weights = vec![0.0; net.params.len()];
    net.params.fill(settings.seed, &mut weights);
    if let Some(path) = &args.weights {
        let missing = read_weights(path, &net.params, &mut weights)?;
        lines.push(format!("start       weights of {}", path.display()));
        if !missing.is_empty() {
            lines.push(format!("            not in the file, so filled anew: {}", missing.join(" ")));
        }
    }
    let history = vec![0.0; weights.len()];
    let state = WorkerState { weights: weights.clone(), history };
    Ok(RunState { iteration: 0, result: weights, workers: vec![state; settings.workers] })
}

/// The folder of the run: the one that was asked for, or the first free `runs/NAME-NUMBER`.
fn run_folder(asked: Option<&Path>, name: &str, goes_on: bool) -> Result<RunFolder, Failure> {
    if let Some(path) = asked {
        return Ok(if goes_on { RunFolder::open(path)? } else { RunFolder::create(path)? });
    }
    let name: String =
        name.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let name = if name.is_empty() { "net".to_owned() } else { name };
    let runs = Path::new("runs");
    let cannot = |source| IoError::CannotCreate { path: runs.to_owned(), what: "the folder of runs", source };
    std::fs::create_dir_all(runs).map_err(cannot)?;
    // Made here, not only looked for: of two runs that start at once, each gets a folder of its own.
    for number in 1.. {
        let path = runs.join(format!("{name}-{number}"));
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot(error).into()),
            Ok(()) => return Ok(RunFolder::create(&path)?),
        }
    }
    Err(Failure::new(Code::Environment, "every number of a run folder is taken"))
}

/// The first lines: what the run decided, and why.
fn announce(args: &TrainArgs, p: &Prepared<'_>, folder: &RunFolder, kernels: &[String]) {
    let solver = args
        .solver
        .as_deref()
        .map_or(format!("{} (bundled)", bundled::SOLVER_NAME), |s| s.display().to_string());
    say!("solver      {solver}");
    say!("network     {} ({}): {} parameters", p.net.name, p.net.file, p.net.params.values());
    say!(
        "data        {}: {} images {}x{}x{}, mini-batches of {} for each worker",
        p.train.dataset.name(),
        p.train.dataset.len(),
        p.train.dataset.sample()[0],
        p.train.dataset.sample()[1],
        p.train.dataset.sample()[2],
        p.train.batch
    );
    let settings = &p.settings;
    let why = if settings.workers == 1 {
        "one worker, nobody to exchange with".to_owned()
    } else {
        settings.method.reference().to_owned()
    };
    say!("method      {}: {why}", settings.method_name());
    if args.workers.is_none() && settings.workers > 1 {
        say!("            the bundled demonstration uses {} workers; --workers 1 for one", settings.workers);
    }
    if settings.is_elastic() {
        say!(
            "            rho {} (pull eta*rho = {} at the start)",
            settings.rho,
            settings.rho * settings.solver.base_lr
        );
    }
    say!("machine     {}", p.machine.how);
    say!(
        "            {} worker(s) x {} quadrant(s); kernels for {}; seed {}",
        settings.workers,
        p.machine.workers[0].len(),
        p.machine.numerics,
        settings.seed
    );
    for line in p.machine.notes.iter().map(|n| format!("note        {n}")).chain(p.lines.iter().cloned()) {
        say!("{line}");
    }
    for line in kernels {
        say!("{line}");
    }
    if !settings.solver.ignored.is_empty() {
        say!("ignored     solver fields without effect here: {}", settings.solver.ignored.join(", "));
    }
    say!("run folder  {}", folder.path().display());
}

/// Trains.
pub fn run(args: &TrainArgs) -> Result<(), Failure> {
    let timeout = peer_timeout(args.peer_timeout)?;
    let stop = StopAgreement::listen()?;
    let mut prepared = prepare(args)?;
    let workers = make_workers(args, &prepared)?;
    // They have it in memory of their own by now.
    prepared.state.workers = Vec::new();
    let folder = run_folder(args.run.as_deref(), &prepared.net.name, args.snapshot.is_some())?;
    announce(args, &prepared, &folder, &workers[0].notes);
    let settings = &prepared.settings;
    folder.store_configuration(&format!("{:#}\n", configuration(&prepared)))?;
    let mut meta = prepared.identity.clone();
    meta.insert("network".to_owned(), prepared.net.name.clone());
    meta.insert("settings".to_owned(), settings.to_json().to_string());
    let desk = SnapshotDesk::new(&folder, &prepared.net.params, meta, settings.workers);
    let run = Run {
        settings,
        first: prepared.state.iteration,
        stop,
        desk: &desk,
        fingerprint: fingerprint(&prepared),
    };
    let mut progress = Progress::new(
        folder.metrics()?,
        run.first,
        settings.solver.max_iter,
        settings.solver.display,
        settings.workers * prepared.train.batch,
        loss_name(&prepared.net),
    );
    let outcomes = live_together(workers, &run, &prepared.state.result, timeout, &mut progress)?;
    conclude(&prepared, &run, &outcomes, &mut progress)
}

fn make_workers(args: &TrainArgs, p: &Prepared<'_>) -> Result<Vec<Worker>, Failure> {
    let parts = p.machine.workers.iter().zip(&p.state.workers).enumerate().map(|(rank, (crews, state))| {
        WorkerParts {
            rank,
            settings: &p.settings,
            crews,
            machine: &p.machine,
            kernels: &args.machine.kernels,
            rewriting: p.rewriting,
            train: &p.train,
            test: p.test.as_ref(),
            first: p.state.iteration,
            state,
        }
    });
    parts.map(|parts| Worker::new(&parts)).collect()
}

/// Runs every worker in a thread of its own. If one fails the others lose a peer and end, too; the failure that
/// came first is the one that is told.
fn live_together(
    workers: Vec<Worker>,
    run: &Run<'_>,
    centre: &[f32],
    timeout: Duration,
    progress: &mut Progress,
) -> Result<Vec<Outcome>, Failure> {
    let transports = endpoints(workers.len(), timeout);
    let mut progress = Some(progress);
    let results: Vec<Result<Outcome, Failure>> = std::thread::scope(|scope| {
        let handles: Vec<_> = workers
            .into_iter()
            .zip(transports)
            .map(|(worker, transport)| {
                let progress = progress.take();
                // Who is alone has no centre.
                let centre = if run.settings.workers > 1 { centre.to_vec() } else { Vec::new() };
                scope.spawn(move || live(worker, run, transport, progress, centre))
            })
            .collect();
        let lost = |_| Err(Failure::new(Code::Bug, "a worker panicked: please report this"));
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(lost)).collect()
    });
    let echo = results.iter().filter_map(|r| r.as_ref().err()).min_by_key(|f| f.is_echo()).cloned();
    match echo {
        Some(failure) => Err(failure),
        None => results.into_iter().collect(),
    }
}

fn loss_name(net: &Net) -> &str {
    net.losses().next().map_or("loss", |(blob, _)| &net.blob(blob).name)
}

fn fingerprint(p: &Prepared<'_>) -> Fingerprint {
    Fingerprint {
        program: fingerprint_of(env!("CARGO_PKG_VERSION")),
        network: fingerprint_of(&format!("{:?}", p.net.params)),
        solver: fingerprint_of(&p.settings.to_json().to_string()),
        seed: p.settings.seed,
        parameters: p.net.params.len() as u64,
    }
}

fn configuration(p: &Prepared<'_>) -> Value {
    let mut configuration = p.settings.to_json();
    let quadrants = p.machine.workers[0].len();
    configuration["network"] = json!({"name": p.net.name, "file": p.net.file.to_string()});
    configuration["batch"] = json!(p.train.batch);
    configuration["quadrants"] = json!(quadrants);
    configuration["threads"] = json!(p.machine.workers[0].first().map_or(0, |c| c.cpus.len()));
    configuration["isa"] = json!(p.machine.numerics.isa.to_string());
    configuration["fusion"] = json!(p.rewriting.fusion);
    configuration["memory_sharing"] = json!(p.rewriting.memory_sharing);
    configuration["data"] = json!({"name": p.train.dataset.name(), "hash": p.train.dataset.hash()});
    configuration
}

/// The phases that have data.
fn jobs<'a>(p: &'a Prepared<'_>) -> impl Iterator<Item = &'a PhaseJob> {
    std::iter::once(&p.train).chain(&p.test)
}

/// Tells what came out.
fn conclude(
    p: &Prepared<'_>,
    run: &Run<'_>,
    outcomes: &[Outcome],
    progress: &mut Progress,
) -> Result<(), Failure> {
    let first = &outcomes[0];
    let images = (first.iterations - run.first) as f64 * (p.settings.workers * p.train.batch) as f64;
    let seconds = first.clock.training.as_secs_f64();
    let hash = weights_hash(&first.result);
    let data_share = first.clock.data.as_secs_f64() / seconds.max(1e-9);
    let summary = json!({
        "accuracy": first.test.accuracy.map(six_digits),
        "test_loss": first.test.loss.map(six_digits),
        "iterations": first.iterations,
        "seconds": seconds,
        "test_seconds": first.clock.testing.as_secs_f64(),
        "images_per_second": images / seconds.max(1e-9),
        "communication_share": first.clock.communication_share(),
        "data_share": data_share,
        "bad_records": jobs(p).map(|job| job.dataset.bad().list().0).sum::<u64>(),
        "weights_hash": hash,
        "method": p.settings.method_name(),
        "workers": p.settings.workers,
        "quadrants": p.machine.workers[0].len(),
        "threads": p.machine.workers[0].first().map_or(0, |c| c.cpus.len()),
        "isa": p.machine.numerics.isa.to_string(),
        "precision": p.settings.precision.to_string(),
        "seed": p.settings.seed,
    });
    progress.finish(&summary)?;
    let snapshot = run.desk.latest();
    if let Some((path, weights)) = &snapshot {
        write_caffemodel(&path.with_extension("caffemodel"), &p.net, weights)?;
        say!("snapshot    {} (and .caffemodel)", path.display());
    }
    jobs(p).for_each(|job| say_bad_records(&job.dataset));
    let accuracy = first.test.accuracy.map_or("not tested".to_owned(), |a| format!("{:.2} %", 100.0 * a));
    say!(
        "summary     accuracy {accuracy}, {seconds:.1} s, {:.0} images/s, {:.1} % of the time in communication, \
         {:.1} % waiting for data, weights {hash}",
        images / seconds.max(1e-9),
        100.0 * first.clock.communication_share(),
        100.0 * data_share
    );
    if first.iterations < p.settings.solver.max_iter {
        let how = snapshot.map_or(String::new(), |(path, _)| {
            format!("; to go on, give the same command with --snapshot {}", path.display())
        });
        let message =
            format!("stopped after iteration {} of {}{how}", first.iterations, p.settings.solver.max_iter);
        return Err(Failure::new(Code::Stopped, message));
    }
    Ok(())
}
