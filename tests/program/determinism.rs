//! The same seed gives the same weights, bit by bit: run to run and for any number of threads.

use quadrille_cpu::isa::Isa;

use crate::common::{Stage, hash_of};

/// Trains once for each of `flags` and returns the hashes.
fn hashes(flags: &[&str]) -> Vec<String> {
    let stage = Stage::new();
    let run = |(index, flags): (usize, &&str)| hash_of(&stage.train(&format!("out{index}"), flags));
    flags.iter().enumerate().map(run).collect()
}

/// Every one of `flags` must give the same weights; returns their hash.
fn all_equal(flags: &[&str]) -> String {
    let mut hashes = hashes(flags);
    for (flags, hash) in flags.iter().zip(&hashes) {
        assert_eq!(hash, &hashes[0], "{flags:?}");
    }
    hashes.swap_remove(0)
}

#[test]
fn one_worker_on_any_number_of_threads() {
    all_equal(&["", "", "--threads 1", "--threads 2", "--threads 3"]);
}

/// Without exchange and cut, and with the layers' update in one pass with the gradient or apart.
#[test]
fn weights_that_are_updated_as_their_gradients_are_found() {
    let precisions = Isa::detect().has_bf16().then_some("bf16").into_iter().chain(["f32"]);
    for precision in precisions.map(|p| format!("--precision {p}")) {
        all_equal(&[&precision, &format!("{precision} --no-fusion"), &format!("{precision} --threads 3")]);
    }
    let stage = Stage::new();
    let says = |run: &str, flags: &str| {
        let outcome =
            stage.succeed(&format!("train --solver solver.prototxt --max-iter 2 --run {run} {flags}"));
        outcome.stdout.contains("one pass    grad-weight and update of ip\n")
    };
    assert_eq!(says("alone", ""), Isa::detect() != Isa::Portable);
    for (run, flags) in [
        ("apart", "--no-fusion"),
        ("cut", "--quadrants 2"),
        ("easgd", "--workers 2"),
        ("sgd", "--workers 2 --method sync-sgd"),
        ("naive", "--kernel ip=reference"),
    ] {
        assert!(!says(run, flags), "{flags}");
    }
}

#[test]
fn another_seed_is_another_run() {
    let hashes = hashes(&["--seed 7", "--seed 8", ""]);
    assert_ne!(hashes[0], hashes[1]);
    assert_eq!(hashes[0], hashes[2], "without the flag the solver's random_seed counts");
}

#[test]
fn two_quadrants_on_any_number_of_threads() {
    all_equal(&["--quadrants 2", "--quadrants 2", "--quadrants 2 --threads 1", "--quadrants 2 --threads 2"]);
}

#[test]
fn four_workers_of_either_method() {
    let easgd = all_equal(&["--workers 4", "--workers 4 --method sync-easgd --threads 2"]);
    let sgd = all_equal(&["--workers 4 --method sync-sgd", "--workers 4 --method sync-sgd --threads 2"]);
    assert_ne!(easgd, sgd);
}

/// LeNet's gradients travel in two parts, or array by array: beside backward, behind it once all are looked at, and on the virtual
/// clock. Those of several mini-batches are whole with the last.
#[test]
fn gradients_that_leave_while_backward_runs() {
    let stage = Stage::new();
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/machines/sc17-gpu-node.prototxt");
    let hash = |run: usize, gathered: usize, flags: &str| {
        let solver = format!(
            "net: \"lenet\"\nbase_lr: 0.01\nlr_policy: \"fixed\"\nmomentum: 0.9\nmax_iter: 3\niter_size: {gathered}\n\
             snapshot_after_train: false\nrandom_seed: 1\n"
        );
        stage.write("lenet.prototxt", solver);
        let what = "train --model lenet --dummy-data --batch 6 --method sync-sgd --solver lenet.prototxt";
        let outcome = stage.succeed(&format!("{what} --run {run} {flags}"));
        let parts = if flags.contains("unpacked") { ", in 8 part(s)" } else { ", in 2 part(s)" };
        assert!(outcome.stdout.contains(parts), "{}", outcome.stdout);
        hash_of(&stage.summary(&run.to_string()))
    };
    let mut runs = 0..;
    let mut same = |gathered: usize, ways: &[String]| {
        let hashes: Vec<String> =
            ways.iter().zip(&mut runs).map(|(way, run)| hash(run, gathered, way)).collect();
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{ways:?}: {hashes:?}");
        hashes[0].clone()
    };
    let of =
        |common: &str, ways: &[&str]| ways.iter().map(|way| format!("{common} {way}")).collect::<Vec<_>>();
    let ways =
        ["", "--schedule critical", "--on-nonfinite skip", &format!("--clock sim --machine {machine}")];
    let around = same(1, &of("--workers 4 --collective ring", &ways));
    let pairs = same(1, &of("--workers 4 --collective tree", &["", "--unpacked", "--threads 2"]));
    assert_ne!(around, pairs, "mistrusted: the order of addition shows");
    same(2, &of("--workers 2", &["", "--on-nonfinite skip", "--quadrants 1 --threads 2"]));
}

#[test]
fn two_workers_of_two_quadrants() {
    let flags = "--workers 2 --quadrants 2";
    all_equal(&[flags, flags, &format!("{flags} --threads 2")]);
    let flags = "--workers 2 --quadrants 2 --method sync-sgd";
    all_equal(&[flags, flags, &format!("{flags} --threads 2")]);
}

#[test]
fn bf16_on_any_number_of_threads_and_not_as_f32() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.has_bf16()) {
        if !isa.is_available() {
            println!("skipped: bf16: this CPU has no {isa}");
            continue;
        }
        let [f32, bf16] = ["f32", "bf16"].map(|precision| format!("--isa {isa} --precision {precision}"));
        let hash = all_equal(&[&bf16, &bf16, &format!("{bf16} --threads 3")]);
        assert_ne!(hash, all_equal(&[&f32]), "mistrusted: bf16 gives the bits of f32 on {isa}");
    }
}

#[test]
fn every_instruction_set_tier_on_any_number_of_threads() {
    for isa in Isa::available() {
        let flags = format!("--isa {isa}");
        let hash = all_equal(&[&flags, &format!("{flags} --threads 3")]);
        println!("{isa}: {hash}");
    }
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        println!("left out: this CPU has no {isa}");
    }
}
