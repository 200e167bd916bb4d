//! Network and solver files in protobuf's text format.
//!
//! Text is bounded and its lines are noted (`tokens`, `outline`), the library makes it a message of the schema
//! (`message`), old forms of layers become today's (`upgrade`), the message becomes core's vocabulary (`net`, `layer`,
//! `solver`), and so do machine and plan files (`machine`, `plan`). What Caffe understands and Quadrille does not yet do is refused with its line, never dropped.

mod arrange;
mod convolved;
mod fields;
mod forks;
mod inline;
mod layer;
mod loss;
mod machine;
mod message;
mod net;
mod neuron;
mod outline;
mod plan;
mod sequences;
mod sizes;
mod solver;
mod sources;
#[cfg(test)]
mod tests;
mod tokens;
mod upgrade;
mod window;

pub use plan::{format_plan, write_plan};
pub(crate) use upgrade::{type_of_v0, type_of_v1};

use std::fs::File;
use std::io::Read;
use std::path::Path;

use quadrille_core::machine::Machine;
use quadrille_core::net::NetSpec;
use quadrille_core::plan::SavedPlan;
use quadrille_core::site::{Fault, Site, SpecError};
use quadrille_core::solver::SolverSpec;

use crate::error::IoError;
use crate::schema::{descriptor, machine_descriptor, plan_descriptor};

/// Largest text file that is read, in bytes.
pub const MAX_BYTES: u64 = 16 << 20;

/// Reads a network file.
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read, [`IoError::Spec`] with file, line and field if it does not
/// describe a network that can be trained here.
pub fn read_net(path: &Path) -> Result<NetSpec, IoError> {
    let text = read(path, "a network file (.prototxt)")?;
    Ok(parse_net(text, &path.display().to_string())?)
}

/// Reads a solver file.
///
/// # Errors
/// As [`read_net`].
pub fn read_solver(path: &Path) -> Result<SolverSpec, IoError> {
    let text = read(path, "a solver file (.prototxt)")?;
    Ok(parse_solver(text, &path.display().to_string())?)
}

/// Reads a machine file.
///
/// # Errors
/// As [`read_net`].
pub fn read_machine(path: &Path) -> Result<Machine, IoError> {
    let text = read(path, "a machine file (.prototxt)")?;
    Ok(parse_machine(text, &path.display().to_string())?)
}

/// Reads a plan file.
///
/// # Errors
/// As [`read_net`].
pub fn read_plan(path: &Path) -> Result<SavedPlan, IoError> {
    let text = read(path, "a plan file (.prototxt)")?;
    Ok(parse_plan(text, &path.display().to_string())?)
}

/// What a file of the text format describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A network.
    Net,
    /// A solver.
    Solver,
}

/// Tells a network from a solver by the first field; what is neither counts as a network, whose reading says why.
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read.
pub fn kind_of(path: &Path) -> Result<FileKind, IoError> {
    let text = read(path, "a network or solver file (.prototxt)")?;
    let has = |kind: &str, name: &str| descriptor(kind).get_field_by_name(name).is_some();
    Ok(match tokens::Tokens::new(&text).next() {
        Ok(tokens::Token::Word(name)) if has("SolverParameter", name) && !has("NetParameter", name) => {
            FileKind::Solver
        }
        _ => FileKind::Net,
    })
}

/// Parses the text of a network file; `file_name` is what errors call it.
///
/// # Errors
/// A [`SpecError`] with line and field.
pub fn parse_net(text: impl AsRef<[u8]>, file_name: &str) -> Result<NetSpec, SpecError> {
    let text = bounded(text.as_ref(), file_name)?;
    let kind = descriptor("NetParameter");
    let parsed = message::parse(text, file_name, kind, "network").map_err(|error| {
        suggest_other(error, text, "SolverParameter", "a solver file, not a network file")
    })?;
    net::convert(parsed)
}

/// Parses the text of a solver file; `file_name` is what errors call it.
///
/// # Errors
/// A [`SpecError`] with line and field.
pub fn parse_solver(text: impl AsRef<[u8]>, file_name: &str) -> Result<SolverSpec, SpecError> {
    let text = bounded(text.as_ref(), file_name)?;
    let kind = descriptor("SolverParameter");
    let parsed = message::parse(text, file_name, kind, "solver")
        .map_err(|error| suggest_other(error, text, "NetParameter", "a network file, not a solver file"))?;
    let inline = inline::networks(text, file_name)?;
    solver::convert(&parsed, inline)
}

/// Parses the text of a machine file; `file_name` is what errors call it.
///
/// # Errors
/// A [`SpecError`] with line and field.
pub fn parse_machine(text: impl AsRef<[u8]>, file_name: &str) -> Result<Machine, SpecError> {
    let text = bounded(text.as_ref(), file_name)?;
    machine::convert(&message::parse(text, file_name, machine_descriptor(), "machine")?)
}

/// Parses the text of a plan file; `file_name` is what errors call it.
///
/// # Errors
/// A [`SpecError`] with line and field.
pub fn parse_plan(text: impl AsRef<[u8]>, file_name: &str) -> Result<SavedPlan, SpecError> {
    let text = bounded(text.as_ref(), file_name)?;
    plan::convert(&message::parse(text, file_name, plan_descriptor(), "plan")?)
}

/// Says so if the text is a good file of the other kind.
fn suggest_other(mut error: SpecError, text: &[u8], other: &str, what: &str) -> SpecError {
    if message::parse(text, "", descriptor(other), "").is_ok() {
        error.hint = Some(format!("this is {what}"));
    }
    error
}

fn too_large(file: &str) -> SpecError {
    Fault::new("", format!("larger than {} MiB; no network or solver file is", MAX_BYTES >> 20))
        .hint("is this a text file? weights (.caffemodel) are read elsewhere")
        .at(&Site { file: file.into(), ..Site::default() }, "")
}

fn bounded<'a>(text: &'a [u8], file: &str) -> Result<&'a [u8], SpecError> {
    if text.len() as u64 > MAX_BYTES { Err(too_large(file)) } else { Ok(text) }
}

/// Reads a file, but never more than one byte over the limit.
fn read(path: &Path, expected: &str) -> Result<Vec<u8>, IoError> {
    let unreadable = |source| IoError::unreadable(path, expected, &source);
    let mut text = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
    Ok(text)
}
