//! Whose grains a thread takes first.
//!
//! A task's grains are cut into shares of neighbours ([`super::queue`]), and of each task a thread takes those of one share first: so it finds
//! in its caches what it wrote for the same images a task before. Where the threads of a quadrant are behind several third-level
//! caches (EPYC in NPS1), each cache has shares of its own, and its threads leave those of the others alone as long as any lane has
//! grains of their own. For what one cache holds another waits long, and longest to write: a line that both have read costs
//! the writer ten times what one costs that the other alone had (28 and 2.5 ns on a Zen 4, where it is 7 and 0.9 behind one cache).

use std::ops::Range;

/// The place of a thread among the shares of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// Its own.
    pub share: usize,
    /// Those of all threads behind the same cache.
    pub near: Range<usize>,
}

impl Home {
    /// That of a thread of another crew, which is near to none; it looks at share `first` first.
    pub fn elsewhere(first: usize) -> Self {
        Self { share: first, near: first..first }
    }

    /// The near shares in the order in which the thread looks at them: its own, the next, and round.
    pub fn near(&self) -> impl Iterator<Item = usize> + use<> {
        let Self { share, near } = self.clone();
        (share..near.end).chain(near.start..share)
    }

    /// The others of `shares` shares, from those of the next cache on.
    pub fn far(&self, shares: usize) -> impl Iterator<Item = usize> + use<> {
        let end = self.near.end;
        (0..shares - self.near.len()).map(move |turn| (end + turn) % shares)
    }
}

/// The homes of a crew's threads, of each of which `caches` names the cache: at most `most` shares, or one for each cache, and
/// those of a cache as its threads. Threads of a share have numbers that are near.
#[cfg(not(loom))]
pub fn homes(caches: &[usize], most: usize) -> Vec<Home> {
    let mut names: Vec<usize> = Vec::new();
    for name in caches {
        if !names.contains(name) {
            names.push(*name);
        }
    }
    let mut homes = vec![Home::elsewhere(0); caches.len()];
    let mut start = 0;
    for name in names {
        let of_cache = || caches.iter().enumerate().filter(|(_, other)| **other == name);
        let threads = of_cache().count();
        let shares = (most * threads / caches.len()).clamp(1, threads);
        for (number, (thread, _)) in of_cache().enumerate() {
            homes[thread] = Home { share: start + number * shares / threads, near: start..start + shares };
        }
        start += shares;
    }
    homes
}

/// Shares of a crew with these homes.
#[cfg(not(loom))]
pub fn shares(homes: &[Home]) -> usize {
    homes.iter().map(|home| home.near.end).max().unwrap_or(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn places(caches: &[usize], most: usize) -> Vec<(usize, Range<usize>)> {
        homes(caches, most).into_iter().map(|home| (home.share, home.near)).collect()
    }

    #[test]
    fn threads_behind_one_cache_are_near_to_all_shares() {
        assert_eq!(places(&[7; 3], 8), [(0, 0..3), (1, 0..3), (2, 0..3)]);
        let shares: Vec<usize> = homes(&[0; 6], 4).iter().map(|home| home.share).collect();
        assert_eq!(shares, [0, 0, 1, 2, 2, 3]);
    }

    #[test]
    fn each_cache_has_shares_of_its_own() {
        // Second hardware threads come behind the first of all cores.
        let caches = [0, 0, 4, 4, 0, 0, 4, 4];
        let of = |share, near| (share, near);
        let expected = [of(0, 0..2), of(0, 0..2), of(2, 2..4), of(2, 2..4)];
        let second = [of(1, 0..2), of(1, 0..2), of(3, 2..4), of(3, 2..4)];
        assert_eq!(places(&caches, 4), [expected, second].concat());
        // More caches than shares are wanted, and caches of unequal numbers of threads.
        assert_eq!(places(&[1, 2, 3], 2), [(0, 0..1), (1, 1..2), (2, 2..3)]);
        let uneven = homes(&[0, 0, 0, 0, 0, 0, 9, 9], 8);
        assert_eq!([uneven[5].near.clone(), uneven[7].near.clone()], [0..6, 6..8]);
        assert_eq!(shares(&uneven), 8);
    }

    #[test]
    fn a_thread_looks_at_all_shares_once_and_at_near_ones_first() {
        let home = Home { share: 3, near: 2..5 };
        assert_eq!(home.near().collect::<Vec<_>>(), [3, 4, 2]);
        assert_eq!(home.far(7).collect::<Vec<_>>(), [5, 6, 0, 1]);
        let helper = Home::elsewhere(2);
        assert_eq!(helper.near().count(), 0);
        assert_eq!(helper.far(3).collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(Home::elsewhere(5).far(3).collect::<Vec<_>>(), [2, 0, 1]);
    }
}
