//! Whole nets: the gradient of the loss through splits, layers in place, frozen parameters and a second loss.

use quadrille_core::layer::{
    Accuracy, Input, Layer, Normalization, PoolMethod, Pooling, Relu, SoftmaxWithLoss,
};
use quadrille_core::net::{GivenState, LayerSpec, Net, NetSpec, NetState, ParamSpec, Phase};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::rng::{Purpose, Stream};

use crate::case::{convolution, inner_product, labels};

const IMAGES: usize = 3;
const SIDE: usize = 12;
const CLASSES: usize = 5;

fn pooling(method: PoolMethod) -> Layer {
    Layer::Pooling(Pooling { method, kernel: Some([2; 2]), pad: [0; 2], stride: [2; 2] })
}

fn weighted(name: &str, layer: Layer, bottom: &str, top: &str, lr_mults: [f32; 2]) -> LayerSpec {
    let params = lr_mults.map(|lr_mult| ParamSpec::with(lr_mult, 1.0)).to_vec();
    LayerSpec { params, ..LayerSpec::new(name, layer, &[bottom], &[top]) }
}

/// LeNet in small. "pool1" is read by a classifier of its own and by a ReLU in place, "ip" by a loss and by an
/// accuracy, "label" by three layers; "conv1" is the usual ReLU in
/// place, here with a slope so that negative values reach the second; the bias of "conv2" is frozen.
fn layers() -> Vec<LayerSpec> {
    let input = Input { shapes: vec![vec![IMAGES, 2, SIDE, SIDE], vec![IMAGES]], tops: 2 };
    let loss = Layer::SoftmaxWithLoss(SoftmaxWithLoss {
        axis: 1,
        ignore_label: None,
        normalization: Normalization::Valid,
    });
    let accuracy = Layer::Accuracy(Accuracy { top_k: 1, axis: 1, ignore_label: None });
    let relu = |negative_slope| Layer::Relu(Relu { negative_slope, applied: false });
    let conv = |num_output, kernel| Layer::Convolution(convolution(num_output, kernel));
    let ip = |num_output| Layer::InnerProduct(inner_product(num_output));
    let early = LayerSpec {
        loss_weights: vec![0.3],
        ..LayerSpec::new("early_loss", loss.clone(), &["early", "label"], &["early_loss"])
    };
    vec![
        LayerSpec::new("input", Layer::Input(input), &[], &["data", "label"]),
        weighted("conv1", conv(4, [3, 3]), "data", "conv1", [1.0, 2.0]),
        LayerSpec::new("relu1", relu(0.5), &["conv1"], &["conv1"]),
        LayerSpec::new("pool1", pooling(PoolMethod::Max), &["conv1"], &["pool1"]),
        weighted("early", ip(CLASSES), "pool1", "early", [1.0, 1.0]),
        early,
        LayerSpec::new("relu2", relu(0.25), &["pool1"], &["pool1"]),
        weighted("conv2", conv(6, [2, 2]), "pool1", "conv2", [1.0, 0.0]),
        LayerSpec::new("pool2", pooling(PoolMethod::Average), &["conv2"], &["pool2"]),
        weighted("ip", ip(CLASSES), "pool2", "ip", [1.0, 1.0]),
        LayerSpec::new("accuracy", accuracy, &["ip", "label"], &["accuracy"]),
        LayerSpec::new("loss", loss, &["ip", "label"], &["loss"]),
    ]
}

fn build(layers: Vec<LayerSpec>, force_backward: bool, loss_share: f32) -> ReferenceNet<f64> {
    let spec = NetSpec {
        name: "small".into(),
        file: "<test>".into(),
        force_backward,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    };
    let net = Net::build(&spec, &NetState::new(Phase::Train), loss_share).expect("the net is possible");
    let mut run = ReferenceNet::new(net);
    let mut packed = vec![0.0; run.net().params.len()];
    let stream = Stream::new(11, Purpose::Filler(0), 0);
    (0..packed.len()).for_each(|i| packed[i] = 0.3 * stream.normal(i as u64));
    run.set_params(&packed);
    let pixels = Stream::new(12, Purpose::Dummy, 0);
    let data: Vec<f64> = (0..IMAGES * 2 * SIDE * SIDE).map(|i| f64::from(pixels.normal(i as u64))).collect();
    run.set_input("data", &data);
    run.set_input("label", &labels(13, IMAGES, CLASSES));
    run
}

