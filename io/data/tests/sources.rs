//! Folders, lists, tars and CIFAR files, and what layers make of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quadrille_core::layer::{
    Colour, Data, DataKind, ImageList, Interpolation, RandomResize, Resampling, Transform,
};
use quadrille_core::net::Phase;
use quadrille_core::rng::{Purpose, Sampler, Stream};
use tempfile::TempDir;

use super::super::*;
use super::layer;
use crate::error::IoError;
use crate::npz::{Array, Values, write_npz};

/// A PNG of one colour.
fn png(height: u32, width: u32, rgb: [u8; 3]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let pixels = rgb.repeat((height * width) as usize);
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    file
}

/// A JPEG of noise.
fn jpeg(side: u32, seed: u64) -> Vec<u8> {
    let stream = Stream::new(seed, Purpose::Dummy, 0);
    let pixels: Vec<u8> = (0..u64::from(side * side * 3)).map(|i| stream.bits(i) as u8).collect();
    crate::data::encode_jpeg(&pixels, [3, side as usize, side as usize], 80).unwrap()
}

/// Paths and files of a data set of three classes, 4 images to train and 2 to test for each.
fn tree() -> Vec<(String, Vec<u8>)> {
    let image = |part: &'static str, count: u64| {
        ["ant", "bee", "cow"].into_iter().enumerate().flat_map(move |(class, name)| {
            (0..count).map(move |i| (format!("{part}/{name}/{i}.jpg"), jpeg(8, 100 * class as u64 + i)))
        })
    };
    image("train", 4).chain(image("test", 2)).collect()
}

fn put(folder: &Path, files: &[(String, Vec<u8>)]) {
    for (path, content) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = TarWriter::new(Vec::new());
    files.iter().for_each(|(path, content)| tar.add(path, content).unwrap());
    tar.finish().unwrap()
}

/// Names, labels and stored bytes of all records, without what stands before the names.
fn content(records: &dyn Records) -> Vec<(i32, Vec<u8>)> {
    let read = |index| {
        let mut scratch = Vec::new();
        let record = records.read(index, &mut scratch).unwrap();
        let Content::Encoded { file, .. } = record.content else { panic!("not encoded") };
        assert_eq!(records.label(index), Some(record.label));
        (record.label, file.to_vec())
    };
    (0..records.len()).map(read).collect()
}

fn refused(path: &Path, phase: Phase) -> String {
    let error = open_records(path, phase).expect_err("a bad data set was opened");
    assert!([65, 66].contains(&error.exit_code()), "{error}");
    error.to_string()
}

#[test]
fn a_folder_a_tar_and_its_shards_are_the_same_data_set() {
    let parent = tempfile::tempdir().unwrap();
    let (folder, files) = (parent.path().join("set"), tree());
    put(&folder, &files);
    // Files that are no images are passed over.
    put(&folder, &[("train/ant/notes.txt".into(), vec![1]), ("train/ant/.hidden.jpg".into(), vec![1])]);
    fs::write(parent.path().join("one.tar"), tar(&files)).unwrap();
    // Another order, and another number of files.
    let shards = parent.path().join("shards");
    fs::create_dir(&shards).unwrap();
    let reversed: Vec<_> = files.iter().rev().cloned().collect();
    for (number, part) in reversed.chunks(5).enumerate() {
        fs::write(shards.join(format!("part-{number}.tar")), tar(part)).unwrap();
    }
    let below: Vec<_> = files.iter().map(|(path, file)| (format!("./set/{path}"), file.clone())).collect();
    fs::write(parent.path().join("below.tar"), tar(&below)).unwrap();
    for (phase, count) in [(Phase::Train, 4), (Phase::Test, 2)] {
        let expected = open_records(&folder, phase).unwrap();
        assert_eq!(expected.len(), 3 * count);
        let labels: Vec<i32> = (0..3 * count).map(|i| expected.label(i).unwrap()).collect();
        assert_eq!(labels, [vec![0; count], vec![1; count], vec![2; count]].concat());
        let places =
            ["one.tar", "shards", "shards/part-*.tar", "below.tar"].map(|name| parent.path().join(name));
        for place in places {
            let records = open_records(&place, phase).unwrap();
            assert_eq!(content(&*records), content(&*expected), "{}", place.display());
            assert_eq!(records.hash(), expected.hash());
        }
    }
    let train = open_records(&folder.join("train"), Phase::Test).unwrap();
    assert_eq!(train.len(), 12);
    assert!(train.record_name(4).ends_with("set/train/bee/0.jpg\""), "{}", train.record_name(4));
    assert_ne!(train.hash(), open_records(&folder, Phase::Test).unwrap().hash());
}

