//! `report`: one page that needs nothing but itself.

use crate::common::Stage;

fn page(stage: &Stage, runs: &str) -> String {
    let said = stage.succeed(&format!("report {runs} --out page.html")).stdout;
    assert!(said.contains("page.html"), "{said}");
    std::fs::read_to_string(stage.path("page.html")).expect("a page")
}

/// Every tag that is opened is closed, in order, but those that HTML never closes.
fn is_balanced(html: &str) -> bool {
    let mut open = Vec::new();
    for piece in html.split('<').skip(1) {
        let Some((tag, _)) = piece.split_once('>') else { return false };
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        match tag {
            _ if tag.starts_with('!') || tag.ends_with('/') || name == "meta" => {}
            _ if tag.starts_with('/') => {
                if open.pop() != Some(name) {
                    return false;
                }
            }
            _ => open.push(name),
        }
    }
    open.is_empty()
}

#[test]
fn a_page_of_several_runs_has_all_its_parts_and_asks_no_network() {
    let stage = Stage::new();
    stage.train("one", "--workers 1");
    stage.train("two", "--workers 2 --method sync-sgd");
    let html = page(&stage, "one two");
    for part in [
        "Loss of worker 0",
        "Accuracy of tests",
        "by iteration",
        "seconds of training",
        "Summary",
        "Scaling: Small",
        "Configuration",
        "sync-sgd",
        "speed-up",
        "momentum",
        "<polyline",
    ] {
        assert!(html.contains(part), "no {part:?} in {html}");
    }
    assert!(is_balanced(&html), "{html}");
    let outside = html.replace("http://www.w3.org/2000/svg", "");
    assert!(
        !["http", "<script", "<link", "url(", "src="].iter().any(|asks| outside.contains(asks)),
        "{html}"
    );
    assert!(!html.contains("(sim") && !html.contains("NaN"), "{html}");
    // Replaced, not refused.
    assert!(!page(&stage, "one").contains("Scaling"), "one run scales nothing");
}

#[test]
fn runs_of_any_kind_are_shown() {
    let stage = Stage::new();
    stage.train("a", "--test-interval 0");
    // One that was killed: half a line at the end, no summary; a loss that was not finite is a gap.
    let metrics = std::fs::read_to_string(stage.path("a/metrics.jsonl")).expect("metrics");
    let first: Vec<&str> = metrics.lines().take(5).collect();
    std::fs::create_dir_all(stage.path("killed")).expect("a folder");
    std::fs::copy(stage.path("a/effective.json"), stage.path("killed/effective.json")).expect("a copy");
    let lost = r#"{"iteration":5,"loss":null,"lr":0.1,"seconds":1.0}"#;
    stage.write("killed/metrics.jsonl", format!("{}\n{lost}\n{{\"iterat", first.join("\n")));
    let html = page(&stage, "a killed");
    assert!(html.contains("not finished") && is_balanced(&html), "{html}");
    // One of the virtual clock, with its parts of the time.
    std::fs::create_dir_all(stage.path("virtual")).expect("a folder");
    std::fs::copy(stage.path("a/effective.json"), stage.path("virtual/effective.json")).expect("a copy");
    let summary = concat!(
        r#"{"summary":{"clock":"sim","iterations":2,"workers":4,"seconds":3.0,"images_per_second":9.0,"#,
        r#""time":{"forward_backward":2.0,"comm_workers":0.75,"turn":5.0,"hidden_communication":0.5}}}"#
    );
    let record = r#"{"iteration":0,"loss":2.0,"lr":0.1,"seconds":1.0,"clock":"sim"}"#;
    stage.write("virtual/metrics.jsonl", format!("{record}\n{summary}\n"));
    let html = page(&stage, "virtual a");
    for part in [
        "virtual (sim)",
        "Where the time went",
        "forward backward: 2 s, 72.7 %",
        "comm workers: 0.75 s",
        "some sim",
    ] {
        assert!(html.contains(part), "no {part:?} in {html}");
    }
    assert!(!html.contains("turn: 5") && !html.contains("hidden") && is_balanced(&html), "{html}");
    // Runs of one name in other folders are told apart.
    assert!(page(&stage, "a ./a").contains("a [2]"));
}

