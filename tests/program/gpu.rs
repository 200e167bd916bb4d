//! `--device`: trainings on a GPU where there is one, what is said without one, and which flags go with one.

use crate::common::{Stage, hash_of};

/// Whether the program sees a GPU and can compile kernels for it; says aloud if not.
fn has_gpu(stage: &Stage, test: &str) -> bool {
    let outcome = stage.run("time --model net.prototxt --data-shape 1,12,12 --iterations 1 --device cuda:0");
    if outcome.code == Some(71) {
        println!("skipped: {test}: {}", outcome.stderr.trim_end());
    }
    outcome.code != Some(71)
}

#[test]
fn without_a_gpu_one_line_says_so_and_the_code_is_that_of_the_environment() {
    let stage = Stage::new();
    for arguments in [
        "train --solver solver.prototxt --device cuda:4321",
        "time --model net.prototxt --data-shape 1,12,12 --device cuda:4321",
    ] {
        let outcome = stage.run(arguments);
        assert_eq!(outcome.code, Some(71), "{arguments}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("cuda:4321"), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.trim_end().lines().count(), 1, "{}", outcome.stderr);
    }
    let said = stage.succeed("device_query").stdout;
    assert_eq!(said.lines().filter(|line| line.starts_with("gpu ")).count(), 1, "{said}");
}

#[test]
fn flags_of_quadrants_have_no_meaning_on_a_gpu() {
    let stage = Stage::new();
    for (flags, says) in [
        ("--device gpu", "cuda:0"),
        ("--device cuda:x", "cuda:0"),
        ("--device cuda:0 --quadrants 2", "--quadrants"),
        ("--device cuda:0 --kernel conv=reference", "--kernel"),
        ("--device cuda:0 --isa portable", "--isa"),
        ("--device cuda:0 --precision bf16", "--precision"),
        ("--tf32", "--tf32"),
    ] {
        let outcome = stage.run(&format!("train --solver solver.prototxt {flags}"));
        assert_eq!(outcome.code, Some(2), "{flags}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{flags}: {}", outcome.stderr);
    }
}

#[test]
fn a_gpu_trains_as_the_cpu_does() {
    let stage = Stage::new();
    if !has_gpu(&stage, "a GPU trains as the CPU does") {
        return;
    }
    for (name, flags) in [
        ("alone", "--workers 1"),
        ("together", "--workers 2 --method sync-easgd3"),
        ("summed", "--workers 2 --method sync-sgd"),
    ] {
        let losses = |run: &str, more: &str| -> Vec<f64> {
            stage.train(run, &format!("{flags} --seed 5 --max-iter 20 {more}"));
            let lines = stage.metrics(run);
            lines.iter().filter_map(|line| line["loss"].as_f64()).collect()
        };
        let cpu = losses(&format!("{name}-cpu"), "");
        let gpu = losses(&format!("{name}-gpu"), "--device cuda:0");
        assert!(cpu.len() >= 20 && cpu.len() == gpu.len(), "{name}: {cpu:?} {gpu:?}");
        for (at, (cpu, gpu)) in cpu.iter().zip(&gpu).enumerate() {
            // Roundings of sums grow with the iterations, but stay far below what a wrong gradient would do.
            assert!((cpu - gpu).abs() <= 1e-3 * (1.0 + cpu.abs()), "{name}, line {at}: {gpu} is not {cpu}");
        }
    }
    let again = |run: &str| hash_of(&stage.train(run, "--workers 1 --seed 5 --max-iter 20 --device cuda:0"));
    assert_eq!(again("first"), again("second"), "the same bits in every run");
    let weights = "first/snapshots/iteration_20";
    let tested = stage.succeed(&format!("test --model net.prototxt --weights {weights} --device cuda:0"));
    assert!(tested.stdout.contains("accuracy = "), "{}", tested.stdout);
}
