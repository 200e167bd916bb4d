//! Every fixture through the program, as a user would: `quadrille extract`.

use std::path::Path;
use std::process::Command;

use quadrille_io::npz::{Archive, read_npz};

use crate::bounds::{Bound, LAYER, NET};
use crate::compared::{Report, doubles, is_result};
use crate::fixture::{Case, cases};
use crate::network::prepare;

/// What the program writes for a fixture.
fn extract(case: &Case, arrays: &Archive, folder: &Path) -> Result<Archive, String> {
    let out = folder.join("out.npz");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quadrille"));
    command.arg("extract").arg("--model").arg(case.path(".prototxt"));
    command.arg("--inputs").arg(case.path(".npz")).arg("--out").arg(&out);
    command.args(arrays.keys().any(|key| key.starts_with("diff/")).then_some("--backward"));
    let output = command.output().expect("the program starts");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(read_npz(&out).expect("an archive"))
}

/// Compares the fixtures of a group that can be run, and says how many these are.
fn compare(group: &str, bound: Bound) {
    let (folder, mut report) = (tempfile::tempdir().expect("a folder"), Report::default());
    for case in cases(group) {
        let arrays = case.arrays();
        if prepare(&case, &arrays).is_err() {
            continue;
        }
        report.cases += 1;
        let found = extract(&case, &arrays, folder.path()).unwrap_or_else(|error| panic!("{error}"));
        for (key, array) in arrays.iter().filter(|(key, _)| is_result(key)) {
            let outcome = match found.get(key) {
                Some(found) if found.shape == array.shape => {
                    bound.check(&case, key, &doubles(array), &doubles(found))
                }
                Some(found) => Err(format!("shape {:?}, not {:?}", found.shape, array.shape)),
                None => Err("is not there".to_owned()),
            };
            report.note(&case, key, "the program", outcome);
        }
    }
    report.finish(&format!("{group} by the program"), 1);
}

#[test]
fn layers_through_the_program() {
    compare("layers", LAYER);
}

#[test]
fn networks_through_the_program() {
    compare("nets", NET);
}
