//! Rows of a few planes, unfolded: all that a column of a kernel's window sees becomes one run of words.

use std::arch::x86_64::_mm512_mask_storeu_ps;
use std::mem::MaybeUninit;

use super::{ROWS, WORDS};
use crate::kernel::simd::{Avx512Bf16, Avx512f, Simd, turn};
use crate::kernel::words::Narrow;

/// A square of words on its way round.
#[repr(C, align(64))]
struct Square(MaybeUninit<[f32; ROWS * WORDS]>);

/// Writes column after column of some rows: neighbouring rows share a word, `rows.len() / 2` words a column.
///
/// # Safety
/// The tier is available; there is an even number of rows; each has `columns` numbers, and `to` room for as many columns,
/// both rounded up to whole vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(in super::super) unsafe fn amxbf16_unfold(rows: &[*const f32], columns: usize, to: *mut f32) {
    let unit = rows.len() / 2;
    let (mut pairs, mut turned) = (Square(MaybeUninit::uninit()), Square(MaybeUninit::uninit()));
    let [pairs, turned]: [*mut f32; 2] = [pairs.0.as_mut_ptr().cast(), turned.0.as_mut_ptr().cast()];
    for first in (0..columns).step_by(WORDS) {
        for (part, rows) in rows.chunks(2 * ROWS).enumerate() {
            for (i, pair) in rows.chunks_exact(2).enumerate() {
                // SAFETY: the CPU has the instructions, and the rows have whole vectors, by contract.
                unsafe { Avx512Bf16::pairs(pair[0].add(first), pair[1].add(first), pairs.add(i * WORDS)) }
            }
            let count = rows.len() / 2;
            let mask = u16::MAX >> (WORDS - count);
            // SAFETY: as many pairs were made; the square has room, and so has `to` by contract.
            unsafe {
                turn::sixteen(pairs, WORDS * size_of::<f32>(), [count, WORDS], turned);
                for column in 0..WORDS {
                    let words = Avx512f::load(turned.add(column * WORDS));
                    let to = to.add((first + column) * unit + part * ROWS);
                    _mm512_mask_storeu_ps(to, mask, words);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernel::words::word;

    #[test]
    fn columns_of_rows_become_runs() {
        if !Isa::AmxBf16.is_available() {
            println!("skipped: unfolding: this CPU does not have amxbf16");
            return;
        }
        const LEN: usize = 48;
        for (count, columns) in [(2usize, 1usize), (6, 16), (22, 33), (34, 40)] {
            let from: Vec<f32> = (0..count * LEN).map(|i| (i % 251) as f32).collect();
            let rows: Vec<*const f32> = from.chunks(LEN).map(<[f32]>::as_ptr).collect();
            let unit = count / 2;
            let mut to = vec![0.0f32; columns.next_multiple_of(WORDS) * unit];
            // SAFETY: the CPU has the tier; all rows have three vectors, and there is room.
            unsafe { amxbf16_unfold(&rows, columns, to.as_mut_ptr()) };
            for (column, i) in (0..columns * unit).map(|i| (i / unit, i % unit)) {
                let expected = word(from[2 * i * LEN + column], from[(2 * i + 1) * LEN + column]);
                let found = to[column * unit + i];
                assert_eq!(found.to_bits(), expected.to_bits(), "{count} rows: column {column}, word {i}");
            }
        }
    }
}
