//! Layers in chunks of images: GLP4NN's batch-level parallelism.

use quadrille_core::check::check;
use quadrille_core::device::Lane;
use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerSpec, Net, NetSpec, NetState, Phase};
use quadrille_core::plan::lanes::{Pool, chunks_of, deal, in_chunks};
use quadrille_core::plan::{CostModel, Node, Plan, Stage};
use quadrille_core::task::{Buffer, LaneId, TaskId};

use crate::common::{lenet, normalizing_net};
use crate::plan;

fn build(spec: &NetSpec) -> Net {
    Net::build(spec, &NetState::new(Phase::Train), 1.0).expect("a net")
}

fn convolutions(spec: &LayerSpec) -> bool {
    spec.name.starts_with("conv")
}

/// LeNet with its convolutions in chunks of so many images.
fn chunked(batch: usize, images: usize) -> NetSpec {
    let spec = lenet(batch);
    in_chunks(&spec, &build(&spec), |layer| convolutions(layer).then_some(images)).expect("chunks")
}

#[test]
fn a_net_in_chunks_is_the_same_net() {
    let whole = build(&lenet(8));
    for images in [1, 3, 4, 7] {
        let net = build(&chunked(8, images));
        let of = |net: &Net, name: &str| {
            let layers =
                net.layers.iter().filter(|l| l.name == name || l.name.starts_with(&format!("{name}/")));
            let kinds = layers.clone().filter(|layer| layer.layer.type_name() == "Convolution");
            (kinds.count(), layers.count())
        };
        let chunks = 8_usize.div_ceil(images);
        assert_eq!(of(&net, "conv1"), (chunks, chunks + 2), "and a Slice and a Concat");
        // The same parameters, under the same names.
        assert_eq!((net.params.len(), &net.params), (whole.params.len(), &whole.params));
        let blob = |net: &Net, name: &str| {
            net.blobs.iter().filter(|b| b.name == name).map(|b| b.shape.clone()).next_back()
        };
        assert_eq!(blob(&net, "conv1"), blob(&whole, "conv1"));
        for stage in [Stage::Iteration, Stage::Gradients, Stage::Forward] {
            let nets = [net.clone()];
            let plan = plan(&nets, stage);
            assert_eq!(check(&plan, &nets), Ok(()), "{images} images, {stage:?}");
            let flops = |net: &Net, sub: SubTask| -> u64 {
                let nets = std::slice::from_ref(net);
                let plan = crate::plan(nets, stage);
                plan.nodes.iter().filter(|n| n.task.sub == sub).map(|n| CostModel::flops(nets, n)).sum()
            };
            for sub in [SubTask::Forward, SubTask::GradActivation, SubTask::GradWeight] {
                assert_eq!(flops(&net, sub), flops(&whole, sub), "{sub}");
            }
        }
    }
    assert_eq!(chunked(8, 8), lenet(8), "one chunk is the layer itself");
    assert_eq!(chunked(8, 100), lenet(8));
}

/// The gradients of the chunks are added up in one order, whatever lanes the chunks run in: each sum waits for the one before.
#[test]
fn sums_over_chunks_have_one_order() {
    let net = build(&chunked(8, 2));
    let nets = [net];
    let plan = plan(&nets, Stage::Iteration);
    let weight = nets[0].layers.iter().find(|l| l.name == "conv2").expect("conv2").params[0];
    let adds_to = |id: &usize| {
        let node = &plan.nodes[*id];
        let writes = |place: &quadrille_core::task::Place| place.buffer == Buffer::Gradient(weight);
        node.task.sub != SubTask::Update && node.writes.iter().any(writes)
    };
    let terms: Vec<usize> = (0..plan.nodes.len()).filter(adds_to).collect();
    assert_eq!(terms.len(), 4, "one ∇W that begins the sum, and three that are added");
    let layers: Vec<_> = terms.iter().map(|id| plan.nodes[*id].task.layer.0).collect();
    assert!(layers.is_sorted_by(|a, b| a > b), "in the order of backward: {layers:?}");
    for pair in terms.windows(2) {
        let (before, after) = (&plan.nodes[pair[0]], &plan.nodes[pair[1]]);
        let reads = after.reads.iter().any(|place| place.buffer == Buffer::Gradient(weight));
        assert!(reads, "each reads what the one before wrote, so the edge follows from the accesses");
        assert!(before.lane == after.lane || after.waits.contains(&TaskId(pair[0])));
    }
}

/// Chunks dealt out to any lanes: the plan is right, and the sum of the gradients has the same order.
#[test]
fn chunks_may_run_in_any_lane() {
    for images in [1, 3] {
        let nets = vec![build(&chunked(8, images))];
        let sharing: Vec<Net> = nets.iter().cloned().map(crate::common::sharing).collect();
        for nets in [nets, sharing] {
            for lanes in [1, 2, 5] {
                let before = plan(&nets, Stage::Iteration);
                let chunks = ["conv1", "conv2"].map(|name| chunks_of(&nets[0], name));
                assert_eq!(chunks[0].len(), 8_usize.div_ceil(images));
                let pool = Pool { default: LaneId(0), first: LaneId(1), lanes };
                let of = |node: &Node| {
                    let chunk = chunks.iter().find_map(|c| c.iter().position(|l| *l == node.task.layer));
                    chunk.map_or(pool.default, |chunk| pool.lane(chunk, lanes))
                };
                let all = (0..=lanes as usize).map(|id| Lane { id: LaneId(id), priority: 0 }).collect();
                let dealt = deal(before.clone(), &nets, all, of);
                assert_eq!(check(&dealt, &nets), Ok(()), "{images} images in {lanes} lanes");
                let tasks = |plan: &Plan| plan.nodes.iter().map(|n| (n.device, n.task)).collect::<Vec<_>>();
                assert_eq!(tasks(&dealt), tasks(&before), "the same tasks in the same order");
                let used: std::collections::HashSet<_> = dealt.nodes.iter().map(|node| node.lane).collect();
                assert_eq!(used.len(), 1 + chunks[0].len().min(lanes as usize));
            }
        }
    }
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let refused = |spec: &NetSpec, name: &str| {
        let cut = in_chunks(spec, &build(spec), |layer| (layer.name == name).then_some(2));
        cut.expect_err(name).to_string()
    };
    let norm = refused(&normalizing_net(8), "bn1");
    assert!(norm.starts_with("layer \"bn1\" cannot be cut into chunks of images: expected a Conv"), "{norm}");
    assert!(refused(&lenet(8), "loss").contains("expected a Convolution"));
    let mut in_place = lenet(8);
    let relu =
        in_place.layers.iter().find(|l| l.bottoms == l.tops && l.tops.len() == 1).map(|l| l.name.clone());
    assert!(refused(&in_place, &relu.expect("a ReLU in place")).contains("it works in place"));
    let conv = in_place.layers.iter_mut().find(|l| convolutions(l)).expect("a convolution");
    conv.loss_weights = vec![0.0];
    let name = conv.name.clone();
    assert!(refused(&in_place, &name).contains("it has a loss weight"));
}
