//! Image files one by one: in folders, one for each class, or named by a list.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use quadrille_core::layer::ImageList;
use rayon::prelude::*;

use super::classes::{Member, by_class, empty_class, hash_of, is_image};
use super::records::{Content, MAX_RECORD, Record, Records};
use super::stage::{Staging, listed_copy, stage_listed};
use crate::error::IoError;

/// How deep folders may lie in each other: links can make circles.
const DEEPEST: usize = 16;

/// Image files below a folder.
#[derive(Debug)]
pub struct ImageFiles {
    name: String,
    /// What stands before each path.
    root: String,
    members: Vec<Member<()>>,
    hash: String,
    /// The folder of the copies that are read in their place.
    copies: Option<PathBuf>,
}

impl ImageFiles {
    /// The images in the subfolders of `folder`, whose sorted names are the labels 0, 1, 2, ...; sorted by path.
    ///
    /// # Errors
    /// [`IoError::Missing`] if a folder cannot be read, [`IoError::Data`] if there are no images, or none in one of the subfolders: without
    /// that class all behind it would have other labels than in another phase.
    pub fn in_folders(folder: &Path, name: &str) -> Result<Self, IoError> {
        let mut paths = Vec::new();
        walk(folder, "", 0, &mut paths)?;
        check_no_class_is_empty(folder, &paths)?;
        let images = paths.into_par_iter().map(|path| {
            let bytes = fs::metadata(folder.join(&path)).map_or(0, |found| found.len());
            (path, bytes, ())
        });
        let members = by_class(images.collect(), folder)?;
        let hash = hash_of(&members);
        let root = format!("{}/", folder.display());
        Ok(Self { name: name.to_owned(), root, members, hash, copies: None })
    }

    /// The images that a list names, in its order: lines of a path and a label behind the last space, as Caffe reads
    /// them. A relative path begins in the current folder or, if the first is not there, in the list's folder.
    ///
    /// # Errors
    /// [`IoError::Missing`] if the list cannot be read, [`IoError::Data`] naming the line that is wrong.
    pub fn in_list(list: &Path, options: Option<&ImageList>, name: &str) -> Result<Self, IoError> {
        let text =
            String::from_utf8(crate::whole::read(list, LIST)?).ok().filter(|text| !text.contains('\0'));
        let text = text.ok_or_else(|| IoError::data(list, format!("is not text; expected {LIST}")))?;
        let mut named = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let pair = line.trim().rsplit_once(char::is_whitespace);
            let pair = pair.and_then(|(path, label)| Some((path.trim_end(), label.parse().ok()?)));
            let (path, label): (&str, i32) = pair.ok_or_else(|| {
                let shown: String = line.chars().take(60).collect();
                IoError::data(
                    list,
                    format!("line {}: {shown:?}; expected a path, a space and a label", number + 1),
                )
            })?;
            named.push((path, label));
        }
        if named.is_empty() {
            return Err(IoError::data(list, "is a list without images"));
        }
        let root = options.map_or("", |options| options.root_folder.as_str());
        let root = root_beside(list, root, named.iter().map(|(path, _)| *path));
        let member = |(path, label): (&str, i32)| {
            let bytes = fs::metadata(format!("{root}{path}")).map_or(0, |found| found.len());
            Member { path: path.into(), label, bytes, place: () }
        };
        let members: Vec<_> = named.into_par_iter().map(member).collect();
        let hash = hash_of(&members);
        Ok(Self { name: name.to_owned(), root, members, hash, copies: None })
    }

    /// The same images, read from copies on storage of the node that are made with one of `list`, which named them. An image
    /// that is not there has no copy and is a bad record as before.
    ///
    /// # Errors
    /// [`IoError::Missing`] if something cannot be read, [`IoError::CannotCreate`] or [`IoError::WriteFailed`] if it cannot
    /// be copied.
    pub(super) fn staged(self, list: &Path, staging: Staging<'_>) -> Result<Self, IoError> {
        let named = (0..self.len()).map(|index| (self.file(index), &*self.members[index].path)).collect();
        let copies = Some(stage_listed(list, named, staging)?);
        Ok(Self { copies, ..self })
    }
}

