//! The other ceiling: how many bytes a thread moves from and to memory when nothing else hinders it.

/// Bytes that [`triad`] counts for each element: two are read and one is written, as STREAM (McCalpin) counts. What the
/// cache reads of a line before it is overwritten comes on top and is not counted.
pub const TRIAD_BYTES: usize = 3 * size_of::<f32>();

/// `sum = a + factor · b`, element by element, over the shortest of the three; returns the bytes that it moved. The
/// plain loop suffices: memory is slower than the narrowest vectors.
pub fn triad(sum: &mut [f32], a: &[f32], b: &[f32], factor: f32) -> u64 {
    let elements = sum.len().min(a.len()).min(b.len());
    for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
        *sum = a + factor * b;
    }
    (elements * TRIAD_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_triad_is_computed_and_counted() {
        let (a, b): (Vec<f32>, Vec<f32>) = (0..100u8).map(|i| (f32::from(i), f32::from(2 * i + 1))).unzip();
        let mut sum = vec![0.0; 70];
        assert_eq!(triad(&mut sum, &a, &b, 3.0), 70 * 12);
        assert!(sum.iter().enumerate().all(|(i, v)| *v == (7 * i + 3) as f32), "{sum:?}");
    }
}
