//! The same images in a folder, a tar and an LMDB.

use std::fs;
use std::path::Path;

use quadrille_io::npz::{Archive, Array, Values, write_npz};

use crate::common::{SIDE, Stage, hash_of};

/// Images of two classes, dark and bright, of three channels.
fn write_images(folder: &Path, images: u32) {
    for (class, base) in [("dark", 20), ("light", 180)] {
        let folder = folder.join(class);
        fs::create_dir_all(&folder).expect("a new folder");
        for i in 0..images {
            let pixels: Vec<u8> =
                (0..3 * SIDE * SIDE).map(|at| base + (at as u32 * (i + 7) % 50) as u8).collect();
            let mut file = Vec::new();
            let mut encoder = png::Encoder::new(&mut file, SIDE as u32, SIDE as u32);
            encoder.set_color(png::ColorType::Rgb);
            let mut writer = encoder.write_header().expect("a header");
            writer.write_image_data(&pixels).expect("pixels");
            writer.finish().expect("an end");
            fs::write(folder.join(format!("{i:02}.png")), file).expect("a new file");
        }
    }
}

fn stage() -> Stage {
    let stage = Stage::new();
    write_images(&stage.path("images/train"), 30);
    write_images(&stage.path("images/test"), 25);
    stage
}

#[test]
fn folder_tar_and_lmdb_train_to_the_same_bits() {
    let stage = stage();
    for phase in ["train", "test"] {
        fs::create_dir_all(stage.path("lmdb")).expect("a new folder");
        stage.succeed(&format!("convert data images lmdb/{phase} --phase {phase}"));
    }
    stage.succeed("convert data images/train tars.tar");
    let from_folder = stage.train("a", "--data images --threads 1");
    assert_eq!(from_folder["bad_records"], 0);
    assert!(from_folder["accuracy"].as_f64().expect("a number") > 0.9, "{from_folder}");
    let from_lmdb = stage.train("b", "--data lmdb --threads 2");
    assert_eq!(hash_of(&from_folder), hash_of(&from_lmdb));
    assert_eq!(from_folder["accuracy"], from_lmdb["accuracy"]);
    let trained =
        |run: &str, data: &str| hash_of(&stage.train(run, &format!("--data {data} --test-interval 0")));
    assert_eq!(trained("c", "images"), trained("d", "tars.tar"));
}

