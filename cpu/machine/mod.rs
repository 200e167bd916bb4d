//! Every constant that depends on a machine, in one table per instruction-set tier.
//!
//! A constant here decides how fast something is and into how many grains it is cut, never what is computed beyond rounding: it
//! may choose another algorithm, or another order of sums. The cut into grains depends on these constants and on
//! shapes, never on the number of threads, and so do the bits.

use crate::isa::{Isa, Numerics, Precision, Vectors};
use crate::kernel::winograd::Filter;

/// Numbers of a cache line, on every CPU that has a tier.
pub const LINE: usize = 64 / size_of::<f32>();

/// Runs of four products of AMX after which a tile register is stored that nobody wants. Measured on Granite Rapids, what stores
/// registers falls asleep when none was stored for some 620 ns, 32 runs, and then takes 300 ns to wake: 36 runs and a store took 990 ns,
/// 36 runs alone 690, and 36 with a store behind every 16th as well 690. No other store or instruction keeps it awake.
pub const AMX_AWAKE_RUNS: usize = 16;

/// Most runs of a tile of AMX that asks for the lines to which the next tile's sums leave. Measured on Granite Rapids (VGG-16, forward), tiles of
/// 2 runs took 0.76 of the time with it, tiles of 18 and more 1.01 to 1.08.
pub const AMX_FEW_RUNS: usize = 15;

/// The constants of one of Winograd's filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filtering {
    /// Fewest channels on both sides for which it pays.
    pub channels: usize,
    /// Fewest channels of images, which get no gradient, for which it pays forward in f32: `usize::MAX` where that was not measured.
    /// On a Zen 3 forward took 0.71 of the time of tiles with three channels and 3×3 taps, 0.85 with 5×5, with one channel and 5×5 0.9 to 1.04.
    pub fewest_of_images: usize,
    /// Tiles of outputs that are transformed and multiplied together, in f32 and in bf16. A Zen 3, whose second level is too small for the
    /// points of 14 tiles, wants more, so that it reads weights less often. Measured there, two threads, f32: F(4×4, 3×3) of 64 to 512
    /// channels, 14, 28, 42, 60, 84, 120 and 180 tiles: 1, 0.95, 0.92, 0.92, 0.93, 1.03 and 1.1 of the time; F(4×4, 5×5) of LeNet,
    /// cifar10_quick and AlexNet, 14, 28, 42 and 60: 1, 0.91, 0.92 and 0.93; F(2×2, 3×3) of 42 to 112 within 5 %.
    pub tiles: [usize; 2],
    /// Grains that would each transform the same sources, from which on these are transformed in a stage of their own.
    pub staged_parts: usize,
    /// Most tiles of outputs that are multiplied together then.
    pub staged_tiles: usize,
    /// Tiles of a block in ∇W, each of which reads and writes all sums; in bf16 twice as many, of as many bytes.
    pub gradient_tiles: usize,
    /// What it costs to transform an element of the source of ∇W, of what it costs to read or write one in memory.
    pub source_cost: usize,
}

