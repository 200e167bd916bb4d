//! Placement on machines of several NUMA nodes, which `scripts/numa-vm` emulates: a Knights Landing in SNC-4 flat mode,
//! and sockets with fast memory of which an HMAT tells.
//!
//! In the guest `topo --verify` and trainings of LeNet on four quadrants run with every page and thread checked, and the
//! weights must be those of four quadrants out here, bit by bit.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use quadrille_cpu::isa::Isa;

/// Four quadrants, two images each: emulated vectors are a thousand times slower than real ones.
const TRAINING: &str = "train --workers 1 --quadrants 4 --isa avx2 --batch 8 --max-iter 2 --test-interval 0";

/// MiB of each node of fast memory.
const FAST: &str = "64";

/// A network of large activations and little work: of 400 images a quarter does not fit a node of fast memory.
const WIDE: &str = r#"
name: "Wide"
layer { name: "mnist" type: "Data" top: "data" top: "label" data_param { source: "mnist" batch_size: 400 } }
layer { name: "wide" type: "Convolution" bottom: "data" top: "wide"
  convolution_param { num_output: 64 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "bend" type: "Sigmoid" bottom: "wide" top: "bend" }
layer { name: "narrow" type: "Pooling" bottom: "bend" top: "narrow" pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "narrow" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"#;
const WIDE_TRAINING: &str = "train --workers 1 --quadrants 4 --isa avx2 --max-iter 1 --test-interval 0";

/// What every guest does.
const SCRIPT: &str = r#"
told() { "$@"; echo "exit code $?"; }
told $Q topo --verify --model lenet --batch 512
told $Q $TRAINING --run fast --fast-memory require --verify-placement
"#;

/// What only one does, since it asks for sizes alone: what does not fit is divided, and the last two are refused before they begin.
const SIZES: &str = r#"
told $Q $WIDE_TRAINING --model "$WIDE" --run wide --verify-placement
told $Q time --quadrants 4 --batch 20000 --fast-memory require 2>&1
told $Q time --quadrants 4 --batch 100000 2>&1
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn program() -> &'static str {
    env!("CARGO_BIN_EXE_quadrille")
}

/// Why there is no such machine here; `None` if there is one.
fn missing() -> Option<String> {
    if !Isa::available().any(|tier| tier == Isa::Avx2) {
        return Some("the guest computes in the tier avx2, which this CPU has not".to_owned());
    }
    match Command::new(root().join("scripts/numa-vm")).arg("--check").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("scripts/numa-vm: {error}")),
    }
}

/// libmemkind, where it is installed: the program finds it by itself, so the guest's needs do not name it.
fn memkind() -> Option<String> {
    let path = format!("{}:/sbin:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let known = Command::new("ldconfig").arg("-p").env("PATH", path).output().ok()?;
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    let line = known.lines().find(|line| line.contains("libmemkind.so.0"))?;
    Some(line.rsplit_once("=> ")?.1.to_owned())
}

/// Runs a script in a guest.
fn guest(mode: &str, cpus: usize, script: &str) -> Output {
    // One after the other: each takes all of a small machine.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("script");
    let wide = folder.path().join("wide.prototxt");
    let head = format!("#!/bin/sh\nQ='{}'\nTRAINING='{TRAINING}'\n", program());
    let of_wide = format!("WIDE='{}'\nWIDE_TRAINING='{WIDE_TRAINING}'\n", wide.display());
    std::fs::write(&file, head + &of_wide + script).expect("a script");
    std::fs::write(&wide, WIDE).expect("a network");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("a script that runs");
    let mut vm = Command::new(root().join("scripts/numa-vm"));
    vm.args(["-m", mode, "-c", &cpus.to_string(), "-b", FAST, "-t", "900", "-f", program(), "-f"]);
    vm.arg(root().join("data/mnist")).arg("-f").arg(root().join("models/lenet")).arg("-f").arg(&wide);
    if let Some(library) = memkind() {
        vm.arg("-f").arg(library);
    }
    vm.arg("--").arg(&file).output().expect("scripts/numa-vm starts")
}

/// What stands behind the word "weights" in each summary.
fn weights(stdout: &str) -> Vec<&str> {
    let summaries = stdout.lines().filter(|line| line.starts_with("summary "));
    summaries.map(|line| line.rsplit_once("weights ").expect("a hash of the weights").1.trim()).collect()
}

/// The weights of the same training out here.
fn weights_outside() -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let arguments = TRAINING.split(' ').chain(["--run", "out"]);
    let output =
        Command::new(program()).args(arguments).current_dir(&folder).output().expect("the program starts");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let hashes = weights(&stdout);
    assert_eq!(hashes.len(), 1, "{stdout}");
    hashes[0].to_owned()
}

