//! Data sets in another form.

use std::fs;
use std::path::Path;

use quadrille_core::layer::Colour;
use quadrille_core::net::Phase;
use quadrille_core::rng::Sampler;

use super::super::decode::decode;
use super::super::resize::resize;
use super::super::*;

/// A PNG in which every value of every pixel is another.
fn picture(height: u32, width: u32, first: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let pixels: Vec<u8> = (0..3 * height * width).map(|i| (first + 37 * i + i * i / 5) as u8).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    file
}

/// A folder of two classes with five images each.
fn folder_of(folder: &Path, size: [u32; 2]) {
    for (class, name) in [(0, "ant"), (1, "bee")] {
        fs::create_dir_all(folder.join(name)).unwrap();
        for i in 0..5 {
            let file = picture(size[0], size[1], 50 * class + i);
            fs::write(folder.join(format!("{name}/{i}.png")), file).unwrap();
        }
    }
}

const PLAIN: Storing = Storing {
    target: Target::Lmdb,
    changes: Changes { resize: None, colour: None, form: None },
    order: None,
    tolerance: Tolerance::Fail,
};

/// Stores a data set and opens it again.
fn stored(from: &Path, to: &Path, storing: Storing) -> std::sync::Arc<dyn Records> {
    let records = open_records(from, Phase::Train).unwrap();
    let mut heard = Vec::new();
    store(&*records, &storing, to, |done| heard.push(done)).unwrap();
    assert_eq!(heard, (1..=records.len() as u64).collect::<Vec<_>>());
    open_records(to, Phase::Train).unwrap()
}

/// Labels, shapes and values of records that are stored as values.
fn values(records: &dyn Records) -> Vec<(i32, [usize; 3], Vec<u8>)> {
    let value = |index| {
        let mut scratch = Vec::new();
        let record = records.read(index, &mut scratch).unwrap();
        let Content::Bytes { shape, values } = record.content else { panic!("no bytes") };
        (record.label, shape, values.to_vec())
    };
    (0..records.len()).map(value).collect()
}

fn files(records: &dyn Records) -> Vec<(i32, Vec<u8>)> {
    let file = |index| {
        let mut scratch = Vec::new();
        let record = records.read(index, &mut scratch).unwrap();
        let Content::Encoded { file, .. } = record.content else { panic!("no file") };
        (record.label, file.to_vec())
    };
    (0..records.len()).map(file).collect()
}

/// What the images of a folder are, decoded and resized by hand: blue, green and red planes, or grey.
fn by_hand(records: &dyn Records, colour: Colour, size: [usize; 2]) -> Vec<(i32, [usize; 3], Vec<u8>)> {
    files(records)
        .into_iter()
        .map(|(label, file)| {
            let (mut pixels, mut resized) = (Vec::new(), Vec::new());
            let [c, h, w] = decode(&file, Some(colour), &mut pixels).unwrap();
            resize(&pixels, c, [h, w], size, &mut resized);
            let plane = |channel: usize| resized.chunks(c).map(move |pixel| pixel[channel]);
            (label, [c, size[0], size[1]], (0..c).flat_map(plane).collect())
        })
        .collect()
}

#[test]
fn images_are_stored_as_files_or_as_values() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    folder_of(&at("set"), [6, 9]);
    let set = open_records(&at("set"), Phase::Train).unwrap();
    assert_eq!(files(&*stored(&at("set"), &at("as-they-are"), PLAIN)), files(&*set));
    let with = |resize, colour, form| Storing { changes: Changes { resize, colour, form }, ..PLAIN };
    let raw = stored(&at("set"), &at("raw"), with(None, None, Some(Form::Raw)));
    assert_eq!(values(&*raw), by_hand(&*set, Colour::Colour, [6, 9]));
    // The first value is blue: the third of the file.
    assert_eq!(values(&*raw)[0].2[0], (37 * 2) as u8);
    let small = stored(&at("set"), &at("small"), with(Some([4, 5]), None, None));
    assert_eq!(values(&*small), by_hand(&*set, Colour::Colour, [4, 5]));
    let grey = stored(&at("set"), &at("grey"), with(Some([4, 5]), Some(Colour::Grey), None));
    assert_eq!(values(&*grey), by_hand(&*set, Colour::Grey, [4, 5]));
    // PNG loses nothing, so it comes to the same by way of new files.
    let form = Some(Form::Encoded(None));
    let encoded = stored(&at("set"), &at("encoded"), with(Some([4, 5]), None, form));
    assert_eq!(by_hand(&*encoded, Colour::Colour, [4, 5]), values(&*small));
    assert_ne!(files(&*encoded), files(&*set));
    // Values are resized as images are.
    let again = stored(&at("raw"), &at("again"), with(Some([4, 5]), None, None));
    assert_eq!(values(&*again), values(&*small));
    // What has the wanted kind and channels already stays as it is.
    let same = with(None, Some(Colour::Colour), Some(Form::Encoded(Some(Encoding::Png))));
    assert_eq!(files(&*stored(&at("set"), &at("same"), same)), files(&*set));
    let jpeg = with(None, None, Some(Form::Encoded(Some(Encoding::Jpeg))));
    let jpeg = files(&*stored(&at("set"), &at("jpeg"), jpeg));
    assert!(jpeg.iter().all(|(_, file)| file.starts_with(&[0xff, 0xd8])), "no JPEG");
}