#[test]
fn bad_records_are_counted_and_listed_or_end_the_run() {
    let stage = stage();
    stage.write("images/train/dark/07.png", "no image");
    stage.write("images/train/light/03.png", "");
    let outcome = stage.run("train --solver solver.prototxt --run a --data images");
    assert_eq!(outcome.code, Some(65));
    assert!(outcome.stderr.contains("starts with 6e 6f 20 69") || outcome.stderr.contains("is empty"));
    assert!(outcome.stderr.contains("--bad-record skip"), "{}", outcome.stderr);
    let outcome = stage.succeed("train --solver solver.prototxt --run b --data images --bad-record 2");
    assert!(outcome.stdout.contains("bad records 2 of 60 of train"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("dark/07.png") && outcome.stdout.contains("light/03.png"));
    assert!(outcome.stdout.contains("% waiting for data"));
    assert_eq!(stage.summary("b")["bad_records"], 2);
}

#[test]
fn labels_that_are_no_classes_are_bad_records_in_lists_as_in_an_lmdb() {
    let stage = stage();
    let line = |i: usize| format!("images/train/dark/{i:02}.png {}\n", if i == 7 { 12 } else { i % 2 });
    stage.write("list.txt", (0..30).map(line).collect::<String>());
    stage.succeed("convert data list.txt lmdb");
    for data in ["list.txt", "lmdb"] {
        let command = |flags: &str| {
            format!("train --solver solver.prototxt --test-interval 0 --data {data} --run {data}-run {flags}")
        };
        let outcome = stage.run(&command(""));
        assert_eq!(outcome.code, Some(65), "{}", outcome.stderr);
        for part in ["has the label 12, but layer \"loss\"", "--bad-record skip"] {
            assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
        }
        let run = stage.path(&format!("{data}-run"));
        if run.exists() {
            fs::remove_dir_all(run).expect("the folder of the run");
        }
        let outcome = stage.succeed(&command("--bad-record 1"));
        assert!(outcome.stdout.contains(&format!("bad records 1 of 30 of {data}")), "{}", outcome.stdout);
    }
}

#[test]
fn convert_overwrites_nothing_and_leaves_nothing_half_done() {
    let stage = stage();
    stage.write("there", "mine");
    let outcome = stage.run("convert data images there");
    assert_eq!((outcome.code, fs::read(stage.path("there")).expect("a file")), (Some(73), b"mine".to_vec()));
    let outcome = stage.run("convert data shapes shapes.tar");
    assert_eq!(outcome.code, Some(65));
    assert!(outcome.stderr.contains("is no image file") && outcome.stderr.contains("make an LMDB"));
    assert!(!stage.path("shapes.tar").exists() && !stage.path("shapes.tar.part").exists());
    stage.write("list.txt", "images/train/dark/00.png 7\nimages/train/light/00.png 3\n");
    for target in ["x.tar", "x --shards 1", "x --shard-size 1"] {
        let outcome = stage.run(&format!("convert data list.txt {target}"));
        assert_eq!(outcome.code, Some(65), "{target}: {outcome:?}");
        let part = "dark/00.png\" has the label 7, but whoever reads a tar gives it 0";
        assert!(outcome.stderr.contains(part) && outcome.stderr.contains("make an LMDB"), "{outcome:?}");
        assert!(!stage.path("x.tar").exists() && !stage.path("x").exists());
    }
    // Values that are not images, too, and shuffled: the same number of records.
    stage.succeed("convert data shapes shapes_lmdb --shuffle");
    assert_eq!(stage.run("convert data nowhere x").code, Some(66));
    assert_eq!(fs::read_dir(stage.path("shapes_lmdb")).expect("a folder").count(), 1);
}

#[test]
fn convert_makes_every_kind_of_data_set() {
    let stage = stage();
    stage.succeed("convert data images/train shards --shards 4 --shuffle --seed 9");
    let mut names: Vec<_> = fs::read_dir(stage.path("shards"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    assert_eq!(names, ["shards-000000.tar", "shards-000001.tar", "shards-000002.tar", "shards-000003.tar"]);
    let trained = |run: &str, data: &str| {
        hash_of(&stage.train(run, &format!("--data {data} --test-interval 0 --max-iter 3")))
    };
    assert_eq!(trained("a", "images/train"), trained("b", "shards/shards-*.tar"));
    // Decoded or not, resized before or not: a mini-batch is the same.
    stage.succeed("convert data images/train raw --raw");
    assert_eq!(trained("c", "images/train"), trained("d", "raw"));
    stage.succeed("convert data images/train cifar.bin --resize 32,32");
    assert_eq!(fs::metadata(stage.path("cifar.bin")).expect("a file").len(), 60 * 3073);
    let outcome = stage.succeed("convert mean images/train mean.binaryproto --gray --resize 12,8");
    assert!(outcome.stdout.contains("1 x 12 x 8 means of 60 records of train"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("mean_value  channel 0: "), "{}", outcome.stdout);
    assert_eq!(stage.run("convert mean images/train mean.binaryproto").code, Some(73));
    for _ in 0..2 {
        stage.edit("net.prototxt", "scale: 0.00390625", "mean_file: \"mean.binaryproto\"");
    }
    stage.succeed("convert data images/train small --gray --resize 12,8");
    trained("e", "small");
}

#[test]
fn flags_of_convert_that_contradict_each_other_are_refused() {
    let stage = stage();
    for (flags, part) in [
        ("x.tar --raw", "a tar holds image files"),
        ("x --shards 2 --raw", "a tar holds image files"),
        ("x.bin --encoded", "CIFAR's format holds values"),
        ("x --raw --encode-type png", "--raw conflicts with --encode-type"),
        ("x --raw --encoded", "--raw"),
        ("x --gray --color", "--color"),
        ("x --seed 3", "--shuffle"),
        ("x.tar --shards 2", "no .tar or .bin"),
        ("x --shards 2 --shard-size 9", "--shard-size"),
        ("x --shards 61", "there are only 60 records"),
        ("x --resize 12", "height and width"),
        ("x --encode-type gif", "expected jpg or png"),
    ] {
        let outcome = stage.run(&format!("convert data images {flags}"));
        assert_eq!(outcome.code, Some(2), "{flags}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(part), "{flags}: {}", outcome.stderr);
    }
    assert!(!stage.path("x").exists());
    let outcome = stage.run("convert data shapes x.bin");
    assert_eq!(outcome.code, Some(65));
    assert!(outcome.stderr.contains("CIFAR wants 3 x 32 x 32"), "{}", outcome.stderr);
}

#[test]
fn workers_read_parts_of_their_own_and_copies_change_nothing() {
    let stage = stage();
    stage.succeed("convert data images/train shards --shards 4 --shuffle");
    let trained = |run: &str, flags: &str| {
        let flags = format!("--data shards/shards-*.tar --test-interval 0 --max-iter 6 --workers 2 {flags}");
        hash_of(&stage.train(run, &flags))
    };
    let all = trained("a", "");
    let rank = trained("b", "--data-shards rank");
    assert_ne!(all, rank);
    assert_eq!(trained("c", "--data-shards rank --stage-to node"), rank);
    assert_eq!(trained("d", "--stage-to node"), all);
    let copies = || fs::read_dir(stage.path("node")).expect("a folder").count();
    assert_eq!(copies(), 2, "one copy and its lock");
    // A run on parts goes on from a snapshot to the same bits.
    stage.edit("solver.prototxt", "display: 10", "display: 10\nsnapshot: 3");
    let flags = "--data shards/shards-*.tar --test-interval 0 --workers 2 --data-shards rank";
    assert_eq!(hash_of(&stage.train("e", &format!("{flags} --max-iter 6"))), rank);
    let first = stage.path("e/snapshots");
    let snapshot = fs::read_dir(first).expect("a folder").map(|entry| entry.expect("an entry").path());
    let snapshot = snapshot.filter(|path| path.display().to_string().ends_with("iteration_3"));
    let snapshot = snapshot.map(|path| path.display().to_string()).next().expect("a snapshot");
    let goes_on = |run: &str, flags: &str| {
        stage.run(&format!(
            "train --solver solver.prototxt --run {run} {flags} --max-iter 6 --snapshot {snapshot}"
        ))
    };
    let outcome = goes_on("f", flags);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(hash_of(&stage.summary("f")), rank);
    let outcome = goes_on("g", "--data shards/shards-*.tar --test-interval 0 --workers 2");
    assert_eq!(outcome.code, Some(65), "{}", outcome.stderr);
    for (flags, part) in [
        (
            "--data-shards rank --workers 5 --data shards/shards-*.tar",
            "5 workers cannot share the 4 tar files",
        ),
        ("--data-shards some", "rank"),
        ("--dummy-data --stage-to node", "--stage-to"),
    ] {
        let outcome = stage.run(&format!("train --solver solver.prototxt --run x --threads 1 {flags}"));
        assert_eq!(outcome.code, Some(2), "{flags}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(part), "{flags}: {}", outcome.stderr);
    }
    assert_eq!(stage.run("time --model net.prototxt --stage-to node").code, Some(2));
    let outcome = stage.succeed("test --model net.prototxt --weights e/snapshots/iteration_6.caffemodel --data images --stage-to node");
    assert!(outcome.stderr.contains("copied and checked"), "{}", outcome.stderr);
    assert_eq!(copies(), 4);
    let outcome = stage.run("train --solver solver.prototxt --run y --data shards --stage-to net.prototxt");
    assert_eq!(outcome.code, Some(73), "{}", outcome.stderr);
}

#[test]
fn a_layer_of_type_memory_data_is_given_arrays() {
    let stage = Stage::new();
    for _ in 0..2 {
        stage.edit("net.prototxt", "type: \"Data\"", "type: \"MemoryData\"");
        stage.edit(
            "net.prototxt",
            "data_param { source: \"shapes\" batch_size",
            "memory_data_param { channels: 1 height: 12 width: 12 batch_size",
        );
    }
    stage.succeed("check net.prototxt");
    stage.succeed("train --solver solver.prototxt --run a --dummy-data --max-iter 2");
    let outcome = stage.run("train --solver solver.prototxt --run b");
    assert_eq!(outcome.code, Some(66));
    assert!(outcome.stderr.contains("--data FILE.npz"), "{}", outcome.stderr);
    // Any data set will do; here that of the other tests, which has its parts for both phases.
    let from_files = stage.train("c", "--data shapes");
    let arrays = |count: usize, side: usize| {
        let data = Array { shape: vec![count, side, side], values: Values::U8(vec![9; count * side * side]) };
        let label = Array { shape: vec![count], values: Values::I32(vec![3; count]) };
        Archive::from([("data".to_owned(), data), ("label".to_owned(), label)])
    };
    write_npz(&stage.path("set.npz"), &arrays(70, 12)).expect("a new file");
    let summary = stage.train("d", "--data set.npz");
    assert_eq!(summary["accuracy"], 1.0, "{summary}");
    assert_ne!(hash_of(&summary), hash_of(&from_files));
    write_npz(&stage.path("small.npz"), &arrays(70, 11)).expect("a new file");
    let outcome = stage.run("train --solver solver.prototxt --run e --data small.npz");
    assert_eq!(outcome.code, Some(64));
    let part = "the layer says 1 x 12 x 12 (channels x height x width), but the samples that it is given are 1 x 11 x 11";
    assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
}

/// A list names images beside it and elsewhere, and files of windows do.
#[test]
fn copies_of_what_lists_name_change_nothing() {
    let stage = stage();
    let images = |class: &str, phase: &str| -> Vec<String> {
        (0..25).map(|i| format!("images/{phase}/{class}/{i:02}.png")).collect()
    };
    let both = |phase: &str| [images("dark", phase), images("light", phase)];
    let lines = |paths: &[String], label: u8| -> String {
        paths.iter().map(|path| format!("{path} {label}\n")).collect()
    };
    let [dark, light] = both("train");
    stage.write("list.txt", format!("{}{}", lines(&dark, 0), lines(&light, 1)));
    let windows: String = [&dark, &light]
        .iter()
        .flat_map(|paths| paths.iter())
        .enumerate()
        .map(|(i, path)| format!("# {i}\n{path}\n3 12 12\n2\n{} 0.9 1 1 10 9\n0 0.1 0 2 7 11\n", 1 + i / 25))
        .collect();
    stage.write("windows.txt", windows);
    let trained = |run: &str, flags: &str| {
        let told = stage.succeed(&format!(
            "train --solver solver.prototxt --run {run} --test-interval 0 --max-iter 6 {flags}"
        ));
        (hash_of(&stage.summary(run)), told.stderr)
    };
    let unchanged = |run: &str, flags: &str, source: &str| {
        let (plain, _) = trained(run, flags);
        for how in ["copied and checked", "found there and checked"] {
            let run = format!("{run}_{}", how.replace(' ', "_"));
            let node = format!("{flags} --stage-to node_{source}");
            let (hash, told) = trained(&run, &node);
            assert_eq!(hash, plain, "{run}");
            assert!(told.contains(how), "{told}");
        }
        let entries = fs::read_dir(stage.path(&format!("node_{source}"))).expect("a folder").flatten();
        let mut copies =
            entries.map(|entry| entry.path().join("files/images/train")).filter(|path| path.is_dir());
        let copy = copies.next().expect("a copy");
        let count = |class: &str| fs::read_dir(copy.join(class)).expect("a folder").count();
        assert_eq!(count("dark") + count("light"), 50);
    };
    unchanged("all", "--data list.txt", "list");
    fs::remove_dir_all(stage.path("node_list")).expect("the copy");
    unchanged("rank", "--data list.txt --workers 2 --data-shards rank", "list");
    stage.edit("net.prototxt", "type: \"Data\"", "type: \"WindowData\"");
    stage.edit("net.prototxt", "scale: 0.00390625", "scale: 0.00390625 crop_size: 12");
    stage.edit(
        "net.prototxt",
        "data_param { source: \"shapes\"",
        "window_data_param { source: \"windows.txt\"",
    );
    unchanged("windows", "", "windows");
    // An image that is not there is a bad record, with its own name, whether others are copied or not.
    fs::remove_file(stage.path("images/train/dark/07.png")).expect("an image");
    for (run, flags) in [("bad", ""), ("bad_copied", "--stage-to node")] {
        let outcome = stage.run(&format!(
            "train --solver solver.prototxt --run {run} --test-interval 0 --max-iter 60 {flags}"
        ));
        assert_eq!(outcome.code, Some(65), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("of image \"images/train/dark/07.png\""), "{}", outcome.stderr);
    }
}
