//! Dropout: masks that do not depend on the cut, gradients, memory, and the identity in phase TEST.

use quadrille_core::layer::{Dropout, Input, Layer, Normalization, Operand, Relu, SoftmaxWithLoss, SubTask};
use quadrille_core::net::{GivenState, LayerSpec, Net, NetSpec, NetState, Phase};
use quadrille_core::reference::{Arrays, ReferenceNet};
use quadrille_core::rng::{Draw, Purpose, Stream, step_seed};
use quadrille_core::task::Tile;

use crate::case::{Case, inner_product, labels};

const IMAGES: usize = 7;
const FEATURES: usize = 30;

fn dropout(ratio: f32) -> Layer {
    Layer::Dropout(Dropout { ratio, active: true })
}

fn factors(draw: Draw, ratio: f32, dims: &[usize]) -> Vec<f64> {
    let case = Case { draw, ..Case::new(dropout(ratio), &[dims]) };
    case.forward(&[&vec![1.0; case.bottoms[0].count()]], &[])
}

#[test]
fn dropout_has_the_gradient_of_its_forward() {
    for (seed, (ratio, dims)) in
        [(0.5, &[4, 6][..]), (0.3, &[2, 3, 4, 2]), (0.9, &[3, 20]), (0.0, &[5])].into_iter().enumerate()
    {
        let draw = Draw { seed: seed as u64, layer: 2, first_image: 3 };
        let case = Case { draw, ..Case::new(dropout(ratio), &[dims]) };
        case.check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn backward_draws_the_mask_of_forward_again() {
    let draw = Draw { seed: 9, layer: 4, first_image: 2 };
    let case = Case { draw, ..Case::new(dropout(0.75), &[&[3, 2, 5]]) };
    let mut arrays = Arrays::new();
    arrays.insert(Operand::Bottom(0), vec![1.0f64; 30]);
    arrays.insert(Operand::TopGrad(0), vec![1.0; 30]);
    case.run(SubTask::Forward, &mut arrays);
    case.run(SubTask::GradActivation, &mut arrays);
    let y = arrays.get(Operand::Top(0));
    assert_eq!(y, arrays.get(Operand::BottomGrad(0)));
    assert!(y.iter().all(|y| *y == 0.0 || *y == 4.0) && y.contains(&0.0) && y.contains(&4.0), "{y:?}");
}

#[test]
fn another_step_worker_or_layer_has_another_mask() {
    let of = |worker, iteration, layer| {
        factors(Draw { seed: step_seed(1, worker, iteration), layer, first_image: 0 }, 0.5, &[4, 25])
    };
    let masks = [of(0, 0, 1), of(0, 1, 1), of(1, 0, 1), of(0, 0, 2)];
    assert_eq!(masks[0], of(0, 0, 1));
    for (i, one) in masks.iter().enumerate() {
        for other in &masks[..i] {
            let same = one.iter().zip(other).filter(|(a, b)| a == b).count();
            assert!((25..75).contains(&same), "{same} of 100 agree by chance");
        }
    }
}

/// data → ip → ReLU → dropout → ip → loss. With `in_place` the two in the middle are.
fn layers(images: usize, in_place: bool) -> Vec<LayerSpec> {
    let input = Input { shapes: vec![vec![images, FEATURES], vec![images]], tops: 2 };
    let loss = SoftmaxWithLoss { axis: 1, ignore_label: None, normalization: Normalization::Valid };
    let [relu, drop] = if in_place { ["ip1"; 2] } else { ["relu", "drop"] };
    vec![
        LayerSpec::new("input", Layer::Input(input), &[], &["data", "label"]),
        LayerSpec::new("ip1", Layer::InnerProduct(inner_product(12)), &["data"], &["ip1"]),
        LayerSpec::new("relu", Layer::Relu(Relu { negative_slope: 0.5, applied: false }), &["ip1"], &[relu]),
        LayerSpec::new("drop", dropout(0.4), &[relu], &[drop]),
        LayerSpec::new("ip2", Layer::InnerProduct(inner_product(3)), &[drop], &["ip2"]),
        LayerSpec::new("loss", Layer::SoftmaxWithLoss(loss), &["ip2", "label"], &["loss"]),
    ]
}

fn net(images: usize, in_place: bool, phase: Phase) -> Net {
    let layers = layers(images, in_place);
    let spec = NetSpec {
        name: "drops".into(),
        file: "<test>".into(),
        force_backward: false,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    };
    Net::build(&spec, &NetState::new(phase), images as f32 / IMAGES as f32).expect("the net is possible")
}

/// A net on the images of `tile`, after a step of iteration 3.
fn stepped(tile: Tile, in_place: bool) -> ReferenceNet<f64> {
    let mut run = ReferenceNet::new(net(tile.images, in_place, Phase::Train));
    let weights = Stream::new(1, Purpose::Filler(0), 0);
    run.set_params(&(0..run.net().params.len()).map(|i| weights.normal(i as u64)).collect::<Vec<_>>());
    let pixels = Stream::new(2, Purpose::Dummy, 0);
    let data: Vec<f64> = (0..IMAGES * FEATURES).map(|i| f64::from(pixels.normal(i as u64))).collect();
    run.set_input("data", &data[tile.first * FEATURES..][..tile.images * FEATURES]);
    run.set_input("label", &labels(3, IMAGES, 3)[tile.first..][..tile.images]);
    run.set_draw(step_seed(11, 0, 3), tile.first);
    run.forward();
    run.backward();
    run
}

#[test]
fn one_two_and_three_devices_drop_the_same_values() {
    let whole = stepped(Tile { first: 0, images: IMAGES }, false);
    let expected = whole.blob("drop").expect("exists");
    let dropped =
        expected.iter().zip(whole.blob("relu").expect("exists")).filter(|(y, x)| **y == 0.0 && **x != 0.0);
    let dropped = dropped.count();
    assert!((15..60).contains(&dropped), "mistrusted: {dropped} of {} are dropped", expected.len());
    for devices in [2, 3, IMAGES] {
        let parts: Vec<ReferenceNet<f64>> =
            Tile::cut(IMAGES, devices).into_iter().map(|tile| stepped(tile, false)).collect();
        let joined: Vec<f64> =
            parts.iter().flat_map(|run| run.blob("drop").expect("exists")).copied().collect();
        assert_eq!(joined, expected, "{devices} devices");
        for name in ["ip1/0", "ip2/0"] {
            let gradients = parts.iter().map(|run| run.param_grad(name).expect("exists"));
            let whole = whole.param_grad(name).expect("exists");
            let largest = whole.iter().fold(0.0f64, |m, g| m.max(g.abs()));
            for (i, expected) in whole.iter().enumerate() {
                let sum: f64 = gradients.clone().map(|g| g[i]).sum();
                // Shares are single precision.
                assert!((sum - expected).abs() <= 1e-6 * largest, "{name} at {i}: {sum} is not {expected}");
            }
        }
    }
}

#[test]
fn in_place_behind_a_relu_a_dropout_takes_no_memory_and_changes_nothing() {
    let tile = Tile { first: 0, images: IMAGES };
    let (in_place, apart) = (stepped(tile, true), stepped(tile, false));
    assert!(in_place.net().storages.len() + 4 == apart.net().storages.len());
    for name in ["ip1/0", "ip1/1", "ip2/0", "ip2/1"] {
        let gradient = apart.param_grad(name).expect("exists");
        assert!(gradient.iter().any(|g| g.abs() > 1e-3), "mistrusted: no gradient to speak of");
        assert_eq!(in_place.param_grad(name), Some(gradient), "{name}");
    }
}

#[test]
fn in_phase_test_a_dropout_is_its_bottom() {
    for in_place in [false, true] {
        let net = net(IMAGES, in_place, Phase::Test);
        let drop = net.layers.iter().position(|l| l.name == "drop").expect("exists");
        let layer = &net.layers[drop];
        assert_eq!(net.blob(layer.tops[0]).data, net.blob(layer.bottoms[0]).data);
        assert_eq!(net.accesses(quadrille_core::net::LayerId(drop), SubTask::Forward), None);
    }
}