#[test]
fn what_is_missing_in_a_folder_or_tar_is_said() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    put(&at("half"), &tree()[..12]);
    assert!(
        refused(&at("half"), Phase::Test).contains("for phase TEST it would need test or val or validation")
    );
    fs::write(at("half.tar"), tar(&tree()[..12])).unwrap();
    assert!(refused(&at("half.tar"), Phase::Test).contains("has train, but for phase TEST"));
    put(&at("flat"), &[("a/x.txt".into(), vec![])]);
    assert!(refused(&at("flat"), Phase::Train).contains("has no images"));
    put(&at("loose"), &[("a/x.png".into(), vec![]), ("y.png".into(), vec![])]);
    assert!(refused(&at("loose"), Phase::Train).contains("\"y.png\" lies in no folder of a class"));
    let twice = [tree()[0].clone(), tree()[0].clone()];
    fs::write(at("twice.tar"), tar(&twice)).unwrap();
    assert!(refused(&at("twice.tar"), Phase::Train).contains("\"ant/0.jpg\" is there twice"));
    fs::write(at("packed.tar.gz"), [0x1f, 0x8b]).unwrap();
    assert!(refused(&at("packed.tar.gz"), Phase::Train).contains("unpack it"));
    assert!(refused(&at("none-*.tar"), Phase::Train).contains("no file has such a name"));
}

#[test]
fn every_cut_and_flip_of_a_tar_is_found_or_harmless() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("set.tar");
    let whole = tar(&tree()[..3]);
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        open_records(&path, Phase::Train)
    };
    let good = content(&*open(&whole).unwrap());
    for at in (0..whole.len() - 1024).step_by(13) {
        // Without an end a tar may stop between two members.
        if let Ok(records) = open(&whole[..at]) {
            assert!(records.len() < 3 || at >= whole.len() - 1024 - 511, "{at}");
        }
    }
    for at in 0..whole.len() {
        let mut bad = whole.clone();
        bad[at] ^= 1 << (at % 8);
        if let Ok(records) = open(&bad) {
            // A flip in an image is the decoder's affair; one in a header would have another sum.
            let found = content(&*records);
            assert_eq!(found.len(), good.len(), "{at}");
        }
    }
    // A size beyond the end of the file, in binary, with the right sum.
    let mut bad = whole.clone();
    bad[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0x7f, 255, 255, 255, 255, 255, 255, 255]);
    bad[148..156].fill(b' ');
    let sum: u64 = bad[..512].iter().map(|byte| u64::from(*byte)).sum();
    bad[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert!(open(&bad).unwrap_err().to_string().contains("is cut off"));
}

