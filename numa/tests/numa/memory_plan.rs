//! What goes where on machines that are not here, and how much memory there is to have.

use std::path::PathBuf;

use quadrille_numa::memory::Census;
use quadrille_numa::memory::capacity::{Capacity, Limit, NodeCapacity, available_below};
use quadrille_numa::memory::plan::{
    FastMemory, Home, MemoryPlan, Need, Placed, QuadrantNeeds, Rest, TooLittle, Why, Wish,
};

use super::fixture::{Fixture, node};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A machine's nodes and its quadrants, each with a node of DRAM and perhaps one of fast memory.
struct Chip {
    capacity: Capacity,
    homes: Vec<(usize, Option<usize>)>,
}

impl Chip {
    /// `quadrants` quadrants with DRAM on nodes 0, 1, … and fast memory on the nodes behind them.
    fn new(quadrants: usize, dram: u64, fast: Option<u64>) -> Self {
        let node = |node, total| NodeCapacity { node, total, free: total };
        let mut nodes: Vec<NodeCapacity> = (0..quadrants).map(|n| node(n, dram)).collect();
        nodes.extend(
            fast.into_iter().flat_map(|bytes| (quadrants..2 * quadrants).map(move |n| node(n, bytes))),
        );
        let bytes = Some(nodes.iter().map(|node| node.free).sum());
        let homes = (0..quadrants).map(|n| (n, fast.map(|_| n + quadrants))).collect();
        Self { capacity: Capacity { nodes, bytes, limited_by: None }, homes }
    }

    /// A Xeon Phi 7210 in SNC-4, flat: 16 GiB of MCDRAM.
    fn knl() -> Self {
        Self::new(4, 24 * GIB, Some(4 * GIB))
    }

    fn needs(&self, needs: &[(&str, u64, Wish)]) -> Vec<QuadrantNeeds> {
        let need = |(what, bytes, wish): &(&str, u64, Wish)| Need {
            what: (*what).into(),
            bytes: *bytes,
            wish: *wish,
            divisible: *what == "activations",
        };
        let needs: Vec<Need> = needs.iter().map(need).collect();
        let quadrant = |(dram, fast): &(usize, Option<usize>)| QuadrantNeeds {
            dram_node: Some(*dram),
            fast_node: *fast,
            needs: needs.clone(),
        };
        self.homes.iter().map(quadrant).collect()
    }

    fn plan(&self, needs: &[(&str, u64, Wish)], fast: FastMemory) -> Result<MemoryPlan, TooLittle> {
        MemoryPlan::new(&self.needs(needs), &self.capacity, fast)
    }
}

fn alexnet(images: u64) -> Vec<(&'static str, u64, Wish)> {
    let parameters = 61 * 4 * MIB;
    vec![
        ("activations", images * 8 * MIB, Wish::Fast),
        ("weights", parameters, Wish::Fast),
        ("gradients", parameters, Wish::Fast),
        ("histories", parameters, Wish::Fast),
        ("staging", images * MIB, Wish::Dram),
    ]
}

fn places(placed: &[Placed]) -> Vec<(Option<usize>, Why)> {
    placed.iter().map(|placed| (placed.node, placed.why)).collect()
}

#[test]
fn what_fits_lies_in_the_fast_memory_of_its_own_quadrant() {
    for fast in [FastMemory::Prefer, FastMemory::Require] {
        let plan = Chip::knl().plan(&alexnet(64), fast).unwrap();
        for (quadrant, placed) in plan.quadrants.iter().enumerate() {
            let expected: Vec<_> = std::iter::repeat_n((Some(quadrant + 4), Why::Fast), 4)
                .chain([(Some(quadrant), Why::Dram)])
                .collect();
            assert_eq!(places(placed), expected);
        }
        assert_eq!(
            plan.lines()[1],
            "quadrant 0: 1.2 GiB in node 4 (fast): activations, weights, gradients, histories; \
             64.0 MiB in node 0 (DRAM): staging"
        );
    }
}

