//! What the master served, done again by one plain program: every exchange once, each worker's in its own order, and every
//! reply what that order of exchanges makes it.

use crate::training::{
    Bits, ELASTIC, HALF, LEN, MOMENTUM, RATE, Seen, bits, first_centre, first_weights, gradient, rule,
};

fn values(bits: &Bits) -> Vec<f32> {
    bits.iter().map(|bits| f32::from_bits(*bits)).collect()
}

/// A centre as a plain program has it.
pub struct Replay {
    centre: Vec<f32>,
    history: Option<Vec<f32>>,
    momentum: f32,
    elastic: bool,
}

impl Replay {
    pub fn elastic() -> Self {
        Replay { centre: first_centre().to_vec(), history: None, momentum: 0.0, elastic: true }
    }

    pub fn descending(momentum: f32) -> Self {
        Replay { centre: first_centre().to_vec(), history: Some(vec![0.0; LEN]), momentum, elastic: false }
    }

    fn exchange(&mut self, sent: &[f32]) -> Vec<f32> {
        if self.elastic {
            let before = self.centre.clone();
            for (centre, weight) in self.centre.iter_mut().zip(sent) {
                *centre += ELASTIC * (weight - *centre);
            }
            return before;
        }
        // The parameter's factors are those of the training's rule: twice the rate, the decay as it is.
        let (rate, decay) = (2.0 * RATE, rule(0.0).rule().weight_decay);
        let history = self.history.as_mut().expect("a history");
        for ((weight, history), gradient) in self.centre.iter_mut().zip(history).zip(sent) {
            *history = self.momentum * *history + rate * (gradient + decay * *weight);
            *weight -= *history;
        }
        self.centre.clone()
    }

    fn state(&self) -> Bits {
        bits(&[self.centre.as_slice(), self.history.as_deref().unwrap_or_default()].concat())
    }
}

/// Checks a run with a master that wrote down what it served. Returns the order of the workers that were served.
pub fn check(ranks: &[Seen], mut replay: Replay, context: &str) -> Vec<usize> {
    let (master, workers) = ranks.split_last().expect("a master");
    let mut next = vec![0; workers.len()];
    let mut order = Vec::new();
    assert_eq!(master.served.len(), workers.len() * 2 * HALF, "{context}");
    for (number, sent) in master.served.iter().enumerate() {
        if number == workers.len() * HALF {
            // All have had the first half, and nobody has begun the second.
            assert!(next.iter().all(|next| *next == HALF), "{context}");
            check_centre(workers, 0, &replay, context);
        }
        let mine = |(worker, next): (usize, &usize)| {
            workers[worker].exchanges.get(*next).is_some_and(|(own, _)| own == sent).then_some(worker)
        };
        let worker = next.iter().enumerate().find_map(mine);
        let worker = worker.unwrap_or_else(|| panic!("nobody's exchange, or not its next one: {context}"));
        let reply = replay.exchange(&values(sent));
        assert_eq!(workers[worker].exchanges[next[worker]].1, bits(&reply), "worker {worker}, {context}");
        next[worker] += 1;
        order.push(worker);
    }
    check_centre(workers, 1, &replay, context);
    assert_eq!(master.centres, [replay.state()], "{context}");
    order
}

fn check_centre(workers: &[Seen], which: usize, replay: &Replay, context: &str) {
    for (rank, worker) in workers.iter().enumerate() {
        assert_eq!(worker.centres[which], replay.state(), "worker {rank}, {context}");
    }
}

/// What every rank of Original EASGD sees, by one plain program.
pub fn original_in_order(workers: usize) -> Vec<Seen> {
    let mut replay = Replay::elastic();
    let mut weights: Vec<_> = (0..workers).map(first_weights).collect();
    let mut seen = vec![Seen::default(); workers];
    for step in 0..2 * HALF {
        if step == HALF {
            all_see(&mut seen, &replay);
        }
        for rank in 0..workers {
            let centre = replay.exchange(&weights[rank]);
            seen[rank].exchanges.push((bits(&weights[rank]), bits(&centre)));
            for (index, weight) in weights[rank].iter_mut().enumerate() {
                let pull = ELASTIC * (*weight - centre[index]);
                *weight = *weight - RATE * gradient(*weight, rank, step, index) - pull;
            }
        }
    }
    all_see(&mut seen, &replay);
    seen.push(Seen { centres: vec![replay.state()], ..Seen::default() });
    seen
}

fn all_see(seen: &mut [Seen], replay: &Replay) {
    let sum = tree_sum((0..seen.len()).map(|rank| rank as f32 + replay.centre[0]).collect());
    for seen in seen {
        seen.centres.push(replay.state());
        seen.sums.push(sum.to_bits());
    }
}

/// The sum in the documented order: pairs of neighbours, then pairs of pairs, and so on.
fn tree_sum(mut terms: Vec<f32>) -> f32 {
    let mut step = 1;
    while step < terms.len() {
        for rank in (0..terms.len() - step).step_by(2 * step) {
            terms[rank] += terms[rank + step];
        }
        step *= 2;
    }
    terms[0]
}

/// The momentum of Async MSGD is in the training's rule.
#[test]
fn the_plain_program_has_the_rule_of_the_training() {
    let training = rule(MOMENTUM);
    let (mut weights, mut history) = (first_centre().to_vec(), vec![0.0; LEN]);
    let mut replay = Replay::descending(MOMENTUM);
    for step in 0..3 {
        let gradient: Vec<f32> = (0..LEN).map(|index| gradient(weights[index], 1, step, index)).collect();
        training.apply(step as u64, RATE, &mut weights, &gradient, &mut history);
        assert_eq!(bits(&replay.exchange(&gradient)), bits(&weights));
    }
}
