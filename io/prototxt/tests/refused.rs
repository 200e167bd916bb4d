//! Files that must be refused, each with its line, its field and what the user is told.

use super::super::*;

/// A layer that is fine, for files that are wrong elsewhere.
pub(super) const FINE: &str =
    "layer { name: \"d\" type: \"Input\" top: \"d\" input_param { shape { dim: 1 } } }\n";

struct Case {
    text: &'static str,
    line: u32,
    field: &'static str,
    /// Parts of the whole message, hint included.
    says: &'static [&'static str],
}

const fn case(text: &'static str, line: u32, field: &'static str, says: &'static [&'static str]) -> Case {
    Case { text, line, field, says }
}

fn check(cases: &[Case], parse: impl Fn(&str) -> Result<(), SpecError>) {
    for Case { text, line, field, says } in cases {
        let error = parse(text).expect_err(text);
        let message = error.to_string();
        assert_eq!((error.line, error.field.as_str()), (*line, *field), "{text}\n{message}");
        assert!(message.starts_with(&format!("some.prototxt:{line}: ")), "{message}");
        for part in *says {
            assert!(message.contains(part), "{text}\n{message}\nlacks: {part}");
        }
    }
}

fn net(text: &str) -> Result<(), SpecError> {
    parse_net(text, "some.prototxt").map(drop)
}

#[test]
fn broken_text() {
    check(
        &[
            case(
                "layer {\n name: \"a\"\n",
                3,
                "",
                &["layer \"a\": ", "the '{' of line 1 is not closed", "missing '}'"],
            ),
            case("layer {\n}\n}\n", 3, "", &["'}' closes nothing"]),
            case("layer {\n name: \"a\"\n>\n", 3, "", &["layer \"a\": '>' closes nothing"]),
            case("name: \"a\nlayer {}\n", 1, "name", &["does not end on its line", "missing quote"]),
            case("name: \"a", 1, "name", &["no closing quote"]),
            case("name: \"a\\q\"", 1, "name", &["invalid string escape", "\\\\"]),
            case("name: \"\\400\"", 1, "name", &["invalid string escape"]),
            case("name: \"\\ud800\"", 1, "name", &["invalid string escape"]),
            case("name: \"a\"\nname: \"b\"\n", 2, "name", &["given twice; expected name once"]),
            case("name \"a\"", 1, "name", &["expected ':'", "found '\"a\"'"]),
            case("name: ", 1, "name", &["expected a string, but reached end of input"]),
            case("name: LeNet", 1, "name", &["expected a string, but found 'LeNet'", "write \"LeNet\""]),
            case("\n[a.b] { }", 2, "", &["'[' starts an extension"]),
            case("layer {\n [a.b/c.d] { }\n}", 2, "", &["'[' starts an extension"]),
            case("12: 3", 1, "", &["expected a field name, but found '12'"]),
            case("name: \"a\" @", 1, "", &["'@' has no meaning"]),
            case("name: \"a\"\n\u{7f}", 2, "", &["0x7f has no meaning", "text file"]),
            case("input_dim: 12abc", 1, "input_dim", &["'12abc' is not a number"]),
            case("layer {\n loss_weight: 1.name: \"a\" }", 2, "loss_weight", &["'1.name' is not a number"]),
            case(
                "layer [{ name: \"a\" },\n{ name: 5 }]",
                2,
                "name",
                &["layer: name: expected a string, but found '5'"],
            ),
            case(
                "force_backward: maybe",
                1,
                "force_backward",
                &["expected 'true' or 'false', but found 'maybe'"],
            ),
            case("force_backward: 2", 1, "force_backward", &["expected 0 or 1, but found '2'"]),
            case("layer: 5", 1, "layer", &["expected '{' or '<', but found '5'", "layer { ... }"]),
            case("input_dim: [1, 2 3]", 1, "input_dim", &["expected ',' or ']', but found '3'"]),
            case(
                "input_dim: 3000000000",
                1,
                "input_dim",
                &["3000000000 is out of range", "between -2147483648 and 2147483647"],
            ),
            case("input_dim: 08", 1, "input_dim", &["found '8'", "starts with 0 is octal"]),
            case("input_dim: 1.5", 1, "input_dim", &["expected an integer, but found '1.5'"]),
        ],
        net,
    );
}

