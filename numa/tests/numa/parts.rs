//! How many parts a chip is cut into, by what a training copies.

use quadrille_numa::parts::{Choice, Copies, choose};

use crate::fixture::{epyc, knl, laptop};

const GIB: u64 = 1 << 30;

/// AlexNet and CIFAR-10 as in the paper: 249 MB of weights, as much of gradients and histories, and 687 MB of data.
const PAPER: Copies = Copies { fixed: 3 * 249_000_000, shared: 687_000_000, batch: 64, workers: 1 };

fn fitting(choice: &Choice) -> Vec<usize> {
    choice.candidates.iter().filter(|candidate| candidate.fits()).map(|candidate| candidate.parts).collect()
}

#[test]
fn the_papers_chip_gets_the_papers_sixteen_parts() {
    let machine = knl([18, 18, 16, 16]).detect();
    let choice = choose(&machine, 4, &PAPER);
    assert_eq!((choice.parts, fitting(&choice)), (16, vec![4, 8, 16]), "{choice:?}");
    assert!(choice.why.contains("fit the"), "{}", choice.why);
}

#[test]
fn fewer_parts_where_more_copies_do_not_fit() {
    let machine = knl([18, 18, 16, 16]).detect();
    let room =
        machine.nodes.iter().filter(|node| node.cpus.is_empty()).filter_map(|node| node.memory_bytes).min();
    let room = room.expect("fast memory");
    let choice = choose(&machine, 4, &Copies { fixed: room / 3, ..PAPER });
    assert_eq!((choice.parts, fitting(&choice)), (8, vec![4, 8]), "{choice:?}");
    assert!(choice.why.contains("16 parts would need"), "{}", choice.why);
    let choice = choose(&machine, 4, &Copies { fixed: 2 * room, ..PAPER });
    assert_eq!((choice.parts, fitting(&choice)), (4, vec![]), "{choice:?}");
    assert!(choice.why.contains("exceeds"), "{}", choice.why);
}

#[test]
fn images_cores_and_workers_limit_the_parts() {
    let machine = knl([18, 18, 16, 16]).detect();
    assert_eq!(choose(&machine, 4, &Copies { batch: 8, ..PAPER }).parts, 8);
    assert_eq!(choose(&machine, 1, &Copies { workers: 4, ..PAPER }).parts, 4);
    let small = knl([6, 6, 4, 4]).detect();
    assert_eq!(choose(&small, 4, &PAPER).parts, 4);
}

#[test]
fn without_fast_memory_a_part_is_a_node() {
    for (machine, nodes) in [(epyc().detect(), 4), (laptop().detect(), 1)] {
        let choice = choose(&machine, nodes, &Copies { fixed: GIB, ..PAPER });
        assert_eq!(choice.parts, nodes, "{choice:?}");
        assert!(choice.why.contains("no fast memory"), "{}", choice.why);
    }
}
