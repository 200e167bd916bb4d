//! `quadrille extract`: what goes in, what comes out, and what is refused.

use quadrille_io::npz::{Archive, Array, Values, read_npz, write_npz};

use crate::common::{CLASSES, SIDE, Stage};

const IMAGES: usize = 3;

fn array(shape: &[usize], value: impl Fn(usize) -> f32) -> Array {
    let count = shape.iter().product();
    Array { shape: shape.to_vec(), values: Values::F32((0..count).map(value).collect()) }
}

/// A mini-batch for the stage's network.
fn inputs() -> Archive {
    let data = array(&[IMAGES, 1, SIDE, SIDE], |i| (i % 17) as f32 / 17.0);
    let label = Array { shape: vec![IMAGES], values: Values::I32(vec![1, 0, 9]) };
    [("in/data".to_owned(), data), ("in/label".to_owned(), label)].into()
}

fn stage(arrays: &Archive) -> Stage {
    let stage = Stage::new();
    write_npz(&stage.path("in.npz"), arrays).expect("an archive");
    stage
}

fn values(array: &Array) -> &[f32] {
    match &array.values {
        Values::F32(values) => values,
        other => panic!("{} values of another kind", other.len()),
    }
}

const COMMAND: &str = "extract --model net.prototxt --inputs in.npz --out out.npz";

#[test]
fn a_mini_batch_of_any_size_in_either_phase() {
    let stage = stage(&inputs());
    stage.succeed(COMMAND);
    let tested = read_npz(&stage.path("out.npz")).expect("an archive");
    assert!(tested.keys().all(|key| key.starts_with("blob/")), "{:?}", tested.keys());
    assert_eq!(tested["blob/ip"].shape, [IMAGES, CLASSES]);
    assert!(tested.contains_key("blob/accuracy") && !tested.contains_key("blob/data"));

    stage.succeed(&format!("{COMMAND} --backward --threads 1"));
    let trained = read_npz(&stage.path("out.npz")).expect("an archive");
    assert!(!trained.contains_key("blob/accuracy"), "that layer is of the other phase");
    assert_eq!(trained["blob/ip"], tested["blob/ip"], "nothing changes the weights in between");
    assert_eq!(trained["diff/ip"].shape, [IMAGES, CLASSES]);
    // The gradient of the scores is probability minus answer, a mean over images: each image's sums to 0.
    for image in values(&trained["diff/ip"]).chunks(CLASSES) {
        assert!(image.iter().sum::<f32>().abs() < 1e-6 && image.iter().any(|g| *g < 0.0), "{image:?}");
    }
    assert_eq!(trained["pdiff/conv/0"].shape, [6, 1, 5, 5]);
}

#[test]
fn parameters_from_outside() {
    let mut arrays = inputs();
    arrays.insert("param/ip/1".into(), array(&[CLASSES], |i| i as f32));
    let stage = stage(&arrays);
    stage.succeed(COMMAND);
    let with = read_npz(&stage.path("out.npz")).expect("an archive");
    arrays.remove("param/ip/1");
    write_npz(&stage.path("in.npz"), &arrays).expect("an archive");
    stage.succeed(COMMAND);
    let without = read_npz(&stage.path("out.npz")).expect("an archive");
    let pairs = values(&with["blob/ip"]).iter().zip(values(&without["blob/ip"])).enumerate();
    pairs.for_each(|(i, (a, b))| assert!((a - b - (i % CLASSES) as f32).abs() < 1e-4, "{i}: {a} and {b}"));
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |change: &dyn Fn(&mut Archive), flags: &str, code: i32, says: &[&str]| {
        let mut arrays = inputs();
        change(&mut arrays);
        let outcome = stage(&arrays).run(&format!("{COMMAND} {flags}"));
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
        says.iter().for_each(|part| assert!(outcome.stderr.contains(part), "{part:?}: {}", outcome.stderr));
    };
    let none = |_: &mut Archive| {};
    let renamed = |arrays: &mut Archive| {
        let data = arrays.remove("in/data").expect("it is there");
        arrays.insert("in/dat".into(), data);
    };
    refused(&renamed, "", 65, &["in.npz", "no array \"in/data\"", "did you mean \"in/dat\"?"]);
    let few = |arrays: &mut Archive| drop(arrays.insert("param/ip/1".into(), array(&[3], |_| 0.0)));
    refused(&few, "", 65, &["param/ip/1 has shape [3]", "10 values"]);
    let unknown = |arrays: &mut Archive| drop(arrays.insert("param/ip/2".into(), array(&[3], |_| 0.0)));
    refused(&unknown, "", 65, &["no such parameter", "did you mean"]);
    let seeds = |arrays: &mut Archive| drop(arrays.insert("seed/pooled".into(), array(&[3], |_| 0.0)));
    refused(&seeds, "--backward", 64, &["no layer above makes the blob \"pooled\""]);
    let loss = |arrays: &mut Archive| drop(arrays.insert("seed/loss".into(), array(&[], |_| 2.0)));
    refused(&loss, "--backward", 65, &["seed/loss", "loss_weight"]);
    let image = |arrays: &mut Archive| drop(arrays.insert("in/data".into(), array(&[3, 1, 2, 2], |_| 0.0)));
    refused(&image, "", 64, &["conv", "kernel"]);
    refused(&none, "--phase both", 2, &["--phase", "train", "test"]);
    refused(&none, "--weights nothing.caffemodel", 66, &["nothing.caffemodel"]);
    let outcome = Stage::new().run(COMMAND);
    assert_eq!((outcome.code, outcome.stderr.contains("in.npz")), (Some(66), true), "{}", outcome.stderr);
}
