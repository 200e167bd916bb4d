//! Schedules of every network in `models`, and on the command line: the same bits, plans in files.

use std::fs;

use quadrille_core::check::check;
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, Phase};
use quadrille_core::plan::priority::{Analysis, Estimates, SubTaskGraph};
use quadrille_core::plan::{Plan, PlanOptions, Schedule, Stage as Part};
use quadrille_cpu::isa::Isa;
use quadrille_cpu::storage_needs;
use serde_json::Value;

use crate::common::{NET, Outcome, Stage, hash_of};
use crate::models::{NETWORKS, build, network};

#[test]
fn every_schedule_makes_valid_plans_of_every_network() {
    for (name, sample, _) in NETWORKS {
        for phase in [Phase::Train, Phase::Test] {
            let net = build(network(name), phase, sample).fused();
            let needs = storage_needs(&net, Isa::detect().into(), &[]).expect("kernels");
            let nets = [net.sharing_memory(&needs)];
            let stages: &[Part] = match phase {
                Phase::Train => &[Part::Iteration, Part::Gradients, Part::Update],
                Phase::Test => &[Part::Forward],
            };
            for (schedule, stage) in Schedule::ALL.iter().flat_map(|s| stages.iter().map(|t| (*s, *t))) {
                let options = PlanOptions { schedule, ..PlanOptions::new(stage) };
                let plan = Plan::build(&nets, options).expect("a plan");
                assert_eq!(check(&plan, &nets), Ok(()), "{schedule} {stage:?} of {name} in {phase}");
            }
        }
    }
}

fn analysed(name: &str) -> (Net, Analysis) {
    let (_, sample, _) = NETWORKS.into_iter().find(|(known, ..)| *known == name).expect("a network");
    let nets = [build(network(name), Phase::Train, sample)];
    let found = Analysis::new(&nets, PlanOptions::new(Part::Iteration), &Estimates::default());
    let [net] = nets;
    (net, found.expect("an analysis"))
}

/// Nine inception modules of four paths; from two of them a branch to a loss of its own leaves.
#[test]
fn googlenet_has_a_block_for_each_inception_module() {
    let (net, found) = analysed("googlenet");
    let paths: Vec<usize> = found.layers.blocks.iter().map(|block| block.paths.len()).collect();
    assert_eq!(paths, [4, 4, 4, 5, 4, 4, 5, 4, 4]);
    let merges = found.layers.blocks.iter().map(|block| &net.layer(block.merge.expect("a merge")).name);
    assert!(merges.into_iter().all(|name| name.ends_with("/output")));
    for block in &found.layers.blocks {
        assert!(block.paths.windows(2).all(|pair| pair[0].time >= pair[1].time), "longest first");
    }
}

/// Sixteen, of which the first of each stage has a projection beside its three convolutions.
#[test]
fn resnet_50_has_a_block_for_each_residual_unit() {
    let (_, found) = analysed("resnet50");
    let paths: Vec<usize> = found.layers.blocks.iter().map(|block| block.paths.len()).collect();
    assert_eq!(paths, [2, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1]);
}

/// The weight of the first layer is asked for at once, that of the last after all of backward and forward.
#[test]
fn dependency_distances_grow_towards_the_loss() {
    for name in ["lenet", "googlenet", "resnet50"] {
        let (net, _) = analysed(name);
        let nets = [net];
        let options = PlanOptions { schedule: Schedule::Layerwise, ..PlanOptions::new(Part::Iteration) };
        let plan = Plan::build(&nets, options).expect("a plan");
        let graph = SubTaskGraph::new(&nets, &plan.nodes);
        let weights = plan.nodes.iter().zip(&graph.distances).rev();
        let weights = weights.filter(|(node, _)| {
            let layer = &nets[0].layer(node.task.layer).layer;
            let multiplies = matches!(layer.type_name(), "Convolution" | "InnerProduct");
            node.task.sub == SubTask::GradWeight && multiplies
        });
        // Backward: from the first layer to the last.
        let found: Vec<usize> = weights.map(|(_, distance)| distance.expect("a use")).collect();
        assert_eq!(found[0], 1, "{name}");
        let last = *graph.steps.iter().max().expect("tasks");
        let longest = *found.iter().max().expect("weights");
        assert!(found.iter().all(|distance| *distance >= 1), "{name}");
        assert!(longest > last / 2, "{name}: {longest} of {last} steps");
    }
}

