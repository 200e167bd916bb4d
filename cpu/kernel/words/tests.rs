use super::*;

/// Numbers of all kinds: signs, ties, what rounds up to the next exponent, to infinity and to 0, and what is no number.
fn numbers(count: usize) -> Vec<f32> {
    let special = [
        0x3f80_8000, // 1 + 2^-8: a tie, down to even
        0x3f81_8000, // a tie, up to even
        0x3f80_8001,
        0x3f80_7fff,
        0x7f7f_ffff, // the largest number becomes infinity
        0x7f80_0000,
        0xff80_0000,
        0x7f80_0001, // not a number, by its last bit only
        0x0000_0001,
        0x807f_ffff,
        0x0080_0000,
        0x8000_0000,
        0xbfff_ffff,
    ];
    (0..count as u32)
        .map(|i| match special.get(i as usize % 23) {
            Some(bits) => f32::from_bits(*bits),
            None => f32::from_bits(i.wrapping_mul(0x9e37_79b9)),
        })
        .collect()
}

#[test]
fn rounding_is_to_nearest_and_ties_to_even() {
    for number in numbers(4000) {
        let found = widened(rounded(number));
        if number.is_nan() {
            assert!(found.is_nan(), "{number:e}");
        } else if number.abs() < f32::MIN_POSITIVE {
            assert_eq!(found.to_bits(), number.to_bits() & 0x8000_0000, "{number:e}");
        } else if found.is_finite() {
            // Neither neighbour is nearer; of two that are as near, the even one was taken.
            let error = (f64::from(found) - f64::from(number)).abs();
            let bits = rounded(number);
            for other in [bits - 1, bits + 1].map(widened).into_iter().filter(|v| v.is_finite()) {
                let distance = (f64::from(other) - f64::from(number)).abs();
                assert!(error < distance || (error == distance && bits & 1 == 0), "{number:e}");
            }
        } else {
            assert!(number.abs() > widened(0x7f7f), "{number:e}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn instructions_round_as_the_plain_function_does() {
    if !crate::isa::Isa::Avx512Bf16.is_available() {
        println!("skipped: words by instructions: this CPU does not have avx512bf16");
        return;
    }
    let same = |bits: u16, from: f32| bits == rounded(from) || (from.is_nan() && widened(bits).is_nan());
    for count in [1, 2, 15, 16, 31, 32, 33, 64, 77, 2048] {
        let (a, b) = (numbers(count), numbers(3 * count).split_off(2 * count));
        let mut words = vec![f32::NAN; count.div_ceil(2)];
        with_words(Neighbours { from: &a, to: &mut words });
        let found = halves(&mut words);
        assert!(a.iter().zip(&*found).all(|(from, bits)| same(*bits, *from)), "neighbours of {count}");
        assert!(count.is_multiple_of(2) || found[count] == 0);
        let mut words = vec![f32::NAN; count];
        with_words(Pairs { a: &a, b: &b, to: &mut words });
        let found = halves(&mut words);
        let both = a.iter().zip(&b).zip(found.chunks(2));
        assert!(both.clone().all(|((a, b), w)| same(w[0], *a) && same(w[1], *b)), "pairs of {count}");
        with_words(Pairs { a: &a, b: &[], to: &mut words });
        assert!(a.iter().zip(halves(&mut words).chunks(2)).all(|(a, w)| same(w[0], *a) && w[1] == 0));
        let mut back = vec![f32::NAN; 2 * count];
        with_words(Widened { from: &a, to: &mut back });
        let expected = a.iter().flat_map(|word| halves_of(*word)).map(widened);
        assert!(expected.zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()), "{count} words as numbers");
    }
}