/// On which side of each kink the net is: signs behind the ReLUs and positions of the maxima.
fn sides(run: &ReferenceNet<f64>) -> Vec<u64> {
    let signs = ["conv1", "pool1"].into_iter().flat_map(|name| run.blob(name).expect("exists").iter());
    let positions = run.aux("pool1", 0).expect("exists").iter();
    signs.map(|y| u64::from(*y > 0.0)).chain(positions.map(|p| *p as u64)).collect()
}

/// Central differences of the loss with half widths `h` and `2h`, or nothing if there is a kink in between.
fn slopes(run: &ReferenceNet<f64>, h: f64, shift: impl Fn(&mut ReferenceNet<f64>, f64)) -> Option<[f64; 2]> {
    let here = sides(run);
    let at = |by: f64| {
        let mut moved = run.clone();
        shift(&mut moved, by);
        moved.forward();
        (sides(&moved) == here).then(|| moved.loss())
    };
    let difference = |width: f64| Some((at(width)? - at(-width)?) / (2.0 * width));
    Some([difference(h)?, difference(2.0 * h)?])
}

/// Checks `gradient` against the differences extrapolated to width 0. Their own distance bounds what is left of the
/// truncation; rounding adds ε · loss / h for each of the operations that follow one another, fewer than 2000.
fn check(what: &str, gradient: f64, loss: f64, h: f64, [fine, coarse]: [f64; 2]) {
    let expected = fine + (fine - coarse) / 3.0;
    let bound = (fine - coarse).abs() + f64::EPSILON * 2000.0 * loss / h;
    let close = (gradient - expected).abs() <= bound && bound < 1e-4;
    assert!(close, "{what}: {gradient} is not {expected} ± {bound:e}");
}

#[test]
fn the_gradient_of_the_loss_is_that_of_finite_differences() {
    const H: f64 = 1e-4;
    let mut run = build(layers(), false, 1.0);
    run.forward();
    run.backward();
    let views = run.net().params.views().to_vec();
    let (mut checked, mut kinks) = (0, 0);
    for view in views.iter().filter(|view| view.lr_mult != 0.0) {
        let gradient = run.param_grad(&view.name).expect("exists").to_vec();
        let count = gradient.len();
        assert!(
            gradient.iter().any(|g| g.abs() > 1e-3),
            "{}: mistrusted, no gradient to speak of",
            view.name
        );
        for i in (0..count).step_by(count.div_ceil(24)) {
            let shift =
                |net: &mut ReferenceNet<f64>, by: f64| net.param_mut(&view.name).expect("exists")[i] += by;
            match slopes(&run, H, shift) {
                Some(pair) => check(&format!("{} at {i}", view.name), gradient[i], run.loss(), H, pair),
                None => kinks += 1,
            }
            checked += 1;
        }
    }
    assert!(checked > 80 && 5 * kinks < checked, "{kinks} of {checked} lie at a kink");
}

#[test]
fn inputs_get_gradients_if_backward_is_forced() {
    const H: f64 = 1e-4;
    let mut run = build(layers(), true, 1.0);
    run.forward();
    run.backward();
    let (data, gradient) =
        (run.blob("data").expect("exists").to_vec(), run.blob_grad("data").expect("exists").to_vec());
    let mut kinks = 0;
    for i in (0..data.len()).step_by(17) {
        let shift = |net: &mut ReferenceNet<f64>, by: f64| {
            let mut data = data.clone();
            data[i] += by;
            net.set_input("data", &data);
        };
        match slopes(&run, H, shift) {
            Some(pair) => check(&format!("data at {i}"), gradient[i], run.loss(), H, pair),
            None => kinks += 1,
        }
    }
    assert!(kinks < 15, "{kinks} lie at a kink");
    let frozen = run.param_grad("conv2/1").expect("exists");
    assert!(frozen.iter().all(|g| *g != 0.0), "force_backward gives frozen parameters gradients, too");
    assert_eq!(build(layers(), false, 1.0).blob_grad("data"), None);
}

#[test]
fn a_frozen_parameter_has_no_gradient_though_the_loss_depends_on_it() {
    let mut run = build(layers(), false, 1.0);
    run.forward();
    run.backward();
    assert!(run.param_grad("conv2/1").expect("exists").iter().all(|g| *g == 0.0));
    let before = run.loss();
    run.param_mut("conv2/1").expect("exists")[0] += 0.5;
    run.forward();
    assert_ne!(run.loss(), before);
}

