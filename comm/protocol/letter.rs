//! What workers and a master write to each other: packed values, a number that belongs to them, and what is meant.
//!
//! The last two travel behind the values in the same buffer, so that a letter is one message, and a reply goes back in the
//! buffer that the request came in.

use std::time::Duration;

use crate::transport::Buffer;

/// The numbers behind the values.
const TRAILER: usize = 2;

/// What a letter means. A reply has the meaning of its request, but for [`Meaning::NotYet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// An exchange; its number is ηρ where weights are sent, η where gradients are, and in the reply the seconds that the
    /// centre took to change: in this exchange, or in the last one before where the reply comes first.
    Exchange,
    /// The centre, the same for all workers, once all ask for it.
    Centre,
    /// A worker ends. Only once all do may they go.
    Leave,
    /// What was asked for needs all workers, and that with the letter's number is missing.
    NotYet,
}

const MEANINGS: [Meaning; 4] = [Meaning::Exchange, Meaning::Centre, Meaning::Leave, Meaning::NotYet];

/// A message between a worker and a master.
#[derive(Debug)]
pub(super) struct Letter(Buffer);

impl Letter {
    /// A letter with room for `len` values.
    pub(super) fn new(len: usize) -> Self {
        Letter(Buffer::zeros(len + TRAILER))
    }

    /// Takes a message for a letter; `None` if it is none.
    pub(super) fn read(buffer: Buffer) -> Option<(Self, Meaning)> {
        let code = *buffer.last().filter(|_| buffer.len() >= TRAILER)?;
        let meaning = (0u8..).zip(MEANINGS).find(|(number, _)| f32::from(*number) == code)?;
        Some((Letter(buffer), meaning.1))
    }

    /// Seals the letter.
    pub(super) fn seal(mut self, meaning: Meaning, number: f32) -> Buffer {
        let at = self.len();
        let code = MEANINGS.iter().position(|other| *other == meaning).unwrap_or_default();
        self.0[at] = number;
        self.0[at + 1] = code as f32;
        self.0
    }

    /// How many values it holds.
    pub(super) fn len(&self) -> usize {
        self.0.len() - TRAILER
    }

    /// The values.
    pub(super) fn values(&self) -> &[f32] {
        &self.0[..self.len()]
    }

    /// The values, to be written.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        let len = self.len();
        &mut self.0[..len]
    }

    /// The number as a time, if it is one.
    pub(super) fn duration(&self) -> Duration {
        Duration::try_from_secs_f32(self.number()).unwrap_or_default()
    }

    /// The number that belongs to them.
    pub(super) fn number(&self) -> f32 {
        self.0[self.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_read() {
        for meaning in MEANINGS {
            let mut letter = Letter::new(3);
            letter.values_mut().copy_from_slice(&[1.0, 2.0, 3.0]);
            let (letter, read) = Letter::read(letter.seal(meaning, 0.25)).unwrap();
            assert_eq!((letter.values(), letter.number(), read), (&[1.0, 2.0, 3.0][..], 0.25, meaning));
        }
    }

    #[test]
    fn another_message_is_no_letter() {
        for other in [vec![], vec![0.0], vec![1.0, 2.0, 9.0], vec![1.0, 0.5], vec![1.0, f32::NAN]] {
            assert!(Letter::read(other.into()).is_none());
        }
    }
}
