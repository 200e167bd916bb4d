//! The schedule decides when a task runs, and never what comes out.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::net::Net;
use quadrille_core::plan::priority::LaneLimits;
use quadrille_core::plan::{Plan, PlanOptions, Schedule, Stage};
use quadrille_core::run::{StepTimes, StepsAhead, run_step};
use quadrille_core::solver::Rule;
use quadrille_cpu::{CpuWorker, EngineError, EngineOptions, NAN_HALVES, Program};

use crate::common::{crews, fractions, labels, nets, options, plan, tiers, worker};
use crate::lifetime::sharing;
use crate::whole_nets::branching;

const BATCH: usize = 9;
const STEPS: u64 = 4;
const PER_IMAGE: usize = 3 * 12 * 12;

/// Several branches between fork and merge, with values and gradients in shared memory.
fn branches(quadrants: usize, options: &EngineOptions) -> Vec<Net> {
    let nets = nets(|batch| branching(batch, [16, 24, 32]), BATCH, quadrants);
    nets.into_iter().map(|net| sharing(net.fused(), options)).collect()
}

/// The losses of all steps and the weights behind them: of steps one by one, with NaN in all that does not outlive a step before
/// each, or of steps that overlap.
fn train(nets: &[Net], plan: &Plan, threads: usize, options: &EngineOptions, overlap: bool) -> Vec<u32> {
    let worker = worker(nets, plan, threads, options).expect("a worker");
    let devices = worker.devices(0);
    let mut weights = vec![0.0; nets[0].params.len()];
    nets[0].params.fill(7, &mut weights);
    let mut found = Vec::new();
    let mut ahead = overlap.then(|| StepsAhead::new(plan.overlap(nets)));
    for device in &devices {
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
    }
    for step in 0..STEPS {
        let (images, classes) = (fractions(step, BATCH * PER_IMAGE), labels(step, BATCH, 5));
        let mut first = 0;
        for (device, net) in devices.iter().zip(nets) {
            if !overlap || step == 0 {
                device.fill_transient(NAN_HALVES).expect("memory");
            }
            let end = first + net.batch();
            let stage = |name: &str| {
                Region::Stage(net.blobs.iter().find(|blob| blob.name == name).expect("a blob").data)
            };
            device.write(stage("data"), &images[first * PER_IMAGE..end * PER_IMAGE]).expect("a stage");
            device.write(stage("label"), &classes[first..end]).expect("a stage");
            first = end;
        }
        // A step that took the scalars of another would show.
        let rate = 0.01 / (1 + step) as f32;
        let scalars = Scalars { iteration: step, rate, seed: step, ..Scalars::default() };
        match &mut ahead {
            Some(steps) => steps.run(&devices, plan, &scalars, || {}).expect("a step"),
            None => run_step(&devices, plan, &scalars, &mut StepTimes::default()).expect("a step"),
        }
        for (device, net) in devices.iter().zip(nets) {
            let (blob, _) = net.losses().next().expect("a loss");
            let mut loss = [0.0];
            device.read(Region::Storage(net.blob(blob).data), &mut loss).expect("a loss");
            assert!(loss[0].is_finite());
            found.push(loss[0].to_bits());
        }
    }
    for device in &devices {
        device.read(Region::Packed(Packed::Weights), &mut weights).expect("weights");
        found.extend(weights.iter().map(|weight| weight.to_bits()));
    }
    found
}

#[test]
fn all_schedules_give_the_same_losses_and_weights() {
    let quadrant = LaneLimits::default();
    let every_path = LaneLimits { lanes: 64, gradient_lanes: 64, bands: 3, ..quadrant };
    let as_on_a_p100 = LaneLimits { priorities: 2, extra_waits: true, ..quadrant };
    for isa in tiers("schedules").into_iter().rev().take(1) {
        let options = EngineOptions { rule: Rule::sgd(0.9, 5e-4), ..options(isa) };
        for quadrants in [1, 2] {
            let nets = branches(quadrants, &options);
            let mut first: Option<Vec<u32>> = None;
            let schedules = Schedule::ALL.map(|schedule| (schedule, quadrant));
            let more = [every_path, as_on_a_p100].map(|limits| (Schedule::Critical, limits));
            for (schedule, limits) in schedules.into_iter().chain(more) {
                let wanted = PlanOptions { schedule, limits, ..PlanOptions::new(Stage::Iteration) };
                let plan = Plan::build(&nets, wanted).expect("a plan");
                for (threads, overlap) in [(1, false), (3, false), (1, true), (3, true)] {
                    let found = train(&nets, &plan, threads, &options, overlap);
                    let expected = first.get_or_insert_with(|| found.clone());
                    let steps = if overlap { "that overlap" } else { "one by one" };
                    let what = format!(
                        "{schedule} with {limits:?}, {threads} threads, {quadrants} quadrants, steps {steps}"
                    );
                    assert!(*expected == found, "{what} on {isa}");
                }
            }
        }
    }
}

/// A kernel's workspace is that of its lane, so one net cannot have a task in two lanes.
#[test]
fn plans_that_disagree_about_a_lane_are_refused() {
    let options = options(tiers("lanes of plans")[0]);
    let nets = branches(1, &options);
    let plans = [Schedule::Layerwise, Schedule::Critical].map(|schedule| {
        Plan::build(&nets, PlanOptions { schedule, ..PlanOptions::new(Stage::Iteration) }).expect("a plan")
    });
    let programs = [Program { nets: &nets, plans: &[&plans[0], &plans[1]] }];
    let refused = CpuWorker::new(&crews(1, 1), &programs, &options).map(|_| ());
    assert!(matches!(&refused, Err(EngineError::Plan(reason)) if reason.contains("lane")), "{refused:?}");
    // Two programs may, and each finds its own lanes.
    let programs = plans.each_ref().map(|plan| [plan]);
    let programs: Vec<Program<'_>> = programs.iter().map(|plans| Program { nets: &nets, plans }).collect();
    let both = CpuWorker::new(&crews(1, 1), &programs, &options).expect("a worker");
    for (index, plan) in plans.iter().enumerate() {
        assert_eq!(both.devices(index)[0].lanes(), plan.lanes);
        run_step(&both.devices(index), plan, &Scalars::default(), &mut StepTimes::default()).expect("a step");
    }
    assert_ne!(plan(&nets, Stage::Iteration).lanes, plans[0].lanes);
}
