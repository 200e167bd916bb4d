//! Under Slurm, on the throw-away cluster of `scripts/slurm-local`. Tests run in the order of their names, and what waits longest
//! is to begin first.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::is_skipped;
use crate::stage::{Stage, is_open_mpi, program, root};

/// Ports of a cluster of four nodes: that of the controller, and one for each node behind it.
const PORTS: u16 = 5;

/// The cluster, which ends with the test.
struct Cluster {
    folder: tempfile::TempDir,
    /// The first of its ports.
    port: u16,
}

/// The first of as many ports in a row as a cluster needs that nobody listens at: other clusters may run here, of other tests
/// and of other people.
fn free_ports() -> u16 {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
    let are_free = |first: &u16| (*first..*first + PORTS).all(is_free);
    // Below the ports that the system gives away; where this process begins to look is not where another does.
    let begin = u16::try_from(std::process::id() % 1000).expect("below 1000");
    let rows = (0..1000).map(|row| 17_000 + (begin + row) % 1000 * (2 * PORTS));
    rows.into_iter().find(are_free).expect("free ports")
}

/// Why there is no cluster here; `None` if there can be one.
fn missing() -> Option<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let there = |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let lacks = ["slurmctld", "slurmd", "srun", "munged"].into_iter().find(|name| !there(name));
    crate::missing()
        .or(lacks.map(|name| format!("no {name} (scripts/setup --slurm)")))
        .or((!is_open_mpi())
            .then(|| "the mpirun is not that of Open MPI, for which --mpi=pmix is".to_owned()))
        .or((!is_root()).then(|| "only root can start Slurm's daemons".to_owned()))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

impl Cluster {
    fn up() -> Self {
        // One after the other: between looking and listening nobody else is to take a port.
        static STARTING: Mutex<()> = Mutex::new(());
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cluster = Self { folder, port: free_ports() };
        let output = cluster.slurm_local("up").output().expect("scripts/slurm-local");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        cluster
    }

    fn slurm_local(&self, what: &str) -> Command {
        let mut command = Command::new(root().join("scripts/slurm-local"));
        command
            .arg(what)
            .env("SLURM_LOCAL_DIR", self.folder.path().join("c"))
            .env("SLURM_LOCAL_PORT", self.port.to_string());
        command
    }

    /// A command of Slurm.
    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(name);
        command.args(arguments).env("SLURM_CONF", self.folder.path().join("c/slurm.conf"));
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.slurm_local("down").output();
    }
}

/// A step of four tasks on four nodes.
fn step(cluster: &Cluster, flags: &[&str], stage: &Stage, training: &str) -> Command {
    let mut command = cluster.command("srun", &["-N4", "-n4"]);
    command.args(flags).args(["sh", "./rank", program()]).args(stage.training("run", training));
    command
}

#[test]
fn steps_train_lose_and_refuse() {
    if is_skipped(missing()) {
        return;
    }
    let cluster = Cluster::up();
    let stage = Stage::new();
    let outcome = stage.start(step(&cluster, &["-K1", "--mpi=pmix"], &stage, "")).finish();
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert_eq!(stage.weights("run"), stage.train_over_threads("threads", "--workers 4"));

    // One rank is killed: with -K0, which is Slurm's own way, nobody but the program ends the others.
    std::fs::remove_dir_all(stage.path("run")).expect("the run is there");
    let endless = "--max-iter 2000000000 --peer-timeout 20";
    let mut running = stage.start(step(&cluster, &["-K0", "--mpi=pmix"], &stage, endless));
    stage.wait_until_trained("run", 2, &mut running);
    stage.signal(2, "KILL");
    let since = Instant::now();
    let outcome = running.finish();
    let codes = [0, 1, 2, 3].map(|rank| stage.code(rank));
    assert_eq!(codes, [Some(76), Some(76), Some(137), Some(76)], "{outcome:#?}");
    // Five times what the manual says: the machine may do other things, too.
    assert!(since.elapsed() < Duration::from_secs(5 * (20 + 5)));
    assert!([0, 1, 3].iter().any(|rank| stage.said(*rank).contains("lost rank 2 ")), "{}", stage.said(0));

    // Four worlds of one process each.
    let outcome = stage.start(step(&cluster, &["--mpi=none"], &stage, "")).finish();
    assert_eq!([0, 1, 2, 3].map(|rank| stage.code(rank)), [Some(71); 4], "{outcome:#?}");
    assert!(stage.said(1).contains("srun --mpi=pmix"), "{}", stage.said(1));
}

/// Trains until a signal comes, then asks for another turn, in which it does five iterations more.
const JOB: &str = r#"#!/bin/bash
#SBATCH -N4 -n4 --time=1 --signal=USR1@45 --requeue --open-mode=append --output=job.out
echo "start ${SLURM_RESTART_COUNT:-0}"
last=2000000000
if [ -n "${SLURM_RESTART_COUNT-}" ]; then last=$(($(cat stopped) + 5)); fi
code=0
srun -K1 --mpi=pmix PROGRAM TRAINING --resume auto --max-iter "$last" || code=$?
echo "end $code"
if [ "$code" = 75 ]; then
  ls run/snapshots | sed -n 's/^iteration_\([0-9]*\)$/\1/p' | sort -n | tail -n 1 > stopped
  scontrol requeue "$SLURM_JOB_ID"
fi
"#;

#[test]
fn a_job_that_is_told_before_its_limit_goes_on_after_it_is_requeued() {
    if is_skipped(missing()) {
        return;
    }
    let cluster = Cluster::up();
    // Most of the time it waits for Slurm.
    let stage = Stage::beside_others();
    let training = stage.training("run", "--stop-margin 0").join(" ");
    stage.write("job", &JOB.replace("PROGRAM", program()).replace("TRAINING", &training));
    let submitted = stage.start(cluster.command("sbatch", &["job"])).finish();
    assert_eq!(submitted.code, Some(0), "{submitted:#?}");
    let start = Instant::now();
    while !stage.text("job.out").contains("end 0") {
        assert!(start.elapsed() < Duration::from_secs(300), "{}", stage.text("job.out"));
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = stage.text("job.out");
    let places =
        ["start 0", "end 75", "start 1", "end 0"].map(|line| said.find(line).expect("all four lines"));
    assert!(places.is_sorted(), "{said}");
    let stopped: u64 = stage.text("stopped").trim().parse().expect("an iteration");
    assert_eq!(stage.summary("run")["iterations"], stopped + 5, "{said}");
    let whole = format!("--workers 4 --max-iter {}", stopped + 5);
    assert_eq!(stage.weights("run"), stage.train_over_threads("whole", &whole));
}
