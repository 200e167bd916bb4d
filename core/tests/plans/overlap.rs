//! Steps that overlap: whatever one step needs of the one before it waits for, and for nothing else.

use crate::common::{branching_net, inception_net, joined, lenet, nets, residual_net, sharing, siamese_net};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, Phase};
use quadrille_core::plan::priority::LaneLimits;
use quadrille_core::plan::{Overlap, Plan, PlanOptions, Schedule, Stage};
use quadrille_core::task::{Buffer, Place, TaskId};

/// For each task of two steps, those of both that are done when it begins.
fn done_before(plan: &Plan, overlap: &Overlap) -> Vec<Vec<bool>> {
    let count = plan.nodes.len();
    let mut done: Vec<Vec<bool>> = Vec::new();
    for id in 0..2 * count {
        let (step, node) = (id / count, &plan.nodes[id % count]);
        let same_lane = |other: &usize| {
            let other = &plan.nodes[*other % count];
            (other.device, other.lane) == (node.device, node.lane)
        };
        let across = if step == 1 { &overlap.waits[id - count][..] } else { &[] };
        let waits = node.waits.iter().map(|wait| step * count + wait.0).chain(across.iter().map(|w| w.0));
        let mut mine = vec![false; 2 * count];
        for earlier in (0..id).rev().find(same_lane).into_iter().chain(waits) {
            mine.iter_mut().zip(&done[earlier]).for_each(|(mine, theirs)| *mine |= theirs);
            mine[earlier] = true;
        }
        done.push(mine);
    }
    done
}

/// Whether two tasks may not run at once.
fn conflict(nets: &[Net], plan: &Plan, one: usize, two: usize) -> bool {
    let (one, two) = (&plan.nodes[one], &plan.nodes[two]);
    let meets = |writes: &[Place], others: &[Place]| {
        writes.iter().any(|place| {
            let net = &nets[place.device.0];
            let buffers: Vec<Buffer> = match place.buffer {
                Buffer::Storage(id) => net.overlapping(id).map(Buffer::Storage).collect(),
                other => vec![other],
            };
            others.iter().any(|other| other.device == place.device && buffers.contains(&other.buffer))
        })
    };
    meets(&one.writes, &two.reads) || meets(&one.writes, &two.writes) || meets(&two.writes, &one.reads)
}

fn plans() -> Vec<(Vec<Net>, Plan)> {
    let as_it_is: fn(Net) -> Net = |net| net;
    let shares: fn(Net) -> Net = |net| sharing(net.fused());
    let all = [
        (lenet(8), as_it_is),
        (branching_net(8), sharing as _),
        (siamese_net(8), shares),
        (residual_net(8), shares),
        (inception_net(8), joined as _),
    ];
    let bands = LaneLimits { lanes: 64, gradient_lanes: 64, bands: 3, ..LaneLimits::default() };
    let mut plans = Vec::new();
    for (spec, rewrite) in all {
        for devices in [1, 2, 3] {
            let nets: Vec<Net> = nets(&spec, Phase::Train, devices).into_iter().map(rewrite).collect();
            let schedules = Schedule::ALL.map(|schedule| (schedule, LaneLimits::default()));
            for (schedule, limits) in schedules.into_iter().chain([(Schedule::Critical, bands)]) {
                let options = PlanOptions { schedule, limits, ..PlanOptions::new(Stage::Iteration) };
                plans.push((nets.clone(), Plan::build(&nets, options).expect("a plan")));
            }
        }
    }
    plans
}

#[test]
fn steps_that_overlap_do_not_race_and_wait_for_nothing_in_vain() {
    let (mut ordered, mut waits) = (0, 0);
    for (nets, plan) in plans() {
        let overlap = plan.overlap(&nets);
        let count = plan.nodes.len();
        let done = done_before(&plan, &overlap);
        for (early, late) in (0..count).flat_map(|early| (0..count).map(move |late| (early, late))) {
            if conflict(&nets, &plan, early, late) {
                assert!(done[count + late][early], "{late} of the next step races with {early}");
                ordered += 1;
            }
        }
        for (task, waited) in overlap.waits.iter().enumerate() {
            for at in 0..waited.len() {
                let mut less = overlap.clone();
                let wait = less.waits[task].remove(at);
                let done = done_before(&plan, &less);
                let races = |id: usize| {
                    (0..count).any(|early| !done[id][early] && conflict(&nets, &plan, early, id - count))
                };
                assert!((count..2 * count).any(races), "{task} need not wait for {wait:?}");
                waits += 1;
            }
        }
    }
    assert!(ordered > 1000 && waits > 100, "{ordered} {waits}");
}

