//! The paper's worked example, and what it says of devices with fewer priorities.

use super::*;
use crate::device::Lane;

/// Figure 6: six layers, i-3 to i+2 by number, on three layer paths that meet in layer i+2: i and i+1, whose ∇A take longest,
/// i-2 and i-1, and i-3. Where they part is not a part of it.
const EDGES: [(usize, usize); 5] = [(1, 2), (3, 4), (0, 5), (2, 5), (4, 5)];
const TIMES: [f64; 6] = [1.0, 1.0, 1.0, 2.0, 2.0, 1.0];
const KINDS: [Kind; 3] = [Kind::Activation, Kind::Weight, Kind::Bias];

fn ids(layers: &[usize]) -> Vec<LayerId> {
    layers.iter().copied().map(LayerId).collect()
}

fn figure_6() -> LayerPaths {
    LayerPaths::new(&[true; 6], &EDGES, &TIMES)
}

#[test]
fn the_layer_paths_of_the_worked_example_are_sorted_by_their_times() {
    let found = figure_6();
    let paths = [(&[3, 4][..], 4.0), (&[1, 2], 2.0), (&[0], 1.0)];
    let paths = paths.map(|(layers, time)| LayerPath { layers: ids(layers), time }).to_vec();
    assert_eq!(found.blocks, [Block { fork: None, merge: Some(LayerId(5)), paths }]);
    // ∇A of i+2, i+1 and i are on the critical layer path.
    assert_eq!(found.ranks, [2, 1, 1, 0, 0, 0]);
    assert_eq!(found.critical, 5.0);
}

#[test]
fn the_worked_example_has_nine_computing_paths_of_three_priorities() {
    let width = figure_6().width();
    let paths = computing_paths(width, &KINDS, Weights::behind(width), 1);
    assert_eq!(paths.len(), 9);
    let priority = |kind: Kind, rank: usize| {
        let path = paths.iter().find(|path| (path.kind, path.rank) == (kind, rank)).expect("a path");
        path.priority
    };
    // ∇A of the critical path first, then that of the other paths, and ∇W and ∇B last.
    for rank in 1..3 {
        assert!(priority(Kind::Activation, rank - 1) > priority(Kind::Activation, rank));
        for gradient in [Kind::Weight, Kind::Bias] {
            assert!((0..3).all(|other| priority(gradient, other) < priority(Kind::Activation, rank)));
        }
    }
    let limits = LaneLimits { lanes: 9, gradient_lanes: 3, priorities: 3, ..LaneLimits::default() };
    let lanes = LaneSet::new(&paths, limits);
    let level = |kind: Kind, rank: usize| {
        let at = paths.iter().position(|path| (path.kind, path.rank) == (kind, rank)).expect("a path");
        lanes.lanes[lanes.of[at].0].priority
    };
    assert_eq!(lanes.lanes.len(), 9, "a stream for each path");
    assert_eq!([0, 1, 2].map(|rank| level(Kind::Activation, rank)), [0, 1, 1], "highest, less, less");
    for kind in [Kind::Weight, Kind::Bias] {
        assert_eq!([0, 1, 2].map(|rank| level(kind, rank)), [2, 2, 2], "least");
    }
}

/// A P100 has two: the highest and the less share one, as in the paper's first method.
#[test]
fn with_two_priorities_gradients_alone_come_last() {
    let paths = computing_paths(3, &Kind::ALL, Weights::behind(3), 1);
    let limits = LaneLimits { lanes: 99, gradient_lanes: 3, priorities: 2, ..LaneLimits::default() };
    let lanes = LaneSet::new(&paths, limits);
    for (path, lane) in paths.iter().zip(&lanes.of) {
        let last = !matches!(path.kind, Kind::Activation | Kind::Transfer);
        assert_eq!(lanes.lanes[lane.0].priority, u8::from(last), "{path:?}");
    }
}

#[test]
fn lanes_are_shared_from_the_least_urgent_on() {
    let paths = computing_paths(3, &Kind::ALL, Weights::behind(3), 1);
    let limits = |lanes, gradient_lanes| LaneLimits { lanes, gradient_lanes, ..LaneLimits::default() };
    let counts = [
        (99, 3, 11),
        (99, 1, 7),
        (8, 3, 7),
        (6, 1, 6),
        (5, 1, 5),
        (4, 1, 4),
        (3, 1, 3),
        (2, 1, 2),
        (1, 9, 1),
    ];
    for (most, gradient_lanes, expected) in counts {
        let set = LaneSet::new(&paths, limits(most, gradient_lanes));
        assert_eq!(set.lanes.len(), expected, "{most} lanes");
        for (lane, Lane { id, priority }) in set.lanes.iter().enumerate() {
            assert_eq!(id.0, lane);
            assert!(lane == 0 || set.lanes[lane - 1].priority <= *priority, "by falling priority");
            assert!(set.of.contains(id), "a lane without tasks");
        }
        // The critical path is alone in its lane until it is the only one.
        let critical: Vec<&ComputingPath> =
            paths.iter().zip(&set.of).filter(|(_, of)| of.0 == 0).map(|(path, _)| path).collect();
        let alone = critical.iter().all(|path| path.rank == 0 && path.kind == Kind::Activation);
        assert_eq!(alone, most > 2, "{critical:?} with {most} lanes");
    }
}

#[test]
fn a_branch_that_ends_in_a_loss_of_its_own_is_a_path_beside_the_others() {
    // 0 -> 1 -> 2 -> 3, and 1 -> 4 -> 5, which is listed last and shorter.
    let edges = [(0, 1), (1, 2), (2, 3), (1, 4), (4, 5)];
    let found = LayerPaths::new(&[true; 6], &edges, &[1.0, 1.0, 3.0, 1.0, 1.0, 1.0]);
    let path = LayerPath { layers: ids(&[4, 5]), time: 2.0 };
    assert_eq!(found.blocks, [Block { fork: Some(LayerId(1)), merge: Some(LayerId(2)), paths: vec![path] }]);
    assert_eq!(found.ranks, [0, 0, 0, 0, 1, 1]);
    assert_eq!(found.critical, 6.0);
}

#[test]
fn a_layer_that_several_paths_share_belongs_to_the_longest() {
    // 0 parts into 1 and 2; 2 into 3 and 4; all meet in 5.
    let edges = [(0, 1), (0, 2), (2, 3), (2, 4), (1, 5), (3, 5), (4, 5)];
    let found = LayerPaths::new(&[true; 6], &edges, &[1.0, 4.0, 2.0, 1.0, 3.0, 1.0]);
    assert_eq!(found.ranks, [0, 1, 0, 2, 0, 0]);
    assert_eq!(found.critical, 7.0);
}

#[test]
fn a_graph_without_layers_has_no_paths() {
    assert_eq!(LayerPaths::new(&[], &[], &[]), LayerPaths::default());
    assert_eq!(LayerPaths::new(&[false; 3], &[], &[1.0; 3]).width(), 1);
}
