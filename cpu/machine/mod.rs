//! Every constant that depends on a machine, in one table per instruction-set tier.
//!
//! A constant here decides how fast something is and into how many grains it is cut, never what is computed. The
//! cut into grains depends on these constants and on shapes, never on the number of threads.

use crate::isa::Isa;

/// The constants of one tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
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
    /// Floating-point operations that are worth a grain of their own.
    pub grain_flops: u64,
    /// Elements of a streaming operation (ReLU, update) that are worth a grain of their own.
    pub grain_elements: usize,
    /// Most grains of a sum over images, each of which needs memory for its part of the sum.
    pub reduction_grains: usize,
    /// Looks for work before a thread goes to sleep, when every thread has a core of its own.
    pub spin_looks: u32,
}

/// Common to all tiers until measured otherwise: grains of some 10 to 50 microseconds.
const BASE: Machine = Machine {
    tile_rows: 4,
    tile_columns: 8,
    block_depth: 256,
    block_columns: 512,
    block_rows: 96,
    grain_flops: 1 << 20,
    grain_elements: 1 << 14,
    reduction_grains: 8,
    spin_looks: 2000,
};

/// AVX2: 6 × 16 uses 12 of 16 registers for sums.
const AVX2: Machine = Machine { tile_rows: 6, tile_columns: 16, grain_flops: 1 << 21, ..BASE };

/// AVX-512F: 14 × 32 uses 28 of 32 registers for sums.
const AVX512F: Machine =
    Machine { tile_rows: 14, tile_columns: 32, block_rows: 112, grain_flops: 1 << 22, ..BASE };

impl Machine {
    /// The table of a tier.
    pub const fn of(isa: Isa) -> Self {
        match isa {
            Isa::Portable => BASE,
            Isa::Avx2 => AVX2,
            Isa::Avx512f => AVX512F,
        }
    }

    /// Grains for `flops` operations on `parts` parts that cannot be cut further.
    pub fn grains(&self, flops: u64, parts: usize) -> usize {
        ((flops / self.grain_flops) as usize).clamp(1, parts.max(1))
    }
}
