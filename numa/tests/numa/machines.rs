//! Machines that are not here, described by folders: what is detected, and how it is cut.

use crate::fixture::{Fixture, epyc, knl, laptop, node, three_caches, two_sockets};
use quadrille_numa::topology::{Tier, TopologyError, detect, detect_at};
use quadrille_numa::{Cut, Partition, PartitionError, Wishes, cut, describe, quadrants, third_level_caches};

fn cpus(partition: &Partition) -> Vec<Vec<usize>> {
    partition.quadrants.iter().map(|q| q.cpus.clone()).collect()
}

fn sizes(partition: &Partition) -> Vec<usize> {
    partition.quadrants.iter().map(|q| q.cpus.len()).collect()
}

#[test]
fn the_machine_under_the_tests_is_found_and_cut() {
    let machine = detect().unwrap();
    assert!(!machine.cpus.is_empty() && !machine.nodes.is_empty() && !machine.cores.is_empty());
    let partition = quadrants(&machine, None, None).unwrap();
    let mut all: Vec<usize> = cpus(&partition).concat();
    all.sort_unstable();
    assert_eq!(all, machine.cpus);
}

#[test]
fn a_laptop_is_one_quadrant_with_a_thread_per_core() {
    let machine = laptop().detect();
    assert_eq!((machine.cpus.len(), machine.cores.len(), machine.sockets.len()), (8, 4, 1));
    assert_eq!(machine.nodes[0].memory_bytes, Some(16 << 30));
    assert_eq!(machine.caches[3].bytes, 8192 << 10);
    assert_eq!(machine.notes, Vec::<String>::new());
    let partition = quadrants(&machine, None, None).unwrap();
    let quadrant = &partition.quadrants[0];
    assert_eq!((quadrant.dram_node, quadrant.fast_node), (Some(0), None));
    assert_eq!((quadrant.threads, quadrant.cpu_of_thread(3), quadrant.cpu_of_thread(8)), (4, Some(3), None));
    assert_eq!(
        partition.how,
        "1 quadrant, one for each NUMA node with allowed CPUs; 4 threads (one per core), pinned"
    );
}

#[test]
fn a_machine_is_cut_at_its_third_level_caches_if_that_is_asked_for() {
    let machine = three_caches(&[node("0-11", 64, "10")]).detect();
    let caches = Wishes::at(Cut::Caches, None);
    assert_eq!(cpus(&cut(&machine, &caches).unwrap()), [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]);
    assert_eq!(third_level_caches(&machine), Ok(3));
    let how = |wishes: &Wishes| cut(&machine, wishes).unwrap().how;
    assert!(how(&caches).starts_with("3 quadrants as asked: one for each third-level cache; 4 threads each"));
    let hint = "3 third-level caches, at which --quadrants l3 would cut";
    assert!(how(&Wishes::new(None, None)).contains(hint), "{}", how(&Wishes::new(None, None)));
    assert!(!how(&Wishes::new(Some(2), None)).contains("third-level"));

    // A quadrant is on one node, whatever shares a cache.
    let split = three_caches(&[node("0-5", 32, "10 12"), node("6-11", 32, "12 10")]).detect();
    assert_eq!(cpus(&cut(&split, &caches).unwrap()), [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]]);
    let fewer = three_caches(&[node("0-11", 64, "10")]);
    let fewer = fewer.allow("0-1,3", "0").detect();
    assert_eq!(cpus(&cut(&fewer, &caches).unwrap()), [vec![0, 3], vec![1]]);
}

#[test]
fn a_cut_at_unknown_caches_is_refused() {
    for machine in [two_sockets().detect(), laptop().detect()] {
        let refused = cut(&machine, &Wishes::at(Cut::Caches, None));
        assert_eq!(refused.map(|partition| partition.how), Err(PartitionError::NoCaches));
    }
}

