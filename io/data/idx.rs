//! The IDX format of MNIST: two zero bytes, a type (8: unsigned byte), the number of axes, the extents as
//! big-endian 32-bit numbers, the values. Files may be gzipped.

use std::fs::File;
use std::io::{BufReader, Cursor, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use ndarray::{Array1, Array3};
use quadrille_core::net::Phase;
use quadrille_core::site::did_you_mean;

use super::dataset::Dataset;
use super::room::Room;
use crate::error::IoError;
use crate::npz::MAX_EXPANSION;

/// Largest number of values in one file, in bytes: more than any IDX set, and a bound for what a small gzip file
/// may unpack to.
const MAX_VALUES: u64 = 4 << 30;
/// Extents and data are read in steps of this many bytes, so that a header that promises too much costs nothing.
const STEP: u64 = 1 << 20;

/// What a gzip file begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads an IDX file of images: N x H x W.
///
/// # Errors
/// [`IoError::Missing`] if it cannot be opened, [`IoError::Data`] if it is not such a file, too short or too long.
pub fn read_images(path: &Path) -> Result<Array3<u8>, IoError> {
    let ([images, height, width], values) = read(path, IMAGES)?;
    Array3::from_shape_vec((images, height, width), values)
        .map_err(|error| IoError::data(path, format!("does not fit its extents: {error}")))
}

/// Reads an IDX file of labels.
///
/// # Errors
/// As [`read_images`].
pub fn read_labels(path: &Path) -> Result<Array1<u8>, IoError> {
    let ([_], values) = read::<1>(path, "an IDX file of labels (idx1-ubyte)")?;
    Ok(Array1::from_vec(values))
}

/// The extents of an IDX file of images, N x H x W, from its header alone.
///
/// # Errors
/// As [`read_images`], but for what stands behind the header.
pub fn read_image_extents(path: &Path) -> Result<[usize; 3], IoError> {
    let mut source = open(path, IMAGES)?;
    read_header(&mut source, path, IMAGES)
}

const IMAGES: &str = "an IDX file of images (idx3-ubyte)";

/// What a file holds, unpacked if it is gzipped.
fn open(path: &Path, expected: &str) -> Result<Box<dyn Read>, IoError> {
    let unreadable = |error| IoError::unreadable(path, expected, &error);
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    let mut start = [0; 2];
    let got = read_some(&mut file, &mut start).map_err(unreadable)?;
    let gzipped = start[..got] == GZIP;
    let source = Cursor::new(start).take(got as u64).chain(file);
    Ok(if gzipped { Box::new(MultiGzDecoder::new(source)) } else { Box::new(source) })
}

/// Bytes that a file can hold, unpacked if it is packed.
fn most_values(path: &Path) -> u64 {
    let stored = path.metadata().map_or(0, |found| found.len());
    let mut start = [0; 2];
    let packed = File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == GZIP;
    stored.saturating_mul(if packed { MAX_EXPANSION } else { 1 })
}

/// How a failure to read is told.
fn broken(error: &std::io::Error, path: &Path, expected: &str) -> IoError {
    match error.kind() {
        ErrorKind::UnexpectedEof => IoError::data(path, format!("is cut off; expected {expected}"))
            .hint("download it again: it is shorter than it should be"),
        _ => IoError::unreadable(path, expected, error),
    }
}

/// Extents and values of a file with `AXES` axes.
fn read<const AXES: usize>(path: &Path, expected: &str) -> Result<([usize; AXES], Vec<u8>), IoError> {
    let mut source = open(path, expected)?;
    let extents = read_header(&mut source, path, expected)?;
    let values = read_values(&mut source, &extents, path, expected)?;
    Ok((extents, values))
}

fn read_header<const AXES: usize>(
    source: &mut impl Read,
    path: &Path,
    expected: &str,
) -> Result<[usize; AXES], IoError> {
    let broken = |error| broken(&error, path, expected);
    let mut magic = [0; 4];
    source.read_exact(&mut magic).map_err(broken)?;
    if magic[..3] != [0, 0, 8] || usize::from(magic[3]) != AXES {
        let [a, b, c, d] = magic;
        let error = IoError::data(
            path,
            format!("starts with {a:02x} {b:02x} {c:02x} {d:02x}; expected 00 00 08 {AXES:02x}, {expected}"),
        );
        let swapped = magic[..3] == [0, 0, 8] && matches!(magic[3], 1 | 3);
        return Err(if swapped { error.hint("have images and labels been exchanged?") } else { error });
    }
    let mut extents = [0; AXES];
    for extent in &mut extents {
        let mut bytes = [0; 4];
        source.read_exact(&mut bytes).map_err(broken)?;
        *extent = u32::from_be_bytes(bytes) as usize;
    }
    Ok(extents)
}

/// As many values as the extents say, and nothing behind them.
fn read_values(
    source: &mut impl Read,
    extents: &[usize],
    path: &Path,
    expected: &str,
) -> Result<Vec<u8>, IoError> {
    let broken = |error| broken(&error, path, expected);
    let count = extents.iter().try_fold(1u64, |n, &e| n.checked_mul(e as u64)).filter(|n| *n <= MAX_VALUES);
    let count = count.ok_or_else(|| {
        IoError::data(
            path,
            format!("the header promises {extents:?} values, more than {} GiB", MAX_VALUES >> 30),
        )
    })?;
    let mut values = Vec::new();
    // Addresses cost nothing until they are used, and growing step by step would hold the values twice.
    let _ = values.try_reserve_exact(usize::try_from(count).unwrap_or(0));
    while (values.len() as u64) < count {
        let step = STEP.min(count - values.len() as u64);
        let got = source.by_ref().take(step).read_to_end(&mut values).map_err(broken)?;
        if (got as u64) < step {
            return Err(IoError::data(
                path,
                format!("is cut off: {} values, but the header promises {count} ({extents:?})", values.len()),
            )
            .hint("download it again: it is shorter than it should be"));
        }
    }
    // Also reads the checksum at the end of a gzip file.
    if read_some(source, &mut [0]).map_err(broken)? > 0 {
        return Err(IoError::data(
            path,
            format!("has more than the {count} values that its header promises"),
        ));
    }
    Ok(values)
}

/// Fills as much of `into` as there is.
fn read_some(source: &mut impl Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match source.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// Whether a folder has files that are named as those of IDX sets, for any phase.
pub(super) fn looks_like_idx(folder: &Path) -> bool {
    let is = |name: &str| ["train", "t10k"].iter().any(|stem| name.starts_with(&format!("{stem}-images")));
    names(folder).iter().any(|name| is(name))
}

/// Reads the images and labels of `phase` in a folder of IDX files.
///
/// # Errors
/// [`IoError::Missing`] if a file is not there, [`IoError::Data`] if it is damaged, [`IoError::NoRoom`] if it is larger than
/// the room for it.
pub(super) fn read_idx(folder: &Path, phase: Phase, room: Room) -> Result<Dataset, IoError> {
    let name = folder.file_name().map_or_else(|| "IDX files".into(), |name| name.to_string_lossy());
    let (images, labels) =
        (file_of(folder, phase, "images-idx3-ubyte")?, file_of(folder, phase, "labels-idx1-ubyte")?);
    let promised =
        read_image_extents(&images)?.iter().fold(1, |n: u64, extent| n.saturating_mul(*extent as u64));
    // A header that promises more than the file can hold is told so when it is read.
    room.check(&images, promised.min(most_values(&images)))?;
    let (pixels, classes) = (read_images(&images)?, read_labels(&labels)?);
    let (_, height, width) = pixels.dim();
    let (pixels, _) = pixels.into_raw_vec_and_offset();
    let (classes, _) = classes.into_raw_vec_and_offset();
    let classes = classes.into_iter().map(u16::from).collect();
    Dataset::new(&name, &labels, pixels, classes, [1, height, width])
}

/// Channels, height and width of the images of `phase`; only a header is read.
///
/// # Errors
/// As [`read_idx`], but for what stands behind the header.
pub(super) fn sample_shape(folder: &Path, phase: Phase) -> Result<[usize; 3], IoError> {
    let [_, height, width] = read_image_extents(&file_of(folder, phase, "images-idx3-ubyte")?)?;
    Ok([1, height, width])
}

/// The file of a phase, plain or gzipped.
fn file_of(folder: &Path, phase: Phase, ending: &str) -> Result<PathBuf, IoError> {
    let stem = match phase {
        Phase::Train => "train",
        Phase::Test => "t10k",
    };
    let wanted = format!("{stem}-{ending}");
    let places = [folder.join(&wanted), folder.join(format!("{wanted}.gz"))];
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let error = IoError::missing(&folder.join(&wanted), "not found (with or without .gz)");
        match did_you_mean(&wanted, names(folder).iter().map(String::as_str)) {
            Some(close) => error.hint(format!("there is {close:?}; rename it")),
            None => error,
        }
    })
}

/// What is in a folder, or the first thousand of it.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(1000);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