/// The constants of one tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Channels of a block of the blocked layout: the floats of a vector.
    pub channel_block: usize,
    /// Rows of the register tile of a matrix product.
    pub tile_rows: usize,
    /// Columns of the register tile.
    pub tile_columns: usize,
    /// Depth of a packed block: a panel of the tile's rows stays in the first-level cache.
    pub block_depth: usize,
    /// Columns of a packed block: it stays in the second-level cache together with the rows' panels.
    pub block_columns: usize,
    /// Rows of a packed block.
    pub block_rows: usize,
    /// Bytes of packed weights that stay in the first-level cache while the pixels of a grain pass by.
    pub chunk_bytes: usize,
    /// The same where tiles of AMX multiply, whose sums would go to memory and back between chunks: all sources, as a rule. Their
    /// weights stay in the second-level cache. Measured on Granite Rapids, reading them there costs next to nothing: a run of four products
    /// took 19.9 ns with 512 KiB of weights, 19.8 with 16.
    pub chunk_bytes_amx: usize,
    /// Bytes of input that stay in the second-level cache while the tiles of output channels pass by.
    pub strip_bytes: usize,
    /// Bytes of a chunk of the input of 1×1 kernels that stay there while all tiles of a grain go through the chunk, before the next
    /// chunk begins, where there are several; 0 if each tile goes through all chunks. All channels of ResNet-50's last layers do not fit
    /// 512 KiB. Measured on a Zen 3, one and two threads, in shares of ∇W of the same runs: 1024 channels at 14×14 0.86 and 0.83 of the
    /// time, 2048 and 512 at 7×7 0.91 and 0.88, 0.92 and 0.92, 512 at 28×28 1.02.
    pub by_chunk_bytes: usize,
    /// Pixels of a block in a weight's gradient (pairs of them in bf16): their gradients stay in the first-level cache.
    pub gradient_pixels: usize,
    /// Most pixels of a row of such a block. Measured on a Zen 3, rows of 128 and 256 in turn within one run, one and two threads, 1×1 kernels:
    /// at 14×14, where one row has all 196 pixels, 0.82 to 0.94 of the time, at 7×7, 28×28 and 56×56 0.96 to 1.05.
    pub gradient_row_pixels: usize,
    /// Bytes of planes that stay in the second-level cache while the tiles of a weight's gradient pass by.
    pub plane_bytes: usize,
    /// Pairs of pixels of a block in a weight's gradient over planes: their gradients stay in the second-level cache, with what the
    /// taps of a block of channels see. Sums are read and written once for each block, which costs more than loads from the second
    /// level: blocks of 192 pairs (all loads from the first level), 512, 1,024 and 4,096 took 1.41, 1.47, 1.37 and 1.34 of the time of
    /// forward where planes are shared (VGG-16, Granite Rapids), and where they are not 128, 512 and 2,048 1.08, 1.03 and 1.0.
    pub plane_pairs: usize,
    /// Most bytes of the planes of all images of a layer whose grains share them.
    pub plane_shared_bytes: usize,
    /// Fewest tiles of targets of such a layer.
    pub plane_shared_tiles: usize,
    /// Most bytes of shared planes of images that follow each other in a walk.
    pub plane_walk_bytes: usize,
    /// Fewest bytes of an array that is written past the caches, in which little of it would be left for its readers: lines need not be read
    /// before they are written then. Measured on two threads whose third level has 32 MiB, an array read and another written: twice the time
    /// where they fit, 1.0 at 24 to 32 MB, 0.88 to 0.91 from 48 MB on; conv1_1 of VGG-16 (103 MB) on a Zen 3 0.84 to 0.95.
    pub past_bytes: usize,
    /// Most bytes of partial sums of a weight's gradient.
    pub partial_bytes: usize,
    /// F(2×2, 3×3) on vectors.
    pub(crate) winograd_2x3: Filtering,
    /// F(4×4, 3×3).
    pub(crate) winograd_4x3: Filtering,
    /// F(4×4, 5×5), whose transforms save more and pay sooner.
    pub(crate) winograd_4x5: Filtering,
    /// Fewest channels for Winograd's transforms where tiles of AMX multiply: never. Measured on Sapphire Rapids, direct tiles
    /// were 1.2 to 1.5 times as fast as F(2×2, 3×3) at 256 and 512 channels, forward and back (VGG-16, one thread).
    pub winograd_channels_amx: usize,
    /// What the transformed weights of forward, of ∇A and of ∇W cost, to make and to read once for each block of tiles, beside a
    /// product of each of them: so many tiles are multiplied meanwhile, for each number in a word. Measured on a Zen 5: F(4×4, 3×3)
    /// takes 0.85 of the time of F(2×2, 3×3) at 256 channels and 56×56 pixels (VGG-16, 8 images), but 1.7 times as long in f32
    /// at 512 channels and 28×28, and 1.2 times in ∇W in bf16, whose sums are f32, at 128 channels and 28×28 (ResNet-50, 16 images).
    pub winograd_weight_tiles: [usize; 3],
    /// Fewest tiles of outputs of a part of Winograd's ∇W, for each number in a word: as a rule, and where there are fewer grains
    /// than `winograd_part_grains` otherwise. Measured on a Granite Rapids, ∇W beside that by tiles of products, one and two threads:
    /// F(2×2, 3×3) of 256 tiles of 512 channels (ResNet-50's res5) 0.95 with two parts, 0.82 with one; F(4×4, 3×3) of 256 tiles of
    /// 256 channels 1.02 and 0.70. LeNet's conv2 has 256 tiles of 20 and 50 channels: beside four parts eight take 0.82 of the time.
    pub winograd_part_tiles: [usize; 2],
    /// Grains for whose sake Winograd's ∇W has smaller parts. Measured on a Zen 3, one and two threads: 16 instead of 8 take 1.08 and
    /// 1.10 of the time in LeNet's conv2, 1.11 and 1.12 and 1.14 and 1.12 in conv2 and conv3 of cifar10_quick; 4 are as good there, but
    /// a quadrant of many cores would have nothing to share.
    pub winograd_part_grains: usize,
    /// Grains of Winograd's ∇W that would each transform the same sources or gradients, from which on these are transformed in a stage of
    /// their own.
    pub winograd_gradient_staged_parts: usize,
    /// Most tiles of outputs of such a layer. Measured on a Zen 3, two threads, ∇W as a share of forward and ∇A of its time before: 256 and 392
    /// tiles of 512 channels 0.85 to 1.05 and 0.93 to 0.97, 5×5 kernels of GoogLeNet's last layers 0.73 to 1.0, 784 tiles of 256 channels 1.06.
    pub winograd_gradient_staged_tiles: usize,
    /// Most bytes of what is transformed so: it stays in the third-level cache.
    pub winograd_gradient_staged_bytes: usize,
    /// Fewest tiles of target channels of a grain of Winograd's products, for each number in a word: each grain transforms
    /// its sources anew, or reads them from memory, which is to cost little beside the products.
    pub winograd_targets: usize,
    /// Steps of depth of an inner product's forward: a few rows of weights, and so much of the images, stay in the first-level
    /// cache.
    pub inner_depth: usize,
    /// The same in pairs of bf16.
    pub inner_depth_bf16: usize,
    /// Rows of weights that an inner product asks for ahead.
    pub inner_ahead: usize,
    /// Columns of an inner product's gradients that are worked on together: their activations stay in the second level.
    pub inner_columns: usize,
    /// Most elements of an inner product's weight that threads keep in their caches from task to task: a second-level cache of 2 MiB.
    pub inner_kept_elements: usize,
    /// Fewest columns of a grain of an inner product's ∇A: shorter pieces of rows take as long to read.
    pub inner_grain_columns: usize,
    /// Rows of weights of an inner product's ∇A that are worked on together.
    pub inner_rows: usize,
    /// Rows of weights that an inner product of few images works on together in ∇A: they are asked for while as many before
    /// them are multiplied, and sums are read and written once for them.
    pub inner_few_rows: usize,
    /// Most columns of a grain of the same: its sums and the images' numbers stay in the second-level cache. A piece of a row is a stream
    /// of its own, in 4 rows of each array at a time, and longer ones are read and written faster: with the update, pieces of 784 columns
    /// at 42 GB/s by two threads of a Granite Rapids, of 1,568 at 45, of 3,136 and more at 60.
    pub inner_few_columns: usize,
    /// Bytes of the images that are worked on together in its forward: they stay in the first-level cache.
    pub inner_few_bytes: usize,
    /// Most images of a worker's mini-batch for which each of its quadrants finds the gradients of inner products by itself. That
    /// takes two operations for each weight and image of another quadrant, and saves 12 bytes and more for each weight: writing
    /// the quadrant's own gradient, and reading two. So it pays below 6 times the operations that a quadrant does while it moves
    /// a byte, which are 8 to 15 where there are vectors of 16 floats.
    pub step_images: usize,
    /// Fewest weights of such a layer: the gradients of fewer stay in a second-level cache until they are added up.
    pub step_elements: usize,
    /// Grains of a task that is large enough: a few for each thread of a quadrant.
    pub task_grains: usize,
    /// Most grains of the sums of a convolution's ∇W: each reads, or even copies, more than its share of the operands, and
    /// ∇A of the same layer runs beside them.
    pub gradient_grains: usize,
    /// Floating-point operations that are worth a grain of their own.
    pub grain_flops: u64,
    /// Elements of a streaming operation (ReLU, update) that are worth a grain of their own.
    pub grain_elements: usize,
    /// Elements of a strip that is normalised across channels: it stays in the first-level cache.
    pub normalised_elements: usize,
    /// Blocks of channels from which on a normalisation goes through each of them twice before the next, so that what
    /// the first pass read is in a cache: as many as a quadrant has threads to share them.
    pub normalised_planes: usize,
    /// Most grains of a sum over images, each of which needs memory for its part of the sum.
    pub reduction_grains: usize,
    /// Looks for work before a thread goes to sleep, when every thread has a core of its own.
    pub spin_looks: u32,
    /// Most images of which an inner product's weight is updated as ∇A reads it.
    pub passing_images: usize,
    /// Shares at most in which a quadrant's tasks hand out their grains: its threads in groups, of which each finds again in its caches
    /// what it wrote. A thread that has none left looks through all of them.
    pub shares: usize,
}

