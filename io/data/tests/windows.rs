//! Windows of images, and samples that come as arrays.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use quadrille_core::layer::{Data, DataKind, Transform, WindowRules};
use quadrille_core::net::Phase;
use quadrille_core::rng::{Purpose, Sampler, Stream};

use super::super::*;
use super::layer;
use crate::npz::{Archive, Array, Values, write_npz};

/// A PNG whose pixel in row y and column x is red x, green y, blue 7.
fn picture(path: &Path) {
    let mut encoder = png::Encoder::new(fs::File::create(path).unwrap(), 10, 10);
    encoder.set_color(png::ColorType::Rgb);
    let pixels: Vec<u8> = (0..100u8).flat_map(|at| [at % 10, at / 10, 7]).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
}

const RULES: WindowRules = WindowRules {
    root_folder: String::new(),
    foreground: 0.5,
    background: 0.3,
    fraction: 0.25,
    pad: 0,
    square: false,
};

fn opened(path: &Path, rules: &WindowRules, transform: Transform) -> Result<DataSource, crate::IoError> {
    let kind = DataKind::Windows(rules.clone());
    let data = Data { kind, transform, ..layer(path.to_str().unwrap()) };
    let search = SearchPath::default();
    open(
        &data,
        Phase::Train,
        Opening {
            data: None,
            search: &search,
            tolerance: Tolerance::Fail,
            staging: None,
            room: Room::default(),
        },
    )
}

/// Two images; three windows of objects, two of the background, one that is neither.
const FILE: &str = "# 0\na.png\n3 10 10\n4\n1 0.9 0 0 3 3\n2 0.5 4 4 7 7\n3 0.4 0 0 9 9\n0 0.1 2 2 5 5\n\
                    # 1\na.png\n3\n10\n10\n2\n0 0.29 6 6 9 9\n5 1.0 1 5 4 8\n";

#[test]
fn a_quarter_of_a_mini_batch_shows_objects() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windows.txt");
    picture(&folder.path().join("a.png"));
    fs::write(&path, FILE).unwrap();
    let transform =
        Transform { crop: 4, mean_values: vec![7.0, 0.0, 1.0], scale: 2.0, ..Transform::default() };
    let set = Arc::new(opened(&path, &RULES, transform.clone()).unwrap());
    assert_eq!((set.len(), set.sample(), set.shape()), (5, [3, 4, 4], [3, 4, 4]));
    let order = Order::Shuffled(Sampler::new(1, 0, 5), Stream::new(1, Purpose::Transform, 0));
    let batches = |iteration| Prefetcher::start(set.clone(), order, 8, iteration, 1).unwrap();
    let from_start = batches(0);
    let (mut corners, mut labels) = (Vec::new(), Vec::new());
    for iteration in 0..20 {
        let batch = from_start.next_batch().unwrap();
        assert_eq!(batches(iteration).next_batch().unwrap(), batch, "resumed at {iteration}");
        assert!(batch.labels[..6].iter().all(|label| *label == 0.0), "{:?}", batch.labels);
        assert!(batch.labels[6..].iter().all(|label| [1.0, 2.0, 5.0].contains(label)), "{:?}", batch.labels);
        for (sample, label) in batch.data.chunks(48).zip(&batch.labels) {
            // A window of four by four is not resized: blue is 0 after its mean, green the row, red the column.
            let (top, left) = (sample[16] / 2.0, sample[32] / 2.0 + 1.0);
            let at = |i: usize| ((i / 4) as f32, (i % 4) as f32);
            for i in 0..16 {
                let expected = [0.0, 2.0 * (top + at(i).0), 2.0 * (left + at(i).1 - 1.0)];
                assert_eq!([sample[i], sample[16 + i], sample[32 + i]], expected);
            }
            corners.push((left as i32, top as i32));
            labels.push(*label as i32);
        }
    }
    // Whatever the class, the window is one of its own.
    for (corner, label) in corners.iter().zip(&labels) {
        let known: &[(i32, i32)] = match label {
            0 => &[(2, 2), (6, 6)],
            1 => &[(0, 0)],
            2 => &[(4, 4)],
            _ => &[(1, 5)],
        };
        assert!(known.contains(corner), "{corner:?} of class {label}");
    }
    assert!([(2, 2), (6, 6), (0, 0), (4, 4), (1, 5)].iter().all(|one| corners.contains(one)));
    let mirrored = Transform { mirror: true, mean_values: Vec::new(), scale: 1.0, ..transform };
    let set = Arc::new(opened(&path, &RULES, mirrored).unwrap());
    let batch = Prefetcher::start(set, order, 64, 0, 1).unwrap().next_batch().unwrap();
    let falls = batch.data.chunks(48).filter(|sample| sample[32] > sample[33]).count();
    assert!((16..48).contains(&falls), "{falls} of 64 mirrored");
}

