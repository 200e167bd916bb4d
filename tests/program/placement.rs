//! Threads in their places, and what becomes of a run whose system refuses them.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Outcome, Running, Stage, hash_of};

/// Makes the system refuse `sched_setaffinity` to the program, as some containers do: a real filter of system calls.
fn refuse_pinning(command: &mut Command) {
    let load = |at: u32| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: at };
    let equal = |value: u32| libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: value };
    let end = |value: u32| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: value };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter =
        [load(0), equal(libc::SYS_sched_setaffinity as u32), end(refusal), end(libc::SECCOMP_RET_ALLOW)];
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: prctl reads the program, which outlives both calls, and changes nothing but this process's filters.
        let refused = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        };
        if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(install) };
}

/// Whether filters can be installed here at all.
fn can_refuse() -> bool {
    let mut command = Command::new("true");
    refuse_pinning(&mut command);
    let able = command.status().is_ok();
    if !able {
        println!("skipped: this system installs no filters of system calls");
    }
    able
}

fn refused(stage: &Stage, flags: &str) -> Outcome {
    let arguments = format!("train --solver solver.prototxt --threads 1 --max-iter 3 {flags}");
    stage.start_in(&arguments, refuse_pinning).finish()
}

#[test]
fn a_run_that_may_not_pin_goes_on_and_says_so() {
    if !can_refuse() {
        return;
    }
    let stage = Stage::new();
    let outcome = refused(&stage, "--run a");
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stdout.contains("threads cannot be pinned: the operating system refused CPU"),
        "{}",
        outcome.stdout
    );
    assert!(outcome.stdout.contains("Nothing is pinned"), "{}", outcome.stdout);
    // Where threads run changes no bit.
    let pinned = stage.train("b", "--threads 1 --max-iter 3");
    assert_eq!(hash_of(&stage.summary("a")), hash_of(&pinned));
}

#[test]
fn a_run_that_insists_on_pinning_ends_with_71() {
    if !can_refuse() {
        return;
    }
    let stage = Stage::new();
    let outcome = refused(&stage, "--run a --numa strict");
    assert_eq!(outcome.code, Some(71), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("--numa strict: "), "{}", outcome.stderr);
    assert!(!outcome.stdout.contains("Iteration 1"), "{}", outcome.stdout);
    // Where pinning is allowed, insisting changes nothing.
    stage.train("b", "--threads 1 --max-iter 3 --numa strict");
}

/// Names and masks of the threads of a program.
fn threads(running: &Running) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{}/task", running.child.id())) else { return Vec::new() };
    let status = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("status")).ok();
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
    };
    let texts = entries.flatten().filter_map(status);
    texts.filter_map(|text| Some((field(&text, "Name:")?, field(&text, "Cpus_allowed_list:")?))).collect()
}

#[test]
fn threads_run_where_the_plan_puts_them() {
    let stage = Stage::new();
    let topo: Value = serde_json::from_str(&stage.succeed("topo --json").stdout).expect("JSON");
    // The hardware threads of one core are no two places.
    if topo["machine"]["cores"].as_u64().is_none_or(|cores| cores < 2) {
        println!("skipped: one core has no place for two threads");
        return;
    }
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim);
    let flags = "--threads 1 --quadrants 1 --reserve main --max-iter 10000000 --test-interval 0";
    let mut running = stage.start(&format!("train --solver solver.prototxt --run a {flags}"));
    let end = Instant::now() + Duration::from_secs(60);
    let found = loop {
        let found = threads(&running);
        let alone = |mask: &str| !mask.contains(['-', ',']);
        // The crew of one, and the thread that leads: other threads are never alone on a CPU.
        let settled = found.iter().filter(|(_, mask)| alone(mask)).count() == 2;
        if settled || Instant::now() > end || running.child.try_wait().expect("a state").is_some() {
            break found;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    running.child.kill().expect("a child can be ended");
    let printed = running.finish().stdout;
    let of = |name: &str| -> Vec<&str> {
        found.iter().filter(|(thread, _)| thread == name).map(|(_, mask)| mask.as_str()).collect()
    };
    let (crew, leader) = (of("crew 0.0"), of("worker 0"));
    assert_eq!((crew.len(), leader.len()), (1, 1), "{found:?}\n{printed}");
    assert!(crew != leader && !leader[0].contains('-'), "{found:?}\n{printed}");
    assert!(of("prefetch").iter().all(|free| Some(*free) == mask), "{found:?}");
}
