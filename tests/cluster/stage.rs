//! A folder for a test, and ways to run the program in several processes in it that cannot hang.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Far beyond what any call here needs, also on a busy machine: only a hang gets there.
const PATIENCE: Duration = Duration::from_secs(180);

/// LeNet at a rate that no number of iterations bends, nothing tested.
const SOLVER: &str = "base_lr: 0.01\nlr_policy: \"fixed\"\nmomentum: 0.9\nweight_decay: 0.0005\nmax_iter: 12\nrandom_seed: 7\n";

/// Keeps what a process said on standard error, its id and its exit code apart from those of the others. Launchers pass
/// signals on, of which this shell must not die before it has written the code.
const RANK: &str = r#"#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:-0}}}
trap '' TERM USR1 INT
"$@" 2>> "err.$rank" &
process=$!
echo "$process" > "id.$rank.part" && mv "id.$rank.part" "id.$rank"
wait "$process"
code=$?
echo "$code" > "code.$rank.part" && mv "code.$rank.part" "code.$rank"
exit "$code"
"#;

/// The mpirun of the MPI that the program was built with.
pub fn mpirun_name() -> String {
    std::env::var("QUADRILLE_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned())
}

/// Its command, before any argument.
pub fn mpirun_command() -> Command {
    let mut command = Command::new(mpirun_name());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // MPICH over UCX reads the memory of other processes, and aborts where one of them has ended.
    command.env("UCX_TLS", "^cma");
    command
}

/// Whether it is that of Open MPI.
pub fn is_open_mpi() -> bool {
    let version = mpirun_command().arg("--version").output().expect("mpirun starts");
    String::from_utf8_lossy(&version.stdout).contains("Open MPI")
}

/// The flags with which mpirun leaves the others alone once one has ended badly, so that they show what they do by themselves.
pub fn left_alone() -> Vec<&'static str> {
    if is_open_mpi() { vec!["--enable-recovery"] } else { vec!["-disable-auto-cleanup"] }
}

/// The program.
pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_quadrille")
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder of its own for a test. While there is one with a turn no other of these runs: each takes all of a small machine.
pub struct Stage {
    folder: TempDir,
    _turn: Option<MutexGuard<'static, ()>>,
}

/// What a run of several processes left.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code of the launcher.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A launcher that runs.
pub struct Running {
    child: Child,
    what: String,
    folder: PathBuf,
}

