//! The tiles compiled for each instruction set of x86-64. The sizes are those of the machine tables: as many sums as
//! leave registers for the weights and one value.

/// AVX2 with FMA: 16 registers; 6 × 2 sums.
pub(super) mod avx2 {
    use super::super::{Kernels, Pixel, Tile, TileKernel, WeightKernel, WeightTile, tile, weight};
    use crate::kernel::simd::Avx2;

    #[target_feature(enable = "avx2,fma")]
    unsafe fn rows<const ROWS: usize, const VECTORS: usize, const PIXEL: usize>(t: &Tile<'_>) {
        // SAFETY: the CPU has the features; the rest by contract.
        unsafe { tile::tile::<Avx2, Avx2, ROWS, VECTORS, PIXEL>(t) }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn sources<const SOURCES: usize, const VECTORS: usize, const PIXEL: usize>(t: &WeightTile<'_>) {
        // SAFETY: the CPU has the features; the rest by contract.
        unsafe { weight::tile::<Avx2, Avx2, SOURCES, VECTORS, PIXEL>(t) }
    }

    struct Table<const VECTORS: usize, const PIXEL: usize>;

    impl<const VECTORS: usize, const PIXEL: usize> Table<VECTORS, PIXEL> {
        const TILES: [TileKernel; 6] = [
            rows::<1, VECTORS, PIXEL>,
            rows::<2, VECTORS, PIXEL>,
            rows::<3, VECTORS, PIXEL>,
            rows::<4, VECTORS, PIXEL>,
            rows::<5, VECTORS, PIXEL>,
            rows::<6, VECTORS, PIXEL>,
        ];
        const WEIGHTS: [WeightKernel; 4] = [
            sources::<1, VECTORS, PIXEL>,
            sources::<2, VECTORS, PIXEL>,
            sources::<3, VECTORS, PIXEL>,
            sources::<4, VECTORS, PIXEL>,
        ];
        const KERNELS: Kernels = Kernels { tiles: &Self::TILES, weights: &Self::WEIGHTS };
    }

    /// The kernels for tiles of `vectors` vectors.
    pub fn kernels(vectors: usize, pixel: Pixel) -> Option<Kernels> {
        match (vectors, pixel) {
            (1, Pixel::One) => Some(Table::<1, 1>::KERNELS),
            (2, Pixel::One) => Some(Table::<2, 1>::KERNELS),
            (1, Pixel::Vector) => Some(Table::<1, 8>::KERNELS),
            (2, Pixel::Vector) => Some(Table::<2, 8>::KERNELS),
            _ => None,
        }
    }
}

/// AVX-512F: 32 registers; 14 × 2 sums.
pub(super) mod avx512f {
    use super::super::{Kernels, Pixel, Tile, TileKernel, WeightKernel, WeightTile, tile, weight};
    use crate::kernel::simd::Avx512f;

