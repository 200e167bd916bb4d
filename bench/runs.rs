//! Trainings by the program that lies beside this one, and what they leave in their metrics.

use std::path::Path;

use serde_json::Value;

use crate::ours::program;
use crate::record::median;

/// A test of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    /// Iterations that were done.
    pub iteration: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// Share of right answers.
    pub accuracy: f64,
}

/// What a run left.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Its tests.
    pub tests: Vec<Test>,
    /// Seconds of training behind each iteration.
    pub seconds: Vec<f64>,
    /// Its summary.
    pub summary: Value,
}

/// The exit code of a training whose loss is not finite.
const NOT_FINITE: i32 = 77;

/// Runs `quadrille train` with these flags. One whose loss became infinite is an outcome, too.
///
/// # Errors
/// If it cannot be run, or fails otherwise.
pub fn train(flags: &[String]) -> Result<Outcome, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let run = folder.path().join("run");
    let mut command = program()?;
    command.arg("train").args(flags).arg("--run").arg(&run);
    match command.output() {
        Ok(output) if output.status.success() => read(&run.join("metrics.jsonl")),
        Ok(output) if output.status.code() == Some(NOT_FINITE) => diverged(&run.join("metrics.jsonl")),
        Ok(output) => Err(format!("quadrille train: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("cannot run {}: {error}", command.get_program().display())),
    }
}

fn read(metrics: &Path) -> Result<Outcome, String> {
    outcome(&text_of(metrics)?)
}

fn text_of(metrics: &Path) -> Result<String, String> {
    std::fs::read_to_string(metrics).map_err(|error| format!("{}: {error}", metrics.display()))
}

/// What a run left that has no summary, since it diverged.
fn diverged(metrics: &Path) -> Result<Outcome, String> {
    outcome(&format!("{}{{\"summary\":{{\"diverged\":true}}}}\n", text_of(metrics)?))
}

fn outcome(metrics: &str) -> Result<Outcome, String> {
    let lines: Result<Vec<Value>, _> = metrics.lines().map(serde_json::from_str).collect();
    let mut lines = lines.map_err(|error| format!("metrics: {error}"))?;
    let test = |line: &Value| {
        let (seconds, accuracy) = (line["seconds"].as_f64()?, line["accuracy"].as_f64()?);
        Some(Test { iteration: line["iteration"].as_u64()?, seconds, accuracy })
    };
    let tests = lines.iter().filter_map(test).collect();
    let trained = lines.iter().filter(|line| line["loss"].is_number() && line["accuracy"].is_null());
    let seconds = trained.filter_map(|line| line["seconds"].as_f64()).collect();
    let summary = lines.pop().map(|mut line| line["summary"].take()).filter(Value::is_object);
    Ok(Outcome { tests, seconds, summary: summary.ok_or("the metrics have no summary")? })
}

impl Outcome {
    /// The first test that found at least this accuracy.
    pub fn reached(&self, accuracy: f64) -> Option<Test> {
        self.tests.iter().copied().find(|test| test.accuracy >= accuracy)
    }

    /// A number of the summary; 0 if it has none of that name.
    pub fn number(&self, name: &str) -> f64 {
        self.summary[name].as_f64().unwrap_or(0.0)
    }

    /// Milliseconds of an iteration.
    pub fn milliseconds(&self) -> f64 {
        1e3 * self.number("seconds") / self.number("iterations").max(1.0)
    }

    /// Milliseconds of an iteration, the median, which a pause of the machine leaves as it is. NaN of fewer than two.
    pub fn usual_milliseconds(&self) -> f64 {
        let each = self.seconds.windows(2).map(|pair| 1e3 * (pair[1] - pair[0]));
        median(&each.collect::<Vec<_>>())
    }

    /// Milliseconds of an iteration that went into a part of it, by its name in the metrics.
    pub fn part(&self, name: &str) -> f64 {
        1e3 * self.summary["time"][name].as_f64().unwrap_or(0.0) / self.number("iterations").max(1.0)
    }
}

/// The flags by which a method sums up a tree, as in the paper; nothing where nothing is summed.
pub fn by_tree(method: &str) -> Vec<String> {
    let sums = method.starts_with("sync");
    if sums { ["--collective", "tree"].map(str::to_owned).into() } else { Vec::new() }
}

/// The middle of some numbers, of which what is missing is the largest.
pub fn middle(numbers: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let numbers: Vec<f64> = numbers.map(|number| number.unwrap_or(f64::INFINITY)).collect();
    Some(median(&numbers)).filter(|middle| middle.is_finite())
}

/// A solver for a bundled network with plain SGD at a rate that falls with iterations, whenever the run ends, so that a run's
/// tests are those of runs that end there. Written into `folder`.
///
/// # Errors
/// If it cannot be written.
pub fn solver(folder: &Path, net: &Path, rate: f64, test_interval: u64) -> Result<String, String> {
    let net = std::fs::canonicalize(net).map_err(|error| format!("{}: {error}", net.display()))?;
    let tests = match test_interval {
        0 => String::new(),
        every => format!("test_iter: 100\ntest_interval: {every}\ntest_initialization: false\n"),
    };
    let text = format!(
        "net: \"{}\"\nbase_lr: {rate}\nlr_policy: \"inv\"\ngamma: 0.005\npower: 0.75\nmomentum: 0.9\nweight_decay: 0.0005\nmax_iter: 1\n\
         display: 0\nsnapshot_after_train: false\n{tests}",
        net.display()
    );
    let path = folder.join(format!("solver-{rate}.prototxt"));
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_times_are_read() {
        let metrics = "{\"iteration\":0,\"loss\":2.3,\"seconds\":0.5}\n\
                       {\"iteration\":1,\"loss\":2.2,\"seconds\":0.75}\n\
                       {\"accuracy\":0.5,\"iteration\":1,\"seconds\":1.0}\n\
                       {\"accuracy\":0.9,\"iteration\":2,\"seconds\":2.0}\n\
                       {\"summary\":{\"iterations\":2,\"seconds\":2.0,\"time\":{\"turn\":0.5}}}\n";
        let found = outcome(metrics).unwrap();
        assert_eq!(found.tests.len(), 2);
        assert_eq!(found.reached(0.6).map(|test| test.iteration), Some(2));
        assert_eq!((found.reached(0.95), found.milliseconds(), found.part("turn")), (None, 1e3, 250.0));
        assert_eq!(found.part("other"), 0.0);
        assert!(found.usual_milliseconds() == 250.0, "a test is no iteration");
        assert!(outcome("").is_err() && outcome("{}\n").is_err() && outcome("x").is_err());
    }

    #[test]
    fn what_is_missing_is_the_largest() {
        assert_eq!(middle([Some(3.0), None, Some(1.0)].into_iter()), Some(3.0));
        assert_eq!(middle([Some(3.0), None, None].into_iter()), None);
        assert_eq!(middle(std::iter::empty()), None);
    }
}
