//! How much CPU time the cgroup grants: containers and some batch systems limit time, not the mask.

use super::files::Files;

/// The limit that counts where `cpus` CPUs may be used: one that is lower. It is noted.
pub(super) fn noted(files: Files, cpus: usize, notes: &mut Vec<String>) -> Option<f64> {
    let limit = quota(files).filter(|&limit| limit < cpus as f64)?;
    notes.push(format!(
        "the cgroup grants the time of {limit:.1} CPUs although {cpus} may be used: \
         more threads than that are stopped for part of every period."
    ));
    Some(limit)
}

/// CPUs' worth of time granted by the cgroup of this process or any above it; `None` without a limit.
///
/// The smallest limit on the way up counts. Version 2 writes `cpu.max`, version 1 two files of microseconds.
fn quota(files: Files) -> Option<f64> {
    let groups = files.text("proc/self/cgroup").ok()?;
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        // The file is the kernel's, but a path with `..` (a group outside our cgroup namespace) leads nowhere.
        let path = path.trim_matches('/');
        if path.split('/').any(|step| step == "..") {
            continue;
        }
        let mounts: Vec<String> = if controllers.is_empty() {
            vec!["sys/fs/cgroup".into(), "sys/fs/cgroup/unified".into()]
        } else if controllers.split(',').any(|name| name == "cpu") {
            vec!["sys/fs/cgroup/cpu".into(), format!("sys/fs/cgroup/{controllers}")]
        } else {
            continue;
        };
        for mount in mounts {
            for folder in upwards(&mount, path) {
                let limit = version_2(files, &folder).or_else(|| version_1(files, &folder));
                least = [least, limit].into_iter().flatten().reduce(f64::min);
            }
        }
    }
    least
}

/// `mount/a/b`, `mount/a`, `mount`.
fn upwards(mount: &str, path: &str) -> Vec<String> {
    let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
    (0..=steps.len())
        .rev()
        .map(|depth| {
            let mut folder = mount.to_string();
            for step in &steps[..depth] {
                folder.push('/');
                folder.push_str(step);
            }
            folder
        })
        .collect()
}

fn version_2(files: Files, folder: &str) -> Option<f64> {
    let text = files.text(&format!("{folder}/cpu.max")).ok()?;
    let (quota, period) = text.split_once(' ')?;
    share(quota.parse().ok()?, period.trim().parse().ok()?)
}

fn version_1(files: Files, folder: &str) -> Option<f64> {
    // No limit is written as -1, which is no `u64`.
    let quota = files.number(&format!("{folder}/cpu.cfs_quota_us")).ok()?;
    let period = files.number(&format!("{folder}/cpu.cfs_period_us")).ok()?;
    share(quota, period)
}

fn share(quota: u64, period: u64) -> Option<f64> {
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}
