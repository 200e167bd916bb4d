//! Reading machines without hwloc: from Linux's own files.

use std::path::Path;

use super::{Machine, Source, TopologyError, sysfs};

/// Which reader this is.
pub(super) fn describe() -> String {
    "Linux's files in /sys (built without hwloc)".into()
}

/// The machine this process runs on, whatever `asked` describes.
pub(super) fn here(_asked: &Source) -> Result<Machine, TopologyError> {
    sysfs::here()
}

/// The machine whose `/sys` and `/proc` lie below a folder.
pub(super) fn root(root: &Path) -> Result<Machine, TopologyError> {
    sysfs::root(root)
}

/// The machine that a line describes.
pub(super) fn synthetic(text: &str) -> Result<Machine, TopologyError> {
    Err(Source::Synthetic(text.into()).refuse(needs_hwloc("descriptions of machines in a line")))
}

/// The machine that a file of hwloc describes.
pub(super) fn xml(file: &Path) -> Result<Machine, TopologyError> {
    Err(Source::Xml(file.into()).refuse(needs_hwloc("files of hwloc")))
}

fn needs_hwloc(what: &str) -> String {
    format!(
        "this program was built without hwloc and cannot read {what}. Build it with \
         cargo build --release --features hwloc (scripts/setup --hwloc installs what that needs), or unset the variable"
    )
}
