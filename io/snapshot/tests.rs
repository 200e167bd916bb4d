use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::weights::{self, Weights};

fn manifest() -> Manifest {
    let worker = |rank: usize| WorkerEntry {
        iteration: 12,
        next_sample: 240,
        epoch: 2,
        next_step: 24,
        course: format!("{rank} 00000000"),
        file: format!("worker{rank}.safetensors"),
        own_weights: true,
        kept: None,
    };
    Manifest {
        iteration: 12,
        network: "a \"net\"".to_owned(),
        identity: [("seed".to_owned(), "7".to_owned())].into(),
        settings: serde_json::json!({"base_lr": 0.1, "list": [1, null]}),
        random_numbers: RandomNumbers {
            generator: "Philox".to_owned(),
            seed: u64::MAX,
            drawn: BTreeMap::new(),
        },
        workers: (0..2).map(worker).collect(),
        files: Vec::new(),
    }
}

const VALUES: [f32; 4] = [1.5, -0.0, f32::MIN_POSITIVE / 2.0, f32::INFINITY];

fn files() -> Vec<FileContent<'static>> {
    let array = |name: &str, shape: &'static [usize], values: &'static [f32]| Array {
        name: name.to_owned(),
        shape,
        values,
    };
    let worker = |rank: usize| FileContent {
        name: format!("worker{rank}.safetensors"),
        arrays: vec![array("weights/ip/0", &[2, 2], &VALUES), array("history/ip/0", &[4], &VALUES)],
    };
    let counting =
        vec![array("ip/0", &[2, 2], &VALUES), array("ip/1", &[0, 3], &[]), array("a/0", &[], &VALUES[..1])];
    vec![FileContent { name: WEIGHTS.to_owned(), arrays: counting }, worker(0), worker(1)]
}

/// A folder with a good snapshot of iteration 12.
fn stage() -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("iteration_12");
    write(&path, manifest(), &files()).unwrap();
    (parent, path)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn refusal(folder: &Path) -> Option<String> {
    match Snapshot::read(folder) {
        Ok(_) => None,
        Err(error) => {
            assert_eq!(error.exit_code(), 65, "{error}");
            Some(error.to_string())
        }
    }
}

#[test]
fn what_was_written_is_read_bit_by_bit() {
    let (parent, path) = stage();
    assert_eq!(names(parent.path()), ["iteration_12"]);
    let read = Snapshot::read(&path).unwrap();
    assert_eq!(Manifest { files: Vec::new(), ..read.manifest.clone() }, manifest());
    let bits = |name: &str, array: &str| -> Vec<u32> {
        read.files[name][array].1.iter().map(|value| value.to_bits()).collect()
    };
    let expected = VALUES.map(f32::to_bits);
    assert_eq!(bits(WEIGHTS, "ip/0"), expected);
    assert_eq!(bits("worker1.safetensors", "history/ip/0"), expected);
    assert_eq!(read.files[WEIGHTS]["ip/1"], (vec![0, 3], vec![]));
    assert_eq!(read.files[WEIGHTS]["a/0"].0, [0usize; 0]);
    let again = parent.path().join("again");
    write(&again, manifest(), &files()).unwrap();
    for name in names(&path) {
        assert_eq!(fs::read(path.join(&name)).unwrap(), fs::read(again.join(&name)).unwrap(), "{name}");
    }
}

/// A new file in the place of another. Some file systems bring a file to the disk that is written over, which takes time.
fn put(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).expect("a file");
    fs::write(path, bytes).expect("a file");
}

#[test]
fn every_flipped_bit_and_every_cut_of_every_file_is_found() {
    let (_parent, path) = stage();
    let mut flips = 0;
    for name in names(&path) {
        let file = path.join(&name);
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                put(&file, &bad);
                let found = refusal(&path).unwrap_or_else(|| panic!("{name}, byte {at}, bit {bit}"));
                assert!(found.contains(&name), "{found} does not name {name}");
                flips += 1;
            }
            put(&file, &good[..at]);
            assert!(refusal(&path).is_some_and(|found| found.contains(&name)), "{name} cut to {at} bytes");
        }
        put(&file, &[&good[..], &[0]].concat());
        assert!(refusal(&path).is_some_and(|found| found.contains(&name)), "a byte behind {name}");
        put(&file, &good);
        assert_eq!(refusal(&path), None);
    }
    assert!(flips > 8 * 1500, "mistrusted: only {flips} bits");
}