/// Makes the first member of a tar one of another kind, which leads to `target` if it is a link.
fn set_kind(tar: &mut [u8], kind: u8, target: &str) {
    tar[156] = kind;
    tar[157..157 + target.len()].copy_from_slice(target.as_bytes());
    tar[148..156].fill(b' ');
    let sum: u64 = tar[..512].iter().map(|byte| u64::from(*byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[test]
fn links_in_a_tar_are_followed_and_folders_of_classes_must_have_images() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.tar");
    let images = [1, 2].map(|i| png(2, 2, [i, i, i]));
    // Kinds 1 and 2 are links, 5 is a folder.
    let special = |name: &str, kind: u8, target: &str| {
        let mut header = tar(&[(name.to_owned(), Vec::new())]);
        set_kind(&mut header, kind, target);
        header.truncate(512);
        header
    };
    let files = tar(&[("./a/1.png".into(), images[0].clone()), ("b/2.png".into(), images[1].clone())]);
    let opened = |before: &[Vec<u8>], after: &[Vec<u8>]| {
        let bytes =
            [&before.concat(), &files[..files.len() - 1024], &after.concat(), &[0; 1024][..]].concat();
        fs::write(&path, bytes).unwrap();
        open_records(&path, Phase::Train)
    };
    let [one, two] = images.clone();
    let before = [special("./a/", b'5', ""), special("a/4.png", b'2', "../c/3.png")];
    let after = [special("c/3.png", b'1', "./a/1.png"), special("a/5.png", b'2', ".././b/./2.png")];
    let found = content(&*opened(&before, &after).unwrap());
    assert_eq!(found, [(0, one.clone()), (0, one.clone()), (0, two.clone()), (1, two), (2, one)]);
    // Files that are no images may be links to anything, and folders that are not of a class empty.
    let after =
        [special("a/notes", b'2', "../../x"), special("a/below/", b'5', ""), special(".git/", b'5', "")];
    assert_eq!(opened(&[], &after).unwrap().len(), 2);
    let refused = |member: Vec<u8>| opened(&[], &[member]).unwrap_err().to_string();
    let chain = [
        special("a/6.png", b'2', "7.png"),
        special("a/7.png", b'1', "b/8.png"),
        special("b/8.png", b'2', "2.png"),
    ];
    assert_eq!(opened(&[], &chain).unwrap().len(), 5);
    for target in ["../../out.png", "/b/2.png", "9.png", "3.png"] {
        let error = refused(special("a/3.png", b'2', target));
        assert!(
            error.contains("image \"a/3.png\" is a link to ") && error.contains("--dereference"),
            "{error}"
        );
    }
    let error = refused(special("c", b'2', "./a"));
    assert!(error.contains("\"c\" is a link to the folder \"a\""), "{error}");
    let error = refused(special("aa/", b'5', ""));
    assert!(error.contains("folder \"aa\" has no images") && error.contains("move it away"), "{error}");
}

#[test]
fn long_names_of_gnu_and_pax_are_read() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("set.tar");
    let long = format!("train/{}/{}.png", "a".repeat(150), "b".repeat(200));
    let body = png(2, 2, [1, 2, 3]);
    let line = format!(" path={long}\n");
    let length = (line.len()..).find(|n| n.to_string().len() + line.len() == *n).unwrap();
    for (kind, extra) in [(b'L', format!("{long}\0")), (b'x', format!("{length}{line}"))] {
        let mut bytes = tar(&[("extra".into(), extra.into_bytes())]);
        set_kind(&mut bytes, kind, "");
        bytes.truncate(bytes.len() - 1024);
        bytes.extend(tar(&[("short.png".into(), body.clone())]));
        fs::write(&path, &bytes).unwrap();
        let records = open_records(&path, Phase::Train).unwrap();
        assert_eq!(content(&*records), [(0, body.clone())]);
        assert!(records.record_name(0).contains(&"b".repeat(200)));
    }
    // ustar's own way for names of up to 255 bytes; none beyond.
    let name = format!("{}/{}.png", "c".repeat(150), "d".repeat(90));
    fs::write(&path, tar(&[(name.clone(), body.clone())])).unwrap();
    assert!(open_records(&path, Phase::Train).unwrap().record_name(0).contains(&name));
    assert!(TarWriter::new(Vec::new()).add(&"e".repeat(101), &body).is_err());
}

#[test]
fn a_list_is_read_in_its_order() {
    let parent = tempfile::tempdir().unwrap();
    put(
        parent.path(),
        &[
            ("images/two words.png".into(), png(2, 3, [10, 20, 30])),
            ("images/b.png".into(), png(4, 6, [1, 2, 3])),
        ],
    );
    let list = parent.path().join("list.txt");
    fs::write(&list, "two words.png 7\r\n\n  b.png   -1\n").unwrap();
    let options = ImageList { root_folder: "images/".into(), resize: Some([1, 2]), colour: Colour::Colour };
    let data = Data { kind: DataKind::List(options), ..layer(list.to_str().unwrap()) };
    let search = SearchPath::default();
    let opening = Opening {
        data: None,
        search: &search,
        tolerance: Tolerance::Fail,
        staging: None,
        room: Room::default(),
    };
    let set = Arc::new(open(&data, Phase::Train, opening).unwrap());
    assert_eq!((set.len(), set.sample()), (2, [3, 1, 2]));
    let batch = Prefetcher::start(set, Order::Sequential, 2, 0, 1).unwrap().next_batch().unwrap();
    assert_eq!(batch.data, [30.0, 30.0, 20.0, 20.0, 10.0, 10.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0]);
    assert_eq!(batch.labels, [7.0, -1.0]);
    fs::write(&list, "b.png\n").unwrap();
    assert!(refused(&list, Phase::Train).contains("line 1: \"b.png\"; expected a path, a space and a label"));
    fs::write(&list, [0, 1, 255]).unwrap();
    assert!(refused(&list, Phase::Train).contains("is not text"));
    fs::write(&list, "\n").unwrap();
    assert!(refused(&list, Phase::Train).contains("is a list without images"));
}

/// A class that one phase has no images of would shift the labels of those behind it.
#[test]
fn a_class_without_images_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    put(parent.path(), &[("ant/0.png".into(), png(2, 2, [1; 3])), ("cow/0.png".into(), png(2, 2, [2; 3]))]);
    assert_eq!(open_records(parent.path(), Phase::Train).unwrap().label(1), Some(1));
    put(parent.path(), &[(".notes/a.txt".into(), Vec::new()), ("bee/0.bmp".into(), vec![1])]);
    let refused = refused(parent.path(), Phase::Train);
    assert!(refused.contains("folder \"bee\" has no images"), "{refused}");
}

