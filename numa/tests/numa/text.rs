//! The text of the `topo` command, letter by letter.

use crate::fixture::{Fixture, knl, laptop};
use quadrille_numa::{describe, quadrants};

fn text(fixture: &Fixture, count: Option<usize>, set: &[(&str, &str)]) -> String {
    let machine = fixture.detect();
    let partition = quadrants(&machine, count, None).expect("a partition");
    describe(&machine, &partition, &|name| {
        set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    })
}

#[test]
fn a_laptop() {
    let expected = [
        "Machine     Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz",
        "CPUs        8 allowed, on 4 cores: 0-7",
        "Socket 0    CPUs 0-7",
        "Caches      L1d 32 KiB for 2 CPUs, L1i 32 KiB for 2 CPUs, L2 256 KiB for 2 CPUs, L3 8 MiB for 8 CPUs",
        "",
        "Socket 0",
        "  +- quadrant 0 --------------+ +- quadrant 1 --------------+",
        "  |   2 cores  ##             | |   2 cores  ##             |",
        "  |      CPUs  0-1,4-5        | |      CPUs  2-3,6-7        |",
        "  |      DRAM  node 0: 16 GiB | |      DRAM  node 0: 16 GiB |",
        "  +---------------------------+ +---------------------------+",
        "  (of each core: # computes, m leads, c exchanges, i reads, . has no thread)",
        "",
        "NUMA nodes: memory and the CPUs near it",
        "  node  memory  bandwidth  kind  CPUs",
        "  0     16 GiB  -          DRAM  0-7",
        "",
        "Quadrants: each trains on its own CPUs",
        "  quadrant  memory node  fast node  threads  CPUs",
        "  0         0            -          2        0-1,4-5",
        "  1         0            -          2        2-3,6-7",
        "  2 quadrants as asked: 1 NUMA node cut between cores; 2 threads each (one per core), pinned.",
        "",
        "Threads: where each runs",
        "  role     worker  quadrant  threads  CPUs",
        "  compute  0       0         2        0-1",
        "  compute  0       1         2        2-3",
        "  main     0       -         1        any",
        "  io       0       -         1        any",
        "",
        "Environment",
        "  nothing set by Slurm or OpenMP that would matter here.",
        "",
    ]
    .join("\n");
    assert_eq!(text(&laptop(), Some(2), &[]), expected);
}

#[test]
fn a_masked_xeon_phi_under_slurm() {
    let fixture = knl([18, 18, 16, 16]);
    fixture.allow("0-35", "0-7");
    let set = [
        ("SLURM_CPUS_PER_TASK", "68"),
        ("SLURM_CPU_BIND", "quiet,none"),
        ("OMP_NUM_THREADS", "64"),
        ("OMP_PROC_BIND", "true"),
    ];
    let expected = [
        "Machine     Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz",
        "CPUs        36 allowed, on 36 cores: 0-35",
        "Socket 0    CPUs 0-35",
        "",
        "Socket 0",
        "  +- quadrant 0 ------------------+ +- quadrant 1 ------------------+",
        "  |  18 cores  ################## | |  18 cores  ################## |",
        "  |      CPUs  0-17               | |      CPUs  18-35              |",
        "  |      DRAM  node 0: 24 GiB     | |      DRAM  node 1: 24 GiB     |",
        "  |      fast  node 7: 4 GiB      | |      fast  node 6: 4 GiB      |",
        "  +-------------------------------+ +-------------------------------+",
        "  (of each core: # computes, m leads, c exchanges, i reads, . has no thread)",
        "",
        "NUMA nodes: memory and the CPUs near it",
        "  node  memory  bandwidth  kind  CPUs",
        "  0     24 GiB  -          DRAM  0-17",
        "  1     24 GiB  -          DRAM  18-35",
        "  2     24 GiB  -          DRAM  none of its 16 allowed",
        "  3     24 GiB  -          DRAM  none of its 16 allowed",
        "  4     4 GiB   -          fast  none, near node 3",
        "  5     4 GiB   -          fast  none, near node 2",
        "  6     4 GiB   -          fast  none, near node 1",
        "  7     4 GiB   -          fast  none, near node 0",
        "",
        "Quadrants: each trains on its own CPUs",
        "  quadrant  memory node  fast node  threads  CPUs",
        "  0         0            7          18       0-17",
        "  1         1            6          18       18-35",
        "  2 quadrants, one for each NUMA node with allowed CPUs; 18 threads each (one per core), pinned.",
        "",
        "Threads: where each runs",
        "  role     worker  quadrant  threads  CPUs",
        "  compute  0       0         18       0-17",
        "  compute  0       1         18       18-35",
        "  main     0       -         1        any",
        "  io       0       -         1        any",
        "",
        "Environment",
        "  SLURM_CPUS_PER_TASK=68: not met: the affinity mask holds 36 CPUs, and the mask counts. Pass --cpus-per-task=$SLURM_CPUS_PER_TASK to srun, which does not inherit it everywhere.",
        "  SLURM_CPU_BIND=quiet,none: Slurm bound nothing, so ranks on one node would pin to the same CPUs. Use --cpu-bind=cores.",
        "  OMP_NUM_THREADS=64: ignored, there is no OpenMP here. Use --threads.",
        "  OMP_PROC_BIND=true: ignored, Quadrille pins its own threads.",
        "",
    ]
    .join("\n");
    assert_eq!(text(&fixture, None, &set), expected);
}

