//! Nothing is allocated after the first step. The count is of the whole process, so the test runs in a process of its
//! own: this program again, with nothing but this test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::adding::{adding, residual};
use crate::common::{nets, numerics, options, plan, small_lenet, small_residual, worker};
use crate::functions::functions;
use crate::joined::inception;
use crate::lifetime::sharing;
use crate::sharing::siamese;
use crate::stepping::stepping;
use crate::whole_nets::{flattened, whole_blocks};
use quadrille_core::device::Scalars;
use quadrille_core::net::{Net, NetSpec};
use quadrille_core::plan::Stage;
use quadrille_core::run::{StepTimes, run_step};
use quadrille_cpu::isa::{Isa, Numerics};

/// The system's allocator, counting while it is told to.
struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if COUNTING.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: by the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: by the caller's contract.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A network for a mini-batch of so many images.
type Make = fn(usize) -> NetSpec;

/// Allocations of `steps` steps after `first` steps that are not counted.
fn allocations(
    make: Make,
    numerics: Numerics,
    [quadrants, threads]: [usize; 2],
    [first, steps]: [u64; 2],
) -> usize {
    let options = options(numerics);
    let nets = nets(make, 60, quadrants).into_iter();
    let nets: Vec<Net> =
        nets.map(|net| sharing(adding(stepping(net.fused(), &options), &options), &options)).collect();
    let plan = plan(&nets, Stage::Iteration);
    let worker = worker(&nets, &plan, threads, &options).expect("a worker");
    let devices = worker.devices(0);
    let mut times = StepTimes::default();
    let mut step = |iteration| {
        let scalars = Scalars { iteration, ..Scalars::default() };
        run_step(&devices, &plan, &scalars, &mut times).expect("a step");
    };
    (0..first).for_each(&mut step);
    ALLOCATIONS.store(0, Ordering::Relaxed);
    COUNTING.store(true, Ordering::Relaxed);
    (first..first + steps).for_each(&mut step);
    COUNTING.store(false, Ordering::Relaxed);
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Between them, every layer but those that only the oracle's loops compute.
const NETS: [(&str, Make); 8] = [
    ("LeNet", small_lenet),
    ("a residual net", small_residual),
    ("shortcuts that are added to", residual),
    ("branches", whole_blocks),
    ("branches in their joint", inception),
    ("a flattened blob", flattened),
    ("twins", siamese),
    ("functions", functions),
];

const OWN_PROCESS: &str = "QUADRILLE_TEST_ALONE";

#[test]
fn steps_allocate_nothing_after_the_first() {
    if std::env::var_os(OWN_PROCESS).is_some() {
        return count_on_every_tier();
    }
    let program = std::env::current_exe().expect("this program");
    // On one thread, for then the harness does not watch the clock beside it: what it says of a test that takes long, on a
    // loaded machine, is allocated.
    let name = "allocation::steps_allocate_nothing_after_the_first";
    let alone = ["--exact", name, "--nocapture", "--test-threads=1"];
    let output =
        Command::new(program).args(alone).env(OWN_PROCESS, "1").output().expect("this program again");
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| println!("{line}"));
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn count_on_every_tier() {
    let all = numerics("allocations of a step");
    assert_ne!(
        allocations(small_lenet, all[0], [1, 1], [0, 1]),
        0,
        "mistrusted: the first step allocates its list of events"
    );
    for numerics in all {
        if numerics.isa == Isa::Portable {
            println!("skipped: allocations of a step on portable: matrixmultiply allocates in every product");
            continue;
        }
        for (name, make) in NETS {
            for quadrants in [1, 3] {
                for threads in [1, 3] {
                    let count = allocations(make, numerics, [quadrants, threads], [1, 20]);
                    assert_eq!(count, 0, "{name}: {quadrants} quadrants of {threads} threads on {numerics}");
                }
            }
        }
    }
}
