//! Caffe's binary weights, `.caffemodel`: the message NetParameter with the blobs of each layer.

use std::io::Write;
use std::path::Path;

use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use quadrille_core::shape::MAX_AXES;

use crate::error::IoError;
use crate::prototxt::{type_of_v0, type_of_v1};
use crate::schema::{BlobProto, BlobShape, LayerParameter, NetParameter};
use crate::{hdf5, whole};

/// Caffe's own limit of a message.
pub(crate) const MAX_BYTES: usize = i32::MAX as usize;
/// Bounds of what a file may hold beside values, so that a small file cannot ask for much memory.
const MAX_LAYERS: usize = 20_000;
pub(crate) const MAX_BLOBS: usize = 16;

/// The weights of a net.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetWeights {
    /// The net's name.
    pub name: String,
    /// Its layers in order, also those without weights.
    pub layers: Vec<LayerWeights>,
}

/// The weights of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerWeights {
    /// The layer's name.
    pub name: String,
    /// Its type, by today's name also for old files; empty if it is unknown.
    pub kind: String,
    /// Extents and values of each parameter, weight first. `None` is one that the layer shares with another: in HDF5 Caffe writes
    /// such a one only once.
    pub blobs: Vec<Option<Blob>>,
}

/// Extents and values of a parameter.
pub type Blob = (Vec<usize>, Vec<f32>);

impl NetWeights {
    /// Writes the weights as Caffe reads them, whole or not at all; in HDF5 if the name ends so.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`], [`IoError::WriteFailed`], or [`IoError::Data`] if they are more than Caffe can read.
    pub fn write(&self, path: &Path) -> Result<(), IoError> {
        if hdf5::is_hdf5(path) {
            return hdf5::write_weights(path, self);
        }
        if let Some(layer) = self.layers.iter().find(|layer| layer.blobs.contains(&None)) {
            return Err(IoError::data(
                path,
                format!(
                    "layer {:?} shares parameters whose values are not there; a .caffemodel has those of all layers",
                    layer.name
                ),
            ));
        }
        let layer = self.layers.iter().map(|layer| LayerParameter {
            name: Some(layer.name.clone()),
            r#type: (!layer.kind.is_empty()).then(|| layer.kind.clone()),
            blobs: layer.blobs.iter().flatten().map(weights_blob).collect(),
            ..LayerParameter::default()
        });
        let net =
            NetParameter { name: Some(self.name.clone()), layer: layer.collect(), ..NetParameter::default() };
        if net.encoded_len() > MAX_BYTES {
            return Err(IoError::data(path, "the weights are more than the 2 GiB that Caffe can read")
                .hint("in HDF5 they fit: snapshot_format: HDF5 in the solver, or a name that ends in .h5"));
        }
        whole::write(path, "weights", |file| file.write_all(&net.encode_to_vec()))
    }

    /// Reads weights that Caffe or this program wrote; in HDF5 if the name ends so.
    ///
    /// # Errors
    /// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] naming the layer if it is damaged.
    pub fn read(path: &Path) -> Result<Self, IoError> {
        if hdf5::is_hdf5(path) {
            return hdf5::read_weights(path);
        }
        let bytes = whole::read(path, "weights of Caffe (.caffemodel)")?;
        Self::decode(&bytes).map_err(|message| {
            IoError::data(path, message)
                .hint("expected weights of Caffe; is the file whole, and a .caffemodel?")
        })
    }

