//! What every kind of data set is to those who draw from it: records by index.

use std::fmt::Debug;
use std::hint::black_box;
use std::ptr::NonNull;

use sha2::{Digest, Sha256};

use crate::hash::short_hex;
use crate::npz::Values;

/// Largest number of bytes of one record, as it is stored and as pixels: far more than any image has, and a bound for
/// what a damaged header can ask for.
pub const MAX_RECORD: usize = 256 << 20;

/// A data set: records that any thread reads by index, in any order.
pub trait Records: Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;
    /// Number of records.
    fn len(&self) -> usize;
    /// Whether there are none; never so for a data set that was opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Identifies the content: 16 hexadecimal digits. For what lies in memory over all of it, for larger sets over the
    /// names, labels and sizes of all records (see `IndexHash`).
    fn hash(&self) -> &str;
    /// The memory that all values lie in, if they are held in memory.
    fn held(&self) -> Option<Held<'_>> {
        None
    }
    /// Whether reading a record is worth a thread: it is decoded, or comes from a disk.
    fn is_costly(&self) -> bool {
        true
    }
    /// The label of a record, where it is known without reading the record.
    fn label(&self, index: usize) -> Option<i32>;
    /// The path of a record that is a file, below the folder of its data set.
    fn path(&self, _: usize) -> Option<&str> {
        None
    }
    /// How many files the records are spread over so that each can be read without the others; 1 if they are not.
    fn shards(&self) -> usize {
        1
    }
    /// The number of the file that a record lies in.
    fn shard(&self, _: usize) -> usize {
        0
    }
    /// What a record is called in messages.
    fn record_name(&self, index: usize) -> String;
    /// Reads a record; `scratch` is memory that it may lie in.
    ///
    /// # Errors
    /// What is wrong with the record, without its name.
    fn read<'a>(&'a self, index: usize, scratch: &'a mut Vec<u8>) -> Result<Record<'a>, String>;
}

/// Values that are held in memory, for whoever wants to know or say on which node they lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Held<'a> {
    /// Bytes.
    U8(&'a [u8]),
    /// Integers.
    I32(&'a [i32]),
    /// Numbers in single precision.
    F32(&'a [f32]),
    /// Numbers in double precision.
    F64(&'a [f64]),
}

impl<'a> Held<'a> {
    /// The values of an array.
    pub fn of(values: &'a Values) -> Self {
        match values {
            Values::U8(values) => Self::U8(values),
            Values::I32(values) => Self::I32(values),
            Values::F32(values) => Self::F32(values),
            Values::F64(values) => Self::F64(values),
        }
    }

    /// Its first byte.
    pub fn start(self) -> NonNull<u8> {
        match self {
            Self::U8(values) => NonNull::from(values).cast(),
            Self::I32(values) => NonNull::from(values).cast(),
            Self::F32(values) => NonNull::from(values).cast(),
            Self::F64(values) => NonNull::from(values).cast(),
        }
    }

    /// How much it takes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8(values) => size_of_val(values),
            Self::I32(values) => size_of_val(values),
            Self::F32(values) => size_of_val(values),
            Self::F64(values) => size_of_val(values),
        }
    }

    /// Reads something of every page of so many bytes.
    pub fn touch(self, page: usize) {
        fn touch<T: Copy>(values: &[T], page: usize) {
            values.iter().step_by((page / size_of::<T>()).max(1)).for_each(|value| {
                black_box(*value);
            });
        }
        match self {
            Self::U8(values) => touch(values, page),
            Self::I32(values) => touch(values, page),
            Self::F32(values) => touch(values, page),
            Self::F64(values) => touch(values, page),
        }
    }
}

/// A sample as it is stored.
#[derive(Debug, PartialEq)]
pub struct Record<'a> {
    /// Its class.
    pub label: i32,
    /// Its values.
    pub content: Content<'a>,
}

/// The values of a sample as they are stored.
#[derive(Debug, PartialEq)]
pub enum Content<'a> {
    /// Unsigned bytes, channel by channel and row by row.
    Bytes {
        /// Channels, height, width.
        shape: [usize; 3],
        /// As many values as the shape says.
        values: &'a [u8],
    },
    /// Numbers, channel by channel and row by row.
    Floats {
        /// Channels, height, width.
        shape: [usize; 3],
        /// As many values as the shape says.
        values: Vec<f32>,
    },
    /// An image file: JPEG or PNG.
    Encoded {
        /// The file.
        file: &'a [u8],
        /// Whether it has the channels of the file unless somebody forces others, as in a Datum; otherwise three, as
        /// Caffe's tools give the images of folders and lists.
        native: bool,
    },
}

/// Identifies a data set by its index: cheap for sets of any size. Contents that change while all names, labels and
/// sizes stay the same are not noticed.
#[derive(Debug, Default)]
pub(super) struct IndexHash(Sha256);

impl IndexHash {
    /// Adds a record; the order counts.
    pub(super) fn add(&mut self, name: &[u8], label: Option<i32>, bytes: u64) {
        self.0.update((name.len() as u64).to_le_bytes());
        self.0.update(name);
        self.0.update(label.map_or(i64::MIN, i64::from).to_le_bytes());
        self.0.update(bytes.to_le_bytes());
    }

    /// 16 hexadecimal digits.
    pub(super) fn finish(self) -> String {
        short_hex(&self.0.finalize())
    }
}

/// The number of values of a shape, if it is neither none nor more than a record may have.
pub(super) fn values_of(shape: [usize; 3]) -> Option<usize> {
    let count = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
    count.filter(|count| (1..=MAX_RECORD).contains(count))
}