/// The small network with three branches in place of its convolution.
pub fn branching() -> Stage {
    let stage = Stage::new();
    let (head, rest) = NET.split_once("layer {\n  name: \"pool\"").expect("a layer");
    let (data, _) = head.split_once("layer {\n  name: \"conv\"").expect("a layer");
    let conv = |name: &str, outputs: usize, kernel: usize| {
        format!(
            "layer {{ name: \"{name}\" type: \"Convolution\" bottom: \"data\" top: \"{name}\" convolution_param {{ \
             num_output: {outputs} kernel_size: {kernel} pad: {} weight_filler {{ type: \"xavier\" }} }} }}\n",
            kernel / 2
        )
    };
    let branch = |name: &str| conv(name, 4, 3).replace("bottom: \"data\"", "bottom: \"stem\"");
    let concat = "layer { name: \"conv\" type: \"Concat\" bottom: \"one\" bottom: \"two\" bottom: \"three\" top: \"conv\" }\n";
    let branches = ["one", "two", "three"].map(branch).concat();
    let net = format!("{data}{}{branches}{concat}layer {{\n  name: \"pool\"{rest}", conv("stem", 6, 5));
    stage.write("net.prototxt", net);
    stage
}

/// What is the same in two runs, whenever what ran: every loss, and the weights.
fn course(stage: &Stage, run: &str, flags: &str) -> (Vec<String>, String) {
    let summary = stage.train(run, flags);
    let losses =
        stage.metrics(run).iter().filter_map(|line| line.get("loss").map(Value::to_string)).collect();
    (losses, hash_of(&summary))
}

#[test]
fn loss_curves_of_all_schedules_are_the_same() {
    let stage = branching();
    for (index, way) in
        ["", "--quadrants 2 --threads 2", "--workers 2", "--no-fusion --threads 3"].iter().enumerate()
    {
        let mut first = None;
        for schedule in ["layerwise", "concurrent", "critical"] {
            let run = format!("{schedule}{index}");
            let found = course(&stage, &run, &format!("--schedule {schedule} {way}"));
            assert!(found.0.len() >= 20, "{found:?}");
            assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{schedule} {way}");
        }
    }
}

const PLAN: &str = "plan --model net.prototxt --data-shape 1,12,12";

fn refused(stage: &Stage, flags: &str, expected: &str) {
    let Outcome { code, stderr, .. } =
        stage.run(&format!("train --solver solver.prototxt --run refused --plan plan.prototxt {flags}"));
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains(expected), "{stderr} without {expected}");
}

#[test]
fn plans_are_written_read_and_refused_where_they_do_not_fit() {
    let stage = branching();
    for (index, (made, trained)) in
        [("", ""), ("--workers 2", "--workers 2"), ("--schedule concurrent", "")].into_iter().enumerate()
    {
        stage.succeed(&format!("{PLAN} {made} --out plan.prototxt"));
        let expected = course(&stage, &format!("without{index}"), trained);
        let run = format!("with{index}");
        assert_eq!(course(&stage, &run, &format!("--plan plan.prototxt {trained}")), expected, "{made}");
    }
    stage.succeed(&format!("{PLAN} --out plan.prototxt"));
    refused(&stage, "--batch 10", "images: 20; the quadrants compute 10 images");
    refused(&stage, "--workers 2", "no task of update; it has iteration");
    refused(&stage, "--no-fusion", "plan.prototxt:");
    let good = fs::read_to_string(stage.path("plan.prototxt")).expect("a plan");
    let line_of = |what: &str| 1 + good.lines().position(|line| line.contains(what)).expect("a line");
    let first = line_of("layer: \"stem");
    let edits = [
        ("version: 1", "version: 7", "plan.prototxt:2: plan: version: 7".to_owned()),
        (
            "layer: \"stem",
            "layer: \"steam",
            format!("plan.prototxt:{first}: task: layer: the network has no layer"),
        ),
        (
            "network: \"Small\"",
            "network: \"Large\"",
            "plan: network: \"Large\"; the network is \"Small\"".to_owned(),
        ),
        ("lane: 0 }", "lane: 42 }", "lane: 42; there are".to_owned()),
    ];
    for (from, to, expected) in edits {
        stage.edit("plan.prototxt", from, to);
        refused(&stage, "", &expected);
        stage.write("plan.prototxt", &good);
    }
    // Without its waits a task races with what it reads.
    let racing: Vec<String> =
        good.lines().map(|line| line.split(" after:").next().unwrap_or(line).to_owned()).collect();
    let close =
        |line: String| if line.starts_with("task") && !line.ends_with('}') { line + " }" } else { line };
    stage.write("plan.prototxt", racing.into_iter().map(close).collect::<Vec<_>>().join("\n"));
    refused(&stage, "", "race for");
    let conflict = stage.run("train --solver solver.prototxt --plan plan.prototxt --schedule critical");
    assert_eq!(conflict.code, Some(2), "{}", conflict.stderr);
    assert_eq!(stage.run("train --solver solver.prototxt --plan none.prototxt").code, Some(66));
}

#[test]
fn a_plan_is_explained() {
    let stage = branching();
    let said = stage.succeed(PLAN).stdout;
    for expected in [
        "schedule    critical; lanes: 6",
        "lane 0      priority 0",
        "activation 2",
        "with activations, since the next step asks for it",
        "blocks      1, 1 of them with several layer paths, at most 3 side by side",
        "critical    ",
        "expected    from ",
        "(sim)",
    ] {
        assert!(said.contains(expected), "{said} without {expected}");
    }
    let measured = stage.succeed(&format!("{PLAN} --explain --measure --out plan.prototxt")).stdout;
    assert!(measured.contains("by an iteration here") && measured.contains("written to"), "{measured}");
    let said = stage.succeed(&format!("{PLAN} --schedule layerwise")).stdout;
    assert!(said.contains("layerwise; lanes: 1, priorities: 1"), "{said}");
}

