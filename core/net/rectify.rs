//! The backward of a ReLU that is left to the layer which alone reads it.
//!
//! A ReLU works in place and lets a gradient pass where its value is above 0: a pass over all values and gradients. The layer above
//! has each gradient in a register before it stores it, so it does as well to look at the value there and to store 0 where that is
//! not above 0; then the ReLU has nothing left to do. A max pooling need not even look: it has touched one value for each window
//! and knows where it lies, and forgets that place where the maximum is not above 0. Every gradient is what it was, but for the sign
//! of a 0, and where a gradient that does not pass is not finite, which the ReLU multiplies by 0.

use super::{LayerId, Net};
use crate::layer::{Layer, PoolMethod};

impl Net {
    /// The same net with the backward of each ReLU in place left to the convolution, the LRN or the max pooling that alone reads it,
    /// if that is one of those for which `can` says so.
    pub fn rectifying(mut self, can: impl Fn(LayerId) -> bool) -> Self {
        for id in (0..self.layers.len()).map(LayerId) {
            let stores_once = match &self.layer(id).layer {
                Layer::Pooling(pooling) => pooling.method == PoolMethod::Max,
                Layer::Convolution(_) | Layer::Lrn(_) => true,
                _ => false,
            };
            self.layers[id.0].rectifies_gradient = stores_once && self.follows_relu(id) && can(id);
        }
        self
    }

    /// Whether a layer alone reads a ReLU, whose gradient lies where its bottom's does, and both take part in backward.
    fn follows_relu(&self, id: LayerId) -> bool {
        let [bottom] = self.layer(id).bottoms[..] else { return false };
        let relu = self.layer(self.blob(bottom).producer);
        let lets_nothing_below = matches!(&relu.layer, Layer::Relu(relu) if relu.negative_slope == 0.0);
        let gradients = relu.bottoms.iter().chain(&relu.tops).map(|blob| self.blob(*blob).grad);
        let in_place =
            gradients.collect::<Vec<_>>().windows(2).all(|pair| pair[0].is_some() && pair[0] == pair[1]);
        let both = relu.under_loss && self.layer(id).under_loss;
        lets_nothing_below && in_place && both && self.blob(bottom).readers == 1
    }

    /// Whether a layer looks at what it reads to do the backward of a ReLU.
    pub(super) fn looks_at_relu(&self, id: LayerId) -> bool {
        let layer = self.layer(id);
        layer.rectifies_gradient && !matches!(layer.layer, Layer::Pooling(_))
    }

    /// Whether the backward of a layer is that of the layer which reads it.
    pub(super) fn is_rectified_above(&self, id: LayerId) -> bool {
        let layer = self.layer(id);
        let reads_it = |above: &super::NetLayer| above.rectifies_gradient && above.bottoms == layer.tops;
        matches!(layer.layer, Layer::Relu(_)) && self.layers.iter().any(reads_it)
    }
}
