//! What is decided of a training before its first worker is made.

use std::path::PathBuf;

use quadrille_core::net::{Net, NetSpec, Phase};
use quadrille_core::site::{Fault, Site};
use quadrille_core::solver::{NetSource, SolverSpec, TestNet};
use quadrille_io::data::Tolerance;

use crate::cli::{DataShards, TrainArgs};
use crate::crews::{Crews, crews};
use crate::failure::{Code, Failure};
use crate::given::Given;
use crate::holdings::Holdings;
use crate::identity::about;
use crate::job::{Named, PhaseJob, Samples, TestJob, load_net, load_solver, no_data};
use crate::parts;
use crate::resume::{Beginner, Start, is_automatic};
use crate::rewriting::Rewriting;
use crate::settings::Settings;
use crate::state::About;
use crate::world::World;

/// Everything that is decided before the first worker starts.
pub struct Prepared<'a> {
    /// What the run was told.
    pub settings: Settings,
    /// Training.
    pub train: PhaseJob,
    /// Its tests.
    pub tests: Vec<TestJob>,
    /// How the machine was cut.
    pub machine: Crews,
    /// The network of a whole mini-batch, as the file has it.
    pub net: Net,
    /// Where it begins.
    pub start: Start,
    /// What snapshots say of the run.
    pub about: About,
    /// Whether the same command goes on by itself.
    pub automatic: bool,
    /// How nets are rewritten for devices.
    pub rewriting: Rewriting<'a>,
    /// What reading the network made us note.
    pub lines: Vec<String>,
    /// What is said of the processes.
    pub world_lines: &'a [String],
}

impl Prepared<'_> {
    /// The data sets that are held in memory.
    pub fn holdings(&self) -> Holdings<'_> {
        let tests = self.tests.iter().map(|test| &test.job.feed);
        Holdings::of(std::iter::once(&self.train.feed).chain(tests))
    }

    /// Images that all workers together see in an iteration.
    pub fn images_per_iteration(&self) -> usize {
        self.settings.workers * self.settings.solver.iter_size as usize * self.train.batch
    }
}

/// Where the samples come from.
fn samples<'a>(
    args: &'a TrainArgs,
    given: Option<&'a Given>,
    processes: usize,
) -> Result<Samples<'a>, Failure> {
    let (made_up, shape) = (args.made_up.dummy_data, args.made_up.shape);
    let conflict = |message: &str| Err(Failure::new(Code::Usage, message));
    if made_up && args.data.data.is_some() {
        return conflict("--dummy-data: data that is made up does not come from the folder of --data");
    }
    if shape.is_some() && !made_up {
        return conflict("--data-shape: only data that is made up (--dummy-data) can have any shape");
    }
    if made_up && args.data.stage_to.is_some() {
        return conflict("--stage-to: data that is made up is not copied");
    }
    if made_up && args.data.bad_record != Tolerance::Fail {
        return conflict("--bad-record: data that is made up has no bad records");
    }
    let by_rank = args.data_shards == DataShards::Rank;
    Ok(Samples { made_up, shape, given, by_rank, processes, ..Samples::of(&args.data) })
}

/// A network that the solver names, unless a flag names another for training and whatever shares its network.
fn network(args: &TrainArgs, solver: &SolverSpec, source: &NetSource) -> Result<(NetSpec, PathBuf), Failure> {
    let model = args.model.as_deref().filter(|_| *source == solver.train_net);
    load_net(model, args.solver.as_deref().map(|path| Named { solver: path, site: &solver.site, source }))
}

