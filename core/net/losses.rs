//! What a net's loss consists of, and what becomes of a loss that other layers read.
//!
//! A loss that nobody reads knows its weight, and its gradient goes by that alone. One that is read, such as by an `Eltwise` that adds
//! losses up, is a term of the whole like any other blob ([`LossTerm`](crate::layer::LossTerm)): the gradient of its top is
//! its weight and what comes from its readers.

use std::collections::HashSet;

use super::gradients::differentiable_bottoms;
use super::{BlobId, LayerId, Net};
use crate::layer::Layer;
use crate::site::{Fault, SpecError};

impl Net {
    /// The blobs that make up the loss, with their weights.
    pub fn losses(&self) -> impl Iterator<Item = (BlobId, f32)> {
        self.layers
            .iter()
            .flat_map(|l| l.tops.iter().copied().zip(l.loss_weights.iter().copied()))
            .filter(|(_, weight)| *weight != 0.0)
    }

    /// The blobs that the host reads after a step: outputs and losses.
    pub fn shown(&self) -> impl Iterator<Item = BlobId> {
        self.outputs().chain(self.losses().map(|(blob, _)| blob))
    }

    /// Whether a blob of a mini-batch has the sum of what it has in the parts of the mini-batch, and not their mean. A number that is made
    /// of losses is taken for a mean if one of them is.
    pub fn sums_images(&self, blob: BlobId) -> bool {
        let producer = self.layer(self.blob(blob).producer);
        match (&producer.layer, self.made_of_sums(&producer.bottoms)) {
            (layer, _) if layer.is_loss() => layer.sums_images(),
            (_, Some(sums)) => sums,
            (layer, None) => layer.sums_images(),
        }
    }

    /// Whether all numbers among some blobs are sums over images; `None` if there is no number.
    pub(super) fn made_of_sums(&self, blobs: &[BlobId]) -> Option<bool> {
        let numbers = blobs.iter().filter(|blob| self.blob(**blob).shape.axes() == 0);
        numbers.map(|number| self.sums_images(*number)).reduce(|one, other| one && other)
    }

    /// Makes sure that no gradient comes from a reader to one of the losses `unweighted`, whose weights the file leaves out. Caffe takes the
    /// reader's gradient alone if there is one reader, and adds the weight of 1 if there are several. `stopped` are the bottoms to
    /// which the file lets no gradient go.
    pub(super) fn check_read_losses(
        &self,
        unweighted: &[LayerId],
        stopped: &HashSet<BlobId>,
    ) -> Result<(), SpecError> {
        for loss in unweighted.iter().map(|id| self.layer(*id)) {
            let split = self.layers.iter().find(|layer| layer.bottoms.first() == loss.tops.first());
            let read = split.map_or(&[][..], |split| &split.tops);
            // Nothing but zeros comes from a Silence.
            let readers = self
                .layers
                .iter()
                .filter(|layer| !matches!(layer.layer, Layer::LossTerm(_) | Layer::Silence(_)));
            let mut returning = readers.filter(|layer| {
                let mut down = differentiable_bottoms(layer).filter(|bottom| !stopped.contains(bottom));
                layer.under_loss && down.any(|bottom| read.contains(&bottom))
            });
            if let Some(reader) = returning.next() {
                let message = format!(
                    "missing, but a gradient comes from layer {:?}, which reads this loss; expected a number",
                    reader.name
                );
                let fault = Fault::new("loss_weight", message)
                    .hint("write 0 to train by what reads it alone, or 1 to train by this loss as well");
                return Err(fault.at(&loss.site, &format!("layer {:?}", loss.name)));
            }
        }
        Ok(())
    }
}