#[test]
fn firmware_numbers_nodes_as_it_likes() {
    let mut chip = Chip::knl();
    chip.homes = vec![(0, Some(7)), (1, Some(4)), (2, Some(5)), (3, Some(6))];
    let plan = chip.plan(&alexnet(64), FastMemory::Prefer).unwrap();
    let fast: Vec<Option<usize>> = plan.quadrants.iter().map(|placed| placed[0].node).collect();
    assert_eq!(fast, [Some(7), Some(4), Some(5), Some(6)]);
}

#[test]
fn whole_tensors_spill_and_those_behind_them_stay_if_they_fit() {
    // 4 GiB, of which 3.875 may be planned: activations of 448 images leave room for one array of parameters.
    let plan = Chip::knl().plan(&alexnet(448), FastMemory::Prefer).unwrap();
    let [activations, weights, gradients, histories, _] = &plan.quadrants[2][..] else {
        panic!("five needs")
    };
    assert_eq!(places(&[activations.clone(), weights.clone()]), [(Some(6), Why::Fast); 2]);
    let missing = 244 * MIB - (3968 - 3584 - 244) * MIB;
    assert_eq!(places(&[gradients.clone(), histories.clone()]), [(Some(2), Why::Spilled(missing)); 2]);
    assert!(
        plan.lines()[3].contains("gradients (spilled: 104.0 MiB missing in fast memory)"),
        "{:?}",
        plan.lines()
    );
}

#[test]
fn activations_that_are_too_large_get_what_the_rest_leaves() {
    let plan = Chip::knl().plan(&alexnet(512), FastMemory::Prefer).unwrap();
    let from = (3968 - 3 * 244) * MIB;
    let home = |node: usize| Some(Home { node: node + 4, rest: Some(Rest { from, node: Some(node) }) });
    for (quadrant, placed) in plan.quadrants.iter().enumerate() {
        assert_eq!(placed[0].home(), home(quadrant));
        assert!(placed[1..4].iter().all(|placed| placed.node == Some(quadrant + 4)), "{placed:?}");
    }
    assert_eq!(
        plan.lines()[1],
        "quadrant 0: 3.9 GiB in node 4 (fast): activations (the first 3.2 GiB), weights, gradients, histories; \
         1.3 GiB in node 0 (DRAM): activations (the other 860.0 MiB, missing in fast memory), staging"
    );
    // Two quadrants on one node get as much: 128 MiB less 48 are left.
    let mut chip = Chip::knl();
    chip.homes = (0..8).map(|quadrant| (quadrant / 2, Some(4 + quadrant / 2))).collect();
    let needs = [("activations", 8 * GIB, Wish::Fast), ("weights", 1944 * MIB, Wish::Fast)];
    let plan = chip.plan(&needs, FastMemory::Prefer).unwrap();
    for (quadrant, placed) in plan.quadrants.iter().enumerate() {
        assert_eq!(placed[0].home().and_then(|home| home.rest).map(|rest| rest.from), Some(40 * MIB));
        assert_eq!(placed[1].node, Some(4 + quadrant / 2));
    }
    // Where nothing is left, or nothing may be there, all of them are in DRAM.
    let needs = [("activations", 8 * GIB, Wish::Fast), ("weights", 3968 * MIB, Wish::Fast)];
    let plan = Chip::knl().plan(&needs, FastMemory::Prefer).unwrap();
    assert_eq!(places(&plan.quadrants[1])[0], (Some(1), Why::Spilled(8 * GIB)));
    let plan = Chip::knl().plan(&needs, FastMemory::Off).unwrap();
    assert_eq!(places(&plan.quadrants[1])[0], (Some(1), Why::Off));
}