/// Opens the source of a layer, which `--data` may name another place for.
fn opened(layer: &Data, data: Option<&Path>, tolerance: Tolerance) -> Result<DataSource, IoError> {
    let (search, room) = (SearchPath::default(), Room::default());
    open(layer, Phase::Train, Opening { data, search: &search, tolerance, staging: None, room })
}

/// Images that are missing do not decide where the others are looked for.
#[test]
fn a_list_whose_first_image_is_missing_leads_to_the_others() {
    let parent = tempfile::tempdir().unwrap();
    put(parent.path(), &[("images/b.png".into(), png(4, 6, [1, 2, 3]))]);
    let list = parent.path().join("list.txt");
    let absolute = parent.path().join("images");
    for (root, first) in
        [("images/", "a.png"), ("", "images/a.png"), ("", &format!("{}/a.png", absolute.display()))]
    {
        fs::write(&list, format!("{first} 7\n{} 3\n", first.replace("a.png", "b.png"))).unwrap();
        let options = ImageList { root_folder: root.into(), resize: Some([1, 2]), colour: Colour::Colour };
        let layer = Data { kind: DataKind::List(options), ..layer(list.to_str().unwrap()) };
        let set = Arc::new(opened(&layer, None, Tolerance::Skip).unwrap());
        let batch = Prefetcher::start(set, Order::Sequential, 2, 0, 1).unwrap().next_batch().unwrap();
        assert_eq!(batch.labels, [3.0, 3.0], "{root:?} {first:?}");
    }
}

/// A folder that is given in the place of the source's has files of both phases; each takes its own.
#[test]
fn a_folder_in_the_place_of_a_pattern_s_holds_what_the_pattern_names() {
    let parent = tempfile::tempdir().unwrap();
    let shard = |name: &str, count: u8| {
        let image = |class: &str, i: u8| (format!("{class}/{name}{i}.png"), png(2, 2, [i; 3]));
        let images: Vec<_> = (0..count).flat_map(|i| [image("ant", i), image("bee", i)]).collect();
        (format!("{name}.tar"), tar(&images))
    };
    put(parent.path(), &[shard("train-0", 2), shard("train-1", 1), shard("val-0", 4)]);
    let len =
        |source: &str| opened(&layer(source), Some(parent.path()), Tolerance::Fail).map(|set| set.len());
    assert_eq!(len("shards/train-*.tar").unwrap(), 6);
    assert_eq!(len("shards/val-*.tar").unwrap(), 8);
    let refused = len("shards/test-*.tar").unwrap_err().to_string();
    assert!(refused.contains("test-*.tar") && refused.contains("no file has such a name"), "{refused}");
    assert_eq!(len("shards").unwrap(), 14, "a folder without a pattern is all of it");
}