#[test]
fn nothing_runs_backward_below_the_lowest_trained_parameter() {
    let mut frozen = layers();
    for layer in frozen.iter_mut().filter(|layer| layer.name == "conv1") {
        layer.params.iter_mut().for_each(|param| param.lr_mult = Some(0.0));
    }
    let mut run = build(frozen, false, 1.0);
    run.forward();
    run.backward();
    assert_eq!(run.blob_grad("conv1"), None);
    let mut whole = build(layers(), false, 1.0);
    whole.forward();
    whole.backward();
    for name in ["early/0", "conv2/0", "ip/1"] {
        assert_eq!(run.param_grad(name), whole.param_grad(name), "{name}");
    }
}

#[test]
fn the_loss_is_the_weighted_sum_and_gradients_carry_the_share() {
    let mut whole = build(layers(), false, 1.0);
    whole.forward();
    whole.backward();
    let value = |name| whole.blob(name).expect("exists")[0];
    let expected = value("loss") + f64::from(0.3f32) * value("early_loss");
    assert!((whole.loss() - expected).abs() <= f64::EPSILON * expected, "{} is not {expected}", whole.loss());
    let accuracy = value("accuracy") * IMAGES as f64;
    assert!((accuracy - accuracy.round()).abs() < 1e-12 && (0.0..=IMAGES as f64).contains(&accuracy));
    // A quarter is exact in binary, so every gradient is exactly a quarter.
    let mut part = build(layers(), false, 0.25);
    part.forward();
    part.backward();
    for view in whole.net().params.views() {
        let quarter: Vec<f64> =
            whole.param_grad(&view.name).expect("exists").iter().map(|g| g / 4.0).collect();
        assert_eq!(part.param_grad(&view.name), Some(&quarter[..]), "{}", view.name);
    }
}

#[test]
fn a_layer_in_place_leaves_the_values_of_other_readers_alone() {
    let mut run = build(layers(), false, 1.0);
    run.forward();
    let (after, early) = (run.blob("pool1").expect("exists"), run.blob("early").expect("exists"));
    let before: Vec<f64> = after.iter().map(|y| if *y < 0.0 { y / 0.25 } else { *y }).collect();
    assert!(after.iter().any(|y| *y < 0.0), "mistrusted: ReLU 2 changes nothing");
    let (w, b) = (run.param("early/0").expect("exists"), run.param("early/1").expect("exists"));
    let inputs = before.len() / IMAGES;
    let product: f64 = w[..inputs].iter().zip(&before[..inputs]).map(|(w, x)| w * x).sum();
    assert!((product + b[0] - early[0]).abs() < 1e-12, "{product} + {} is not {}", b[0], early[0]);
}

#[test]
fn the_gradient_of_a_blob_with_several_readers_is_their_sum() {
    let mut single = layers();
    single.retain(|layer| !matches!(layer.name.as_str(), "early" | "early_loss"));
    let mut double = single.clone();
    let mut again = double.last().expect("the loss").clone();
    (again.name, again.tops, again.loss_weights) = ("again".into(), vec!["again".into()], vec![0.5]);
    double.push(again);
    let [single, double] = [single, double].map(|layers| {
        let mut run = build(layers, false, 1.0);
        run.forward();
        run.backward();
        run
    });
    let (one, both) = (single.blob_grad("ip").expect("exists"), double.blob_grad("ip").expect("exists"));
    assert!(one.iter().any(|g| g.abs() > 0.01), "mistrusted: no gradient to speak of");
    for (one, both) in one.iter().zip(both) {
        assert!((1.5 * one - both).abs() <= f64::EPSILON * one.abs(), "{both} is not 1.5 · {one}");
    }
}

#[test]
fn running_twice_gives_the_same_bits() {
    let mut run = build(layers(), true, 1.0);
    run.forward();
    run.backward();
    let (loss, first) = (run.loss(), run.clone());
    run.forward();
    run.backward();
    assert_eq!(run.loss().to_bits(), loss.to_bits());
    for view in first.net().params.views() {
        assert_eq!(run.param_grad(&view.name), first.param_grad(&view.name), "{}", view.name);
    }
}
