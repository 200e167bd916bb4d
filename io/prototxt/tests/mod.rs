//! Good files, and every way to break one.

mod accepted;
mod compared;
mod neurons;
mod normalization;
mod refused;
mod sizes;
mod solvers;
mod structure;

use std::path::{Path, PathBuf};

use quadrille_core::layer::{Layer, PoolMethod};
use quadrille_core::net::{Net, NetState, Phase};
use quadrille_core::solver::{Policy, Rule};

use super::*;

fn lenet(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("models/lenet").join(file)
}

/// The net with the shape of its samples filled in, as the program does after it opened the data set.
fn with_samples(mut spec: NetSpec, phase: Phase) -> Result<Net, SpecError> {
    for layer in &mut spec.layers {
        if let Layer::Data(data) = &mut layer.layer {
            data.sample = Some([1, 28, 28]);
        }
    }
    Net::build(&spec, &NetState::new(phase), 1.0)
}

fn lenet_net(phase: Phase) -> Net {
    with_samples(read_net(&lenet("train_val.prototxt")).unwrap(), phase).unwrap()
}

#[test]
fn lenet_has_its_published_shapes() {
    let train = lenet_net(Phase::Train);
    assert_eq!((train.params.values(), train.batch()), (431_080, 64));
    let shape = |name: &str| train.blobs.iter().find(|b| b.name == name).unwrap().shape.to_string();
    assert_eq!(
        [shape("conv1"), shape("pool1"), shape("conv2"), shape("pool2"), shape("ip2")],
        ["64x20x24x24", "64x20x12x12", "64x50x8x8", "64x50x4x4", "64x10"]
    );
    let multipliers: Vec<f32> = train.params.views().iter().map(|v| v.lr_mult).collect();
    assert_eq!(multipliers, [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    let test = lenet_net(Phase::Test);
    assert_eq!(test.batch(), 100);
    assert!(test.outputs().any(|b| test.blob(b).name == "accuracy"));
    assert!(!train.outputs().any(|b| train.blob(b).name == "accuracy"));
}

#[test]
fn lenets_solver_has_the_published_hyper_parameters() {
    let solver = read_solver(&lenet("solver.prototxt")).unwrap();
    assert_eq!(solver.policy, Policy::Inv { gamma: 1e-4, power: 0.75 });
    assert_eq!((solver.base_lr, solver.rule), (0.01, Rule::sgd(0.9, 5e-4)));
    assert_eq!((solver.test_nets[0].batches, solver.test_interval, solver.display), (100, 500, 100));
    assert_eq!((solver.seed, solver.snapshot, solver.snapshot_after_train), (None, 0, true));
    assert!(solver.ignored.is_empty());
}

/// Two inner products of one weight on the halves of a blob, with `first` and `second` in their `param`.
fn twins(first: &str, second: &str) -> String {
    format!(
        "layer {{ name: \"in\" type: \"Input\" top: \"x\" top: \"s\" input_param {{ shape {{ dim: [2, 6] }} shape {{ dim: 2 }} }} }}\n\
         layer {{ name: \"cut\" type: \"Slice\" bottom: \"x\" top: \"l\" top: \"r\" }}\n\
         layer {{ name: \"one\" type: \"InnerProduct\" bottom: \"l\" top: \"a\" param {{ name: \"w\" {first} }}\n\
          inner_product_param {{ num_output: 4 }} }}\n\
         layer {{ name: \"two\" type: \"InnerProduct\" bottom: \"r\" top: \"b\"\n\
          param {{ name: \"w\"\n {second} }} inner_product_param {{ num_output: 4 }} }}\n\
         layer {{ name: \"loss\" type: \"ContrastiveLoss\" bottom: [\"a\", \"b\", \"s\"] top: \"loss\" }}"
    )
}

#[test]
fn layers_that_name_a_parameter_alike_share_it() {
    let build = |first: &str, second: &str| {
        let spec = parse_net(twins(first, second), "twins.prototxt").unwrap();
        Net::build(&spec, &NetState::new(Phase::Train), 1.0)
    };
    let net = build("lr_mult: 3", "decay_mult: 0").unwrap();
    let views: Vec<(&str, f32, f32)> =
        net.params.views().iter().map(|v| (v.name.as_str(), v.lr_mult, v.decay_mult)).collect();
    assert_eq!(views, [("one/0", 3.0, 0.0), ("one/1", 1.0, 1.0), ("two/1", 1.0, 1.0)]);
    let error = build("lr_mult: 3", "lr_mult: 1").unwrap_err();
    assert_eq!((error.line, error.field.as_str()), (7, "param.lr_mult"));
    assert!(error.to_string().contains("layer \"two\""), "{error}");
}

#[test]
fn layers_and_fields_know_their_lines() {
    let text = std::fs::read_to_string(lenet("train_val.prototxt")).unwrap();
    let line_with = |what: &str| text.lines().position(|l| l.contains(what)).unwrap() as u32 + 1;
    let spec = read_net(&lenet("train_val.prototxt")).unwrap();
    let pool = spec.layers.iter().find(|l| l.name == "pool1").unwrap();
    assert!(matches!(&pool.layer, Layer::Pooling(p) if p.method == PoolMethod::Max));
    assert_eq!(pool.site.line, line_with("name: \"pool1\"") - 1);
    assert_eq!(pool.site.line_of("pooling_param.stride"), line_with("pooling_param"));
}
