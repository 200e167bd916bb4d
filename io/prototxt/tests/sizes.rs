//! Fields of Intel's fork that give samples another size: what they mean, and how they can be wrong.

use quadrille_core::layer::{Fit, Interpolation, Padding, RandomResize, Resampling, Resize, Transform};

use super::*;

fn net(transform: &str) -> Result<NetSpec, SpecError> {
    let text = format!(
        "layer {{ name: \"d\" type: \"Data\" top: \"data\" data_param {{ source: \"s\" batch_size: 2 }}\n\
         transform_param {{\n{transform}\n}} }}"
    );
    parse_net(&text, "some.prototxt")
}

fn transform(text: &str) -> Transform {
    let spec = net(text).unwrap();
    match &spec.layers[0].layer {
        Layer::Data(data) => data.transform.clone(),
        other => panic!("{other:?}"),
    }
}

/// The messages of Intel's ResNet-50 and GoogLeNet v3.
#[test]
fn what_intels_networks_ask_for() {
    let cubic = Resampling { interpolations: vec![Interpolation::Cubic], ..Resampling::default() };
    let train = transform(
        "mirror: true crop_size: 224 random_aspect_ratio_param { min_area_ratio: 0.08 max_area_ratio: 1 \
         aspect_ratio_change: 0.75 max_attempt: 100 resize_param { interp_mode: CUBIC } }",
    );
    let part =
        RandomResize::Part { areas: [0.08, 1.0], change: 0.75, attempts: 100, resampling: cubic.clone() };
    assert_eq!(
        (train.crop, train.random, train.resize, train.undone),
        (224, Some(Box::new(part)), None, None)
    );
    let test = transform(
        "crop_size: 224 random_resize_param { min_size: 256 max_size: 256 resize_param { interp_mode: CUBIC } }",
    );
    let side = RandomResize::ShorterSide { min: Some(256), max: Some(256), resampling: cubic };
    assert_eq!((test.random, test.ignored), (Some(Box::new(side)), Vec::new()));
}

#[test]
fn what_is_not_given_is_as_in_intels_fork() {
    let side = transform("crop_size: 8 random_resize_param { }").random.unwrap();
    let resampling = Resampling::default();
    assert_eq!(*side, RandomResize::ShorterSide { min: None, max: None, resampling: resampling.clone() });
    let part = transform("crop_size: 8 random_aspect_ratio_param { }").random.unwrap();
    let expected =
        RandomResize::Part { areas: [0.5, 1.0], change: 1.0, attempts: 10, resampling: resampling.clone() };
    assert_eq!(*part, expected);
    let fixed = transform("resize_param { height: 8 width: 9 }");
    assert_eq!((fixed.resize, fixed.random), (Some(Box::new(Resize { size: [8, 9], resampling })), None));
    let whole = transform(
        "resize_param { height: 8 width: 9 resize_mode: FIT_LARGE_SIZE_AND_PAD pad_value: 3.5 pad_value: -1 \
         pad_value: 300 interp_mode: LINEAR interp_mode: AREA interp_mode: NEAREST interp_mode: LANCZOS4 }",
    );
    let resampling = whole.resize.unwrap().resampling;
    assert_eq!(resampling.fit, Fit::LargeAndPad);
    // As OpenCV makes bytes: to the nearest even, and not beyond what a byte holds.
    assert_eq!(resampling.padding, Padding::Constant(vec![4, 0, 255]));
    use Interpolation::*;
    assert_eq!(resampling.interpolations, [Linear, Area, Nearest, Lanczos4]);
    let mode =
        |text: &str| transform(&format!("resize_param {{ height: 8 width: 9 {text} }}")).resize.unwrap();
    assert_eq!(mode("resize_mode: FIT_SMALL_SIZE pad_mode: MIRRORED").resampling.padding, Padding::Mirrored);
    assert_eq!(mode("resize_mode: WARP pad_mode: REPEAT_NEAREST").resampling.padding, Padding::Nearest);
}

