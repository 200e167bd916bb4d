//! Solvers that cannot be.

use super::super::*;
use super::refused::FINE;

/// What is left out of a good solver, what is written instead, and the field and a part of the message of the error.
const REFUSED: &[(&str, &str, &str, &str)] = &[
    ("max_iter", "max_iter: 0", "max_iter", "0; expected at least 1"),
    ("base_lr", "base_lr: -1", "base_lr", "-1; expected at least 0"),
    ("base_lr", "base_lr: nan", "base_lr", "finite"),
    ("base_lr", "base_lr: 1e39", "base_lr", "finite"),
    ("lr_policy", "lr_policy: \"stp\"", "lr_policy", "did you mean \"step\"?"),
    ("lr_policy", "lr_policy: \"plateau\" gamma: 0.1", "plateau_winsize", "missing"),
    ("lr_policy", "lr_policy: \"plateau\" plateau_winsize: 5", "gamma", "lr_policy \"plateau\" needs it"),
    (
        "lr_policy",
        "lr_policy: \"plateau\" gamma: 0.1 plateau_winsize: [5, 0]",
        "plateau_winsize",
        "0; expected at least 1",
    ),
    ("lr_policy", "lr_policy: \"step\" gamma: 0.1 stepsize: 0", "stepsize", "0; expected at least 1"),
    ("lr_policy", "lr_policy: \"step\" gamma: 0.1", "stepsize", "lr_policy \"step\" needs it"),
    ("lr_policy", "lr_policy: \"inv\" gamma: 0.1", "power", "lr_policy \"inv\" needs it"),
    ("lr_policy", "lr_policy: \"multistep\" gamma: 0.1", "stepvalue", "missing"),
    ("lr_policy", "lr_policy: \"multistep\" gamma: 0.1 stepvalue: [5, 5]", "stepvalue", "rising"),
    ("lr_policy", "lr_policy: \"multifixed\"", "stagelr", "lr_policy \"multifixed\" needs it"),
    (
        "lr_policy",
        "lr_policy: \"multifixed\" stagelr: [0.1, 0.2] stageiter: 5",
        "stageiter",
        "1 values for 2",
    ),
    ("lr_policy", "lr_policy: \"multifixed\" stagelr: 0.1", "stageiter", "0 values for 1 of stagelr"),
    ("lr_policy", "lr_policy: \"multifixed\" stagelr: [0.1, 1] stageiter: [5, 5]", "stageiter", "rising"),
    (
        "lr_policy",
        "lr_policy: \"multifixed\" stagelr: -0.1 stageiter: 5",
        "stagelr",
        "-0.1; expected at least 0",
    ),
    (
        "lr_policy",
        "lr_policy: \"multifixed\" stagelr: 0.1 stageiter: -5",
        "stageiter",
        "-5; expected at least 0",
    ),
    ("", "momentum: -0.1", "momentum", "-0.1; expected at least 0"),
    ("", "weight_decay: inf", "weight_decay", "finite"),
    ("", "regularization_type: \"L3\"", "regularization_type", "expected one of L2, L1"),
    ("", "type: \"AdaGrad\" momentum: 0.9", "momentum", "the solver \"AdaGrad\" has no momentum"),
    ("", "solver_type: RMSPROP momentum: 0.9", "momentum", "the solver \"RMSProp\" has no momentum"),
    ("", "type: \"RMSProp\" rms_decay: 1", "rms_decay", "at least 0 and less than 1"),
    ("", "type: \"Adam\" momentum: 1", "momentum", "at least 0 and less than 1"),
    ("", "type: \"Adam\" momentum2: 1.5", "momentum2", "at least 0 and less than 1"),
    ("", "type: \"AdaDelta\" momentum: 1", "momentum", "at least 0 and less than 1"),
    ("", "type: \"AdaDelta\" delta: -1", "delta", "-1; expected at least 0"),
    ("", "type: \"Adm\"", "type", "did you mean \"Adam\"?"),
    ("", "type: \"sgd\"", "type", "did you mean \"SGD\"?"),
    ("", "solver_type: NESTEROVV", "solver_type", "did you mean NESTEROV?"),
    ("", "solver_type: SGD type: \"SGD\"", "solver_type", "conflicts with type"),
    ("", "clip_gradients: nan", "clip_gradients", "finite"),
    ("", "iter_size: 0", "iter_size", "0; expected at least 1"),
    ("", "average_loss: 0", "average_loss", "0; expected at least 1"),
    ("", "average_loss: 2000000000", "average_loss", "expected at most 1048576"),
    ("", "warmup_iter: -2", "warmup_iter", "-2; expected at least 0"),
    ("", "warmup_iter: 2 warmup_start_lr: -1", "warmup_start_lr", "-1; expected at least 0"),
    ("", "test_iter: 5", "test_interval", "test_iter asks for tests"),
    ("", "test_iter: 0 test_interval: 5", "test_iter", "0; expected at least 1"),
    ("", "test_interval: -5", "test_interval", "-5; expected at least 0"),
    ("", "display: -5", "display", "-5; expected at least 0"),
    ("", "train_net: \"a\"", "train_net", "conflicts with net; a solver has one network to train"),
    ("", "net_param { layer { name: \"a\" type: \"ReLU\" } }", "net", "conflicts with net_param"),
    ("net", "train_net: \"\"", "train_net", "empty"),
    ("net", "train_net: \"a\" test_iter: 5 test_interval: 5", "test_iter", "1 values for 0 test networks"),
    ("", "test_net: \"a\"", "test_iter", "0 values for 1 test networks"),
    (
        "",
        "test_net: [\"a\", \"b\"] test_iter: 5 test_interval: 5",
        "test_iter",
        "1 values for 2 test networks",
    ),
    ("", "test_iter: [1, 2] test_interval: 5 test_state { level: 1 }", "test_state", "1 states for 2 tests"),
    ("", "test_iter: [1, 0] test_interval: 5", "test_iter", "0; expected at least 1"),
    ("", "momentun: 0.9", "momentun", "did you mean \"momentum\"?"),
];

