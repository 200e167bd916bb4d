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

/// Instruction sets that decide which kernels run.
const FLAGS: [&str; 11] = [
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512er",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_tile",
];

/// Those of [`FLAGS`] that the first CPU has.
fn flags() -> Vec<&'static str> {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &&str| line.split_whitespace().any(|word| word == *flag);
    FLAGS.into_iter().filter(has).collect()
}

/// Machine, commit and compiler, and whether anything else was running.
pub fn surroundings() -> Value {
    let machine = quadrille_numa::detect().ok();
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|l| l.split_whitespace().next().map(str::to_owned));
    let caches = machine.iter().flat_map(|m| &m.caches);
    let caches: Vec<Value> = caches
        .map(|c| json!({"level": c.level, "kind": c.kind, "kib": c.bytes >> 10, "shared_by_cpus": c.shared_by}))
        .collect();
    json!({
        "machine": machine.as_ref().map_or("unknown", |m| m.model.as_str()),
        "cpus": machine.as_ref().map_or(0, |m| m.cpus.len()),
        "cores": machine.as_ref().map_or(0, |m| m.cores.len()),
        "caches": caches,
        "flags": flags(),
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

/// The middle of some numbers, and of an even count the mean of the two in the middle; NaN of none.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

/// Where the middle of what numbers are drawn from is with 95 %, by their order alone: as many of `n` lie below it as heads in `n`
/// tosses of a coin, n/2 ± 0.98 √n.
pub fn interval(numbers: &[f64]) -> [f64; 2] {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (half, reach) = (0.5 * sorted.len() as f64, 0.98 * (sorted.len() as f64).sqrt());
    let (low, high) = ((half - reach).floor().max(0.0) as usize, (half + reach).ceil() as usize);
    [low, high.min(sorted.len().saturating_sub(1))].map(|at| sorted.get(at).copied().unwrap_or(f64::NAN))
}

/// The geometric mean of positive numbers.
pub fn geometric_mean(numbers: &[f64]) -> f64 {
    (numbers.iter().map(|number| number.ln()).sum::<f64>() / numbers.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_within_its_interval() {
        let numbers: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(interval(&numbers), [40.0, 60.0]);
        assert_eq!(interval(&[3.0, 1.0, 2.0]), [1.0, 3.0]);
    }

    #[test]
    fn means_and_medians() {
        assert!((geometric_mean(&[2.0, 8.0]) - 4.0).abs() < 1e-12);
        assert!(geometric_mean(&[]).is_nan() && median(&[]).is_nan());
        assert_eq!([median(&[5.0, 1.0, 3.0]), median(&[5.0, 1.0, 3.0, 2.0])], [3.0, 2.5]);
    }
}