/// What the paper asks for (section 3.3): forward of a layer waits for the update of its own parameters.
#[test]
fn the_next_forward_waits_for_its_own_layer_only() {
    let nets = nets(&lenet(8), Phase::Train, 1);
    let limits = LaneLimits { bands: 4, lanes: 64, ..LaneLimits::default() };
    let plan =
        Plan::build(&nets, PlanOptions { limits, ..PlanOptions::new(Stage::Iteration) }).expect("a plan");
    let overlap = plan.overlap(&nets);
    let count = plan.nodes.len();
    let done = done_before(&plan, &overlap);
    let find = |layer: &str, sub: SubTask| {
        let is_it = |node: &quadrille_core::plan::Node| {
            node.task.sub == sub && nets[0].layer(node.task.layer).name == layer
        };
        plan.nodes.iter().position(is_it).expect(layer)
    };
    let layers = ["conv1", "conv2", "ip1", "ip2"];
    for (at, layer) in layers.iter().enumerate() {
        let forward = count + find(layer, SubTask::Forward);
        for (other, name) in layers.iter().enumerate() {
            let updated = done[forward][find(name, SubTask::Update)];
            assert_eq!(updated, other <= at, "update of {name} before forward of {layer}");
        }
    }
    let subs = overlap.awaited.iter().map(|task: &TaskId| plan.nodes[task.0].task.sub);
    assert!(subs.clone().all(|s| matches!(s, SubTask::Load | SubTask::Forward | SubTask::GradActivation)));
    assert!(subs.count() > layers.len());
}

/// What is left of a plan behind the tasks of a part of the gradients does not touch it.
#[test]
fn a_part_of_the_gradients_is_whole_behind_its_tasks() {
    let as_it_is: fn(Net) -> Net = |net| net;
    let shares: fn(Net) -> Net = |net| sharing(net.fused());
    let mut early = 0;
    for (spec, rewrite) in [(lenet(8), as_it_is), (siamese_net(8), shares), (inception_net(8), joined as _)] {
        for devices in [1, 2, 3] {
            let nets: Vec<Net> = nets(&spec, Phase::Train, devices).into_iter().map(rewrite).collect();
            let plan = Plan::build(&nets, PlanOptions::new(Stage::Gradients)).expect("a plan");
            let params = &nets[0].params;
            let parts = params.buckets(1);
            assert_eq!(parts.len(), params.views().len());
            for part in parts {
                let tasks = plan.gradient_tasks(&nets, &part);
                assert!(tasks.is_sorted() && !tasks.is_empty());
                for (id, node) in plan.nodes.iter().enumerate() {
                    let is_in = |place: &Place| matches!(place.buffer, Buffer::Gradient(id) if part.contains(&params.view(id).offset));
                    let touches = node.reads.iter().chain(&node.writes).any(is_in);
                    assert_eq!(touches, tasks.contains(&TaskId(id)), "{part:?} and {id}");
                }
                early += usize::from(tasks.iter().all(|task| task.0 + 1 < plan.nodes.len()));
            }
        }
    }
    assert!(early > 30, "{early}");
}

#[test]
fn buckets_are_the_packed_buffer_from_its_end() {
    let net = nets(&lenet(8), Phase::Train, 1).remove(0);
    let params = &net.params;
    for least in [1, 100, 10_000, 30_000, usize::MAX] {
        let buckets = params.buckets(least);
        let mut end = params.len();
        for (at, bucket) in buckets.iter().enumerate() {
            assert_eq!(bucket.end, end, "{least}");
            assert!(bucket.len() >= least || at + 1 == buckets.len(), "{least}: {bucket:?}");
            assert!(params.views().iter().any(|view| view.offset == bucket.start), "whole parameters");
            end = bucket.start;
        }
        assert_eq!(end, 0, "{least}");
    }
    assert_eq!(params.buckets(usize::MAX).len(), 1);
    assert!(quadrille_core::net::ParamLayout::default().buckets(5).is_empty());
}
