//! The ways to sum over all ranks: each in its documented order under 1,000 seeds, over threads as over the simulated network,
//! tree and doubling with the same bits, and no way around a rank that is gone.

use std::time::Duration;

use quadrille_comm::CommError;
use quadrille_comm::choice::{Algorithm, Choice, Way};
use quadrille_comm::collective::Collective;
use quadrille_comm::protocol::ElasticMember;
use quadrille_comm::protocol::sync_easgd::SyncEasgd;
use quadrille_comm::protocol::sync_sgd::SyncSgd;
use quadrille_comm::transport::sim::{self, Kill};
use quadrille_comm::transport::threads::{ThreadTransport, endpoints};
use quadrille_comm::transport::{Transport, sim::SimTransport};

const WAYS: [Algorithm; 3] = [Algorithm::Tree, Algorithm::Doubling, Algorithm::Ring];
const SIZES: [usize; 7] = [1, 2, 3, 4, 5, 7, 8];
const SEEDS: u64 = 1_000;
/// Lengths with fewer values than ranks, and with pieces that are not equal.
const LENS: [usize; 4] = [0, 1, 3, 13];

type Bits = Vec<u32>;

/// Terms of such magnitudes that another order of addition gives other bits.
fn terms(rank: usize, len: usize) -> Vec<f32> {
    let scale = [1.0, 1e-3, 37.0, 0.11, 5e3, 1e-5, 3.3, 0.7][rank];
    (0..len).map(|index| scale * (0.3 + index as f32 / 7.0 - rank as f32 / 3.0)).collect()
}

fn fixed(way: Algorithm) -> Way {
    Way::packed(Choice::Fixed(way))
}

