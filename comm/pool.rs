//! Buffers that wait for their next use, so that steady state allocates nothing.

use crate::transport::Buffer;

/// The free buffers of one rank.
pub(crate) struct Pool {
    free: Vec<Buffer>,
    misses: u64,
    limit: usize,
}

impl Pool {
    /// A pool that keeps at most `limit` free buffers of each length, so that what comes in without ever going out
    /// does not pile up.
    pub(crate) fn new(limit: usize) -> Self {
        Pool { free: Vec::new(), misses: 0, limit }
    }

    /// Keeps so many more of each length.
    pub(crate) fn keep(&mut self, more: usize) {
        self.limit += more;
    }

    /// A buffer that holds a copy of `values`: a free one of that length, or a new one, which counts as a miss.
    pub(crate) fn copy_of(&mut self, values: &[f32]) -> Buffer {
        let mut buffer = self.take(values.len());
        buffer.copy_from_slice(values);
        buffer
    }

    /// A buffer of `len` values, whatever they are: a free one, or a new one, which counts as a miss.
    pub(crate) fn take(&mut self, len: usize) -> Buffer {
        match self.free.iter().rposition(|buffer| buffer.len() == len) {
            Some(index) => self.free.swap_remove(index),
            None => {
                self.misses += 1;
                Buffer::zeros(len)
            }
        }
    }

    /// Takes `buffer` back for a later use, or frees it at the limit.
    pub(crate) fn put(&mut self, buffer: Buffer) {
        if self.free.iter().filter(|free| free.len() == buffer.len()).count() < self.limit {
            self.free.push(buffer);
        }
    }

    /// How often a buffer had to be allocated.
    pub(crate) fn misses(&self) -> u64 {
        self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_is_used_again_for_its_own_length_only() {
        let mut pool = Pool::new(2);
        let first = pool.copy_of(&[1.0, 2.0]);
        let place = first.as_ptr();
        pool.put(first);
        assert_eq!(pool.copy_of(&[9.0])[..], [9.0]);
        assert_eq!(pool.misses(), 2);
        let again = pool.copy_of(&[3.0, 4.0]);
        assert_eq!((again.as_ptr(), &again[..]), (place, &[3.0, 4.0][..]));
        assert_eq!(pool.misses(), 2);
    }

    #[test]
    fn a_full_pool_frees_what_comes_in() {
        let mut pool = Pool::new(2);
        for _ in 0..3 {
            pool.put(Buffer::zeros(4));
        }
        pool.put(Buffer::zeros(5));
        assert_eq!(pool.free.len(), 3);
    }
}
