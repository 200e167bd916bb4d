//! What the environment of this process asks for, and what of it is honoured: mask, cpuset, memory policy, Slurm, OpenMP.

use std::path::Path;

use crate::cpu_list;
use crate::topology::Machine;
use crate::topology::surroundings::{Surroundings, look};

/// How to look up an environment variable; outside of tests `|name| std::env::var(name).ok()`.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Variables of OpenMP and MKL that place or count threads.
const OF_OPENMP: [&str; 10] = [
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_HW_SUBSET",
    "KMP_PLACE_THREADS",
    "KMP_NUM_THREADS",
    "MKL_NUM_THREADS",
];

/// One line for everything that counts or might be thought to count.
pub(crate) fn read(machine: &Machine, env: Env) -> Vec<String> {
    // A description of another machine says nothing of this process.
    let mut lines = if machine.here { of_process(machine, &look(Path::new("/"))) } else { Vec::new() };
    lines.extend(of_slurm(machine, env));
    lines.extend(of_openmp(env));
    if let Some(value) = env("RAYON_NUM_THREADS") {
        let value = printable(&value);
        lines.push(format!(
            "RAYON_NUM_THREADS={value}: honoured by the threads that read and decode, unless --reserve gives them cores."
        ));
    }
    if lines.is_empty() {
        lines.push("nothing set by Slurm or OpenMP that would matter here.".to_string());
    }
    lines
}

/// What the system says of this process.
pub(crate) fn of_process(machine: &Machine, found: &Surroundings) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(mask), Some(online)) = (&found.mask, &found.online)
        && mask.len() < online.len()
    {
        lines.push(format!(
            "affinity mask: CPUs {} of {} online: honoured, no thread runs outside.",
            cpu_list::format(mask),
            online.len()
        ));
    }
    if let (Some(allowed), Some(there)) = (&found.allowed_nodes, &found.nodes)
        && there.iter().any(|node| !allowed.contains(node))
    {
        lines.push(format!(
            "memory nodes {} of {} allowed: honoured, nothing is placed on others.",
            cpu_list::format(allowed),
            cpu_list::format(there)
        ));
    }
    if let Some(cpuset) = &found.cpuset {
        lines.push(format!(
            "cpuset cgroup {}: CPUs {}, nodes {}: honoured.",
            printable(&cpuset.name),
            cpu_list::format(&cpuset.cpus),
            cpu_list::format(&cpuset.nodes)
        ));
    }
    if let Some(policy) = &found.policy {
        let policy = printable(policy);
        let several = machine.nodes.iter().filter(|node| node.memory_bytes != Some(0)).count() > 1;
        let meaning = if several {
            "overridden for what is bound to a quadrant's nodes, honoured for everything else"
        } else {
            "honoured"
        };
        lines.push(format!("memory policy {policy} (numactl, or srun --mem-bind): {meaning}."));
    }
    lines
}

