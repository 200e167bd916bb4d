//! From the message LayerParameter to core's [`LayerSpec`].
//!
//! Messages are taken apart without `..`, so that the compiler finds a field that nobody thought of.

use prost_reflect::DynamicMessage;
use quadrille_core::layer::{
    BatchNorm, BatchReindex, Cell, Dropout, Eltwise, EltwiseOperation, EuclideanLoss, Filler, Filter,
    InnerProduct, Input, Layer, MultinomialLogisticLoss, Relu, Scale, Silence, Softmax, Split, TYPE_NAMES,
};
use quadrille_core::net::{LayerSpec, ParamSpec, Phase, ShareMode, StateRule};
use quadrille_core::site::{Fault, Site, SpecError, did_you_mean};

use super::fields::{extents, filler, finite, typed, unsupported};
use super::sources;
use super::tokens::shortened;
use super::{arrange, convolved, loss, neuron, sequences, window};
use crate::schema::eltwise_parameter::EltwiseOp;
use crate::schema::param_spec::DimCheckMode;
use crate::schema::{
    self, BatchNormParameter, DropoutParameter, EltwiseParameter, InnerProductParameter, LayerParameter,
    NetStateRule, ScaleParameter,
};

/// Every layer type of BVLC Caffe that is not in [`TYPE_NAMES`].
const CAFFE_TYPES: [&str; 3] = ["HDF5Output", "LSTMUnit", "Python"];

/// The layers that a message is: one, but for those that are made of others.
pub(super) fn convert(message: &DynamicMessage, site: Site) -> Result<Vec<LayerSpec>, SpecError> {
    let parameter: LayerParameter = typed(message).map_err(|fault| fault.at(&site, "layer"))?;
    let name = parameter.name.clone().unwrap_or_default();
    let subject = if name.is_empty() { "layer".to_owned() } else { format!("layer {:?}", shortened(&name)) };
    let read = || -> Result<LayerSpec, Fault> {
        if name.is_empty() {
            return Err(Fault::new("name", "missing; every layer needs a name")
                .hint("write name: \"conv1\", for example; weights go by it"));
        }
        let layer = read_layer(message, &parameter, &site.file)?;
        common(&parameter, layer)
    };
    match read() {
        Ok(spec) => {
            let levels = parameter.spp_param.map_or(1, |param| param.pyramid_height());
            Ok(window::pyramid(levels, LayerSpec { site, ..spec }))
        }
        Err(fault) => Err(fault.at(&site, &subject)),
    }
}

/// What every layer has.
fn common(parameter: &LayerParameter, layer: Layer) -> Result<LayerSpec, Fault> {
    if parameter.phase.is_some() {
        return Err(unsupported("phase", "a phase of the layer's own is")
            .hint("write include { phase: TRAIN } to choose the phase that a layer belongs to"));
    }
    if !parameter.blobs.is_empty() {
        return Err(unsupported("blobs", "weights in a network file are")
            .hint("remove the blobs; weights are loaded from a snapshot"));
    }
    if !parameter.include.is_empty() && !parameter.exclude.is_empty() {
        return Err(Fault::new("exclude", "conflicts with include; give only one of them")
            .hint("a layer belongs where one of its include holds, or else where none of its exclude does"));
    }
    let bottoms = parameter.bottom.len();
    if !parameter.propagate_down.is_empty() && parameter.propagate_down.len() != bottoms {
        return Err(Fault::new(
            "propagate_down",
            format!("{} values for {bottoms} bottoms; expected one for each", parameter.propagate_down.len()),
        ));
    }
    for weight in &parameter.loss_weight {
        finite(*weight, "loss_weight")?;
    }
    let rules = |rules: &[NetStateRule]| rules.iter().map(rule).collect();
    Ok(LayerSpec {
        name: parameter.name.clone().unwrap_or_default(),
        site: Site::default(),
        layer,
        bottoms: parameter.bottom.clone(),
        tops: parameter.top.clone(),
        params: parameter.param.iter().map(param).collect::<Result<_, _>>()?,
        loss_weights: parameter.loss_weight.clone(),
        propagate_down: parameter.propagate_down.clone(),
        include: rules(&parameter.include),
        exclude: rules(&parameter.exclude),
    })
}

