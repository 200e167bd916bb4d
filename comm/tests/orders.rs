//! Every protocol under 1,000 seeds of the simulated network: no deadlock, and the same bits as one plain program.

mod reference;

use quadrille_comm::protocol::ElasticMember;
use quadrille_comm::protocol::sync_easgd::SyncEasgd;
use quadrille_comm::protocol::sync_sgd::SyncSgd;
use quadrille_comm::transport::{Transport, sim};

const SIZES: [usize; 6] = [1, 2, 3, 4, 5, 7];
const SEEDS: u64 = 1_000;

#[test]
fn sync_easgd_does_not_depend_on_the_order_of_arrival() {
    for size in SIZES {
        let expected = reference::easgd_in_order(size);
        for seed in 0..SEEDS {
            let ranks = sim::run(size, seed, reference::easgd_rank).unwrap();
            for (rank, (got, expected)) in ranks.iter().zip(&expected).enumerate() {
                assert_eq!(got.as_ref(), Ok(expected), "rank {rank} of {size}, seed {seed}");
            }
        }
    }
}

#[test]
fn sync_sgd_does_not_depend_on_the_order_of_arrival() {
    for size in SIZES {
        let expected = reference::sgd_in_order(size);
        for seed in 0..SEEDS {
            let ranks = sim::run(size, seed, reference::sgd_rank).unwrap();
            for (rank, (got, expected)) in ranks.iter().zip(&expected).enumerate() {
                assert_eq!(got.as_ref(), Ok(expected), "rank {rank} of {size}, seed {seed}");
            }
        }
    }
}

#[test]
fn the_centre_follows_equation_two_exactly_on_small_integers() {
    // ηρ = 1/2 and integer weights: every value is a multiple of 2⁻⁴ and small, so f32 is exact and so is i64 in
    // units of 1/16. The sum here runs over the workers one by one, as the paper writes it.
    let weight = |rank: usize, step: usize, index: usize| (rank * 7 + step * 5 + index * 3) as i64 % 11 - 5;
    for size in SIZES {
        let mut centre = [48_i64, -32, 16];
        let mut expected = vec![];
        for step in 0..3 {
            expected.push(centre);
            for (index, centre) in centre.iter_mut().enumerate() {
                let before = *centre;
                for rank in 0..size {
                    let difference = 16 * weight(rank, step, index) - before;
                    assert_eq!(difference % 2, 0, "the test itself is exact");
                    *centre += difference / 2;
                }
            }
        }
        expected.push(centre);
        let ranks = sim::run(size, 42, |transport| {
            let rank = transport.rank();
            let mut method = SyncEasgd::new(transport, &[3.0, -2.0, 1.0]);
            let mut seen = [0.0; 3];
            let mut all = vec![];
            for step in 0..3 {
                let weights: [f32; 3] = std::array::from_fn(|index| weight(rank, step, index) as f32);
                method.exchange(&weights, 0.5, &mut seen).unwrap();
                all.push(seen.map(|value| (16.0 * value) as i64));
            }
            method.centre(&mut seen).unwrap();
            all.push(seen.map(|value| (16.0 * value) as i64));
            all
        })
        .unwrap();
        assert_eq!(ranks, vec![expected; size], "{size} ranks");
    }
}

#[test]
fn the_mean_is_exact_on_small_integers() {
    for size in [1, 2, 4] {
        let ranks = sim::run(size, 7, |transport| {
            let mut gradient = [4.0 * transport.rank() as f32, -8.0];
            SyncSgd::new(transport).exchange(&mut gradient).unwrap();
            gradient
        });
        let mean = 4.0 * (0..size).sum::<usize>() as f32 / size as f32;
        assert_eq!(ranks.unwrap(), vec![[mean, -8.0]; size]);
    }
}
