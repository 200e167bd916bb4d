//! Every fixture through the program, as a user would: `quadrille extract` and `quadrille train --inputs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use quadrille_io::npz::{Archive, read_npz};
use quadrille_io::prototxt::read_solver;
use quadrille_io::{NetWeights, SolverState};
use serde_json::Value;

use crate::bounds::{Bound, LAYER, NET};
use crate::compared::{Report, doubles, is_result};
use crate::fixture::{Case, cases, double_values, under};
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

/// Runs a solver on its trace, from the start or from `state`, and returns what the metrics say of each iteration, and the
/// folder of the run.
fn train(case: &Case, state: Option<PathBuf>, folder: &Path) -> (Vec<Value>, PathBuf) {
    let kind =
        state.as_ref().and_then(|state| state.extension()).map_or("whole".into(), |e| e.to_string_lossy());
    let run = folder.join(format!("{} {kind}", case.name));
    let mut command = Command::new(env!("CARGO_BIN_EXE_quadrille"));
    command.arg("train").arg("--solver").arg(case.path(".prototxt"));
    command.arg("--inputs").arg(case.path(".npz")).arg("--run").arg(&run);
    if let Some(state) = state {
        command.arg("--snapshot").arg(state);
    }
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}: {}", case.name, String::from_utf8_lossy(&output.stderr));
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    (lines.filter(|line| line["lr"].is_number()).collect(), run)
}

/// The trained weights in the folder of a run, as a file of Caffe.
fn caffemodel(run: &Path) -> NetWeights {
    let entries = std::fs::read_dir(run.join("snapshots")).expect("snapshots").flatten();
    let mut files =
        entries.map(|entry| entry.path()).filter(|path| path.extension() == Some("caffemodel".as_ref()));
    NetWeights::read(&files.next().expect("a .caffemodel")).expect("weights")
}

/// Compares rates, losses and the last weights of a run from iteration `first` on.
fn compare_run(
    report: &mut Report,
    case: &Case,
    first: usize,
    (lines, run): (Vec<Value>, PathBuf),
    how: &str,
) {
    let arrays = case.arrays();
    let parts = read_solver(&case.path(".prototxt")).expect("a solver").iter_size as usize;
    let number = |value: &Value| value.as_f64().expect("a number");
    let rates = double_values(&arrays["lr"]);
    assert_eq!(lines.len(), rates.len() - first, "{}: iterations {how}", case.name);
    let mut losses = Vec::new();
    for (line, rate) in lines.iter().zip(&rates[first..]) {
        let close = (number(&line["lr"]) - rate).abs() <= 4.0 * f64::from(f32::EPSILON) * rate;
        let what = || format!("{} is not {rate}", line["lr"]);
        report.note(case, "lr", how, close.then_some(()).ok_or_else(what));
        match line["losses"].as_array() {
            Some(each) => losses.extend(each.iter().map(number)),
            None => losses.push(number(&line["loss"])),
        }
    }
    let caffe = &double_values(&arrays["loss"])[first * parts..];
    report.note(case, "loss", how, NET.check(case, "loss", caffe, &losses));
    let weights = caffemodel(&run);
    for (name, array) in under(&arrays, "final/") {
        let (layer, index) = name.rsplit_once('/').expect("layer/index");
        let layer = weights.layers.iter().find(|l| l.name == layer).expect("the layer");
        let (_, values) = layer.blobs[index.parse::<usize>().expect("an index")].as_ref().expect("values");
        let (key, values) =
            (format!("final/{name}"), values.iter().map(|w| f64::from(*w)).collect::<Vec<_>>());
        report.note(case, &key, how, NET.check(case, &key, &doubles(array), &values));
    }
}

/// Caffe's snapshot in the other format that Caffe has.
fn in_hdf5(case: &Case, state: &Path, folder: &Path) -> PathBuf {
    let mut read = SolverState::read(state).expect("a state");
    let weights = NetWeights::read(&case.beside(&read.learned_net)).expect("weights");
    let [to, learned_net] =
        ["solverstate", "caffemodel"].map(|kind| folder.join(format!("{}.{kind}.h5", case.name)));
    weights.write(&learned_net).expect("a file");
    read.learned_net = learned_net.display().to_string();
    read.write(&to).expect("a file");
    to
}

#[test]
fn solvers_through_the_program() {
    const SNAPSHOT: usize = 4;
    let (folder, mut report) = (tempfile::tempdir().expect("a folder"), Report::default());
    for case in cases("solvers") {
        report.cases += 1;
        compare_run(&mut report, &case, 0, train(&case, None, folder.path()), "the program");
        let state = case.path(&format!("_iter_{SNAPSHOT}.solverstate"));
        if state.is_file() {
            let resumed = train(&case, Some(state.clone()), folder.path());
            compare_run(&mut report, &case, SNAPSHOT, resumed, "the program, from Caffe's snapshot");
            let resumed = train(&case, Some(in_hdf5(&case, &state, folder.path())), folder.path());
            compare_run(&mut report, &case, SNAPSHOT, resumed, "the program, from a snapshot in HDF5");
        }
    }
    report.finish("solvers by the program", 4);
}
