//! `train --inputs`: mini-batches and parameters from a file of arrays.

use quadrille_io::npz::{Archive, Array, Values, write_npz};

use crate::common::{SIDE, Stage, hash_of};

/// Images of a mini-batch.
const BATCH: usize = 6;

fn array(shape: &[usize], value: impl Fn(usize) -> f32) -> Array {
    let count = shape.iter().product();
    Array { shape: shape.to_vec(), values: Values::F32((0..count).map(value).collect()) }
}

/// So many mini-batches of noise, with labels.
fn mini_batches(count: usize) -> Archive {
    let noise = |i: usize| ((i * 7919) % 1009) as f32 / 1009.0;
    [
        ("in/data".to_owned(), array(&[count, BATCH, 1, SIDE, SIDE], noise)),
        ("in/label".to_owned(), array(&[count, BATCH], |i| (i * 3 % 10) as f32)),
    ]
    .into()
}

fn stage(arrays: &Archive) -> Stage {
    let stage = Stage::new();
    write_npz(&stage.path("in.npz"), arrays).expect("a file");
    stage
}

const TRAIN: &str = "train --solver solver.prototxt --inputs in.npz --test-interval 0 --max-iter 6 --run";

fn losses(stage: &Stage, run: &str) -> Vec<f64> {
    stage.metrics(run).iter().filter_map(|record| record["loss"].as_f64()).collect()
}

#[test]
fn a_network_with_a_data_layer_trains_on_arrays_in_its_place() {
    let stage = stage(&mini_batches(3));
    let told = stage.succeed(&format!("{TRAIN} run --threads 1")).stdout;
    assert!(told.contains("in.npz: 3 mini-batch(es) of 6"), "{told}");
    stage.succeed(&format!("{TRAIN} again --threads 2"));
    assert_eq!(losses(&stage, "run"), losses(&stage, "again"));
    // Every third mini-batch is the same, so the loss on it falls.
    let losses = losses(&stage, "run");
    assert!((0..3).all(|i| losses[i + 3] < losses[i]), "{losses:?}");
}

#[test]
fn workers_take_turns_and_quadrants_share_a_mini_batch() {
    let stage = stage(&mini_batches(3));
    // Without a pull and without a rate, each worker sees nothing but its mini-batches.
    let solver = crate::common::SOLVER.replace("base_lr: 0.05", "base_lr: 0.0000001");
    stage.write("solver.prototxt", solver);
    stage.succeed(&format!("{TRAIN} one"));
    stage.succeed(&format!("{TRAIN} two --workers 2 --method sync-sgd"));
    let (one, two) = (losses(&stage, "one"), losses(&stage, "two"));
    for (iteration, loss) in two.iter().enumerate() {
        let expected = one[2 * iteration % 3];
        assert!((loss - expected).abs() < 1e-5 * expected, "{one:?} {two:?}");
    }
    stage.succeed(&format!("{TRAIN} quadrants --quadrants 2"));
    for (loss, expected) in losses(&stage, "quadrants").iter().zip(&one) {
        assert!((loss - expected).abs() < 1e-5 * expected, "{one:?}");
    }
}

#[test]
fn several_mini_batches_of_an_iteration_have_a_loss_each() {
    let stage = stage(&mini_batches(2));
    stage.write("solver.prototxt", format!("{}iter_size: 2\n", crate::common::SOLVER));
    stage.succeed(&format!("{TRAIN} run"));
    for record in stage.metrics("run").iter().filter(|record| record["lr"].is_number()) {
        let each: Vec<f64> =
            record["losses"].as_array().expect("losses").iter().filter_map(|l| l.as_f64()).collect();
        let [first, second] = each[..] else { panic!("{record}") };
        let loss = record["loss"].as_f64().expect("a loss");
        assert!(first != second && ((first + second) / 2.0 - loss).abs() < 1e-6, "{record}");
    }
}

#[test]
fn a_run_starts_from_the_parameters_that_are_given() {
    let mut arrays = mini_batches(1);
    arrays.insert("init/conv/0".to_owned(), array(&[6, 1, 5, 5], |i| i as f32 / 1000.0));
    let stage = stage(&arrays);
    let told = stage.succeed(&format!("{TRAIN} run")).stdout;
    assert!(told.contains("start       1 parameter(s) of in.npz"), "{told}");
    write_npz(&stage.path("in.npz"), &mini_batches(1)).expect("a file");
    stage.succeed(&format!("{TRAIN} other"));
    assert_ne!(hash_of(&stage.summary("run")), hash_of(&stage.summary("other")));
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let refused = |change: &dyn Fn(&mut Archive), expected: &[&str]| {
        let mut arrays = mini_batches(2);
        change(&mut arrays);
        let outcome = stage(&arrays).run(&format!("{TRAIN} run"));
        assert_eq!(outcome.code, Some(65), "{}", outcome.stderr);
        for text in expected {
            assert!(outcome.stderr.contains(text), "{} lacks {text}", outcome.stderr);
        }
    };
    refused(
        &|arrays| {
            let labels = arrays.remove("in/label").expect("labels");
            arrays.insert("in/labels".to_owned(), labels);
        },
        &["it has no array \"in/label\"", "did you mean \"in/labels\""],
    );
    refused(
        &|arrays| drop(arrays.insert("in/label".to_owned(), array(&[3, BATCH], |_| 0.0))),
        &["in/label has 3 mini-batches, but in/data has 2"],
    );
    refused(
        &|arrays| drop(arrays.insert("in/data".to_owned(), array(&[BATCH, SIDE * SIDE], |_| 0.0))),
        &["in/data has shape [6, 144]; expected 4 axes for one mini-batch, or 5 for several"],
    );
    refused(
        &|arrays| drop(arrays.insert("init/conv/2".to_owned(), array(&[6], |_| 0.0))),
        &["init/conv/2: the network has no such parameter", "did you mean \"conv/"],
    );
    refused(
        &|arrays| drop(arrays.insert("init/conv/1".to_owned(), array(&[7], |_| 0.0))),
        &["init/conv/1 has shape [7]; the parameter has 6 values"],
    );
    refused(
        &|arrays| drop(arrays.insert("in/data".to_owned(), array(&[0, BATCH, 1, SIDE, SIDE], |_| 0.0))),
        &["no values"],
    );
    for flags in ["--batch 3", "--stage-to node", "--data-shards rank"] {
        let outcome = stage(&mini_batches(1)).run(&format!("{TRAIN} run {flags}"));
        assert_eq!(outcome.code, Some(2), "{flags}: {}", outcome.stderr);
    }
}
