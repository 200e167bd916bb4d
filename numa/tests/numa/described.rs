//! Machines that are not here, described by files of hwloc: what is made of each, letter by letter.
//!
//! `fixtures/make.py` writes the files, but for those of two virtual machines. Beside each lies what Quadrille makes of it.
//! After a change that is meant, `QUADRILLE_RENEW_PLANS=1 cargo test -p quadrille-numa --features hwloc --test numa` writes
//! these plans anew, for their difference to be read.

use std::fs;
use std::path::{Path, PathBuf};

use quadrille_numa::topology::{self, HAS_HWLOC, Machine, Source, Tier};
use quadrille_numa::{
    Cut, PartitionError, Reserve, Wishes, cut, describe, quadrants, third_level_caches, to_json,
};

/// Whether this build can read files of hwloc; says aloud if not.
fn can_read() -> bool {
    if !HAS_HWLOC {
        println!("skipped: built without the feature hwloc, files of hwloc cannot be read");
    }
    HAS_HWLOC
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/numa/fixtures")
}

fn fixtures() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).expect("the fixtures").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "xml")).collect();
    files.sort();
    assert!(files.len() >= 20, "only {} fixtures", files.len());
    files
}

fn machine(name: &str) -> Machine {
    let file = folder().join(name).with_extension("xml");
    topology::read(&Source::Xml(file)).unwrap_or_else(|error| panic!("{error}"))
}

/// What is made of a machine, in words.
fn plan(machine: &Machine) -> String {
    let wishes = Wishes { reserve: Reserve::Auto, ..Wishes::new(None, None) };
    let partition = cut(machine, &wishes).expect("a partition");
    let mut text = describe(machine, &partition, &|_| None);
    // Of what programs read, a line for each quadrant: the rest is all in words above.
    for quadrant in to_json(machine, &partition)["quadrants"].as_array().expect("quadrants") {
        text.push_str(&format!("{{\"dram\": {}, \"fast\": {}}}\n", quadrant["dram"], quadrant["fast"]));
    }
    text
}

