//! Files of every format, what becomes of them in another, and how they go into a net.

use std::fs;
use std::path::PathBuf;

use quadrille_core::net::{Net, NetState, Phase};
use tempfile::TempDir;

use super::*;
use crate::prototxt::parse_net;

/// A folder, and paths in it.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn layer(name: &str, blobs: &[&[usize]]) -> LayerWeights {
    let blob = |(index, shape): (usize, &&[usize])| {
        let count: usize = shape.iter().product();
        (shape.to_vec(), (0..count).map(|value| value as f32 + 10.0 * index as f32 + 0.5).collect())
    };
    let blobs = blobs.iter().enumerate().map(blob).map(Some).collect();
    LayerWeights { name: name.into(), kind: String::new(), blobs }
}

fn model(layers: Vec<LayerWeights>) -> NetWeights {
    NetWeights { name: String::new(), layers }
}

const TEXT: &str = r#"layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 3, 4, 4] } } }
layer { name: "conv/a" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 2 kernel_size: 1 } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "ip" type: "InnerProduct" bottom: "c" top: "i" inner_product_param { num_output: 5 } }
layer { name: "twin" type: "InnerProduct" bottom: "c" top: "t" param { name: "w" } inner_product_param { num_output: 5 bias_term: false } }
layer { name: "other" type: "InnerProduct" bottom: "c" top: "o" param { name: "w" } inner_product_param { num_output: 5 bias_term: false } }"#;

fn net() -> Net {
    let spec = parse_net(TEXT, "net.prototxt").unwrap();
    Net::build(&spec, &NetState::new(Phase::Test), 1.0).unwrap()
}

/// What `weights` give to the net: the values of its parameters, -1 where nothing was given.
fn placed(weights: NetWeights) -> Result<(Vec<f32>, Placed), String> {
    let net = net();
    let (mut packed, mut placed) = (vec![-1.0; net.params.len()], Placed::default());
    place(&Weights::Layers(weights), &net, &mut packed, &mut placed)?;
    Ok((packed, placed))
}

fn values(packed: &[f32], name: &str) -> Vec<f32> {
    let net = net();
    let view = net.params.views().iter().find(|view| view.name == name).expect(name);
    packed[view.range()].to_vec()
}

#[test]
fn every_format_becomes_every_other_and_back() {
    let place = Place::new();
    let full =
        model(vec![layer("conv/a", &[&[2, 3, 1, 1], &[2]]), layer("ip", &[&[1, 1, 5, 4], &[1, 1, 1, 5]])]);
    full.write(&place.path("a.caffemodel")).unwrap();
    let steps =
        ["a.caffemodel", "b.npz", "c.safetensors", "d.caffemodel", "e.safetensors", "f.npz", "g.caffemodel"];
    for pair in steps.windows(2) {
        let converted = convert(&place.path(pair[0]), &place.path(pair[1])).unwrap();
        assert_eq!(converted, Converted { arrays: 4, values: 6 + 2 + 20 + 5 });
    }
    let arrays = npz::read_npz(&place.path("b.npz")).unwrap();
    assert_eq!(arrays.keys().collect::<Vec<_>>(), ["conv/a/0", "conv/a/1", "ip/0", "ip/1"]);
    assert_eq!(read(&place.path("g.caffemodel")).unwrap(), Weights::Layers(full));
    assert_eq!(fs::read(place.path("d.caffemodel")).unwrap(), fs::read(place.path("g.caffemodel")).unwrap());
    assert_eq!(read(&place.path("c.safetensors")).unwrap(), read(&place.path("f.npz")).unwrap());
}

#[test]
fn nothing_is_overwritten_and_formats_are_known_by_their_endings() {
    let place = Place::new();
    let (from, to) = (place.path("a.caffemodel"), place.path("b.npz"));
    model(vec![layer("ip", &[&[1]])]).write(&from).unwrap();
    fs::write(&to, "mine").unwrap();
    let error = convert(&from, &to).unwrap_err();
    assert_eq!(error.exit_code(), 73);
    assert!(error.to_string().contains("not overwritten"), "{error}");
    assert_eq!(fs::read(&to).unwrap(), b"mine");
    let error = convert(&from, &place.path("a.bin")).unwrap_err();
    assert_eq!(error.exit_code(), 65);
    assert!(error.to_string().contains(".caffemodel, .h5, .safetensors or .npz"), "{error}");
    assert!(read(&place.path("a.bin")).is_err());
    assert_eq!(convert(&place.path("none.npz"), &place.path("c.npz")).unwrap_err().exit_code(), 66);
    assert!(!place.path("c.npz").exists());
}

#[test]
fn arrays_that_make_no_layers_are_refused() {
    let tensors =
        |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), (vec![1], vec![1.0]))).collect();
    for (names, says) in [
        (&["ip"][..], "array \"ip\": expected names such as"),
        (&["ip/weight"], "expected names such as"),
        (&["/0"], "expected names such as"),
        (&["ip/1"], "layer \"ip\" has an array 1, but not all before it; expected 0 to 0"),
        (&["ip/0", "ip/2"], "has an array 2"),
        (&["ip/18446744073709551615"], "has an array 18446744073709551615"),
    ] {
        let error = layers_of(tensors(names)).expect_err(says);
        assert!(error.contains(says), "{error}");
    }
    let twice = model(vec![layer("ip", &[&[1]]), layer("ip", &[&[1]])]);
    assert!(tensors_of(twice).is_err_and(|error| error.contains("two layers \"ip\" have weights")));
}

