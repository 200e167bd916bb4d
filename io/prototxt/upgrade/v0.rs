//! From `layers { layer { name: "conv1" type: "conv" num_output: 20 } bottom: "data" top: "conv1" }` to V1.
//!
//! All types shared one message for their fields, and padding was a layer of its own before a convolution or a pooling.

use std::collections::HashMap;

use prost_reflect::{DynamicMessage, Value};
use quadrille_core::site::{Fault, Site, SpecError, did_you_mean};

use super::{Entry, moved, put, subject, text_of, texts_of};
use crate::prototxt::tokens::shortened;
use crate::schema::descriptor;
use crate::schema::v1_layer_parameter::LayerType;

/// The type of layers that only pad; the next convolution or pooling does it now.
const PADDING: &str = "padding";

/// The types, and their names in V1.
pub(super) const TYPES: [(&str, LayerType); 24] = [
    ("accuracy", LayerType::Accuracy),
    ("bnll", LayerType::Bnll),
    ("concat", LayerType::Concat),
    ("conv", LayerType::Convolution),
    ("data", LayerType::Data),
    ("dropout", LayerType::Dropout),
    ("euclidean_loss", LayerType::EuclideanLoss),
    ("flatten", LayerType::Flatten),
    ("hdf5_data", LayerType::Hdf5Data),
    ("hdf5_output", LayerType::Hdf5Output),
    ("im2col", LayerType::Im2col),
    ("images", LayerType::ImageData),
    ("infogain_loss", LayerType::InfogainLoss),
    ("innerproduct", LayerType::InnerProduct),
    ("lrn", LayerType::Lrn),
    ("multinomial_logistic_loss", LayerType::MultinomialLogisticLoss),
    ("pool", LayerType::Pooling),
    ("relu", LayerType::Relu),
    ("sigmoid", LayerType::Sigmoid),
    ("softmax", LayerType::Softmax),
    ("softmax_loss", LayerType::SoftmaxLoss),
    ("split", LayerType::Split),
    ("tanh", LayerType::Tanh),
    ("window_data", LayerType::WindowData),
];

/// Fields with a place of their own in V1, whatever the type.
pub(super) const COMMON: [(&str, &str); 8] = [
    ("name", "name"),
    ("blobs", "blobs"),
    ("blobs_lr", "blobs_lr"),
    ("weight_decay", "weight_decay"),
    ("scale", "transform_param.scale"),
    ("meanfile", "transform_param.mean_file"),
    ("cropsize", "transform_param.crop_size"),
    ("mirror", "transform_param.mirror"),
];

/// Fields of some types: the types, and the name in these types' message in V1.
pub(super) const OWN: [(&str, &[&str], &str); 27] = [
    ("num_output", &["conv", "innerproduct"], "num_output"),
    ("biasterm", &["conv", "innerproduct"], "bias_term"),
    ("weight_filler", &["conv", "innerproduct"], "weight_filler"),
    ("bias_filler", &["conv", "innerproduct"], "bias_filler"),
    ("pad", &["conv", "pool"], "pad"),
    ("kernelsize", &["conv", "pool"], "kernel_size"),
    ("group", &["conv"], "group"),
    ("stride", &["conv", "pool"], "stride"),
    ("pool", &["pool"], "pool"),
    ("dropout_ratio", &["dropout"], "dropout_ratio"),
    ("local_size", &["lrn"], "local_size"),
    ("alpha", &["lrn"], "alpha"),
    ("beta", &["lrn"], "beta"),
    ("k", &["lrn"], "k"),
    ("source", &["data", "hdf5_data", "images", "window_data", "infogain_loss"], "source"),
    ("batchsize", &["data", "hdf5_data", "images", "window_data"], "batch_size"),
    ("rand_skip", &["data", "images"], "rand_skip"),
    ("shuffle_images", &["images"], "shuffle"),
    ("new_height", &["images"], "new_height"),
    ("new_width", &["images"], "new_width"),
    ("concat_dim", &["concat"], "concat_dim"),
    ("det_fg_threshold", &["window_data"], "fg_threshold"),
    ("det_bg_threshold", &["window_data"], "bg_threshold"),
    ("det_fg_fraction", &["window_data"], "fg_fraction"),
    ("det_context_pad", &["window_data"], "context_pad"),
    ("det_crop_mode", &["window_data"], "crop_mode"),
    ("hdf5_output_param", &["hdf5_output"], ""),
];

