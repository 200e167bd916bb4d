//! From `layers { type: CONVOLUTION blobs_lr: 1 weight_decay: 1 }` to `layer { type: "Convolution" param { ... } }`.

use prost_reflect::{DynamicMessage, Value};
use quadrille_core::site::{Fault, Site, SpecError};

use super::{Entry, items, moved, put, subject, text_of, type_of_v1};
use crate::schema::descriptor;
use crate::schema::v1_layer_parameter::LayerType;

/// What the types are called today.
pub(super) const TYPES: [(LayerType, &str); 39] = [
    (LayerType::Accuracy, "Accuracy"),
    (LayerType::Bnll, "BNLL"),
    (LayerType::Concat, "Concat"),
    (LayerType::Convolution, "Convolution"),
    (LayerType::Data, "Data"),
    (LayerType::Dropout, "Dropout"),
    (LayerType::EuclideanLoss, "EuclideanLoss"),
    (LayerType::Flatten, "Flatten"),
    (LayerType::Hdf5Data, "HDF5Data"),
    (LayerType::Hdf5Output, "HDF5Output"),
    (LayerType::Im2col, "Im2col"),
    (LayerType::ImageData, "ImageData"),
    (LayerType::InfogainLoss, "InfogainLoss"),
    (LayerType::InnerProduct, "InnerProduct"),
    (LayerType::Lrn, "LRN"),
    (LayerType::MultinomialLogisticLoss, "MultinomialLogisticLoss"),
    (LayerType::Pooling, "Pooling"),
    (LayerType::Relu, "ReLU"),
    (LayerType::Sigmoid, "Sigmoid"),
    (LayerType::Softmax, "Softmax"),
    (LayerType::SoftmaxLoss, "SoftmaxWithLoss"),
    (LayerType::Split, "Split"),
    (LayerType::Tanh, "TanH"),
    (LayerType::WindowData, "WindowData"),
    (LayerType::Eltwise, "Eltwise"),
    (LayerType::Power, "Power"),
    (LayerType::SigmoidCrossEntropyLoss, "SigmoidCrossEntropyLoss"),
    (LayerType::HingeLoss, "HingeLoss"),
    (LayerType::MemoryData, "MemoryData"),
    (LayerType::Argmax, "ArgMax"),
    (LayerType::Threshold, "Threshold"),
    (LayerType::DummyData, "DummyData"),
    (LayerType::Slice, "Slice"),
    (LayerType::Mvn, "MVN"),
    (LayerType::Absval, "AbsVal"),
    (LayerType::Silence, "Silence"),
    (LayerType::ContrastiveLoss, "ContrastiveLoss"),
    (LayerType::Exp, "Exp"),
    (LayerType::Deconvolution, "Deconvolution"),
];

/// Lists that have one value for each parameter, and where these belong.
const PARAMS: [(&str, &str); 4] = [
    ("blobs_lr", "lr_mult"),
    ("weight_decay", "decay_mult"),
    ("param", "name"),
    ("blob_share_mode", "share_mode"),
];

/// Sources that had transformations among their own fields.
const SOURCES: [(&str, &str); 3] =
    [("Data", "data_param"), ("ImageData", "image_data_param"), ("WindowData", "window_data_param")];

/// Those transformations.
const TRANSFORMS: [&str; 4] = ["scale", "mean_file", "crop_size", "mirror"];

pub(super) fn upgrade(entry: Entry) -> Result<Entry, SpecError> {
    let Entry { message: old, site } = entry;
    let number = old.get_field_by_name("type").and_then(|kind| kind.as_enum_number());
    let Some(kind) = number.and_then(type_of_v1) else {
        let fault = Fault::new("type", "missing").hint("write type: CONVOLUTION, for example");
        return Err(fault.at(&site, &subject(&text_of(&old, "name"))));
    };
    let mut layer = DynamicMessage::new(descriptor("LayerParameter"));
    for (field, value) in old.fields() {
        let name = field.name();
        if name != "type" && !PARAMS.iter().any(|(old, _)| *old == name) {
            layer.set_field_by_name(name, value.clone());
        }
    }
    put(&mut layer, "type", Value::String(kind.to_owned()));
    let params = params(&old);
    if !params.is_empty() {
        put(&mut layer, "param", Value::List(params));
    }
    let mut lines = transforms(&mut layer, kind, &site);
    let paths: Vec<(&str, String)> = PARAMS.map(|(old, new)| (old, format!("param.{new}"))).into();
    lines.extend(moved(&site, &paths.iter().map(|(old, new)| (*old, new.as_str())).collect::<Vec<_>>()));
    // A fault of the parameters as a whole belongs to the first list of them.
    lines.extend(moved(&site, &[("param", "param"), ("blobs_lr", "param"), ("weight_decay", "param")]));
    lines.extend(site.fields.iter().cloned());
    Ok(Entry { message: layer, site: Site { fields: lines.into(), ..site } })
}

/// The messages ParamSpec: as many as the longest list has values.
fn params(old: &DynamicMessage) -> Vec<Value> {
    let mut params: Vec<DynamicMessage> = Vec::new();
    for (name, field) in PARAMS {
        let Some(list) = old.get_field_by_name(name) else { continue };
        for (index, value) in items(&list).iter().enumerate() {
            if params.len() == index {
                params.push(DynamicMessage::new(descriptor("ParamSpec")));
            }
            put(&mut params[index], field, value.clone());
        }
    }
    params.into_iter().map(Value::Message).collect()
}

/// Moves transformations to `transform_param`, where they replace what stands there, as in Caffe. Returns their lines.
fn transforms(layer: &mut DynamicMessage, kind: &str, site: &Site) -> Vec<(String, u32)> {
    let mut lines = Vec::new();
    let Some((_, source)) = SOURCES.iter().find(|(source, _)| *source == kind) else { return lines };
    for field in TRANSFORMS {
        let Some(Value::Message(part)) = layer.get_field_by_name_mut(source) else { continue };
        if !part.has_field_by_name(field) {
            continue;
        }
        let value = part.get_field_by_name(field).map(|value| value.into_owned());
        part.clear_field_by_name(field);
        let (old, new) = (format!("{source}.{field}"), format!("transform_param.{field}"));
        if let Some(value) = value {
            put(layer, &new, value);
        }
        lines.extend(moved(site, &[(&old, &new)]));
    }
    lines
}
