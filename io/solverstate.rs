//! What Caffe keeps beside the weights to go on with a training: `.solverstate`, the message SolverState.

use std::io::Write;
use std::path::Path;

use prost::Message;
use prost::encoding::decode_varint;
use quadrille_core::solver::Plateau;

use crate::caffemodel::{MAX_BYTES, blob, each_field, text, values};
use crate::error::IoError;
use crate::schema::{self, BlobProto};
use crate::{hdf5, whole};

/// Bounds what a small file can ask for.
const MAX_HISTORIES: usize = 100_000;

/// The state of Caffe's solver after some iterations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SolverState {
    /// Iterations that were done.
    pub iteration: u64,
    /// The weights that belong to it, as Caffe wrote the path.
    pub learned_net: String,
    /// Steps that the policies `step`, `multistep` and `plateau` have taken.
    pub current_step: u64,
    /// What the policy `plateau` of Intel's fork has seen: smallest loss, and when it last changed or a step was taken.
    pub plateau: Option<(f32, u64)>,
    /// Extents and values of the histories, one for each parameter in the order of the net, also for those that are
    /// not trained. Solvers with two histories have all first ones and then all second ones.
    pub history: Vec<(Vec<usize>, Vec<f32>)>,
}

impl SolverState {
    /// Writes the state as Caffe reads it, whole or not at all; in HDF5 if the name ends so.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`], [`IoError::WriteFailed`], or [`IoError::Data`] if it is more than Caffe can read.
    pub fn write(&self, path: &Path) -> Result<(), IoError> {
        if hdf5::is_hdf5(path) {
            return hdf5::write_state(path, self);
        }
        let count = |number: u64, name: &str| {
            i32::try_from(number)
                .map_err(|_| IoError::data(path, format!("{name} {number}: Caffe counts in 32 bits")))
        };
        let state = schema::SolverState {
            iter: Some(count(self.iteration, "iteration")?),
            current_step: Some(count(self.current_step, "step")?),
            learned_net: Some(self.learned_net.clone()),
            history: self.history.iter().map(blob).collect(),
            minimum_loss: self.plateau.map(|(loss, _)| loss),
            iter_last_event: self.plateau.map(|(_, event)| count(event, "iteration")).transpose()?,
        };
        if state.encoded_len() > MAX_BYTES {
            return Err(IoError::data(path, "the histories are more than the 2 GiB that Caffe can read")
                .hint("in HDF5 they fit: snapshot_format: HDF5 in the solver, or a name that ends in .h5"));
        }
        whole::write(path, "a solver's state", |file| file.write_all(&state.encode_to_vec()))
    }

    /// What the policy `plateau` goes on from.
    pub fn plateau(&self) -> Plateau {
        let (minimum_loss, last_event) = self.plateau.unwrap_or((f32::MAX, 0));
        Plateau { steps: self.current_step, minimum_loss, last_event }
    }

    /// Reads a state that Caffe wrote; in HDF5 if the name ends so.
    ///
    /// # Errors
    /// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] if it is damaged.
    pub fn read(path: &Path) -> Result<Self, IoError> {
        if hdf5::is_hdf5(path) {
            return hdf5::read_state(path);
        }
        let bytes = whole::read(path, "a solver's state of Caffe (.solverstate)")?;
        Self::decode(&bytes).map_err(|message| {
            IoError::data(path, message)
                .hint("expected a solver's state of Caffe; is the file whole, and a .solverstate?")
        })
    }

