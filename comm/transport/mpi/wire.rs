//! How messages look between processes.
//!
//! A packed buffer travels as it is, with a few words behind its values: what it is for, and between which ranks. A buffer
//! that came this way has room for them, so from the second use on nothing is copied or allocated. The words are bits in the
//! guise of `f32`, which nobody computes with.
//!
//! What service threads tell each other is a [`Notice`], three whole numbers under a tag of their own.

use crate::transport::{Buffer, Kind, Tag};

/// MPI's tag of packed buffers.
pub(super) const DATA: i32 = 1;
/// MPI's tag of notices.
pub(super) const NOTICE: i32 = 2;

/// The words behind the values.
const TRAILER: usize = 5;

const KINDS: [Kind; 10] = [
    Kind::Broadcast,
    Kind::Reduce,
    Kind::Fingerprint,
    Kind::Verdict,
    Kind::Request,
    Kind::Reply,
    Kind::Turn,
    Kind::TurnOver,
    Kind::Meeting,
    Kind::Text,
];

/// Where a packed buffer comes from and goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    /// Which of the process's groups of endpoints.
    pub(super) channel: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) tag: Tag,
}

/// The values of `payload` with `address` behind them.
pub(super) fn seal(payload: Buffer, address: Address) -> Vec<f32> {
    let Address { channel, from, to, tag } = address;
    let kind = KINDS.iter().position(|kind| *kind == tag.kind).unwrap_or(KINDS.len());
    let words = [
        (channel << 8 | kind) as u32,
        from as u32,
        to as u32,
        tag.exchange as u32,
        (tag.exchange >> 32) as u32,
    ];
    let Buffer(mut values) = payload;
    // No more than is needed: it may be as large as all weights.
    values.reserve_exact(TRAILER);
    values.extend(words.map(f32::from_bits));
    values
}

/// Takes the address off a message. `None` if it has none: its sender is another program.
pub(super) fn open(mut values: Vec<f32>) -> Option<(Address, Buffer)> {
    let len = values.len().checked_sub(TRAILER)?;
    let word = |index: usize| values[len + index].to_bits();
    let (first, from, to) = (word(0), word(1) as usize, word(2) as usize);
    let exchange = u64::from(word(3)) | u64::from(word(4)) << 32;
    let kind = *KINDS.get(first as usize & 0xff)?;
    values.truncate(len);
    let tag = Tag { exchange, kind };
    Some((Address { channel: first as usize >> 8, from, to, tag }, Buffer(values)))
}

/// What service threads tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// The sender is there.
    Beat,
    /// The sender ends, with this exit code, over `blamed`.
    Bye { code: u8, blamed: usize },
    /// A process is lost.
    Lost { blamed: usize },
    /// The run is to stop.
    Stop,
    /// How far are you? Begin nothing new until you know where to stop.
    HowFar,
    /// So many iterations were begun.
    Begun(u64),
    /// All stop before this iteration.
    End(u64),
}

impl Notice {
    /// Its numbers.
    pub(super) fn numbers(self) -> [u64; 3] {
        match self {
            Notice::Beat => [0, 0, 0],
            Notice::Bye { code, blamed } => [1, u64::from(code), blamed as u64],
            Notice::Lost { blamed } => [2, blamed as u64, 0],
            Notice::Stop => [3, 0, 0],
            Notice::HowFar => [4, 0, 0],
            Notice::Begun(iterations) => [5, iterations, 0],
            Notice::End(iteration) => [6, iteration, 0],
        }
    }

    /// The notice with these numbers, if there is one.
    pub(super) fn of(numbers: &[u64]) -> Option<Self> {
        match *numbers {
            [0, 0, 0] => Some(Notice::Beat),
            [1, code, blamed] => {
                Some(Notice::Bye { code: u8::try_from(code).ok()?, blamed: blamed as usize })
            }
            [2, blamed, 0] => Some(Notice::Lost { blamed: blamed as usize }),
            [3, 0, 0] => Some(Notice::Stop),
            [4, 0, 0] => Some(Notice::HowFar),
            [5, iterations, 0] => Some(Notice::Begun(iterations)),
            [6, iteration, 0] => Some(Notice::End(iteration)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEETING: Tag = Tag { exchange: 0, kind: Kind::Meeting };

    #[test]
    fn a_message_comes_out_as_it_went_in_and_its_memory_is_used_again() {
        for (index, kind) in KINDS.into_iter().enumerate() {
            let tag = Tag { exchange: u64::MAX - index as u64, kind };
            let address = Address { channel: index % 2, from: 70_000, to: index, tag };
            let values = [1.5, f32::from_bits(0x7fa0_0001), -0.0];
            let sealed = seal(Buffer(values.to_vec()), address);
            let place = sealed.as_ptr();
            let (found, buffer) = open(sealed).expect("an address");
            assert_eq!(found, address);
            assert!(buffer.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits()));
            let again = seal(buffer, address);
            assert_eq!(again.as_ptr(), place);
        }
        let empty = seal(Buffer::default(), Address { channel: 0, from: 0, to: 1, tag: MEETING });
        assert!(open(empty).expect("an address").1.is_empty());
    }

    #[test]
    fn what_is_no_message_of_ours_is_refused() {
        assert_eq!(open(vec![0.0; TRAILER - 1]), None);
        assert_eq!(open(vec![f32::from_bits(KINDS.len() as u32), 0.0, 0.0, 0.0, 0.0]), None);
        assert_eq!(Notice::of(&[7, 0, 0]), None);
        assert_eq!(Notice::of(&[1, 256, 0]), None);
        assert_eq!(Notice::of(&[0, 0]), None);
    }

    #[test]
    fn notices_come_out_as_they_went_in() {
        for notice in [
            Notice::Beat,
            Notice::Bye { code: 77, blamed: 3 },
            Notice::Lost { blamed: 4_351 },
            Notice::Stop,
            Notice::HowFar,
            Notice::Begun(u64::MAX),
            Notice::End(12),
        ] {
            assert_eq!(Notice::of(&notice.numbers()), Some(notice));
        }
    }
}
