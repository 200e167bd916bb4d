//! Weights in the files that frameworks exchange: `.caffemodel` and `.h5` of Caffe, `.safetensors` and `.npz`.
//!
//! The last two hold arrays by name, `LAYER/INDEX`; index 0 is the weight and 1 the bias, as in Caffe.

mod place;
mod sealed;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use quadrille_core::shape::MAX_AXES;
use safetensors::{Dtype, SafeTensors};

use crate::caffemodel::{LayerWeights, NetWeights};
use crate::error::IoError;
use crate::npz::{self, Array, Values};
use crate::snapshot::{MANIFEST, Snapshot, WEIGHTS};
use crate::whole;

pub use crate::tensors::{Tensor, Tensors};
pub use place::{Placed, place};
use sealed::Sealed;

/// What a `.safetensors` of weights says that it holds, to be told from a whole run.
const CONTENT: (&str, &str) = ("content", "weights");
/// Where early versions of this program kept the weights that count in the one file of a run.
const IN_RUN: &str = "weights/";

/// The weights of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Weights {
    /// Layer by layer, each with all that it has: a `.caffemodel`.
    Layers(NetWeights),
    /// Array by array, by `LAYER/INDEX`.
    Tensors(Tensors),
}

/// The formats, by the ending of the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Caffemodel,
    Safetensors,
    Npz,
}

impl Format {
    fn of(path: &Path) -> Result<Self, IoError> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("caffemodel") => Ok(Self::Caffemodel),
            Some("safetensors") => Ok(Self::Safetensors),
            Some("npz") => Ok(Self::Npz),
            // Its layers, too, are those of Caffe.
            Some("h5" | "hdf5") => Ok(Self::Caffemodel),
            _ => Err(IoError::data(path, "the ending of its name says nothing about weights")
                .hint("expected .caffemodel, .h5, .safetensors or .npz")),
        }
    }
}

/// Reads weights, by the ending of the file's name; of a folder that is a snapshot of a run those that count.
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] if it is damaged or of no known format.
pub fn read(path: &Path) -> Result<Weights, IoError> {
    if path.is_dir() {
        return read_folder(path);
    }
    match Format::of(path)? {
        Format::Caffemodel => Ok(Weights::Layers(NetWeights::read(path)?)),
        Format::Safetensors => Ok(Weights::Tensors(read_safetensors(path)?)),
        Format::Npz => {
            let arrays = npz::read_npz(path)?.into_iter().map(|(name, array)| match array.values {
                Values::F32(values) => Ok((name, (array.shape, values))),
                Values::F64(values) => Ok((name, (array.shape, narrow(&values)))),
                Values::I32(_) | Values::U8(_) => {
                    Err(IoError::data(path, format!("array {name:?} holds integers"))
                        .hint("weights are numbers of type '<f4' or '<f8' (array.astype('<f4'))"))
                }
            });
            Ok(Weights::Tensors(arrays.collect::<Result<_, _>>()?))
        }
    }
}

/// The weights that count in a snapshot of a run.
fn read_folder(path: &Path) -> Result<Weights, IoError> {
    if !path.join(MANIFEST).exists() {
        let message = format!("is a folder and no snapshot of a run: it has no {MANIFEST}");
        return Err(IoError::data(path, message)
            .hint("give a file of weights, or a folder such as runs/lenet-1/snapshots/iteration_1000"));
    }
    let (_, tensors) = Snapshot::read_file(path, WEIGHTS)?;
    Ok(Weights::Tensors(tensors))
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

fn read_safetensors(path: &Path) -> Result<Tensors, IoError> {
    let bytes = whole::read(path, "weights (.safetensors)")?;
    let damaged =
        |message: String| IoError::data(path, message).hint("is the file whole, and a .safetensors?");
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| damaged(error.to_string()))?;
    let ours = |names: &std::collections::HashMap<String, String>| {
        names.keys().any(|name| name.starts_with("quadrille."))
    };
    if header.metadata().as_ref().is_some_and(ours) {
        drop(bytes);
        return Ok(of_sealed(Sealed::read(path)?));
    }
    decode_safetensors(&bytes).map_err(damaged)
}

/// Reads all arrays from what a `.safetensors` holds, whoever wrote it.
///
/// # Errors
/// What is wrong with it, naming the array.
pub fn decode_safetensors(bytes: &[u8]) -> Result<Tensors, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let mut tensors = Tensors::new();
    for (name, view) in file.iter() {
        let (data, shape) = (view.data(), view.shape().to_vec());
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F64 => data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
            Dtype::BF16 => data.as_chunks::<2>().0.iter().map(|b| widened(*b)).collect(),
            other => {
                return Err(format!("array {name:?} has type {other:?}; weights are F32, F64 or BF16"));
            }
        };
        if shape.len() > MAX_AXES {
            return Err(format!("array {name:?} has {} axes; at most {MAX_AXES} are possible", shape.len()));
        }
        tensors.insert(name.to_owned(), (shape, values));
    }
    Ok(tensors)
}

