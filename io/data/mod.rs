//! Data sets: opening them, and preparing mini-batches ahead of their use.

mod idx;
mod prefetch;
mod search;

pub use idx::{read_image_extents, read_images, read_labels};
pub use prefetch::{Batch, Order, Prefetcher};
pub use search::SearchPath;

use std::path::{Path, PathBuf};

use quadrille_core::net::Phase;
use quadrille_core::site::did_you_mean;
use sha2::{Digest, Sha256};

use crate::error::IoError;
use crate::hash::short_hex;

/// Labelled images in memory.
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

/// Finds and opens the data set that a network file calls `source`. `data` is the folder of the flag `--data`,
/// which holds the files itself or a folder of the source's name.
///
/// # Errors
/// [`IoError::Missing`] listing the places where it was looked for, [`IoError::Data`] if the files are damaged or
/// of a kind that cannot be read yet.
pub fn open(
    source: &str,
    data: Option<&Path>,
    phase: Phase,
    search: &SearchPath,
) -> Result<Dataset, IoError> {
    let Files { name, images, labels } = Files::find(source, data, phase, search)?;
    let (pixels, classes) = (read_images(&images)?, read_labels(&labels)?);
    let (_, height, width) = pixels.dim();
    let (pixels, _) = pixels.into_raw_vec_and_offset();
    let (classes, _) = classes.into_raw_vec_and_offset();
    let classes = classes.into_iter().map(u16::from).collect();
    Dataset::new(&name, &labels, pixels, classes, [1, height, width])
}

/// The shape of the samples that [`open`] would give: channels, height and width. Only a header is read.
///
/// # Errors
/// As [`open`], but for what stands behind the header.
pub fn sample_shape(
    source: &str,
    data: Option<&Path>,
    phase: Phase,
    search: &SearchPath,
) -> Result<[usize; 3], IoError> {
    let [_, height, width] = read_image_extents(&Files::find(source, data, phase, search)?.images)?;
    Ok([1, height, width])
}

/// The files of a data set.
struct Files {
    name: String,
    images: PathBuf,
    labels: PathBuf,
}

impl Files {
    fn find(source: &str, data: Option<&Path>, phase: Phase, search: &SearchPath) -> Result<Self, IoError> {
        let folder = search.find(source, data)?;
        let name = folder.file_name().map_or_else(|| source.to_owned(), |n| n.to_string_lossy().into_owned());
        let stem = match phase {
            Phase::Train => "train",
            Phase::Test => "t10k",
        };
        if !folder.is_dir() {
            return Err(not_a_folder(&folder));
        }
        let Some(images) = idx_file(&folder, &format!("{stem}-images-idx3-ubyte")) else {
            return Err(no_idx(&folder, stem));
        };
        let label_file = format!("{stem}-labels-idx1-ubyte");
        let labels = idx_file(&folder, &label_file)
            .ok_or_else(|| IoError::missing(&folder.join(&label_file), "not found (with or without .gz)"))?;
        Ok(Self { name, images, labels })
    }
}

/// The file `name` in `folder`, plain or gzipped.
fn idx_file(folder: &Path, name: &str) -> Option<PathBuf> {
    [folder.join(name), folder.join(format!("{name}.gz"))].into_iter().find(|path| path.is_file())
}

fn not_a_folder(path: &Path) -> IoError {
    let hint = "give the folder that holds train-images-idx3-ubyte and the like";
    IoError::data(
        path,
        "is a file; expected a folder of IDX files. HDF5 and lists of images are not supported yet",
    )
    .hint(hint)
}

/// What is wrong with a folder without IDX files.
fn no_idx(folder: &Path, stem: &str) -> IoError {
    let has = |name: &str| folder.join(name).exists();
    let unsupported = if has("data.mdb") || has("lock.mdb") {
        Some("LMDB")
    } else if has("CURRENT") && (has("LOCK") || has("LOG")) {
        Some("LevelDB")
    } else {
        None
    };
    if let Some(kind) = unsupported {
        return IoError::data(folder, format!("{kind} data sets are not supported yet; expected IDX files"))
            .hint("give the folder of the original IDX files with --data");
    }
    let wanted = format!("{stem}-images-idx3-ubyte");
    let error = IoError::missing(&folder.join(&wanted), "not found (with or without .gz)");
    let present: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| {
            entries.flatten().take(1000).map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    match did_you_mean(&wanted, present.iter().map(String::as_str)) {
        Some(close) => error.hint(format!("there is {close:?}; rename it")),
        None => error,
    }
}

#[cfg(test)]
mod tests;