/// On a machine that is described a GPU's pool of streams is decided by simulated kernels.
#[test]
fn a_pool_of_streams_is_planned_for_a_gpu_that_is_described() {
    let stage = branching();
    let machine = |name: &str| format!("{}/bench/machines/{name}.prototxt", env!("CARGO_MANIFEST_DIR"));
    let said = |name: &str, flags: &str| stage.run(&format!("{PLAN} --machine {} {flags}", machine(name)));
    let auto = said("p100", "--stream-pool auto --explain");
    assert!(auto.stdout.contains("stream pool auto: "), "{}{}", auto.stdout, auto.stderr);
    assert!(auto.stdout.contains(" sub-tasks seen for the first time in "), "{}", auto.stdout);
    let two = said("p100", "--stream-pool 2 --out plan.prototxt --explain");
    assert!(two.stdout.contains("chunks of images, of a pool"), "{}{}", two.stdout, two.stderr);
    let written = fs::read_to_string(stage.path("plan.prototxt")).expect("a plan");
    assert!(written.contains(" image: 0 images: "), "{written}");
    refused_by_quadrants(&stage);
    let off = said("p100", "--stream-pool off");
    assert!(off.code == Some(0) && !off.stdout.contains("stream pool auto"), "{}", off.stdout);
    let crew = said("knl-quadrant", "--stream-pool auto");
    assert_eq!(crew.code, Some(2), "{}", crew.stderr);
    assert!(crew.stderr.contains("idle threads of its crew"), "{}", crew.stderr);
}

/// Milliseconds that a plan is expected to take on simulated devices.
fn expected(said: &str) -> f64 {
    let line = said.lines().find(|line| line.starts_with("expected ")).expect("what is expected");
    let ms = line.split(';').find_map(|part| part.trim().strip_suffix(" ms on simulated devices (sim)"));
    ms.expect("a simulation").parse().expect("a number")
}

/// `auto` compares whole plans, that with whole layers among them. LeNet's layers are one chain, which gains.
#[test]
fn auto_is_nowhere_expected_to_be_slower_than_whole_layers() {
    let stage = Stage::new();
    for (network, ..) in NETWORKS {
        for name in ["p100", "h100", "k40c"] {
            let machine = format!("{}/bench/machines/{name}.prototxt", env!("CARGO_MANIFEST_DIR"));
            let of = |pool: &str| {
                let plan =
                    format!("plan --model {network} --machine {machine} --stream-pool {pool} --explain");
                stage.succeed(&plan).stdout
            };
            let (off, auto) = (of("off"), of("auto"));
            assert!(expected(&auto) <= expected(&off), "{network} on {name}: {auto}");
            assert!(auto.contains(" plans compared (sim)"), "{auto}");
            if (network, name) == ("lenet", "k40c") {
                assert!(expected(&auto) < 0.9 * expected(&off), "{auto}");
                let alike = expected(&of("2"));
                assert!(expected(&auto) <= alike, "{alike}: {auto}");
            }
        }
    }
}

/// The nets of a GPU that is described are those that GPUs compute: there every backward of a ReLU is a task of its own, and
/// quadrants have no part in it.
#[test]
fn a_gpu_that_is_described_has_the_tasks_of_a_gpu() {
    let stage = Stage::new();
    let machine = |name: &str| format!("{}/bench/machines/{name}.prototxt", env!("CARGO_MANIFEST_DIR"));
    for flag in ["--measure", "--quadrants 2", "--kernel conv1_1=reference", "--isa portable"] {
        let refused =
            stage.run(&format!("plan --model vgg16 --batch 2 --machine {} {flag}", machine("p100")));
        assert_eq!(refused.code, Some(2), "{flag}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains("which describes a GPU"), "{flag}: {}", refused.stderr);
    }
    if Isa::detect() == Isa::Portable {
        return println!("skipped: the tasks of a quadrant: without vectors it has those of a GPU");
    }
    for (name, own) in [("p100", true), ("knl-quadrant", false)] {
        let machine = machine(name);
        stage.succeed(&format!("plan --model vgg16 --batch 2 --machine {machine} --out plan.prototxt"));
        let plan = fs::read_to_string(stage.path("plan.prototxt")).expect("a plan");
        assert_eq!(plan.contains(r#"layer: "relu1_2" sub: "grad-activation""#), own, "{name}");
    }
}

fn refused_by_quadrants(stage: &Stage) {
    let refused = stage.run("train --solver solver.prototxt --run refused --workers 1 --plan plan.prototxt");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("chunks of images are for a GPU's pool"), "{}", refused.stderr);
}