#[test]
fn a_cut_node_keeps_hardware_threads_of_a_core_together() {
    let partition = quadrants(&laptop().detect(), Some(2), None).unwrap();
    assert_eq!(cpus(&partition), [[0, 1, 4, 5], [2, 3, 6, 7]]);
    assert!(partition.quadrants.iter().all(|q| q.dram_node == Some(0)));
    let by_thread = quadrants(&laptop().detect(), Some(8), None).unwrap();
    assert_eq!(sizes(&by_thread), [1; 8]);
    assert!(by_thread.how.contains("1 NUMA node cut between hardware threads"), "{}", by_thread.how);
}

#[test]
fn two_sockets_are_joined_on_request_and_it_is_said() {
    let machine = two_sockets().detect();
    assert_eq!(machine.sockets.len(), 2);
    let partition = quadrants(&machine, Some(1), None).unwrap();
    assert_eq!(cpus(&partition), [[0, 1, 2, 3, 4, 5, 6, 7]]);
    assert_eq!(partition.quadrants[0].dram_node, None);
    assert!(partition.how.contains("2 of 2 NUMA nodes joined"), "{}", partition.how);
    assert_eq!(sizes(&quadrants(&machine, Some(3), None).unwrap()), [2, 2, 4]);
}

#[test]
fn fast_memory_is_matched_by_distance_not_by_number() {
    let machine = knl([18, 18, 16, 16]).detect();
    assert_eq!(machine.notes, Vec::<String>::new());
    let partition = quadrants(&machine, None, None).unwrap();
    let memory: Vec<_> = partition.quadrants.iter().map(|q| (q.dram_node, q.fast_node)).collect();
    assert_eq!(memory, [(Some(0), Some(7)), (Some(1), Some(6)), (Some(2), Some(5)), (Some(3), Some(4))]);
    assert_eq!(sizes(&partition), [18, 18, 16, 16]);
    assert!(partition.how.ends_with("18/18/16/16 threads (one per core), pinned"), "{}", partition.how);
}

#[test]
fn uneven_clusters_are_cut_where_the_parts_are_largest() {
    let machine = knl([18, 18, 16, 16]).detect();
    assert_eq!(sizes(&quadrants(&machine, Some(8), None).unwrap()), [9, 9, 9, 9, 8, 8, 8, 8]);
    assert_eq!(sizes(&quadrants(&machine, Some(6), None).unwrap()), [9, 9, 9, 9, 16, 16]);
    assert_eq!(sizes(&quadrants(&machine, Some(2), None).unwrap()), [36, 32]);
    let error = quadrants(&machine, Some(3), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "4 NUMA nodes cannot be joined evenly into 3 quadrants; ask for 1, 2, 4, or more than 4"
    );
}

#[test]
fn every_cut_gives_every_cpu_to_exactly_one_quadrant() {
    for fixture in [laptop(), two_sockets(), knl([18, 18, 16, 16]), epyc()] {
        let machine = fixture.detect();
        for count in machine.nodes.iter().filter(|n| n.total_cpus > 0).count()..=machine.cpus.len() {
            let partition = quadrants(&machine, Some(count), None).unwrap();
            let mut all = cpus(&partition).concat();
            all.sort_unstable();
            assert_eq!((partition.quadrants.len(), &all), (count, &machine.cpus));
            assert!(partition.quadrants.iter().all(|q| q.pinned && q.dram_node.is_some()));
        }
    }
}

#[test]
fn interleaved_numbers_stay_with_their_node() {
    let partition = quadrants(&epyc().detect(), None, None).unwrap();
    assert_eq!(partition.quadrants[1].cpus, [1, 5, 9, 13, 17, 21, 25, 29]);
    assert_eq!(partition.quadrants[1].cpu_of_thread(3), Some(13));
    assert_eq!(partition.quadrants[3].dram_node, Some(3));
}

#[test]
fn the_mask_is_what_counts() {
    let fixture = epyc();
    fixture.allow("0,4,16,20,1", "0-1");
    let machine = fixture.detect();
    assert_eq!(machine.cpus, [0, 1, 4, 16, 20]);
    assert_eq!(machine.cores.len(), 3);
    let partition = quadrants(&machine, None, None).unwrap();
    assert_eq!(cpus(&partition), [vec![0, 4, 16, 20], vec![1]]);
}