#[test]
fn shards_together_are_the_data_set() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    folder_of(&at("set"), [3, 3]);
    let set = open_records(&at("set"), Phase::Train).unwrap();
    let count = |folder: &str, number: usize| {
        let path = at(folder).join(format!("shards-{number:06}.tar"));
        open_records(&path, Phase::Train).map_or(0, |shard| shard.len())
    };
    let shuffled = Some(Sampler::new(5, 0, 10));
    for (name, target, order, counts) in [
        ("three", Target::Shards(3), None, [3, 3, 4, 0]),
        ("of-four", Target::ShardsOf(4), shuffled, [4, 4, 2, 0]),
        ("of-five", Target::ShardsOf(5), None, [5, 5, 0, 0]),
    ] {
        let shards = stored(&at("set"), &at(name), Storing { target, order, ..PLAIN });
        assert_eq!((files(&*shards), shards.hash()), (files(&*set), set.hash()), "{name}");
        assert_eq!([0, 1, 2, 3].map(|number| count(name, number)), counts, "{name}");
    }
    let tar = stored(&at("set"), &at("one.tar"), Storing { target: Target::Tar, ..PLAIN });
    assert_eq!(files(&*tar), files(&*set));
    let shuffled = stored(&at("set"), &at("lmdb"), Storing { order: shuffled, ..PLAIN });
    let (mut shuffled, mut set) = (files(&*shuffled), files(&*set));
    assert_ne!(shuffled, set);
    shuffled.sort();
    set.sort();
    assert_eq!(shuffled, set);
}

#[test]
fn a_cifar_file_has_red_first() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    folder_of(&at("set"), [32, 32]);
    let set = open_records(&at("set"), Phase::Train).unwrap();
    let raw = Changes { form: Some(Form::Raw), ..Changes::default() };
    let cifar = Storing { target: Target::Cifar, changes: raw, ..PLAIN };
    let made = stored(&at("set"), &at("set.bin"), cifar);
    assert_eq!(fs::metadata(at("set.bin")).unwrap().len(), 10 * 3073);
    for ((label, shape, made), (expected, _, image)) in
        values(&*made).into_iter().zip(by_hand(&*set, Colour::Colour, [32, 32]))
    {
        assert_eq!((label, shape), (expected, [3, 32, 32]));
        let [blue, green, red] = [0, 1, 2].map(|plane| &image[1024 * plane..][..1024]);
        assert!(made == [red, green, blue].concat());
    }
    // Values stay in their order.
    assert_eq!(values(&*stored(&at("set.bin"), &at("again.bin"), cifar)), values(&*made));
    folder_of(&at("large"), [33, 32]);
    let large = open_records(&at("large"), Phase::Train).unwrap();
    let error = store(&*large, &cifar, &at("large.bin"), |_| ()).unwrap_err();
    assert!(error.to_string().contains("0.png\" is 3 x 33 x 32, but CIFAR wants 3 x 32 x 32"), "{error}");
    assert_eq!((error.exit_code(), at("large.bin").exists()), (65, false));
}

#[test]
fn bad_records_are_passed_over_and_nothing_is_left_behind() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    folder_of(&at("set"), [3, 3]);
    fs::write(at("set/bee/2.png"), "none").unwrap();
    let set = open_records(&at("set"), Phase::Train).unwrap();
    let changes = Changes { form: Some(Form::Raw), ..Changes::default() };
    let failing = Storing { changes, ..PLAIN };
    let names = || fs::read_dir(parent.path()).unwrap().count();
    for (target, name) in
        [(Target::Lmdb, "x"), (Target::Cifar, "x.bin"), (Target::Shards(2), "shards"), (Target::Tar, "x.tar")]
    {
        let changes = match target {
            Target::Lmdb | Target::Cifar => changes,
            _ => Changes { colour: Some(Colour::Colour), form: Some(Form::Encoded(None)), resize: None },
        };
        let error = store(&*set, &Storing { target, changes, ..PLAIN }, &at(name), |_| ()).unwrap_err();
        assert_eq!((error.exit_code(), names()), (65, 1), "{error}");
    }
    let bad = store(&*set, &Storing { tolerance: Tolerance::Skip, ..failing }, &at("x"), |_| ()).unwrap();
    assert_eq!(bad.list().0, 1);
    assert_eq!(open_records(&at("x"), Phase::Train).unwrap().len(), 9);
    let error = store(&*set, &failing, &at("x"), |_| ()).unwrap_err();
    assert_eq!((error.exit_code(), names()), (73, 2));
}

