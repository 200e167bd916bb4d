//! Neuron layers, PReLU, Bias, MVN, Reduction and losses: every field, and every way to get one wrong.

use std::fs;

use prost::Message;
use quadrille_core::layer::{
    Bias, EuclideanLoss, Filler, HingeLoss, HingeNorm, InfogainLoss, Layer, MultinomialLogisticLoss, Mvn,
    Neuron, Normalization, Prelu, Reduction, ReductionOperation, SigmoidCrossEntropyLoss,
};
use quadrille_core::net::{Net, NetState, Phase};

use super::super::*;
use crate::schema::{BlobProto, BlobShape};

/// The layer of a file that has one, of type `kind` and with a bottom.
fn read(kind: &str, inside: &str) -> Layer {
    let text = format!("layer {{ name: \"l\" type: \"{kind}\" bottom: \"a\" {inside} }}");
    let mut net = parse_net(&text, "some.prototxt").unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(net.layers.len(), 1);
    net.layers.remove(0).layer
}

#[test]
fn functions_with_defaults_and_with_every_field() {
    let (scale, shift) = (1.0, 0.0);
    for (kind, inside, neuron) in [
        ("AbsVal", "", Neuron::AbsVal),
        ("BNLL", "", Neuron::Bnll),
        ("Clip", "clip_param { min: -1 max: 6 }", Neuron::Clip { min: -1.0, max: 6.0 }),
        ("ELU", "", Neuron::Elu { alpha: 1.0 }),
        ("ELU", "elu_param { alpha: -0.5 }", Neuron::Elu { alpha: -0.5 }),
        ("Exp", "", Neuron::Exp { base: None, scale, shift }),
        ("Exp", "exp_param { base: -1 scale: 2 }", Neuron::Exp { base: None, scale: 2.0, shift }),
        ("Exp", "exp_param { base: 2 shift: -3 }", Neuron::Exp { base: Some(2.0), scale, shift: -3.0 }),
        ("Log", "", Neuron::Log { base: None, scale, shift }),
        (
            "Log",
            "log_param { base: 10 scale: 2 shift: 1 }",
            Neuron::Log { base: Some(10.0), scale: 2.0, shift: 1.0 },
        ),
        ("Power", "", Neuron::Power { power: 1.0, scale, shift }),
        (
            "Power",
            "power_param { power: 0.5 scale: 2 shift: 1 }",
            Neuron::Power { power: 0.5, scale: 2.0, shift: 1.0 },
        ),
        ("Sigmoid", "", Neuron::Sigmoid),
        ("Sigmoid", "sigmoid_param { engine: CUDNN }", Neuron::Sigmoid),
        ("TanH", "tanh_param { engine: CAFFE }", Neuron::TanH),
        ("Swish", "", Neuron::Swish { beta: 1.0 }),
        ("Swish", "swish_param { beta: 1.5 }", Neuron::Swish { beta: 1.5 }),
        ("Threshold", "", Neuron::Threshold { threshold: 0.0 }),
        ("Threshold", "threshold_param { threshold: 0.5 }", Neuron::Threshold { threshold: 0.5 }),
    ] {
        let layer = read(kind, inside);
        assert_eq!(layer, Layer::Neuron(neuron), "{kind} {inside}");
        assert_eq!(layer.type_name(), kind);
    }
}

#[test]
fn slopes_biases_normalisations_and_reductions() {
    let prelu = |channel_shared, filler| Layer::Prelu(Prelu { channel_shared, filler });
    assert_eq!(read("PReLU", ""), prelu(false, Filler::Constant(0.25)));
    // A filler that says nothing is the constant 0, as everywhere.
    assert_eq!(
        read("PReLU", "prelu_param { filler { } channel_shared: true }"),
        prelu(true, Filler::Constant(0.0))
    );
    let bias = |bottoms, axis, num_axes, value| {
        Layer::Bias(Bias { bottoms, axis, num_axes, filler: Filler::Constant(value) })
    };
    assert_eq!(read("Bias", ""), bias(1, 1, 1, 0.0));
    assert_eq!(
        read("Bias", "bottom: \"b\" bias_param { axis: -2 num_axes: -1 filler { value: 0.5 } }"),
        bias(2, -2, -1, 0.5)
    );
    let mvn = |normalize_variance, across_channels, eps| {
        Layer::Mvn(Mvn { normalize_variance, across_channels, eps })
    };
    assert_eq!(read("MVN", ""), mvn(true, false, 1e-9));
    assert_eq!(
        read("MVN", "mvn_param { normalize_variance: false across_channels: true eps: 0.1 }"),
        mvn(false, true, 0.1)
    );
    use ReductionOperation::{AbsoluteSum, Mean, Sum, SumOfSquares};
    let reduction = |operation, axis, coeff| Layer::Reduction(Reduction { operation, axis, coeff });
    assert_eq!(read("Reduction", ""), reduction(Sum, 0, 1.0));
    for (name, operation) in [("SUM", Sum), ("ASUM", AbsoluteSum), ("SUMSQ", SumOfSquares), ("MEAN", Mean)] {
        let inside = format!("reduction_param {{ operation: {name} axis: -2 coeff: 0.5 }}");
        assert_eq!(read("Reduction", &inside), reduction(operation, -2, 0.5));
    }
}