#[test]
fn masked_clusters_keep_their_fast_memory_to_themselves() {
    let fixture = knl([4, 4, 4, 4]);
    fixture.allow("0-7", "0-3,7");
    let partition = quadrants(&fixture.detect(), None, None).unwrap();
    let memory: Vec<_> = partition.quadrants.iter().map(|q| (q.dram_node, q.fast_node)).collect();
    // Node 6 belongs to cluster 1, but the job may not allocate there.
    assert_eq!(memory, [(Some(0), Some(7)), (Some(1), None)]);
}

#[test]
fn a_mask_off_the_machine_is_an_error() {
    let fixture = laptop();
    fixture.allow("64-65", "0");
    let error = detect_at(fixture.root(), 2).unwrap_err();
    assert!(matches!(&error, TopologyError::NoCpus { mask, .. } if mask == &[64, 65]));
    assert!(error.to_string().contains("(64-65) holds none of the CPUs that are online (0-7)"), "{error}");
}

#[test]
fn threads_beyond_the_cpus_are_granted_unpinned() {
    let machine = laptop().detect();
    let partition = quadrants(&machine, None, Some(16)).unwrap();
    assert_eq!(partition.quadrants[0].cpu_of_thread(0), None);
    assert!(partition.how.ends_with("16 threads (as asked), not pinned, since 16 threads share 8 CPUs"));
    assert!(quadrants(&machine, None, Some(8)).unwrap().quadrants[0].pinned);
    assert_eq!(
        quadrants(&machine, None, Some(0)),
        Err(PartitionError::Zero { what: "the number of threads per quadrant" })
    );
    assert!(matches!(
        quadrants(&machine, None, Some(usize::MAX)),
        Err(PartitionError::TooManyThreads { .. })
    ));
    let uneven = quadrants(&knl([18, 18, 16, 16]).detect(), None, Some(17)).unwrap();
    assert!(uneven.how.ends_with("pinned except in quadrants 2-3, which have fewer CPUs than threads"));
}

#[test]
fn quadrants_beyond_the_cpus_share_them_up_to_64() {
    let machine = laptop().detect();
    let partition = quadrants(&machine, Some(64), None).unwrap();
    assert_eq!(sizes(&partition), [1; 64]);
    assert_eq!(
        partition.how,
        "64 quadrants as asked: more than the 8 allowed CPUs, so quadrants share CPUs; \
         1 thread each (since they share CPUs), not pinned, since 64 threads share 8 CPUs"
    );
    let error = quadrants(&machine, Some(65), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "65 quadrants were asked for, but this machine has 8 allowed CPUs; ask for at most 64"
    );
    assert!(quadrants(&machine, Some(0), None).is_err());
}

#[test]
fn missing_files_leave_one_node_and_a_note() {
    let machine = detect_at(Fixture::empty().root(), 3).unwrap();
    assert_eq!((machine.cpus.as_slice(), machine.numa_known), (&[0, 1, 2][..], false));
    assert!(machine.notes[0].starts_with("the affinity mask is unknown (/proc/self/status: "));
    assert!(
        machine.notes[1].starts_with("the description of NUMA nodes is missing (/sys/devices/system/node: ")
    );
    let partition = quadrants(&machine, None, None).unwrap();
    assert_eq!((sizes(&partition), partition.quadrants[0].dram_node), (vec![3], None));
    assert!(partition.how.starts_with("1 quadrant, since the NUMA nodes are unknown"));
}

