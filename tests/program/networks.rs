//! The networks of a solver: every way to name them, several to test, weights to start from, and a look inside.

use serde_json::Value;

use crate::common::{NET, Stage, hash_of};

/// A solver without a network.
const SOLVER: &str = "base_lr: 0.05 lr_policy: \"fixed\" momentum: 0.9 max_iter: 12 display: 5 test_interval: 6 random_seed: 7\n";

fn tests(stage: &Stage, run: &str) -> Vec<Value> {
    stage.metrics(run).into_iter().filter(|record| record.get("test_loss").is_some()).collect()
}

/// Writes a solver, trains and returns the hash of the weights.
fn train(stage: &Stage, run: &str, fields: &str) -> String {
    stage.write("solver.prototxt", format!("{SOLVER}{fields}\n"));
    hash_of(&stage.train(run, ""))
}

#[test]
fn a_network_is_the_same_however_it_is_named() {
    let stage = Stage::new();
    let hash = train(&stage, "net", "net: \"net.prototxt\" test_iter: 4");
    let found = tests(&stage, "net");
    assert_eq!(found.len(), 3);
    for (run, fields) in [
        ("apart", "train_net: \"net.prototxt\" test_net: \"net.prototxt\" test_iter: 4".to_owned()),
        ("inline", format!("net_param {{ {NET} }} test_iter: 4")),
        ("both", format!("train_net_param {{ {NET} }} test_net_param {{ {NET} }} test_iter: 4")),
        ("untested", "train_net: \"net.prototxt\"".to_owned()),
    ] {
        assert_eq!(train(&stage, run, &fields), hash, "{run}");
        let results = |tests: &[Value]| -> Vec<[Value; 2]> {
            tests.iter().map(|record| ["accuracy", "test_loss"].map(|key| record[key].clone())).collect()
        };
        let expected = if run == "untested" { Vec::new() } else { results(&found) };
        assert_eq!(results(&tests(&stage, run)), expected, "{run}");
    }
}

