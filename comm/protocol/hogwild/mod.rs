//! Hogwild SGD (Recht et al., 2011) and Hogwild EASGD (SC17): workers change one centre in shared memory, several at once.
//!
//! ```text
//!     Hogwild SGD:     worker i computes ΔW_i at W_i;  W̄ ← W̄ − η ΔW_i  value by value;  W_i ← W̄
//!     Hogwild EASGD:   worker i reads W̄ and lets W̄ ← W̄ + ηρ (W_i − W̄)  value by value;
//!                      equation (1), or (5) and (6), with the W̄ that it read
//! ```
//!
//! These are Async SGD and Async EASGD without the master: there is no request, no reply and nobody to wait for. Momentum is
//! a worker's own under Hogwild EASGD; Hogwild SGD has none, since a history that several change at once would be nobody's.
//!
//! **No change of a value is lost**, though what a worker reads may be of different moments: see [`SharedCentre`]. So with
//! gradients whose sums are exact the centre of Hogwild SGD is the first one minus the sum of all `η ΔW`, without decay.
//!
//! **The centre for all.** Workers meet: each tells all others that it has come, and waits for all others. Then nobody is
//! inside an exchange, all read the same centre, and a sum over all keeps anybody from going on before all have read. Other sums
//! over the workers begin with a meeting, too.
//!
//! **It ends.** An exchange waits for nobody: a change of a value starts again only if another one has succeeded. At a meeting
//! each worker sends before it waits, and every worker comes to it. Workers drift apart, and the first may wait for long;
//! so a worker that exchanges looks who waits, and tells them that it is on its way. Each of these waits is bounded by the
//! peer timeout, and names the worker that is missing. A worker that dies leaves a mark beside the centre, which each of the
//! others finds at its next exchange.
//!
//! Messages are empty but at meetings; the traffic is in memory. Workers in other processes have somebody there who changes
//! the centre for them, without a lock as they would ([`Attendant`]).

mod attendant;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use quadrille_core::solver::{PackedRule, RuleKind};

use attendant::Far;

pub use attendant::Attendant;
pub use shared::SharedCentre;

use super::ElasticMember;
use super::letter::Meaning;
use crate::collective::{Collective, Traffic};
use crate::error::{CommError, Doing};
use crate::transport::{Buffer, Kind, Tag, Transport};

/// What both methods share: the centre, and the meetings of all workers.
struct Commons<T: Transport> {
    group: Collective<T>,
    centre: Centre,
    /// The number of the next collective call; the same on all workers.
    next: u64,
    /// Whether this worker's part has ended in good order.
    left: bool,
    /// How long the centre took to change so far, as far as that is told from the way to it.
    updating: Duration,
}

/// Where the centre is.
enum Centre {
    /// In memory of this process.
    Near(Arc<SharedCentre>),
    /// In another process, where somebody changes it for this worker.
    Far(Far),
}

impl Centre {
    fn len(&self) -> usize {
        match self {
            Centre::Near(shared) => shared.len(),
            Centre::Far(far) => far.len(),
        }
    }
}

impl<T: Transport> Drop for Commons<T> {
    fn drop(&mut self) {
        if let (false, Centre::Near(shared)) = (self.left, &self.centre) {
            shared.set_lost(self.group.rank());
        }
    }
}

impl<T: Transport> Commons<T> {
    fn near(transport: T, shared: Arc<SharedCentre>) -> Self {
        let group = Collective::among(transport, shared.workers());
        Self::of(group, Centre::Near(shared))
    }

    fn far(transport: T, workers: usize, len: usize) -> Self {
        let centre = Centre::Far(Far::new(transport.rank(), workers, len));
        Self::of(Collective::among(transport, workers), centre)
    }

    fn of(group: Collective<T>, centre: Centre) -> Self {
        Commons { group, centre, next: 0, left: false, updating: Duration::ZERO }
    }

