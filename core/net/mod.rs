//! A network: layers wired by blobs, with every shape known and every parameter placed.

mod adding;
mod adopt;
mod build;
mod fuse;
mod gather;
mod gradients;
mod lifetime;
mod losses;
mod params;
mod parts;
mod rectify;
mod sharing;
mod spec;
mod step;
mod summing;

pub use adding::Adders;
pub use lifetime::{BlobMemory, SharedMemory, StorageNeeds};
pub use params::{ALIGNMENT, ParamId, ParamLayout, ParamRule, ParamView};
pub use parts::Part;
pub use sharing::SharedGrad;
pub use spec::{GivenState, LayerSpec, NetSpec, NetState, ParamSpec, Phase, ShareMode, StateRule};
pub use step::rows_to_step;

use std::sync::Arc;

use crate::layer::{Accesses, Layer, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Site;

/// A layer's place in the net.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerId(pub usize);

/// A blob's place in the net. A blob is written by one layer only; a layer that works in place makes a new blob
/// in the same storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobId(pub usize);

/// The array of one or several blobs' values or gradients. Several lie in the same memory, one after the other, if the net
/// shares memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(pub usize);

/// A layer's own state in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuxId(pub usize);

/// One blob.
#[derive(Clone, Debug, PartialEq)]
pub struct Blob {
    /// Its name in the file; several blobs have one name if layers work in place or read it together.
    pub name: String,
    /// Extents.
    pub shape: Shape,
    /// Where its values lie.
    pub data: StorageId,
    /// Where its gradient lies, if it has one; never in phase TEST.
    pub grad: Option<StorageId>,
    /// The layer that makes it.
    pub producer: LayerId,
    /// How many layers read it; 0 for an output of the net.
    pub readers: usize,
}

/// One layer of a net.
#[derive(Clone, Debug, PartialEq)]
pub struct NetLayer {
    /// Its name.
    pub name: String,
    /// Where it stands in the file.
    pub site: Site,
    /// Type and parameters.
    pub layer: Layer,
    /// What it reads.
    pub bottoms: Vec<BlobId>,
    /// What it makes.
    pub tops: Vec<BlobId>,
    /// Its parameters; layers that share one have the same here.
    pub params: Vec<ParamId>,
    /// Its part in the gradients of parameters that other layers add to as well; never in phase TEST.
    pub shared: Vec<SharedGrad>,
    /// Its own state.
    pub aux: Vec<AuxId>,
    /// Weight of each top in the loss, times the share of the mini-batch that this net computes.
    pub loss_weights: Vec<f32>,
    /// Whether the gradient of the loss reaches it, so that it takes part in backward; never in phase TEST.
    pub under_loss: bool,
    /// Whether its weight (parameter 0) is updated as the gradient is found, which is then never stored: see
    /// [`Net::stepping`].
    pub steps_weight: bool,
    /// Whether it does so as it finds the gradient of its bottom, for which it reads the weight: see [`Net::stepping_in_passing`].
    pub steps_in_passing: bool,
    /// Whether it adds the gradient of its bottom to what is there: see [`Net::adding`].
    pub adds_gradient: bool,
    /// Whether it does the backward of the ReLU that it alone reads: see [`Net::rectifying`].
    pub rectifies_gradient: bool,
    /// The layers that are computed with it, in their order; its top is that of the last, and its parameters are
    /// followed by theirs.
    pub absorbed: Vec<AbsorbedLayer>,
}

/// A layer of the file that is computed as a part of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsorbedLayer {
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_name: &'static str,
}

impl NetLayer {
    /// The names of all layers that are computed here, such as `bn + scale + relu`.
    pub fn label(&self) -> String {
        let absorbed = self.absorbed.iter().map(|l| l.name.as_str());
        [self.name.as_str()].into_iter().chain(absorbed).collect::<Vec<_>>().join(" + ")
    }
}

impl NetLayer {
    /// Where the layer's own gradient of parameter `index` lies, if not where the whole gradient does.
    pub fn own_grad(&self, index: usize) -> Option<AuxId> {
        self.shared.iter().find(|s| s.index == index).and_then(|s| s.own)
    }

    /// Whether the gradient of parameter `index` is complete when this layer has done its part.
    pub fn completes_grad(&self, index: usize) -> bool {
        self.shared.iter().find(|s| s.index == index).is_none_or(|s| s.is_last)
    }

    /// What the layer has to add to gradients of shared parameters: its own gradient, and to which.
    pub fn grads_to_add(&self) -> impl Iterator<Item = (AuxId, ParamId)> {
        self.shared.iter().filter_map(|s| s.own.map(|own| (own, self.params[s.index])))
    }
}

