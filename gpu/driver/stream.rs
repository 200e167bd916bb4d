//! Streams and events.

use std::sync::Arc;

use cudarc::driver::sys;

use super::memory::BYTES;
use super::{Gpu, HostBuffer, Slice, check};

/// A stream with a priority.
#[derive(Debug)]
pub(crate) struct Stream {
    gpu: Arc<Gpu>,
    pub(super) raw: sys::CUstream,
}

// SAFETY: the driver's functions take a stream from any thread whose context is current, and from several at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// A moment in a stream, whose time is taken.
#[derive(Debug)]
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}
// SAFETY: as for streams.
unsafe impl Sync for Event {}

impl Stream {
    /// A stream of one of the device's priorities, which waits for no other.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn new(gpu: &Arc<Gpu>, priority: i32) -> Result<Self, String> {
        gpu.enter()?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current; destroyed when the value is dropped.
        let result = unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, priority) };
        check(result, "making a stream")?;
        Ok(Self { gpu: gpu.clone(), raw })
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Waits until everything in it is done.
    ///
    /// # Errors
    /// If something in it failed.
    pub fn synchronize(&self) -> Result<(), String> {
        self.gpu.enter()?;
        // SAFETY: a stream of the current context.
        check(unsafe { sys::cuStreamSynchronize(self.raw) }, "waiting for the GPU")
    }

    /// Lets what comes later wait for what the event was last recorded behind; for nothing, if it never was.
    ///
    /// # Errors
    /// If something failed before.
    pub fn wait(&self, event: &Event) -> Result<(), String> {
        self.gpu.enter()?;
        // SAFETY: both live, and belong to contexts of this process.
        check(unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) }, "waiting for an event")
    }

    /// Records the event behind what is in the stream.
    ///
    /// # Errors
    /// If something failed before.
    pub fn record(&self, event: &Event) -> Result<(), String> {
        self.gpu.enter()?;
        // SAFETY: both live and belong to this context.
        check(unsafe { sys::cuEventRecord(event.raw, self.raw) }, "recording an event")
    }

    /// Copies an array to another of the GPU, as many elements as both have.
    ///
    /// # Errors
    /// If something failed before.
    pub fn copy(&self, from: Slice, to: Slice) -> Result<(), String> {
        self.gpu.enter()?;
        let bytes = from.len.min(to.len) * BYTES;
        // SAFETY: both are parts of arenas of at least so many bytes.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to.address, from.address, bytes, self.raw) };
        check(result, "copying on the GPU")
    }

    /// Copies the elements of `buffer` from `start` on to the GPU, as many as `to` has. The buffer must not be changed before
    /// the stream has come so far.
    ///
    /// # Panics
    /// If the buffer is shorter.
    ///
    /// # Errors
    /// If something failed before.
    pub fn copy_in(&self, buffer: &HostBuffer, start: usize, to: Slice) -> Result<(), String> {
        self.gpu.enter()?;
        let from = buffer.values()[start..start + to.len].as_ptr();
        // SAFETY: as many bytes on both sides; pinned memory of the host, which its owner keeps until the stream is done.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(to.address, from.cast(), to.len * BYTES, self.raw) };
        check(result, "copying to the GPU")
    }

    /// Copies from the GPU to the beginning of `buffer`, and waits for it.
    ///
    /// # Panics
    /// If the buffer is shorter.
    ///
    /// # Errors
    /// If something failed before.
    pub fn copy_out(&self, from: Slice, buffer: &mut HostBuffer) -> Result<(), String> {
        self.gpu.enter()?;
        let to = buffer.values_mut()[..from.len].as_mut_ptr();
        // SAFETY: as many bytes on both sides; the buffer is borrowed until the copy is done.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.address, from.len * BYTES, self.raw) };
        check(result, "copying from the GPU").and(self.synchronize())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made by `new`; the driver finishes what is in it. Nothing can be done about a refusal.
            unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

impl Event {
    /// An event that was never recorded.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current; destroyed when the value is dropped.
        check(unsafe { sys::cuEventCreate(&mut raw, 0) }, "making an event")?;
        Ok(Self { gpu: gpu.clone(), raw })
    }

    /// Whether what it was recorded behind is done.
    pub fn is_done(&self) -> bool {
        // SAFETY: a living event of a context that is current if it can be.
        self.gpu.enter().is_ok() && unsafe { sys::cuEventQuery(self.raw) } == sys::CUresult::CUDA_SUCCESS
    }

    /// Waits until what it was recorded behind is done.
    ///
    /// # Errors
    /// If something failed before.
    pub fn synchronize(&self) -> Result<(), String> {
        self.gpu.enter()?;
        // SAFETY: a living event of the current context.
        check(unsafe { sys::cuEventSynchronize(self.raw) }, "waiting for an event")
    }

    /// Nanoseconds from this event to a later one; `None` while one of them is not done.
    pub fn until(&self, later: &Self) -> Option<u64> {
        self.gpu.enter().ok()?;
        let mut ms = 0.0;
        // SAFETY: living events of the current context; writes one number.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut ms, self.raw, later.raw) };
        (result == sys::CUresult::CUDA_SUCCESS).then(|| (f64::from(ms) * 1e6).max(0.0) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made by `new`. Nothing can be done about a refusal.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
