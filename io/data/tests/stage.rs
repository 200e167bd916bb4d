//! Copies on the node's own storage, and the parts that workers read.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use quadrille_core::layer::Transform;
use quadrille_core::net::Phase;

use super::super::*;
use super::{idx, layer};
use crate::error::IoError;

/// Three tars of two images each, and the same in folders.
fn sets(parent: &Path) {
    let image = |number: u8| {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 1, 1);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&[number; 3]).unwrap();
        file
    };
    fs::create_dir_all(parent.join("tars")).unwrap();
    for shard in 0..3u8 {
        let mut tar = TarWriter::new(File::create(parent.join(format!("tars/s-{shard}.tar"))).unwrap());
        for number in [shard, 5 - shard] {
            let path = format!("c{}/{number}.png", number % 2);
            tar.add(&path, &image(number)).unwrap();
            let path = parent.join("folder/train").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, image(number)).unwrap();
        }
        tar.finish().unwrap();
    }
    fs::create_dir_all(parent.join("folder/test/c0")).unwrap();
    fs::write(parent.join("folder/test/c0/9.png"), image(9)).unwrap();
}

/// Opens a data set from its copy; also returns what was heard.
fn staged(from: &Path, to: &Path) -> (Result<DataSource, IoError>, Vec<StageEvent>) {
    let heard = Mutex::new(Vec::new());
    let tell = |event| heard.lock().unwrap().push(event);
    let staging = Some(Staging { to, tell: &tell });
    let search = SearchPath::here();
    let opening =
        Opening { data: None, search: &search, tolerance: Tolerance::Fail, staging, room: Room::default() };
    let set = open(&layer(&from.display().to_string()), Phase::Train, opening);
    (set, heard.into_inner().unwrap())
}

/// The folder of the copy, and whether it was there before.
fn done(events: &[StageEvent]) -> (PathBuf, bool) {
    match events.last() {
        Some(StageEvent::Done(folder, _, reused)) => (folder.clone(), *reused),
        other => panic!("{other:?}"),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_kind_of_data_set_is_copied_and_stays_the_same() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    sets(parent.path());
    let tars = open_records(&at("tars"), Phase::Train).unwrap();
    let plain =
        |target| Storing { target, changes: Changes::default(), order: None, tolerance: Tolerance::Fail };
    store(&*tars, &plain(Target::Lmdb), &at("lmdb"), |_| ()).unwrap();
    fs::write(at("lmdb/lock.mdb"), "").unwrap();
    fs::create_dir(at("idx")).unwrap();
    fs::write(at("idx/train-images-idx3-ubyte"), idx(&[5, 2, 3])).unwrap();
    fs::write(at("idx/train-labels-idx1-ubyte"), idx(&[5])).unwrap();
    for source in ["tars", "tars/s-*.tar", "tars/s-1.tar", "folder", "lmdb", "lmdb/data.mdb", "idx"] {
        let expected = open_records(&at(source), Phase::Train).unwrap();
        let to = at("node/scratch");
        let (set, events) = staged(&at(source), &to);
        let set = set.unwrap();
        assert_eq!((set.name(), set.hash(), set.len()), (expected.name(), expected.hash(), expected.len()));
        let (folder, reused) = done(&events);
        assert!(!reused && folder.starts_with(&to), "{source}: {}", folder.display());
        let copied = events.iter().filter(|event| matches!(event, StageEvent::Copied(..)));
        assert_eq!(copied.count() as u64, count(&folder) - 1, "{source}");
        // Only the locks lie beside the copies.
        assert!(names(&to).iter().all(|name| !name.ends_with(".part")), "{:?}", names(&to));
        let (again, events) = staged(&at(source), &to);
        assert_eq!((again.unwrap().hash(), done(&events)), (expected.hash(), (folder, true)));
        assert_eq!(events.len(), 1, "{events:?}");
    }
    // A folder's part for another phase is not copied.
    let parts: Vec<String> =
        names(&at("node/scratch")).into_iter().filter(|n| n.starts_with("train-")).collect();
    assert_eq!(names(&at("node/scratch").join(&parts[0])), ["manifest.json", "train"]);
}

/// What a record of a list holds, or why it cannot be read.
fn files(set: &dyn Records) -> Vec<Result<(i32, Vec<u8>), String>> {
    let read = |index| {
        let mut scratch = Vec::new();
        set.read(index, &mut scratch).map(|record| match record.content {
            Content::Encoded { file, .. } => (record.label, file.to_vec()),
            other => panic!("{other:?}"),
        })
    };
    (0..set.len()).map(read).collect()
}

#[test]
fn a_list_is_copied_with_what_it_names_wherever_that_lies() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    sets(parent.path());
    fs::create_dir(at("lists")).unwrap();
    fs::write(at("%up"), "no way out").unwrap();
    let list = at("lists/train.txt");
    fs::rename(at("folder/train/c0"), at("lists/c0")).unwrap();
    let lines =
        "c0/0.png 3\n../folder/test/c0/9.png 1\nnone.png 5\nc0/0.png 4\n./c0/2.png 0\n../%up 6\n../lists 8\n";
    fs::write(&list, lines).unwrap();
    let original = ImageFiles::in_list(&list, None, "train.txt").unwrap();
    let expected = files(&original);
    assert_eq!(expected.iter().filter(|file| file.is_err()).count(), 2);
    let heard = Mutex::new(Vec::new());
    let tell = |event| heard.lock().unwrap().push(event);
    let copy = || {
        let staging = Staging { to: &at("node"), tell: &tell };
        let set = ImageFiles::in_list(&list, None, "train.txt").unwrap().staged(&list, staging).unwrap();
        (set, done(&heard.lock().unwrap()))
    };
    let (set, (folder, reused)) = copy();
    assert!(!reused && folder.display().to_string().contains("/node/train.txt-"), "{}", folder.display());
    assert_eq!((set.name(), set.hash(), set.len()), (original.name(), original.hash(), original.len()));
    // Four images, of which the list names one twice, the list and the manifest.
    assert_eq!(
        (count(&folder), names(&folder)),
        (6, ["files", "list", "manifest.json"].map(str::to_owned).into())
    );
    let record_names = |set: &ImageFiles| (0..set.len()).map(|i| set.record_name(i)).collect::<Vec<_>>();
    assert_eq!(record_names(&set), record_names(&original), "messages name what can be mended");
    let same = |set: &ImageFiles| {
        for (file, expected) in files(set).iter().zip(&expected) {
            assert!(file == expected || file.is_err() && expected.is_err(), "{file:?} {expected:?}");
        }
    };
    same(&set);
    assert_eq!(copy().1, (folder.clone(), true));
    // A copy that was changed is made again, and one of a list that names more is another.
    let image = folder.join("files/%up/%%up");
    fs::write(&image, "no way in!").unwrap();
    let (set, again) = copy();
    assert_eq!(again, (folder.clone(), false));
    same(&set);
    fs::copy(at("folder/test/c0/9.png"), at("lists/none.png")).unwrap();
    let (more, (other, _)) = copy();
    assert!(other != folder && files(&more)[2].is_ok());
    // From now on nothing of the original is read.
    for path in ["lists", "folder", "%up"].map(at) {
        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
    }
    same(&set);
}

