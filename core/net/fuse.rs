//! Layers that are computed together: a net is rewritten so that values which only the next layer reads are never
//! stored.
//!
//! - BatchNorm, Scale by a factor for each channel, and perhaps a ReLU become one [`Normalize`].
//! - A sum ([`crate::layer::Eltwise`]) and a ReLU become a sum with a ReLU.
//! - A convolution does the forward of a ReLU that works in place behind it. The ReLU stays, for backward: three
//!   sub-tasks of the convolution read its gradient.
//!
//! Parameters keep their names, their places in the packed buffer and their rules. The first layer of a chain stays, in
//! its place and with its name, and takes over the top of the last: readers of the top come later than both. Memory
//! that nothing lies in any more is gone.

use super::{AbsorbedLayer, BlobId, LayerId, Net, NetLayer, Phase, SharedGrad, StorageId};
use crate::layer::{EltwiseOperation, Layer, Normalize, Scale};
use crate::shape::Shape;

impl Net {
    /// The same net with layers fused where that leaves its meaning as it is, and with memory of its own for each
    /// storage.
    pub fn fused(mut self) -> Self {
        let mut absorbed = vec![false; self.layers.len()];
        for first in (0..self.layers.len()).map(LayerId) {
            let Some((layer, chain)) = self.normalization(first).or_else(|| self.sum(first)) else {
                continue;
            };
            let last = chain.last().map_or(first, |last| *last);
            let NetLayer { tops, loss_weights, .. } = self.layer(last).clone();
            self.blobs[tops[0].0].producer = first;
            for id in chain {
                absorbed[id.0] = true;
                let NetLayer { name, layer, params, shared, .. } = self.layer(id).clone();
                let into = &mut self.layers[first.0];
                let before = into.params.len();
                into.shared.extend(shared.into_iter().map(|s| SharedGrad { index: before + s.index, ..s }));
                into.params.extend(params);
                into.absorbed.push(AbsorbedLayer { name, type_name: layer.type_name() });
            }
            let into = &mut self.layers[first.0];
            (into.layer, into.tops, into.loss_weights) = (layer, tops, loss_weights);
        }
        let mut net = self.without(&absorbed);
        net.rectify_convolutions();
        net
    }

    fn rectify_convolutions(&mut self) {
        for id in (0..self.layers.len()).map(LayerId) {
            let Layer::Convolution(_) = &self.layer(id).layer else { continue };
            let Some(relu) = self.relu_behind(id) else { continue };
            let lies = |id: LayerId| self.blob(self.layer(id).tops[0]).data;
            if lies(id) != lies(relu) {
                continue;
            }
            if let Layer::Convolution(convolution) = &mut self.layers[id.0].layer {
                convolution.relu = true;
            }
            if let Layer::Relu(relu) = &mut self.layers[relu.0].layer {
                relu.applied = true;
            }
        }
    }

    /// The layer that a BatchNorm and those behind it make, and which they are.
    fn normalization(&self, first: LayerId) -> Option<(Layer, Vec<LayerId>)> {
        let Layer::BatchNorm(norm) = &self.layer(first).layer else { return None };
        let scale_id = self.only_reader(first)?;
        let shapes = self.bottom_shapes(scale_id);
        let scale = match &self.layer(scale_id).layer {
            Layer::Scale(scale) if is_by_channel(scale, &shapes) => scale,
            _ => return None,
        };
        let relu = self.relu_behind(scale_id);
        let chain: Vec<LayerId> = [scale_id].into_iter().chain(relu).collect();
        let bottom = self.blob(self.layer(first).bottoms[0]);
        let top = self.blob(self.layer(*chain.last()?).tops[0]);
        // Where nothing below learns, the running sums of a BatchNorm alone still take in each batch.
        let learns = self.phase == Phase::Test || top.grad.is_some();
        // Layers that share a parameter add to its gradient in the order of backward, in which the Scale takes its BatchNorm's place.
        let shared = &self.layer(scale_id).params;
        let mut between = self.layers[first.0..scale_id.0].iter().flat_map(|layer| &layer.params);
        let keeps_order = between.all(|param| !shared.contains(param));
        // Backward asks for the bottom's values: the top must lie elsewhere.
        (learns && keeps_order && bottom.data != top.data).then(|| {
            let (norm, scale) = (norm.clone(), scale.clone());
            let passes_down = bottom.grad.is_some();
            (
                Layer::Normalize(Normalize { norm, scale, sum: false, relu: relu.is_some(), passes_down }),
                chain,
            )
        })
    }

