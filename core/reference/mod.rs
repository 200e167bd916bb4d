//! The oracle: every sub-task of every layer as naive loops, to be read beside the formula and never optimised.
//!
//! One file per layer family, as in [`crate::layer`]. Each array is owned and apart from all others, so whether a
//! backend works in place or splits the work cannot make a difference here. [`ReferenceNet`] runs a whole net.

mod accuracy;
mod argmax;
mod arrange;
mod arrays;
mod batch_norm;
mod bias;
mod concat;
mod contrastive_loss;
mod convolution;
mod convolution_nd;
mod dropout;
mod eltwise;
mod embed;
mod euclidean_loss;
mod flatten;
mod hinge_loss;
mod infogain_loss;
mod inner_product;
mod loss_term;
mod lrn;
mod multinomial_loss;
mod mvn;
mod net;
mod neuron;
mod normalize;
mod pooling;
mod prelu;
mod real;
mod recurrent;
mod reduction;
mod relu;
mod scale;
mod seed;
mod sigmoid_cross_entropy_loss;
mod softmax;
mod softmax_loss;
mod split;

pub use arrays::Arrays;
pub use net::ReferenceNet;
pub use real::Real;

use crate::layer::{Layer, Operand, SubTask};
use crate::rng::Draw;
use crate::shape::Shape;

/// A layer in its place: all that a sub-task has to know besides its arrays.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The layer.
    pub layer: &'a Layer,
    /// Shapes of the bottoms.
    pub bottoms: &'a [Shape],
    /// Shapes of the tops that exist; a loss may have fewer than it can make.
    pub tops: &'a [Shape],
    /// Weight of each top in the loss; read by losses only.
    pub loss_weights: &'a [f32],
    /// Where random numbers come from; read by layers that draw.
    pub draw: Draw,
    /// The part of the worker's mini-batch that the net computes; read by layers that sum over images for others
    /// than a loss.
    pub share: f32,
}

/// Computes `sub`. Reads the operands that [`Layer::accesses`] declares and replaces those it declares as written:
/// gradients are not added to what was there. Tops that do not exist are neither read nor written, and a sub-task
/// that the layer does not have changes nothing.
///
/// # Panics
/// If the layer is impossible on these shapes ([`Layer::infer`] fails), if a declared operand is missing, or if an
/// array is shorter than its shape: an oracle must not answer such a question.
pub fn compute<T: Real>(ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let from_above = arrays.find(Operand::TopGrad(0)).filter(|_| ctx.layer.is_loss()).map(|grad| grad[0]);
    match from_above {
        Some(gradient) if sub == SubTask::GradActivation => {
            // A loss that is read by others has its weight from them, too.
            compute_by_itself(&Context { loss_weights: &[1.0], ..*ctx }, sub, arrays);
            let weight = gradient + T::from_f32(ctx.loss_weights[0]);
            for bottom in (0..ctx.bottoms.len()).map(Operand::BottomGrad) {
                let Some(mut values) = arrays.take(bottom) else { continue };
                values.iter_mut().for_each(|value| *value = *value * weight);
                arrays.insert(bottom, values);
            }
        }
        _ => compute_by_itself(ctx, sub, arrays),
    }
}

