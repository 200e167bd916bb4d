//! Where a run begins: anew, with given weights, or from a snapshot; and the folder that it goes on in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quadrille_core::net::Net;
use quadrille_core::solver::SolverSpec;
use quadrille_io::snapshot::Snapshot;
use quadrille_io::weights::Tensors;
use quadrille_io::{Generation, IoError, RunFolder, RunLock};

use crate::cli::TrainArgs;
use crate::failure::{Code, Failure};
use crate::given::Given;
use crate::job::find_named;
use crate::settings::Settings;
use crate::solver_state;
use crate::state::{About, Course, RunState, WorkerArrays, WorkerState};
use crate::weights::{read_weights, start_lines};
use crate::world::World;

/// What is known of a run before its first state is.
#[derive(Clone, Copy)]
pub struct Beginner<'a> {
    /// The flags.
    pub args: &'a TrainArgs,
    /// Arrays that are handed in.
    pub given: Option<&'a Given>,
    /// What the run was told.
    pub settings: &'a Settings,
    /// The net as the file has it.
    pub net: &'a Net,
    /// What a snapshot says of the run.
    pub about: &'a About,
}

/// Where a run begins.
pub struct Start {
    /// The state of the run.
    pub state: RunState,
    /// What the user reads about it.
    pub lines: Vec<String>,
    /// The snapshot that it goes on from, if it does.
    source: Option<PathBuf>,
    /// The folder of the run, where that is known since its snapshots were looked at.
    home: Option<(RunFolder, RunLock)>,
    /// Snapshots of the run that were passed over.
    damaged: Vec<PathBuf>,
}

/// The folder of a run that is about to begin.
pub struct Home {
    /// The folder.
    pub folder: RunFolder,
    /// What the user reads about it.
    pub lines: Vec<String>,
    /// The iteration of the snapshot that the run goes on from, if it lies here.
    pub present: Option<u64>,
    /// Seconds of training that its starts before took to come here.
    pub seconds: f64,
    /// Keeps other processes out.
    _lock: RunLock,
}

/// Whether the run looks for a snapshot by itself.
pub fn is_automatic(args: &TrainArgs) -> bool {
    args.resume.as_deref() == Some(Path::new("auto"))
}

fn usage(message: &str) -> Failure {
    Failure::new(Code::Usage, message)
}

/// What a run that goes on by itself no longer looks at.
fn passed_over(args: &TrainArgs) -> Option<String> {
    let flag = if args.snapshot.is_some() { "--snapshot" } else { "--weights" };
    let given = args.snapshot.is_some() || !args.weights.is_empty();
    given.then(|| format!("            {flag} was for the run's first start"))
}

/// A snapshot of which nobody knows whether it is good.
fn unread(error: IoError) -> Failure {
    let hint = "it is not passed over, since it may be good; to go on from an older one, move it away or name that as --resume";
    let failure = Failure::from(error);
    let message = format!("{failure}\n  hint: {hint}");
    failure.saying(message)
}

