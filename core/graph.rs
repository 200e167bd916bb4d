//! Edges follow from declared accesses: nobody writes them by hand.

use std::collections::HashMap;

use crate::task::{Place, TaskId, Tile, parts_meet};

/// Who touched which images of an array; `None` is all of them.
type Touch = (Option<Tile>, TaskId);

/// What tasks have done to each array so far, in the order of submission.
#[derive(Debug, Default)]
pub struct AccessLog {
    last_writes: HashMap<Place, Vec<Touch>>,
    reads_since: HashMap<Place, Vec<Touch>>,
}

impl AccessLog {
    /// Enters the next task and returns the earlier tasks that it must come after: the last writers of what it
    /// reads, and the last writers and later readers of what it writes or what that overlaps in memory. Sorted, without
    /// repeats. `overlapping` knows whole arrays only: some images of an array overlap all of another that does.
    pub fn enter(
        &mut self,
        task: TaskId,
        reads: &[Place],
        writes: &[Place],
        overlapping: impl Fn(&Place) -> Vec<Place>,
    ) -> Vec<TaskId> {
        let mut after: Vec<TaskId> = Vec::new();
        let meeting = |touches: Option<&Vec<Touch>>, part: Option<Tile>| -> Vec<TaskId> {
            let meets = touches.into_iter().flatten().filter(|(other, _)| parts_meet(*other, part));
            meets.map(|(_, task)| *task).collect()
        };
        for (place, part) in reads.iter().map(|place| place.whole()) {
            after.extend(meeting(self.last_writes.get(&place), part));
        }
        for (written, part) in writes.iter().map(|place| place.whole()) {
            for place in overlapping(&written) {
                let part = if place == written { part } else { None };
                after.extend(meeting(self.last_writes.get(&place), part));
                after.extend(meeting(self.reads_since.get(&place), part));
            }
        }
        for (place, part) in reads.iter().map(|place| place.whole()) {
            self.reads_since.entry(place).or_default().push((part, task));
        }
        for (place, part) in writes.iter().map(|place| place.whole()) {
            // What is written over as a whole does not count any more.
            let stays = |(other, _): &Touch| match (part, other) {
                (None, _) => false,
                (Some(part), Some(other)) => !part.holds(other),
                (Some(_), None) => true,
            };
            self.last_writes.entry(place).or_default().retain(stays);
            self.last_writes.entry(place).or_default().push((part, task));
            self.reads_since.entry(place).or_default().retain(stays);
        }
        after.retain(|earlier| *earlier != task);
        after.sort_unstable();
        after.dedup();
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::StorageId;
    use crate::task::{Buffer, DeviceId};

    fn place(i: usize) -> Place {
        Place { device: DeviceId(0), buffer: Buffer::Storage(StorageId(i)) }
    }

    #[test]
    fn reads_follow_writes_and_writes_follow_both() {
        let mut log = AccessLog::default();
        let mut enter = |task, reads: &[Place], writes: &[Place]| {
            log.enter(TaskId(task), reads, writes, |place| vec![*place])
        };
        assert_eq!(enter(0, &[], &[place(0)]), []);
        assert_eq!(enter(1, &[place(0)], &[place(1)]), [TaskId(0)]);
        assert_eq!(enter(2, &[place(0)], &[place(2)]), [TaskId(0)]);
        // Write after both reads; an in-place task depends on the writer once.
        assert_eq!(enter(3, &[place(0)], &[place(0)]), [TaskId(0), TaskId(1), TaskId(2)]);
        assert_eq!(enter(4, &[place(0)], &[]), [TaskId(3)]);
    }

    #[test]
    fn chunks_follow_those_that_have_images_in_common() {
        let mut log = AccessLog::default();
        let images = |i, first, images| Place {
            buffer: Buffer::Images(StorageId(i), Tile { first, images }),
            ..place(i)
        };
        // 0 and 1 share memory.
        let overlapping = |p: &Place| match p.buffer {
            Buffer::Storage(StorageId(0 | 1)) => [0, 1].map(place).to_vec(),
            _ => vec![*p],
        };
        let mut enter =
            |task, reads: &[Place], writes: &[Place]| log.enter(TaskId(task), reads, writes, overlapping);
        assert_eq!(enter(0, &[], &[place(0)]), []);
        assert_eq!(enter(1, &[images(0, 0, 2)], &[images(2, 0, 2)]), [TaskId(0)]);
        assert_eq!(enter(2, &[images(0, 2, 2)], &[images(2, 2, 2)]), [TaskId(0)]);
        assert_eq!(enter(3, &[images(2, 2, 1)], &[images(3, 2, 1)]), [TaskId(2)]);
        assert_eq!(enter(4, &[images(2, 1, 2)], &[]), [TaskId(1), TaskId(2)]);
        assert_eq!(enter(5, &[place(2)], &[]), [TaskId(1), TaskId(2)]);
        // Some of what is written is written again, after those who read it.
        assert_eq!(enter(6, &[], &[images(2, 0, 1)]), [TaskId(1), TaskId(5)]);
        assert_eq!(enter(7, &[place(2)], &[]), [TaskId(1), TaskId(2), TaskId(6)]);
        // Of what shares memory any part may be any other.
        assert_eq!(enter(8, &[], &[images(1, 0, 1)]), [TaskId(0), TaskId(1), TaskId(2)]);
        assert_eq!(enter(9, &[], &[place(2)]).len(), 7);
    }

    #[test]
    fn a_write_follows_the_users_of_all_that_it_overlaps() {
        let mut log = AccessLog::default();
        // 1 lies across 0 and 2, which lie apart.
        let overlapping = |p: &Place| match p.buffer {
            Buffer::Storage(StorageId(1)) => [0, 1, 2].map(place).to_vec(),
            _ => vec![*p, place(1)],
        };
        let mut enter =
            |task, reads: &[Place], writes: &[Place]| log.enter(TaskId(task), reads, writes, overlapping);
        assert_eq!(enter(0, &[], &[place(0)]), []);
        assert_eq!(enter(1, &[], &[place(2)]), []);
        assert_eq!(enter(2, &[place(0)], &[]), [TaskId(0)]);
        assert_eq!(enter(3, &[], &[place(1)]), [TaskId(0), TaskId(1), TaskId(2)]);
        assert_eq!(enter(4, &[place(1)], &[]), [TaskId(3)]);
        assert_eq!(enter(5, &[], &[place(2)]), [TaskId(1), TaskId(3), TaskId(4)]);
    }
}
