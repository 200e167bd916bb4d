//! Writing a snapshot whose workers live in several processes: one folder, one manifest, one rename.
//!
//! ```text
//!     each other process:     the digest of its worker's arrays → the one that leads
//!     the one that leads:     begins the folder;  whose arrays are whose, and the folder → each
//!     each:                   writes its own files there, on a file system that all share
//!     each other process:     its part of the manifest → the one that leads
//!     the one that leads:     writes the manifest and gives the folder its name
//! ```
//!
//! So no process holds the arrays of another one, and what is the same for several workers is written once, by the first of
//! them, as if all were in one process. Texts of two processes arrive in their order, and snapshots are written one by one,
//! so no text needs a number.

use std::collections::BTreeMap;
use std::path::Path;

use quadrille_io::snapshot::{Draft, FileContent, FileEntry, WorkerEntry, write_file};
use quadrille_io::weights_hash;
use serde_json::{Value, json};

use crate::desk::Binder;
use crate::failure::{Code, Failure};
use crate::state::{Owned, RunState, WorkerState};
use crate::world::World;

/// What tells arrays apart.
fn digest(worker: &WorkerState) -> String {
    format!("{} {}", weights_hash(&worker.arrays.weights), weights_hash(&worker.arrays.history))
}

fn misunderstood(text: &str) -> Failure {
    Failure::new(Code::Bug, format!("a process says of a snapshot what it should not: {text}"))
}

/// Writes the snapshot of `state`, which has the first worker only, with those of all other processes. Nothing is written if
/// it is `present`.
///
/// # Errors
/// If it cannot be written, or a process is lost.
pub fn lead(
    world: &World,
    binder: &Binder,
    path: &Path,
    state: &RunState,
    present: bool,
) -> Result<(), Failure> {
    let others = 1..world.size().unwrap_or(1);
    let own = &state.workers[0];
    let mut owners = BTreeMap::from([(digest(own), 0)]);
    let mut whose = Vec::new();
    for other in others.clone() {
        whose.push(*owners.entry(world.hear(other)?).or_insert(other));
    }
    let draft = if present { None } else { Some(Draft::begin(path)?) };
    let folder =
        draft.as_ref().map(|draft| draft.folder().canonicalize().unwrap_or(draft.folder().to_owned()));
    for (other, owner) in others.clone().zip(&whose) {
        world.tell(other, &json!({"folder": folder, "owner": owner}).to_string())?;
    }
    let Some(draft) = draft else { return Ok(()) };
    let owned = Owned { rank: 0, owner: 0, has_centre: state.centre.is_some() };
    let mut entries = vec![own.entry(owned, state.iteration, &binder.about)];
    let put = |content: FileContent<'_>| write_file(draft.folder(), &content);
    let mut files = vec![put(state.counting_file(&binder.layout))?, put(own.file(owned, &binder.layout))?];
    let mut kept: Vec<FileEntry> = own.kept_file(0).map(put).transpose()?.into_iter().collect();
    for other in others {
        let text = world.hear(other)?;
        let (entry, written) = understood(&text).ok_or_else(|| misunderstood(&text))?;
        let is_kept = |file: &FileEntry| Some(&file.name) == entry.kept.as_ref();
        let (of_layers, of_arrays): (Vec<_>, Vec<_>) = written.into_iter().partition(is_kept);
        files.extend(of_arrays);
        kept.extend(of_layers);
        entries.push(entry);
    }
    files.extend(kept);
    Ok(draft.finish(binder.about.manifest(state.iteration, entries), files)?)
}

fn understood(text: &str) -> Option<(WorkerEntry, Vec<FileEntry>)> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    let entry = serde_json::from_value(value["entry"].take()).ok()?;
    Some((entry, serde_json::from_value(value["files"].take()).ok()?))
}

/// Writes the part of this process, whose worker is the only one of `state`.
///
/// # Errors
/// If it cannot be written, or the process that leads is lost.
pub fn follow(world: &World, binder: &Binder, state: &RunState) -> Result<(), Failure> {
    let (rank, own) = (world.rank(), &state.workers[0]);
    world.tell(0, &digest(own))?;
    let text = world.hear(0)?;
    let value: Value = serde_json::from_str(&text).map_err(|_| misunderstood(&text))?;
    let Some(folder) = value["folder"].as_str() else { return Ok(()) };
    let owner = value["owner"].as_u64().and_then(|owner| usize::try_from(owner).ok());
    let owned =
        Owned { rank, owner: owner.ok_or_else(|| misunderstood(&text))?, has_centre: state.centre.is_some() };
    let contents = (owned.owner == rank).then(|| own.file(owned, &binder.layout)).into_iter();
    let contents = contents.chain(own.kept_file(rank));
    let files = contents.map(|content| write_file(Path::new(folder), &content));
    let files: Vec<FileEntry> =
        files.collect::<Result<_, _>>().map_err(|error| not_shared(folder, error.into()))?;
    let entry = own.entry(owned, state.iteration, &binder.about);
    world.tell(0, &json!({"entry": entry, "files": files}).to_string())
}

/// A folder that only the process that leads sees is the likeliest reason for a failure here.
fn not_shared(folder: &str, failure: Failure) -> Failure {
    if Path::new(folder).is_dir() {
        return failure;
    }
    let hint = "the folder of the run has to lie on a file system that all nodes share; give one as --run";
    let message = format!("{failure}\n  hint: {hint}");
    failure.saying(message)
}
