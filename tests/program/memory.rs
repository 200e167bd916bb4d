//! Where memory goes: what is said of it, and what is refused before anything is allocated.

use crate::common::Stage;

/// More images than any machine has memory for, if each worker has its own.
const ABSURD: &str = "train --solver solver.prototxt --max-iter 1 --batch 1000000 --workers 64 --run out";

#[test]
fn a_mini_batch_that_no_machine_holds_is_refused_with_one_that_fits() {
    let stage = Stage::new();
    let outcome = stage.run(ABSURD);
    assert_eq!(outcome.code, Some(71), "{}", outcome.stderr);
    for words in [
        "the run needs ",
        "of memory, but ",
        " to give; nothing was allocated\n",
        "for mini-batches of 1000000 images on 64 worker(s)",
        "\n  hint: ",
    ] {
        assert!(outcome.stderr.contains(words), "no {words:?} in {}", outcome.stderr);
    }
    assert!(!stage.path("out").exists());
}

#[test]
fn the_first_lines_say_where_memory_goes() {
    let stage = Stage::new();
    for flags in ["", "--fast-memory off"] {
        let run = format!("out{}", flags.len());
        let outcome = stage.succeed(&format!(
            "train --solver solver.prototxt --max-iter 1 --run {run} {flags} --verify-placement"
        ));
        assert_eq!(outcome.stdout.matches("\nplacement   ").count(), 1, "{}", outcome.stdout);
        assert!(outcome.stdout.contains("\nverify      quadrant 0: "), "{}", outcome.stdout);
        assert!(outcome.stdout.contains("thread(s) on their CPUs\n"), "{}", outcome.stdout);
    }
}

#[test]
fn fast_memory_that_is_required_must_be_there() {
    let stage = Stage::new();
    if stage.succeed("topo").stdout.contains("  fast  ") {
        return println!("skipped: this machine has fast memory");
    }
    let outcome = stage.run("train --solver solver.prototxt --run out --fast-memory require");
    assert_eq!(outcome.code, Some(71));
    let words = "quadrille: --fast-memory require: quadrant 0 has no fast memory near it\n  hint: ";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    let outcome = stage.run("train --solver solver.prototxt --run out --fast-memory always");
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("\"always\" is none of prefer, require, off"), "{}", outcome.stderr);
}

#[test]
fn topo_verifies_this_machine() {
    let outcome = Stage::new().succeed("topo --verify");
    assert!(outcome.stdout.contains("\nverify      quadrant 0: "), "{}", outcome.stdout);
}