/// A folder of CIFAR files.
fn cifar() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let image = |labels: &[u8], value: u8| [labels, &[value; 3072]].concat();
    let write = |name: &str, content: &[u8]| fs::write(folder.path().join(name), content).unwrap();
    for number in [1, 2, 10] {
        write(&format!("data_batch_{number}.bin"), &image(&[number], number));
    }
    write("data_batch_1.bin", &[image(&[9], 1), image(&[3], 2)].concat());
    write("data_batch_10.bin", &image(&[0], 4));
    write("test_batch.bin", &image(&[5], 9));
    folder
}

#[test]
fn cifar_is_read_by_phase_and_kind_of_label() {
    let folder = cifar();
    let labels = |path: &Path, phase| -> Vec<i32> {
        let records = open_records(path, phase).unwrap();
        (0..records.len()).map(|index| records.label(index).unwrap()).collect()
    };
    assert_eq!(labels(folder.path(), Phase::Train), [9, 3, 2, 0]);
    assert_eq!(labels(folder.path(), Phase::Test), [5]);
    let image = [&[4, 77][..], &[9; 3072]].concat();
    fs::write(folder.path().join("train.bin"), &image).unwrap();
    assert_eq!(labels(folder.path(), Phase::Train), [77]);
    assert_eq!(labels(&PathBuf::from(format!("{}:coarse", folder.path().display())), Phase::Train), [4]);
    assert_eq!(labels(&folder.path().join("train.bin"), Phase::Test), [77]);
}

#[test]
fn broken_cifar_files_are_refused() {
    let folder = cifar();
    let path = folder.path().join("test_batch.bin");
    let good = fs::read(&path).unwrap();
    for at in [0, 1, 3000, 3072] {
        fs::write(&path, &good[..at]).unwrap();
        assert!(refused(folder.path(), Phase::Test).contains("no whole number of images of 3073 bytes"));
    }
    let mut bad = good;
    bad[0] = 10;
    fs::write(&path, bad).unwrap();
    assert!(refused(folder.path(), Phase::Test).contains("image 0 has the label 10; expected less than 10"));
    fs::remove_file(&path).unwrap();
    assert!(refused(folder.path(), Phase::Test).contains("has no test_batch.bin or test.bin"));
}

/// The images of a folder as a layer with this transform sees them.
fn folder_set(
    files: &[(String, Vec<u8>)],
    transform: Transform,
    tolerance: Tolerance,
) -> Result<Arc<DataSource>, IoError> {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), files);
    fs::write(folder.path().join("all.tar"), tar(files)).unwrap();
    let records = open_records(&folder.path().join("all.tar"), Phase::Train)?;
    DataSource::new(records, &Data { transform, ..layer("made") }, None, tolerance).map(Arc::new)
}

#[test]
fn images_of_other_sizes_need_a_crop() {
    let files = [("a/0.png".into(), png(5, 6, [9, 9, 9])), ("a/1.png".into(), png(7, 4, [8, 8, 8]))];
    let first = |transform| {
        Prefetcher::start(folder_set(&files, transform, Tolerance::Fail)?, Order::Sequential, 2, 0, 1)?
            .next_batch()
    };
    let message = first(Transform::default()).unwrap_err().to_string();
    assert!(message.contains("image \"a/1.png\" in") && message.contains("is 3 x 7 x 4"), "{message}");
    assert!(
        message.contains("but the first record is 3 x 5 x 6") && message.contains("crop_size"),
        "{message}"
    );
    assert_eq!(first(Transform { crop: 4, ..Transform::default() }).unwrap().data.len(), 2 * 3 * 16);
    let message = first(Transform { crop: 5, ..Transform::default() }).unwrap_err().to_string();
    assert!(message.contains("is 3 x 7 x 4, too small to cut 5 x 5 out of it"), "{message}");
    let grey = Transform { colour: Some(Colour::Grey), crop: 1, scale: 2.0, ..Transform::default() };
    assert_eq!(first(grey).unwrap().data, [18.0, 16.0]);
}

