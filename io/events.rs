//! Event files as TensorBoard reads them: frames of TFRecord around the message Event of TensorFlow.
//!
//! A frame is the length of the message (8 bytes, little endian), the masked CRC-32C of these, the message, and its masked
//! CRC-32C. Of `event.proto` and `summary.proto` only what scalars need is here: `Event { 1 wall_time: double, 2 step: int64,
//! 3 file_version: string, 5 summary, 7 session_log }`, `Summary { 1 value }`, `Value { 1 tag, 2 simple_value: float }`,
//! `SessionLog { 1 status }`.

use std::fs::{self, File, OpenOptions, create_dir_all};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use crate::error::IoError;

const WHAT: &str = "an event file";
/// What the first event of every file says.
const VERSION: &str = "brain.Event:2";
/// The status of a session log that says that whatever came at this step and later comes again.
const START: i32 = 1;

/// How the names of files with events begin.
const PREFIX: &str = "events.out.tfevents.";

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Writes one event file. Each event goes to the system at once, so that a killed run keeps its events.
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
    frame: Vec<u8>,
}

impl EventWriter {
    /// Makes a new file in `folder`, which is created if it is not there. `first` is the first step that is to come; what
    /// older files of the folder say of it and of later ones is void.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`] or [`IoError::WriteFailed`].
    pub fn create(folder: &Path, first: u64) -> Result<Self, IoError> {
        let failed =
            |path: &Path, source| IoError::CannotCreate { path: path.to_owned(), what: WHAT, source };
        create_dir_all(folder).map_err(|error| failed(folder, error))?;
        // Also what a start left that comes again from the first step.
        let follows = fs::read_dir(folder)
            .map_err(|error| failed(folder, error))?
            .any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)));
        let now = now();
        // Readers take the files of a folder by name, and names begin with the time. Two starts within a second differ
        // by the last number.
        for number in 0..1_000_000 {
            let name = format!("{PREFIX}{:010}.quadrille.{}.{number:06}", now as u64, std::process::id());
            let path = folder.join(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, error)),
                Ok(file) => {
                    let mut writer = Self { file, path, frame: Vec::new() };
                    let event = Event { wall_time: now, ..Event::default() };
                    writer.write(&Event { file_version: Some(VERSION.to_owned()), ..event.clone() })?;
                    if first > 0 || follows {
                        let (step, session_log) = (first as i64, Some(SessionLog { status: START }));
                        writer.write(&Event { step, session_log, ..event })?;
                    }
                    return Ok(writer);
                }
            }
        }
        Err(failed(folder, std::io::Error::other("every name is taken")))
    }

    /// Writes scalars of a step, by their tags.
    ///
    /// # Errors
    /// [`IoError::WriteFailed`].
    pub fn scalars(&mut self, step: u64, scalars: &[(&str, f32)]) -> Result<(), IoError> {
        let scalar =
            |(tag, value): &(&str, f32)| Scalar { tag: (*tag).to_owned(), simple_value: Some(*value) };
        let summary = Some(Summary { value: scalars.iter().map(scalar).collect() });
        self.write(&Event { wall_time: now(), step: step as i64, summary, ..Event::default() })
    }

    fn write(&mut self, event: &Event) -> Result<(), IoError> {
        let message = event.encode_to_vec();
        let length = (message.len() as u64).to_le_bytes();
        self.frame.clear();
        self.frame.extend(length);
        self.frame.extend(masked(crc32c(&length)).to_le_bytes());
        self.frame.extend(&message);
        self.frame.extend(masked(crc32c(&message)).to_le_bytes());
        let failed = |source| IoError::WriteFailed { path: self.path.clone(), what: WHAT, source };
        self.file.write_all(&self.frame).map_err(failed)
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |passed| passed.as_secs_f64())
}

/// CRC-32C (Castagnoli), bit by bit: events are short.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg()))
    })
}

/// How TFRecord stores a checksum, so that one of data with a checksum in it is no trivial number.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4, and the usual check value.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(0), 0xa282_ead8);
    }

    /// Takes a file apart by the definition of the format.
    fn read(path: &Path) -> Vec<Event> {
        let bytes = std::fs::read(path).unwrap();
        let (mut rest, mut events) = (bytes.as_slice(), Vec::new());
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(word(&rest[8..12]), masked(crc32c(&rest[..8])));
            let message = &rest[12..12 + length];
            assert_eq!(word(&rest[12 + length..16 + length]), masked(crc32c(message)));
            events.push(Event::decode(message).unwrap());
            rest = &rest[16 + length..];
        }
        events
    }

    #[test]
    fn what_is_written_is_read_and_a_resumed_run_says_where_it_begins() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("tensorboard");
        for (start, first) in [0, 7, 0].into_iter().enumerate() {
            let mut writer = EventWriter::create(&folder, first).unwrap();
            writer.scalars(first, &[("train/loss", 2.5), ("train/rate", f32::NAN)]).unwrap();
            writer.scalars(first + 1, &[("test/accuracy", 0.5)]).unwrap();
            let events = read(&writer.path);
            assert_eq!(events[0].file_version.as_deref(), Some(VERSION));
            // Of the first start there is nothing before.
            let starts = usize::from(start > 0);
            assert_eq!(events.len(), 3 + starts);
            let log = events[1].session_log.as_ref().map(|log| (log.status, events[1].step));
            assert_eq!(log, (start > 0).then_some((START, first as i64)));
            let values = &events[1 + starts].summary.as_ref().unwrap().value;
            assert_eq!((values[0].tag.as_str(), values[0].simple_value), ("train/loss", Some(2.5)));
            assert!(values[1].simple_value.unwrap().is_nan() && events[2 + starts].step == first as i64 + 1);
            assert!(events[0].wall_time > 1.7e9 && events[2].wall_time >= events[0].wall_time);
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3, "a file for each start");
    }

    #[test]
    fn a_folder_that_cannot_be_made_says_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = EventWriter::create(&file.path().join("below"), 0).unwrap_err();
        assert_eq!(error.exit_code(), 73);
    }
}