/// Common to all tiers until measured otherwise: grains of some 10 to 50 microseconds.
const BASE: Machine = Machine {
    channel_block: 1,
    tile_rows: 4,
    tile_columns: 8,
    block_depth: 256,
    block_columns: 512,
    block_rows: 96,
    chunk_bytes: 20 << 10,
    chunk_bytes_amx: 512 << 10,
    strip_bytes: 512 << 10,
    by_chunk_bytes: 0,
    gradient_pixels: 128,
    gradient_row_pixels: 128,
    plane_bytes: 1 << 20,
    plane_pairs: 2048,
    plane_shared_bytes: 64 << 20,
    plane_shared_tiles: 8,
    plane_walk_bytes: 2 << 20,
    past_bytes: 48 << 20,
    partial_bytes: 64 << 20,
    winograd_2x3: Filtering {
        channels: 32,
        fewest_of_images: usize::MAX,
        tiles: [56, 112],
        staged_parts: 3,
        staged_tiles: 128,
        gradient_tiles: 112,
        source_cost: 2,
    },
    winograd_4x3: Filtering {
        channels: 32,
        fewest_of_images: usize::MAX,
        tiles: [14, 28],
        staged_parts: 3,
        staged_tiles: 56,
        gradient_tiles: 56,
        source_cost: 4,
    },
    winograd_4x5: Filtering {
        channels: 16,
        fewest_of_images: usize::MAX,
        tiles: [14, 28],
        staged_parts: 3,
        staged_tiles: 56,
        gradient_tiles: 40,
        source_cost: 8,
    },
    winograd_channels_amx: usize::MAX,
    winograd_weight_tiles: [120, 150, 330],
    winograd_part_tiles: [256, 32],
    winograd_part_grains: 8,
    winograd_gradient_staged_parts: 2,
    winograd_gradient_staged_tiles: 512,
    winograd_gradient_staged_bytes: 32 << 20,
    winograd_targets: 2,
    inner_depth: 256,
    inner_depth_bf16: 512,
    inner_ahead: 8,
    inner_columns: 256,
    inner_kept_elements: 1 << 19,
    inner_grain_columns: 128,
    inner_rows: 64,
    inner_few_rows: 16,
    inner_few_columns: 4096,
    inner_few_bytes: 16 << 10,
    step_images: 32,
    step_elements: 1 << 18,
    task_grains: 32,
    gradient_grains: 16,
    grain_flops: 1 << 20,
    grain_elements: 1 << 14,
    normalised_elements: 1 << 10,
    normalised_planes: 16,
    reduction_grains: 8,
    spin_looks: 2000,
    passing_images: 8,
    shares: 8,
};

