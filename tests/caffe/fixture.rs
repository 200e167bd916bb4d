//! The fixtures: which there are, and what lies in them.
//!
//! Those that come with the sources, and, where it is there, the larger folder `shared/oracle` beside the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use quadrille_core::net::Phase;
use quadrille_io::npz::{Archive, Array, Values, read_npz};
use serde_json::Value;

/// What Caffe in single precision says of one array: largest value, largest distance from Caffe in double precision,
/// and relative distance in the L2 norm.
#[derive(Clone, Copy, Debug)]
pub struct Rounding {
    pub largest: f64,
    pub distance: f64,
    pub relative: f64,
}

/// One fixture.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// Whether it comes with the sources.
    pub committed: bool,
    folder: PathBuf,
    rounding: BTreeMap<String, Rounding>,
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/caffe")
}

/// The folders of fixtures, the one that comes with the sources first.
fn folders() -> Vec<PathBuf> {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().skip(1);
    let shared = above.map(|folder| folder.join("shared/oracle")).find(|folder| folder.is_dir());
    std::iter::once(committed()).chain(shared).collect()
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names that a folder's manifest lists.
fn listed(folder: &Path) -> Vec<String> {
    let manifest = json(&folder.join("manifest.json"));
    let entries = manifest.as_array().expect("a manifest is a list").iter();
    entries.map(|entry| entry["name"].as_str().expect("every entry has a name").to_owned()).collect()
}

/// The fixtures of a group (`layers`, `nets`, `solvers`) that are here, in the order of their names.
pub fn cases(group: &str) -> Vec<Case> {
    all(group).into_values().flatten().collect()
}

/// The fixtures of a group that are listed and not here.
pub fn absent(group: &str) -> Vec<String> {
    all(group).into_iter().filter(|(_, case)| case.is_none()).map(|(name, _)| name).collect()
}

fn all(group: &str) -> BTreeMap<String, Option<Case>> {
    let mut cases: BTreeMap<String, Option<Case>> = BTreeMap::new();
    for root in folders() {
        let (folder, tolerance) = (root.join(group), json(&root.join("tolerance.json")));
        for name in listed(&folder) {
            let found = cases.entry(name.clone()).or_default();
            if found.is_none() && folder.join(format!("{name}.npz")).is_file() {
                let rounding = rounding(&tolerance[format!("{group}/{name}")]);
                *found =
                    Some(Case { name, committed: root == committed(), folder: folder.clone(), rounding });
            }
        }
    }
    cases
}

fn rounding(tolerance: &Value) -> BTreeMap<String, Rounding> {
    let arrays = tolerance.as_object().expect("tolerance.json knows every fixture").iter();
    let number = |value: &Value| value.as_f64().expect("a number");
    arrays
        .map(|(key, numbers)| {
            let [largest, distance, relative] = [0, 1, 2].map(|at| number(&numbers[at]));
            (key.clone(), Rounding { largest, distance, relative })
        })
        .collect()
}

impl Case {
    /// A file of the fixture: its name and then `ending`.
    pub fn path(&self, ending: &str) -> PathBuf {
        self.beside(&format!("{}{ending}", self.name))
    }

    /// A file in the folder of the fixture.
    pub fn beside(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    pub fn arrays(&self) -> Archive {
        read_npz(&self.path(".npz")).expect("a fixture")
    }

    /// The network file.
    pub fn network(&self) -> String {
        let path = self.path(".prototxt");
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// How far single precision is from double for one array in Caffe.
    pub fn rounding(&self, key: &str) -> Rounding {
        *self.rounding.get(key).unwrap_or_else(|| panic!("tolerance.json has no {key} of {}", self.name))
    }
}

/// The phase in which Caffe ran a fixture.
pub fn phase(arrays: &Archive) -> Phase {
    match &arrays["meta/phase"].values {
        Values::I32(phase) if phase == &[0] => Phase::Train,
        Values::I32(phase) if phase == &[1] => Phase::Test,
        other => panic!("{other:?} is no phase"),
    }
}

/// Single-precision values.
pub fn singles(array: &Array) -> &[f32] {
    match &array.values {
        Values::F32(values) => values,
        other => panic!("{} values are not of single precision", other.len()),
    }
}

/// Double-precision values.
pub fn double_values(array: &Array) -> &[f64] {
    match &array.values {
        Values::F64(values) => values,
        other => panic!("{} values are not of double precision", other.len()),
    }
}

/// The arrays whose key begins with `prefix`, which is taken off.
pub fn under<'a>(arrays: &'a Archive, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Array)> {
    arrays.iter().filter_map(move |(key, array)| key.strip_prefix(prefix).map(|name| (name, array)))
}