#[test]
fn corrupt_files_are_named_and_never_fatal() {
    let broken: [(&str, &[u8], &str); 6] = [
        ("sys/devices/system/node/node0/cpulist", b"0-x", "\"0-x\" is not a CPU number"),
        ("sys/devices/system/node/node1/cpulist", b"3-7", "CPU 3 is in node 0 and in node 1"),
        ("sys/devices/system/node/node0/meminfo", b"\xff\xfe", "the memory of node 0 is unknown"),
        ("sys/devices/system/node/node0/distance", b"10", "1 distances for 2 nodes"),
        ("proc/self/status", b"Cpus_allowed_list:\t9-0", "the range 9-0 runs backwards"),
        ("sys/devices/system/cpu/online", b"0-4294967295", "beyond the limit"),
    ];
    for (path, bytes, said) in broken {
        let fixture = two_sockets();
        fixture.write(path, bytes);
        let machine = fixture.detect();
        assert!(machine.notes.iter().any(|note| note.contains(said)), "{path}: {:?}", machine.notes);
        assert!(quadrants(&machine, None, None).is_ok());
    }
    let fixture = two_sockets();
    fixture.write("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "7");
    assert!(fixture.detect().notes[0].starts_with("the hardware threads of CPUs 1 are unknown"));
}

#[test]
fn no_content_of_any_file_is_fatal() {
    let paths = [
        "proc/cpuinfo",
        "proc/self/status",
        "proc/self/cgroup",
        "sys/devices/system/cpu/online",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
        "sys/devices/system/cpu/cpu0/topology/physical_package_id",
        "sys/devices/system/cpu/cpu0/cache/index0/level",
        "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list",
        "sys/devices/system/node/online",
        "sys/devices/system/node/node0/cpulist",
        "sys/devices/system/node/node4/cpulist",
        "sys/devices/system/node/node4/distance",
        "sys/devices/system/node/node4/meminfo",
        "sys/devices/system/node/node4/access0/initiators/read_bandwidth",
    ];
    let contents: [&[u8]; 9] = [
        b"",
        b"\0",
        b"-",
        b",",
        b"7",
        b"0-65535",
        b"18446744073709551615",
        b"Cpus_allowed_list:\t0-65535",
        b"0::/../..\n1:cpu:\n:::",
    ];
    for path in paths {
        for bytes in contents {
            let fixture = knl([2, 2, 2, 2]);
            fixture.cache(0, 0, 1, "Data", "32K", "0").write(path, bytes);
            if let Ok(machine) = detect_at(fixture.root(), 2) {
                let partition = quadrants(&machine, None, None).unwrap();
                assert!(!describe(&machine, &partition, &|_| None).is_empty(), "{path}");
            }
        }
    }
}

#[test]
fn memory_without_cpus_is_fast_only_if_told_so() {
    let nodes = || [node("0-1", 64, "10 20"), node("", 16, "20 10")];
    let bandwidth = |fixture: &Fixture, node: usize, value: &str| {
        let path = format!("sys/devices/system/node/node{node}/access0/initiators/read_bandwidth");
        fixture.write(&path, value);
    };
    let silent = Fixture::machine("Intel(R) Xeon(R) Platinum 8480+", &nodes()).detect();
    assert!(silent.nodes[1].tier == Tier::Unknown && silent.notes[0].contains("does not tell its bandwidth"));
    for (own, tier) in [("400000", Tier::Fast), ("60000", Tier::Slow)] {
        let fixture = Fixture::machine("Intel(R) Xeon(R) Platinum 8480+", &nodes());
        bandwidth(&fixture, 0, "200000");
        bandwidth(&fixture, 1, own);
        assert_eq!(fixture.detect().nodes[1].tier, tier);
    }
    let max = Fixture::machine("Intel(R) Xeon(R) CPU Max 9480", &nodes()).detect();
    assert_eq!(max.nodes[1].tier, Tier::Fast);
}

#[test]
fn fast_memory_without_distances_is_not_guessed() {
    let fixture = knl([2, 2, 2, 2]);
    fixture.remove("sys/devices/system/node/node7/distance");
    let machine = fixture.detect();
    assert_eq!(machine.node(7).map(|node| (node.near, node.tier)), Some((None, Tier::Unknown)));
    assert!(machine.notes.iter().any(|note| note.contains("node 7") && note.ends_with("it is not used.")));
}

#[test]
fn a_node_without_memory_uses_the_nearest_that_has_some() {
    let nodes = [node("0-1", 0, "10 32 16"), node("2-3", 8, "32 10 32"), node("4-5", 8, "16 32 10")];
    let partition = quadrants(&Fixture::machine("x", &nodes).detect(), None, None).unwrap();
    assert_eq!(partition.quadrants[0].dram_node, Some(2));
}

#[test]
fn a_cgroup_quota_is_noted_and_limits_the_default_threads() {
    let fixture = laptop();
    fixture.write("proc/self/cgroup", "0::/job/step\n");
    fixture.write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    fixture.write("sys/fs/cgroup/job/cpu.max", "250000 100000\n");
    let machine = fixture.detect();
    assert_eq!(machine.quota, Some(2.5));
    assert!(machine.notes[0].starts_with("the cgroup grants the time of 2.5 CPUs although 8 may be used"));
    let partition = quadrants(&machine, None, None).unwrap();
    assert!(partition.how.ends_with("2 threads (limited by the cgroup's CPU quota), pinned"));
    assert_eq!(quadrants(&machine, None, Some(4)).unwrap().quadrants[0].threads, 4);
}

#[test]
fn a_version_1_quota_counts_and_none_is_none() {
    let fixture = laptop();
    fixture.write("proc/self/cgroup", "4:cpu,cpuacct:/a\n3:memory:/a\n");
    fixture.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "100000");
    fixture.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000");
    assert_eq!(fixture.detect().quota, Some(1.0));
    fixture.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1");
    assert_eq!(fixture.detect().quota, None);
}

