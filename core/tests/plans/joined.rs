//! Concats whose bottoms lie inside their top: they have no task, and the plan orders who writes a bottom and who reads the
//! top all the same.

use quadrille_core::check::{Violation, check};
use quadrille_core::device::Lane;
use quadrille_core::layer::{Layer, SubTask};
use quadrille_core::net::{LayerId, Net, Phase, StorageId};
use quadrille_core::plan::Stage;
use quadrille_core::task::{Buffer, LaneId, TaskId};

use crate::common::{inception_net, joined, nets, sharing};
use crate::{layerwise, plan};

fn inception(phase: Phase) -> Net {
    joined(nets(&inception_net(2), phase, 1).remove(0))
}

fn layer(net: &Net, name: &str) -> LayerId {
    LayerId(net.layers.iter().position(|l| l.name == name).expect("a layer"))
}

fn top(net: &Net, name: &str) -> StorageId {
    net.blob(net.layer(layer(net, name)).tops[0]).data
}

#[test]
fn a_concat_in_place_has_no_task() {
    for (phase, stage) in [(Phase::Train, Stage::Iteration), (Phase::Test, Stage::Forward)] {
        let nets = [inception(phase)];
        let plan = plan(&nets, stage);
        assert_eq!(check(&plan, &nets), Ok(()));
        let concats = |net: &Net| {
            let is_concat = |id: &LayerId| matches!(net.layer(*id).layer, Layer::Concat(_));
            (0..net.layers.len()).map(LayerId).filter(is_concat).collect::<Vec<_>>()
        };
        for id in concats(&nets[0]) {
            assert!(nets[0].is_joined(id));
            assert!(plan.nodes.iter().all(|node| node.task.layer != id), "{}", nets[0].layer(id).name);
        }
        let apart = sharing(crate::common::nets(&inception_net(2), phase, 1).remove(0));
        assert!(concats(&apart).iter().all(|id| !apart.is_joined(*id)));
        let [joined, apart] = [&nets[0], &apart].map(|net| net.blob_memory());
        assert!(joined.taken < apart.taken && joined.apart < apart.apart, "{joined:?}, {apart:?}");
    }
}

#[test]
fn parts_overlap_their_whole_and_not_each_other() {
    let net = inception(Phase::Test);
    let [one, two, three, first, second] =
        ["one", "two", "three", "first", "second"].map(|name| top(&net, name));
    let expected = [
        (one, vec![first, second]),
        (two, vec![first, second]),
        (three, vec![second]),
        (first, vec![one, two, second]),
        (second, vec![one, two, three, first]),
    ];
    let family = [one, two, three, first, second];
    for (id, others) in expected {
        for other in family {
            let overlaps = net.overlapping(id).any(|found| found == other);
            assert_eq!(overlaps, id == other || others.contains(&other), "{id:?}, {other:?}");
        }
    }
}

/// Out of the lane that orders it, the last writer of any part races with the readers of the whole.
#[test]
fn a_reader_of_the_whole_must_wait_for_the_writer_of_each_part() {
    let nets = [inception(Phase::Test)];
    let plan = layerwise(&nets, Stage::Forward);
    for name in ["relu_one", "relu_two", "three"] {
        let writer = layer(&nets[0], name);
        let is_writer = |node: &quadrille_core::plan::Node| node.task.layer == writer;
        let at = plan.nodes.iter().position(is_writer).expect("a task");
        let mut broken = plan.clone();
        // No other task is there.
        broken.nodes[at].lane = LaneId(broken.lanes.len());
        broken.lanes.push(Lane { id: LaneId(broken.lanes.len()), priority: 0 });
        // It comes late enough, but nobody waits for it.
        broken.nodes[at].waits = (0..at).map(TaskId).collect();
        let Err(Violation::Race(first, _, place)) = check(&broken, &nets) else {
            panic!("{name}: {:?}", check(&broken, &nets));
        };
        assert_eq!((first, place.buffer), (TaskId(at), Buffer::Storage(top(&nets[0], name))));
    }
}

/// Whoever lies in the memory of a whole must not be written while any of its parts is in use.
#[test]
fn what_overlaps_a_whole_spoils_its_parts() {
    let mut net = inception(Phase::Train);
    let [stem, second] = ["stem", "second"].map(|name| top(&net, name));
    if let Some(memory) = &mut net.memory {
        // The stem's values are still asked for by its weights' gradient.
        memory.ranges[stem.0].start = memory.ranges[second.0].start;
        memory.ranges[stem.0].end = memory.ranges[stem.0].start + net.storages[stem.0];
    }
    let nets = [net];
    let found = check(&plan(&nets, Stage::Iteration), &nets);
    assert!(matches!(found, Err(Violation::Overlap(..) | Violation::Overwritten(..))), "{found:?}");
}

/// A gradient of the whole reaches the weights of the layer below each part.
#[test]
fn weights_below_a_part_wait_for_the_gradient_of_the_whole() {
    let nets = [inception(Phase::Train)];
    let plan = plan(&nets, Stage::Iteration);
    for name in ["one", "two", "three"] {
        let below = layer(&nets[0], name);
        let gradient = nets[0].blob(nets[0].layer(below).tops[0]).grad.expect("a gradient");
        let is_it = |sub| move |n: &&quadrille_core::plan::Node| n.task.layer == below && n.task.sub == sub;
        let weight = plan.nodes.iter().find(is_it(SubTask::GradWeight)).expect("a task");
        assert!(weight.reads.iter().any(|place| place.buffer == Buffer::Storage(gradient)), "{name}");
        let writers = plan.nodes.iter().filter(|node| {
            node.writes.iter().any(|place| place.buffer == Buffer::Storage(gradient))
                && matches!(nets[0].layer(node.task.layer).layer, Layer::Split(_))
        });
        assert_eq!(writers.count(), 1, "{name}: the sum over the readers writes every part");
    }
}
