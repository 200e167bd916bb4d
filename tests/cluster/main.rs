//! Trainings in several processes, started by mpirun and by a throw-away Slurm cluster: the same bits as over threads, an end
//! of all with the same code whatever happens to one, and no hang.
//!
//! Needs a build with the feature `mpi`; `scripts/test` makes one where MPI can be had. `QUADRILLE_MPIRUN` names another
//! mpirun than that of the PATH, which has to be of the MPI that the program was built with.

mod batch_system;
mod bits;
mod losses;
mod stage;
#[path = "../program/timeline.rs"]
mod timeline;

/// Why nothing of this can be run here; `None` if it can.
fn missing() -> Option<String> {
    if !cfg!(feature = "mpi") {
        return Some("built without MPI (scripts/setup --mpi, then --features mpi)".to_owned());
    }
    let found = stage::mpirun_command().arg("--version").output().is_ok_and(|output| output.status.success());
    (!found).then(|| format!("no {} in the PATH (scripts/setup --mpi)", stage::mpirun_name()))
}

/// Says that a test is skipped, and why; false if it can run.
fn is_skipped(reason: Option<String>) -> bool {
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}