#[test]
fn unknown_names() {
    check(
        &[
            case(
                "layer {\n name: \"c\"\n convolution_param {\n  kernal_size: 3\n }\n}",
                4,
                "convolution_param.kernal_size",
                &["layer \"c\"", "unknown field", "did you mean \"kernel_size\"?"],
            ),
            case(
                "layer {\n kernel_size: 3 }",
                2,
                "kernel_size",
                &["belongs inside convolution_param { ... } or pooling_param { ... }"],
            ),
            case("lyer { }", 1, "lyer", &["did you mean \"layer\"?"]),
            case("zzzzzzzzzz: 1", 1, "zzzzzzzzzz", &["NetParameter has no such field"]),
            case(
                "layer { name: \"p\" pooling_param {\n pool: MAXX } }",
                2,
                "pooling_param.pool",
                &["unknown value 'MAXX'", "MAX, AVE, STOCHASTIC", "did you mean MAX?"],
            ),
            case(
                "layer { name: \"p\" pooling_param { pool: \"MAX\" } }",
                1,
                "pooling_param.pool",
                &["without quotes"],
            ),
            case("layer { name: \"p\" pooling_param { pool: 9 } }", 1, "pooling_param.pool", &["'9'"]),
            case("state {\n phase: -1 }", 2, "state.phase", &["no sign", "expected one of TRAIN, TEST"]),
            case("base_lr: 0.1\nnet: \"a\"", 1, "base_lr", &["this is a solver file"]),
            case(
                "layer {\n name: \"c\"\n type: \"Convolutoin\" }",
                3,
                "type",
                &["did you mean \"Convolution\"?"],
            ),
            case(
                "layer { name: \"c\" type: \"CONVOLUTION\" }",
                1,
                "type",
                &["did you mean \"Convolution\"?"],
            ),
            case("layer { name: \"c\" type: \"HDF5Dta\" }", 1, "type", &["did you mean \"HDF5Data\"?"]),
            case("layer { name: \"c\" type: \"WindowDta\" }", 1, "type", &["did you mean \"WindowData\"?"]),
            case(
                "layer { name: \"c\" type: \"Python\" }",
                1,
                "type",
                &["\"Python\" are not supported; their code is the user's own", "Input"],
            ),
            case(
                "layer { name: \"c\" type: \"HDF5Output\" }",
                1,
                "type",
                &["writes no files", "the command extract"],
            ),
            case("layer { name: \"c\" type: \"Transformer\" }", 1, "type", &["unknown layer type"]),
            case("layer { name: \"c\" }", 1, "type", &["missing"]),
            case("layer {\n type: \"ReLU\" }", 1, "name", &["missing; every layer needs a name"]),
        ],
        net,
    );
}

