//! The binomial tree over ranks, with rank 0 at its root.
//!
//! The parent of a rank is the rank without its lowest set bit; so the children of r are r+1, r+2, r+4, … as far as
//! these steps are below the lowest set bit of r. The depth is ⌈log₂ P⌉.

/// The parent of `rank`; none for rank 0.
pub(crate) fn parent(rank: usize) -> Option<usize> {
    rank.checked_sub(1).map(|below| rank & below)
}

/// The children of `rank` among `size` ranks, in increasing order. The last one has the largest subtree.
pub(crate) fn children(rank: usize, size: usize) -> impl DoubleEndedIterator<Item = usize> {
    let levels = rank.trailing_zeros().min(size.next_power_of_two().trailing_zeros());
    (0..levels).map(move |level| rank + (1 << level)).filter(move |&child| child < size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree_and_every_rank_is_reached() {
        for size in 1..70 {
            let mut reached = vec![0; size];
            for rank in 0..size {
                for child in children(rank, size) {
                    assert_eq!(parent(child), Some(rank));
                    reached[child] += 1;
                }
            }
            assert_eq!(reached[0], 0);
            assert!(reached[1..].iter().all(|&times| times == 1), "{size}: {reached:?}");
        }
        assert_eq!(parent(0), None);
    }

    #[test]
    fn seven_ranks_form_the_known_tree() {
        let tree: Vec<Vec<usize>> = (0..7).map(|rank| children(rank, 7).collect()).collect();
        assert_eq!(tree, [vec![1, 2, 4], vec![], vec![3], vec![], vec![5, 6], vec![], vec![]]);
    }
}
