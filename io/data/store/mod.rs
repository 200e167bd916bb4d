//! Data sets written in another form: records of any kind into an LMDB, tar files or the binary format of CIFAR-10.

mod form;
mod labels;
mod mean;
mod target;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quadrille_core::rng::Sampler;
use rayon::prelude::*;

use self::form::Stored;
pub use self::form::{Changes, Encoding, Form};
pub use self::mean::mean;
use self::target::{Item, name_in_tar};
use super::bad::{BadRecords, Tolerance};
use super::records::Records;
use crate::error::IoError;
use crate::whole::{folder_of, sync_folder};

const WHAT: &str = "a data set";

/// What is made of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A folder with an LMDB of Caffe's Datum.
    Lmdb,
    /// One tar file of images.
    Tar,
    /// A folder of so many tar files of images, `shards-000000.tar` and so on, of as many images each, give or take one.
    Shards(usize),
    /// The same, with so many images in each but the last.
    ShardsOf(usize),
    /// A file in the binary format of CIFAR-10.
    Cifar,
}

impl Target {
    fn is_folder(self) -> bool {
        matches!(self, Self::Lmdb | Self::Shards(_) | Self::ShardsOf(_))
    }

    fn is_tar(self) -> bool {
        matches!(self, Self::Tar | Self::Shards(_) | Self::ShardsOf(_))
    }
}

/// How a data set is written.
#[derive(Clone, Copy, Debug)]
pub struct Storing {
    /// What is made.
    pub target: Target,
    /// What is done to each record.
    pub changes: Changes,
    /// The random order in which records come; `None` for that of the data set.
    pub order: Option<Sampler>,
    /// What happens with records that cannot be used; those that are passed over leave a gap in the keys of an LMDB.
    pub tolerance: Tolerance,
}

/// Writes `records` to `path`, which must not be there yet: under another name in the same folder, which becomes `path`
/// once everything is on the disk. Records are prepared by all threads of rayon and written in order. `done` hears how many
/// records are done. Returns the records that were passed over.
///
/// # Errors
/// [`IoError::CannotCreate`], [`IoError::WriteFailed`], or [`IoError::Data`] naming a record that cannot be used, or whose label
/// the target cannot hold.
pub fn store(
    records: &dyn Records,
    storing: &Storing,
    path: &Path,
    mut done: impl FnMut(u64),
) -> Result<BadRecords, IoError> {
    let cannot = |source| IoError::CannotCreate { path: path.to_owned(), what: WHAT, source };
    if path.symlink_metadata().is_ok() {
        return Err(cannot(io::Error::new(io::ErrorKind::AlreadyExists, "it is there already")));
    }
    let is_tar = storing.target.is_tar();
    if is_tar {
        labels::check_all(records, path)?;
    }
    let part = part_of(path);
    let mut write = || -> Result<BadRecords, Step> {
        if storing.target.is_folder() {
            fs::create_dir(&part).map_err(Step::Create)?;
        }
        let mut writer = storing.target.writer(&part, records.len())?;
        let (bad, mut files) = (BadRecords::new(storing.tolerance), Vec::new());
        each(records, storing.changes, storing.order, &bad, |item| {
            let outcome = writer.add(&item);
            if is_tar && outcome.is_ok() {
                files.extend(name_in_tar(&item).map(|name| (name, item.index)));
            }
            done(item.number as u64 + 1);
            outcome
        })?;
        if is_tar {
            // Files that were made anew have other names, and of records that were passed over a class may have been all.
            labels::check(records, files, path)?;
        }
        writer.finish()?;
        fs::rename(&part, path)?;
        // The new name is on the disk only once its folder is.
        sync_folder(folder_of(path))?;
        Ok(bad)
    };
    write().map_err(|step| {
        // Nothing is left to do if the remains cannot be removed either.
        let _ = if storing.target.is_folder() { fs::remove_dir_all(&part) } else { fs::remove_file(&part) };
        match step {
            Step::Record(error) => error,
            Step::Create(source) => cannot(source),
            Step::Write(source) => IoError::WriteFailed { path: path.to_owned(), what: WHAT, source },
        }
    })
}

/// A hidden name beside `path` that no other process uses.
fn part_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    folder_of(path).join(name)
}

/// What went wrong on the way.
#[derive(Debug)]
enum Step {
    /// With a record, by name.
    Record(IoError),
    Create(io::Error),
    Write(io::Error),
}

impl From<io::Error> for Step {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl From<IoError> for Step {
    fn from(error: IoError) -> Self {
        Self::Record(error)
    }
}

/// What a writer has against a record, or what the system has against the writer.
#[derive(Debug)]
enum Refused {
    /// Without the record's name.
    Record(String),
    Write(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

/// Hands every record, changed, to `used` in order; several are prepared at a time.
fn each(
    records: &dyn Records,
    changes: Changes,
    order: Option<Sampler>,
    bad: &BadRecords,
    mut used: impl FnMut(Item<'_>) -> Result<(), Refused>,
) -> Result<(), Step> {
    let order = |number: usize| order.map_or(number, |order| order.index(number as u64) as usize);
    let numbers: Vec<usize> = (0..records.len()).collect();
    // Enough that no thread waits for another, and not so many that their memory counts.
    for some in numbers.chunks(4 * rayon::current_num_threads()) {
        let prepared: Vec<Result<Stored, String>> = some
            .par_iter()
            .map(|number| {
                let mut stored = Vec::new();
                changes.apply(&records.read(order(*number), &mut stored)?)
            })
            .collect();
        for (number, stored) in some.iter().zip(prepared) {
            let index = order(*number);
            let outcome = stored.map_err(Refused::Record).and_then(|stored| {
                used(Item { number: *number, index, path: records.path(index), stored: &stored })
            });
            match outcome {
                Ok(()) => {}
                Err(Refused::Record(message)) => bad.note(records, index, message)?,
                Err(Refused::Write(error)) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
