//! `--log-style caffe`: what the parsers of Caffe's logs need.

use crate::common::Stage;

/// The text behind what glog puts before each line; checks that.
fn message(line: &str) -> &str {
    let (prefix, message) = line.split_once("] ").unwrap_or_else(|| panic!("no prefix: {line}"));
    let words: Vec<&str> = prefix.split_whitespace().collect();
    let [date, time, thread, place] = words[..] else { panic!("{prefix}") };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    assert!(date.len() == 5 && date.starts_with('I') && digits(&date[1..]), "{line}");
    let (clock, micros) = time.split_once('.').expect("a fraction of a second");
    let clock: Vec<&str> = clock.split(':').collect();
    assert!(clock.len() == 3 && clock.iter().all(|part| part.len() == 2 && digits(part)), "{line}");
    assert!(micros.len() == 6 && digits(micros) && digits(thread), "{line}");
    assert!(
        place.split_once(':').is_some_and(|(file, number)| file.ends_with(".rs") && digits(number)),
        "{line}"
    );
    message
}

/// The number behind a text.
fn number_behind(line: &str, text: &str) -> Option<f64> {
    let rest = line.split_once(text)?.1;
    rest.split([' ', ',']).next()?.parse().ok()
}

#[test]
fn parsers_of_logs_find_what_they_look_for() {
    let stage = Stage::new();
    let outcome = stage.run("train --solver solver.prototxt --log-style caffe --run run");
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "", "logs of Caffe go to standard error");
    let lines: Vec<&str> = outcome.stderr.lines().map(message).collect();
    let start = lines.iter().position(|line| line.starts_with("Solving Small")).expect("the start");
    assert!(lines[start..].contains(&"Optimization Done."));
    let metrics = stage.metrics("run");

    let mut iteration = None;
    let (mut tests, mut losses, mut rates, mut smoothed) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for line in &lines[start..] {
        iteration = number_behind(line, "Iteration ").or(iteration);
        let at = |value: f64| (iteration.expect("an iteration") as u64, value);
        tests.extend(number_behind(line, "Test net output #0: accuracy = ").map(at));
        losses.extend(number_behind(line, "Train net output #0: loss = ").map(at));
        rates.extend(number_behind(line, ", lr = ").map(at));
        smoothed += usize::from(number_behind(line, ", loss = ").is_some());
        if line.contains("Test net output #1: loss = ") {
            assert!(line.contains(" (* 1 = ") && line.ends_with(" loss)"), "{line}");
        }
    }
    let stored = |key: &str, iterations: &[u64]| -> Vec<(u64, f64)> {
        let all = metrics.iter().filter_map(|m| Some((m["iteration"].as_u64()?, m[key].as_f64()?)));
        all.filter(|(iteration, _)| iterations.contains(iteration)).collect()
    };
    let close = |found: &[(u64, f64)], stored: &[(u64, f64)]| {
        let same = found.iter().zip(stored).all(|(f, s)| f.0 == s.0 && (f.1 - s.1).abs() <= 1e-5 * s.1.abs());
        assert!(found.len() == stored.len() && same, "{found:?} {stored:?}");
    };
    close(&tests, &stored("accuracy", &[0, 10, 20]));
    close(&losses, &stored("loss", &[0, 10]));
    close(&rates, &stored("lr", &[0, 10]));
    assert_eq!((tests.len(), losses.len(), smoothed), (3, 2, 2));
}
