//! In which order the channels of each array lie on a GPU: in front of the pixels, as on the host, or behind them.
//!
//! cuDNN's kernels for tensor cores want channels last, and turn arrays that lie otherwise around, before and after. So where
//! products are TF32 the arrays between convolutions lie as they want them, and all layers between them go by that. Layers that
//! know one order only keep their arrays in it; convolutions, inner products and sources of data turn what lies in the other.

use quadrille_core::layer::{Convolution, Layer};
use quadrille_core::net::{BlobId, Net, NetLayer, StorageId};
use quadrille_core::shape::Shape;

use crate::spec::{Arithmetic, Options, Order};

/// How a layer takes arrays.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    /// Each in any order: it turns what it must.
    Any,
    /// All in the same order.
    Same,
    /// Only with the channels in front.
    Plain,
}

/// What the layer's kernels know.
fn takes(layer: &NetLayer, shapes: &[&Shape]) -> Takes {
    let is_of_channels =
        |axis: i32| shapes.iter().all(|shape| shape.axis(axis, "axis").is_ok_and(|axis| axis == 1));
    match &layer.layer {
        Layer::Convolution(_) => Takes::Any,
        Layer::InnerProduct(product) if is_of_channels(product.axis) => Takes::Any,
        source if source.is_source() => Takes::Any,
        Layer::Relu(_)
        | Layer::Pooling(_)
        | Layer::BatchNorm(_)
        | Layer::Normalize(_)
        | Layer::Eltwise(_)
        | Layer::Split(_)
        | Layer::Lrn(_) => Takes::Same,
        Layer::Scale(scale) if scale.bottoms == 1 && scale.num_axes == 1 && is_of_channels(scale.axis) => {
            Takes::Same
        }
        Layer::Concat(concat) if is_of_channels(concat.axis) => Takes::Same,
        Layer::Slice(slice) if is_of_channels(slice.axis) => Takes::Same,
        _ => Takes::Plain,
    }
}

/// Whether both orders are the same.
fn is_neutral(shape: &Shape) -> bool {
    let dims = shape.dims();
    dims.len() != 4 || dims[1] == 1 || dims[2] * dims[3] == 1
}

/// Whether tensor cores take such channels as they are; those of images are few.
fn suits(layer: &Convolution, bottom: &Shape) -> bool {
    const TOGETHER: usize = 8;
    const OF_IMAGES: usize = 4;
    let channels = bottom.dim(1) / layer.group;
    (layer.num_output / layer.group).is_multiple_of(TOGETHER)
        && (channels.is_multiple_of(TOGETHER) || channels <= OF_IMAGES)
}

/// Storages that lie in the same order, as a forest: each names another of its tree, or itself.
struct Groups(Vec<usize>);

impl Groups {
    fn root(&self, mut of: usize) -> usize {
        while self.0[of] != of {
            of = self.0[of];
        }
        of
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        self.0[one] = other;
    }
}

/// For each storage whose channels lie behind the pixels, how many channels and pixels an image has.
pub(crate) fn channels_last(net: &Net, options: &Options, by_dnn: bool) -> Vec<Option<[usize; 2]>> {
    let count = net.storages.len();
    let forced = options.order == Order::ChannelsLast;
    let wanted = options.order == Order::Chosen && by_dnn && options.arithmetic != Arithmetic::F32;
    if !forced && !wanted {
        return vec![None; count];
    }
    let storages = |blob: BlobId| {
        let blob = net.blob(blob);
        std::iter::once(blob.data).chain(blob.grad).map(|StorageId(id)| id)
    };
    let mut groups = Groups((0..count).collect());
    let (mut plain, mut suited, mut extents) = (vec![false; count], vec![forced; count], vec![None; count]);
    for layer in &net.layers {
        let blobs: Vec<BlobId> = layer.bottoms.iter().chain(&layer.tops).copied().collect();
        let shapes: Vec<&Shape> = blobs.iter().map(|blob| &net.blob(*blob).shape).collect();
        let takes = takes(layer, &shapes);
        let ordered: Vec<BlobId> =
            blobs.iter().copied().filter(|blob| !is_neutral(&net.blob(*blob).shape)).collect();
        for blob in &ordered {
            let shape = &net.blob(*blob).shape;
            for id in storages(*blob) {
                groups.join(id, net.blob(*blob).data.0);
                plain[id] |= takes == Takes::Plain;
                extents[id] = Some([shape.dim(1), shape.dim(2) * shape.dim(3)]);
                if let Layer::Convolution(convolution) = &layer.layer {
                    let fits = forced || suits(convolution, &net.blob(layer.bottoms[0]).shape);
                    suited[id] |= fits;
                    plain[id] |= !fits;
                }
            }
        }
        if takes == Takes::Same {
            ordered.windows(2).for_each(|pair| {
                groups.join(net.blob(pair[0]).data.0, net.blob(pair[1]).data.0);
            });
        }
    }
    let any_of_group = |marks: &[bool]| -> Vec<bool> {
        let mut marked = vec![false; count];
        (0..count).filter(|id| marks[*id]).for_each(|id| marked[groups.root(id)] = true);
        (0..count).map(|id| marked[groups.root(id)]).collect()
    };
    let [plain, suited] = [&plain, &suited].map(|marks| any_of_group(marks));
    (0..count).map(|id| extents[id].filter(|_| suited[id] && !plain[id])).collect()
}
