//! Reading machines through hwloc 2, which knows more chips than `/sys` tells about: memory attributes, the memory of a
//! Knights Landing, and descriptions of machines that are not here.
//!
//! hwloc looks into the environment by itself and falls back to this machine where what it finds there is of no
//! use. So it is always told what to read, and what it has read is checked to be that.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use hwlocality::Topology;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};

use self::tree::{Evidence, convert};
use super::files::Files;
use super::{Machine, Source, TopologyError, quota, sysfs};
use crate::cpu_list;

mod homes;
mod tree;
mod xml;

/// The largest file that is read. That of a machine with 8,000 cores and all its devices has some 20 MiB.
const FILE_LIMIT: u64 = 64 << 20;

/// Which reader this is.
pub(super) fn describe() -> String {
    let version = hwlocality::hwloc_api_version();
    format!("hwloc {}.{}.{}", version >> 16, (version >> 8) & 0xff, version & 0xff)
}

/// The machine this process runs on. If `asked` describes another, hwloc would read that one, and `/sys` is read.
pub(super) fn here(asked: &Source) -> Result<Machine, TopologyError> {
    let plain = sysfs::here()?;
    if *asked != Source::Here {
        return Ok(plain);
    }
    let files = Files::below(Path::new("/"));
    match load(TopologyBuilder::new(), &Evidence { here: true, ..Evidence::of_files(files) }) {
        Ok(machine) if machine.cpus == plain.cpus => Ok(with_quota(machine, files)),
        Ok(machine) => Ok(without_hwloc(
            plain,
            &format!("it sees CPUs {}, and the affinity mask is another", cpu_list::format(&machine.cpus)),
        )),
        Err(why) => Ok(without_hwloc(plain, &why)),
    }
}

fn without_hwloc(mut machine: Machine, why: &str) -> Machine {
    machine.notes.push(format!("hwloc is of no use here: {why}. This machine was read from /sys."));
    machine
}

/// The machine whose `/sys` and `/proc` lie below a folder.
pub(super) fn root(root: &Path) -> Result<Machine, TopologyError> {
    // Says what is wrong with the folder better than hwloc, which would describe this machine instead.
    let plain = sysfs::root(root)?;
    let files = Files::below(root);
    // hwloc takes such a folder from the environment only, where it has found the one that is asked for.
    let from_environment =
        Source::of_environment(&|name| std::env::var_os(name)) == Source::Root(root.to_owned());
    if !from_environment {
        return Ok(plain);
    }
    // Its CPUs are not those that hwloc would ask for their caches by their own instructions.
    let builder = TopologyBuilder::new().without_component("x86");
    let builder = builder.map_err(|error| Source::Root(root.to_owned()).refuse(error.to_string()))?;
    match load(builder, &Evidence::of_files(files)) {
        Ok(machine) => Ok(with_quota(machine, files)),
        Err(why) => Err(Source::Root(root.to_owned()).refuse(why)),
    }
}

/// The machine that a line describes.
pub(super) fn synthetic(text: &str) -> Result<Machine, TopologyError> {
    let refuse = |why: String| Source::Synthetic(text.into()).refuse(why);
    let builder = TopologyBuilder::new().from_synthetic(text);
    let builder =
        builder.map_err(|error| refuse(format!("{error}; see \"Synthetic topologies\" of hwloc")))?;
    load(builder, &Evidence::default()).map_err(refuse)
}

/// The machine that a file describes.
pub(super) fn xml(file: &Path) -> Result<Machine, TopologyError> {
    let refuse = |why: String| Source::Xml(file.into()).refuse(why);
    let text = xml::text(file, FILE_LIMIT).map_err(refuse)?;
    xml::check(&text).map_err(refuse)?;
    let builder = TopologyBuilder::new().from_xml(&text).map_err(|error| refuse(error.to_string()))?;
    load(builder, &Evidence::default()).map_err(refuse)
}

/// Lets hwloc read what the builder names.
fn load(builder: TopologyBuilder, evidence: &Evidence) -> Result<Machine, String> {
    // The wrapper asserts what hwloc promises; what a damaged file makes hwloc break is an error like others.
    catch_unwind(AssertUnwindSafe(|| {
        let topology = build(builder)?;
        if topology.is_this_system() != evidence.here && !thissystem_is_claimed() {
            return Err("hwloc has read another machine".to_owned());
        }
        convert(&topology, evidence)
    }))
    .unwrap_or_else(|_| Err("hwloc makes no sense of it".to_owned()))
}

fn build(builder: TopologyBuilder) -> Result<Topology, String> {
    // What the job may not use is wanted, too: a drawing without it would be of another chip.
    let mut builder =
        builder.with_flags(BuildFlags::INCLUDE_DISALLOWED).map_err(|error| error.to_string())?;
    // Left out unless asked for: MCDRAM and HBM in cache mode, and the caches of instructions.
    for kind in [ObjectType::MemCache, ObjectType::L1ICache] {
        builder = builder.with_type_filter(kind, TypeFilter::KeepAll).map_err(|error| error.to_string())?;
    }
    builder.build().map_err(|error| format!("hwloc cannot read it ({error})"))
}

/// Whether the user tells hwloc to take any description for that of this machine.
fn thissystem_is_claimed() -> bool {
    std::env::var_os("HWLOC_THISSYSTEM").is_some()
}

fn with_quota(mut machine: Machine, files: Files) -> Machine {
    machine.quota = quota::noted(files, machine.cpus.len(), &mut machine.notes);
    machine
}