#[test]
fn numbers_of_other_precisions_are_read_and_integers_are_not() {
    let place = Place::new();
    let path = place.path("a.npz");
    let array = |values| [("ip/0".to_owned(), Array { shape: vec![1], values })].into();
    npz::write_npz(&path, &array(Values::F64(vec![0.1]))).unwrap();
    let expected = |value| Weights::Tensors([("ip/0".to_owned(), (vec![1], vec![value]))].into());
    assert_eq!(read(&path).unwrap(), expected(0.1));
    npz::write_npz(&path, &array(Values::I32(vec![1]))).unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("holds integers"));
    let foreign = place.path("a.safetensors");
    for (dtype, data, value) in [
        ("F32", &1.5f32.to_le_bytes()[..], Some(1.5)),
        ("F64", &(-2.5f64).to_le_bytes(), Some(-2.5)),
        ("BF16", &[0xc0, 0x3f], Some(1.5)),
        ("I32", &[1, 0, 0, 0], None),
    ] {
        let end = data.len();
        let header =
            format!("{{\"ip/0\":{{\"dtype\":\"{dtype}\",\"shape\":[1],\"data_offsets\":[0,{end}]}}}}");
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
        fs::write(&foreign, &bytes).unwrap();
        match value {
            Some(value) => assert_eq!(read(&foreign).unwrap(), expected(value)),
            None => assert!(read(&foreign).unwrap_err().to_string().contains("F32, F64 or BF16")),
        }
        for at in 0..bytes.len() {
            fs::write(&foreign, &bytes[..at]).unwrap();
            assert!(read(&foreign).is_err(), "cut to {at} bytes");
        }
    }
}

#[test]
fn our_own_files_stay_verified_and_runs_of_one_file_give_the_weights_that_count() {
    let place = Place::new();
    let path = place.path("run.safetensors");
    let tensor = |value: f32| (vec![1], vec![value]);
    let tensors =
        [("weights/ip/0".to_owned(), tensor(1.0)), ("worker0/history/ip/0".to_owned(), tensor(2.0))];
    let meta = [("iteration".to_owned(), "3".to_owned())].into();
    Sealed { meta, tensors: tensors.into() }.write(&path).unwrap();
    assert_eq!(read(&path).unwrap(), Weights::Tensors([("ip/0".to_owned(), tensor(1.0))].into()));
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert!(read(&path).is_err(), "byte {at}");
    }
}

#[test]
fn layers_are_filled_by_name_and_the_rest_is_told() {
    let (packed, told) = placed(model(vec![
        layer("data", &[]),
        layer("conv/a", &[&[2, 3, 1, 1], &[1, 1, 1, 2]]),
        layer("relu", &[]),
        layer("gone", &[&[7], &[7]]),
        layer("other", &[&[1, 1, 5, 32]]),
    ]))
    .unwrap();
    assert_eq!(values(&packed, "conv/a/0"), [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]);
    assert_eq!(values(&packed, "conv/a/1"), [10.5, 11.5]);
    // What layers share is filled by either of them.
    assert_eq!(values(&packed, "twin/0")[159], 159.5);
    assert!(values(&packed, "ip/0").iter().all(|value| *value == -1.0));
    assert_eq!(
        (told.missing(&net()), told.ignored),
        (vec!["ip/0".to_owned(), "ip/1".to_owned()], vec!["gone".into()])
    );
}

