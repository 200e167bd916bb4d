//! Memory by lifetime: what the validator accepts computes the same, what would not is refused, and little is wasted.

use std::collections::HashSet;

use quadrille_core::check::{Violation, check};
use quadrille_core::layer::{Layer, SubTask};
use quadrille_core::net::{BlobMemory, Net, NetSpec, NetState, Phase, SharedMemory, StorageId};
use quadrille_core::plan::{LaneRole, Node, Plan, Stage};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::rng::{Purpose, Stream};

use crate::common::{branching_net, chain, lenet, normalizing_net, residual_net, sharing, siamese_net};
use crate::{layerwise, plan};

const BATCH: usize = 2;

fn build(spec: &NetSpec, phase: Phase) -> Net {
    Net::build(spec, &NetState::new(phase), 1.0).expect("a net")
}

/// Every kind of wiring: in place, split, views, shared parameters, several losses, running sums, layers fused.
fn every_net(phase: Phase) -> Vec<Net> {
    let specs = [
        lenet(BATCH),
        branching_net(BATCH),
        siamese_net(BATCH),
        normalizing_net(BATCH),
        residual_net(BATCH),
        chain(BATCH, 9),
    ];
    let apart = specs.map(|spec| build(&spec, phase));
    let fused: Vec<Net> = apart[3..5].iter().cloned().map(Net::fused).collect();
    apart.into_iter().chain(fused).collect()
}

/// What a step computes: the loss and the gradient of each parameter, or in phase TEST the outputs, as bits.
fn computed(net: &Net) -> Vec<u64> {
    let mut reference = ReferenceNet::<f64>::new(net.clone());
    let stream = Stream::new(7, Purpose::Dummy, 0);
    let numbers = |count: usize| (0..count as u64).map(|i| f64::from(stream.uniform(i)) - 0.25);
    let params: Vec<f32> = numbers(net.params.len()).map(|v| v as f32).collect();
    reference.set_params(&params);
    let source = net.layers.iter().find(|l| matches!(l.layer, Layer::Data(_))).expect("a source");
    let [data, label] = [0, 1].map(|top| net.blob(source.tops[top]));
    reference.set_input(&data.name, &numbers(data.shape.count()).collect::<Vec<_>>());
    reference.set_input(&label.name, &vec![1.0; label.shape.count()]);
    reference.forward();
    let mut values: Vec<f64> = net
        .outputs()
        .flat_map(|id| reference.blob(&net.blob(id).name).expect("an output").to_vec())
        .collect();
    if net.phase == Phase::Train {
        reference.backward();
        let gradients =
            net.params.views().iter().map(|view| reference.param_grad(&view.name).expect("a parameter"));
        values.extend(gradients.flatten());
    }
    values.into_iter().map(f64::to_bits).collect()
}

fn stage(phase: Phase) -> Stage {
    if phase == Phase::Train { Stage::Iteration } else { Stage::Forward }
}

#[test]
fn a_net_that_shares_memory_computes_the_same() {
    for phase in [Phase::Train, Phase::Test] {
        for net in every_net(phase) {
            let expected = computed(&net);
            let zeros = expected.iter().filter(|bits| **bits == 0).count();
            assert!(
                zeros * 2 <= expected.len(),
                "mistrusted: {zeros} of {} are 0 in {}",
                expected.len(),
                net.name
            );
            let shared = sharing(net.clone());
            assert_eq!(computed(&shared), expected, "{} in {phase}", net.name);
            let BlobMemory { taken, apart, .. } = shared.blob_memory();
            assert!(taken < apart, "{} in {phase} shares nothing", net.name);
        }
    }
}