impl Beginner<'_> {
    /// Finds where the run begins.
    ///
    /// # Errors
    /// If what it should begin with is not there, is damaged, or is of another run.
    pub fn start(&self) -> Result<Start, Failure> {
        let args = self.args;
        match &args.resume {
            None => self.given_start(),
            Some(_) if is_automatic(args) => {
                let path = args.run.as_ref().ok_or_else(|| {
                    usage("--resume auto: which run? Add --run DIR, the same in every start of the run")
                })?;
                let Some(folder) = RunFolder::find(path) else { return self.anew(path, None) };
                let lock = folder.lock()?;
                if folder.generations()?.is_empty() && !folder.had_snapshots()? {
                    return self.anew(path, Some((folder, lock)));
                }
                let mut start = self.newest(&folder)?;
                start.lines.extend(passed_over(args));
                Ok(Start { home: Some((folder, lock)), ..start })
            }
            Some(_) if args.snapshot.is_some() || !args.weights.is_empty() => {
                Err(usage("--resume PATH: a run goes on from one place; leave --snapshot and --weights out"))
            }
            Some(path) => match RunFolder::find(path) {
                None => self.of_snapshot(path),
                Some(folder) if args.run.as_ref().is_none_or(|run| run == path) => {
                    let lock = folder.lock()?;
                    let start = self.newest(&folder)?;
                    Ok(Start { home: Some((folder, lock)), ..start })
                }
                // The damaged snapshots of another run are not ours to move.
                Some(folder) => Ok(Start { damaged: Vec::new(), ..self.newest(&folder)? }),
            },
        }
    }

    /// Finds where the run begins, the same place in every process of `world`: the one that leads looks for it.
    ///
    /// # Errors
    /// As [`Beginner::start`]; or if a process is lost.
    pub fn start_together(&self, world: &World) -> Result<Start, Failure> {
        if world.leads() {
            let start = self.start()?;
            let source = start.source.as_ref().map_or(String::new(), |source| source.display().to_string());
            world.meet(&source)?;
            return Ok(start);
        }
        let source = world.meet("")?;
        let path = Path::new(&source);
        if source.is_empty() || solver_state::is_of_caffe(path) {
            self.given_start()
        } else {
            self.of_snapshot(path)
        }
    }

    /// A run that was to go on, but has no snapshot yet.
    fn anew(&self, path: &Path, home: Option<(RunFolder, RunLock)>) -> Result<Start, Failure> {
        let mut start = self.given_start()?;
        start.lines.insert(0, format!("resume      {} has no snapshot yet: from the start", path.display()));
        Ok(Start { home, ..start })
    }

    /// The newest snapshot of a run that is what was written; those that are not are told. One that cannot be read may be good.
    fn newest(&self, folder: &RunFolder) -> Result<Start, Failure> {
        let (mut lines, mut damaged) = (Vec::new(), Vec::new());
        for Generation { path, .. } in folder.generations()? {
            match Snapshot::read(&path) {
                Ok(snapshot) => {
                    let mut start = self.taken(&path, snapshot)?;
                    start.lines.splice(0..0, lines);
                    return Ok(Start { damaged, ..start });
                }
                Err(error @ IoError::Data { .. }) => {
                    lines.push(format!("damaged     {error}"));
                    damaged.push(path);
                }
                Err(error) => return Err(unread(error)),
            }
        }
        let name = folder.path().display();
        if damaged.is_empty() && !folder.had_snapshots()? {
            return Err(Failure::new(
                Code::Missing,
                format!("{name}: the run has no snapshot to go on from"),
            ));
        }
        let told: String = lines.iter().map(|line| format!("\n  {line}")).collect();
        let message = format!(
            "{name}: the run has snapshots, but none that it can go on from{told}\n  \
             hint: to start anew, give another folder as --run, or move this one away"
        );
        Err(Failure::new(Code::Data, message))
    }

    /// One snapshot and no other.
    fn of_snapshot(&self, path: &Path) -> Result<Start, Failure> {
        self.taken(path, Snapshot::read(path)?)
    }

    fn taken(&self, path: &Path, snapshot: Snapshot) -> Result<Start, Failure> {
        let state = RunState::of_snapshot(path, snapshot, &self.net.params, self.settings, self.about)?;
        let lines = vec![format!("start       snapshot {}, iteration {}", path.display(), state.iteration)];
        Ok(Start { state, lines, source: Some(path.to_owned()), home: None, damaged: Vec::new() })
    }

    /// From what `--snapshot` or `--weights` name, or from nothing.
    fn given_start(&self) -> Result<Start, Failure> {
        let Self { args, given, settings, net, .. } = *self;
        if let Some(path) = args.snapshot.as_ref().filter(|path| !solver_state::is_of_caffe(path)) {
            return self.of_snapshot(path);
        }
        let mut lines = Vec::new();
        let mut weights = vec![0.0; net.params.len()];
        net.params.fill(settings.seed, &mut weights);
        let begin = |state, lines, source| Start { state, lines, source, home: None, damaged: Vec::new() };
        if let Some(path) = &args.snapshot {
            let (state, missing) = solver_state::read(path, net, settings, weights)?;
            lines.push(format!(
                "start       Caffe's state {}, iteration {}",
                path.display(),
                state.iteration
            ));
            lines.extend(filled_anew(&missing));
            return Ok(begin(state, lines, Some(path.clone())));
        }
        let files = weight_files(args, &settings.solver)?;
        if !files.is_empty() {
            let placed = read_weights(&files, net, &mut weights)?;
            lines.extend(start_lines(&files, net, &placed));
        }
        if let Some(given) = given {
            let filled = given.fill("init/", net, &mut weights)?;
            if filled > 0 {
                lines.push(format!("start       {filled} parameter(s) of {}", given.file().display()));
            }
        }
        let history = vec![0.0; settings.solver.rule.kind.histories() * weights.len()];
        let course = Course::new(settings.average_loss());
        let arrays = Arc::new(WorkerArrays { weights, history });
        Ok(begin(
            RunState::equal(0, WorkerState { arrays, kept: Tensors::new(), course }, settings),
            lines,
            None,
        ))
    }
}