    /// The layer that a sum and the ReLU behind it make, and which ReLU.
    fn sum(&self, first: LayerId) -> Option<(Layer, Vec<LayerId>)> {
        let mut layer = self.layer(first).layer.clone();
        let Layer::Eltwise(eltwise) = &mut layer else { return None };
        let EltwiseOperation::Sum { relu, .. } = &mut eltwise.operation else { return None };
        *relu = true;
        self.relu_behind(first).map(|id| (layer, vec![id]))
    }

    /// The ReLU that alone reads a layer's top, if it lets nothing below 0 pass.
    fn relu_behind(&self, id: LayerId) -> Option<LayerId> {
        let reader = self.only_reader(id)?;
        matches!(&self.layer(reader).layer, Layer::Relu(relu) if relu.negative_slope == 0.0).then_some(reader)
    }

    /// The only reader of a layer's only top, if backward goes through both or the net has none. (A layer that leads
    /// to no loss still adds to its running sums; one through which the file lets no gradient pass stops there.)
    fn only_reader(&self, id: LayerId) -> Option<LayerId> {
        let [top] = self.layer(id).tops[..] else { return None };
        let reader = LayerId(self.layers.iter().position(|l| l.bottoms == [top])?);
        let both = [id, reader].map(|id| self.layer(id).under_loss);
        let alike = self.phase == Phase::Test || both == [true, true];
        (alike && self.blob(top).readers == 1).then_some(reader)
    }

    /// The net without some layers, without the blobs that then no layer makes, and without the memory of those.
    pub(super) fn without(mut self, absorbed: &[bool]) -> Self {
        let mut keep = absorbed.iter().map(|absorbed| !absorbed);
        self.layers.retain(|_| keep.next().unwrap_or(true));
        let layers = renumbered(&absorbed.iter().map(|a| !a).collect::<Vec<_>>());

        let mut made = vec![false; self.blobs.len()];
        self.layers.iter().flat_map(|l| &l.tops).for_each(|top| made[top.0] = true);
        let blobs = renumbered(&made);
        let mut keep = made.iter();
        self.blobs.retain(|_| keep.next().copied().unwrap_or(true));

        let mut used = vec![false; self.storages.len()];
        let lie = self.blobs.iter().flat_map(|blob| [Some(blob.data), blob.grad]).flatten();
        lie.for_each(|storage| used[storage.0] = true);
        let storages = renumbered(&used);
        let mut keep = used.iter();
        self.storages.retain(|_| keep.next().copied().unwrap_or(true));
        self.memory = None;

        for layer in &mut self.layers {
            layer.bottoms.iter_mut().chain(&mut layer.tops).for_each(|blob| *blob = BlobId(blobs[blob.0]));
        }
        for blob in &mut self.blobs {
            blob.producer = LayerId(layers[blob.producer.0]);
            blob.data = StorageId(storages[blob.data.0]);
            blob.grad = blob.grad.map(|grad| StorageId(storages[grad.0]));
        }
        self
    }
}

/// Whether there is one factor for each channel.
fn is_by_channel(scale: &Scale, bottoms: &[Shape]) -> bool {
    scale.bottoms == 1
        && bottoms[0].axis(scale.axis, "axis") == Ok(1)
        && scale.factors(bottoms).is_ok_and(|factors| factors.shape.axes() == 1)
}

/// The new number of each thing that is kept.
fn renumbered(kept: &[bool]) -> Vec<usize> {
    let mut next = 0;
    let number = |kept: &bool| {
        next += usize::from(*kept);
        next - usize::from(*kept)
    };
    kept.iter().map(number).collect()
}