#[test]
fn cpus_whose_node_is_offline_are_a_quadrant_without_memory() {
    let fixture = two_sockets();
    fixture.write("sys/devices/system/node/online", "1");
    let machine = fixture.detect();
    assert_eq!(machine.cpus, [0, 1, 2, 3, 4, 5, 6, 7]);
    let partition = quadrants(&machine, None, None).unwrap();
    let memory: Vec<_> = partition.quadrants.iter().map(|q| (q.cpus.clone(), q.dram_node)).collect();
    assert_eq!(memory, [(vec![0, 1, 2, 3], None), (vec![4, 5, 6, 7], Some(1))]);
    assert!(
        machine.notes.iter().any(|note| note.starts_with("the node of CPUs 0-3 is offline")),
        "{:?}",
        machine.notes
    );
}

#[test]
fn nodes_made_by_numa_fake_are_joined() {
    let nodes = [node("0-3", 4, "10 10"), node("0-3", 4, "10 10")];
    let machine = Fixture::machine("x", &nodes).detect();
    assert_eq!(
        machine.notes[0].split(':').next(),
        Some("nodes 0-1 have the same CPUs, as numa=fake makes them of one")
    );
    let quadrant = &quadrants(&machine, None, None).unwrap().quadrants[0];
    assert_eq!((quadrant.dram_node, &quadrant.dram_nodes[..], quadrant.threads), (None, &[0, 1][..], 4));
}

#[test]
fn caches_before_memory_and_memory_of_gpus_are_told() {
    let fixture = two_sockets();
    fixture.write("sys/devices/system/node/node1/memory_side_cache/index1/size", (16u64 << 30).to_string());
    fixture.write("proc/driver/nvidia/gpus/0000:01:00.0/numa_status", "Node:\t2\n");
    for file in ["cpulist", "distance", "meminfo"] {
        let text = match file {
            "cpulist" => "",
            "distance" => "40 40 10",
            _ => "Node 2 MemTotal: 100 kB",
        };
        fixture.write(&format!("sys/devices/system/node/node2/{file}"), text);
    }
    fixture.write("sys/devices/system/node/online", "0-2");
    let machine = fixture.detect();
    assert_eq!(machine.node(2).map(|node| node.tier), Some(Tier::Gpu));
    assert_eq!(machine.node(1).and_then(|node| node.cache_bytes), Some(16 << 30));
    assert!(machine.notes.iter().any(|n| n.contains("stands before node 1")), "{:?}", machine.notes);
    assert!(machine.notes.iter().any(|n| n.contains("nodes 2 are memory of GPUs")), "{:?}", machine.notes);
}
