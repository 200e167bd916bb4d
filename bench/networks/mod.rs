//! The networks that repeat a pattern, written from it, so that no copy of the pattern differs from the others.

mod googlenet;
mod inception_v3;
mod resnet;
mod text;
mod vgg;

use std::path::{Path, PathBuf};

/// Where the files go.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder of networks
    #[arg(long, default_value = "models", value_name = "DIR")]
    models: PathBuf,
}

/// Every network that is made of a pattern, and its text.
fn networks() -> Vec<(String, String)> {
    let resnets = [18, 34, 50, 101, 152].into_iter().filter_map(|layers| {
        let text = resnet::network(layers)?;
        Some((format!("resnet{layers}"), text))
    });
    let vggs = [16, 19].map(|layers| (format!("vgg{layers}"), vgg::network(layers)));
    let inceptions = [("googlenet", googlenet::network()), ("inception_v3", inception_v3::network())];
    let inceptions = inceptions.map(|(name, text)| (name.to_owned(), text));
    resnets.chain(vggs).chain(inceptions).collect()
}

fn place(models: &Path, name: &str) -> PathBuf {
    models.join(name).join("train_val.prototxt")
}

/// Writes the files.
pub fn run(args: &Args) -> Result<(), String> {
    for (name, text) in networks() {
        let path = place(&args.models, &name);
        let folder = path.parent().unwrap_or(&args.models);
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_those_that_the_patterns_give() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
        let networks = networks();
        assert_eq!(networks.len(), 9);
        for (name, text) in networks {
            let path = place(&models, &name);
            let file = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(file == text, "{}: run `quadrille-bench networks` after a change", path.display());
        }
    }
}
