//! What a run tells while it runs: a bar on a terminal, Caffe's lines otherwise, and `metrics.jsonl` always.

use std::io::IsTerminal;
use std::ops::Range;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use crate::board::Records;
use crate::breakdown::Breakdown;
use crate::failure::Failure;
use crate::output::{LogStyle, style};

/// What one iteration brought.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The iteration, from 0.
    pub iteration: u64,
    /// Loss of this worker's mini-batches.
    pub loss: f32,
    /// That of each of them.
    pub losses: &'a [f32],
    /// Its mean over the last iterations, as many as the solver's `average_loss`.
    pub smoothed: f32,
    /// Learning rate.
    pub rate: f32,
    /// Seconds of training since the start.
    pub seconds: f64,
    /// Where the time of the iteration went.
    pub time: Breakdown,
    /// The outputs of the network, if they are shown.
    pub outputs: &'a [Output],
}

/// A value that a network puts out.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its blob.
    pub name: String,
    /// What it counts in the loss.
    pub loss_weight: f32,
    /// Its value, or the mean of its values.
    pub value: f32,
}

impl Output {
    /// What follows the name in Caffe's lines.
    fn text(&self) -> String {
        let (value, weight) = (six_digits(self.value), self.loss_weight);
        if weight == 0.0 {
            return value.to_string();
        }
        format!("{value} (* {weight} = {} loss)", six_digits(weight * self.value))
    }
}

/// Which test it was.
#[derive(Clone, Copy, Debug)]
pub struct Tested {
    /// Iterations that were done.
    pub iteration: u64,
    /// The network, in the order of the solver.
    pub net: usize,
    /// How many networks are tested.
    pub nets: usize,
    /// Seconds of training since the start.
    pub seconds: f64,
    /// Whether the loss gets a line.
    pub shows_loss: bool,
}

/// Tells the user and the metrics file.
pub struct Progress {
    bar: Option<ProgressBar>,
    display: u64,
    images_per_iteration: usize,
    records: Records,
    /// Seconds of training in starts before this one, which all that is told goes on from.
    before: f64,
    shown: (u64, f64),
    accuracy: Option<f32>,
    /// What times are labelled with that are not those of the real clock.
    label: Option<&'static str>,
}

impl Progress {
    /// Starts with the first of these iterations, after so many seconds of training in starts before.
    pub fn new(
        records: Records,
        iterations: Range<u64>,
        before: f64,
        display: u64,
        label: Option<&'static str>,
        images_per_iteration: usize,
    ) -> Self {
        let bars = style() == LogStyle::Plain && std::io::stderr().is_terminal();
        let bar = bars.then(|| {
            let bar = ProgressBar::new(iterations.end).with_position(iterations.start);
            let template = "{bar:30} {pos}/{len}  {msg}  {eta} left";
            bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
            bar
        });
        let shown = (iterations.start, before);
        Self { bar, display, images_per_iteration, records, before, shown, accuracy: None, label }
    }

    /// Seconds of training in all starts of the run, of which this one has taken so many.
    pub fn in_all(&self, seconds: f64) -> f64 {
        self.before + seconds
    }

    /// Whether the outputs of the network are shown after an iteration.
    pub fn shows_outputs(&self, iteration: u64) -> bool {
        self.bar.is_none() && self.display > 0 && iteration.is_multiple_of(self.display)
    }

