//! Made-up training: what a worker of each method does, over any transport.
//!
//! Weights are a few numbers, and the gradient is a made-up function of weight, rank, step and index, which is all that a
//! protocol needs to know about a net. In the middle and at the end all workers ask for the centre and add something up, as
//! for a test.

use quadrille_comm::CommError;
use quadrille_comm::protocol::ElasticMember;
use quadrille_comm::protocol::async_easgd::{AsyncEasgd, ElasticCentre};
use quadrille_comm::protocol::async_sgd::{AsyncSgd, GradientCentre};
use quadrille_comm::protocol::original_easgd::{OriginalEasgd, RoundRobin};
use quadrille_comm::protocol::parameter_server::{Centre, ParameterServer};
use quadrille_comm::transport::Transport;
use quadrille_core::layer::Filler;
use quadrille_core::net::{ParamLayout, ParamRule, ParamView};
use quadrille_core::shape::Shape;
use quadrille_core::solver::{PackedRule, Rule};

/// Values of the made-up net: one parameter without padding.
pub const LEN: usize = 16;
/// Iterations before the test in the middle, and as many after it.
pub const HALF: usize = 2;
/// ηρ.
pub const ELASTIC: f32 = 0.3;
/// η.
pub const RATE: f32 = 0.1;
/// μ of the methods that have momentum.
pub const MOMENTUM: f32 = 0.9;

/// Values as bits: comparing them is stricter than comparing values.
pub type Bits = Vec<u32>;

pub fn bits(values: &[f32]) -> Bits {
    values.iter().map(|value| value.to_bits()).collect()
}

pub fn first_centre() -> [f32; LEN] {
    std::array::from_fn(|index| 0.7 - index as f32 / 3.0)
}

/// Other weights on each worker, so that the first exchanges can be told apart, too.
pub fn first_weights(rank: usize) -> [f32; LEN] {
    first_centre().map(|value| value + 0.01 * rank as f32)
}

pub fn gradient(weight: f32, rank: usize, step: usize, index: usize) -> f32 {
    // Magnitudes differ by rank, so that another order of exchanges gives other bits.
    let scale = [1.0, 1e-2, 7.0, 0.11, 3.0][rank];
    scale * ((0.1 * weight).sin() - 0.1 * (step * LEN + index) as f32)
}

/// The rule of the gradient methods.
pub fn rule(momentum: f32) -> PackedRule {
    packed(Rule::sgd(momentum, 0.01))
}

/// A rule for one parameter that has twice the rate.
pub fn packed(rule: Rule) -> PackedRule {
    let view = ParamView {
        name: "p/0".to_owned(),
        shape: Shape::new([LEN]),
        offset: 0,
        rule: ParamRule::Gradient,
        lr_mult: 2.0,
        decay_mult: 1.0,
        filler: Filler::default(),
    };
    PackedRule::new(&ParamLayout::from_iter([view]), rule, 1)
}

/// What a rank has seen.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Seen {
    /// What a worker sent and what came back, in its own order.
    pub exchanges: Vec<(Bits, Bits)>,
    /// The centre for all, in the middle and at the end; a master's last one.
    pub centres: Vec<Bits>,
    /// Sums over the workers.
    pub sums: Bits,
    /// What a master was sent, in the order in which it served it.
    pub served: Vec<Bits>,
}

/// A rank's code.
pub type Body<T> = fn(T) -> Result<Seen, CommError>;

/// A worker of an elastic method.
pub fn elastic<M: ElasticMember>(mut member: M) -> Result<Seen, CommError> {
    let rank = member.rank();
    let mut weights = first_weights(rank);
    let mut seen = Seen::default();
    let mut centre = [0.0; LEN];
    for step in 0..2 * HALF {
        if step == HALF {
            ask_all(&mut member, &mut seen, rank)?;
        }
        member.begin_turn()?;
        let sent = bits(&weights);
        member.exchange(&weights, ELASTIC, &mut centre)?;
        member.end_turn()?;
        seen.exchanges.push((sent, bits(&centre)));
        for (index, weight) in weights.iter_mut().enumerate() {
            let pull = ELASTIC * (*weight - centre[index]);
            *weight = *weight - RATE * gradient(*weight, rank, step, index) - pull;
        }
    }
    ask_all(&mut member, &mut seen, rank)?;
    member.leave()?;
    Ok(seen)
}