#[test]
fn losses_have_caffes_defaults() {
    let cross = |ignore_label, normalization| {
        Layer::SigmoidCrossEntropyLoss(SigmoidCrossEntropyLoss { ignore_label, normalization })
    };
    for (inside, expected) in [
        ("", cross(None, Normalization::BatchSize)),
        ("loss_param { ignore_label: -1 }", cross(Some(-1), Normalization::BatchSize)),
        ("loss_param { normalize: true }", cross(None, Normalization::Valid)),
        ("loss_param { normalize: false }", cross(None, Normalization::BatchSize)),
        ("loss_param { normalization: VALID normalize: false }", cross(None, Normalization::Valid)),
        ("loss_param { normalization: FULL }", cross(None, Normalization::Full)),
        ("loss_param { normalization: NONE }", cross(None, Normalization::None)),
    ] {
        assert_eq!(read("SigmoidCrossEntropyLoss", inside), expected, "{inside}");
    }
    let hinge = |norm| Layer::HingeLoss(HingeLoss { norm });
    assert_eq!(read("HingeLoss", ""), hinge(HingeNorm::L1));
    assert_eq!(read("HingeLoss", "hinge_loss_param { norm: L2 }"), hinge(HingeNorm::L2));
    assert_eq!(read("HingeLoss", "hinge_loss_param { norm: 1 }"), hinge(HingeNorm::L1));
    assert_eq!(read("EuclideanLoss", ""), Layer::EuclideanLoss(EuclideanLoss));
    let logistic = Layer::MultinomialLogisticLoss(MultinomialLogisticLoss);
    assert_eq!(read("MultinomialLogisticLoss", ""), logistic);
    let infogain = |axis, ignore_label, normalization| {
        Layer::InfogainLoss(InfogainLoss { axis, ignore_label, normalization, matrix: None })
    };
    let bottoms = "bottom: \"label\" bottom: \"H\"";
    assert_eq!(read("InfogainLoss", bottoms), infogain(1, None, Normalization::Valid));
    // A third bottom counts before a file, which is not even looked for.
    let inside = format!(
        "{bottoms} infogain_loss_param {{ axis: -1 source: \"none\" }} loss_param {{ ignore_label: 3 normalization: FULL }}"
    );
    assert_eq!(read("InfogainLoss", &inside), infogain(-1, Some(3), Normalization::Full));
}

/// A network with an infogain loss over three classes, whose matrix is in the file `source`.
fn with_matrix(source: &str) -> String {
    format!(
        "layer {{ name: \"in\" type: \"Input\" top: \"x\" top: \"y\" input_param {{ shape {{ dim: [4, 3] }} shape {{ dim: 4 }} }} }}\n\
         layer {{ name: \"loss\" type: \"InfogainLoss\" bottom: [\"x\", \"y\"] top: \"l\"\n\
          infogain_loss_param {{\n source: \"{source}\" }} }}"
    )
}

