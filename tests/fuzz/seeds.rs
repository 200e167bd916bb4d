//! What mutations start from: small files of every kind, written by our own writers or taken from the repository, and
//! what was once found to break a reader.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use quadrille_io::data::{Content, LmdbWriter, Record, TarWriter, encode_datum, write_mean};
use quadrille_io::npz::{Array, Values, write_npy, write_npz};
use quadrille_io::snapshot::{FileEntry, Manifest, WorkerEntry};
use quadrille_io::{LayerWeights, NetWeights, SolverState, weights};
use tempfile::TempDir;

/// Larger files of the repository are no good to start from.
const LARGEST_TEXT: u64 = 4096;

/// The seeds of a target, and what is in the folder of its findings.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let mut seeds = made(target);
    seeds.extend(files(&root().join("tests/fuzz/found").join(target), u64::MAX));
    seeds
}

/// Good files for a target.
pub fn made(target: &str) -> Vec<Vec<u8>> {
    match target {
        "prototxt" => texts(),
        "caffemodel" => caffemodels(),
        "solverstate" => vec![solver_state()],
        "idx" => idx(),
        "cifar" => [1, 2].map(|labels| vec![7; labels + 3072]).into(),
        "datum" => data(),
        "lmdb" => lmdbs(),
        "tar" => vec![tar()],
        "npz" => numpy(),
        "safetensors" => safetensors(),
        "snapshot" => vec![snapshot()],
        "image" => images(),
        "hdf5" => hdf5(),
        "list" => lists(),
        "windows" => windows(),
        _ => Vec::new(),
    }
}

/// Words that a text may hold: a dictionary for libFuzzer.
pub fn words() -> Vec<String> {
    let schema = fs::read_to_string(root().join("io/proto/caffe.proto")).expect("the schema");
    let code = schema.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut words: Vec<String> = code
        .flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .chain(quadrille_core::layer::TYPE_NAMES)
        .filter(|word| word.len() > 2)
        .map(str::to_owned)
        .collect();
    words.sort();
    words.dedup();
    words
}

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().find(|folder| folder.join("io/proto/caffe.proto").is_file());
    root.expect("this crate lies in the repository").to_owned()
}

/// The files of a folder up to a size, in the order of their names; none if it is not there.
fn files(folder: &Path, largest: u64) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a file of the repository").path()).collect();
    paths.retain(|path| fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= largest));
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a file of the repository")).collect()
}

/// Networks and solvers of every dialect, and one network for each case of Caffe's layers.
fn texts() -> Vec<Vec<u8>> {
    let folders =
        ["models/lenet", "tests/dialects", "tests/fixtures/caffe/layers", "tests/fixtures/caffe/solvers"];
    let all = folders.iter().flat_map(|folder| files(&root().join(folder), LARGEST_TEXT));
    all.filter(|text| std::str::from_utf8(text).is_ok_and(|text| text.contains(':'))).collect()
}

/// What `write` leaves in a file whose name ends as said.
fn written(ending: &str, write: impl FnOnce(&Path)) -> Vec<u8> {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join(format!("seed.{ending}"));
    write(&path);
    fs::read(&path).expect("what was written")
}

fn net_weights() -> NetWeights {
    let layer = |name: &str, kind: &str, blobs| LayerWeights { name: name.into(), kind: kind.into(), blobs };
    let weight = (vec![2, 1, 1, 2], vec![1.0, -2.0, 0.5, 3.0]);
    NetWeights {
        name: "small".into(),
        layers: vec![
            layer("conv1", "Convolution", vec![Some(weight), Some((vec![2], vec![0.0, 7.0]))]),
            layer("relu", "ReLU", Vec::new()),
        ],
    }
}

fn caffemodels() -> Vec<Vec<u8>> {
    let today = written("caffemodel", |path| net_weights().write(path).expect("weights"));
    let means = written("binaryproto", |path| write_mean(path, [3, 1, 2], &[1.0; 6]).expect("means"));
    // The same blobs in layers of V1 (field 2, with name 4, type 5, blobs 6) and of V0 (field 1 of that).
    let blob = [&b"\x08\x01\x10\x01\x18\x01\x20\x02\x2a\x08"[..], &[0; 8]].concat();
    let v1 = [&b"\x22\x01c\x28\x04\x32\x12"[..], &blob].concat();
    let v0 = [&b"\x0a\x01f\x12\x0cinnerproduct\x92\x03\x12"[..], &blob].concat();
    let v0 = [&[0x0a, v0.len() as u8][..], &v0].concat();
    let net = |layer: &[u8]| [&[0x12, layer.len() as u8][..], layer].concat();
    vec![today, means, net(&v1), net(&v0)]
}

fn solver_state() -> Vec<u8> {
    let state = SolverState {
        iteration: 500,
        learned_net: "net_iter_500.caffemodel".into(),
        current_step: 2,
        plateau: Some((0.5, 400)),
        history: vec![(vec![2, 2], vec![1.0; 4]), (vec![2], vec![0.5; 2])],
    };
    written("solverstate", |path| state.write(path).expect("a state"))
}

fn idx() -> Vec<Vec<u8>> {
    let images = [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2][..], &[9; 12]].concat();
    let labels = vec![0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3];
    // Labels, gzipped: one stored block with the checksum of its content.
    let stored = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1, 11, 0, 244, 255][..], &labels].concat();
    let packed = [&stored[..], &0xa4bd_e58bu32.to_le_bytes(), &11u32.to_le_bytes()].concat();
    vec![images, labels, packed]
}

