//! BatchNorm, Scale and Eltwise: every field, and every way to get one wrong.

use quadrille_core::layer::{BatchNorm, Eltwise, EltwiseOperation, Filler, Layer, Scale};
use quadrille_core::net::{Net, NetState, Phase};

use super::super::*;

/// The layer of a file that has one.
fn layer(text: &str) -> Layer {
    let mut net = parse_net(text, "some.prototxt").unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(net.layers.len(), 1);
    net.layers.remove(0).layer
}

#[test]
fn normalisation_with_defaults_and_with_every_field() {
    let read = |kind: &str, inside: &str| {
        layer(&format!("layer {{ name: \"l\" type: \"{kind}\" bottom: \"a\" {inside} }}"))
    };
    let norm = BatchNorm { use_global_stats: None, moving_average_fraction: 0.999, eps: 1e-5 };
    assert_eq!(read("BatchNorm", ""), Layer::BatchNorm(norm));
    let norm = BatchNorm { use_global_stats: Some(false), moving_average_fraction: 0.5, eps: 0.25 };
    let inside = "param { lr_mult: 0 } \
        batch_norm_param { use_global_stats: false moving_average_fraction: 0.5 eps: 0.25 }";
    assert_eq!(read("BatchNorm", inside), Layer::BatchNorm(norm));
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::Constant(0.0));
    let scale = Scale { bottoms: 1, axis: 1, num_axes: 1, bias: false, filler, bias_filler };
    assert_eq!(read("Scale", ""), Layer::Scale(scale));
    // A filler that says nothing is the constant 0, as everywhere.
    let (filler, bias_filler) = (Filler::Constant(0.0), Filler::Constant(0.5));
    let scale = Scale { bottoms: 2, axis: -2, num_axes: -1, bias: true, filler, bias_filler };
    let inside = "bottom: \"b\" \
        scale_param { axis: -2 num_axes: -1 filler { } bias_term: true bias_filler { value: 0.5 } }";
    assert_eq!(read("Scale", inside), Layer::Scale(scale));
}

#[test]
fn operations_on_elements_with_and_without_coefficients() {
    let read = |inside: &str| match layer(&format!(
        "layer {{ name: \"e\" type: \"Eltwise\" bottom: \"a\" bottom: \"b\" {inside} }}"
    )) {
        Layer::Eltwise(Eltwise { bottoms: 2, operation }) => operation,
        other => panic!("{other:?}"),
    };
    let sum =
        |coefficients: &[f32]| EltwiseOperation::Sum { coefficients: coefficients.to_vec(), relu: false };
    assert_eq!(read(""), sum(&[]));
    assert_eq!(read("eltwise_param { operation: SUM coeff: [1, -0.5] }"), sum(&[1.0, -0.5]));
    let product = |stable_gradient| EltwiseOperation::Product { stable_gradient };
    assert_eq!(read("eltwise_param { operation: PROD }"), product(true));
    assert_eq!(read("eltwise_param { operation: PROD stable_prod_grad: false }"), product(false));
    assert_eq!(read("eltwise_param { operation: MAX coeff: 1 coeff: 2 }"), EltwiseOperation::Max);
}

