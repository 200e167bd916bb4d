//! Sums over quadrants that end in the update give the bits of those that are complete on every quadrant before it.

use quadrille_core::check::check;
use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, NetSpec};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::{Rule, RuleKind};
use quadrille_core::task::{Buffer, DeviceId, Place, TaskId, Tile};
use quadrille_cpu::{CpuDevice, CpuWorker, EngineError, EngineOptions, NAN_HALVES, Program};

use crate::common::{crews, fractions, labels, nets, options, small_lenet, small_residual, tiers};
use crate::running_sums::normalized;

const BATCH: usize = 22;
const STEPS: u64 = 3;

#[derive(Clone, Copy, Debug)]
struct How {
    quadrants: usize,
    threads: usize,
    /// Mini-batches of an iteration.
    parts: usize,
    chunk_layers: usize,
}

impl How {
    fn nets(self, make: fn(usize) -> NetSpec) -> Vec<Net> {
        let nets = nets(make, BATCH, self.quadrants).into_iter();
        nets.map(|net| net.fused().gathering(self.parts)).collect()
    }

    fn plan(self, nets: &[Net], stage: Stage, elastic: bool) -> Plan {
        Plan::build(nets, PlanOptions { elastic, chunk_layers: self.chunk_layers, ..PlanOptions::new(stage) })
            .expect("a plan")
    }
}

fn load(devices: &[CpuDevice], nets: &[Net], seed: u64) {
    for ((device, net), tile) in devices.iter().zip(nets).zip(Tile::cut(BATCH, nets.len())) {
        let put = |name: &str, all: &dyn Fn(usize) -> Vec<f32>| {
            let blob = net.blobs.iter().find(|b| b.name == name).expect("a blob");
            let each = blob.shape.per_image();
            let part = tile.first * each..(tile.first + tile.images) * each;
            device.write(Region::Stage(blob.data), &all(BATCH * each)[part]).expect("a stage");
        };
        put("data", &|count| fractions(100 + seed, count));
        put("label", &|count| labels(200 + seed, count, 10));
    }
}

/// Weights and histories of every quadrant after some iterations, as bits: with the updates in the plan that finds the
/// gradients, or in one of their own.
fn train(make: fn(usize) -> NetSpec, how: How, apart: bool, options: &EngineOptions) -> Vec<Vec<u32>> {
    let nets = how.nets(make);
    let stages: &[Stage] = if apart { &[Stage::Gradients, Stage::Update] } else { &[Stage::Iteration] };
    let part = how.plan(&nets, Stage::Part, false);
    let last: Vec<Plan> = stages.iter().map(|stage| how.plan(&nets, *stage, options.elastic)).collect();
    let copies = last.iter().flat_map(|p| &p.nodes).filter(|n| n.task.sub == SubTask::Broadcast).count();
    assert_eq!(copies > 0, apart, "{how:?}");
    let plans: Vec<&Plan> = last.iter().chain((how.parts > 1).then_some(&part)).collect();
    let program = Program { nets: &nets, plans: &plans };
    let worker = CpuWorker::new(&crews(how.quadrants, how.threads), &[program], options).expect("a worker");
    let devices = worker.devices(0);
    let len = nets[0].params.len();
    let mut weights = vec![0.0; len];
    nets[0].params.fill(7, &mut weights);
    for device in &devices {
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
        if options.elastic {
            device.write(Region::Packed(Packed::Centre), &fractions(9, len)).expect("a centre");
        }
    }
    let mut times = StepTimes::default();
    for iteration in 0..STEPS {
        let scalars = Scalars { iteration, rate: 0.05, elastic: 0.125, ..Scalars::default() };
        for mini_batch in 1..=how.parts {
            load(&devices, &nets, 10 * iteration + mini_batch as u64);
            devices.iter().for_each(|device| device.fill_transient(NAN_HALVES).expect("memory"));
            let plans = if mini_batch < how.parts { std::slice::from_ref(&part) } else { &last };
            for plan in plans {
                run_step(&devices, plan, &scalars, &mut times).expect("a step");
            }
        }
    }
    let bits = |device: &CpuDevice| {
        let lengths = [(Packed::Weights, len), (Packed::Histories, options.rule.kind.histories() * len)];
        let read = lengths.into_iter().flat_map(|(packed, len)| {
            let mut values = vec![0.0; len];
            device.read(Region::Packed(packed), &mut values).expect("a packed buffer");
            values
        });
        read.map(f32::to_bits).collect()
    };
    devices.iter().map(bits).collect()
}

