//! `--device`: trainings on a GPU where there is one, what is said without one, and which flags go with one.

use crate::common::{Stage, hash_of};

/// Whether the program sees a GPU and can compile kernels for it; says aloud if not.
fn has_gpu(stage: &Stage, test: &str) -> bool {
    has(stage, test, "cuda:0")
}

fn has(stage: &Stage, test: &str, device: &str) -> bool {
    let time = "time --model net.prototxt --data-shape 1,12,12 --iterations 1";
    let outcome = stage.run(&format!("{time} --device {device}"));
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
        ("--device cuda:0 --precision bf16 --tf32", "--tf32"),
        ("--tf32", "--tf32"),
        ("--cuda-graph on", "--cuda-graph"),
        ("--stream-pool auto", "idle threads of its crew"),
        ("--stream-pool 2 --device cpu", "--stream-pool 2 has no meaning"),
        ("--device cuda:0 --stream-pool 1", "off, auto, or a number"),
        ("--device cuda:0 --stream-pool auto --plan plan.prototxt", "has its chunks already"),
        ("--device cuda:0,cpu --method sync-sgd --workers 2", "drift apart"),
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

/// What a training says in its first lines, and the hash of its weights.
fn trained(stage: &Stage, run: &str, flags: &str) -> (String, String) {
    let train = "train --solver solver.prototxt --seed 5 --max-iter 20";
    let said = stage.succeed(&format!("{train} --run {run} {flags}")).stdout;
    (said, hash_of(&stage.summary(run)))
}

#[test]
fn steps_as_graphs_and_task_by_task_have_the_same_bits() {
    let stage = Stage::new();
    if !has_gpu(&stage, "steps as graphs and task by task") {
        return;
    }
    for (name, flags) in [("alone", "--workers 1"), ("together", "--workers 2 --method async-measgd")] {
        let of = |graph: &str| {
            let flags = format!("{flags} --device cuda:0 --cuda-graph {graph}");
            trained(&stage, &format!("{name}-{graph}"), &flags)
        };
        let ((on, with), (off, without)) = (of("on"), of("off"));
        assert!(on.contains("a step is one CUDA graph"), "{on}");
        assert!(off.contains("without CUDA graphs"), "{off}");
        // Workers that are served as they come are not the same in every run.
        assert!(with == without || name == "together");
    }
    let traced = "--workers 1 --device cuda:0 --trace timeline.json";
    assert!(trained(&stage, "traced", traced).0.contains("without CUDA graphs"));
    let time = "time --model net.prototxt --data-shape 1,12,12 --iterations 2 --device cuda:0";
    assert!(stage.succeed(time).stdout.lines().any(|line| line.starts_with("cuda graph  ")));
}

/// The line about the pool of streams, and those behind it.
fn said_of_pool(said: &str) -> String {
    let lines: Vec<&str> =
        said.lines().skip_while(|line| !line.starts_with("stream pool ")).take(3).collect();
    lines.join("\n")
}

#[test]
fn chunks_on_a_pool_of_streams_have_the_bits_of_whole_layers() {
    let stage = Stage::new();
    if !has_gpu(&stage, "chunks on a pool of streams") {
        return;
    }
    for (name, flags) in [("alone", "--workers 1"), ("together", "--workers 2 --method sync-easgd3")] {
        let of = |run: &str, more: &str| {
            trained(&stage, &format!("{name}-{run}"), &format!("{flags} --device cuda:0 {more}"))
        };
        let (said, whole) = of("whole", "");
        assert!(said_of_pool(&said).starts_with("stream pool off"), "{said}");
        for (run, more) in [
            ("three", "--stream-pool 3"),
            ("task-by-task", "--stream-pool 3 --cuda-graph off"),
            ("layerwise", "--stream-pool 3 --schedule layerwise"),
            ("concurrent", "--stream-pool 7 --schedule concurrent"),
        ] {
            let (said, chunks) = of(run, more);
            let pool = said_of_pool(&said);
            assert!(pool.contains("forward of 4 of 4 layers and grad-activation of 3 of 3 layers"), "{said}");
            assert!(pool.contains("on as many streams"), "{said}");
            assert_eq!(chunks, whole, "{name} {run}");
        }
        let (said, auto) = of("auto", "--stream-pool auto");
        // The test has mini-batches of other shapes; the second worker finds all that it asks for.
        assert!(said_of_pool(&said).contains(" 11 sub-tasks seen for the first time in "), "{said}");
        assert!(said_of_pool(&said).contains(" plans compared (sim)"), "{said}");
        assert_eq!(auto, whole, "{name} auto");
    }
}

#[test]
fn lenet_has_the_same_bits_on_a_pool_of_streams() {
    let stage = Stage::new();
    if !has_gpu(&stage, "LeNet on a pool of streams") {
        return;
    }
    // Without tests, which take minutes on the emulator.
    let solver = "net: \"net.prototxt\" base_lr: 0.01 lr_policy: \"fixed\" momentum: 0.9 max_iter: 3";
    stage.write("untested.prototxt", solver);
    let of = |run: &str, flags: &str| {
        let train = "train --solver untested.prototxt --model lenet --workers 1 --seed 5 --batch 8";
        let train = format!("{train} --dummy-data --device cuda:0 --run {run} {flags}");
        let said = stage.succeed(&train).stdout;
        (said, hash_of(&stage.summary(run)))
    };
    let (_, whole) = of("whole", "");
    let (said, chunks) = of("chunks", "--stream-pool 4");
    assert!(said_of_pool(&said).contains("in 4 chunks of images, on as many streams"), "{said}");
    assert_eq!(chunks, whole);
    assert_eq!(of("by-task", "--stream-pool 4 --cuda-graph off").1, whole);
    assert_eq!(of("auto", "--stream-pool auto").1, whole);
}

#[test]
fn a_plan_in_chunks_is_written_and_trained_by() {
    let stage = Stage::new();
    if !has_gpu(&stage, "a plan in chunks") {
        return;
    }
    let plan = "plan --model net.prototxt --data-shape 1,12,12 --device cuda:0 --stream-pool 3";
    let said = stage.succeed(&format!("{plan} --explain --out plan.prototxt")).stdout;
    for expected in
        ["chunks of images, of a pool", "stream pool 3: forward of 4", "3 streams for forward of conv"]
    {
        assert!(said.contains(expected), "{said} without {expected}");
    }
    let (_, whole) = trained(&stage, "whole", "--workers 1 --device cuda:0");
    let (said, planned) = trained(&stage, "planned", "--workers 1 --device cuda:0 --plan plan.prototxt");
    assert!(said_of_pool(&said).contains("forward of 4 of 4 layers"), "{said}");
    assert_eq!(planned, whole);
    let refused = stage.run("train --solver solver.prototxt --workers 1 --plan plan.prototxt");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("chunks of images"), "{}", refused.stderr);
    let other = stage
        .run("train --solver solver.prototxt --workers 1 --batch 10 --device cuda:0 --plan plan.prototxt");
    assert_eq!(other.code, Some(64), "{}", other.stderr);
    let time =
        "time --model net.prototxt --data-shape 1,12,12 --iterations 2 --device cuda:0 --stream-pool 2";
    let said = stage.succeed(&format!("{time} --trace timeline.json")).stdout;
    assert!(said.contains("stream pool 2: forward of 4 of 4 layers"), "{said}");
    let timeline = std::fs::read_to_string(stage.path("timeline.json")).expect("a timeline");
    assert!(timeline.contains("conv/forward of images 10 to 19"), "{timeline}");
}