#[test]
fn normalisation_and_operations_that_cannot_be() {
    for (kind, inside, field, says) in [
        (
            "BatchNorm",
            "batch_norm_param { eps: nan }",
            "batch_norm_param.eps",
            "NaN; expected a finite number",
        ),
        (
            "BatchNorm",
            "batch_norm_param { moving_average_fraction: inf }",
            "batch_norm_param.moving_average_fraction",
            "finite",
        ),
        ("BatchNorm", "scale_param { }", "scale_param", "has no meaning in a layer of type BatchNorm"),
        ("Scale", "scale_param { filler { type: \"unit\" } }", "scale_param.filler.type", "unknown filler"),
        (
            "Scale",
            "scale_param { bias_filler { type: \"bilinear\" } }",
            "scale_param.bias_filler.type",
            "convolutions only",
        ),
        (
            "Eltwise",
            "eltwise_param { operation: PROD coeff: 1 coeff: 2 }",
            "eltwise_param.coeff",
            "a product takes no coefficients",
        ),
        ("Eltwise", "eltwise_param { coeff: 1 }", "eltwise_param.coeff", "1 given for 2 bottoms"),
        ("Eltwise", "eltwise_param { coeff: 1 coeff: inf }", "eltwise_param.coeff", "inf; expected a finite"),
        (
            "Eltwise",
            "eltwise_param { operation: MAX coeff: 1 }",
            "eltwise_param.coeff",
            "expected none, or one for each",
        ),
        ("Eltwise", "eltwise_param { operation: MIN }", "eltwise_param.operation", "PROD, SUM, MAX"),
    ] {
        let text = format!("layer {{ name: \"l\" type: \"{kind}\" bottom: \"a\" bottom: \"b\"\n{inside} }}");
        let error = parse_net(&text, "some.prototxt").expect_err(inside);
        assert_eq!((error.line, error.field.as_str()), (2, field), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// What the fields cannot be is known only with the shapes of the blobs.
#[test]
fn normalisation_and_operations_that_do_not_fit_their_bottoms() {
    const INPUTS: &str = "layer { name: \"i\" type: \"Input\" top: \"a\" top: \"b\" top: \"s\"\n\
        input_param { shape { dim: [2, 3, 4] } shape { dim: [3, 2, 4] } shape { } } }\n";
    for (kind, bottoms, inside, field, says) in [
        ("BatchNorm", "bottom: \"a\"", "batch_norm_param { eps: -1 }", "batch_norm_param.eps", "at least 0"),
        (
            "BatchNorm",
            "bottom: \"a\"",
            "batch_norm_param { moving_average_fraction: 1.5 }",
            "batch_norm_param.moving_average_fraction",
            "1.5; expected a number from 0 to 1",
        ),
        ("BatchNorm", "bottom: \"s\"", "", "bottom", "without axes"),
        ("BatchNorm", "bottom: \"a\"", "param { } param { } param { } param { }", "param", "3 parameters"),
        ("Scale", "bottom: \"a\"", "scale_param { axis: 3 }", "scale_param.axis", "axis 3 does not exist"),
        (
            "Scale",
            "bottom: \"a\"",
            "scale_param { num_axes: 3 }",
            "scale_param.num_axes",
            "3; a blob of shape 2x3x4 has 2 from axis 1 on; expected -1 to 2",
        ),
        (
            "Scale",
            "bottom: \"a\" bottom: \"b\"",
            "",
            "bottom",
            "shape 3x2x4, which does not fit 2x3x4 from axis 1 on",
        ),
        ("Scale", "bottom: \"a\" bottom: \"b\" bottom: \"s\"", "", "bottom", "3 given; "),
        ("Eltwise", "bottom: \"a\" bottom: \"b\"", "", "bottom", "bottom 1 has shape 3x2x4"),
        ("Eltwise", "bottom: \"a\"", "", "bottom", "1 given; a layer of type Eltwise has at least 2"),
        ("Eltwise", "", "", "bottom", "0 given; a layer of type Eltwise has at least 2"),
    ] {
        let text =
            format!("{INPUTS}layer {{\nname: \"l\" type: \"{kind}\" top: \"t\"\n{bottoms}\n{inside} }}");
        let spec = parse_net(&text, "some.prototxt").unwrap_or_else(|error| panic!("{text}\n{error}"));
        let error = Net::build(&spec, &NetState::new(Phase::Test), 1.0).expect_err(inside);
        let line = match field {
            "bottom" if bottoms.is_empty() => 3,
            "bottom" => 5,
            _ => 6,
        };
        assert_eq!((error.line, error.field.as_str()), (line, field), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
