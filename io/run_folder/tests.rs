use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A run with snapshots of these iterations, each a folder with a file.
fn run(parent: &tempfile::TempDir, iterations: &[u64]) -> RunFolder {
    let run = RunFolder::create(&parent.path().join("run")).unwrap();
    for iteration in iterations {
        let folder = run.snapshot_path(*iteration);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), "content").unwrap();
    }
    run
}

fn iterations(run: &RunFolder) -> Vec<u64> {
    run.generations().unwrap().iter().map(|generation| generation.iteration).collect()
}

#[test]
fn a_run_has_its_files_and_is_not_overwritten() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("runs/first");
    assert_eq!(RunFolder::find(&path), None);
    let run = RunFolder::create(&path).unwrap();
    run.store_configuration("max_iter: 5\n").unwrap();
    run.metrics().unwrap().write(&serde_json::json!({"iteration": 0})).unwrap();
    assert_eq!(fs::read_to_string(path.join(CONFIG)).unwrap(), "max_iter: 5\n");
    assert!(path.join("metrics.jsonl").exists());
    assert_eq!(RunFolder::create(&path).unwrap_err().exit_code(), 73);
    assert_eq!(RunFolder::open(&path).unwrap(), run);
    assert_eq!(RunFolder::find(&path), Some(run.clone()));
    assert_eq!(RunFolder::around(&run.snapshot_path(7)), Some(run));
    assert_eq!(RunFolder::around(&path.join("metrics.jsonl")), None);
}

#[test]
fn generations_are_the_finished_snapshots_newest_first() {
    let parent = tempfile::tempdir().unwrap();
    let run = run(&parent, &[500, 1000, 90]);
    for other in
        [".iteration_2000.part-1", "iteration_3000.damaged", "iteration_007", "iteration_+8", "iteration_"]
    {
        fs::create_dir(run.snapshots().join(other)).unwrap();
    }
    fs::write(run.snapshots().join("iteration_500.caffemodel"), "").unwrap();
    assert_eq!(iterations(&run), [1000, 500, 90]);
    assert_eq!(run.generations().unwrap()[0].path, run.snapshot_path(1000));
}

#[test]
fn old_generations_go_and_the_newest_stays() {
    let parent = tempfile::tempdir().unwrap();
    let run = run(&parent, &[1, 2, 3, 10]);
    run.keep_newest(5).unwrap();
    assert_eq!(iterations(&run), [10, 3, 2, 1]);
    run.keep_newest(2).unwrap();
    assert_eq!(names(&run.snapshots()), ["iteration_10", "iteration_3"]);
    for _ in 0..2 {
        run.keep_newest(0).unwrap();
        assert_eq!(names(&run.snapshots()), ["iteration_10"]);
    }
    assert_eq!(fs::read_to_string(run.snapshot_path(10).join("file")).unwrap(), "content");
}

#[test]
fn only_what_was_never_finished_is_removed() {
    let parent = tempfile::tempdir().unwrap();
    let run = run(&parent, &[4]);
    let kept = ["iteration_4", ".hidden", "part-3", ".mine.part-x", ".mine.part-"];
    let unfinished = [".iteration_6.part-77", ".iteration_2.part-12345"];
    for name in kept.iter().skip(1).chain(&unfinished) {
        fs::create_dir(run.snapshots().join(name)).unwrap();
        fs::write(run.snapshots().join(name).join("file"), "").unwrap();
    }
    fs::write(run.path().join(".effective.json.part-9"), "").unwrap();
    assert_eq!(run.remove_unfinished().unwrap(), 3);
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    assert_eq!(names(&run.snapshots()), kept);
    assert_eq!(names(run.path()), ["snapshots"]);
    assert_eq!(run.remove_unfinished().unwrap(), 0);
}

#[test]
fn what_is_put_aside_is_there_but_no_generation() {
    let parent = tempfile::tempdir().unwrap();
    let run = run(&parent, &[4, 8]);
    assert_eq!(
        run.put_aside(&run.snapshot_path(8), "damaged").unwrap(),
        run.snapshots().join("iteration_8.damaged")
    );
    fs::create_dir(run.snapshot_path(8)).unwrap();
    let second = run.put_aside(&run.snapshot_path(8), "damaged").unwrap();
    assert_eq!(second, run.snapshots().join("iteration_8.damaged-2"));
    assert_eq!(iterations(&run), [4]);
    assert!(run.had_snapshots().unwrap());
    fs::remove_dir_all(run.snapshot_path(4)).unwrap();
    assert!(run.had_snapshots().unwrap(), "those that were put aside were snapshots, too");
    let empty = RunFolder::create(&parent.path().join("empty")).unwrap();
    assert!(!empty.had_snapshots().unwrap());
}

#[test]
fn a_file_in_the_way_is_named() {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("file"), "").unwrap();
    let error = RunFolder::create(&parent.path().join("file/run")).unwrap_err();
    assert_eq!(error.exit_code(), 73);
    assert!(error.to_string().contains("file/run"), "{error}");
}
