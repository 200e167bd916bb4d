//! `quadrille convert`: files of one format into another.

use quadrille_io::weights;

use crate::cli::{ConvertCommand, ConvertWeightsArgs};
use crate::failure::Failure;

/// Converts.
pub fn run(command: &ConvertCommand) -> Result<(), Failure> {
    match command {
        ConvertCommand::Weights(args) => convert_weights(args),
    }
}

fn convert_weights(args: &ConvertWeightsArgs) -> Result<(), Failure> {
    let weights::Converted { arrays, values } = weights::convert(&args.from, &args.to)?;
    say!("written     {arrays} arrays, {values} weights to {}", args.to.display());
    Ok(())
}
