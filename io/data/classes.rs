//! Images in folders, one for each class: which of them belong to a phase, which label they have, and their order.

use std::collections::BTreeSet;
use std::path::Path;

use quadrille_core::net::Phase;

use super::records::IndexHash;
use crate::error::IoError;

/// Names that a part of a data set for one phase has.
const PARTS: [&str; 4] = ["train", "test", "val", "validation"];

/// What image files end with.
const ENDINGS: [&str; 3] = [".jpg", ".jpeg", ".png"];

/// Whether a file is an image, by its name. Hidden files are none.
pub(super) fn is_image(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let lower = name.to_ascii_lowercase();
    !name.starts_with('.') && ENDINGS.iter().any(|ending| lower.ends_with(ending))
}

/// The part of a data set that is for `phase`, if all that is there (`names`) are such parts: `train` to train;
/// to test `test`, or else `val` or `validation`.
///
/// # Errors
/// What is missing, if they are parts, but there is none for the phase.
pub(super) fn part_of<'a>(
    names: impl IntoIterator<Item = &'a str>,
    phase: Phase,
) -> Result<Option<&'static str>, String> {
    let names: BTreeSet<&str> = names.into_iter().collect();
    if names.is_empty() || !names.iter().all(|name| PARTS.contains(name)) {
        return Ok(None);
    }
    let wanted = match phase {
        Phase::Train => &PARTS[..1],
        Phase::Test => &PARTS[1..],
    };
    let found = wanted.iter().find(|part| names.contains(**part));
    let there: Vec<&str> = names.iter().copied().collect();
    found.copied().map(Some).ok_or_else(|| {
        format!("has {}, but for phase {phase} it would need {}", there.join(" and "), wanted.join(" or "))
    })
}

/// An image with its path below the folder of its classes, and where it lies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member<P> {
    pub path: Box<str>,
    pub label: i32,
    pub bytes: u64,
    pub place: P,
}

/// Gives images the labels of their folders (the place of a class's name among all, sorted) and sorts them by path, which
/// is the one order of a data set, whatever it is stored in.
///
/// # Errors
/// [`IoError::Data`] naming `source` if there are none, if one lies in no folder or is there twice.
pub(super) fn by_class<P>(images: Vec<(String, u64, P)>, source: &Path) -> Result<Vec<Member<P>>, IoError> {
    if images.is_empty() {
        let message = "has no images (.jpg, .jpeg, .png) in folders, one for each class";
        return Err(IoError::data(source, message));
    }
    let mut classes = BTreeSet::new();
    for (path, ..) in &images {
        let Some((class, _)) = path.split_once('/') else {
            return Err(IoError::data(source, format!("image {path:?} lies in no folder of a class"))
                .hint("put it into a folder named after its class, or use a list of paths and labels"));
        };
        classes.insert(class.to_owned());
    }
    let classes: Vec<String> = classes.into_iter().collect();
    let label = |path: &str| {
        let class = path.split('/').next().unwrap_or_default();
        classes.binary_search_by(|known| known.as_str().cmp(class)).unwrap_or_default() as i32
    };
    let mut members: Vec<Member<P>> = images
        .into_iter()
        .map(|(path, bytes, place)| Member { label: label(&path), path: path.into(), bytes, place })
        .collect();
    members.sort_by(|a, b| a.path.cmp(&b.path));
    match members.windows(2).find(|pair| pair[0].path == pair[1].path) {
        Some(pair) => Err(IoError::data(source, format!("image {:?} is there twice", pair[0].path))),
        None => Ok(members),
    }
}

/// What is said of a folder of a class that has no images.
pub(super) fn empty_class(source: &Path, name: &str) -> IoError {
    let message = format!("folder {name:?} has no images (.jpg, .jpeg, .png), but each is a class");
    IoError::data(source, message)
        .hint("move it away, in all phases: the labels are the places of the folders' names")
}

/// Identifies images by their paths, labels and sizes, so that a folder and a tar of it are the same.
pub(super) fn hash_of<P>(members: &[Member<P>]) -> String {
    let mut hash = IndexHash::default();
    members.iter().for_each(|m| hash.add(m.path.as_bytes(), Some(m.label), m.bytes));
    hash.finish()
}
