//! A run that goes on from any of its iterations ends with the same bits as one that never stopped: all of its state,
//! which the manifests of their last snapshots hold the hashes of.

use std::fs;

use crate::common::{NET, Stage};

const ITERATIONS: u64 = 7;

/// A dropout, whose masks are drawn anew in each step.
const DROPOUT: &str = "layer { name: \"drop\" type: \"Dropout\" bottom: \"pool\" top: \"pool\" \
                       dropout_param { dropout_ratio: 0.4 } }\nlayer {\n  name: \"ip\"";

const SOLVERS: [(&str, &str); 4] = [
    ("SGD", "base_lr: 0.05 momentum: 0.9 lr_policy: \"inv\" gamma: 0.1 power: 0.75"),
    ("Adam", "type: \"Adam\" base_lr: 0.003 momentum: 0.9 momentum2: 0.99 lr_policy: \"fixed\" iter_size: 2"),
    (
        "plateau",
        "base_lr: 0.02 momentum: 0.9 lr_policy: \"plateau\" gamma: 0.5 plateau_winsize: [1, 1, 2] average_loss: 3",
    ),
    (
        "all",
        "type: \"Adam\" base_lr: 0.003 lr_policy: \"plateau\" gamma: 0.5 plateau_winsize: [1, 2] iter_size: 2 \
         average_loss: 2 clip_gradients: 0.5",
    ),
];

/// Images as sequences of five, whose LSTM goes on in each mini-batch where it ended in the last, in both phases.
fn sequences() -> String {
    let data = &NET[..NET.find("layer {\n  name: \"conv\"").expect("a layer")];
    let reshape = |bottom: &str, top: &str, shape: &str| {
        format!(
            "layer {{ name: \"{top}\" type: \"Reshape\" bottom: \"{bottom}\" top: \"{top}\" \
             reshape_param {{ shape {{ {shape} }} }} }}\n"
        )
    };
    [
        data.to_owned(),
        reshape("data", "x", "dim: 5 dim: -1 dim: 144"),
        reshape("label", "labels", "dim: 5 dim: -1"),
        "layer { name: \"cont\" type: \"Threshold\" bottom: \"labels\" top: \"cont\" \
         threshold_param { threshold: 1.5 } }
         layer { name: \"lstm\" type: \"LSTM\" bottom: \"x\" bottom: \"cont\" top: \"lstm\" \
         recurrent_param { num_output: 8 weight_filler { type: \"xavier\" } } }
         layer { name: \"ip\" type: \"InnerProduct\" bottom: \"lstm\" top: \"ip\" \
         inner_product_param { num_output: 10 axis: 2 weight_filler { type: \"xavier\" } } }
         layer { name: \"loss\" type: \"SoftmaxWithLoss\" bottom: \"ip\" bottom: \"labels\" top: \"loss\" \
         softmax_param { axis: 2 } }\n"
            .to_owned(),
    ]
    .concat()
}

/// Trains with a snapshot in each iteration, then goes on from each, and compares the ends.
fn goes_on_from_every_iteration(way: &str) {
    let net = NET.replacen("layer {\n  name: \"ip\"", DROPOUT, 1);
    assert!(net.contains("Dropout"), "this test tests nothing");
    let net = net.replace("scale: 0.00390625", "scale: 0.00390625 mirror: true");
    for (name, fields) in SOLVERS {
        let stage = Stage::new();
        goes_on(&stage, &net, name, fields, way);
    }
}

fn goes_on(stage: &Stage, net: &str, name: &str, fields: &str, way: &str) {
    stage.write("net.prototxt", net);
    stage.write(
        "solver.prototxt",
        format!(
            "net: \"net.prototxt\"\n{fields}\nweight_decay: 0.0005 max_iter: {ITERATIONS} test_iter: 2 \
                 test_interval: 3 random_seed: 7 snapshot: 1\n"
        ),
    );
    stage.train("whole", way);
    let end = |run: &str| {
        let path = stage.path(&format!("{run}/snapshots/iteration_{ITERATIONS}/manifest.json"));
        fs::read_to_string(path).expect("a manifest")
    };
    let whole = end("whole");
    let losses = |run: &str| -> Vec<String> {
        let records = stage.metrics(run);
        records.iter().filter(|r| r.get("loss").is_some()).map(|r| r["loss"].to_string()).collect()
    };
    let mut states = vec![whole.clone()];
    for from in 1..ITERATIONS {
        let (run, snapshot) = (format!("from{from}"), format!("whole/snapshots/iteration_{from}"));
        stage.train(&run, &format!("{way} --snapshot {snapshot}"));
        assert_eq!(end(&run), whole, "{name} {way}, from iteration {from}");
        assert_eq!(losses(&run), losses("whole")[from as usize..], "{name} {way}, from iteration {from}");
        states.push(fs::read_to_string(stage.path(&snapshot).join("manifest.json")).expect("a manifest"));
    }
    states.sort_unstable();
    states.dedup();
    assert_eq!(states.len() as u64, ITERATIONS, "mistrusted: two iterations have the same state");
}

#[test]
fn layers_that_keep_a_state() {
    let (name, fields) = SOLVERS[0];
    for way in ["--workers 1", "--workers 2", "--workers 2 --method sync-sgd"] {
        let stage = Stage::new();
        goes_on(&stage, &sequences(), name, fields, way);
        let layers = stage.path("whole/snapshots/iteration_3/layers0.safetensors");
        let bytes = fs::read(layers).expect("what layers keep");
        let zeros = bytes.iter().filter(|byte| **byte == 0).count();
        assert!(zeros < bytes.len() / 2, "mistrusted: the states are zeros");
        let [whole, rest] = ["whole", "from4"].map(|run| stage.summary(run)["test_loss"].clone());
        assert!(whole.is_number() && whole == rest, "{way}: {whole} and {rest}");
    }
}

#[test]
fn one_worker() {
    goes_on_from_every_iteration("--workers 1 --threads 1");
}

#[test]
fn four_workers_around_a_centre() {
    goes_on_from_every_iteration("--workers 4 --threads 1");
}

#[test]
fn four_workers_that_share_gradients() {
    goes_on_from_every_iteration("--workers 4 --threads 1 --method sync-sgd");
}