/// Any two storages in one memory: either the validator refuses it, or the net computes the same.
#[test]
fn the_validator_refuses_every_two_that_would_spoil_each_other() {
    let (mut accepted, mut refused) = (0, HashSet::new());
    for phase in [Phase::Train, Phase::Test] {
        let small = |net: &Net| net.params.len() < 10_000;
        for net in every_net(phase).into_iter().filter(small) {
            let expected = computed(&net);
            for (first, second) in pairs(&net) {
                let mut together = net.clone();
                together.memory = Some(one_on_the_other(&net, first, second));
                let nets = [together];
                let found = check(&layerwise(&nets, stage(phase)), &nets);
                let in_lanes = check(&plan(&nets, stage(phase)), &nets);
                assert_eq!(in_lanes.is_ok(), found.is_ok(), "{in_lanes:?} but {found:?} in one lane");
                match found {
                    Ok(()) => {
                        accepted += 1;
                        // What the net puts out is read after the step, which no plan knows of.
                        let [together] = nets;
                        let kept = together.outputs().map(|id| net.blob(id).data);
                        if !kept.into_iter().any(|output| [first, second].contains(&output)) {
                            assert_eq!(computed(&together), expected, "{}: {first:?}, {second:?}", net.name);
                        }
                    }
                    Err(Violation::Overwritten(..)) => _ = refused.insert("overwritten"),
                    Err(Violation::Overlap(..)) => _ = refused.insert("overlap"),
                    Err(other) => panic!("{}: {first:?}, {second:?}: {other}", net.name),
                }
            }
        }
    }
    assert!(accepted > 100, "only {accepted} pairs may share memory");
    assert_eq!(refused, HashSet::from(["overwritten", "overlap"]));
}

/// Every storage by itself, but the second on the last element of the first.
fn one_on_the_other(net: &Net, first: StorageId, second: StorageId) -> SharedMemory {
    let mut len = 0;
    let mut ranges = Vec::new();
    for count in &net.storages {
        ranges.push(len..len + count);
        len += count + net.storages[second.0];
    }
    let start = ranges[first.0].end - 1;
    ranges[second.0] = start..start + net.storages[second.0];
    SharedMemory { ranges, len, parts: vec![None; net.storages.len()] }
}

fn pairs(net: &Net) -> impl Iterator<Item = (StorageId, StorageId)> {
    let count = net.storages.len();
    (0..count)
        .flat_map(move |a| (0..count).filter(move |b| *b != a).map(move |b| (StorageId(a), StorageId(b))))
}

#[test]
fn what_the_net_puts_out_shares_memory_with_nothing() {
    for phase in [Phase::Train, Phase::Test] {
        for net in every_net(phase).into_iter().map(sharing) {
            for output in net.outputs().map(|id| net.blob(id).data) {
                assert_eq!(net.overlapping(output).count(), 1, "{} in {phase}", net.name);
            }
        }
    }
}

/// In phase TEST a chain needs no more than two of its blobs at a time, besides what it puts out; in TRAIN its values
/// wait for backward, and gradients need no more than a few arrays.
#[test]
fn values_die_with_their_last_reader() {
    let test = sharing(build(&chain(BATCH, 20), Phase::Test)).blob_memory();
    assert!(test.taken * 5 < test.apart, "{test:?}");
    let train = sharing(build(&chain(BATCH, 20), Phase::Train)).blob_memory();
    assert!(train.taken * 10 < train.apart * 7, "{train:?}");
    for phase in [Phase::Train, Phase::Test] {
        for net in every_net(phase) {
            let (apart, shared) = (net.blob_memory(), sharing(net.clone()).blob_memory());
            assert_eq!(apart.apart, apart.taken, "{}", net.name);
            assert!(shared.least >= apart.least, "{}: {shared:?}", net.name);
            assert!(shared.least <= shared.taken && shared.taken < shared.apart, "{}: {shared:?}", net.name);
        }
    }
}

/// No task on the critical way waits for a weight's gradient unless some later layers have theirs in line, too.
#[test]
fn weight_gradients_may_lag_behind() {
    const LEAST: usize = 3;
    let nets = [sharing(build(&chain(BATCH, 20), Phase::Train))];
    let plan: Plan = plan(&nets, Stage::Iteration);
    let role = |node: &Node| LaneRole::of(node.task.sub);
    let is_gradient = |task: usize| plan.nodes[task].task.sub == SubTask::GradWeight;
    let mut found = 0;
    for (id, node) in plan.nodes.iter().enumerate().filter(|(_, n)| role(n) == LaneRole::Critical) {
        for wait in node.waits.iter().filter(|wait| role(&plan.nodes[wait.0]) == LaneRole::Gradient) {
            let between = (wait.0 + 1..id).filter(|task| is_gradient(*task)).count();
            assert!(between >= LEAST, "task {id} waits for {}, with {between} between them", wait.0);
            found += 1;
        }
    }
    assert!(found > 5, "only {found} waits for gradients: is memory shared?");
}

#[test]
fn fused_again_every_storage_has_memory_of_its_own() {
    let net = build(&residual_net(BATCH), Phase::Train);
    assert_eq!(sharing(net.clone()).fused(), net.fused());
}
