//! The only place that calls CUDA: driver, runtime compiler, cuBLAS and cuDNN, as cudarc binds them, behind values whose
//! methods are safe.
//!
//! cudarc loads libraries when a function of theirs is first called, and panics where there is none. So every value here is
//! made by a function that looks for the library first, and whoever has such a value may call.
//!
//! What keeps the calls sound:
//!
//! 1. A [`Gpu`] retains the device's primary context for as long as it lives, and everything else holds its `Gpu`. Every method
//!    makes the context current on its thread before it calls.
//! 2. Memory is one [`Arena`], and a [`Slice`] of it is in bounds by its making. Slices are addresses on the GPU, which the host
//!    never dereferences.
//! 3. A kernel gets arguments that fit its parameters (`Signatures::check`) and slices as long as its launch says; that it stays
//!    inside is a property of the kernel, which `tests/` shows for shapes of every kind.
//! 4. Host memory of asynchronous copies is pinned and owned by a [`HostBuffer`], which outlives the copies: whoever reuses or
//!    drops it has waited for the stream.

mod blas;
mod dnn;
mod graph;
mod memory;
mod module;
mod stream;

pub(crate) use blas::{Blas, WORKSPACE as BLAS_WORKSPACE};
pub(crate) use dnn::{Convolver, Dnn};
pub(crate) use graph::Graph;
pub(crate) use memory::{Arena, HostBuffer, Slice};
pub(crate) use module::{Compiler, Function, Module, Prepared};
pub(crate) use stream::{Event, Stream};

use std::ffi::CStr;
use std::sync::Arc;

use cudarc::driver::sys;
use quadrille_core::plan::lanes::Limits;

/// What a call of the driver answered, as words.
fn check(result: sys::CUresult, what: &str) -> Result<(), String> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver answered a call before, so it is loaded; it writes one pointer to a text of its own or null.
    unsafe { sys::cuGetErrorString(result, &mut text) };
    let said = match text.is_null() {
        true => String::new(),
        // SAFETY: not null, so a text that ends with 0 and lives as long as the library.
        false => format!(": {}", unsafe { CStr::from_ptr(text) }.to_string_lossy()),
    };
    Err(format!("{what}: {result:?}{said}"))
}

/// The oldest version of the driver with all functions that are called here: CUDA 12.8.
const OLDEST: i32 = 12_080;

/// Looks for the driver and starts it.
///
/// # Errors
/// If there is none, it is too old, or it does not start.
pub(crate) fn start() -> Result<(), String> {
    // SAFETY: looks for a library and closes it again.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver (libcuda) was found".into());
    }
    let mut version = 0;
    // SAFETY: the library is there; writes one number, before or after initialisation.
    check(unsafe { sys::cuDriverGetVersion(&mut version) }, "asking for the driver's version")?;
    if version < OLDEST {
        let of = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(format!(
            "the NVIDIA driver is one for CUDA {}; needed is {} or later",
            of(version),
            of(OLDEST)
        ));
    }
    // SAFETY: the library is there; may be called any number of times.
    check(unsafe { sys::cuInit(0) }, "starting the NVIDIA driver")
}

/// How many GPUs there are.
///
/// # Errors
/// As [`start`].
pub(crate) fn count() -> Result<usize, String> {
    start()?;
    let mut count = 0;
    // SAFETY: the driver is started; writes one number.
    check(unsafe { sys::cuDeviceGetCount(&mut count) }, "counting GPUs")?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// A GPU with its primary context.
#[derive(Debug)]
pub(crate) struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Its name, as the driver has it.
    pub name: String,
    /// Compute capability, such as 90 for 9.0.
    pub capability: i32,
    /// Its multiprocessors.
    pub multiprocessors: usize,
    /// Its memory in bytes.
    pub memory: usize,
    /// The clocks of multiprocessors and memory in kHz.
    pub clocks: [i32; 2],
    /// Bits of the way to memory.
    pub memory_bits: i32,
}