/// A network, ready to be planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Net {
    /// Its name.
    pub name: String,
    /// The file it comes from.
    pub file: Arc<str>,
    /// Training or testing.
    pub phase: Phase,
    /// Layers in the order of forward.
    pub layers: Vec<NetLayer>,
    /// Blobs in the order of their making.
    pub blobs: Vec<Blob>,
    /// Elements of each storage.
    pub storages: Vec<usize>,
    /// Where storages lie that share memory; `None` if each has memory of its own.
    pub memory: Option<SharedMemory>,
    /// Elements of each layer's own state.
    pub aux: Vec<usize>,
    /// The packed buffer.
    pub params: ParamLayout,
    /// Whether gradients are found: in phase TRAIN, or where somebody wants to see them.
    pub backward: bool,
    /// Whether parameters that are frozen (`lr_mult` 0) get gradients all the same.
    pub force_backward: bool,
    /// The part of the worker's mini-batch that this net computes.
    pub share: f32,
    /// Mini-batches whose gradients are added up before an update, at least 1: see [`Net::gathering`].
    pub parts: usize,
    /// Whether updates ask for the norm of all gradients: see [`Net::clipping`].
    pub clips: bool,
}

impl Net {
    /// One blob.
    pub fn blob(&self, id: BlobId) -> &Blob {
        &self.blobs[id.0]
    }

    /// One layer.
    pub fn layer(&self, id: LayerId) -> &NetLayer {
        &self.layers[id.0]
    }

    /// Images of a mini-batch: those of the first source, or of data that are made up.
    pub fn batch(&self) -> usize {
        let source =
            self.layers.iter().find(|l| l.layer.is_source() || matches!(l.layer, Layer::DummyData(_)));
        source.map_or(1, |l| self.blob(l.tops[0]).shape.images())
    }

    /// Shapes of a layer's bottoms.
    pub fn bottom_shapes(&self, layer: LayerId) -> Vec<Shape> {
        self.layer(layer).bottoms.iter().map(|b| self.blob(*b).shape.clone()).collect()
    }

    /// Shapes of a layer's tops.
    pub fn top_shapes(&self, layer: LayerId) -> Vec<Shape> {
        self.layer(layer).tops.iter().map(|b| self.blob(*b).shape.clone()).collect()
    }

    /// Shapes of a layer's parameters as the layer sees them. Layers that share one permissively see as many values in
    /// shapes of their own.
    pub fn param_shapes(&self, layer: LayerId) -> Vec<Shape> {
        let inferred = self.layer(layer).layer.infer(&self.bottom_shapes(layer)).unwrap_or_default();
        inferred.params.into_iter().map(|param| param.shape).collect()
    }

    /// Blobs that nobody reads, in the order of their making: what Caffe prints as the net's output. The top that a loss makes by itself has no
    /// name in the file, and is none.
    pub fn outputs(&self) -> impl Iterator<Item = BlobId> {
        let is_named = |blob: &Blob| blob.name != build::automatic_top(&self.layer(blob.producer).name);
        let unread = self.blobs.iter().enumerate().filter(move |(_, b)| b.readers == 0 && is_named(b));
        unread.map(|(i, _)| BlobId(i))
    }

    /// A new storage.
    fn add_storage(&mut self, count: usize) -> StorageId {
        let id = StorageId(self.storages.len());
        self.storages.push(count);
        id
    }

    /// Whether a layer keeps this state of its own from one step to the next.
    pub fn keeps_state(&self, id: AuxId) -> bool {
        let keeps = |layer: &NetLayer| {
            layer.aux.iter().position(|aux| *aux == id).map(|i| layer.layer.keeps_state(i))
        };
        self.layers.iter().find_map(keeps).unwrap_or(false)
    }

    /// Whether a layer's parameter is trained by its gradient.
    fn is_trained(&self, id: ParamId) -> bool {
        let view = self.params.view(id);
        view.rule == ParamRule::Gradient && (self.force_backward || view.lr_mult != 0.0)
    }

    /// Whether a layer's parameter changes by what is computed: trained ones, and running sums always.
    fn has_gradient(&self, id: ParamId) -> bool {
        self.is_trained(id) || self.params.view(id).rule != ParamRule::Gradient
    }

    /// What `sub` of a layer reads and writes *in this net*: tops and gradients that do not exist are left out, and so is
    /// what would only be copied to where it lies. What the solver keeps of a weight (its history, the centre) is no operand: a plan
    /// adds it.
    ///
    /// `None` if nothing is left to do, for one of these reasons:
    /// - the layer's meaning has no such sub-task, such as the forward of a ReLU that its convolution does, or nothing that it writes
    ///   exists here;
    /// - a Concat's bottoms lie in its top already (`is_in_place`);
    /// - other layers have added the gradients up already (`is_added_up`, of [`Net::adding`]);
    /// - the layer above has done the backward of this ReLU ([`Net::rectifying`]);
    /// - ∇W and the update are one ([`Net::stepping`]): then there is no `GradWeight`, otherwise no `StepWeight`; nor is there where ∇A
    ///   does it in passing ([`Net::stepping_in_passing`]);
    /// - it belongs to backward, and nothing of the loss comes from the layer (`under_loss`).
    pub fn accesses(&self, id: LayerId, sub: SubTask) -> Option<Accesses> {
        match (sub, self.stepping_task(id)) {
            (SubTask::GradWeight, Some(_)) => None,
            (SubTask::StepWeight, Some(SubTask::StepWeight)) => self.step_accesses(id),
            (SubTask::StepWeight, _) => None,
            (SubTask::GradActivation, Some(SubTask::GradActivation)) => self.passing_accesses(id),
            _ => self.accesses_apart(id, sub),
        }
    }