fn bits(values: &[f32]) -> Bits {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Pairs of neighbours, then pairs of pairs, and so on.
fn in_pairs(terms: &[f32]) -> f32 {
    let mut sums = terms.to_vec();
    let mut step = 1;
    while step < sums.len() {
        for rank in (0..sums.len() - step).step_by(2 * step) {
            sums[rank] += sums[rank + step];
        }
        step *= 2;
    }
    sums[0]
}

/// From the rank of the piece on around the ring.
fn around(terms: &[f32], piece: usize) -> f32 {
    let ranks = terms.len();
    (1..ranks).fold(terms[piece], |sum, step| sum + terms[(piece + step) % ranks])
}

/// What every rank gets.
fn in_order(way: Algorithm, ranks: usize, len: usize) -> Bits {
    let each: Vec<Vec<f32>> = (0..ranks).map(|rank| terms(rank, len)).collect();
    let value = |index: usize| {
        let terms: Vec<f32> = each.iter().map(|terms| terms[index]).collect();
        // The piece in which the value lies: the last whose begin is not behind it.
        let piece = (0..ranks).filter(|piece| len * piece / ranks <= index).max().unwrap_or(0);
        if way == Algorithm::Ring { around(&terms, piece) } else { in_pairs(&terms) }
    };
    (0..len).map(|index| value(index).to_bits()).collect()
}

/// Three sums, of which the last is compared: what is left from one must not come into the next.
fn rank<T: Transport>(transport: T, way: Algorithm, len: usize) -> Result<Bits, CommError> {
    let mut group = Collective::new(transport).going(fixed(way));
    let (mut misses, mut values) = (Vec::new(), Vec::new());
    for exchange in 0..3 {
        values = terms(group.rank(), len);
        group.all_reduce_sum(&mut values, exchange)?;
        misses.push(group.pool_misses());
    }
    assert_eq!(misses[0], misses[2], "rank {} of {}: nothing is allocated later", group.rank(), group.size());
    Ok(bits(&values))
}

fn on_threads<R: Send>(size: usize, body: impl Fn(ThreadTransport) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let start = |end| scope.spawn(move || body(end));
        let threads: Vec<_> = endpoints(size, Duration::from_secs(60)).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

fn served(way: Algorithm) -> impl Iterator<Item = usize> {
    SIZES.into_iter().filter(move |size| way.serves(*size))
}

#[test]
fn every_way_adds_in_its_order_whatever_comes_first() {
    for way in WAYS {
        for size in served(way) {
            for len in LENS {
                let expected = vec![Ok(in_order(way, size, len)); size];
                let seeds = if len == LENS[3] { SEEDS } else { 50 };
                for seed in 0..seeds {
                    let got = sim::run(size, seed, |end| rank(end, way, len)).unwrap();
                    assert_eq!(got, expected, "{way}, {size} ranks, {len} values, seed {seed}");
                }
                assert_eq!(on_threads(size, |end| rank(end, way, len)), expected, "{way} on {size} threads");
            }
        }
    }
}

#[test]
fn doubling_has_the_bits_of_the_tree_and_the_ring_has_others() {
    let mut different = 0;
    for size in [2, 4, 8] {
        assert_eq!(in_order(Algorithm::Tree, size, 13), in_order(Algorithm::Doubling, size, 13));
        different += u32::from(in_order(Algorithm::Tree, size, 13) != in_order(Algorithm::Ring, size, 13));
    }
    assert_eq!(different, 2, "two terms have one order only");
    // The same among themselves, as programs over a transport.
    for (size, seed) in [(2, 0), (4, 1), (8, 2)] {
        let [tree, doubling] = [Algorithm::Tree, Algorithm::Doubling]
            .map(|way| sim::run(size, seed, |end| rank(end, way, 13)).unwrap());
        assert_eq!(tree, doubling);
    }
}

/// Sync EASGD whose weights follow what they saw; all that was seen, as bits.
fn easgd<T: Transport>(transport: T, way: Algorithm) -> Result<Bits, CommError> {
    let me = transport.rank();
    let mut method = SyncEasgd::going(transport, &terms(0, 13), fixed(way));
    let (mut weights, mut centre, mut seen) = (terms(me, 13), vec![0.0; 13], Bits::new());
    for _ in 0..3 {
        method.exchange(&weights, 0.3, &mut centre)?;
        seen.extend(bits(&centre));
        weights.iter_mut().zip(&centre).for_each(|(weight, centre)| *weight += 0.37 * centre);
    }
    method.centre(&mut centre)?;
    seen.extend(bits(&centre));
    Ok(seen)
}

/// Sync SGD on weights that are equal everywhere.
fn sgd<T: Transport>(transport: T, way: Algorithm) -> Result<Bits, CommError> {
    let me = transport.rank();
    let mut method = SyncSgd::new(transport).going(fixed(way));
    let mut weights = terms(0, 13);
    for _ in 0..3 {
        let mut gradient: Vec<f32> = weights.iter().zip(terms(me, 13)).map(|(w, t)| 0.1 * w + t).collect();
        method.exchange(&mut gradient)?;
        weights.iter_mut().zip(&gradient).for_each(|(weight, gradient)| *weight -= 0.1 * gradient);
    }
    Ok(bits(&weights))
}

/// A method as one rank runs it.
type Body<T> = fn(T, Algorithm) -> Result<Bits, CommError>;

#[test]
fn methods_give_the_same_bits_by_tree_and_doubling_under_all_seeds() {
    let bodies: [(Body<SimTransport>, Body<ThreadTransport>); 2] = [(easgd, easgd), (sgd, sgd)];
    for (body, threaded) in bodies {
        for size in SIZES {
            let tree = sim::run(size, 0, |end| body(end, Algorithm::Tree)).unwrap();
            assert!(tree.iter().all(|rank| rank == &tree[0] && rank.is_ok()), "one centre, one net");
            for way in [Algorithm::Doubling, Algorithm::Ring].into_iter().filter(|way| way.serves(size)) {
                let first = sim::run(size, 0, |end| body(end, way)).unwrap();
                assert!(first.iter().all(|rank| rank == &first[0] && rank.is_ok()));
                assert_eq!(first == tree, way.order() == "pairs" || size <= 2, "{way}, {size} ranks");
                for seed in 1..SEEDS {
                    let again = sim::run(size, seed, |end| body(end, way)).unwrap();
                    assert_eq!(again, first, "{way}, {size} ranks, seed {seed}");
                }
                assert_eq!(on_threads(size, |end| threaded(end, way)), first, "{way} on {size} threads");
            }
        }
    }
}

#[test]
fn whoever_dies_all_others_learn_of_it_or_have_the_whole_sum() {
    for way in [Algorithm::Doubling, Algorithm::Ring] {
        for size in served(way).filter(|size| *size > 1) {
            let expected = in_order(way, size, 13);
            for victim in 0..size {
                let mut tried = 0;
                for operation in 0.. {
                    let mut ended = false;
                    for seed in 0..10 {
                        let kill = Kill { rank: victim, operation };
                        let ranks = sim::run_with_kill(size, seed, kill, |end| rank(end, way, 13)).unwrap();
                        let context = format!("{way}, {size} ranks, {kill:?}, seed {seed}");
                        ended = ranks[victim].is_ok();
                        tried += u32::from(!ended);
                        for (other, result) in ranks.iter().enumerate().filter(|(other, _)| *other != victim)
                        {
                            match result {
                                Ok(bits) => assert_eq!(*bits, expected, "rank {other}: {context}"),
                                Err(error) => {
                                    assert!(
                                        error.peer().is_some_and(|peer| peer != other),
                                        "{context}: {error}"
                                    );
                                }
                            }
                        }
                        if !ended && operation < 2 {
                            assert!(ranks.iter().all(Result::is_err), "somebody noticed nothing: {context}");
                        }
                    }
                    if ended {
                        break;
                    }
                }
                assert!(tried > 20, "{way}, {size} ranks: {tried}");
            }
        }
    }
}

#[test]
fn doubling_over_three_ranks_is_refused() {
    let out = sim::run(3, 0, |end| rank(end, Algorithm::Doubling, 4)).unwrap();
    assert!(out.iter().all(|rank| matches!(rank, Err(CommError::Protocol { .. }))), "{out:?}");
}

#[test]
fn messages_are_as_many_and_as_large_as_the_model_says() {
    for (way, size, messages, bytes) in [
        (Algorithm::Tree, 8, 14, 14 * 64),
        (Algorithm::Doubling, 8, 24, 24 * 64),
        (Algorithm::Ring, 8, 8 * 14, 8 * 14 * (8 + 4)),
        (Algorithm::Ring, 5, 5 * 8, 5 * 8 * (16 + 4)),
    ] {
        let traffic = sim::run(size, 0, |end| {
            let mut group = Collective::new(end).going(fixed(way));
            group.all_reduce_sum(&mut [1.0; 16], 0).unwrap();
            group.traffic()
        })
        .unwrap();
        let sum = |of: fn(&quadrille_comm::collective::Traffic) -> u64| traffic.iter().map(of).sum::<u64>();
        assert_eq!((sum(|t| t.messages), sum(|t| t.bytes)), (messages, bytes), "{way}, {size} ranks");
    }
}

/// Three arrays with zeros between them, in messages of their own or as one.
fn in_parts<T: Transport>(transport: T, way: Algorithm, parts: &[std::ops::Range<usize>]) -> (Bits, u64) {
    let me = transport.rank();
    let way = Way { choice: Choice::Fixed(way), parts: parts.to_vec() };
    let mut first = terms(0, 13);
    (first[4], first[12]) = (0.0, 0.0);
    let mut elastic = SyncEasgd::going(transport, &first, way);
    let (mut centre, mut seen) = (vec![0.0; 13], Bits::new());
    let mut misses = 0;
    for step in 0..4 {
        let mut weights = terms(me, 13);
        (weights[4], weights[12]) = (0.0, 0.0);
        elastic.exchange(&weights, 0.1, &mut centre).expect("nobody is lost");
        seen.extend(bits(&centre));
        if step == 1 {
            misses = elastic.pool_misses();
        }
    }
    assert_eq!(elastic.pool_misses(), misses, "nothing is allocated later");
    let mut sum = [1.0, 2.0];
    elastic.all_reduce_sum(&mut sum).expect("nobody is lost");
    seen.extend(bits(&sum));
    (seen, elastic.traffic().messages)
}

#[test]
fn a_message_for_each_array_changes_no_bit() {
    let parts = [0..4, 5..6, 6..12];
    for way in [Algorithm::Tree, Algorithm::Doubling] {
        for size in served(way) {
            let packed = sim::run(size, 0, |end| in_parts(end, way, &[])).unwrap();
            for seed in 0..SEEDS / 10 {
                let apart = sim::run(size, seed, |end| in_parts(end, way, &parts)).unwrap();
                for (apart, packed) in apart.iter().zip(&packed) {
                    assert_eq!(apart.0, packed.0, "{way}, {size} ranks, seed {seed}");
                    // Four exchanges and a sum of two values, which travel as one.
                    let sum = packed.1 / 5;
                    assert!(packed.1.is_multiple_of(5) || way == Algorithm::Tree);
                    let exchanges = packed.1 - sum;
                    if way == Algorithm::Doubling {
                        assert_eq!(apart.1, 3 * exchanges + sum, "{size} ranks");
                    }
                    // Of a tree not all ranks send as often.
                    assert!(packed.1 == 0 || apart.1 > packed.1, "{way}, {size} ranks");
                }
            }
        }
    }
}

#[test]
fn what_travels_in_parts_never_goes_around_the_ring() {
    let parts = vec![0..6, 6..13];
    let out = sim::run(3, 0, |end| {
        let group =
            Collective::new(end).going(Way { choice: Choice::Fixed(Algorithm::Ring), parts: parts.clone() });
        group.algorithm(13)
    });
    assert_eq!(out.unwrap(), [Algorithm::Tree; 3]);
}
