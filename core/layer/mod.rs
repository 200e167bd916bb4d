//! What a layer means: parameters, shapes, sub-tasks, what each reads and writes, and how much work it is.
//!
//! One file per layer family. How a backend computes a sub-task is that backend's affair (`cpu/layer`); the
//! naive meaning of every sub-task is in [`crate::reference`].

mod accuracy;
mod batch_norm;
mod bias;
mod concat;
mod contrastive_loss;
mod convolution;
mod data;
mod dropout;
mod eltwise;
mod euclidean_loss;
mod filler;
mod flatten;
mod hdf5_data;
mod hinge_loss;
mod infogain_loss;
mod inner_product;
mod loss_term;
mod lrn;
mod multinomial_loss;
mod mvn;
mod neuron;
mod normalize;
mod pooling;
mod prelu;
mod reduction;
mod relu;
mod scale;
mod seed;
mod sigmoid_cross_entropy_loss;
mod slice;
mod softmax;
mod softmax_loss;
mod split;
mod sub_task;

// Layers that arrange values anew, make them up or look them up, and windows over any number of axes.
mod argmax;
mod batch_reindex;
mod convolution_nd;
mod crop;
mod dummy_data;
mod embed;
mod filter;
mod im2col;
mod parameter;
mod pyramid;
mod questions;
mod recurrent;
mod reshape;
mod resize;
mod silence;
mod tile;
mod windows;

pub use accuracy::Accuracy;
pub use batch_norm::BatchNorm;
pub use bias::Bias;
pub use concat::Concat;
pub use contrastive_loss::ContrastiveLoss;
pub use convolution::Convolution;
pub use data::{Colour, Data, DataKind, ImageList, Input, Transform, WindowRules};
pub use dropout::Dropout;
pub use eltwise::{Eltwise, EltwiseOperation};
pub use euclidean_loss::EuclideanLoss;
pub use filler::{Filler, VarianceNorm};
pub use flatten::Flatten;
pub use hdf5_data::Hdf5Data;
pub use hinge_loss::{HingeLoss, HingeNorm};
pub use infogain_loss::InfogainLoss;
pub use inner_product::InnerProduct;
pub use loss_term::LossTerm;
pub use lrn::{Lrn, NormRegion};
pub use multinomial_loss::MultinomialLogisticLoss;
pub use mvn::Mvn;
pub use neuron::Neuron;
pub use normalize::Normalize;
pub use pooling::{PoolMethod, Pooling, Window};
pub use prelu::Prelu;
pub use reduction::{Reduction, ReductionOperation};
pub use relu::Relu;
pub use resize::{Fit, Interpolation, Padding, RandomResize, Resampling, Resize};
pub use scale::{Factors, Scale};
pub use seed::Seed;
pub use sigmoid_cross_entropy_loss::SigmoidCrossEntropyLoss;
pub use slice::Slice;
pub use softmax::{ClassView, Softmax};
pub use softmax_loss::{Normalization, SoftmaxWithLoss};
pub use split::Split;
pub use sub_task::{Accesses, Operand, SubTask};

pub use argmax::{ArgMax, Compared};
pub use batch_reindex::BatchReindex;
pub use convolution_nd::{ConvolutionNd, Side, Sides};
pub use crop::Crop;
pub use dummy_data::DummyData;
pub use embed::Embed;
pub use filter::Filter;
pub use im2col::Im2col;
pub use parameter::Parameter;
pub use pyramid::PyramidLevel;
pub use recurrent::{Cell, Recurrent, RecurrentParams, Sequences};
pub use reshape::{NewExtent, Reshape};
pub use silence::Silence;
pub use tile::Tile;
pub use windows::Windows;

use std::ops::RangeInclusive;

use crate::net::Phase;
use crate::shape::Shape;
use crate::site::Fault;

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
fn check_extents(field: &str, extents: &[usize], least: usize) -> Result<(), Fault> {
    const MOST: usize = i32::MAX as usize;
    for extent in extents {
        if *extent < least {
            return Err(Fault::new(field, format!("{extent}; expected at least {least}")));
        }
        if *extent > MOST {
            return Err(Fault::new(field, format!("{extent}; expected at most {MOST}")));
        }
    }
    Ok(())
}

/// What a layer reads and writes whose top is its bottom in another shape.
fn view_accesses(sub: SubTask) -> Option<Accesses> {
    (sub == SubTask::GradActivation).then(|| Accesses::new([Operand::TopGrad(0)], [Operand::BottomGrad(0)]))
}