/// What follows the head of a convolution; line, field and a part of the message.
const CONVOLUTIONS: &[(&str, u32, &str, &str)] = &[
    ("}", 1, "convolution_param", "missing"),
    ("convolution_param {\n kernel_size: 3 } }", 1, "convolution_param.num_output", "missing"),
    ("convolution_param {\n num_output: 3 } }", 1, "convolution_param.kernel_size", "missing"),
    (
        "convolution_param { num_output: 3\n kernel_size: 3\n kernel_h: 3 } }",
        3,
        "convolution_param.kernel_h",
        "conflicts with kernel_size",
    ),
    ("convolution_param { num_output: 3\n kernel_h: 3 } }", 1, "convolution_param.kernel_w", "go together"),
    (
        "convolution_param { num_output: 3 kernel_size: 3\n stride_w: 2 } }",
        1,
        "convolution_param.stride_h",
        "go together",
    ),
    (
        "convolution_param { num_output: 3 kernel_size: 3\n pad: 1 pad_w: 2 } }",
        2,
        "convolution_param.pad_w",
        "conflicts with pad",
    ),
    (
        "convolution_param { num_output: 3 kernel_size: 3\n weight_filler {\n type: \"xaver\" } } }",
        3,
        "convolution_param.weight_filler.type",
        "did you mean \"xavier\"?",
    ),
    (
        "convolution_param { num_output: 3 kernel_size: 3\n weight_filler { type: \"gaussian\"\n std: 0 } } }",
        3,
        "convolution_param.weight_filler.std",
        "0; expected a number above 0",
    ),
    (
        "convolution_param { num_output: 3 kernel_size: 3\n weight_filler { type: \"uniform\"\n min: 2 } } }",
        3,
        "convolution_param.weight_filler.min",
        "2 is larger than max, 1",
    ),
    (
        "convolution_param { num_output: 3 kernel_size: 3\n bias_filler {\n value: nan } } }",
        3,
        "convolution_param.bias_filler.value",
        "finite",
    ),
    (
        "convolution_param { num_output: 3 kernel_size: 3 }\n pooling_param { } }",
        2,
        "pooling_param",
        "has no meaning in a layer of type Convolution",
    ),
    (
        "\nparam {\n lr_mult: nan } convolution_param { num_output: 3 kernel_size: 3 } }",
        3,
        "param.lr_mult",
        "finite",
    ),
    ("\nblobs { } convolution_param { num_output: 3 kernel_size: 3 } }", 2, "blobs", "not supported yet"),
    (
        "\nphase: TEST convolution_param { num_output: 3 kernel_size: 3 } }",
        2,
        "phase",
        "include { phase: TRAIN }",
    ),
    (
        "include { }\n exclude { } convolution_param { num_output: 3 kernel_size: 3 } }",
        2,
        "exclude",
        "conflicts with include",
    ),
    (
        "\n propagate_down: true convolution_param { num_output: 3 kernel_size: 3 } }",
        2,
        "propagate_down",
        "1 values for 0 bottoms",
    ),
    ("\n loss_weight: inf convolution_param { num_output: 3 kernel_size: 3 } }", 2, "loss_weight", "finite"),
];
/// The same for a layer of type Data.
const DATA: &[(&str, u32, &str, &str)] = &[
    ("}", 1, "data_param", "missing"),
    ("data_param {\n batch_size: 4 } }", 1, "data_param.source", "missing"),
    ("data_param { source: \"m\"\n batch_size: 0 } }", 2, "data_param.batch_size", "0; expected at least 1"),
    (
        "data_param { source: \"m\"\n batch_size: -1 } }",
        2,
        "data_param.batch_size",
        "between 0 and 4294967295",
    ),
    (
        "transform_param { crop_size: 3 } data_param { source: \"m\" batch_size: 1\n crop_size: 5 } }",
        2,
        "data_param.crop_size",
        "conflicts with transform_param.crop_size",
    ),
    (
        "transform_param { mean_value: 2\n mean_file: \"m\" } data_param { source: \"m\" batch_size: 1 } }",
        2,
        "transform_param.mean_file",
        "conflicts with mean_value",
    ),
    (
        "transform_param { force_gray: true\n force_color: true } data_param { source: \"m\" batch_size: 1 } }",
        2,
        "transform_param.force_color",
        "conflicts with force_gray",
    ),
    (
        "transform_param { scale: 2 } data_param { source: \"m\" batch_size: 1\n scale: 2 } }",
        2,
        "data_param.scale",
        "conflicts with transform_param.scale",
    ),
];
#[test]
fn layers_that_cannot_be() {
    const D: &str = "layer { name: \"d\" type: \"Data\" ";
    const C: &str = "layer { name: \"c\" type: \"Convolution\" ";
    let built = |head: &str, rest: &str| parse_net(format!("{head}{rest}"), "some.prototxt");
    let cases = CONVOLUTIONS.iter().map(|c| (C, c)).chain(DATA.iter().map(|c| (D, c)));
    for (head, (rest, line, field, says)) in cases {
        let error = built(head, rest).expect_err(rest);
        assert_eq!((error.line, error.field.as_str()), (*line, *field), "{rest}\n{error}");
        assert!(error.to_string().contains(says), "{rest}\n{error}");
    }
}

#[test]
fn pooling_that_cannot_be() {
    for (inside, field, says) in [
        ("pool: STOCHASTIC kernel_size: 2", "pool", "STOCHASTIC pooling is not supported yet"),
        ("round_mode: FLOOR kernel_size: 2", "round_mode", "not supported yet"),
        ("pool: MAX", "kernel_size", "missing"),
        ("kernel_size: 2 kernel_w: 2", "kernel_w", "conflicts with kernel_size"),
        ("kernel_size: 2 pad_h: 1", "pad_w", "go together"),
        ("global_pooling: true kernel_size: 2", "kernel_size", "conflicts with global_pooling"),
        ("global_pooling: true pad: 1", "pad", "conflicts with global_pooling"),
        ("global_pooling: true stride: 2", "stride", "conflicts with global_pooling"),
    ] {
        let text = format!("layer {{ name: \"p\" type: \"Pooling\" pooling_param {{ {inside} }} }}");
        let error = net(&text).expect_err(inside);
        assert_eq!(error.field, format!("pooling_param.{field}"));
        assert!(error.message.contains(says), "{error}");
    }
}

