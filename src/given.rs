//! The arrays that a user hands in as a file of NumPy: `in/BLOB`, `param/LAYER/INDEX`, `seed/BLOB`, `init/LAYER/INDEX`.

use std::path::{Path, PathBuf};

use quadrille_core::net::{Net, Phase};
use quadrille_core::site::did_you_mean;
use quadrille_io::npz::{Archive, Array, Values, read_npz};

use crate::failure::{Code, Failure};

/// Arrays by name.
pub struct Given {
    file: PathBuf,
    arrays: Archive,
}

impl Given {
    /// Reads a `.npz`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(file: &Path) -> Result<Self, Failure> {
        Ok(Self { file: file.to_owned(), arrays: read_npz(file)? })
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The phase that the file says it is for: 0 to train, 1 to test.
    pub fn phase(&self) -> Option<Phase> {
        match &self.arrays.get("meta/phase")?.values {
            Values::I32(value) if value == &[0] => Some(Phase::Train),
            Values::I32(value) if value == &[1] => Some(Phase::Test),
            _ => None,
        }
    }

    /// The names below a prefix.
    pub fn names<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.arrays.keys().filter_map(move |key| key.strip_prefix(prefix))
    }

    /// The extents of an array.
    ///
    /// # Errors
    /// If it is not there, with the closest name.
    pub fn shape(&self, key: &str) -> Result<&[usize], Failure> {
        Ok(&self.array(key)?.shape)
    }

    /// The values of an array that has to have `count` of them.
    ///
    /// # Errors
    /// If it is not there, with the closest name, or has another size.
    pub fn values(&self, key: &str, count: usize, what: &str) -> Result<Vec<f32>, Failure> {
        let array = self.array(key)?;
        if array.values.len() != count {
            let message = format!("{key} has shape {:?}; {what} has {count} values", array.shape);
            return Err(self.refuse(message));
        }
        Ok(match &array.values {
            Values::F32(values) => values.clone(),
            Values::F64(values) => values.iter().map(|value| *value as f32).collect(),
            Values::I32(values) => values.iter().map(|value| *value as f32).collect(),
            Values::U8(values) => values.iter().map(|value| f32::from(*value)).collect(),
        })
    }

    /// Puts the arrays below a prefix where the parameters of their names lie among the packed ones. Returns how many there
    /// were.
    ///
    /// # Errors
    /// If the network has no such parameter, or it has another size.
    pub fn fill(&self, prefix: &str, net: &Net, packed: &mut [f32]) -> Result<usize, Failure> {
        let mut filled = 0;
        for name in self.names(prefix) {
            let key = format!("{prefix}{name}");
            let Some(view) = net.params.views().iter().find(|view| view.name == name) else {
                let known = net.params.views().iter().map(|view| view.name.as_str());
                let hint = hint(name, known);
                return Err(self.refuse(format!("{key}: the network has no such parameter{hint}")));
            };
            packed[view.range()].copy_from_slice(&self.values(&key, view.shape.count(), "the parameter")?);
            filled += 1;
        }
        Ok(filled)
    }

    fn array(&self, key: &str) -> Result<&Array, Failure> {
        self.arrays.get(key).ok_or_else(|| {
            let hint = hint(key, self.arrays.keys().map(String::as_str));
            self.refuse(format!("it has no array {key:?}{hint}"))
        })
    }

    /// A complaint about the file.
    pub fn refuse(&self, message: String) -> Failure {
        Failure::new(Code::Data, format!("{}: {message}", self.file.display()))
    }
}

fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let close = did_you_mean(name, known);
    close.map_or_else(String::new, |close| format!("\n  hint: did you mean {close:?}?"))
}
