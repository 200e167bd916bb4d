//! The ordered lists of implementations, and the choice from them.
//!
//! For each layer the first candidate is taken that can do it in the layout in which its bottoms lie, unless the
//! user forces one by name. The last of every list is `reference`, which can do everything.

use quadrille_core::layer::{Layer, Operand};
use quadrille_core::net::{LayerId, Net, NetLayer};

use super::{
    LayerKernel, accuracy, convolution, inner_product, pooling, reference, relu, softmax, softmax_loss, split,
};
use crate::isa::Isa;
use crate::machine::Machine;
use crate::memory::{MemoryMap, Span};
use quadrille_core::device::Packed;

/// How the channels of a blob lie in memory: in blocks of this many side by side. Blocks of 1 are plain N, C, H, W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Channels of a block.
    pub block: usize,
}

impl Layout {
    /// N, C, H, W.
    pub const PLAIN: Self = Self { block: 1 };
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.block == 1 { write!(f, "nchw") } else { write!(f, "nChw{}c", self.block) }
    }
}

/// One way to compute a type of layer.
pub(crate) struct Candidate {
    /// Its name, for `--kernel` and for the log.
    pub name: &'static str,
    /// The layout that it reads and writes.
    pub layout: Layout,
    /// Binds it to a layer; `None` if it cannot do this one.
    pub build: fn(&mut Binder<'_>) -> Option<Box<dyn LayerKernel>>,
}

const fn plain(name: &'static str, build: fn(&mut Binder<'_>) -> Option<Box<dyn LayerKernel>>) -> Candidate {
    Candidate { name, layout: Layout::PLAIN, build }
}

const REFERENCE: Candidate = plain("reference", reference::build);
const CONVOLUTION: &[Candidate] = &[plain("im2col-gemm", convolution::build), REFERENCE];
const POOLING: &[Candidate] = &[plain("windows", pooling::build), REFERENCE];
const INNER_PRODUCT: &[Candidate] = &[plain("gemm", inner_product::build), REFERENCE];
const RELU: &[Candidate] = &[plain("stream", relu::build), REFERENCE];
const SOFTMAX: &[Candidate] = &[plain("rows", softmax::build), REFERENCE];
const SOFTMAX_LOSS: &[Candidate] = &[plain("rows", softmax_loss::build), REFERENCE];
const ACCURACY: &[Candidate] = &[plain("rows", accuracy::build), REFERENCE];
const SPLIT: &[Candidate] = &[plain("stream", split::build), REFERENCE];
const CONCAT: &[Candidate] = &[REFERENCE];
const SLICE: &[Candidate] = &[REFERENCE];
const FLATTEN: &[Candidate] = &[REFERENCE];
const CONTRASTIVE_LOSS: &[Candidate] = &[REFERENCE];
const DROPOUT: &[Candidate] = &[REFERENCE];
const LRN: &[Candidate] = &[REFERENCE];
const SOURCE: &[Candidate] = &[REFERENCE];

fn candidates(layer: &Layer) -> &'static [Candidate] {
    match layer {
        Layer::Convolution(_) => CONVOLUTION,
        Layer::Pooling(_) => POOLING,
        Layer::InnerProduct(_) => INNER_PRODUCT,
        Layer::Relu(_) => RELU,
        Layer::Softmax(_) => SOFTMAX,
        Layer::SoftmaxWithLoss(_) => SOFTMAX_LOSS,
        Layer::Accuracy(_) => ACCURACY,
        Layer::Split(_) => SPLIT,
        Layer::Concat(_) => CONCAT,
        Layer::Slice(_) => SLICE,
        Layer::Flatten(_) => FLATTEN,
        Layer::ContrastiveLoss(_) => CONTRASTIVE_LOSS,
        Layer::Dropout(_) => DROPOUT,
        Layer::Lrn(_) => LRN,
        Layer::Data(_) | Layer::Input(_) => SOURCE,
    }
}

/// What was chosen for a layer, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The layer.
    pub layer: String,
    /// Its type.
    pub type_name: &'static str,
    /// The implementation.
    pub implementation: &'static str,
    /// The layout of its tops.
    pub layout: String,
}

