//! What nets, plans and programs ask a layer beside its meaning.

use super::{Layer, Meaning, Normalize, Recurrent};
use crate::net::ParamRule;
use crate::shape::Shape;

impl Layer {
    /// Whether the layer's state `index` is kept from one step to the next.
    pub fn keeps_state(&self, index: usize) -> bool {
        matches!(self, Self::Recurrent(l) if !l.expose_hidden && index != Recurrent::GATES)
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
            Self::Bias(l) if l.bottoms == 1 && l.num_axes != 0 => (l.axis, "bias_param.axis"),
            Self::Reduction(l) => (l.axis, "reduction_param.axis"),
            Self::InfogainLoss(l) => (l.axis, "infogain_loss_param.axis"),
            Self::ConvolutionNd(l) => (l.axis, "convolution_param.axis"),
            Self::Im2col(l) => (l.axis, "convolution_param.axis"),
            Self::Crop(l) => (l.axis, "crop_param.axis"),
            Self::Tile(l) => (l.axis, "tile_param.axis"),
            Self::ArgMax(l) => (l.axis?, "argmax_param.axis"),
            Self::Reshape(l) => {
                let top = l.infer(bottoms).ok()?.tops.swap_remove(0);
                return (top.images() != bottoms[0].images()).then_some("reshape_param.shape");
            }
            Self::BatchReindex(_) | Self::Filter(_) | Self::Recurrent(_) => return Some("bottom"),
            Self::DummyData(_) => return Some("dummy_data_param.shape"),
            _ => return None,
        };
        (bottoms[0].axis(axis, field) == Ok(0)).then_some(field)
    }

    /// Whether forward and ∇A of the layer compute each image by itself, from what the bottom has of that image and from
    /// parameters: such a layer can be computed a chunk of images at a time. There may be others.
    pub fn computes_images_apart(&self, bottoms: &[Shape]) -> bool {
        let apart = matches!(
            self,
            Self::Convolution(_) | Self::InnerProduct(_) | Self::Lrn(_) | Self::Pooling(_) | Self::Relu(_)
        );
        apart && self.mixes_images(bottoms).is_none()
    }

    /// Whether the layer's tops come from outside the net.
    pub fn is_source(&self) -> bool {
        matches!(self, Self::Data(_) | Self::Input(_) | Self::Hdf5Data(_))
    }
}
