//! CUDA graphs: what streams were given once, ready to be given again by one call.

use std::sync::Arc;

use cudarc::driver::sys;

use super::{Gpu, Stream, check};

/// What was recorded from streams of a GPU.
#[derive(Debug)]
pub(crate) struct Graph {
    gpu: Arc<Gpu>,
    raw: sys::CUgraphExec,
    /// Kernels and copies in it.
    pub nodes: usize,
}

// SAFETY: only handed to the driver; a graph is launched by one thread at a time, since callers hold a lock.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Graph {
    /// Records what `submit` puts into `first`, and into other streams that wait for it there and that it waits for at the
    /// end. Nothing of it runs.
    ///
    /// # Errors
    /// If `submit` fails, or the driver refuses to record what it does.
    pub fn record(first: &Stream, submit: impl FnOnce() -> Result<(), String>) -> Result<Self, String> {
        let gpu = first.gpu().clone();
        gpu.enter()?;
        // Other threads may have workers of their own, and allocate memory for them.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a living stream of the current context.
        check(unsafe { sys::cuStreamBeginCapture_v2(first.raw, mode) }, "beginning a graph")?;
        let submitted = submit();
        let mut recorded = Recorded(std::ptr::null_mut());
        gpu.enter()?;
        // SAFETY: the stream that was begun with, also if something failed, so that it can be used again.
        let ended = check(unsafe { sys::cuStreamEndCapture(first.raw, &mut recorded.0) }, "ending a graph");
        submitted.and(ended)?;
        let (mut raw, mut nodes) = (std::ptr::null_mut(), 0);
        // SAFETY: a recorded graph; asks for the number of its nodes alone.
        let counted = unsafe { sys::cuGraphGetNodes(recorded.0, std::ptr::null_mut(), &mut nodes) };
        check(counted, "counting what a graph does")?;
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0.into();
        // SAFETY: a recorded graph; what is made is destroyed when the value is dropped.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, recorded.0, flags) };
        check(made, "making a graph ready")?;
        Ok(Self { gpu, raw, nodes })
    }

    /// Puts all of it into a stream.
    ///
    /// # Errors
    /// If something failed before.
    pub fn launch(&self, stream: &Stream) -> Result<(), String> {
        self.gpu.enter()?;
        // SAFETY: a living graph and a stream of its context.
        check(unsafe { sys::cuGraphLaunch(self.raw, stream.raw) }, "launching a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made by `record`. Nothing can be done about a refusal.
            unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}

/// What was recorded, before it is made ready; null if nothing was.
struct Recorded(sys::CUgraph);

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by the driver, in the context that is still current. Nothing can be done about a refusal.
            unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}