/// The tests, whose networks have the weights of `train`.
fn tests(
    args: &TrainArgs,
    samples: Samples<'_>,
    solver: &SolverSpec,
    train: &PhaseJob,
) -> Result<Vec<TestJob>, Failure> {
    let open = |test: &TestNet| {
        let (spec, file) = network(args, solver, &test.source)?;
        check_phase(&spec, Phase::Test)?;
        let state = test.state.of(spec.state(Phase::Test));
        let job = PhaseJob::open(&spec, &state, &file, samples, None)?;
        let job = job.ok_or_else(|| no_data(&spec, Phase::Test))?;
        Ok(TestJob { job: job.with_params_of(train)?, batches: test.batches })
    };
    solver.test_nets.iter().map(open).collect()
}

/// In Caffe a network file's own phase would win, and a test would drop values, or a training none.
fn check_phase(spec: &NetSpec, phase: Phase) -> Result<(), Failure> {
    match spec.state.phase {
        Some(given) if given != phase => {
            let message = format!("the phase {given}, where the solver's is {phase}; not supported yet");
            let fault =
                Fault::new("state.phase", message).hint("remove it; the phase follows from the solver");
            let site = Site { file: spec.file.clone(), ..Site::default() };
            Err(fault.at(&site, "network").into())
        }
        _ => Ok(()),
    }
}

/// What to say of layers that are to learn and do not.
fn unreached(net: &Net) -> Option<String> {
    let names: Vec<&str> = net.unreached().map(|layer| layer.name.as_str()).collect();
    let listed = names.join(", ");
    (!names.is_empty()).then(|| {
        format!("no gradient comes from the loss to {listed}: weights stay (Caffe's weight_decay would shrink them)")
    })
}

/// Reads what the flags name and decides what can be decided without a worker.
///
/// # Errors
/// If a file or a flag cannot be used, or the machine cannot be cut so.
pub fn prepare<'a>(args: &'a TrainArgs, world: &'a World) -> Result<Prepared<'a>, Failure> {
    let solver = load_solver(args.solver.as_deref())?;
    let settings = Settings::new(solver, args, world.workers(args.workers)?)?;
    if world.size().is_some() && settings.machine.is_some() {
        let message = "--clock sim: virtual time is that of the threads of one process; start one";
        return Err(Failure::new(Code::Usage, message));
    }
    let solver = &settings.solver;
    let (spec, file) = network(args, solver, &solver.train_net)?;
    check_phase(&spec, Phase::Train)?;
    let state = solver.train_state.of(spec.state(Phase::Train));
    let given = args.inputs.as_deref().map(Given::read).transpose()?;
    let given = given.as_ref();
    let samples = samples(args, given, world.beside.len())?;
    let train = PhaseJob::open(&spec, &state, &file, samples, args.batch)?;
    let train = train.ok_or_else(|| no_data(&spec, Phase::Train))?;
    let tests = if solver.test_interval == 0 { Vec::new() } else { tests(args, samples, solver, &train)? };
    let smallest = tests.iter().map(|test| test.job.batch).fold(train.batch, usize::min);
    let net = train.nets(&[1])?.swap_remove(0);
    let histories = solver.rule.kind.histories();
    let here = world.own(settings.workers).len();
    let copies = || Ok(parts::copies(&net, histories, here));
    let mut machine = crews(&args.machine, world.seats_before(), here, smallest, copies)?;
    machine.exclusive &= !world.shares_cpus;
    // No process of this node takes its memory before all have met, below: all see the same.
    machine.share_memory(&world.beside)?;
    let lines = spec.notes.iter().cloned().chain(unreached(&net)).map(|note| format!("note        {note}"));
    let lines: Vec<String> = lines.collect();
    let about = about(&settings, &train, &net, &machine);
    let start =
        Beginner { args, given, settings: &settings, net: &net, about: &about }.start_together(world)?;
    let rewriting = Rewriting::new(&args.machine, machine.numerics, settings.workers).for_settings(&settings);
    let automatic = is_automatic(args);
    let world_lines = world.lines.as_slice();
    Ok(Prepared {
        settings,
        train,
        tests,
        machine,
        net,
        start,
        about,
        automatic,
        rewriting,
        lines,
        world_lines,
    })
}
