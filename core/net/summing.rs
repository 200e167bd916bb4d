//! Sums that are left to the normalisation which makes one of their terms.
//!
//! A block of a residual net ends with a normalisation, to which the shortcut is added, and a ReLU. Apart, what is normalised is
//! written to memory and read again for the sum. Here the normalisation adds the shortcut before it writes ([`Normalize`]), and
//! its backward lets the gradient pass through the ReLU as it sums it up: of the six passes over as many numbers as the block's top
//! has that forward took, two are left out with the blob, and one of the eight of backward.

use super::{AbsorbedLayer, BlobId, LayerId, Net, NetLayer, Phase};
use crate::layer::{EltwiseOperation, Layer, Normalize};

impl Net {
    /// The same net with each sum of two blobs left to the normalisation that makes one of them. Comes after [`Net::fused`], and is
    /// for devices that can add in a normalisation. In f32 all numbers are the same; where blobs are kept in less, a term is not
    /// rounded before it is added.
    pub fn summing(mut self) -> Self {
        let mut absorbed = vec![false; self.layers.len()];
        for sum in (0..self.layers.len()).map(LayerId) {
            let Some((norm, shortcut)) = self.terms(sum) else { continue };
            let NetLayer { name, layer, tops, loss_weights, absorbed: parts, .. } = self.layer(sum).clone();
            absorbed[sum.0] = true;
            self.blobs[tops[0].0].producer = norm;
            let into = &mut self.layers[norm.0];
            into.absorbed.push(AbsorbedLayer { name, type_name: layer.type_name() });
            into.absorbed.extend(parts);
            into.bottoms.push(shortcut);
            (into.tops, into.loss_weights) = (tops, loss_weights);
            if let (Layer::Normalize(norm), Some(relu)) = (&mut into.layer, plain_sum(&layer)) {
                (norm.sum, norm.relu) = (true, relu);
            }
        }
        self.without(&absorbed)
    }

    /// The normalisation that makes one term of a sum, and nobody else reads, and the other term.
    fn terms(&self, sum: LayerId) -> Option<(LayerId, BlobId)> {
        let layer = self.layer(sum);
        plain_sum(&layer.layer)?;
        let ([a, b], [top]) = (&layer.bottoms[..], &layer.tops[..]) else { return None };
        let terms = [(*b, *a), (*a, *b)].into_iter().filter(|(own, other)| own != other);
        terms
            .filter(|(own, shortcut)| self.can_add(self.blob(*own).producer, *shortcut, sum, *top))
            .map(|(own, shortcut)| (self.blob(own).producer, shortcut))
            .next()
    }

    /// Whether a layer is a normalisation that can add a term and write the top of a sum in its own place.
    fn can_add(&self, norm: LayerId, shortcut: BlobId, sum: LayerId, top: BlobId) -> bool {
        let Layer::Normalize(Normalize { sum: false, relu: false, passes_down, .. }) = self.layer(norm).layer
        else {
            return false;
        };
        let [bottom] = self.layer(norm).bottoms[..] else { return false };
        let lies = |blob: BlobId| self.blob(blob).data;
        let has_gradient = |blob: &BlobId| self.blob(*blob).grad.is_some();
        let alone = self.layer(norm).tops.iter().all(|top| self.blob(*top).readers == 1);
        let gradients = self.layer(sum).bottoms.iter().chain([&bottom, &top]).all(has_gradient);
        // Whoever comes between them must not find the sum where it looks for something else.
        let between = &self.layers[norm.0 + 1..sum.0];
        let both = [norm, sum].iter().all(|id| self.layer(*id).under_loss);
        let backward = gradients && passes_down && both;
        let mut touched = between.iter().flat_map(|layer| layer.bottoms.iter().chain(&layer.tops));
        alone
            && self.blob(shortcut).producer < norm
            && (self.phase == Phase::Test || backward)
            && [bottom, shortcut].into_iter().all(|blob| lies(blob) != lies(top))
            && touched.all(|blob| lies(*blob) != lies(top))
    }
}

/// Whether a ReLU follows, of a layer that adds two terms as they are.
fn plain_sum(layer: &Layer) -> Option<bool> {
    let Layer::Eltwise(eltwise) = layer else { return None };
    match &eltwise.operation {
        EltwiseOperation::Sum { coefficients, relu } => {
            (eltwise.bottoms == 2 && coefficients.iter().all(|c| *c == 1.0)).then_some(*relu)
        }
        _ => None,
    }
}