#[test]
fn images_with_windows_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    picture(&at("a.png"));
    fs::create_dir(at("far")).unwrap();
    picture(&at("far/b.png"));
    // The last image has no window that is used, and need not even be there.
    let far = at("far/b.png");
    let more = "# 2\nfar/b.png\n3 10 10\n1\n3 0.9 0 0 3 3\n# 3\nc.png 3 9 9 1 3 0.4 0 0 3 3";
    let text = format!("{FILE}{more}");
    fs::write(at("windows.txt"), text).unwrap();
    let transform = Transform { crop: 4, ..Transform::default() };
    let data =
        Data { kind: DataKind::Windows(RULES), transform, ..layer(at("windows.txt").to_str().unwrap()) };
    let search = SearchPath::default();
    let events = std::sync::Mutex::new(Vec::new());
    let tell = |event| events.lock().unwrap().push(event);
    let node = at("node");
    let staged = Opening {
        data: None,
        search: &search,
        tolerance: Tolerance::Fail,
        staging: Some(Staging { to: &node, tell: &tell }),
        room: Room::default(),
    };
    let copied = open(&data, Phase::Train, staged).unwrap();
    let plain = open(&data, Phase::Train, Opening { staging: None, ..staged }).unwrap();
    assert_eq!((copied.hash(), copied.name()), (plain.hash(), plain.name()));
    let Some(StageEvent::Done(copy, bytes, false)) = events.lock().unwrap().last().cloned() else {
        panic!("{events:?}")
    };
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    // The picture of two entries is one file.
    assert_eq!(bytes, 2 * size(&far) + size(&at("windows.txt")));
    assert!(copy.join("files/a.png").is_file() && !copy.join("files/c.png").exists());
    let batches = |set: DataSource| {
        let order = Order::Shuffled(Sampler::new(1, 0, 6), Stream::new(1, Purpose::Transform, 0));
        Prefetcher::start(Arc::new(set), order, 32, 0, 1).unwrap().next_batch().unwrap()
    };
    let expected = batches(plain);
    fs::remove_file(at("a.png")).unwrap();
    fs::remove_file(far).unwrap();
    assert_eq!(batches(copied), expected);
}

