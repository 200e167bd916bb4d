//! cuBLAS.

use std::sync::Arc;

use cudarc::cublas::sys;

use super::{Gpu, Slice, Stream};
use crate::op::Product;
use crate::spec::Arithmetic;

/// A handle of cuBLAS for one stream, whose workspace it uses, so that products give the same bits in every run.
#[derive(Debug)]
pub(crate) struct Blas {
    gpu: Arc<Gpu>,
    raw: sys::cublasHandle_t,
    /// What the library uses while a product runs.
    workspace: Slice,
    /// How factors are rounded.
    compute: sys::cublasComputeType_t,
}

// SAFETY: only handed to the library, by one thread at a time: callers hold a lock.
unsafe impl Send for Blas {}

/// Elements of workspace that products may need: what the library itself takes on its largest GPUs, 32 MiB.
pub(crate) const WORKSPACE: usize = 8 << 20;

fn check(status: sys::cublasStatus_t, what: &str) -> Result<(), String> {
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(format!("cuBLAS, {what}: {status:?}")),
    }
}

impl Blas {
    /// Whether the library is there.
    pub fn is_present() -> bool {
        // SAFETY: looks for a library and closes it again.
        unsafe { sys::is_culib_present() }
    }

    /// A handle for products in `stream`.
    ///
    /// # Errors
    /// If the library refuses it.
    pub fn new(
        gpu: &Arc<Gpu>,
        stream: &Stream,
        workspace: Slice,
        arithmetic: Arithmetic,
    ) -> Result<Self, String> {
        use sys::cublasComputeType_t as Compute;
        gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the library is there and a context is current; destroyed when the value is dropped.
        check(unsafe { sys::cublasCreate_v2(&mut raw) }, "making a handle")?;
        let compute = match arithmetic {
            Arithmetic::F32 => Compute::CUBLAS_COMPUTE_32F,
            Arithmetic::Tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            Arithmetic::Bf16 => Compute::CUBLAS_COMPUTE_32F_FAST_16BF,
        };
        let blas = Self { gpu: gpu.clone(), raw, workspace, compute };
        // SAFETY: a living handle and a stream of the same context; both types name the runtime's and driver's same stream.
        check(unsafe { sys::cublasSetStream_v2(raw, stream.raw.cast()) }, "setting the stream")?;
        let (start, bytes) = (blas.workspace.address as *mut _, blas.workspace.len * size_of::<f32>());
        // SAFETY: memory of the GPU of so many bytes, which no other stream uses. After the stream, which resets it.
        check(unsafe { sys::cublasSetWorkspace_v2(raw, start, bytes) }, "setting the workspace")?;
        Ok(blas)
    }

    /// Puts a product into the handle's stream. Matrices lie row by row; to the library, which knows columns, they are
    /// turned, and so `Cᵀ = Bᵀ · Aᵀ` is what it computes.
    ///
    /// # Errors
    /// If the library refuses it.
    pub fn multiply(&self, p: &Product, a: Slice, b: Slice, c: Slice) -> Result<(), String> {
        use sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
        let fits = |extent: usize| i32::try_from(extent).map_err(|_| format!("an extent of {extent}"));
        let (rows, columns, depth) = (fits(p.rows)?, fits(p.columns)?, fits(p.depth)?);
        assert!(a.len >= p.rows * p.depth && b.len >= p.depth * p.columns && c.len >= p.rows * p.columns);
        let (of_a, lead_a) = if p.a.turned { (CUBLAS_OP_T, rows) } else { (CUBLAS_OP_N, depth) };
        let (of_b, lead_b) = if p.b.turned { (CUBLAS_OP_T, depth) } else { (CUBLAS_OP_N, columns) };
        let (one, zero) = (1.0f32, 0.0f32);
        let (float, algorithm) = (sys::cudaDataType::CUDA_R_32F, sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT);
        self.gpu.enter()?;
        // SAFETY: a living handle; matrices as long as just asserted; the factors are read before the call returns.
        let status = unsafe {
            sys::cublasGemmEx(
                self.raw,
                of_b,
                of_a,
                columns,
                rows,
                depth,
                (&raw const one).cast(),
                b.address as *const _,
                float,
                lead_b,
                a.address as *const _,
                float,
                lead_a,
                (&raw const zero).cast(),
                c.address as *mut _,
                float,
                columns,
                self.compute,
                algorithm,
            )
        };
        check(status, "a product")
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made by `new`. Nothing can be done about a refusal.
            unsafe { sys::cublasDestroy_v2(self.raw) };
        }
    }
}