/// Places and trains in a guest that then runs `more`, of which each command has its exit code in `codes`. Returns what these
/// print, with all that is seen; nothing where there is no guest.
fn places_and_trains(mode: &str, cpus: usize, more: &str, codes: &[&str]) -> Option<(Vec<String>, String)> {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return None;
    }
    let output = guest(mode, cpus, &format!("{SCRIPT}{more}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(125) {
        println!("skipped: {}", stderr.trim());
        return None;
    }
    let seen = format!("in mode {mode}:\n{stdout}\n{stderr}");
    let found: Vec<&str> = stdout.lines().filter_map(|line| line.strip_prefix("exit code ")).collect();
    assert_eq!(found, [&["0", "0"], codes].concat(), "{seen}");
    let parts: Vec<&str> = stdout.split("exit code ").collect();
    let [verified, trained, others @ ..] = &parts[..] else { panic!("two parts {seen}") };
    match memkind() {
        // On other nodes its heap may give what it took for the first.
        Some(_) => assert!(
            verified.contains("; a small piece of memkind 1.") && verified.contains(" on node 4; "),
            "{seen}"
        ),
        None => println!("skipped: libmemkind is not installed; see scripts/setup --memkind"),
    }
    for quadrant in 0..4 {
        let place = format!("            quadrant {quadrant}: ");
        assert!(
            verified.contains(&place) && verified.contains("training    LeNet, mini-batches of 512"),
            "{seen}"
        );
        let (dram, near) = (quadrant, quadrant + 4);
        let line = format!(
            "verify      quadrant {quadrant}: DRAM node {dram}: all 4096 pages there; fast memory node {near}: all 4096 \
             pages there"
        );
        assert!(verified.contains(&line), "no {line:?} {seen}");
        let start = format!("verify      quadrant {quadrant}: all pages on their nodes (");
        let found = trained.lines().find_map(|line| line.strip_prefix(&start));
        let (pages, threads) =
            found.and_then(|found| found.split_once(')')).unwrap_or_else(|| panic!("{start:?} {seen}"));
        assert_eq!(threads, format!("; {cpus} of {cpus} thread(s) on their CPUs"), "{seen}");
        // Staging in DRAM, all else in fast memory.
        let nodes: Vec<&str> =
            pages.split(", ").filter_map(|part| part.split_once(" on node ")).map(|(_, node)| node).collect();
        assert_eq!(nodes, [dram.to_string(), near.to_string()], "{seen}");
    }
    assert!(trained.contains("verify      data sets: all pages on their node ("), "{seen}");
    assert_eq!(weights(trained), [weights_outside()], "{seen}");
    Some((others.iter().map(|part| (*part).to_owned()).collect(), seen))
}

#[test]
fn a_knights_landing_in_snc4_flat_mode() {
    let Some((parts, seen)) = places_and_trains("knl", 2, SIZES, &["0", "71", "71"]) else { return };
    let [wide, large, huge, _] = &parts[..] else { panic!("four parts {seen}") };
    assert!(wide.contains("verify      data sets: all pages on their node ("), "{seen}");
    for quadrant in 0..4 {
        // Not the line on CPUs that are far apart, which begins so too.
        let place = format!("            quadrant {quadrant}: ");
        let divided = |line: &&str| line.starts_with(&place) && line.contains(" (fast): ");
        let line = wide.lines().find(divided).unwrap_or_else(|| panic!("quadrant {quadrant} {seen}"));
        assert!(
            line.contains("activations (the first ") && line.contains("activations (the other "),
            "{seen}"
        );
        let verified = format!("verify      quadrant {quadrant}: all pages on their nodes (");
        assert!(wide.contains(&verified), "no {verified:?} {seen}");
    }
    assert!(large.contains("--fast-memory require: node 4 is to hold "), "{seen}");
    assert!(large.contains(" missing\n  hint: "), "{seen}");
    assert!(huge.contains("the run needs ") && huge.contains("  hint: --batch "), "{seen}");
}

#[test]
fn sockets_with_fast_memory_that_an_hmat_tells_of() {
    places_and_trains("hmat", 1, "", &[]);
}
