//! The tile of a weight's gradient on AMX: up to 16 sources by two vectors.
//!
//! Sources are the rows of A, pixels its words and the rows of B. The gradients of pixels lie as B wants them. A lies as it
//! should where pixels are neighbours in memory, as the rows of an inner product's weights are; where sources are, as the
//! channels of a pixel, up to 16 runs of 16 pixels are turned round into a buffer first. That takes about twice the time of
//! their products, which run meanwhile, and both together a third of what AVX-512 BF16 needs.

use std::mem::MaybeUninit;

use super::super::{WeightKernel, WeightTile};
use super::{Needs, ROWS, Tiles, WORDS, registers};

/// Most sources of a tile.
pub(in super::super) const MOST_SOURCES: usize = ROWS;

/// Runs of pixels that are turned round together: those of a block of a weight's gradient.
const TOGETHER: usize = 8;

/// Pixels of `B` and the rest, turned round.
#[repr(C, align(64))]
struct Turned(MaybeUninit<[f32; TOGETHER * ROWS * WORDS]>);

/// How A lies.
#[derive(Clone, Copy)]
enum Sources {
    /// Pixels are neighbours: A as it is, its rows so many elements apart.
    Rows(usize),
    /// Sources are neighbours.
    Columns,
}

impl Sources {
    /// How they lie, if either way: `step` is the distance of pixels.
    #[inline(always)]
    fn of(offsets: &[u32], step: usize) -> Option<Self> {
        let first = offsets[0];
        let distance = offsets.get(1).map_or(Some(1), |second| second.checked_sub(first))?;
        let mut steps = offsets.windows(2);
        if !steps.all(|pair| pair[1].wrapping_sub(pair[0]) == distance) {
            return None;
        }
        match (step, distance) {
            (1, distance) => Some(Self::Rows(distance as usize)),
            (_, 1) => Some(Self::Columns),
            _ => None,
        }
    }
}

/// A run of pixels.
#[derive(Clone, Copy)]
struct Run {
    x: *const f32,
    dy: *const f32,
    pixels: usize,
}

/// Runs that await their products.
struct Waiting<'a> {
    runs: [Run; TOGETHER],
    count: usize,
    turned: &'a mut Turned,
}

/// The walk over the pixels of a block: rows of runs.
#[derive(Clone, Copy)]
struct Walk {
    /// Rows, and the distances of rows in the source and in the gradient.
    rows: [usize; 3],
    /// Pixels of a row, and their distances.
    columns: [usize; 3],
}

impl Walk {
    fn of(t: &WeightTile<'_>, pixel: usize) -> Self {
        match t.pixels {
            // A single column is one long row.
            [rows, 1] if pixel == 1 => Self { rows: [1, 0, 0], columns: [rows, t.x_row, t.dy_row] },
            [rows, columns] => Self { rows: [rows, t.x_row, t.dy_row], columns: [columns, pixel, WORDS] },
        }
    }
}

/// The products of the runs that wait.
///
/// # Safety
/// As for [`gradient`], whose shapes are set; the runs were turned round if A lies in columns.
#[inline(always)]
unsafe fn multiply<T: Tiles>(
    tiles: &mut T,
    t: &WeightTile<'_>,
    waiting: &Waiting<'_>,
    (layout, dy_step, two): (Sources, usize, bool),
) {
    let distance = dy_step * size_of::<f32>();
    for (i, run) in waiting.runs[..waiting.count].iter().enumerate() {
        // SAFETY: by contract.
        unsafe {
            let (a, a_distance) = match layout {
                Sources::Rows(distance) => (run.x, distance),
                Sources::Columns => (waiting.turned.0.as_ptr().cast::<f32>().add(i * ROWS * WORDS), WORDS),
            };
            let a_distance = a_distance * size_of::<f32>();
            let second = run.dy.wrapping_add(t.dy_vector);
            if run.pixels == WORDS {
                tiles.load::<4>(a, a_distance);
                tiles.load::<6>(run.dy, distance);
                tiles.dot::<0, 4, 6>();
                if two {
                    tiles.load::<7>(second, distance);
                    tiles.dot::<1, 4, 7>();
                }
            } else {
                tiles.load::<2>(a, a_distance);
                tiles.load::<3>(run.dy, distance);
                tiles.dot::<0, 2, 3>();
                if two {
                    tiles.load::<5>(second, distance);
                    tiles.dot::<1, 2, 5>();
                }
            }
        }
    }
}

