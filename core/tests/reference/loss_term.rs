//! `loss_weight` in layers that are no losses, and layers that let no gradient pass.

use quadrille_core::layer::{
    Eltwise, EltwiseOperation, EuclideanLoss, HingeLoss, HingeNorm, Input, Layer, LossTerm, Neuron, Operand,
    Parameter, Reduction, ReductionOperation, Silence, SubTask,
};
use quadrille_core::net::{GivenState, LayerSpec, Net, NetSpec, NetState, ParamSpec, Phase};
use quadrille_core::reference::{Arrays, ReferenceNet};
use quadrille_core::site::SpecError;

use crate::case::{Case, inner_product};

/// An input of 3 × 4, an inner product, and a layer on its scores.
fn spec(layer: Layer) -> NetSpec {
    let input = Layer::Input(Input { shapes: vec![vec![3, 4]], tops: 1 });
    let layers = vec![
        LayerSpec::new("in", input, &[], &["x"]),
        LayerSpec::new("ip", Layer::InnerProduct(inner_product(5)), &["x"], &["h"]),
        LayerSpec::new("last", layer, &["h"], &["y"]),
    ];
    NetSpec {
        name: "weighted".into(),
        file: "made".into(),
        force_backward: false,
        state: GivenState::default(),
        notes: Vec::new(),
        layers,
    }
}

fn reduction(axis: i32) -> Layer {
    Layer::Reduction(Reduction { operation: ReductionOperation::SumOfSquares, axis, coeff: 1.0 })
}

fn build(spec: &NetSpec, share: f32) -> Result<Net, SpecError> {
    Net::build(spec, &NetState::new(Phase::Train), share)
}

#[test]
fn the_gradient_of_a_term_is_its_weight() {
    let case = Case { loss_weights: vec![-0.5], ..Case::new(Layer::LossTerm(LossTerm), &[&[2, 3]]) };
    let mut arrays = Arrays::<f64>::new();
    case.run(SubTask::GradActivation, &mut arrays);
    assert_eq!(arrays.get(Operand::BottomGrad(0)), [-0.5; 6]);
}

/// Caffe's rule: such a blob has one reader more, whose gradient is the weight.
#[test]
fn any_blob_can_be_a_part_of_the_loss() {
    let mut spec = spec(reduction(1));
    spec.layers[1].loss_weights = vec![0.5];
    spec.layers[2].loss_weights = vec![-2.0];
    let net = build(&spec, 0.25).expect("a net");
    let losses: Vec<(&str, f32)> = net.losses().map(|(id, w)| (net.blob(id).name.as_str(), w)).collect();
    // Sums over images are the sums of their parts: no device's weight is less for its share.
    assert_eq!(losses, [("h", 0.5), ("y", -2.0)]);
    let names: Vec<&str> = net.layers.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["in", "ip", "h_ip_split", "h_ip_loss", "last", "y_last_loss"]);
    for term in net.layers.iter().filter(|l| matches!(l.layer, Layer::LossTerm(_))) {
        assert!(term.under_loss && net.blob(term.bottoms[0]).grad.is_some());
        assert_eq!(net.blob(term.tops[0]).data, net.blob(term.bottoms[0]).data, "the top is the blob");
    }
    let outputs: Vec<&str> = net.outputs().map(|id| net.blob(id).name.as_str()).collect();
    assert_eq!(outputs, ["h", "y"]);
}

/// What no image has a part in is found on every device of a worker, and must not count as often.
#[test]
fn a_term_of_a_parameter_alone_has_the_share_of_its_device() {
    let mut spec = spec(reduction(1));
    let parameter = Layer::Parameter(Parameter { shape: vec![4, 3] });
    let with_weight = |spec: LayerSpec| LayerSpec { loss_weights: vec![0.5], ..spec };
    spec.layers.push(with_weight(LayerSpec::new("p", parameter, &[], &["p"])));
    spec.layers.push(with_weight(LayerSpec::new("squares", reduction(1), &["p"], &["squares"])));
    spec.layers[2].loss_weights = vec![-2.0];
    let net = build(&spec, 0.25).expect("a net");
    let losses: Vec<(&str, f32)> = net.losses().map(|(id, w)| (net.blob(id).name.as_str(), w)).collect();
    assert_eq!(losses, [("y", -2.0), ("p", 0.125), ("squares", 0.125)]);
}

