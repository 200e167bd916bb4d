//! What Caffe keeps beside the weights to go on with a training: `.solverstate`, the message SolverState.

use std::path::Path;

use prost::Message;
use prost::encoding::decode_varint;

use crate::caffemodel::{each_field, text, values};
use crate::error::IoError;
use crate::schema::BlobProto;
use crate::whole;

/// Bounds what a small file can ask for.
const MAX_HISTORIES: usize = 100_000;

/// The state of Caffe's solver after some iterations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SolverState {
    /// Iterations that were done.
    pub iteration: u64,
    /// The weights that belong to it, as Caffe wrote the path.
    pub learned_net: String,
    /// Steps that the policy `multistep` has taken.
    pub current_step: u64,
    /// Extents and values of the histories, one for each parameter in the order of the net, also for those that are
    /// not trained. Solvers with two histories have all first ones and then all second ones.
    pub history: Vec<(Vec<usize>, Vec<f32>)>,
}

impl SolverState {
    /// Reads a state that Caffe wrote.
    ///
    /// # Errors
    /// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] if it is damaged.
    pub fn read(path: &Path) -> Result<Self, IoError> {
        let bytes = whole::read(path, "a solver's state of Caffe (.solverstate)")?;
        decode(&bytes).map_err(|message| {
            IoError::data(path, message)
                .hint("expected a solver's state of Caffe; is the file whole, and a .solverstate?")
        })
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
    use crate::schema::{self, BlobShape};

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
            history: vec![(vec![2, 1], vec![0.5, -1.0]), (vec![], vec![3.0])],
        };
        assert_eq!(SolverState::read(&path).unwrap(), expected);
        assert_eq!(SolverState::read(&folder.path().join("none")).unwrap_err().exit_code(), 66);
        fs::write(&path, [0x1a]).unwrap();
        assert_eq!(SolverState::read(&path).unwrap_err().exit_code(), 65);
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
