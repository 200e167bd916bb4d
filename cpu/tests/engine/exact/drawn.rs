//! Layers whose extents are drawn, against the oracle with tolerance 0: what nobody thought of writing down as a case.
//!
//! `QUADRILLE_DRAWN=FIRST..END` runs those seeds instead of the usual few: a campaign. A failure names the layer and its shape.

use quadrille_core::layer::{Convolution, InnerProduct, Layer, PoolMethod, Pooling};
use quadrille_core::rng::{Purpose, Stream};

use crate::common::{convolution, inner_product};
use crate::exact::bench::exact;
use crate::exact::case::Case;
use crate::exact::layers::divisors;

/// Numbers of channels around the blocks and register tiles of all tiers.
const CHANNELS: [usize; 12] = [1, 2, 3, 8, 15, 16, 17, 24, 32, 33, 40, 64];

/// Numbers out of a stream, one after the other.
struct Numbers {
    stream: Stream,
    drawn: u64,
}

impl Numbers {
    fn new(seed: u64) -> Self {
        Self { stream: Stream::new(seed, Purpose::Dummy, 0), drawn: 0 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.drawn += 1;
        self.stream.bits(self.drawn - 1) as usize % end
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// True once in `n` draws.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Two numbers from `least` on, mostly the same.
    fn pair(&mut self, least: usize, end: usize) -> [usize; 2] {
        let first = least + self.below(end - least);
        if self.once_in(3) { [first, least + self.below(end - least)] } else { [first; 2] }
    }

    /// Height and width of an image: small, and sometimes longer than any register tile.
    fn image(&mut self) -> [usize; 2] {
        let end = if self.once_in(6) { 40 } else { 14 };
        [1 + self.below(end), 1 + self.below(end)]
    }

    /// Channels of a bottom and of a top.
    fn channels(&mut self, choices: &[usize], group: usize) -> [usize; 2] {
        [(); 2].map(|()| self.one_of(choices).next_multiple_of(group))
    }

    /// A convolution and the shape of its bottom, if they fit each other.
    fn convolution(&mut self) -> Option<Case> {
        let group = if self.once_in(4) { 1 + self.below(4) } else { 1 };
        let kernel = if self.once_in(2) { [self.one_of(&[1, 3, 5]); 2] } else { self.pair(1, 6) };
        let form = self.below(8);
        // Long rows, many channels, or neither.
        let ([sources, targets], [height, width]) = match form {
            0 => (self.channels(&[1, 3, 16], group), [1 + self.below(6), 100 + self.below(500)]),
            1 => (self.channels(&[90, 128, 144, 150, 200], group), [4 + self.below(6), 4 + self.below(6)]),
            _ => (self.channels(&CHANNELS, group), self.image()),
        };
        let layer = Convolution {
            pad: if self.once_in(2) { [0; 2] } else { self.pair(0, 4) },
            stride: if self.once_in(2) { [1; 2] } else { self.pair(1, 5) },
            dilation: if self.once_in(5) { self.pair(1, 4) } else { [1; 2] },
            group,
            bias: !self.once_in(3),
            relu: self.once_in(4),
            ..convolution(targets, kernel)
        };
        let images = 1 + self.below(if form < 2 { 2 } else { 5 });
        layer.output([height, width])?;
        let (is_first, layer) = (self.once_in(5), Layer::Convolution(layer));
        let shape = [images, sources, height, width];
        Some(if is_first { Case::of_images(layer, &shape) } else { Case::new(layer, &[&shape]) })
    }

    fn pooling(&mut self) -> Option<Case> {
        let method = self.one_of(&[PoolMethod::Max, PoolMethod::Average]);
        // Of larger averages no small number has all shares.
        let kernel = self.pair(1, if method == PoolMethod::Max { 6 } else { 4 });
        let least = kernel[0].min(kernel[1]);
        let pad = if self.once_in(2) { [0; 2] } else { self.pair(0, least) };
        let layer = Pooling { method, kernel: Some(kernel), pad, stride: self.pair(1, 5) };
        let (images, channels, [height, width]) = (1 + self.below(5), self.one_of(&CHANNELS), self.image());
        let output = layer.output([height, width])?;
        // Windows behind the image are refused.
        let seen = |a: usize| layer.window(a, output[a] - 1, kernel[a], [height, width][a]).counted;
        if (0..2).any(|a| seen(a) == 0) {
            return None;
        }
        let scale = if method == PoolMethod::Max { 1.0 } else { divisors(&layer, [height, width]) };
        Some(Case::new(Layer::Pooling(layer), &[&[images, channels, height, width]]).scaled(scale))
    }

    fn inner_product(&mut self) -> Case {
        let layer = InnerProduct {
            transpose: self.once_in(4),
            bias: !self.once_in(3),
            ..inner_product(1 + self.below(150))
        };
        let images = if self.once_in(2) { 1 + self.below(9) } else { 1 + self.below(70) };
        Case::new(Layer::InnerProduct(layer), &[&[images, 1 + self.below(700)]])
    }

    fn case(&mut self) -> Option<Case> {
        match self.below(8) {
            0 | 1 => self.pooling(),
            2 => Some(self.inner_product()),
            _ => self.convolution(),
        }
    }
}

#[test]
fn layers_of_drawn_extents() {
    let (seeds, wanted) = match std::env::var("QUADRILLE_DRAWN") {
        Ok(text) => {
            let ends = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let (first, end) = ends.expect("QUADRILLE_DRAWN=FIRST..END");
            (first..end, usize::MAX)
        }
        Err(_) => (0..u64::MAX, 20),
    };
    let cases = seeds.filter_map(|seed| Some((seed, Numbers::new(seed).case()?))).take(wanted);
    let compare = |(seed, case): (u64, Case)| {
        exact(&format!("drawn layers, seed {seed}"), &[case.zeros("layers are as they are drawn")]);
    };
    assert!(cases.map(compare).count() > 0, "nothing was drawn");
}
