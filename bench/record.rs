//! Records: what was measured, on what, with what.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// The first line that a command prints, or "unknown".
fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok().filter(|o| o.status.success());
    let line = output.and_then(|o| String::from_utf8(o.stdout).ok()?.lines().next().map(str::to_owned));
    line.unwrap_or_else(|| "unknown".to_owned())
}

/// Machine, commit and compiler, and whether anything else was running.
pub fn surroundings() -> Value {
    let machine = quadrille_numa::detect().ok();
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|l| l.split_whitespace().next().map(str::to_owned));
    json!({
        "machine": machine.as_ref().map_or("unknown", |m| m.model.as_str()),
        "cpus": machine.as_ref().map_or(0, |m| m.cpus.len()),
        "commit": first_line("git", &["describe", "--always", "--dirty"]),
        "compiler": first_line("rustc", &["--version"]),
        "date": first_line("date", &["-u", "+%Y-%m-%d"]),
        "load_before": load,
    })
}

/// Writes a record.
pub fn write(path: &Path, record: &Value) -> Result<(), String> {
    std::fs::write(path, format!("{record:#}\n")).map_err(|error| format!("{}: {error}", path.display()))
}

/// The middle of some numbers.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