#[test]
fn updates_that_add_up_give_the_bits_of_sums_that_came_back() {
    let adam = RuleKind::Adam { momentum: 0.9, momentum2: 0.999, delta: 1e-8 };
    let rules = [(Rule::sgd(0.9, 5e-4), false), (Rule { kind: adam, ..Rule::default() }, true)];
    for isa in tiers("sums in updates") {
        for make in [small_lenet, normalized, small_residual] {
            for (quadrants, threads, parts, chunk_layers) in
                [(2, 1, 1, 1), (2, 3, 2, 2), (3, 2, 1, 99), (4, 1, 1, 1), (4, 2, 3, 2), (5, 1, 1, 2)]
            {
                let how = How { quadrants, threads, parts, chunk_layers };
                for (rule, elastic) in rules {
                    let options = EngineOptions { rule, elastic, ..options(isa) };
                    let apart = train(make, how, true, &options);
                    let finite = apart[0].iter().all(|bits| f32::from_bits(*bits).is_finite());
                    assert!(finite, "mistrusted: {how:?}, {isa}");
                    let found = train(make, how, false, &options);
                    assert!(found == apart, "{how:?}, {rule:?}, {isa}");
                    assert!(found.iter().all(|bits| *bits == found[0]), "quadrants differ: {how:?}, {isa}");
                }
            }
        }
    }
}

/// A task says nothing of its plan, so the plans of a program must have the gradients of an update in the same places.
#[test]
fn plans_that_find_gradients_in_different_places_are_refused() {
    let how = |quadrants| How { quadrants, threads: 1, parts: 1, chunk_layers: 1 };
    for (quadrants, refused) in [(1, false), (2, true), (4, true)] {
        let nets = how(quadrants).nets(small_lenet);
        let [whole, update] =
            [Stage::Iteration, Stage::Update].map(|stage| how(quadrants).plan(&nets, stage, false));
        let program = Program { nets: &nets, plans: &[&whole, &update] };
        let isa = tiers("plans of one program")[0];
        match CpuWorker::new(&crews(quadrants, 1), &[program], &options(isa)).map(|_| ()) {
            Err(EngineError::Plan(reason)) => assert!(refused && reason.contains("gradients"), "{reason}"),
            other => assert!(!refused && other.is_ok(), "{quadrants} quadrants: {other:?}"),
        }
    }
}

/// The validator is content with a plan whose updates add up all there is; the engine's add two terms.
#[test]
fn updates_by_more_than_two_terms_are_refused() {
    let how = How { quadrants: 3, threads: 1, parts: 1, chunk_layers: 1 };
    let nets = how.nets(small_lenet);
    let mut plan = how.plan(&nets, Stage::Iteration, false);
    plan.nodes.retain(|node| node.task.sub != SubTask::Accumulate);
    for (id, node) in plan.nodes.iter_mut().enumerate() {
        // One after the other, so that nothing races.
        node.waits = id.checked_sub(1).map(TaskId).into_iter().collect();
        let first =
            |place: &&Place| matches!(place.buffer, Buffer::Gradient(_)) && place.device == DeviceId(0);
        let more: Vec<Place> = node.reads.iter().filter(first).copied().collect();
        if node.task.sub == SubTask::Update {
            node.reads.retain(|place| !matches!(place.buffer, Buffer::Gradient(_)));
            for device in (0..3).map(DeviceId) {
                node.reads.extend(more.iter().map(|place| Place { device, ..*place }));
            }
        }
    }
    assert_eq!(check(&plan, &nets), Ok(()));
    let isa = tiers("plans of many terms")[0];
    let program = Program { nets: &nets, plans: &[&plan] };
    match CpuWorker::new(&crews(3, 1), &[program], &options(isa)).map(|_| ()) {
        Err(EngineError::Plan(reason)) => assert!(reason.contains("more than two"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