    /// Reads what a file of weights holds.
    ///
    /// # Errors
    /// What is wrong with it, naming the layer.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

pub(crate) fn blob((shape, values): &(Vec<usize>, Vec<f32>)) -> BlobProto {
    BlobProto {
        shape: Some(BlobShape { dim: shape.iter().map(|d| *d as i64).collect() }),
        data: values.clone(),
        ..BlobProto::default()
    }
}

/// Old files gave four extents to every array. Caffe takes these for fewer axes only from the fields that they had
/// then, and for four axes from either.
fn weights_blob(array: &(Vec<usize>, Vec<f32>)) -> BlobProto {
    let old: Vec<i32> = array.0.iter().filter_map(|extent| i32::try_from(*extent).ok()).collect();
    let ([1, channels, height, width], 4) = (&old[..], array.0.len()) else { return blob(array) };
    BlobProto {
        num: Some(1),
        channels: Some(*channels),
        height: Some(*height),
        width: Some(*width),
        shape: None,
        ..blob(array)
    }
}

/// Reads the outer messages by hand: a struct of the schema for every layer of a broken file would be large.
fn decode(bytes: &[u8]) -> Result<NetWeights, String> {
    let mut net = NetWeights::default();
    each_field(bytes, |number, field| {
        match number {
            1 => net.name = text(field)?,
            2 | 100 => {
                if net.layers.len() == MAX_LAYERS {
                    return Err(format!("more than {MAX_LAYERS} layers"));
                }
                let form = if number == 2 { &V1 } else { &TODAY };
                let index = net.layers.len();
                net.layers.push(layer(field, form).map_err(|error| format!("layer {index}: {error}"))?);
            }
            _ => {}
        }
        Ok(())
    })?;
    if net.layers.is_empty() {
        return Err("there are no layers in the file".to_owned());
    }
    Ok(net)
}

/// How a generation of files writes a layer.
struct Form {
    /// Field numbers.
    name: u32,
    kind: u32,
    blobs: u32,
    /// The field that holds a layer of V0, in the message of V1.
    inside: Option<u32>,
    /// Today's name of the type.
    kind_of: fn(&[u8]) -> Result<String, String>,
}

const TODAY: Form = Form { name: 1, kind: 2, blobs: 7, inside: None, kind_of: text };
const V1: Form = Form { name: 4, kind: 5, blobs: 6, inside: Some(1), kind_of: kind_of_v1 };
const V0: Form = Form { name: 1, kind: 2, blobs: 50, inside: None, kind_of: kind_of_v0 };

fn layer(bytes: &[u8], form: &Form) -> Result<LayerWeights, String> {
    let mut layer = LayerWeights::default();
    read_layer(bytes, form, &mut layer)
        .map_err(|error| if layer.name.is_empty() { error } else { format!("{:?}: {error}", layer.name) })?;
    Ok(layer)
}

fn read_layer(bytes: &[u8], form: &Form, layer: &mut LayerWeights) -> Result<(), String> {
    each_field(bytes, |number, field| {
        if form.inside == Some(number) {
            read_layer(field, &V0, layer)?;
        } else if number == form.name {
            layer.name = text(field)?;
        } else if number == form.kind {
            layer.kind = (form.kind_of)(field)?;
        } else if number == form.blobs {
            if layer.blobs.len() == MAX_BLOBS {
                return Err(format!("more than {MAX_BLOBS} blobs"));
            }
            let index = layer.blobs.len();
            let blob = BlobProto::decode(field).map_err(|error| format!("blob {index}: {error}"))?;
            layer.blobs.push(Some(values(blob).map_err(|error| format!("blob {index}: {error}"))?));
        }
        Ok(())
    })
}

fn kind_of_v1(mut field: &[u8]) -> Result<String, String> {
    let number = decode_varint(&mut field).ok().and_then(|number| i32::try_from(number).ok());
    Ok(number.and_then(type_of_v1).unwrap_or_default().to_owned())
}

fn kind_of_v0(field: &[u8]) -> Result<String, String> {
    Ok(type_of_v0(&text(field)?).unwrap_or_default().to_owned())
}

pub(crate) fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a name is not UTF-8".to_owned())
}

