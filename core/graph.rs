//! Edges follow from declared accesses: nobody writes them by hand.

use std::collections::HashMap;

use crate::task::{Place, TaskId};

/// What tasks have done to each buffer so far, in the order of submission.
#[derive(Debug, Default)]
pub struct AccessLog {
    last_write: HashMap<Place, TaskId>,
    reads_since: HashMap<Place, Vec<TaskId>>,
}

impl AccessLog {
    /// Enters the next task and returns the earlier tasks that it must come after: the last writer of what it
    /// reads, and the last writer and later readers of what it writes or what that overlaps in memory. Sorted, without
    /// repeats.
    pub fn enter(
        &mut self,
        task: TaskId,
        reads: &[Place],
        writes: &[Place],
        overlapping: impl Fn(&Place) -> Vec<Place>,
    ) -> Vec<TaskId> {
        let mut after: Vec<TaskId> = Vec::new();
        for place in reads {
            after.extend(self.last_write.get(place));
        }
        for place in writes.iter().flat_map(overlapping) {
            after.extend(self.last_write.get(&place));
            after.extend(self.reads_since.get(&place).into_iter().flatten());
        }
        for place in reads {
            self.reads_since.entry(*place).or_default().push(task);
        }
        for place in writes {
            self.last_write.insert(*place, task);
            self.reads_since.remove(place);
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
