//! How a GPU does each layer: one file per layer family, each of which lists the operations of a sub-task.

mod accuracy;
mod batch_norm;
mod concat;
mod contrastive_loss;
mod convolution;
mod dropout;
mod eltwise;
mod gradients;
mod inner_product;
mod lrn;
mod neuron;
mod normalize;
mod pair_loss;
mod pooling;
mod relu;
mod scale;
mod softmax;
mod split;
mod update;

#[cfg(test)]
mod tests;

use quadrille_core::device::Packed;
use quadrille_core::layer::{Layer, Normalize, Operand, SubTask};
use quadrille_core::net::{BlobId, LayerId, Net, NetLayer};
use quadrille_core::shape::Shape;
use quadrille_core::task::{Task, Tile};

use crate::memory::NetMap;
use crate::op::{Direction, Geometry, Op, Span, arguments};
use crate::spec::Options;

/// Elements of workspace that cuDNN takes for a convolution; `None` if it cannot do it.
pub(crate) type DnnWorkspace<'a> = &'a dyn Fn(&Geometry, Direction) -> Option<usize>;

/// What a layer file needs to list the operations of one sub-task of one layer.
pub(crate) struct Binder<'a> {
    /// The net.
    pub net: &'a Net,
    /// The layer.
    pub id: LayerId,
    /// The images of the task: all, or a chunk.
    pub tile: Tile,
    /// Where its arrays lie.
    pub map: &'a NetMap,
    /// Where what changes from step to step lies.
    pub scalars: Span,
    /// How the GPU computes.
    pub options: &'a Options,
    /// Whether cuBLAS is there and to be used.
    pub blas: bool,
    /// What cuDNN needs, if it is there and to be used.
    pub dnn: Option<DnnWorkspace<'a>>,
    /// Elements of workspace that the sub-task has taken.
    taken: usize,
}