#[test]
fn a_matrix_is_read_from_the_folder_of_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let blob = |shape: Option<Vec<i64>>, values: usize| BlobProto {
        shape: shape.map(|dim| BlobShape { dim }),
        data: (0..values).map(|i| i as f32 - 4.0).collect(),
        ..BlobProto::default()
    };
    let old = BlobProto {
        num: Some(1),
        channels: Some(1),
        height: Some(3),
        width: Some(3),
        double_data: (0..9).map(|i| f64::from(i) - 4.0).collect(),
        ..BlobProto::default()
    };
    let network = folder.path().join("net.prototxt");
    let parse = |source: &str| {
        fs::write(&network, with_matrix(source)).unwrap();
        read_net(&network)
    };
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("shaped", &blob(Some(vec![3, 3]), 9).encode_to_vec());
    write("old", &old.encode_to_vec());
    for source in ["shaped", "old", folder.path().join("old").to_str().unwrap()] {
        let net = parse(source).unwrap();
        let Layer::InfogainLoss(loss) = &net.layers[1].layer else { panic!("{source}") };
        let expected: Vec<f32> = (0..9u8).map(|i| f32::from(i) - 4.0).collect();
        assert_eq!(loss.matrix.as_deref(), Some(&expected[..]), "{source}");
        assert!(Net::build(&net, &NetState::new(Phase::Test), 1.0).is_ok());
    }
    let nan = BlobProto { data: vec![f32::NAN; 9], ..blob(Some(vec![9]), 9) };
    write("nan", &nan.encode_to_vec());
    write("cut", &blob(Some(vec![3, 3]), 9).encode_to_vec()[..20]);
    write("other", &blob(Some(vec![2, 2]), 9).encode_to_vec());
    for (source, says) in [
        ("nowhere", "nowhere: no such file"),
        (".", "no such file"),
        ("nan", "NaN among its values"),
        ("cut", "expected a matrix as Caffe stores it"),
        ("other", "9 values for extents [2, 2]"),
    ] {
        let error = parse(source).unwrap_err().to_string();
        assert!(error.contains("net.prototxt:4: layer \"loss\": infogain_loss_param.source: "), "{error}");
        assert!(error.contains(says), "{error}");
    }
    // Another number of classes shows when the net is built.
    write("small", &blob(Some(vec![2, 2]), 4).encode_to_vec());
    let error = Net::build(&parse("small").unwrap(), &NetState::new(Phase::Test), 1.0).unwrap_err();
    assert!(error.line == 4 && error.to_string().contains("4 values for 3 classes; expected 3x3"), "{error}");
}

/// Type, what is in it, field, and a part of the message.
const WRONG: &[(&str, &str, &str, &str)] = &[
    ("Clip", "", "clip_param.min", "missing"),
    ("Clip", "clip_param { min: 1 }", "clip_param.max", "write clip_param { min: 0 max: 6 }"),
    ("Clip", "clip_param { max: 1 }", "clip_param.min", "missing"),
    ("Clip", "clip_param { min: 0 max: inf }", "clip_param.max", "expected a finite number"),
    ("ELU", "elu_param { alpha: nan }", "elu_param.alpha", "expected a finite number"),
    ("Exp", "exp_param { base: 0 }", "exp_param.base", "expected a number above 0, or -1 for e"),
    ("Exp", "exp_param { base: -2 }", "exp_param.base", "expected a number above 0, or -1 for e"),
    ("Log", "log_param { base: -0.5 }", "log_param.base", "expected a number above 0, or -1 for e"),
    ("Log", "log_param { shift: inf }", "log_param.shift", "expected a finite number"),
    ("Power", "power_param { power: nan }", "power_param.power", "expected a finite number"),
    ("Swish", "swish_param { beta: inf }", "swish_param.beta", "expected a finite number"),
    ("TanH", "sigmoid_param { }", "sigmoid_param", "has no meaning in a layer of type TanH"),
    ("AbsVal", "relu_param { }", "relu_param", "this type reads no parameters"),
    ("PReLU", "prelu_param { filler { type: \"bilinear\" } }", "prelu_param.filler.type", "bilinear"),
    (
        "PReLU",
        "prelu_param { filler { type: \"xaver\" } }",
        "prelu_param.filler.type",
        "did you mean \"xavier\"?",
    ),
    ("Bias", "bias_param { filler { value: inf } }", "bias_param.filler.value", "expected a finite number"),
    ("MVN", "mvn_param { eps: nan }", "mvn_param.eps", "expected a finite number"),
    ("Reduction", "reduction_param { coeff: inf }", "reduction_param.coeff", "expected a finite number"),
    ("Reduction", "reduction_param { operation: SUMM }", "reduction_param.operation", "did you mean SUM?"),
    ("HingeLoss", "hinge_loss_param { norm: L3 }", "hinge_loss_param.norm", "expected one of L1, L2"),
    ("SigmoidCrossEntropyLoss", "loss_param { normalization: ALL }", "loss_param.normalization", "FULL"),
    ("EuclideanLoss", "loss_param { }", "loss_param", "has no meaning in a layer of type EuclideanLoss"),
    (
        "InfogainLoss",
        "bottom: \"y\" loss_param { normalize: true }",
        "loss_param.normalize",
        "write normalization: VALID for true",
    ),
    ("InfogainLoss", "bottom: \"y\"", "infogain_loss_param.source", "give the matrix as a third bottom"),
];

#[test]
fn layers_that_cannot_be() {
    for (kind, inside, field, says) in WRONG {
        let text = format!("layer {{ name: \"l\"\n type: \"{kind}\" bottom: \"a\"\n {inside} }}");
        let error = parse_net(&text, "some.prototxt").expect_err(&text);
        assert_eq!(error.field, *field, "{text}\n{error}");
        assert!(error.to_string().contains(says), "{text}\n{error}");
        let line = if inside.is_empty() || inside.ends_with("\"y\"") { 1 } else { 3 };
        assert_eq!(error.line, line, "{text}\n{error}");
    }
}

