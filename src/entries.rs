//! Whose an entry of a lane is: threads note entries, and tasks have some that follow each other in one lane.

use quadrille_cpu::Ticket;

/// What belongs to entries, by the first and the last of them.
pub struct Entries<T>(Vec<([Ticket; 2], T)>);

impl<T: Copy> Entries<T> {
    /// In any order; no entry belongs to two.
    pub fn new(mut all: Vec<([Ticket; 2], T)>) -> Self {
        all.sort_unstable_by_key(|([first, _], _)| place(*first));
        Self(all)
    }

    /// Whose the entry is; `None` of one that nobody named.
    pub fn of(&self, entry: Ticket) -> Option<T> {
        let behind = self.0.partition_point(|([first, _], _)| place(*first) <= place(entry));
        let ([_, last], of) = self.0[..behind].last()?;
        (last.lane == entry.lane && entry.seq <= last.seq).then_some(*of)
    }
}

fn place(entry: Ticket) -> impl Ord {
    (entry.lane, entry.seq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_belong_to_the_task_that_has_them() {
        let entry = |lane, seq| Ticket { lane, seq };
        let tasks = [[entry(1, 4), entry(1, 5)], [entry(0, 9), entry(0, 9)], [entry(1, 7), entry(1, 7)]];
        let tasks = Entries::new(tasks.into_iter().zip(0..).collect());
        let of = |lane, seq| tasks.of(entry(lane, seq));
        assert_eq!([of(1, 4), of(1, 5), of(0, 9), of(1, 7)], [Some(0), Some(0), Some(1), Some(2)]);
        assert_eq!([of(0, 8), of(0, 10), of(1, 3), of(1, 6), of(1, 8), of(2, 4)], [None; 6]);
    }
}
