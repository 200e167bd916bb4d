//! What comes with the program, so that it runs from any folder.

use std::path::{Component, Path, PathBuf};

use quadrille_core::site::did_you_mean;

/// The bundled solver.
pub const SOLVER: &str = include_str!("../models/lenet/quick_solver.prototxt");
/// The bundled network.
pub const NET: &str = include_str!("../models/lenet/train_val.prototxt");
/// How they are named in messages.
pub const SOLVER_NAME: &str = "models/lenet/quick_solver.prototxt";
/// How they are named in messages.
pub const NET_NAME: &str = "models/lenet/train_val.prototxt";

/// Every network that comes with the program: a name and a number of images on each line.
const COMPARED: &str = include_str!("../models/compared_batches.txt");

/// The networks that come with the program, and the images in the mini-batches with which they are compared.
fn compared() -> impl Iterator<Item = (&'static str, usize)> {
    let lines = COMPARED.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ').and_then(|(name, batch)| Some((name, batch.parse().ok()?))))
}

/// The folder of the sources, as known when the program was compiled: one of the places where data is looked for.
pub fn repository() -> Option<PathBuf> {
    Some(Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()).filter(|p| p.is_dir())
}

/// The name if `model` is a bare word and no file: that of a bundled network.
fn bare_name(model: &Path) -> Option<&str> {
    let is_word = matches!(model.components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
    model.to_str().filter(|_| is_word && model.extension().is_none() && !model.is_file())
}

/// The files that may be `file` of the bundled network `name`: here or beside the sources.
fn places(name: &str, file: &str) -> Vec<PathBuf> {
    let folders = std::iter::once(PathBuf::from("models")).chain(repository().map(|r| r.join("models")));
    folders.map(|folder| folder.join(name).join(file)).collect()
}

/// The solver that a bundled network was published with, if `model` is the name of one.
pub fn solver_file(model: &Path) -> Option<PathBuf> {
    places(bare_name(model)?, "solver.prototxt").into_iter().find(|place| place.is_file())
}

/// The file of a network: `model` itself, or `models/NAME/train_val.prototxt` for a bare name, here or beside the sources.
///
/// # Errors
/// The places that were looked at, if the name is none of a bundled network.
pub fn model_file(model: &Path) -> Result<PathBuf, String> {
    let Some(name) = bare_name(model) else { return Ok(model.to_owned()) };
    let places = places(name, "train_val.prototxt");
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let names: Vec<&str> = compared().map(|(name, _)| name).collect();
        let hint = match did_you_mean(name, names.iter().copied()) {
            Some(close) => format!("did you mean {close:?}?"),
            None => format!("networks that come with the program are {}", names.join(", ")),
        };
        let what = if model.is_dir() { "a folder; name the .prototxt in it" } else { "no such file" };
        format!("{name}: {what}, nor is there {}\n  hint: {hint}", tried.join(" or "))
    })
}

/// The mini-batch with which a bundled network is timed if it is given by its bare name.
pub fn compared_batch(model: &Path) -> Option<usize> {
    let name = bare_name(model)?;
    compared().find(|(known, _)| *known == name).map(|(_, batch)| batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_network_and_a_batch() {
        let lines = COMPARED.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(compared().filter(|(_, batch)| *batch > 0).count(), lines);
        assert_eq!(compared_batch(Path::new("vgg16")), Some(8));
        for other in ["models/vgg16/train_val.prototxt", "vgg16.prototxt", "vgg", "./vgg16/.."] {
            assert_eq!(compared_batch(Path::new(other)), None, "{other}");
        }
    }
}