/// A layer: its type and its parameters as the network file states them.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    /// Samples and labels from a data set.
    Data(Data),
    /// Arrays that the program fills.
    Input(Input),
    /// Samples in arrays of files.
    Hdf5Data(Hdf5Data),
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
    /// One function for all values.
    Neuron(Neuron),
    /// Rectified linear unit with slopes that are learned.
    Prelu(Prelu),
    /// Sums with a repeated bias.
    Bias(Bias),
    /// Mean-variance normalisation of each image or channel by itself.
    Mvn(Mvn),
    /// One value in place of the last axes.
    Reduction(Reduction),
    /// Cross entropy of sigmoids.
    SigmoidCrossEntropyLoss(SigmoidCrossEntropyLoss),
    /// Squared distance.
    EuclideanLoss(EuclideanLoss),
    /// Hinge loss, one class against all others.
    HingeLoss(HingeLoss),
    /// Multinomial logistic loss of probabilities.
    MultinomialLogisticLoss(MultinomialLogisticLoss),
    /// Infogain loss of a softmax.
    InfogainLoss(InfogainLoss),
    /// A blob that is a part of the loss; the net inserts one where a layer that is no loss has a `loss_weight`.
    LossTerm(LossTerm),
    /// One blob for several readers; the net inserts one wherever a blob is read more than once.
    Split(Split),
    /// A gradient from outside; no file says so.
    Seed(Seed),
    /// Convolution over any number of axes, or deconvolution.
    ConvolutionNd(ConvolutionNd),
    /// The windows of a convolution as channels.
    Im2col(Im2col),
    /// One level of spatial pyramid pooling.
    PyramidLevel(PyramidLevel),
    /// Other extents for the same values.
    Reshape(Reshape),
    /// A part of a bottom, as large as another.
    Crop(Crop),
    /// Copies of a bottom along an axis.
    Tile(Tile),
    /// Images in another order.
    BatchReindex(BatchReindex),
    /// Images that are marked.
    Filter(Filter),
    /// Readers that make nothing.
    Silence(Silence),
    /// Places of the largest values.
    ArgMax(ArgMax),
    /// Rows of weights by index.
    Embed(Embed),
    /// A parameter as a blob.
    Parameter(Parameter),
    /// Blobs that fillers fill.
    DummyData(DummyData),
    /// A recurrent layer.
    Recurrent(Recurrent),
}

/// The names of the types in network files, as Caffe writes them.
pub const TYPE_NAMES: [&str; 58] = [
    "Data",
    "ImageData",
    "MemoryData",
    "WindowData",
    "Input",
    "HDF5Data",
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
    "AbsVal",
    "BNLL",
    "Clip",
    "ELU",
    "Exp",
    "Log",
    "Power",
    "Sigmoid",
    "Swish",
    "TanH",
    "Threshold",
    "PReLU",
    "Bias",
    "MVN",
    "Reduction",
    "SigmoidCrossEntropyLoss",
    "EuclideanLoss",
    "HingeLoss",
    "MultinomialLogisticLoss",
    "InfogainLoss",
    "Split",
    "Deconvolution",
    "Im2col",
    "SPP",
    "Reshape",
    "Crop",
    "Tile",
    "BatchReindex",
    "Filter",
    "Silence",
    "ArgMax",
    "Embed",
    "Parameter",
    "DummyData",
    "RNN",
    "LSTM",
];

impl Layer {
    fn meaning(&self) -> &dyn Meaning {
        match self {
            Self::Data(l) => l,
            Self::Input(l) => l,
            Self::Hdf5Data(l) => l,
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
            Self::Neuron(l) => l,
            Self::Prelu(l) => l,
            Self::Bias(l) => l,
            Self::Mvn(l) => l,
            Self::Reduction(l) => l,
            Self::SigmoidCrossEntropyLoss(l) => l,
            Self::EuclideanLoss(l) => l,
            Self::HingeLoss(l) => l,
            Self::MultinomialLogisticLoss(l) => l,
            Self::InfogainLoss(l) => l,
            Self::LossTerm(l) => l,
            Self::Split(l) => l,
            Self::Seed(l) => l,
            Self::ConvolutionNd(l) => l,
            Self::Im2col(l) => l,
            Self::PyramidLevel(l) => l,
            Self::Reshape(l) => l,
            Self::Crop(l) => l,
            Self::Tile(l) => l,
            Self::BatchReindex(l) => l,
            Self::Filter(l) => l,
            Self::Silence(l) => l,
            Self::ArgMax(l) => l,
            Self::Embed(l) => l,
            Self::Parameter(l) => l,
            Self::DummyData(l) => l,
            Self::Recurrent(l) => l,
        }
    }

