//! What a GPU does for a task, as plain data: arrays are places in the device's arena, kernels are names.

use crate::spec::Arithmetic;

/// A part of a device's memory, in elements of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Whether it lies in the workspace of the lane that runs the task, and not in the arena.
    pub workspace: bool,
    /// First element.
    pub start: usize,
    /// Elements.
    pub len: usize,
}

impl Span {
    /// A part of the arena.
    pub fn arena(start: usize, len: usize) -> Self {
        Self { workspace: false, start, len }
    }

    /// A part of the span.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn part(&self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "part {start}..{} of {} elements", start + len, self.len);
        Self { start: self.start + start, len, ..*self }
    }
}

/// What is passed to a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Argument {
    /// A pointer to an array.
    Array(Span),
    /// A pointer to nothing, for an array that does not exist.
    Missing,
    /// `int`.
    Int(i32),
    /// `u32`.
    Word(u32),
    /// `float`.
    Float(f32),
    /// A struct of ints.
    Struct(Vec<i32>),
}

impl From<Span> for Argument {
    fn from(span: Span) -> Self {
        Self::Array(span)
    }
}

impl From<Option<Span>> for Argument {
    fn from(span: Option<Span>) -> Self {
        span.map_or(Self::Missing, Self::Array)
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<bool> for Argument {
    fn from(value: bool) -> Self {
        Self::Int(value.into())
    }
}

impl From<i32> for Argument {
    fn from(value: i32) -> Self {
        Self::Int(value)
    }
}

/// Shapes have at most 2³¹ − 1 elements, so every count fits; what would not becomes the largest int, and no kernel reads
/// that far.
impl From<usize> for Argument {
    fn from(value: usize) -> Self {
        Self::Int(int(value))
    }
}

/// A count or an extent as a kernel's `int`.
pub(crate) fn int(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

impl<const N: usize> From<[usize; N]> for Argument {
    fn from(values: [usize; N]) -> Self {
        Self::Struct(values.into_iter().map(int).collect())
    }
}

/// Threads of a block; `THREADS` of the kernels.
pub(crate) const THREADS: usize = 256;

/// Values that a thread treats; `AHEAD` of the kernels.
const AHEAD: usize = 4;

/// A kernel with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    /// Its name.
    pub kernel: &'static str,
    /// Blocks along x, y and z, of [`THREADS`] threads each.
    pub grid: [u32; 3],
    /// Its arguments.
    pub arguments: Vec<Argument>,
}

/// The arguments of a launch: whatever converts to one, in the order of the kernel's parameters.
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => { vec![$($crate::op::Argument::from($argument)),*] };
}
pub(crate) use arguments;

/// A product of matrices, row by row in memory: `C (rows × columns) = A · B`, and a bias for each column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Product {
    /// A (rows × depth).
    pub a: Matrix,
    /// B (depth × columns).
    pub b: Matrix,
    /// C.
    pub c: Span,
    /// A bias for each column.
    pub bias: Option<Span>,
    /// Extents.
    pub rows: usize,
    /// Extents.
    pub columns: usize,
    /// Terms of each sum.
    pub depth: usize,
}

/// A matrix that lies in memory row by row, or turned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matrix {
    /// Its values.
    pub values: Span,
    /// Whether it lies column by column.
    pub turned: bool,
}

/// What a convolution's sub-task computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// Y from X and W.
    Forward,
    /// dX from dY and W.
    GradActivation,
    /// dW from dY and X.
    GradWeight,
}

/// A convolution, as `struct Convolution` of the kernels has it but for the last field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Geometry {
    /// Images of all chunks of the layer: what one computes, a library computes by the algorithm that it takes for all.
    pub all_images: usize,
    /// Images.
    pub images: usize,
    /// Channels, height and width of X.
    pub input: [usize; 3],
    /// Channels, height and width of Y.
    pub output: [usize; 3],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Rows and columns of padding.
    pub pad: [usize; 2],
    /// Steps.
    pub stride: [usize; 2],
    /// Distances of taps.
    pub dilation: [usize; 2],
    /// Groups.
    pub group: usize,
    /// Whether the channels of all three arrays lie behind the pixels.
    pub channels_last: bool,
}

/// A convolution that a library computes. What the three arrays are depends on the direction; the last is written. In bf16 they
/// are pairs of values ([`Convolve::is_packed`]).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Convolve {
    /// What is computed.
    pub direction: Direction,
    /// Of which shape.
    pub geometry: Geometry,
    /// The first factor: X of Forward, dY of the others.
    pub first: Span,
    /// The second: W, or X of GradWeight.
    pub second: Span,
    /// The result.
    pub result: Span,
    /// The lane's workspace for the library.
    pub workspace: Span,
}

impl Convolve {
    /// Whether arrays are packed, two values of bf16 in a word. That of weights' gradients is to have sums in f32, which the
    /// library gives with arrays of f32 alone, whose values are rounded before; TF32 changes nothing of these.
    pub fn is_packed(direction: Direction, arithmetic: Arithmetic) -> bool {
        arithmetic == Arithmetic::Bf16 && direction != Direction::GradWeight
    }
}

/// One operation of a task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    /// A kernel of ours.
    Launch(Launch),
    /// A copy of a whole array to another of the same length.
    Copy {
        /// What is read.
        from: Span,
        /// What is written.
        to: Span,
    },
    /// A product by cuBLAS.
    Product(Product),
    /// A convolution by cuDNN.
    Convolve(Convolve),
}

impl Op {
    /// A kernel with a thread for each of `count` values.
    pub fn each(kernel: &'static str, count: usize, arguments: Vec<Argument>) -> Self {
        Self::blocks(kernel, [count.div_ceil(THREADS), 1, 1], arguments)
    }

    /// A kernel with a thread for each few of `count` values: those of `for_each`.
    pub fn each_few(kernel: &'static str, count: usize, arguments: Vec<Argument>) -> Self {
        Self::blocks(kernel, [count.div_ceil(THREADS * AHEAD), 1, 1], arguments)
    }

    /// A kernel with so many blocks.
    pub fn blocks(kernel: &'static str, grid: [usize; 3], arguments: Vec<Argument>) -> Self {
        let grid = grid.map(|blocks| u32::try_from(blocks.max(1)).unwrap_or(u32::MAX));
        Self::Launch(Launch { kernel, grid, arguments })
    }

    /// A copy, unless the array lies there already.
    pub fn copy(from: Span, to: Span) -> Vec<Self> {
        if from == to { Vec::new() } else { vec![Self::Copy { from, to }] }
    }
}