fn of_slurm(machine: &Machine, env: Env) -> Vec<String> {
    let mut lines = Vec::new();
    let cpus = machine.cpus.len();
    if let Some(value) = env("SLURM_CPUS_PER_TASK") {
        let value = printable(&value);
        let meaning = match value.parse::<usize>() {
            Ok(count) if count == cpus => "honoured: it agrees with the affinity mask".to_string(),
            Ok(count) if count > cpus => format!(
                "not met: the affinity mask holds {cpus} CPUs, and the mask counts. \
                 Pass --cpus-per-task=$SLURM_CPUS_PER_TASK to srun, which does not inherit it everywhere"
            ),
            Ok(_) => format!(
                "the affinity mask holds {cpus} CPUs, and the mask counts. \
                 If ranks share a node, let srun bind them: --cpu-bind=cores"
            ),
            Err(_) => format!("ignored: it is not a number; the affinity mask ({cpus} CPUs) counts"),
        };
        lines.push(format!("SLURM_CPUS_PER_TASK={value}: {meaning}."));
    }
    if let Some(value) = env("SLURM_CPU_BIND") {
        let value = printable(&value);
        let none = value.split([',', ':']).any(|word| word == "none");
        let meaning = if none {
            "Slurm bound nothing, so ranks on one node would pin to the same CPUs. Use --cpu-bind=cores"
        } else {
            "honoured: what Slurm bound is the affinity mask, and threads are pinned inside it"
        };
        lines.push(format!("SLURM_CPU_BIND={value}: {meaning}."));
    }
    if let Some(value) = env("SLURM_MEM_BIND") {
        let value = printable(&value);
        let mut words = value.split([',', ':']);
        let meaning = if words.any(|word| word == "none" || word == "local") {
            "honoured: it leaves the choice to Quadrille"
        } else {
            "what it allows is honoured, what it prefers is overridden for what is bound to a quadrant's nodes. \
             Use --mem-bind=none or local, or leave it out"
        };
        lines.push(format!("SLURM_MEM_BIND={value}: {meaning}."));
    }
    lines
}

fn of_openmp(env: Env) -> Vec<String> {
    let set = OF_OPENMP.iter().filter_map(|name| Some((name, printable(&env(name)?))));
    let line = |(name, value): (&&str, String)| match *name {
        "OMP_NUM_THREADS" => format!("{name}={value}: ignored, there is no OpenMP here. Use --threads."),
        "OMP_PROC_BIND" => format!("{name}={value}: ignored, Quadrille pins its own threads."),
        "KMP_HW_SUBSET" => {
            format!("{name}={value}: ignored, there is no OpenMP here. Use --threads and --smt.")
        }
        _ => format!("{name}={value}: ignored, there is no OpenMP here."),
    };
    set.map(line).collect()
}

/// A value fit for a terminal, whatever it holds.
fn printable(value: &str) -> String {
    value.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::surroundings::Cpuset;
    use crate::topology::{Source, read as read_machine};

    #[test]
    fn what_the_system_says_of_the_process_is_told() {
        let machine = read_machine(&Source::Here).unwrap();
        let found = Surroundings {
            mask: Some(vec![0, 1]),
            online: Some(vec![0, 1, 2]),
            allowed_nodes: Some(vec![0]),
            nodes: Some(vec![0, 1]),
            cpuset: Some(Cpuset { name: "/job_7".into(), cpus: vec![0, 1], nodes: vec![0] }),
            policy: Some("bind:0".into()),
        };
        let lines = of_process(&machine, &found);
        assert_eq!(lines[0], "affinity mask: CPUs 0-1 of 3 online: honoured, no thread runs outside.");
        assert_eq!(lines[1], "memory nodes 0 of 0-1 allowed: honoured, nothing is placed on others.");
        assert_eq!(lines[2], "cpuset cgroup /job_7: CPUs 0-1, nodes 0: honoured.");
        assert!(lines[3].starts_with("memory policy bind:0 (numactl, or srun --mem-bind): "), "{}", lines[3]);
        assert_eq!(of_process(&machine, &Surroundings::default()), Vec::<String>::new());
    }

    #[test]
    fn variables_are_honoured_or_ignored_aloud() {
        let machine = read_machine(&Source::Here).unwrap();
        let said = |name: &str, value: &str| {
            let env = |asked: &str| (asked == name).then(|| value.to_string());
            let lines = [of_slurm(&machine, &env), of_openmp(&env)].concat();
            lines.into_iter().next().unwrap_or_default()
        };
        assert!(said("SLURM_MEM_BIND", "verbose,local").contains("honoured: it leaves the choice"));
        assert!(said("SLURM_MEM_BIND", "map_mem:0,1").contains("overridden"));
        for name in OF_OPENMP {
            assert!(said(name, "4").starts_with(&format!("{name}=4: ignored")), "{name}");
        }
    }
}
