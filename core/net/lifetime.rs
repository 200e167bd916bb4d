//! Memory by lifetime: storages of values and gradients that are never in use at one time lie in the same memory.
//!
//! A line of time runs through forward and then through backward, a step for each layer in each direction. From what the
//! layers' sub-tasks declare to read and write follows for each storage the step of its first write and that of its last
//! use: its *life*. Storages whose lives have no step in common may overlap in memory. All that a layer touches in one
//! direction lives in the same step, so no sub-task ever writes into memory that it reads, unless the layer worked in
//! place before.
//!
//! A plan then orders tasks by memory ([`Net::overlapping`]): whoever writes a storage waits for the last users of those
//! that it overlaps. The validator proves it without looking at lives: it knows what lies where, and follows what each
//! task would find there.

use std::cmp::Reverse;
use std::ops::{Range, RangeInclusive};

use super::{ALIGNMENT, LayerId, Net, StorageId};
use crate::layer::SubTask;
use crate::plan::{LaneRole, operand_buffer};
use crate::task::Buffer;

/// Weight gradients run in a lane of lower priority: idle threads do them, and ∇A does not wait. So what ∇W and ∇B read is
/// not written again until so many further layers have such tasks: their lane may lag behind by that many.
const SLACK: usize = 3;

/// The steps from first write to last use.
type Life = RangeInclusive<usize>;

/// Memory that storages share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Where each storage lies, in elements; as much as its device asked for, rounded up to whole cache lines.
    pub ranges: Vec<Range<usize>>,
    /// The end of the last.
    pub len: usize,
}

/// How much memory the values and gradients of a net take, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobMemory {
    /// If each storage has memory of its own.
    pub apart: usize,
    /// As the net has it.
    pub taken: usize,
    /// What is alive at the step at which most is: no way of sharing takes less.
    pub least: usize,
}

impl Net {
    /// The same net with storages in common memory where their lives permit it. `lengths` are the elements that each
    /// storage takes on the net's device, padding included.
    ///
    /// What the net puts out keeps memory of its own, so that it can be read after a step; any other storage may hold
    /// something else by then. Comes after [`Net::fused`].
    ///
    /// # Panics
    /// If there is not a length for each storage.
    pub fn sharing_memory(mut self, lengths: &[usize]) -> Self {
        let lives = self.lives();
        let lengths: Vec<usize> = lengths.iter().map(|len| len.next_multiple_of(ALIGNMENT)).collect();
        let mut order: Vec<usize> = (0..lives.len()).collect();
        // The largest first: what is small fits between what is large, and not the other way round.
        order.sort_by_key(|id| (Reverse(lengths[*id]), *lives[*id].start()));
        let mut ranges = vec![0..0; lives.len()];
        let mut placed: Vec<usize> = Vec::new();
        for id in order {
            let meets = |other: &&usize| {
                lives[id].start() <= lives[**other].end() && lives[**other].start() <= lives[id].end()
            };
            let mut taken: Vec<Range<usize>> =
                placed.iter().filter(meets).map(|other| ranges[*other].clone()).collect();
            let start = best_fit(&mut taken, lengths[id]);
            ranges[id] = start..start + lengths[id];
            placed.push(id);
        }
        let len = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        self.memory = Some(SharedMemory { ranges, len });
        self
    }

    /// The storages that a storage overlaps in memory: itself, and what lies there at other times.
    pub fn overlapping(&self, id: StorageId) -> impl Iterator<Item = StorageId> {
        let others = self.memory.iter().flat_map(move |memory| {
            let mine = &memory.ranges[id.0];
            let overlaps =
                move |(_, other): &(usize, &Range<usize>)| mine.start < other.end && other.start < mine.end;
            memory.ranges.iter().enumerate().filter(overlaps).map(|(other, _)| StorageId(other))
        });
        [id].into_iter().chain(others.filter(move |other| *other != id))
    }

    /// The buffers that a buffer overlaps in memory, itself included.
    pub(crate) fn overlapping_buffers(&self, buffer: Buffer) -> Vec<Buffer> {
        match buffer {
            Buffer::Storage(id) => self.overlapping(id).map(Buffer::Storage).collect(),
            other => vec![other],
        }
    }

