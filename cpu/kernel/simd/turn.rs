//! Turning squares of words round, by the shuffles of AVX-512 F and of AVX.
//!
//! Plain loops over registers: in a closure that is not inlined, each instruction would be a call.

use std::arch::x86_64::*;

/// Rows, and words of a row, of the larger square.
const ROWS: usize = 16;
const WORDS: usize = 16;
/// Both of the smaller.
const SIDE: usize = 8;

/// Turns up to 16 rows of up to 16 words round: 64 shuffles, whatever the extents. What is missing becomes 0.
///
/// # Safety
/// The CPU has AVX-512 F; there are as many rows of words, `distance` bytes apart, and room for 16 rows at `to`.
#[inline(always)]
pub(crate) unsafe fn sixteen(from: *const f32, distance: usize, [rows, columns]: [usize; 2], to: *mut f32) {
    // SAFETY: the CPU has the instructions, and memory is touched as the contract says: words beyond `columns` are not.
    unsafe {
        let mask = u16::MAX >> (WORDS - columns);
        let mut r = [_mm512_setzero_ps(); ROWS];
        for (i, row) in r.iter_mut().enumerate().take(rows) {
            *row = _mm512_maskz_loadu_ps(mask, from.byte_add(i * distance));
        }
        // Pairs of rows, then quarters of columns of four rows: register 4·g + j holds column 4·l + j of rows 4·g to
        // 4·g + 3 in its quarter l.
        let (mut t, mut u) = (r, r);
        for i in (0..ROWS).step_by(2) {
            t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
        }
        for i in (0..ROWS).step_by(2) {
            let first = i / 4 * 4 + i % 4 / 2;
            let (a, b) = (_mm512_castps_pd(t[first]), _mm512_castps_pd(t[first + 2]));
            u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
        for j in 0..4 {
            let [a, b] = [u[j], u[4 + j]];
            let [c, d] = [u[8 + j], u[12 + j]];
            let (even, odd) = (
                [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)],
                [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)],
            );
            for (i, [a, b]) in [even, odd].into_iter().enumerate() {
                let to = to.add((4 * i + j) * WORDS);
                _mm512_store_ps(to, _mm512_shuffle_f32x4::<0x88>(a, b));
                _mm512_store_ps(to.add(8 * WORDS), _mm512_shuffle_f32x4::<0xdd>(a, b));
            }
        }
    }
}

/// Turns up to 8 rows of up to 8 words round: 24 shuffles, whatever the extents. What is missing becomes 0.
///
/// # Safety
/// The CPU has AVX; there are as many rows of words, `distance` words apart, and room for 8 rows at `to`.
#[inline(always)]
pub(super) unsafe fn eight(from: *const f32, distance: usize, [rows, columns]: [usize; 2], to: *mut f32) {
    // A window of these has as many set words in front as there are columns.
    const MASKS: [i32; 2 * SIDE] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the CPU has the instructions, and memory is touched as the contract says: words beyond `columns` are not.
    unsafe {
        let mask = _mm256_loadu_si256(MASKS.as_ptr().add(SIDE - columns).cast());
        let mut r = [_mm256_setzero_ps(); SIDE];
        for (i, row) in r.iter_mut().enumerate().take(rows) {
            *row = _mm256_maskload_ps(from.add(i * distance), mask);
        }
        // Pairs of rows, then half columns of four rows: register 4·g + j holds column 4·l + j of rows 4·g to 4·g + 3 in its
        // half l.
        let (mut t, mut u) = (r, r);
        for i in (0..SIDE).step_by(2) {
            t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        }
        for i in (0..SIDE).step_by(2) {
            let first = i / 4 * 4 + i % 4 / 2;
            let (a, b) = (_mm256_castps_pd(t[first]), _mm256_castps_pd(t[first + 2]));
            u[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            u[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
        for j in 0..4 {
            _mm256_storeu_ps(to.add(j * SIDE), _mm256_permute2f128_ps::<0x20>(u[j], u[4 + j]));
            _mm256_storeu_ps(to.add((4 + j) * SIDE), _mm256_permute2f128_ps::<0x31>(u[j], u[4 + j]));
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
        unsafe { sixteen(from.as_ptr(), distance * size_of::<f32>(), extents, to.0.as_mut_ptr()) }
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

    #[target_feature(enable = "avx2")]
    unsafe fn turned_by_eight(from: &[f32], distance: usize, extents: [usize; 2], to: &mut Block) {
        // SAFETY: the CPU has the instructions by contract; the callers' rows lie in `from`.
        unsafe { eight(from.as_ptr(), distance, extents, to.0.as_mut_ptr()) }
    }

    #[test]
    fn eight_rows_become_columns() {
        if !Isa::Avx2.is_available() {
            println!("skipped: turning words round: this CPU does not have avx2");
            return;
        }
        const DISTANCE: usize = 11;
        for (rows, columns) in (1..=SIDE).flat_map(|r| (1..=SIDE).map(move |c| (r, c))) {
            let from: Vec<f32> = (0..(rows - 1) * DISTANCE + columns).map(|i| 1.0 + i as f32).collect();
            let mut to = Block([f32::NAN; ROWS * WORDS]);
            // SAFETY: the CPU has the instructions, and `from` the rows.
            unsafe { turned_by_eight(&from, DISTANCE, [rows, columns], &mut to) };
            for (r, c) in (0..SIDE * SIDE).map(|i| (i / SIDE, i % SIDE)) {
                let expected = if r < rows && c < columns { from[r * DISTANCE + c] } else { 0.0 };
                assert_eq!(to.0[c * SIDE + r], expected, "{rows} x {columns}: {r}, {c}");
            }
        }
    }
}