fn param(param: &schema::ParamSpec) -> Result<ParamSpec, Fault> {
    let schema::ParamSpec { name, share_mode: _, lr_mult, decay_mult } = param;
    let factor = |value: &Option<f32>, field: &str| value.map(|value| finite(value, field)).transpose();
    Ok(ParamSpec {
        name: name.clone().filter(|name| !name.is_empty()),
        share: match param.share_mode() {
            DimCheckMode::Strict => ShareMode::Strict,
            DimCheckMode::Permissive => ShareMode::Permissive,
        },
        lr_mult: factor(lr_mult, "param.lr_mult")?,
        decay_mult: factor(decay_mult, "param.decay_mult")?,
    })
}

/// A phase of the schema.
pub(super) fn phase_of(phase: schema::Phase) -> Phase {
    match phase {
        schema::Phase::Train => Phase::Train,
        schema::Phase::Test => Phase::Test,
    }
}

fn rule(rule: &NetStateRule) -> StateRule {
    StateRule {
        phase: rule.phase.map(|_| phase_of(rule.phase())),
        min_level: rule.min_level,
        max_level: rule.max_level,
        stages: rule.stage.clone(),
        not_stages: rule.not_stage.clone(),
    }
}

/// Type and parameters. `file` is the network file.
fn read_layer(message: &DynamicMessage, parameter: &LayerParameter, file: &str) -> Result<Layer, Fault> {
    let (own, layer): (&[&str], _) = match parameter.r#type() {
        "Data" => (&["data_param", "transform_param"], sources::data(parameter)),
        "HDF5Data" => (&["hdf5_data_param"], sources::hdf5_data(parameter)),
        "ImageData" => (&["image_data_param", "transform_param"], sources::image_data(parameter)),
        "MemoryData" => (&["memory_data_param", "transform_param"], sources::memory_data(parameter)),
        "WindowData" => (&["window_data_param", "transform_param"], sources::window_data(parameter)),
        "Input" => (&["input_param"], input(parameter)),
        // Nobody needs to write one, but Caffe prints networks with those that it inserted.
        "Split" => (&[], Ok(Layer::Split(Split { tops: parameter.top.len() }))),
        "Convolution" => (&["convolution_param"], convolved::convolution(parameter, false)),
        "Deconvolution" => (&["convolution_param"], convolved::convolution(parameter, true)),
        "Im2col" => (&["convolution_param"], convolved::im2col(parameter)),
        "SPP" => (&["spp_param"], window::spp(parameter)),
        "Pooling" => (&["pooling_param"], window::pooling(parameter)),
        "InnerProduct" => (&["inner_product_param"], inner_product(parameter)),
        "ReLU" => (&["relu_param"], relu(parameter)),
        "BatchNorm" => (&["batch_norm_param"], batch_norm(parameter)),
        "Scale" => (&["scale_param"], scale(parameter)),
        "Eltwise" => (&["eltwise_param"], eltwise(parameter)),
        "Softmax" => {
            (&["softmax_param"], Ok(Layer::Softmax(Softmax { axis: loss::softmax_axis(parameter) })))
        }
        "SoftmaxWithLoss" => (&["softmax_param", "loss_param"], loss::softmax_with_loss(parameter)),
        "Concat" => (&["concat_param"], arrange::concat(parameter)),
        "Slice" => (&["slice_param"], arrange::slice(parameter)),
        "Flatten" => (&["flatten_param"], Ok(arrange::flatten(parameter))),
        "Reshape" => (&["reshape_param"], arrange::reshape(parameter)),
        "Crop" => (&["crop_param"], Ok(arrange::crop(parameter))),
        "Tile" => (&["tile_param"], arrange::tile(parameter)),
        "ArgMax" => (&["argmax_param"], Ok(arrange::argmax(parameter))),
        "BatchReindex" => (&[], Ok(Layer::BatchReindex(BatchReindex))),
        "Filter" => (&[], Ok(Layer::Filter(Filter { bottoms: parameter.bottom.len() }))),
        "Silence" => (&[], Ok(Layer::Silence(Silence { bottoms: parameter.bottom.len() }))),
        "Embed" => (&["embed_param"], sequences::embed(parameter)),
        "Parameter" => (&["parameter_param"], sequences::parameter(parameter)),
        "DummyData" => (&["dummy_data_param"], sequences::dummy_data(parameter)),
        "RNN" => (&["recurrent_param"], sequences::recurrent(parameter, Cell::Rnn)),
        "LSTM" => (&["recurrent_param"], sequences::recurrent(parameter, Cell::Lstm)),
        "ContrastiveLoss" => (&["contrastive_loss_param"], loss::contrastive_loss(parameter)),
        "Dropout" => (&["dropout_param"], dropout(parameter)),
        "LRN" => (&["lrn_param"], window::lrn(parameter)),
        "Accuracy" => (&["accuracy_param"], loss::accuracy(parameter)),
        "PReLU" => (&["prelu_param"], neuron::prelu(parameter)),
        "Bias" => (&["bias_param"], neuron::bias(parameter)),
        "MVN" => (&["mvn_param"], neuron::mvn(parameter)),
        "Reduction" => (&["reduction_param"], neuron::reduction(parameter)),
        "SigmoidCrossEntropyLoss" => (&["loss_param"], Ok(loss::sigmoid_cross_entropy(parameter))),
        "EuclideanLoss" => (&[], Ok(Layer::EuclideanLoss(EuclideanLoss))),
        "HingeLoss" => (&["hinge_loss_param"], Ok(loss::hinge(parameter))),
        "MultinomialLogisticLoss" => (&[], Ok(Layer::MultinomialLogisticLoss(MultinomialLogisticLoss))),
        "InfogainLoss" => (&["infogain_loss_param", "loss_param"], loss::infogain(parameter, file)),
        other => neuron::neuron(other, message, parameter).ok_or_else(|| unknown_type(other))?,
    };
    let stranger = message
        .fields()
        .map(|(field, _)| field.name().to_owned())
        .find(|name| name.ends_with("_param") && !own.contains(&name.as_str()));
    if let Some(name) = stranger {
        let kind = parameter.r#type();
        let reads = if own.is_empty() { "no parameters".to_owned() } else { own.join(" and ") };
        return Err(Fault::new(&name, format!("has no meaning in a layer of type {kind}"))
            .hint(format!("remove it; this type reads {reads}")));
    }
    layer
}