    /// The same if gradients are found and applied apart.
    fn accesses_apart(&self, id: LayerId, sub: SubTask) -> Option<Accesses> {
        let layer = self.layer(id);
        let mut accesses = layer.layer.accesses(sub)?;
        let done = sub == SubTask::GradActivation && (self.is_added_up(id) || self.is_rectified_above(id));
        if self.is_in_place(id, sub) || done {
            return None;
        }
        if layer.adds_gradient && accesses.writes.contains(&Operand::BottomGrad(0)) {
            accesses.reads.push(Operand::BottomGrad(0));
        }
        // That exists where other layers read the loss: see `losses`.
        if layer.layer.is_loss() && sub == SubTask::GradActivation {
            accesses.reads.push(Operand::TopGrad(0));
        }
        let looks = sub == SubTask::GradActivation && self.looks_at_relu(id);
        if looks && !accesses.reads.contains(&Operand::Bottom(0)) {
            accesses.reads.push(Operand::Bottom(0));
        }
        // What adds to running sums asks nothing of the loss.
        let adds = matches!(sub, SubTask::GradWeight | SubTask::GradBias)
            && !accesses.reads.iter().any(|read| matches!(read, Operand::TopGrad(_)));
        let backward = SubTask::BACKWARD.contains(&sub);
        if backward && !layer.under_loss && !(adds && self.backward) {
            return None;
        }
        let exists = |operand: &Operand| match *operand {
            Operand::Bottom(i) => i < layer.bottoms.len(),
            Operand::Top(i) => i < layer.tops.len(),
            Operand::BottomGrad(i) => layer.bottoms.get(i).is_some_and(|b| self.blob(*b).grad.is_some()),
            Operand::TopGrad(i) => layer.tops.get(i).is_some_and(|b| self.blob(*b).grad.is_some()),
            Operand::Param(i) => i < layer.params.len(),
            Operand::ParamGrad(i) => layer.params.get(i).is_some_and(|p| self.has_gradient(*p)),
            Operand::Aux(i) => i < layer.aux.len(),
        };
        accesses.reads.retain(exists);
        accesses.writes.retain(exists);
        (!accesses.writes.is_empty()).then_some(accesses)
    }

    /// Whether a sub-task of a layer computes each image by itself here, into a place of its own: then its task may be several,
    /// each of a chunk of the images. Gradients of parameters are sums over images, so those are none.
    pub fn computes_images_apart(&self, id: LayerId, sub: SubTask) -> bool {
        let (layer, batch) = (self.layer(id), self.batch());
        let Some(accesses) = self.accesses(id, sub) else { return false };
        let blob = |blob: &BlobId, storage: fn(&Blob) -> Option<StorageId>| {
            let blob = self.blob(*blob);
            let whole = |id: StorageId| {
                self.storages[id.0] == blob.shape.count() && self.innermost(id).as_slice() == [id]
            };
            blob.shape.images() == batch && storage(blob).is_none_or(whole)
        };
        let is_cut = |operand: &Operand| match *operand {
            Operand::Bottom(i) => blob(&layer.bottoms[i], |blob| Some(blob.data)),
            Operand::Top(i) => blob(&layer.tops[i], |blob| Some(blob.data)),
            Operand::BottomGrad(i) => blob(&layer.bottoms[i], |blob| blob.grad),
            Operand::TopGrad(i) => blob(&layer.tops[i], |blob| blob.grad),
            // Such as the places of maxima.
            Operand::Aux(i) => self.aux[layer.aux[i].0] == self.blob(layer.tops[0]).shape.count(),
            Operand::Param(_) => true,
            Operand::ParamGrad(_) => false,
        };
        let written = accesses.writes.iter().all(|operand| !matches!(operand, Operand::Param(_)));
        matches!(sub, SubTask::Forward | SubTask::GradActivation)
            && layer.layer.computes_images_apart(&self.bottom_shapes(id))
            && written
            && accesses.reads.iter().chain(&accesses.writes).all(is_cut)
    }

    /// Floating-point operations of one sub-task, without those of the solver's rule.
    pub fn flops(&self, id: LayerId, sub: SubTask) -> u64 {
        let of = |sub| self.layer(id).layer.flops(sub, &self.bottom_shapes(id), &self.top_shapes(id));
        match self.accesses(id, sub) {
            Some(_) if sub == SubTask::StepWeight => of(SubTask::GradWeight),
            Some(_) if self.stepping_task(id) == Some(sub) => of(sub) + of(SubTask::GradWeight),
            Some(_) => of(sub),
            None => 0,
        }
    }
}