/// What a layer holds, and line, field and a part of the message of the complaint.
const OTHER_LAYERS: &[(&str, u32, &str, &str)] = &[
    ("type: \"MemoryData\"", 1, "memory_data_param", "missing"),
    (
        "type: \"MemoryData\" memory_data_param {\n channels: 1 height: 2 }",
        1,
        "memory_data_param.width",
        "missing or 0",
    ),
    (
        "type: \"MemoryData\" memory_data_param { channels: 1 height: 2 width: 2 }\n transform_param { crop_size: 3 }",
        2,
        "transform_param.crop_size",
        "once they are cut, 2 x 2",
    ),
    ("type: \"WindowData\"", 1, "window_data_param", "missing"),
    (
        "type: \"WindowData\" window_data_param { source: \"w\" }",
        1,
        "transform_param.crop_size",
        "missing; expected at least 1",
    ),
    ("type: \"WindowData\" window_data_param { crop_size: 3 }", 1, "window_data_param.source", "missing"),
    (
        "type: \"WindowData\" window_data_param { source: \"w\" crop_size: 8\n context_pad: 4 }",
        2,
        "window_data_param.context_pad",
        "leaves nothing of the window",
    ),
    (
        "type: \"WindowData\" window_data_param { source: \"w\" crop_size: 8\n crop_mode: \"wrap\" }",
        2,
        "window_data_param.crop_mode",
        "expected \"warp\" or \"square\"",
    ),
    (
        "type: \"WindowData\" window_data_param { source: \"w\" crop_size: 8\n fg_fraction: 1.5 }",
        2,
        "window_data_param.fg_fraction",
        "1.5; expected 0 to 1",
    ),
    ("type: \"ImageData\"", 1, "image_data_param", "missing"),
    ("type: \"ImageData\" image_data_param {\n batch_size: 1 }", 1, "image_data_param.source", "missing"),
    (
        "type: \"ImageData\" image_data_param { source: \"l\"\n new_height: 4 }",
        2,
        "image_data_param.new_height",
        "4 with new_width 0; expected both or none",
    ),
    ("type: \"LRN\"\n lrn_param {\n beta: nan }", 3, "lrn_param.beta", "finite"),
    ("type: \"LRN\"\n lrn_param {\n alpha: inf }", 3, "lrn_param.alpha", "finite"),
    ("type: \"LRN\"\n lrn_param {\n k: -inf }", 3, "lrn_param.k", "finite"),
    ("type: \"LRN\"\n lrn_param {\n local_size: -1 }", 3, "lrn_param.local_size", "between 0 and"),
    ("type: \"LRN\"\n lrn_param {\n norm_region: ACROSS }", 3, "lrn_param.norm_region", "ACROSS_CHANNELS"),
    (
        "type: \"Concat\"\n concat_param { axis: 1\n concat_dim: 1 }",
        3,
        "concat_param.concat_dim",
        "conflicts with axis",
    ),
    (
        "type: \"Concat\"\n concat_param {\n concat_dim: 4294967295 }",
        3,
        "concat_param.concat_dim",
        "4294967295",
    ),
    (
        "type: \"Slice\"\n slice_param { slice_dim: 1\n axis: 1 }",
        2,
        "slice_param.slice_dim",
        "conflicts with axis",
    ),
    ("type: \"Slice\"\n slice_param {\n slice_point: -1 }", 3, "slice_param.slice_point", "between 0 and"),
    (
        "type: \"ContrastiveLoss\"\n contrastive_loss_param {\n margin: nan }",
        3,
        "contrastive_loss_param.margin",
        "finite",
    ),
    (
        "type: \"Dropout\"\n dropout_param {\n dropout_ratio: 1 }",
        3,
        "dropout_param.dropout_ratio",
        "1; expected at least 0 and less than 1",
    ),
    ("type: \"Dropout\"\n dropout_param {\n dropout_ratio: nan }", 3, "dropout_param.dropout_ratio", "NaN"),
    ("type: \"LRN\"\n pooling_param { }", 2, "pooling_param", "this type reads lrn_param"),
];

#[test]
fn other_layers_that_cannot_be() {
    for (inside, line, field, says) in OTHER_LAYERS {
        let error = net(&format!("layer {{ name: \"x\" {inside} }}")).expect_err(inside);
        assert_eq!((error.line, error.field.as_str()), (*line, *field), "{inside}\n{error}");
        assert!(error.to_string().contains(says), "{inside}\n{error}");
    }
}