    /// How much memory values and gradients take.
    pub fn blob_memory(&self) -> BlobMemory {
        let lengths: Vec<usize> = match &self.memory {
            Some(memory) => memory.ranges.iter().map(Range::len).collect(),
            None => self.storages.clone(),
        };
        // What is alive grows with a first write and shrinks behind a last use.
        let mut changes = vec![0_isize; self.steps() + 1];
        for (len, life) in lengths.iter().zip(self.lives()) {
            changes[*life.start()] += *len as isize;
            changes[life.end() + 1] -= *len as isize;
        }
        let alive = changes.iter().scan(0, |alive, change| {
            *alive += change;
            Some(*alive)
        });
        let least = alive.max().unwrap_or(0) as usize;
        let apart = lengths.iter().sum();
        BlobMemory { apart, taken: self.memory.as_ref().map_or(apart, |memory| memory.len), least }
    }

    /// Steps of the line of time, with one at its end for what is read after it.
    fn steps(&self) -> usize {
        2 * self.layers.len() + 1
    }

    /// The life of each storage. What nobody touches, and what the host may read after a step, lives all the time.
    fn lives(&self) -> Vec<Life> {
        let mut lives: Vec<Option<Life>> = vec![None; self.storages.len()];
        let layers = self.layers.len();
        let late = self.late_steps();
        for id in (0..layers).map(LayerId) {
            for sub in SubTask::ALL {
                let Some(accesses) = self.accesses(id, sub) else { continue };
                let backward = SubTask::BACKWARD.contains(&sub);
                let step = if backward { 2 * layers - 1 - id.0 } else { id.0 };
                let end = match LaneRole::of(sub) {
                    LaneRole::Gradient => late[step],
                    _ => step,
                };
                for operand in accesses.reads.iter().chain(&accesses.writes) {
                    let Some(Buffer::Storage(storage)) = operand_buffer(self, self.layer(id), *operand)
                    else {
                        continue;
                    };
                    let life = lives[storage.0].get_or_insert(step..=end);
                    *life = step.min(*life.start())..=end.max(*life.end());
                }
            }
        }
        let always = 0..=self.steps() - 1;
        for blob in self.outputs() {
            lives[self.blob(blob).data.0] = Some(always.clone());
        }
        lives.into_iter().map(|life| life.unwrap_or(always.clone())).collect()
    }

    /// For each step the one at which ∇W and ∇B of its layer are done at the latest, as far as memory is concerned.
    fn late_steps(&self) -> Vec<usize> {
        let layers = self.layers.len();
        let trails = |id: LayerId| {
            let mut subs =
                SubTask::BACKWARD.into_iter().filter(|sub| LaneRole::of(*sub) == LaneRole::Gradient);
            subs.any(|sub| self.accesses(id, sub).is_some())
        };
        let trailing: Vec<usize> =
            (layers..2 * layers).filter(|step| trails(LayerId(2 * layers - 1 - step))).collect();
        let late = |step| {
            let behind = trailing.partition_point(|other| *other <= step);
            trailing.get(behind + SLACK - 1).copied().unwrap_or(2 * layers - 1)
        };
        (0..2 * layers).map(late).collect()
    }
}

/// The start of the smallest gap between `taken` that holds `len` elements, or the end of them all.
fn best_fit(taken: &mut [Range<usize>], len: usize) -> usize {
    taken.sort_unstable_by_key(|range| range.start);
    let (mut end, mut best) = (0, None);
    for range in taken {
        let gap = range.start.saturating_sub(end);
        if gap >= len && best.is_none_or(|(least, _)| gap < least) {
            best = Some((gap, end));
        }
        end = end.max(range.end);
    }
    best.map_or(end, |(_, start)| start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_gap_that_fits_is_taken() {
        let mut taken = [30..40, 0..10, 14..20, 16..18, 60..70];
        for (len, start) in [(3, 10), (4, 10), (5, 20), (10, 20), (11, 40), (20, 40), (21, 70)] {
            assert_eq!(best_fit(&mut taken, len), start, "{len}");
        }
        assert_eq!(best_fit(&mut [], 5), 0);
        assert_eq!(best_fit(&mut [8..9, 9..12], 5), 0);
    }
}