fn unknown_type(name: &str) -> Fault {
    let word = shortened(name);
    let fault = |text: String| Fault::new("type", text);
    if name.is_empty() {
        return fault("missing".to_owned()).hint("write type: \"Convolution\", for example");
    }
    if name == "Python" {
        return fault("layers of type \"Python\" are not supported; their code is the user's own".to_owned())
            .hint("write it with other layers, or give what it makes as an Input");
    }
    if name == "HDF5Output" {
        return fault(
            "layers of type \"HDF5Output\" are not supported: a network here writes no files".to_owned(),
        )
        .hint("remove the layer; the command extract writes the values of all blobs");
    }
    if CAFFE_TYPES.contains(&name) {
        let known = TYPE_NAMES.join(", ");
        return fault(format!("layers of type {name:?} are not supported yet; supported are {known}"));
    }
    let fault = fault(format!("unknown layer type {word:?}"));
    if let Some(close) = did_you_mean(&word, TYPE_NAMES) {
        return fault.hint(format!("did you mean {close:?}?"));
    }
    match did_you_mean(&word, CAFFE_TYPES) {
        Some(close) => fault.hint(format!("did you mean {close:?}? It is not supported yet")),
        None => fault,
    }
}

fn input(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let shapes = parameter.input_param.as_ref().map_or(&[][..], |p| &p.shape);
    let shapes: Vec<Vec<usize>> =
        shapes.iter().map(|s| extents(&s.dim, "input_param.shape")).collect::<Result<_, _>>()?;
    // Without a shape it is that of what the command feeds it with, or, if nothing does, missing there.
    Ok(Layer::Input(Input { shapes, tops: parameter.top.len() }))
}

pub(super) fn outputs(num_output: Option<u32>, message: &str) -> Result<usize, Fault> {
    let missing =
        || Fault::new(&format!("{message}.num_output"), "missing").hint("say how many outputs there are");
    num_output.map(|n| n as usize).ok_or_else(missing)
}

