//! 1,000 seeds of delay and reordering, and real threads: no deadlock, no lost update, and the centre that what was sent
//! makes.

use std::collections::HashSet;
use std::time::Duration;

use quadrille_comm::CommError;
use quadrille_comm::protocol::async_easgd::{AsyncEasgd, ElasticCentre};
use quadrille_comm::protocol::async_sgd::{AsyncSgd, GradientCentre};
use quadrille_comm::protocol::parameter_server::{Centre, ParameterServer};
use quadrille_comm::protocol::{ElasticMember, original_easgd};
use quadrille_comm::transport::Transport;
use quadrille_comm::transport::sim::{self, SimTransport};
use quadrille_comm::transport::threads::{ThreadTransport, endpoints};

use crate::served::{Replay, check, original_in_order};
use crate::training::{self, Body, LEN, MOMENTUM, Seen};

const WORKERS: [usize; 4] = [1, 2, 3, 5];
const SEEDS: u64 = 1_000;

/// Runs `body` on a rank for each worker and one for the master, as threads.
pub fn on_threads<R: Send>(ranks: usize, body: impl Fn(ThreadTransport) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let start = |end| scope.spawn(move || body(end));
        let threads: Vec<_> = endpoints(ranks, Duration::from_secs(60)).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

fn all(ranks: Vec<Result<Seen, CommError>>) -> Vec<Seen> {
    ranks.into_iter().collect::<Result<_, _>>().expect("no rank fails")
}

#[test]
fn original_easgd_does_not_depend_on_the_order_of_arrival() {
    for workers in WORKERS {
        let expected = original_in_order(workers);
        for seed in 0..SEEDS {
            let ranks = all(sim::run(workers + 1, seed, training::original).unwrap());
            assert_eq!(ranks, expected, "{workers} workers, seed {seed}");
        }
        for _ in 0..20 {
            assert_eq!(all(on_threads(workers + 1, training::original)), expected, "{workers} workers");
        }
    }
}

/// Every seed and some rounds of threads; returns how many orders of service there were.
fn served_as_sent(
    simulated: Body<SimTransport>,
    threaded: Body<ThreadTransport>,
    replay: fn() -> Replay,
    workers: usize,
) -> usize {
    let mut orders = HashSet::new();
    for seed in 0..SEEDS {
        let ranks = all(sim::run(workers + 1, seed, simulated).expect("no deadlock"));
        orders.insert(check(&ranks, replay(), &format!("{workers} workers, seed {seed}")));
    }
    for _ in 0..20 {
        let ranks = all(on_threads(workers + 1, threaded));
        check(&ranks, replay(), &format!("{workers} workers on threads"));
    }
    orders.len()
}

#[test]
fn async_easgd_serves_everything_once_and_by_halves_nothing() {
    for workers in WORKERS {
        let body = training::async_easgd;
        let orders = served_as_sent(body, training::async_easgd, Replay::elastic, workers);
        assert!(orders > [0, 20, 300, 900][workers.min(4) - 1], "{workers} workers: {orders} orders");
    }
}

#[test]
fn async_sgd_and_msgd_serve_everything_once_and_by_halves_nothing() {
    for workers in WORKERS {
        served_as_sent(training::async_sgd, training::async_sgd, || Replay::descending(0.0), workers);
        served_as_sent(training::async_msgd, training::async_msgd, || Replay::descending(MOMENTUM), workers);
    }
}

/// One rank of Async SGD whose k-th of all gradients is 2ᵏ in every value, at a rate that undoes the parameter's factor.
fn powers<T: Transport>(transport: T, steps: usize) -> Result<Vec<f32>, CommError> {
    let rank = transport.rank();
    if rank + 1 == transport.size() {
        // Without decay, so that the centre is nothing but the sum.
        let start = GradientCentre::new(plain_rule(), &[0.0; LEN], &[0.0; LEN], 0);
        return ParameterServer::new(transport, start).serve().map(|(centre, _)| centre.weights().to_vec());
    }
    let mut worker = AsyncSgd::new(transport, LEN);
    let mut replies = Vec::new();
    for step in 0..steps {
        let mut values = [-f32::from(1u16 << (rank * steps + step)); LEN];
        worker.exchange(&mut values, 0.5)?;
        assert!(values.iter().all(|value| *value == values[0]), "a reply by halves: {values:?}");
        replies.push(values[0]);
    }
    worker.leave()?;
    Ok(replies)
}

fn plain_rule() -> quadrille_core::solver::PackedRule {
    let mut rule = training::rule(0.0).rule();
    rule.weight_decay = 0.0;
    training::packed(rule)
}

#[test]
fn the_centre_of_async_sgd_is_the_sum_of_what_was_sent() {
    let (workers, steps) = (3, 4);
    for seed in 0..SEEDS {
        let mut ranks: Vec<Vec<f32>> =
            sim::run(workers + 1, seed, |end| powers(end, steps).unwrap()).unwrap();
        let centre = ranks.pop().unwrap();
        assert_eq!(centre, vec![4095.0; LEN], "seed {seed}");
        // Each reply is the set of all that was served before it, as bits; sets of one order lie inside each other.
        let mut sets: Vec<u32> = ranks.concat().iter().map(|value| *value as u32).collect();
        sets.sort_by_key(|set| set.count_ones());
        assert!(
            sets.windows(2).all(|pair| pair[0] & pair[1] == pair[0] && pair[0] != pair[1]),
            "seed {seed}"
        );
        for (rank, replies) in ranks.iter().enumerate() {
            let own = |step: usize| 1u32 << (rank * steps + step);
            assert!(
                replies.iter().enumerate().all(|(step, set)| *set as u32 & own(step) != 0),
                "seed {seed}"
            );
        }
    }
}

/// One rank of an elastic method at ηρ = 1, where the centre becomes what is sent: what was sent and what came back.
fn swaps<M: ElasticMember>(mut member: M, steps: usize) -> Result<(Vec<f32>, Vec<f32>), CommError> {
    let first = 1 + member.rank() * steps;
    let sent: Vec<f32> = (first..first + steps).map(|value| value as f32).collect();
    let mut back = Vec::new();
    for value in &sent {
        let mut centre = [0.0];
        member.begin_turn()?;
        member.exchange(&[*value], 1.0, &mut centre)?;
        member.end_turn()?;
        back.push(centre[0]);
    }
    let mut last = [0.0];
    member.centre(&mut last)?;
    member.leave()?;
    back.push(last[0]);
    Ok((sent, back))
}

#[test]
fn whatever_is_put_into_an_elastic_centre_comes_out_once() {
    let (workers, steps) = (4, 5);
    for seed in 0..SEEDS {
        for round_robin in [false, true] {
            let out = sim::run(workers + 1, seed, |end| match (end.rank() == workers, round_robin) {
                (true, false) => ParameterServer::new(end, ElasticCentre::new(&[0.0])).serve().map(|_| None),
                (true, true) => original_easgd::RoundRobin::new(end, &[0.0]).serve().map(|_| None),
                (false, false) => swaps(AsyncEasgd::new(end, 1), steps).map(Some),
                (false, true) => swaps(original_easgd::OriginalEasgd::new(end, 1), steps).map(Some),
            });
            let out: Vec<_> = out.unwrap().into_iter().filter_map(|rank| rank.unwrap()).collect();
            let last = out[0].1[steps];
            assert!(out.iter().all(|(_, back)| back[steps] == last), "one centre for all");
            let mut inside: Vec<f32> = out.iter().flat_map(|(sent, _)| sent.clone()).chain([0.0]).collect();
            let mut outside: Vec<f32> =
                out.iter().flat_map(|(_, back)| back[..steps].to_vec()).chain([last]).collect();
            inside.sort_by(f32::total_cmp);
            outside.sort_by(f32::total_cmp);
            assert_eq!(inside, outside, "seed {seed}, round robin {round_robin}");
        }
    }
}