#[test]
fn a_data_set_has_fast_memory_only_if_nobody_else_wants_it() {
    let with = |images: u64, bytes: u64| [vec![("data set", bytes, Wish::Spare)], alexnet(images)].concat();
    let of_first = |needs: &[_], fast| places(&Chip::knl().plan(needs, fast).unwrap().quadrants[0])[0];
    assert_eq!(of_first(&with(64, GIB), FastMemory::Prefer), (Some(4), Why::Fast));
    assert_eq!(of_first(&with(64, 3 * GIB), FastMemory::Prefer), (Some(0), Why::Dram));
    // Activations are divided before it has its turn, and leave less than a large page.
    assert_eq!(of_first(&with(512, GIB), FastMemory::Prefer), (Some(0), Why::Dram));
    assert_eq!(of_first(&with(64, GIB), FastMemory::Off), (Some(0), Why::Dram));
    // It does not wish for fast memory so much that a run could not begin.
    assert_eq!(of_first(&with(64, 3 * GIB), FastMemory::Require), (Some(0), Why::Dram));
    // As everything, it lies rather in the DRAM of another quadrant than nowhere.
    let mut chip = Chip::knl();
    chip.capacity.nodes[0].free = 8 * GIB;
    let mut needs = chip.needs(&alexnet(64));
    let data = Need { what: "data set".into(), bytes: 10 * GIB, wish: Wish::Spare, divisible: false };
    needs[0].needs.push(data);
    let plan = MemoryPlan::new(&needs, &chip.capacity, FastMemory::Prefer).unwrap();
    assert_eq!(places(&plan.quadrants[0])[5], (Some(1), Why::Overflow));
}

#[test]
fn what_is_there_already_is_not_counted_twice() {
    let page = quadrille_numa::memory::page_bytes() as u64;
    let pages = |bytes: u64| (bytes / page) as usize;
    let census = Census { on: [(0, pages(GIB)), (9, pages(GIB))].into(), untouched: 5, unknown: pages(GIB) };
    let mut chip = Chip::new(2, 8 * GIB, None);
    chip.capacity.nodes[0].free = 2 * GIB;
    let capacity = chip.capacity.clone().without(&census);
    assert_eq!(capacity.nodes.iter().map(|node| node.free).collect::<Vec<_>>(), [3 * GIB, 8 * GIB]);
    assert_eq!(capacity.bytes, Some(19 * GIB));
    assert_eq!(Capacity::default().without(&census), Capacity::default());
    let everything = Census { on: [(1, pages(GIB))].into(), ..Census::default() };
    assert_eq!(chip.capacity.without(&everything).nodes[1].free, 8 * GIB);
}

#[test]
fn require_says_what_is_missing() {
    let error = Chip::knl().plan(&alexnet(512), FastMemory::Require).unwrap_err();
    let needed = (512 * 8 + 3 * 244) * MIB;
    assert_eq!(error, TooLittle::Fast { node: 4, needed, free: 3968 * MIB });
    let text = error.to_string();
    assert!(text.starts_with(
        "--fast-memory require: node 4 is to hold 4.7 GiB, but has 3.9 GiB to give: 860.0 MiB missing"
    ));
    let none = Chip::new(4, 64 * GIB, None).plan(&alexnet(1), FastMemory::Require).unwrap_err();
    assert_eq!(none, TooLittle::NoFast { quadrant: 0 });
    assert!(
        none.to_string()
            .starts_with("--fast-memory require: quadrant 0 has no fast memory near it\n  hint: ")
    );
}

#[test]
fn off_uses_dram_only() {
    let plan = Chip::knl().plan(&alexnet(64), FastMemory::Off).unwrap();
    let expected: Vec<_> =
        std::iter::repeat_n((Some(3), Why::Off), 4).chain([(Some(3), Why::Dram)]).collect();
    assert_eq!(places(&plan.quadrants[3]), expected);
    assert_eq!(plan.how, "each quadrant in its own DRAM; fast memory is not used, as asked");
}

#[test]
fn a_xeon_max_has_more_room() {
    // Two sockets in SNC4, flat: 8 x 64 GiB of DRAM, and 64 GiB of HBM a socket.
    let chip = Chip::new(8, 64 * GIB, Some(16 * GIB));
    let plan = chip.plan(&alexnet(512), FastMemory::Require).unwrap();
    assert!(plan.quadrants.iter().flatten().filter(|p| p.what != "staging").all(|p| p.why == Why::Fast));
    assert_eq!(plan.quadrants[7][0].node, Some(15));
}

