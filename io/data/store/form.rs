//! Records in the form in which they are stored.

use std::str::FromStr;

use quadrille_core::layer::Colour;

use super::super::decode::decode;
use super::super::jpeg::encode_jpeg;
use super::super::records::{Content, Record};
use super::super::resize::resize;

/// Quality of JPEG files that are made: OpenCV's, and so that of Caffe's convert_imageset.
const QUALITY: u8 = 95;

/// What is done to each record on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Height and width of every image, whatever its proportions were.
    pub resize: Option<[usize; 2]>,
    /// The channels of image files; `None` for three, or for those of the file in an encoded Datum.
    pub colour: Option<Colour>,
    /// How images are stored; `None` for as they are, or as values if anything is changed.
    pub form: Option<Form>,
}

/// How images are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As values: channels in the order blue, green, red, each row by row.
    Raw,
    /// As image files of this kind, or else of the kind that they are. What need not change stays as it is.
    Encoded(Option<Encoding>),
}

/// A kind of image files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
}

impl FromStr for Encoding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim_start_matches('.') {
            "jpg" | "jpeg" => Ok(Self::Jpeg),
            "png" => Ok(Self::Png),
            _ => Err(format!("{text:?}; expected jpg or png")),
        }
    }
}

impl Encoding {
    /// The kind of a file, by its first bytes.
    fn of(file: &[u8]) -> Self {
        if file.starts_with(&[0x89, b'P']) { Self::Png } else { Self::Jpeg }
    }

    /// What the name of such a file ends with.
    pub(super) fn ending(self) -> &'static str {
        match self {
            Self::Jpeg => "jpg",
            Self::Png => "png",
        }
    }
}

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    pub label: i32,
    pub values: StoredValues,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum StoredValues {
    /// Bytes, channel by channel; `image` says that they were an image file, so that the channels are blue, green, red.
    Bytes { shape: [usize; 3], values: Vec<u8>, image: bool },
    /// Numbers, channel by channel.
    Floats { shape: [usize; 3], values: Vec<f32> },
    /// An image file; `made` is its kind if it is not the one that was read.
    File { file: Vec<u8>, made: Option<Encoding> },
}

impl Stored {
    /// The same for whoever takes records.
    pub fn record(&self) -> Record<'_> {
        let content = match &self.values {
            StoredValues::Bytes { shape, values, .. } => Content::Bytes { shape: *shape, values },
            StoredValues::Floats { shape, values } => {
                Content::Floats { shape: *shape, values: values.clone() }
            }
            StoredValues::File { file, .. } => Content::Encoded { file, native: true },
        };
        Record { label: self.label, content }
    }
}

impl Changes {
    /// # Errors
    /// Why the record cannot be changed so, without its name.
    pub(super) fn apply(&self, record: &Record<'_>) -> Result<Stored, String> {
        let values = match &record.content {
            Content::Encoded { file, native } => self.image(file, *native)?,
            Content::Bytes { shape, values } => self.bytes(*shape, values)?,
            Content::Floats { shape, values } => {
                self.check_values(shape[0])?;
                if self.resize.is_some_and(|size| size != [shape[1], shape[2]]) {
                    return Err("holds numbers that are no bytes, which cannot be resized".to_owned());
                }
                StoredValues::Floats { shape: *shape, values: values.clone() }
            }
        };
        Ok(Stored { label: record.label, values })
    }

    /// What is stored as values can be no image file, and its channels mean nobody knows what.
    fn check_values(&self, channels: usize) -> Result<(), String> {
        if let Some(Form::Encoded(_)) = self.form {
            return Err("is no image file, so it cannot be stored as one; make an LMDB".to_owned());
        }
        match self.colour {
            Some(colour) if channels_of(colour) != channels => Err(format!(
                "is no image file but {channels} channel(s) of values, which stay as they are; leave --gray and --color \
                 away"
            )),
            _ => Ok(()),
        }
    }

    fn bytes(&self, shape: [usize; 3], values: &[u8]) -> Result<StoredValues, String> {
        self.check_values(shape[0])?;
        let [channels, height, width] = shape;
        let Some(size) = self.resize.filter(|size| *size != [height, width]) else {
            return Ok(StoredValues::Bytes { shape, values: values.to_vec(), image: false });
        };
        let mut pixels = Vec::new();
        for plane in values.chunks(height * width) {
            let mut resized = Vec::new();
            resize(plane, 1, [height, width], size, &mut resized);
            pixels.append(&mut resized);
        }
        Ok(StoredValues::Bytes { shape: [channels, size[0], size[1]], values: pixels, image: false })
    }

    fn image(&self, file: &[u8], native: bool) -> Result<StoredValues, String> {
        let (kind, mut pixels) = (Encoding::of(file), Vec::new());
        let wanted = match self.form {
            Some(Form::Encoded(wanted)) => wanted.unwrap_or(kind),
            _ => kind,
        };
        let same_channels = match self.colour {
            Some(colour) => decode(file, None, &mut pixels)?[0] == channels_of(colour),
            None => true,
        };
        if self.form != Some(Form::Raw) && self.resize.is_none() && same_channels && wanted == kind {
            return Ok(StoredValues::File { file: file.to_vec(), made: None });
        }
        let colour = self.colour.or((!native).then_some(Colour::Colour));
        let [channels, height, width] = decode(file, colour, &mut pixels)?;
        let size = self.resize.unwrap_or([height, width]);
        if size != [height, width] {
            let mut resized = Vec::new();
            resize(&pixels, channels, [height, width], size, &mut resized);
            pixels = resized;
        }
        let shape = [channels, size[0], size[1]];
        if let Some(Form::Encoded(_)) = self.form {
            return Ok(StoredValues::File { file: encode(&mut pixels, shape, wanted)?, made: Some(wanted) });
        }
        let planes = (0..channels).flat_map(|channel| pixels.iter().skip(channel).step_by(channels));
        Ok(StoredValues::Bytes { shape, values: planes.copied().collect(), image: true })
    }
}

fn channels_of(colour: Colour) -> usize {
    match colour {
        Colour::Colour => 3,
        Colour::Grey => 1,
    }
}

/// An image file of pixels: grey, or blue, green and red.
fn encode(
    pixels: &mut [u8],
    [channels, height, width]: [usize; 3],
    kind: Encoding,
) -> Result<Vec<u8>, String> {
    if channels == 3 {
        pixels.chunks_exact_mut(3).for_each(|pixel| pixel.swap(0, 2));
    }
    let failed = |error: &dyn std::fmt::Display| format!("cannot be stored as an image file: {error}");
    match kind {
        Encoding::Jpeg => {
            encode_jpeg(pixels, [channels, height, width], QUALITY).map_err(|error| failed(&error))
        }
        Encoding::Png => {
            let mut file = Vec::new();
            let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
            encoder.set_color(if channels == 3 { png::ColorType::Rgb } else { png::ColorType::Grayscale });
            let writer = encoder.write_header();
            let written = writer.and_then(|mut writer| {
                writer.write_image_data(pixels)?;
                writer.finish()
            });
            written.map_err(|error| failed(&error))?;
            Ok(file)
        }
    }
}
