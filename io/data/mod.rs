//! Data sets: opening them, and preparing mini-batches ahead of their use.
//!
//! A data set is [`Records`] by index, in one order that does not depend on what it is stored in. A [`DataSource`] is
//! what a data layer makes of them; a [`Prefetcher`] draws from it and prepares mini-batches in threads of its own.

mod arrays;
mod bad;
mod chance;
mod cifar;
mod classes;
mod dataset;
mod datum;
mod decode;
mod files;
mod idx;
mod jpeg;
mod kinds;
mod lmdb;
mod prefetch;
mod records;
mod resize;
mod room;
mod rows;
mod search;
mod sizes;
mod source;
mod stage;
mod store;
mod tar;
mod transform;
mod warp;
mod windows;

pub use arrays::ArraySamples;
pub use bad::{BadRecords, Tolerance};
pub use cifar::{CIFAR_SHAPE, CifarLabels, read_cifar};
pub use dataset::Dataset;
pub use datum::{encode_datum, parse as decode_datum};
pub use decode::decode as decode_image;
pub use files::ImageFiles;
pub use idx::{read_image_extents, read_images, read_labels};
pub use jpeg::encode_jpeg;
pub use kinds::{Opening, open, open_records, sample_shape};
pub use lmdb::{Lmdb, LmdbWriter, lmdb_file};
pub use prefetch::{Batch, Order, Prefetcher, Readers};
pub use records::{Content, Held, MAX_RECORD, Record, Records};
pub use room::Room;
pub use rows::{RowFiles, RowReader};
pub use search::SearchPath;
pub use source::{DataSource, LabelRule};
pub use stage::{StageEvent, Staging};
pub use store::{Changes, Encoding, Form, Storing, Target, mean, store};
pub use tar::{TarImages, TarWriter};
pub use transform::{decode_mean, read_mean, write_mean};

#[cfg(test)]
mod tests;