#[test]
fn without_fast_memory_everything_lies_in_dram() {
    // EPYC in NPS4.
    let plan = Chip::new(4, 64 * GIB, None).plan(&alexnet(512), FastMemory::Prefer).unwrap();
    for (quadrant, placed) in plan.quadrants.iter().enumerate() {
        assert_eq!(places(placed), [(Some(quadrant), Why::Dram); 5]);
    }
    assert_eq!(plan.how, "each quadrant in its own DRAM; there is no fast memory");
}

#[test]
fn quadrants_that_share_a_node_lose_the_same() {
    // Two quadrants a cluster, as --quadrants 8 cuts it.
    let mut chip = Chip::knl();
    chip.homes = (0..8).map(|quadrant| (quadrant / 2, Some(4 + quadrant / 2))).collect();
    let needs = [("activations", 1536 * MIB, Wish::Fast), ("weights", 512 * MIB, Wish::Fast)];
    let plan = chip.plan(&needs, FastMemory::Prefer).unwrap();
    for pair in plan.quadrants.chunks(2) {
        assert!(pair.iter().all(|placed| placed[0].why == Why::Fast));
        // 896 MiB are left for 1 GiB of weights: one of the two has them.
        assert_eq!([pair[0][1].why, pair[1][1].why], [Why::Fast, Why::Spilled(128 * MIB)]);
    }
}

#[test]
fn dram_that_is_full_overflows_to_another_quadrants() {
    let mut chip = Chip::new(2, 8 * GIB, None);
    chip.capacity.nodes[1].free = GIB;
    let plan = chip.plan(&[("activations", 3 * GIB, Wish::Fast)], FastMemory::Prefer).unwrap();
    assert_eq!(places(&plan.quadrants[0]), [(Some(0), Why::Dram)]);
    assert_eq!(places(&plan.quadrants[1]), [(Some(0), Why::Overflow)]);
    assert!(plan.lines()[2].ends_with("in node 0 (DRAM): activations (no room in its own DRAM)"));
    // No node has 5 GiB left, but both together have.
    chip.capacity.nodes[0].free = 4 * GIB;
    chip.capacity.nodes[1].free = 4 * GIB;
    let plan = chip.plan(
        &[("a", 3 * GIB, Wish::Dram), ("b", 700 * MIB, Wish::Dram), ("c", 100 * MIB, Wish::Dram)],
        FastMemory::Prefer,
    );
    assert_eq!(plan.unwrap().quadrants[1][2].why, Why::Scattered);
}

#[test]
fn one_node_is_bound_nowhere_and_one_line_says_so() {
    let mut chip = Chip::new(1, 16 * GIB, None);
    chip.homes = vec![(0, None), (0, None)];
    let plan = chip.plan(&alexnet(64), FastMemory::Prefer).unwrap();
    assert!(!plan.binds() && plan.quadrants.iter().flatten().all(|placed| placed.why == Why::Unbound));
    assert_eq!(plan.lines(), ["bound to no node, since the machine has one or does not tell"]);
    // Quadrants that span nodes are bound to none either.
    let mut needs = Chip::knl().needs(&alexnet(64));
    needs.iter_mut().for_each(|quadrant| (quadrant.dram_node, quadrant.fast_node) = (None, None));
    let plan = MemoryPlan::new(&needs, &Chip::knl().capacity, FastMemory::Prefer).unwrap();
    assert_eq!(plan.lines(), ["bound to no node, since each quadrant spans several"]);
}

#[test]
fn more_than_the_machine_has_is_refused_before_anything_is_allocated() {
    let chip = Chip::new(1, 16 * GIB, None);
    let error = chip.plan(&alexnet(2000), FastMemory::Prefer).unwrap_err();
    assert!(matches!(error, TooLittle::Machine { limited_by: None, .. }));
    assert!(
        error
            .to_string()
            .starts_with("the run needs 18.3 GiB of memory, but this machine has 15.5 GiB to give")
    );
    let mut granted = chip.capacity.clone();
    (granted.bytes, granted.limited_by) = (Some(GIB), Some(Limit::Cgroup(PathBuf::from("/slurm/job_1"))));
    let error = MemoryPlan::new(&chip.needs(&alexnet(64)), &granted, FastMemory::Prefer).unwrap_err();
    assert!(error.to_string().contains("but the cgroup /slurm/job_1 has 992.0 MiB to give"), "{error}");
    // Where nobody knows how much there is, nobody refuses.
    let unknown = Capacity::default();
    assert!(MemoryPlan::new(&chip.needs(&alexnet(2000)), &unknown, FastMemory::Prefer).is_ok());
}

