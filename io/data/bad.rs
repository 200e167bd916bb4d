//! Records that cannot be used: how many are passed over, and which they were.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::records::Records;
use crate::error::IoError;

/// How many of the bad records are remembered by name.
const REMEMBERED: usize = 1000;

/// What happens when a record cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tolerance {
    /// The run ends.
    #[default]
    Fail,
    /// The next record in the order of the data set takes its place.
    Skip,
    /// The same for so many different records; the run ends with the next.
    Most(u64),
}

impl FromStr for Tolerance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fail" => Ok(Self::Fail),
            "skip" => Ok(Self::Skip),
            number => match number.parse() {
                Ok(most) => Ok(Self::Most(most)),
                Err(_) => Err(format!("{text:?}; expected fail, skip, or how many may be skipped")),
            },
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail => f.write_str("fail"),
            Self::Skip => f.write_str("skip"),
            Self::Most(most) => write!(f, "{most}"),
        }
    }
}

/// The bad records of a data set, each counted once however often it is drawn.
#[derive(Debug)]
pub struct BadRecords {
    tolerance: Tolerance,
    found: Mutex<Found>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Found {
    /// One bit for each record that was found to be bad.
    seen: Vec<u64>,
    count: u64,
    /// The first by index, with what is wrong.
    named: BTreeMap<usize, String>,
}

impl BadRecords {
    pub(super) fn new(tolerance: Tolerance) -> Self {
        Self { tolerance, found: Mutex::default() }
    }

    /// What happens with them.
    pub(super) fn tolerance(&self) -> Tolerance {
        self.tolerance
    }

    /// Notes that record `index` is bad.
    ///
    /// # Errors
    /// [`IoError::Data`] naming it, if that is one too many.
    pub(super) fn note(&self, records: &dyn Records, index: usize, message: String) -> Result<(), IoError> {
        let line = format!("{} {message}", records.record_name(index));
        let name = Path::new(records.name());
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let (word, bit) = (index / 64, 1 << (index % 64));
        if found.seen.len() <= word {
            found.seen.resize(word + 1, 0);
        }
        if found.seen[word] & bit == 0 {
            found.seen[word] |= bit;
            found.count += 1;
            found.named.insert(index, line.clone());
            found.forget();
        }
        match self.tolerance {
            Tolerance::Skip => Ok(()),
            Tolerance::Fail => Err(IoError::data(name, line)
                .hint("--bad-record skip goes on without such records and lists them at the end")),
            Tolerance::Most(most) if found.count <= most => Ok(()),
            Tolerance::Most(most) => Err(IoError::data(
                name,
                format!("{line}\n  this is bad record number {}; --bad-record allows {most}", found.count),
            )),
        }
    }

    /// How many records were bad, and the first of them by their place in the data set, with what was wrong.
    pub fn list(&self) -> (u64, Vec<String>) {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        (found.count, found.named.values().cloned().collect())
    }

    /// What was found, for another process that reads the same data set; nothing if all records were good.
    pub fn to_text(&self) -> String {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.count == 0 { String::new() } else { serde_json::to_string(&*found).unwrap_or_default() }
    }

    /// Adds what another process found in the same data set, as its [`BadRecords::to_text`] says it. Returns whether the text is
    /// such a one.
    pub fn add(&self, text: &str) -> bool {
        if text.is_empty() {
            return true;
        }
        let Ok(other) = serde_json::from_str(text) else { return false };
        self.found.lock().unwrap_or_else(PoisonError::into_inner).add(other);
        true
    }
}

impl Found {
    fn add(&mut self, other: Found) {
        if self.seen.len() < other.seen.len() {
            self.seen.resize(other.seen.len(), 0);
        }
        self.seen.iter_mut().zip(&other.seen).for_each(|(word, more)| *word |= more);
        self.count = self.seen.iter().map(|word| u64::from(word.count_ones())).sum();
        self.named.extend(other.named);
        self.forget();
    }

    /// Forgets the names of those that are too many.
    fn forget(&mut self) {
        while self.named.len() > REMEMBERED {
            self.named.pop_last();
        }
    }
}