    /// Looks at the others after an exchange: tells those who wait for this worker that it is on its way, and fails if one
    /// is lost.
    fn look_around(&mut self) -> Result<(), CommError> {
        self.group.keep_order();
        let own = self.group.rank();
        let mut tell = |other: usize| match other == own {
            true => Ok(()),
            false => self.group.send(other, MEETING, Buffer::default()),
        };
        match &self.centre {
            Centre::Near(shared) => {
                if let Some(peer) = shared.first_lost() {
                    return Err(CommError::PeerLost { rank: own, peer, doing: Doing::Sending(MEETING) });
                }
                shared.waiting().try_for_each(&mut tell)
            }
            Centre::Far(far) => far.waiting().try_for_each(&mut tell),
        }
    }

    /// Lets the others know whether this worker waits for them.
    fn set_waiting(&mut self, waits: bool) -> Result<(), CommError> {
        match &self.centre {
            Centre::Near(shared) => {
                shared.set_waiting(self.group.rank(), waits);
                Ok(())
            }
            Centre::Far(far) => far.say(&mut self.group, Meaning::NotYet, f32::from(waits)),
        }
    }

    /// Waits until every worker has come here as often.
    fn meet(&mut self) -> Result<(), CommError> {
        let (own, size) = (self.group.rank(), self.group.size());
        self.group.keep_order();
        self.set_waiting(true)?;
        for other in (0..size).filter(|other| *other != own) {
            self.group.send(other, MEETING, Buffer::zeros(1))?;
        }
        for other in (0..size).filter(|other| *other != own) {
            // An empty message says that the other is on its way; it may also be left from the meeting before.
            while self.group.receive_any_length(other, MEETING)?.is_empty() {}
        }
        self.set_waiting(false)
    }

    fn centre(&mut self, out: &mut [f32]) -> Result<(), CommError> {
        self.check_len(out.len())?;
        self.meet()?;
        match &mut self.centre {
            Centre::Near(shared) => shared.read(out),
            Centre::Far(far) => far.ask(&mut self.group, Meaning::Centre, 0.0, out)?,
        }
        self.sum(&mut [0.0])
    }

    /// A sum begins with a meeting, since workers may have drifted further apart than it would wait.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.meet()?;
        self.sum(values)
    }

    fn sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.next += 1;
        self.group.all_reduce_sum(values, self.next - 1)
    }

    /// Nobody is waited for: who has left is not missed.
    fn leave(&mut self) -> Result<(), CommError> {
        self.left = true;
        match &self.centre {
            Centre::Near(_) => Ok(()),
            Centre::Far(far) => far.say(&mut self.group, Meaning::Leave, 0.0),
        }
    }

    fn check_len(&self, got: usize) -> Result<(), CommError> {
        let len = self.centre.len();
        if got == len {
            return Ok(());
        }
        let problem = format!("the centre has {len} values, but a buffer of {got} was given");
        Err(CommError::Protocol { rank: self.group.rank(), peer: None, problem })
    }
}

const MEETING: Tag = Tag { exchange: 0, kind: Kind::Meeting };

/// One worker's part in Hogwild EASGD.
pub struct HogwildEasgd<T: Transport> {
    commons: Commons<T>,
}

impl<T: Transport> HogwildEasgd<T> {
    /// Joins the method. The first ranks of `transport` are the workers, and all have the same centre.
    pub fn new(transport: T, centre: Arc<SharedCentre>) -> Self {
        HogwildEasgd { commons: Commons::near(transport, centre) }
    }

    /// Joins the method from another process than that of the centre, of `len` values, where the worker has an
    /// [`Attendant`]. `workers` are as many as there are in all.
    pub fn far(transport: T, workers: usize, len: usize) -> Self {
        HogwildEasgd { commons: Commons::far(transport, workers, len) }
    }
}

impl<T: Transport> ElasticMember for HogwildEasgd<T> {
    fn rank(&self) -> usize {
        self.commons.group.rank()
    }

    fn size(&self) -> usize {
        self.commons.group.size()
    }

    fn traffic(&self) -> Traffic {
        self.commons.group.traffic()
    }

    fn updating(&self) -> Duration {
        self.commons.updating
    }

    fn exchange(
        &mut self,
        weights: &[f32],
        elastic: f32,
        centre_out: &mut [f32],
    ) -> Result<Duration, CommError> {
        self.commons.check_len(weights.len())?;
        self.commons.check_len(centre_out.len())?;
        let Commons { group, centre, updating, .. } = &mut self.commons;
        let start = group.now();
        match centre {
            Centre::Near(shared) => {
                *updating += group.change_shared(weights.len(), &mut |part| {
                    shared.meet(part.clone(), &weights[part.clone()], elastic, &mut centre_out[part]);
                });
            }
            Centre::Far(far) => {
                far.put(weights);
                far.ask(group, Meaning::Exchange, elastic, centre_out)?;
            }
        }
        self.commons.look_around()?;
        Ok(self.commons.group.now().since(start))
    }

