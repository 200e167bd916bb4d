//! A worker that is lost to the others: they name it and end with code 76, also if it never comes back itself.

use std::fs;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use libc::{__WALL, PTRACE_INTERRUPT, PTRACE_SEIZE, pid_t};

use crate::common::{Outcome, Running, Stage};

const TRAIN: &str = "train --solver solver.prototxt --workers 2 --max-iter 1000000000 --run";

/// The thread of a program with this name, once there is one.
fn thread_of(run: &Running, name: &str) -> pid_t {
    let end = Instant::now() + Duration::from_secs(120);
    while Instant::now() < end {
        let tasks = fs::read_dir(format!("/proc/{}/task", run.child.id())).expect("threads").flatten();
        for task in tasks {
            let is_it =
                fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name);
            if is_it && run.stdout().contains("Iteration ") {
                return task.file_name().to_str().and_then(|id| id.parse().ok()).expect("a number");
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no thread {name}; the program printed\n{}", run.stdout());
}

/// Stops one thread as a debugger does, for as long as the calling thread lives; false if the system does not allow it.
fn stop(thread: pid_t) -> bool {
    // SAFETY: these requests of ptrace(2) touch no memory of this process.
    unsafe {
        if libc::ptrace(PTRACE_SEIZE, thread, null_mut::<u8>(), null_mut::<u8>()) != 0 {
            return false;
        }
        assert_eq!(libc::ptrace(PTRACE_INTERRUPT, thread, null_mut::<u8>(), null_mut::<u8>()), 0);
    }
    // The end of the thread has to be asked for, or its process never ends.
    std::thread::spawn(move || {
        let mut status = 0;
        // SAFETY: `status` lives longer than the call.
        while unsafe { libc::waitpid(thread, &raw mut status, __WALL) } == thread
            && !libc::WIFSIGNALED(status)
        {}
    });
    true
}

/// Trains until worker 1 stops; `None` if the system does not let it be stopped.
fn lose_a_worker(stage: &Stage, method: &str) -> Option<Outcome> {
    let flags = "--peer-timeout 5 --method";
    // Asynchronous workers meet in tests only.
    let tests = if method.starts_with("async") { "--test-interval 100" } else { "--test-interval 0" };
    let run = stage.start(&format!("{TRAIN} {method} {flags} {method} {tests}"));
    if stop(thread_of(&run, "worker 1")) {
        return Some(run.finish());
    }
    let mut child = run.child;
    child.kill().expect("a child can be ended");
    child.wait().expect("it ends");
    None
}

#[test]
fn a_worker_that_stops_is_named_and_does_not_hold_the_others() {
    let stage = Stage::new();
    // All at once: most of it is waiting. Whoever stops a thread holds it for as long as it lives itself.
    let outcomes: Vec<(&str, Option<Outcome>)> = std::thread::scope(|scope| {
        let stage = &stage;
        let methods = ["sync-sgd", "sync-easgd", "original-easgd", "async-msgd", "async-easgd"];
        let runs = methods.map(|method| (method, scope.spawn(move || lose_a_worker(stage, method))));
        runs.into_iter().map(|(method, run)| (method, run.join().expect("no panic"))).collect()
    });
    for (method, outcome) in outcomes {
        let Some(outcome) = outcome else {
            println!("skipped: this system does not let a program stop a thread of another (ptrace)");
            return;
        };
        assert_eq!(outcome.code, Some(76), "{method}: {outcome:?}");
        let says = ["heard nothing from rank 1 for 5 s", "not every worker of this process came to its end"];
        assert!(says.iter().all(|text| outcome.stderr.contains(text)), "{method}: {outcome:?}");
    }
}

#[test]
fn a_worker_that_is_only_slower_than_the_timeout_is_named_too() {
    // Nobody answers within a tenth of a microsecond.
    let run = Stage::new()
        .run(&format!("{TRAIN} out --test-interval 0 --method sync-sgd --peer-timeout 0.0000001"));
    assert_eq!((run.code, run.stderr.contains("heard nothing from rank")), (Some(76), true), "{run:?}");
}
