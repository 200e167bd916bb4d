//! The system calls of memory: the only unsafe code of this crate.
//!
//! SAFETY, for the whole file. Each obligation has one place that meets it:
//!
//! 1. *Addresses.* A call that names memory names whole pages inside of a [`Mapping`], which owns them from
//!    `mmap` in [`Mapping::reserve`] to `munmap` in its `drop` and never lends them to anybody who could unmap them.
//!    [`Mapping::pages`] checks each range. Only where pages are, and where they are to be, is also asked and said of memory that
//!    others own: of addresses where nothing is the system says so.
//! 2. *Contents.* No call here changes what memory holds, as seen by whoever reads it: policies, advice and moves
//!    between nodes keep contents, and [`Mapping::touch`] puts a zero in the place of a zero, if anything.
//! 3. *Races.* Only `touch` reads and writes memory, so nobody may use the pages that it touches meanwhile. Whoever
//!    reads or writes through [`Mapping::start`] does so in unsafe code of his own, and this is one of his obligations.
//! 4. *Arrays.* The lengths that `mbind` and `move_pages` are given are those of the arrays that they are given.
//!    Those live through the call, which keeps no pointer to them.
//! 5. *Failure.* A call that fails has no effect; it becomes a [`Refusal`].

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering};

use super::{Policy, Refusal};

/// Bytes of a large page, on x86-64 and on most of AArch64.
pub const LARGE_PAGE: usize = 2 << 20;