    fn centre(&mut self, centre_out: &mut [f32]) -> Result<(), CommError> {
        self.commons.centre(centre_out)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.commons.all_reduce_sum(values)
    }

    fn leave(&mut self) -> Result<(), CommError> {
        self.commons.leave()
    }
}

/// One worker's part in Hogwild SGD.
pub struct HogwildSgd<T: Transport> {
    commons: Commons<T>,
    rule: PackedRule,
}

impl<T: Transport> HogwildSgd<T> {
    /// Joins the method. The first ranks of `transport` are the workers, and all have the same centre.
    ///
    /// # Panics
    /// If the rule is not SGD without momentum, or is of another net.
    pub fn new(transport: T, centre: Arc<SharedCentre>, rule: PackedRule) -> Self {
        assert_eq!(rule.rule().kind, RuleKind::Sgd { momentum: 0.0 }, "a shared centre has no history");
        assert_eq!(rule.len(), centre.len(), "one net");
        HogwildSgd { commons: Commons::near(transport, centre), rule }
    }

    /// Joins the method from another process than that of the centre, where the worker has an [`Attendant`]. `workers` are
    /// as many as there are in all.
    ///
    /// # Panics
    /// If the rule is not SGD without momentum.
    pub fn far(transport: T, workers: usize, rule: PackedRule) -> Self {
        assert_eq!(rule.rule().kind, RuleKind::Sgd { momentum: 0.0 }, "a shared centre has no history");
        HogwildSgd { commons: Commons::far(transport, workers, rule.len()), rule }
    }

    /// This worker, `0 ≤ rank < size`.
    pub fn rank(&self) -> usize {
        self.commons.group.rank()
    }

    /// The number of workers, P.
    pub fn size(&self) -> usize {
        self.commons.group.size()
    }

    /// What this worker has sent so far.
    pub fn traffic(&self) -> Traffic {
        self.commons.group.traffic()
    }

    /// How long the centre took to change in this worker's exchanges so far, as far as that is told from the way to it.
    pub fn updating(&self) -> Duration {
        self.commons.updating
    }

    /// Takes a step down the packed `gradient` at the learning rate `rate`, and replaces it by the weights that the worker
    /// goes on with. Returns how long it took.
    pub fn exchange(&mut self, gradient: &mut [f32], rate: f32) -> Result<Duration, CommError> {
        self.commons.check_len(gradient.len())?;
        let Commons { group, centre, updating, .. } = &mut self.commons;
        let start = group.now();
        match centre {
            Centre::Near(shared) => {
                let (rule, scale) = (&self.rule, self.rule.scale(gradient));
                *updating += group.change_shared(gradient.len(), &mut |part| {
                    shared.descend(part, rule, [rate, scale], gradient);
                });
                group.keep_order();
                shared.read(gradient);
            }
            Centre::Far(far) => {
                far.put(gradient);
                far.ask(group, Meaning::Exchange, rate, gradient)?;
            }
        }
        self.commons.look_around()?;
        Ok(self.commons.group.now().since(start))
    }

    /// Gives every worker the centre after all exchanges: the same bits everywhere. All workers call it after as many
    /// exchanges.
    pub fn centre(&mut self, centre_out: &mut [f32]) -> Result<(), CommError> {
        self.commons.centre(centre_out)
    }

