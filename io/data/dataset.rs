//! Data sets that lie in memory.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::records::{Content, Held, Record, Records};
use crate::error::IoError;
use crate::hash::short_hex;

/// Labelled images of one size in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// Name of its folder.
    pub name: String,
    /// Pixels, N x C x H x W.
    pub images: Vec<u8>,
    /// One label for each image.
    pub labels: Vec<u16>,
    /// Channels, height and width of an image.
    pub shape: [usize; 3],
    /// Identifies the content: 16 hexadecimal digits over shape, images and labels.
    pub hash: String,
}

impl Dataset {
    /// A data set from its parts.
    ///
    /// # Errors
    /// [`IoError::Data`] naming `path` if there are no images, if they are empty, or if the labels are not as many
    /// as the images.
    pub fn new(
        name: &str,
        path: &Path,
        images: Vec<u8>,
        labels: Vec<u16>,
        shape: [usize; 3],
    ) -> Result<Self, IoError> {
        let sample = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n > 0);
        let Some(sample) = sample else {
            return Err(IoError::data(
                path,
                format!("images of {} x {} x {} pixels", shape[0], shape[1], shape[2]),
            ));
        };
        if images.is_empty() || !images.len().is_multiple_of(sample) {
            return Err(IoError::data(path, "no images, or not a whole number of them"));
        }
        if images.len() / sample != labels.len() {
            return Err(IoError::data(
                path,
                format!(
                    "{} labels for {} images; expected one for each",
                    labels.len(),
                    images.len() / sample
                ),
            )
            .hint("do images and labels belong to the same set?"));
        }
        let mut hasher = Sha256::new();
        for extent in [labels.len(), shape[0], shape[1], shape[2]] {
            hasher.update((extent as u64).to_le_bytes());
        }
        hasher.update(&images);
        // A byte each where that is enough, as in IDX files.
        match labels.iter().map(|label| u8::try_from(*label)).collect::<Result<Vec<u8>, _>>() {
            Ok(bytes) => hasher.update(&bytes),
            Err(_) => labels.iter().for_each(|label| hasher.update(label.to_le_bytes())),
        }
        let hash = short_hex(&hasher.finalize());
        Ok(Self { name: name.to_owned(), images, labels, shape, hash })
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images; never so for a data set that was opened.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Values of one image.
    pub fn per_image(&self) -> usize {
        self.shape.iter().product()
    }

    /// The largest label plus one: how many classes a net must at least tell apart.
    pub fn classes(&self) -> usize {
        self.labels.iter().max().map_or(0, |label| usize::from(*label) + 1)
    }
}

impl Records for Dataset {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn hash(&self) -> &str {
        &self.hash
    }

    fn is_costly(&self) -> bool {
        false
    }

    fn held(&self) -> Option<Held<'_>> {
        Some(Held::U8(&self.images))
    }

    fn label(&self, index: usize) -> Option<i32> {
        self.labels.get(index).copied().map(i32::from)
    }

    fn record_name(&self, index: usize) -> String {
        format!("image {index}")
    }

    fn read<'a>(&'a self, index: usize, _: &'a mut Vec<u8>) -> Result<Record<'a>, String> {
        let values = &self.images[index * self.per_image()..][..self.per_image()];
        let content = Content::Bytes { shape: self.shape, values };
        Ok(Record { label: i32::from(self.labels[index]), content })
    }
}
