//! Where data sets are looked for.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::IoError;

/// The folders in which a relative source is looked for, after the folder of the flag `--data`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath {
    /// Folders in order.
    pub folders: Vec<PathBuf>,
    /// The folder of data sets that the user named, behind those: the last part of a source is enough there.
    pub named: Option<PathBuf>,
    /// Other folders of data sets, behind it. What networks call `data/NAME` may be `NAME` in any of them.
    pub data: Vec<PathBuf>,
}

impl SearchPath {
    /// The usual places: the current folder, the folder of the network file, the folder that the environment
    /// variable `QUADRILLE_DATA` names, and the folder `data` beside the program, above it, or in `repository`
    /// (the place of the sources, known when the program was compiled).
    pub fn usual(network: &Path, repository: Option<&Path>) -> Self {
        let mut folders = vec![PathBuf::from(".")];
        folders.extend(network.parent().filter(|p| !p.as_os_str().is_empty()).map(Path::to_owned));
        let named = env::var_os("QUADRILLE_DATA").filter(|v| !v.is_empty()).map(PathBuf::from);
        let mut data = Vec::new();
        if let Ok(program) = env::current_exe() {
            data.extend(program.ancestors().skip(1).map(|a| a.join("data")).filter(|d| d.is_dir()));
        }
        data.extend(repository.map(|r| r.join("data")));
        Self { folders, named, data }
    }

    /// Looks only where a source says, from the current folder.
    pub fn here() -> Self {
        Self { folders: vec![PathBuf::new()], ..Self::default() }
    }

    /// The places where `relative` may be, in the order in which they are looked at.
    fn places(&self, relative: &Path) -> Vec<PathBuf> {
        let mut places: Vec<PathBuf> = self.folders.iter().map(|folder| folder.join(relative)).collect();
        let inside = relative.strip_prefix("data").unwrap_or(relative);
        if let Some(folder) = &self.named {
            let last = relative.file_name().map_or(inside, Path::new);
            places.extend([relative, inside, last].map(|part| folder.join(part)));
        }
        places.extend(self.data.iter().flat_map(|folder| [relative, inside].map(|part| folder.join(part))));
        let mut seen = Vec::new();
        places.retain(|place| {
            let new = !seen.contains(place);
            seen.push(place.clone());
            new
        });
        places
    }

    /// The folder or file of `source`. With `data`, only that folder is looked at: it may hold the source or be it.
    ///
    /// # Errors
    /// [`IoError::Missing`] with the places that were tried.
    pub fn find(&self, source: &str, data: Option<&Path>) -> Result<PathBuf, IoError> {
        let relative = Path::new(source);
        let places: Vec<PathBuf> = match data {
            // A source may be a path of another machine; its last part names the data set.
            Some(data) => {
                let inside = relative.file_name().map(|name| data.join(name));
                inside.into_iter().chain([data.to_owned()]).collect()
            }
            None if relative.is_absolute() => vec![relative.to_owned()],
            None => self.places(relative),
        };
        if let Some(found) = places.iter().find(|place| place.exists()) {
            return Ok(found.clone());
        }
        let missing = |tried: String| IoError::missing(relative, format!("no such data set{tried}"));
        if *self == Self::here() && data.is_none() {
            return Err(missing(String::new()).hint("give its path"));
        }
        let tried: Vec<String> = places.iter().map(|place| format!("\n    {}", place.display())).collect();
        Err(missing(format!("; looked for{}", tried.concat()))
            .hint("name it, or the folder that holds it, with --data, or set QUADRILLE_DATA to that folder"))
    }

    /// A file of means that a network names: as it is, or in one of the folders.
    ///
    /// # Errors
    /// [`IoError::Missing`] with the places that were tried.
    pub(super) fn find_mean(&self, file: &str) -> Result<PathBuf, IoError> {
        let places: Vec<PathBuf> =
            std::iter::once(PathBuf::from(file)).chain(self.places(Path::new(file))).collect();
        if let Some(found) = places.iter().find(|place| place.is_file()) {
            return Ok(found.clone());
        }
        let tried: Vec<String> = places.iter().map(|place| format!("\n    {}", place.display())).collect();
        Err(IoError::missing(Path::new(file), format!("no such file of means; looked for{}", tried.concat()))
            .hint("give its path, or mean_value: one for each channel, or one for all"))
    }
}
