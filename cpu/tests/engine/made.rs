//! Numbers, layers and networks that tests of this crate and of `gpu` are made of.

use quadrille_core::layer::{Convolution, Filler, InnerProduct, Input, Layer, SoftmaxWithLoss, VarianceNorm};
use quadrille_core::net::{GivenState, LayerSpec, NetSpec};
use quadrille_core::rng::{Purpose, Stream};

/// `count` integers between −`limit` and `limit`, none of them 0.
pub fn integers(seed: u64, count: usize, limit: u32) -> Vec<f32> {
    let stream = Stream::new(seed, Purpose::Dummy, 0);
    let value = |bits: u32| {
        let value = (1 + (bits >> 1) % limit) as f32;
        if bits & 1 == 0 { value } else { -value }
    };
    // By whole blocks, of which one at a time would be drawn for each of its four words.
    (0..count.div_ceil(4) as u64).flat_map(|block| stream.block(block)).take(count).map(value).collect()
}

/// `count` numbers in [−1, 1).
pub fn fractions(seed: u64, count: usize) -> Vec<f32> {
    let stream = Stream::new(seed, Purpose::Dummy, 1);
    let mut numbers = vec![0.0; count];
    stream.uniforms(0, &mut numbers);
    numbers.iter_mut().for_each(|number| *number = 2.0 * *number - 1.0);
    numbers
}

/// `count` labels below `classes`.
pub fn labels(seed: u64, count: usize, classes: usize) -> Vec<f32> {
    let stream = Stream::new(seed, Purpose::Sampling, 0);
    (0..count as u64).map(|i| (stream.bits(i) % classes as u32) as f32).collect()
}

/// A convolution with a bias; the rest is to be changed.
pub fn convolution(num_output: usize, kernel: [usize; 2]) -> Convolution {
    Convolution {
        num_output,
        kernel,
        pad: [0; 2],
        stride: [1; 2],
        dilation: [1; 2],
        group: 1,
        bias: true,
        relu: false,
        weight_filler: Filler::Xavier(VarianceNorm::FanIn),
        bias_filler: Filler::default(),
    }
}

/// An inner product with a bias over everything from axis 1 on; the rest is to be changed.
pub fn inner_product(num_output: usize) -> InnerProduct {
    InnerProduct {
        num_output,
        bias: true,
        axis: 1,
        transpose: false,
        weight_filler: Filler::Xavier(VarianceNorm::FanIn),
        bias_filler: Filler::default(),
    }
}

/// A loss along `axis`.
pub fn loss(axis: i32) -> Layer {
    Layer::SoftmaxWithLoss(SoftmaxWithLoss { axis, ignore_label: None, normalization: Default::default() })
}

/// An input of one top.
pub fn input(name: &str, dims: &[usize]) -> LayerSpec {
    LayerSpec::new(name, Layer::Input(Input { shapes: vec![dims.to_vec()], tops: 1 }), &[], &[name])
}

/// A network of these layers.
pub fn network(layers: Vec<LayerSpec>, force_backward: bool) -> NetSpec {
    NetSpec {
        name: "test".into(),
        file: "made".into(),
        force_backward,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    }
}