#[test]
fn bad_records_end_the_run_or_are_replaced_by_the_next() {
    let good = |i: u8| (format!("a/{i}.png"), png(2, 2, [i, i, i]));
    let bad = |i: u8| (format!("a/{i}.png"), vec![1, 2, 3]);
    let files = [bad(0), good(1), bad(2), bad(3), good(4)];
    let drawn = |tolerance| {
        let set = folder_set(&files, Transform::default(), tolerance)?;
        let batch = Prefetcher::start(set.clone(), Order::Sequential, 5, 0, 1)?.next_batch()?;
        Ok::<_, IoError>((batch.data.chunks(12).map(|image| image[0]).collect::<Vec<_>>(), set.bad().list()))
    };
    let error = drawn(Tolerance::Fail).unwrap_err().to_string();
    assert!(error.contains("image \"a/0.png\"") && error.contains("--bad-record skip"), "{error}");
    for tolerance in [Tolerance::Skip, Tolerance::Most(3)] {
        let (values, (count, lines)) = drawn(tolerance).unwrap();
        assert_eq!(values, [1.0, 1.0, 4.0, 4.0, 4.0]);
        assert_eq!((count, lines.len()), (3, 3));
        assert!(lines[1].contains("a/2.png") && lines[1].contains("starts with 01 02 03"), "{lines:?}");
    }
    let error = drawn(Tolerance::Most(2)).unwrap_err().to_string();
    assert!(error.contains("bad record number 3; --bad-record allows 2"), "{error}");
    let error = folder_set(&[bad(0)], Transform::default(), Tolerance::Skip).unwrap_err().to_string();
    assert!(error.contains("has no record that can be read"), "{error}");
    assert_eq!("12".parse(), Ok(Tolerance::Most(12)));
    assert!("often".parse::<Tolerance>().unwrap_err().contains("expected fail, skip"));
}

#[test]
fn what_processes_find_in_one_data_set_is_put_together() {
    let files: Vec<_> = (10..90).map(|i| (format!("a/{i}.png"), png(1, 1, [i, i, i]))).collect();
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), &files);
    let records = open_records(folder.path(), Phase::Train).unwrap();
    let found = |indices: &[usize]| {
        let bad = BadRecords::new(Tolerance::Skip);
        for index in indices {
            bad.note(&*records, *index, format!("is bad, {index}")).unwrap();
        }
        bad
    };
    let all = found(&[1, 3]);
    for other in [found(&[]), found(&[3, 2]), found(&[79, 1])] {
        assert!(all.add(&other.to_text()));
    }
    let (count, lines) = all.list();
    assert_eq!((count, lines.len()), (4, 4));
    for (line, index) in lines.iter().zip([1, 2, 3, 79]) {
        assert!(line.ends_with(&format!("is bad, {index}")) && line.contains(&format!("{}.png", index + 10)));
    }
    assert!(found(&[]).to_text().is_empty() && !all.add("nothing"));
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let plain =
        Transform { crop: 5, mirror: true, scale: 0.5, mean_values: vec![100.0], ..Transform::default() };
    let resampling = Resampling {
        interpolations: vec![Interpolation::Cubic, Interpolation::Area, Interpolation::Lanczos4],
        ..Resampling::default()
    };
    let side = RandomResize::ShorterSide { min: Some(6), max: Some(9), resampling: resampling.clone() };
    let part = RandomResize::Part { areas: [0.2, 0.9], change: 0.75, attempts: 10, resampling };
    let by_chance = [side, part].map(|random| Transform { random: Some(Box::new(random)), ..plain.clone() });
    for transform in [plain.clone()].into_iter().chain(by_chance) {
        let set = folder_set(&tree(), transform.clone(), Tolerance::Fail).unwrap();
        let batches = |threads: usize, iterations: &[u64]| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let order =
                Order::Shuffled(Sampler::new(1, 0, set.len() as u64), Stream::new(1, Purpose::Transform, 0));
            let maker = prefetch::Maker::new(set.clone(), order, 7).unwrap();
            let make = |iteration: &u64| {
                let mut batch = Batch::default();
                maker.make(*iteration, &mut batch).unwrap();
                batch
            };
            pool.install(|| iterations.iter().map(make).collect::<Vec<_>>())
        };
        let one = batches(1, &[3, 4, 5]);
        assert_eq!(one, batches(3, &[3, 4, 5]), "{transform:?}");
        // A run that resumes sees what it would have seen.
        assert_eq!(one[2..], batches(5, &[5]), "{transform:?}");
        assert_ne!(one[0].data, one[1].data, "{transform:?}");
    }
}