#[test]
fn free_memory_counts_files_that_can_be_dropped() {
    let fixture = Fixture::machine("EPYC", &[node("0-1", 8, "10 20"), node("2-3", 8, "20 10")]);
    let meminfo = "Node 1 MemTotal: 8388608 kB\nNode 1 MemFree: 1048576 kB\nNode 1 Active(file): 1024 kB\n\
                   Node 1 Inactive(file): 2097152 kB\nNode 1 Dirty: 1024 kB\nNode 1 Writeback: 0 kB\n";
    fixture.write("sys/devices/system/node/node1/meminfo", meminfo);
    fixture.write("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n");
    let capacity = Capacity::below(fixture.root(), &fixture.detect());
    // Node 0 does not say what is free.
    assert_eq!(capacity.nodes, [NodeCapacity { node: 1, total: 8 * GIB, free: 3 * GIB }]);
    assert_eq!((capacity.bytes, capacity.limited_by), (Some(8 * GIB), None));
}

#[test]
fn the_tightest_cgroup_on_the_way_up_counts() {
    let fixture = Fixture::machine("EPYC", &[node("0-1", 8, "10")]);
    fixture.write("proc/meminfo", "MemAvailable: 8388608 kB\n");
    fixture.write("proc/self/cgroup", "0::/job/step\n");
    let machine = fixture.detect();
    fixture.write("sys/fs/cgroup/job/step/memory.max", "max\n");
    assert_eq!(Capacity::below(fixture.root(), &machine).bytes, Some(8 * GIB));
    fixture.write("sys/fs/cgroup/job/memory.max", format!("{}\n", 4 * GIB));
    fixture.write("sys/fs/cgroup/job/memory.current", format!("{}\n", 3 * GIB));
    fixture.write("sys/fs/cgroup/job/memory.stat", format!("anon 5\ninactive_file {GIB}\n"));
    let capacity = Capacity::below(fixture.root(), &machine);
    let group = Limit::Cgroup("/sys/fs/cgroup/job".into());
    assert_eq!((capacity.bytes, capacity.limited_by), (Some(2 * GIB), Some(group)));
    // Version 1, in a group that is not in ours.
    fixture.write("proc/self/cgroup", "9:cpu:/a\n4:memory:/old\n0::/../other\n");
    fixture.write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", GIB.to_string());
    fixture.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    assert_eq!(Capacity::below(fixture.root(), &machine).bytes, Some(GIB));
}

/// A node of which so much is free.
fn write_free(fixture: &Fixture, index: usize, total: u64, free: u64) {
    let text =
        format!("Node {index} MemTotal: {} kB\nNode {index} MemFree: {} kB\n", total / 1024, free / 1024);
    fixture.write(&format!("sys/devices/system/node/node{index}/meminfo"), text);
}

