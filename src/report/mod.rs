//! `quadrille report`: one page about some runs, which needs nothing but itself.

mod runs;
mod svg;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use quadrille_io::write_text;
use serde_json::Value;

use self::runs::{Run, Sample};
use self::svg::{Curve, bars, colour, curves, escape, number};
use crate::cli::ReportArgs;
use crate::failure::Failure;

const STYLE: &str = "body{font:15px/1.45 sans-serif;color:#222;max-width:1120px;margin:2em auto;padding:0 1em}\
    h1{font-size:1.5em}h2{font-size:1.15em;margin:2em 0 .4em}.row{display:flex;flex-wrap:wrap;gap:12px}\
    .row svg{flex:1 1 440px;max-width:560px}figure{margin:0}table{border-collapse:collapse;font-size:.9em}\
    td,th{border-bottom:1px solid #ddd;padding:.25em .7em;text-align:right}\
    td:first-child,th:first-child{text-align:left}.key span{white-space:nowrap;margin-right:1.2em}\
    .key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}.differs td{background:#fff7e0}\
    .wide{overflow-x:auto}.sim{color:#a33;font-weight:bold}";

/// Writes the page.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let mut runs = args.runs.iter().map(|path| Run::read(path)).collect::<Result<Vec<_>, _>>()?;
    tell_apart(&mut runs);
    write_text(&args.out, "a report", &page(&runs))?;
    say!("report      {} run(s) in {}", runs.len(), args.out.display());
    Ok(())
}

/// Gives runs whose folders have one name numbers.
fn tell_apart(runs: &mut [Run]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (index, run) in runs.iter_mut().enumerate() {
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = format!("{} [{}]", run.name, index + 1);
        }
    }
}

fn page(runs: &[Run]) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Quadrille: {} run(s)</title><style>{STYLE}</style></head><body>\n\
         <h1>Quadrille: {} run(s)</h1>\n",
        runs.len(),
        runs.len()
    );
    if runs.iter().any(|run| run.is_simulated) {
        html += "<p><span class=\"sim\">sim</span>: times of runs with this word come from the virtual clock and a machine \
                 file, not from a measurement; losses and accuracies are real.</p>\n";
    }
    html += &key(runs.iter().enumerate().map(|(index, run)| (index, run.label())));
    html += &all_curves(runs);
    html += &summaries(runs);
    html += &breakdown(runs);
    html += &scaling(runs);
    html += &configurations(runs);
    html + "</body></html>\n"
}

/// Which colour is whose.
fn key(names: impl Iterator<Item = (usize, String)>) -> String {
    let mut html = "<p class=\"key\">".to_owned();
    for (index, name) in names {
        let _ = write!(html, "<span><i style=\"background:{}\"></i>{}</span> ", colour(index), escape(&name));
    }
    html + "</p>\n"
}

