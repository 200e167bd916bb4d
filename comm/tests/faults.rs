//! A rank that dies at any point: nobody hangs, nobody goes on with wrong numbers, everybody names a rank.

mod reference;

use quadrille_comm::CommError;
use quadrille_comm::transport::sim::{self, Kill, SimTransport};

/// Both programs end with a sum over all ranks. A rank that dies before it has sent its share of that sum upwards
/// takes everybody with it: rank 0 cannot have the sum, so nobody can. Later it takes along at least those to whom it
/// still had to pass the sum on.
///
/// Returns how many deaths were tried.
fn kill_everywhere(
    size: usize,
    body: fn(SimTransport) -> Result<reference::Bits, CommError>,
    expected: &[reference::Bits],
) -> usize {
    let mut killed = 0;
    for rank in 0..size {
        let total =
            (0..).find(|&operation| survives(size, rank, operation, body)).expect("programs are short");
        let children: Vec<usize> = (1..size).filter(|&child| parent(child) == rank).collect();
        let downward = children.len() as u64 + u64::from(rank != 0);
        for operation in 0..total {
            for seed in 0..20 {
                let kill = Kill { rank, operation };
                let ranks = sim::run_with_kill(size, seed, kill, body).expect("no deadlock");
                let context = format!("{size} ranks, {kill:?} of {total}, seed {seed}");
                // The largest child is served first, so the smallest ones are those still waiting.
                let left = (total - operation) as usize;
                let waiting = &children[..left.min(children.len())];
                let doomed =
                    |other| left as u64 > downward || waiting.iter().any(|&child| is_below(other, child));
                check(kill, doomed, &ranks, expected, &context);
                killed += 1;
            }
        }
    }
    killed
}

/// The parent in the tree, written in another way than in the crate: the largest power of two that divides `rank` is
/// taken away.
fn parent(rank: usize) -> usize {
    let powers = (0..).map(|level| 1 << level);
    let step = powers.take_while(|&step| rank.is_multiple_of(step)).last().expect("1 divides every rank");
    rank - step
}

fn is_below(mut rank: usize, ancestor: usize) -> bool {
    while rank > ancestor {
        rank = parent(rank);
    }
    rank == ancestor
}

fn survives(
    size: usize,
    rank: usize,
    operation: u64,
    body: fn(SimTransport) -> Result<reference::Bits, CommError>,
) -> bool {
    sim::run_with_kill(size, 0, Kill { rank, operation }, body).expect("no deadlock")[rank].is_ok()
}

fn check(
    kill: Kill,
    doomed: impl Fn(usize) -> bool,
    ranks: &[Result<reference::Bits, CommError>],
    expected: &[reference::Bits],
    context: &str,
) {
    for (rank, result) in ranks.iter().enumerate() {
        match result {
            Err(error) if rank == kill.rank => {
                assert_eq!(*error, CommError::Stopped { rank, operation: kill.operation }, "{context}");
            }
            Err(error) => {
                let peer = error.peer();
                assert!(peer.is_some_and(|peer| peer != rank), "rank {rank}, {context}: {error}");
            }
            Ok(bits) => {
                assert!(!doomed(rank) && rank != kill.rank, "rank {rank} noticed nothing; {context}");
                assert_eq!(*bits, expected[rank], "rank {rank}, {context}");
            }
        }
    }
}

#[test]
fn every_rank_learns_of_a_death_in_sync_easgd() {
    for size in [2, 3, 4, 5, 7] {
        assert!(kill_everywhere(size, reference::easgd_rank, &reference::easgd_in_order(size)) > 100);
    }
}

#[test]
fn every_rank_learns_of_a_death_in_sync_sgd() {
    for size in [2, 3, 4, 5, 7] {
        assert!(kill_everywhere(size, reference::sgd_rank, &reference::sgd_in_order(size)) > 100);
    }
}
