//! From hwloc's tree of objects to a [`Machine`].

use std::collections::BTreeMap;

use hwlocality::Topology;
use hwlocality::bitmap::BitmapRef;
use hwlocality::cpu::cpuset::CpuSet;
use hwlocality::memory::attribute::{Initiator, MemoryAttribute};
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::{CacheType, ObjectType};
use hwlocality::topology::export::xml::XMLExportFlags;

use super::homes::{Candidate, settle};
use super::xml;
use crate::topology::files::Files;
use crate::topology::{Cache, Core, Machine, Node, Tier, cores, memory, orphans, sysfs};

/// The largest CPU number that hwloc's description is believed in.
const CPU_LIMIT: usize = crate::cpu_list::CPU_LIMIT;

/// What is known beside hwloc's tree.
#[derive(Default)]
pub(super) struct Evidence {
    /// Whether the machine is this one.
    pub here: bool,
    /// The affinity mask.
    pub cpus: Option<Vec<usize>>,
    /// The nodes that this process may allocate on.
    pub nodes: Option<Vec<usize>>,
    /// The nodes that have CPUs.
    pub nodes_with_cpus: Option<Vec<usize>>,
    /// The processor's name.
    pub model: Option<String>,
}

impl Evidence {
    /// What Linux's files tell.
    pub fn of_files(files: Files) -> Self {
        Self {
            here: false,
            cpus: sysfs::mask(files, "Cpus_allowed_list").ok(),
            nodes: sysfs::mask(files, "Mems_allowed_list").ok(),
            nodes_with_cpus: files
                .list("sys/devices/system/node/has_cpu")
                .ok()
                .filter(|list| !list.is_empty()),
            model: Some(sysfs::model(files)),
        }
    }
}

/// The machine that hwloc has read, or why there is none.
pub(super) fn convert(topology: &Topology, evidence: &Evidence) -> Result<Machine, String> {
    let within =
        |mask: &Option<Vec<usize>>, index: usize| mask.as_ref().is_none_or(|mask| mask.contains(&index));
    let objects = |kind| topology.objects_with_type(kind);
    if objects(ObjectType::NUMANode).len() == 0 || objects(ObjectType::PU).len() == 0 {
        return Err("hwloc finds no NUMA node or no CPU in it; \
                    it may be of a later format, or of an hwloc before 1.0"
            .into());
    }
    let allowed_cpus = topology.allowed_cpuset();
    let mut allowed: Vec<usize> = objects(ObjectType::PU)
        .filter_map(TopologyObject::os_index)
        .filter(|&cpu| cpu < CPU_LIMIT && allowed_cpus.is_set(cpu) && within(&evidence.cpus, cpu))
        .collect();
    allowed.sort_unstable();
    allowed.dedup();
    let model =
        evidence.model.clone().or_else(|| model(topology)).unwrap_or_else(|| "unknown processor".into());
    let (mut nodes, mut home_of, mut notes) = settle(candidates(topology, evidence));
    if nodes.iter().all(|node| node.memory_bytes == Some(0)) {
        // Files from other systems and of older versions do not tell sizes.
        nodes.iter_mut().for_each(|node| node.memory_bytes = None);
    }
    notes.extend(adopt(topology, &allowed, &mut nodes, &mut home_of));
    for (&cpu, home) in &home_of {
        if allowed.binary_search(&cpu).is_ok()
            && let Some(node) = nodes.iter_mut().find(|node| node.os_index == *home)
        {
            node.cpus.push(cpu);
        }
    }
    notes.extend(memory::judge(&model, &mut nodes));
    let cpus = allowed;
    let Some(&first) = cpus.first() else { return Err("none of its CPUs may be used".into()) };
    let cores = find_cores(topology, &cpus, &home_of);
    let (sockets, caches) = (cores::sockets(&cores), caches(topology, first));
    let (here, quota, numa_known) = (evidence.here, None, true);
    Ok(Machine { model, cpus, cores, nodes, sockets, caches, quota, here, numa_known, notes })
}

