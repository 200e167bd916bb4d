//! GLP4NN on a GPU: what the resource tracker sees, and chunks of images on pools of streams.

use std::time::Duration;

use quadrille_core::layer::SubTask;
use quadrille_core::net::Net;
use quadrille_core::plan::lanes::{KernelUsage, analyze, first_sight, spread};
use quadrille_core::plan::{Plan, PlanOptions, Schedule, Stage};
use quadrille_core::solver::Rule;
use quadrille_core::task::{Task, Tile};
use quadrille_gpu::{Libraries, Options, Program};

use crate::common::{gpu, own, plan};
use crate::iterations::{BATCH, branching, build, residual, rewritten, trained_by};

/// The figures of kernels of a chunk of one image and of all, which the driver and events give.
#[test]
fn first_sight_tells_what_kernels_use() {
    let Some(gpu) = gpu("first sight of kernels") else { return };
    let net = rewritten(build(&branching()));
    let whole = plan(std::slice::from_ref(&net), Stage::Iteration);
    let first = first_sight(&whole, std::slice::from_ref(&net), BATCH as u32);
    let options = own(Rule::sgd(0.9, 5e-4));
    let program = Program { net: &net, plans: &[&whole, &first] };
    let worker = gpu.worker(&[program], &options).expect("a worker");
    let limits = gpu.limits().expect("figures of the driver");
    assert!(limits.units > 0 && limits.threads >= 1024 && limits.shared >= 48 << 10, "{limits:?}");
    assert!(limits.kernels >= 16 && limits.registers >= 1 << 15, "{limits:?}");
    let task = |name: &str, sub, images| {
        let node = whole.nodes.iter().find(|n| n.task.sub == sub && net.layer(n.task.layer).name == name);
        Task { tile: Tile { first: 0, images }, ..node.expect("it is in the plan").task }
    };
    let seen = |name, sub, images| -> Vec<KernelUsage> {
        let seen = worker.first_sight(&[task(name, sub, images)]).expect("a sighting");
        assert!(seen[0].by_libraries == 0 && !seen[0].kernels.is_empty(), "{seen:?}");
        seen[0].kernels.clone()
    };
    for (name, sub) in [("conv", SubTask::Forward), ("norm", SubTask::GradActivation)] {
        let (one, all) = (seen(name, sub, 1), seen(name, sub, BATCH));
        for (one, all) in one.iter().zip(&all) {
            assert_eq!((&one.name, one.threads, one.shared), (&all.name, all.threads, all.shared));
            assert!(one.blocks < all.blocks && one.registers > 0 && one.nanoseconds >= 1.0, "{one:?}");
        }
        let found = analyze(&one, &limits, Duration::from_secs(10)).expect("an analysis");
        assert!((1..=limits.kernels).contains(&found.lanes), "{found:?}");
    }
    seen("conv", SubTask::GradWeight, BATCH);
    let unknown = Task { tile: Tile { first: 0, images: 3 }, ..task("conv", SubTask::Forward, 1) };
    assert!(worker.first_sight(&[unknown]).is_err());
}

/// A net's plans of an iteration and of a forward pass by a schedule, with tasks in as many chunks as `worth` says.
fn plans(net: &Net, schedule: Schedule, worth: impl Fn(usize) -> u32) -> [Plan; 2] {
    [Stage::Iteration, Stage::Forward].map(|stage| {
        let options = PlanOptions { schedule, ..PlanOptions::new(stage) };
        let nets = std::slice::from_ref(net);
        spread(Plan::build(nets, options).expect("a plan"), nets, |node| worth(node.task.layer.0))
    })
}

#[test]
fn chunks_on_streams_have_the_bits_of_whole_layers() {
    let Some(gpu) = gpu("chunks on streams") else { return };
    for spec in [branching(), residual()] {
        for net in [build(&spec), rewritten(build(&spec))] {
            let options = own(Rule::sgd(0.9, 5e-4));
            let whole = trained_by(gpu, &net, &plans(&net, Schedule::Critical, |_| 1), &options, true);
            for schedule in Schedule::ALL {
                // Layers cut alike, and each otherwise.
                for worth in [|_| 3, |layer: usize| 1 + (layer % 4) as u32] as [fn(usize) -> u32; 2] {
                    let plans = plans(&net, schedule, worth);
                    assert!(plans[0].nodes.iter().any(|node| node.task.tile.images < BATCH), "{schedule}");
                    for graph in [false, true] {
                        let options = Options { graph, ..options.clone() };
                        let found = trained_by(gpu, &net, &plans, &options, true);
                        assert!(found == whole, "{} by {schedule}, graph {graph}", spec.name);
                    }
                }
            }
        }
    }
}

/// With libraries, where there are any: chunks are right, and the same in every run.
#[test]
fn chunks_by_libraries_have_the_same_bits_in_every_run() {
    let Some(gpu) = gpu("chunks by libraries") else { return };
    let net = rewritten(build(&branching()));
    let options = Options { libraries: Libraries::ALL, ..own(Rule::sgd(0.9, 5e-4)) };
    let plans = plans(&net, Schedule::Critical, |_| 2);
    let first = trained_by(gpu, &net, &plans, &options, true);
    assert!(trained_by(gpu, &net, &plans, &options, true) == first);
}
