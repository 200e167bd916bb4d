//! Before the first exchange: are all ranks there, and do they run the same job?
//!
//! Every rank sends its [`Fingerprint`] to rank 0; rank 0 compares them with its own and sends a verdict to all, so
//! that every rank ends with the same error, which names the rank that differs, is silent or is gone.
//!
//! Messages are buffers of `f32`, and not every bit pattern survives as a float on every path. So a 64-bit number
//! travels as four 16-bit digits, lowest first, each an exact integer in an `f32`.
//!
//! Rank 0 waits one peer timeout for the next fingerprint; the others wait two for the verdict, since rank 0 gives up
//! on a silent rank only when its own wait is over.

use crate::error::{CommError, Doing, Peer};
use crate::transport::{Buffer, Kind, Tag, Transport};

/// What has to be equal on all ranks. Hashes are the caller's choice, as long as all ranks make the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    /// Hash of the program's version.
    pub program: u64,
    /// Hash of the network.
    pub network: u64,
    /// Hash of the effective solver settings, the method included.
    pub solver: u64,
    /// Hash of what decides in which order sums are formed: quadrants, kernels, precision.
    pub plan: u64,
    /// Hash of the data set and of the samples of a mini-batch.
    pub data: u64,
    /// The seed of the run.
    pub seed: u64,
    /// The number of parameters, which is the length of the packed buffer.
    pub parameters: u64,
}

/// The names of the fields, in the order of [`Fingerprint::numbers`].
const FIELDS: [&str; 7] =
    ["program version", "network", "solver", "plan", "data", "seed", "number of parameters"];

const FINGERPRINT: Tag = Tag { exchange: 0, kind: Kind::Fingerprint };
const VERDICT: Tag = Tag { exchange: 0, kind: Kind::Verdict };

impl Fingerprint {
    fn numbers(&self) -> [u64; FIELDS.len()] {
        [self.program, self.network, self.solver, self.plan, self.data, self.seed, self.parameters]
    }
}

/// Rank 0's finding.
#[derive(Clone, Copy)]
enum Verdict {
    Same,
    Differs { peer: usize, field: usize },
    Silent { peer: usize, seconds: f64 },
    Lost { peer: usize },
}

impl Verdict {
    fn numbers(self) -> [u64; 3] {
        match self {
            Verdict::Same => [0, 0, 0],
            Verdict::Differs { peer, field } => [1, peer as u64, field as u64],
            Verdict::Silent { peer, seconds } => [2, peer as u64, seconds.to_bits()],
            Verdict::Lost { peer } => [3, peer as u64, 0],
        }
    }

    fn from_numbers([code, peer, detail]: [u64; 3]) -> Option<Self> {
        let peer = peer as usize;
        match code {
            0 => Some(Verdict::Same),
            1 => Some(Verdict::Differs { peer, field: detail as usize })
                .filter(|_| detail < FIELDS.len() as u64),
            2 => Some(Verdict::Silent { peer, seconds: f64::from_bits(detail) }),
            3 => Some(Verdict::Lost { peer }),
            _ => None,
        }
    }

    /// What the verdict means for `rank`.
    fn result(self, rank: usize) -> Result<(), CommError> {
        let doing = Doing::Receiving(FINGERPRINT);
        match self {
            Verdict::Same => Ok(()),
            Verdict::Differs { peer, field } => Err(CommError::Mismatch { rank, peer, field: FIELDS[field] }),
            Verdict::Silent { peer, seconds } => {
                Err(CommError::Timeout { rank, peer: Peer::Rank(peer), seconds, doing })
            }
            Verdict::Lost { peer } => Err(CommError::PeerLost { rank, peer, doing }),
        }
    }
}

/// Returns `Ok` on every rank if all ranks are there with equal fingerprints; otherwise an error on every rank that
/// rank 0 can reach: `Mismatch`, `Timeout` or `PeerLost` with the rank that is to blame.
///
/// All ranks call it once, before any other use of the transport.
pub fn handshake<T: Transport>(transport: &mut T, own: &Fingerprint) -> Result<(), CommError> {
    if transport.rank() == 0 { judge(transport, own) } else { report(transport, own) }
}

