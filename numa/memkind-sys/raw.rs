//! The functions and kinds of the library, by their names in memkind.h and hbwmalloc.h.
//!
//! SAFETY, for the whole file:
//!
//! 1. *Types.* Each symbol has here the type of its declaration in the headers of memkind 1.10 to 1.14, which keep one ABI
//!    under the name `libmemkind.so.0`.
//! 2. *Lives.* Function pointers are copied out of a library that is never unloaded: its heap registers with every thread
//!    that uses it, and is called when such a thread ends, however late.
//! 3. *Kinds.* A kind is a pointer in a variable of the library that never changes after it was loaded.
//! 4. *Initialisers.* Loading runs those of libmemkind and of what it needs (libnuma, libdaxctl), which ask nothing of us.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use libloading::Library;

use crate::{Absent, Kind};

/// An opaque heap: `struct memkind *`.
type RawKind = *mut c_void;

/// The name of the library with its ABI.
const NAME: &str = "libmemkind.so.0";

/// What is called of the library.
pub struct Functions {
    memkind_get_version: unsafe extern "C" fn() -> c_int,
    memkind_check_available: unsafe extern "C" fn(RawKind) -> c_int,
    memkind_calloc: unsafe extern "C" fn(RawKind, usize, usize) -> *mut c_void,
    memkind_free: unsafe extern "C" fn(RawKind, *mut c_void),
    memkind_detect_kind: unsafe extern "C" fn(*mut c_void) -> RawKind,
    hbw_check_available: unsafe extern "C" fn() -> c_int,
    kinds: [RawKind; Kind::ALL.len()],
}

// SAFETY: memkind's functions may be called by any thread at any time, and kinds are constants.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

/// The name of a kind's variable.
fn variable(kind: Kind) -> &'static [u8] {
    match kind {
        Kind::Hbw => b"MEMKIND_HBW\0",
        Kind::HbwAll => b"MEMKIND_HBW_ALL\0",
        Kind::HbwPreferred => b"MEMKIND_HBW_PREFERRED\0",
    }
}

/// A copy of what a symbol of the library stands for.
///
/// # Safety
/// The symbol is of type `T`, and the library stays loaded where the copy is used.
unsafe fn symbol<T: Copy>(library: &Library, name: &[u8]) -> Result<T, Absent> {
    // SAFETY: by contract.
    unsafe { library.get::<T>(name) }.map(|found| *found).map_err(|error| Absent::Symbol(error.to_string()))
}

impl Functions {
    /// Loads the library and finds all of them.
    pub fn load() -> Result<Self, Absent> {
        // SAFETY: obligation 4.
        let library = unsafe { Library::new(NAME) }.map_err(|error| Absent::Library(error.to_string()))?;
        let mut kinds = [std::ptr::null_mut(); Kind::ALL.len()];
        for (kind, raw) in Kind::ALL.into_iter().zip(&mut kinds) {
            // SAFETY: obligations 1 and 3: a symbol of a variable stands for its address.
            *raw = unsafe { *symbol::<*const RawKind>(&library, variable(kind))? };
        }
        // SAFETY: obligations 1 and 2.
        let functions = unsafe {
            Self {
                memkind_get_version: symbol(&library, b"memkind_get_version\0")?,
                memkind_check_available: symbol(&library, b"memkind_check_available\0")?,
                memkind_calloc: symbol(&library, b"memkind_calloc\0")?,
                memkind_free: symbol(&library, b"memkind_free\0")?,
                memkind_detect_kind: symbol(&library, b"memkind_detect_kind\0")?,
                hbw_check_available: symbol(&library, b"hbw_check_available\0")?,
                kinds,
            }
        };
        std::mem::forget(library);
        Ok(functions)
    }

    fn raw(&self, kind: Kind) -> RawKind {
        self.kinds[Kind::ALL.iter().position(|other| *other == kind).unwrap_or(0)]
    }

    /// Major, minor and patch in three digits each.
    pub fn version(&self) -> c_int {
        // SAFETY: takes nothing and touches nothing of ours.
        unsafe { (self.memkind_get_version)() }
    }

    /// `hbw_check_available`.
    pub fn has_fast_memory(&self) -> bool {
        // SAFETY: as above.
        unsafe { (self.hbw_check_available)() == 0 }
    }

    /// `memkind_check_available`.
    pub fn is_available(&self, kind: Kind) -> bool {
        // SAFETY: a kind of this library.
        unsafe { (self.memkind_check_available)(self.raw(kind)) == 0 }
    }

    /// `memkind_calloc`.
    pub fn allocate(&self, kind: Kind, bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: a kind of this library; it gives null where it has nothing.
        NonNull::new(unsafe { (self.memkind_calloc)(self.raw(kind), 1, bytes) }.cast())
    }

    /// The kind of an address.
    pub fn kind_of(&self, start: NonNull<u8>) -> Option<Kind> {
        // SAFETY: asks whose memory this is, and follows the pointer only if it is memkind's.
        let found = unsafe { (self.memkind_detect_kind)(start.as_ptr().cast()) };
        Kind::ALL.into_iter().find(|kind| self.raw(*kind) == found)
    }

    /// `memkind_free`, which finds the kind by itself.
    ///
    /// # Safety
    /// `start` came from [`Functions::allocate`], and is freed once.
    pub unsafe fn free(&self, start: NonNull<u8>) {
        // SAFETY: by contract.
        unsafe { (self.memkind_free)(std::ptr::null_mut(), start.as_ptr().cast()) }
    }
}