/// The same for losses that go by their weights alone, and for all other layers.
fn compute_by_itself<T: Real>(ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    match ctx.layer {
        Layer::Convolution(layer) => convolution::compute(layer, ctx, sub, arrays),
        Layer::Pooling(layer) => pooling::compute(layer, ctx, sub, arrays),
        Layer::InnerProduct(layer) => inner_product::compute(layer, ctx, sub, arrays),
        Layer::Relu(layer) => relu::compute(layer, sub, arrays),
        Layer::BatchNorm(layer) => batch_norm::compute(layer, ctx, sub, arrays),
        Layer::Scale(layer) => scale::compute(layer, ctx, sub, arrays),
        Layer::Normalize(layer) => normalize::compute(layer, ctx, sub, arrays),
        Layer::Eltwise(layer) => eltwise::compute(layer, sub, arrays),
        Layer::Softmax(layer) => softmax::compute(layer, ctx, sub, arrays),
        Layer::SoftmaxWithLoss(layer) => softmax_loss::compute(layer, ctx, sub, arrays),
        Layer::Accuracy(layer) => accuracy::compute(layer, ctx, sub, arrays),
        Layer::Concat(layer) => concat::compute_concat(layer, ctx, sub, arrays),
        Layer::Slice(layer) => concat::compute_slice(layer, ctx, sub, arrays),
        Layer::Flatten(_) => flatten::compute(sub, arrays),
        Layer::ContrastiveLoss(layer) => contrastive_loss::compute(layer, ctx, sub, arrays),
        Layer::Dropout(layer) => dropout::compute(layer, ctx, sub, arrays),
        Layer::Lrn(layer) => lrn::compute(layer, ctx, sub, arrays),
        Layer::Neuron(layer) => neuron::compute(layer, sub, arrays),
        Layer::Prelu(layer) => prelu::compute(layer, ctx, sub, arrays),
        Layer::Bias(layer) => bias::compute(layer, ctx, sub, arrays),
        Layer::Mvn(layer) => mvn::compute(layer, ctx, sub, arrays),
        Layer::Reduction(layer) => reduction::compute(layer, ctx, sub, arrays),
        Layer::SigmoidCrossEntropyLoss(layer) => {
            sigmoid_cross_entropy_loss::compute(layer, ctx, sub, arrays);
        }
        Layer::EuclideanLoss(_) => euclidean_loss::compute(ctx, sub, arrays),
        Layer::HingeLoss(layer) => hinge_loss::compute(layer, ctx, sub, arrays),
        Layer::MultinomialLogisticLoss(_) => multinomial_loss::compute(ctx, sub, arrays),
        Layer::InfogainLoss(layer) => infogain_loss::compute(layer, ctx, sub, arrays),
        Layer::LossTerm(_) => loss_term::compute(ctx, sub, arrays),
        Layer::Split(layer) => split::compute(layer, ctx, sub, arrays),
        Layer::Seed(_) => seed::compute(sub, arrays),
        Layer::ConvolutionNd(layer) => convolution_nd::compute(layer, ctx, sub, arrays),
        Layer::Im2col(layer) => arrange::im2col(layer, ctx, sub, arrays),
        Layer::Reshape(_) => flatten::compute(sub, arrays),
        Layer::Crop(layer) => arrange::crop(layer, ctx, sub, arrays),
        Layer::Tile(layer) => arrange::tile(layer, ctx, sub, arrays),
        Layer::BatchReindex(_) => arrange::batch_reindex(ctx, sub, arrays),
        Layer::Filter(_) => arrange::filter(ctx, sub, arrays),
        Layer::Silence(layer) => arrange::silence(layer, ctx, sub, arrays),
        Layer::ArgMax(layer) => argmax::compute(layer, ctx, sub, arrays),
        Layer::Embed(layer) => embed::compute(layer, ctx, sub, arrays),
        Layer::Parameter(_) => arrange::parameter(sub, arrays),
        Layer::DummyData(layer) => arrange::dummy_data(layer, ctx, sub, arrays),
        Layer::Recurrent(layer) => recurrent::compute(layer, ctx, sub, arrays),
        // A net has pooling in its place.
        Layer::PyramidLevel(_) => {}
        // Their tops come from outside.
        Layer::Data(_) | Layer::Input(_) | Layer::Hdf5Data(_) => {}
    }
}

/// Extents of a blob of images: (N, C, H, W).
fn image_dims(shape: &Shape) -> [usize; 4] {
    [0, 1, 2, 3].map(|axis| shape.dim(axis))
}

/// Place of element `[a, b, c, d]` in an array of extents `dims`, the last axis being the fastest.
fn at(dims: [usize; 4], [a, b, c, d]: [usize; 4]) -> usize {
    ((a * dims[1] + b) * dims[2] + c) * dims[3] + d
}
