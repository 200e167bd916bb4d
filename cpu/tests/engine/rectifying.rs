//! Backward of a ReLU by the max pooling behind it: the numbers of the pass that it replaces.

use quadrille_core::layer::{Convolution, Layer, PoolMethod, Pooling};
use quadrille_core::net::{LayerSpec, Net, NetSpec};
use quadrille_cpu::isa::Isa;
use quadrille_cpu::{EngineOptions, NAN_HALVES, rectifying_layers};

use crate::common::{convolution, network, numerics};
use crate::lifetime::{How, PLAINLY, check_finite, made, momentum, train};
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

#[test]
fn pooling_lets_pass_what_the_relu_would() {
    for numerics in numerics("backward of ReLUs by pooling") {
        let options = momentum(numerics);
        for (fused, quadrants) in [(false, 1), (true, 1), (true, 3)] {
            let plain = made(rectified, fused);
            let make = |quadrants| -> Vec<Net> {
                plain(quadrants).into_iter().map(|net| rectifying(net, &options)).collect()
            };
            let left = make(1)[0].layers.iter().filter(|layer| layer.rectifies_gradient).count();
            assert_eq!(left, if numerics.isa == Isa::Portable { 0 } else { 2 }, "{numerics}");
            let expected = train(&plain, &options, How { quadrants, ..PLAINLY });
            check_finite(&expected, "rectified");
            for (shares, poison) in [(false, None), (true, Some(NAN_HALVES))] {
                let how = How { quadrants, shares, poison, ..PLAINLY };
                let found = train(&make, &options, how);
                // Zeros may have another sign.
                let same = expected.iter().zip(&found).all(|(a, b)| f32::from_bits(*a) == f32::from_bits(*b));
                assert!(same, "on {numerics}, fused {fused}: {how:?}");
            }
        }
    }
}
