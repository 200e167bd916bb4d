//! Short names for content.

use sha2::{Digest, Sha256};

/// Identifies weights: the first 16 hexadecimal digits of the SHA-256 of their little-endian bytes.
pub fn weights_hash(weights: &[f32]) -> String {
    let mut hasher = Sha256::new();
    update(&mut hasher, weights);
    short_hex(&hasher.finalize())
}

/// Adds values to a hash as little-endian bytes.
pub(crate) fn update(hasher: &mut Sha256, values: &[f32]) {
    let mut bytes = Vec::with_capacity(4 * values.len().min(1 << 14));
    for part in values.chunks(1 << 14) {
        bytes.clear();
        bytes.extend(part.iter().flat_map(|value| value.to_le_bytes()));
        hasher.update(&bytes);
    }
}

/// All bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first eight bytes in hexadecimal.
pub(crate) fn short_hex(bytes: &[u8]) -> String {
    hex(&bytes[..bytes.len().min(8)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_bytes() {
        // SHA-256 of nothing, and of the four bytes 00 00 80 3f.
        assert_eq!(weights_hash(&[]), "e3b0c44298fc1c14");
        assert_eq!(weights_hash(&[1.0]), short_hex(&Sha256::digest([0x00, 0x00, 0x80, 0x3f])));
    }

    #[test]
    fn every_bit_counts_also_beyond_a_part() {
        let mut weights = vec![0.25f32; (1 << 14) + 3];
        let before = weights_hash(&weights);
        weights[1 << 14] = -0.25;
        assert_ne!(weights_hash(&weights), before);
        assert_ne!(weights_hash(&[0.0]), weights_hash(&[-0.0]));
    }
}