/// The messages of the types that have one, in V1.
pub(super) const MESSAGES: [(&str, &str); 12] = [
    ("conv", "convolution_param"),
    ("innerproduct", "inner_product_param"),
    ("pool", "pooling_param"),
    ("dropout", "dropout_param"),
    ("lrn", "lrn_param"),
    ("concat", "concat_param"),
    ("data", "data_param"),
    ("hdf5_data", "hdf5_data_param"),
    ("hdf5_output", "hdf5_output_param"),
    ("images", "image_data_param"),
    ("window_data", "window_data_param"),
    ("infogain_loss", "infogain_loss_param"),
];

/// The path in V1 of a field in a layer of type `kind`, if it has a meaning there.
pub(super) fn path_of(field: &str, kind: &str) -> Option<String> {
    if let Some((_, path)) = COMMON.iter().find(|(name, _)| *name == field) {
        return Some((*path).to_owned());
    }
    let (_, types, name) = OWN.iter().find(|(name, ..)| *name == field)?;
    let (_, message) = MESSAGES.iter().find(|(name, _)| *name == kind && types.contains(name))?;
    Some(if name.is_empty() { (*message).to_owned() } else { format!("{message}.{name}") })
}

/// A layer as it was written.
struct Old {
    layer: DynamicMessage,
    name: String,
    kind: String,
    bottoms: Vec<String>,
    tops: Vec<String>,
    site: Site,
}

impl Old {
    /// The message inside, which says it all but for the wiring.
    fn read(entry: Entry) -> Result<Self, SpecError> {
        let Entry { message, site } = entry;
        let inside = message.get_field_by_name("layer").map(|value| value.into_owned());
        let (Some(Value::Message(layer)), true) = (inside, message.has_field_by_name("layer")) else {
            let fault = Fault::new("layer", "missing, while other layers of this file have it");
            let fault = fault
                .hint("a file is in one form: layers { layer { ... } bottom: top: } or layers { type: }");
            return Err(fault.at(&site, &subject(&text_of(&message, "name"))));
        };
        let (name, kind) = (text_of(&layer, "name"), text_of(&layer, "type"));
        let mut fields = message.fields().map(|(field, _)| field.name().to_owned());
        if let Some(field) = fields.find(|name| !["layer", "bottom", "top"].contains(&name.as_str())) {
            let fault = Fault::new(&field, "has no meaning beside layer { ... }");
            let hint = "in this old form (V0) all but bottom and top is inside of layer { ... }";
            return Err(fault.hint(hint).at(&site, &subject(&name)));
        }
        let (bottoms, tops) = (texts_of(&message, "bottom"), texts_of(&message, "top"));
        Ok(Self { layer, name, kind, bottoms, tops, site })
    }

    fn fault(&self, fault: Fault) -> SpecError {
        fault.at(&self.site, &subject(&self.name))
    }
}

/// The padding that a layer takes over: its extent, the blob that was padded, and the line.
struct Padding {
    extent: Value,
    bottom: String,
    line: u32,
}

/// Fields that have no meaning in their layer's type are left out, as in Caffe, and noted.
pub(super) fn upgrade(entries: Vec<Entry>, notes: &mut Vec<String>) -> Result<Vec<Entry>, SpecError> {
    let olds = entries.into_iter().map(Old::read).collect::<Result<Vec<_>, _>>()?;
    let mut upgraded = Vec::with_capacity(olds.len());
    // The layer that made each blob last.
    let mut makers: HashMap<&str, &Old> = HashMap::new();
    for old in &olds {
        let mut padding = None;
        for bottom in &old.bottoms {
            if let Some(maker) = makers.get(bottom.as_str()).filter(|maker| maker.kind == PADDING) {
                padding = Some(padding_of(maker, old)?);
            }
        }
        if old.kind != PADDING {
            upgraded.push(layer(old, padding, notes)?);
        }
        makers.extend(old.tops.iter().map(|top| (top.as_str(), old)));
    }
    Ok(upgraded)
}

