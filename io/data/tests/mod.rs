//! Data sets: good ones, and every way to break one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use quadrille_core::layer::{Data, DataKind, Transform};
use quadrille_core::net::Phase;
use quadrille_core::rng::{Purpose, Sampler, Stream};
use tempfile::TempDir;

use super::*;
use crate::error::IoError;

mod images;
mod lmdb;
mod sizes;
mod sources;
mod stage;
mod store;
mod windows;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn bundled() -> SearchPath {
    SearchPath { folders: vec![repository().join("data")], ..SearchPath::default() }
}

/// The IDX files that a source leads to.
fn open(source: &str, data: Option<&Path>, phase: Phase, search: &SearchPath) -> Result<Dataset, IoError> {
    // As a data layer opens it, for what is refused.
    super::open(
        &layer(source),
        phase,
        Opening { data, search, tolerance: Tolerance::Fail, staging: None, room: Room::default() },
    )?;
    idx::read_idx(&search.find(source, data)?, phase, Room::default())
}

/// A data layer of this source, which changes nothing.
fn layer(source: &str) -> Data {
    Data {
        source: source.to_owned(),
        batch: 1,
        transform: Transform::default(),
        sample: None,
        kind: DataKind::Records,
    }
}

/// Records as a layer with this transform sees them.
fn source(records: Arc<dyn Records>, transform: &Transform) -> Result<Arc<DataSource>, IoError> {
    let data = Data { transform: transform.clone(), ..layer("made") };
    DataSource::new(records, &data, None, Tolerance::Fail).map(Arc::new)
}

/// An IDX file of these extents with the values 0, 1, 2, ...
fn idx(extents: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, extents.len() as u8];
    bytes.extend(extents.iter().flat_map(|e| e.to_be_bytes()));
    bytes.extend((0..extents.iter().product()).map(|v: u32| v as u8));
    bytes
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A folder `set` with a small data set, and the search path that finds it.
fn small_set() -> (TempDir, PathBuf, SearchPath) {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("set");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("train-images-idx3-ubyte"), idx(&[5, 2, 3])).unwrap();
    fs::write(folder.join("train-labels-idx1-ubyte.gz"), gzipped(&idx(&[5]))).unwrap();
    let search = SearchPath {
        folders: vec![PathBuf::from("/nonexistent"), parent.path().to_owned()],
        ..SearchPath::default()
    };
    (parent, folder, search)
}

#[test]
fn the_bundled_mnist_is_whole() {
    let train = open("mnist", None, Phase::Train, &bundled()).unwrap();
    assert_eq!((train.len(), train.shape, train.classes()), (60_000, [1, 28, 28], 10));
    assert_eq!(train.labels[..5], [5, 0, 4, 1, 9]);
    let test = open("mnist", None, Phase::Test, &bundled()).unwrap();
    assert_eq!((test.len(), test.labels[0]), (10_000, 7));
    assert_ne!(train.hash, test.hash);
    assert_eq!(train.name, "mnist");
}

#[test]
fn plain_and_gzipped_files_are_found_and_read() {
    let (_parent, folder, search) = small_set();
    let set = open("set", None, Phase::Train, &search).unwrap();
    assert_eq!((set.len(), set.shape, set.per_image()), (5, [1, 2, 3], 6));
    assert_eq!(set.images, (0..30).collect::<Vec<u8>>());
    assert_eq!(set.labels, [0, 1, 2, 3, 4]);
    // By --data, as the folder itself or the one above, and by an absolute path.
    for data in [folder.as_path(), folder.parent().unwrap()] {
        assert_eq!(open("/elsewhere/set", Some(data), Phase::Train, &SearchPath::default()).unwrap(), set);
    }
    assert_eq!(open(folder.to_str().unwrap(), None, Phase::Train, &SearchPath::default()).unwrap(), set);
}

