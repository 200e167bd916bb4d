//! Timelines in the format of Chrome and Perfetto: a JSON array of events, which both open as it is.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::IoError;

const WHAT: &str = "a timeline";

/// A row of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The group that it belongs to, such as a worker.
    pub process: usize,
    /// Its number in the group, from the top.
    pub thread: usize,
}

/// Something on a timeline. Times are in nanoseconds since an origin that all of a file have in common.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// The name of a row, and that of its group.
    Named {
        /// The row.
        row: Row,
        /// Its name.
        name: &'a str,
        /// The group's.
        process: &'a str,
    },
    /// Something that took time.
    Slice {
        /// Where.
        row: Row,
        /// What.
        name: &'a str,
        /// Its kind.
        category: &'a str,
        /// From when.
        start: u64,
        /// To when.
        end: u64,
    },
    /// What waited for what: an arrow from the end of a slice to the start of another.
    Arrow {
        /// A number of its own.
        id: u64,
        /// Its kind, in words.
        name: &'a str,
        /// The row and the end of the earlier slice.
        from: (Row, u64),
        /// The row and the start of the later one.
        to: (Row, u64),
    },
}

/// Events as text, to be sent to who writes the timeline: a line for each.
#[derive(Debug, Default)]
pub struct TraceText(String);

impl TraceText {
    /// Adds an event.
    pub fn add(&mut self, event: &Event<'_>) {
        for value in values(event) {
            self.0.push_str(&value.to_string());
            self.0.push('\n');
        }
    }

    /// What was added, in pieces of whole lines of about so many bytes.
    pub fn pieces(&self, bytes: usize) -> impl Iterator<Item = &str> {
        let mut rest = self.0.as_str();
        std::iter::from_fn(move || {
            let end = rest.bytes().enumerate().find(|(at, byte)| *byte == b'\n' && at + 1 >= bytes);
            let (piece, behind) = rest.split_at(end.map_or(rest.len(), |(at, _)| at + 1));
            rest = behind;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

/// Writes a timeline.
#[derive(Debug)]
pub struct TraceWriter {
    to: BufWriter<File>,
    path: PathBuf,
    first: bool,
}

impl TraceWriter {
    /// Opens the file; what is there is replaced.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`].
    pub fn create(path: &Path) -> Result<Self, IoError> {
        let failed = |source| IoError::CannotCreate { path: path.to_owned(), what: WHAT, source };
        let to = BufWriter::with_capacity(1 << 20, File::create(path).map_err(failed)?);
        Ok(Self { to, path: path.to_owned(), first: true })
    }

    /// Adds an event.
    ///
    /// # Errors
    /// [`IoError::WriteFailed`].
    pub fn write(&mut self, event: &Event<'_>) -> Result<(), IoError> {
        values(event)
            .iter()
            .try_for_each(|value| self.line(&value.to_string()))
            .map_err(|source| self.failed(source))
    }

    /// Adds the events of some lines of a [`TraceText`].
    ///
    /// # Errors
    /// [`IoError::WriteFailed`].
    pub fn append(&mut self, lines: &str) -> Result<(), IoError> {
        lines.lines().try_for_each(|line| self.line(line)).map_err(|source| self.failed(source))
    }

    fn line(&mut self, event: &str) -> io::Result<()> {
        self.to.write_all(if self.first { b"[\n" } else { b",\n" })?;
        self.first = false;
        self.to.write_all(event.as_bytes())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// [`IoError::WriteFailed`].
    pub fn finish(mut self) -> Result<(), IoError> {
        let end: &[u8] = if self.first { b"[]\n" } else { b"\n]\n" };
        let ended = self.to.write_all(end).and_then(|()| self.to.flush());
        ended.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> IoError {
        IoError::WriteFailed { path: self.path.clone(), what: WHAT, source }
    }
}

/// An event in the words of the format.
fn values(event: &Event<'_>) -> Vec<Value> {
    match event {
        Event::Named { row, name, process } => vec![
            meta("process_name", *row, json!({ "name": process })),
            meta("process_sort_index", *row, json!({ "sort_index": row.process })),
            meta("thread_name", *row, json!({ "name": name })),
            meta("thread_sort_index", *row, json!({ "sort_index": row.thread })),
        ],
        Event::Slice { row, name, category, start, end } => vec![json!({
            "ph": "X", "pid": row.process, "tid": row.thread, "name": name, "cat": category,
            "ts": microseconds(*start), "dur": microseconds(end.saturating_sub(*start)),
        })],
        // An arrow is bound to the slices around its ends.
        Event::Arrow { id, name, from, to } => vec![
            json!({
                "ph": "s", "pid": from.0.process, "tid": from.0.thread, "name": name, "cat": "event",
                "id": id, "ts": microseconds(from.1.saturating_sub(1)),
            }),
            json!({
                "ph": "f", "bp": "e", "pid": to.0.process, "tid": to.0.thread, "name": name,
                "cat": "event", "id": id, "ts": microseconds(to.1),
            }),
        ],
    }
}

fn meta(kind: &str, row: Row, args: Value) -> Value {
    json!({ "ph": "M", "name": kind, "pid": row.process, "tid": row.thread, "args": args })
}

/// Microseconds, as the format has them.
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_an_array_of_events() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let read = || serde_json::from_slice::<Vec<Value>>(&std::fs::read(&path).unwrap()).unwrap();
        TraceWriter::create(&path).unwrap().finish().unwrap();
        assert_eq!(read(), Vec::<Value>::new());
        let mut writer = TraceWriter::create(&path).unwrap();
        let [one, two] = [1, 2].map(|thread| Row { process: 3, thread });
        let slice =
            Event::Slice { row: one, name: "a \"b\"/forward", category: "forward", start: 1500, end: 2750 };
        writer.write(&Event::Named { row: one, name: "lane 0", process: "worker 3" }).unwrap();
        writer.write(&slice).unwrap();
        writer.write(&Event::Arrow { id: 9, name: "waits", from: (one, 2750), to: (two, 3000) }).unwrap();
        writer.finish().unwrap();
        let events = read();
        assert_eq!(events.len(), 4 + 1 + 2);
        let slice = &events[4];
        assert_eq!((slice["ts"].as_f64(), slice["dur"].as_f64()), (Some(1.5), Some(1.25)));
        assert_eq!(slice["name"], "a \"b\"/forward");
        assert_eq!(
            (&events[5]["id"], &events[5]["ph"], &events[6]["tid"]),
            (&json!(9), &json!("s"), &json!(2))
        );
        let mut text = TraceText::default();
        (0..3).for_each(|_| {
            text.add(&Event::Arrow { id: 9, name: "waits", from: (one, 2750), to: (two, 3000) })
        });
        assert_eq!(text.pieces(1).count(), 6);
        assert_eq!(text.pieces(1 << 20).count(), 1);
        let mut writer = TraceWriter::create(&path).unwrap();
        text.pieces(150).for_each(|piece| writer.append(piece).unwrap());
        writer.finish().unwrap();
        assert_eq!((read().len(), &read()[5]), (6, &events[6]));
        let missing = TraceWriter::create(&folder.path().join("none/trace.json"));
        assert!(matches!(missing, Err(IoError::CannotCreate { .. })));
    }
}
