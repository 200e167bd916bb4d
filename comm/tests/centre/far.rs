//! Hogwild where only the first worker shares memory with the centre, and the others have attendants there.

use std::sync::Arc;
use std::time::Duration;

use quadrille_comm::CommError;
use quadrille_comm::protocol::ElasticMember;
use quadrille_comm::protocol::hogwild::{Attendant, HogwildEasgd, HogwildSgd, SharedCentre};
use quadrille_comm::transport::{Transport, sim, threads};
use quadrille_core::solver::Rule;

use crate::orders::on_threads;
use crate::training::{self, Bits, LEN, bits, first_centre};

const WORKERS: [usize; 3] = [2, 3, 5];
const SEEDS: u64 = 1_000;

/// What a rank is: a worker, which returns something, or an attendant.
fn part<T: Transport, R>(
    end: T,
    (workers, shared, sends_gradients): (usize, &Arc<SharedCentre>, bool),
    worker: impl FnOnce(T) -> Result<R, CommError>,
) -> Option<Result<R, CommError>> {
    if end.rank() < workers {
        return Some(worker(end));
    }
    let rule = sends_gradients.then(|| training::packed(Rule::default()));
    Attendant::new(end, workers, shared.clone(), rule).serve().err().map(Err)
}

fn elastic<T: Transport>(end: T, workers: usize, shared: &Arc<SharedCentre>) -> HogwildEasgd<T> {
    if end.rank() == 0 {
        HogwildEasgd::new(end, shared.clone())
    } else {
        HogwildEasgd::far(end, workers, LEN)
    }
}

#[test]
fn all_workers_get_one_centre() {
    for workers in WORKERS {
        for seed in 0..SEEDS {
            let shared = Arc::new(SharedCentre::new(&first_centre(), workers));
            let body = |end| {
                part(end, (workers, &shared, false), |end| training::elastic(elastic(end, workers, &shared)))
            };
            let out = sim::run(2 * workers - 1, seed, body).unwrap();
            let seen: Vec<_> = out.into_iter().flatten().collect::<Result<_, _>>().unwrap();
            assert_eq!(seen.len(), workers);
            for rank in &seen {
                assert_eq!((&rank.centres, &rank.sums), (&seen[0].centres, &seen[0].sums), "seed {seed}");
            }
        }
    }
}

fn integer(rank: usize, step: usize, index: usize) -> i32 {
    (rank * 7 + step * 5 + index * 3) as i32 % 11 - 5
}

/// A worker of Hogwild SGD with integer gradients that no order of addition rounds.
fn descend<T: Transport>(
    end: T,
    workers: usize,
    shared: &Arc<SharedCentre>,
    steps: usize,
) -> Result<Bits, CommError> {
    let (rank, rule) = (end.rank(), training::packed(Rule::default()));
    let mut worker = match rank {
        0 => HogwildSgd::new(end, shared.clone(), rule),
        _ => HogwildSgd::far(end, workers, rule),
    };
    let mut values = [0.0; LEN];
    for step in 0..steps {
        values = std::array::from_fn(|index| integer(rank, step, index) as f32);
        worker.exchange(&mut values, 0.5)?;
    }
    worker.centre(&mut values)?;
    worker.leave()?;
    Ok(bits(&values))
}

#[test]
fn no_step_is_lost() {
    for workers in WORKERS {
        let sum = |steps: usize| {
            let all =
                move |index| (0..workers).flat_map(move |r| (0..steps).map(move |s| integer(r, s, index)));
            bits(&std::array::from_fn::<f32, LEN, _>(|index| 100.0 - all(index).sum::<i32>() as f32))
        };
        let expect = |out: Vec<Option<Result<Bits, CommError>>>, steps: usize, context: &str| {
            let out: Vec<_> = out.into_iter().flatten().collect();
            assert_eq!(out, vec![Ok(sum(steps)); workers], "{workers} workers, {context}");
        };
        for seed in 0..SEEDS {
            let shared = Arc::new(SharedCentre::new(&[100.0; LEN], workers));
            let body = |end| part(end, (workers, &shared, true), |end| descend(end, workers, &shared, 4));
            expect(sim::run(2 * workers - 1, seed, body).unwrap(), 4, &format!("seed {seed}"));
        }
        let shared = Arc::new(SharedCentre::new(&[100.0; LEN], workers));
        let out = on_threads(2 * workers - 1, |end| {
            part(end, (workers, &shared, true), |end| descend(end, workers, &shared, 500))
        });
        expect(out, 500, "on threads");
    }
}

/// Worker 1 ends without leaving: its attendant tells the workers at hand, and ends.
#[test]
fn a_far_worker_that_is_lost_ends_those_at_hand() {
    let shared = Arc::new(SharedCentre::new(&[8.0; LEN], 2));
    let mut ends = threads::endpoints(3, Duration::from_secs(60));
    let attendant = Attendant::new(ends.pop().unwrap(), 2, shared.clone(), None);
    let serving = std::thread::spawn(move || attendant.serve());
    let mut far = HogwildEasgd::far(ends.pop().unwrap(), 2, LEN);
    let mut near = HogwildEasgd::new(ends.pop().unwrap(), shared);
    let mut seen = [0.0; LEN];
    far.exchange(&[4.0; LEN], 0.5, &mut seen).unwrap();
    assert_eq!(seen, [8.0; LEN]);
    near.exchange(&[6.0; LEN], 0.5, &mut seen).unwrap();
    assert_eq!(seen, [6.0; LEN], "the mean of 8 and 4");
    drop(far);
    let error = serving.join().unwrap().unwrap_err();
    assert!(matches!(error, CommError::PeerLost { rank: 2, peer: 1, .. }), "{error}");
    let error = near.exchange(&[6.0; LEN], 0.5, &mut seen).unwrap_err();
    assert!(matches!(error, CommError::PeerLost { rank: 0, peer: 1, .. }), "{error}");
}
