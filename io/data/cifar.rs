//! The binary format of CIFAR-10 and CIFAR-100: for each image one label (CIFAR-10) or two (coarse and fine, CIFAR-100), a
//! byte each, and 32 x 32 pixels of red, then of green, then of blue, which is the order that Caffe's own converter
//! keeps.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use quadrille_core::net::Phase;

use super::dataset::Dataset;
use super::room::Room;
use crate::error::IoError;

/// Channels, height and width.
pub const CIFAR_SHAPE: [usize; 3] = [3, 32, 32];
const PIXELS: usize = 3 * 32 * 32;
/// Largest file: a hundred times what the data sets have.
const MAX_BYTES: u64 = 16 << 30;

/// How many labels an image has, and which of them is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CifarLabels {
    /// One.
    Ten,
    /// The second of two, of 100 classes.
    Fine,
    /// The first of two, of 20 classes.
    Coarse,
}

/// The files of a folder for `phase`, with the kind of their labels as their names say it.
pub(super) fn cifar_files(folder: &Path, phase: Phase, coarse: bool) -> Option<(Vec<PathBuf>, CifarLabels)> {
    let hundred = match phase {
        Phase::Train => folder.join("train.bin"),
        Phase::Test => folder.join("test.bin"),
    };
    if hundred.is_file() {
        return Some((vec![hundred], if coarse { CifarLabels::Coarse } else { CifarLabels::Fine }));
    }
    let of_phase = |name: &str| match phase {
        Phase::Train => name.starts_with("data_batch_") && name.ends_with(".bin"),
        Phase::Test => name == "test_batch.bin",
    };
    let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> =
        names.filter_map(|name| name.into_string().ok()).filter(|n| of_phase(n)).collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    let files: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    (!files.is_empty()).then_some((files, CifarLabels::Ten))
}

/// Whether a folder has files of such names, for any phase.
pub(super) fn looks_like_cifar(folder: &Path) -> bool {
    [Phase::Train, Phase::Test].iter().any(|phase| cifar_files(folder, *phase, false).is_some())
}

/// Reads files into memory, one behind the other.
///
/// # Errors
/// [`IoError::Missing`] if one cannot be opened, [`IoError::Data`] if it is not a whole number of images,
/// [`IoError::NoRoom`] if they are larger than the room for them.
pub fn read_cifar(
    files: &[PathBuf],
    labels: CifarLabels,
    name: &str,
    room: Room,
) -> Result<Dataset, IoError> {
    let path = files.first().map_or(Path::new(name), PathBuf::as_path);
    let bytes = |path: &PathBuf| path.metadata().map_or(0, |found| found.len());
    let whole = files.iter().map(bytes).sum::<u64>();
    room.check(path, whole)?;
    let (mut images, mut classes) = (Vec::new(), Vec::new());
    // In one piece, or growing would hold it twice.
    images
        .try_reserve_exact(usize::try_from(whole.min(MAX_BYTES)).unwrap_or(0))
        .map_err(|error| IoError::data(path, error.to_string()))?;
    let before = if labels == CifarLabels::Ten { 1 } else { 2 };
    for path in files {
        let unreadable = |error| IoError::unreadable(path, EXPECTED, &error);
        let file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let each = (before + PIXELS) as u64;
        if bytes == 0 || !bytes.is_multiple_of(each) || bytes > MAX_BYTES {
            let message = format!(
                "has {bytes} bytes, which is no whole number of images of {each} bytes; expected {EXPECTED}"
            );
            return Err(IoError::data(path, message).hint("download it again, and unpack it if it is packed"));
        }
        let count = (bytes / each) as usize;
        let mut source = BufReader::with_capacity(1 << 20, file);
        let mut record = vec![0; before + PIXELS];
        for _ in 0..count {
            source.read_exact(&mut record).map_err(unreadable)?;
            let (label, pixels) = record.split_at(before);
            let label = label[if labels == CifarLabels::Fine { 1 } else { 0 }];
            let most = match labels {
                CifarLabels::Ten => 10,
                CifarLabels::Fine => 100,
                CifarLabels::Coarse => 20,
            };
            if label >= most {
                let number = classes.len();
                return Err(IoError::data(
                    path,
                    format!("image {number} has the label {label}; expected less than {most}"),
                ));
            }
            classes.push(u16::from(label));
            images.extend_from_slice(pixels);
        }
    }
    Dataset::new(name, path, images, classes, CIFAR_SHAPE)
}

const EXPECTED: &str = "a binary file of CIFAR-10 or CIFAR-100";