/// A test network of its own has what it needs to test: no fillers, no factors of rates, and not the
/// loss aside that is only trained. It is tested with the weights that the training has for layers of those names.
#[test]
fn a_test_network_has_the_weights_of_its_layers_names() {
    let stage = Stage::new();
    let aside = "layer { name: \"aside\" type: \"InnerProduct\" bottom: \"pool\" top: \"aside\" include { phase: TRAIN }
               param { lr_mult: 2 } inner_product_param { num_output: 10 weight_filler { type: \"xavier\" } } }
               layer { name: \"aside_loss\" type: \"SoftmaxWithLoss\" bottom: \"aside\" bottom: \"label\" top: \"aside_loss\"
               loss_weight: 0.3 include { phase: TRAIN } }\nlayer {\n  name: \"ip\"";
    let trained = NET.replacen("layer {\n  name: \"ip\"", aside, 1);
    stage.write("trained.prototxt", &trained);
    let bare = NET.replace("    weight_filler { type: \"xavier\" }\n", "");
    assert!(!bare.contains("filler"), "mistrusted");
    stage.write("bare.prototxt", &bare);
    let apart = "train_net: \"trained.prototxt\" test_net: \"bare.prototxt\" test_iter: 4";
    let hash = train(&stage, "apart", apart);
    assert_eq!(train(&stage, "one", "net: \"trained.prototxt\" test_iter: 4"), hash);
    let by_itself =
        "test --model net.prototxt --iterations 4 --weights apart/snapshots/iteration_12.caffemodel";
    let said = stage.succeed(by_itself).stdout;
    for run in ["apart", "one"] {
        let last = tests(&stage, run).pop().expect("a test");
        let accuracy = last["accuracy"].as_f64().expect("a number");
        assert!(said.contains(&format!("accuracy = {accuracy}")), "{run}: {accuracy} in {said}");
    }
    let line = bare.lines().position(|line| line.contains("\"ip\"")).expect("the layer");
    for (from, to, expected) in [
        (
            "num_output: 10",
            "num_output: 12",
            format!(
                "bare.prototxt:{line}: layer \"ip\": parameters of 12x96 and 12, but of 10x96 and 10 in phase TRAIN"
            ),
        ),
        (
            "name: \"ip\"",
            "name: \"ip2\"",
            format!("bare.prototxt:{}: layer \"ip2\": name: it has parameters in phase TEST", line + 1),
        ),
        ("name: \"ip\"", "name: \"ip2\"", "is it \"ip\" there? Give both the same name".to_owned()),
    ] {
        stage.write("bare.prototxt", bare.replacen(from, to, 1));
        stage.write("solver.prototxt", format!("{SOLVER}{apart}\n"));
        let outcome = stage.run("train --solver solver.prototxt --run refused");
        assert_eq!(outcome.code, Some(64), "{outcome:?}");
        assert!(outcome.stderr.contains(&expected), "{}", outcome.stderr);
    }
}

#[test]
fn several_networks_are_tested_each_on_its_own_mini_batches() {
    let stage = Stage::new();
    // A second test in a stage of its own: on the images of the training.
    let staged = NET.replace(
        "include { phase: TEST }\n  transform_param",
        "include { phase: TEST not_stage: \"own\" }\n  transform_param",
    );
    let own = "layer { name: \"own\" type: \"Data\" top: \"data\" top: \"label\" include { phase: TEST stage: \"own\" }
               transform_param { scale: 0.00390625 } data_param { source: \"train\" batch_size: 20 } }\nlayer {\n  name: \"conv\"";
    stage.write("staged.prototxt", staged.replacen("layer {\n  name: \"conv\"", own, 1));
    std::fs::create_dir(stage.path("train")).expect("a folder");
    for (from, to) in [("train-images-idx3", "t10k-images-idx3"), ("train-labels-idx1", "t10k-labels-idx1")] {
        let file = |folder: &str, name: &str| stage.path(&format!("{folder}/{name}-ubyte"));
        std::fs::copy(file("shapes", from), file("train", to)).expect("a data set");
    }
    let two = "net: \"staged.prototxt\" test_iter: 4 test_iter: 30 test_state { stage: \"\" } test_state { stage: \"own\" } \
               test_compute_loss: true";
    let one = train(&stage, "one", "net: \"net.prototxt\" test_iter: 4");
    assert_eq!(train(&stage, "two", two), one, "tests do not disturb the training");
    for (way, run) in [("", "alone"), ("--workers 2 --method sync-sgd", "together"), ("--quadrants 2", "cut")]
    {
        let said = stage.succeed(&format!("train --solver solver.prototxt --run {run} {way}")).stdout;
        for line in
            ["Iteration 6, Testing net (#0)\nTest loss: ", "Iteration 6, Testing net (#1)\nTest loss: "]
        {
            assert!(said.contains(line), "{way}: no {line:?} in {said}");
        }
        let records = tests(&stage, run);
        let nets: Vec<u64> = records.iter().filter_map(|record| record["test_net"].as_u64()).collect();
        assert_eq!(nets, [0, 1, 0, 1, 0, 1], "{way}");
        let losses = |net: u64| -> Vec<f64> {
            let of_net = records.iter().filter(|record| record["test_net"] == net);
            of_net.filter_map(|record| record["test_loss"].as_f64()).collect()
        };
        assert!(losses(0).iter().zip(losses(1)).all(|(a, b)| *a != b), "{way}: other images, another loss");
        let summary = stage.summary(run);
        assert_eq!(summary["test_loss"].as_f64(), losses(0).last().copied(), "{way}: the first counts");
    }
    let first = |run: &str| -> Vec<Value> {
        let records = tests(&stage, run).into_iter().filter(|record| record["test_net"] != 1);
        records.map(|record| record["test_loss"].clone()).collect()
    };
    assert_eq!(first("two"), first("one"));
}

#[test]
fn weights_of_the_solver_file_are_used_unless_a_flag_names_others() {
    let stage = Stage::new();
    train(&stage, "first", "net: \"net.prototxt\"");
    let weights = "first/snapshots/iteration_12.caffemodel";
    stage.write("solver.prototxt", format!("{SOLVER}net: \"net.prototxt\"\n"));
    let flag = hash_of(&stage.train("flag", &format!("--weights {weights}")));
    assert_eq!(train(&stage, "field", &format!("net: \"net.prototxt\" weights: \"{weights}\"")), flag);
    assert_eq!(
        train(&stage, "list", &format!("net: \"net.prototxt\" weights: \"{weights},{weights}\"")),
        flag
    );
    let refused = "net: \"net.prototxt\"\nweights: \"none.caffemodel\"\n";
    stage.write("solver.prototxt", format!("{SOLVER}{refused}"));
    assert_eq!(hash_of(&stage.train("over", &format!("--weights {weights}"))), flag);
    let outcome = stage.run("train --solver solver.prototxt --run none");
    assert_eq!(outcome.code, Some(66), "{outcome:?}");
    assert!(
        outcome.stderr.contains("solver.prototxt:3: weights: no file \"none.caffemodel\""),
        "{}",
        outcome.stderr
    );
}

/// The lines of Caffe's `debug_info`, in iterations that are displayed and no others.
#[test]
fn debug_info_shows_every_array_and_changes_nothing() {
    let stage = Stage::new();
    let net = "net: \"net.prototxt\" weight_decay: 0.01";
    stage.write("solver.prototxt", format!("{SOLVER}{net}\n"));
    for (run, extra) in
        [("plain", ""), ("parts", "iter_size: 2 clip_gradients: 0.1"), ("plateau", "lr_policy_is")]
    {
        let solver = match extra {
            "lr_policy_is" => SOLVER.replace("\"fixed\"", "\"plateau\" gamma: 0.5 plateau_winsize: 3"),
            extra => format!("{SOLVER}{extra} "),
        };
        stage.write("solver.prototxt", format!("{solver}{net}\n"));
        let hash = hash_of(&stage.train(run, "--no-fusion"));
        stage.write("solver.prototxt", format!("{solver}{net} debug_info: true\n"));
        let shown = format!("{run}-shown");
        let said = stage.succeed(&format!("train --solver solver.prototxt --run {shown}")).stdout;
        assert_eq!(hash_of(&stage.summary(&shown)), hash, "{run}");
        // Iterations 0, 5 and 10, each with as many passes as it has mini-batches.
        let times = if run == "parts" { 6 } else { 3 };
        let count =
            |start: &str| said.lines().filter(|line| line.starts_with(&format!("    {start}"))).count();
        assert_eq!(count("[Forward] Layer conv, top blob conv data: "), times, "{run}: {said}");
        assert_eq!(count("[Forward] Layer conv, param blob 1 data: "), times, "{run}");
        assert_eq!(count("[Forward] Layer relu, top blob pool data: "), times, "{run}");
        assert_eq!(count("[Backward] Layer relu, bottom blob pool diff: "), times, "{run}");
        assert_eq!(count("[Backward] Layer ip, param blob 0 diff: "), times, "{run}");
        assert_eq!(count("[Backward] All net params (data, diff): L1 norm = ("), times, "{run}");
        assert_eq!(count("[Update] Layer ip, param 0 data: "), 3, "{run}");
        let value = |start: &str| -> f64 {
            let line = said.lines().find_map(|line| line.strip_prefix(&format!("    {start}"))).expect(start);
            line.split(';').next().and_then(|word| word.trim().parse().ok()).expect(start)
        };
        // In place, ReLU leaves less than it found; what it found was shown before.
        assert!(
            value("[Forward] Layer relu, top blob pool data: ")
                <= value("[Forward] Layer pool, top blob pool data: ")
        );
        assert!(value("[Backward] Layer ip, param blob 0 diff: ") > 0.0);
        assert!(value("[Update] Layer ip, param 0 data: ") > 0.0);
    }
}

/// Which labels are possible is asked of the losses that look at them.
#[test]
fn labels_that_a_loss_makes_of_others_are_its_own() {
    let stage = Stage::new();
    let high = "layer { name: \"high\" type: \"Threshold\" bottom: \"label\" top: \"high\" threshold_param { threshold: 4.5 } }
               layer { name: \"two\" type: \"InnerProduct\" bottom: \"pool\" top: \"two\" inner_product_param { num_output: 2 } }
               layer { name: \"side\" type: \"SoftmaxWithLoss\" bottom: \"two\" bottom: \"high\" top: \"side\" }\n";
    stage.write("net.prototxt", format!("{NET}{high}"));
    stage.train("run", "--max-iter 4");
    // Of the labels themselves two classes are still too few.
    stage.edit("net.prototxt", "bottom: \"high\"", "bottom: \"label\"");
    let outcome = stage.run("train --solver solver.prototxt --run none");
    assert_eq!(outcome.code, Some(65), "{outcome:?}");
    assert!(outcome.stderr.contains("layer \"side\""), "{}", outcome.stderr);
}

/// As in Caffe the top that a loss makes by itself is no output, and outputs are numbered without it.
#[test]
fn a_loss_without_a_top_is_no_output() {
    let stage = Stage::new();
    stage.edit("net.prototxt", "  top: \"loss\"\n", "");
    let said = stage.succeed("train --solver solver.prototxt --run run --max-iter 10").stdout;
    assert!(said.contains("Test net output #0: accuracy = ") && !said.contains("loss of"), "{said}");
    assert!(!said.contains("Train net output"), "{said}");
    assert!(tests(&stage, "run").iter().all(|record| record["test_loss"].is_number()), "{said}");
}

#[test]
fn what_no_gradient_reaches_is_named() {
    let stage = Stage::new();
    stage.edit("net.prototxt", "  top: \"ip\"\n", "  top: \"ip\"\n  propagate_down: false\n");
    let said = stage.succeed("train --solver solver.prototxt --run run --max-iter 2").stdout;
    assert!(said.contains("note        no gradient comes from the loss to conv: weights stay"), "{said}");
}

#[test]
fn one_layer_feeds_a_phase_and_the_solver_names_it() {
    let stage = Stage::new();
    let refused = |net: String, says: &str| {
        stage.write("net.prototxt", net);
        let outcome = stage.run("train --solver solver.prototxt --run none");
        assert_eq!(outcome.code, Some(64), "{outcome:?}");
        assert!(outcome.stderr.contains(says), "{}", outcome.stderr);
    };
    let input = "layer { name: \"x\" type: \"Input\" top: \"x\" input_param { shape { dim: 20 dim: 3 } } }";
    refused(format!("{input}\n{NET}"), "2 layers read data in phase TRAIN (x, shapes); one is possible");
    refused(
        format!("state {{ phase: TEST }}\n{NET}"),
        "state.phase: the phase TEST, where the solver's is TRAIN",
    );
}

/// As in Caffe each class has a line and a number of its own, behind the outputs whose names come before.
#[test]
fn the_accuracy_of_each_class_is_shown() {
    let stage = Stage::new();
    stage.edit("net.prototxt", "  top: \"accuracy\"\n", "  top: \"accuracy\"\n  top: \"by_class\"\n");
    for way in ["", "--quadrants 2"] {
        let run = format!("run{}", way.len());
        let said =
            stage.succeed(&format!("train --solver solver.prototxt --run {run} --max-iter 120 {way}")).stdout;
        let last = said.rsplit_once("Testing net (#0)").expect("a test").1;
        let value = |line: &str| line.split(" = ").nth(1).and_then(|text| text.parse::<f64>().ok());
        let classes: Vec<f64> = (1..=10)
            .filter_map(|number| {
                let start = format!("Test net output #{number}: by_class = ");
                last.lines().find(|line| line.contains(&start)).and_then(value)
            })
            .collect();
        assert_eq!(classes.len(), 10, "{last}");
        assert!(classes.iter().all(|share| (0.8..=1.0).contains(share)), "{classes:?}");
        assert!(last.contains("#0: accuracy = ") && last.contains("#11: loss = "), "{last}");
        let weights = format!("--weights {run}/snapshots/iteration_120.caffemodel --iterations 4");
        let said = stage.succeed(&format!("test --model net.prototxt {weights} {way}")).stdout;
        assert_eq!(said.matches("by_class = ").count(), 10, "{said}");
    }
}
