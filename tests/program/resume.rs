//! `--resume`: the same command starts a run and goes on with it, past what is damaged, and never anew in silence.

use std::fs;
use std::process::Command;

use quadrille_io::snapshot::Manifest;

use crate::common::{Outcome, SOLVER, Stage, hash_of};

const AUTO: &str = "train --solver solver.prototxt --run out --resume auto";

/// A stage whose solver leaves a snapshot every four of 20 iterations.
fn stage() -> Stage {
    let stage = Stage::new();
    stage.write("solver.prototxt", format!("{SOLVER}snapshot: 4\n"));
    stage
}

fn says(outcome: &Outcome, parts: &[&str]) {
    for part in parts {
        assert!(outcome.stdout.contains(part), "no {part:?} in\n{}\n{}", outcome.stdout, outcome.stderr);
    }
}

/// Flips a bit in the middle of a file.
fn damage(stage: &Stage, file: &str) {
    let mut bytes = fs::read(stage.path(file)).expect("the stage's files");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    stage.write(file, bytes);
}

fn iterations(stage: &Stage, run: &str) -> Vec<u64> {
    let records = stage.metrics(run);
    let training = records.iter().filter(|record| record.get("loss").is_some());
    training.map(|record| record["iteration"].as_u64().expect("a number")).collect()
}

#[test]
fn the_same_command_starts_and_goes_on() {
    for way in ["", "--workers 2"] {
        let stage = stage();
        let whole = hash_of(&stage.train("whole", way));
        let first = stage.succeed(&format!("{AUTO} {way} --max-iter 10"));
        says(&first, &["resume      out has no snapshot yet: from the start"]);
        let second = stage.succeed(&format!("{AUTO} {way}"));
        says(&second, &["start       snapshot out/snapshots/iteration_10, iteration 10"]);
        assert_eq!(hash_of(&stage.summary("out")), whole, "{way}");
        assert!(iterations(&stage, "out").into_iter().eq(0..20), "{way}");
        // There is nothing left to do, which is no error.
        let third = stage.succeed(&format!("{AUTO} {way}"));
        says(&third, &["start       snapshot out/snapshots/iteration_20, iteration 20"]);
        assert_eq!(hash_of(&stage.summary("out")), whole, "{way}");
        assert!(iterations(&stage, "out").into_iter().eq(0..20), "{way}");
    }
}

#[test]
fn damaged_snapshots_are_passed_over_and_told() {
    let stage = stage();
    let whole = hash_of(&stage.train("whole", ""));
    stage.train("out", "");
    damage(&stage, "out/snapshots/iteration_20/worker0.safetensors");
    fs::remove_file(stage.path("out/snapshots/iteration_16/weights.safetensors")).expect("a file");
    damage(&stage, "out/snapshots/iteration_8/manifest.json");
    let outcome = stage.succeed(AUTO);
    says(
        &outcome,
        &[
            "damaged     out/snapshots/iteration_20/worker0.safetensors: is not what was written",
            "damaged     out/snapshots/iteration_16/weights.safetensors: is missing from the snapshot",
            "start       snapshot out/snapshots/iteration_12, iteration 12",
            "put aside: out/snapshots/iteration_20.damaged",
            "put aside: out/snapshots/iteration_16.damaged",
            "line(s) of metrics.jsonl that come after iteration 12",
        ],
    );
    assert!(!outcome.stdout.contains("iteration_8"), "older ones are not looked at: {}", outcome.stdout);
    assert_eq!(hash_of(&stage.summary("out")), whole);
    assert!(iterations(&stage, "out").into_iter().eq(0..20));
    assert!(stage.path("out/snapshots/iteration_16/weights.safetensors").is_file());
}

