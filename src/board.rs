//! What a run writes down while it runs: its metrics, and the same for TensorBoard if asked.

use quadrille_io::{EventWriter, MetricsWriter, RunFolder};
use serde_json::Value;

use crate::failure::Failure;

/// The folder of event files in a run folder.
pub const FOLDER: &str = "tensorboard";

/// The numbers of a record that become scalars, and their tags.
const TAGS: [(&str, &str); 4] =
    [("loss", "train/loss"), ("lr", "train/rate"), ("accuracy", "test/accuracy"), ("test_loss", "test/loss")];

/// The metrics of a run, and its event file if it has one.
pub struct Records {
    metrics: MetricsWriter,
    board: Option<Board>,
}

struct Board {
    events: EventWriter,
    images_per_iteration: f64,
    /// Iteration and seconds of the record before.
    before: Option<(u64, f64)>,
}

impl Records {
    /// Into the metrics of the run in `folder` and, if `events`, into a new event file there, from iteration `first` on.
    pub fn open(
        folder: &RunFolder,
        events: bool,
        first: u64,
        images_per_iteration: usize,
    ) -> Result<Self, Failure> {
        let board = || {
            let events = EventWriter::create(&folder.path().join(FOLDER), first)?;
            Ok::<_, Failure>(Board {
                events,
                images_per_iteration: images_per_iteration as f64,
                before: None,
            })
        };
        Ok(Self { metrics: folder.metrics()?, board: events.then(board).transpose()? })
    }

    /// Writes one record down.
    pub fn write(&mut self, record: &Value) -> Result<(), Failure> {
        self.metrics.write(record)?;
        match &mut self.board {
            Some(board) => board.write(record),
            None => Ok(()),
        }
    }
}

impl Board {
    fn write(&mut self, record: &Value) -> Result<(), Failure> {
        // The summary and tests of other networks than the first are no curves.
        let first_net = record.get("test_net").is_none_or(|net| *net == 0);
        let Some(iteration) = record["iteration"].as_u64().filter(|_| first_net) else { return Ok(()) };
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        let known = TAGS.iter().filter_map(|(key, tag)| Some((*tag, number(record.get(*key)?)?)));
        let mut scalars: Vec<(&str, f32)> = known.collect();
        if record.get("lr").is_some() {
            scalars.extend(self.pace(iteration, record["seconds"].as_f64().unwrap_or(0.0)));
            scalars.extend(communication(&record["time"]).map(|share| ("time/communication_share", share)));
        }
        Ok(self.events.scalars(iteration, &scalars)?)
    }

    /// Images per second since the record before.
    fn pace(&mut self, iteration: u64, seconds: f64) -> Option<(&'static str, f32)> {
        let (before, then) = self.before.replace((iteration, seconds))?;
        let images = iteration.checked_sub(before)? as f64 * self.images_per_iteration;
        Some(("time/images_per_second", (images / (seconds - then).max(1e-9)) as f32))
    }
}

/// The share of an iteration's time in communication, if the record has its parts.
fn communication(time: &Value) -> Option<f32> {
    // What is hidden behind other parts, and turns of other workers, are no parts of the iteration.
    let counts = |name: &str| !name.starts_with("hidden") && name != "turn";
    let parts = time.as_object()?.iter().filter(|(name, _)| counts(name));
    let parts: Vec<(&str, f64)> =
        parts.filter_map(|(name, time)| Some((name.as_str(), time.as_f64()?))).collect();
    let sum =
        |of: fn(&str) -> bool| parts.iter().filter(|(name, _)| of(name)).map(|(_, time)| time).sum::<f64>();
    let whole = sum(|_| true);
    (whole > 0.0).then(|| (sum(|name| name.starts_with("comm_")) / whole) as f32)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_share_of_communication_is_of_what_counts() {
        let time = json!({"comm_workers": 1.0, "comm_host": 1.0, "forward_backward": 6.0, "turn": 50.0, "hidden_communication": 9.0});
        assert_eq!(communication(&time), Some(0.25));
        assert_eq!(communication(&Value::Null), None);
        assert_eq!(communication(&json!({})), None);
    }
}
