//! A rank that dies at any point, the master among them: nobody hangs, nobody goes on with wrong numbers, everybody names
//! a rank.

use std::sync::Arc;

use quadrille_comm::CommError;
use quadrille_comm::protocol::hogwild::{HogwildEasgd, HogwildSgd, SharedCentre};
use quadrille_comm::transport::Transport;
use quadrille_comm::transport::sim::{self, Kill, SimTransport};
use quadrille_core::solver::Rule;

use crate::served::original_in_order;
use crate::training::{self, Body, LEN, Seen, bits, first_centre};

const SEEDS: u64 = 5;

type Ranks = Vec<Result<Seen, CommError>>;

/// Stops rank `rank` at each of its operations; `run` runs all ranks. `late` says how many of its last operations may come
/// after everybody else has what he needs. Returns how many deaths were tried.
fn kill_everywhere(
    rank: usize,
    late: usize,
    run: impl Fn(u64, Kill) -> Ranks,
    check: impl Fn(&Seen, usize),
) -> usize {
    let mut killed = 0;
    for seed in 0..SEEDS {
        let mut deaths: Vec<Ranks> = Vec::new();
        for operation in 0.. {
            let ranks = run(seed, Kill { rank, operation });
            match &ranks[rank] {
                Ok(_) => break,
                Err(CommError::Stopped { .. }) => deaths.push(ranks),
                Err(error) => panic!("rank {rank} fails by itself: {error}"),
            }
        }
        let total = deaths.len();
        assert!(total > late, "rank {rank} has {total} operations");
        for (operation, ranks) in deaths.iter().enumerate() {
            let context = format!("rank {rank} stopped at operation {operation} of {total}, seed {seed}");
            let stopped = CommError::Stopped { rank, operation: operation as u64 };
            assert_eq!(ranks[rank], Err(stopped), "{context}");
            for (other, result) in ranks.iter().enumerate().filter(|(other, _)| *other != rank) {
                match result {
                    Ok(seen) => {
                        assert!(operation + late >= total, "rank {other} noticed nothing; {context}");
                        check(seen, other);
                    }
                    Err(error) => {
                        let named = error.peer().is_some_and(|peer| peer != other);
                        assert!(named, "rank {other}: {error}; {context}");
                    }
                }
            }
        }
        killed += total;
    }
    killed
}

fn killed(ranks: usize, body: Body<SimTransport>) -> impl Fn(u64, Kill) -> Ranks {
    move |seed, kill| sim::run_with_kill(ranks, seed, kill, body).expect("no deadlock")
}

#[test]
fn every_rank_learns_of_a_death_in_original_easgd() {
    for workers in [1, 2, 4] {
        let expected = original_in_order(workers);
        for rank in 0..=workers {
            // A worker that has left hears of the turns behind its own; the last announcements of the master let all go.
            let late = if rank == workers { workers - 1 } else { workers - rank };
            let run = killed(workers + 1, training::original);
            let tried = kill_everywhere(rank, late, run, |seen, other| assert_eq!(*seen, expected[other]));
            assert!(tried > 50, "{tried}");
        }
    }
}

#[test]
fn every_rank_learns_of_a_death_in_the_asynchronous_methods() {
    let bodies: [Body<SimTransport>; 3] = [training::async_easgd, training::async_sgd, training::async_msgd];
    for body in bodies {
        for workers in [1, 2, 4] {
            for rank in 0..=workers {
                // A worker that has left waits for the word that it may go, before which it may hear once of each other that it is
                // missing; the last replies of the master let all go.
                let late = if rank == workers { workers - 1 } else { workers.max(2) };
                let run = killed(workers + 1, body);
                let whole = |seen: &Seen, other: usize| {
                    assert_eq!(seen.centres.len(), if other == workers { 1 } else { 2 });
                };
                let tried = kill_everywhere(rank, late, run, whole);
                assert!(tried > 50, "{tried}");
            }
        }
    }
}

#[test]
fn every_rank_learns_of_a_death_in_hogwild_easgd() {
    for workers in [2, 4] {
        for rank in 0..workers {
            let run = |seed, kill| {
                let shared = Arc::new(SharedCentre::new(&first_centre(), workers));
                let body = |end: SimTransport| training::elastic(HogwildEasgd::new(end, shared.clone()));
                sim::run_with_kill(workers, seed, kill, body).expect("no deadlock")
            };
            // Behind the last meeting there are two sums: two messages for each neighbour in the tree, each.
            let neighbours = (0..workers).filter(|other| is_neighbour(rank, *other)).count();
            let tried = kill_everywhere(rank, 4 * neighbours + workers - 1, run, |seen, _| {
                assert_eq!(seen.centres.len(), 2);
            });
            assert!(tried > 50, "{tried}");
        }
    }
}

/// A worker of Hogwild SGD that meets the others on the way and at the end.
fn hogwild_sgd(end: SimTransport, shared: &Arc<SharedCentre>) -> Result<Seen, CommError> {
    let mut worker = HogwildSgd::new(end, shared.clone(), training::packed(Rule::default()));
    let (mut seen, mut values) = (Seen::default(), [0.0; LEN]);
    for _ in 0..2 {
        for step in 0..4 {
            values = std::array::from_fn(|index| (step + index + worker.rank()) as f32);
            worker.exchange(&mut values, 0.5)?;
        }
        worker.centre(&mut values)?;
        seen.centres.push(bits(&values));
        let mut sum = [1.0];
        worker.all_reduce_sum(&mut sum)?;
        seen.sums.push(sum[0].to_bits());
    }
    worker.leave()?;
    Ok(seen)
}

#[test]
fn every_rank_learns_of_a_death_in_hogwild_sgd() {
    for workers in [2, 4] {
        for rank in 0..workers {
            let run = |seed, kill| {
                let shared = Arc::new(SharedCentre::new(&first_centre(), workers));
                let body = |end: SimTransport| hogwild_sgd(end, &shared);
                sim::run_with_kill(workers, seed, kill, body).expect("no deadlock")
            };
            // As with Hogwild EASGD.
            let neighbours = (0..workers).filter(|other| is_neighbour(rank, *other)).count();
            let tried = kill_everywhere(rank, 4 * neighbours + workers - 1, run, |seen, _| {
                assert_eq!(seen.centres.len(), 2);
            });
            assert!(tried > 50, "{tried}");
        }
    }
}

/// Neighbours in a binomial tree of up to four ranks: 0 is above 1 and 2, and 2 above 3.
fn is_neighbour(rank: usize, other: usize) -> bool {
    [(0, 1), (0, 2), (2, 3)].contains(&(rank.min(other), rank.max(other)))
}

#[test]
fn a_master_without_workers_ends() {
    let out = sim::run(1, 0, |end| {
        assert_eq!((end.rank(), end.size()), (0, 1));
        training::original(end)
    });
    assert_eq!(out.unwrap()[0].as_ref().map(|seen| seen.exchanges.len()), Ok(0));
}
