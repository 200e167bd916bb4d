//! What a run folder says of its run.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::failure::{Code, Failure};

/// One iteration, or one test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The iteration.
    pub iteration: u64,
    /// Seconds of training before it.
    pub seconds: f64,
    /// Loss or accuracy.
    pub value: f64,
}

/// A run as its folder has it.
#[derive(Clone, Debug)]
pub struct Run {
    /// The name of its folder.
    pub name: String,
    /// Losses of training.
    pub losses: Vec<Sample>,
    /// Accuracies of tests of the first network.
    pub accuracies: Vec<Sample>,
    /// How many iterations it has, of all its starts.
    pub iterations: u64,
    /// Where the time of these went: parts with their seconds.
    pub time: BTreeMap<String, f64>,
    /// The summary of the last start; nothing if that has not come to its end.
    pub summary: Value,
    /// The configuration.
    pub configuration: Value,
    /// Whether its times are those of the virtual clock.
    pub is_simulated: bool,
}

impl Run {
    /// Reads a run folder.
    ///
    /// # Errors
    /// If it is none, or what is in it is not what a run writes.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let text = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).map_err(|error| {
                let message = format!(
                    "{}: cannot be read: {error}\n  hint: give the folders of runs, such as runs/lenet-1",
                    path.display()
                );
                let code =
                    if error.kind() == std::io::ErrorKind::NotFound { Code::Missing } else { Code::Data };
                Failure::new(code, message)
            })
        };
        let (metrics, configuration) = (text("metrics.jsonl")?, text("effective.json")?);
        let bad = |file: &str, line: usize, what: String| {
            Failure::new(Code::Data, format!("{}:{line}: {what}", folder.join(file).display()))
        };
        let configuration = serde_json::from_str(&configuration)
            .map_err(|error| bad("effective.json", error.line(), format!("no JSON: {error}")))?;
        let name = folder.canonicalize().ok();
        let name = name.as_deref().unwrap_or(folder).file_name().unwrap_or(folder.as_os_str());
        let mut run = Self {
            name: name.to_string_lossy().into_owned(),
            losses: Vec::new(),
            accuracies: Vec::new(),
            iterations: 0,
            time: BTreeMap::new(),
            summary: Value::Null,
            configuration,
            is_simulated: false,
        };
        let whole = metrics.ends_with('\n');
        let lines = metrics.lines().count();
        for (index, line) in metrics.lines().enumerate() {
            match serde_json::from_str(line) {
                Ok(record) => run.take(record),
                // A run that was killed may have left half a line.
                Err(_) if index + 1 == lines && !whole => {}
                Err(error) => {
                    return Err(bad("metrics.jsonl", index + 1, format!("no record of a run: {error}")));
                }
            }
        }
        if run.losses.is_empty() {
            return Err(bad("metrics.jsonl", 1, "no iteration has been recorded yet".to_owned()));
        }
        Ok(run)
    }

    fn take(&mut self, record: Value) {
        self.is_simulated |= [&record, &record["summary"]].iter().any(|record| record["clock"] == "sim");
        if record["summary"].is_object() {
            self.summary = record["summary"].clone();
            // Of a later start it has that start alone.
            if self.summary["seconds_before"].as_f64().unwrap_or(0.0) == 0.0 {
                let parts = self.summary["time"].as_object().into_iter().flatten();
                self.time = parts.filter_map(|(name, time)| Some((name.clone(), time.as_f64()?))).collect();
            }
            return;
        }
        let Some(iteration) = record["iteration"].as_u64() else { return };
        let seconds = record["seconds"].as_f64().unwrap_or(0.0);
        if record.get("loss").is_some() {
            // What a start before said at its end is no longer all.
            self.summary = Value::Null;
            self.iterations += 1;
            for (name, time) in record["time"].as_object().into_iter().flatten() {
                *self.time.entry(name.clone()).or_default() += time.as_f64().unwrap_or(0.0);
            }
        }
        // A loss that was not finite is null, and a gap.
        if let Some(value) = record["loss"].as_f64() {
            self.losses.push(Sample { iteration, seconds, value });
        }
        if let Some(value) = record["accuracy"].as_f64()
            && record.get("test_net").is_none_or(|net| *net == 0)
        {
            self.accuracies.push(Sample { iteration, seconds, value });
        }
    }

    /// The name with the word for simulated times.
    pub fn label(&self) -> String {
        if self.is_simulated { format!("{} (sim)", self.name) } else { self.name.clone() }
    }

    /// Whether a part of the time is a part of the run, and not hidden behind another or another worker's turn.
    pub fn counts(part: &str) -> bool {
        !part.starts_with("hidden") && part != "turn"
    }
}
