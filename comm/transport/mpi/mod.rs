//! Ranks that live in several processes, which MPI connects.
//!
//! # Who may call MPI
//!
//! One thread of a process, the *service thread*, which also initialises and ends it; so `MPI_THREAD_FUNNELED` is all that
//! is asked of MPI. Endpoints are values like those of [`super::threads`]: they hand buffers to the service thread and wait
//! at a place of their own. Ranks of one process talk to each other past MPI. Worker i lives in process i; whoever else
//! takes part (a master) lives in process 0.
//!
//! The service thread never blocks inside MPI: it posts what is to be sent, looks for what has come, and rests a little
//! longer each time that there is nothing to do, unless an endpoint waits.
//!
//! # Nothing hangs
//!
//! Every process beats for the next one, in a ring, and watches the one before it: a process that is killed or stopped is
//! noticed within the peer timeout, and on the same node, through the kernel, at once when it ends. Whoever notices tells all; a process that
//! fails tells all by itself, with its exit code. Then every endpoint fails, and names the process to blame. After a loss MPI
//! is not ended, since that may wait for the lost ([`World::quit`]).
//!
//! # Two halves
//!
//! The cargo feature `mpi` selects `enabled.rs`, over rsmpi; without it `disabled.rs` has the same functions and says that
//! MPI is not there.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[cfg(feature = "mpi")]
mod agreement;
#[cfg(feature = "mpi")]
mod early;
#[cfg(feature = "mpi")]
mod enabled;
#[cfg(feature = "mpi")]
#[allow(unsafe_code)]
mod raw;
#[cfg(feature = "mpi")]
mod service;
#[cfg(feature = "mpi")]
mod shared;
#[cfg(feature = "mpi")]
mod watch;
#[cfg(feature = "mpi")]
mod wire;
#[cfg(feature = "mpi")]
pub use enabled::{MpiTransport, World, available, connect, describe};

#[cfg(not(feature = "mpi"))]
mod disabled;
#[cfg(not(feature = "mpi"))]
pub use disabled::{MpiTransport, World, available, connect, describe};

/// What [`connect`] needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bound of every wait for another process.
    pub peer_timeout: Duration,
    /// Set, by a signal's handler for example, when the run is to stop; all processes then agree where.
    pub asked: Arc<AtomicBool>,
    /// The CPUs that this process may use.
    pub cpus: Vec<usize>,
}

/// How the processes of a node share its CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Each was granted CPUs of its own.
    Apart,
    /// All were granted the same.
    Same,
    /// Some CPUs were granted to several, but not all to all.
    Overlapping,
}

/// The processes of this job on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// This process among them.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// How they share CPUs.
    pub sharing: Sharing,
    /// The CPUs that each was granted.
    pub granted: Vec<Vec<usize>>,
}

/// What is known of who started this process, before MPI is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// The tasks of the Slurm step that this process is one of.
    pub tasks: Option<usize>,
    /// The processes that a launcher of MPI says that it started.
    pub processes: Option<usize>,
    /// Whether there is a sign of a process manager that MPI could ask for the others.
    pub managed: bool,
}

impl Launch {
    /// How many processes there should be, as far as that is known.
    pub fn size(self) -> usize {
        self.processes.max(self.tasks).unwrap_or(1)
    }
}

/// What the environment tells of a launcher; `None` if this process was started by itself.
pub fn launched() -> Option<Launch> {
    launch_of(|name| std::env::var(name).ok())
}

fn launch_of(variable: impl Fn(&str) -> Option<String>) -> Option<Launch> {
    let number = |name: &str| variable(name).and_then(|value| value.trim().parse::<usize>().ok());
    // Open MPI's mpirun; Hydra (MPICH, Intel MPI) and Slurm's pmi2.
    let processes = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].iter().find_map(|name| number(name));
    // Under mpirun the tasks of a step are the launcher's daemons, or the shell that it was typed into.
    let by_mpirun = ["OMPI_COMM_WORLD_SIZE", "HYDI_CONTROL_FD"].iter().any(|name| variable(name).is_some());
    let tasks = number("SLURM_STEP_NUM_TASKS");
    let tasks = tasks.filter(|tasks| !by_mpirun && processes.is_none_or(|processes| processes <= *tasks));
    // Pmix and Cray's launchers say who, but not of how many.
    let named =
        ["PMI_RANK", "PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE"].iter().any(|name| variable(name).is_some());
    let several = tasks.is_some_and(|tasks| tasks > 1);
    let managed = processes.is_some() || named;
    (several || tasks.is_none() && managed).then_some(Launch { tasks, processes, managed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Launch> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
        launch_of(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn launchers_are_told_apart_by_what_they_leave_in_the_environment() {
        let launch = |tasks, processes| Some(Launch { tasks, processes, managed: true });
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")]), None, "the script of a batch job");
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "1"), ("PMIX_RANK", "0")]), None, "srun -n 1");
        let none = Some(Launch { tasks: Some(4), processes: None, managed: false });
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "4")]), none, "srun --mpi=none");
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "4"), ("PMIX_RANK", "2")]), launch(Some(4), None));
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "4"), ("PMI_SIZE", "4")]), launch(Some(4), Some(4)));
        // A daemon for each node, and eight processes below them.
        let below = [("SLURM_STEP_NUM_TASKS", "2"), ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(of(&below), launch(None, Some(8)));
        let below = [("SLURM_STEP_NUM_TASKS", "1"), ("HYDI_CONTROL_FD", "8"), ("PMI_SIZE", "3")];
        assert_eq!(of(&below), launch(None, Some(3)));
        // Below `srun -n 1 --pty bash`, by launchers of Hydra's kind that leave no sign of it.
        let below = [("SLURM_STEP_NUM_TASKS", "1"), ("PMI_SIZE", "8"), ("PMI_RANK", "3")];
        assert_eq!(of(&below), launch(None, Some(8)));
        let alone = [("SLURM_STEP_NUM_TASKS", "1"), ("PMI_SIZE", "1"), ("PMI_RANK", "0")];
        assert_eq!(of(&alone), None, "srun -n 1 --mpi=pmi2");
        assert_eq!(of(&[("PALS_RANKID", "0")]), launch(None, None));
        assert_eq!(launch(Some(4), None).map(Launch::size), Some(4));
        assert_eq!(launch(None, None).map(Launch::size), Some(1));
    }
}