/// With identical weights for all scores, by hand: `L = 0.5 · Σ h − 2 · Σ h²`, so `dh = 0.5 − 4 h`.
#[test]
fn weighted_terms_by_hand() {
    let mut spec = spec(reduction(0));
    spec.layers[1].loss_weights = vec![0.5];
    spec.layers[2].loss_weights = vec![-2.0];
    let mut net = ReferenceNet::<f64>::new(build(&spec, 1.0).expect("a net"));
    let weight = net.param_mut("ip/0").expect("a weight");
    weight.iter_mut().for_each(|w| *w = 0.25);
    net.set_input("x", &[1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 0.0, 1.0, -1.0, -2.0, 0.0, 1.0]);
    net.forward();
    net.backward();
    let h = [2.5, 0.5, -0.5];
    let squares: f64 = h.iter().map(|h| 5.0 * h * h).sum();
    assert_eq!(net.loss(), 0.5 * 5.0 * 2.5 - 2.0 * squares);
    let expected: Vec<f64> = h.iter().flat_map(|h| [0.5 - 4.0 * h; 5]).collect();
    assert_eq!(net.blob_grad("h"), Some(&expected[..]));
    assert_eq!(net.blob_grad("y"), Some(&[-2.0][..]));
}

#[test]
fn a_layer_without_a_gradient_stands_above_what_is_not_trained() {
    let mut spec = spec(Layer::Neuron(Neuron::Threshold { threshold: 0.5 }));
    spec.layers[2].loss_weights = vec![1.0];
    let error = build(&spec, 1.0).expect_err("the inner product is trained");
    assert!(error.to_string().contains("Threshold has no gradient, but below \"h\" something is"), "{error}");
    let mut frozen = spec.clone();
    frozen.layers[1].params = vec![ParamSpec::with(0.0, 0.0); 2];
    assert!(build(&frozen, 1.0).is_ok());
    spec.layers[2].propagate_down = vec![false];
    assert!(build(&spec, 1.0).is_ok());
    // Nor is anything asked of it if the loss does not reach it.
    spec.layers[2] =
        LayerSpec { loss_weights: Vec::new(), propagate_down: Vec::new(), ..spec.layers[2].clone() };
    spec.layers[1].loss_weights = vec![1.0];
    assert!(build(&spec, 1.0).is_ok());
}

/// A Euclidean and a hinge loss of these weights; and a layer that reads them, unless its weight is 0.
fn two_losses(weights: [&[f32]; 2], total: f32) -> NetSpec {
    let weighted = |weights: &[f32], layer| LayerSpec { loss_weights: weights.to_vec(), ..layer };
    let reader = match total {
        0.0 => LayerSpec::new("last", Layer::Silence(Silence { bottoms: 2 }), &["euclidean", "hinge"], &[]),
        weight => {
            let sum = Eltwise {
                bottoms: 2,
                operation: EltwiseOperation::Sum { coefficients: vec![2.0, -0.25], relu: false },
            };
            let layer = LayerSpec::new("last", Layer::Eltwise(sum), &["euclidean", "hinge"], &["total"]);
            weighted(&[weight], layer)
        }
    };
    let mut spec = spec(reader.layer.clone());
    let hinge = Layer::HingeLoss(HingeLoss { norm: HingeNorm::L1 });
    let input = |name: &str, shape: Vec<usize>| {
        LayerSpec::new(name, Layer::Input(Input { shapes: vec![shape], tops: 1 }), &[], &[name])
    };
    spec.layers.truncate(2);
    spec.layers.extend([
        input("target", vec![3, 5]),
        input("label", vec![3]),
        weighted(
            weights[0],
            LayerSpec::new(
                "euclidean",
                Layer::EuclideanLoss(EuclideanLoss),
                &["h", "target"],
                &["euclidean"],
            ),
        ),
        weighted(weights[1], LayerSpec::new("hinge", hinge, &["h", "label"], &["hinge"])),
        reader,
    ]);
    spec
}

