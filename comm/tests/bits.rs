//! Threads and the simulated network give the same bits, with and without overlap.

mod reference;

use std::time::Duration;

use quadrille_comm::CommError;
use quadrille_comm::overlap::{Cargo, Exchanger};
use quadrille_comm::protocol::ElasticMember;
use quadrille_comm::protocol::sync_easgd::SyncEasgd;
use quadrille_comm::transport::threads::{ThreadTransport, endpoints};
use quadrille_comm::transport::{Buffer, Transport, sim};

const SIZES: [usize; 6] = [1, 2, 3, 4, 5, 7];

fn on_threads<R: Send>(size: usize, body: impl Fn(ThreadTransport) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let start = |end| scope.spawn(move || body(end));
        let threads: Vec<_> = endpoints(size, Duration::from_secs(30)).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

#[test]
fn threads_and_sim_agree() {
    for size in SIZES {
        let easgd = sim::run(size, 3, reference::easgd_rank).unwrap();
        let sgd = sim::run(size, 3, reference::sgd_rank).unwrap();
        for _ in 0..20 {
            assert_eq!(on_threads(size, reference::easgd_rank), easgd, "{size} ranks");
            assert_eq!(on_threads(size, reference::sgd_rank), sgd, "{size} ranks");
        }
        let expected: Vec<_> = reference::easgd_in_order(size).into_iter().map(Ok).collect();
        assert_eq!(easgd, expected);
        let expected: Vec<_> = reference::sgd_in_order(size).into_iter().map(Ok).collect();
        assert_eq!(sgd, expected);
    }
}

/// Three overlapped exchanges with weights that depend on what was seen.
fn overlapped<T: Transport + 'static>(transport: T) -> Result<Vec<u32>, CommError> {
    let rank = transport.rank() as f32;
    let mut worker = Exchanger::spawn(move || Ok(SyncEasgd::new(transport, &[0.1, 0.2])))?;
    let mut weights = Buffer::from(vec![0.3 + rank, 0.7 * rank]);
    let mut centre = Buffer::zeros(2);
    let mut seen = vec![];
    for _ in 0..3 {
        worker.start(Cargo::new(weights, centre), 0.3)?;
        Cargo { weights, centre, .. } = worker.wait()?.cargo;
        seen.extend(centre.iter().map(|value| value.to_bits()));
        weights.iter_mut().zip(centre.iter()).for_each(|(weight, centre)| *weight += 0.37 * centre);
    }
    seen.extend(worker.centre(centre)?.iter().map(|value| value.to_bits()));
    Ok(seen)
}

/// The same without a communication thread.
fn in_line<T: Transport>(transport: T) -> Result<Vec<u32>, CommError> {
    let rank = transport.rank() as f32;
    let mut method = SyncEasgd::new(transport, &[0.1, 0.2]);
    let mut weights = [0.3 + rank, 0.7 * rank];
    let mut centre = [0.0; 2];
    let mut seen = vec![];
    for _ in 0..3 {
        method.exchange(&weights, 0.3, &mut centre)?;
        seen.extend(centre.map(f32::to_bits));
        weights.iter_mut().zip(centre).for_each(|(weight, centre)| *weight += 0.37 * centre);
    }
    method.centre(&mut centre)?;
    seen.extend(centre.map(f32::to_bits));
    Ok(seen)
}

#[test]
fn overlap_changes_no_bit() {
    for size in SIZES {
        let plain = sim::run(size, 1, in_line).unwrap();
        assert!(plain.iter().all(Result::is_ok));
        assert_eq!(on_threads(size, overlapped), plain, "{size} ranks on threads");
        for seed in 0..50 {
            assert_eq!(sim::run(size, seed, overlapped).unwrap(), plain, "{size} ranks, seed {seed}");
        }
    }
}