#[test]
fn the_places_that_were_tried_are_listed() {
    let search = SearchPath {
        folders: vec!["/nonexistent/a".into(), "/nonexistent/b".into()],
        ..SearchPath::default()
    };
    let error = open("mnist", None, Phase::Train, &search).unwrap_err();
    assert_eq!(error.exit_code(), 66);
    let text = error.to_string();
    assert!(text.contains("/nonexistent/a/mnist") && text.contains("/nonexistent/b/mnist"), "{text}");
    assert!(text.contains("--data") && text.contains("QUADRILLE_DATA"));
    let error = open("mnist", Some(Path::new("/nonexistent/c")), Phase::Train, &bundled()).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/c/mnist") && error.exit_code() == 66);
}

#[test]
fn the_usual_places_are_the_networks_folder_and_the_repositorys() {
    let usual =
        SearchPath::usual(Path::new("models/lenet/train_val.prototxt"), Some(Path::new("/repository")));
    assert_eq!(usual.folders[..2], [PathBuf::from("."), PathBuf::from("models/lenet")]);
    assert_eq!(usual.data.last(), Some(&PathBuf::from("/repository/data")));
    assert_eq!(SearchPath::usual(Path::new("net.prototxt"), None).folders[0], PathBuf::from("."));
}

#[test]
fn a_folder_of_data_sets_may_lack_what_networks_put_before_their_names() {
    let (parent, _, _) = small_set();
    let folder = || Some(parent.path().to_owned());
    let named = SearchPath { named: folder(), ..SearchPath::default() };
    let known = SearchPath { data: folder().into_iter().collect(), ..SearchPath::default() };
    for (source, search, found) in [
        ("data/set", &named, true),
        ("data/set", &known, true),
        ("set", &known, true),
        ("data/imagenet/set", &named, true),
        // Where nobody named the folder, a data set of the same name may be another one.
        ("data/imagenet/set", &known, false),
        ("data", &known, false),
    ] {
        assert_eq!(open(source, None, Phase::Train, search).is_ok(), found, "{source}");
    }
}

#[test]
fn what_is_missing_or_of_another_kind_is_named() {
    let (parent, folder, search) = small_set();
    let failing = |phase| open("set", None, phase, &search).unwrap_err();
    let error = failing(Phase::Test);
    assert!(error.exit_code() == 66 && error.to_string().contains("t10k-images-idx3-ubyte: not found"));
    fs::rename(folder.join("train-images-idx3-ubyte"), folder.join("train-images.idx3-ubyte")).unwrap();
    assert!(failing(Phase::Train).to_string().contains("there is \"train-images.idx3-ubyte\""));
    fs::rename(folder.join("train-images.idx3-ubyte"), folder.join("train-images-idx3-ubyte")).unwrap();
    fs::remove_file(folder.join("train-labels-idx1-ubyte.gz")).unwrap();
    let error = failing(Phase::Train);
    assert!(error.exit_code() == 66 && error.to_string().contains("train-labels-idx1-ubyte: not found"));
    let base = parent.path().join("leveldb");
    fs::create_dir(&base).unwrap();
    fs::write(base.join("CURRENT"), "MANIFEST-000001").unwrap();
    let error = open("leveldb", None, Phase::Train, &search).unwrap_err();
    assert!(error.exit_code() == 65 && error.to_string().contains("is a LevelDB, which cannot be read"));
    assert!(error.to_string().contains("quadrille convert data SRC DST"), "{error}");
    fs::create_dir(parent.path().join("empty")).unwrap();
    let error = open("empty", None, Phase::Train, &search).unwrap_err();
    assert!(error.exit_code() == 65 && error.to_string().contains("holds no data set; expected an LMDB"));
}

/// The message for a file of images with these bytes, which must be bad data.
fn refused(path: &Path, bytes: &[u8]) -> String {
    fs::write(path, bytes).unwrap();
    let error = read_images(path).expect_err("bad images were read");
    assert_eq!(error.exit_code(), 65, "{error}");
    error.to_string()
}