#[test]
fn the_mean_is_that_of_caffes_tool() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    folder_of(&at("set"), [4, 5]);
    let set = open_records(&at("set"), Phase::Train).unwrap();
    let (shape, means, bad) = mean(&*set, Changes::default(), Tolerance::Fail, |_| ()).unwrap();
    assert_eq!((shape, bad.list().0), ([3, 4, 5], 0));
    let mut expected = vec![0.0f32; 60];
    for (_, _, image) in by_hand(&*set, Colour::Colour, [4, 5]) {
        expected.iter_mut().zip(image).for_each(|(sum, value)| *sum += f32::from(value));
    }
    expected.iter_mut().for_each(|sum| *sum /= 10.0);
    assert_eq!(means, expected);
    // Single precision: beyond 2^24 a sum of odd numbers is no longer exact.
    let ones =
        Dataset::new("ones", Path::new("ones"), vec![255; 70_000], vec![0; 70_000], [1, 1, 1]).unwrap();
    let (_, means, _) = mean(&ones, Changes::default(), Tolerance::Fail, |_| ()).unwrap();
    let sum = (0..70_000).fold(0.0f32, |sum, _| sum + 255.0);
    assert_ne!(sum, 255.0 * 70_000.0);
    assert_eq!(means, [sum / 70_000.0]);
    fs::write(at("set/bee/9.png"), picture(5, 5, 0)).unwrap();
    let set = open_records(&at("set"), Phase::Train).unwrap();
    let error = mean(&*set, Changes::default(), Tolerance::Fail, |_| ()).unwrap_err().to_string();
    assert!(error.contains("9.png\" is 3 x 5 x 5") && error.contains("--resize"), "{error}");
    let resized = Changes { resize: Some([2, 2]), ..Changes::default() };
    assert_eq!(mean(&*set, resized, Tolerance::Fail, |_| ()).unwrap().0, [3, 2, 2]);
}

/// A tar holds no labels: what whoever reads it would label otherwise, or not find, is refused before anything is written.
#[test]
fn a_tar_is_refused_what_its_folders_do_not_say() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    folder_of(&at(""), [3, 3]);
    fs::copy(at("ant/0.png"), at("alone.png")).unwrap();
    let encoded = |encoding| Changes { form: Some(Form::Encoded(encoding)), ..Changes::default() };
    let refusal = |list: &str, storing: &Storing| {
        fs::write(at("list.txt"), list).unwrap();
        let records = open_records(&at("list.txt"), Phase::Train).unwrap();
        let mut heard = 0;
        let error = store(&*records, storing, &at("to"), |_| heard += 1).unwrap_err();
        assert!(error.exit_code() == 65 && !at("to").exists(), "{error}");
        assert!(error.to_string().contains("make an LMDB"), "{error}");
        (error.to_string(), heard)
    };
    for target in [Target::Tar, Target::Shards(1), Target::ShardsOf(1)] {
        let storing = Storing { target, changes: encoded(None), ..PLAIN };
        for (list, part) in [
            ("ant/0.png 0\nant/1.png 3\n", "ant/1.png\" has the label 3, but whoever reads a tar gives it 0"),
            ("ant/0.png 0\nbee/1.png 2\n", "bee/1.png\" has the label 2, but whoever reads a tar gives it 1"),
            ("bee/0.png 1\n", "has the label 1, but"),
            ("ant/0.png 0\nalone.png 0\n", "image \"alone.png\" lies in no folder of a class"),
            ("ant/0.png 0\n./ant/0.png 0\n", "image \"ant/0.png\" is there twice"),
            ("ant/0.png 0\nbee/0.gif 1\n", "bee/0.gif\" would not be found in a tar"),
            ("test/0.png 0\ntrain/1.png 1\n", "image \"1.png\" lies in no folder of a class"),
        ] {
            let (told, heard) = refusal(list, &storing);
            assert!(told.contains(part) && heard == 0, "{list}: {told}");
        }
    }
    // What shows only once images are decoded.
    let tar = Storing { target: Target::Tar, changes: encoded(Some(Encoding::Jpeg)), ..PLAIN };
    fs::copy(at("ant/0.png"), at("ant/0.png.jpg")).unwrap();
    let (told, heard) = refusal("ant/0.png 0\nant/0.png.jpg 0\n", &tar);
    assert!(told.contains("\"ant/0.png.jpg\" is there twice") && heard == 2, "{told}");
    fs::write(at("ant/0.png"), "none").unwrap();
    let decoded = Changes { colour: Some(Colour::Colour), ..tar.changes };
    let skipping = Storing { tolerance: Tolerance::Skip, changes: decoded, ..tar };
    let (told, _) = refusal("ant/0.png 0\nbee/1.png 1\n", &skipping);
    assert!(told.contains("bee/1.png\" has the label 1, but whoever reads a tar gives it 0"), "{told}");
    // Labels that the folders say are stored, in whichever order.
    fs::write(at("list.txt"), "./bee/1.png 1\nant/1.png 0\nbee/0.png 1\n").unwrap();
    let made = stored(&at("list.txt"), &at("good.tar"), Storing { tolerance: Tolerance::Fail, ..tar });
    assert_eq!(files(&*made).iter().map(|(label, _)| *label).collect::<Vec<_>>(), [0, 1, 1]);
}
