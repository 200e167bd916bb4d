//! What a run writes down: one JSON object a line.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::error::IoError;
use crate::whole;

const WHAT: &str = "metrics";
/// The name of the file in a run folder.
pub(crate) const FILE: &str = "metrics.jsonl";

/// Writes `metrics.jsonl`. Each line goes to the system at once, so that a killed run keeps its lines.
#[derive(Debug)]
pub struct MetricsWriter {
    file: File,
    path: PathBuf,
    line: Vec<u8>,
}

impl MetricsWriter {
    /// Opens the file for more lines, creating it if it is not there. If a killed run left half a line at its end,
    /// the next line starts on a line of its own.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`].
    pub fn open(path: &Path) -> Result<Self, IoError> {
        let failed = |source| IoError::CannotCreate { path: path.to_owned(), what: WHAT, source };
        let half = ends_in_half_a_line(path);
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
        if half {
            file.write_all(b"\n").map_err(failed)?;
        }
        Ok(Self { file, path: path.to_owned(), line: Vec::new() })
    }

    /// Writes one record. Numbers that are not finite become `null`, as in all JSON.
    ///
    /// # Errors
    /// [`IoError::WriteFailed`].
    pub fn write(&mut self, record: &impl Serialize) -> Result<(), IoError> {
        let failed = |source| IoError::WriteFailed { path: self.path.clone(), what: WHAT, source };
        self.line.clear();
        serde_json::to_writer(&mut self.line, record).map_err(|error| failed(error.into()))?;
        self.line.push(b'\n');
        self.file.write_all(&self.line).map_err(failed)
    }
}

/// What a run that goes on took back of what was written before, and what it goes on from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TakenBack {
    /// Records of what comes after the iteration where it goes on.
    pub later: usize,
    /// Lines that are no records: a process that is killed may leave half of one.
    pub broken: usize,
    /// Seconds of training until then, as the last iteration that stays has them.
    pub seconds: f64,
}

/// Takes back what a run that goes on after `first` iterations will write once more, so that nothing stands there
/// twice: records of what came after, and those of a test after so many iterations if that is done again. The file is
/// either as it was or as it should be at any time.
pub(crate) fn take_back(path: &Path, first: u64, tests_again: bool) -> Result<TakenBack, IoError> {
    if !path.is_file() {
        return Ok(TakenBack::default());
    }
    let text = whole::read(path, WHAT)?;
    let (mut kept, mut taken) = (Vec::with_capacity(text.len()), TakenBack::default());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match serde_json::from_slice::<Value>(line) {
            // Only whole lines end a record: without one the next would be part of it.
            Ok(record) if line.ends_with(b"\n") => {
                if comes_again(&record, first, tests_again) {
                    taken.later += 1;
                } else {
                    kept.extend_from_slice(line);
                    if record.get("loss").is_some() {
                        taken.seconds = record["seconds"].as_f64().unwrap_or(taken.seconds);
                    }
                }
            }
            _ => taken.broken += 1,
        }
    }
    if taken.later + taken.broken > 0 {
        whole::write(path, WHAT, |file| file.write_all(&kept))?;
    }
    Ok(taken)
}

fn comes_again(record: &Value, first: u64, tests_again: bool) -> bool {
    let of_training = record.get("loss").is_some();
    match (record["iteration"].as_u64(), record["summary"]["iterations"].as_u64()) {
        (Some(iteration), _) if of_training => iteration >= first,
        (Some(iteration), _) => iteration > first || iteration == first && tests_again,
        (None, Some(iterations)) => iterations > first,
        (None, None) => false,
    }
}

fn ends_in_half_a_line(path: &Path) -> bool {
    use std::io::{Read, Seek, SeekFrom};
    let last = || -> std::io::Result<u8> {
        let mut file = File::open(path)?;
        let mut byte = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut byte)?;
        }
        Ok(byte[0])
    };
    last().is_ok_and(|byte| byte != b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_record_is_a_line_that_is_there_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut metrics = MetricsWriter::open(&path).unwrap();
        metrics.write(&json!({"iteration": 1, "loss": 0.5, "text": "a\nb"})).unwrap();
        metrics.write(&json!({"iteration": 2, "loss": f32::NAN})).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0]["text"], "a\nb");
        assert_eq!(records[1]["loss"], Value::Null);
    }

    #[test]
    fn a_resumed_run_appends_and_half_a_line_stays_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, "{\"iteration\":1}\n{\"itera").unwrap();
        MetricsWriter::open(&path).unwrap().write(&json!({"iteration": 2})).unwrap();
        MetricsWriter::open(&path).unwrap().write(&json!({"iteration": 3})).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = "{\"iteration\":1}\n{\"itera\n{\"iteration\":2}\n{\"iteration\":3}\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_comes_again_is_taken_back_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let loss = |iteration: u64| {
            json!({"iteration": iteration, "loss": 0.5, "seconds": iteration + 3}).to_string()
        };
        let test = |iteration: u64| json!({"iteration": iteration, "accuracy": 0.5}).to_string();
        let summary = |iterations: u64| json!({"summary": {"iterations": iterations}}).to_string();
        let before = [test(0), loss(0), loss(1), test(2), summary(2)];
        let after = [loss(2), "{\"itera".to_owned(), loss(3), test(4), summary(4), "null".to_owned()];
        let lines: Vec<String> = before.iter().chain(&after).cloned().collect();
        let half = "{\"iteration\":4,\"loss\":0.25}";
        for (tests_again, kept, later) in
            [(false, before.to_vec(), 4), (true, [&before[..3], &before[4..]].concat(), 5)]
        {
            std::fs::write(&path, lines.join("\n") + "\n" + half).unwrap();
            let taken = take_back(&path, 2, tests_again).unwrap();
            assert_eq!(taken, TakenBack { later, broken: 2, seconds: 4.0 });
            let kept = kept.join("\n") + "\nnull\n";
            assert_eq!(std::fs::read_to_string(&path).unwrap(), kept);
            // There is nothing left to take back.
            let none = TakenBack { later: 0, broken: 0, seconds: 4.0 };
            assert_eq!(take_back(&path, 2, tests_again).unwrap(), none);
        }
        assert_eq!(take_back(&folder.path().join("none"), 0, true).unwrap(), TakenBack::default());
    }

    #[test]
    fn a_file_that_cannot_be_created_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = MetricsWriter::open(&folder.path().join("no/metrics.jsonl")).unwrap_err();
        assert_eq!(error.exit_code(), 73);
        assert!(error.to_string().contains("no/metrics.jsonl: cannot create metrics"));
    }

    #[test]
    fn a_full_disk_says_so() {
        let full = Path::new("/dev/full");
        assert!(full.exists(), "this test needs /dev/full");
        let error = MetricsWriter::open(full).unwrap().write(&json!({})).unwrap_err();
        assert_eq!(error.exit_code(), 74);
    }
}