#[test]
fn a_run_whose_snapshots_are_all_damaged_does_not_begin_anew() {
    let stage = stage();
    stage.train("out", "--max-iter 8");
    for iteration in [4, 8] {
        damage(&stage, &format!("out/snapshots/iteration_{iteration}/weights.safetensors"));
    }
    for resume in ["auto", "out"] {
        let outcome = stage.run(&format!("train --solver solver.prototxt --run out --resume {resume}"));
        assert_eq!(outcome.code, Some(65), "{outcome:?}");
        for part in ["none that it can go on from", "iteration_4/weights", "iteration_8/weights", "hint: "] {
            assert!(outcome.stderr.contains(part), "no {part:?} in {outcome:?}");
        }
    }
    // Nor where somebody put them out of the way.
    for iteration in [4, 8] {
        let from = stage.path(&format!("out/snapshots/iteration_{iteration}"));
        fs::rename(&from, from.with_extension("damaged")).expect("a new name");
    }
    assert_eq!(stage.run(AUTO).code, Some(65));
    assert!(iterations(&stage, "out").into_iter().eq(0..8), "a refused run changed the metrics");
}

/// A snapshot that cannot be read may be good: nothing is put aside, and no older one takes its place.
#[test]
fn a_snapshot_that_cannot_be_read_is_left_where_it_is() {
    let stage = stage();
    stage.train("out", "--max-iter 8");
    // A file with a hole that is larger than any memory, of the length that the manifest says.
    let [manifest, weights] =
        ["manifest.json", "weights.safetensors"].map(|name| format!("out/snapshots/iteration_8/{name}"));
    let bytes = fs::read(stage.path(&manifest)).expect("a manifest");
    let mut told = Manifest::of_bytes(&stage.path(&manifest), &bytes).expect("a good manifest");
    let file = told.files.iter_mut().find(|file| file.name == "weights.safetensors").expect("weights");
    file.bytes = 1 << 40;
    stage.write(&manifest, told.to_bytes().expect("a manifest"));
    let file = fs::File::options().write(true).open(stage.path(&weights)).expect("weights");
    file.set_len(1 << 40).expect("a hole");
    let command = format!("ulimit -v 16000000; exec {} {AUTO}", env!("CARGO_BIN_EXE_quadrille"));
    let output = Command::new("sh").args(["-c", &command]).current_dir(stage.path(".")).output();
    let output = output.expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(71), "{stderr}");
    assert!(stderr.contains(&format!("{weights}: cannot be read: memory")), "{stderr}");
    assert!(stderr.contains("it may be good"), "{stderr}");
    assert!(stage.path(&weights).is_file() && iterations(&stage, "out").into_iter().eq(0..8));
}

/// With another max_iter than before a snapshot may be of more iterations than there are to be.
#[test]
fn a_run_that_is_past_its_end_is_done() {
    for way in ["", "--workers 2"] {
        let stage = stage();
        stage.train("out", &format!("{way} --max-iter 8"));
        let outcome = stage.succeed(&format!("{AUTO} {way} --max-iter 6"));
        says(
            &outcome,
            &[
                "start       snapshot out/snapshots/iteration_8, iteration 8",
                "note        the snapshot is past the end, iteration 6: nothing is left to train",
            ],
        );
        assert!(iterations(&stage, "out").into_iter().eq(0..8));
    }
}

#[test]
fn a_run_that_begins_elsewhere_leaves_others_alone() {
    let stage = stage();
    stage.train("first", "--max-iter 4");
    stage.train("out", "--max-iter 8");
    let command = "train --solver solver.prototxt --run out";
    for from in [
        "--snapshot first/snapshots/iteration_4",
        "--snapshot first/snapshots/iteration_4.solverstate",
        "--resume first/snapshots/iteration_4",
        "--resume first",
    ] {
        let outcome = stage.run(&format!("{command} {from}"));
        assert_eq!(outcome.code, Some(73), "{from}: {outcome:?}");
        assert!(outcome.stderr.contains("out: cannot create a run folder: it already holds a run"));
        assert!(stage.path("out/snapshots/iteration_8").is_dir(), "{from}");
        assert!(iterations(&stage, "out").into_iter().eq(0..8), "{from}");
    }
    let back = stage.succeed(&format!("{command} --snapshot out/snapshots/iteration_4"));
    says(&back, &["put aside: out/snapshots/iteration_8.abandoned"]);
}