fn report<T: Transport>(transport: &mut T, own: &Fingerprint) -> Result<(), CommError> {
    // A rank that is late may find rank 0 gone already, over another rank; then its verdict is there to be read.
    let sent = transport.send(0, FINGERPRINT, encode(&own.numbers()));
    let answer = match transport.recv(0, VERDICT) {
        // Rank 0 may have waited as long for another rank; its verdict says for which one.
        Err(CommError::Timeout { .. }) if sent.is_ok() => transport.recv(0, VERDICT)?,
        Err(error) => return sent.and(Err(error)),
        Ok(answer) => answer,
    };
    let rank = transport.rank();
    match decode(&answer).and_then(Verdict::from_numbers) {
        Some(verdict) => verdict.result(rank),
        None => {
            let problem = format!("{VERDICT} is not one: rank 0 runs another program");
            Err(CommError::Protocol { rank, peer: Some(0), problem })
        }
    }
}

fn judge<T: Transport>(transport: &mut T, own: &Fingerprint) -> Result<(), CommError> {
    let verdict = collect(transport, own)?;
    let mut unreachable = None;
    for peer in 1..transport.size() {
        // The others have to hear the verdict even if this one cannot any more.
        if let Err(error) = transport.send(peer, VERDICT, encode(&verdict.numbers())) {
            unreachable.get_or_insert(error);
        }
    }
    verdict.result(0)?;
    unreachable.map_or(Ok(()), Err)
}

fn collect<T: Transport>(transport: &mut T, own: &Fingerprint) -> Result<Verdict, CommError> {
    let mut heard = vec![false; transport.size()];
    heard[0] = true;
    let mut differs: Option<(usize, usize)> = None;
    while let Some(missing) = heard.iter().position(|&heard| !heard) {
        let (peer, message) = match transport.recv_any(FINGERPRINT) {
            Ok(arrived) => arrived,
            Err(CommError::Timeout { seconds, .. }) => return Ok(Verdict::Silent { peer: missing, seconds }),
            Err(CommError::PeerLost { peer, .. }) => return Ok(Verdict::Lost { peer }),
            Err(error) => return Err(error),
        };
        heard[peer] = true;
        // A message that is no fingerprint of this program comes from another version of it: field 0.
        let field = match decode::<{ FIELDS.len() }>(&message) {
            Some(numbers) => own.numbers().iter().zip(numbers).position(|(&own, other)| own != other),
            None => Some(0),
        };
        if let Some(field) = field {
            // The lowest rank is named, whoever came first.
            differs = Some(differs.map_or((peer, field), |known| known.min((peer, field))));
        }
    }
    Ok(differs.map_or(Verdict::Same, |(peer, field)| Verdict::Differs { peer, field }))
}

fn encode(numbers: &[u64]) -> Buffer {
    let digits = |number: u64| [0, 16, 32, 48].map(|shift| f32::from((number >> shift) as u16));
    numbers.iter().copied().flat_map(digits).collect::<Vec<f32>>().into()
}

