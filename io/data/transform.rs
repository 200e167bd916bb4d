//! From an image to the values of a mini-batch: `(value − mean) · scale` of a part of it, as Caffe 1.0 does it.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use prost::Message;
use quadrille_core::layer::Transform;

use super::records::values_of;
use crate::error::IoError;
use crate::schema::BlobProto;

/// A sample with nothing done to it yet but decoding and resizing.
#[derive(Debug)]
pub(super) struct Image<'a> {
    /// Channels, height, width.
    pub shape: [usize; 3],
    pub pixels: Pixels<'a>,
}

/// Where the values of an image lie.
#[derive(Debug)]
pub(super) enum Pixels<'a> {
    /// Bytes, channel by channel.
    Planes(&'a [u8]),
    /// Bytes, pixel by pixel.
    Interleaved(&'a [u8]),
    /// Numbers, channel by channel.
    Floats(Vec<f32>),
}

/// The part of an image that is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub top: usize,
    pub left: usize,
    pub mirrored: bool,
}

/// What is taken off every value.
#[derive(Clone, Debug)]
pub(super) enum Mean {
    /// One number for each channel.
    Channels(Vec<f32>),
    /// One for each value of an image of this shape.
    Values { shape: [usize; 3], values: Arc<Vec<f32>>, file: String },
}

impl Mean {
    /// The means of `transform` for samples of `shape`; `file` is where its file of means was found.
    ///
    /// # Errors
    /// [`IoError::Data`] if they do not fit the channels or cannot be read.
    pub fn new(
        transform: &Transform,
        file: Option<&Path>,
        shape: [usize; 3],
        name: &str,
    ) -> Result<Self, IoError> {
        if let Some(path) = file {
            let (found, values) = read_mean(path)?;
            return Ok(Self::Values {
                shape: found,
                values: Arc::new(values),
                file: path.display().to_string(),
            });
        }
        let channels = shape[0];
        match transform.mean_values.len() {
            0 => Ok(Self::Channels(vec![0.0; channels])),
            1 => Ok(Self::Channels(vec![transform.mean_values[0]; channels])),
            n if n == channels => Ok(Self::Channels(transform.mean_values.clone())),
            n => Err(IoError::data(
                Path::new(name),
                format!("{n} values of mean_value for {channels} channels; expected 1 or {channels}"),
            )),
        }
    }

    /// Whether there is a mean for every value of an image.
    pub fn fits(&self, shape: [usize; 3]) -> Result<(), String> {
        match self {
            Self::Values { shape: mean, file, .. } if *mean != shape => Err(format!(
                "the means in {file} are {}, but the image is {} (channels x height x width)",
                extents(*mean),
                extents(shape)
            )),
            _ => Ok(()),
        }
    }
}

impl Mean {
    /// The mean for a place in a part of `crop` rows and columns that Caffe's window_data_layer takes from the middle: by the
    /// width along both axes.
    pub fn in_the_middle(&self, channel: usize, y: usize, x: usize, crop: usize) -> f32 {
        match self {
            Self::Channels(means) => means[channel],
            Self::Values { shape: [_, height, width], values, .. } => {
                let off = (width - crop) / 2;
                values[(channel * height + y + off) * width + x + off]
            }
        }
    }

    /// Whether [`Self::in_the_middle`] finds a mean at every place of `channels`.
    pub fn covers(&self, channels: usize, crop: usize) -> Result<(), String> {
        match self {
            Self::Values { shape, file, .. }
                if shape[0] != channels || shape[2] < crop || (shape[2] - crop) / 2 + crop > shape[1] =>
            {
                let shape = extents(*shape);
                Err(format!("the means in {file} are {shape}, too few for {channels} x {crop} x {crop}"))
            }
            _ => Ok(()),
        }
    }
}

/// Channels, height and width for people.
pub(super) fn extents([c, h, w]: [usize; 3]) -> String {
    format!("{c} x {h} x {w}")
}

/// Reads Caffe's file of means (`.binaryproto`, a BlobProto of 1 x C x H x W or C x H x W).
///
/// # Errors
/// [`IoError::Missing`] if it cannot be read, [`IoError::Data`] if it is not such a file.
pub fn read_mean(path: &Path) -> Result<([usize; 3], Vec<f32>), IoError> {
    let content = crate::whole::read(path, MEANS)?;
    decode_mean(&content).map_err(|message| IoError::data(path, message))
}

