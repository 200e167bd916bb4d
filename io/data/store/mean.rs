//! The mean of all records, value by value.

use std::path::Path;

use super::super::bad::{BadRecords, Tolerance};
use super::super::records::Records;
use super::form::{Changes, Form, StoredValues};
use super::{Refused, Step, each};
use crate::error::IoError;

/// Channels, height and width, and the mean of each value over all records, as Caffe's compute_image_mean finds it: sums in
/// single precision, in the order of the data set, divided by how many records there are. `done` hears how many are done.
/// Also returns the records that were passed over.
///
/// # Errors
/// [`IoError::Data`] naming a record that cannot be used or has another shape than the first, or if none can be used.
pub fn mean(
    records: &dyn Records,
    changes: Changes,
    tolerance: Tolerance,
    mut done: impl FnMut(u64),
) -> Result<([usize; 3], Vec<f32>, BadRecords), IoError> {
    let bad = BadRecords::new(tolerance);
    let (mut sums, mut first, mut count) = (Vec::new(), None, 0u64);
    let changes = Changes { form: Some(Form::Raw), ..changes };
    let outcome = each(records, changes, None, &bad, |item| {
        done(item.number as u64 + 1);
        let (StoredValues::Bytes { shape, .. } | StoredValues::Floats { shape, .. }) = &item.stored.values
        else {
            return Err(Refused::Record("is still encoded".to_owned()));
        };
        let expected = *first.get_or_insert(*shape);
        if *shape != expected {
            let [[c, h, w], [c1, h1, w1]] = [*shape, expected];
            return Err(Refused::Record(format!(
                "is {c} x {h} x {w} (channels x height x width), but the first is {c1} x {h1} x {w1}; --resize H,W makes \
                 sizes equal"
            )));
        }
        sums.resize(expected.iter().product(), 0.0f32);
        match &item.stored.values {
            StoredValues::Bytes { values, .. } => add(&mut sums, values.iter().map(|byte| f32::from(*byte))),
            StoredValues::Floats { values, .. } => add(&mut sums, values.iter().copied()),
            StoredValues::File { .. } => {}
        }
        count += 1;
        Ok(())
    });
    outcome.map_err(|step| match step {
        Step::Record(error) => error,
        Step::Create(error) | Step::Write(error) => {
            IoError::data(Path::new(records.name()), error.to_string())
        }
    })?;
    let Some(shape) = first else {
        return Err(IoError::data(Path::new(records.name()), "has no record that can be used"));
    };
    sums.iter_mut().for_each(|sum| *sum /= count as f32);
    Ok((shape, sums, bad))
}

fn add(sums: &mut [f32], values: impl Iterator<Item = f32>) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