    #[target_feature(enable = "avx512f")]
    unsafe fn rows<const ROWS: usize, const VECTORS: usize, const PIXEL: usize>(t: &Tile<'_>) {
        // SAFETY: the CPU has the feature; the rest by contract.
        unsafe { tile::tile::<Avx512f, Avx512f, ROWS, VECTORS, PIXEL>(t) }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn sources<const SOURCES: usize, const VECTORS: usize, const PIXEL: usize>(t: &WeightTile<'_>) {
        // SAFETY: the CPU has the feature; the rest by contract.
        unsafe { weight::tile::<Avx512f, Avx512f, SOURCES, VECTORS, PIXEL>(t) }
    }

    struct Table<const VECTORS: usize, const PIXEL: usize>;

    impl<const VECTORS: usize, const PIXEL: usize> Table<VECTORS, PIXEL> {
        const TILES: [TileKernel; 14] = [
            rows::<1, VECTORS, PIXEL>,
            rows::<2, VECTORS, PIXEL>,
            rows::<3, VECTORS, PIXEL>,
            rows::<4, VECTORS, PIXEL>,
            rows::<5, VECTORS, PIXEL>,
            rows::<6, VECTORS, PIXEL>,
            rows::<7, VECTORS, PIXEL>,
            rows::<8, VECTORS, PIXEL>,
            rows::<9, VECTORS, PIXEL>,
            rows::<10, VECTORS, PIXEL>,
            rows::<11, VECTORS, PIXEL>,
            rows::<12, VECTORS, PIXEL>,
            rows::<13, VECTORS, PIXEL>,
            rows::<14, VECTORS, PIXEL>,
        ];
        const WEIGHTS: [WeightKernel; 8] = [
            sources::<1, VECTORS, PIXEL>,
            sources::<2, VECTORS, PIXEL>,
            sources::<3, VECTORS, PIXEL>,
            sources::<4, VECTORS, PIXEL>,
            sources::<5, VECTORS, PIXEL>,
            sources::<6, VECTORS, PIXEL>,
            sources::<7, VECTORS, PIXEL>,
            sources::<8, VECTORS, PIXEL>,
        ];
        const KERNELS: Kernels = Kernels { tiles: &Self::TILES, weights: &Self::WEIGHTS };
    }

    /// The kernels for tiles of `vectors` vectors.
    pub fn kernels(vectors: usize, pixel: Pixel) -> Option<Kernels> {
        match (vectors, pixel) {
            (1, Pixel::One) => Some(Table::<1, 1>::KERNELS),
            (2, Pixel::One) => Some(Table::<2, 1>::KERNELS),
            (1, Pixel::Vector) => Some(Table::<1, 16>::KERNELS),
            (2, Pixel::Vector) => Some(Table::<2, 16>::KERNELS),
            _ => None,
        }
    }
}

/// AVX-512 BF16: as AVX-512F, with words of two bf16 for numbers.
pub(super) mod avx512bf16 {
    use super::super::{Kernels, Pixel, Tile, TileKernel, WeightKernel, WeightTile, tile, weight};
    use crate::kernel::simd::{Avx512Bf16, Avx512f};

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn rows<const ROWS: usize, const VECTORS: usize, const PIXEL: usize>(t: &Tile<'_>) {
        // SAFETY: the CPU has the features; the rest by contract.
        unsafe { tile::tile::<Avx512f, Avx512Bf16, ROWS, VECTORS, PIXEL>(t) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn sources<const SOURCES: usize, const VECTORS: usize, const PIXEL: usize>(t: &WeightTile<'_>) {
        // SAFETY: the CPU has the features; the rest by contract.
        unsafe { weight::tile::<Avx512f, Avx512Bf16, SOURCES, VECTORS, PIXEL>(t) }
    }

    struct Table<const VECTORS: usize, const PIXEL: usize>;

    impl<const VECTORS: usize, const PIXEL: usize> Table<VECTORS, PIXEL> {
        const TILES: [TileKernel; 14] = [
            rows::<1, VECTORS, PIXEL>,
            rows::<2, VECTORS, PIXEL>,
            rows::<3, VECTORS, PIXEL>,
            rows::<4, VECTORS, PIXEL>,
            rows::<5, VECTORS, PIXEL>,
            rows::<6, VECTORS, PIXEL>,
            rows::<7, VECTORS, PIXEL>,
            rows::<8, VECTORS, PIXEL>,
            rows::<9, VECTORS, PIXEL>,
            rows::<10, VECTORS, PIXEL>,
            rows::<11, VECTORS, PIXEL>,
            rows::<12, VECTORS, PIXEL>,
            rows::<13, VECTORS, PIXEL>,
            rows::<14, VECTORS, PIXEL>,
        ];
        const WEIGHTS: [WeightKernel; 8] = [
            sources::<1, VECTORS, PIXEL>,
            sources::<2, VECTORS, PIXEL>,
            sources::<3, VECTORS, PIXEL>,
            sources::<4, VECTORS, PIXEL>,
            sources::<5, VECTORS, PIXEL>,
            sources::<6, VECTORS, PIXEL>,
            sources::<7, VECTORS, PIXEL>,
            sources::<8, VECTORS, PIXEL>,
        ];
        const KERNELS: Kernels = Kernels { tiles: &Self::TILES, weights: &Self::WEIGHTS };
    }

    /// The kernels for tiles of `vectors` vectors.
    pub fn kernels(vectors: usize, pixel: Pixel) -> Option<Kernels> {
        match (vectors, pixel) {
            (1, Pixel::One) => Some(Table::<1, 1>::KERNELS),
            (2, Pixel::One) => Some(Table::<2, 1>::KERNELS),
            (1, Pixel::Vector) => Some(Table::<1, 16>::KERNELS),
            (2, Pixel::Vector) => Some(Table::<2, 16>::KERNELS),
            _ => None,
        }
    }
}

/// AMX: up to 16 pixels by two vectors over blocked channels. What has no runs of words, plain planes and gradients of
/// weights, is the affair of AVX-512 BF16, which every CPU with AMX has.
pub(super) mod amxbf16 {
    use super::super::amx::{ROWS, amxbf16 as rows};
    use super::super::{Kernels, Pixel, TileKernel};
    use super::avx512bf16;

    struct Table<const VECTORS: usize>;

    impl<const VECTORS: usize> Table<VECTORS> {
        const TILES: [TileKernel; ROWS] = [
            rows::<1, VECTORS>,
            rows::<2, VECTORS>,
            rows::<3, VECTORS>,
            rows::<4, VECTORS>,
            rows::<5, VECTORS>,
            rows::<6, VECTORS>,
            rows::<7, VECTORS>,
            rows::<8, VECTORS>,
            rows::<9, VECTORS>,
            rows::<10, VECTORS>,
            rows::<11, VECTORS>,
            rows::<12, VECTORS>,
            rows::<13, VECTORS>,
            rows::<14, VECTORS>,
            rows::<15, VECTORS>,
            rows::<16, VECTORS>,
        ];
    }

    /// The kernels for tiles of `vectors` vectors.
    pub fn kernels(vectors: usize, pixel: Pixel) -> Option<Kernels> {
        let below = avx512bf16::kernels(vectors, pixel)?;
        match (vectors, pixel) {
            (1, Pixel::Vector) => Some(Kernels { tiles: &Table::<1>::TILES, ..below }),
            (2, Pixel::Vector) => Some(Kernels { tiles: &Table::<2>::TILES, ..below }),
            _ => Some(below),
        }
    }
}