#[test]
fn processes_on_one_machine_plan_with_a_share_each() {
    // Two nodes with CPUs, and fast memory near the second.
    let fixture = Fixture::machine(
        "KNL",
        &[node("0-3", 64, "10 21 41"), node("4-7", 64, "21 10 31"), node("", 16, "41 31 10")],
    );
    for (index, total) in [64, 64, 16].into_iter().enumerate() {
        write_free(&fixture, index, total * GIB, total * GIB / 2);
    }
    fixture.write("proc/meminfo", format!("MemAvailable: {} kB\n", (72 * GIB) / 1024));
    // This process has CPUs of the first node only.
    fixture.allow("0-1", "0-2");
    let machine = fixture.detect();
    let capacity = Capacity::below(fixture.root(), &machine);
    let free = |processes: &[&[usize]]| {
        let processes: Vec<Vec<usize>> = processes.iter().map(|cpus| cpus.to_vec()).collect();
        let share = capacity.clone().of_one_below(fixture.root(), &processes, &machine);
        (share.nodes.iter().map(|node| node.free / GIB).collect::<Vec<_>>(), share.bytes, share.limited_by)
    };
    let all = |count| Some(Limit::Processes(count));
    assert_eq!(free(&[&[0, 1]]).0, [32, 32, 8], "alone");
    assert_eq!(free(&[&[0, 1], &[2, 3]]), (vec![16, 16, 4], Some(36 * GIB), all(2)), "near nobody: for all");
    let three = free(&[&[0, 1], &[4], &[6, 7]]);
    assert_eq!(three, (vec![32, 16, 4], Some(24 * GIB), all(3)));
    assert!(all(3).is_some_and(|limit| limit.to_string().contains("one of 3 processes")));
}

#[test]
fn nodes_that_a_cpuset_leaves_out_are_not_counted() {
    let fixture = Fixture::machine("EPYC", &[node("0-1", 64, "10 20"), node("2-3", 64, "20 10")]);
    (0..2).for_each(|index| write_free(&fixture, index, 64 * GIB, 60 * GIB));
    fixture.write("proc/meminfo", format!("MemAvailable: {} kB\n", (119 * GIB) / 1024));
    let capacity = Capacity::below(fixture.root(), &fixture.detect());
    assert_eq!((capacity.bytes, capacity.limited_by), (Some(119 * GIB), None));
    assert_eq!(available_below(fixture.root()), Some(118 * GIB));
    // As with docker run --cpuset-mems=0.
    fixture.allow("0-3", "0");
    let capacity = Capacity::below(fixture.root(), &fixture.detect());
    assert_eq!((capacity.bytes, &capacity.limited_by), (Some(60 * GIB), &Some(Limit::Nodes(vec![0]))));
    assert_eq!(available_below(fixture.root()), Some(59 * GIB));
    let idle = Capacity::of_idle(&fixture.detect());
    assert_eq!((idle.bytes, idle.limited_by), (Some(64 * GIB), Some(Limit::Nodes(vec![0]))));
    let needs = Chip::new(1, 64 * GIB, None).needs(&alexnet(12_000));
    let error = MemoryPlan::new(&needs, &capacity, FastMemory::Prefer).unwrap_err();
    let says = "but the part of this machine that may be used (nodes 0) has 59.0 GiB to give";
    assert!(error.to_string().contains(says), "{error}");
    // A cgroup that grants even less is named instead.
    fixture.write("proc/self/cgroup", "0::/job\n");
    fixture.write("sys/fs/cgroup/job/memory.max", format!("{GIB}\n"));
    let capacity = Capacity::below(fixture.root(), &fixture.detect());
    let group = Limit::Cgroup("/sys/fs/cgroup/job".into());
    assert_eq!((capacity.bytes, capacity.limited_by), (Some(GIB), Some(group)));
}

#[test]
fn memory_where_nothing_is_placed_is_not_counted() {
    let fixture = Fixture::machine("Grace", &[node("0-1", 64, "10 80"), node("", 64, "80 10")]);
    (0..2).for_each(|index| write_free(&fixture, index, 64 * GIB, 60 * GIB));
    fixture.write("proc/meminfo", format!("MemAvailable: {} kB\n", (119 * GIB) / 1024));
    // A node of memory that is only not known well goes to whoever allocates, as any other.
    assert_eq!(Capacity::below(fixture.root(), &fixture.detect()).bytes, Some(119 * GIB));
    fixture.write("proc/driver/nvidia/gpus/0009:01:00.0/numa_status", "Node: 1\n");
    let capacity = Capacity::below(fixture.root(), &fixture.detect());
    assert_eq!((capacity.bytes, capacity.limited_by), (Some(60 * GIB), Some(Limit::Nodes(vec![0]))));
    // What of the useful nodes is free has to be known.
    fixture.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 67108864 kB\n");
    assert_eq!(Capacity::below(fixture.root(), &fixture.detect()).bytes, Some(119 * GIB));
}
