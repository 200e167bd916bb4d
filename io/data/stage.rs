//! Copies of data sets on storage of the node, for file systems that many nodes share.
//!
//! A copy lies in a folder named after its source and a hash of the names, sizes and times of its files, beside a manifest
//! with the hash of each file. It gets this name only once all of it was read back and found right, and it is checked again
//! before it is used again. Who copies holds a lock of the system, which ends with its process, however that ends.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::kinds::name_of;
use crate::error::IoError;
use crate::hash::{hex, short_hex};

const WHAT: &str = "a copy of the data";
const MANIFEST: &str = "manifest.json";
/// The folders of a copy in which a list lies, and the files that it names.
const LISTS: &str = "list";
const FILES: &str = "files";
/// Begins the parts of a copied file's path that are no names in the path that the list has.
const MARK: char = '%';
/// How often it is asked whether another process is done.
const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes that are read at a time.
const STEP: usize = 1 << 20;
/// What a file system gives at least to a file.
const BLOCK: u64 = 4096;
/// How deep folders may lie in each other: links can make circles.
const DEEPEST: usize = 16;

/// What happens while a data set is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageEvent {
    /// Another process, if it says which, is copying the same; this one waits for it.
    Waiting(Option<u32>),
    /// So many bytes of all are copied.
    Copied(u64, u64),
    /// A copy that is there already does not have the right content, and is made again.
    Damaged(PathBuf),
    /// The copy is there: its folder, its bytes, and whether it was there before.
    Done(PathBuf, u64, bool),
}

/// Who wants to hear what happens.
type Listener<'a> = &'a (dyn Fn(StageEvent) + Sync);

/// Where copies are made, and who wants to hear of it.
#[derive(Clone, Copy)]
pub struct Staging<'a> {
    /// A folder on storage of this node, which is made if it is not there.
    pub to: &'a Path,
    /// Hears what happens, from any thread.
    pub tell: &'a (dyn Fn(StageEvent) + Sync),
}

impl fmt::Debug for Staging<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging").field("to", &self.to).finish_non_exhaustive()
    }
}

/// A file of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Item {
    /// Its path in the copy.
    path: String,
    #[serde(skip)]
    from: PathBuf,
    bytes: u64,
    /// Nanoseconds after 1970.
    modified: u64,
    /// SHA-256 of its content.
    sha256: String,
}

