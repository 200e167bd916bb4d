//! What becomes of the others when one process is killed, stopped, told to stop or fails.

use std::time::{Duration, Instant};

use crate::stage::{Stage, is_open_mpi, left_alone};
use crate::{is_skipped, missing};

/// Short, so that a stopped process is noticed soon; long for a machine that does other things, too.
const PEER_TIMEOUT: Duration = Duration::from_secs(8);

/// When all others have ended at most. The manual says the peer timeout and 5 s; here they have five times that, since the machine may
/// do other things, too. Whoever does not notice at all waits for ever.
const MOST: Duration = Duration::from_secs(5 * (8 + 5));

/// Starts a training of four processes that would take for ever, does something to one of them, and returns when that was
/// done, and the launcher's exit code once all have ended.
fn disturb(
    stage: &Stage,
    method: &str,
    rank: usize,
    signal: &str,
    delay: Duration,
) -> (Instant, Option<i32>) {
    let _ = std::fs::remove_dir_all(stage.path("run"));
    let flags = format!("--method {method} --max-iter 2000000000 --peer-timeout {}", PEER_TIMEOUT.as_secs());
    let stopping = signal == "STOP";
    // A process that is stopped for ever is ended by nobody but mpirun.
    let launcher = if stopping { Vec::new() } else { left_alone() };
    let mut running = stage.mpirun(4, &launcher, &stage.training("run", &flags));
    stage.wait_until_trained("run", 2, &mut running);
    std::thread::sleep(delay);
    let done = Instant::now();
    stage.signal(rank, signal);
    let code = running.finish().code;
    if stopping {
        // Below the shell that mpirun has ended it would be stopped for ever.
        stage.signal(rank, "KILL");
    }
    (done, code)
}

/// All others have ended with code 76 in time, and named the process that is lost.
fn check_loss(stage: &Stage, what: &str, lost: usize, since: Instant) {
    let took = since.elapsed();
    assert!(took < MOST, "{what}: {took:?}");
    let mut named = 0;
    for rank in (0..4).filter(|rank| *rank != lost) {
        let said = stage.said(rank);
        // mpirun may have ended those that were not first.
        match stage.code(rank) {
            Some(code) => assert_eq!(code, 76, "{what}, rank {rank}: {said}"),
            None => continue,
        }
        named += usize::from(
            said.contains(&format!("lost rank {lost} ")) || said.contains(&format!("from rank {lost} ")),
        );
    }
    assert!(named > 0, "{what}: nobody names rank {lost}: {:?}", [0, 1, 2, 3].map(|rank| stage.said(rank)));
}

#[test]
fn a_process_that_is_killed_is_named_and_all_others_end() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    for (method, rank) in [("sync-easgd3", 2), ("sync-sgd", 0), ("async-measgd", 3)] {
        let (done, _) = disturb(&stage, method, rank, "KILL", Duration::ZERO);
        let what = format!("{method}, rank {rank} killed");
        check_loss(&stage, &what, rank, done);
        let codes: Vec<_> = (0..4).filter(|other| *other != rank).map(|other| stage.code(other)).collect();
        assert_eq!(codes, [Some(76); 3], "{what}: left to themselves, all end");
    }
}

#[test]
fn a_process_that_is_stopped_is_named_and_all_others_end() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    for (method, rank) in [("sync-easgd3", 1), ("async-easgd", 2)] {
        let (done, code) = disturb(&stage, method, rank, "STOP", Duration::ZERO);
        check_loss(&stage, &format!("{method}, rank {rank} stopped"), rank, done);
        assert_ne!(code, Some(0));
    }
}

#[test]
fn all_stop_after_the_same_iteration_and_go_on() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    for (method, signal) in [("sync-easgd3", "USR1"), ("sync-sgd", "TERM"), ("async-easgd", "USR1")] {
        let (_, code) = disturb(&stage, method, 3, signal, Duration::ZERO);
        let codes: Vec<_> = (0..4).map(|rank| stage.code(rank)).collect();
        assert_eq!(codes, [Some(75); 4], "{method} {signal}: {}{}", stage.said(0), stage.said(3));
        assert!(!is_open_mpi() || code == Some(0) || code == Some(75), "{code:?}");
        let done = stage.summary("run")["iterations"].as_u64().expect("a number of iterations");
        let more = format!("--method {method} --max-iter {}", done + 3);
        let resumed = stage.train_over_mpi(4, "run", &format!("{more} --resume auto"));
        if method.starts_with("sync") {
            let whole = format!("{method}-whole");
            assert_eq!(stage.train_over_threads(&whole, &format!("{more} --workers 4")), resumed, "{method}");
        }
    }
}

#[test]
fn a_failure_of_one_ends_all_with_its_code() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    // A rate at which no loss stays finite.
    let solver = stage.text("solver.prototxt").replace("0.01", "1000000.0");
    stage.write("solver.prototxt", &solver);
    let arguments = stage.training("run", "--method async-sgd --max-iter 2000");
    stage.mpirun(3, &left_alone(), &arguments).finish();
    let codes: Vec<_> = (0..3).map(|rank| stage.code(rank)).collect();
    assert_eq!(codes, [Some(77); 3], "{:?}", [0, 1, 2].map(|rank| stage.said(rank)));
}

/// All have done their part when the one that leads cannot give the folder its name.
#[test]
fn a_last_snapshot_that_cannot_be_written_is_nobodys_success() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    let arguments = stage.training("run", "--method sync-sgd --max-iter 400");
    let mut running = stage.mpirun(3, &left_alone(), &arguments);
    stage.wait_until_trained("run", 2, &mut running);
    std::fs::create_dir_all(stage.path("run/snapshots/iteration_400/in the way")).expect("a folder");
    running.finish();
    let codes: Vec<_> = (0..3).map(|rank| stage.code(rank)).collect();
    let said = [0, 1, 2].map(|rank| stage.said(rank));
    assert_eq!(codes, [Some(74); 3], "{said:?}");
    assert!(said[0].contains("iteration_400") && said[1].contains("process 0 ended"), "{said:?}");
}

/// Numbers that look random, from a seed (SplitMix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// The short form of `scripts/kill-ranks`.
#[test]
fn a_random_process_at_a_random_moment() {
    if is_skipped(missing()) {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (trials, seed) = (number("QUADRILLE_LOSSES").unwrap_or(3), number("QUADRILLE_SEED").unwrap_or(1));
    let mut chance = Chance(seed);
    let methods = ["sync-easgd3", "sync-sgd", "original-easgd", "async-easgd", "async-sgd", "sync-easgd1"];
    let stage = Stage::new();
    for trial in 0..trials {
        let method = methods[chance.below(methods.len() as u64) as usize];
        let (rank, signal) = (chance.below(4) as usize, ["KILL", "STOP"][chance.below(2) as usize]);
        let delay = Duration::from_millis(chance.below(1500));
        let (done, _) = disturb(&stage, method, rank, signal, delay);
        let what = format!("trial {trial} of seed {seed}: {method}, {signal} to rank {rank} after {delay:?}");
        check_loss(&stage, &what, rank, done);
        println!("{what}: all others ended after {:.1} s", done.elapsed().as_secs_f64());
    }
}
