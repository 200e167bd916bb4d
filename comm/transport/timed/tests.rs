use std::sync::Arc;

use super::*;
use crate::overlap::{Cargo, Exchanger};
use crate::protocol::ElasticMember;
use crate::protocol::async_easgd::{AsyncEasgd, ElasticCentre};
use crate::protocol::hogwild::{HogwildEasgd, SharedCentre};
use crate::protocol::original_easgd::{OriginalEasgd, RoundRobin};
use crate::protocol::parameter_server::ParameterServer;
use crate::protocol::sync_easgd::SyncEasgd;
use crate::transport::Kind;

fn tag(exchange: u64) -> Tag {
    Tag { exchange, kind: Kind::Request }
}

/// A microsecond and a nanosecond a byte; a centre takes 0.5 ns a byte.
fn wires(has_master: bool, serial: bool) -> Wires {
    let link = Link { latency: 1_000.0, bandwidth: 1.0, serial };
    Wires {
        workers: link,
        master: link,
        data: link,
        centre: 2.0,
        control: 0.0,
        overlap: 1.0,
        data_overlap: 1.0,
        has_master,
        jitter: None,
    }
}

/// Runs `body` for each rank on a thread of its own, and returns what each gave back.
fn run<R: Send>(size: usize, wires: Wires, body: impl Fn(TimedTransport) -> R + Sync) -> Vec<R> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            endpoints(size, wires).into_iter().map(|end| scope.spawn(move || body(end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn nanos(moment: Moment) -> u64 {
    match moment {
        Moment::Virtual(time) => time.as_nanos() as u64,
        Moment::Real(_) => panic!("not in virtual time"),
    }
}

/// Lets the thread lag behind by real time that depends on `salt` alone.
fn lag(salt: u64) {
    let stream = quadrille_core::rng::Stream::new(salt, quadrille_core::rng::Purpose::Dummy, 0);
    std::thread::sleep(Duration::from_micros(u64::from(stream.bits(0) % 300)));
}

#[test]
fn sync_easgd_takes_twice_the_depth_of_the_tree() {
    const VALUES: usize = 250;
    // 1 + 1 µs for each message of 1,000 bytes; the centre takes in the weights of P workers at 2 bytes a nanosecond.
    for (size, depth) in [(2, 1), (4, 2), (8, 3), (16, 4)] {
        let ends = run(size, wires(false, false), |end| {
            let clock = end.clock();
            let mut method = SyncEasgd::new(end, &[1.0; VALUES]);
            let mut times = Vec::new();
            for _ in 0..3 {
                clock.pass(10_000.0);
                method.exchange(&[2.0; VALUES], 0.1, &mut [0.0; VALUES]).unwrap();
                times.push(nanos(clock.now()));
            }
            times
        });
        let step = 10_000 + 2 * depth * 2_000 + 500 * size as u64;
        assert_eq!(ends[0], [step, 2 * step, 3 * step], "{size}");
    }
}

#[test]
fn an_exchange_aside_is_hidden_as_far_as_there_is_work() {
    const VALUES: usize = 250;
    // Two workers: a message down and one up, and the centre's update, 5 µs in all.
    let run = |compute: f64, overlap: f64| {
        run(2, Wires { overlap, ..wires(false, false) }, |end| {
            let clock = end.clock();
            let mut exchanger = Exchanger::timed(clock.clone(), SyncEasgd::new(end, &[1.0; VALUES]));
            let mut cargo = Some(Cargo::new(Buffer::zeros(VALUES), Buffer::zeros(VALUES)));
            let mut found = Vec::new();
            for _ in 0..3 {
                exchanger.start(cargo.take().unwrap(), 0.1).unwrap();
                clock.copy_data(0);
                exchanger.proceed();
                clock.pass(compute);
                let done = exchanger.wait().unwrap();
                found.push((nanos(clock.now()), done.waited.as_nanos(), done.took.as_nanos()));
                cargo = Some(done.cargo);
            }
            found
        })
    };
    // The way of data takes 1 µs.
    let hidden = run(20_000.0, 1.0);
    assert_eq!(hidden[0], [(21_000, 0, 5_000), (42_000, 0, 5_000), (63_000, 0, 5_000)]);
    let longer = run(1_000.0, 1.0);
    // A half of a message at either end and the centre's 1 µs are work of rank 0; a half of that makes computing longer.
    let shared = run(20_000.0, 0.5);
    assert_eq!(shared[0][0].0, 21_000 + (2_000 + 1_000) / 2);
    assert_eq!(longer[0], [(5_000, 3_000, 5_000), (10_000, 3_000, 5_000), (15_000, 3_000, 5_000)]);
}

#[test]
fn a_mini_batch_comes_beside_the_step_before() {
    // 1 µs and 1 ns a byte: 5 µs for 4,000 bytes, of which only the first mini-batch is waited for, or what sticks out.
    let run = |compute: f64, overlap: f64, serial: bool| {
        run(2, Wires { data_overlap: overlap, ..wires(false, serial) }, |end| {
            let (clock, mut data) = (end.clock(), Staging::default());
            let mut found = Vec::new();
            for _ in 0..3 {
                let staged = data.turn(&clock, 4_000);
                clock.pass(compute);
                found.push((nanos(clock.now()), staged.waited.as_nanos(), staged.hidden.as_nanos()));
            }
            found
        })
    };
    for end in run(20_000.0, 1.0, false) {
        assert_eq!(end, [(25_000, 5_000, 0), (45_000, 0, 5_000), (65_000, 0, 5_000)]);
    }
    for end in run(2_000.0, 1.0, false) {
        assert_eq!(end, [(7_000, 5_000, 0), (12_000, 3_000, 2_000), (17_000, 3_000, 2_000)]);
    }
    // A half of the way is work of a core that computes.
    assert_eq!(run(20_000.0, 0.5, false)[0][0].0, 25_000 + 2_500);
    // Over one way the second rank's come behind the first one's.
    let shared = run(20_000.0, 1.0, true);
    assert_eq!((shared[0][0].1, shared[1][0].1), (5_000, 10_000));
    assert_eq!((shared[0][2].1, shared[1][2].1), (0, 0));
}

#[test]
fn original_easgd_takes_one_turn_after_the_other() {
    const VALUES: usize = 250;
    let workers = 4;
    let ends = run(workers + 1, wires(true, false), |end| {
        let (rank, clock) = (end.rank(), end.clock());
        if rank == workers {
            RoundRobin::new(end, &[0.0; VALUES]).serve().unwrap();
            return Vec::new();
        }
        let mut method = OriginalEasgd::new(end, VALUES);
        let mut times = Vec::new();
        for _ in 0..3 {
            method.begin_turn().unwrap();
            method.exchange(&[1.0; VALUES], 0.1, &mut [0.0; VALUES]).unwrap();
            times.push(nanos(clock.now()));
            method.end_turn().unwrap();
        }
        method.leave().unwrap();
        times
    });
    // A letter has two values more: 2,008 ns a message; the centre takes 500 ns; a nanosecond for each control message.
    let turn = 2 * 2_008 + 500 + 2;
    for (rank, times) in ends[..workers].iter().enumerate() {
        let first = rank as u64 * turn + 1 + 2 * 2_008;
        let expected = [0, 4, 8].map(|turns| first + turns * turn);
        assert_eq!(times[..], expected, "rank {rank}");
    }
}

/// Three workers of different speeds under a master that serves whoever comes first: the order of service, and all times.
fn served(salt: u64, serial: bool) -> (Vec<f32>, Vec<Vec<u64>>) {
    let ends = run(4, wires(true, serial), |mut end| {
        let (rank, clock) = (end.rank(), end.clock());
        lag(salt + rank as u64);
        if rank == 3 {
            let mut order = Vec::new();
            for _ in 0..12 {
                let (from, payload) = end.recv_any(tag(0)).unwrap();
                order.push(payload[0]);
                end.send(from, tag(1), payload).unwrap();
            }
            return (order, vec![nanos(clock.now())]);
        }
        let mut times = Vec::new();
        for step in 0..4 {
            clock.pass(1_700.0 * (rank + 1) as f64);
            lag(salt * 31 + rank as u64 * 7 + step);
            end.send(3, tag(0), vec![(10 * rank) as f32 + step as f32].into()).unwrap();
            end.recv(3, tag(1)).unwrap();
            times.push(nanos(clock.now()));
        }
        // Stays until all are served, so that nobody is missed.
        assert!(end.recv(3, tag(2)).is_err());
        (Vec::new(), times)
    });
    let (orders, times): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    (orders.into_iter().flatten().collect(), times)
}

#[test]
fn first_come_is_first_in_virtual_time_whoever_is_late_in_real_time() {
    // Requests come after 1,700 ns of work, or 3,400 or 5,100, and 1,004 on the way, every 3,708, 5,408 and 7,108 ns.
    let (order, times) = served(0, false);
    assert_eq!(order, [0.0, 10.0, 20.0, 1.0, 11.0, 2.0, 21.0, 3.0, 12.0, 22.0, 13.0, 23.0]);
    assert_eq!(times[0], [3_708, 7_416, 11_124, 14_832]);
    assert_eq!(times[2], [7_108, 14_216, 21_324, 28_432]);
    for salt in 1..40 {
        assert_eq!(served(salt, false), (order.clone(), times.clone()), "{salt}");
    }
    let serial = served(0, true);
    assert!(serial.1[2][3] > times[2][3], "a way for one at a time is slower");
    for salt in 1..40 {
        assert_eq!(served(salt, true), serial, "{salt}");
    }
}

#[test]
fn jitter_is_drawn_by_its_seed() {
    let times = |seed: Option<u64>| {
        let jitter = seed.map(|seed| Jitter { seed, share: 0.5 });
        run(2, Wires { jitter, ..wires(false, false) }, |end| {
            let clock = end.clock();
            let mut method = SyncEasgd::new(end, &[1.0; 9]);
            for _ in 0..5 {
                clock.pass(10_000.0);
                method.exchange(&[2.0; 9], 0.1, &mut [0.0; 9]).unwrap();
            }
            nanos(clock.now())
        })
    };
    let [none, one, two] = [None, Some(1), Some(2)].map(times);
    assert_eq!(times(Some(1)), one);
    assert!(one != two && one[0] > none[0] && one[0] < none[0] + none[0] / 2, "{none:?} {one:?} {two:?}");
}

#[test]
fn hogwild_comes_in_between_as_virtual_time_says() {
    const VALUES: usize = 64;
    let once = |salt: u64| {
        let shared = Arc::new(SharedCentre::new(&[0.0; VALUES], 3));
        let seen = run(3, wires(false, false), |end| {
            let (rank, clock) = (end.rank(), end.clock());
            let mut method = HogwildEasgd::new(end, shared.clone());
            // All are inside of their change of 128 ns, 20 ns apart from each other.
            clock.pass(20.0 * rank as f64);
            lag(salt + rank as u64);
            let mut centre = [0.0; VALUES];
            method.exchange(&[1.0 + rank as f32; VALUES], 0.5, &mut centre).unwrap();
            let now = nanos(clock.now());
            method.centre(&mut [0.0; VALUES]).unwrap();
            method.leave().unwrap();
            (centre.map(f32::to_bits), now)
        });
        let mut last = [0.0; VALUES];
        shared.read(&mut last);
        (seen, last.map(f32::to_bits))
    };
    let first = once(0);
    let way = 1_000 + 4 * VALUES as u64;
    assert_eq!(
        first.0.iter().map(|found| found.1).collect::<Vec<_>>(),
        [0, 20, 40].map(|late| late + 2 * way + 128)
    );
    for salt in 1..40 {
        assert_eq!(once(salt), first, "{salt}");
    }
}

#[test]
fn those_who_wait_for_each_other_are_named() {
    let errors = run(3, wires(false, false), |mut end| {
        let (rank, next) = (end.rank(), (end.rank() + 1) % 3);
        end.clock().pass(100.0 * rank as f64);
        let error = end.recv(next, tag(rank as u64)).unwrap_err();
        // Whoever has failed stays, so that nobody is lost before all have failed.
        (error.to_string(), end)
    });
    let text = &errors[0].0;
    assert!(text.contains("sim: deadlock") && text.contains("rank 2 waits for"), "{text}");
}

#[test]
fn who_loses_a_peer_is_told() {
    let errors = run(3, wires(true, true), |mut end| match end.rank() {
        0 => None,
        1 => Some(AsyncEasgd::new(end, 1).exchange(&[1.0], 0.5, &mut [0.0])),
        _ => {
            end.keep_order();
            Some(end.recv(0, tag(9)).map(|_| Duration::ZERO))
        }
    });
    let lost =
        |error: &Option<Result<Duration, CommError>>| error.as_ref().unwrap().as_ref().unwrap_err().peer();
    assert_eq!((lost(&errors[1]), lost(&errors[2])), (Some(2), Some(0)));
}

#[test]
fn async_easgd_ends_with_the_same_bits_whatever_threads_do() {
    let once = |salt: u64| {
        run(4, wires(true, true), |end| {
            let (rank, clock) = (end.rank(), end.clock());
            if rank == 3 {
                let (centre, _) = ParameterServer::new(end, ElasticCentre::new(&[8.0; 5])).serve().unwrap();
                return (crate::protocol::parameter_server::Centre::weights(&centre).to_vec(), 0);
            }
            let mut method = AsyncEasgd::new(end, 5);
            let mut weights = [rank as f32; 5];
            for step in 0..6 {
                clock.pass(1_000.0 + 300.0 * rank as f64);
                lag(salt * 17 + rank as u64 * 5 + step);
                let mut centre = [0.0; 5];
                method.exchange(&weights, 0.3, &mut centre).unwrap();
                weights.iter_mut().zip(centre).for_each(|(w, c)| *w = 1.1 * *w - 0.3 * (*w - c));
            }
            method.centre(&mut weights).unwrap();
            method.leave().unwrap();
            (weights.to_vec(), nanos(clock.now()))
        })
    };
    let first = once(0);
    assert!((1..30).all(|salt| once(salt) == first));
}
