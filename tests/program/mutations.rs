//! The mutation campaign: whatever is changed in a snapshot of the bundled LeNet is found.
//!
//! `QUADRILLE_MUTATIONS` and `QUADRILLE_SEED` set how often and with which random numbers; see `scripts/kill-campaign`.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quadrille_core::rng::{Purpose, Stream};
use quadrille_io::snapshot::Snapshot;

use crate::common::{Stage, from_environment};

/// A snapshot to be changed, and what it should be.
struct Target {
    folder: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
    /// The same files of another iteration.
    others: BTreeMap<String, Vec<u8>>,
    stream: Stream,
    thrown: u64,
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("a snapshot").map(|entry| entry.expect("an entry"));
    let file = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().expect("UTF-8");
        (name, fs::read(entry.path()).expect("a file"))
    };
    entries.map(file).collect()
}

const KINDS: [&str; 11] = [
    "flip a bit",
    "cut",
    "append",
    "insert",
    "overwrite",
    "exchange two pieces",
    "delete",
    "rename",
    "swap two files",
    "add a file",
    "take a file of another iteration",
];

impl Target {
    fn below(&mut self, end: usize) -> usize {
        self.thrown += 1;
        ((u64::from(self.stream.bits(self.thrown)) * end as u64) >> 32) as usize
    }

    fn any_name(&mut self) -> String {
        let at = self.below(self.files.len());
        self.files.keys().nth(at).expect("a name").clone()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The content of a file with a change inside; never what it was.
    fn changed(&mut self, kind: &str, good: &[u8]) -> Vec<u8> {
        let mut bad = good.to_vec();
        let at = self.below(good.len());
        match kind {
            "cut" => bad.truncate(at),
            "append" => (0..=self.below(300)).for_each(|byte| bad.push(byte as u8)),
            "insert" => bad.insert(at, good[at]),
            "overwrite" => {
                let end = (at + 1 + self.below(5000)).min(good.len());
                bad[at..end].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            }
            _ => {
                let (from, len) = (self.below(good.len()), 1 + self.below(64));
                let len = len.min(good.len() - at.max(from));
                bad[at..at + len].copy_from_slice(&good[from..from + len]);
                bad[from..from + len].copy_from_slice(&good[at..at + len]);
            }
        }
        bad
    }

    /// Changes something; `None` if chance changed nothing. Returns the names that were touched.
    fn mutate(&mut self, kind: &str) -> Option<Vec<String>> {
        let name = self.any_name();
        let path = self.path(&name);
        let good = self.files[&name].clone();
        let extra = "x.safetensors".to_owned();
        match kind {
            "flip a bit" => {
                let (at, bit) = (self.below(good.len()), self.below(8));
                let file = OpenOptions::new().write(true).open(path).expect("a file");
                file.write_all_at(&[good[at] ^ 1 << bit], at as u64).expect("a byte");
            }
            "delete" => fs::remove_file(path).expect("a file"),
            "rename" => {
                fs::rename(path, self.path(&extra)).expect("another name");
                return Some(vec![name, extra]);
            }
            "swap two files" => {
                let other = self.any_name();
                if self.files[&other] == good {
                    return None;
                }
                fs::write(path, &self.files[&other]).expect("a file");
                fs::write(self.path(&other), good).expect("a file");
                return Some(vec![name, other]);
            }
            "add a file" => {
                fs::write(self.path(&extra), good).expect("a file");
                return Some(vec![extra]);
            }
            "take a file of another iteration" => {
                assert_ne!(
                    self.others[&name], good,
                    "mistrusted: {name} did not change from snapshot to snapshot"
                );
                fs::write(path, &self.others[&name]).expect("a file");
            }
            inside => {
                let bad = self.changed(inside, &good);
                if bad == good {
                    return None;
                }
                fs::write(path, bad).expect("a file");
            }
        }
        Some(vec![name])
    }

    fn restore(&self, touched: Vec<String>) {
        for name in touched {
            match self.files.get(&name) {
                Some(good) => fs::write(self.path(&name), good).expect("a file"),
                None => fs::remove_file(self.path(&name)).expect("a file"),
            }
        }
    }
}

#[test]
fn whatever_is_changed_is_found() {
    let count = from_environment("QUADRILLE_MUTATIONS", 150);
    let seed = from_environment("QUADRILLE_SEED", 1);
    let stage = Stage::new();
    let solver = "net: \"lenet\" base_lr: 0.01 momentum: 0.9 lr_policy: \"fixed\" max_iter: 2 snapshot: 1";
    stage.write("solver.prototxt", solver);
    stage.succeed("train --solver solver.prototxt --model lenet --workers 2 --run run");
    let [other, folder] = [1, 2].map(|iteration| stage.path(&format!("run/snapshots/iteration_{iteration}")));
    let (files, others) = (files(&folder), files(&other));
    let bytes: usize = files.values().map(Vec::len).sum();
    println!("{count} mutations of {} files, {bytes} bytes, seed {seed}", files.len());
    let stream = Stream::new(seed, Purpose::Dummy, 1);
    let mut target = Target { folder, files, others, stream, thrown: 0 };
    let mut found: BTreeMap<&str, u64> = BTreeMap::new();
    while found.values().sum::<u64>() < count {
        // Most by far is a bit.
        let kind = KINDS[target.below(2 * KINDS.len()).saturating_sub(KINDS.len())];
        let Some(touched) = target.mutate(kind) else { continue };
        match Snapshot::read(&target.folder) {
            Ok(_) => panic!("{kind} in {touched:?} was not found (seed {seed})"),
            Err(error) => assert_eq!(error.exit_code(), 65, "{kind} in {touched:?}: {error}"),
        }
        *found.entry(kind).or_default() += 1;
        target.restore(touched);
    }
    Snapshot::read(&target.folder).expect("what is restored is good");
    println!("all found: {found:?}");
}
