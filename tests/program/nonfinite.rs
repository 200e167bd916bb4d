//! `--on-nonfinite`: what becomes of a run in which a value is not finite, and how the value is named.

use quadrille_io::npz::{Archive, Array, Values, write_npz};

use crate::common::{SIDE, Stage, hash_of};

/// Images of a mini-batch.
const BATCH: usize = 6;
/// Mini-batches of the file; with two workers each takes every other.
const COUNT: usize = 8;
/// The mini-batch that is damaged in some tests.
const DAMAGED: usize = 5;

/// Methods whose workers leave out updates together, and the others.
const TOGETHER: [&str; 2] = ["sync-sgd", "sync-easgd"];
const APART: [&str; 5] = ["original-easgd", "async-msgd", "hogwild-sgd", "async-measgd", "hogwild-easgd"];

fn array(shape: &[usize], value: impl Fn(usize) -> f32) -> Array {
    let count = shape.iter().product();
    Array { shape: shape.to_vec(), values: Values::F32((0..count).map(value).collect()) }
}

/// Mini-batches of noise, of which one has `value` in one place.
fn stage_with(value: f32) -> Stage {
    let stage = Stage::new();
    let image = SIDE * SIDE;
    let noise = |i: usize| match i {
        _ if i == DAMAGED * BATCH * image + image / 2 => value,
        _ => ((i * 7919) % 1009) as f32 / 1009.0,
    };
    let arrays: Archive = [
        ("in/data".to_owned(), array(&[COUNT, BATCH, 1, SIDE, SIDE], noise)),
        ("in/label".to_owned(), array(&[COUNT, BATCH], |i| (i * 3 % 10) as f32)),
    ]
    .into();
    write_npz(&stage.path("in.npz"), &arrays).expect("a file");
    // A rate that learns little, so that two runs differ by what they leave out and not by how they diverge.
    stage.edit("solver.prototxt", "base_lr: 0.05", "base_lr: 0.01");
    stage
}

const TRAIN: &str = "train --solver solver.prototxt --inputs in.npz --test-interval 0 --run";

#[test]
fn bad_data_is_named_as_such_by_default() {
    for bad in [f32::NAN, f32::INFINITY] {
        let stage = stage_with(bad);
        for (flags, iteration, worker) in
            [("", 5, 0), ("--workers 2 --method sync-sgd", 2, 1), ("--workers 2 --method async-msgd", 2, 1)]
        {
            let run = stage.run(&format!("{TRAIN} out-{worker}-{} {flags}", flags.len()));
            assert_eq!(run.code, Some(77), "{run:?}");
            let named = "first in blob data of layer shapes (Input)";
            let says = [named, &format!("worker {worker}"), &format!("iteration {iteration}")];
            assert!(says.iter().all(|text| run.stderr.contains(text)), "{flags}: {run:?}");
        }
    }
}

#[test]
fn a_nan_that_kernels_swallow_is_found_in_the_gradients_or_the_weights() {
    let stage = stage_with(f32::NAN);
    // A ReLU that takes the larger of 0 and NaN can make the loss finite again, but not what the weights learn from.
    let skipped = stage.train_on("skipped", "--on-nonfinite skip --max-iter 8");
    assert_eq!(skipped["left_out"], 1, "{skipped}");
    assert!(stage.weights_are_finite("skipped", 8));
}

impl Stage {
    fn train_on(&self, run: &str, flags: &str) -> serde_json::Value {
        self.succeed(&format!("{TRAIN} {run} {flags}"));
        self.summary(run)
    }

    fn weights_are_finite(&self, run: &str, iteration: u32) -> bool {
        let path = self.path(&format!("{run}/snapshots/iteration_{iteration}"));
        let files = quadrille_io::snapshot::Snapshot::read(&path).expect("a snapshot").files;
        let mut arrays = files.values().flat_map(|file| file.values());
        arrays.all(|(_, values)| values.iter().all(|value| value.is_finite()))
    }
}