#[test]
fn absolute_paths_of_a_list_stay_inside_of_the_copy() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    sets(parent.path());
    let paths = ["folder/test/c0/9.png", "folder/train/c0/0.png"].map(at);
    fs::write(at("list.txt"), paths.clone().map(|path| format!("{} 1\n", path.display())).concat()).unwrap();
    let (set, events) = staged(&at("list.txt"), &at("node"));
    assert_eq!(set.unwrap().sample(), [3, 1, 1]);
    let (folder, _) = done(&events);
    assert_eq!(count(&folder), 4);
    // An absolute path lies below the copy, too.
    let inside = folder.join("files/%root").join(paths[0].strip_prefix("/").unwrap());
    assert_eq!(fs::read(inside).unwrap(), fs::read(&paths[0]).unwrap());
    // Too little room is told before anything is copied.
    File::create(&paths[0]).unwrap().set_len(1 << 42).unwrap();
    let error = staged(&at("list.txt"), &at("node")).0.unwrap_err();
    assert_eq!(error.exit_code(), 73);
    assert!(error.to_string().contains("it needs 4194305 MiB, but only "), "{error}");
}

/// Files below a folder.
fn count(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
}

#[test]
fn a_copy_that_is_not_what_was_copied_is_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    sets(parent.path());
    let (_, events) = staged(&at("tars"), &at("node"));
    let (folder, _) = done(&events);
    let copy = folder.join("tars/s-1.tar");
    let good = fs::read(&copy).unwrap();
    for damage in 0..4 {
        match damage {
            0 => fs::write(&copy, [&good[..1], &[good[1] ^ 1], &good[2..]].concat()).unwrap(),
            1 => fs::write(&copy, &good[..good.len() - 1]).unwrap(),
            2 => fs::remove_file(&copy).unwrap(),
            _ => fs::write(folder.join("manifest.json"), "{").unwrap(),
        }
        let (set, events) = staged(&at("tars"), &at("node"));
        assert_eq!((set.unwrap().len(), done(&events)), (6, (folder.clone(), false)), "damage {damage}");
        assert!(events.contains(&StageEvent::Damaged(folder.clone())), "{events:?}");
        assert_eq!(fs::read(&copy).unwrap(), good);
    }
    // A source that was written again is another one, also with the same names and sizes.
    let file = File::options().write(true).open(at("tars/s-0.tar")).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
    let (_, events) = staged(&at("tars"), &at("node"));
    assert_ne!(done(&events).0, folder);
}

