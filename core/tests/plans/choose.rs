//! Plans in chunks are compared as wholes: the best that is tried is taken, and nothing is cut that gains too little.

use std::collections::HashMap;
use std::convert::Infallible;

use crate::common::{inception_net, lenet, nets};
use crate::plan;
use quadrille_core::layer::SubTask;
use quadrille_core::net::{Net, NetSpec, Phase};
use quadrille_core::plan::lanes::{Candidates, Choice, Way, Worth};
use quadrille_core::plan::{Plan, Stage};

const BATCH: usize = 8;
const COUNTS: [u32; 3] = [2, 4, 8];

/// Chunks of each sub-task in a plan.
fn chunks(plan: &Plan) -> Worth {
    let mut found = HashMap::new();
    for node in &plan.nodes {
        *found.entry((node.task.layer, node.task.sub)).or_insert(0) += 1;
    }
    found
}

fn choose(spec: &NetSpec, analyzed: u32, tasks: usize, cost: impl Fn(&Plan) -> f64) -> (Choice, Vec<usize>) {
    let nets: Vec<Net> = nets(spec, Phase::Train, 1);
    let plan = plan(&nets, Stage::Iteration);
    let apart = plan.nodes.iter().filter(|n| nets[0].computes_images_apart(n.task.layer, n.task.sub));
    let analyzed = apart.map(|node| ((node.task.layer, node.task.sub), analyzed)).collect();
    let given = Worth::new();
    let candidates =
        Candidates { plan: &plan, nets: &nets, analyzed: &analyzed, given: &given, counts: &COUNTS, tasks };
    let mut tried = Vec::new();
    let choice = candidates.choose(|plan| {
        tried.push(plan.nodes.len());
        Ok::<f64, Infallible>(cost(plan))
    });
    (choice.expect("no error"), tried)
}

/// What is cut into `wanted` takes nothing, and everything else the longer the farther it is from that.
fn distance(plan: &Plan, wanted: impl Fn(SubTask) -> u32) -> f64 {
    let far = |(task, found): (&(_, SubTask), &u32)| f64::from(found.abs_diff(wanted(task.1)));
    let apart =
        |(task, _): &(&(_, SubTask), &u32)| matches!(task.1, SubTask::Forward | SubTask::GradActivation);
    1.0 + chunks(plan).iter().filter(apart).map(far).sum::<f64>()
}

#[test]
fn the_best_of_all_kinds_is_found() {
    let all = usize::MAX;
    let (choice, _) = choose(&lenet(BATCH), 1, all, |plan| plan.nodes.len() as f64);
    assert_eq!((choice.way, choice.analyzed), (Way::Whole, None));
    assert!(choice.worth.values().all(|chunks| *chunks == 1));
    let (choice, _) = choose(&lenet(BATCH), 1, all, |plan| distance(plan, |_| 4));
    assert_eq!(choice.way, Way::Alike(4));
    assert!(choice.worth.values().all(|chunks| *chunks == 4) && choice.expected < choice.whole);
    let (choice, _) = choose(&lenet(BATCH), 3, all, |plan| distance(plan, |_| 3));
    assert_eq!((choice.way, choice.analyzed), (Way::Analyzed, Some(choice.expected)));
    // Forward and ∇A are chains of their own.
    let wanted = |sub| if sub == SubTask::Forward { 8 } else { 1 };
    for spec in [lenet(BATCH), inception_net(BATCH)] {
        let (choice, tried) = choose(&spec, 2, all, |plan| distance(plan, wanted));
        assert_eq!((choice.way, choice.tried), (Way::ByChain, tried.len()), "{}", spec.name);
        assert!(choice.worth.iter().all(|((_, sub), chunks)| *chunks == wanted(*sub)), "{:?}", choice.worth);
    }
}

#[test]
fn a_small_gain_is_none_and_time_is_bounded() {
    for (gain, way) in [(0.995, Way::Whole), (0.98, Way::Alike(2))] {
        let cost = |plan: &Plan| if chunks(plan).values().any(|chunks| *chunks == 2) { gain } else { 1.0 };
        assert_eq!(choose(&lenet(BATCH), 1, usize::MAX, cost).0.way, way);
    }
    let gains = |plan: &Plan| 1.0 / plan.nodes.len() as f64;
    let (most, tried) = choose(&lenet(BATCH), 1, usize::MAX, gains);
    assert_eq!(most.way, Way::Alike(8));
    for tasks in [0, tried[0], tried[0] + tried[1], tried[..3].iter().sum()] {
        let (choice, tried) = choose(&lenet(BATCH), 1, tasks, gains);
        assert!(tried.iter().sum::<usize>() <= tasks.max(tried[0]), "{tasks}: {tried:?}");
        assert!(choice.expected <= choice.whole && choice.tried == tried.len());
        assert_eq!(choice.way == Way::Whole, tried.len() == 1, "{tasks}");
    }
}

/// What somebody else has decided stays, whatever is tried beside it.
#[test]
fn given_chunks_stay() {
    let nets = nets(&lenet(BATCH), Phase::Train, 1);
    let plan = plan(&nets, Stage::Iteration);
    let apart = plan.nodes.iter().filter(|n| nets[0].computes_images_apart(n.task.layer, n.task.sub));
    let (forward, rest): (Vec<_>, Vec<_>) =
        apart.map(|n| (n.task.layer, n.task.sub)).partition(|(_, sub)| *sub == SubTask::Forward);
    let analyzed: Worth = rest.iter().map(|task| (*task, 2)).collect();
    let given: Worth = forward.iter().map(|task| (*task, 4)).collect();
    let candidates = Candidates {
        plan: &plan,
        nets: &nets,
        analyzed: &analyzed,
        given: &given,
        counts: &COUNTS,
        tasks: usize::MAX,
    };
    let choice = candidates.choose(|plan| {
        let chunks = chunks(plan);
        assert!(forward.iter().all(|task| chunks[task] == 4));
        Ok::<f64, Infallible>(1.0 / plan.nodes.len() as f64)
    });
    let choice = choice.expect("no error");
    assert!(choice.worth.len() == rest.len() && choice.worth.values().all(|chunks| *chunks == 8));
}