#[test]
fn solvers_that_cannot_be() {
    const GOOD: &str = "net: \"n\" base_lr: 0.1 lr_policy: \"fixed\" max_iter: 9";
    let parse = |text: &str| parse_solver(text, "some.prototxt").map(drop);
    assert_eq!(parse(GOOD), Ok(()));
    let without = |field: &str| {
        let mut words: Vec<&str> = GOOD.split(' ').collect();
        let at = words.iter().position(|w| *w == format!("{field}:")).unwrap();
        words.drain(at..at + 2);
        words.join(" ")
    };
    // A file may leave to the command how long to train.
    assert_eq!(parse_solver(without("max_iter"), "f").unwrap().max_iter, 0);
    for field in ["net", "base_lr", "lr_policy"] {
        let error = parse(&without(field)).expect_err(field);
        assert_eq!(error.field, field);
        assert!(error.message.starts_with("missing"), "{error}");
    }
    for (missing, line, field, says) in REFUSED.iter().copied() {
        let rest = if missing.is_empty() { GOOD.to_owned() } else { without(missing) };
        let error = parse(&format!("{rest}\n{line}")).expect_err(line);
        // What is missing has no line of its own; then it is the line on which the solver starts.
        let at =
            if line.contains(&format!("{field}:")) || line.contains(&format!("{field} {{")) { 2 } else { 1 };
        assert_eq!((error.line, error.field.as_str()), (at, field), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(error.to_string().contains("solver: "), "{error}");
    }
    let error = parse(FINE).unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("this is a network file, not a solver file"));
    let error =
        parse(&format!("{GOOD}\ntest_iter: 1 test_interval: 1\ntest_state {{ phase: TRAIN }}")).unwrap_err();
    assert_eq!((error.line, error.field.as_str()), (3, "test_state.phase"));
    let tests = format!("{GOOD} test_interval: 1 {}", "test_iter: 1 ".repeat(101));
    assert!(parse(&tests).unwrap_err().message.contains("at most 100"));
}

#[test]
fn networks_in_a_solver_file_have_its_lines() {
    let solver = |net: &str| {
        let text = format!("base_lr: 0.1 # no net here {{\nlr_policy: 'fixed' max_iter: 9\n{net}");
        parse_solver(text, "some.prototxt").map(drop)
    };
    let net = "net_param {\n  name: \"a\"\n  layer {\n    name: \"r\"\n    type: \"ReLU\"\n    relu_param {\n      SLOPE: 0.1\n    }\n  }\n}";
    assert_eq!(solver(&net.replace("SLOPE", "negative_slope")), Ok(()));
    let error = solver(&net.replace("SLOPE", "negative_slop")).unwrap_err();
    assert_eq!(error.line, 9, "{error}");
    assert!(error.to_string().contains("did you mean \"negative_slope\"?"), "{error}");
    let error = solver(&net.replace("ReLU", "RELU").replace("SLOPE", "negative_slope")).unwrap_err();
    assert_eq!((error.line, error.subject.as_str()), (7, "layer \"r\""), "{error}");
    let error = solver("net_param { name: \"a\" }").unwrap_err();
    assert!(error.to_string().contains("network: layer: missing"), "{error}");
}