/// AVX2: 6 × 16 uses 12 of 16 registers for sums.
const AVX2: Machine = Machine {
    channel_block: 8,
    tile_rows: 6,
    tile_columns: 16,
    grain_flops: 1 << 21,
    by_chunk_bytes: 256 << 10,
    gradient_row_pixels: 256,
    winograd_4x3: Filtering { tiles: [42, 28], fewest_of_images: 2, ..BASE.winograd_4x3 },
    winograd_4x5: Filtering { tiles: [28, 28], fewest_of_images: 2, ..BASE.winograd_4x5 },
    ..BASE
};

/// AVX-512F: 14 × 32 uses 28 of 32 registers for sums.
const AVX512F: Machine = Machine {
    channel_block: 16,
    tile_rows: 14,
    tile_columns: 32,
    block_rows: 112,
    step_images: 64,
    grain_flops: 1 << 21,
    ..BASE
};

impl Machine {
    /// The table of a tier.
    pub const fn of(isa: Isa) -> Self {
        match isa.vectors() {
            Vectors::None => BASE,
            Vectors::Avx2 => AVX2,
            Vectors::Avx512f => AVX512F,
        }
    }

    /// The constants of a filter.
    pub(crate) fn winograd(&self, filter: Filter) -> Filtering {
        match filter {
            Filter::F2x3 => self.winograd_2x3,
            Filter::F4x3 => self.winograd_4x3,
            Filter::F4x5 => self.winograd_4x5,
        }
    }

    /// Fewest channels on both sides for which Winograd's transforms pay with these products.
    pub(crate) fn fewest_for_winograd(numerics: Numerics, filter: Filter) -> usize {
        let machine = Self::of(numerics.isa);
        match (numerics.isa, numerics.precision) {
            (Isa::AmxBf16, Precision::Bf16) => machine.winograd_channels_amx,
            _ => machine.winograd(filter).channels,
        }
    }

    /// Bytes of packed weights of a chunk of sources.
    pub(crate) fn chunk_bytes(&self, numerics: Numerics) -> usize {
        let amx = numerics == Numerics { isa: Isa::AmxBf16, precision: Precision::Bf16 };
        if amx { self.chunk_bytes_amx } else { self.chunk_bytes }
    }

    /// Grains for `flops` operations on `parts` parts that cannot be cut further.
    pub fn grains(&self, flops: u64, parts: usize) -> usize {
        Self::dealt((flops / self.grain_flops) as usize).clamp(1, parts.max(1))
    }

    /// Grains for a streaming operation on `elements`.
    pub fn stream_grains(&self, elements: usize) -> usize {
        Self::dealt(elements.div_ceil(self.grain_elements)).max(1)
    }

    /// So many grains, or a few less that deal out evenly: of three grains one of two threads has two.
    pub fn dealt(grains: usize) -> usize {
        let together = if grains < 4 { 2 } else { 4 };
        if grains < together { grains } else { grains / together * together }
    }
}