impl Stage {
    pub fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        Self::with(Some(TURN.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// For a test that minds no other, and that no other minds.
    pub fn beside_others() -> Self {
        Self::with(None)
    }

    fn with(turn: Option<MutexGuard<'static, ()>>) -> Self {
        let stage = Self { folder: tempfile::tempdir().expect("a temporary folder"), _turn: turn };
        let net = root().join("models/lenet/train_val.prototxt");
        stage.write("solver.prototxt", &format!("net: {:?}\n{SOLVER}", net.display().to_string()));
        stage.write("rank", RANK);
        stage
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).expect("the temporary folder is writable");
    }

    /// The whole text of a file; empty if it is not there.
    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The flags of a training in the folder `run`, and more.
    pub fn training(&self, run: &str, more: &str) -> Vec<String> {
        let flags = format!("train --solver solver.prototxt --threads 1 --batch 16 --run {run} {more}");
        flags.split_whitespace().map(str::to_owned).collect()
    }

    /// Trains over threads, and returns the hash of the weights.
    pub fn train_over_threads(&self, run: &str, more: &str) -> String {
        let mut command = Command::new(program());
        command.args(self.training(run, more));
        let outcome = self.start(command).finish();
        assert_eq!(outcome.code, Some(0), "{more}: {}\n{}", outcome.stdout, outcome.stderr);
        self.weights(run)
    }

    /// Trains in `processes` processes under mpirun, and returns the hash of the weights.
    pub fn train_over_mpi(&self, processes: usize, run: &str, more: &str) -> String {
        let outcome = self.mpirun(processes, &[], &self.training(run, more)).finish();
        assert_eq!(outcome.code, Some(0), "{more}: {}\n{}", outcome.stdout, outcome.stderr);
        self.weights(run)
    }

    /// Starts the program in several processes, each in the shell that keeps what it says apart.
    pub fn mpirun(&self, processes: usize, flags: &[&str], arguments: &[String]) -> Running {
        self.launch(processes, flags, &["sh", "./rank", program()], arguments)
    }

    /// Starts another program in several processes, which mpirun leaves alone.
    pub fn mpirun_of(&self, processes: usize, program: &[&str], arguments: &[String]) -> Running {
        self.launch(processes, &left_alone(), program, arguments)
    }

    fn launch(&self, processes: usize, flags: &[&str], program: &[&str], arguments: &[String]) -> Running {
        let mut command = mpirun_command();
        if is_open_mpi() {
            command.arg("--oversubscribe");
        }
        command.args(flags).args(["-n", &processes.to_string()]).args(program).args(arguments);
        self.start(command)
    }

    /// Starts a launcher here.
    pub fn start(&self, mut command: Command) -> Running {
        let file = |name: &str| Stdio::from(File::create(self.path(name)).expect("a file for output"));
        for rank in 0..8 {
            for name in ["id", "code", "err"] {
                let _ = fs::remove_file(self.path(&format!("{name}.{rank}")));
            }
        }
        command
            .current_dir(self.folder.path())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .stdin(Stdio::null());
        let what = format!("{command:?}");
        let child = command.spawn().expect("the launcher starts");
        Running { child, what, folder: self.folder.path().to_owned() }
    }

    /// What a process said on standard error.
    pub fn said(&self, rank: usize) -> String {
        self.text(&format!("err.{rank}"))
    }

    /// The exit code of a process; `None` if its launcher ended it before it had one.
    pub fn code(&self, rank: usize) -> Option<i32> {
        self.text(&format!("code.{rank}")).trim().parse().ok()
    }

    /// Sends a signal to a process.
    pub fn signal(&self, rank: usize, signal: &str) {
        let id = self.text(&format!("id.{rank}"));
        // The shell's own kill: a bare system has no program of that name. A process may have ended.
        let kill = format!("kill -s {signal} {}", id.trim());
        Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status().expect("a shell");
    }

    /// Waits until a run has trained for so many iterations.
    pub fn wait_until_trained(&self, run: &str, iterations: usize, running: &mut Running) {
        let metrics = format!("{run}/metrics.jsonl");
        let start = Instant::now();
        while self.text(&metrics).lines().count() < iterations {
            let ended = running.child.try_wait().expect("the state of a child");
            assert!(ended.is_none(), "it ended before it trained: {}\n{}", self.text("stderr"), self.said(0));
            assert!(start.elapsed() < PATIENCE, "it does not train: {}", running.what);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The last line of a run's metrics.
    pub fn summary(&self, run: &str) -> Value {
        let metrics = self.text(&format!("{run}/metrics.jsonl"));
        let last = metrics.lines().last().unwrap_or_else(|| panic!("{run} has no metrics"));
        serde_json::from_str::<Value>(last).expect("a line of metrics")["summary"].clone()
    }

    /// The hash of the weights that a run ended with.
    pub fn weights(&self, run: &str) -> String {
        self.summary(run)["weights_hash"].as_str().expect("a hash of the weights").to_owned()
    }
}

impl Running {
    /// Waits for the end, with which the processes have ended, too.
    pub fn finish(mut self) -> Outcome {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the state of a child") {
                break status;
            }
            if start.elapsed() > PATIENCE {
                self.child.kill().expect("it can be killed");
                panic!("it hangs: {}\n{}", self.what, self.said("stderr"));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Outcome { code: status.code(), stdout: self.said("stdout"), stderr: self.said("stderr") }
    }

    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }
}

impl Drop for Running {
    /// A test that fails leaves nothing that runs.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