/// Zeroed memory of this process, of whole pages. The system fills a page when it is first touched.
///
/// Whoever reads or writes it through [`Mapping::start`] keeps to the bounds, and away from pages that
/// [`Mapping::touch`] is touching.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory that belongs to no thread; for its use see obligation 3.
unsafe impl Send for Mapping {}
// SAFETY: as above; what a shared mapping lets safe code do is obligations 2 and 3.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `bytes` (and at least one page) of zeros. What fills a large page begins with one, so that the system
    /// can give some; nothing is touched yet.
    ///
    /// # Errors
    /// If the system has not so many addresses.
    pub fn reserve(bytes: usize) -> Result<Self, Refusal> {
        let too_many = Refusal::new("mmap", libc::ENOMEM);
        let page = page_bytes();
        let bytes = bytes.max(1).checked_next_multiple_of(page).ok_or(too_many.clone())?;
        let spare = if bytes >= LARGE_PAGE { LARGE_PAGE - page } else { 0 };
        let whole = bytes.checked_add(spare).ok_or(too_many)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: asks for new pages, wherever there is room.
        let address = unsafe { libc::mmap(null_mut(), whole, protection, flags, -1, 0) };
        let start = match NonNull::new(address.cast::<u8>()) {
            Some(start) if address != libc::MAP_FAILED => start,
            _ => return Err(Refusal::last("mmap")),
        };
        let before = if spare > 0 { start.align_offset(LARGE_PAGE) } else { 0 };
        // SAFETY: less than `spare`, so inside of what was just mapped.
        let aligned = unsafe { start.add(before) };
        for (offset, len) in [(0, before), (before + bytes, spare - before)] {
            if len > 0 {
                // SAFETY: pages of what was just mapped, before and behind those that are kept. Should the call fail,
                // they stay, untouched, and cost nothing.
                unsafe { libc::munmap(start.add(offset).as_ptr().cast(), len) };
            }
        }
        Ok(Self { start: aligned, bytes })
    }

    /// Its first byte, at the start of a page.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How much there is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The whole pages that hold a range of bytes.
    ///
    /// # Panics
    /// If the range goes beyond the mapping.
    fn pages(&self, range: Range<usize>) -> (*mut c_void, usize) {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        let page = page_bytes();
        let first = range.start / page * page;
        // SAFETY: inside of the mapping, as just asserted.
        (unsafe { self.start.add(first) }.as_ptr().cast(), range.end.next_multiple_of(page) - first)
    }

    /// Asks for large pages, if it could hold one. The system may have been told not to give any, and may have none: then they are small.
    ///
    /// # Errors
    /// If the system does not know large pages, or not for memory like this.
    pub fn advise_large(&self) -> Result<(), Refusal> {
        if self.bytes < LARGE_PAGE {
            return Ok(());
        }
        let (start, len) = self.pages(0..self.bytes);
        #[cfg(target_os = "linux")]
        // SAFETY: obligations 1 and 2.
        if unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) } == 0 {
            return Ok(());
        }
        let _ = (start, len);
        Err(Refusal::last("madvise"))
    }

    /// Says where the pages that hold `range` are to come from when they are first touched; those that were touched stay.
    ///
    /// # Errors
    /// If the system refuses: a container's rules, a kernel without NUMA, or a node that this process may not use.
    pub fn set_policy(&self, range: Range<usize>, policy: &Policy) -> Result<(), Refusal> {
        let (start, len) = self.pages(range);
        set_policy(start, len, policy)
    }

    /// Touches the pages that begin in `range`, so that the system fills them: near the thread that calls, if their
    /// policy does not say where. Threads that touch ranges side by side touch no page twice.
    ///
    /// # Panics
    /// If the range goes beyond the mapping.
    pub fn touch(&self, range: Range<usize>) {
        assert!(range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        let begins = range.start.next_multiple_of(page_bytes())..range.end;
        if !begins.is_empty() && !self.populate(begins.clone()) {
            self.write_each(begins);
        }
    }

    /// Has the system fill the pages of a range in one call; false where it cannot, as before Linux 5.14.
    #[cfg(target_os = "linux")]
    fn populate(&self, begins: Range<usize>) -> bool {
        let (start, len) = self.pages(begins);
        // SAFETY: obligations 1, 2 and 3.
        unsafe { libc::madvise(start, len, libc::MADV_POPULATE_WRITE) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn populate(&self, _: Range<usize>) -> bool {
        false
    }

    /// Writes to each page of a range. Not a read and then a write: for a read Linux would map its page of zeros, and for the write
    /// copy that and have all threads forget it.
    fn write_each(&self, begins: Range<usize>) {
        for offset in begins.step_by(page_bytes()) {
            // SAFETY: obligations 1, 2 and 3.
            let byte = unsafe { AtomicU8::from_ptr(self.start.add(offset).as_ptr()) };
            // The processor asks for the page as if to write it, whatever is there.
            let _ = byte.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The node of each page from the one numbered `first` on, into `nodes`; a negative number of Linux's where there is
    /// none: `-ENOENT` of a page that nobody has touched.
    ///
    /// # Errors
    /// If the system does not say.
    pub(super) fn ask(&self, first: usize, nodes: &mut [c_int]) -> Result<(), Refusal> {
        self.move_or_ask(first, None, nodes)
    }

    /// Moves pages from the one numbered `first` on to a node; `nodes` becomes where they are then.
    ///
    /// # Errors
    /// If the system does not move pages.
    pub(super) fn send(&self, first: usize, node: usize, nodes: &mut [c_int]) -> Result<(), Refusal> {
        self.move_or_ask(first, Some(node), nodes)
    }

    fn move_or_ask(&self, first: usize, to: Option<usize>, nodes: &mut [c_int]) -> Result<(), Refusal> {
        let page = page_bytes();
        let (start, _) = self.pages(first * page..(first + nodes.len()) * page);
        move_or_ask(start, to, nodes)
    }
}

/// Says of `count` whole pages from `start` on, whoever owns them, where they are to come from: see [`Mapping::set_policy`].
///
/// # Errors
/// If the system refuses.
pub(super) fn set_policy_at(start: NonNull<u8>, count: usize, policy: &Policy) -> Result<(), Refusal> {
    set_policy(start.as_ptr().cast(), count * page_bytes(), policy)
}

fn set_policy(start: *mut c_void, len: usize, policy: &Policy) -> Result<(), Refusal> {
    let (mode, nodes) = policy.mode();
    let mask = node_mask(nodes);
    // The kernel reads one bit less than it is told.
    let bits = if nodes.is_empty() { 0 } else { mask.len() * u64::BITS as usize + 1 };
    let mask = if nodes.is_empty() { std::ptr::null() } else { mask.as_ptr() };
    let arguments = [start as c_long, len as c_long, mode as c_long, mask as c_long, bits as c_long, 0];
    // SAFETY: obligations 1, 2 and 4.
    unsafe { call("mbind", MBIND, arguments) }.map(drop)
}

/// The nodes of the pages from that of an address on, whoever owns them, after they were moved if a node is given: see
/// [`Mapping::ask`] and [`Mapping::send`].
///
/// # Errors
/// If the system does not say.
pub(super) fn ask_or_send(
    address: NonNull<u8>,
    to: Option<usize>,
    nodes: &mut [c_int],
) -> Result<(), Refusal> {
    let before = address.addr().get() % page_bytes();
    move_or_ask(address.as_ptr().wrapping_sub(before).cast(), to, nodes)
}

/// Moves pages from `start` on, which is the address of one, if a node is given; `nodes` becomes where they are.
fn move_or_ask(start: *mut c_void, to: Option<usize>, nodes: &mut [c_int]) -> Result<(), Refusal> {
    let page = page_bytes();
    let pages: Vec<*mut c_void> =
        (0..nodes.len()).map(|index| start.wrapping_byte_add(index * page)).collect();
    let to: Option<Vec<c_int>> =
        to.map(|node| vec![c_int::try_from(node).unwrap_or(c_int::MAX); pages.len()]);
    let target = to.as_ref().map_or(std::ptr::null(), |to| to.as_ptr());
    let (count, flag) = (pages.len() as c_long, if to.is_some() { MOVE_OWN } else { 0 });
    let arguments =
        [0, count, pages.as_ptr() as c_long, target as c_long, nodes.as_mut_ptr() as c_long, flag];
    // SAFETY: obligations 2 and 4: as many addresses, targets and answers as the count says; process 0 is this one. An
    // address where nothing is becomes an answer that says so.
    unsafe { call("move_pages", MOVE_PAGES, arguments) }.map(drop)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: obligation 1: these pages are this mapping's, which ends here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// `MPOL_MF_MOVE`: moves pages that no other process maps.
const MOVE_OWN: c_long = 2;

#[cfg(target_os = "linux")]
const MBIND: c_long = libc::SYS_mbind as c_long;
#[cfg(target_os = "linux")]
const MOVE_PAGES: c_long = libc::SYS_move_pages as c_long;
#[cfg(not(target_os = "linux"))]
const MBIND: c_long = 0;
#[cfg(not(target_os = "linux"))]
const MOVE_PAGES: c_long = 0;

/// Calls the system, which has no functions in the C library for this.
///
/// # Safety
/// The arguments are what the system call of this number asks for.
unsafe fn call(name: &'static str, number: c_long, arguments: [c_long; 6]) -> Result<c_long, Refusal> {
    #[cfg(target_os = "linux")]
    {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: by contract.
        let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
        if answer >= 0 { Ok(answer) } else { Err(Refusal::last(name)) }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (number, arguments);
        Err(Refusal::new(name, libc::ENOSYS))
    }
}

/// Bytes of a small page.
pub fn page_bytes() -> usize {
    // SAFETY: asks for a number, and touches no memory.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

/// Nodes as the system reads them: 64 bits a word.
fn node_mask(nodes: &[usize]) -> Vec<u64> {
    let words = nodes.iter().max().map_or(1, |most| most / 64 + 1);
    let mut mask = vec![0; words];
    nodes.iter().for_each(|node| mask[node / 64] |= 1 << (node % 64));
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_a_bit_for_each_node() {
        assert_eq!(node_mask(&[]), [0]);
        assert_eq!(node_mask(&[0, 7]), [0x81]);
        assert_eq!(node_mask(&[65]), [0, 2]);
    }

    #[test]
    fn memory_is_zero_aligned_and_our_own() {
        for bytes in [0, 1, 5000, LARGE_PAGE, 3 * LARGE_PAGE + 1] {
            let mapping = Mapping::reserve(bytes).unwrap();
            assert!(mapping.bytes() >= bytes && mapping.bytes().is_multiple_of(page_bytes()));
            let align = if bytes >= LARGE_PAGE { LARGE_PAGE } else { page_bytes() };
            assert_eq!(mapping.start().align_offset(align), 0);
            mapping.touch(0..mapping.bytes());
            // SAFETY: nobody else has this mapping.
            let values = unsafe { std::slice::from_raw_parts(mapping.start().as_ptr(), mapping.bytes()) };
            assert!(values.iter().all(|value| *value == 0));
        }
    }

    /// What `touch` does, and what it does where the system cannot fill pages in one call.
    const WAYS: [fn(&Mapping, Range<usize>); 2] = [Mapping::touch, Mapping::write_each];

    #[test]
    fn touching_keeps_what_is_there() {
        for way in WAYS {
            let mapping = Mapping::reserve(3 * page_bytes()).unwrap();
            // SAFETY: nobody else has this mapping; one byte of it.
            unsafe { mapping.start().add(page_bytes()).write(7) };
            way(&mapping, page_bytes()..page_bytes() + 1);
            // SAFETY: as above.
            assert_eq!(unsafe { mapping.start().add(page_bytes()).read() }, 7);
        }
    }

    #[test]
    fn touching_fills_the_pages_that_begin_in_a_range() {
        let page = page_bytes();
        for way in WAYS {
            let mapping = Mapping::reserve(8 * page).unwrap();
            way(&mapping, page..page);
            way(&mapping, page..3 * page);
            mapping.touch(5 * page + 1..7 * page - 1);
            mapping.touch(7 * page + 1..8 * page);
            let mut nodes = [0; 8];
            match mapping.ask(0, &mut nodes) {
                Ok(()) => {
                    let filled = nodes.map(|node| node >= 0);
                    assert_eq!(filled, [false, true, true, false, false, false, true, false], "{nodes:?}");
                }
                Err(refusal) => println!("skipped: touched pages: {refusal}"),
            }
        }
    }

    /// Faults of the calling thread for which nothing was read from a disk.
    #[cfg(target_os = "linux")]
    fn faults() -> i64 {
        // SAFETY: a structure of integers, for all of which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` lives through the call.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
        usage.ru_minflt
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_page_that_is_touched_is_filled_by_one_fault() {
        let pages = 256;
        for way in WAYS {
            let mapping = Mapping::reserve(pages * page_bytes()).unwrap();
            let before = faults();
            way(&mapping, 0..mapping.bytes());
            let took = faults() - before;
            // Two each if pages of zeros are mapped first.
            assert!(took <= pages as i64 + 16, "{took} faults for {pages} pages");
        }
    }

    #[test]
    fn more_than_there_are_addresses_is_refused() {
        for bytes in [usize::MAX, usize::MAX / 2] {
            let refusal = Mapping::reserve(bytes).unwrap_err().to_string();
            assert!(refusal.starts_with("mmap: "), "{refusal}");
        }
    }

    #[test]
    #[should_panic(expected = " bytes")]
    fn beyond_the_end_is_a_bug() {
        Mapping::reserve(4096).unwrap().touch(0..page_bytes() + 1);
    }
}
