//! Memory by lifetime: storages of values and gradients that are never in use at one time lie in one memory.
//!
//! A line of time runs through forward and then through backward, a step for each layer in each direction. From what the
//! layers' sub-tasks declare to read and write follows for each storage the step of its first write and that of its last
//! use: its *life*. Storages whose lives have no step in common may share memory. All that a layer touches in one
//! direction lives in the same step, so no sub-task ever writes into memory that it reads, unless the layer worked in
//! place before.
//!
//! A plan then orders tasks by memory and not by storage ([`Net::memory_of`]): whoever writes the next storage waits for
//! the last user of the one before. The validator proves it without looking at lives: it knows what lies where, and
//! follows what each task would find there.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use super::{LayerId, Net, StorageId};
use crate::layer::SubTask;
use crate::plan::{LaneRole, operand_buffer};
use crate::task::Buffer;

/// Weight gradients run in a lane of lower priority: idle threads do them, and ∇A does not wait. So what ∇W and ∇B read is
/// not written again until so many further layers have such tasks: their lane may lag behind by that many.
const SLACK: usize = 3;

/// The steps from first write to last use.
type Life = RangeInclusive<usize>;

/// How much memory the values and gradients of a net take, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobMemory {
    /// If each storage has memory of its own.
    pub apart: usize,
    /// As the net has it.
    pub shared: usize,
    /// What is alive at the step at which most is: no way of sharing takes less.
    pub least: usize,
}

impl Net {
    /// The same net with storages in common memory where their lives permit it. What the net puts out keeps memory of
    /// its own, so that it can be read after a step; any other storage may hold something else by then.
    ///
    /// Comes after [`Net::fused`].
    pub fn sharing_memory(mut self) -> Self {
        let lives = self.lives();
        let mut order: Vec<StorageId> = (0..lives.len()).map(StorageId).collect();
        // The largest first: then each memory is as large as the first storage in it, and none is ever widened.
        order.sort_by_key(|id| (Reverse(self.storages[id.0]), *lives[id.0].start()));
        let mut memories: Vec<(StorageId, Vec<Life>)> = Vec::new();
        for id in order {
            let life = &lives[id.0];
            // Of the memories that are free for this life, the one that lies idle for the shortest time.
            let idle = |(_, users): &&mut (StorageId, Vec<Life>)| idle_around(users, life);
            match memories.iter_mut().filter(|memory| idle(memory).is_some()).min_by_key(idle) {
                Some((home, users)) => {
                    self.homes[id.0] = *home;
                    users.push(life.clone());
                }
                None => {
                    self.homes[id.0] = id;
                    memories.push((id, vec![life.clone()]));
                }
            }
        }
        self
    }

    /// The buffer in whose memory a buffer lies: itself, or the storage that shares its memory with others.
    pub fn memory_of(&self, buffer: Buffer) -> Buffer {
        match buffer {
            Buffer::Storage(id) => Buffer::Storage(self.homes[id.0]),
            other => other,
        }
    }

    /// How much memory values and gradients take.
    pub fn blob_memory(&self) -> BlobMemory {
        let mut memories = vec![0; self.storages.len()];
        for (count, home) in self.storages.iter().zip(&self.homes) {
            memories[home.0] = (*count).max(memories[home.0]);
        }
        // What is alive grows with a first write and shrinks behind a last use.
        let mut changes = vec![0_isize; self.steps() + 1];
        for (count, life) in self.storages.iter().zip(self.lives()) {
            changes[*life.start()] += *count as isize;
            changes[life.end() + 1] -= *count as isize;
        }
        let alive = changes.iter().scan(0, |alive, change| {
            *alive += change;
            Some(*alive)
        });
        BlobMemory {
            apart: self.storages.iter().sum(),
            shared: memories.iter().sum(),
            least: alive.max().unwrap_or(0) as usize,
        }
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

/// How many steps memory with these users lies idle before and behind `life`; `None` if it is not free all that time.
/// The ends of the line count as the end of idleness nowhere: before the first user nothing is lost.
fn idle_around(users: &[Life], life: &Life) -> Option<usize> {
    let apart = |user: &&Life| user.end() < life.start() || life.end() < user.start();
    if !users.iter().all(|user| apart(&user)) {
        return None;
    }
    let gap = |user: &Life| {
        if user.end() < life.start() { life.start() - user.end() } else { user.start() - life.end() }
    };
    users.iter().map(gap).min()
}