#[test]
fn context_outside_of_the_image_is_zero_and_means_lie_in_the_middle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windows.txt");
    picture(&folder.path().join("a.png"));
    fs::write(&path, "# 0 a.png 3 10 10 2 1 1 0 0 3 3 0 0 0 6 3 9").unwrap();
    let means: Vec<f32> = (0..300).map(|value| value as f32).collect();
    write_mean(&folder.path().join("mean.binaryproto"), [3, 10, 10], &means).unwrap();
    let mean_file = Some(folder.path().join("mean.binaryproto").display().to_string());
    let transform = Transform { crop: 8, mean_file, ..Transform::default() };
    let rules = WindowRules { pad: 2, fraction: 0.5, ..RULES };
    let set = Arc::new(opened(&path, &rules, transform.clone()).unwrap());
    let batch = Prefetcher::start(set, Order::Sequential, 2, 0, 1).unwrap().next_batch().unwrap();
    assert_eq!(batch.labels, [0.0, 1.0]);
    let object = &batch.data[192..];
    // Two columns and two rows of padding, which have no mean either.
    for (at, value) in object.iter().enumerate() {
        let padded = at % 8 < 2 || at / 8 % 8 < 2;
        assert_eq!(*value == 0.0, padded, "{at}: {value}");
    }
    // Blue is 7 everywhere; the mean's corner is one row and one column in, and the padding two more.
    assert_eq!(object[2 * 8 + 2], 7.0 - means[3 * 10 + 3]);
    assert_eq!(object[7 * 8 + 7], 7.0 - means[8 * 10 + 8]);
    write_mean(&folder.path().join("mean.binaryproto"), [3, 7, 10], &means[..210]).unwrap();
    let error = opened(&path, &rules, transform).unwrap_err().to_string();
    assert!(error.contains("too few for 3 x 8 x 8"), "{error}");
}

#[test]
fn files_of_windows_that_are_wrong_are_refused_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windows.txt");
    picture(&folder.path().join("a.png"));
    let transform = Transform { crop: 4, ..Transform::default() };
    for (from, to, part) in [
        ("# 1", "# 2", "line 9: expected \"# 1\""),
        ("# 0", "0 #", "line 1: expected \"# 0\""),
        ("3 10 10", "1 10 10", "line 3: 1 channels"),
        ("0.9 0 0 3 3", "0.9 0 0 3", "line 6: \"0.5\"; expected the class"),
        ("1 0.9", "0 0.9", "line 5: class 0 of an object"),
        ("4 4 7 7", "4 4 3 7", "line 6: corners 4 4 3 7"),
        ("4 4 7 7", "4 4 7 x", "line 6: \"x\"; expected a corner of a window"),
        ("5 1.0 1 5 4 8", "5 1.0 1", "line 16: the file ends where a corner of a window should follow"),
        ("0 0.29", "0 0.3", "expected 0"),
    ] {
        assert!(FILE.contains(from));
        fs::write(&path, FILE.replacen(from, to, 1)).unwrap();
        match opened(&path, &RULES, transform.clone()) {
            Err(error) => assert!(error.to_string().contains(part), "{to}: {error}"),
            Ok(set) => assert_eq!((to, set.len()), ("0 0.3", 4)),
        }
    }
    fs::write(&path, "# 0 a.png 3 10 10 1 1 0.9 0 0 3 3").unwrap();
    let error = opened(&path, &RULES, transform.clone()).unwrap_err().to_string();
    assert!(
        error.contains("has 1 windows of objects (overlap at least 0.5) and 0 of the background"),
        "{error}"
    );
    // What lies outside of its image is a bad record.
    fs::write(&path, "# 0 a.png 3 10 10 2 1 0.9 0 0 10 3 0 0 0 0 3 3").unwrap();
    let set = Arc::new(opened(&path, &WindowRules { fraction: 1.0, ..RULES }, transform).unwrap());
    let error = Prefetcher::start(set, Order::Sequential, 1, 0, 1).unwrap().next_batch().unwrap_err();
    assert!(error.to_string().contains("window 0 0 10 3 of image"), "{error}");
}

fn array(shape: &[usize], values: Values) -> Array {
    Array { shape: shape.to_vec(), values }
}