const MEANS: &str = "a file of means (binaryproto)";

/// Reads what a file of means holds.
///
/// # Errors
/// What is wrong with it.
pub fn decode_mean(content: &[u8]) -> Result<([usize; 3], Vec<f32>), String> {
    let blob = BlobProto::decode(content).map_err(|error| format!("is not {MEANS}: {error}"))?;
    let dims: Vec<i64> = match &blob.shape {
        Some(shape) => shape.dim.clone(),
        None => [blob.num(), blob.channels(), blob.height(), blob.width()].map(i64::from).to_vec(),
    };
    let extents: Vec<usize> = dims.iter().filter_map(|dim| usize::try_from(*dim).ok()).collect();
    let shape = match extents[..] {
        [1, c, h, w] | [c, h, w] if extents.len() == dims.len() => [c, h, w],
        _ => return Err(format!("has shape {dims:?}; expected 1 x C x H x W")),
    };
    let values = if blob.data.is_empty() {
        blob.double_data.iter().map(|value| *value as f32).collect()
    } else {
        blob.data
    };
    if values_of(shape) != Some(values.len()) {
        return Err(format!("has {} values for the shape {dims:?}", values.len()));
    }
    if values.iter().any(|value| !value.is_finite()) {
        return Err("has means that are not finite".to_owned());
    }
    Ok((shape, values))
}

/// Writes a file of means that Caffe reads, too.
///
/// # Errors
/// [`IoError::CannotCreate`] or [`IoError::WriteFailed`].
pub fn write_mean(path: &Path, shape: [usize; 3], values: &[f32]) -> Result<(), IoError> {
    let extent = |n: usize| i32::try_from(n).ok();
    let blob = BlobProto {
        num: Some(1),
        channels: extent(shape[0]),
        height: extent(shape[1]),
        width: extent(shape[2]),
        data: values.to_vec(),
        ..BlobProto::default()
    };
    crate::whole::write(path, "a file of means", |writer| writer.write_all(&blob.encode_to_vec()))
}

/// Writes the part of `image` into `out`, which has `image`'s channels and `size` (height, width) rows and columns.
pub(super) fn convert(
    image: &Image<'_>,
    part: Part,
    mean: &Mean,
    scale: f32,
    size: [usize; 2],
    out: &mut [f32],
) {
    let [channels, height, width] = image.shape;
    match &image.pixels {
        Pixels::Planes(bytes) => {
            let at = |c: usize, y: usize| bytes[(c * height + y) * width..][..width].iter();
            rows(image.shape, part, mean, scale, size, out, |c, y| at(c, y).map(|byte| f32::from(*byte)));
        }
        Pixels::Interleaved(bytes) => {
            let at = |c: usize, y: usize| bytes[y * width * channels + c..].iter().step_by(channels);
            rows(image.shape, part, mean, scale, size, out, |c, y| {
                at(c, y).take(width).map(|byte| f32::from(*byte))
            });
        }
        Pixels::Floats(values) => {
            let at = |c: usize, y: usize| values[(c * height + y) * width..][..width].iter();
            rows(image.shape, part, mean, scale, size, out, |c, y| at(c, y).copied());
        }
    }
}

/// The same for any way in which the values lie: `row` gives those of a channel and row.
fn rows<'a, I: Iterator<Item = f32> + 'a>(
    [_, height, width]: [usize; 3],
    part: Part,
    mean: &Mean,
    scale: f32,
    [rows, columns]: [usize; 2],
    out: &mut [f32],
    row: impl Fn(usize, usize) -> I,
) {
    for (channel, plane) in out.chunks_mut(rows * columns).enumerate() {
        for (y, out) in plane.chunks_mut(columns).enumerate() {
            let values = row(channel, part.top + y).skip(part.left);
            match mean {
                Mean::Channels(means) => {
                    let mean = means[channel];
                    put(out, values.map(|value| (value - mean) * scale), part.mirrored);
                }
                Mean::Values { values: means, .. } => {
                    let from = (channel * height + part.top + y) * width + part.left;
                    let pairs = values.zip(&means[from..from + columns]);
                    put(out, pairs.map(|(value, mean)| (value - mean) * scale), part.mirrored);
                }
            }
        }
    }
}

fn put(out: &mut [f32], values: impl Iterator<Item = f32>, mirrored: bool) {
    if mirrored {
        out.iter_mut().rev().zip(values).for_each(|(out, value)| *out = value);
    } else {
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
    }
}