    /// After an iteration.
    pub fn iteration(&mut self, report: Report<'_>) -> Result<(), Failure> {
        let Report { iteration, loss, losses, smoothed, rate, time, outputs, .. } = report;
        let seconds = self.in_all(report.seconds);
        let mut record = json!({"iteration": iteration, "loss": loss, "lr": rate, "seconds": seconds, "time": time.to_json()});
        self.mark(&mut record);
        if losses.len() > 1 {
            record["losses"] = json!(losses);
        }
        self.records.write(&record)?;
        let due = self.display > 0 && iteration.is_multiple_of(self.display);
        match self.bar.clone() {
            Some(bar) if due || iteration - self.shown.0 >= 10 => {
                bar.set_position(iteration + 1);
                let accuracy =
                    self.accuracy.map_or(String::new(), |a| format!("  accuracy {:.2} %", 100.0 * a));
                let speed = self.speed(iteration + 1, seconds);
                bar.set_message(format!("{speed:.0} images/s  loss {smoothed:.4}{accuracy}"));
            }
            None if due => {
                let speed = self.pace(iteration + 1, seconds);
                let (smoothed, rate) = (six_digits(smoothed), six_digits(rate));
                say!("Iteration {iteration} ({speed}), loss = {smoothed}");
                for (index, output) in outputs.iter().enumerate() {
                    say!("    Train net output #{index}: {} = {}", output.name, output.text());
                }
                say!("Iteration {iteration}, lr = {rate}");
            }
            _ => {}
        }
        Ok(())
    }

    /// Labels times that are not those of the real clock.
    fn mark(&self, record: &mut Value) {
        if let Some(label) = self.label {
            record["clock"] = json!(label);
        }
    }

    /// How fast it went since the last line.
    fn pace(&mut self, iteration: u64, seconds: f64) -> String {
        let (before, then) = self.shown;
        let speed = self.speed(iteration, seconds);
        let (iterations, passed) = ((iteration - before) as f64, (seconds - then).max(1e-9));
        match style() {
            LogStyle::Plain => {
                let label = self.label.map_or(String::new(), |label| format!("{label}: "));
                format!("{label}{speed:.0} images/s, {seconds:.1} s")
            }
            LogStyle::Caffe => {
                let each = six_digits((iterations / passed) as f32);
                format!("{each} iter/s, {}s/{} iters", six_digits(passed as f32), self.display)
            }
        }
    }

    /// Images per second since the last call.
    fn speed(&mut self, iteration: u64, seconds: f64) -> f64 {
        let (before, then) = std::mem::replace(&mut self.shown, (iteration, seconds));
        (iteration - before) as f64 * self.images_per_iteration as f64 / (seconds - then).max(1e-9)
    }

    /// After a test.
    pub fn test(&mut self, tested: Tested, outputs: &[Output], result: TestResult) -> Result<(), Failure> {
        let Tested { iteration, net, nets, shows_loss, .. } = tested;
        let mut record = Map::new();
        record.insert("iteration".into(), json!(iteration));
        record.insert("seconds".into(), json!(self.in_all(tested.seconds)));
        if nets > 1 {
            record.insert("test_net".into(), json!(net));
        }
        if let Some(accuracy) = result.accuracy {
            if net == 0 {
                self.accuracy = Some(accuracy);
            }
            record.insert("accuracy".into(), json!(six_digits(accuracy)));
        }
        if let Some(loss) = result.loss {
            record.insert("test_loss".into(), json!(six_digits(loss)));
        }
        let mut record = Value::Object(record);
        self.mark(&mut record);
        self.records.write(&record)?;
        self.say(&format!("Iteration {iteration}, Testing net (#{net})"));
        if let Some(loss) = result.loss.filter(|_| shows_loss) {
            self.say(&format!("Test loss: {}", six_digits(loss)));
        }
        for (index, output) in outputs.iter().enumerate() {
            self.say(&format!("    Test net output #{index}: {} = {}", output.name, output.text()));
        }
        Ok(())
    }

    /// A line above the bar, or just a line.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say!("{line}")),
            None => say!("{line}"),
        }
    }

    /// The last line of the metrics.
    pub fn finish(&mut self, summary: &Value) -> Result<(), Failure> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.records.write(&json!({ "summary": summary }))
    }
}

/// A number with six significant digits, as Caffe prints it: the digits behind them are rounding.
pub fn six_digits(value: f32) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(f64::NAN)
}

/// What a test found, if the net has such outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TestResult {
    /// Share of right answers: the first Accuracy layer's.
    pub accuracy: Option<f32>,
    /// The loss.
    pub loss: Option<f32>,
}
