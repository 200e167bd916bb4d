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
                full: false,
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

    tables!("avx2,fma", Avx2, [One 1, Vector 8], tiles [1 2 3 4 5 6], weights [1 2 3 4 5 6]);
}

/// AVX-512F: 32 registers; 14 × 2 sums.
pub(super) mod avx512f {
    use super::super::{Kernels, Pixel, Tile, WeightTile, tile, weight};
    use crate::kernel::simd::{Avx512f, Product};

    tables!("avx512f", Avx512f, [One 1, Vector 16], tiles [1 2 3 4 5 6 7 8 9 10 11 12 13 14], weights [1 2 3 4 5 6 7 8]);
}

/// AVX-512 BF16: as AVX-512F, with words of two bf16 for numbers.
pub(super) mod avx512bf16 {
    use super::super::{Kernels, Pixel, Tile, WeightKernel, WeightTile, tile, weight};
    use crate::kernel::simd::{Avx512Bf16, Product};

    tables!(
        "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", Avx512Bf16, [One 1, Vector 16, Half 8],
        tiles [1 2 3 4 5 6 7 8 9 10 11 12 13 14], weights [1 2 3 4 5 6 7 8]
    );

    /// The gradients' kernels of one width and one distance of pixels.
    pub fn weights<const VECTORS: usize, const PIXEL: usize>() -> &'static [WeightKernel] {
        Table::<VECTORS, PIXEL>::KERNELS.weights
    }
}

/// AMX: up to 32 pixels by two vectors over blocked channels, and gradients of up to 16 sources. What has no runs of words,
/// plain planes and half a vector of words, is the affair of AVX-512 BF16, which every CPU with AMX has.
pub(super) mod amxbf16 {
    use super::super::amx::{MOST_PIXELS, MOST_SOURCES, amxbf16_pixels, amxbf16_sources};
    use super::super::{Kernels, Pixel, TileKernel, WeightKernel, WeightTile};
    use super::avx512bf16;

    /// # Safety
    /// As for [`amxbf16_sources`].
    unsafe fn sources<const SOURCES: usize, const VECTORS: usize, const PIXEL: usize>(t: &WeightTile<'_>) {
        // SAFETY: by contract.
        unsafe {
            amxbf16_sources::<SOURCES, VECTORS, PIXEL>(t, avx512bf16::weights::<VECTORS, PIXEL>());
        }
    }

    struct Table<const VECTORS: usize, const PIXEL: usize>;

    macro_rules! table {
        ([$($pixels:literal)*], [$($sources:literal)*]) => {
            impl<const VECTORS: usize, const PIXEL: usize> Table<VECTORS, PIXEL> {
                const TILES: [TileKernel; MOST_PIXELS] = [$(amxbf16_pixels::<$pixels, VECTORS>),*];
                const WEIGHTS: [WeightKernel; MOST_SOURCES] = [$(sources::<$sources, VECTORS, PIXEL>),*];
            }
        };
    }

    table!(
        [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32],
        [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16]
    );

    /// The kernels for tiles of `vectors` vectors.
    pub fn kernels(vectors: usize, pixel: Pixel) -> Option<Kernels> {
        let below = avx512bf16::kernels(vectors, pixel)?;
        Some(match (vectors, pixel) {
            (1, Pixel::Vector) => {
                Kernels { tiles: &Table::<1, 16>::TILES, weights: &Table::<1, 16>::WEIGHTS, full: true }
            }
            (2, Pixel::Vector) => {
                Kernels { tiles: &Table::<2, 16>::TILES, weights: &Table::<2, 16>::WEIGHTS, full: true }
            }
            (1, Pixel::One) => Kernels { weights: &Table::<1, 1>::WEIGHTS, full: true, ..below },
            (2, Pixel::One) => Kernels { weights: &Table::<2, 1>::WEIGHTS, full: true, ..below },
            _ => below,
        })
    }
}
