//! What a layer means: parameters, shapes, sub-tasks, what each reads and writes, and how much work it is.
//!
//! One file per layer family. How a backend computes a sub-task is that backend's affair (`cpu/layer`); the
//! naive meaning of every sub-task is in [`crate::reference`].

mod accuracy;
mod batch_norm;
mod concat;
mod contrastive_loss;
mod convolution;
mod data;
mod dropout;
mod eltwise;
mod filler;
mod flatten;
mod inner_product;
mod lrn;
mod normalize;
mod pooling;
mod relu;
mod scale;
mod slice;
mod softmax;
mod softmax_loss;
mod split;

pub use accuracy::Accuracy;
pub use batch_norm::BatchNorm;
pub use concat::Concat;
pub use contrastive_loss::ContrastiveLoss;
pub use convolution::Convolution;
pub use data::{Colour, Data, ImageList, Input, Transform};
pub use dropout::Dropout;
pub use eltwise::{Eltwise, EltwiseOperation};
pub use filler::{Filler, VarianceNorm};
pub use flatten::Flatten;
pub use inner_product::InnerProduct;
pub use lrn::{Lrn, NormRegion};
pub use normalize::Normalize;
pub use pooling::{PoolMethod, Pooling, Window};
pub use relu::Relu;
pub use scale::{Factors, Scale};
pub use slice::Slice;
pub use softmax::{ClassView, Softmax};
pub use softmax_loss::{Normalization, SoftmaxWithLoss};
pub use split::Split;

use std::fmt;
use std::ops::RangeInclusive;

use crate::net::{ParamRule, Phase};
use crate::shape::Shape;
use crate::site::Fault;

/// What a task does. The first five belong to a layer's arithmetic, the rest move or change parameters and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubTask {
    /// Computes the tops from the bottoms and the parameters.
    Forward,
    /// ∇A: computes the gradients of the bottoms. Only this has to be synchronised with the layer below. Where their sums
    /// are those of the parameters' gradients, it writes these, too.
    GradActivation,
    /// ∇W: computes the gradient of the weight (parameter 0), or what is added to a layer's running sums.
    GradWeight,
    /// ∇W and update of the weight in one pass: in place of [`SubTask::GradWeight`] and the weight's part of
    /// [`SubTask::Update`] where a net says so ([`crate::net::Net::stepping`]). The gradient is never stored.
    StepWeight,
    /// ∇B: computes the gradient of the bias (the last parameter).
    GradBias,
    /// Adds the layer's gradients of parameters that it shares to those of the layers above it.
    AddShared,
    /// Applies the solver's rule to the layer's parameters.
    Update,
    /// Copies a mini-batch into the tops of a data layer.
    Load,
    /// Adds another device's gradients of a chunk to this device's.
    Accumulate,
    /// Copies the summed gradients of a chunk to another device.
    Broadcast,
}

impl SubTask {
    /// Every sub-task, in the order of an iteration.
    pub const ALL: [Self; 10] = [
        Self::Load,
        Self::Forward,
        Self::GradActivation,
        Self::GradWeight,
        Self::StepWeight,
        Self::GradBias,
        Self::AddShared,
        Self::Accumulate,
        Self::Broadcast,
        Self::Update,
    ];

    /// The sub-tasks in which a layer computes gradients.
    pub const BACKWARD: [Self; 4] =
        [Self::GradActivation, Self::GradWeight, Self::StepWeight, Self::GradBias];
}

impl fmt::Display for SubTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::GradActivation => "grad-activation",
            Self::GradWeight => "grad-weight",
            Self::StepWeight => "step-weight",
            Self::GradBias => "grad-bias",
            Self::AddShared => "add-shared",
            Self::Update => "update",
            Self::Load => "load",
            Self::Accumulate => "accumulate",
            Self::Broadcast => "broadcast",
        })
    }
}

/// One of the arrays that a layer's sub-tasks work on, in the layer's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// Values of bottom `i`.
    Bottom(usize),
    /// Gradient of bottom `i`.
    BottomGrad(usize),
    /// Values of top `i`.
    Top(usize),
    /// Gradient of top `i`.
    TopGrad(usize),
    /// Parameter `i`, in Caffe's order: the weight, if there is one, and then the bias.
    Param(usize),
    /// Gradient of parameter `i`.
    ParamGrad(usize),
    /// State of the layer's own that backward needs from forward, such as the positions of maxima.
    Aux(usize),
}

/// What a sub-task reads and writes. A write without a read replaces the whole array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Arrays that are read.
    pub reads: Vec<Operand>,
    /// Arrays that are written.
    pub writes: Vec<Operand>,
}

impl Accesses {
    pub(crate) fn new(reads: impl Into<Vec<Operand>>, writes: impl Into<Vec<Operand>>) -> Self {
        Self { reads: reads.into(), writes: writes.into() }
    }
}