#[test]
fn arrays_are_samples() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.npz");
    let write = |data: Array, label: Array| {
        write_npz(&path, &Archive::from([("data".to_owned(), data), ("label".to_owned(), label)])).unwrap();
        open_records(&path, Phase::Test)
    };
    let bytes = |shape: &[usize]| array(shape, Values::U8((0..12).collect()));
    let labels = || array(&[2], Values::I32(vec![4, -1]));
    let floats = array(&[2, 1, 2, 3], Values::F32((0..12).map(|v| v as f32 / 2.0).collect()));
    let set = write(floats.clone(), labels()).unwrap();
    let mut scratch = Vec::new();
    let expected = Content::Floats { shape: [1, 2, 3], values: vec![3.0, 3.5, 4.0, 4.5, 5.0, 5.5] };
    assert_eq!(set.read(1, &mut scratch), Ok(Record { label: -1, content: expected }));
    assert_eq!((set.len(), set.label(0)), (2, Some(4)));
    let before = set.hash().to_owned();
    for (shape, expected) in [(&[2, 3, 2, 1][..], [3, 2, 1]), (&[2, 2, 3], [1, 2, 3]), (&[2, 6], [6, 1, 1])] {
        let set = write(bytes(shape), array(&[2, 1], Values::F32(vec![4.0, 9.0]))).unwrap();
        let content = Content::Bytes { shape: expected, values: &[6, 7, 8, 9, 10, 11] };
        assert_eq!(set.read(1, &mut scratch), Ok(Record { label: 9, content }));
        assert_ne!(set.hash(), before);
    }
    for (data, label, part) in [
        (array(&[12], Values::U8((0..12).collect())), labels(), "extents [12]; expected N x C x H x W"),
        (array(&[0, 1, 1, 1], Values::U8(vec![])), array(&[0], Values::U8(vec![])), "no samples"),
        (floats.clone(), array(&[3], Values::U8(vec![0; 3])), "\"data\" has 2 samples"),
        (floats, array(&[2], Values::F64(vec![0.0, 0.5])), "label 1 is 0.5; expected a whole number"),
    ] {
        let error = write(data, label).map(|set| set.len()).unwrap_err();
        assert!(error.to_string().contains(part) && error.exit_code() == 65, "{error}");
    }
    write_npz(&path, &Archive::from([("x".to_owned(), labels())])).unwrap();
    let error = open_records(&path, Phase::Test).map(|set| set.len()).unwrap_err().to_string();
    assert!(error.contains("has no array \"data\", only x;"), "{error}");
    // Beside each other they are parts.
    write(bytes(&[2, 6]), labels()).unwrap();
    fs::rename(&path, folder.path().join("test.npz")).unwrap();
    write(bytes(&[2, 3, 2]), labels()).unwrap();
    fs::rename(&path, folder.path().join("train.npz")).unwrap();
    let part = |phase| {
        let set = open_records(folder.path(), phase).unwrap();
        let mut scratch = Vec::new();
        match set.read(0, &mut scratch).unwrap().content {
            Content::Bytes { shape, .. } => shape,
            _ => panic!("no bytes"),
        }
    };
    assert_eq!((part(Phase::Train), part(Phase::Test)), ([1, 3, 2], [6, 1, 1]));
}

#[test]
fn a_layer_without_a_source_is_given_its_samples() {
    let kind = DataKind::Memory([1, 2, 3]);
    let data = Data { source: String::new(), kind, ..layer("") };
    let search = SearchPath::default();
    let opening = |data| Opening {
        data,
        search: &search,
        tolerance: Tolerance::Fail,
        staging: None,
        room: Room::default(),
    };
    let error = open(&data, Phase::Train, opening(None)).unwrap_err();
    assert_eq!(error.exit_code(), 66);
    assert!(error.to_string().contains("--data FILE.npz"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.npz");
    let samples = array(&[1, 1, 2, 3], Values::U8(vec![5; 6]));
    let label = array(&[1], Values::U8(vec![1]));
    write_npz(&path, &Archive::from([("data".to_owned(), samples), ("label".to_owned(), label)])).unwrap();
    let set = open(&data, Phase::Train, opening(Some(&path))).unwrap();
    assert_eq!((set.len(), set.sample()), (1, [1, 2, 3]));
}