/// What the padding layer `maker` means to `reader`, which must be able to pad by itself.
fn padding_of(maker: &Old, reader: &Old) -> Result<Padding, SpecError> {
    if !["conv", "pool"].contains(&reader.kind.as_str()) || reader.bottoms.len() != 1 {
        let name = &maker.name;
        let text = format!("reads the top of padding layer {:?}", shortened(name));
        return Err(reader.fault(
            Fault::new("bottom", text).hint("only a conv or pool with one bottom can take over a padding"),
        ));
    }
    let ([bottom], [_]) = (&maker.bottoms[..], &maker.tops[..]) else {
        let fault = Fault::new("bottom", "a padding layer has one bottom and one top");
        return Err(maker.fault(fault));
    };
    // An unset field gives its default.
    let extent = maker.layer.get_field_by_name("pad").map_or(Value::U32(0), |value| value.into_owned());
    Ok(Padding { extent, bottom: bottom.clone(), line: maker.site.line_of("layer.pad") })
}

/// One layer in V1.
fn layer(old: &Old, padding: Option<Padding>, notes: &mut Vec<String>) -> Result<Entry, SpecError> {
    let Some((_, kind)) = TYPES.iter().find(|(name, _)| *name == old.kind) else {
        return Err(old.fault(unknown_type(&old.kind)));
    };
    let mut message = DynamicMessage::new(descriptor("V1LayerParameter"));
    let mut lines = moved(&old.site, &[("bottom", "bottom"), ("top", "top"), ("layer.type", "type")]);
    put(&mut message, "type", Value::EnumNumber(*kind as i32));
    for (field, value) in old.layer.fields().filter(|(field, _)| field.name() != "type") {
        let from = format!("layer.{}", field.name());
        match path_of(field.name(), &old.kind) {
            Some(path) => {
                put(&mut message, &path, unsigned(value, &from).map_err(|fault| old.fault(fault))?);
                lines.extend(moved(&old.site, &[(&from, &path)]));
            }
            None => notes.push(format!(
                "line {}: {}: {} is ignored, as in Caffe; it has no meaning in a layer of type {:?}",
                old.site.line_of(&from),
                subject(&old.name),
                field.name(),
                old.kind
            )),
        }
    }
    let mut bottoms = old.bottoms.clone();
    if let Some(Padding { extent, bottom, line }) = padding {
        if let Some(path) = path_of("pad", &old.kind) {
            put(&mut message, &path, extent);
            lines.insert(0, (path, line));
        }
        bottoms = vec![bottom];
    }
    for (field, names) in [("bottom", bottoms), ("top", old.tops.clone())] {
        put(&mut message, field, Value::List(names.into_iter().map(Value::String).collect()));
    }
    Ok(Entry { message, site: Site { fields: lines.into(), ..old.site.clone() } })
}

/// Sizes of images had a sign in V0 and have none since; everything else keeps its kind.
fn unsigned(value: &Value, field: &str) -> Result<Value, Fault> {
    let Value::I32(size) = value else { return Ok(value.clone()) };
    match u32::try_from(*size) {
        Ok(size) => Ok(Value::U32(size)),
        Err(_) => Err(Fault::new(field, format!("{size}; expected at least 0"))),
    }
}

fn unknown_type(kind: &str) -> Fault {
    let names = || TYPES.iter().map(|(name, _)| *name);
    if kind.is_empty() {
        return Fault::new("layer.type", "missing").hint("write type: \"conv\", for example");
    }
    let fault = Fault::new("layer.type", format!("unknown type {:?} of the old form V0", shortened(kind)));
    match did_you_mean(kind, names().chain([PADDING])) {
        Some(close) => fault.hint(format!("did you mean {close:?}?")),
        None => fault.hint(format!("expected one of {}", names().collect::<Vec<_>>().join(", "))),
    }
}