#[test]
fn files_that_are_missing_added_renamed_or_swapped_are_found() {
    let finds = |break_it: &dyn Fn(&Path), says: &str| {
        let (_parent, path) = stage();
        break_it(&path);
        let found = refusal(&path).unwrap_or_else(|| panic!("{says}: not found"));
        assert!(found.contains(says), "no {says:?} in {found}");
    };
    for name in [MANIFEST, WEIGHTS, "worker0.safetensors", "worker1.safetensors"] {
        finds(&|path| fs::remove_file(path.join(name)).unwrap(), &format!("{name}: is missing"));
        finds(&|path| fs::rename(path.join(name), path.join("x")).unwrap(), &format!("{name}: is missing"));
        let linked = |path: &Path| {
            fs::rename(path.join(name), path.with_file_name("elsewhere")).unwrap();
            std::os::unix::fs::symlink("../elsewhere", path.join(name)).unwrap();
        };
        finds(&linked, &format!("{name}: is no file"));
    }
    finds(&|path| fs::write(path.join("x"), "").unwrap(), "x: was added");
    finds(&|path| fs::create_dir(path.join("x")).unwrap(), "x: is no file");
    let swap = |path: &Path| {
        let [a, b, c] = [WEIGHTS, "worker1.safetensors", "c"].map(|name| path.join(name));
        fs::rename(&a, &c).unwrap();
        fs::rename(&b, &a).unwrap();
        fs::rename(&c, &b).unwrap();
    };
    finds(&swap, "weights.safetensors: has");
    let (parent, path) = stage();
    let wrong = parent.path().join("iteration_13");
    fs::rename(&path, &wrong).unwrap();
    assert!(
        refusal(&wrong).is_some_and(|found| found.contains("was renamed: it is of iteration 12, not 13"))
    );
    let copy = parent.path().join("best");
    fs::rename(&wrong, &copy).unwrap();
    assert_eq!(refusal(&copy), None, "any other name is the user's own choice");
    assert_eq!(Snapshot::read(&parent.path().join("none")).unwrap_err().exit_code(), 66);
    fs::write(parent.path().join("file"), "").unwrap();
    assert!(refusal(&parent.path().join("file")).is_some_and(|found| found.contains("is a file")));
}

#[test]
fn a_manifest_from_elsewhere_is_refused_even_if_its_digest_is_right() {
    let path = Path::new("manifest.json");
    let refused = |bytes: &[u8]| Manifest::of_bytes(path, bytes).unwrap_err().to_string();
    let signed = |text: &str| {
        let start = format!("{{\n  \"blake3\": \"{}\",", "0".repeat(64));
        seal((start + text).into_bytes())
    };
    for text in ["", "{}", "\"format\": 1}", "[[[[", "\"format\": \"quadrille snapshot\", \"version\": 2}"] {
        refused(&signed(text));
    }
    assert!(refused(&signed("\"format\": \"quadrille snapshot\", \"version\": 3}")).contains("version 3"));
    refused(b"");
    refused(b"{}");
    let entry = |name: &str| FileEntry { name: name.to_owned(), ..FileEntry::default() };
    let good = ["weights.safetensors", "worker0.safetensors", "worker1.safetensors"].map(entry).to_vec();
    for (name, says) in [
        ("../x", "no name"),
        ("/etc/passwd", "no name"),
        ("", "no name"),
        (".part", "no name"),
        (MANIFEST, "no name"),
        (WEIGHTS, "twice"),
    ] {
        let files = [good.clone(), vec![entry(name)]].concat();
        let error = Manifest { files, ..manifest() }.to_bytes().unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let files = good[..2].to_vec();
    let error = Manifest { files, ..manifest() }.to_bytes().unwrap_err();
    assert!(error.contains("does not list \"worker1.safetensors\""), "{error}");
    let late = Manifest { iteration: 13, files: good.clone(), ..manifest() };
    assert!(late.to_bytes().unwrap_err().contains("worker 0 is not in the iteration"));
    let bytes = Manifest { files: good, ..manifest() }.to_bytes().unwrap();
    assert_eq!(Manifest::of_bytes(path, &bytes).unwrap().iteration, 12);
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let (parent, path) = stage();
    let code = |outcome: Result<(), crate::IoError>| outcome.unwrap_err().exit_code();
    assert_eq!(code(write(&path, manifest(), &files())), 74, "there is one already");
    assert_eq!(code(write(&parent.path().join("no/iteration_1"), manifest(), &files())), 73);
    let mut wrong = files();
    wrong[1].arrays[0].shape = &[3];
    assert_eq!(code(write(&parent.path().join("wrong"), manifest(), &wrong)), 65);
    let mut twice = files();
    twice[1].arrays[0].name = "history/ip/0".to_owned();
    assert_eq!(code(write(&parent.path().join("twice"), manifest(), &twice)), 65);
    assert_eq!(code(write(&parent.path().join("few"), manifest(), &files()[..2])), 65);
    assert_eq!(names(parent.path()), ["iteration_12"]);
    assert_eq!(refusal(&path), None);
}

#[test]
fn the_weights_that_count_are_weights_like_any_other() {
    let (parent, path) = stage();
    let Weights::Tensors(tensors) = weights::read(&path).unwrap() else { panic!("no arrays") };
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["a/0", "ip/0", "ip/1"]);
    assert_eq!(weights::read(&path.join(WEIGHTS)).unwrap(), Weights::Tensors(tensors));
    fs::write(path.join("worker0.safetensors"), "").unwrap();
    let error = weights::read(&path).unwrap_err().to_string();
    assert!(error.contains("worker0.safetensors: has 0 bytes"), "{error}");
    let error = weights::read(parent.path()).unwrap_err();
    assert!(error.exit_code() == 65 && error.to_string().contains("no snapshot of a run"), "{error}");
}