/// A parameter that a layer owns.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamShape {
    /// Extents, in Caffe's order.
    pub shape: Shape,
    /// How it starts.
    pub filler: Filler,
}

/// What follows from the shapes of the bottoms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inferred {
    /// Shapes of the tops.
    pub tops: Vec<Shape>,
    /// The layer's parameters: weight, then bias.
    pub params: Vec<ParamShape>,
    /// Shapes of the layer's own state.
    pub aux: Vec<Shape>,
}

/// How many bottoms and tops a layer may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arity {
    /// Number of bottoms.
    pub bottoms: RangeInclusive<usize>,
    /// Number of tops.
    pub tops: RangeInclusive<usize>,
}

/// The questions that every layer family answers.
pub(crate) trait Meaning {
    /// How many bottoms and tops there may be.
    fn arity(&self) -> Arity;
    /// Shapes of tops, parameters and state.
    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault>;
    /// What `sub` reads and writes; `None` if the layer has no such sub-task.
    fn accesses(&self, sub: SubTask) -> Option<Accesses>;
    /// Floating-point operations of `sub` (a multiply and an add are two).
    fn flops(&self, sub: SubTask, bottoms: &[Shape], tops: &[Shape]) -> u64;
    /// Whether top 0 may lie in the memory of bottom 0.
    fn works_in_place(&self) -> bool {
        false
    }
}

/// Checks the extents of a window along its axes: at least `least`, and at most what Caffe's 32-bit counters hold,
/// so that no later product of two of them overflows.
fn check_extents(field: &str, extents: [usize; 2], least: usize) -> Result<(), Fault> {
    const MOST: usize = i32::MAX as usize;
    for extent in extents {
        if extent < least {
            return Err(Fault::new(field, format!("{extent}; expected at least {least}")));
        }
        if extent > MOST {
            return Err(Fault::new(field, format!("{extent}; expected at most {MOST}")));
        }
    }
    Ok(())
}

/// A layer: its type and its parameters as the network file states them.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    /// Samples and labels from a data set.
    Data(Data),
    /// Arrays that the program fills.
    Input(Input),
    /// Convolution.
    Convolution(Convolution),
    /// Maximum or average over windows.
    Pooling(Pooling),
    /// A fully connected layer.
    InnerProduct(InnerProduct),
    /// Rectified linear unit.
    Relu(Relu),
    /// Batch normalisation.
    BatchNorm(BatchNorm),
    /// Products with repeated factors.
    Scale(Scale),
    /// Batch normalisation, scale and perhaps a ReLU as one layer, which only [`crate::net::Net::fused`] makes.
    Normalize(Normalize),
    /// Product, sum or maximum of several blobs.
    Eltwise(Eltwise),
    /// Softmax.
    Softmax(Softmax),
    /// Multinomial logistic loss of a softmax.
    SoftmaxWithLoss(SoftmaxWithLoss),
    /// Share of right answers.
    Accuracy(Accuracy),
    /// Local response normalisation.
    Lrn(Lrn),
    /// Bottoms side by side along an axis.
    Concat(Concat),
    /// A bottom cut along an axis.
    Slice(Slice),
    /// Several axes as one.
    Flatten(Flatten),
    /// Contrastive loss of pairs.
    ContrastiveLoss(ContrastiveLoss),
    /// Values dropped at random.
    Dropout(Dropout),
    /// One blob for several readers; the net inserts one wherever a blob is read more than once.
    Split(Split),
}

/// The names of the types in network files, as Caffe writes them.
pub const TYPE_NAMES: [&str; 20] = [
    "Data",
    "ImageData",
    "Input",
    "Convolution",
    "Pooling",
    "InnerProduct",
    "ReLU",
    "BatchNorm",
    "Scale",
    "Eltwise",
    "Softmax",
    "SoftmaxWithLoss",
    "Accuracy",
    "LRN",
    "Dropout",
    "ContrastiveLoss",
    "Concat",
    "Slice",
    "Flatten",
    "Split",
];

impl Layer {
    fn meaning(&self) -> &dyn Meaning {
        match self {
            Self::Data(l) => l,
            Self::Input(l) => l,
            Self::Convolution(l) => l,
            Self::Pooling(l) => l,
            Self::InnerProduct(l) => l,
            Self::Relu(l) => l,
            Self::BatchNorm(l) => l,
            Self::Scale(l) => l,
            Self::Normalize(l) => l,
            Self::Eltwise(l) => l,
            Self::Softmax(l) => l,
            Self::SoftmaxWithLoss(l) => l,
            Self::Accuracy(l) => l,
            Self::Lrn(l) => l,
            Self::Dropout(l) => l,
            Self::ContrastiveLoss(l) => l,
            Self::Concat(l) => l,
            Self::Slice(l) => l,
            Self::Flatten(l) => l,
            Self::Split(l) => l,
        }
    }

