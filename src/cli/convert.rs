//! Flags of `convert`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use quadrille_core::layer::Colour;
use quadrille_io::data::{Changes, Encoding, Form, Target, Tolerance};

use super::{PhaseArg, at_least_one, whole};

/// What `convert` turns into something else.
#[derive(Clone, Debug, Subcommand)]
pub enum ConvertCommand {
    /// Write a data set as an LMDB, tar files or a CIFAR file, resized or encoded anew if asked
    Data(ConvertDataArgs),
    /// Find the mean of a data set, as mean_file wants it
    Mean(ConvertMeanArgs),
    /// Weights: .caffemodel, .h5, .safetensors and .npz, from any into any
    Weights(ConvertWeightsArgs),
}

/// What `convert weights` takes.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The endings of the names say which formats. Arrays in .safetensors and .npz are called LAYER/INDEX: \
0 is the weight, 1 the bias. Of a snapshot of quadrille (a folder) the weights are taken. Old \
.caffemodel files become today's.")]
pub struct ConvertWeightsArgs {
    /// The file to read
    #[arg(value_name = "FROM")]
    pub from: PathBuf,
    /// The file to write; nothing is overwritten
    #[arg(value_name = "TO")]
    pub to: PathBuf,
}

/// What is done to images on their way; the same for `convert data` and `convert mean`.
#[derive(Args, Clone, Copy, Debug)]
pub struct ImageArgs {
    /// Give every image this height and width, whatever its proportions were
    #[arg(long, value_name = "H,W", value_parser = parse_size)]
    pub resize: Option<[usize; 2]>,
    /// Make image files grey
    #[arg(long, alias = "grey", conflicts_with = "color")]
    pub gray: bool,
    /// Give image files three channels, as they have unless they are an encoded Datum
    #[arg(long, alias = "colour")]
    pub color: bool,
    /// The part of a source that has parts: train, test
    #[arg(long, default_value = "train", value_name = "PHASE")]
    pub phase: PhaseArg,
    /// What to do with a record that cannot be used: fail, skip, or skip at most so many
    #[arg(long, default_value = "fail", value_name = "fail|skip|N")]
    pub bad_record: Tolerance,
}

impl ImageArgs {
    /// The same for whoever does it.
    pub fn changes(&self, form: Option<Form>) -> Changes {
        let colour = match (self.gray, self.color) {
            (true, _) => Some(Colour::Grey),
            (false, true) => Some(Colour::Colour),
            (false, false) => None,
        };
        Changes { resize: self.resize, colour, form }
    }
}

/// What `convert data` takes.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct ConvertDataArgs {
    /// The data set: a folder of images by class, a list of images, tar files, IDX or CIFAR files, an LMDB, an npz
    pub source: PathBuf,
    /// What to make, which must not be there yet: NAME.tar for a tar file of images, NAME.bin for the binary format of
    /// CIFAR-10, with --shards or --shard-size a folder of tar files, anything else for an LMDB
    pub target: PathBuf,
    /// Changes of images.
    #[command(flatten)]
    pub images: ImageArgs,
    /// Store images as image files, also if they are changed
    #[arg(long, conflicts_with = "raw")]
    pub encoded: bool,
    /// Store images as values, as Caffe's convert_imageset does unless it is told --encoded [default: image files stay
    /// image files unless they are changed]
    #[arg(long)]
    pub raw: bool,
    /// Kind of image files that are made: jpg (quality 95) or png [default: that of the source]
    #[arg(long, value_name = "jpg|png")]
    pub encode_type: Option<Encoding>,
    /// Write the records in a random order
    #[arg(long)]
    pub shuffle: bool,
    /// Seed of the random order [default: 1]
    #[arg(long, value_name = "N", requires = "shuffle", value_parser = whole)]
    pub seed: Option<u64>,
    /// Make a folder of so many tar files, shards-000000.tar and so on
    #[arg(long, value_name = "N", conflicts_with = "shard_size", value_parser = at_least_one::<usize>)]
    pub shards: Option<usize>,
    /// Make a folder of tar files of so many images each
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>)]
    pub shard_size: Option<usize>,
}

impl ConvertDataArgs {
    /// What is to be made, and how images are stored in it.
    ///
    /// # Errors
    /// The flags that contradict each other.
    pub fn target(&self) -> Result<(Target, Option<Form>), String> {
        let ends = |ending: &str| self.target.extension().is_some_and(|end| end == ending);
        let target = match (self.shards, self.shard_size) {
            (Some(_), _) | (_, Some(_)) if ends("tar") || ends("bin") => {
                return Err(
                    "--shards and --shard-size make a folder, so its name has no .tar or .bin".to_owned()
                );
            }
            (Some(shards), _) => Target::Shards(shards),
            (None, Some(size)) => Target::ShardsOf(size),
            _ if ends("tar") => Target::Tar,
            _ if ends("bin") => Target::Cifar,
            _ => Target::Lmdb,
        };
        let encoded = self.encoded || self.encode_type.is_some();
        let form = match target {
            Target::Tar | Target::Shards(_) | Target::ShardsOf(_) if self.raw => {
                return Err("--raw: a tar holds image files; make an LMDB".to_owned());
            }
            Target::Tar | Target::Shards(_) | Target::ShardsOf(_) => Some(Form::Encoded(self.encode_type)),
            Target::Cifar if encoded => {
                return Err("--encoded: CIFAR's format holds values; make an LMDB or a tar".to_owned());
            }
            Target::Cifar => Some(Form::Raw),
            Target::Lmdb if encoded && self.raw => {
                return Err("--raw conflicts with --encode-type".to_owned());
            }
            Target::Lmdb if encoded => Some(Form::Encoded(self.encode_type)),
            Target::Lmdb => self.raw.then_some(Form::Raw),
        };
        Ok((target, form))
    }
}

/// What `convert mean` takes.
#[derive(Args, Clone, Debug)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
The mean of every value over all records, found as Caffe's compute_image_mean finds it: sums in \
single precision, in the order of the data set. mean_file in a network's transform_param names the \
file."
)]
pub struct ConvertMeanArgs {
    /// The data set: a folder of images by class, a list of images, tar files, IDX or CIFAR files, an LMDB, an npz
    pub source: PathBuf,
    /// The file to write (.binaryproto), which must not be there yet
    pub target: PathBuf,
    /// Changes of images.
    #[command(flatten)]
    pub images: ImageArgs,
}

/// Height and width, separated by a comma.
fn parse_size(text: &str) -> Result<[usize; 2], String> {
    let extents: Vec<usize> = text.split(',').filter_map(|part| part.trim().parse().ok()).collect();
    let usable = |extent: usize| (1..=1 << 16).contains(&extent);
    match extents[..] {
        [h, w] if usable(h) && usable(w) && text.split(',').count() == 2 => Ok([h, w]),
        _ => Err("expected height and width, such as 256,256".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_two_numbers() {
        assert_eq!(parse_size("256, 128"), Ok([256, 128]));
        for bad in ["", "256", "256,256,3", "0,5", "5,x", "70000,5", "-1,2"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