fn ask_all<M: ElasticMember>(member: &mut M, seen: &mut Seen, rank: usize) -> Result<(), CommError> {
    let mut centre = [0.0; LEN];
    member.centre(&mut centre)?;
    let mut sum = [rank as f32 + centre[0]];
    member.all_reduce_sum(&mut sum)?;
    seen.centres.push(bits(&centre));
    seen.sums.push(sum[0].to_bits());
    Ok(())
}

/// A worker of Async SGD and Async MSGD.
pub fn descending<T: Transport>(transport: T) -> Result<Seen, CommError> {
    let (mut weights, rank) = (first_centre(), transport.rank());
    let mut worker = AsyncSgd::new(transport, LEN);
    let mut seen = Seen::default();
    for step in 0..2 * HALF {
        if step == HALF {
            ask_server(&mut worker, &mut seen, rank)?;
        }
        let mut values: [f32; LEN] = std::array::from_fn(|index| gradient(weights[index], rank, step, index));
        let sent = bits(&values);
        worker.exchange(&mut values, RATE)?;
        seen.exchanges.push((sent, bits(&values)));
        weights = values;
    }
    ask_server(&mut worker, &mut seen, rank)?;
    worker.leave()?;
    Ok(seen)
}

fn ask_server<T: Transport>(worker: &mut AsyncSgd<T>, seen: &mut Seen, rank: usize) -> Result<(), CommError> {
    let mut state = [0.0; 2 * LEN];
    worker.state(&mut state)?;
    let mut sum = [rank as f32 + state[0]];
    worker.all_reduce_sum(&mut sum)?;
    seen.centres.push(bits(&state));
    seen.sums.push(sum[0].to_bits());
    Ok(())
}

/// A centre that writes down what it is sent.
struct Logged<C> {
    centre: C,
    served: Vec<Bits>,
}

impl<C: Centre> Centre for Logged<C> {
    fn weights(&self) -> &[f32] {
        self.centre.weights()
    }

    fn history(&self) -> &[f32] {
        self.centre.history()
    }

    fn serve(&mut self, values: &mut [f32], number: f32) {
        self.served.push(bits(values));
        self.centre.serve(values, number);
    }
}

fn serve<T: Transport>(transport: T, centre: impl Centre) -> Result<Seen, CommError> {
    let logged = Logged { centre, served: Vec::new() };
    let (Logged { centre, served }, _) = ParameterServer::new(transport, logged).serve()?;
    let last = [centre.weights(), centre.history()].concat();
    Ok(Seen { centres: vec![bits(&last)], served, ..Seen::default() })
}

fn is_master<T: Transport>(transport: &T) -> bool {
    transport.rank() + 1 == transport.size()
}

/// A rank of Original EASGD; the last one is the master.
pub fn original<T: Transport>(transport: T) -> Result<Seen, CommError> {
    if !is_master(&transport) {
        return elastic(OriginalEasgd::new(transport, LEN));
    }
    let (centre, _) = RoundRobin::new(transport, &first_centre()).serve()?;
    Ok(Seen { centres: vec![bits(&centre)], ..Seen::default() })
}

/// A rank of Async EASGD; the last one is the master.
pub fn async_easgd<T: Transport>(transport: T) -> Result<Seen, CommError> {
    if !is_master(&transport) {
        return elastic(AsyncEasgd::new(transport, LEN));
    }
    serve(transport, ElasticCentre::new(&first_centre()))
}

/// A rank of Async SGD; the last one is the master.
pub fn async_sgd<T: Transport>(transport: T) -> Result<Seen, CommError> {
    if !is_master(&transport) {
        return descending(transport);
    }
    serve(transport, GradientCentre::new(rule(0.0), &first_centre(), &[0.0; LEN], 0))
}

/// A rank of Async MSGD; the last one is the master.
pub fn async_msgd<T: Transport>(transport: T) -> Result<Seen, CommError> {
    if !is_master(&transport) {
        return descending(transport);
    }
    serve(transport, GradientCentre::new(rule(MOMENTUM), &first_centre(), &[0.0; LEN], 0))
}
