//! The same training over threads and in several processes.

use crate::stage::{Stage, left_alone};
use crate::timeline::Timeline;
use crate::{is_skipped, missing};

/// The manifest has the hash of every byte of a snapshot.
fn manifest(stage: &Stage, run: &str, iteration: u64) -> String {
    let text = stage.text(&format!("{run}/snapshots/iteration_{iteration}/manifest.json"));
    assert!(text.contains("blake3"), "{run} has no snapshot after {iteration} iterations");
    text
}

#[test]
fn methods_with_an_order_give_the_bits_of_threads_and_those_of_a_second_run() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    for method in ["sync-sgd", "sync-easgd1", "sync-easgd2", "sync-easgd3", "original-easgd"] {
        let flags = format!("--method {method}");
        let (mpi, threads) = (format!("{method}-mpi"), format!("{method}-threads"));
        let weights = stage.train_over_mpi(4, &mpi, &flags);
        assert_eq!(stage.train_over_threads(&threads, &format!("{flags} --workers 4")), weights, "{method}");
        assert_eq!(manifest(&stage, &mpi, 12), manifest(&stage, &threads, 12), "{method}");
        if method == "sync-easgd3" {
            assert_eq!(stage.train_over_mpi(4, "again", &flags), weights);
        }
    }
}

#[test]
fn a_run_goes_on_over_threads_where_it_was_in_processes_and_the_other_way_round() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    for method in ["sync-easgd3", "sync-sgd"] {
        let flags = format!("--method {method} --resume auto");
        let run = |name: &str| format!("{method}-{name}");
        let whole = stage.train_over_threads(&run("whole"), &format!("--method {method} --workers 3"));
        stage.train_over_mpi(3, &run("there"), &format!("{flags} --max-iter 5"));
        assert_eq!(
            stage.train_over_threads(&run("there"), &format!("{flags} --workers 3")),
            whole,
            "{method}"
        );
        stage.train_over_threads(&run("back"), &format!("{flags} --workers 3 --max-iter 7"));
        assert_eq!(stage.train_over_mpi(3, &run("back"), &flags), whole, "{method}");
    }
}

#[test]
fn methods_without_an_order_train_and_leave_a_snapshot() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    for method in ["async-sgd", "async-msgd", "async-easgd", "async-measgd", "hogwild-sgd", "hogwild-easgd"] {
        stage.train_over_mpi(3, method, &format!("--method {method}"));
        assert_eq!(stage.summary(method)["iterations"], 12, "{method}");
        assert!(manifest(&stage, method, 12).contains("\"worker"), "{method}");
        let on = format!("--method {method} --resume auto --max-iter 15 --workers 3");
        stage.train_over_threads(method, &on);
        assert_eq!(stage.summary(method)["iterations"], 15, "{method}");
    }
}

#[test]
fn a_timeline_shows_the_workers_of_all_processes() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    let traced = stage.train_over_mpi(3, "traced", "--trace trace.json --trace-iterations 2");
    assert_eq!(stage.train_over_mpi(3, "plain", ""), traced);
    let found = Timeline::read(stage.text("trace.json").as_bytes());
    let mut arrows = 0;
    for worker in 0..3 {
        assert_eq!(found.count(worker, "iteration", "forward_backward"), 2, "worker {worker}");
        assert_eq!(found.count(worker, " lane ", "conv1/forward"), 2, "worker {worker}");
        assert!(found.count(worker, "quadrant 0 thread 0", "conv1/forward") >= 2, "worker {worker}");
        let waits = found.waits(worker, "waits");
        assert!(!waits.is_empty() && waits == found.waits(0, "waits"), "worker {worker}: {waits:?}");
        arrows += waits.len();
    }
    assert_eq!(found.arrows.len(), arrows, "an exchange lies between steps, so they do not overlap");
    assert!(found.slices.iter().all(|slice| slice.row.0 < 3));
}

#[test]
fn bad_records_of_all_processes_are_counted_and_listed() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    // Record 0 is in the part of the first process, 1 and 4 in that of the second, 2 in that of the third.
    let labels = [0, 1, 2, 4].into_iter().fold([3_u8; 60], |mut labels, bad| {
        labels[bad] = 12;
        labels
    });
    let idx = |extents: &[u8], values: &[u8]| {
        let head = [0, 0, 8, extents.len() as u8];
        let extents = extents.iter().flat_map(|extent| [0, 0, 0, *extent]);
        head.into_iter().chain(extents).chain(values.iter().copied()).collect::<Vec<u8>>()
    };
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(stage.path(name), bytes).expect("a new file");
    write("train-images-idx3-ubyte", idx(&[60, 28, 28], &[7; 60 * 28 * 28]));
    write("train-labels-idx1-ubyte", idx(&[60], &labels));
    stage.train_over_mpi(3, "run", "--data . --data-shards rank --bad-record skip");
    assert_eq!(stage.summary("run")["bad_records"], 4);
    let said = stage.text("stdout");
    assert!(said.contains("bad records 4 of 60 of "), "{said}");
    assert_eq!(said.matches("has the label 12").count(), 4, "{said}");
}

#[test]
fn the_workers_are_the_processes() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    stage.mpirun(2, &left_alone(), &stage.training("refused", "--workers 3")).finish();
    assert!(stage.said(0).contains("--workers 3: 2 processes were started"), "{}", stage.said(0));
    assert_eq!((0..2).filter_map(|rank| stage.code(rank)).collect::<Vec<_>>(), [2, 2]);
    // A single process holds as many as it is told.
    stage.train_over_mpi(1, "alone", "--workers 2");
    assert_eq!(stage.weights("alone"), stage.train_over_threads("threads", "--workers 2"));
}

#[test]
fn a_process_with_another_job_is_named_by_all() {
    if is_skipped(missing()) {
        return;
    }
    let stage = Stage::new();
    // The third process has another seed.
    let other = r#"case ${OMPI_COMM_WORLD_RANK:-${PMI_RANK}} in 2) seed=8 ;; *) seed=7 ;; esac
exec sh ./rank "$@" --seed "$seed"
"#;
    stage.write("seeded", other);
    let mut arguments = stage.training("refused", "--method sync-sgd");
    arguments.insert(0, crate::stage::program().to_owned());
    let outcome = stage.mpirun_of(4, &["sh", "./seeded"], &arguments).finish();
    assert_eq!([0, 1, 2, 3].map(|rank| stage.code(rank)), [Some(76); 4], "{outcome:#?}");
    assert!(stage.said(0).contains("rank 2 was started with another seed than rank 0"), "{}", stage.said(0));
}