#[test]
fn skip_leaves_out_one_update_and_nothing_else() {
    let stage = stage_with(f32::NAN);
    for method in TOGETHER.into_iter().chain(APART) {
        let name = format!("skip-{method}");
        let flags = format!("--workers 2 --method {method} --on-nonfinite skip --max-iter 6");
        let said = stage.succeed(&format!("{TRAIN} {name} {flags}")).stdout;
        // Worker 1 has mini-batch 5 in iteration 2 of 4.
        let line = said.lines().find(|line| line.contains("this update is left out")).unwrap_or_default();
        let says = ["worker 1 ", "in iteration 2", "blob data of layer shapes"];
        assert!(says.iter().all(|text| line.contains(text)), "{method}: {said}");
        let summary = stage.summary(&name);
        assert_eq!((&summary["left_out"], &summary["iterations"]), (&1.into(), &6.into()), "{method}");
        assert!(stage.weights_are_finite(&name, 6), "{method}");
    }
    // Both workers leave the same update out: what comes of it is the same whoever has the bad mini-batch.
    let hash = |run: &str| hash_of(&stage.summary(run));
    let again = stage.train_on("again", "--workers 2 --method sync-sgd --on-nonfinite skip --max-iter 6");
    assert_eq!(hash("skip-sync-sgd"), hash_of(&again));
}

/// Momentum, weights and learning rate go on as if the iteration had not been: without a history that is a run whose mini-batch
/// has no gradient.
#[test]
fn an_update_that_is_left_out_changes_no_weight() {
    let stage = stage_with(f32::NAN);
    let weights = |run: &str, iteration: u32| {
        let path = stage.path(&format!("{run}/snapshots/iteration_{iteration}"));
        quadrille_io::snapshot::Snapshot::read(&path).expect("a snapshot").files
    };
    for flags in ["", "--workers 2 --method sync-sgd", "--quadrants 2 --threads 1"] {
        let run = format!("run{}", flags.len());
        stage.write("solver.prototxt", format!("{}snapshot: 1\n", crate::common::SOLVER));
        stage.train_on(&run, &format!("{flags} --on-nonfinite skip --max-iter 7"));
        let at = if flags.contains("workers") { 2 } else { 5 };
        let (before, after, later) = (weights(&run, at), weights(&run, at + 1), weights(&run, at + 2));
        assert!(before == after && after != later, "{flags}");
    }
}

/// Of an update of several mini-batches one is damaged, be it the last of them or not: nothing of their sum stays behind.
#[test]
fn an_update_of_several_mini_batches_is_left_out_as_a_whole() {
    let stage = stage_with(f32::NAN);
    for (iter_size, flags) in
        [(2, ""), (4, ""), (4, "--quadrants 2 --threads 1"), (4, "--workers 2 --method sync-sgd")]
    {
        let run = format!("parts{iter_size}-{}", flags.len());
        let solver = crate::common::SOLVER;
        stage.write("solver.prototxt", format!("{solver}snapshot: 1\niter_size: {iter_size}\n"));
        let iterations = if flags.contains("workers") { 2 } else { 8 / iter_size };
        let summary = stage.train_on(&run, &format!("{flags} --on-nonfinite skip --max-iter {iterations}"));
        // Worker 1 has the damaged mini-batch in every update.
        let left_out = if flags.contains("workers") { iterations } else { 1 };
        assert_eq!(summary["left_out"], left_out, "{iter_size} {flags}: {summary}");
        assert!(stage.weights_are_finite(&run, iterations), "{iter_size} {flags}");
        // Once more with what comes behind it.
        let more = stage.train_on(
            &format!("{run}-more"),
            &format!("{flags} --on-nonfinite skip --max-iter {}", iterations + 1),
        );
        let moved = hash_of(&more) != hash_of(&summary);
        assert_eq!(moved, !flags.contains("workers"), "{iter_size} {flags}: {more}");
    }
}

#[test]
fn nothing_changes_where_everything_is_finite() {
    let stage = stage_with(0.5);
    stage.edit("solver.prototxt", "max_iter", "snapshot: 5\nmax_iter");
    for flags in ["", "--quadrants 2 --threads 1", "--workers 2 --method sync-sgd", "--workers 3 --threads 1"]
    {
        let plain = hash_of(&stage.train_on(&format!("plain{}", flags.len()), flags));
        for mode in ["skip", "rollback"] {
            let summary =
                stage.train_on(&format!("{mode}{}", flags.len()), &format!("{flags} --on-nonfinite {mode}"));
            assert_eq!(hash_of(&summary), plain, "{mode} {flags}");
            assert_eq!((&summary["left_out"], &summary["rollbacks"]), (&0.into(), &0.into()));
        }
    }
}

