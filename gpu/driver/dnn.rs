//! cuDNN's convolutions.

use std::sync::Arc;

use cudarc::cudnn::sys;

use super::{Gpu, Slice, Stream};
use crate::op::{Convolve, Direction, Geometry};
use crate::spec::Arithmetic;

/// Bytes of workspace beyond which an algorithm is not taken, on a GPU with so much memory: all lanes have it. The fast ones of
/// large first layers turn their arrays around there, and without them others take tens of times as long.
fn most_workspace(memory: usize) -> usize {
    (memory / 32).max(512 << 20)
}

/// The version of the library that the bindings are made for: 9.15.1 says 91501.
const MAJOR: usize = 9;

/// Algorithms that are looked at.
const ALGORITHMS: usize = 8;

/// A handle of cuDNN for one stream.
#[derive(Debug)]
pub(crate) struct Dnn {
    gpu: Arc<Gpu>,
    raw: sys::cudnnHandle_t,
}

// SAFETY: only handed to the library, by one thread at a time: callers hold a lock.
unsafe impl Send for Dnn {}

fn check(status: sys::cudnnStatus_t, what: &str) -> Result<(), String> {
    match status {
        sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS => Ok(()),
        status => Err(format!("cuDNN, {what}: {status:?}")),
    }
}

impl Dnn {
    /// Whether the library is there.
    pub fn is_present() -> bool {
        // SAFETY: looks for a library and closes it again.
        unsafe { sys::is_culib_present() }
    }

    /// Its version, such as 91501.
    pub fn version() -> usize {
        // SAFETY: only asked where the library is there; it takes nothing and fails never.
        unsafe { sys::cudnnGetVersion() }
    }

    /// A handle for convolutions in `stream`.
    ///
    /// # Errors
    /// If the library refuses it, as one does that does not fit the driver.
    pub fn new(gpu: &Arc<Gpu>, stream: &Stream) -> Result<Self, String> {
        // Another major version has other codes of failure, which the bindings' type cannot hold.
        let version = Self::version();
        if version / 10_000 != MAJOR {
            return Err(format!("cuDNN {version} was found, but {MAJOR} is needed"));
        }
        gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the library is there and a context is current; destroyed when the value is dropped.
        check(unsafe { sys::cudnnCreate(&mut raw) }, "making a handle")?;
        let dnn = Self { gpu: gpu.clone(), raw };
        // SAFETY: a living handle and a stream of the same context; both types name the runtime's and driver's same stream.
        check(unsafe { sys::cudnnSetStream(raw, stream.raw.cast()) }, "setting the stream")?;
        Ok(dnn)
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made by `new`. Nothing can be done about a refusal.
            unsafe { sys::cudnnDestroy(self.raw) };
        }
    }
}

/// Which algorithm computes a direction.
#[derive(Clone, Copy, Debug)]
enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    GradActivation(sys::cudnnConvolutionBwdDataAlgo_t),
    GradWeight(sys::cudnnConvolutionBwdFilterAlgo_t),
}

/// One direction of a convolution: its shapes in the library's terms, and the algorithm that was chosen.
#[derive(Debug)]
pub(crate) struct Convolver {
    shapes: Shapes,
    algorithm: Algorithm,
    /// Bytes of workspace.
    pub workspace: usize,
}

impl Convolver {
    /// The library's first choice that gives the same bits in every run and does not take too much workspace; `None` if it
    /// has none. For a chunk of a layer's images it is the choice for all of them.
    ///
    /// # Errors
    /// If the library refuses the shapes.
    pub fn new(
        dnn: &Dnn,
        geometry: &Geometry,
        direction: Direction,
        arithmetic: Arithmetic,
    ) -> Result<Option<Self>, String> {
        dnn.gpu.enter()?;
        let whole = Geometry { images: geometry.all_images, ..*geometry };
        let shapes = Shapes::new(&whole, direction, arithmetic)?;
        let is_close = |algorithm| arithmetic != Arithmetic::F32 || is_close(algorithm, geometry.kernel);
        let Some((algorithm, math)) = shapes.choose(dnn, direction, &is_close)? else { return Ok(None) };
        let shapes = if whole == *geometry { shapes } else { Shapes::new(geometry, direction, arithmetic)? };
        // An answer is for products of one kind; those of f32 stay what they must be.
        if arithmetic != Arithmetic::F32 {
            shapes.multiply_by(math)?;
        }
        let workspace = shapes.workspace(dnn, algorithm)?;
        Ok(Some(Self { shapes, algorithm, workspace }))
    }

