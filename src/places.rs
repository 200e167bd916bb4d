//! Where the threads of a run that do not compute have their places, and whether the system lets any thread have one.

use std::sync::Arc;

use quadrille_io::data::Readers;
use quadrille_numa::{
    Partition, Pinning, Reserve, Role, Strictness, pin_current_thread, release_current_thread,
};

use crate::failure::{Code, Failure};

/// The CPUs of a worker's threads that do not compute; without one a thread runs wherever the process may. The thread that
/// writes snapshots is started by the leading one and stays beside it.
#[derive(Clone, Debug, Default)]
pub struct Places {
    main: Option<usize>,
    comm: Option<usize>,
    io: Vec<usize>,
    /// Whether nobody but those on the cores of `io` may read and decode.
    reads_there_only: bool,
    /// The CPUs of the process.
    all: Vec<usize>,
}

impl Places {
    /// Those of one of the workers.
    pub fn of(partition: &Partition, worker: usize, all: &[usize], reserve: Reserve) -> Self {
        let reads_there_only = matches!(reserve, Reserve::Cores { io: 1.., .. });
        let mut places = Self { all: all.to_vec(), reads_there_only, ..Self::default() };
        let own = partition.threads.iter().filter(|thread| thread.worker == worker);
        for (role, cpu) in own.filter_map(|thread| Some((thread.role, thread.cpu?))) {
            match role {
                Role::Compute => {}
                Role::Main => places.main = Some(cpu),
                Role::Comm => places.comm = Some(cpu),
                Role::Io => places.io.push(cpu),
            }
        }
        places
    }

    /// The threads that read and decode for this worker: those of the whole process, or as many as have cores of their own.
    pub fn readers(&self) -> Readers {
        let threads = if self.reads_there_only { self.io.len() } else { 0 };
        let places = self.clone();
        Readers { threads, settle: Arc::new(move |number| places.settle(Role::Io, number)) }
    }

    /// Moves the thread that calls to its place, the `number`th of its role. That the system lets it was found out before
    /// ([`unpinned_if_refused`]).
    pub fn settle(&self, role: Role, number: usize) {
        let place = match role {
            Role::Compute => None,
            Role::Main => self.main,
            Role::Comm => self.comm,
            Role::Io => self.io.get(number).copied(),
        };
        let outcome = match (place, self.main) {
            (Some(cpu), _) => pin_current_thread(cpu),
            // It may have been started by the thread that leads, and then has that one's CPU.
            (None, Some(_)) => release_current_thread(&self.all),
            (None, None) => return,
        };
        if let Pinning::Refused(reason) = outcome {
            // Only where permission was withdrawn after the start.
            eprintln!("quadrille: a thread of role {role} is not in its place: {reason}");
        }
    }
}

/// Asks the system whether it lets threads be pinned as planned. If not, nothing is pinned and the reason is returned, to be
/// said; or the run ends.
///
/// # Errors
/// If pinning is refused and `strictness` insists on it.
pub fn unpinned_if_refused(
    partition: &mut Partition,
    strictness: Strictness,
) -> Result<Option<String>, Failure> {
    let cpus: Vec<usize> = partition.threads.iter().filter_map(|thread| thread.cpu).collect();
    let refused = quadrille_numa::refusals(&cpus);
    let Some(reason) = refused.first() else { return Ok(None) };
    let those = format!("{} of {} threads cannot be pinned", refused.len(), partition.threads.len());
    if strictness == Strictness::Strict {
        let message = format!(
            "--numa strict: {those}: {reason}\n  hint: let the container or job allow sched_setaffinity, or run with --numa best"
        );
        return Err(Failure::new(Code::Environment, message));
    }
    partition.quadrants.iter_mut().for_each(|quadrant| quadrant.pinned = false);
    partition.threads.iter_mut().for_each(|thread| thread.cpu = None);
    Ok(Some(format!("{those}: {reason}. Nothing is pinned; --numa strict would end here.")))
}