// SAFETY: contexts may be used by any thread that makes them current, which every method here does first.
unsafe impl Send for Gpu {}
// SAFETY: the driver's functions may be called by several threads at once.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// GPU number `ordinal`.
    ///
    /// # Errors
    /// If there is no driver, or no such GPU.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, String> {
        let count = count()?;
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or_else(|| match count {
            0 => "the driver sees no GPU".to_owned(),
            1 => "the driver sees one GPU, number 0".to_owned(),
            count => format!("the driver sees {count} GPUs, numbers 0 to {}", count - 1),
        })?;
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the driver is started and there is such a device.
        check(unsafe { sys::cuDeviceGet(&mut device, number) }, "opening the GPU")?;
        // SAFETY: a device of the driver's; released when the value is dropped.
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) }, "making a context")?;
        let (name, clocks) = (String::new(), [0; 2]);
        let (capability, multiprocessors, memory, memory_bits) = (0, 0, 0, 0);
        let mut gpu =
            Self { device, context, name, capability, multiprocessors, memory, clocks, memory_bits };
        gpu.describe()?;
        Ok(Arc::new(gpu))
    }

    fn describe(&mut self) -> Result<(), String> {
        use sys::CUdevice_attribute_enum as Attribute;
        let mut name: [std::ffi::c_char; 256] = [0; 256];
        // SAFETY: room for 256 characters, the last of which is 0.
        check(unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 256, self.device) }, "the GPU's name")?;
        // SAFETY: the driver ends the name with 0 inside the array.
        self.name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        self.capability = 10 * major + minor;
        let multiprocessors = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        self.multiprocessors = usize::try_from(multiprocessors).unwrap_or(0);
        self.clocks = [
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        ];
        self.memory_bits = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
        // SAFETY: writes one number.
        check(unsafe { sys::cuDeviceTotalMem_v2(&mut self.memory, self.device) }, "the GPU's memory")
    }

    fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<i32, String> {
        let mut value = 0;
        // SAFETY: writes one number.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) };
        check(result, "an attribute of the GPU")?;
        Ok(value)
    }

    /// Makes the context that of the calling thread, for the calls that follow.
    ///
    /// # Errors
    /// If the context is lost.
    pub fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is retained.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "entering the GPU's context")
    }

    /// Bytes of memory that nobody uses.
    ///
    /// # Errors
    /// If the context is lost.
    pub fn free_memory(&self) -> Result<usize, String> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; writes two numbers.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "asking for free memory")?;
        Ok(free)
    }

    /// What its multiprocessors hold, and how many kernels run at once.
    ///
    /// # Errors
    /// If the driver does not say it.
    pub fn limits(&self) -> Result<Limits, String> {
        use sys::CUdevice_attribute_enum as Attribute;
        /// Nanoseconds of the host for a launch, as NVIDIA gives them; the driver does not know it.
        const LAUNCH: f64 = 5_000.0;
        let of = |attribute| Ok::<u32, String>(self.attribute(attribute)?.unsigned_abs());
        Ok(Limits {
            units: u32::try_from(self.multiprocessors).unwrap_or(u32::MAX),
            blocks: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            threads: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            registers: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            shared: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?.into(),
            kernels: kernels_at_once(self.capability),
            launch: LAUNCH,
        })
    }

    /// The priorities of streams: the lowest and the highest, which is the smaller number.
    ///
    /// # Errors
    /// If the context is lost.
    pub fn priorities(&self) -> Result<(i32, i32), String> {
        self.enter()?;
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: the context is current; writes two numbers.
        let result = unsafe { sys::cuCtxGetStreamPriorityRange(&mut lowest, &mut highest) };
        check(result, "asking for the range of priorities")?;
        Ok((lowest, highest))
    }
}

/// Kernels that run at once on a GPU of a compute capability: "resident grids per device" in the table of the CUDA programming
/// guide. The driver does not say it.
fn kernels_at_once(capability: i32) -> u32 {
    match capability {
        ..=34 | 53 | 62 | 72 => 16,
        35..=52 | 61 => 32,
        _ => 128,
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`. Nothing can be done about a refusal.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
