//! What a worker says that it needs is what it takes, and is where it was sent.

use quadrille_core::plan::Stage;
use quadrille_cpu::isa::Isa;
use quadrille_cpu::{Homes, MappedWorker, Program, Purpose};
use quadrille_numa::memory::page_bytes;
use quadrille_numa::memory::plan::Home;

use crate::common::{crews, nets, options, plan, small_lenet};

#[test]
fn what_is_needed_is_what_is_taken() {
    let nets = nets(small_lenet, 12, 2);
    let plan = plan(&nets, Stage::Iteration);
    let program = Program { nets: &nets, plans: &[&plan] };
    let mapped = MappedWorker::new(&crews(2, 3), &[program], &options(Isa::Portable)).expect("a worker");
    let needs = mapped.needs();
    let worker = mapped.place(&[]).expect("memory");
    let places = worker.places();
    if let Some(refusal) = places.iter().find_map(|place| place.pages.as_ref().err()) {
        return println!("skipped: {refusal}");
    }
    for (device, needs) in needs.iter().enumerate() {
        assert_eq!(needs.len(), Purpose::all(1).count());
        for need in needs {
            let own = places.iter().filter(|place| place.device == device && place.what == need.what);
            let pages = own.filter_map(|place| place.pages.as_ref().ok());
            let pages: usize = pages.map(|census| census.touched() + census.untouched).sum();
            assert_eq!((pages * page_bytes()) as u64, need.bytes, "{} of device {device}", need.what);
        }
        assert!(needs.iter().filter(|need| need.bytes > 0).count() >= 5, "{needs:?}");
    }
}

/// The kernel takes a node that is not there for a mistake, as it takes one that a job may not use.
#[test]
fn a_node_that_is_not_there_is_noted_and_nothing_else_changes() {
    let nets = nets(small_lenet, 12, 1);
    let plan = plan(&nets, Stage::Iteration);
    let program = Program { nets: &nets, plans: &[&plan] };
    let mapped = MappedWorker::new(&crews(1, 1), &[program], &options(Isa::Portable)).expect("a worker");
    let homes = Homes::new(1, Purpose::all(1).map(|_| Some(Home { node: 5000, rest: None })));
    let worker = mapped.place(&[homes]).expect("memory");
    assert_eq!(worker.notes().len(), 1, "{:?}", worker.notes());
    assert!(
        worker.notes()[0].starts_with("memory is not bound to its node: mbind: "),
        "{:?}",
        worker.notes()
    );
    assert!(worker.places().iter().all(|place| place.node.is_none()));
}