    /// Puts the convolution into the handle's stream; `first`, `second` and `result` as in `op::Convolve`.
    ///
    /// # Panics
    /// If the workspace is shorter than was said.
    ///
    /// # Errors
    /// If the library refuses it.
    pub fn run(&self, dnn: &Dnn, arrays: [Slice; 3], workspace: Slice) -> Result<(), String> {
        assert!(workspace.len * size_of::<f32>() >= self.workspace, "a workspace as long as was said");
        let [first, second, result] = arrays.map(|slice| slice.address as *mut std::ffi::c_void);
        let (space, bytes) = (workspace.address as *mut std::ffi::c_void, self.workspace);
        let (one, zero) = (&raw const ONE, &raw const ZERO);
        let (one, zero) = (one.cast::<std::ffi::c_void>(), zero.cast::<std::ffi::c_void>());
        let Shapes { x, w, y, convolution } = &self.shapes;
        let (x, w, y, convolution) = (x.0, w.0, y.0, convolution.0);
        dnn.gpu.enter()?;
        // SAFETY: a living handle and living descriptors; arrays of the GPU as long as the descriptors say, since both follow
        // from the layer's shapes; the factors are read before the call returns.
        let status = unsafe {
            match self.algorithm {
                Algorithm::Forward(algorithm) => sys::cudnnConvolutionForward(
                    dnn.raw,
                    one,
                    x,
                    first,
                    w,
                    second,
                    convolution,
                    algorithm,
                    space,
                    bytes,
                    zero,
                    y,
                    result,
                ),
                Algorithm::GradActivation(algorithm) => sys::cudnnConvolutionBackwardData(
                    dnn.raw,
                    one,
                    w,
                    second,
                    y,
                    first,
                    convolution,
                    algorithm,
                    space,
                    bytes,
                    zero,
                    x,
                    result,
                ),
                Algorithm::GradWeight(algorithm) => sys::cudnnConvolutionBackwardFilter(
                    dnn.raw,
                    one,
                    x,
                    second,
                    y,
                    first,
                    convolution,
                    algorithm,
                    space,
                    bytes,
                    zero,
                    w,
                    result,
                ),
            }
        };
        check(status, "a convolution")
    }
}

static ONE: f32 = 1.0;
static ZERO: f32 = 0.0;

/// The descriptors of a convolution.
#[derive(Debug)]
struct Shapes {
    x: Tensor,
    w: Filter,
    y: Tensor,
    convolution: Description,
}

#[derive(Debug)]
struct Tensor(sys::cudnnTensorDescriptor_t);
#[derive(Debug)]
struct Filter(sys::cudnnFilterDescriptor_t);
#[derive(Debug)]
struct Description(sys::cudnnConvolutionDescriptor_t);

// SAFETY: descriptors are plain memory of the library, which nothing changes after they are made.
unsafe impl Send for Shapes {}
// SAFETY: as above.
unsafe impl Sync for Shapes {}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made by `tensor`.
        unsafe { sys::cudnnDestroyTensorDescriptor(self.0) };
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // SAFETY: made by `Shapes::new`.
        unsafe { sys::cudnnDestroyFilterDescriptor(self.0) };
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made by `Shapes::new`.
        unsafe { sys::cudnnDestroyConvolutionDescriptor(self.0) };
    }
}

const FLOAT: sys::cudnnDataType_t = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;

/// The order of a convolution's arrays.
fn order(geometry: &Geometry) -> sys::cudnnTensorFormat_t {
    match geometry.channels_last {
        true => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
        false => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
    }
}

/// An extent as the library has it.
fn int(extent: usize) -> Result<i32, String> {
    i32::try_from(extent).map_err(|_| format!("cuDNN takes no extent of {extent}"))
}

