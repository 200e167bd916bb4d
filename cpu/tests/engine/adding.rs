//! Gradients that are added up where they lie: the same bits whatever lay there, for any number of threads.

use quadrille_core::layer::{
    BatchNorm, Convolution, Eltwise, EltwiseOperation, Layer, PoolMethod, Pooling, Scale,
};
use quadrille_core::net::{LayerSpec, Net, NetSpec};
use quadrille_cpu::isa::Isa;
use quadrille_cpu::{EngineOptions, NAN_HALVES, adders};

use crate::common::{convolution, numerics};
use crate::lifetime::{How, PLAINLY, Spec, check_finite, made, momentum, train};
use crate::whole_nets::{head, images, relu, whole_blocks};

/// The net with gradients added up as far as its kernels can.
pub fn adding(net: Net, options: &EngineOptions) -> Net {
    let can = adders(&net, options.numerics(), &options.kernels).expect("kernels");
    net.adding(&can)
}

/// Layers that add to what is there.
pub fn count(net: &Net) -> usize {
    net.layers.iter().filter(|layer| layer.adds_gradient).count()
}

/// Residual blocks behind `first`: one that is projected and halved, one with a 1×1 convolution and without a ReLU, one with
/// Winograd's, all of `channels` channels but the second, whose 1×1 convolution has gradients of so many that they come in chunks.
/// Three layers can add.
pub fn shortcuts(first: &str, channels: usize) -> Vec<LayerSpec> {
    let conv = |name: &str, outputs: usize, kernel: usize, stride: usize, bottom: &str| {
        let (pad, stride) = ([kernel / 2; 2], [stride; 2]);
        let layer = Convolution { pad, stride, ..convolution(outputs, [kernel; 2]) };
        LayerSpec::new(name, Layer::Convolution(layer), &[bottom], &[name])
    };
    let sum = |name: &str, bottoms: [&str; 2]| {
        let operation = EltwiseOperation::Sum { coefficients: Vec::new(), relu: false };
        LayerSpec::new(name, Layer::Eltwise(Eltwise { bottoms: 2, operation }), &bottoms, &[name])
    };
    vec![
        conv("proj", channels, 1, 2, first),
        conv("a1", channels / 2, 1, 1, first),
        relu("a1"),
        conv("a2", channels, 3, 2, "a1"),
        sum("sum_a", ["proj", "a2"]),
        relu("sum_a"),
        conv("b1", 10 * channels, 1, 1, "sum_a"),
        relu("b1"),
        conv("b2", channels, 3, 1, "b1"),
        sum("sum_b", ["sum_a", "b2"]),
        conv("c1", channels, 3, 1, "sum_b"),
        relu("c1"),
        conv("c2", channels, 3, 1, "c1"),
        sum("sum_c", ["sum_b", "c2"]),
        relu("sum_c"),
    ]
}

/// Residual blocks behind a convolution, each with a normalisation of what it ends with.
pub fn residual(batch: usize) -> NetSpec {
    let stem = LayerSpec::new("stem", Layer::Convolution(convolution(32, [3, 3])), &["data"], &["stem"]);
    let mut layers = images(batch);
    layers.extend([stem, relu("stem")]);
    for layer in shortcuts("stem", 32) {
        let norm = BatchNorm { use_global_stats: None, moving_average_fraction: 0.9, eps: 1e-5 };
        let ends = ["proj", "a2", "b2", "c2"].contains(&layer.name.as_str()).then(|| layer.name.clone());
        layers.push(layer);
        if let Some(top) = ends {
            let scale = Scale {
                bottoms: 1,
                axis: 1,
                num_axes: 1,
                bias: true,
                filler: quadrille_core::layer::Filler::Constant(1.0),
                bias_filler: quadrille_core::layer::Filler::Constant(0.1),
            };
            let top = top.as_str();
            layers.push(LayerSpec::new(&format!("bn_{top}"), Layer::BatchNorm(norm), &[top], &[top]));
            layers.push(LayerSpec::new(&format!("scale_{top}"), Layer::Scale(scale), &[top], &[top]));
        }
    }
    let pool = Pooling { method: PoolMethod::Average, kernel: None, pad: [0; 2], stride: [1; 2] };
    layers.push(LayerSpec::new("pool", Layer::Pooling(pool), &["sum_c"], &["pool"]));
    head(&mut layers, "pool");
    crate::common::network(layers, false)
}

#[test]
fn sums_in_place_have_one_result() {
    const NETS: [(&str, Spec, usize); 2] = [("residual", residual, 3), ("branches", whole_blocks, 2)];
    for numerics in numerics("bits of gradients added up in place") {
        for (name, spec, adds) in NETS {
            for quadrants in [1, 3] {
                let options = momentum(numerics);
                let plain = made(spec, true);
                let make = |quadrants| -> Vec<Net> {
                    plain(quadrants).into_iter().map(|net| adding(net, &options)).collect()
                };
                let expected = if numerics.isa == Isa::Portable { 0 } else { adds };
                assert_eq!(count(&make(quadrants)[0]), expected, "{name} on {numerics}");
                let expected = train(&make, &options, How { quadrants, ..PLAINLY });
                check_finite(&expected, name);
                for threads in [1, 3] {
                    for (shares, poison) in
                        [(false, Some(NAN_HALVES)), (true, None), (true, Some(NAN_HALVES))]
                    {
                        let how = How { quadrants, threads, shares, poison, ..PLAINLY };
                        assert!(train(&make, &options, how) == expected, "{name} on {numerics}: {how:?}");
                    }
                }
            }
        }
    }
}