    /// The type's name in network files; of layers that are computed together, that of the first.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Data(Data { list: None, .. }) => "Data",
            Self::Data(_) => "ImageData",
            Self::Input(_) => "Input",
            Self::Convolution(_) => "Convolution",
            Self::Pooling(_) => "Pooling",
            Self::InnerProduct(_) => "InnerProduct",
            Self::Relu(_) => "ReLU",
            Self::BatchNorm(_) | Self::Normalize(_) => "BatchNorm",
            Self::Scale(_) => "Scale",
            Self::Eltwise(_) => "Eltwise",
            Self::Softmax(_) => "Softmax",
            Self::SoftmaxWithLoss(_) => "SoftmaxWithLoss",
            Self::Accuracy(_) => "Accuracy",
            Self::Lrn(_) => "LRN",
            Self::Dropout(_) => "Dropout",
            Self::ContrastiveLoss(_) => "ContrastiveLoss",
            Self::Concat(_) => "Concat",
            Self::Slice(_) => "Slice",
            Self::Flatten(_) => "Flatten",
            Self::Split(_) => "Split",
        }
    }

    /// How many bottoms and tops there may be.
    pub fn arity(&self) -> Arity {
        self.meaning().arity()
    }

    /// Shapes of tops, parameters and state, from the shapes of the bottoms.
    ///
    /// # Errors
    /// A [`Fault`] naming the field that makes the layer impossible on these bottoms.
    pub fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        self.meaning().infer(bottoms)
    }

    /// What `sub` reads and writes; `None` if the layer has no such sub-task.
    pub fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        self.meaning().accesses(sub)
    }

    /// Floating-point operations of `sub` (a multiply and an add are two).
    pub fn flops(&self, sub: SubTask, bottoms: &[Shape], tops: &[Shape]) -> u64 {
        self.meaning().flops(sub, bottoms, tops)
    }

    /// Whether top 0 may lie in the memory of bottom 0.
    pub fn works_in_place(&self) -> bool {
        self.meaning().works_in_place()
    }

    /// Whether the tops are the bottom itself under other names or in other shapes: they lie in its memory, and
    /// forward is nothing.
    pub fn is_view(&self) -> bool {
        match self {
            Self::Split(_) | Self::Flatten(_) => true,
            Self::Dropout(l) => !l.active,
            Self::Relu(l) => l.applied,
            _ => false,
        }
    }

    /// Whether the layer computes a loss, so that its tops weigh 1 unless the file says otherwise.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::SoftmaxWithLoss(_) | Self::ContrastiveLoss(_))
    }

    /// Whether the layer's loss is a sum over images and not a mean.
    pub fn sums_images(&self) -> bool {
        matches!(self, Self::SoftmaxWithLoss(l) if l.normalization == Normalization::None)
    }

    /// The layer as it is in a net of `phase`: what its file leaves to the phase is settled.
    pub fn in_phase(&self, phase: Phase) -> Self {
        match self {
            Self::BatchNorm(l) => {
                let kept = l.use_global_stats.unwrap_or(phase == Phase::Test);
                Self::BatchNorm(BatchNorm { use_global_stats: Some(kept), ..l.clone() })
            }
            Self::Dropout(l) => Self::Dropout(Dropout { active: phase == Phase::Train, ..l.clone() }),
            other => other.clone(),
        }
    }

    /// How the solver changes the layer's parameter `index`.
    pub fn param_rule(&self, index: usize) -> ParamRule {
        match self {
            Self::BatchNorm(l) => ParamRule::RunningSum { fraction: l.moving_average_fraction },
            Self::Normalize(l) if index < Normalize::FACTORS => {
                ParamRule::RunningSum { fraction: l.norm.moving_average_fraction }
            }
            _ => ParamRule::Gradient,
        }
    }

    /// The field that makes images depend on each other, if one does: such a layer cannot be cut by images.
    /// BatchNorm can: each part of a mini-batch is normalised by its own statistics.
    pub fn mixes_images(&self, bottoms: &[Shape]) -> Option<&'static str> {
        let (axis, field) = match self {
            Self::Softmax(l) => (l.axis, "softmax_param.axis"),
            Self::SoftmaxWithLoss(l) => (l.axis, "softmax_param.axis"),
            Self::Accuracy(l) => (l.axis, "accuracy_param.axis"),
            Self::InnerProduct(l) => (l.axis, "inner_product_param.axis"),
            Self::Scale(l) if l.bottoms == 1 && l.num_axes != 0 => (l.axis, "scale_param.axis"),
            Self::Concat(l) => (l.axis, "concat_param.axis"),
            Self::Slice(l) => (l.axis, "slice_param.axis"),
            Self::Flatten(l) => (l.axis, "flatten_param.axis"),
            _ => return None,
        };
        (bottoms[0].axis(axis, field) == Ok(0)).then_some(field)
    }

    /// Whether the layer's tops come from outside the net.
    pub fn is_source(&self) -> bool {
        matches!(self, Self::Data(_) | Self::Input(_))
    }
}