#[test]
fn networks_that_cannot_be() {
    let with = |text: &str| net(&format!("{FINE}{text}"));
    for (text, field, says) in [
        (
            "bn_stats_batch_size: 4 layer { name: \"n\" type: \"BatchNorm\" bottom: \"d\" top: \"n\" }",
            "bn_stats_batch_size",
            "layer \"n\": bn_stats_batch_size: statistics over 4 images instead of a mini-batch are not supported yet",
        ),
        ("input: [\"x\", \"y\"] input_dim: [1, 1, 1, 1]", "input_dim", "1 shapes for 2 inputs"),
        ("input: \"x\" input_dim: [1, 2, 3]", "input_dim", "3 numbers; expected four for each input"),
        ("input: \"x\" input_dim: [1, 2, 3, -4]", "input_dim", "-4; expected an extent of at least 1"),
        ("input: \"x\" input_dim: [1, 1, 1, 1] input_shape { dim: 1 }", "input_dim", "conflicts"),
        ("input_shape { dim: 1 }", "input_shape", "without an input"),
    ] {
        let error = with(text).expect_err(text);
        assert_eq!((error.line, error.field.as_str()), (2, field), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!(net("").is_err_and(|e| e.field == "layer" && e.message.contains("missing")));
}

#[test]
fn files_that_are_too_large_too_deep_or_too_many() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.prototxt");
    // A sparse file: reading all of it would show in memory, not on the disk.
    std::fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
    assert_eq!(read(&path, "a file").unwrap().len() as u64, MAX_BYTES + 1);
    let error = read_net(&path).unwrap_err();
    assert!(error.exit_code() == 64 && error.to_string().contains("larger than 16 MiB"), "{error}");

    for open in ["layer {", "net_param {", "train_state <", "layer { convolution_param {", "[", "{", "a {"] {
        let deep = open.repeat(10_000);
        assert!(parse_net(&deep, "deep").is_err());
        assert!(parse_solver(&deep, "deep").is_err());
    }
    let many = "layer {}".repeat(20_001);
    assert!(net(&many).is_err_and(|e| e.message.contains("at most 20000")));
    let flood = "input_dim: 1 ".repeat(200_001);
    assert!(net(&flood).is_err_and(|e| e.message.contains("more than 200000 fields")));
    let level = |depth: usize| format!("{}{}", "name {".repeat(depth), "}".repeat(depth));
    assert!(net(&level(8)).is_err_and(|e| e.message.contains("expected a string")));
    assert!(net(&level(9)).is_err_and(|e| e.message.contains("more than 8 deep")));
    let list = format!("input_dim: [{} 1]", "1,".repeat(200_001));
    assert!(net(&list).is_err_and(|e| e.message.contains("more than 200000 fields")));
    let long = format!("name: {}", "x".repeat(1 << 20));
    assert!(net(&long).unwrap_err().to_string().len() < 1000);
}

#[test]
fn files_that_are_not_there_or_not_text() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(read_net(&folder.path().join("none")).unwrap_err().exit_code(), 66);
    assert_eq!(read_solver(folder.path()).unwrap_err().exit_code(), 66);
    let error = parse_net(b"name: \"caf\xe9\"", "some.prototxt").unwrap_err();
    assert!(error.to_string().contains("not UTF-8") && error.field == "name" && error.line == 1);
    let error = parse_net(b"\n\xe9", "some.prototxt").unwrap_err();
    assert!(error.to_string().contains("0xe9") && error.line == 2);
}

/// Neither pass may recurse over a word, or take more than linear time for it.
#[test]
fn files_of_one_long_thing() {
    const LENGTH: usize = 4 << 20;
    for (head, piece, tail) in [
        ("name: \"", "x", "\""),
        ("name: \"", "\\n", "\""),
        ("name: ", "'a'", ""),
        ("name: ", "x", ""),
        ("", "#\n", ""),
        ("name: 5", " #\n", "}"),
        ("name: 5", " #\n", ""),
        ("", " ", ""),
        ("#", "\u{e9}", ""),
        ("force_backward: ", "0", ""),
        ("layer { loss_weight: ", "1", "}"),
        ("layer { loss_weight: 0.", "1", "}"),
        ("layer { name: ", "'a'", "}"),
        ("name", ":", ""),
    ] {
        let text = format!("{head}{}{tail}", piece.repeat(LENGTH / piece.len()));
        assert!(net(&text).unwrap_err().to_string().len() < 1000);
    }
}