#[test]
fn every_cut_of_a_file_is_found_plain_and_gzipped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("images");
    let plain = idx(&[3, 2, 2]);
    let packed = gzipped(&plain);
    for good in [&plain, &packed] {
        fs::write(&path, good).unwrap();
        assert_eq!(read_images(&path).unwrap().dim(), (3, 2, 2));
        for at in 0..good.len() {
            refused(&path, &good[..at]);
        }
    }
    assert!(
        refused(&path, &plain[..27])
            .contains("is cut off: 11 values, but the header promises 12 ([3, 2, 2])")
    );
}

#[test]
fn flipped_bits_of_gzipped_values_never_change_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("images");
    let packed = gzipped(&idx(&[3, 2, 2]));
    fs::write(&path, &packed).unwrap();
    let good = read_images(&path).unwrap();
    let mut harmless = 0;
    // The first ten bytes are gzip's header, which its checksum does not cover.
    for at in 10..packed.len() {
        for bit in 0..8 {
            let mut bad = packed.clone();
            bad[at] ^= 1 << bit;
            fs::write(&path, bad).unwrap();
            match read_images(&path) {
                Ok(read) => {
                    assert_eq!(read, good, "byte {at}, bit {bit}");
                    harmless += 1;
                }
                Err(error) => assert_eq!(error.exit_code(), 65),
            }
        }
    }
    // The last byte of compressed data has up to seven bits that nobody uses.
    assert!(harmless < 8, "{harmless}");
}

#[test]
fn wrong_headers_are_told_from_what_they_should_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("images");
    assert!(refused(&path, &idx(&[4])).contains("have images and labels been exchanged?"));
    assert!(refused(&path, b"\x89PNG\r\n").contains("starts with 89 50 4e 47; expected 00 00 08 03"));
    let mut signed = idx(&[1, 1, 1]);
    signed[2] = 9;
    assert!(refused(&path, &signed).contains("00 00 09 03"));
    assert!(refused(&path, &[idx(&[1, 2, 2]), vec![0]].concat()).contains("has more than the 4 values"));
    assert!(
        refused(&path, &gzipped(&[idx(&[1, 2, 2]), vec![0]].concat())).contains("has more than the 4 values")
    );
}

#[test]
fn a_header_that_promises_too_much_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("images");
    let header = |extents: [u32; 3]| {
        [vec![0, 0, 8, 3], extents.iter().flat_map(|e| e.to_be_bytes()).collect::<Vec<u8>>()].concat()
    };
    assert!(refused(&path, &header([u32::MAX; 3])).contains("more than 4 GiB"));
    // Below the limit, but not there: found after a step, not after an allocation of 4 GiB.
    assert!(refused(&path, &header([4096, 1024, 1024])).contains("is cut off: 0 values"));
}

#[test]
fn images_and_labels_must_fit() {
    let (_parent, folder, search) = small_set();
    fs::write(folder.join("train-labels-idx1-ubyte.gz"), gzipped(&idx(&[4]))).unwrap();
    let error = open("set", None, Phase::Train, &search).unwrap_err();
    assert!(error.exit_code() == 65 && error.to_string().contains("4 labels for 5 images"), "{error}");
    for extents in [[0, 2, 3], [5, 0, 3]] {
        fs::write(folder.join("train-images-idx3-ubyte"), idx(&extents)).unwrap();
        assert_eq!(open("set", None, Phase::Train, &search).unwrap_err().exit_code(), 65);
    }
}

/// Two channels of 1 x 2; image `i` holds `4i .. 4i + 4` and has the label `i`.
fn numbered(images: u8) -> Arc<Dataset> {
    let values = (0..images * 4).collect();
    Arc::new(
        Dataset::new("numbered", Path::new("n"), values, (0..u16::from(images)).collect(), [2, 1, 2])
            .unwrap(),
    )
}

fn plain(images: u8) -> Arc<DataSource> {
    source(numbered(images), &Transform::default()).unwrap()
}

