//! `quadrille convert`: files of one format into another.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use quadrille_core::rng::Sampler;
use quadrille_io::data::{Content, LmdbWriter, Record, Records, TarWriter, encode_datum, open_records};
use quadrille_io::{IoError, weights};

use crate::cli::{ConvertCommand, ConvertDataArgs, ConvertWeightsArgs};
use crate::failure::{Code, Failure};

/// Converts.
pub fn run(command: &ConvertCommand) -> Result<(), Failure> {
    match command {
        ConvertCommand::Data(args) => convert_data(args),
        ConvertCommand::Weights(args) => convert_weights(args),
    }
}

fn convert_weights(args: &ConvertWeightsArgs) -> Result<(), Failure> {
    let weights::Converted { arrays, values } = weights::convert(&args.from, &args.to)?;
    say!("written     {arrays} arrays, {values} weights to {}", args.to.display());
    Ok(())
}

/// Writes records under another name, which is the target's only once all of them are on the disk.
fn convert_data(args: &ConvertDataArgs) -> Result<(), Failure> {
    let target = &args.target;
    let cannot = |source| IoError::CannotCreate { path: target.clone(), what: WHAT, source };
    if target.exists() {
        return Err(cannot(io::Error::new(io::ErrorKind::AlreadyExists, "it is there already")).into());
    }
    let records = open_records(&args.source, args.phase.into())?;
    let sampler = Sampler::new(1, 0, records.len() as u64);
    let order = |k: usize| if args.shuffle { sampler.index(k as u64) as usize } else { k };
    let part = PathBuf::from(format!("{}.part", target.display()));
    let is_tar = target.extension().is_some_and(|ending| ending == "tar");
    let written = if is_tar {
        let file = File::create_new(&part).map_err(cannot)?;
        write_tar(&*records, order, file)
    } else {
        fs::create_dir(&part).map_err(cannot)?;
        let file = File::create_new(part.join("data.mdb")).map_err(cannot)?;
        write_lmdb(&*records, order, file)
    };
    let outcome = written.and_then(|()| fs::rename(&part, target).map_err(Step::Write));
    outcome.map_err(|step| {
        // Nothing is left to do if the remains cannot be removed either.
        let _ = if is_tar { fs::remove_file(&part) } else { fs::remove_dir_all(&part) };
        step.failure(target, records.name())
    })?;
    say!("{}: {} records of {} ({})", target.display(), records.len(), records.name(), records.hash());
    Ok(())
}

const WHAT: &str = "a data set";

/// What went wrong on the way.
enum Step {
    Read(String),
    Write(io::Error),
}

impl From<io::Error> for Step {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl Step {
    fn failure(self, target: &Path, source: &str) -> Failure {
        match self {
            Self::Read(message) => Failure::new(Code::Data, format!("{source}: {message}")),
            Self::Write(source) => {
                IoError::WriteFailed { path: target.to_owned(), what: WHAT, source }.into()
            }
        }
    }
}

/// Hands every record with its number and name to `used`, with a progress bar on a terminal.
fn each(
    records: &dyn Records,
    order: impl Fn(usize) -> usize,
    mut used: impl FnMut(usize, usize, &Record<'_>) -> Result<(), Step>,
) -> Result<(), Step> {
    let bar = ProgressBar::new(records.len() as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} records  {per_sec}  {eta} left");
    bar.set_style(style.unwrap_or(ProgressStyle::default_bar()));
    let mut scratch = Vec::new();
    for k in 0..records.len() {
        let index = order(k);
        let record = records.read(index, &mut scratch);
        let record =
            record.map_err(|message| Step::Read(format!("{} {message}", records.record_name(index))))?;
        used(k, index, &record)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// An LMDB whose keys are those of Caffe's convert_imageset: eight digits and, for files, their path.
fn write_lmdb(records: &dyn Records, order: impl Fn(usize) -> usize, file: File) -> Result<(), Step> {
    let mut writer = LmdbWriter::new(file)?;
    each(records, order, |k, index, record| {
        let key = match records.path(index) {
            Some(path) => format!("{k:08}_{path}"),
            None => format!("{k:08}"),
        };
        Ok(writer.add(key.as_bytes(), &encode_datum(record))?)
    })?;
    writer.finish()?;
    Ok(())
}

/// A tar of the image files of a folder or another tar, under their paths.
fn write_tar(records: &dyn Records, order: impl Fn(usize) -> usize, file: File) -> Result<(), Step> {
    let mut writer = TarWriter::new(BufWriter::with_capacity(1 << 20, file));
    each(records, order, |_, index, record| {
        let (Content::Encoded { file, .. }, Some(path)) = (&record.content, records.path(index)) else {
            let name = records.record_name(index);
            return Err(Step::Read(format!(
                "{name} is no image file, so it cannot go into a tar; make an LMDB"
            )));
        };
        Ok(writer.add(path, file)?)
    })?;
    let mut file = writer.finish()?;
    file.flush()?;
    Ok(file.get_ref().sync_all()?)
}
