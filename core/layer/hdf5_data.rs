//! `HDF5Data`: arrays in files, whose first axis counts samples.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Samples from arrays in files of HDF5. Each top is the array of its name; a mini-batch is a run of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hdf5Data {
    /// The list of files, or a file, as the network file names it.
    pub source: String,
    /// Samples in a mini-batch.
    pub batch: usize,
    /// Whether samples come in a random order, file by file; otherwise in that of the files.
    pub shuffle: bool,
    /// Number of tops.
    pub tops: usize,
    /// The extents of a sample of each top; empty until somebody has looked at the files.
    pub samples: Vec<Vec<usize>>,
}

impl Meaning for Hdf5Data {
    fn arity(&self) -> Arity {
        Arity { bottoms: 0..=0, tops: self.tops.max(1)..=self.tops.max(1) }
    }

    fn infer(&self, _: &[Shape]) -> Result<Inferred, Fault> {
        if self.batch == 0 {
            return Err(Fault::new(
                "hdf5_data_param.batch_size",
                "missing; expected at least 1 sample in a mini-batch",
            ));
        }
        if self.samples.len() != self.tops {
            let text = "the extents of its arrays are not known: they stand in the files";
            return Err(Fault::new("hdf5_data_param.source", text));
        }
        let shape = |sample: &Vec<usize>| {
            Shape::checked(&[&[self.batch][..], sample].concat(), "hdf5_data_param.source")
        };
        let tops = self.samples.iter().map(shape).collect::<Result<_, _>>()?;
        Ok(Inferred { tops, ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        (sub == SubTask::Load)
            .then(|| Accesses::new([], (0..self.tops).map(Operand::Top).collect::<Vec<_>>()))
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}