/// Extents of the bottoms, type, what is in it, field, and a part of the message.
type Unfit = (&'static [&'static [usize]], &'static str, &'static str, &'static str, &'static str);

const UNFIT: &[Unfit] = &[
    (&[&[2, 3], &[2, 3]], "TanH", "", "bottom", "2 given; a layer of type TanH has 1"),
    (&[&[2]], "Clip", "clip_param { min: 2 max: 1 }", "clip_param.min", "2 is larger than max, 1"),
    (&[&[2]], "Log", "log_param { base: 1 }", "log_param.base", "no logarithm to this base"),
    (&[&[2]], "PReLU", "", "bottom", "expected at least two axes"),
    (&[&[2, 3]], "Bias", "bias_param { axis: 2 }", "bias_param.axis", "axis 2 does not exist"),
    (&[&[2, 3]], "Bias", "bias_param { num_axes: 2 }", "bias_param.num_axes", "expected -1 to 1"),
    (&[&[2, 3], &[2]], "Bias", "", "bottom", "bottom 1 has shape 2, which does not fit 2x3 from axis 1"),
    (&[&[2, 3]], "Reduction", "reduction_param { axis: 2 }", "reduction_param.axis", "axis 2 does not exist"),
    (&[&[2, 3]], "EuclideanLoss", "", "bottom", "1 given; a layer of type EuclideanLoss has 2"),
    (&[&[2, 3], &[3, 2]], "EuclideanLoss", "", "bottom", "shapes 2x3 and 3x2"),
    (&[&[2, 3], &[2]], "SigmoidCrossEntropyLoss", "", "bottom", "shapes 2x3 and 2"),
    (&[&[2, 3], &[3]], "HingeLoss", "", "bottom", "3 labels (shape 3) for scores of shape 2x3"),
    (&[&[2, 3], &[2, 3]], "MultinomialLogisticLoss", "", "bottom", "6 labels (shape 2x3)"),
    (
        &[&[2, 3], &[2], &[3]],
        "InfogainLoss",
        "",
        "bottom",
        "a matrix of 3 values for 3 classes; expected 3x3",
    ),
    (
        &[&[2, 3], &[2], &[9], &[9]],
        "InfogainLoss",
        "",
        "bottom",
        "4 given; a layer of type InfogainLoss has 2 to 3",
    ),
    (
        &[&[2, 3], &[2], &[9]],
        "InfogainLoss",
        "infogain_loss_param { axis: 2 }",
        "infogain_loss_param.axis",
        "axis 2 does not exist",
    ),
];

#[test]
fn layers_that_do_not_fit_their_bottoms() {
    for (bottoms, kind, inside, field, says) in UNFIT {
        let mut text = String::new();
        let mut names = String::new();
        for (i, dims) in bottoms.iter().enumerate() {
            let name = format!("x{i}");
            text += &format!(
                "layer {{ name: \"{name}\" type: \"Input\" top: \"{name}\" input_param {{ shape {{ dim: {dims:?} }} }} }} "
            );
            names += &format!("bottom: \"{name}\" ");
        }
        text += &format!("layer {{ name: \"l\" type: \"{kind}\"\n {names} top: \"t\"\n {inside} }}");
        let spec = parse_net(&text, "some.prototxt").unwrap_or_else(|error| panic!("{text}\n{error}"));
        let error = Net::build(&spec, &NetState::new(Phase::Test), 1.0).expect_err(&text);
        assert_eq!(error.field, *field, "{text}\n{error}");
        assert_eq!(error.line, if *field == "bottom" { 2 } else { 3 }, "{text}\n{error}");
        assert!(error.to_string().contains(says), "{text}\n{error}");
    }
}

#[test]
fn only_an_absolute_value_refuses_to_work_in_place() {
    let build = |kind: &str| {
        let text = format!(
            "layer {{ name: \"x\" type: \"Input\" top: \"x\" input_param {{ shape {{ dim: [2, 3] }} }} }}\n\
             layer {{ name: \"l\" type: \"{kind}\" bottom: \"x\"\n top: \"x\" }}"
        );
        Net::build(&parse_net(&text, "some.prototxt").unwrap(), &NetState::new(Phase::Test), 1.0)
    };
    for kind in [
        "BNLL",
        "ELU",
        "Exp",
        "Log",
        "Power",
        "Sigmoid",
        "Swish",
        "TanH",
        "Threshold",
        "PReLU",
        "Bias",
        "MVN",
    ] {
        assert!(build(kind).is_ok(), "{kind}");
    }
    let error = build("AbsVal").unwrap_err();
    assert!(error.line == 3 && error.to_string().contains("AbsVal cannot work in place"), "{error}");
}