#[test]
fn a_mean_of_each_value_is_taken_off_before_the_crop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mean.binaryproto");
    let images: Vec<u8> = (0..40).map(|i| 2 * i).collect();
    let set = Arc::new(Dataset::new("grid", Path::new("g"), images, vec![0], [2, 4, 5]).unwrap());
    let means: Vec<f32> = (0..40).map(|i| i as f32).collect();
    write_mean(&path, [2, 4, 5], &means).unwrap();
    assert_eq!(read_mean(&path).unwrap(), ([2, 4, 5], means));
    let data =
        Data { transform: Transform { crop: 2, scale: 10.0, ..Transform::default() }, ..layer("made") };
    let source = |path: &Path| DataSource::new(set.clone(), &data, Some(path), Tolerance::Fail).map(Arc::new);
    let batch =
        Prefetcher::start(source(&path).unwrap(), Order::Sequential, 1, 0, 1).unwrap().next_batch().unwrap();
    // 2 v - v at the places of the middle.
    assert_eq!(batch.data, [6, 7, 11, 12, 26, 27, 31, 32].map(|v| 10.0 * v as f32));
    write_mean(&path, [2, 5, 4], &[0.0; 40]).unwrap();
    let message = source(&path).unwrap_err().to_string();
    assert!(message.contains("are 2 x 5 x 4, but the image is 2 x 4 x 5"), "{message}");
    for content in [&b"\xff\xff"[..], b"", &[8, 1, 16, 2]] {
        fs::write(&path, content).unwrap();
        assert_eq!(source(&path).unwrap_err().exit_code(), 65);
    }
}

#[test]
fn labels_beyond_the_classes_are_found_at_once_or_when_read() {
    let rule = LabelRule { classes: 2, ignored: Some(9), loss: "layer \"loss\"".into() };
    let set = folder_set(&tree(), Transform::default(), Tolerance::Fail).unwrap();
    let set = Arc::try_unwrap(set).unwrap();
    let error = set.with_labels(vec![rule.clone()]).unwrap_err().to_string();
    assert!(
        error.contains("cow/3.jpg")
            && error.contains("has the label 2, but layer \"loss\" has scores for 2 classes")
    );
    assert!(rule.check(9).is_ok() && rule.check(1).is_ok() && rule.check(-1).is_err());
}

#[test]
fn what_does_not_fit_memory_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("cifar")).unwrap();
    fs::write(at("cifar/data_batch_1.bin"), vec![0; 3 * 3073]).unwrap();
    let values = Values::U8(vec![0; 4 * 3072]);
    let data = Array { shape: vec![4, 3, 32, 32], values };
    let label = Array { shape: vec![4], values: Values::I32(vec![0; 4]) };
    let archive = [("data".to_owned(), data), ("label".to_owned(), label)].into();
    write_npz(&at("set.npz"), &archive).unwrap();
    let mnist = super::repository().join("data/mnist");
    let search = SearchPath::default();
    // Headers and the like are counted, too.
    for (path, values, least) in [(at("cifar"), 3 * 3072, 3 * 3073), (at("set.npz"), 4 * 3072, 4 * 3072 + 16)]
    {
        let source = path.display().to_string();
        let opened = |bytes: u64| {
            let room = Room::of(Some(bytes));
            let opening =
                Opening { data: None, search: &search, tolerance: Tolerance::Fail, staging: None, room };
            open(&layer(&source), Phase::Train, opening)
        };
        let set = opened(least + 1000).unwrap();
        assert_eq!(set.held().map(Held::bytes), Some(values), "{source}");
        let error = opened(least - 1).unwrap_err();
        assert!(matches!(error, IoError::NoRoom { room, .. } if room == least - 1), "{source}: {error}");
    }
    let opening = Opening {
        data: None,
        search: &search,
        tolerance: Tolerance::Fail,
        staging: None,
        room: Room::of(Some(1 << 20)),
    };
    let error = open(&layer(&mnist.display().to_string()), Phase::Train, opening).unwrap_err();
    assert_eq!(error.exit_code(), 71);
    // What is read sample by sample is not held.
    fs::write(at("set.tar"), tar(&tree())).unwrap();
    assert_eq!(open_records(&at("set.tar"), Phase::Train).unwrap().held(), None);
}
