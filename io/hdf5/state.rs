//! States of solvers: `iter`, `learned_net`, `current_step` and `history/INDEX`, as Caffe writes them.

use std::path::Path;

use super::arrays::{Hdf5, builder, extents, write};
use crate::error::IoError;
use crate::solverstate::SolverState;

const ITERATION: &str = "iter";
const LEARNED_NET: &str = "learned_net";
const CURRENT_STEP: &str = "current_step";
const HISTORY: &str = "history";

/// Reads a state.
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] if it is damaged or no state.
pub(crate) fn read_state(path: &Path) -> Result<SolverState, IoError> {
    let file = Hdf5::read(path, "a solver's state of Caffe in HDF5 (.solverstate.h5)")?;
    let count = |name: &str| -> Result<Option<u64>, IoError> {
        let Some(number) = file.integer(name)? else { return Ok(None) };
        let count = i32::try_from(number).ok().and_then(|number| u64::try_from(number).ok());
        count.map(Some).ok_or_else(|| file.refuse(format!("{name}: {number} is no count")))
    };
    let iteration = count(ITERATION)?;
    let iteration = iteration.ok_or_else(|| file.refuse("has no \"iter\": it is no state of a solver"))?;
    let history = file.group(&file.root(), HISTORY)?;
    let (_, arrays) = file.names(&history, HISTORY)?;
    let histories = (0..arrays.len()).map(|index| file.numbers(&history, &index.to_string()));
    Ok(SolverState {
        iteration,
        learned_net: file.text(LEARNED_NET)?.unwrap_or_default(),
        current_step: count(CURRENT_STEP)?.unwrap_or(0),
        plateau: None,
        history: histories.collect::<Result<_, _>>()?,
    })
}

/// Writes a state as Caffe reads it. What the policy `plateau` has seen has no place in it.
///
/// # Errors
/// [`IoError::CannotCreate`], [`IoError::WriteFailed`], or [`IoError::Data`] if a count is beyond what Caffe counts.
pub(crate) fn write_state(path: &Path, state: &SolverState) -> Result<(), IoError> {
    let mut file = builder();
    for (name, number) in [(ITERATION, state.iteration), (CURRENT_STEP, state.current_step)] {
        let number = i32::try_from(number)
            .map_err(|_| IoError::data(path, format!("{name} {number}: Caffe counts in 32 bits")))?;
        file.create_dataset(name).with_i32_data(&[number]);
    }
    if !state.learned_net.is_empty() {
        let text = file.create_dataset(LEARNED_NET).with_ascii_strings(&[&state.learned_net]);
        text.map_err(|error| IoError::data(path, format!("{LEARNED_NET}: {error}")))?;
    }
    let mut history = file.create_group(HISTORY);
    for (index, (shape, values)) in state.history.iter().enumerate() {
        history.create_dataset(&index.to_string()).with_f32_data(values).with_shape(&extents(shape));
    }
    file.add_group(history.finish());
    write(path, "a solver's state", file)
}
