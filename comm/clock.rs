//! What time it is: by the clock on the wall, or by a virtual one.

use std::time::{Duration, Instant};

/// A moment on the clock that a rank lives by. Moments of one rank are of one clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Moment {
    /// By the real clock.
    Real(Instant),
    /// By a virtual one: time since it began.
    Virtual(Duration),
}

impl Moment {
    /// Now, by the real clock.
    pub fn real() -> Self {
        Moment::Real(Instant::now())
    }

    /// So much later.
    pub fn after(self, time: Duration) -> Self {
        match self {
            Moment::Real(at) => Moment::Real(at + time),
            Moment::Virtual(at) => Moment::Virtual(at + time),
        }
    }

    /// The later one of two.
    pub fn or_later(self, other: Moment) -> Self {
        self.after(other.since(self))
    }

    /// How long after `earlier` this is; nothing if it is not after it.
    pub fn since(self, earlier: Moment) -> Duration {
        match (self, earlier) {
            (Moment::Real(late), Moment::Real(early)) => late.saturating_duration_since(early),
            (Moment::Virtual(late), Moment::Virtual(early)) => late.saturating_sub(early),
            // No rank changes its clock.
            _ => Duration::ZERO,
        }
    }
}

/// What a method lets a rank do beside its messages. Real time passes by itself meanwhile; a virtual clock has to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The centre takes in packed buffers: equation (2), or the step of a master.
    Centre {
        /// Values of a packed buffer.
        values: usize,
        /// Workers whose buffers, or their sum, go in.
        workers: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_on_one_clock_and_never_backwards() {
        let at = |seconds| Moment::Virtual(Duration::from_secs(seconds));
        assert_eq!((at(5).since(at(3)), at(3).since(at(5))), (Duration::from_secs(2), Duration::ZERO));
        let (early, late) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        assert!(Moment::Real(late).since(Moment::Real(early)) >= Duration::from_secs(1));
        assert_eq!(Moment::Real(early).since(Moment::Real(late)), Duration::ZERO);
        assert_eq!(at(1).since(Moment::Real(early)), Duration::ZERO);
        assert_eq!((at(3).or_later(at(5)), at(5).or_later(at(3))), (at(5), at(5)));
        assert_eq!(at(3).after(Duration::from_secs(4)), at(7));
    }
}