#[test]
fn every_machine_has_its_plan() {
    if !can_read() {
        return;
    }
    let renew = std::env::var_os("QUADRILLE_RENEW_PLANS").is_some();
    let mut wrong = Vec::new();
    for file in fixtures() {
        let found = plan(&machine(file.to_str().expect("a name in UTF-8")));
        let beside = file.with_extension("plan");
        if renew {
            fs::write(&beside, &found).expect("a plan written");
        }
        let expected = fs::read_to_string(&beside).unwrap_or_default();
        if found != expected {
            wrong.push(format!("{}: expected\n{expected}\nfound\n{found}", beside.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\nIf that is meant, renew the plans: see the top of this file.",
        wrong.join("\n")
    );
}

/// The nodes of each quadrant: ordinary and fast memory.
fn memory(name: &str) -> Vec<(Option<usize>, Option<usize>)> {
    let partition = quadrants(&machine(name), None, None).expect("a partition");
    partition.quadrants.iter().map(|q| (q.dram_node, q.fast_node)).collect()
}

#[test]
fn fast_memory_is_whose_it_is_and_not_number_plus_4() {
    if !can_read() {
        return;
    }
    let crossed = [(0, 7), (1, 6), (2, 5), (3, 4)].map(|(dram, fast)| (Some(dram), Some(fast)));
    assert_eq!(memory("knl-mcdram-node-7"), crossed);
    assert_eq!(memory("xeon-max-snc4-flat"), (0..8).map(|n| (Some(n), Some(8 + n))).collect::<Vec<_>>());
    assert_eq!(memory("three-tiers"), [(Some(0), Some(1))]);
    assert_eq!(memory("xeon-max-snc4-hbm-only"), (0..8).map(|n| (Some(n), None)).collect::<Vec<_>>());
    for slow in ["cxl", "nvm", "cxl-shared"] {
        assert_eq!(memory(slow), [(Some(0), None), (Some(1), None)], "{slow}");
    }
    let gpus = machine("gpu-memory");
    let of_gpus = gpus.nodes.iter().filter(|node| node.tier == Tier::Gpu);
    assert_eq!(of_gpus.map(|node| node.os_index).collect::<Vec<_>>(), [252, 253, 254, 255]);
    assert_eq!(memory("gpu-memory"), [(Some(0), None), (Some(8), None)]);
}

#[test]
fn bandwidths_sizes_and_caches_are_those_of_the_file() {
    if !can_read() {
        return;
    }
    let flat = machine("xeon-max-snc4-flat");
    let node = |number| flat.node(number).map(|node| (node.memory_bytes, node.bandwidth));
    assert_eq!(node(0), Some((Some(64 << 30), Some(76_000))));
    assert_eq!(node(15), Some((Some(16 << 30), Some(200_000))));
    assert!(!flat.here, "nothing may be bound on a machine that is not here");
    let cache = machine("knl-quad-cache");
    assert_eq!(cache.nodes[0].cache_bytes, Some(16 << 30));
    assert!(
        cache.notes[0].starts_with("a memory-side cache of 16 GiB stands before node 0"),
        "{:?}",
        cache.notes
    );
    assert_eq!(machine("fake-numa").nodes.iter().filter(|node| node.fake_of == Some(0)).count(), 3);
}

#[test]
fn every_allowed_cpu_is_in_exactly_one_quadrant() {
    if !can_read() {
        return;
    }
    for file in fixtures() {
        let machine = machine(file.to_str().expect("a name in UTF-8"));
        let partition = quadrants(&machine, None, None).expect("a partition");
        let mut cpus: Vec<usize> = partition.quadrants.iter().flat_map(|q| q.cpus.clone()).collect();
        cpus.sort_unstable();
        assert_eq!(cpus, machine.cpus, "{}", file.display());
    }
}

#[test]
fn a_file_that_is_not_whole_is_refused_by_name() {
    let text = fs::read_to_string(folder().join("three-tiers.xml")).expect("a fixture");
    let scratch = std::env::temp_dir().join(format!("quadrille-cut-{}.xml", std::process::id()));
    let refused = |bytes: &[u8]| {
        fs::write(&scratch, bytes).expect("a file");
        topology::read(&Source::Xml(scratch.clone())).expect_err("a refusal").to_string()
    };
    for cut in (0..text.trim_end().len()).step_by(97) {
        let said = refused(&text.as_bytes()[..cut]);
        assert!(said.contains(scratch.to_str().expect("UTF-8")), "{said}");
    }
    let said = refused(text.replace("version=\"2.0\"", "version=\"3.0\"").as_bytes());
    assert!(!HAS_HWLOC || said.contains("format 3.0"), "{said}");
    let said = topology::read(&Source::Xml(folder())).expect_err("a refusal").to_string();
    assert!(
        if HAS_HWLOC { said.contains("it is a folder") } else { said.contains("--features hwloc") },
        "{said}"
    );
    fs::remove_file(&scratch).expect("the file was there");
}

#[test]
fn a_line_describes_a_machine() {
    if !can_read() {
        return;
    }
    let two = topology::read(&Source::Synthetic("pack:2 numa:1 core:3 pu:2".into())).expect("a machine");
    assert_eq!((two.cores.len(), two.cpus.len(), two.sockets.len()), (6, 12, 2));
    assert_eq!(third_level_caches(&two), Err(PartitionError::NoCaches));
    let epyc =
        topology::read(&Source::Synthetic("pack:2 numa:1 l3:4 core:3 pu:2".into())).expect("a machine");
    let caches = cut(&epyc, &Wishes::at(Cut::Caches, None)).expect("a partition");
    let threads: Vec<usize> = caches.quadrants.iter().map(|quadrant| quadrant.threads).collect();
    assert_eq!((third_level_caches(&epyc), threads), (Ok(8), vec![3; 8]));
    let said = topology::read(&Source::Synthetic("a cat".into())).expect_err("no machine").to_string();
    assert!(said.starts_with("HWLOC_SYNTHETIC=a cat: "), "{said}");
}

#[test]
fn a_folder_that_is_no_machine_is_refused() {
    let said = topology::read(&Source::Root(folder())).expect_err("no machine").to_string();
    assert!(said.starts_with("HWLOC_FSROOT=") && said.contains("sys/devices/system/cpu/cpu0"), "{said}");
}