#[test]
fn plans_say_how_many_streams_a_layer_is_worth() {
    let stage = Stage::new();
    if !has_gpu(&stage, "plans on a GPU") {
        return;
    }
    for batch in [1, 50] {
        let plan = format!("plan --model net.prototxt --data-shape 1,12,12 --batch {batch} --device cuda:0");
        let said = stage.succeed(&plan).stdout;
        let has = |word: &str| said.lines().any(|line| line.starts_with(word));
        assert!(has("limits ") && has("stream pool off"), "{said}");
    }
}

#[test]
fn workers_on_gpus_of_their_own() {
    let stage = Stage::new();
    if !has(&stage, "workers on GPUs of their own", "cuda:1") {
        return;
    }
    for method in ["sync-easgd3", "sync-sgd"] {
        let of = |run: &str, device: &str| {
            let flags = format!("--workers 2 --method {method} --device {device}");
            trained(&stage, &format!("{method}-{run}"), &flags)
        };
        let ((_, one), (said, two)) = (of("one", "cuda:0"), of("two", "cuda:0,cuda:1"));
        assert_eq!(one, two, "{method}");
        assert!(said.contains("worker 0 on cuda:0 (") && said.contains("worker 1 on cuda:1 ("), "{said}");
        assert_eq!(of("all", "cuda:all").1, one, "{method}");
    }
}

#[test]
fn gpus_and_quadrants_train_together() {
    let stage = Stage::new();
    if !has_gpu(&stage, "GPUs and quadrants train together") {
        return;
    }
    for (run, method) in [("sync", "sync-easgd3"), ("async", "async-easgd"), ("hogwild", "hogwild-easgd")] {
        let flags = format!("--workers 2 --method {method} --device cuda:0,cpu");
        let (said, _) = trained(&stage, run, &flags);
        assert!(said.contains("worker 0 on cuda:0 (") && said.contains("worker 1 on the CPU"), "{said}");
        let losses: Vec<f64> = stage.metrics(run).iter().filter_map(|line| line["loss"].as_f64()).collect();
        let [first, last] = [losses[0], losses[losses.len() - 1]];
        assert!(last.is_finite() && last < first, "{method}: {losses:?}");
    }
}