#[test]
fn rollback_goes_back_once_and_comes_to_what_skip_comes_to() {
    let stage = stage_with(f32::NAN);
    stage.edit("solver.prototxt", "max_iter", "snapshot: 2\nmax_iter");
    for flags in [
        "",
        "--workers 2 --method sync-sgd",
        "--workers 2 --method sync-easgd",
        "--workers 2 --method async-sgd",
    ] {
        let (skip, back) = (format!("skip{}", flags.len()), format!("back{}", flags.len()));
        let skipped = stage.train_on(&skip, &format!("{flags} --on-nonfinite skip --max-iter 6"));
        let said = stage.succeed(&format!("{TRAIN} {back} {flags} --on-nonfinite rollback --max-iter 6"));
        let at = if flags.is_empty() { 5 } else { 2 };
        let to = format!("iteration_{}, without the update of iteration {at}", at / 2 * 2);
        let lines: Vec<&str> = said.stdout.lines().filter(|line| line.starts_with("rollback ")).collect();
        assert!(lines.len() == 1 && lines[0].contains(&to), "{flags}: {}", said.stdout);
        let summary = stage.summary(&back);
        assert_eq!(summary["rollbacks"], 1, "{flags}");
        assert!(summary["left_out"].as_u64().is_some_and(|count| count >= 1), "{flags}: {summary}");
        if !flags.contains("async") {
            assert_eq!(summary["left_out"], skipped["left_out"], "{flags}");
            assert_eq!(hash_of(&summary), hash_of(&skipped), "{flags}");
        }
        let iterations: Vec<u64> = stage
            .metrics(&back)
            .iter()
            .filter(|record| record.get("loss").is_some())
            .filter_map(|record| record["iteration"].as_u64())
            .collect();
        assert_eq!(iterations, [0, 1, 2, 3, 4, 5], "{flags}: each iteration is recorded once");
    }
}

#[test]
fn a_rate_beyond_all_measure_ends_every_mode_with_77() {
    for (mode, says) in [
        ("stop", ["lower base_lr", "first in "]),
        ("skip", ["lower base_lr", "first in "]),
        ("rollback", ["lower base_lr", "times: that is enough"]),
    ] {
        for flags in
            ["", "--workers 2 --method sync-sgd", "--workers 2", "--workers 2 --method hogwild-easgd"]
        {
            let stage = stage_with(0.5);
            stage.edit("solver.prototxt", "base_lr: 0.01", "base_lr: 1e30");
            stage.edit("solver.prototxt", "max_iter", "snapshot: 1\nmax_iter");
            let run = stage.run(&format!("{TRAIN} out {flags} --on-nonfinite {mode}"));
            assert_eq!(run.code, Some(77), "{mode} {flags}: {run:?}");
            let told = format!("{}{}", run.stdout, run.stderr);
            assert!(says.iter().all(|text| told.contains(text)), "{mode} {flags}: {run:?}");
        }
    }
}

#[test]
fn a_blob_that_overflows_is_named_with_its_layer() {
    let stage = stage_with(0.5);
    // Weights stay finite, but their products do not.
    stage.edit("solver.prototxt", "base_lr: 0.01", "base_lr: 1e25");
    let run = stage.run(&format!("{TRAIN} out --workers 2 --method sync-sgd"));
    assert_eq!(run.code, Some(77), "{run:?}");
    assert!(run.stderr.contains("first in blob ip of layer ip (InnerProduct)"), "{run:?}");
}

#[test]
fn what_cannot_be_is_refused() {
    let stage = stage_with(0.5);
    let run = stage.run(&format!("{TRAIN} out --on-nonfinite rollback"));
    assert_eq!((run.code, run.stderr.contains("snapshot: N")), (Some(2), true), "{run:?}");
    let run = stage.run(&format!("{TRAIN} out --on-nonfinite hope"));
    assert_eq!((run.code, run.stderr.contains("rollback")), (Some(2), true), "{run:?}");
    let stage = stage_with(f32::NAN);
    stage.edit("solver.prototxt", "max_iter", "snapshot: 1000\nmax_iter");
    let run = stage.run(&format!("{TRAIN} out --on-nonfinite rollback"));
    assert_eq!((run.code, run.stderr.contains("no snapshot yet")), (Some(77), true), "{run:?}");
}
