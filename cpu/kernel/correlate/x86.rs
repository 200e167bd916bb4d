//! The tiles compiled for each instruction set of x86-64. The sizes are those of the machine tables: as many sums as
//! leave registers for the weights and one value.

/// The tables of a tier: its features, how words are multiplied, how many elements apart pixels lie, and the numbers of
/// pixels and of sources that tiles have.
macro_rules! tables {
    (
        $features:literal, $product:ty, [$($pixel:ident $distance:literal),*],
        tiles [$($pixels:literal)*], weights [$($sources:literal)*]
    ) => {
        #[target_feature(enable = $features)]
        unsafe fn rows<const ROWS: usize, const VECTORS: usize, const PIXEL: usize>(t: &Tile<'_>) {
            // SAFETY: the CPU has the features; the rest by contract.
            unsafe { tile::tile::<<$product as Product>::Registers, $product, ROWS, VECTORS, PIXEL>(t) }
        }

        #[target_feature(enable = $features)]
        unsafe fn sources<const SOURCES: usize, const VECTORS: usize, const PIXEL: usize>(t: &WeightTile<'_>) {
            // SAFETY: the CPU has the features; the rest by contract.
            unsafe { weight::tile::<<$product as Product>::Registers, $product, SOURCES, VECTORS, PIXEL>(t) }
        }

        struct Table<const VECTORS: usize, const PIXEL: usize>;

        impl<const VECTORS: usize, const PIXEL: usize> Table<VECTORS, PIXEL> {
            const KERNELS: Kernels = Kernels {
                tiles: &[$(rows::<$pixels, VECTORS, PIXEL>),*],
                weights: &[$(sources::<$sources, VECTORS, PIXEL>),*],
            };
        }

        /// The kernels for tiles of `vectors` vectors.
        pub fn kernels(vectors: usize, pixel: Pixel) -> Option<Kernels> {
            match (vectors, pixel) {
                $(
                    (1, Pixel::$pixel) => Some(Table::<1, $distance>::KERNELS),
                    (2, Pixel::$pixel) => Some(Table::<2, $distance>::KERNELS),
                )*
                _ => None,
            }
        }
    };
}

/// AVX2 with FMA: 16 registers; 6 × 2 sums.
pub(super) mod avx2 {
    use super::super::{Kernels, Pixel, Tile, WeightTile, tile, weight};
    use crate::kernel::simd::{Avx2, Product};

    tables!("avx2,fma", Avx2, [One 1, Vector 8], tiles [1 2 3 4 5 6], weights [1 2 3 4]);
}

/// AVX-512F: 32 registers; 14 × 2 sums.
pub(super) mod avx512f {
    use super::super::{Kernels, Pixel, Tile, WeightTile, tile, weight};
    use crate::kernel::simd::{Avx512f, Product};

    tables!("avx512f", Avx512f, [One 1, Vector 16], tiles [1 2 3 4 5 6 7 8 9 10 11 12 13 14], weights [1 2 3 4 5 6 7 8]);
}

/// AVX-512 BF16: as AVX-512F, with words of two bf16 for numbers.
pub(super) mod avx512bf16 {
    use super::super::{Kernels, Pixel, Tile, WeightTile, tile, weight};
    use crate::kernel::simd::{Avx512Bf16, Product};

    tables!(
        "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", Avx512Bf16, [One 1, Vector 16, Half 8],
        tiles [1 2 3 4 5 6 7 8 9 10 11 12 13 14], weights [1 2 3 4 5 6 7 8]
    );
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
