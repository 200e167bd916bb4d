//! Backward of a ReLU by the layer behind it: the numbers of the pass that it replaces.

use quadrille_core::layer::{Convolution, Layer, Lrn, NormRegion, PoolMethod, Pooling};
use quadrille_core::net::{LayerSpec, Net, NetSpec};
use quadrille_cpu::isa::{Isa, Numerics, Precision};
use quadrille_cpu::{EngineOptions, NAN_HALVES, rectifying_layers};

use crate::common::{convolution, network, numerics};
use crate::lifetime::{How, PLAINLY, Spec, check_finite, made, momentum, train};
use crate::whole_nets::{head, images, relu};

/// Convolutions with a ReLU each, before windows that overlap, that are apart, and that average.
fn rectified(batch: usize) -> NetSpec {
    let conv = |name: &str, outputs: usize, bottom: &str| {
        let layer = Convolution { pad: [1; 2], ..convolution(outputs, [3; 2]) };
        LayerSpec::new(name, Layer::Convolution(layer), &[bottom], &[name])
    };
    let pool = |name: &str, method: PoolMethod, kernel: usize, bottom: &str| {
        let layer = Pooling { method, kernel: Some([kernel; 2]), pad: [0; 2], stride: [2; 2] };
        LayerSpec::new(name, Layer::Pooling(layer), &[bottom], &[name])
    };
    let mut layers = images(batch);
    layers.extend([
        conv("a", 20, "data"),
        relu("a"),
        pool("pool_a", PoolMethod::Max, 3, "a"),
        conv("b", 32, "pool_a"),
        relu("b"),
        pool("pool_b", PoolMethod::Max, 2, "b"),
        conv("c", 16, "pool_b"),
        relu("c"),
        pool("pool_c", PoolMethod::Average, 2, "c"),
    ]);
    head(&mut layers, "pool_c");
    network(layers, false)
}

fn rectifying(net: Net, options: &EngineOptions) -> Net {
    let can = rectifying_layers(&net, options.numerics(), &options.kernels).expect("kernels");
    net.rectifying(|layer| can.contains(&layer))
}

/// ReLUs that are read by convolutions of every way to ∇A, and by both kinds of LRN.
fn read(batch: usize) -> NetSpec {
    let conv = |name: &str, outputs: usize, kernel: usize, pad: usize, stride: usize, bottom: &str| {
        let layer = Convolution { pad: [pad; 2], stride: [stride; 2], ..convolution(outputs, [kernel; 2]) };
        [LayerSpec::new(name, Layer::Convolution(layer), &[bottom], &[name]), relu(name)]
    };
    let norm = |name: &str, region: NormRegion, bottom: &str| {
        let layer = Lrn { region, local_size: 5, alpha: 0.5, beta: 0.75, k: 1.0 };
        [LayerSpec::new(name, Layer::Lrn(layer), &[bottom], &[name])]
    };
    let mut layers = images(batch);
    layers.extend(conv("first", 32, 3, 1, 1, "data"));
    layers.extend(conv("same", 40, 3, 1, 1, "first"));
    layers.extend(conv("wide", 32, 5, 2, 1, "same"));
    let pairs = Convolution { pad: [1; 2], group: 2, ..convolution(32, [3; 2]) };
    layers.extend([LayerSpec::new("pairs", Layer::Convolution(pairs), &["wide"], &["pairs"]), relu("pairs")]);
    // 8x8 of 12x12 pixels: fewer tiles of the top than of the bottom.
    layers.extend(conv("less", 24, 5, 0, 1, "pairs"));
    // So many gradients that they come in chunks.
    layers.extend(conv("point", 336, 1, 0, 1, "less"));
    layers.extend(conv("leaps", 24, 3, 1, 2, "point"));
    layers.extend(conv("few", 16, 1, 0, 1, "leaps"));
    layers.extend(norm("across", NormRegion::AcrossChannels, "few"));
    layers.extend(conv("more", 20, 3, 1, 1, "across"));
    layers.extend(norm("within", NormRegion::WithinChannel, "more"));
    layers.push(relu("within"));
    layers.extend(conv("skips", 16, 1, 0, 2, "within"));
    head(&mut layers, "skips");
    network(layers, false)
}