/// The filler of something that is not a stack of images.
pub(super) fn flat_filler(param: Option<&schema::FillerParameter>, field: &str) -> Result<Filler, Fault> {
    let filler = filler(param, field)?;
    if filler == Filler::Bilinear {
        return Err(Fault::new(&format!("{field}.type"), "bilinear is for the weights of convolutions only"));
    }
    Ok(filler)
}

fn inner_product(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let message = "inner_product_param";
    let Some(param) = &parameter.inner_product_param else {
        return Err(
            Fault::new(message, "missing").hint("write inner_product_param { num_output: 10 }, for example")
        );
    };
    let InnerProductParameter {
        num_output,
        bias_term: _,
        weight_filler,
        bias_filler,
        axis: _,
        transpose: _,
        engine: _,
    } = param;
    Ok(Layer::InnerProduct(InnerProduct {
        num_output: outputs(*num_output, message)?,
        bias: param.bias_term(),
        axis: param.axis(),
        transpose: param.transpose(),
        weight_filler: flat_filler(weight_filler.as_ref(), "inner_product_param.weight_filler")?,
        bias_filler: flat_filler(bias_filler.as_ref(), "inner_product_param.bias_filler")?,
    }))
}

fn relu(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let slope = parameter.relu_param.as_ref().map_or(0.0, |p| p.negative_slope());
    Ok(Layer::Relu(Relu { negative_slope: finite(slope, "relu_param.negative_slope")?, applied: false }))
}

fn batch_norm(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.batch_norm_param.unwrap_or_default();
    let BatchNormParameter { use_global_stats, moving_average_fraction: _, eps: _, engine: _ } = param;
    let fraction = param.moving_average_fraction();
    Ok(Layer::BatchNorm(BatchNorm {
        use_global_stats,
        moving_average_fraction: finite(fraction, "batch_norm_param.moving_average_fraction")?,
        eps: finite(param.eps(), "batch_norm_param.eps")?,
    }))
}

fn scale(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.scale_param.clone().unwrap_or_default();
    let ScaleParameter { axis: _, num_axes: _, filler, bias_term: _, bias_filler } = &param;
    Ok(Layer::Scale(Scale {
        bottoms: parameter.bottom.len(),
        axis: param.axis(),
        num_axes: param.num_axes(),
        bias: param.bias_term(),
        // Without a filler the layer starts as the identity.
        filler: match filler {
            None => Filler::Constant(1.0),
            filler => flat_filler(filler.as_ref(), "scale_param.filler")?,
        },
        bias_filler: flat_filler(bias_filler.as_ref(), "scale_param.bias_filler")?,
    }))
}

fn eltwise(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.eltwise_param.clone().unwrap_or_default();
    let EltwiseParameter { operation: _, coeff, stable_prod_grad: _, engine: _ } = &param;
    let (bottoms, field) = (parameter.bottom.len(), "eltwise_param.coeff");
    let operation = param.operation();
    if operation == EltwiseOp::Prod && !coeff.is_empty() {
        return Err(Fault::new(field, "a product takes no coefficients")
            .hint("remove them, or write operation: SUM for a weighted sum"));
    }
    if !coeff.is_empty() && coeff.len() != bottoms {
        let given = coeff.len();
        return Err(Fault::new(
            field,
            format!("{given} given for {bottoms} bottoms; expected none, or one for each"),
        ));
    }
    for value in coeff {
        finite(*value, field)?;
    }
    let operation = match operation {
        EltwiseOp::Prod => EltwiseOperation::Product { stable_gradient: param.stable_prod_grad() },
        EltwiseOp::Sum => EltwiseOperation::Sum { coefficients: coeff.clone(), relu: false },
        // As in Caffe, coefficients of a maximum change nothing.
        EltwiseOp::Max => EltwiseOperation::Max,
    };
    Ok(Layer::Eltwise(Eltwise { bottoms, operation }))
}

fn dropout(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.dropout_param.unwrap_or_default();
    let DropoutParameter { dropout_ratio: _ } = param;
    let ratio = param.dropout_ratio();
    if !(0.0..1.0).contains(&ratio) {
        return Err(Fault::new(
            "dropout_param.dropout_ratio",
            format!("{ratio}; expected at least 0 and less than 1"),
        ));
    }
    // The net knows its phase.
    Ok(Layer::Dropout(Dropout { ratio, active: true }))
}