/// Computes a tile of `sources` sources by one or two (`two`) vectors; pixels lie `pixel` elements apart in the input.
/// Returns whether it did: not if the sources lie in neither way.
///
/// # Safety
/// The CPU and the process have what `tiles` needs; all pointers of `t` lead to what its fields say; `t.offsets` holds
/// `sources` places.
#[inline(always)]
unsafe fn gradient<T: Tiles>(
    tiles: &mut T,
    t: &WeightTile<'_>,
    sources: usize,
    two: bool,
    pixel: usize,
) -> bool {
    let walk = Walk::of(t, pixel);
    let [columns, x_step, dy_step] = walk.columns;
    let Some(layout) = Sources::of(t.offsets, x_step) else { return false };
    let distance = t.dw_source * size_of::<f32>();
    let mut turned = Turned(MaybeUninit::uninit());
    let none = Run { x: t.x, dy: t.dy, pixels: 0 };
    let mut waiting = Waiting { runs: [none; TOGETHER], count: 0, turned: &mut turned };
    let how = (layout, dy_step, two);
    // SAFETY: by contract; shapes are those of the runs.
    unsafe {
        tiles.configure(Needs::Gradient { sources: sources as u8, short: (columns % WORDS) as u8 });
        if t.add {
            tiles.load::<0>(t.dw, distance);
        } else {
            tiles.zero::<0>();
        }
        if two && t.add {
            tiles.load::<1>(t.dw.add(WORDS), distance);
        } else if two {
            tiles.zero::<1>();
        }
        let x = t.x.add(t.offsets[0] as usize);
        for (row, first) in (0..walk.rows[0]).flat_map(|r| (0..columns).step_by(WORDS).map(move |c| (r, c))) {
            let x = x.add(row * walk.rows[1] + first * x_step);
            let dy = t.dy.add(row * walk.rows[2] + first * dy_step);
            let pixels = WORDS.min(columns - first);
            if matches!(layout, Sources::Columns) {
                let to = waiting.turned.0.as_mut_ptr().cast::<f32>().add(waiting.count * ROWS * WORDS);
                tiles.transpose(x, x_step * size_of::<f32>(), [pixels, sources], to);
            }
            waiting.runs[waiting.count] = Run { x, dy, pixels };
            waiting.count += 1;
            if waiting.count == TOGETHER {
                multiply(tiles, t, &waiting, how);
                waiting.count = 0;
            }
        }
        multiply(tiles, t, &waiting, how);
        tiles.store::<0>(t.dw, distance);
        if two {
            tiles.store::<1>(t.dw.add(WORDS), distance);
        }
    }
    true
}

/// A tile that has more sources than the kernels of another tier: in parts.
///
/// # Safety
/// As for those kernels.
unsafe fn in_parts(t: &WeightTile<'_>, kernels: &[WeightKernel]) {
    let mut dw = t.dw;
    for offsets in t.offsets.chunks(kernels.len()) {
        // SAFETY: by contract; each part has its own rows of sums.
        unsafe { kernels[offsets.len() - 1](&WeightTile { offsets, dw, ..*t }) }
        dw = dw.wrapping_add(offsets.len() * t.dw_source);
    }
}

/// A tile of `SOURCES` sources by `VECTORS` vectors, by the instructions; sources that lie neither way are left to `below`,
/// the kernels of AVX-512 BF16.
///
/// # Safety
/// The tier is available; the rest as for [`gradient`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(in super::super) unsafe fn amxbf16_sources<
    const SOURCES: usize,
    const VECTORS: usize,
    const PIXEL: usize,
>(
    t: &WeightTile<'_>,
    below: &[WeightKernel],
) {
    // SAFETY: by contract.
    unsafe {
        if !gradient(&mut registers(), t, SOURCES, VECTORS == 2, PIXEL) {
            in_parts(t, below);
        }
    }
}

#[cfg(test)]
mod tests;