/// Makes nodes for CPUs whose own is offline or was left out of the description.
fn adopt(
    topology: &Topology,
    allowed: &[usize],
    nodes: &mut Vec<Node>,
    home_of: &mut BTreeMap<usize, usize>,
) -> Vec<String> {
    let mut homeless: BTreeMap<orphans::Clue, Vec<usize>> = BTreeMap::new();
    for object in topology.objects_with_type(ObjectType::PU) {
        let Some(cpu) = object.os_index().filter(|cpu| allowed.binary_search(cpu).is_ok()) else { continue };
        if home_of.contains_key(&cpu) {
            continue;
        }
        let nodes = object.complete_nodeset();
        let only = nodes.filter(|set| set.weight() == Some(1)).and_then(|set| set.first_set());
        let package = object.first_ancestor_with_type(ObjectType::Package);
        let socket = package.and_then(TopologyObject::os_index).unwrap_or(0);
        let node = only.map(usize::from);
        homeless.entry(orphans::Clue { node, socket }).or_default().push(cpu);
    }
    let (cpus, notes) = orphans::adopt(homeless, nodes);
    home_of.extend(cpus);
    notes
}

fn text(text: Option<&std::ffi::CStr>) -> Option<String> {
    text.map(|text| sysfs::printable(&text.to_string_lossy())).filter(|text| !text.is_empty())
}

fn model(topology: &Topology) -> Option<String> {
    let packages = topology.objects_with_type(ObjectType::Package);
    packages.chain([topology.root_object()]).find_map(|object| text(object.info("CPUModel")))
}

fn cpus_of(object: &TopologyObject) -> Vec<usize> {
    numbers(object.cpuset())
}

fn numbers(set: Option<BitmapRef<'_, CpuSet>>) -> Vec<usize> {
    let Some(set) = set else { return Vec::new() };
    set.iter_set().map(usize::from).take_while(|&cpu| cpu < CPU_LIMIT).collect()
}

fn candidates(topology: &Topology, evidence: &Evidence) -> Vec<Candidate> {
    let objects: Vec<&TopologyObject> = topology.objects_with_type(ObjectType::NUMANode).collect();
    let (distances, caches) = (distances(topology, &objects), caches_before_memory(topology));
    let allowed = topology.allowed_nodeset();
    let candidate = |object: &&TopologyObject| {
        let os_index = object.os_index()?;
        let subtype = text(object.subtype());
        let gpu = subtype.as_deref().is_some_and(|name| name.to_ascii_uppercase().contains("GPU"))
            || object.info("PCIBusID").is_some();
        let listed = |list: &Option<Vec<usize>>| list.as_ref().map(|list| list.contains(&os_index));
        let local_memory = match object.attributes() {
            Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map_or(0, u64::from),
            _ => 0,
        };
        let row = distances.get(&os_index).cloned().unwrap_or_default();
        let own = objects.iter().filter_map(|o| o.os_index()).filter(|&other| other < os_index).count();
        let node = Node {
            os_index,
            cpus: Vec::new(),
            total_cpus: 0,
            memory_bytes: Some(local_memory),
            bandwidth: bandwidth(topology, object),
            tier: if gpu { Tier::Gpu } else { Tier::Dram },
            subtype: subtype.or_else(|| text(object.info("DAXType"))),
            near: None,
            fake_of: None,
            cache_bytes: cache_before(object, &caches),
            allowed: allowed.is_set(os_index) && listed(&evidence.nodes) != Some(false),
            distances: row,
        };
        let own_distance = node.distances.get(own).copied();
        Some(Candidate {
            // The CPUs that may not be used are not in every description.
            locality: Some(cpus_of(object))
                .filter(|cpus| !cpus.is_empty())
                .unwrap_or_else(|| numbers(object.complete_cpuset())),
            own_distance,
            has_cpus: listed(&evidence.nodes_with_cpus),
            node,
        })
    };
    objects.iter().filter_map(candidate).collect()
}

/// The bandwidth for the CPUs that the node is nearest to: all of them at once, or the best that some of them have.
fn bandwidth(topology: &Topology, node: &TopologyObject) -> Option<u64> {
    let (initiators, values) = MemoryAttribute::bandwidth(topology).initiators(node).ok()?;
    let local = initiators.iter().zip(&values).filter(|(initiator, _)| is_local(initiator, node));
    local.map(|(_, &value)| value).filter(|&value| value > 0).max()
}

/// Whether an initiator lies within the CPUs that a node is nearest to.
fn is_local(initiator: &Initiator<'_>, node: &TopologyObject) -> bool {
    let Some(near) = node.cpuset() else { return false };
    match initiator {
        Initiator::CpuSet(set) => near.is_empty() || near.includes(&**set),
        Initiator::Object(_) => false,
    }
}

