//! Who needs a gradient: the blobs between trained parameters and the loss.

use std::collections::HashSet;

use super::{BlobId, LayerId, Net, NetLayer, ParamId};
use crate::layer::{Layer, Operand, SubTask};
use crate::plan::trained_params;
use crate::site::{Fault, SpecError};

impl Net {
    /// Gives gradients to the blobs that need one. `stopped` are the bottoms to which the file lets no gradient go
    /// (`propagate_down: false`); `force_backward` overrides that, as in Caffe.
    pub(super) fn find_gradients(&mut self, stopped: &HashSet<BlobId>) {
        let stopped = if self.force_backward { &HashSet::new() } else { stopped };
        let down: Vec<Vec<BlobId>> = self
            .layers
            .iter()
            .map(|l| differentiable_bottoms(l).filter(|b| !stopped.contains(b)).collect())
            .collect();
        let needs = self.needs_gradient(&down);
        let reached = self.mark_under_loss(&down);
        for index in 0..self.blobs.len() {
            if !(needs[index] && reached[index]) {
                continue;
            }
            let blob = &self.blobs[index];
            let producer = self.layer(blob.producer);
            // What lies in one memory has its gradient in one memory, too, but for the tops of a split, which add up.
            let below = producer.bottoms.iter().map(|b| self.blob(*b)).find(|b| b.data == blob.data);
            let shared = below.filter(|_| !matches!(producer.layer, Layer::Split(_))).and_then(|b| b.grad);
            let count = blob.shape.count();
            let grad = shared.unwrap_or_else(|| self.add_storage(count));
            self.blobs[index].grad = Some(grad);
        }
    }

    /// Blobs below which something is trained. `down` are the bottoms of each layer that a gradient goes to.
    fn needs_gradient(&self, down: &[Vec<BlobId>]) -> Vec<bool> {
        let mut needs = vec![false; self.blobs.len()];
        for (layer, down) in self.layers.iter().zip(down) {
            if self.force_backward {
                down.iter().for_each(|bottom| needs[bottom.0] = true);
            }
            let trained = layer.params.iter().any(|p| self.is_trained(*p));
            let passes_on = down.iter().any(|bottom| needs[bottom.0]);
            for top in &layer.tops {
                needs[top.0] = trained || passes_on;
            }
        }
        needs
    }

    /// Marks the layers that the gradient of the loss reaches, and returns which blobs it reaches. A bottom that
    /// has no gradient by its meaning, such as labels, is not reached, nor is what lies below it.
    fn mark_under_loss(&mut self, down: &[Vec<BlobId>]) -> Vec<bool> {
        let (force_backward, mut reached) = (self.force_backward, vec![false; self.blobs.len()]);
        for (layer, down) in self.layers.iter_mut().zip(down).rev() {
            let is_loss = layer.loss_weights.iter().any(|weight| *weight != 0.0);
            // Nothing flows back from a Silence; what is forced backward gets gradients of 0 from it, as in Caffe.
            let silenced = force_backward && matches!(layer.layer, Layer::Silence(_));
            let begins = is_loss || silenced || layer.layer.begins_backward();
            layer.under_loss = begins || layer.tops.iter().any(|top| reached[top.0]);
            if layer.under_loss {
                down.iter().for_each(|bottom| reached[bottom.0] = true);
            }
        }
        reached
    }
}

impl Net {
    /// The layers whose parameters are to learn, but have no gradient, since none of the loss's comes to them: they stay what they are.
    /// (In Caffe weight decay shrinks such parameters.)
    pub fn unreached(&self) -> impl Iterator<Item = &NetLayer> {
        let found: HashSet<ParamId> =
            (0..self.layers.len()).flat_map(|layer| trained_params(self, LayerId(layer))).collect();
        let is_left = move |param: &ParamId| self.is_trained(*param) && !found.contains(param);
        self.layers.iter().filter(move |layer| layer.params.iter().any(&is_left))
    }

    /// Makes sure that the loss's gradient comes to no layer without a backward below which something is trained: Caffe runs such a net and stops at its first backward. `stopped` are the bottoms to which the file lets no gradient go.
    pub(super) fn check_dead_ends(&self, stopped: &HashSet<BlobId>) -> Result<(), SpecError> {
        let mut trained = vec![false; self.blobs.len()];
        for layer in &self.layers {
            let is_open = |bottom: &BlobId| trained[bottom.0] && !stopped.contains(bottom);
            let ends = layer.under_loss && differentiable_bottoms(layer).next().is_none();
            if let Some(end) = layer.bottoms.iter().find(|bottom| is_open(bottom)).filter(|_| ends) {
                let (kind, name) = (layer.layer.type_name(), &self.blob(*end).name);
                let fault = Fault::new(
                    "bottom",
                    format!(
                        "a layer of type {kind} has no gradient, but below {name:?} something is trained"
                    ),
                )
                .hint("write propagate_down: false if this loss is to train nothing below");
                return Err(fault.at(&layer.site, &format!("layer {:?}", layer.name)));
            }
            let trains =
                layer.params.iter().any(|p| self.is_trained(*p)) || layer.bottoms.iter().any(is_open);
            layer.tops.iter().for_each(|top| trained[top.0] = trains);
        }
        Ok(())
    }
}

/// The bottoms that a layer can compute a gradient of.
pub(super) fn differentiable_bottoms(layer: &NetLayer) -> impl Iterator<Item = BlobId> {
    let accesses = layer.layer.accesses(SubTask::GradActivation).unwrap_or_default();
    accesses.writes.into_iter().filter_map(|operand| match operand {
        Operand::BottomGrad(i) => layer.bottoms.get(i).copied(),
        _ => None,
    })
}
