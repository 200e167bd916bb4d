//! A `.safetensors` that carries its own checksum: what `convert weights` writes, and what early versions of this program
//! stored a run in.
//!
//! The header's metadata holds a SHA-256 over the whole file, with the digits of the checksum itself read as zeros.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::IoError;
use crate::tensors::{self, Tensors};
use crate::{hash, whole};

const CHECKSUM: &str = "quadrille.sha256";
const FORMAT: &str = "quadrille.format";
const VERSION: &str = "1";
const NO_CHECKSUM: [u8; 64] = [b'0'; 64];

/// Text and arrays by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sealed {
    /// Text by name. Names that begin with `quadrille.` are the format's own.
    pub(super) meta: BTreeMap<String, String>,
    /// Extents and values by name.
    pub(super) tensors: Tensors,
}

impl Sealed {
    /// Writes the file, whole or not at all. The same content gives the same bytes.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`] or [`IoError::WriteFailed`]; [`IoError::Data`] if a tensor does not have as many
    /// values as its extents say or a name is reserved.
    pub(super) fn write(&self, path: &Path) -> Result<(), IoError> {
        let mut header = self.header().map_err(|message| IoError::data(path, message))?;
        let mut hasher = Sha256::new();
        hasher.update(&header);
        for (_, values) in self.tensors.values() {
            hash::update(&mut hasher, values);
        }
        if let Some(at) = checksum_position(&header) {
            header[at..at + 64].copy_from_slice(hash::hex(&hasher.finalize()).as_bytes());
        }
        whole::write(path, "weights", |file| {
            file.write_all(&header)?;
            let mut bytes = Vec::new();
            self.tensors
                .values()
                .try_for_each(|(_, values)| tensors::put(values, &mut bytes, |piece| file.write_all(piece)))
        })
    }

    /// Length and header of the file, the checksum being zeros.
    fn header(&self) -> Result<Vec<u8>, String> {
        if let Some(name) = self.meta.keys().find(|name| name.starts_with("quadrille.")) {
            return Err(format!("the name {name:?} is reserved by the format"));
        }
        let mut meta: BTreeMap<&str, &str> =
            self.meta.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let zeros = String::from_utf8_lossy(&NO_CHECKSUM);
        meta.extend([(FORMAT, VERSION), (CHECKSUM, &*zeros)]);
        let arrays = self.tensors.iter();
        tensors::header(
            &meta,
            arrays.map(|(name, (shape, values))| (name.as_str(), shape.as_slice(), values.len())),
        )
    }

    /// Reads a file and verifies all of it.
    ///
    /// # Errors
    /// [`IoError::Missing`] if it cannot be read, [`IoError::Data`] if it is damaged or not of this kind.
    pub(super) fn read(path: &Path) -> Result<Self, IoError> {
        let mut bytes = whole::read(path, "weights (.safetensors)")?;
        let hint = "use another file; this one was damaged after it was written, or is not one of ours";
        let damaged = |message: String| IoError::data(path, message).hint(hint);
        verify(&mut bytes).map_err(&damaged)?;
        let (mut meta, tensors) = tensors::parse(&bytes).map_err(&damaged)?;
        if meta.remove(FORMAT).as_deref() != Some(VERSION) {
            return Err(IoError::data(path, format!("is not of version {VERSION} of the format"))
                .hint("it was written by another version of this program"));
        }
        meta.remove(CHECKSUM);
        Ok(Self { meta, tensors })
    }
}

/// Where the checksum's digits are. The key cannot be inside of a string, where its quotes would be escaped.
fn checksum_position(file: &[u8]) -> Option<usize> {
    let key = format!("\"{CHECKSUM}\":\"");
    let length = u64::from_le_bytes(file.get(..8)?.try_into().ok()?);
    let header = file.get(8..)?.get(..usize::try_from(length).ok()?)?;
    let at = 8 + header.windows(key.len()).position(|w| w == key.as_bytes())? + key.len();
    (file.len() >= at + 64).then_some(at)
}

/// Compares the checksum; sets its digits to zeros.
fn verify(file: &mut [u8]) -> Result<(), String> {
    let at = checksum_position(file).ok_or("is cut off, or has no checksum of ours")?;
    let digits = &mut file[at..at + 64];
    let stated = digits.to_vec();
    digits.copy_from_slice(&NO_CHECKSUM);
    if hash::hex(&Sha256::digest(&*file)).as_bytes() == stated {
        Ok(())
    } else {
        Err("the checksum is wrong".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn small() -> Sealed {
        let meta = [("iteration", "500"), ("config", "net: \"a\"\nquote \"quadrille.sha256\":\"0\"")];
        Sealed {
            meta: meta.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            tensors: [
                ("ip/0".to_owned(), (vec![2, 2], vec![1.5, -0.0, f32::MIN_POSITIVE / 2.0, f32::INFINITY])),
                ("ip/1".to_owned(), (vec![], vec![3.0])),
                ("empty".to_owned(), (vec![0, 7], vec![])),
            ]
            .into(),
        }
    }

    fn bits(sealed: &Sealed) -> Vec<u32> {
        sealed.tensors.values().flat_map(|(_, v)| v.iter().map(|x| x.to_bits())).collect()
    }

    #[test]
    fn what_was_written_is_read_bit_by_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.safetensors");
        let mut sealed = small();
        sealed.tensors.insert("nan".into(), (vec![1], vec![f32::from_bits(0x7fc1_2345)]));
        sealed.write(&path).unwrap();
        let read = Sealed::read(&path).unwrap();
        assert_eq!((&read.meta, bits(&read)), (&sealed.meta, bits(&sealed)));
        assert_eq!(read.tensors["empty"].0, [0, 7]);
        let first = fs::read(&path).unwrap();
        sealed.write(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first);
    }

    /// Whether `bytes` are refused as bad data.
    fn refused(path: &Path, bytes: &[u8]) -> bool {
        fs::write(path, bytes).unwrap();
        Sealed::read(path).is_err_and(|error| error.exit_code() == 65)
    }

    #[test]
    fn every_flipped_bit_every_cut_and_every_addition_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.safetensors");
        small().write(&path).unwrap();
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(refused(&path, &bad), "byte {at}, bit {bit}");
            }
            assert!(refused(&path, &good[..at]), "cut to {at} bytes");
        }
        assert!(refused(&path, &[&good[..], &[0]].concat()));
        assert!(!refused(&path, &good));
    }

    #[test]
    fn a_header_that_promises_too_much_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.safetensors");
        for length in [u64::MAX, u64::MAX - 7, 1 << 40, 9] {
            assert!(refused(&path, &[&length.to_le_bytes()[..], b"{}"].concat()));
        }
    }

    #[test]
    fn another_version_and_foreign_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.safetensors");
        let foreign = b"\x02\0\0\0\0\0\0\0{}";
        assert!(refused(&path, foreign));
        let error = Sealed::read(&folder.path().join("none")).unwrap_err();
        assert_eq!(error.exit_code(), 66);
    }

    #[test]
    fn wrong_extents_and_reserved_names_are_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.safetensors");
        for (name, shape) in [("a", vec![3]), ("a", vec![usize::MAX, 2]), ("__metadata__", vec![1])] {
            let tensors = [(name.to_owned(), (shape, vec![1.0]))].into();
            assert!(Sealed { tensors, ..Sealed::default() }.write(&path).is_err());
        }
        let meta = [(CHECKSUM.to_owned(), "1".to_owned())].into();
        assert!(Sealed { meta, ..Sealed::default() }.write(&path).is_err());
        assert!(!path.exists());
    }
}
