//! Training iterations by the program that lies beside this one.

use std::process::Command;

use quadrille_cpu::isa::Precision;
use serde_json::Value;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Milliseconds of an iteration, the median of the run.
    pub ms: f64,
    /// Images in a mini-batch.
    pub batch: u64,
    /// Of the whole process, if it is known.
    pub peak_memory_mib: Option<f64>,
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Iterations {
    /// Images in a mini-batch.
    pub batch: u64,
    /// Quadrants that share a mini-batch.
    pub quadrants: usize,
    /// Threads of each.
    pub threads: usize,
    /// How many; 20 times as many of networks whose iterations are short.
    pub count: usize,
    /// Precision of products.
    pub precision: Precision,
}

/// Networks whose iterations are short.
pub const SMALL: [&str; 3] = ["lenet", "cifar10_quick", "cifar10_full"];

/// The program.
///
/// # Errors
/// If it cannot be said where this one lies.
pub fn program() -> Result<Command, String> {
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(Command::new(here.with_file_name("quadrille")))
}

/// Iterations of a bundled network on made-up data.
///
/// # Errors
/// If the program is not there, fails, or says something else than it should.
pub fn ours(net: &str, iterations: Iterations) -> Result<Run, String> {
    let Iterations { batch, quadrants, threads, count, precision } = iterations;
    let count = count * if SMALL.contains(&net) { 20 } else { 1 };
    let mut command = program()?;
    command.args(["time", "--json", "--model", net, "--batch", &batch.to_string()]);
    command.args(["--quadrants", &quadrants.to_string(), "--threads", &threads.to_string()]);
    command.args(["--iterations", &count.to_string(), "--precision", &precision.to_string()]);
    let value = object(&output_of(&mut command)?)?;
    Ok(Run { ms: number(&value, "iteration_ms")?, batch, peak_memory_mib: value["peak_memory_mib"].as_f64() })
}

/// What a program writes to its standard output.
///
/// # Errors
/// If it cannot be run or fails: with what it says of that.
pub fn output_of(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The last JSON object of a program's output.
///
/// # Errors
/// If there is none.
pub fn object(text: &str) -> Result<Value, String> {
    let value = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    value.ok_or_else(|| format!("no JSON object in: {text}"))
}

/// A number of an object.
///
/// # Errors
/// If there is none of that name.
pub fn number(value: &Value, field: &str) -> Result<f64, String> {
    value[field].as_f64().ok_or_else(|| format!("no number {field:?} in: {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_object_counts() {
        let text = "a line\n{\"ms\": 1}\n{\"ms\": 2.5}\npeak_memory_kib 7\n";
        assert_eq!(number(&object(text).unwrap(), "ms"), Ok(2.5));
        assert!(object("nothing").is_err() && number(&json!({"ms": "x"}), "ms").is_err());
    }
}
