//! Weights and network files of other times and programs: the same network in an old form trains to the same weights, and
//! weights that went through other formats test the same.

use quadrille_io::npz::{Archive, read_npz, write_npz};

use crate::common::{Stage, hash_of};

/// The stage's network as its users wrote it some years before.
const V1_NET: &str = r#"name: "Small"
layers { name: "shapes" type: DATA top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "shapes" batch_size: 20 scale: 0.00390625 } }
layers { name: "shapes" type: DATA top: "data" top: "label" include { phase: TEST }
  data_param { source: "shapes" batch_size: 50 scale: 0.00390625 } }
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1 blobs_lr: 1
  convolution_param { num_output: 6 kernel_size: 5 weight_filler { type: "xavier" } } }
layers { name: "pool" type: POOLING bottom: "conv" top: "pool" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layers { name: "relu" type: RELU bottom: "pool" top: "pool" }
layers { name: "ip" type: INNER_PRODUCT bottom: "pool" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layers { name: "accuracy" type: ACCURACY bottom: "ip" bottom: "label" top: "accuracy" include { phase: TEST } }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip" bottom: "label" top: "loss" }
"#;

#[test]
fn a_network_in_an_old_form_trains_to_the_same_weights() {
    let stage = Stage::new();
    let today = hash_of(&stage.train("today", ""));
    stage.write("net.prototxt", V1_NET);
    assert_eq!(hash_of(&stage.train("old", "")), today);
    let said = stage.succeed("train --solver solver.prototxt --run again").stdout;
    assert!(said.contains("note        8 layers of Caffe's old form V1 were upgraded"), "{said}");
    stage.edit("net.prototxt", "kernel_size: 5", "kernel_size: 0");
    let refused = stage.run("train --solver solver.prototxt --run bad");
    assert_eq!(refused.code, Some(64));
    assert!(
        refused.stderr.contains("net.prototxt:7: layer \"conv\": convolution_param.kernel_size"),
        "{refused:?}"
    );
}

#[test]
fn weights_in_any_format_test_the_same() {
    let stage = Stage::new();
    stage.train("out", "--max-iter 60");
    let model = "out/snapshots/iteration_60.caffemodel";
    let accuracy = |weights: &str| {
        let said = stage.succeed(&format!("test --model net.prototxt --weights {weights}")).stdout;
        let line = said.lines().find(|line| line.contains("accuracy = ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("no accuracy in {said}"))
    };
    let expected = accuracy(model);
    let said = stage.succeed(&format!("convert weights {model} a.npz")).stdout;
    assert_eq!(said, "written     4 arrays, 1126 weights to a.npz\n");
    for pair in [["a.npz", "b.safetensors"], ["b.safetensors", "c.caffemodel"], ["c.caffemodel", "d.npz"]] {
        stage.succeed(&format!("convert weights {} {}", pair[0], pair[1]));
        assert_eq!(accuracy(pair[1]), expected, "{pair:?}");
    }
    let all = read_npz(&stage.path("d.npz")).expect("an archive");
    let part = |layer: &str| -> Archive {
        all.clone().into_iter().filter(|(name, _)| name.starts_with(layer)).collect()
    };
    for layer in ["conv", "ip"] {
        write_npz(&stage.path(&format!("{layer}.npz")), &part(layer)).expect("an archive");
    }
    assert_eq!(accuracy("conv.npz,ip.npz"), expected);

    let outcome = stage.run("convert weights a.npz d.npz");
    assert_eq!((outcome.code, outcome.stderr.contains("not overwritten")), (Some(73), true), "{outcome:?}");
    let outcome = stage.run("test --model net.prototxt --weights conv.npz");
    let says = "conv.npz: no weights for ip/0, ip/1";
    assert_eq!((outcome.code, outcome.stderr.contains(says)), (Some(65), true), "{outcome:?}");
    stage.edit("net.prototxt", "num_output: 6", "num_output: 7");
    let outcome = stage.run(&format!("test --model net.prototxt --weights {model}"));
    let says = "conv/0 has shape 6x1x5x5, in the network 7x1x5x5; to learn it anew";
    assert_eq!((outcome.code, outcome.stderr.contains(says)), (Some(65), true), "{outcome:?}");
}

#[test]
fn what_a_file_lacks_is_filled_and_what_the_network_lacks_is_told() {
    let stage = Stage::new();
    stage.train("first", "--max-iter 2");
    stage.edit("net.prototxt", "name: \"ip\"", "name: \"ip-new\"");
    let flags = "--weights first/snapshots/iteration_2.caffemodel --max-iter 1";
    let said = stage.succeed(&format!("train --solver solver.prototxt --run second {flags}")).stdout;
    for line in ["not in the file, so filled anew: ip-new/0 ip-new/1", "not in the network, so ignored: ip"] {
        assert!(said.contains(line), "{said}");
    }
    stage.edit("net.prototxt", "name: \"conv\"", "name: \"conv-new\"");
    let outcome = stage.run(&format!("train --solver solver.prototxt --run third {flags}"));
    assert_eq!(outcome.code, Some(65));
    let says = "the file has \"conv\", \"ip\", the network \"conv-new\", \"ip-new\"";
    assert!(outcome.stderr.contains(says), "{outcome:?}");
}
