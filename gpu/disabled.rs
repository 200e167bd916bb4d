//! The public face without CUDA.

use std::convert::Infallible;
use std::time::Instant;

use quadrille_core::device::{Device, DeviceError, DeviceInfo, Event, Lane, Region, Scalars, Span};
use quadrille_core::net::StorageId;
use quadrille_core::plan::lanes::Limits;
use quadrille_core::task::{Copy, LaneId, Task};

use crate::spec::{CudaError, Options, Program, Sighting};

/// One line for `topo`.
pub fn describe() -> String {
    "none: this program was built without CUDA".into()
}

fn missing(device: String) -> DeviceError {
    let reason = "this program was built without CUDA (cargo build --features cuda); leave --device out to use the CPU's \
                  quadrants";
    DeviceError::Environment { device, reason: reason.into() }
}

/// How many GPUs there are.
///
/// # Errors
/// Always: there is no CUDA in this build.
pub fn count() -> Result<usize, DeviceError> {
    Err(missing("cuda:all".into()))
}

/// A GPU that was opened; none can exist in this build.
#[derive(Clone, Debug)]
pub struct Cuda(Infallible);

impl Cuda {
    /// GPU number `ordinal`.
    ///
    /// # Errors
    /// Always: there is no CUDA in this build.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        Err(missing(format!("cuda:{ordinal}")))
    }

    /// Its name.
    pub fn name(&self) -> String {
        match self.0 {}
    }

    /// What it has.
    ///
    /// # Errors
    /// Never: no GPU can exist.
    pub fn limits(&self) -> Result<Limits, DeviceError> {
        match self.0 {}
    }

    /// A worker on the GPU.
    ///
    /// # Errors
    /// Never: no GPU can exist.
    pub fn worker(&self, _: &[Program<'_>], _: &Options) -> Result<CudaWorker, CudaError> {
        match self.0 {}
    }
}

/// A worker's GPU; none can exist in this build.
#[derive(Clone, Debug)]
pub struct CudaWorker(Infallible);

impl CudaWorker {
    /// The device, as seen by one of the programs.
    pub fn device(&self, _: usize) -> CudaDevice {
        match self.0 {}
    }

    /// From when on the times of its tasks count.
    pub fn origin(&self) -> Instant {
        match self.0 {}
    }

    /// Whether steps are launched as graphs.
    pub fn has_graphs(&self) -> bool {
        match self.0 {}
    }

    /// Launches steps as graphs or task by task.
    pub fn use_graphs(&self, _: bool) {
        match self.0 {}
    }

    /// What the kernels of tasks use.
    ///
    /// # Errors
    /// Never: no GPU can exist.
    pub fn first_sight(&self, _: &[Task]) -> Result<Vec<Sighting>, DeviceError> {
        match self.0 {}
    }

    /// What computes each layer of the first program.
    pub fn choices(&self) -> &[(String, &'static str)] {
        match self.0 {}
    }

    /// Whether the channels of a storage of the first program lie behind the pixels.
    pub fn has_channels_last(&self, _: StorageId) -> bool {
        match self.0 {}
    }

    /// What was decided and found, for the first lines of a run.
    pub fn notes(&self) -> &[String] {
        match self.0 {}
    }

    /// The most that the GPU can do: GFLOP/s and GB/s.
    pub fn ceilings(&self) -> [f64; 2] {
        match self.0 {}
    }

    /// Bytes of a program's values and gradients.
    pub fn blob_bytes(&self, _: usize) -> [usize; 2] {
        match self.0 {}
    }
}

/// A GPU; none can exist in this build.
#[derive(Clone, Debug)]
pub struct CudaDevice(Infallible);

impl CudaDevice {
    /// Bytes of an element of a value or gradient.
    pub fn element_bytes(&self, _: StorageId) -> usize {
        match self.0 {}
    }

    /// Whether all values of a region are finite.
    ///
    /// # Errors
    /// Never: no GPU can exist.
    pub fn is_finite(&self, _: Region, _: usize) -> Result<bool, DeviceError> {
        match self.0 {}
    }
}

/// A task of a GPU; none can exist in this build.
#[derive(Clone, Debug)]
pub struct CudaEvent(Infallible);

impl Event for CudaEvent {
    fn is_done(&self) -> bool {
        match self.0 {}
    }

    fn span(&self) -> Option<Span> {
        match self.0 {}
    }
}

impl Device for CudaDevice {
    type Event = CudaEvent;

    fn info(&self) -> &DeviceInfo {
        match self.0 {}
    }

    fn lanes(&self) -> &[Lane] {
        match self.0 {}
    }

    fn begin(&self, _: &Scalars) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn submit(&self, _: LaneId, _: &Task) -> Result<CudaEvent, DeviceError> {
        match self.0 {}
    }

    fn copy(&self, _: LaneId, _: &Copy) -> Result<CudaEvent, DeviceError> {
        match self.0 {}
    }

    fn wait_on(&self, _: LaneId, _: &CudaEvent) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn write(&self, _: Region, _: &[f32]) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn read(&self, _: Region, _: &mut [f32]) -> Result<(), DeviceError> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_a_gpu_says_what_is_missing() {
        let error = Cuda::open(0).expect_err("no GPU can exist in this build").to_string();
        assert!(error.contains("cuda:0") && error.contains("without CUDA"), "{error}");
    }
}
