//! Partial sums that are added up where they are read.

use super::simd::Simd;

/// Arrays of equal length, some distance apart, that are added up in order: sums of several grains over parts of the images.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summed<'a> {
    values: &'a [f32],
    count: usize,
    distance: usize,
}

impl<'a> Summed<'a> {
    /// `count` arrays, `distance` apart, of which `values` holds the first to the last.
    ///
    /// # Panics
    /// If `values` is too short for that.
    pub fn new(values: &'a [f32], count: usize, distance: usize) -> Self {
        assert!(count > 0 && values.len() >= (count - 1) * distance, "{count} arrays in {}", values.len());
        Self { values, count, distance }
    }

    /// One array.
    pub fn one(values: &'a [f32]) -> Self {
        Self::new(values, 1, 0)
    }

    /// Elements of each.
    pub fn len(&self) -> usize {
        self.values.len() - (self.count - 1) * self.distance
    }

    /// What begins at `first` in each.
    ///
    /// # Panics
    /// If none is so long.
    pub fn from(&self, first: usize) -> Self {
        assert!(first <= self.len(), "element {first} of {}", self.len());
        Self { values: &self.values[first..], ..*self }
    }

    /// The sum of the vectors at `at`. Those `ahead` of it are asked for.
    ///
    /// # Safety
    /// The CPU has the instructions of `S`.
    ///
    /// # Panics
    /// If no vector lies there.
    #[inline(always)]
    pub unsafe fn load<S: Simd>(&self, at: usize, ahead: usize) -> S::Vector {
        assert!(at + S::LANES <= self.len(), "a vector at {at} of {}", self.len());
        // SAFETY: the instructions by contract, and the vectors lie in the arrays, as asserted.
        unsafe {
            let first = self.values.as_ptr().add(at);
            S::prefetch(first.wrapping_add(ahead));
            let mut sum = S::load(first);
            for i in 1..self.count {
                let other = first.add(i * self.distance);
                S::prefetch(other.wrapping_add(ahead));
                sum = S::add(sum, S::load(other));
            }
            sum
        }
    }
}
