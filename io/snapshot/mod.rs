//! Snapshots of a run: a folder of `.safetensors` files with a manifest that finds every change to any of them.
//!
//! A folder is written beside its place under a hidden name, brought to the disk, and only then given its name, so a crash
//! at any moment leaves the folder whole or not there. Whatever is in it, no more and no less, stands in the manifest
//! with its length and BLAKE3, and the manifest carries a BLAKE3 of itself.

mod manifest;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use manifest::{FileEntry, Manifest, RandomNumbers, WorkerEntry, seal};
pub use read::Snapshot;
pub(crate) use read::iteration_of;
pub use write::{Array, Draft, FileContent, write, write_file};

/// The name of the manifest in a snapshot.
pub const MANIFEST: &str = "manifest.json";
/// The file of the weights that count: the centre, or the workers' own where all are equal. Its arrays are called
/// `LAYER/INDEX`, as in every file of weights.
pub const WEIGHTS: &str = "weights.safetensors";
