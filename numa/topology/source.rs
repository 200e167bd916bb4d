//! Where the description of a machine comes from: the machine itself, or what variables of hwloc name.

use std::ffi::OsString;
use std::path::PathBuf;

use super::TopologyError;

/// How to look up an environment variable that may hold any bytes.
pub type RawEnv<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Where a machine is described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The machine this process runs on.
    Here,
    /// A copy of another machine's `/sys` and `/proc`, as `hwloc-gather-topology` makes it (`HWLOC_FSROOT`).
    Root(PathBuf),
    /// A machine made up in a line, such as `pack:2 numa:2 core:4 pu:2` (`HWLOC_SYNTHETIC`).
    Synthetic(String),
    /// A file as `lstopo --of xml` writes it (`HWLOC_XMLFILE`).
    Xml(PathBuf),
}

impl Source {
    /// What the environment names. The first of several counts, in hwloc's own order; an empty value names nothing.
    pub fn of_environment(env: RawEnv) -> Self {
        let named = |name: &str| env(name).filter(|value| !value.is_empty());
        if let Some(root) = named("HWLOC_FSROOT") {
            Self::Root(root.into())
        } else if let Some(text) = named("HWLOC_SYNTHETIC") {
            Self::Synthetic(text.to_string_lossy().into_owned())
        } else if let Some(file) = named("HWLOC_XMLFILE") {
            Self::Xml(file.into())
        } else {
            Self::Here
        }
    }

    /// The variable that names it.
    pub fn variable(&self) -> Option<&'static str> {
        match self {
            Self::Here => None,
            Self::Root(_) => Some("HWLOC_FSROOT"),
            Self::Synthetic(_) => Some("HWLOC_SYNTHETIC"),
            Self::Xml(_) => Some("HWLOC_XMLFILE"),
        }
    }

    /// Its file, folder or text.
    pub fn value(&self) -> String {
        match self {
            Self::Here => "this machine".into(),
            Self::Root(path) | Self::Xml(path) => path.display().to_string(),
            Self::Synthetic(text) => text.clone(),
        }
    }

    /// The error that it cannot be used.
    pub(super) fn refuse(&self, why: impl Into<String>) -> TopologyError {
        let variable = self.variable().unwrap_or("hwloc");
        TopologyError::Description { variable, value: self.value(), why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_in_hwlocs_order_counts_and_an_empty_one_is_none() {
        let of = |set: &[(&str, &str)]| {
            let set: Vec<(String, OsString)> =
                set.iter().map(|(name, value)| (name.to_string(), OsString::from(value))).collect();
            Source::of_environment(&|name| set.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()))
        };
        assert_eq!(of(&[]), Source::Here);
        assert_eq!(of(&[("HWLOC_XMLFILE", "")]), Source::Here);
        assert_eq!(of(&[("HWLOC_XMLFILE", "a.xml")]), Source::Xml("a.xml".into()));
        let both = of(&[("HWLOC_XMLFILE", "a.xml"), ("HWLOC_FSROOT", "b")]);
        assert_eq!((both.variable(), both.value()), (Some("HWLOC_FSROOT"), "b".to_owned()));
    }
}