fn scene(name: &str) -> Vec<u8> {
    fs::read(root().join("io/data/tests/fixtures").join(name)).expect("a fixture")
}

fn images() -> Vec<Vec<u8>> {
    ["grey.jpg", "scene.jpg", "scene.png"].map(scene).into()
}

fn data() -> Vec<Vec<u8>> {
    let file = scene("grey.jpg");
    let contents = [
        Content::Bytes { shape: [1, 2, 3], values: &[1, 2, 3, 4, 5, 6] },
        Content::Floats { shape: [2, 1, 1], values: vec![0.5, -1.0] },
        Content::Encoded { file: &file, native: true },
    ];
    contents.map(|content| encode_datum(&Record { label: 3, content })).into()
}

fn lmdbs() -> Vec<Vec<u8>> {
    // Of one leaf with a value on pages of its own, and of a tree of two levels.
    let small = data().into_iter().chain([vec![0; 3000]]).collect();
    let deep = std::iter::repeat_n(vec![8, 1, 16, 1, 24, 1, 34, 1, 7], 120).map(|mut datum| {
        datum.resize(60, 0x28);
        datum
    });
    [small, deep.collect::<Vec<_>>()].map(lmdb).into()
}

fn lmdb(values: Vec<Vec<u8>>) -> Vec<u8> {
    written("mdb", |path| {
        let mut writer = LmdbWriter::new(File::create(path).expect("a file")).expect("a data base");
        for (index, value) in values.iter().enumerate() {
            writer.add(format!("{index:08}_seed").as_bytes(), value).expect("a record");
        }
        writer.finish().expect("a data base");
    })
}

fn tar() -> Vec<u8> {
    let mut writer = TarWriter::new(Vec::new());
    let long = format!("train/{}/c.jpg", "folder/".repeat(20));
    for name in ["train/cat/a.jpg", "train/dog/b.jpg", "test/cat/a.jpg", "note.txt", &long] {
        writer.add(name, &scene("grey.jpg")).expect("a member");
    }
    writer.finish().expect("a tar")
}

fn numpy() -> Vec<Vec<u8>> {
    let array = |values| Array { shape: vec![2, 2], values };
    let arrays = [
        ("a/0", array(Values::F32(vec![1.0; 4]))),
        ("b", array(Values::F64(vec![2.0; 4]))),
        ("c", Array { shape: vec![1], values: Values::I32(vec![-3]) }),
    ];
    let single =
        arrays.iter().map(|(_, array)| written("npy", |path| write_npy(path, array).expect("an array")));
    let mut seeds: Vec<Vec<u8>> = single.collect();
    let archive = arrays.clone().map(|(name, array)| (name.to_owned(), array)).into();
    seeds.push(written("npz", |path| write_npz(path, &archive).expect("arrays")));
    seeds
}

fn safetensors() -> Vec<Vec<u8>> {
    let ours = written("safetensors", |path| {
        let folder = path.parent().expect("a folder");
        net_weights().write(&folder.join("from.caffemodel")).expect("weights");
        weights::convert(&folder.join("from.caffemodel"), path).expect("weights");
    });
    let header = br#"{"a/0":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F64","shape":[],"data_offsets":[4,12]}}"#;
    let mut others = (header.len() as u64).to_le_bytes().to_vec();
    others.write_all(header).and_then(|()| others.write_all(&[1; 12])).expect("memory");
    vec![ours, others]
}

fn snapshot() -> Vec<u8> {
    let file = |name: &str| FileEntry { name: name.to_owned(), bytes: 128, blake3: "0".repeat(64) };
    let worker = WorkerEntry {
        iteration: 500,
        next_sample: 10_000,
        course: "0 7f7fffff 0 00000000".to_owned(),
        file: "worker0.safetensors".to_owned(),
        ..WorkerEntry::default()
    };
    let manifest = Manifest {
        iteration: 500,
        identity: [("seed".to_owned(), "1".to_owned())].into(),
        workers: vec![worker],
        files: vec![file("weights.safetensors"), file("worker0.safetensors")],
        ..Manifest::default()
    };
    manifest.to_bytes().expect("a manifest")
}

/// Files of the HDF Group's library, and one of ours.
fn hdf5() -> Vec<Vec<u8>> {
    let ours = written("h5", |path| {
        let folder = path.parent().expect("a folder");
        net_weights().write(&folder.join("from.caffemodel")).expect("weights");
        weights::convert(&folder.join("from.caffemodel"), path).expect("weights");
    });
    files(&root().join("io/hdf5/fixtures"), u64::MAX).into_iter().chain([ours]).collect()
}

fn lists() -> Vec<Vec<u8>> {
    let texts =
        ["cat/a.jpg 0\ndog/b.jpg 1\n", "\r\n  /far/c d.png\t-7\r\n../e.png 2147483647", "./\u{e9}.jpg 3"];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

fn windows() -> Vec<Vec<u8>> {
    let texts = [
        "# 0\nscene.png\n3 10 10\n3\n1 0.9 0 0 3 3\n2 0.4 0 0 9 9\n0 0.1 2 2 5 5\n# 1\n/grey.jpg\n3\n9\n9\n1\n5 1e0 1 5 4 8\n",
        "# 0 scene.jpg 3 10 10 2 1 1 -5 -5 16777216 3 0 0 0 0 0 0\n# 1 b.png 3 1 1 0",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}
