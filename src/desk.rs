//! Where workers leave their state, and the thread that writes it down while they go on.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use quadrille_core::net::ParamLayout;
use quadrille_io::{RunFolder, snapshot};

use crate::failure::{Code, Failure};
use crate::filing;
use crate::state::{About, RunState, WorkerState};
use crate::world::World;

/// What every snapshot of a run has in common.
#[derive(Debug)]
pub struct Binder {
    /// The folder of the run; `None` in a process that does not lead.
    pub folder: Option<RunFolder>,
    /// Where parameters lie in packed arrays.
    pub layout: ParamLayout,
    /// What is said of the run.
    pub about: About,
    /// How many snapshots are kept; `None` for all.
    pub keep: Option<usize>,
    /// The iteration of a snapshot that is there already, since the run goes on from it.
    pub present: Option<u64>,
}

/// Where the workers of a process leave their state; what the last one completes is written by a thread of its own, together
/// with those of other processes.
pub struct SnapshotDesk {
    binder: Arc<Binder>,
    world: Arc<World>,
    workers: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// What was left of each iteration. Workers that exchange rarely may leave the next before the last has left this one.
    states: BTreeMap<u64, BTreeMap<usize, WorkerState>>,
    writing: Option<JoinHandle<Result<Option<Latest>, Failure>>>,
    latest: Option<Latest>,
}

/// The snapshot that was written last.
#[derive(Debug)]
pub struct Latest {
    /// Its folder.
    pub path: PathBuf,
    /// What is in it; of the workers the first.
    pub state: RunState,
}

impl SnapshotDesk {
    /// A desk for so many workers of this process.
    pub fn new(binder: Binder, workers: usize, world: Arc<World>) -> Self {
        Self { binder: Arc::new(binder), world, workers, table: Mutex::default() }
    }

    /// Worker `rank` leaves its state after `iteration` iterations, and the centre, which is the same from all. Waits only
    /// if the snapshot before is still being written, since no more than one is kept in memory.
    pub fn leave(
        &self,
        rank: usize,
        iteration: u64,
        mut state: WorkerState,
        centre: Option<Vec<f32>>,
    ) -> Result<(), Failure> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let states = table.states.entry(iteration).or_default();
        if let Some(other) = states.values().next() {
            state.share(other);
        }
        states.insert(rank, state);
        if states.len() < self.workers {
            return Ok(());
        }
        let workers = table.states.remove(&iteration).unwrap_or_default().into_values().collect();
        table.finish()?;
        // It has served its purpose, and takes as much memory as the next.
        table.latest = None;
        let state = RunState { iteration, centre, workers };
        let (binder, world) = (self.binder.clone(), self.world.clone());
        let write = move || binder.file(state, &world);
        let thread = thread::Builder::new().name("snapshot".to_owned()).spawn(write);
        let failed =
            |error| Failure::new(Code::Environment, format!("no thread to write snapshots: {error}"));
        table.writing = Some(thread.map_err(failed)?);
        Ok(())
    }

    /// Fails if the snapshot that was being written could not be, so that a run need not train on for nothing.
    pub fn look(&self) -> Result<(), Failure> {
        // Whoever holds the table looks by himself.
        let Ok(mut table) = self.table.try_lock() else { return Ok(()) };
        if table.writing.as_ref().is_some_and(JoinHandle::is_finished) { table.finish() } else { Ok(()) }
    }

    /// Waits until everything is on the disk, so that processes are silent about snapshots until the next is left.
    pub fn settle(&self) -> Result<(), Failure> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).finish()
    }

    /// Waits until everything is on the disk. Returns the snapshot that was written last, if there is one.
    pub fn finish(&self) -> Result<Option<Latest>, Failure> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.finish()?;
        Ok(table.latest.take())
    }
}

impl Drop for SnapshotDesk {
    /// A run that fails still finishes the snapshot that it has begun.
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl Table {
    fn finish(&mut self) -> Result<(), Failure> {
        if let Some(thread) = self.writing.take() {
            let lost =
                || Failure::new(Code::Bug, "the thread that writes snapshots panicked: please report this");
            self.latest = thread.join().map_err(|_| lost())??;
        }
        Ok(())
    }
}

impl Binder {
    /// Writes a snapshot, then removes those that are too many. Whoever does not lead writes its part.
    fn file(&self, mut state: RunState, world: &World) -> Result<Option<Latest>, Failure> {
        let Some(folder) = &self.folder else {
            filing::follow(world, self, &state)?;
            return Ok(None);
        };
        let path = folder.snapshot_path(state.iteration);
        // Whoever goes on from the end has nothing to add to it.
        let present = self.present == Some(state.iteration);
        if world.size().is_some() {
            filing::lead(world, self, &path, &state, present)?;
        } else if !present {
            snapshot::write(&path, state.manifest(&self.about), &state.files(&self.layout))?;
        }
        // An old snapshot that does not go is no reason to lose a training.
        if let Some(error) = self.keep.and_then(|keep| folder.keep_newest(keep).err()) {
            say!("note        old snapshots could not be removed: {error}");
        }
        state.workers.truncate(1);
        Ok(Some(Latest { path, state }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Course, WorkerArrays};
    use quadrille_io::snapshot::Snapshot;
    use quadrille_io::weights::Tensors;

    fn state(value: f32) -> WorkerState {
        let arrays = WorkerArrays { weights: vec![value], history: vec![] };
        WorkerState { arrays: Arc::new(arrays), kept: Tensors::new(), course: Course::new(1) }
    }

    /// Of two workers the first is two snapshots ahead: each has what both left of its iteration.
    #[test]
    fn a_snapshot_is_of_one_iteration() {
        let home = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(&home.path().join("run")).expect("a run folder");
        let about = About {
            network: "net".to_owned(),
            identity: BTreeMap::new(),
            settings: serde_json::Value::Null,
            seed: 1,
            parts: 1,
            batch: 1,
            images: 10,
        };
        let layout = ParamLayout::default();
        let binder = Binder { folder: Some(folder.clone()), layout, about, keep: None, present: None };
        let desk = SnapshotDesk::new(binder, 2, Arc::new(World::alone()));
        for (rank, iteration) in [(0, 3), (0, 5), (0, 8), (1, 3), (1, 5), (1, 8)] {
            let weight = (10 * iteration + rank as u64) as f32;
            desk.leave(rank, iteration, state(weight), None).expect("room on the desk");
            if rank == 1 {
                let latest = desk.finish().expect("a snapshot").expect("it is there");
                let found = [latest.state.iteration as f32, latest.state.workers[0].arrays.weights[0]];
                assert_eq!(found, [iteration as f32, (10 * iteration) as f32]);
            }
        }
        for iteration in [3, 5, 8] {
            let snapshot = Snapshot::read(&folder.snapshot_path(iteration)).expect("a snapshot");
            assert_eq!((snapshot.manifest.iteration, snapshot.manifest.workers.len()), (iteration, 2));
        }
    }
}
