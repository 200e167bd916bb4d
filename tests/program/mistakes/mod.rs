//! One deliberate mistake at a time: the error names file, line, layer and field, and says what was expected or meant.

mod fields;
mod solvers;
mod wiring;

use crate::common::{NET, SOLVER, Stage};

/// What, the text that is replaced, what takes its place, where the error is said to be, and what is suggested.
type Mistake = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// Stands for the end of the file, where something is added.
const END: &str = "";

/// Makes each mistake in `good`, the text of `file`, and collects what is wrong with the answers.
fn check(file: &str, good: &str, flags: &str, mistakes: &[Mistake]) {
    let stage = Stage::new();
    let mut faults = Vec::new();
    for (what, from, to, place, suggestion) in mistakes {
        let bad = match *from {
            END => format!("{good}{to}"),
            from => good.replacen(from, to, 1),
        };
        assert_ne!(bad, good, "{what}: this is no mistake");
        stage.write(file, bad);
        let outcome = stage.run(&format!("check {file}{flags}"));
        let says = |part: &str| outcome.stderr.contains(part);
        let suggests = says("hint: ") || says("expect");
        let plain = !says("panicked") && outcome.stderr.matches("quadrille: ").count() == 1;
        if outcome.code != Some(64) || !says(place) || !says(suggestion) || !suggests || !plain {
            faults.push(format!(
                "{what}: exit code {:?}\n  {}\nexpected {place} … {suggestion}\n",
                outcome.code, outcome.stderr
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn in_the_fields_of_a_network() {
    check("net.prototxt", NET, " --data-shape 1,12,12", fields::FIELDS);
}

#[test]
fn between_the_layers_of_a_network() {
    check("net.prototxt", NET, " --data-shape 1,12,12", wiring::WIRING);
}

#[test]
fn in_a_solver() {
    check("solver.prototxt", SOLVER, "", solvers::SOLVERS);
}

#[test]
fn there_are_many_and_no_two_are_the_same() {
    let all = [fields::FIELDS, wiring::WIRING, solvers::SOLVERS].concat();
    let mut whats: Vec<&str> = all.iter().map(|(what, ..)| *what).collect();
    whats.sort_unstable();
    whats.dedup();
    assert!(whats.len() == all.len() && all.len() >= 100, "{} of {}", whats.len(), all.len());
}

/// What a check can do without is an error of the training, which cannot.
#[test]
fn what_only_a_training_needs() {
    let stage = Stage::new();
    stage.write("solver.prototxt", SOLVER.replace("max_iter: 20\n", ""));
    stage.succeed("check solver.prototxt");
    let outcome = stage.run("train --solver solver.prototxt --run out");
    assert_eq!(outcome.code, Some(64), "{outcome:?}");
    for part in ["solver.prototxt:1: solver: max_iter: missing", "--max-iter"] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    stage.write("solver.prototxt", SOLVER.replace("net.prototxt", "nett.prototxt"));
    let shown = stage.succeed("check solver.prototxt").stdout;
    assert!(shown.contains("\"nett.prototxt\" is not here"), "{shown}");
    let outcome = stage.run("train --solver solver.prototxt --run out");
    assert_eq!(outcome.code, Some(66), "{outcome:?}");
    for part in ["solver.prototxt:1: net: no file \"nett.prototxt\"", "did you mean \"net.prototxt\"?"] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    // Caffe tests nothing then, too.
    stage.write("solver.prototxt", SOLVER.replace("test_iter: 4\n", ""));
    let shown = stage.succeed("check solver.prototxt").stdout;
    assert!(shown.contains("test_interval (there is no test_iter)"), "{shown}");
}
