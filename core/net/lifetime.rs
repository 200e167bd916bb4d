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

use super::{ALIGNMENT, LayerId, Net, Part, StorageId};
use crate::layer::SubTask;
use crate::plan::{LaneRole, operand_buffers};
use crate::task::Buffer;

/// Weight gradients run in a lane of lower priority: idle threads do them, and ∇A does not wait. So what ∇W and ∇B read is
/// not written again until so many further layers have such tasks: their lane may lag behind by that many.
const SLACK: usize = 3;

/// The steps from first write to last use.
type Life = RangeInclusive<usize>;

/// What the storages of a net ask of its device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageNeeds {
    /// Elements that each takes, padding included.
    pub lengths: Vec<usize>,
    /// Which of them are to lie inside others, for each storage.
    pub parts: Vec<Option<Part>>,
}

impl From<Vec<usize>> for StorageNeeds {
    /// Of storages that lie in no other.
    fn from(lengths: Vec<usize>) -> Self {
        Self { parts: vec![None; lengths.len()], lengths }
    }
}

/// Memory that storages share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Where each storage lies, in elements; as much as its device asked for, rounded up to whole cache lines. Of a
    /// storage inside another, where that lies.
    pub ranges: Vec<Range<usize>>,
    /// The end of the last.
    pub len: usize,
    /// Which storages lie inside others, for each storage.
    pub parts: Vec<Option<Part>>,
}

/// How much memory the values and gradients of a net take, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobMemory {
    /// If each storage that lies inside no other has memory of its own.
    pub apart: usize,
    /// As the net has it.
    pub taken: usize,
    /// What is alive at the step at which most is: no way of sharing takes less.
    pub least: usize,
}

impl Net {
    /// The same net with storages in common memory where their lives permit it, and inside others where its device says so
    /// in its `needs`: the whole then lives as long as any of its parts.
    ///
    /// What the net puts out, and what its loss consists of, keeps memory of its own, so that it can be read after a step; any
    /// other storage may hold something else by then. Comes after [`Net::fused`].
    ///
    /// # Panics
    /// If `needs` does not say of each storage what it takes.
    pub fn sharing_memory(mut self, needs: &StorageNeeds) -> Self {
        let StorageNeeds { lengths, parts } = needs.clone();
        let mut ranges = vec![0..0; lengths.len()];
        // Lives are those of the wholes.
        self.memory = Some(SharedMemory { ranges: ranges.clone(), len: 0, parts });
        let lengths: Vec<usize> = lengths.iter().map(|len| len.next_multiple_of(ALIGNMENT)).collect();
        let lives = self.lives().into_iter().enumerate();
        let mut order: Vec<(usize, Life)> = lives.filter_map(|(id, life)| Some((id, life?))).collect();
        // The largest first: what is small fits between what is large, and not the other way round.
        order.sort_by_key(|(id, life)| (Reverse(lengths[*id]), *life.start()));
        for (place, (id, life)) in order.iter().enumerate() {
            let meets =
                |(_, other): &&(usize, Life)| life.start() <= other.end() && other.start() <= life.end();
            let mut taken: Vec<Range<usize>> =
                order[..place].iter().filter(meets).map(|(other, _)| ranges[*other].clone()).collect();
            let start = best_fit(&mut taken, lengths[*id]);
            ranges[*id] = start..start + lengths[*id];
        }
        let len = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        for (id, part) in needs.parts.iter().enumerate() {
            if let Some(part) = part {
                ranges[id] = ranges[part.whole.0].clone();
            }
        }
        self.memory = Some(SharedMemory { ranges, len, parts: needs.parts.clone() });
        self
    }

    /// The storages that a storage overlaps in memory: itself, what lies there at other times, what it lies in and what
    /// lies inside it.
    pub fn overlapping(&self, id: StorageId) -> impl Iterator<Item = StorageId> {
        let others = self.memory.iter().flat_map(move |memory| {
            let (whole, mine) = self.place_in_whole(id);
            let overlaps = move |other: &StorageId| {
                let (around, theirs) = self.place_in_whole(*other);
                if around == whole {
                    return meet(&mine, &theirs);
                }
                meet(&memory.ranges[whole.0], &memory.ranges[around.0])
            };
            (0..memory.ranges.len()).map(StorageId).filter(overlaps)
        });
        [id].into_iter().chain(others.filter(move |other| *other != id))
    }

    /// The buffers that a whole array overlaps in memory, itself included.
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
        let lives: Vec<Option<Life>> = self.lives();
        let wholes = || lengths.iter().zip(&lives).filter_map(|(len, life)| Some((len, life.as_ref()?)));
        for (len, life) in wholes() {
            changes[*life.start()] += *len as isize;
            changes[life.end() + 1] -= *len as isize;
        }
        let alive = changes.iter().scan(0, |alive, change| {
            *alive += change;
            Some(*alive)
        });
        let least = alive.max().unwrap_or(0) as usize;
        let apart = wholes().map(|(len, _)| len).sum();
        BlobMemory { apart, taken: self.memory.as_ref().map_or(apart, |memory| memory.len), least }
    }

    /// Steps of the line of time, with one at its end for what is read after it.
    fn steps(&self) -> usize {
        2 * self.layers.len() + 1
    }

    /// The life of each storage and of all that lies inside it; `None` for those that lie inside others. What nobody
    /// touches, and what the host may read after a step, lives all the time.
    fn lives(&self) -> Vec<Option<Life>> {
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
                let operands = accesses.reads.iter().chain(&accesses.writes);
                for buffer in operands.flat_map(|operand| operand_buffers(self, self.layer(id), *operand)) {
                    let Buffer::Storage(storage) = buffer else { continue };
                    let (whole, _) = self.place_in_whole(storage);
                    let life = lives[whole.0].get_or_insert(step..=end);
                    *life = step.min(*life.start())..=end.max(*life.end());
                }
            }
        }
        let always = 0..=self.steps() - 1;
        for blob in self.shown() {
            let (whole, _) = self.place_in_whole(self.blob(blob).data);
            lives[whole.0] = Some(always.clone());
        }
        let of_whole = |(id, life): (usize, Option<Life>)| {
            self.part(StorageId(id)).is_none().then(|| life.unwrap_or(always.clone()))
        };
        lives.into_iter().enumerate().map(of_whole).collect()
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

/// Whether two ranges have something in common.
fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
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