impl Item {
    /// `found` is what the system says of the file at `from`.
    fn new(path: String, from: PathBuf, found: &Metadata) -> Self {
        let modified = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = modified.map_or(0, |time| time.as_nanos() as u64);
        Self { path, from, bytes: found.len(), modified, sha256: String::new() }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    files: Vec<Item>,
}

/// Copies files and folders into a folder below `to`, unless a good copy is there already, and returns where each of them
/// lies now. Folders are copied with all files in them but hidden ones and locks.
///
/// # Errors
/// [`IoError::Missing`] if something cannot be read, [`IoError::CannotCreate`] if there is too little room or the folder
/// cannot be used, [`IoError::WriteFailed`] if the copy cannot be written or is not read back as it was written.
pub(super) fn stage(paths: &[PathBuf], staging: Staging<'_>) -> Result<Vec<PathBuf>, IoError> {
    let mut items = Vec::new();
    for path in paths {
        list(path, name_of(path), 0, &mut items)?;
    }
    let name = paths.first().map_or_else(String::new, |path| name_of(path));
    let folder = stage_items(&name, items, staging)?;
    Ok(paths.iter().map(|path| folder.join(name_of(path))).collect())
}

/// Copies the files that `list` names, and the list, into a folder below `to`, unless a good copy is there already. Of each
/// file where it lies is given, and how the list names it, from which [`listed_copy`] knows where its copy lies in the
/// folder that is returned. What is not there, or is no file, is left out.
///
/// # Errors
/// As [`stage`].
pub(super) fn stage_listed(
    list: &Path,
    named: Vec<(PathBuf, &str)>,
    staging: Staging<'_>,
) -> Result<PathBuf, IoError> {
    let is_among = named.iter().any(|(from, _)| from == list);
    let itself = (!is_among).then(|| (list.to_owned(), format!("{LISTS}/{}", name_of(list))));
    let item = |(from, path): (PathBuf, String)| match fs::metadata(&from) {
        Ok(found) if found.is_file() => Some(Ok(Item::new(path, from, &found))),
        Ok(_) => None,
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => None,
        Err(error) => Some(Err(IoError::unreadable(&from, "a file of a data set", &error))),
    };
    let files = named.into_par_iter().map(|(from, name)| (from, listed_path(name)));
    let mut items: Vec<Item> = files.chain(itself).filter_map(item).collect::<Result<_, _>>()?;
    items.sort_by(|a, b| a.path.cmp(&b.path));
    items.dedup_by(|a, b| a.path == b.path);
    stage_items(&name_of(list), items, staging)
}

/// Where the copy of a file lies that a list names so, in the folder of [`stage_listed`].
pub(super) fn listed_copy(folder: &Path, name: &str) -> PathBuf {
    folder.join(listed_path(name))
}

/// The path, in a copy, of a file that a list names so: the names of two files never have the same, and none leads out.
fn listed_path(name: &str) -> String {
    let mut path = FILES.to_owned();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => {
                let part = part.to_string_lossy();
                // A mark is for what is no name.
                path.push_str(if part.starts_with(MARK) { "/%" } else { "/" });
                path.push_str(&part);
            }
            Component::ParentDir => path.push_str("/%up"),
            Component::RootDir => path.push_str("/%root"),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    path
}

/// Copies files into the folder of a data set of this name, unless they are there already, and returns the folder.
fn stage_items(name: &str, mut items: Vec<Item>, staging: Staging<'_>) -> Result<PathBuf, IoError> {
    let Staging { to, tell } = staging;
    items.sort_by(|a, b| a.path.cmp(&b.path));
    let total: u64 = items.iter().map(|item| item.bytes).sum();
    let name = format!("{name}-{}", key(&items));
    let folder = to.join(&name);
    let cannot = |path: &Path, source| IoError::CannotCreate { path: path.to_owned(), what: WHAT, source };
    fs::create_dir_all(to).map_err(|error| cannot(to, error))?;
    let lock = to.join(format!(".{name}.lock"));
    // Held until this function ends, or the process does.
    let _held = hold(&lock, tell).map_err(|error| cannot(&lock, error))?;
    let there = folder.exists();
    let reused = there && is_good(&folder, &items);
    if !reused {
        if there {
            tell(StageEvent::Damaged(folder.clone()));
            fs::remove_dir_all(&folder).map_err(|error| cannot(&folder, error))?;
        }
        remove_remains(to, &name);
        check_room(&items, to)?;
        let part = to.join(format!(".{name}.{}.part", std::process::id()));
        copy_to(&part, &folder, items, (total, tell)).inspect_err(|_| {
            // Nothing is left to do if the remains cannot be removed either.
            let _ = fs::remove_dir_all(&part);
        })?;
    }
    tell(StageEvent::Done(folder.clone(), total, reused));
    Ok(folder)
}

/// The files below `from`, which is called `path` in the copy.
fn list(from: &Path, path: String, depth: usize, items: &mut Vec<Item>) -> Result<(), IoError> {
    let unreadable = |error| IoError::unreadable(from, "a data set", &error);
    let found = fs::metadata(from).map_err(unreadable)?;
    if found.is_file() {
        items.push(Item::new(path, from.to_owned(), &found));
        return Ok(());
    }
    if !found.is_dir() || depth > DEEPEST {
        return Err(IoError::missing(from, "is no file, or lies too deep to be copied"));
    }
    for entry in fs::read_dir(from).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        if let Some(name) = name.to_str().filter(|name| !name.starts_with('.') && *name != "lock.mdb") {
            list(&from.join(name), format!("{path}/{name}"), depth + 1, items)?;
        }
    }
    Ok(())
}

/// 16 hexadecimal digits over the names, sizes and times of all files.
fn key(items: &[Item]) -> String {
    let mut hash = Sha256::new();
    for Item { path, bytes, modified, .. } in items {
        hash.update((path.len() as u64).to_le_bytes());
        hash.update(path);
        hash.update(bytes.to_le_bytes());
        hash.update(modified.to_le_bytes());
    }
    short_hex(&hash.finalize())
}

/// Takes the lock in a file and writes the number of this process into it.
fn hold(path: &Path, tell: Listener<'_>) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {
                if !std::mem::replace(&mut told, true) {
                    let text = fs::read_to_string(path).unwrap_or_default();
                    tell(StageEvent::Waiting(text.trim().parse().ok()));
                }
                // Ends with the process that is waited for: the system takes its lock away.
                std::thread::sleep(PATIENCE);
            }
        }
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