/// Calls `visit` with number and bytes of every field; of a varint, these are its encoding.
pub(crate) fn each_field(
    mut bytes: &[u8],
    mut visit: impl FnMut(u32, &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).map_err(|error| error.to_string())?;
        let length = match wire {
            WireType::Varint => {
                let start = bytes;
                decode_varint(&mut bytes).map_err(|error| error.to_string())?;
                visit(number, &start[..start.len() - bytes.len()])?;
                continue;
            }
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
            WireType::LengthDelimited => decode_varint(&mut bytes).map_err(|error| error.to_string())?,
            WireType::StartGroup | WireType::EndGroup => {
                return Err("holds a group, which Caffe never writes".to_owned());
            }
        };
        let length = usize::try_from(length).ok().filter(|n| *n <= bytes.len());
        let (field, rest) = bytes.split_at(length.ok_or("is cut off")?);
        bytes = rest;
        visit(number, field)?;
    }
    Ok(())
}

/// Extents and values of a blob, old or new; if it has both, the old extents count, as in Caffe.
pub(crate) fn values(blob: BlobProto) -> Result<(Vec<usize>, Vec<f32>), String> {
    let old = [blob.num, blob.channels, blob.height, blob.width];
    let extents: Vec<i64> = if old.iter().any(Option::is_some) {
        old.map(|extent| i64::from(extent.unwrap_or(0))).to_vec()
    } else {
        blob.shape.map(|shape| shape.dim).unwrap_or_default()
    };
    if extents.len() > MAX_AXES {
        return Err(format!("{} axes; at most {MAX_AXES} are possible", extents.len()));
    }
    let shape: Option<Vec<usize>> = extents.iter().map(|d| usize::try_from(*d).ok()).collect();
    let count = shape.as_ref().and_then(|s| s.iter().try_fold(1usize, |n, d| n.checked_mul(*d)));
    let values =
        if blob.data.is_empty() { blob.double_data.iter().map(|v| *v as f32).collect() } else { blob.data };
    match (shape, count) {
        (Some(shape), Some(count)) if count == values.len() => Ok((shape, values)),
        _ => Err(format!("{} values for extents {extents:?}", values.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use crate::schema::v1_layer_parameter::LayerType;
    use crate::schema::{V0LayerParameter, V1LayerParameter};

    fn small() -> NetWeights {
        let conv = LayerWeights {
            name: "conv1".into(),
            kind: "Convolution".into(),
            blobs: vec![Some((vec![2, 1, 1, 2], vec![1.0, -2.0, 0.5, 3.0])), Some((vec![2], vec![0.0, 7.0]))],
        };
        let relu = LayerWeights { name: "relu".into(), kind: "ReLU".into(), blobs: Vec::new() };
        NetWeights { name: "small".into(), layers: vec![conv, relu] }
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small.caffemodel");
        small().write(&path).unwrap();
        assert_eq!(NetWeights::read(&path).unwrap(), small());
        // Known bytes: field 1 (name), 5 bytes of text.
        assert_eq!(fs::read(&path).unwrap()[..7], *b"\x0a\x05small");
        assert_eq!(NetWeights::read(&folder.path().join("none")).unwrap_err().exit_code(), 66);
    }

    #[test]
    fn no_cut_and_no_flipped_bit_makes_it_panic_and_cuts_are_found() {
        let good = NetParameter { name: Some("n".into()), ..NetParameter::default() }.encode_to_vec();
        assert!(decode(&good).is_err_and(|error| error.contains("no layers")));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small.caffemodel");
        small().write(&path).unwrap();
        let good = fs::read(&path).unwrap();
        let whole = (0..good.len()).filter(|&at| decode(&good[..at]).is_ok_and(|net| net == small())).count();
        assert_eq!(whole, 0);
        let mut accepted = 0;
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                accepted += usize::from(decode(&bad).is_ok());
            }
        }
        // The format has no checksum: flips in values and names pass, those in lengths do not.
        assert!(accepted > 0 && accepted < good.len() * 8);
    }

    #[test]
    fn old_layers_and_old_shapes_are_understood() {
        let blob = BlobProto {
            num: Some(1),
            channels: Some(1),
            height: Some(1),
            width: Some(2),
            data: vec![1.0, 2.0],
            ..BlobProto::default()
        };
        let old = V1LayerParameter {
            name: Some("c".into()),
            r#type: Some(LayerType::Convolution.into()),
            blobs: vec![blob],
            ..V1LayerParameter::default()
        };
        let net =
            decode(&NetParameter { layers: vec![old], ..NetParameter::default() }.encode_to_vec()).unwrap();
        let expected = LayerWeights {
            name: "c".into(),
            kind: "Convolution".into(),
            blobs: vec![Some((vec![1, 1, 1, 2], vec![1.0, 2.0]))],
        };
        assert_eq!(net.layers, [expected]);
    }

    #[test]
    fn layers_of_the_first_form_are_understood() {
        let blob = |values: Vec<f32>| BlobProto {
            num: Some(1),
            channels: Some(1),
            height: Some(1),
            width: Some(values.len() as i32),
            data: values,
            ..BlobProto::default()
        };
        let inside = V0LayerParameter {
            name: Some("fc".into()),
            r#type: Some("innerproduct".into()),
            blobs: vec![blob(vec![1.0, 2.0]), blob(vec![3.0])],
            ..V0LayerParameter::default()
        };
        let old = V1LayerParameter { layer: Some(inside), ..V1LayerParameter::default() };
        let good = NetParameter { layers: vec![old], ..NetParameter::default() }.encode_to_vec();
        let expected = LayerWeights {
            name: "fc".into(),
            kind: "InnerProduct".into(),
            blobs: vec![Some((vec![1, 1, 1, 2], vec![1.0, 2.0])), Some((vec![1; 4], vec![3.0]))],
        };
        assert_eq!(decode(&good).unwrap().layers, [expected]);
        for at in 0..good.len() {
            assert!(decode(&good[..at]).is_err(), "cut to {at} bytes");
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                drop(decode(&bad));
            }
        }
    }

    #[test]
    fn four_extents_that_begin_with_one_are_written_as_old_files_had_them() {
        let written = |shape: Vec<usize>| weights_blob(&(shape.clone(), vec![0.0; shape.iter().product()]));
        let old = written(vec![1, 1, 1, 5]);
        assert_eq!((old.num, old.width, old.shape.is_none()), (Some(1), Some(5), true));
        let new = written(vec![2, 1, 1, 5]);
        assert_eq!((new.num, new.shape.map(|shape| shape.dim)), (None, Some(vec![2, 1, 1, 5])));
        assert_eq!(written(vec![5]).num, None);
        assert_eq!(written(vec![1, 0, 1 << 40, 1]).num, None);
        // Of a blob that has both, the old extents count.
        let both = BlobProto { shape: Some(BlobShape { dim: vec![5] }), ..old };
        assert_eq!(values(both).map(|(shape, _)| shape), Ok(vec![1, 1, 1, 5]));
    }

    #[test]
    fn doubles_are_rounded() {
        let blob = BlobProto {
            shape: Some(BlobShape { dim: vec![1] }),
            double_data: vec![0.1],
            ..BlobProto::default()
        };
        assert_eq!(values(blob), Ok((vec![1], vec![0.1f32])));
    }

    #[test]
    fn extents_must_fit_the_values_and_the_layer_is_named() {
        for dim in [vec![3], vec![-1, -2], vec![i64::MAX, i64::MAX], vec![1; 33]] {
            let blobs = vec![BlobProto {
                shape: Some(BlobShape { dim }),
                data: vec![1.0, 2.0],
                ..BlobProto::default()
            }];
            let layer = LayerParameter { name: Some("bad".into()), blobs, ..LayerParameter::default() };
            let bytes = NetParameter { layer: vec![layer], ..NetParameter::default() }.encode_to_vec();
            assert!(decode(&bytes).is_err_and(|error| error.starts_with("layer 0: \"bad\": blob 0: ")));
        }
    }

    #[test]
    fn a_flood_of_empty_layers_or_blobs_is_refused() {
        let layers = [0xa2, 0x06, 0x00].repeat(MAX_LAYERS + 1);
        assert!(decode(&layers).is_err_and(|error| error.contains("more than 20000 layers")));
        let blobs = [0x3a, 0x00].repeat(MAX_BLOBS + 1);
        assert!(layer(&blobs, &TODAY).is_err());
    }
}
