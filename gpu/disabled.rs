//! The public face without CUDA.

use std::convert::Infallible;

use quadrille_core::device::{Device, DeviceError, DeviceInfo, Event, Lane, Region, Scalars, Span};
use quadrille_core::task::{Copy, LaneId, Task};

/// One line for `topo`.
pub fn describe() -> String {
    "none: this program was built without CUDA".into()
}

/// Opens GPU number `ordinal`.
///
/// # Errors
/// Always: there is no CUDA in this build.
pub fn open(ordinal: usize) -> Result<CudaDevice, DeviceError> {
    Err(DeviceError::Environment {
        device: format!("cuda:{ordinal}"),
        reason: "this program was built without CUDA; use the CPU's quadrants".into(),
    })
}

/// A GPU; none can exist in this build.
#[derive(Clone, Debug)]
pub struct CudaDevice(Infallible);

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
        let error = open(0).expect_err("no GPU can exist in this build").to_string();
        assert!(error.contains("cuda:0") && error.contains("without CUDA"), "{error}");
    }
}
