//! The manifest of a snapshot: where the run stands, and what the folder holds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{MANIFEST, WEIGHTS};
use crate::error::IoError;

const FORMAT: &str = "quadrille snapshot";
const VERSION: u64 = 2;
/// What a manifest begins with; the digits of its own BLAKE3 follow.
const START: &[u8] = b"{\n  \"blake3\": \"";
const DIGITS: usize = 64;

/// Where a run stands, and the files that hold the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Iterations done.
    pub iteration: u64,
    /// The network's name.
    pub network: String,
    /// What a run that goes on must have in common with this one.
    pub identity: BTreeMap<String, String>,
    /// The settings of the run, for people.
    pub settings: Value,
    /// Where random numbers come from.
    pub random_numbers: RandomNumbers,
    /// Every worker, by its number.
    pub workers: Vec<WorkerEntry>,
    /// Every file of the folder but the manifest.
    pub files: Vec<FileEntry>,
}

/// Where random numbers come from: each is a function of the seed and of a counter, and the counters stand with the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomNumbers {
    /// The generator.
    pub generator: String,
    /// The seed of the run.
    pub seed: u64,
    /// What draws from which stream, with which counter; for people.
    pub drawn: BTreeMap<String, String>,
}

/// Where a worker stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// Iterations done.
    pub iteration: u64,
    /// The next sample that it draws, counted from the start of the run: its place in the data, and the counter of the
    /// streams of order and of random changes to samples.
    pub next_sample: u64,
    /// The epoch of that sample: how often the worker has drawn the whole data set before.
    pub epoch: u64,
    /// The next mini-batch: the counter of the stream from which each step takes the seed of its layers.
    pub next_step: u64,
    /// What its rate and display remember, to the last bit.
    pub course: String,
    /// The file of its histories. Workers that are replicas of each other have one file.
    pub file: String,
    /// Whether the file has weights of the worker's own; else those that count are its weights.
    pub own_weights: bool,
    /// The file of what its layers keep from one mini-batch to the next, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

/// A file of the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its BLAKE3, in hexadecimal.
    pub blake3: String,
}

/// What tells the format; behind it comes the manifest itself.
#[derive(Serialize, Deserialize)]
struct Tagged<M> {
    format: String,
    version: u64,
    #[serde(flatten)]
    manifest: M,
}

#[derive(Deserialize)]
struct Nothing {}

impl Manifest {
    /// The bytes of the file. The same manifest gives the same bytes.
    ///
    /// # Errors
    /// If the manifest contradicts itself.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        self.check()?;
        let tagged = Tagged { format: FORMAT.to_owned(), version: VERSION, manifest: self };
        let text = serde_json::to_vec_pretty(&tagged).map_err(|error| error.to_string())?;
        let mut bytes = [START, &[b'0'; DIGITS], b"\",", &text[1..], b"\n"].concat();
        let digest = blake3::hash(&bytes);
        bytes[START.len()..START.len() + DIGITS].copy_from_slice(digest.to_hex().as_bytes());
        Ok(bytes)
    }

    /// Reads the bytes of a manifest that lies at `path`.
    ///
    /// # Errors
    /// [`IoError::Data`] if they are not what was written, or of another version, or contradict themselves.
    pub fn of_bytes(path: &Path, bytes: &[u8]) -> Result<Self, IoError> {
        let damaged = |message: String| IoError::data(path, message);
        let digits = START.len()..START.len() + DIGITS;
        if !bytes.starts_with(START) || bytes.len() < digits.end {
            return Err(damaged("is no manifest of a snapshot, or is cut off".to_owned()));
        }
        let mut blank = bytes.to_vec();
        blank[digits.clone()].fill(b'0');
        if blake3::hash(&blank).to_hex().as_bytes() != &bytes[digits] {
            return Err(damaged("is not what was written: its BLAKE3 is another".to_owned()));
        }
        let kind: Tagged<Nothing> =
            serde_json::from_slice(&blank).map_err(|error| damaged(error.to_string()))?;
        if kind.format != FORMAT || kind.version != VERSION {
            let (format, version) = (kind.format, kind.version);
            return Err(damaged(format!(
                "is {format:?} of version {version}; expected {FORMAT:?} {VERSION}"
            ))
            .hint("it was written by another version of this program"));
        }
        let manifest: Self = serde_json::from_slice(&blank).map_err(|error| damaged(error.to_string()))?;
        manifest.check().map_err(damaged)?;
        Ok(manifest)
    }

    /// The entry of a file.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }

    /// What a manifest must be whoever wrote it: names stay inside of the folder, and nothing that it needs is missing.
    fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for FileEntry { name, .. } in &self.files {
            let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
            if !plain || name == MANIFEST {
                return Err(format!("{name:?} is no name of a file in a snapshot"));
            }
            if !names.insert(name.as_str()) {
                return Err(format!("it lists {name:?} twice"));
            }
        }
        let files = |worker: &'_ WorkerEntry| [Some(worker.file.clone()), worker.kept.clone()];
        let needed = self.workers.iter().flat_map(files).flatten().chain([WEIGHTS.to_owned()]);
        if let Some(missing) = needed.into_iter().find(|name| !names.contains(name.as_str())) {
            return Err(format!("it does not list {missing:?}"));
        }
        match self.workers.iter().position(|worker| worker.iteration != self.iteration) {
            Some(rank) => Err(format!("worker {rank} is not in the iteration of the run")),
            None => Ok(()),
        }
    }
}
