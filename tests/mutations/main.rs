//! The bodies of all fuzz targets (`tests/fuzz`) on their seeds and on thousands of mutations, the same in every run:
//! what `scripts/fuzz` looks for in hours, in short. A panic is a failed test, and so is an overflow in a debug build.

#[path = "../fuzz/bodies.rs"]
mod bodies;
#[path = "../fuzz/seeds.rs"]
mod seeds;

use std::panic::catch_unwind;

use quadrille_core::rng::{Purpose, Stream};

/// Mutations of each target.
const MUTATIONS: u32 = 4000;
/// Changes that one mutation makes at most.
const MOST_CHANGES: u32 = 4;
/// Longest input, in bytes.
const LONGEST: usize = 1 << 15;

/// Numbers by chance, in order.
struct Chance {
    stream: Stream,
    drawn: u64,
}

impl Chance {
    /// A number below `limit`, which is above 0.
    fn below(&mut self, limit: usize) -> usize {
        self.drawn += 1;
        self.stream.bits(self.drawn) as usize % limit
    }
}

/// Changes `bytes` in one of the ways in which files break, or in which a format's own words may be put together anew.
fn change(bytes: &mut Vec<u8>, other: &[u8], words: &[String], chance: &mut Chance) {
    if bytes.is_empty() {
        bytes.push(chance.below(256) as u8);
    }
    let at = chance.below(bytes.len());
    let length = 1 + chance.below((bytes.len() - at).min(64));
    match chance.below(9) {
        0 => bytes[at] ^= 1 << chance.below(8),
        1 => bytes[at] = chance.below(256) as u8,
        2 => bytes[at..at + length].fill([0, 0xff, 0x7f, 0x80, b'9'][chance.below(5)]),
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(at..at + length)),
        // A piece several times over.
        5 => {
            let piece = bytes[at..at + length].repeat(1 + chance.below(16));
            bytes.splice(at..at, piece);
        }
        // The end of another file.
        6 => {
            bytes.truncate(at);
            bytes.extend(&other[chance.below(other.len() + 1)..]);
        }
        // A piece of another file.
        7 if !other.is_empty() => {
            let from = chance.below(other.len());
            let piece = &other[from..(from + length).min(other.len())];
            bytes.splice(at..at, piece.iter().copied());
        }
        _ => {
            let word = &words[chance.below(words.len())];
            bytes.splice(at..(at + length).min(bytes.len()), word.bytes());
        }
    }
    bytes.truncate(LONGEST);
}

/// Runs a target on all of its seeds and on mutations; names the input that breaks it.
fn mutate(target: &str) {
    let index = bodies::TARGETS.iter().position(|(name, _)| *name == target).expect("a target");
    let body = bodies::TARGETS[index].1;
    let (seeds, words) = (seeds::of(target), seeds::words());
    assert!(!seeds.is_empty() && words.len() > 100);
    seeds.iter().for_each(|seed| body(seed));
    let mut chance = Chance { stream: Stream::new(index as u64, Purpose::Dummy, 0), drawn: 0 };
    for number in 0..MUTATIONS {
        let mut bytes = seeds[chance.below(seeds.len())].clone();
        for _ in 0..=chance.below(MOST_CHANGES as usize) {
            let other = &seeds[chance.below(seeds.len())];
            change(&mut bytes, other, &words, &mut chance);
        }
        if catch_unwind(|| body(&bytes)).is_err() {
            let path = std::env::temp_dir().join(format!("{target}_{number}"));
            let kept = std::fs::write(&path, &bytes).map(|()| path);
            panic!("target {target} breaks on mutation {number}, kept in {kept:?}");
        }
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            mutate(stringify!($name));
        })*

        #[test]
        fn every_target_is_mutated() {
            let names = bodies::TARGETS.map(|(name, _)| name);
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets!(prototxt caffemodel solverstate idx cifar datum lmdb tar npz safetensors snapshot image hdf5 list windows);

/// A seed that its reader refuses leads mutations nowhere; those that were found to break one are refused or not.
#[test]
fn seeds_are_good_files() {
    use quadrille_io::data::{ImageFiles, RowFiles, SearchPath, decode_datum, decode_image, decode_mean};
    use quadrille_io::prototxt::{parse_net, parse_solver};
    use quadrille_io::snapshot::Manifest;
    use quadrille_io::{NetWeights, SolverState, npz, weights};
    use std::path::Path;

    let good = |target: &str, read: &dyn Fn(&[u8]) -> bool| {
        let all = seeds::made(target);
        assert!(!all.is_empty() && all.iter().all(|seed| read(seed)), "{target}");
    };
    good("prototxt", &|text| parse_net(text, "").is_ok() || parse_solver(text, "").is_ok());
    good("caffemodel", &|bytes| NetWeights::decode(bytes).is_ok() || decode_mean(bytes).is_ok());
    good("solverstate", &|bytes| SolverState::decode(bytes).is_ok());
    good("datum", &|bytes| decode_datum(bytes).is_ok());
    good("npz", &|bytes| npz::decode_npy(bytes).is_ok() || npz::decode_npz(bytes).is_ok());
    good("safetensors", &|bytes| weights::decode_safetensors(bytes).is_ok());
    good("snapshot", &|bytes| Manifest::of_bytes(Path::new("manifest.json"), bytes).is_ok());
    let file = |bytes: &[u8], ending: &str, read: &dyn Fn(&Path) -> bool| {
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        let path = folder.path().join(format!("seed.{ending}"));
        std::fs::write(&path, bytes).expect("a small file");
        read(&path)
    };
    let rows = |path: &Path| {
        let names = ["data".to_owned(), "label".to_owned()];
        RowFiles::open(&path.display().to_string(), None, &SearchPath::default(), &names).is_ok()
    };
    let hdf5 = |path: &Path| NetWeights::read(path).is_ok() || SolverState::read(path).is_ok() || rows(path);
    if quadrille_io::HAS_HDF5 {
        good("hdf5", &|bytes| file(bytes, "h5", &hdf5));
    }
    good("list", &|bytes| file(bytes, "txt", &|path| ImageFiles::in_list(path, None, "list").is_ok()));
    good("windows", &|bytes| file(bytes, "txt", &|path| bodies::open_windows(path).is_ok()));
    good("image", &|bytes| decode_image(bytes, None, &mut Vec::new()).is_ok());
}