fn labels(order: Order, batch: usize, first: u64, batches: usize) -> Vec<Vec<f32>> {
    let data = Prefetcher::start(plain(7), order, batch, first, 2).unwrap();
    (0..batches)
        .map(|_| {
            let batch = data.next_batch().unwrap();
            let labels = batch.labels.clone();
            // The image belongs to its label.
            assert!(batch.data.chunks(4).zip(&labels).all(|(image, label)| image[0] == 4.0 * label));
            data.recycle(batch);
            labels
        })
        .collect()
}

/// The order of worker 1 over seven images.
fn shuffled(seed: u64) -> Order {
    Order::Shuffled(Sampler::new(seed, 1, 7), Stream::new(seed, Purpose::Transform, 1))
}

#[test]
fn sequential_batches_go_round() {
    let expected = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 0.0, 1.0]];
    assert_eq!(labels(Order::Sequential, 3, 0, 3), expected);
}

#[test]
fn shuffled_batches_cover_each_epoch_and_resume_anywhere() {
    let order = shuffled(3);
    let all = labels(order, 3, 0, 14);
    for epoch in all.concat().chunks(7) {
        let mut epoch = epoch.to_vec();
        epoch.sort_by(f32::total_cmp);
        assert_eq!(epoch, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
    assert_eq!(labels(order, 3, 5, 9), all[5..]);
    assert_ne!(labels(shuffled(4), 3, 0, 14), all);
}

#[test]
fn the_mean_is_taken_off_before_scaling_by_channel() {
    let first = |mean_values: &[f32]| {
        let mean_values = mean_values.to_vec();
        let transform = Transform { scale: 0.5, mean_values, ..Transform::default() };
        let data = Prefetcher::start(source(numbered(7), &transform)?, Order::Sequential, 1, 1, 1)?;
        data.next_batch().map(|batch| (batch.data, batch.iteration))
    };
    assert_eq!(first(&[]).unwrap(), (vec![2.0, 2.5, 3.0, 3.5], 1));
    assert_eq!(first(&[4.0]).unwrap().0, [0.0, 0.5, 1.0, 1.5]);
    assert_eq!(first(&[4.0, 6.0]).unwrap().0, [0.0, 0.5, 0.0, 0.5]);
    assert!(first(&[1.0, 2.0, 3.0]).is_err_and(|e| e.exit_code() == 65));
}

/// Two channels of 4 x 5: the first counts, the second counts from 100.
fn grid(transform: &Transform, order: Order, batch: usize) -> Result<Vec<f32>, IoError> {
    let values = (0..20).chain(100..120).collect();
    let set = Arc::new(Dataset::new("grid", Path::new("g"), values, vec![0], [2, 4, 5]).unwrap());
    Prefetcher::start(source(set, transform)?, order, batch, 0, 1)?.next_batch().map(|batch| batch.data)
}

#[test]
fn the_middle_is_cut_out_to_test() {
    let transform = Transform { crop: 2, ..Transform::default() };
    let middle = [6.0, 7.0, 11.0, 12.0, 106.0, 107.0, 111.0, 112.0];
    assert_eq!(grid(&transform, Order::Sequential, 1).unwrap(), middle);
    let whole = Transform { crop: 4, ..Transform::default() };
    assert_eq!(grid(&whole, Order::Sequential, 1).unwrap()[..5], [0.0, 1.0, 2.0, 3.0, 5.0]);
    let error = grid(&Transform { crop: 5, ..Transform::default() }, Order::Sequential, 1).unwrap_err();
    assert!(error.exit_code() == 65 && error.to_string().contains("only 4 x 5"), "{error}");
}

#[test]
fn any_part_is_cut_out_to_train_and_half_of_them_mirrored() {
    const DRAWS: usize = 1200;
    let transform = Transform { crop: 2, mirror: true, ..Transform::default() };
    let order = |seed| Order::Shuffled(Sampler::new(seed, 0, 1), Stream::new(seed, Purpose::Transform, 0));
    let drawn = grid(&transform, order(1), DRAWS).unwrap();
    let mut counts = [0; 20];
    let mut mirrored = 0;
    for image in drawn.chunks(8) {
        let swap = usize::from(image[0] > image[1]);
        let corner = image[swap];
        let part = [corner, corner + 1.0, corner + 5.0, corner + 6.0].map(|v| v as usize);
        for (channel, plane) in image.chunks(4).enumerate() {
            let found = [plane[swap], plane[1 - swap], plane[2 + swap], plane[3 - swap]];
            assert_eq!(found.map(|v| v as usize - 100 * channel), part);
        }
        counts[part[0]] += 1;
        mirrored += swap;
    }
    // 3 x 4 places, each 100 times on average; six deviations are 58.
    let corners: Vec<usize> = (0..20).filter(|at| counts[*at] > 0).collect();
    assert_eq!(corners, [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]);
    assert!(corners.iter().all(|at| (42..158).contains(&counts[*at])), "{counts:?}");
    assert!((496..704).contains(&mirrored), "{mirrored} of {DRAWS}");
    assert_eq!(grid(&transform, order(1), DRAWS).unwrap(), drawn);
    assert_ne!(grid(&transform, order(2), DRAWS).unwrap(), drawn);
}

#[test]
fn recycled_memory_is_used_again_and_large_batches_are_the_same() {
    let data = Prefetcher::start(plain(7), Order::Sequential, 70_000, 0, 1).unwrap();
    let mut seen = Vec::new();
    for _ in 0..20 {
        let batch = data.next_batch().unwrap();
        assert_eq!(batch.data.len(), 280_000);
        let start = batch.iteration * 70_000;
        let right = batch.labels.iter().enumerate().all(|(i, l)| *l == ((start + i as u64) % 7) as f32);
        let belongs =
            batch.data.chunks(4).zip(&batch.labels).all(|(image, label)| image[3] == 4.0 * label + 3.0);
        assert!(right && belongs);
        seen.push(batch.data.as_ptr());
        data.recycle(batch);
    }
    seen.sort_unstable();
    seen.dedup();
    // One with the reader, one ready, one in the making, and one on its way back.
    assert!(seen.len() <= 4, "{} buffers", seen.len());
}

#[test]
fn dropping_ends_the_thread_wherever_it_is() {
    let set = plain(7);
    for taken in 0..3 {
        let data = Prefetcher::start(set.clone(), Order::Sequential, 2, 0, 1).unwrap();
        for _ in 0..taken {
            data.next_batch().unwrap();
        }
        drop(data);
        assert_eq!(Arc::strong_count(&set), 1);
    }
    for batch in [0, 1 << 30, usize::MAX] {
        assert!(Prefetcher::start(set.clone(), Order::Sequential, batch, 0, 1).is_err());
    }
}

#[test]
fn the_shape_of_samples_is_in_a_header() {
    let (_parent, folder, search) = small_set();
    let shape = || sample_shape(&layer("set"), Phase::Train, &search);
    assert_eq!(shape().unwrap(), [1, 2, 3]);
    // What stands behind the header is not looked at, packed or not.
    let file = folder.join("train-images-idx3-ubyte");
    let cut = idx(&[5, 2, 3])[..20].to_vec();
    for content in [cut.clone(), gzipped(&cut)] {
        fs::write(&file, content).unwrap();
        assert_eq!(shape().unwrap(), [1, 2, 3]);
        assert!(open("set", None, Phase::Train, &search).is_err());
    }
    for (content, part) in [(&idx(&[5])[..], "expected 00 00 08 03"), (&cut[..10], "is cut off")] {
        fs::write(&file, content).unwrap();
        let message = shape().unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(sample_shape(&layer("nowhere"), Phase::Train, &search).unwrap_err().exit_code(), 66);
}
