//! Reading small kernel files below a root, so that a test can describe any machine with a folder.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::cpu_list;

/// The most that is read of any file: enough for every list and for the first CPUs of `cpuinfo`.
const READ_LIMIT: u64 = 1 << 20;

/// A file that could not be used.
#[derive(Debug)]
pub(super) struct Trouble {
    /// Whether it does not exist, as opposed to being unreadable or making no sense.
    pub missing: bool,
    /// One clause that names the file.
    pub said: String,
}

/// The kernel's files below a root folder, `/` outside of tests.
#[derive(Clone, Copy)]
pub(super) struct Files<'a> {
    root: &'a Path,
}

impl<'a> Files<'a> {
    pub fn below(root: &'a Path) -> Self {
        Files { root }
    }

    /// The text of a file, trimmed. Bytes that are not UTF-8 are replaced, to fail later as bad numbers.
    pub fn text(&self, path: &str) -> Result<String, Trouble> {
        let fail = |error: std::io::Error| Trouble {
            missing: error.kind() == ErrorKind::NotFound,
            said: format!("/{path}: {error}"),
        };
        let mut bytes = Vec::new();
        File::open(self.root.join(path))
            .and_then(|file| file.take(READ_LIMIT).read_to_end(&mut bytes))
            .map_err(fail)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// A file that holds one CPU or node list.
    pub fn list(&self, path: &str) -> Result<Vec<usize>, Trouble> {
        let text = self.text(path)?;
        cpu_list::parse(&text).map_err(|error| bad(path, error))
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Result<u64, Trouble> {
        let text = self.text(path)?;
        text.parse().map_err(|_| bad(path, format!("\"{}\" is not a number", excerpt(&text))))
    }

    /// The numbers N of the entries called `prefix`N in a folder, ascending.
    pub fn numbered(&self, folder: &str, prefix: &str) -> Result<Vec<usize>, Trouble> {
        let entries = std::fs::read_dir(self.root.join(folder)).map_err(|error| Trouble {
            missing: error.kind() == ErrorKind::NotFound,
            said: format!("/{folder}: {error}"),
        })?;
        let mut found: Vec<usize> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
            .filter(|&index| index < cpu_list::CPU_LIMIT)
            .collect();
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// The names of at most `limit` entries of a folder, in order.
    pub fn names(&self, folder: &str, limit: usize) -> Option<Vec<String>> {
        let entries = std::fs::read_dir(self.root.join(folder)).ok()?;
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).take(limit).collect();
        names.sort_unstable();
        Some(names)
    }

    /// The value of a `Name:  value` line, as in `/proc/self/status`.
    pub fn field(&self, path: &str, name: &str) -> Result<String, Trouble> {
        let text = self.text(path)?;
        field_of(&text, name).ok_or_else(|| bad(path, format!("has no line \"{name}\"")))
    }
}

/// The value of the first `Name:  value` line of a text.
pub(super) fn field_of(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_string())
    })
}

/// A file that exists and makes no sense.
pub(super) fn bad(path: &str, why: impl std::fmt::Display) -> Trouble {
    Trouble { missing: false, said: format!("/{path}: {why}") }
}

/// The beginning of a text, fit for a message.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(40).collect::<String>().escape_debug().to_string()
}
