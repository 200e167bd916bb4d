//! Whether all values of an array are finite.

/// Values that are looked at before a look ends early.
const PIECE: usize = 4096;

/// The exponent of a value that is infinite or no number.
const EXPONENT: u32 = 0x7f80_0000;

/// Whether all values are finite. One pass at the bandwidth of memory: comparisons of integers, which every tier has
/// vectors for.
pub fn all_finite(values: &[f32]) -> bool {
    values.chunks(PIECE).all(|piece| !any(piece, |bits| bits & EXPONENT == EXPONENT))
}

/// Whether all values are finite of which each word holds two, in bf16.
pub(crate) fn all_halves_finite(words: &[f32]) -> bool {
    // A bf16 is the upper half of an f32, so both halves have the same exponent at their upper end.
    let half = EXPONENT >> 16;
    words.chunks(PIECE).all(|piece| !any(piece, |bits| (bits & EXPONENT == EXPONENT) | (bits & half == half)))
}

#[inline(always)]
fn any(piece: &[f32], is: impl Fn(u32) -> bool) -> bool {
    // No branch in the loop, so that it takes vectors.
    piece.iter().fold(0, |found, value| found | u32::from(is(value.to_bits()))) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::words::word;

    const BAD: [f32; 4] = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    const GOOD: [f32; 6] = [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45];

    #[test]
    fn one_value_is_found_wherever_it_is() {
        for len in [0, 1, 5, PIECE, PIECE + 3] {
            let mut values: Vec<f32> = (0..len).map(|i| GOOD[i % GOOD.len()]).collect();
            assert!(all_finite(&values));
            for at in [0, len / 2, len.saturating_sub(1)].into_iter().filter(|at| *at < len) {
                for bad in BAD {
                    let good = std::mem::replace(&mut values[at], bad);
                    assert!(!all_finite(&values), "{bad} at {at} of {len}");
                    values[at] = good;
                }
            }
        }
    }

    #[test]
    fn either_half_of_a_word_is_found() {
        let largest = f32::from_bits(0x7f7f_0000);
        assert!(all_halves_finite(&[word(1.0, -2.0), word(largest, -largest), word(0.0, 1e-30)]));
        for bad in BAD {
            assert!(!all_halves_finite(&[word(1.0, 2.0), word(bad, 2.0)]), "{bad}");
            assert!(!all_halves_finite(&[word(1.0, 2.0), word(1.0, bad)]), "{bad}");
        }
    }
}