impl<'a> Binder<'a> {
    /// The layer.
    pub fn layer(&self) -> &'a NetLayer {
        self.net.layer(self.id)
    }

    /// Images of all chunks of the layer.
    pub fn batch(&self) -> usize {
        self.net.batch()
    }

    /// Where the part of an operand lies that is of the task's images; `None` if it does not exist in this net.
    pub fn find(&self, operand: Operand) -> Option<Span> {
        let whole = self.find_whole(operand)?;
        let (Tile { first, images }, batch) = (self.tile, self.batch());
        match operand {
            Operand::Param(_) | Operand::ParamGrad(_) => Some(whole),
            _ if images == batch => Some(whole),
            _ => Some(whole.part(whole.len / batch * first, whole.len / batch * images)),
        }
    }

    /// Where an operand lies. The gradient of a shared parameter is the layer's own, where it has one.
    fn find_whole(&self, operand: Operand) -> Option<Span> {
        let (layer, map) = (self.layer(), self.map);
        let param = |packed, i: usize| map.packed().param(self.net, packed, *layer.params.get(i)?);
        match operand {
            Operand::Bottom(i) => Some(map.storage(self.net.blob(*layer.bottoms.get(i)?).data)),
            Operand::Top(i) => Some(map.storage(self.net.blob(*layer.tops.get(i)?).data)),
            Operand::BottomGrad(i) => Some(map.storage(self.net.blob(*layer.bottoms.get(i)?).grad?)),
            Operand::TopGrad(i) => Some(map.storage(self.net.blob(*layer.tops.get(i)?).grad?)),
            Operand::Param(i) => param(Packed::Weights, i),
            Operand::ParamGrad(i) => match layer.own_grad(i) {
                Some(own) => Some(map.aux(own)),
                None => param(Packed::Gradients, i),
            },
            Operand::Aux(i) => layer.aux.get(i).map(|id| map.aux(*id)),
        }
    }

    /// Channels and pixels of an operand whose channels lie last.
    pub fn channels_last(&self, operand: Operand) -> Option<[usize; 2]> {
        let (layer, blob) = (self.layer(), |id: &BlobId| self.net.blob(*id));
        let storage = match operand {
            Operand::Bottom(i) => Some(blob(layer.bottoms.get(i)?).data),
            Operand::Top(i) => Some(blob(layer.tops.get(i)?).data),
            Operand::BottomGrad(i) => blob(layer.bottoms.get(i)?).grad,
            Operand::TopGrad(i) => blob(layer.tops.get(i)?).grad,
            _ => None,
        };
        self.map.channels_last(storage?)
    }

    /// Whether the channels of the layer's arrays lie last, where all have the same order; one of which both orders are the same
    /// counts as any.
    pub fn has_channels_last(&self) -> bool {
        let layer = self.layer();
        let blobs = layer.bottoms.iter().chain(&layer.tops).map(|id| self.net.blob(*id));
        blobs
            .flat_map(|blob| std::iter::once(blob.data).chain(blob.grad))
            .any(|id| self.map.channels_last(id).is_some())
    }

    /// Where an operand lies with its channels in front: where it is, or in the workspace, where the first operation puts it.
    pub fn plain(&mut self, operand: Operand) -> Result<(Span, Option<Op>), String> {
        let span = self.get(operand)?;
        let Some(extents) = self.channels_last(operand) else { return Ok((span, None)) };
        let turned = self.workspace(span.len);
        Ok((turned, Some(turn("channels_first", span, turned, extents))))
    }

    /// Where a result is to be put with its channels in front, and the operation that then puts it where it belongs.
    pub fn plain_result(&mut self, operand: Operand) -> Result<(Span, Option<Op>), String> {
        let span = self.get(operand)?;
        let Some(extents) = self.channels_last(operand) else { return Ok((span, None)) };
        let turned = self.workspace(span.len);
        Ok((turned, Some(turn("channels_last", turned, span, extents))))
    }

    /// Where an operand lies that the sub-task cannot do without.
    pub fn get(&self, operand: Operand) -> Result<Span, String> {
        self.find(operand).ok_or_else(|| format!("layer {:?} has no {operand:?}", self.layer().name))
    }

    /// Where the gradient of a parameter lies, if the sub-task is to find it: nobody asks for that of a frozen one.
    pub fn gradient(&self, sub: SubTask, index: usize) -> Option<Span> {
        let operand = Operand::ParamGrad(index);
        let accesses = self.net.accesses(self.id, sub)?;
        accesses.writes.contains(&operand).then(|| self.find(operand))?
    }

    /// A shape with the images of the task in place of all.
    fn of_task(&self, whole: &Shape) -> Shape {
        let mut dims = whole.dims().to_vec();
        if let Some(images) = dims.first_mut().filter(|_| self.tile.images < self.batch()) {
            *images = self.tile.images;
        }
        Shape::new(dims)
    }

    /// The shape of a bottom, as far as the task goes.
    pub fn bottom(&self, i: usize) -> Shape {
        self.of_task(&self.net.blob(self.layer().bottoms[i]).shape)
    }

    /// The shapes of all bottoms.
    pub fn bottoms(&self) -> Vec<Shape> {
        (0..self.layer().bottoms.len()).map(|i| self.bottom(i)).collect()
    }

    /// The shape of a top.
    pub fn top(&self, i: usize) -> Shape {
        self.of_task(&self.net.blob(self.layer().tops[i]).shape)
    }

    /// The weight of the first top in the loss.
    pub fn loss_weight(&self) -> f32 {
        self.layer().loss_weights.first().copied().unwrap_or(0.0)
    }

    /// Memory of the lane's for as long as the task runs.
    pub fn workspace(&mut self, len: usize) -> Span {
        const ALIGNMENT: usize = 64;
        let start = self.taken;
        self.taken = (start + len).next_multiple_of(ALIGNMENT);
        Span { workspace: true, start, len }
    }
}

/// What a task does, and how much of its lane's workspace it needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TaskOps {
    /// In this order.
    pub ops: Vec<Op>,
    /// Elements.
    pub workspace: usize,
}

/// What all layers of a net have in common.
pub(crate) struct Surroundings<'a> {
    /// The net.
    pub net: &'a Net,
    /// Where its arrays lie.
    pub map: &'a NetMap,
    /// Where what changes from step to step lies.
    pub scalars: Span,
    /// How the GPU computes.
    pub options: &'a Options,
    /// Whether cuBLAS is there and to be used.
    pub blas: bool,
    /// What cuDNN needs, if it is there and to be used.
    pub dnn: Option<DnnWorkspace<'a>>,
}

impl Surroundings<'_> {
    /// The operations of a task; `None` if its layer does not have the sub-task in this net.
    ///
    /// # Errors
    /// If no kernel of ours does it.
    pub fn bind(&self, task: Task) -> Result<Option<TaskOps>, String> {
        let Self { net, map, scalars, options, blas, dnn } = *self;
        let Task { layer: id, sub, tile } = task;
        if tile.images != net.batch() && !net.computes_images_apart(id, sub) {
            return Err(format!("layer {:?}: {sub} cannot be cut into chunks", net.layer(id).name));
        }
        let mut binder = Binder { net, id, tile, map, scalars, options, blas, dnn, taken: 0 };
        let ops = match sub {
            SubTask::Update => update::ops(&binder)?,
            SubTask::AddShared => gradients::add_shared(&binder)?,
            SubTask::Gather | SubTask::Total => gradients::gather(&binder, sub)?,
            SubTask::Norm => gradients::norm(&mut binder)?,
            SubTask::Load => load(&binder),
            SubTask::Accumulate | SubTask::Broadcast => None,
            arithmetic => match net.accesses(id, arithmetic) {
                Some(_) => Some(compute(&mut binder, arithmetic)?),
                None => None,
            },
        };
        let workspace = binder.taken;
        Ok(ops.map(|ops| TaskOps { ops, workspace }))
    }
}

