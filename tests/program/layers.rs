//! A network of the layers that the small one lacks: one network looks at both halves of an image with shared weights,
//! LRN, Concat, Flatten and Dropout follow. It trains as determined as any other.

use quadrille_io::NetWeights;

use crate::common::{NET, Stage, hash_of};

const HALF: &str = r#"
layer {
  name: "conv_HALF"
  type: "Convolution"
  bottom: "HALF"
  top: "conv_HALF"
  param { name: "w" lr_mult: 1 }
  param { name: "b" }
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } }
}
layer { name: "relu_HALF" type: "ReLU" bottom: "conv_HALF" top: "conv_HALF" }
layer { name: "norm_HALF" type: "LRN" bottom: "conv_HALF" top: "norm_HALF" lrn_param { local_size: 3 alpha: 0.1 } }
"#;

const TOP: &str = r#"
layer { name: "both" type: "Concat" bottom: "norm_upper" bottom: "norm_lower" top: "both" }
layer { name: "flat" type: "Flatten" bottom: "both" top: "flat" }
layer { name: "drop" type: "Dropout" bottom: "flat" top: "flat" dropout_param { dropout_ratio: 0.3 } }
"#;

/// The small network with another body.
fn stage() -> Stage {
    let stage = Stage::new();
    let (body, head) = ("layer {\n  name: \"conv\"", "layer {\n  name: \"ip\"");
    let (body, head) = (NET.find(body).expect("a body"), NET.find(head).expect("a head"));
    let slice = "layer { name: \"cut\" type: \"Slice\" bottom: \"data\" top: \"upper\" top: \"lower\" slice_param { axis: 2 } }";
    let halves = ["upper", "lower"].map(|half| HALF.replace("HALF", half)).concat();
    let head = NET[head..].replacen("bottom: \"pool\"", "bottom: \"flat\"", 1);
    stage.write("net.prototxt", format!("{}{slice}{halves}{TOP}{head}", &NET[..body]));
    stage
}

#[test]
fn shared_weights_normalisation_and_dropout_learn_and_are_determined() {
    for (way, ways) in [
        ("", ["--threads 1", "--threads 3"]),
        ("--quadrants 2", ["--quadrants 2 --threads 1", "--quadrants 2 --threads 2"]),
        ("--workers 2", ["--workers 2 --threads 1", "--workers 2"]),
    ] {
        let stage = stage();
        let summary = stage.train("out", &format!("--max-iter 120 {way}"));
        assert!(summary["accuracy"].as_f64() >= Some(0.95), "{way}: {summary}");
        for (index, other) in ways.into_iter().enumerate() {
            let again = stage.train(&format!("again{index}"), &format!("--max-iter 120 {other}"));
            assert_eq!(hash_of(&again), hash_of(&summary), "{other}");
        }
    }
}

#[test]
fn a_resumed_run_drops_what_an_undisturbed_one_drops() {
    for way in ["", "--workers 2 --quadrants 2"] {
        let stage = stage();
        let whole = hash_of(&stage.train("whole", way));
        stage.train("half", &format!("{way} --max-iter 10"));
        let rest = stage.train("rest", &format!("{way} --snapshot half/snapshots/iteration_10"));
        assert_eq!(hash_of(&rest), whole, "{way}");
    }
}

#[test]
fn quadrants_drop_the_same_values() {
    let stage = stage();
    let losses = |run: &str, way: &str| -> Vec<f64> {
        stage.train(run, &format!("--max-iter 4 --test-interval 0 {way}"));
        stage.metrics(run).iter().filter_map(|record| record["loss"].as_f64()).collect()
    };
    let one = losses("one", "--quadrants 1");
    assert_eq!(one.len(), 4);
    for (run, way) in [("two", "--quadrants 2"), ("three", "--quadrants 3")] {
        for (found, expected) in losses(run, way).iter().zip(&one) {
            // Sums over quadrants round otherwise.
            assert!((found / expected - 1.0).abs() < 1e-4, "{way}: {found} is not {expected}");
        }
    }
    // Without the dropout the loss is another one, so that the comparison means something.
    stage.edit("net.prototxt", "dropout_ratio: 0.3", "dropout_ratio: 0");
    assert!((losses("none", "--quadrants 1")[0] / one[0] - 1.0).abs() > 1e-3);
}

#[test]
fn weights_for_caffe_repeat_what_is_shared() {
    let stage = stage();
    stage.train("out", "--max-iter 3");
    let weights = NetWeights::read(&stage.path("out/snapshots/iteration_3.caffemodel")).expect("weights");
    let of = |name: &str| &weights.layers.iter().find(|layer| layer.name == name).expect("a layer").blobs;
    let (upper, lower) = (of("conv_upper"), of("conv_lower"));
    let (shape, weight) = upper[0].as_ref().expect("a weight");
    assert_eq!((upper.len(), shape), (2, &vec![6, 1, 3, 3]));
    assert!(upper == lower && weight.iter().any(|w| *w != 0.0));
    stage.succeed("test -model net.prototxt -weights out/snapshots/iteration_3.caffemodel");
}

/// Caffe prints networks with the Split layers that it inserts; such a file is the same network.
#[test]
fn a_split_that_is_written_is_the_one_that_would_be_inserted() {
    let stage = Stage::new();
    let reader = "layer { name: \"half\" type: \"Power\" bottom: \"BLOB\" top: \"half\" power_param { scale: 0.5 } }\n\
                  layer { name: \"sum\" type: \"Eltwise\" bottom: \"OTHER\" bottom: \"half\" top: \"sum\" }\n";
    let split = "layer { name: \"pool_split\" type: \"Split\" bottom: \"pool\" top: \"one\" top: \"two\" }\n";
    let head = NET.find("layer {\n  name: \"ip\"").expect("a head");
    let net = |readers: &str| {
        let below = NET[..head].to_owned();
        below + readers + &NET[head..].replacen("bottom: \"pool\"", "bottom: \"sum\"", 1)
    };
    let trained = |run: &str, readers: &str| {
        stage.write("net.prototxt", net(readers));
        hash_of(&stage.train(run, ""))
    };
    let inserted = trained("a", &reader.replace("BLOB", "pool").replace("OTHER", "pool"));
    let written = trained("b", &(split.to_owned() + &reader.replace("BLOB", "two").replace("OTHER", "one")));
    assert_eq!(inserted, written);
}