fn tensor(
    numbers: sys::cudnnDataType_t,
    order: sys::cudnnTensorFormat_t,
    images: usize,
    [c, h, w]: [usize; 3],
) -> Result<Tensor, String> {
    let mut raw = std::ptr::null_mut();
    // SAFETY: writes one pointer; destroyed when the value is dropped.
    check(unsafe { sys::cudnnCreateTensorDescriptor(&mut raw) }, "a descriptor")?;
    let tensor = Tensor(raw);
    let (n, c, h, w) = (int(images)?, int(c)?, int(h)?, int(w)?);
    // SAFETY: a living descriptor.
    let status = unsafe { sys::cudnnSetTensor4dDescriptor(raw, order, numbers, n, c, h, w) };
    check(status, "the shape of a blob").map(|()| tensor)
}

impl Shapes {
    fn new(geometry: &Geometry, direction: Direction, arithmetic: Arithmetic) -> Result<Self, String> {
        let packed = Convolve::is_packed(direction, arithmetic);
        let numbers = if packed { sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16 } else { FLOAT };
        use sys::cudnnMathType_t::{CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH, CUDNN_TENSOR_OP_MATH};
        let (g, order) = (geometry, order(geometry));
        let (mut w, mut convolution) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: writes one pointer; destroyed when the value is dropped.
        check(unsafe { sys::cudnnCreateFilterDescriptor(&mut w) }, "a descriptor")?;
        let w = Filter(w);
        let (o, c) = (int(g.output[0])?, int(g.input[0] / g.group)?);
        let [kh, kw] = [int(g.kernel[0])?, int(g.kernel[1])?];
        // SAFETY: a living descriptor.
        let status = unsafe { sys::cudnnSetFilter4dDescriptor(w.0, numbers, order, o, c, kh, kw) };
        check(status, "the shape of a weight")?;
        // SAFETY: as above.
        check(unsafe { sys::cudnnCreateConvolutionDescriptor(&mut convolution) }, "a descriptor")?;
        let convolution = Description(convolution);
        let [ph, pw, sh, sw, dh, dw] =
            [g.pad[0], g.pad[1], g.stride[0], g.stride[1], g.dilation[0], g.dilation[1]].map(int);
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        // SAFETY: a living descriptor.
        let status = unsafe {
            sys::cudnnSetConvolution2dDescriptor(convolution.0, ph?, pw?, sh?, sw?, dh?, dw?, mode, FLOAT)
        };
        check(status, "the windows of a convolution")?;
        let group = int(g.group)?;
        // SAFETY: a living descriptor.
        check(unsafe { sys::cudnnSetConvolutionGroupCount(convolution.0, group) }, "groups")?;
        // By its contract the default lets tensor cores multiply rounded f32 (from A100 on), but not numbers of 16 bits.
        let math = match arithmetic {
            Arithmetic::F32 => CUDNN_FMA_MATH,
            _ if packed => CUDNN_TENSOR_OP_MATH,
            _ => CUDNN_DEFAULT_MATH,
        };
        let (x, y) =
            (tensor(numbers, order, g.images, g.input)?, tensor(numbers, order, g.images, g.output)?);
        let shapes = Self { x, w, y, convolution };
        shapes.multiply_by(math).map(|()| shapes)
    }

    /// Which units may multiply.
    fn multiply_by(&self, math: sys::cudnnMathType_t) -> Result<(), String> {
        // SAFETY: a living descriptor, which no call uses meanwhile.
        check(unsafe { sys::cudnnSetConvolutionMathType(self.convolution.0, math) }, "the precision")
    }

    /// Bytes of workspace that an algorithm needs.
    fn workspace(&self, dnn: &Dnn, algorithm: Algorithm) -> Result<usize, String> {
        let (x, w, y, c) = (self.x.0, self.w.0, self.y.0, self.convolution.0);
        let (raw, mut bytes) = (dnn.raw, 0);
        let to = &raw mut bytes;
        // SAFETY: living descriptors; writes one number.
        let status = unsafe {
            match algorithm {
                Algorithm::Forward(algorithm) => {
                    sys::cudnnGetConvolutionForwardWorkspaceSize(raw, x, w, c, y, algorithm, to)
                }
                Algorithm::GradActivation(algorithm) => {
                    sys::cudnnGetConvolutionBackwardDataWorkspaceSize(raw, w, y, c, x, algorithm, to)
                }
                Algorithm::GradWeight(algorithm) => {
                    sys::cudnnGetConvolutionBackwardFilterWorkspaceSize(raw, x, y, c, w, algorithm, to)
                }
            }
        };
        check(status, "the workspace of an algorithm").map(|()| bytes)
    }