#[test]
fn what_has_no_effect_is_said() {
    let spec = net(
        "crop_size: 8 random_resize_param { min_size: 8 resize_param { height: 3 width: 3 } } \
         random_aspect_ratio_param { } resize_param { prob: 0.5 height: 9 width: 9 height_scale: 2 width_scale: 2 }",
    )
    .unwrap();
    for part in ["random_aspect_ratio_param (", "height and width of", "resize_param.prob", "height_scale"] {
        assert!(spec.notes.iter().any(|note| note.contains(part)), "{part}: {:?}", spec.notes);
    }
    assert!(spec.notes.iter().all(|note| note.starts_with("line 1: layer \"d\": without effect: ")));
    assert_eq!(spec.notes.len(), 4);
    // Windows have a size of their own.
    let text = "layer { name: \"w\" type: \"WindowData\" window_data_param { source: \"w\" }
        transform_param { crop_size: 8 resize_param { height: 9 width: 9 } } }";
    let spec = parse_net(text, "some.prototxt").unwrap();
    assert!(spec.notes[0].contains("transform_param.resize_param is not done yet"), "{:?}", spec.notes);
}

/// The shape of a mini-batch of samples of 3 x 40 x 60.
fn shape(text: &str) -> Result<Vec<usize>, SpecError> {
    let mut spec = net(text)?;
    if let Layer::Data(data) = &mut spec.layers[0].layer {
        data.sample = Some([3, 40, 60]);
    }
    let net = Net::build(&spec, &NetState::new(Phase::Test), 1.0)?;
    Ok(net.blob(net.layers[0].tops[0]).shape.dims().to_vec())
}

#[test]
fn shapes_follow_from_sizes() {
    for (text, expected) in [
        ("resize_param { height: 8 width: 9 }", [8, 9]),
        ("resize_param { height: 80 width: 80 resize_mode: FIT_SMALL_SIZE }", [80, 120]),
        ("resize_param { height: 80 width: 80 resize_mode: FIT_LARGE_SIZE_AND_PAD }", [80, 80]),
        ("crop_size: 70 resize_param { height: 80 width: 90 }", [70, 70]),
        ("crop_size: 70 random_resize_param { min_size: 70 }", [70, 70]),
        ("crop_size: 70 random_aspect_ratio_param { }", [70, 70]),
    ] {
        assert_eq!(shape(text).unwrap(), [2, 3, expected[0], expected[1]], "{text}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (text, line, field, says) in CASES {
        let error = shape(text).expect_err(text);
        let message = error.to_string();
        assert_eq!(
            (error.line, error.field.as_str()),
            (*line, format!("transform_param.{field}").as_str()),
            "{message}"
        );
        assert!(message.starts_with(&format!("some.prototxt:{line}: layer \"d\": ")), "{message}");
        for part in *says {
            assert!(message.contains(part), "{message}\nlacks: {part}");
        }
    }
    let error = net("resize_param {\n interp_mode: BICUBIC }").unwrap_err().to_string();
    assert!(error.contains("some.prototxt:4: ") && error.contains("interp_mode"), "{error}");
    let memory = "layer { name: \"d\" type: \"MemoryData\" memory_data_param { batch_size: 1 channels: 1 height: 2 width: 2 }
        transform_param { resize_param { height: 2 width: 3 } } }";
    let error = parse_net(memory, "some.prototxt").unwrap_err();
    assert_eq!((error.line, error.field.as_str()), (2, "transform_param.resize_param"));
    assert!(
        error.message.contains("2 x 3; memory_data_param says what samples are once they are resized"),
        "{error}"
    );
}

