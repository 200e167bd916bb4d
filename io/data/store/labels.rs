//! Whether tar files say the labels of a data set: they hold none, and whoever reads them takes a label from the first folder of
//! each path.

use std::collections::BTreeMap;
use std::path::Path;

use quadrille_core::net::Phase;

use super::super::records::Records;
use super::super::tar;
use crate::error::IoError;

/// What is wrong with a record that is no image file of a path.
pub(super) const NO_FILE: &str = "is no image file of a path, so it cannot go into a tar; make an LMDB";

const HINT: &str = "make an LMDB, which holds labels: a tar has only the folders of its images";

/// Makes sure that all records of a data set can lie in a tar under their own paths.
///
/// # Errors
/// As [`check`]; or if a record has no path.
pub(super) fn check_all(records: &dyn Records, target: &Path) -> Result<(), IoError> {
    let file = |index: usize| -> Result<(String, usize), IoError> {
        let refused =
            || IoError::data(Path::new(records.name()), format!("{} {NO_FILE}", records.record_name(index)));
        Ok((records.path(index).ok_or_else(refused)?.to_owned(), index))
    };
    check(records, (0..records.len()).map(file).collect::<Result<_, IoError>>()?, target)
}

/// Makes sure that whoever reads a tar of `files`, names and the records that lie under them, finds all of them with the labels
/// of the data set.
///
/// # Errors
/// [`IoError::Data`] naming the first record of which that is not so; or `target`, if its names make no data set.
pub(super) fn check(
    records: &dyn Records,
    files: Vec<(String, usize)>,
    target: &Path,
) -> Result<(), IoError> {
    let indices: Vec<usize> = files.iter().map(|(_, index)| *index).collect();
    let files = files.into_iter().map(|(name, index)| (name, 0, index)).collect();
    let members = tar::members(files, &[], Phase::Train, target).map_err(|error| error.hint(HINT))?;
    let found: BTreeMap<usize, i32> = members.iter().map(|member| (member.place, member.label)).collect();
    let fault = |index: &usize| match (found.get(index), records.label(*index)) {
        (None, _) => Some("would not be found in a tar, by its name and those of the folders".to_owned()),
        (Some(found), Some(label)) if *found != label => Some(format!(
            "has the label {label}, but whoever reads a tar gives it {found}, the place of its folder among all"
        )),
        _ => None,
    };
    match indices.iter().find_map(|index| Some((*index, fault(index)?))) {
        None => Ok(()),
        Some((index, fault)) => {
            let message = format!("{} {fault}", records.record_name(index));
            Err(IoError::data(Path::new(records.name()), message).hint(HINT))
        }
    }
}