    /// The type's name in network files; of layers that are computed together, that of the first.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Data(data) => data.kind.type_name(),
            Self::Input(_) => "Input",
            Self::Hdf5Data(_) => "HDF5Data",
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
            Self::Neuron(l) => l.type_name(),
            Self::Prelu(_) => "PReLU",
            Self::Bias(_) => "Bias",
            Self::Mvn(_) => "MVN",
            Self::Reduction(_) => "Reduction",
            Self::SigmoidCrossEntropyLoss(_) => "SigmoidCrossEntropyLoss",
            Self::EuclideanLoss(_) => "EuclideanLoss",
            Self::HingeLoss(_) => "HingeLoss",
            Self::MultinomialLogisticLoss(_) => "MultinomialLogisticLoss",
            Self::InfogainLoss(_) => "InfogainLoss",
            Self::LossTerm(_) => "LossTerm",
            Self::Split(_) => "Split",
            Self::Seed(_) => "Seed",
            Self::ConvolutionNd(l) if l.transposed => "Deconvolution",
            Self::ConvolutionNd(_) => "Convolution",
            Self::Im2col(_) => "Im2col",
            Self::PyramidLevel(_) => "SPP",
            Self::Reshape(_) => "Reshape",
            Self::Crop(_) => "Crop",
            Self::Tile(_) => "Tile",
            Self::BatchReindex(_) => "BatchReindex",
            Self::Filter(_) => "Filter",
            Self::Silence(_) => "Silence",
            Self::ArgMax(_) => "ArgMax",
            Self::Embed(_) => "Embed",
            Self::Parameter(_) => "Parameter",
            Self::DummyData(_) => "DummyData",
            Self::Recurrent(l) if l.cell == Cell::Lstm => "LSTM",
            Self::Recurrent(_) => "RNN",
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
            Self::Split(_) | Self::Flatten(_) | Self::Reshape(_) | Self::LossTerm(_) => true,
            Self::Dropout(l) => !l.active,
            Self::Relu(l) => l.applied,
            _ => false,
        }
    }

    /// Whether the layer computes a loss, so that its tops weigh 1 unless the file says otherwise.
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::SoftmaxWithLoss(_)
                | Self::ContrastiveLoss(_)
                | Self::SigmoidCrossEntropyLoss(_)
                | Self::EuclideanLoss(_)
                | Self::HingeLoss(_)
                | Self::MultinomialLogisticLoss(_)
                | Self::InfogainLoss(_)
        )
    }

    /// Whether backward begins at the layer whatever its tops weigh.
    pub fn begins_backward(&self) -> bool {
        matches!(self, Self::Seed(_))
    }

    /// Whether the layer's loss is a sum over images and not a mean.
    pub fn sums_images(&self) -> bool {
        let normalization = match self {
            // Each image has values of its own in such a blob, or the layer that made it cannot be cut, or it is one of
            // parameters alone, which whoever builds a net gives shares.
            Self::LossTerm(_) => return true,
            Self::SoftmaxWithLoss(l) => l.normalization,
            Self::SigmoidCrossEntropyLoss(l) => l.normalization,
            Self::InfogainLoss(l) => l.normalization,
            _ => return false,
        };
        normalization == Normalization::None
    }

    /// For a loss of labels that name classes: how many classes there are, and the label that does not count.
    pub fn classes(&self, bottoms: &[Shape]) -> Option<(usize, Option<i32>)> {
        let along = |axis: i32| bottoms[0].axis(axis, "axis").map_or(1, |axis| bottoms[0].dim(axis));
        match self {
            Self::SoftmaxWithLoss(l) => Some((along(l.axis), l.ignore_label)),
            Self::InfogainLoss(l) => Some((along(l.axis), l.ignore_label)),
            Self::HingeLoss(_) | Self::MultinomialLogisticLoss(_) => Some((bottoms[0].per_image(), None)),
            _ => None,
        }
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

    /// The layer as it is on bottoms of these shapes: what its file leaves to them is settled.
    ///
    /// # Errors
    /// A [`Fault`] naming the field that makes the layer impossible on these bottoms.
    pub fn on(&self, bottoms: &[Shape]) -> Result<Self, Fault> {
        Ok(match self {
            Self::ConvolutionNd(l) => {
                l.of_images(&bottoms[0]).map_or_else(|| self.clone(), Self::Convolution)
            }
            Self::PyramidLevel(l) => Self::Pooling(l.pooling(&bottoms[0])?),
            other => other.clone(),
        })
    }
}