/// The operations of one of the sub-tasks that a layer's arithmetic consists of.
fn compute(at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let layer = at.layer();
    let adds_shortcut = matches!(layer.layer, Layer::Normalize(Normalize { sum: true, .. }));
    if layer.adds_gradient || layer.steps_weight || layer.rectifies_gradient || adds_shortcut {
        return Err(format!("layer {:?}: the net was rewritten for other kernels than a GPU's", layer.name));
    }
    if layer.layer.is_loss() && at.find(Operand::TopGrad(0)).is_some() {
        return Err(format!(
            "layer {:?}: there is no CUDA kernel for a loss that trains through a layer that reads it; write its part of the \
             whole as its loss_weight, or compute on the CPU (leave --device out)",
            layer.name
        ));
    }
    match &layer.layer {
        Layer::Convolution(l) => convolution::ops(l, at, sub),
        Layer::Pooling(l) => pooling::ops(l, at, sub),
        Layer::InnerProduct(l) => inner_product::ops(l, at, sub),
        Layer::Relu(l) => relu::ops(l, at, sub),
        Layer::BatchNorm(l) => batch_norm::ops(l, at, sub),
        Layer::Scale(l) => scale::ops(l, at, sub),
        Layer::Bias(l) => scale::bias_ops(l, at, sub),
        Layer::Normalize(l) => normalize::ops(l, at, sub),
        Layer::Eltwise(l) => eltwise::ops(l, at, sub),
        Layer::Softmax(l) => softmax::ops(l, at, sub),
        Layer::SoftmaxWithLoss(l) => softmax::loss_ops(l, at, sub),
        Layer::Accuracy(l) => accuracy::ops(l, at),
        Layer::Lrn(l) => lrn::ops(l, at, sub),
        Layer::Concat(l) => concat::ops(l, at, sub),
        Layer::Slice(l) => concat::slice_ops(l, at, sub),
        Layer::Dropout(l) => dropout::ops(l, at, sub),
        Layer::Neuron(l) => neuron::ops(l, at, sub),
        Layer::ContrastiveLoss(l) => contrastive_loss::ops(l, at, sub),
        Layer::SigmoidCrossEntropyLoss(l) => pair_loss::sigmoid_ops(l, at, sub),
        Layer::EuclideanLoss(_) => pair_loss::euclidean_ops(at, sub),
        Layer::Split(l) => split::ops(l, at),
        Layer::Flatten(_) | Layer::Reshape(_) => {
            Ok(Op::copy(at.get(Operand::TopGrad(0))?, at.get(Operand::BottomGrad(0))?))
        }
        Layer::Seed(_) => Ok(Op::copy(at.get(Operand::Bottom(1))?, at.get(Operand::BottomGrad(0))?)),
        Layer::LossTerm(_) => {
            let (dx, count) = (at.get(Operand::BottomGrad(0))?, at.bottom(0).count());
            Ok(vec![Op::each("fill", count, arguments![dx, at.loss_weight(), count])])
        }
        other => Err(format!(
            "layer {:?}: there is no CUDA kernel for layers of type {}; the CPU's quadrants have one (leave --device \
             out)",
            layer.name,
            other.type_name()
        )),
    }
}

/// Copies what the host has staged; `None` for a layer that is no source.
fn load(at: &Binder<'_>) -> Option<Vec<Op>> {
    let layer = at.layer();
    layer.layer.is_source().then(|| {
        let tops = layer.tops.iter().map(|top| at.net.blob(*top).data);
        let op = |id| {
            let (from, to) = (at.map.stage(id)?, at.map.storage(id));
            Some(match at.map.channels_last(id) {
                Some(extents) => turn("channels_last", from, to, extents),
                None => Op::Copy { from, to },
            })
        };
        tops.filter_map(op).collect()
    })
}

/// An operation that puts images of so many channels and pixels into another order.
fn turn(kernel: &'static str, from: Span, to: Span, [channels, pixels]: [usize; 2]) -> Op {
    Op::each(kernel, to.len, arguments![from, to, channels, pixels, to.len])
}