/// The layers to which the backward of a ReLU is left.
fn left(spec: Spec, options: &EngineOptions) -> Vec<String> {
    let net = made(spec, false)(1).swap_remove(0);
    let layers = rectifying(net, options).layers.into_iter();
    layers.filter(|layer| layer.rectifies_gradient).map(|layer| layer.name).collect()
}

/// Trains with the backward of ReLUs left to others, and apart.
fn compare(spec: Spec, options: &EngineOptions) {
    let numerics = options.numerics();
    for (fused, quadrants) in [(false, 1), (true, 1), (true, 3)] {
        let plain = made(spec, fused);
        let make = |quadrants| -> Vec<Net> {
            plain(quadrants).into_iter().map(|net| rectifying(net, options)).collect()
        };
        let expected = train(&plain, options, How { quadrants, ..PLAINLY });
        check_finite(&expected, "rectified");
        for (shares, poison) in [(false, None), (true, Some(NAN_HALVES))] {
            let how = How { quadrants, shares, poison, ..PLAINLY };
            let found = train(&make, options, how);
            // Zeros may have another sign.
            let same = expected.iter().zip(&found).all(|(a, b)| f32::from_bits(*a) == f32::from_bits(*b));
            assert!(same, "on {numerics}, {:?}, fused {fused}: {how:?}", options.kernels);
        }
    }
}

#[test]
fn pooling_lets_pass_what_the_relu_would() {
    for numerics in numerics("backward of ReLUs by pooling") {
        let options = momentum(numerics);
        let left = left(rectified, &options).into_iter().filter(|name| name.starts_with("pool"));
        let expected: &[&str] = if numerics.isa == Isa::Portable { &[] } else { &["pool_a", "pool_b"] };
        assert_eq!(left.collect::<Vec<_>>(), expected, "{numerics}");
        compare(rectified, &options);
    }
}

#[test]
fn convolutions_and_norms_let_pass_what_the_relu_would() {
    for numerics in numerics("backward of ReLUs by convolutions") {
        let ending = if numerics.precision == Precision::Bf16 { "-bf16" } else { "" };
        let forced = |layer: &str, kernel: &str| vec![(layer.to_owned(), format!("{kernel}{ending}"))];
        let mut expected = vec!["same", "wide", "pairs", "less", "point", "leaps", "few", "across", "within"];
        let mut ways = vec![Vec::new(), forced("Convolution", "tiles")];
        let amx = numerics == Numerics::bf16(Isa::AmxBf16);
        if !amx {
            ways.push(forced("same", "winograd-4x4"));
        }
        if numerics.precision == Precision::Bf16 {
            // Its bottom lies in bf16 and is turned into f32 for it.
            ways.push(vec![("same".to_owned(), "tiles".to_owned())]);
            ways.push(vec![("less".to_owned(), "tiles".to_owned())]);
        }
        if numerics.isa == Isa::Portable {
            (expected, ways) = (vec!["across", "within"], vec![Vec::new()]);
        }
        for (way, kernels) in ways.into_iter().enumerate() {
            let options = EngineOptions { kernels, ..momentum(numerics) };
            // Tiles that add tap by tap to ∇A have no sum in registers.
            let by_tiles = |(name, kernel): &(String, String)| name == "less" && kernel == "tiles";
            let adds = options.kernels.iter().any(by_tiles) || way == 1 && !amx;
            let scattered = if adds { "less" } else { "" };
            let expected: Vec<&str> = expected.iter().copied().filter(|name| *name != scattered).collect();
            assert_eq!(left(read, &options), expected, "{numerics}, {:?}", options.kernels);
            compare(read, &options);
        }
    }
}

/// Whoever chooses how a ReLU is computed gets that.
#[test]
fn a_relu_whose_kernel_is_forced_is_left_apart() {
    for numerics in numerics("ReLUs by themselves") {
        let options = |kernels| EngineOptions { kernels, ..momentum(numerics) };
        let of = |name: &str| options(vec![(name.to_owned(), "reference".to_owned())]);
        let all = left(rectified, &options(Vec::new()));
        let others: Vec<String> = all.iter().filter(|name| *name != "pool_a").cloned().collect();
        assert_eq!(left(rectified, &of("relu_a")), others, "{numerics}");
        assert_eq!(left(rectified, &of("ReLU")), Vec::<String>::new(), "{numerics}");
        compare(rectified, &of("relu_a"));
    }
}
