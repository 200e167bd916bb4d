//! The ordered lists of implementations. The last of every list is `reference`, which can do everything.

use quadrille_core::layer::Layer;
use quadrille_core::net::{LayerId, Net};

use super::bind::Binder;
use super::{
    LayerKernel, accuracy, arrange, batch_norm, bias, contrastive_loss, convolution, distance_loss, dropout,
    eltwise, flatten, infogain_loss, inner_product, label_loss, lookup, loss_term, lrn, made_up, mvn, neuron,
    pieces, pooling, prelu, recurrent, reduction, reference, relu, scale, softmax, softmax_loss, split,
};
use crate::isa::Numerics;

/// In which layouts an implementation works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Everything N, C, H, W.
    Plain,
    /// Channels of bottoms and tops in blocks as wide as a vector.
    Blocked,
    /// Plain bottoms, blocked tops: a convolution of images.
    Entry,
    /// Bottoms in whatever layout they have, plain tops: an inner product.
    Exit,
    /// Element by element, in whatever layout bottom 0 has.
    Any,
}

/// How an implementation wants the numbers of blobs in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// In f32.
    F32,
    /// In bf16.
    Bf16,
    /// As bottom 0 has them, or in the net's precision if that is plain.
    Either,
}

/// One way to compute a type of layer.
pub(crate) struct Candidate {
    /// Its name, for `--kernel` and for the log.
    pub name: &'static str,
    /// The layouts that it reads and writes.
    pub form: Form,
    /// How it wants the numbers of blobs in blocks.
    pub kept: Kept,
    /// Whether it is worth reordering its bottoms for it when a later one could do without.
    pub eager: bool,
    /// Whether it can update the weight as it finds the gradient ([`Net::stepping`]).
    pub steps: bool,
    /// Whether it can add the gradient of its bottom to what is there ([`Net::adding`]).
    pub adds: fn(&Net, LayerId, Numerics) -> bool,
    /// Whether it can do the backward of the ReLU that it reads ([`Net::rectifying`]).
    pub rectifies: fn(&Net, LayerId, Numerics) -> bool,
    /// Whether it finds the images of all its blobs apart, with other arrays between them.
    pub strides: bool,
    /// Whether it can do a layer on a tier in a precision.
    pub fits: fn(&Net, LayerId, Numerics) -> bool,
    /// Whether it is better then than those behind it: otherwise it has to be asked for by its name.
    pub pays: fn(&Net, LayerId, Numerics) -> bool,
    /// Binds it to a layer that it fits; `None` is a bug of `fits`.
    pub build: fn(&mut Binder<'_>) -> Option<Box<dyn LayerKernel>>,
}

type Build = fn(&mut Binder<'_>) -> Option<Box<dyn LayerKernel>>;

const fn every(_: &Net, _: LayerId, _: Numerics) -> bool {
    true
}

const fn never(_: &Net, _: LayerId, _: Numerics) -> bool {
    false
}

const fn candidate(name: &'static str, form: Form, build: Build) -> Candidate {
    type Question = fn(&Net, LayerId, Numerics) -> bool;
    let (kept, adds, rectifies) = (Kept::F32, never as Question, never as Question);
    let (eager, steps, strides) = (false, false, false);
    Candidate { name, form, kept, eager, steps, adds, rectifies, strides, fits: every, pays: every, build }
}

/// One that reads and writes blocks of either precision.
const fn stream(name: &'static str, form: Form, build: Build) -> Candidate {
    Candidate { kept: Kept::Either, ..candidate(name, form, build) }
}

/// A loss, which goes by its weight alone: where other layers read it, only `reference` can do it.
const fn loss(name: &'static str, build: Build) -> Candidate {
    Candidate { fits: goes_by_weight, ..candidate(name, Form::Plain, build) }
}

fn goes_by_weight(net: &Net, id: LayerId, _: Numerics) -> bool {
    net.layer(id).tops.first().is_none_or(|top| net.blob(*top).grad.is_none())
}

/// One that finds images apart.
const fn strided(candidate: Candidate) -> Candidate {
    Candidate { strides: true, ..candidate }
}

const REFERENCE: Candidate = candidate("reference", Form::Plain, reference::build);
const CONVOLUTION: &[Candidate] = &[
    Candidate {
        fits: convolution::fits_entry_bf16,
        kept: Kept::Bf16,
        eager: true,
        strides: true,
        ..candidate("entry-tiles-bf16", Form::Entry, convolution::tiles_bf16)
    },
    Candidate {
        fits: convolution::fits_entry_winograd,
        pays: convolution::pays_entry_winograd,
        eager: true,
        strides: true,
        ..candidate("entry-winograd", Form::Entry, convolution::entry_winograd)
    },
    Candidate {
        fits: convolution::fits_entry,
        eager: true,
        strides: true,
        ..candidate("entry-tiles", Form::Entry, convolution::tiles)
    },
    Candidate {
        fits: convolution::fits_winograd_4x4_bf16,
        pays: convolution::pays_winograd_4x4,
        adds: every,
        rectifies: every,
        kept: Kept::Bf16,
        eager: true,
        strides: true,
        ..candidate("winograd-4x4-bf16", Form::Blocked, convolution::winograd_4x4_bf16)
    },
    Candidate {
        fits: convolution::fits_winograd_bf16,
        adds: every,
        rectifies: every,
        kept: Kept::Bf16,
        eager: true,
        strides: true,
        ..candidate("winograd-bf16", Form::Blocked, convolution::winograd_bf16)
    },
    Candidate {
        fits: convolution::fits_bf16,
        adds: convolution::tiles_add,
        rectifies: convolution::tiles_rectify,
        kept: Kept::Bf16,
        eager: true,
        strides: true,
        ..candidate("tiles-bf16", Form::Blocked, convolution::tiles_bf16)
    },
    Candidate {
        fits: convolution::fits_winograd_4x4,
        pays: convolution::pays_winograd_4x4,
        adds: every,
        rectifies: every,
        eager: true,
        strides: true,
        ..candidate("winograd-4x4", Form::Blocked, convolution::winograd_4x4)
    },
    Candidate {
        fits: convolution::fits_winograd,
        adds: every,
        rectifies: every,
        eager: true,
        strides: true,
        ..candidate("winograd", Form::Blocked, convolution::winograd)
    },
    Candidate {
        fits: convolution::fits_blocked,
        adds: convolution::tiles_add,
        rectifies: convolution::tiles_rectify,
        eager: true,
        strides: true,
        ..candidate("tiles", Form::Blocked, convolution::tiles)
    },
    candidate("im2col-gemm", Form::Plain, convolution::im2col),
    REFERENCE,
];
const POOLING: &[Candidate] = &[
    Candidate {
        fits: pooling::fits_blocked,
        kept: Kept::Either,
        rectifies: every,
        strides: true,
        ..candidate("blocks", Form::Blocked, pooling::blocked)
    },
    candidate("windows", Form::Plain, pooling::windows),
    REFERENCE,
];
const INNER_PRODUCT: &[Candidate] = &[
    Candidate {
        fits: inner_product::fits_bf16,
        steps: true,
        ..candidate("tiles-bf16", Form::Exit, inner_product::tiles_bf16)
    },
    Candidate {
        fits: inner_product::fits_tiles,
        steps: true,
        ..candidate("tiles", Form::Exit, inner_product::tiles)
    },
    candidate("gemm", Form::Plain, inner_product::gemm),
    REFERENCE,
];
const RELU: &[Candidate] = &[strided(stream("stream", Form::Any, relu::build)), REFERENCE];
const SOFTMAX: &[Candidate] = &[candidate("rows", Form::Plain, softmax::build), REFERENCE];
const SOFTMAX_LOSS: &[Candidate] = &[loss("rows", softmax_loss::build), REFERENCE];
const ACCURACY: &[Candidate] = &[candidate("rows", Form::Plain, accuracy::build), REFERENCE];
const SPLIT: &[Candidate] = &[strided(stream("stream", Form::Any, split::build)), REFERENCE];
const BATCH_NORM: &[Candidate] = &[strided(stream("channels", Form::Any, batch_norm::build)), REFERENCE];
const SCALE: &[Candidate] =
    &[Candidate { fits: scale::fits, ..strided(stream("channels", Form::Any, scale::build)) }, REFERENCE];
const ELTWISE: &[Candidate] = &[
    Candidate { fits: eltwise::keeps_zeros, ..stream("stream", Form::Any, eltwise::build) },
    Candidate { fits: eltwise::divides, ..candidate("stream", Form::Plain, eltwise::build) },
    REFERENCE,
];
const CONCAT: &[Candidate] = PIECES;
const SLICE: &[Candidate] = PIECES;
const PIECES: &[Candidate] = &[
    Candidate { fits: pieces::fits_blocked, ..strided(stream("blocks", Form::Blocked, pieces::build)) },
    candidate("stream", Form::Plain, pieces::build),
    REFERENCE,
];
const FLATTEN: &[Candidate] = &[candidate("view", Form::Plain, flatten::build), REFERENCE];
const CONTRASTIVE_LOSS: &[Candidate] = &[loss("pairs", contrastive_loss::build), REFERENCE];
const DROPOUT: &[Candidate] =
    &[Candidate { fits: dropout::fits, ..stream("stream", Form::Any, dropout::build) }, REFERENCE];
const LRN: &[Candidate] =
    &[Candidate { rectifies: every, ..stream("parts", Form::Any, lrn::build) }, REFERENCE];
const NEURON: &[Candidate] = &[
    Candidate { fits: neuron::fits_blocks, ..strided(stream("stream", Form::Any, neuron::build)) },
    Candidate { fits: neuron::fits_plain, ..candidate("stream", Form::Plain, neuron::build) },
    REFERENCE,
];
const PRELU: &[Candidate] = &[strided(stream("channels", Form::Any, prelu::build)), REFERENCE];
const BIAS: &[Candidate] = &[
    Candidate { fits: scale::fits, ..strided(stream("channels", Form::Any, scale::build)) },
    candidate("spread", Form::Plain, bias::build),
    REFERENCE,
];
const MVN: &[Candidate] = &[candidate("rows", Form::Plain, mvn::build), REFERENCE];
const REDUCTION: &[Candidate] = &[candidate("rows", Form::Plain, reduction::build), REFERENCE];
const EUCLIDEAN_LOSS: &[Candidate] = &[loss("stream", distance_loss::euclidean), REFERENCE];
const SIGMOID_CROSS_ENTROPY_LOSS: &[Candidate] =
    &[loss("stream", distance_loss::sigmoid_cross_entropy), REFERENCE];
const LABEL_LOSS: &[Candidate] = &[loss("rows", label_loss::build), REFERENCE];
const INFOGAIN_LOSS: &[Candidate] = &[loss("rows", infogain_loss::build), REFERENCE];
const LOSS_TERM: &[Candidate] = &[candidate("fill", Form::Plain, loss_term::build), REFERENCE];
const SOURCE: &[Candidate] = &[REFERENCE];
/// It is there to look inside, not to be fast.
const SEED: &[Candidate] = &[REFERENCE];
const CONVOLUTION_ND: &[Candidate] = &[candidate("im2col-gemm", Form::Plain, convolution::im2col), REFERENCE];
const IM2COL: &[Candidate] = &[candidate("rows", Form::Plain, arrange::im2col), REFERENCE];
const CROP: &[Candidate] = &[candidate("rows", Form::Plain, arrange::crop), REFERENCE];
const TILE: &[Candidate] = &[candidate("rows", Form::Plain, arrange::tile), REFERENCE];
const BATCH_REINDEX: &[Candidate] = &[candidate("rows", Form::Plain, arrange::batch_reindex), REFERENCE];
const FILTER: &[Candidate] = &[candidate("rows", Form::Plain, arrange::filter), REFERENCE];
const ARGMAX: &[Candidate] = &[candidate("rows", Form::Plain, lookup::argmax), REFERENCE];
const EMBED: &[Candidate] = &[candidate("rows", Form::Plain, lookup::embed), REFERENCE];
const PARAMETER: &[Candidate] = &[candidate("stream", Form::Plain, made_up::parameter), REFERENCE];
const DUMMY_DATA: &[Candidate] = &[candidate("fillers", Form::Plain, made_up::dummy_data), REFERENCE];
const SILENCE: &[Candidate] = &[candidate("zeros", Form::Plain, made_up::silence), REFERENCE];
const RECURRENT: &[Candidate] = &[candidate("gemm", Form::Plain, recurrent::build), REFERENCE];

/// The implementations of a layer, best first.
pub(super) fn candidates(layer: &Layer) -> &'static [Candidate] {
    match layer {
        Layer::Convolution(_) => CONVOLUTION,
        Layer::Pooling(_) => POOLING,
        Layer::InnerProduct(_) => INNER_PRODUCT,
        Layer::Relu(_) => RELU,
        Layer::BatchNorm(_) | Layer::Normalize(_) => BATCH_NORM,
        Layer::Scale(_) => SCALE,
        Layer::Eltwise(_) => ELTWISE,
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
        Layer::Neuron(_) => NEURON,
        Layer::Prelu(_) => PRELU,
        Layer::Bias(_) => BIAS,
        Layer::Mvn(_) => MVN,
        Layer::Reduction(_) => REDUCTION,
        Layer::EuclideanLoss(_) => EUCLIDEAN_LOSS,
        Layer::SigmoidCrossEntropyLoss(_) => SIGMOID_CROSS_ENTROPY_LOSS,
        Layer::HingeLoss(_) | Layer::MultinomialLogisticLoss(_) => LABEL_LOSS,
        Layer::InfogainLoss(_) => INFOGAIN_LOSS,
        Layer::LossTerm(_) => LOSS_TERM,
        Layer::Data(_) | Layer::Input(_) | Layer::Hdf5Data(_) => SOURCE,
        Layer::Seed(_) => SEED,
        Layer::ConvolutionNd(_) => CONVOLUTION_ND,
        Layer::Im2col(_) => IM2COL,
        Layer::Reshape(_) => FLATTEN,
        Layer::Crop(_) => CROP,
        Layer::Tile(_) => TILE,
        Layer::BatchReindex(_) => BATCH_REINDEX,
        Layer::Filter(_) => FILTER,
        Layer::Silence(_) => SILENCE,
        Layer::ArgMax(_) => ARGMAX,
        Layer::Embed(_) => EMBED,
        Layer::Parameter(_) => PARAMETER,
        Layer::DummyData(_) => DUMMY_DATA,
        Layer::Recurrent(_) => RECURRENT,
        // A net has pooling in its place.
        Layer::PyramidLevel(_) => POOLING,
    }
}

/// The names of the implementations that can do a layer on a tier in a precision, best first but for those that do not pay.
pub fn implementations(net: &Net, id: LayerId, numerics: impl Into<Numerics>) -> Vec<&'static str> {
    let numerics = numerics.into();
    let list = candidates(&net.layer(id).layer).iter();
    list.filter(|c| (c.fits)(net, id, numerics)).map(|c| c.name).collect()
}