/// What a candidate needs to bind itself to a layer.
pub(crate) struct Binder<'a> {
    /// The net.
    pub net: &'a Net,
    /// The layer.
    pub id: LayerId,
    /// The kernels' tier.
    pub isa: Isa,
    /// Its constants.
    pub machine: Machine,
    map: &'a mut MemoryMap,
}

impl<'a> Binder<'a> {
    /// The layer.
    pub fn layer(&self) -> &'a NetLayer {
        self.net.layer(self.id)
    }

    /// Where an operand lies; `None` if it does not exist in this net.
    pub fn span(&self, operand: Operand) -> Option<Span> {
        let layer = self.layer();
        let data = |blobs: &[quadrille_core::net::BlobId], i: usize| {
            blobs.get(i).map(|b| self.map.storage(self.net.blob(*b).data))
        };
        let grad = |blobs: &[quadrille_core::net::BlobId], i: usize| {
            blobs.get(i).and_then(|b| self.net.blob(*b).grad).map(|g| self.map.storage(g))
        };
        let param = |packed, i: usize| layer.params.get(i).map(|p| MemoryMap::param(self.net, packed, *p));
        match operand {
            Operand::Bottom(i) => data(&layer.bottoms, i),
            Operand::Top(i) => data(&layer.tops, i),
            Operand::BottomGrad(i) => grad(&layer.bottoms, i),
            Operand::TopGrad(i) => grad(&layer.tops, i),
            Operand::Param(i) => param(Packed::Weights, i),
            Operand::ParamGrad(i) => match layer.own_grad(i) {
                Some(own) => Some(self.map.aux(own)),
                None => param(Packed::Gradients, i),
            },
            Operand::Aux(i) => layer.aux.get(i).map(|a| self.map.aux(*a)),
        }
    }

    /// Memory for the kernel's own use within a task.
    pub fn workspace(&mut self, len: usize) -> Span {
        self.map.workspace(len)
    }

    /// Grains for a streaming operation on `elements`.
    pub fn stream_grains(&self, elements: usize) -> usize {
        elements.div_ceil(self.machine.grain_elements).max(1)
    }
}

/// Chooses and binds an implementation for every layer of `net`. `forced` holds (layer or type, implementation).
///
/// # Errors
/// If a forced implementation does not exist or cannot do the layer, or names no layer.
#[allow(clippy::type_complexity)]
pub(crate) fn bind(
    net: &Net,
    isa: Isa,
    forced: &[(String, String)],
    map: &mut MemoryMap,
) -> Result<(Vec<Box<dyn LayerKernel>>, Vec<Choice>), String> {
    for (name, _) in forced {
        if !net.layers.iter().any(|l| l.name == *name || l.layer.type_name() == *name) {
            return Err(format!("no layer and no type of layer of this network is named {name:?}"));
        }
    }
    let mut kernels = Vec::new();
    let mut choices = Vec::new();
    let mut layouts = vec![Layout::PLAIN; net.blobs.len()];
    for (index, layer) in net.layers.iter().enumerate() {
        let wanted = forced.iter().rev().find(|(n, _)| *n == layer.name || n == layer.layer.type_name());
        let wanted = wanted.map(|(_, implementation)| implementation.as_str());
        let list = candidates(&layer.layer);
        let mut found = None;
        for candidate in list.iter().filter(|c| wanted.is_none_or(|w| w == c.name)) {
            if layer.bottoms.iter().any(|b| layouts[b.0] != candidate.layout) {
                continue;
            }
            let machine = Machine::of(isa);
            let mut binder = Binder { net, id: LayerId(index), isa, machine, map };
            if let Some(kernel) = (candidate.build)(&mut binder) {
                found = Some((candidate, kernel));
                break;
            }
        }
        let Some((candidate, kernel)) = found else {
            let names: Vec<&str> = list.iter().map(|c| c.name).collect();
            return Err(format!(
                "layer {:?} ({}) cannot be computed by {:?}; its implementations are {}",
                layer.name,
                layer.layer.type_name(),
                wanted.unwrap_or("any"),
                names.join(", ")
            ));
        };
        for top in &layer.tops {
            layouts[top.0] = candidate.layout;
        }
        kernels.push(kernel);
        choices.push(Choice {
            layer: layer.name.clone(),
            type_name: layer.layer.type_name(),
            implementation: candidate.name,
            layout: candidate.layout.to_string(),
        });
    }
    Ok((kernels, choices))
}