/// What a message holds from line 3 on, and line, field and parts of the complaint.
const CASES: &[(&str, u32, &str, &[&str])] = &[
    (
        "random_resize_param {\n min_size: 8 }",
        2,
        "crop_size",
        &["missing; random_resize_param makes samples of many sizes", "hint: crop_size: 224, for example"],
    ),
    ("crop_size: 0\nrandom_aspect_ratio_param { }", 3, "crop_size", &["random_aspect_ratio_param makes"]),
    (
        "crop_size: 8 random_resize_param {\n max_size: 9\n min_size: 10 }",
        5,
        "random_resize_param.min_size",
        &["10 is larger than max_size, 9", "hint: write min_size: 9 max_size: 10"],
    ),
    (
        "crop_size: 8 random_resize_param {\n min_size: 7\n max_size: 10 }",
        4,
        "random_resize_param.min_size",
        &["7; samples with so short a side are too small for crop_size, 8", "hint: write at least 8"],
    ),
    (
        "crop_size: 8 random_resize_param {\n max_size: 7 }",
        4,
        "random_resize_param.max_size",
        &["7; samples with so short a side are too small for crop_size, 8"],
    ),
    (
        "crop_size: 8 random_resize_param {\n max_size: 65537 }",
        4,
        "random_resize_param.max_size",
        &["65537; expected at most 65536"],
    ),
    (
        "crop_size: 8 random_aspect_ratio_param {\n min_area_ratio: 0 }",
        4,
        "random_aspect_ratio_param.min_area_ratio",
        &["0; expected a number above 0 and at most 1", "hint: 1 is the area of the whole image"],
    ),
    (
        "crop_size: 8 random_aspect_ratio_param {\n max_area_ratio: 1.5 }",
        4,
        "random_aspect_ratio_param.max_area_ratio",
        &["1.5; expected a number above 0 and at most 1"],
    ),
    (
        "crop_size: 8 random_aspect_ratio_param {\n max_area_ratio: 0.25 }",
        3,
        "random_aspect_ratio_param.min_area_ratio",
        &["0.5 is larger than max_area_ratio, 0.25", "hint: write min_area_ratio: 0.25 max_area_ratio: 0.5"],
    ),
    (
        "crop_size: 8 random_aspect_ratio_param {\n\n aspect_ratio_change: 1.25 }",
        5,
        "random_aspect_ratio_param.aspect_ratio_change",
        &[
            "1.25; expected a number above 0 and at most 1",
            "hint: it is the smaller of two factors",
            "write 0.8",
        ],
    ),
    (
        "crop_size: 8 random_aspect_ratio_param {\n aspect_ratio_change: -0.75 }",
        4,
        "random_aspect_ratio_param.aspect_ratio_change",
        &["-0.75; expected a number above 0", "0.75 is usual"],
    ),
    (
        "crop_size: 8 random_aspect_ratio_param {\n min_area_ratio: nan }",
        4,
        "random_aspect_ratio_param.min_area_ratio",
        &["expected a finite number"],
    ),
    (
        "crop_size: 8 random_aspect_ratio_param {\n max_attempt: 100001 }",
        4,
        "random_aspect_ratio_param.max_attempt",
        &["100001; expected at most 100000"],
    ),
    (
        "resize_param {\n width: 8 }",
        3,
        "resize_param.height",
        &["missing or 0; expected at least 1", "hint: give both, such as height: 256 width: 256"],
    ),
    ("resize_param { height: 8\n width: 0 }", 4, "resize_param.width", &["missing or 0"]),
    (
        "resize_param { height: 8\n width: 65537 }",
        4,
        "resize_param.width",
        &["65537; expected at most 65536"],
    ),
    (
        "crop_size: 9 resize_param { height: 8 width: 10 }",
        3,
        "crop_size",
        &["9; the samples are only 8 x 10"],
    ),
    (
        "resize_param { height: 8 width: 8\n pad_value: 1 pad_value: 2 }",
        4,
        "resize_param.pad_value",
        &["2 values for samples of 3 channels; expected 1 or 3"],
    ),
    (
        "resize_param { height: 8 width: 8\n pad_value: inf }",
        4,
        "resize_param.pad_value",
        &["a finite number"],
    ),
    (
        "crop_size: 8 random_resize_param { min_size: 8 resize_param {\n pad_value: 1 pad_value: 2 } }",
        4,
        "random_resize_param.resize_param.pad_value",
        &["2 values for samples of 3 channels"],
    ),
    (
        "resize_param { height: 1 width: 60000 resize_mode: FIT_SMALL_SIZE }\ncrop_size: 40001",
        4,
        "crop_size",
        &["40001; the samples are only 40000 x 60000"],
    ),
];