fn all_curves(runs: &[Run]) -> String {
    let seconds = match runs.iter().filter(|run| run.is_simulated).count() {
        0 => "seconds of training",
        all if all == runs.len() => "seconds of training (sim)",
        _ => "seconds of training (some sim)",
    };
    let mut html = String::new();
    for (name, of) in [
        ("loss of worker 0", (|run| &run.losses) as fn(&Run) -> &Vec<Sample>),
        ("accuracy of tests", |run| &run.accuracies),
    ] {
        let mut pictures = String::new();
        for (axis, by_time) in [("iteration", false), (seconds, true)] {
            let at = |sample: &Sample| if by_time { sample.seconds } else { sample.iteration as f64 };
            let points = |run: &Run| of(run).iter().map(|sample| [at(sample), sample.value]).collect();
            let all: Vec<Curve> =
                runs.iter().map(|run| Curve { name: run.label(), points: points(run) }).collect();
            pictures += &curves(&format!("{name} by {axis}"), [axis, name], &all).unwrap_or_default();
        }
        if !pictures.is_empty() {
            let _ = writeln!(html, "<h2>{}</h2><div class=\"row\">{pictures}</div>", capital(name));
        }
    }
    html
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// A number of a summary, or a dash.
fn told(value: &Value, unit: &str) -> String {
    value.as_f64().map_or("–".to_owned(), |value| format!("{}{unit}", number(value)))
}

/// A share of a summary, or a dash.
fn share(value: &Value) -> String {
    value.as_f64().map_or("–".to_owned(), |share| format!("{:.2} %", 100.0 * share))
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let cells = |cells: &[String], tag: &str| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rows: String = rows.map(|row| cells(&row, "td")).collect();
    format!("<div class=\"wide\"><table>{}{rows}</table></div>\n", cells(&head, "th"))
}

fn summaries(runs: &[Run]) -> String {
    let head = [
        "run",
        "method",
        "workers",
        "iterations",
        "accuracy",
        "time",
        "images/s",
        "communication",
        "waiting for data",
    ];
    let rows = runs.iter().map(|run| {
        let summary = &run.summary;
        if summary.is_null() {
            let last = run.losses.last().map_or(0, |sample| sample.iteration + 1);
            let unfinished = [run.label(), "not finished".to_owned(), String::new(), last.to_string()];
            return unfinished.into_iter().chain((4..head.len()).map(|_| "–".to_owned())).collect();
        }
        vec![
            run.label(),
            summary["method"].as_str().unwrap_or("–").to_owned(),
            told(&summary["workers"], ""),
            told(&summary["iterations"], ""),
            share(&summary["accuracy"]),
            told(&summary["seconds"], " s"),
            told(&summary["images_per_second"], ""),
            share(&summary["communication_share"]),
            share(&summary["data_share"]),
        ]
    });
    format!("<h2>Summary</h2>{}", table(&head, rows))
}

/// Bars of where the time went, of the runs that say so.
fn breakdown(runs: &[Run]) -> String {
    let with: Vec<&Run> = runs.iter().filter(|run| !run.time.is_empty()).collect();
    if with.is_empty() {
        return String::new();
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, seconds) in with.iter().flat_map(|run| &run.time) {
        if Run::counts(name) && *seconds > 0.0 && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let part = |run: &Run, name: &str| run.time.get(name).copied().unwrap_or(0.0);
    let row = |run: &&Run| (run.label(), names.iter().map(|name| part(run, name)).collect());
    let rows: Vec<(String, Vec<f64>)> = with.iter().map(row).collect();
    let words: Vec<String> = names.iter().map(|name| name.replace('_', " ")).collect();
    let key = key(words.into_iter().enumerate());
    let words: Vec<String> = names.iter().map(|name| name.replace('_', " ")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    format!("<h2>Where the time went</h2>{key}<div class=\"row\">{}</div>\n", bars("time", &words, &rows))
}

/// What more workers bring, of runs that differ in their number and are otherwise the same work. Efficiency is that of a core.
fn scaling(runs: &[Run]) -> String {
    let mut families: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.summary["images_per_second"].is_number()) {
        let of = &run.configuration;
        let family = format!(
            "{}, mini-batches of {}{}",
            of["network"]["name"].as_str().unwrap_or("a network"),
            of["batch"],
            if run.is_simulated { " (sim)" } else { "" }
        );
        families.entry(family).or_default().push(run);
    }
    let workers = |run: &Run| run.summary["workers"].as_u64().unwrap_or(1);
    let speed = |run: &Run| run.summary["images_per_second"].as_f64().unwrap_or(0.0);
    let cores = |run: &Run| {
        let of = |key: &str| run.summary[key].as_f64().unwrap_or(1.0).max(1.0);
        workers(run) as f64 * of("quadrants") * of("threads")
    };
    let mut html = String::new();
    for (family, mut runs) in families {
        runs.sort_by_key(|run| workers(run));
        let counts: BTreeSet<u64> = runs.iter().map(|run| workers(run)).collect();
        if counts.len() < 2 {
            continue;
        }
        let first = runs[0];
        let each = speed(first) / cores(first);
        let rows = runs.iter().map(|run| {
            let efficiency = speed(run) / cores(run) / each.max(1e-12);
            let seconds = run.summary["seconds"].as_f64().unwrap_or(0.0) / run.iterations.max(1) as f64;
            vec![
                run.label(),
                run.summary["method"].as_str().unwrap_or("–").to_owned(),
                workers(run).to_string(),
                number(cores(run)),
                number(speed(run)),
                format!("{} ms", number(1000.0 * seconds)),
                number(speed(run) / speed(first).max(1e-12)),
                format!("{:.1} %", 100.0 * efficiency),
            ]
        });
        let head =
            ["run", "method", "workers", "cores", "images/s", "an iteration", "speed-up", "efficiency"];
        let _ = write!(html, "<h2>Scaling: {}</h2>{}", escape(&family), table(&head, rows));
    }
    html
}

/// A number as it was typed, if it has become one of single precision.
fn short(number: &serde_json::Number) -> String {
    match number.as_f64().map(|wide| (wide, wide as f32)) {
        Some((wide, narrow)) if number.is_f64() && f64::from(narrow) == wide => narrow.to_string(),
        _ => number.to_string(),
    }
}

/// Every field of a configuration by its path.
fn fields(value: &Value, path: &str, all: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                fields(value, &path, all);
            }
        }
        Value::String(text) => drop(all.insert(path.to_owned(), text.clone())),
        Value::Null => drop(all.insert(path.to_owned(), "–".to_owned())),
        Value::Number(number) => drop(all.insert(path.to_owned(), short(number))),
        other => drop(all.insert(path.to_owned(), other.to_string())),
    }
}

fn configurations(runs: &[Run]) -> String {
    let each: Vec<BTreeMap<String, String>> = runs
        .iter()
        .map(|run| {
            let mut all = BTreeMap::new();
            fields(&run.configuration, "", &mut all);
            all
        })
        .collect();
    let names: BTreeSet<&String> = each.iter().flat_map(BTreeMap::keys).collect();
    let values = |name: &str| -> Vec<&str> {
        each.iter().map(|of| of.get(name).map_or("–", String::as_str)).collect()
    };
    let differs = |name: &str| values(name).windows(2).any(|pair| pair[0] != pair[1]);
    let mut html = "<h2>Configuration</h2><div class=\"wide\"><table><tr><th></th>".to_owned();
    for run in runs {
        let _ = write!(html, "<th>{}</th>", escape(&run.label()));
    }
    html += "</tr>\n";
    // What differs is what one looks for.
    let (first, rest): (Vec<&String>, Vec<&String>) = names.into_iter().partition(|name| differs(name));
    for name in first.into_iter().chain(rest) {
        let class = if differs(name) { " class=\"differs\"" } else { "" };
        let _ = write!(html, "<tr{class}><td>{}</td>", escape(name));
        for value in values(name) {
            let _ = write!(html, "<td>{}</td>", escape(value));
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n"
}