    /// Reads what a file of a solver's state holds.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

fn decode(bytes: &[u8]) -> Result<SolverState, String> {
    let mut state = SolverState::default();
    each_field(bytes, |number, field| {
        match number {
            1 => state.iteration = count(field, "iter")?,
            2 => state.learned_net = text(field)?,
            3 => {
                let index = state.history.len();
                if index == MAX_HISTORIES {
                    return Err(format!("more than {MAX_HISTORIES} histories"));
                }
                let blob = BlobProto::decode(field).map_err(|error| format!("history {index}: {error}"))?;
                state.history.push(values(blob).map_err(|error| format!("history {index}: {error}"))?);
            }
            4 => state.current_step = count(field, "current_step")?,
            5 => {
                let bytes = <[u8; 4]>::try_from(field).map_err(|_| "minimum_loss: no number".to_owned())?;
                let loss = f32::from_le_bytes(bytes);
                state.plateau = Some((loss, state.plateau.map_or(0, |(_, event)| event)));
            }
            6 => {
                let event = count(field, "iter_last_event")?;
                state.plateau = Some((state.plateau.map_or(f32::MAX, |(loss, _)| loss), event));
            }
            _ => {}
        }
        Ok(())
    })?;
    if state.history.is_empty() {
        return Err("there are no histories in the file".to_owned());
    }
    Ok(state)
}

/// A number that Caffe counts in 32 bits with a sign.
fn count(mut field: &[u8], name: &str) -> Result<u64, String> {
    let number = decode_varint(&mut field).map_err(|error| format!("{name}: {error}"))?;
    i32::try_from(number).map(|n| n as u64).map_err(|_| format!("{name}: {} is no count", number as i64))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::schema::BlobShape;

    fn encoded(iter: i32, histories: &[(Vec<i64>, Vec<f32>)]) -> Vec<u8> {
        let blob = |(dim, data): &(Vec<i64>, Vec<f32>)| BlobProto {
            shape: Some(BlobShape { dim: dim.clone() }),
            data: data.clone(),
            ..BlobProto::default()
        };
        let state = schema::SolverState {
            iter: Some(iter),
            learned_net: Some("a_iter_4.caffemodel".into()),
            current_step: Some(2),
            minimum_loss: None,
            iter_last_event: None,
            history: histories.iter().map(blob).collect(),
        };
        state.encode_to_vec()
    }

    fn small() -> Vec<u8> {
        encoded(4, &[(vec![2, 1], vec![0.5, -1.0]), (vec![], vec![3.0])])
    }

    #[test]
    fn what_caffe_writes_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.solverstate");
        fs::write(&path, small()).unwrap();
        let expected = SolverState {
            iteration: 4,
            learned_net: "a_iter_4.caffemodel".into(),
            current_step: 2,
            plateau: None,
            history: vec![(vec![2, 1], vec![0.5, -1.0]), (vec![], vec![3.0])],
        };
        assert_eq!(SolverState::read(&path).unwrap(), expected);
        assert_eq!(SolverState::read(&folder.path().join("none")).unwrap_err().exit_code(), 66);
        fs::write(&path, [0x1a]).unwrap();
        assert_eq!(SolverState::read(&path).unwrap_err().exit_code(), 65);
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.solverstate");
        for plateau in [None, Some((0.25, 17))] {
            let state = SolverState {
                iteration: 30,
                learned_net: "a.caffemodel".into(),
                current_step: 3,
                plateau,
                history: vec![(vec![2, 1], vec![0.5, -1.0]), (vec![], vec![3.0])],
            };
            state.write(&path).unwrap();
            assert_eq!(SolverState::read(&path).unwrap(), state);
            assert_eq!(state.plateau().steps, 3);
        }
        let late = SolverState { iteration: 1 << 31, ..SolverState::default() };
        assert!(late.write(&path).unwrap_err().to_string().contains("32 bits"));
    }

    #[test]
    fn no_cut_and_no_flipped_bit_makes_it_panic_and_cuts_are_found() {
        let (good, whole) = (small(), decode(&small()).unwrap());
        for at in 0..good.len() {
            assert!(decode(&good[..at]).as_ref() != Ok(&whole), "cut to {at} bytes");
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                // The format has no checksum: values may pass, but never more of them than there are bytes.
                let read = decode(&bad).unwrap_or_default();
                assert!(read.history.iter().all(|(_, values)| values.len() <= good.len()));
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |bytes: &[u8], expected: &str| {
            let error = decode(bytes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        refused(&encoded(-1, &[(vec![1], vec![1.0])]), "iter: -1 is no count");
        refused(
            &encoded(1, &[(vec![1], vec![1.0]), (vec![3], vec![1.0])]),
            "history 1: 1 values for extents [3]",
        );
        refused(&encoded(1, &[]), "no histories");
        refused(&[0x1a, 0x00].repeat(MAX_HISTORIES + 1), "");
    }
}