#[test]
fn a_run_or_a_snapshot_can_be_named() {
    let stage = stage();
    let whole = hash_of(&stage.train("out", ""));
    // In the run's own folder the way back is kept, and what came later is no longer the run's.
    let back = stage.succeed("train --solver solver.prototxt --resume out/snapshots/iteration_8");
    says(
        &back,
        &[
            "run folder  out\n",
            "put aside: out/snapshots/iteration_12.abandoned",
            "iteration 8, since they come again",
        ],
    );
    assert_eq!(hash_of(&stage.summary("out")), whole);
    assert!(iterations(&stage, "out").into_iter().eq(0..20));
    let on = stage.succeed("train --solver solver.prototxt --resume out --max-iter 22");
    says(&on, &["start       snapshot out/snapshots/iteration_20, iteration 20", "run folder  out\n"]);
    // In another folder the first run stays as it is.
    stage.succeed("train --solver solver.prototxt --resume out/snapshots/iteration_4 --run other");
    assert_eq!(hash_of(&stage.summary("other")), whole);
    assert!(iterations(&stage, "out").into_iter().eq(0..22));
    stage.succeed("train --solver solver.prototxt --resume out --run third --max-iter 23");
    assert!(iterations(&stage, "third").into_iter().eq(22..23));
}

#[test]
fn weights_count_only_where_there_is_no_snapshot() {
    let stage = stage();
    stage.train("first", "--max-iter 4");
    let command = format!("{AUTO} --weights first/snapshots/iteration_4 --max-iter");
    says(&stage.succeed(&format!("{command} 4")), &["start       weights of first/snapshots/iteration_4"]);
    let again = stage.succeed(&format!("{command} 8"));
    says(&again, &["start       snapshot out/snapshots/iteration_4, iteration 4"]);
    assert!(!again.stdout.contains("weights of"), "{}", again.stdout);
}

#[test]
fn wrong_use_and_what_is_not_there() {
    let stage = stage();
    let code = |arguments: &str, says: &str| {
        let outcome = stage.run(&format!("train --solver solver.prototxt {arguments}"));
        assert!(outcome.stderr.contains(says), "no {says:?} in {outcome:?}");
        outcome.code
    };
    assert_eq!(code("--resume auto", "Add --run DIR"), Some(2));
    assert_eq!(code("--resume x --snapshot y", "leave --snapshot"), Some(2));
    assert_eq!(code("--resume none", "none: not found"), Some(66));
    fs::create_dir_all(stage.path("empty/snapshots")).expect("a folder");
    assert_eq!(code("--resume empty", "no snapshot to go on from"), Some(66));
    stage.train("out", "--max-iter 4");
    assert_eq!(code("--resume auto --run out --seed 8", "its seed is 7"), Some(65));
    assert_eq!(code("--run out", "it already holds a run"), Some(73));
}

/// What a process that was killed leaves behind, and a second process in the same folder.
#[test]
fn remains_are_cleared_away_but_nobody_is_disturbed() {
    let stage = stage();
    stage.train("out", "--max-iter 4");
    let part = stage.path("out/snapshots/.iteration_8.part-77");
    fs::create_dir(&part).expect("a folder");
    fs::write(part.join("weights.safetensors"), "half").expect("a file");
    let metrics = stage.path("out/metrics.jsonl");
    let text = fs::read_to_string(&metrics).expect("metrics");
    fs::write(&metrics, format!("{text}{{\"iteration\":4,\"loss\":0.5}}\n{{\"itera")).expect("metrics");
    let outcome = stage.succeed(&format!("{AUTO} --max-iter 8"));
    says(&outcome, &["removed 1 unfinished", "removed 1 line(s)", "removed 1 broken line(s)"]);
    assert!(!part.exists());
    assert!(iterations(&stage, "out").into_iter().eq(0..8));

    let lock = fs::File::create(stage.path("out/.lock")).expect("the lock");
    lock.lock().expect("a lock");
    let outcome = stage.run(AUTO);
    assert_eq!(outcome.code, Some(73), "{outcome:?}");
    assert!(outcome.stderr.contains("another process trains into it"), "{outcome:?}");
}