#[test]
fn unknown_nodes_and_odd_values() {
    let fixture = Fixture::empty();
    fixture.write("proc/self/status", "Cpus_allowed_list:\t0-1\n");
    fixture.write("proc/meminfo", "MemTotal:  1000 kB\n");
    let set = [("SLURM_CPUS_PER_TASK", "two\n\u{1b}[2J"), ("SLURM_CPU_BIND", "quiet,mask_cpu:0x3")];
    let expected = [
        "Machine     unknown processor",
        "CPUs        2 allowed, on 2 cores: 0-1",
        "Socket 0    CPUs 0-1",
        "",
        "Socket 0",
        "  +- quadrant 0 ----------------------+",
        "  |   2 cores  ##                     |",
        "  |      CPUs  0-1                    |",
        "  |    memory  where the system likes |",
        "  +-----------------------------------+",
        "  (of each core: # computes, m leads, c exchanges, i reads, . has no thread)",
        "",
        "NUMA nodes: memory and the CPUs near it",
        "  node  memory    bandwidth  kind  CPUs",
        "  ?     1000 KiB  -          DRAM  0-1",
        "",
        "Quadrants: each trains on its own CPUs",
        "  quadrant  memory node  fast node  threads  CPUs",
        "  0         -            -          2        0-1",
        "  1 quadrant, since the NUMA nodes are unknown; 2 threads (one per core), pinned.",
        "",
        "Threads: where each runs",
        "  role     worker  quadrant  threads  CPUs",
        "  compute  0       0         2        0-1",
        "  main     0       -         1        any",
        "  io       0       -         1        any",
        "",
        "Notes",
        "  - the description of NUMA nodes is missing (/sys/devices/system/node: No such file or directory (os error 2)): taking the machine for one node.",
        "  - the hardware threads of CPUs 0-1 are unknown: each counts as a core of its own.",
        "  - the socket of CPUs 0-1 is unknown: they count as socket 0.",
        "",
        "Environment",
        "  SLURM_CPUS_PER_TASK=two[2J: ignored: it is not a number; the affinity mask (2 CPUs) counts.",
        "  SLURM_CPU_BIND=quiet,mask_cpu:0x3: honoured: what Slurm bound is the affinity mask, and threads are pinned inside it.",
        "",
    ]
    .join("\n");
    assert_eq!(text(&fixture, None, &set), expected);
}
