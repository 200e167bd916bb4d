//! Turning a register's worth of words round, by the shuffles of AVX-512 F.

use std::arch::x86_64::*;

use super::{ROWS, WORDS};

/// Turns rows of words round, as [`super::Tiles::transpose`] says: 64 shuffles, whatever the extents.
///
/// # Safety
/// The CPU has AVX-512 F; there are as many rows of words, `distance` bytes apart, and room for 16 rows at `to`.
#[inline(always)]
pub(super) unsafe fn rows_to_columns(
    from: *const f32,
    distance: usize,
    [rows, columns]: [usize; 2],
    to: *mut f32,
) {
    // SAFETY: the CPU has the instructions, and memory is touched as the contract says: words beyond `columns` are not.
    unsafe {
        let mask = u16::MAX >> (WORDS - columns);
        let row = |r: usize| match r < rows {
            true => _mm512_maskz_loadu_ps(mask, from.byte_add(r * distance)),
            false => _mm512_setzero_ps(),
        };
        let r: [__m512; ROWS] = std::array::from_fn(row);
        // Pairs of rows, then quarters of columns of four rows: register 4·g + j holds column 4·l + j of rows 4·g to
        // 4·g + 3 in its quarter l.
        let t: [__m512; ROWS] = std::array::from_fn(|i| match i % 2 {
            0 => _mm512_unpacklo_ps(r[i], r[i + 1]),
            _ => _mm512_unpackhi_ps(r[i - 1], r[i]),
        });
        let wide = |i: usize| _mm512_castps_pd(t[i]);
        let u: [__m512; ROWS] = std::array::from_fn(|i| {
            let (a, b) = (wide(i / 4 * 4 + i % 4 / 2), wide(i / 4 * 4 + i % 4 / 2 + 2));
            _mm512_castpd_ps(if i % 2 == 0 { _mm512_unpacklo_pd(a, b) } else { _mm512_unpackhi_pd(a, b) })
        });
        for j in 0..4 {
            let even = |i: usize| _mm512_shuffle_f32x4::<0x88>(u[i + j], u[i + 4 + j]);
            let odd = |i: usize| _mm512_shuffle_f32x4::<0xdd>(u[i + j], u[i + 4 + j]);
            let columns = [[even(0), even(8)], [odd(0), odd(8)]];
            for (i, [a, b]) in columns.into_iter().enumerate() {
                let to = to.add((4 * i + j) * WORDS);
                _mm512_store_ps(to, _mm512_shuffle_f32x4::<0x88>(a, b));
                _mm512_store_ps(to.add(8 * WORDS), _mm512_shuffle_f32x4::<0xdd>(a, b));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    /// A register's worth of words, as aligned as the kernels' own.
    #[repr(C, align(64))]
    struct Block([f32; ROWS * WORDS]);

    #[target_feature(enable = "avx512f")]
    unsafe fn turned(from: &[f32], distance: usize, extents: [usize; 2], to: &mut Block) {
        // SAFETY: the CPU has the instructions by contract; the callers' rows lie in `from`.
        unsafe { rows_to_columns(from.as_ptr(), distance * size_of::<f32>(), extents, to.0.as_mut_ptr()) }
    }

    #[test]
    fn rows_become_columns() {
        if !Isa::Avx512f.is_available() {
            println!("skipped: turning words round: this CPU does not have avx512f");
            return;
        }
        const DISTANCE: usize = 19;
        for (rows, columns) in (1..=ROWS).flat_map(|r| (1..=WORDS).map(move |c| (r, c))) {
            // Not a word more than may be read.
            let from: Vec<f32> = (0..(rows - 1) * DISTANCE + columns).map(|i| i as f32).collect();
            let mut to = Block([f32::NAN; ROWS * WORDS]);
            // SAFETY: the CPU has the instructions, and `from` the rows.
            unsafe { turned(&from, DISTANCE, [rows, columns], &mut to) };
            for (r, c) in (0..rows * columns).map(|i| (i / columns, i % columns)) {
                assert_eq!(to.0[c * WORDS + r], from[r * DISTANCE + c], "{rows} x {columns}: {r}, {c}");
            }
        }
    }
}