#[test]
fn of_processes_that_start_at_once_one_copies() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    sets(parent.path());
    let copied = || {
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| done(&staged(&at("tars"), &at("node")).1).1)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|reused| !reused).count()
        })
    };
    assert_eq!(copied(), 1);
    // What a process left that was killed in the middle: a lock that nobody holds, and half a copy.
    let lock = names(&at("node")).into_iter().find(|name| name.ends_with(".lock")).unwrap();
    let name = lock.trim_start_matches('.').trim_end_matches(".lock").to_owned();
    fs::write(at("node").join(&lock), "4000000\n").unwrap();
    fs::remove_dir_all(at("node").join(&name)).unwrap();
    fs::create_dir(at("node").join(format!(".{name}.4000000.part"))).unwrap();
    assert_eq!(copied(), 1);
    assert_eq!(names(&at("node")), [lock.clone(), name]);
    // Who holds the lock is waited for, and named.
    let held = File::options().read(true).write(true).open(at("node").join(&lock)).unwrap();
    held.lock().unwrap();
    fs::write(at("node").join(&lock), "77\n").unwrap();
    let events = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| staged(&at("tars"), &at("node")).1);
        std::thread::sleep(Duration::from_millis(120));
        assert!(!waiting.is_finished());
        drop(held);
        waiting.join().unwrap()
    });
    assert_eq!(events.first(), Some(&StageEvent::Waiting(Some(77))));
    assert!(done(&events).1);
}

#[test]
fn too_little_room_and_places_that_are_no_folder_are_told() {
    let parent = tempfile::tempdir().unwrap();
    sets(parent.path());
    // A file with a hole, larger than any disk here.
    let large = parent.path().join("large.tar");
    File::create(&large).unwrap().set_len(1 << 42).unwrap();
    let (set, _) = staged(&large, &parent.path().join("node"));
    let error = set.unwrap_err();
    assert_eq!(error.exit_code(), 73);
    assert!(error.to_string().contains("it needs 4194305 MiB, but only "), "{error}");
    let (set, _) = staged(&parent.path().join("tars"), &large);
    assert_eq!(set.unwrap_err().exit_code(), 73);
}

#[test]
fn workers_share_tar_files_or_records() {
    let parent = tempfile::tempdir().unwrap();
    sets(parent.path());
    let source = |name: &str| {
        let records = open_records(&parent.path().join(name), Phase::Train).unwrap();
        super::source(records, &Transform::default()).unwrap()
    };
    let whole = source("tars");
    let values = |set: Arc<DataSource>| {
        let count = set.len();
        let batch = Prefetcher::start(set, Order::Sequential, count, 0, 1).unwrap().next_batch().unwrap();
        (batch.data.chunks(3).map(|pixel| pixel[0] as u8).collect::<Vec<_>>(), batch.labels)
    };
    let cut = DataSource::clone(&whole).by_rank();
    assert!(cut.is_by_rank() && cut.hash() != whole.hash());
    let part = |set: &DataSource, rank, workers| values(Arc::new(set.part(rank, workers).unwrap()));
    // Shards hold 0 and 5, 1 and 4, 2 and 3; even numbers are of class 0, and sorted by path come first.
    assert_eq!(values(whole.clone()).0, [0, 2, 4, 1, 3, 5]);
    assert_eq!(part(&cut, 0, 3), (vec![0, 5], vec![0.0, 1.0]));
    assert_eq!(part(&cut, 1, 3), (vec![4, 1], vec![0.0, 1.0]));
    assert_eq!(part(&cut, 0, 2), (vec![0, 2, 3, 5], vec![0.0, 0.0, 1.0, 1.0]));
    assert_eq!(part(&cut, 1, 2).0, [4, 1]);
    let error = cut.part(0, 4).unwrap_err();
    assert!(error.contains("4 workers cannot share the 3 tar files of tars"), "{error}");
    let folder = source("folder");
    assert_eq!((part(&folder, 0, 4).0, part(&folder, 3, 4).0), (vec![0, 3], vec![1]));
    assert!(folder.part(0, 7).unwrap_err().contains("7 workers cannot share the 6 records of train"));
}
