//! What the system says of this process beside the machine: its mask, its cpuset, its memory policy.

use std::path::Path;

use super::files::Files;
use super::sysfs;

/// What was found; `None` where the system does not say, or has nothing to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    /// The affinity mask.
    pub mask: Option<Vec<usize>>,
    /// The CPUs online.
    pub online: Option<Vec<usize>>,
    /// The nodes that this process may allocate on.
    pub allowed_nodes: Option<Vec<usize>>,
    /// The nodes that have memory.
    pub nodes: Option<Vec<usize>>,
    /// A cpuset that is not that of everybody.
    pub cpuset: Option<Cpuset>,
    /// The memory policy, as the kernel writes it, if it is not the default: `bind:0`, `interleave:0-3`.
    pub policy: Option<String>,
}

/// A cgroup that limits CPUs and nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cpuset {
    /// Its path.
    pub name: String,
    /// Its CPUs.
    pub cpus: Vec<usize>,
    /// Its nodes.
    pub nodes: Vec<usize>,
}

/// Looks around below `root`, `/` outside of tests.
pub(crate) fn look(root: &Path) -> Surroundings {
    let files = Files::below(root);
    Surroundings {
        mask: sysfs::mask(files, "Cpus_allowed_list").ok(),
        online: files.list("sys/devices/system/cpu/online").ok(),
        allowed_nodes: sysfs::mask(files, "Mems_allowed_list").ok(),
        nodes: files.list("sys/devices/system/node/has_memory").ok(),
        cpuset: cpuset(files),
        policy: policy(files),
    }
}

fn cpuset(files: Files) -> Option<Cpuset> {
    let name = files.text("proc/self/cpuset").ok().filter(|name| name.len() > 1 && !name.contains(".."))?;
    let path = name.trim_start_matches('/');
    // Version 2 of cgroups, then version 1.
    let read = |file: &str| {
        let mounts = ["sys/fs/cgroup", "sys/fs/cgroup/cpuset"];
        let endings =
            [format!("{file}.effective"), format!("effective_{}", file.trim_start_matches("cpuset."))];
        let paths = mounts.iter().flat_map(|mount| {
            endings.iter().map(move |ending| match ending.starts_with("cpuset.") {
                true => format!("{mount}/{path}/{ending}"),
                false => format!("{mount}/{path}/cpuset.{ending}"),
            })
        });
        paths.into_iter().find_map(|path| files.list(&path).ok())
    };
    Some(Cpuset { cpus: read("cpuset.cpus")?, nodes: read("cpuset.mems")?, name })
}

/// The policy that holds where nothing else was asked for. The kernel writes it in each line of what is mapped, unless that
/// has a policy of its own; at the start of a program nothing has.
fn policy(files: Files) -> Option<String> {
    let maps = files.text("proc/self/numa_maps").ok()?;
    let policy = maps.lines().next()?.split_whitespace().nth(1)?;
    (policy != "default").then(|| policy.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_tells_what_the_kernel_would() {
        let root = std::env::temp_dir().join(format!("quadrille-surroundings-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(look(&root), Surroundings::default());
        write("proc/self/cpuset", "/slurm/job_7\n");
        write("sys/fs/cgroup/slurm/job_7/cpuset.cpus.effective", "0-3\n");
        write("sys/fs/cgroup/slurm/job_7/cpuset.mems.effective", "0\n");
        write("proc/self/numa_maps", "55d8 interleave:0-1 file=/bin/cat mapped=2\n55d9 default\n");
        write("proc/self/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n");
        let found = look(&root);
        assert_eq!(found.policy.as_deref(), Some("interleave:0-1"));
        let cpuset = found.cpuset.unwrap();
        assert_eq!((cpuset.name.as_str(), cpuset.cpus.len(), cpuset.nodes), ("/slurm/job_7", 4, vec![0]));
        assert_eq!(found.mask, Some(vec![0, 1, 2, 3]));
        write("proc/self/numa_maps", "55d8 default file=/bin/cat\n");
        assert_eq!(look(&root).policy, None);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