    /// Sums a few values over all workers. All workers call it at the same point and get the same bits.
    pub fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.commons.all_reduce_sum(values)
    }

    /// Ends this worker's part in good order; all workers call it last. Who drops its part without it is lost to the others.
    pub fn leave(&mut self) -> Result<(), CommError> {
        self.commons.leave()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Peer;
    use crate::transport::sim;
    use crate::transport::threads::endpoints;

    #[test]
    fn who_waits_is_told_by_whoever_still_exchanges() {
        let shared = Arc::new(SharedCentre::new(&[8.0], 2));
        let mut ends = endpoints(2, Duration::from_secs(60));
        let mut late = HogwildEasgd::new(ends.pop().unwrap(), shared.clone());
        let mut early = HogwildEasgd::new(ends.pop().unwrap(), shared.clone());
        let waiting = std::thread::spawn(move || {
            let mut seen = [0.0];
            early.centre(&mut seen).map(|()| (seen, early))
        });
        // The other says that it has come, then it waits.
        while shared.waiting().next().is_none() {
            std::thread::yield_now();
        }
        let mut seen = [0.0];
        for _ in 0..3 {
            late.exchange(&[4.0], 0.5, &mut seen).unwrap();
        }
        assert_eq!(late.traffic().messages, 3);
        late.centre(&mut seen).unwrap();
        let (centre, mut early) = waiting.join().unwrap().unwrap();
        assert_eq!((centre, seen), ([4.5], [4.5]));
        // Nobody waits any more.
        let before = early.traffic().messages;
        early.exchange(&[4.0], 0.5, &mut seen).unwrap();
        assert_eq!(early.traffic().messages, before);
    }

    #[test]
    fn who_waits_with_a_sum_hears_of_those_who_still_exchange() {
        let shared = Arc::new(SharedCentre::new(&[8.0], 2));
        let mut ends = endpoints(2, Duration::from_millis(500));
        let mut late = HogwildEasgd::new(ends.pop().unwrap(), shared.clone());
        let mut early = HogwildEasgd::new(ends.pop().unwrap(), shared.clone());
        let waiting = std::thread::spawn(move || {
            let mut sum = [1.0];
            early.all_reduce_sum(&mut sum).map(|()| (sum, early))
        });
        let mut seen = [0.0];
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(100));
            late.exchange(&[8.0], 0.5, &mut seen).unwrap();
        }
        let mut sum = [2.0];
        late.all_reduce_sum(&mut sum).unwrap();
        assert_eq!((sum, waiting.join().unwrap().unwrap().0), ([3.0], [3.0]));
    }

    #[test]
    fn a_worker_that_stays_silent_is_named() {
        let shared = Arc::new(SharedCentre::new(&[8.0], 3));
        let mut ends = endpoints(3, Duration::from_millis(200));
        let _silent = ends.remove(1);
        let mut waiting = HogwildEasgd::new(ends.remove(0), shared);
        let error = waiting.centre(&mut [0.0]).unwrap_err();
        assert!(matches!(error, CommError::Timeout { rank: 0, peer: Peer::Rank(1), .. }), "{error}");
        assert!(error.to_string().contains("the meeting of all workers"), "{error}");
    }

    #[test]
    fn a_worker_that_is_lost_ends_the_others_at_their_next_exchange() {
        let layout = quadrille_core::net::ParamLayout::from_iter([]);
        let rule = PackedRule::new(&layout, quadrille_core::solver::Rule::sgd(0.0, 0.0), 1);
        let shared = Arc::new(SharedCentre::new(&[], 3));
        let ends = endpoints(3, Duration::from_secs(60));
        let mut workers: Vec<_> =
            ends.into_iter().map(|end| HogwildSgd::new(end, shared.clone(), rule.clone())).collect();
        let mut gone = workers.remove(0);
        gone.leave().unwrap();
        drop(gone);
        for worker in &mut workers {
            worker.exchange(&mut [], 0.5).unwrap();
        }
        drop(workers.remove(1));
        let error = workers[0].exchange(&mut [], 0.5).unwrap_err();
        assert!(matches!(error, CommError::PeerLost { rank: 1, peer: 2, .. }), "{error}");
    }

    #[test]
    fn a_buffer_of_another_length_is_refused() {
        sim::run(1, 0, |transport| {
            let shared = Arc::new(SharedCentre::new(&[1.0, 2.0], 1));
            let mut worker = HogwildEasgd::new(transport, shared);
            assert!(matches!(worker.exchange(&[1.0], 0.5, &mut [0.0; 2]), Err(CommError::Protocol { .. })));
            assert!(worker.exchange(&[1.0; 2], 0.5, &mut [0.0; 3]).is_err());
            assert!(worker.centre(&mut []).is_err());
        })
        .unwrap();
    }
}
