//! Concats that copy nothing: their bottoms lie inside their top, images as far apart as the top's.
//!
//! That is possible where all lie in blocks of channels in one layout, every bottom but the last of whole blocks, and
//! where whoever touches a bottom finds its images apart ([`super::select::Candidate::strides`]). Values that are written
//! to the top after the Concat, or to a bottom, would change both: then there are copies. What the net puts out is for
//! the host, which gets no array that lies in another.

use quadrille_core::layer::{Layer, Operand};
use quadrille_core::net::{Blob, BlobId, LayerId, Net, Part, StorageId};

use super::layout_pass::Decisions;
use super::select::Form;
use crate::layout::{Arrangement, Layout};

/// A storage inside another: which, and where it begins in an image.
type Inside = (StorageId, usize);

/// Where storages lie inside others, for each storage.
pub(super) fn parts(net: &Net, decisions: &Decisions) -> Vec<Option<Part>> {
    let mut around: Vec<Option<Inside>> = vec![None; net.storages.len()];
    for id in (0..net.layers.len()).map(LayerId) {
        let concat = Joining { net, decisions, id };
        let pieces = concat.pieces().filter(|pieces| pieces.iter().all(|(part, _)| around[part.0].is_none()));
        for (part, inside) in pieces.into_iter().flatten() {
            around[part.0] = Some(inside);
        }
    }
    let outermost = |part: usize| {
        let (mut whole, mut start) = around[part]?;
        // The top of a Concat may be the bottom of the next.
        while let Some((next, more)) = around[whole.0] {
            (whole, start) = (next, start + more);
        }
        Some(Part { whole, elements: start..start + decisions.storages[part].image_len() })
    };
    (0..around.len()).map(outermost).collect()
}

/// A layer that may be a Concat without copies.
struct Joining<'a> {
    net: &'a Net,
    decisions: &'a Decisions,
    id: LayerId,
}

impl Joining<'_> {
    /// The arrays of the bottoms and where they lie in those of the top; `None` if they must be copied.
    fn pieces(&self) -> Option<Vec<(StorageId, Inside)>> {
        let layer = self.net.layer(self.id);
        let is_concat = matches!(layer.layer, Layer::Concat(_));
        if !is_concat || self.decisions.chosen[self.id.0].form != Form::Blocked || layer.bottoms.len() < 2 {
            return None;
        }
        let top = self.net.blob(*layer.tops.first()?);
        let layout = self.decisions.layout(layer.tops[0]);
        let mut pieces = Vec::new();
        let mut start = 0;
        for bottom in &layer.bottoms {
            let blob = self.net.blob(*bottom);
            let same_layout = layout != Layout::PLAIN && self.decisions.layout(*bottom) == layout;
            if !same_layout || blob.grad.is_some() != top.grad.is_some() {
                return None;
            }
            pieces.push((blob.data, (top.data, start)));
            pieces.extend(blob.grad.zip(top.grad).map(|(part, whole)| (part, (whole, start))));
            start += Arrangement::new(&blob.shape, layout).image_len();
        }
        let arrays: Vec<StorageId> = pieces.iter().map(|(part, _)| *part).collect();
        let once = arrays.iter().enumerate().all(|(i, array)| !arrays[..i].contains(array));
        let all = || arrays.iter().copied().chain([top.data]);
        let is_kept = self.net.shown().any(|blob| all().any(|array| array == self.net.blob(blob).data));
        let possible = once && !is_kept && !self.is_overwritten(&arrays, top) && self.are_found(&arrays);
        possible.then_some(pieces)
    }

    /// Whether a layer writes values to the top besides the Concat, or to a bottom after it.
    fn is_overwritten(&self, arrays: &[StorageId], top: &Blob) -> bool {
        let others = self.net.layers.iter().enumerate().filter(|(other, _)| *other != self.id.0);
        let mut writers = others.filter(|(_, other)| !other.layer.is_view());
        let makes = |tops: &[BlobId], array: StorageId| tops.iter().any(|t| self.net.blob(*t).data == array);
        writers.any(|(index, other)| {
            let later = index > self.id.0;
            makes(&other.tops, top.data) || later && arrays.iter().any(|array| makes(&other.tops, *array))
        })
    }

    /// Whether all other layers find the images of the arrays apart, or get copies in another layout.
    fn are_found(&self, arrays: &[StorageId]) -> bool {
        let mut others = (0..self.net.layers.len()).map(LayerId).filter(|other| *other != self.id);
        others.all(|other| {
            let candidate = self.decisions.chosen[other.0];
            let layer = self.net.layer(other);
            let bottoms = (0..layer.bottoms.len()).flat_map(|i| [Operand::Bottom(i), Operand::BottomGrad(i)]);
            let tops = (0..layer.tops.len()).flat_map(|i| [Operand::Top(i), Operand::TopGrad(i)]);
            let mut touched = bottoms.chain(tops).filter(|operand| {
                self.decisions.storage(self.net, other, *operand).is_some_and(|array| arrays.contains(&array))
            });
            let is_copied = |operand| {
                let lies = self.decisions.arrangements(self.net, other, candidate, operand);
                lies.is_some_and(|(lies, wanted)| !lies.is_like(&wanted))
            };
            candidate.strides || touched.all(is_copied)
        })
    }
}
