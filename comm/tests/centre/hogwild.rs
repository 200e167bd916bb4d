//! Hogwild under the simulated network, where other workers come in between any two parts of an exchange, and under real
//! races.

use std::collections::HashSet;
use std::sync::Arc;

use quadrille_comm::CommError;
use quadrille_comm::protocol::ElasticMember;
use quadrille_comm::protocol::hogwild::{HogwildEasgd, HogwildSgd, SharedCentre};
use quadrille_comm::transport::{Kind, Tag, Transport, sim};
use quadrille_core::solver::Rule;

use crate::orders::on_threads;
use crate::training::{self, Bits, LEN, Seen, bits, first_centre};

const WORKERS: [usize; 4] = [1, 2, 3, 5];
const SEEDS: u64 = 1_000;

/// The centres for all are the same on all workers, and so are the sums.
fn check_agreement(ranks: &[Seen], context: &str) {
    for rank in ranks {
        assert_eq!((&rank.centres, &rank.sums), (&ranks[0].centres, &ranks[0].sums), "{context}");
    }
    assert_eq!(ranks[0].centres.len(), 2);
    assert_ne!(ranks[0].centres[0], ranks[0].centres[1]);
}

#[test]
fn hogwild_easgd_gives_all_workers_one_centre() {
    for workers in WORKERS {
        for seed in 0..SEEDS {
            let shared = Arc::new(SharedCentre::new(&first_centre(), workers));
            let body = |end| training::elastic(HogwildEasgd::new(end, shared.clone())).unwrap();
            check_agreement(
                &sim::run(workers, seed, body).unwrap(),
                &format!("{workers} workers, seed {seed}"),
            );
        }
        for _ in 0..20 {
            let shared = Arc::new(SharedCentre::new(&first_centre(), workers));
            let body = |end| training::elastic(HogwildEasgd::new(end, shared.clone())).unwrap();
            check_agreement(&on_threads(workers, body), &format!("{workers} workers on threads"));
        }
    }
}

/// Who exchanges right after the centre for all, without a sum between that would hold it back, changes no centre that another
/// one still has to read.
#[test]
fn nobody_goes_on_before_all_have_read_the_centre() {
    for workers in [2, 3, 5] {
        for seed in 0..SEEDS {
            let shared = Arc::new(SharedCentre::new(&first_centre(), workers));
            let centres = sim::run(workers, seed, |end| {
                let weights = [end.rank() as f32; LEN];
                let mut worker = HogwildEasgd::new(end, shared.clone());
                let (mut centre, mut seen) = ([0.0; LEN], [0.0; LEN]);
                worker.exchange(&weights, 0.25, &mut seen).unwrap();
                worker.centre(&mut centre).unwrap();
                worker.exchange(&weights, 0.25, &mut seen).unwrap();
                worker.leave().unwrap();
                bits(&centre)
            });
            let centres = centres.unwrap();
            assert!(centres.iter().all(|centre| *centre == centres[0]), "{workers} workers, seed {seed}");
        }
    }
}

/// A worker of Hogwild SGD with integer gradients that no order of addition rounds.
fn descend<T: Transport>(end: T, shared: &Arc<SharedCentre>, steps: usize) -> Result<Bits, CommError> {
    let rank = end.rank();
    let rule = training::packed(Rule::default());
    let mut worker = HogwildSgd::new(end, shared.clone(), rule);
    let mut values = [0.0; LEN];
    for step in 0..steps {
        values = std::array::from_fn(|index| integer(rank, step, index) as f32);
        worker.exchange(&mut values, 0.5)?;
    }
    worker.centre(&mut values)?;
    let mut sum = [1.0];
    worker.all_reduce_sum(&mut sum)?;
    assert_eq!(sum, [worker.size() as f32]);
    Ok(bits(&values))
}

fn integer(rank: usize, step: usize, index: usize) -> i32 {
    (rank * 7 + step * 5 + index * 3) as i32 % 11 - 5
}

#[test]
fn the_centre_of_hogwild_sgd_is_the_sum_of_what_was_sent() {
    for workers in WORKERS {
        let sum = |steps: usize| {
            let all =
                move |index| (0..workers).flat_map(move |r| (0..steps).map(move |s| integer(r, s, index)));
            bits(&std::array::from_fn::<f32, LEN, _>(|index| 100.0 - all(index).sum::<i32>() as f32))
        };
        for seed in 0..SEEDS {
            let shared = Arc::new(SharedCentre::new(&[100.0; LEN], workers));
            let out = sim::run(workers, seed, |end| descend(end, &shared, 4)).unwrap();
            assert_eq!(out, vec![Ok(sum(4)); workers], "{workers} workers, seed {seed}");
        }
        // Real races: 4,000 steps of each worker through 16 values.
        let shared = Arc::new(SharedCentre::new(&[100.0; LEN], workers));
        let out = on_threads(workers, |end| descend(end, &shared, 4_000));
        assert_eq!(out, vec![Ok(sum(4_000)); workers], "{workers} workers on threads");
    }
}

/// Swaps value by value, and lets others go on in between; what was put in and what came out, by value.
fn swap_in_parts<T: Transport>(mut end: T, shared: &SharedCentre, steps: usize) -> Vec<[(f32, f32); LEN]> {
    let (rank, other) = (end.rank(), usize::from(end.rank() == 0));
    let pause = Tag { exchange: 0, kind: Kind::Verdict };
    let swap = |step: usize| {
        let value = (1 + rank * steps + step) as f32;
        std::array::from_fn(|index| {
            let mut out = [0.0];
            shared.meet(index..index + 1, &[value], 1.0, &mut out);
            // A poll for what never comes is a while in which others go on.
            assert_eq!(end.try_recv(other, pause).unwrap_or(None), None);
            (value, out[0])
        })
    };
    (0..steps).map(swap).collect()
}

#[test]
fn between_any_two_values_others_come_in_and_nothing_is_lost() {
    let (workers, steps) = (3, 3);
    let mut mixed = HashSet::new();
    for seed in 0..SEEDS {
        let shared = SharedCentre::new(&[0.0; LEN], workers);
        let out = sim::run(workers, seed, |end| swap_in_parts(end, &shared, steps)).unwrap().concat();
        let mut last = [0.0; LEN];
        shared.read(&mut last);
        for index in 0..LEN {
            let mut inside: Vec<f32> = out.iter().map(|swap| swap[index].0).chain([0.0]).collect();
            let mut outside: Vec<f32> = out.iter().map(|swap| swap[index].1).chain([last[index]]).collect();
            inside.sort_by(f32::total_cmp);
            outside.sort_by(f32::total_cmp);
            assert_eq!(inside, outside, "value {index}, seed {seed}");
        }
        if last.iter().any(|value| *value != last[0]) {
            mixed.insert(bits(&last));
        }
    }
    assert!(mixed.len() > 100, "exchanges hardly ever met: {} mixed centres", mixed.len());
}
