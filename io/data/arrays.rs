//! Samples in arrays of NumPy: `data`, of samples x channels x height x width, and `label`, one for each sample.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::records::{Content, Held, Record, Records, values_of};
use super::room::Room;
use crate::error::IoError;
use crate::hash::{short_hex, update};
use crate::npz::{Archive, Array, Values, read_npz, unpacked_bytes};

/// Samples that lie in memory as an archive has them.
#[derive(Debug)]
pub struct ArraySamples {
    name: String,
    /// Channels, height and width of a sample.
    shape: [usize; 3],
    values: Values,
    labels: Vec<i32>,
    hash: String,
}

impl ArraySamples {
    /// The arrays `data` and `label` of an archive (`.npz`). `data` may lack its last axes: N x H x W are samples of one
    /// channel, N x C of one pixel.
    ///
    /// # Errors
    /// [`IoError::Missing`] if it cannot be read, [`IoError::Data`] naming the array that is missing or does not fit,
    /// [`IoError::NoRoom`] if they are larger than the room for them.
    pub fn open(path: &Path, name: &str, room: Room) -> Result<Self, IoError> {
        room.check(path, unpacked_bytes(path)?)?;
        let mut archive = read_npz(path)?;
        let wrong = |message: String| IoError::data(path, message);
        let data = take(&mut archive, "data").map_err(wrong)?;
        let label = take(&mut archive, "label").map_err(wrong)?;
        let (count, shape) = match data.shape[..] {
            [n, c, h, w] => (n, [c, h, w]),
            [n, h, w] => (n, [1, h, w]),
            [n, c] => (n, [c, 1, 1]),
            _ => {
                let message = format!("array \"data\" has extents {:?}; expected N x C x H x W", data.shape);
                return Err(wrong(message));
            }
        };
        if count == 0 || values_of(shape).is_none() {
            return Err(wrong(format!("array \"data\" has extents {:?}, so no samples", data.shape)));
        }
        if label.values.len() != count {
            let message = format!(
                "array \"label\" has extents {:?}, but \"data\" has {count} samples; expected one label each",
                label.shape
            );
            return Err(wrong(message));
        }
        let labels = labels(&label.values).map_err(wrong)?;
        let hash = hash_of(count, shape, &data.values, &labels);
        Ok(Self { name: name.to_owned(), shape, values: data.values, labels, hash })
    }
}

fn take(archive: &mut Archive, name: &str) -> Result<Array, String> {
    archive.remove(name).ok_or_else(|| {
        let there: Vec<&str> = archive.keys().map(String::as_str).collect();
        format!(
            "has no array {name:?}, only {}; expected data (N x C x H x W) and label (N)",
            if there.is_empty() { "none".to_owned() } else { there.join(", ") }
        )
    })
}

/// Labels as whole numbers, whatever type they are stored in.
fn labels(values: &Values) -> Result<Vec<i32>, String> {
    let whole = |(index, value): (usize, f64)| {
        let label = value as i32;
        let fits = f64::from(label) == value;
        fits.then_some(label).ok_or_else(|| format!("label {index} is {value}; expected a whole number"))
    };
    match values {
        Values::I32(values) => Ok(values.clone()),
        Values::U8(values) => Ok(values.iter().map(|value| i32::from(*value)).collect()),
        Values::F32(values) => values.iter().map(|value| f64::from(*value)).enumerate().map(whole).collect(),
        Values::F64(values) => values.iter().copied().enumerate().map(whole).collect(),
    }
}

fn hash_of(count: usize, shape: [usize; 3], values: &Values, labels: &[i32]) -> String {
    let mut hasher = Sha256::new();
    for extent in [count, shape[0], shape[1], shape[2]] {
        hasher.update((extent as u64).to_le_bytes());
    }
    match values {
        Values::U8(values) => hasher.update(values),
        Values::F32(values) => update(&mut hasher, values),
        Values::F64(values) => values.iter().for_each(|value| hasher.update(value.to_le_bytes())),
        Values::I32(values) => values.iter().for_each(|value| hasher.update(value.to_le_bytes())),
    }
    labels.iter().for_each(|label| hasher.update(label.to_le_bytes()));
    short_hex(&hasher.finalize())
}

impl Records for ArraySamples {
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
        Some(Held::of(&self.values))
    }

    fn label(&self, index: usize) -> Option<i32> {
        self.labels.get(index).copied()
    }

    fn record_name(&self, index: usize) -> String {
        format!("sample {index}")
    }

    fn read<'a>(&'a self, index: usize, _: &'a mut Vec<u8>) -> Result<Record<'a>, String> {
        let (shape, each) = (self.shape, self.shape.iter().product::<usize>());
        let range = index * each..(index + 1) * each;
        let content = match &self.values {
            Values::U8(values) => Content::Bytes { shape, values: &values[range] },
            Values::F32(values) => Content::Floats { shape, values: values[range].to_vec() },
            Values::F64(values) => {
                Content::Floats { shape, values: values[range].iter().map(|value| *value as f32).collect() }
            }
            Values::I32(values) => {
                Content::Floats { shape, values: values[range].iter().map(|value| *value as f32).collect() }
            }
        };
        Ok(Record { label: self.labels[index], content })
    }
}
