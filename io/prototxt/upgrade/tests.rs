//! Every old type and field, and what becomes of files that mix, break or misuse them.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use quadrille_core::layer::Layer;
use quadrille_core::net::{LayerSpec, NetSpec};

use super::*;
use crate::prototxt::message::{Parsed, parse};
use crate::prototxt::net::take_layers;
use crate::prototxt::parse_net;
use crate::schema::descriptor;

/// The layers of a file in today's form, and the notes.
fn upgraded(text: &str) -> Result<(Vec<DynamicMessage>, Vec<String>), SpecError> {
    let parsed = parse(text.as_bytes(), "old.prototxt", descriptor("NetParameter"), "network")?;
    let Parsed { mut message, site, parts } = parsed;
    let mut of = |field| take_layers(&mut message, field, &parts, &site);
    let (new, old) = (of("layer"), of("layers"));
    let Upgraded { layers, notes } = upgrade(new, old, &NetParameter::default(), &site)?;
    Ok((layers.into_iter().map(|entry| entry.message).collect(), notes))
}

fn only(text: &str) -> DynamicMessage {
    let (mut layers, _) = upgraded(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(layers.len(), 1, "{text}");
    layers.remove(0)
}

fn net(text: &str) -> NetSpec {
    parse_net(text, "old.prototxt").unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// What a file says, without its lines.
fn said(text: &str) -> Vec<LayerSpec> {
    let layers = net(text).layers.into_iter();
    layers.map(|layer| LayerSpec { site: Site::made("compared"), ..layer }).collect()
}

/// The field at a dotted path.
fn field_at(message: &MessageDescriptor, path: &str) -> FieldDescriptor {
    let (outer, inner) = path.split_once('.').map_or((path, None), |(outer, inner)| (outer, Some(inner)));
    let field =
        message.get_field_by_name(outer).unwrap_or_else(|| panic!("{} has no {outer}", message.name()));
    match (inner, field.kind()) {
        (Some(inner), Kind::Message(part)) => field_at(&part, inner),
        (None, _) => field,
        (Some(inner), kind) => panic!("{inner} in {kind:?}"),
    }
}

fn names_of_enum(message: &str, field: &str) -> Vec<String> {
    match field_at(&descriptor(message), field).kind() {
        Kind::Enum(names) => names.values().map(|value| value.name().to_owned()).collect(),
        kind => panic!("{kind:?}"),
    }
}

#[test]
fn every_type_of_v1_has_its_name_of_today() {
    let names = names_of_enum("V1LayerParameter", "type");
    assert_eq!(names.len(), v1::TYPES.len() + 1, "all but NONE");
    let mut found: Vec<String> = Vec::new();
    for name in names.iter().filter(|name| *name != "NONE") {
        let layer = only(&format!("layers {{ name: \"l\" type: {name} bottom: \"b\" top: \"t\" }}"));
        let kind = text_of(&layer, "type");
        // The old name is today's in capitals; one loss has another name.
        let plain = name.replace('_', "").to_lowercase().replace("softmaxloss", "softmaxwithloss");
        assert_eq!(kind.to_lowercase(), plain, "{name}");
        let alone = parse_net(format!("layer {{ name: \"l\" type: {kind:?} }}"), "today.prototxt");
        assert!(!alone.is_err_and(|error| error.message.contains("unknown layer type")), "{kind}");
        assert_eq!(texts_of(&layer, "top"), ["t"]);
        found.push(kind);
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), v1::TYPES.len(), "every name once");
}

#[test]
fn every_field_of_v1_has_its_place_of_today() {
    let today = descriptor("LayerParameter");
    let rewritten = ["layer", "type", "blobs_lr", "weight_decay", "param", "blob_share_mode"];
    let old = descriptor("V1LayerParameter");
    assert!(rewritten.iter().all(|name| old.get_field_by_name(name).is_some()));
    for field in old.fields().filter(|field| !rewritten.contains(&field.name())) {
        let same = field_at(&today, field.name());
        assert_eq!((same.kind(), same.is_list()), (field.kind(), field.is_list()), "{}", field.name());
    }
}

#[test]
fn every_type_of_v0_has_its_type_of_v1() {
    for (name, kind) in v0::TYPES {
        let old =
            only(&format!("layers {{ layer {{ name: \"l\" type: \"{name}\" }} bottom: \"b\" top: \"t\" }}"));
        let same =
            only(&format!("layers {{ name: \"l\" type: {} bottom: \"b\" top: \"t\" }}", kind.as_str_name()));
        assert_eq!(old, same, "{name}");
    }
}

#[test]
fn every_field_of_v0_has_its_place_in_v1_with_the_same_kind() {
    let (old, v1) = (descriptor("V0LayerParameter"), descriptor("V1LayerParameter"));
    // The first is the layer's type; the others belonged to no layer that Caffe ever released.
    let homeless = ["type", "new_num", "new_channels"];
    let mut places = 0;
    for field in old.fields() {
        let paths: Vec<String> =
            v0::TYPES.iter().filter_map(|(kind, _)| v0::path_of(field.name(), kind)).collect();
        assert_eq!(paths.is_empty(), homeless.contains(&field.name()), "{}", field.name());
        for path in &paths {
            match (field_at(&v1, path).kind(), field.kind()) {
                (Kind::Enum(new), Kind::Enum(old)) => {
                    let names = |names: &prost_reflect::EnumDescriptor| {
                        names.values().map(|v| (v.name().to_owned(), v.number())).collect::<Vec<_>>()
                    };
                    assert_eq!(names(&new), names(&old));
                }
                // Read with a check of the sign.
                (Kind::Uint32, Kind::Int32) => {}
                (new, old) => assert_eq!(new, old, "{path}"),
            }
        }
        places += paths.len();
    }
    let own: usize = v0::OWN.iter().map(|(_, types, _)| types.len()).sum();
    assert_eq!(places, own + v0::COMMON.len() * v0::TYPES.len());
}

/// One network in the three forms.
const THREE: [&str; 3] = [
    r#"name: "old" input: "x" input_dim: [2, 3, 8, 8]
layers { layer { name: "pad1" type: "padding" pad: 2 } bottom: "x" top: "padded" }
layers { layer { name: "conv1" type: "conv" num_output: 4 kernelsize: 5 stride: 2 group: 1 biasterm: true
    weight_filler { type: "gaussian" std: 0.01 } bias_filler { value: 0.5 }
    blobs_lr: 1 blobs_lr: 2 weight_decay: 1 weight_decay: 0 } bottom: "padded" top: "conv1" }
layers { layer { name: "relu1" type: "relu" } bottom: "conv1" top: "conv1" }
layers { layer { name: "pool1" type: "pool" pool: AVE kernelsize: 3 stride: 2 pad: 1 } bottom: "conv1" top: "pool1" }
layers { layer { name: "norm1" type: "lrn" local_size: 3 alpha: 0.5 beta: 0.25 k: 2 } bottom: "pool1" top: "norm1" }
layers { layer { name: "both" type: "concat" concat_dim: 1 } bottom: "norm1" bottom: "pool1" top: "both" }
layers { layer { name: "flat" type: "flatten" } bottom: "both" top: "flat" }
layers { layer { name: "drop" type: "dropout" dropout_ratio: 0.25 } bottom: "flat" top: "flat" }
layers { layer { name: "ip" type: "innerproduct" num_output: 5 biasterm: false blobs_lr: 3 } bottom: "flat" top: "ip" }
layers { layer { name: "prob" type: "softmax" } bottom: "ip" top: "prob" }"#,
    r#"name: "old" input: "x" input_dim: [2, 3, 8, 8]
layers { name: "conv1" type: CONVOLUTION bottom: "x" top: "conv1" blobs_lr: [1, 2] weight_decay: [1, 0]
    convolution_param { num_output: 4 pad: 2 kernel_size: 5 stride: 2 group: 1 bias_term: true
        weight_filler { type: "gaussian" std: 0.01 } bias_filler { value: 0.5 } } }
layers { name: "relu1" type: RELU bottom: "conv1" top: "conv1" }
layers { name: "pool1" type: POOLING bottom: "conv1" top: "pool1"
    pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
layers { name: "norm1" type: LRN bottom: "pool1" top: "norm1" lrn_param { local_size: 3 alpha: 0.5 beta: 0.25 k: 2 } }
layers { name: "both" type: CONCAT bottom: "norm1" bottom: "pool1" top: "both" concat_param { concat_dim: 1 } }
layers { name: "flat" type: FLATTEN bottom: "both" top: "flat" }
layers { name: "drop" type: DROPOUT bottom: "flat" top: "flat" dropout_param { dropout_ratio: 0.25 } }
layers { name: "ip" type: INNER_PRODUCT bottom: "flat" top: "ip" blobs_lr: 3
    inner_product_param { num_output: 5 bias_term: false } }
layers { name: "prob" type: SOFTMAX bottom: "ip" top: "prob" }"#,
    r#"name: "old" input: "x" input_dim: [2, 3, 8, 8]
layer { name: "conv1" type: "Convolution" bottom: "x" top: "conv1"
    param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
    convolution_param { num_output: 4 pad: 2 kernel_size: 5 stride: 2
        weight_filler { type: "gaussian" std: 0.01 } bias_filler { value: 0.5 } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
    pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "norm1" type: "LRN" bottom: "pool1" top: "norm1" lrn_param { local_size: 3 alpha: 0.5 beta: 0.25 k: 2 } }
layer { name: "both" type: "Concat" bottom: "norm1" bottom: "pool1" top: "both" }
layer { name: "flat" type: "Flatten" bottom: "both" top: "flat" }
layer { name: "drop" type: "Dropout" bottom: "flat" top: "flat" dropout_param { dropout_ratio: 0.25 } }
layer { name: "ip" type: "InnerProduct" bottom: "flat" top: "ip" param { lr_mult: 3 }
    inner_product_param { num_output: 5 bias_term: false } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }"#,
];

#[test]
fn a_network_means_the_same_in_all_three_forms() {
    let today = said(THREE[2]);
    assert_eq!(today.len(), 10);
    assert_eq!(said(THREE[0]), today);
    assert_eq!(said(THREE[1]), today);
    let notes = THREE.map(|text| net(text).notes);
    assert!(notes[0][0].contains("10 layers of Caffe's old form V0 were upgraded"), "{:?}", notes[0]);
    assert!(notes[1][0].contains("9 layers of Caffe's old form V1 were upgraded"), "{:?}", notes[1]);
    assert_eq!(notes.map(|notes| notes.len()), [1, 1, 0]);
}

#[test]
fn transformations_move_out_of_sources() {
    let v0 = r#"layers { layer { name: "d" type: "data" source: "s" batchsize: 7 scale: 0.5 mirror: true cropsize: 9
        meanfile: "m" rand_skip: 3 } top: "d" top: "l" }"#;
    let moved = r#"transform_param { scale: 0.5 mirror: true crop_size: 9 mean_file: "m" }"#;
    let today = format!(
        "layer {{ name: \"d\" type: \"Data\" top: \"d\" top: \"l\" data_param {{ source: \"s\" batch_size: 7 rand_skip: 3 }}\n\
         {moved} }}"
    );
    assert_eq!(only(v0), only(&today));
    for (kind, name, message) in [
        ("DATA", "Data", "data_param"),
        ("IMAGE_DATA", "ImageData", "image_data_param"),
        ("WINDOW_DATA", "WindowData", "window_data_param"),
    ] {
        let inside = "source: \"s\" scale: 0.5 mirror: true crop_size: 9 mean_file: \"m\"";
        // What stood in the new place is replaced, as in Caffe.
        let old =
            format!("layers {{ type: {kind} {message} {{ {inside} }} transform_param {{ scale: 4 }} }}");
        let today = format!("layer {{ type: \"{name}\" {message} {{ source: \"s\" }} {moved} }}");
        assert_eq!(only(&old), only(&today));
    }
}

#[test]
fn images_of_v0_are_resized() {
    let old = "layers { layer { name: \"i\" type: \"images\" source: \"s\" batchsize: 2 new_height: 5 new_width: 6\n\
        shuffle_images: true } top: \"d\" }";
    let today = "layer { name: \"i\" type: \"ImageData\" top: \"d\"\n\
        image_data_param { source: \"s\" batch_size: 2 new_height: 5 new_width: 6 shuffle: true } }";
    assert_eq!(only(old), only(today));
}

#[test]
fn names_rules_weights_and_share_modes_of_parameters_are_kept() {
    let old = "layers { name: \"i\" type: INNER_PRODUCT bottom: \"a\" top: \"b\" param: \"w\" param: \"b\" blobs_lr: 2\n\
        blob_share_mode: [STRICT, PERMISSIVE] weight_decay: [0, 0, 1] include { phase: TRAIN min_level: 1 }\n\
        loss_weight: 0.5 inner_product_param { num_output: 3 } }";
    let today = "layer { name: \"i\" type: \"InnerProduct\" bottom: \"a\" top: \"b\"\n\
        param { name: \"w\" share_mode: STRICT lr_mult: 2 decay_mult: 0 }\n\
        param { name: \"b\" share_mode: PERMISSIVE decay_mult: 0 } param { decay_mult: 1 }\n\
        include { phase: TRAIN min_level: 1 } loss_weight: 0.5 inner_product_param { num_output: 3 } }";
    assert_eq!(only(old), only(today));
}

#[test]
fn fields_of_other_types_are_noted_and_left_out() {
    let (layers, notes) = upgraded(
        "layers { layer { name: \"r\" type: \"relu\"\nkernelsize: 3\nnew_num: 2 } bottom: \"a\" top: \"a\" }",
    )
    .unwrap();
    assert_eq!(layers, [only("layer { name: \"r\" type: \"ReLU\" bottom: \"a\" top: \"a\" }")]);
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(notes[1].starts_with("line 2: layer \"r\": kernelsize is ignored, as in Caffe"), "{notes:?}");
    assert!(notes[2].starts_with("line 3: layer \"r\": new_num is ignored"), "{notes:?}");
}

#[test]
fn the_parameters_of_statistics_are_forgotten() {
    let with = |params: &str| {
        upgraded(&format!("layer {{ name: \"n\" type: \"BatchNorm\" bottom: \"a\" top: \"b\" {params} }}"))
            .unwrap()
    };
    let (plain, notes) = with("");
    assert!(notes.is_empty());
    assert_eq!(with(&"param { lr_mult: 0 decay_mult: 0 } ".repeat(3)), (plain.clone(), Vec::new()));
    for bad in ["param { lr_mult: 1 } ", "param { name: \"w\" lr_mult: 0 } "] {
        let (layers, notes) = with(&bad.repeat(3));
        assert_eq!(layers, plain);
        assert!(notes[0].starts_with("layer \"n\": its param are ignored"), "{notes:?}");
    }
    // Any other number is left to the layer.
    assert_ne!(with(&"param { lr_mult: 0 } ".repeat(2)).0, plain);
}

#[test]
fn fields_that_say_how_to_compute_are_named_once() {
    let text = "engine: \"MKLDNN\" multinode { model_parallel { layer_from: \"ip\" num_nodes: 2 } } input: \"x\" input_dim: [1, 3, 8, 8]\n\
        layer { name: \"a\" type: \"Convolution\" bottom: \"x\" top: \"a\" engine: \"MKL2017\"\n\
          convolution_param { num_output: 2 kernel_size: 1 engine: MKL2017 conv_algorithm: \"winograd\" } }\n\
        layer { name: \"b\" type: \"Pooling\" bottom: \"a\" top: \"b\" pooling_param { kernel_size: 2 engine: MKLDNN } }\n\
        layer { name: \"c\" type: \"Concat\" bottom: \"b\" top: \"c\" concat_param { engine: MKLDNN } }\n\
        layer { name: \"d\" type: \"InnerProduct\" bottom: \"c\" top: \"d\" inner_product_param { num_output: 1 }\n\
          multinode { num_nodes: 0 model_parts: 2 } engine: \"CAFFE\" mn_grad_compress_param { param_grad_compress_enable: true } }";
    let expected = "network fields without effect here: engine, multinode, concat_param.engine (1 layer), \
        convolution_param.conv_algorithm (1 layer), convolution_param.engine (1 layer), engine (2 layers), \
        mn_grad_compress_param (1 layer), multinode (1 layer), pooling_param.engine (1 layer)";
    assert_eq!(net(text).notes, [expected]);
    // What would change the results is refused.
    let norm = "layer { name: \"n\" type: \"BatchNorm\" bottom: \"d\" top: \"n\" }";
    let error = parse_net(format!("bn_stats_batch_size: 4\n{text}{norm}"), "f").unwrap_err();
    assert_eq!((error.line, error.field.as_str()), (1, "bn_stats_batch_size"));
    let relu = text.replace("conv_algorithm: \"winograd\"", "relu: true");
    assert_eq!(parse_net(relu, "f").unwrap_err().field, "convolution_param.relu");
}

#[test]
fn faults_of_upgraded_layers_have_the_lines_of_the_file() {
    let v0 = "input: \"x\" input_dim: [1, 3, 8, 8]\nlayers {\n layer {\n name: \"c\"\n type: \"conv\"\n num_output: 2\n\
        kernelsize: 3\nblobs_lr: nan\n weight_filler {\n type: \"xavir\" } } bottom: \"x\" top: \"c\" }";
    let v1 = "layers { type: CONVOLUTION name: \"c\" top: \"c\"\nblobs_lr: nan\n convolution_param {\n num_output: 2\n\
        weight_filler {\n type: \"xavir\" } } }";
    let fault = |text: &str| {
        let error = parse_net(text, "old.prototxt").unwrap_err();
        (error.line, error.subject.clone(), error.field.clone())
    };
    let expected = |line, field: &str| (line, "layer \"c\"".to_owned(), field.to_owned());
    assert_eq!(fault(v0), expected(10, "convolution_param.weight_filler.type"));
    let v0 = v0.replace("xavir", "xavier");
    assert_eq!(fault(&v0), expected(8, "param.lr_mult"));
    assert_eq!(fault(v1), expected(3, "convolution_param.kernel_size"));
    let v1 = v1.replace("num_output: 2", "num_output: 2 kernel_size: 3");
    assert_eq!(fault(&v1), expected(6, "convolution_param.weight_filler.type"));
    assert_eq!(fault(&v1.replace("xavir", "xavier")), expected(2, "param.lr_mult"));
    let source = "layers { type: DATA name: \"c\" top: \"c\"\ndata_param { source: \"s\"\n batch_size: 1\nscale: inf } }";
    assert_eq!(fault(source), expected(4, "transform_param.scale"));
    let padded = "layers { layer { type: \"padding\"\npad: 1 } bottom: \"x\" top: \"p\" }\n\
        layers { layer { name: \"c\" type: \"conv\" num_output: 1 kernelsize: 1 } bottom: \"p\" top: \"c\" }";
    let site = net(padded).layers.remove(0).site;
    assert_eq!((site.line, site.line_of("convolution_param.pad")), (3, 2));
}

const CONV: &str =
    "layers { layer { name: \"c\" type: \"conv\" num_output: 1 kernelsize: 1 } bottom: \"p\" top: \"c\" }\n";
const PADDING: &str = "layers { layer { name: \"p\" type: \"padding\" pad: 1 } bottom: \"x\" top: \"p\" }\n";

/// Texts with the line, the field and a part of what is said of them.
fn refused(cases: &[(String, u32, &str, &str)]) {
    for (text, line, field, says) in cases {
        let error = parse_net(text, "old.prototxt").expect_err(text);
        assert_eq!((error.line, error.field.as_str()), (*line, *field), "{text}\n{error}");
        assert!(error.to_string().contains(says), "{text}\n{error}\nlacks {says}");
    }
}

#[test]
fn what_cannot_be_upgraded_is_refused_with_its_line() {
    let conv = CONV;
    refused(&[
        (
            format!("{conv}layer {{ name: \"d\" type: \"ReLU\" }}"),
            2,
            "layer",
            "conflicts with layers, on line 1",
        ),
        (
            format!("{conv}layers {{ name: \"d\" type: RELU }}"),
            2,
            "layer",
            "other layers of this file have it",
        ),
        (
            "layers { layer { name: \"r\" type: \"relu\" }\ninclude { phase: TEST } }".to_owned(),
            2,
            "include",
            "no meaning beside layer",
        ),
        (
            "layers { layer {\nname: \"r\" type: \"rellu\" } }".to_owned(),
            2,
            "layer.type",
            "did you mean \"relu\"?",
        ),
        (
            "layers { layer { type:\n\"Quadrature\" } }".to_owned(),
            1,
            "layer.type",
            "expected one of accuracy, ",
        ),
        ("layers {\n layer { name: \"r\" } }".to_owned(), 2, "layer.type", "missing"),
        (
            "layers { layer { name: \"i\" type: \"images\"\nnew_height: -1 } }".to_owned(),
            2,
            "layer.new_height",
            "-1; expected at least 0",
        ),
        ("layers { name: \"r\" }".to_owned(), 1, "type", "write type: CONVOLUTION"),
        ("layers { name: \"r\"\ntype: NONE }".to_owned(), 2, "type", "missing"),
        ("layers { name: \"r\"\ntype: RELUU }".to_owned(), 2, "type", "did you mean RELU?"),
        ("layers { name: \"r\" type: RELU\nlr_mult: 1 }".to_owned(), 2, "lr_mult", "unknown field"),
    ]);
}

#[test]
fn padding_that_nobody_can_take_over_is_refused_with_its_line() {
    let (conv, padding) = (CONV, PADDING);
    refused(&[
        (
            format!("{padding}layers {{ layer {{ name: \"r\" type: \"relu\" }}\nbottom: \"p\" top: \"r\" }}"),
            3,
            "bottom",
            "layer \"r\": bottom: reads the top of padding layer \"p\"",
        ),
        (
            format!("{padding}{padding}").replace("\"x\" top", "\"p\" top"),
            2,
            "bottom",
            "layer \"p\": bottom: reads",
        ),
        (
            format!("{padding}{}", conv.replace("top", "\nbottom: \"x\" top")),
            2,
            "bottom",
            "only a conv or pool with one bottom",
        ),
        (
            format!("{}{conv}", padding.replace("bottom", "\nbottom: \"y\" bottom")),
            2,
            "bottom",
            "a padding layer has one bottom and one top",
        ),
    ]);
}

#[test]
fn types_that_are_not_done_yet_are_named_as_today() {
    for (text, name) in [
        ("layers { name: \"l\" type: HDF5_OUTPUT }", "HDF5Output"),
        (
            "layers { layer { name: \"l\" type: \"hdf5_output\" hdf5_output_param { file_name: \"f\" } } }",
            "HDF5Output",
        ),
    ] {
        let error = parse_net(text, "old.prototxt").unwrap_err();
        assert!(error.field == "type" && error.message.contains(name), "{error}");
    }
    assert!(matches!(said(THREE[1])[1].layer, Layer::ConvolutionNd(_)));
}

#[test]
fn no_cut_and_no_changed_byte_makes_it_panic() {
    let mut refused = 0;
    for text in &THREE[..2] {
        for at in 0..text.len() {
            refused += usize::from(parse_net(&text[..at], "cut").is_err());
            for byte in [b'}', b'{', b'"', b'0', b'x', b'\n', 0xff] {
                let mut bad = text.as_bytes().to_vec();
                bad[at] = byte;
                refused += usize::from(parse_net(&bad, "bad").is_err());
            }
        }
    }
    assert!(refused > 1000);
}
