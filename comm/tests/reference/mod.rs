//! The same training, twice: as a rank runs it over a transport, and as one plain program with loops over ranks.
//!
//! Weights are a few numbers; the gradient is a made-up function of weight, rank, step and index, which is all that
//! a protocol needs to know about a net.

use quadrille_comm::CommError;
use quadrille_comm::protocol::ElasticMember;
use quadrille_comm::protocol::sync_easgd::SyncEasgd;
use quadrille_comm::protocol::sync_sgd::SyncSgd;
use quadrille_comm::transport::Transport;

/// Parameters of the made-up net.
pub const LEN: usize = 5;
/// Iterations.
pub const STEPS: usize = 4;
/// ηρ.
pub const ELASTIC: f32 = 0.3;
/// η.
const RATE: f32 = 0.1;

/// The bits of everything that a rank sees: comparing them is stricter than comparing values.
pub type Bits = Vec<u32>;

fn bits(values: &[f32]) -> impl Iterator<Item = u32> + '_ {
    values.iter().map(|value| value.to_bits())
}

fn first_centre() -> [f32; LEN] {
    std::array::from_fn(|index| 0.7 - index as f32 / 3.0)
}

fn gradient(weight: f32, rank: usize, step: usize, index: usize) -> f32 {
    // Magnitudes differ by rank, so that another order of addition gives other bits.
    let scale = [1.0, 1e-3, 37.0, 0.11, 5e3, 1e-5, 3.3][rank];
    scale * (weight * weight - 0.1 * (step * LEN + index) as f32)
}

/// One rank of Sync EASGD, equation (1) on the worker: every centre seen, then the last weights, the last centre and
/// a sum over the ranks, as bits.
pub fn easgd_rank<T: Transport>(transport: T) -> Result<Bits, CommError> {
    let mut weights = first_centre();
    let rank = transport.rank();
    let mut method = SyncEasgd::new(transport, &weights);
    let mut seen = Bits::new();
    let mut centre = [0.0; LEN];
    for step in 0..STEPS {
        method.exchange(&weights, ELASTIC, &mut centre)?;
        seen.extend(bits(&centre));
        for (index, weight) in weights.iter_mut().enumerate() {
            let pull = ELASTIC * (*weight - centre[index]);
            *weight = *weight - RATE * gradient(*weight, rank, step, index) - pull;
        }
    }
    method.centre(&mut centre)?;
    let mut loss = [weights[0]];
    method.all_reduce_sum(&mut loss)?;
    seen.extend(bits(&weights).chain(bits(&centre)).chain(bits(&loss)));
    Ok(seen)
}

/// What [`easgd_rank`] returns on each of `size` ranks.
pub fn easgd_in_order(size: usize) -> Vec<Bits> {
    let mut centre = first_centre();
    let mut weights = vec![first_centre(); size];
    let mut seen = vec![Bits::new(); size];
    for step in 0..STEPS {
        let sum = tree_sum(&weights);
        for rank in 0..size {
            seen[rank].extend(bits(&centre));
            for index in 0..LEN {
                let weight = weights[rank][index];
                let pull = ELASTIC * (weight - centre[index]);
                weights[rank][index] = weight - RATE * gradient(weight, rank, step, index) - pull;
            }
        }
        for (centre, sum) in centre.iter_mut().zip(sum) {
            *centre += ELASTIC * (sum - size as f32 * *centre);
        }
    }
    let loss = tree_sum(&weights)[0];
    for rank in 0..size {
        seen[rank].extend(bits(&weights[rank]).chain(bits(&centre)).chain(bits(&[loss])));
    }
    seen
}

/// One rank of Sync SGD: the weights after each step, as bits.
pub fn sgd_rank<T: Transport>(transport: T) -> Result<Bits, CommError> {
    let mut weights = first_centre();
    let rank = transport.rank();
    let mut method = SyncSgd::new(transport);
    let mut seen = Bits::new();
    for step in 0..STEPS {
        let mut mean: [f32; LEN] = std::array::from_fn(|index| gradient(weights[index], rank, step, index));
        method.exchange(&mut mean)?;
        for (weight, mean) in weights.iter_mut().zip(mean) {
            *weight -= RATE * mean;
        }
        seen.extend(bits(&weights));
    }
    Ok(seen)
}

/// What [`sgd_rank`] returns on each of `size` ranks.
pub fn sgd_in_order(size: usize) -> Vec<Bits> {
    let mut weights = first_centre();
    let mut seen = Bits::new();
    for step in 0..STEPS {
        let local = |rank| std::array::from_fn(|index| gradient(weights[index], rank, step, index));
        let sum = tree_sum(&(0..size).map(local).collect::<Vec<[f32; LEN]>>());
        for (weight, sum) in weights.iter_mut().zip(sum) {
            *weight -= RATE * (sum * (1.0 / size as f32));
        }
        seen.extend(bits(&weights));
    }
    vec![seen; size]
}

/// The sum in the documented order: pairs of neighbours, then pairs of pairs, and so on.
fn tree_sum(terms: &[[f32; LEN]]) -> [f32; LEN] {
    let mut sums = terms.to_vec();
    let mut step = 1;
    while step < sums.len() {
        for rank in (0..sums.len() - step).step_by(2 * step) {
            let right = sums[rank + step];
            sums[rank].iter_mut().zip(right).for_each(|(sum, term)| *sum += term);
        }
        step *= 2;
    }
    sums[0]
}
