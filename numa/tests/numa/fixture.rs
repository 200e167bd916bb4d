//! Folders that look like `/sys` and `/proc` of machines that are not here.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use quadrille_numa::topology::{Machine, detect_at};

/// A folder that is removed when the test ends.
pub struct Fixture {
    root: PathBuf,
}

/// One NUMA node of a machine to be described.
pub struct NodeSpec {
    /// Its CPU list; empty for memory only.
    pub cpus: String,
    /// Its memory.
    pub gib: u64,
    /// Its row of distances.
    pub distances: String,
}

/// A node in one line.
pub fn node(cpus: &str, gib: u64, distances: &str) -> NodeSpec {
    NodeSpec { cpus: cpus.into(), gib, distances: distances.into() }
}

impl Fixture {
    /// An empty root.
    pub fn empty() -> Self {
        // Tests of one process run in parallel, and other processes may be left over.
        static COUNTER: AtomicUsize = AtomicUsize::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("quadrille-numa-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).expect("a temporary folder");
        Fixture { root }
    }

    /// A machine with these nodes, all CPUs online and allowed, and nothing told about cores.
    pub fn machine(model: &str, nodes: &[NodeSpec]) -> Self {
        let fixture = Self::empty();
        fixture.write("proc/cpuinfo", format!("processor\t: 0\nmodel name\t: {model}\n"));
        let all: Vec<&str> = nodes.iter().map(|n| n.cpus.as_str()).filter(|cpus| !cpus.is_empty()).collect();
        let (all, mems) = (all.join(","), format!("0-{}", nodes.len() - 1));
        fixture.write("sys/devices/system/cpu/online", &all);
        fixture.write("sys/devices/system/node/online", &mems);
        fixture.allow(&all, &mems);
        for (index, spec) in nodes.iter().enumerate() {
            let folder = format!("sys/devices/system/node/node{index}");
            fixture.write(&format!("{folder}/cpulist"), &spec.cpus);
            fixture.write(&format!("{folder}/distance"), &spec.distances);
            let kib = spec.gib << 20;
            fixture.write(&format!("{folder}/meminfo"), format!("Node {index} MemTotal:  {kib} kB\n"));
        }
        fixture
    }

    /// Says which hardware threads share a core, and its socket.
    pub fn core(&self, siblings: &[usize], socket: usize) -> &Self {
        let list: Vec<String> = siblings.iter().map(ToString::to_string).collect();
        for cpu in siblings {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            self.write(&format!("{folder}/thread_siblings_list"), list.join(","));
            self.write(&format!("{folder}/physical_package_id"), socket.to_string());
        }
        self
    }

    /// Says that a CPU has a cache.
    pub fn cache(
        &self,
        cpu: usize,
        index: usize,
        level: usize,
        kind: &str,
        size: &str,
        shared: &str,
    ) -> &Self {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
        self.write(&format!("{folder}/level"), level.to_string());
        self.write(&format!("{folder}/type"), kind);
        self.write(&format!("{folder}/size"), size);
        self.write(&format!("{folder}/shared_cpu_list"), shared)
    }

    /// Sets the affinity mask and the memory mask.
    pub fn allow(&self, cpus: &str, mems: &str) -> &Self {
        let text = format!("Name:\tx\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{mems}\n");
        self.write("proc/self/status", &text)
    }

    /// Writes one file.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        self
    }

    /// Removes one file.
    pub fn remove(&self, path: &str) -> &Self {
        fs::remove_file(self.root.join(path)).expect("a file to remove");
        self
    }

    /// The root folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The machine, with two CPUs to fall back to.
    pub fn detect(&self) -> Machine {
        detect_at(&self.root, 2).expect("a machine")
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A laptop: one node, 4 cores of 2 hardware threads numbered Intel's way (0-3, then 4-7).
pub fn laptop() -> Fixture {
    let fixture = Fixture::machine("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz", &[node("0-7", 16, "10")]);
    for core in 0..4 {
        fixture.core(&[core, core + 4], 0);
    }
    fixture.cache(0, 0, 1, "Data", "32K", "0,4").cache(0, 1, 1, "Instruction", "32K", "0,4");
    fixture.cache(0, 2, 2, "Unified", "256K", "0,4").cache(0, 3, 3, "Unified", "8192K", "0-7");
    fixture
}

/// Two sockets of 4 cores without hyper-threading.
pub fn two_sockets() -> Fixture {
    let nodes = [node("0-3", 64, "10 21"), node("4-7", 64, "21 10")];
    let fixture = Fixture::machine("Intel(R) Xeon(R) Gold 5122 CPU @ 3.60GHz", &nodes);
    for cpu in 0..8 {
        fixture.core(&[cpu], cpu / 4);
    }
    fixture
}

/// A Xeon Phi in SNC-4 flat with these cores per cluster. Node 7 is the fast memory of node 0, 6 of 1, and
/// so on: the firmware's numbering is not to be trusted.
pub fn knl(cores: [usize; 4]) -> Fixture {
    let mut first = 0;
    let mut nodes = Vec::new();
    for (cluster, count) in cores.into_iter().enumerate() {
        let cpus = format!("{first}-{}", first + count - 1);
        first += count;
        nodes.push(node(&cpus, 24, &knl_row(cluster, 10, 21, 31, 41)));
    }
    for fast in 4..8 {
        let home = 7 - fast;
        nodes.push(node("", 4, &knl_row(home, 31, 41, 10, 41)));
    }
    let fixture = Fixture::machine("Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz", &nodes);
    for cpu in 0..first {
        fixture.core(&[cpu], 0);
    }
    fixture
}

fn knl_row(home: usize, dram: u32, dram_far: u32, fast: u32, fast_far: u32) -> String {
    let mut row: Vec<String> = (0..4).map(|i| if i == home { dram } else { dram_far }.to_string()).collect();
    row.extend((4..8).map(|i| if 7 - i == home { fast } else { fast_far }.to_string()));
    row.join(" ")
}

/// One EPYC socket in NPS4 whose CPUs go round the nodes, 4 cores of 2 threads each.
pub fn epyc() -> Fixture {
    let nodes: Vec<NodeSpec> = (0..4usize)
        .map(|index| {
            let cpus: Vec<String> = (0..8).map(|turn| (index + 4 * turn).to_string()).collect();
            let row: Vec<&str> = (0..4).map(|other| if other == index { "10" } else { "12" }).collect();
            node(&cpus.join(","), 32, &row.join(" "))
        })
        .collect();
    let fixture = Fixture::machine("AMD EPYC 7302P 16-Core Processor", &nodes);
    for cpu in 0..16 {
        fixture.core(&[cpu, cpu + 16], 0);
    }
    fixture
}

/// An EPYC socket of 12 cores whose CPUs go round three third-level caches, on these nodes.
pub fn three_caches(nodes: &[NodeSpec]) -> Fixture {
    let fixture = Fixture::machine("AMD EPYC 9224 24-Core Processor", nodes);
    for cpu in 0..12 {
        let third: Vec<String> = (0..4).map(|turn| (cpu % 3 + 3 * turn).to_string()).collect();
        fixture.core(&[cpu], 0).cache(cpu, 0, 2, "Unified", "1024K", &cpu.to_string());
        fixture.cache(cpu, 1, 3, "Unified", "32768K", &third.join(","));
    }
    fixture
}
