//! Flags about data sets.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use quadrille_io::data::Tolerance;

/// Where samples come from; the same for every command that reads them.
#[derive(Args, Clone, Debug)]
pub struct DataArgs {
    /// The data set, or a folder that holds it, instead of the source that the network names: an LMDB, IDX or CIFAR
    /// files, arrays (.npz), a folder of images by class, a list of images, tar files ('shards-*.tar'). What has parts
    /// train and test (or val) is read by phase
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// What to do with a record that cannot be used: fail, skip (the next one takes its place; all are counted and
    /// listed at the end), or skip at most so many
    #[arg(long, default_value = "fail", value_name = "fail|skip|N")]
    pub bad_record: Tolerance,
    /// Copy the data set to a folder on storage of this node first, unless a good copy is there already, and read it there
    #[arg(long, value_name = "DIR")]
    pub stage_to: Option<PathBuf>,
}

/// What of a data set each worker reads to train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DataShards {
    /// All of it.
    #[default]
    All,
    /// A part of its own.
    Rank,
}
