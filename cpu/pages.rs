//! Large pages: tiles walk through arrays in steps of more than a small page, and a processor keeps the addresses of some
//! dozens of pages at hand.

use std::ptr::NonNull;

use crate::machine::LARGE_PAGE;

/// Asks the system for large pages behind all of `memory` that fills some. Nobody has touched it yet, so that it comes in
/// large pages at once. The system may have been told not to give any, and may have none: then they are small.
///
/// # Safety
/// `memory` is `bytes` long and belongs to the caller.
pub(crate) unsafe fn advise_large(memory: NonNull<u8>, bytes: usize) {
    let before = memory.align_offset(LARGE_PAGE);
    let len = bytes.saturating_sub(before) / LARGE_PAGE * LARGE_PAGE;
    if len == 0 {
        return;
    }
    // SAFETY: whole pages inside of the caller's memory; advice does not change what they hold.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::madvise(memory.add(before).as_ptr().cast(), len, libc::MADV_HUGEPAGE);
    }
}