    /// The library's first choice for a direction that can be taken, with the units that multiply then.
    fn choose(
        &self,
        dnn: &Dnn,
        direction: Direction,
        is_close: &dyn Fn(Algorithm) -> bool,
    ) -> Result<Option<(Algorithm, sys::cudnnMathType_t)>, String> {
        let (x, w, y, c) = (self.x.0, self.w.0, self.y.0, self.convolution.0);
        let workspace = most_workspace(dnn.gpu.memory);
        let mut most = ALGORITHMS as i32;
        let mut count = 0;
        macro_rules! first {
            ($answer:ty, $kind:ident, $ask:ident, $workspace:ident, [$one:ident, $two:ident, $three:ident]) => {{
                let mut found = [const { std::mem::MaybeUninit::<$answer>::zeroed() }; ALGORITHMS];
                let first = found.as_mut_ptr().cast();
                // SAFETY: living descriptors; room for as many answers as are asked for.
                let status = unsafe { sys::$ask(dnn.raw, $one, $two, c, $three, most, &mut count, first) };
                check(status, "choosing an algorithm")?;
                most = count.clamp(0, most);
                // SAFETY: the library has written so many.
                let answers = found[..most as usize].iter().map(|answer| unsafe { answer.assume_init_ref() });
                let fits = |a: &$answer| {
                    let mut bytes = 0;
                    // What an answer says of its workspace may be that of another precision than asked for.
                    let (ask, to) = (sys::$workspace, &raw mut bytes);
                    // SAFETY: living descriptors; writes one number.
                    let status = unsafe { ask(dnn.raw, $one, $two, c, $three, a.algo, to) };
                    let same_bits = a.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC;
                    let is_done = is_done(a.status) && is_done(status);
                    let algorithm = Algorithm::$kind(a.algo);
                    let fits = is_done && same_bits && bytes <= workspace && is_close(algorithm);
                    fits.then_some((algorithm, a.mathType))
                };
                answers.into_iter().find_map(fits)
            }};
        }
        Ok(match direction {
            Direction::Forward => first!(
                sys::cudnnConvolutionFwdAlgoPerf_t,
                Forward,
                cudnnGetConvolutionForwardAlgorithm_v7,
                cudnnGetConvolutionForwardWorkspaceSize,
                [x, w, y]
            ),
            Direction::GradActivation => first!(
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                GradActivation,
                cudnnGetConvolutionBackwardDataAlgorithm_v7,
                cudnnGetConvolutionBackwardDataWorkspaceSize,
                [w, y, x]
            ),
            Direction::GradWeight => first!(
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                GradWeight,
                cudnnGetConvolutionBackwardFilterAlgorithm_v7,
                cudnnGetConvolutionBackwardFilterWorkspaceSize,
                [x, y, w]
            ),
        })
    }
}

fn is_done(status: sys::cudnnStatus_t) -> bool {
    status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS
}

/// Whether an algorithm's sums in f32 are as close as those of products. Transforms of kernels of more than 3 × 3 multiply by numbers so
/// large that they lose half of the digits (0.12 of 181 in gradients of a 5 × 5 kernel on an H200, cuDNN 9.19).
fn is_close(algorithm: Algorithm, kernel: [usize; 2]) -> bool {
    use sys::cudnnConvolutionBwdDataAlgo_t as Data;
    use sys::cudnnConvolutionBwdFilterAlgo_t as Filter;
    use sys::cudnnConvolutionFwdAlgo_t as Forward;
    let transforms = match algorithm {
        Algorithm::Forward(algorithm) => algorithm == Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
        Algorithm::GradActivation(algorithm) => {
            algorithm == Data::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED
        }
        Algorithm::GradWeight(algorithm) => {
            algorithm == Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED
        }
    };
    !transforms || kernel.iter().all(|extent| *extent <= 3)
}