/// Rows of distances by the number of the node, in order of the nodes' numbers.
fn distances(topology: &Topology, nodes: &[&TopologyObject]) -> BTreeMap<usize, Vec<u32>> {
    let mut order: Vec<usize> = nodes.iter().filter_map(|node| node.os_index()).collect();
    order.sort_unstable();
    let mut rows = BTreeMap::new();
    for matrix in topology.distances_with_type(None, ObjectType::NUMANode).unwrap_or_default() {
        let latency = matrix.name().is_none_or(|name| name.to_bytes() == b"NUMALatency");
        let pairs: BTreeMap<(usize, usize), u64> = matrix
            .object_distances()
            .filter_map(|((from, to), value)| Some(((from?.os_index()?, to?.os_index()?), value)))
            .collect();
        for &from in order.iter().filter(|_| latency) {
            let row = order.iter().map(|&to| u32::try_from(*pairs.get(&(from, to))?).ok());
            if let Some(row) = row.collect::<Option<Vec<u32>>>() {
                rows.entry(from).or_insert(row);
            }
        }
    }
    rows
}

/// Sizes of memory-side caches by hwloc's number of the object. The wrapper does not show them; hwloc's own file does.
fn caches_before_memory(topology: &Topology) -> BTreeMap<u64, u64> {
    if topology.objects_with_type(ObjectType::MemCache).len() == 0 {
        return BTreeMap::new();
    }
    let Ok(exported) = topology.export_xml(XMLExportFlags::empty()) else { return BTreeMap::new() };
    let number = |tag: &xml::Tag, name: &str| tag.attribute(name)?.parse().ok();
    xml::tags(&exported)
        .map_while(Result::ok)
        .filter(|tag| tag.attribute("type") == Some("MemCache"))
        .filter_map(|tag| Some((number(&tag, "gp_index")?, number(&tag, "cache_size")?)))
        .collect()
}

fn cache_before(node: &TopologyObject, sizes: &BTreeMap<u64, u64>) -> Option<u64> {
    let above = node.ancestors().take_while(|object| object.object_type() == ObjectType::MemCache);
    above
        .filter_map(|object| sizes.get(&object.global_persistent_index()).copied())
        .filter(|&size| size > 0)
        .max()
}

fn find_cores(topology: &Topology, cpus: &[usize], home_of: &BTreeMap<usize, usize>) -> Vec<Core> {
    let mut groups: BTreeMap<(usize, usize, usize), Core> = BTreeMap::new();
    for object in topology.objects_with_type(ObjectType::PU) {
        let Some(cpu) = object.os_index().filter(|cpu| cpus.binary_search(cpu).is_ok()) else { continue };
        let Some(&node) = home_of.get(&cpu) else { continue };
        let core = object.first_ancestor_with_type(ObjectType::Core).unwrap_or(object);
        let package = object.first_ancestor_with_type(ObjectType::Package);
        let socket = package.and_then(TopologyObject::os_index).unwrap_or(0);
        // Cores that share their last-level cache stay side by side, so that a cut keeps them together.
        let cached =
            object.ancestors().filter(|o| o.object_type().is_cpu_data_cache()).last().unwrap_or(core);
        let first = |object: &TopologyObject| cpus_of(object).first().copied().unwrap_or(cpu);
        let key = (node, first(cached), first(core));
        let l3 = object.first_ancestor_with_type(ObjectType::L3Cache).map(first);
        groups.entry(key).or_insert(Core { cpus: Vec::new(), node, socket, l3 }).cpus.push(cpu);
    }
    let sorted = groups.into_values().map(|mut core| {
        core.cpus.sort_unstable();
        core.cpus.dedup();
        core
    });
    sorted.collect()
}

/// The caches of one CPU, smallest level first.
fn caches(topology: &Topology, cpu: usize) -> Vec<Cache> {
    let mut objects = topology.objects_with_type(ObjectType::PU);
    let Some(own) = objects.find(|object| object.os_index() == Some(cpu)) else { return Vec::new() };
    let cache = |object: &TopologyObject| {
        let Some(ObjectAttributes::Cache(cache)) = object.attributes() else { return None };
        let kind = match cache.cache_type() {
            CacheType::Data => "Data",
            CacheType::Instruction => "Instruction",
            _ => "Unified",
        };
        let (level, kind, bytes) = (cache.depth(), kind.to_owned(), cache.size()?.get());
        Some(Cache { level, kind, bytes, shared_by: cpus_of(object).len().max(1) })
    };
    let mut caches: Vec<Cache> = own.ancestors().filter_map(cache).collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}