#[test]
fn what_layers_share_may_be_left_out() {
    let text = r#"layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 3] } } }
layer { name: "one" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" } inner_product_param { num_output: 2 } }
layer { name: "two" type: "InnerProduct" bottom: "x" top: "b" param { name: "w" } inner_product_param { num_output: 2 } }
layer { name: "three" type: "InnerProduct" bottom: "x" top: "c" param { name: "w" } param { name: "b" } inner_product_param { num_output: 2 } }
layer { name: "four" type: "InnerProduct" bottom: "x" top: "d" param {} param { name: "b" } inner_product_param { num_output: 2 } }"#;
    let net =
        Net::build(&parse_net(text, "net.prototxt").unwrap(), &NetState::new(Phase::Test), 1.0).unwrap();
    let only_bias = |name: &str| {
        let mut layer = layer(name, &[&[2, 3], &[2]]);
        layer.blobs[0] = None;
        layer
    };
    let caffes = || {
        let mut layers = vec![layer("one", &[&[2, 3], &[2]]), only_bias("two"), only_bias("three")];
        layers.push(layer("four", &[&[2, 3]]));
        layers
    };
    let fill = |weights: &Weights| {
        let (mut packed, mut placed) = (vec![-1.0; net.params.len()], Placed::default());
        place(weights, &net, &mut packed, &mut placed).map(|()| (packed, placed.missing(&net)))
    };
    let (packed, missing) = fill(&Weights::Layers(model(caffes()))).unwrap();
    let filled = packed.iter().filter(|value| **value > 0.0).count();
    assert_eq!((filled, missing), (6 + 2 + 2 + 2 + 6, Vec::new()), "{packed:?}");
    // In HDF5 they stay so, and in formats of names; a .caffemodel cannot hold them.
    if cfg!(feature = "hdf5") {
        let place = Place::new();
        let [h5, again, npz, caffe] =
            ["w.h5", "again.h5", "w.npz", "w.caffemodel"].map(|name| place.path(name));
        model(caffes()).write(&h5).unwrap();
        convert(&h5, &npz).unwrap();
        for file in [&h5, &npz] {
            assert_eq!(
                fill(&read(file).unwrap()).unwrap(),
                (packed.clone(), Vec::new()),
                "{}",
                file.display()
            );
        }
        for (from, to, says) in
            [(&h5, &caffe, "\"three\" shares"), (&npz, &again, "\"three\" has an array 1")]
        {
            let error = convert(from, to).unwrap_err().to_string();
            assert!(error.contains(says) && !to.exists(), "{error}");
        }
    }
    // What is a layer's own must be there.
    let mut layers = caffes();
    layers[0] = only_bias("one");
    let error = fill(&Weights::Layers(model(layers))).unwrap_err();
    assert!(error.contains("layer \"one\" has 1 arrays of weights, in the network 2"), "{error}");
    layers = caffes();
    layers[1].blobs.pop();
    assert!(fill(&Weights::Layers(model(layers))).is_err());
}

#[test]
fn a_second_file_fills_what_the_first_left_and_replaces_what_both_have() {
    let net = net();
    let (mut packed, mut told) = (vec![-1.0; net.params.len()], Placed::default());
    let array = |name: &str, shape: &[usize], value: f32| {
        (name.to_owned(), (shape.to_vec(), vec![value; shape.iter().product()]))
    };
    let first = [array("ip/1", &[5], 1.0), array("conv/a/1", &[2], 2.0), array("odd", &[1], 0.0)].into();
    place(&Weights::Tensors(first), &net, &mut packed, &mut told).unwrap();
    let second = [array("ip/1", &[5], 3.0), array("ip/0", &[5, 32], 4.0)].into();
    place(&Weights::Tensors(second), &net, &mut packed, &mut told).unwrap();
    assert_eq!(values(&packed, "ip/1"), [3.0; 5]);
    assert_eq!((values(&packed, "conv/a/1"), values(&packed, "ip/0")[0]), (vec![2.0; 2], 4.0));
    assert_eq!(
        (told.missing(&net), told.ignored),
        (vec!["conv/a/0".to_owned(), "twin/0".into()], vec!["odd".into()])
    );
}

#[test]
fn what_does_not_fit_is_refused_with_both_shapes() {
    for (layers, says) in [
        (vec![layer("ip", &[&[5, 31], &[5]])], "ip/0 has shape 5x31, in the network 5x32; to learn it anew"),
        (vec![layer("ip", &[&[1, 1, 32, 5], &[5]])], "ip/0 has shape 1x1x32x5, in the network 5x32"),
        (vec![layer("ip", &[&[32, 5], &[5]])], "ip/0 has shape 32x5"),
        // Four extents mean fewer axes, three do not.
        (vec![layer("ip", &[&[5, 32], &[1, 1, 5]])], "ip/1 has shape 1x1x5, in the network 5"),
        (vec![layer("ip", &[&[5, 32], &[1, 1, 5, 1]])], "ip/1 has shape 1x1x5x1, in the network 5"),
        (
            vec![layer("ip", &[&[5, 32]])],
            "layer \"ip\" has 1 arrays of weights, in the network 2; to learn it anew",
        ),
        (vec![layer("relu", &[&[1]])], "layer \"relu\" has 1 arrays of weights, in the network 0"),
        (vec![layer("ip", &[])], "layer \"ip\" has 0 arrays of weights, in the network 2"),
        (vec![layer("relu", &[])], "there are no weights in the file"),
        (
            vec![layer("fc6", &[&[1]]), layer("fc7", &[&[1]])],
            "none of its layers has the name of one of the network's; the file has \"fc6\", \"fc7\", the network \
             \"conv/a\", \"ip\", \"twin\", \"other\"",
        ),
        ((0..8).map(|n| layer(&format!("l{n}"), &[&[1]])).collect(), "\"l4\" and 3 more, the network"),
    ] {
        let error = placed(model(layers)).expect_err(says);
        assert!(error.contains(says), "{error}\nlacks {says}");
    }
    let net = net();
    let (mut packed, mut told) = (vec![0.0; net.params.len()], Placed::default());
    let third = Weights::Tensors([("ip/2".to_owned(), (vec![1], vec![1.0]))].into());
    let error = place(&third, &net, &mut packed, &mut told).unwrap_err();
    assert!(error.contains("ip/2: that layer of the network has 2 arrays"), "{error}");
}
