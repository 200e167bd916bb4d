//! Memory: one arena on the GPU, and pinned buffers of the host.

use std::sync::Arc;

use cudarc::driver::sys;

use super::{Gpu, check};

/// Bytes of an element.
pub(super) const BYTES: usize = size_of::<f32>();

/// Memory of a GPU in one piece, zeroed when it is made.
#[derive(Debug)]
pub(crate) struct Arena {
    gpu: Arc<Gpu>,
    address: sys::CUdeviceptr,
    len: usize,
}

/// A part of an arena: an address on the GPU, in bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(super) address: u64,
    /// Elements.
    pub len: usize,
}

impl Slice {
    /// A part of the slice.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn part(&self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "part {start}..{} of {} elements", start + len, self.len);
        Self { address: self.address + (start * BYTES) as u64, len }
    }
}

impl Arena {
    /// Memory for `len` elements.
    ///
    /// # Errors
    /// If the GPU does not have it.
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Self, String> {
        gpu.enter()?;
        // The driver gives no memory of no length.
        let (len, mut address) = (len.max(1), 0);
        // SAFETY: the context is current; freed when the value is dropped.
        check(unsafe { sys::cuMemAlloc_v2(&mut address, len * BYTES) }, "allocating memory")?;
        let arena = Self { gpu: gpu.clone(), address, len };
        arena.clear()?;
        Ok(arena)
    }

    /// Makes all of it 0. Nothing that uses it may be under way.
    ///
    /// # Errors
    /// If something failed before.
    pub fn clear(&self) -> Result<(), String> {
        self.gpu.enter()?;
        // SAFETY: the allocation has `len` words.
        check(unsafe { sys::cuMemsetD32_v2(self.address, 0, self.len) }, "clearing memory")?;
        // It goes on beside the host, in a stream that ours do not wait for.
        // SAFETY: the context is current.
        check(unsafe { sys::cuCtxSynchronize() }, "clearing memory")
    }

    /// A part of the arena.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn slice(&self, start: usize, len: usize) -> Slice {
        Slice { address: self.address, len: self.len }.part(start, len)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: allocated by `new`; the driver waits for whatever still uses it. Nothing can be done about a refusal.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Memory of the host that does not move, for copies that run beside the host.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    gpu: Arc<Gpu>,
    pub(super) start: *mut f32,
    len: usize,
}

// SAFETY: owned memory.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    /// Room for `len` elements, all 0.
    ///
    /// # Errors
    /// If the system does not give it.
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Self, String> {
        gpu.enter()?;
        let (len, mut start) = (len.max(1), std::ptr::null_mut());
        // SAFETY: the context is current; freed when the value is dropped.
        let result = unsafe { sys::cuMemHostAlloc(&mut start, len * BYTES, 0) };
        check(result, "allocating pinned memory")?;
        let start = start.cast::<f32>();
        // SAFETY: as long as allocated, aligned to pages, and nobody else has it.
        unsafe { std::ptr::write_bytes(start, 0, len) };
        Ok(Self { gpu: gpu.clone(), start, len })
    }

    /// Its values.
    pub fn values(&self) -> &[f32] {
        // SAFETY: `len` initialised elements; any bits are a float.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Its values, to be changed.
    pub fn values_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: allocated by `new`. Nothing can be done about a refusal.
            unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}
