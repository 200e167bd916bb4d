//! Training on made-up data, and mini-batches of another size.

use crate::common::{Stage, hash_of};

/// A stage whose network names a data set that is nowhere.
fn without_data() -> Stage {
    let stage = Stage::new();
    for _ in 0..2 {
        stage.edit("net.prototxt", "source: \"shapes\"", "source: \"nowhere/some_set\"");
    }
    stage
}

#[test]
fn a_network_trains_on_made_up_data() {
    let stage = without_data();
    let refused = stage.run("train --solver solver.prototxt --run a");
    assert_eq!(refused.code, Some(66), "{}", refused.stderr);
    let flags = "--dummy-data --data-shape 1,12,12";
    let first = stage.train("b", flags);
    assert_eq!(first["iterations"], 20);
    let again = stage.train("c", flags);
    assert_eq!(hash_of(&first), hash_of(&again));
    // Ten classes by chance, so that some mini-batches of a test are right now and then, and none always.
    let accuracy = first["accuracy"].as_f64().expect("an accuracy");
    assert!((0.0..0.5).contains(&accuracy), "{accuracy}");
    let other = stage.train("d", &format!("{flags} --batch 7"));
    assert_ne!(hash_of(&first), hash_of(&other));
}

#[test]
fn a_bundled_network_trains_by_its_own_solver() {
    let stage = Stage::new();
    let said = stage
        .succeed("train --model cifar10_quick --dummy-data --batch 4 --max-iter 1 --test-interval 0 --run a");
    let solver = said.stdout.lines().next().unwrap_or_default();
    assert!(solver.ends_with("models/cifar10_quick/solver.prototxt"), "{solver}");
    // The rate of that, and not of LeNet's.
    assert_eq!(stage.metrics("a")[0]["lr"].as_f64().map(|rate| rate as f32), Some(0.001));
}

/// What the net of a solver's state has classes for.
#[test]
fn the_state_of_the_solver_counts() {
    let stage = without_data();
    stage.edit("net.prototxt", "type: \"InnerProduct\"", "type: \"InnerProduct\" include { stage: \"on\" }");
    stage.edit(
        "solver.prototxt",
        "display: 10",
        "display: 10\ntrain_state { stage: \"on\" }\ntest_state { stage: \"on\" }",
    );
    assert_eq!(stage.train("a", "--dummy-data --data-shape 1,12,12")["iterations"], 20);
}

#[test]
fn the_first_lines_say_that_the_data_is_made_up() {
    let stage = without_data();
    let flags = "--dummy-data --data-shape 3,16,12 --batch 6 --max-iter 1 --test-interval 0";
    let outcome = stage.succeed(&format!("train --solver solver.prototxt --run a {flags}"));
    let line = "made-up data: 24 images 3x16x12, mini-batches of 6";
    assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
}

#[test]
fn what_is_cut_out_gives_the_shape() {
    let stage = without_data();
    for _ in 0..2 {
        stage.edit("net.prototxt", "scale: 0.00390625", "crop_size: 13");
    }
    let outcome = stage.succeed("train --solver solver.prototxt --run a --dummy-data --max-iter 1");
    assert!(outcome.stdout.contains("images 3x13x13"), "{}", outcome.stdout);
}

#[test]
fn contradictions_are_refused() {
    let stage = without_data();
    let refused = |flags: &str, code: i32, part: &str| {
        let outcome = stage.run(&format!("train --solver solver.prototxt --run a {flags}"));
        assert_eq!(outcome.code, Some(code), "{flags}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(part), "{flags}: {}", outcome.stderr);
    };
    refused("--dummy-data", 64, "net.prototxt:9: layer \"shapes\": data_param.source: the shape");
    refused("--dummy-data --data-shape 1,12,12 --data shapes", 2, "--data");
    refused("--data-shape 1,12,12", 2, "--dummy-data");
    refused("--dummy-data --data-shape 1,12,12 --bad-record 3", 2, "--bad-record: data that is made up");
    refused("--dummy-data --data-shape 1,12", 2, "such as 3,32,32");
    refused("--dummy-data --data-shape 1,12,12 --batch 4000000", 2, "--batch");
    stage.edit("net.prototxt", "scale: 0.00390625", "crop_size: 13");
    refused(
        "--dummy-data --data-shape 1,12,12",
        64,
        "transform_param.crop_size: 13; the samples are only 12 x 12",
    );
}

#[test]
fn a_test_takes_a_batch() {
    let stage = Stage::new();
    stage.succeed("train --solver solver.prototxt --run a --max-iter 20");
    let weights = caffemodel(&stage);
    let outcome = stage.succeed(&format!("test --model net.prototxt --weights {weights} --batch 40"));
    assert!(outcome.stdout.contains("5 mini-batches of 40"), "{}", outcome.stdout);
    let usual = stage.succeed(&format!("test --model net.prototxt --weights {weights}"));
    let accuracy = |text: &str| text.lines().find(|l| l.starts_with("accuracy")).map(str::to_owned);
    assert_eq!(accuracy(&outcome.stdout), accuracy(&usual.stdout));
}

/// The weights that the run `a` left.
fn caffemodel(stage: &Stage) -> String {
    let folder = stage.path("a/snapshots");
    let entries = std::fs::read_dir(&folder).expect("snapshots").map(|e| e.expect("an entry").path());
    let found = entries.into_iter().find(|p| p.extension().is_some_and(|e| e == "caffemodel"));
    found.expect("weights").display().to_string()
}