impl Start {
    /// Gives up what the workers have in memory of their own by now. Returns what several workers begin to exchange with: the
    /// weights that count, and the first worker's histories, which are those of whoever takes steps for all.
    pub fn common_arrays(&mut self) -> WorkerArrays {
        let several = self.state.workers.len() > 1;
        let arrays = several.then(|| WorkerArrays {
            weights: self.state.counting().to_vec(),
            history: self.state.workers[0].arrays.history.clone(),
        });
        (self.state.centre, self.state.workers) = (None, Vec::new());
        arrays.unwrap_or_default()
    }

    /// Opens the folder of the run, and clears away what would contradict what the run is about to write.
    ///
    /// # Errors
    /// If the folder cannot be written, belongs to another process, or holds a run although this one begins anew.
    pub fn open_home(&mut self, args: &TrainArgs, name: &str, settings: &Settings) -> Result<Home, Failure> {
        let (folder, lock) = match self.home.take() {
            Some(home) => home,
            None => {
                let around = args.resume.as_ref().and(self.source.as_deref()).and_then(RunFolder::around);
                let around = around.as_ref().map(RunFolder::path);
                let asked = args.run.as_deref().or(around);
                // Another run stays as it is, whatever this one begins with.
                let goes_on = is_automatic(args) || asked.is_some_and(|run| self.begins_in(run));
                let folder = run_folder(asked, name, goes_on)?;
                let lock = folder.lock()?;
                (folder, lock)
            }
        };
        let mut lines = vec![format!("run folder  {}", folder.path().display())];
        if let Some(reason) = lock.refusal() {
            lines.push(format!(
                "note        the folder cannot be locked ({reason}): start no second process in it, and remove \
                 folders named .iteration_*.part-* by hand"
            ));
        } else {
            let removed = folder.remove_unfinished()?;
            if removed > 0 {
                lines.push(format!(
                    "            removed {removed} unfinished file(s) of a process that was killed"
                ));
            }
        }
        let (first, solver) = (self.state.iteration, &settings.solver);
        if first > solver.max_iter {
            lines.push(format!(
                "note        the snapshot is past the end, iteration {}: nothing is left to train",
                solver.max_iter
            ));
        }
        self.put_aside(&folder, &mut lines)?;
        let tests_again =
            if first < solver.max_iter { settings.tests_before(first) } else { solver.test_interval > 0 };
        let taken = folder.take_back_metrics(first, tests_again)?;
        if taken.later > 0 {
            lines.push(format!(
                "            removed {} line(s) of metrics.jsonl that come after iteration {first}, since they \
                 come again",
                taken.later
            ));
        }
        if taken.broken > 0 {
            lines.push(format!("            removed {} broken line(s) of metrics.jsonl", taken.broken));
        }
        let present = folder.generations()?.iter().any(|generation| generation.iteration == first);
        let present = present.then_some(first);
        Ok(Home { folder, lines, present, seconds: taken.seconds, _lock: lock })
    }

    /// Whether the run goes on from a snapshot that lies in `folder`.
    fn begins_in(&self, folder: &Path) -> bool {
        let real = |path: &Path| path.canonicalize().ok();
        let source = self.source.as_deref().and_then(real);
        source.zip(real(folder)).is_some_and(|(path, home)| path.starts_with(home))
    }

    /// Puts snapshots aside that are no part of this run's past.
    fn put_aside(&self, folder: &RunFolder, lines: &mut Vec<String>) -> Result<(), Failure> {
        let first = self.state.iteration;
        let from_here = self.begins_in(folder.path());
        for Generation { iteration, path } in folder.generations()? {
            let why = if self.damaged.contains(&path) {
                "damaged"
            } else if from_here && iteration <= first {
                continue;
            } else {
                "abandoned"
            };
            let aside = folder.put_aside(&path, why)?;
            lines.push(format!("            put aside: {}", aside.display()));
        }
        Ok(())
    }
}

/// The files of weights to start from: that of the flag, or else those of the solver.
fn weight_files(args: &TrainArgs, solver: &SolverSpec) -> Result<Vec<PathBuf>, Failure> {
    match &args.solver {
        Some(path) if args.weights.is_empty() => {
            solver.weights.iter().map(|name| find_named(path, &solver.site, "weights", name)).collect()
        }
        _ => Ok(args.weights.clone()),
    }
}

/// A line about parameters that a file of weights lacks.
fn filled_anew(missing: &[String]) -> Option<String> {
    let names = missing.join(" ");
    (!missing.is_empty()).then(|| format!("            not in the file, so filled anew: {names}"))
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
