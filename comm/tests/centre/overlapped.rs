//! The same training with every call on a communication thread.

use std::sync::Arc;
use std::time::Duration;

use quadrille_comm::CommError;
use quadrille_comm::collective::Traffic;
use quadrille_comm::overlap::{Cargo, Exchanger};
use quadrille_comm::protocol::ElasticMember;
use quadrille_comm::protocol::async_easgd::{AsyncEasgd, ElasticCentre};
use quadrille_comm::protocol::hogwild::{HogwildEasgd, SharedCentre};
use quadrille_comm::protocol::original_easgd::{OriginalEasgd, RoundRobin};
use quadrille_comm::protocol::parameter_server::ParameterServer;
use quadrille_comm::transport::{Buffer, Transport, sim};

use crate::orders::on_threads;
use crate::served::original_in_order;
use crate::training::{LEN, Seen, bits, elastic, first_centre};

/// A worker that does everything through its communication thread.
struct Overlapped {
    exchanger: Exchanger,
    traffic: Traffic,
}

impl Overlapped {
    fn of<M: ElasticMember + 'static>(join: impl FnOnce() -> M + Send + 'static) -> Result<Self, CommError> {
        Ok(Overlapped { exchanger: Exchanger::spawn(move || Ok(join()))?, traffic: Traffic::default() })
    }
}

impl ElasticMember for Overlapped {
    fn rank(&self) -> usize {
        self.exchanger.rank()
    }

    fn size(&self) -> usize {
        self.exchanger.size()
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn begin_turn(&mut self) -> Result<(), CommError> {
        self.exchanger.begin_turn()
    }

    fn exchange(&mut self, weights: &[f32], elastic: f32, centre: &mut [f32]) -> Result<Duration, CommError> {
        self.exchanger.start(Cargo::new(weights.to_vec().into(), Buffer::zeros(centre.len())), elastic)?;
        let done = self.exchanger.wait()?;
        assert_eq!(bits(&done.cargo.weights), bits(weights));
        centre.copy_from_slice(&done.cargo.centre);
        self.traffic = done.traffic;
        Ok(done.took)
    }

    fn end_turn(&mut self) -> Result<(), CommError> {
        self.exchanger.end_turn()
    }

    fn centre(&mut self, centre_out: &mut [f32]) -> Result<(), CommError> {
        let centre = self.exchanger.centre(Buffer::zeros(centre_out.len()))?;
        centre_out.copy_from_slice(&centre);
        Ok(())
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let sums = self.exchanger.all_reduce_sum(values.to_vec().into())?;
        values.copy_from_slice(&sums);
        Ok(())
    }

    fn leave(&mut self) -> Result<(), CommError> {
        self.exchanger.leave()
    }
}

fn original<T: Transport + 'static>(end: T) -> Result<Seen, CommError> {
    if end.rank() + 1 < end.size() {
        return elastic(Overlapped::of(move || OriginalEasgd::new(end, LEN))?);
    }
    let (centre, _) = RoundRobin::new(end, &first_centre()).serve()?;
    Ok(Seen { centres: vec![bits(&centre)], ..Seen::default() })
}

#[test]
fn overlap_changes_no_bit_of_original_easgd() {
    for workers in [1, 3] {
        let expected: Vec<_> = original_in_order(workers).into_iter().map(Ok).collect();
        assert_eq!(on_threads(workers + 1, original), expected);
        for seed in 0..50 {
            assert_eq!(sim::run(workers + 1, seed, original).unwrap(), expected, "seed {seed}");
        }
    }
}

#[test]
fn the_methods_without_an_order_run_overlapped_too() {
    let agreed = |ranks: &[Seen]| {
        assert!(ranks.iter().all(|rank| (&rank.centres, &rank.sums) == (&ranks[0].centres, &ranks[0].sums)));
    };
    for seed in 0..50 {
        let served = sim::run(4, seed, |end| {
            if end.rank() < 3 {
                return elastic(Overlapped::of(move || AsyncEasgd::new(end, LEN)).unwrap()).ok();
            }
            ParameterServer::new(end, ElasticCentre::new(&first_centre())).serve().unwrap();
            None
        });
        let workers: Vec<Seen> = served.unwrap().into_iter().flatten().collect();
        assert_eq!(workers.len(), 3);
        agreed(&workers);
        let shared = Arc::new(SharedCentre::new(&first_centre(), 3));
        let workers = sim::run(3, seed, |end| {
            let shared = shared.clone();
            elastic(Overlapped::of(move || HogwildEasgd::new(end, shared)).unwrap()).unwrap()
        });
        agreed(&workers.unwrap());
    }
}