/// The upper half of a single-precision number.
fn widened(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// All of a file that holds nothing else, or the weights that count in one that holds a run.
fn of_sealed(sealed: Sealed) -> Tensors {
    if sealed.meta.get(CONTENT.0).is_some_and(|content| content == CONTENT.1) {
        return sealed.tensors;
    }
    let tensors = sealed.tensors.into_iter();
    tensors.filter_map(|(name, tensor)| Some((name.strip_prefix(IN_RUN)?.to_owned(), tensor))).collect()
}

/// How much was converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Arrays.
    pub arrays: usize,
    /// Numbers in all of them.
    pub values: usize,
}

/// Writes the weights of `from` in the format that the name `to` ends with. Old `.caffemodel` become today's.
///
/// # Errors
/// As [`read`]; [`IoError::CannotCreate`] if there is something of the name `to`; [`IoError::WriteFailed`];
/// [`IoError::Data`] if the format cannot hold the weights.
pub fn convert(from: &Path, to: &Path) -> Result<Converted, IoError> {
    let format = Format::of(to)?;
    if fs::symlink_metadata(to).is_ok() {
        let source =
            io::Error::new(ErrorKind::AlreadyExists, "something has this name; it is not overwritten");
        return Err(IoError::CannotCreate { path: to.to_owned(), what: "weights", source });
    }
    let refuse = |message: String| IoError::data(from, message);
    let weights = read(from)?;
    if format == Format::Caffemodel {
        let net = match weights {
            Weights::Layers(net) => net,
            Weights::Tensors(tensors) => layers_of(tensors).map_err(refuse)?,
        };
        net.write(to)?;
        let blobs = || net.layers.iter().flat_map(|layer| layer.blobs.iter().flatten());
        return Ok(Converted {
            arrays: blobs().count(),
            values: blobs().map(|(_, values)| values.len()).sum(),
        });
    }
    let tensors = match weights {
        Weights::Layers(net) => tensors_of(net).map_err(refuse)?,
        Weights::Tensors(tensors) => tensors,
    };
    let values = tensors.values().map(|(_, values)| values.len()).sum();
    let converted = Converted { arrays: tensors.len(), values };
    if format == Format::Npz {
        let arrays = tensors.into_iter();
        let arrays =
            arrays.map(|(name, (shape, values))| (name, Array { shape, values: Values::F32(values) }));
        npz::write_npz(to, &arrays.collect())?;
    } else {
        let meta = [(CONTENT.0.to_owned(), CONTENT.1.to_owned())].into();
        Sealed { meta, tensors }.write(to)?;
    }
    Ok(converted)
}

/// Layer and index of an array's name.
fn layer_and_index(name: &str) -> Option<(&str, usize)> {
    let (layer, index) = name.rsplit_once('/')?;
    Some((layer, index.parse().ok().filter(|_| !layer.is_empty())?))
}

fn tensors_of(net: NetWeights) -> Result<Tensors, String> {
    let mut tensors = Tensors::new();
    for layer in net.layers {
        let blobs = layer.blobs.into_iter().enumerate();
        for (index, blob) in blobs.filter_map(|(index, blob)| Some((index, blob?))) {
            let name = format!("{}/{index}", layer.name);
            if tensors.contains_key(&name) {
                return Err(format!("two layers {:?} have weights", layer.name));
            }
            tensors.insert(name, blob);
        }
    }
    Ok(tensors)
}

fn layers_of(tensors: Tensors) -> Result<NetWeights, String> {
    let mut layers: BTreeMap<String, BTreeMap<usize, Tensor>> = BTreeMap::new();
    for (name, tensor) in tensors {
        let Some((layer, index)) = layer_and_index(&name) else {
            return Err(format!("array {name:?}: expected names such as \"conv1/0\": layer and index"));
        };
        layers.entry(layer.to_owned()).or_default().insert(index, tensor);
    }
    let layers = layers.into_iter().map(|(name, blobs)| {
        // The keys are different numbers: they count from 0 if the last says so.
        match blobs.keys().last() {
            Some(last) if *last + 1 != blobs.len() => {
                let most = blobs.len() - 1;
                Err(format!(
                    "layer {name:?} has an array {last}, but not all before it; expected 0 to {most}"
                ))
            }
            _ => {
                Ok(LayerWeights { name, kind: String::new(), blobs: blobs.into_values().map(Some).collect() })
            }
        }
    });
    Ok(NetWeights { name: String::new(), layers: layers.collect::<Result<_, _>>()? })
}
