//! Caffe's message Datum, one sample of an LMDB, read where it lies.

use prost::encoding::{WireType, decode_key, decode_varint, skip_field};

use prost::Message;

use super::records::{Content, Record, values_of};
use crate::schema::Datum;

/// Reads a Datum.
///
/// # Errors
/// What is wrong with it.
pub fn parse(bytes: &[u8]) -> Result<Record<'_>, String> {
    let mut rest = bytes;
    let mut extents = [0u64; 3];
    let (mut label, mut encoded) = (0i32, false);
    let (mut data, mut floats): (&[u8], Vec<f32>) = (&[], Vec::new());
    let broken = |error: prost::DecodeError| format!("is not a Datum: {error}");
    while !rest.is_empty() {
        let (tag, wire) = decode_key(&mut rest).map_err(broken)?;
        match (tag, wire) {
            (1..=3, WireType::Varint) => {
                extents[tag as usize - 1] = decode_varint(&mut rest).map_err(broken)?;
            }
            (4, WireType::LengthDelimited) => data = delimited(&mut rest)?,
            // Negative numbers have 64 bits in a file.
            (5, WireType::Varint) => label = decode_varint(&mut rest).map_err(broken)? as i32,
            (6, WireType::ThirtyTwoBit) => floats.push(number(&mut rest)?),
            (6, WireType::LengthDelimited) => {
                let mut packed = delimited(&mut rest)?;
                while !packed.is_empty() {
                    floats.push(number(&mut packed)?);
                }
            }
            (7, WireType::Varint) => encoded = decode_varint(&mut rest).map_err(broken)? != 0,
            (1..=7, wire) => return Err(format!("is not a Datum: field {tag} is stored as {wire:?}")),
            _ => skip_field(wire, tag, &mut rest, Default::default()).map_err(broken)?,
        }
    }
    if encoded {
        return Ok(Record { label, content: Content::Encoded { file: data, native: true } });
    }
    let shape = extents.map(|extent| usize::try_from(extent).unwrap_or(usize::MAX));
    let [c, h, w] = shape;
    let count = values_of(shape).ok_or_else(|| format!("is a Datum of {c} x {h} x {w} values"))?;
    let short = |has: usize, what: &str| {
        format!("is a Datum with {has} {what}, but {c} x {h} x {w} (channels x height x width) are {count}")
    };
    if !data.is_empty() {
        return match data.len() == count {
            true => Ok(Record { label, content: Content::Bytes { shape, values: data } }),
            false => Err(short(data.len(), "bytes")),
        };
    }
    if floats.len() != count {
        return Err(short(floats.len(), "numbers"));
    }
    Ok(Record { label, content: Content::Floats { shape, values: floats } })
}

/// The bytes of a field that says its length.
fn delimited<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let length = decode_varint(rest).map_err(|error| format!("is not a Datum: {error}"))?;
    let length = usize::try_from(length).ok().filter(|length| *length <= rest.len());
    let length = length.ok_or("is a Datum that is cut off")?;
    let (field, behind) = rest.split_at(length);
    *rest = behind;
    Ok(field)
}

fn number(rest: &mut &[u8]) -> Result<f32, String> {
    let (bytes, behind) = rest.split_first_chunk::<4>().ok_or("is a Datum that is cut off")?;
    *rest = behind;
    Ok(f32::from_le_bytes(*bytes))
}

/// A record as a Datum: image files as they are, values as they are.
pub fn encode_datum(record: &Record<'_>) -> Vec<u8> {
    let of = |shape: [usize; 3]| {
        let [c, h, w] = shape.map(|extent| i32::try_from(extent).ok());
        Datum { channels: c, height: h, width: w, label: Some(record.label), ..Datum::default() }
    };
    let datum = match &record.content {
        Content::Bytes { shape, values } => Datum { data: Some(values.to_vec()), ..of(*shape) },
        Content::Floats { shape, values } => Datum { float_data: values.clone(), ..of(*shape) },
        Content::Encoded { file, .. } => Datum {
            data: Some(file.to_vec()),
            encoded: Some(true),
            label: Some(record.label),
            ..Datum::default()
        },
    };
    datum.encode_to_vec()
}
