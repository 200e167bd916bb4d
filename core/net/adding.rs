//! Gradients that are added up where they lie.
//!
//! A blob with several readers has the sum of their gradients. Apart, each reader writes one, and a [`Split`] reads them all
//! and writes their sum. Here the reader that backward comes to first writes, and each other adds to what is there, so that
//! there is nothing left for the Split to do. And where a sum ([`Eltwise`]) passes its gradient on as it is, all its
//! bottoms have that of its top: one array, which the bottoms' producers only read.
//!
//! In a residual net both come together: the gradient of the shortcut is that of the block's top, and the block's first
//! convolution adds its own to it. Of what the backward of such a block moves outside its convolutions and normalisations,
//! six passes over the shortcut's gradient become two.
//!
//! [`Split`]: crate::layer::Split
//! [`Eltwise`]: crate::layer::Eltwise

use super::{BlobId, LayerId, Net, StorageId};
use crate::layer::{EltwiseOperation, Layer};

/// What a device's kernels can do for [`Net::adding`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adders {
    /// Layers that can add the gradient of their only bottom to what is there.
    pub layers: Vec<LayerId>,
    /// Sums, also of a normalisation with what is added to it, that can leave the gradient of their terms in the memory of
    /// their top's.
    pub sums: Vec<LayerId>,
    /// Splits whose bottom and tops lie alike for all that read and write them.
    pub splits: Vec<LayerId>,
}

impl Net {
    /// The same net with gradients added up where they lie, as far as the device's kernels can. Which numbers are added is
    /// the same, but not how each sum is rounded. Comes after [`Net::fused`] and before [`Net::sharing_memory`].
    pub fn adding(mut self, can: &Adders) -> Self {
        for sum in &can.sums {
            self.pass_on_gradient(*sum);
        }
        for split in &can.splits {
            self.add_to_gradient(*split, can);
        }
        self
    }

    /// Lets the terms of a sum have the gradient of its top.
    fn pass_on_gradient(&mut self, sum: LayerId) {
        let (first, as_it_is) = match &self.layer(sum).layer {
            Layer::Eltwise(eltwise) => match &eltwise.operation {
                EltwiseOperation::Sum { coefficients, .. } => (0, coefficients.iter().all(|c| *c == 1.0)),
                _ => return,
            },
            // What is normalised has another gradient.
            Layer::Normalize(norm) if norm.sum => (1, true),
            _ => return,
        };
        let Some(whole) = self.layer(sum).tops.first().and_then(|top| self.blob(*top).grad) else { return };
        let bottoms = self.layer(sum).bottoms[first..].to_vec();
        let own: Option<Vec<StorageId>> = bottoms.iter().map(|bottom| self.gradient_alone(*bottom)).collect();
        // The sum may change what it passes on, so whoever else reads that must be done by then.
        let above = self.users(whole).all(|user| user >= sum);
        if let (true, true, Some(own)) = (as_it_is, above, own) {
            own.into_iter().for_each(|own| self.move_gradients(own, whole));
        }
    }

    /// Lets the readers of a split add their gradients to that of the one which backward comes to first.
    fn add_to_gradient(&mut self, split: LayerId, can: &Adders) {
        let Layer::Split(_) = &self.layer(split).layer else { return };
        let Some(sum) = self.layer(split).bottoms.first().and_then(|bottom| self.blob(*bottom).grad) else {
            return;
        };
        let readers: Option<Vec<(LayerId, BlobId)>> =
            self.layer(split).tops.iter().map(|top| Some((self.finder(*top)?, *top))).collect();
        let Some(mut readers) = readers else { return };
        readers.sort_unstable_by_key(|(reader, _)| std::cmp::Reverse(*reader));
        let [(_, first), others @ ..] = &readers[..] else { return };
        let Some(found) = self.blob(*first).grad else { return };
        let Some(last) = others.last().map(|(reader, _)| *reader) else { return };
        let own: Option<Vec<StorageId>> = others
            .iter()
            .map(|(reader, top)| {
                let adds = can.layers.contains(reader) && self.layer(*reader).bottoms == [*top];
                self.gradient_alone(*top).filter(|_| adds)
            })
            .collect();
        let Some(own) = own else { return };
        // Who else reads what the first has written must be done before the next adds to it, and nobody above uses the sum.
        let above = self.users(found).all(|user| user == split || user > last);
        let below = self.users(sum).all(|user| user <= split);
        if found == sum || !above || !below {
            return;
        }
        own.into_iter().chain([sum]).for_each(|other| self.move_gradients(other, found));
        let others: Vec<LayerId> = others.iter().map(|(reader, _)| *reader).collect();
        others.into_iter().for_each(|reader| self.layers[reader.0].adds_gradient = true);
    }

    /// Where the gradient of a blob lies, if no other blob's lies there.
    fn gradient_alone(&self, blob: BlobId) -> Option<StorageId> {
        let own = self.blob(blob).grad?;
        let alone = self.blobs.iter().filter(|other| other.grad == Some(own)).count() == 1;
        alone.then_some(own)
    }

    /// The only reader of a blob with a gradient, which is the one that finds it.
    fn finder(&self, blob: BlobId) -> Option<LayerId> {
        self.blob(blob).grad?;
        let index = self.layers.iter().position(|layer| layer.bottoms.contains(&blob))?;
        let places = self.layers[index].bottoms.iter().filter(|bottom| **bottom == blob).count();
        (places == 1 && self.blob(blob).readers == 1).then_some(LayerId(index))
    }

    /// The layers that read or write gradients in a storage.
    fn users(&self, storage: StorageId) -> impl Iterator<Item = LayerId> {
        let touches = move |layer: &super::NetLayer| {
            let mut blobs = layer.bottoms.iter().chain(&layer.tops);
            blobs.any(|blob| self.blob(*blob).grad == Some(storage))
        };
        self.layers.iter().enumerate().filter(move |(_, layer)| touches(layer)).map(|(i, _)| LayerId(i))
    }

    fn move_gradients(&mut self, from: StorageId, to: StorageId) {
        let moved = self.blobs.iter_mut().filter(|blob| blob.grad == Some(from));
        moved.for_each(|blob| blob.grad = Some(to));
    }

    /// Whether a layer would only add up, or pass on, what lies where it belongs already.
    pub(super) fn is_added_up(&self, id: LayerId) -> bool {
        let layer = self.layer(id);
        let grads = || layer.bottoms.iter().chain(&layer.tops).map(|blob| self.blob(*blob).grad);
        let one = grads().next().flatten().is_some_and(|first| grads().all(|grad| grad == Some(first)));
        one && match &layer.layer {
            Layer::Split(_) => true,
            Layer::Eltwise(eltwise) => matches!(eltwise.operation, EltwiseOperation::Sum { relu: false, .. }),
            _ => false,
        }
    }
}
