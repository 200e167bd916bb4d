//! What every `.safetensors` file has in common: a header that names arrays and says where they lie, and their values.

use std::collections::BTreeMap;
use std::io;

use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

/// Header lengths are rounded up to this, so that the arrays are aligned in the file.
const ALIGNMENT: usize = 64;
/// Values that become bytes at one time.
const PIECE: usize = 1 << 16;

/// Extents and values.
pub type Tensor = (Vec<usize>, Vec<f32>);

/// Arrays by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Length and header of a file of arrays in this order, with text by name.
///
/// # Errors
/// If an array does not have as many values as its extents say, or a name is there twice or reserved.
pub(crate) fn header<'a>(
    meta: &BTreeMap<&str, &str>,
    arrays: impl Iterator<Item = (&'a str, &'a [usize], usize)>,
) -> Result<Vec<u8>, String> {
    let mut entries: BTreeMap<&str, Value> = BTreeMap::from([("__metadata__", json!(meta))]);
    let mut end = 0;
    for (name, shape, count) in arrays {
        if shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)) != Some(count) {
            return Err(format!("tensor {name:?}: {count} values for extents {shape:?}"));
        }
        let start = end;
        end += 4 * count;
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        if entries.insert(name, entry).is_some() {
            return Err(format!("the name {name:?} is taken or reserved by the format"));
        }
    }
    let mut text = serde_json::to_vec(&entries).map_err(|error| error.to_string())?;
    text.resize((8 + text.len()).next_multiple_of(ALIGNMENT) - 8, b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    Ok(header)
}

/// Hands values over as they lie in a file, piece by piece; `bytes` is memory to use again.
pub(crate) fn put(
    values: &[f32],
    bytes: &mut Vec<u8>,
    mut sink: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    for piece in values.chunks(PIECE) {
        bytes.clear();
        bytes.extend(piece.iter().flat_map(|value| value.to_le_bytes()));
        sink(bytes)?;
    }
    Ok(())
}

/// Text by name.
pub(crate) type Meta = BTreeMap<String, String>;

/// Takes a whole file apart. All arrays must be of type F32.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Meta, Tensors), String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let meta = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let mut tensors = Tensors::new();
    for (name, view) in file.iter() {
        if view.dtype() != Dtype::F32 {
            return Err(format!("tensor {name:?} has type {:?}; expected F32", view.dtype()));
        }
        let values = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        tensors.insert(name.to_owned(), (view.shape().to_vec(), values));
    }
    Ok((meta, tensors))
}