/// The loss and the gradient of the scores.
fn run_losses(spec: &NetSpec) -> (f64, Vec<f64>) {
    let mut net = ReferenceNet::<f64>::new(build(spec, 1.0).expect("a net"));
    let weight = net.param_mut("ip/0").expect("a weight");
    weight.iter_mut().enumerate().for_each(|(i, w)| *w = 0.25 - 0.125 * (i % 5) as f64);
    net.set_input("x", &[1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 0.0, 1.0, -1.0, -2.0, 0.0, 1.0]);
    net.set_input("target", &(0..15).map(|i| 0.5 - f64::from(i % 4)).collect::<Vec<_>>());
    net.set_input("label", &[4.0, 0.0, 2.0]);
    net.forward();
    net.backward();
    (net.loss(), net.blob_grad("h").expect("a gradient").to_vec())
}

/// What reads losses trains by them as if they had its factors for weights, on top of their own.
#[test]
fn losses_that_are_read_have_the_weights_of_their_readers() {
    let close = |(loss, found): (f64, Vec<f64>), (expected_loss, expected): (f64, Vec<f64>)| {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + b.abs());
        assert!(near(loss, expected_loss), "{loss} is not {expected_loss}");
        assert!(expected.iter().any(|g| g.abs() > 0.1), "mistrusted");
        assert!(found.iter().zip(&expected).all(|(a, b)| near(*a, *b)), "{found:?} is not {expected:?}");
    };
    // 0.5 · (2 · euclidean − 0.25 · hinge), and what the losses weigh themselves.
    for own in [[0.0, 0.0], [0.75, 0.0], [0.75, -0.5]] {
        let read = two_losses([&own[..1], &own[1..]], 0.5);
        let alone = two_losses([&[own[0] + 1.0], &[own[1] - 0.125]], 0.0);
        let unread = NetSpec { layers: alone.layers[..6].to_vec(), ..alone.clone() };
        close(run_losses(&read), run_losses(&unread));
        close(run_losses(&alone), run_losses(&unread));
    }
}

/// On several devices numbers made of means have the shares of their devices.
#[test]
fn a_number_made_of_losses_has_the_share_of_its_device() {
    let net = build(&two_losses([&[0.75], &[0.0]], 0.5), 0.25).expect("a net");
    let losses: Vec<(&str, f32)> = net.losses().map(|(id, w)| (net.blob(id).name.as_str(), w)).collect();
    assert_eq!(losses, [("euclidean", 0.1875), ("total", 0.125)]);
    assert!(net.losses().all(|(blob, _)| !net.sums_images(blob)));
}

/// Caffe's gradient is then the reader's alone or not, by how many readers there are: the file has to say.
#[test]
fn a_loss_that_is_read_says_its_weight_if_a_gradient_comes_back() {
    let error = build(&two_losses([&[1.0], &[]], 0.5), 1.0).expect_err("no weight").to_string();
    assert!(
        error.contains("layer \"hinge\": loss_weight: missing, but a gradient comes from layer \"last\""),
        "{error}"
    );
    // Nothing comes back from a Silence, and nothing in phase TEST.
    assert!(build(&two_losses([&[], &[]], 0.0), 1.0).is_ok());
    let net = Net::build(&two_losses([&[], &[]], 0.5), &NetState::new(Phase::Test), 1.0).expect("a net");
    assert_eq!(net.losses().count(), 3);
}