/// Whether a folder holds the files, and each of them has the content that was copied.
fn is_good(folder: &Path, items: &[Item]) -> bool {
    let text = fs::read_to_string(folder.join(MANIFEST)).unwrap_or_default();
    let Ok(Manifest { files }) = serde_json::from_str::<Manifest>(&text) else { return false };
    let same = |(a, b): (&Item, &Item)| (&a.path, a.bytes, a.modified) == (&b.path, b.bytes, b.modified);
    files.len() == items.len()
        && files.iter().zip(items).all(same)
        && files
            .par_iter()
            .all(|item| hash_of(&folder.join(&item.path)).is_ok_and(|hash| hash == item.sha256))
}

/// Hands a file to `used` piece by piece, and returns the hash of its content.
fn read_through(path: &Path, mut used: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<String> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut piece = vec![0; STEP];
    loop {
        let got = file.read(&mut piece)?;
        if got == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&piece[..got]);
        used(&piece[..got])?;
    }
}

fn hash_of(path: &Path) -> io::Result<String> {
    read_through(path, |_| Ok(()))
}

/// Removes what processes left that were ended while they copied the same. Only who holds the lock may.
fn remove_remains(to: &Path, name: &str) {
    let start = format!(".{name}.");
    for entry in fs::read_dir(to).into_iter().flatten().flatten() {
        let remains =
            entry.file_name().to_str().is_some_and(|n| n.starts_with(&start) && n.ends_with(".part"));
        if remains {
            // If it cannot be removed, there may be room for the copy all the same.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn check_room(items: &[Item], to: &Path) -> Result<(), IoError> {
    let needed: u64 = items.iter().map(|item| item.bytes.next_multiple_of(BLOCK) + BLOCK).sum();
    // Where the system does not say, the copy itself will.
    let Ok(found) = rustix::fs::statvfs(to) else { return Ok(()) };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if needed <= free {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let message = format!("it needs {} MiB, but only {} MiB are free", mib(needed), mib(free));
    let source = io::Error::new(io::ErrorKind::StorageFull, message);
    Err(IoError::CannotCreate { path: to.to_owned(), what: WHAT, source })
}

/// Copies into `part`, reads everything back, and gives it the name `folder`.
fn copy_to(
    part: &Path,
    folder: &Path,
    mut items: Vec<Item>,
    (total, tell): (u64, Listener<'_>),
) -> Result<(), IoError> {
    let cannot = |source| IoError::CannotCreate { path: part.to_owned(), what: WHAT, source };
    let failed = |path: &Path, source| IoError::WriteFailed { path: path.to_owned(), what: WHAT, source };
    fs::create_dir(part).map_err(cannot)?;
    let folders: std::collections::BTreeSet<PathBuf> =
        items.iter().filter_map(|item| Some(part.join(&item.path).parent()?.to_owned())).collect();
    folders.iter().try_for_each(|folder| fs::create_dir_all(folder).map_err(cannot))?;
    let done = AtomicU64::new(0);
    items.par_iter_mut().try_for_each(|item| {
        let to = part.join(&item.path);
        let mut file = File::create_new(&to).map_err(|error| failed(&to, error))?;
        let (mut bytes, mut broken) = (0, None);
        let read = read_through(&item.from, |piece| {
            bytes += piece.len() as u64;
            tell(StageEvent::Copied(
                done.fetch_add(piece.len() as u64, Ordering::Relaxed) + piece.len() as u64,
                total,
            ));
            file.write_all(piece).inspect_err(|error| broken = Some(error.kind()))
        });
        item.sha256 = read.map_err(|error| match broken {
            Some(_) => failed(&to, error),
            None => IoError::unreadable(&item.from, "a file of a data set", &error),
        })?;
        if bytes != item.bytes {
            let message =
                format!("had {} bytes and then {bytes}: it changed while it was copied", item.bytes);
            return Err(IoError::data(&item.from, message));
        }
        let back = hash_of(&to).map_err(|error| failed(&to, error))?;
        match back == item.sha256 {
            true => Ok(()),
            false => Err(failed(&to, io::Error::other("it is read back with other content"))),
        }
    })?;
    let manifest =
        serde_json::to_string(&Manifest { files: items }).map_err(|error| failed(part, error.into()))?;
    fs::write(part.join(MANIFEST), manifest).map_err(|error| failed(part, error))?;
    fs::rename(part, folder).map_err(|error| failed(folder, error))
}