#[test]
fn a_run_of_several_starts_is_one_run() {
    let stage = Stage::new();
    let first = stage.train("run", "--max-iter 8");
    assert_eq!(first["seconds_before"], 0.0);
    let said = stage.succeed("train --solver solver.prototxt --resume run --max-iter 20").stdout;
    assert!(said.contains("s with starts before), "), "{said}");
    let metrics = stage.metrics("run");
    let seconds: Vec<f64> = metrics.iter().filter_map(|record| record["seconds"].as_f64()).collect();
    assert!(seconds.len() > 20 && seconds.is_sorted(), "{seconds:?}");
    let summary = stage.summary("run");
    let number = |name: &str| summary[name].as_f64().expect(name);
    // What came after the last iteration of the start before, such as its test, is no training.
    let before = number("seconds_before");
    assert!(before > 0.0 && before <= first["seconds"].as_f64().expect("seconds"), "{summary}");
    assert_eq!(number("seconds"), *seconds.last().expect("a test"), "{summary}");
    assert!(page(&stage, "run").contains(">20</td>"), "all iterations");

    // The summary of a start after which another went on is not the run's; the parts of the time are of both.
    let end = metrics.iter().position(|record| record.get("summary").is_some()).expect("of the first start");
    let mut lines = metrics[..end + 2].to_vec();
    assert_eq!(lines[end + 1]["iteration"], 8);
    lines[end]["summary"]["time"] = serde_json::json!({"forward_backward": 2.0});
    lines[end + 1]["time"] = serde_json::json!({"forward_backward": 0.5});
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    stage.write("run/metrics.jsonl", lines.join("\n") + "\n");
    let html = page(&stage, "run");
    assert!(html.contains("<td>not finished</td><td></td><td>9</td>"), "{html}");
    assert!(html.contains("forward backward: 2.5 s, 100"), "{html}");
}

#[test]
fn a_page_is_written_whole_or_not_at_all() {
    let stage = Stage::new();
    stage.train("run", "--max-iter 2 --test-interval 0");
    let html = page(&stage, "run");
    // As on a full disk: no file may have more than a block, of at most 1024 bytes.
    let program = env!("CARGO_BIN_EXE_quadrille");
    let command = format!("trap '' XFSZ; ulimit -f 1; exec {program} report run --out page.html");
    let output =
        std::process::Command::new("sh").args(["-c", &command]).current_dir(stage.path(".")).output();
    let output = output.expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{stderr}");
    assert!(stderr.contains("page.html: cannot write a report: "), "{stderr}");
    assert_eq!(std::fs::read_to_string(stage.path("page.html")).expect("the old page"), html);
    let names = std::fs::read_dir(stage.path(".")).expect("a folder").flatten();
    assert!(names.map(|entry| entry.file_name()).all(|name| !name.to_string_lossy().contains(".part")));
    assert_eq!(stage.run("report run --out run").code, Some(74));
    assert_eq!(stage.run("report run --out none/page.html").code, Some(73));
}

#[test]
fn what_is_no_run_is_refused() {
    let stage = Stage::new();
    stage.train("run", "--max-iter 2 --test-interval 0");
    let case = |runs: &str, code: i32, says: &str| {
        let outcome = stage.run(&format!("report {runs} --out page.html"));
        assert_eq!((outcome.code, outcome.stderr.contains(says)), (Some(code), true), "{runs}: {outcome:?}");
        assert!(!stage.path("page.html").exists(), "{runs}");
    };
    case("nowhere", 66, "nowhere/metrics.jsonl: cannot be read");
    case("run shapes", 66, "give the folders of runs");
    case("", 2, "RUN");
    stage.write("run/metrics.jsonl", "{\"iteration\":0,\"loss\":1}\nnonsense\n");
    case("run", 65, "run/metrics.jsonl:2: no record of a run");
    stage.write("run/metrics.jsonl", "");
    case("run", 65, "no iteration has been recorded");
    stage.write("run/effective.json", "{");
    case("run", 65, "effective.json:1: no JSON");
    let outcome = Stage::new().run("report run --out no/page.html");
    assert_eq!(outcome.code, Some(66));
}
