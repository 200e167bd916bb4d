//! Losses and measures.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message;
use quadrille_core::layer::{
    Accuracy, ContrastiveLoss, HingeLoss, HingeNorm, InfogainLoss, Layer, Normalization,
    SigmoidCrossEntropyLoss, SoftmaxWithLoss,
};
use quadrille_core::site::Fault;

use super::fields::finite;
use crate::caffemodel;
use crate::schema::hinge_loss_parameter::Norm;
use crate::schema::loss_parameter::NormalizationMode;
use crate::schema::{
    BlobProto, ContrastiveLossParameter, HingeLossParameter, InfogainLossParameter, LayerParameter,
    LossParameter,
};

/// Largest file of a matrix that is read, in bytes: that of some 5000 classes.
const MAX_MATRIX: u64 = 100 << 20;

pub(super) fn softmax_axis(parameter: &LayerParameter) -> i32 {
    parameter.softmax_param.as_ref().map_or(1, |p| p.axis())
}

/// What a loss is divided by: the field, or the older one, or else `default`.
fn normalization(loss: &LossParameter, default: Normalization) -> Normalization {
    let LossParameter { ignore_label: _, normalization, normalize } = loss;
    match (normalization, normalize) {
        (None, Some(false)) => Normalization::BatchSize,
        (None, Some(true)) => Normalization::Valid,
        (None, None) => default,
        (Some(_), _) => match loss.normalization() {
            NormalizationMode::Full => Normalization::Full,
            NormalizationMode::Valid => Normalization::Valid,
            NormalizationMode::BatchSize => Normalization::BatchSize,
            NormalizationMode::None => Normalization::None,
        },
    }
}

pub(super) fn softmax_with_loss(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let loss = parameter.loss_param.unwrap_or_default();
    Ok(Layer::SoftmaxWithLoss(SoftmaxWithLoss {
        axis: softmax_axis(parameter),
        ignore_label: loss.ignore_label,
        normalization: normalization(&loss, Normalization::Valid),
    }))
}

pub(super) fn sigmoid_cross_entropy(parameter: &LayerParameter) -> Layer {
    let loss = parameter.loss_param.unwrap_or_default();
    Layer::SigmoidCrossEntropyLoss(SigmoidCrossEntropyLoss {
        ignore_label: loss.ignore_label,
        normalization: normalization(&loss, Normalization::BatchSize),
    })
}

pub(super) fn hinge(parameter: &LayerParameter) -> Layer {
    let param = parameter.hinge_loss_param.unwrap_or_default();
    let HingeLossParameter { norm: _ } = param;
    let norm = match param.norm() {
        Norm::L1 => HingeNorm::L1,
        Norm::L2 => HingeNorm::L2,
    };
    Layer::HingeLoss(HingeLoss { norm })
}

/// `file` is the network file, from whose folder the matrix may be named.
pub(super) fn infogain(parameter: &LayerParameter, file: &str) -> Result<Layer, Fault> {
    let loss = parameter.loss_param.unwrap_or_default();
    let param = parameter.infogain_loss_param.clone().unwrap_or_default();
    let InfogainLossParameter { source, axis: _ } = &param;
    if loss.normalize.is_some() {
        return Err(Fault::new("loss_param.normalize", "is not read by a layer of type InfogainLoss")
            .hint("write normalization: VALID for true, BATCH_SIZE for false"));
    }
    // A third bottom is the matrix, and counts before a file.
    let matrix = match (parameter.bottom.len(), source.as_deref().filter(|source| !source.is_empty())) {
        (2, Some(source)) => Some(read_matrix(source, file)?),
        (2, None) => {
            return Err(Fault::new("infogain_loss_param.source", "missing")
                .hint("name a file (.binaryproto) with the matrix, or give the matrix as a third bottom"));
        }
        _ => None,
    };
    Ok(Layer::InfogainLoss(InfogainLoss {
        axis: param.axis(),
        ignore_label: loss.ignore_label,
        normalization: normalization(&loss, Normalization::Valid),
        matrix,
    }))
}

/// The values of a BlobProto in a file, which is looked for from the current folder and then from that of the network file.
fn read_matrix(source: &str, file: &str) -> Result<Arc<[f32]>, Fault> {
    const FIELD: &str = "infogain_loss_param.source";
    let beside: Option<PathBuf> = Path::new(file).parent().map(|folder| folder.join(source));
    let path = beside.filter(|path| !Path::new(source).is_file() && path.is_file());
    let path = path.unwrap_or_else(|| PathBuf::from(source));
    let fault = |problem: String| {
        Fault::new(FIELD, format!("{}: {problem}", path.display()))
            .hint("expected a matrix as Caffe stores it (.binaryproto); its path counts from the current folder or from that of the network file")
    };
    if !path.is_file() {
        return Err(fault("no such file".to_owned()));
    }
    let mut bytes = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MAX_MATRIX + 1).read_to_end(&mut bytes));
    read.map_err(|error| fault(error.to_string()))?;
    if bytes.len() as u64 > MAX_MATRIX {
        return Err(fault(format!("larger than {} MiB", MAX_MATRIX >> 20)));
    }
    let blob = BlobProto::decode(bytes.as_slice()).map_err(|error| fault(error.to_string()))?;
    let (_, values) = caffemodel::values(blob).map_err(fault)?;
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(fault(format!("{value} among its values; expected finite numbers"))),
        None => Ok(values.into()),
    }
}

pub(super) fn contrastive_loss(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.contrastive_loss_param.unwrap_or_default();
    let ContrastiveLossParameter { margin: _, legacy_version: _ } = param;
    Ok(Layer::ContrastiveLoss(ContrastiveLoss {
        margin: finite(param.margin(), "contrastive_loss_param.margin")?,
        legacy_version: param.legacy_version(),
    }))
}

pub(super) fn accuracy(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.accuracy_param.unwrap_or_default();
    Ok(Layer::Accuracy(Accuracy {
        top_k: param.top_k() as usize,
        axis: param.axis(),
        ignore_label: param.ignore_label,
    }))
}
