//! The same images in a folder, a tar and an LMDB.

use std::fs;
use std::path::Path;

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
fn convert_overwrites_nothing_and_leaves_nothing_half_done() {
    let stage = stage();
    stage.write("there", "mine");
    let outcome = stage.run("convert data images there");
    assert_eq!((outcome.code, fs::read(stage.path("there")).expect("a file")), (Some(73), b"mine".to_vec()));
    let outcome = stage.run("convert data shapes shapes.tar");
    assert_eq!(outcome.code, Some(65));
    assert!(outcome.stderr.contains("is no image file") && outcome.stderr.contains("make an LMDB"));
    assert!(!stage.path("shapes.tar").exists() && !stage.path("shapes.tar.part").exists());
    // Values that are not images, too, and shuffled: the same number of records.
    stage.succeed("convert data shapes shapes_lmdb --shuffle");
    assert_eq!(stage.run("convert data nowhere x").code, Some(66));
    assert_eq!(fs::read_dir(stage.path("shapes_lmdb")).expect("a folder").count(), 1);
}