fn decode<const N: usize>(buffer: &[f32]) -> Option<[u64; N]> {
    if buffer.len() != 4 * N {
        return None;
    }
    let number =
        |digits: &[f32]| digits.iter().rev().fold(0, |number, &digit| number << 16 | u64::from(digit as u16));
    let mut numbers = [0; N];
    for (slot, digits) in numbers.iter_mut().zip(buffer.chunks(4)) {
        *slot = number(digits);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transport::sim::{self, Kill};
    use crate::transport::threads;

    const JOB: Fingerprint = Fingerprint {
        program: 0x7fa0_0001_ffff_0000,
        network: u64::MAX,
        solver: 0x7f80_0001_7fa0_0000,
        plan: 3,
        data: 0x1234_5678_9abc_def0,
        seed: 1,
        parameters: 431_080,
    };

    #[test]
    fn every_bit_survives_as_floats() {
        for number in (0..64).map(|bit| 1 << bit).chain([0, u64::MAX, 0x0123_4567_89ab_cdef]) {
            let sent = encode(&[number, !number]);
            assert!(sent.iter().all(|digit| digit.fract() == 0.0 && (0.0..65_536.0).contains(digit)));
            assert_eq!(decode(&sent), Some([number, !number]));
        }
        assert_eq!(decode::<2>(&[0.0; 7]), None);
    }

    #[test]
    fn equal_jobs_agree() {
        for size in [1, 2, 5] {
            for seed in 0..50 {
                let out = sim::run(size, seed, |mut end| handshake(&mut end, &JOB)).unwrap();
                assert_eq!(out, vec![Ok(()); size]);
            }
        }
    }

    #[test]
    fn the_lowest_rank_that_differs_is_named_everywhere_whoever_comes_first() {
        let variants = [
            Fingerprint { program: JOB.program ^ 1 << 63, ..JOB },
            Fingerprint { network: 0, ..JOB },
            Fingerprint { solver: JOB.solver ^ 1 << 16, ..JOB },
            Fingerprint { plan: 4, ..JOB },
            Fingerprint { data: JOB.data ^ 1 << 40, ..JOB },
            Fingerprint { seed: 2, ..JOB },
            Fingerprint { parameters: 431_081, ..JOB },
        ];
        for (variant, field) in variants.iter().zip(FIELDS) {
            for seed in 0..50 {
                let out = sim::run(5, seed, |mut end| {
                    let rank = end.rank();
                    handshake(&mut end, [&JOB, &JOB, variant, &JOB, &variants[0]][rank])
                })
                .unwrap();
                for (rank, result) in out.into_iter().enumerate() {
                    assert_eq!(result, Err(CommError::Mismatch { rank, peer: 2, field }), "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_silent_rank_is_named_everywhere() {
        // One rank comes late, so that rank 0's wait for the silent one ends well after the others' first wait.
        let mut ends = threads::endpoints(4, Duration::from_secs(1));
        let silent = ends.remove(2);
        let threads = ends.into_iter().map(|mut end| {
            std::thread::spawn(move || {
                if end.rank() == 3 {
                    std::thread::sleep(Duration::from_millis(500));
                }
                handshake(&mut end, &JOB)
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            let error = thread.join().unwrap().unwrap_err();
            assert!(matches!(error, CommError::Timeout { peer: Peer::Rank(2), seconds: 1.0, .. }), "{error}");
        }
        drop(silent);
    }

    #[test]
    fn a_rank_that_dies_at_the_start_is_named_everywhere() {
        for seed in 0..200 {
            let kill = Kill { rank: 3, operation: 0 };
            let out = sim::run_with_kill(5, seed, kill, |mut end| handshake(&mut end, &JOB)).unwrap();
            assert_eq!(out[3], Err(CommError::Stopped { rank: 3, operation: 0 }));
            for rank in [0, 1, 2, 4] {
                let doing = Doing::Receiving(FINGERPRINT);
                assert_eq!(out[rank], Err(CommError::PeerLost { rank, peer: 3, doing }), "seed {seed}");
            }
        }
    }

    #[test]
    fn without_rank_0_the_others_name_it() {
        for operation in 0..3 {
            for seed in 0..100 {
                let kill = Kill { rank: 0, operation };
                let out = sim::run_with_kill(3, seed, kill, |mut end| handshake(&mut end, &JOB)).unwrap();
                assert!(matches!(out[0], Err(CommError::Stopped { .. })));
                let named = out[1..].iter().map(|result| result.as_ref().unwrap_err().peer());
                assert_eq!(named.collect::<Vec<_>>(), [Some(0); 2]);
            }
        }
    }
}
