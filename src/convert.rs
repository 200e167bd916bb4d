//! `quadrille convert`: files of one format into another.

use std::io;

use indicatif::{ProgressBar, ProgressStyle};
use quadrille_core::rng::Sampler;
use quadrille_io::data::{Storing, Target, mean, open_records, store, write_mean};
use quadrille_io::{IoError, weights};

use crate::cli::{ConvertCommand, ConvertDataArgs, ConvertMeanArgs, ConvertWeightsArgs};
use crate::failure::{Code, Failure};
use crate::job::say_bad;

/// Converts.
pub fn run(command: &ConvertCommand) -> Result<(), Failure> {
    match command {
        ConvertCommand::Data(args) => convert_data(args),
        ConvertCommand::Mean(args) => convert_mean(args),
        ConvertCommand::Weights(args) => convert_weights(args),
    }
}

fn convert_weights(args: &ConvertWeightsArgs) -> Result<(), Failure> {
    let weights::Converted { arrays, values } = weights::convert(&args.from, &args.to)?;
    say!("written     {arrays} arrays, {values} weights to {}", args.to.display());
    Ok(())
}

fn convert_data(args: &ConvertDataArgs) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(Code::Usage, message);
    let (target, form) = args.target().map_err(usage)?;
    let records = open_records(&args.source, args.images.phase.into())?;
    if let Target::Shards(shards) = target
        && shards > records.len()
    {
        return Err(usage(format!("--shards {shards}: there are only {} records", records.len())));
    }
    let order = || Sampler::new(args.seed.unwrap_or(1), 0, records.len() as u64);
    let order = args.shuffle.then(order);
    let (changes, tolerance) = (args.images.changes(form), args.images.bad_record);
    let storing = Storing { target, changes, order, tolerance };
    let bar = bar(records.len());
    let bad = store(&*records, &storing, &args.target, |done| bar.set_position(done))?;
    bar.finish_and_clear();
    say_bad(&bad, records.len(), records.name());
    let written = records.len() as u64 - bad.list().0;
    say!("{}: {written} records of {} ({})", args.target.display(), records.name(), records.hash());
    Ok(())
}

fn convert_mean(args: &ConvertMeanArgs) -> Result<(), Failure> {
    let path = &args.target;
    if path.symlink_metadata().is_ok() {
        let source = io::Error::new(io::ErrorKind::AlreadyExists, "it is there already");
        return Err(IoError::CannotCreate { path: path.clone(), what: "a file of means", source }.into());
    }
    let records = open_records(&args.source, args.images.phase.into())?;
    let bar = bar(records.len());
    let (changes, tolerance) = (args.images.changes(None), args.images.bad_record);
    let (shape, values, bad) = mean(&*records, changes, tolerance, |done| bar.set_position(done))?;
    bar.finish_and_clear();
    write_mean(path, shape, &values)?;
    say_bad(&bad, records.len(), records.name());
    let [c, h, w] = shape;
    let used = records.len() as u64 - bad.list().0;
    say!("{}: {c} x {h} x {w} means of {used} records of {}", path.display(), records.name());
    for (channel, plane) in values.chunks(h * w).enumerate() {
        // As Caffe finds what it shows: a sum in single precision.
        say!("mean_value  channel {channel}: {}", plane.iter().sum::<f32>() / (h * w) as f32);
    }
    Ok(())
}

/// A bar of so many records on a terminal; nothing elsewhere.
fn bar(records: usize) -> ProgressBar {
    let bar = ProgressBar::new(records as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} records  {per_sec}  {eta} left");
    bar.with_style(style.unwrap_or(ProgressStyle::default_bar()))
}