/// What stands before the paths of a list, whose root folder is `root`: that, from the current folder or from the list's, wherever the
/// first of `paths` lies that is there at all; from the list's if none is. A path that is absolute stays what it is.
pub(super) fn root_beside<'a>(list: &Path, root: &str, paths: impl IntoIterator<Item = &'a str>) -> String {
    let Some(folder) = list.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return root.to_owned();
    };
    let beside = format!("{}/{root}", folder.display());
    let stands = |root: &str, path: &str| Path::new(&format!("{root}{path}")).exists();
    for path in paths {
        if Path::new(&format!("{root}{path}")).is_absolute() || stands(root, path) {
            return root.to_owned();
        }
        if stands(&beside, path) {
            break;
        }
    }
    beside
}

/// Reads an image file.
///
/// # Errors
/// Why it cannot be read, without its name.
pub(super) fn read_file(path: &Path, into: &mut Vec<u8>) -> Result<(), String> {
    let unreadable = |error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err("is not a file".to_owned());
    }
    into.clear();
    file.take(MAX_RECORD as u64 + 1).read_to_end(into).map_err(unreadable)?;
    if into.len() > MAX_RECORD {
        return Err(format!("has more than {MAX_RECORD} bytes"));
    }
    Ok(())
}

/// Makes sure that each subfolder has one of the images found; if there is none at all, something else is said.
fn check_no_class_is_empty(folder: &Path, images: &[String]) -> Result<(), IoError> {
    let classes: HashSet<&str> = images.iter().filter_map(|path| Some(path.split_once('/')?.0)).collect();
    let unreadable = |error| IoError::unreadable(folder, "a folder of images", &error);
    for entry in fs::read_dir(folder).map_err(unreadable)?.filter(|_| !classes.is_empty()) {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        if entry.path().is_dir() && !classes.contains(name) {
            return Err(empty_class(folder, name));
        }
    }
    Ok(())
}

const LIST: &str = "a list of images (lines of a path and a label)";

/// The images below `folder`, whose path from the first folder on is `above`.
fn walk(folder: &Path, above: &str, depth: usize, found: &mut Vec<String>) -> Result<(), IoError> {
    let unreadable = |error| IoError::unreadable(folder, "a folder of images", &error);
    if depth > DEEPEST {
        return Err(IoError::data(
            folder,
            format!("lies deeper than {DEEPEST} folders; do links form a circle?"),
        ));
    }
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
        let kind = entry.file_type().map_err(unreadable)?;
        // Links count as what they lead to.
        let is_folder = kind.is_dir() || kind.is_symlink() && entry.path().is_dir();
        if is_folder {
            walk(&entry.path(), &path, depth + 1, found)?;
        } else if is_image(name) {
            found.push(path);
        }
    }
    Ok(())
}

impl ImageFiles {
    fn file(&self, index: usize) -> PathBuf {
        PathBuf::from(format!("{}{}", self.root, self.members[index].path))
    }
}

impl Records for ImageFiles {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.members.len()
    }

    fn hash(&self) -> &str {
        &self.hash
    }

    fn label(&self, index: usize) -> Option<i32> {
        Some(self.members[index].label)
    }

    fn path(&self, index: usize) -> Option<&str> {
        Some(&self.members[index].path)
    }

    fn record_name(&self, index: usize) -> String {
        format!("image {:?}", self.file(index).display().to_string())
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Vec<u8>) -> Result<Record<'a>, String> {
        let copy = self.copies.as_ref().map(|folder| listed_copy(folder, &self.members[index].path));
        read_file(&copy.unwrap_or_else(|| self.file(index)), scratch)?;
        Ok(Record {
            label: self.members[index].label,
            content: Content::Encoded { file: scratch, native: false },
        })
    }
}
